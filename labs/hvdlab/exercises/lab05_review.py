"""Exercise of lab 5: review four patches of a training loop, each tried on simulated ranks."""

import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview
from hvdlab.exercises.harness.simulated_ranks import Deadlock, SimulatedComm, on_simulated_ranks

NETWORKS = 4
MOST = {"ranks": 8, "images": 1000, "heldout": 1000, "epochs": 20}


def train(hvd, train_step, is_right, images, heldout, epochs):
    best = -1.0
    for epoch in range(epochs):
        order = np.random.default_rng([1, epoch]).permutation(images)
        order = order[: images // hvd.size() * hvd.size()]
        mine = order[hvd.rank() :: hvd.size()]
        for start in range(0, len(mine), 4):
            train_step(mine[start : start + 4])  # averages the gradients over the ranks
        right = is_right(np.arange(heldout)[hvd.rank() :: hvd.size()])
        total = hvd.allreduce(np.array([right.sum(), right.size]), op=hvd.Sum)
        accuracy = total[0] / total[1]
        if accuracy <= best:
            break
        best = accuracy
    return best


PATCHES = {
    "a": ("        total = hvd.allreduce(np.array([right.sum(), right.size]), op=hvd.Sum)\n"
          "        accuracy = total[0] / total[1]\n",
          "        accuracy = hvd.allreduce(right.mean(), op=hvd.Average)\n"),
    "b": ("np.random.default_rng([1, epoch])", "np.random.default_rng(1)"),
    "c": ("order = order[: images // hvd.size() * hvd.size()]",
          "order = np.resize(order, -(-images // hvd.size()) * hvd.size())"),
    "d": ("if accuracy <= best:", "if right.mean() <= best:"),
}  # fmt: skip


class SimulatedHorovod:
    """The calls of Horovod that `train` uses, on a simulated rank."""

    Sum, Average = sum, staticmethod(lambda values: sum(values) / len(values))

    def __init__(self, comm: SimulatedComm) -> None:
        self.comm = comm

    def rank(self) -> int:
        """Return the number of this rank."""
        return self.comm.rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self.comm.size

    def allreduce(self, value: object, op: Callable) -> object:
        """Return the sum or the mean of the values of all ranks."""
        return op(self.comm.allgather(value))


def fault(function: Callable, ranks: int, images: int, heldout: int, epochs: int) -> str:
    """Return what is wrong with a training on simulated ranks, for the first network with which it is."""
    texts = (_fault(function, ranks, images, heldout, epochs, seed) for seed in range(NETWORKS))
    with warnings.catch_warnings(action="ignore"):  # of the mean over no image, if a rank has none
        return next(filter(None, texts), "")


def _fault(function, ranks, images, heldout, epochs, seed):
    rights = np.random.default_rng([seed, 5]).random((epochs, heldout)) < 0.6

    def on_rank(comm: SimulatedComm) -> SimpleNamespace:
        read, done = [[]], SimpleNamespace()

        def train_step(numbers: np.ndarray) -> None:
            comm.allgather(None)
            read[-1].extend(numbers.tolist())

        def is_right(numbers: np.ndarray) -> np.ndarray:
            read.append([])
            return rights[len(read) - 2][numbers]

        done.best = function(SimulatedHorovod(comm), train_step, is_right, images, heldout, epochs)
        done.read = read[:-1]
        return done

    try:
        of_ranks = on_simulated_ranks(on_rank, ranks)
    except Deadlock:
        return "A rank waits for ever for the others."
    return _wrong_reads([each.read for each in of_ranks], images) or _wrong_best(
        [each.best for each in of_ranks], rights[: len(of_ranks[0].read)]
    )


def _wrong_reads(read, images):
    """Return what is wrong with the images that the ranks read, [rank][epoch][images]."""
    ranks = len(read)
    for epoch in zip(*read, strict=True):
        counts = np.bincount(
            np.concatenate([np.array(part, int) for part in epoch]), minlength=images
        )
        if (counts == 0).sum() >= ranks or (counts - 1).clip(0).sum() >= ranks:
            return "Images are left out, or are read several times."
    # By chance a rank that has two images may repeat their order, but not all ranks in all epochs.
    if (
        len(read[0]) > 1
        and len(read[0][0]) > 1
        and all(each == each[:1] * len(each) for each in read)
    ):
        return "Each rank reads its images in the same order in every epoch."
    return ""


def _wrong_best(found, rights):
    """Return what is wrong with the best accuracies of the ranks; `rights` is [epoch, image]."""
    best = rights.mean(axis=1).max()
    if not np.allclose(found, best):
        return "A rank reports another accuracy than that of all held-out images."
    return ""


def unusable(**case: int) -> str:
    for name, most in MOST.items():
        if not 1 <= case[name] <= most:
            return f"{name} must be 1 to {most}."
    if found := fault(train, **case):
        return f"train without a patch fails in this case, too. {found} Use another case."
    return ""


TRAIN_REVIEW = PatchReview(
    train,
    PATCHES,
    fault,
    example={"ranks": 2, "images": 16, "heldout": 8, "epochs": 1},
    tried=[
        {"ranks": ranks, "images": images, "heldout": heldout, "epochs": epochs}
        for ranks in (2, 3)
        for images in (16, 33)
        for heldout in (24, 25)
        for epochs in (1, 4)
    ],
    check_case=unusable,
)


def review_train():
    return {
        "a": {"ranks": 2, "images": 16, "heldout": 9, "epochs": 1},
        "b": {"ranks": 2, "images": 16, "heldout": 8, "epochs": 2},
        "c": "correct",
        "d": {"ranks": 2, "images": 16, "heldout": 8, "epochs": 4},
    }


check_review_train = FunctionExercise(
    review_train,
    [Case(())],
    observe=TRAIN_REVIEW.verdicts,
    passed="one patch is correct, and each of the others fails in your case.",
    shape=bool,
)
