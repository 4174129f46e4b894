"""What the runs of labs 5 and 11 show: shards, printed lines, metrics, checkpoints and restarts.

Each function takes the run of a check. It raises NotYet with the mistake that the run shows.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from hvdlab.course.rank_report import summary
from hvdlab.exercises import NotYet
from hvdlab.exercises.harness.conversion_runs import (
    HELDOUT,
    HOROVOD,
    IMAGES,
    LEARNING_RATE,
    MACHINES,
    Library,
    refuse_missing,
    run_step,
    runs,
)
from hvdlab.exercises.harness.script_run import Watched

HALVED = (
    "the held-out accuracy is half of the true one: it is divided by a count of all images on each rank. "
    "Count only the rank's own images, and "
)


MOST_APART = 0.05  # of two runs of the same epoch, in units of what it changes


def _add_both(library: Library) -> str:
    return f"add up the right answers and the images over the ranks ({library.sums}), then divide."


def check_output_lines(run: Watched, library: Library = HOROVOD) -> None:
    """Demand that rank 0 prints a line in each of two epochs, and rank 1 none."""
    lines = [len(run.epoch_lines(rank)) for rank in range(2)]
    if lines == [2, 2]:
        raise NotYet(
            f"both ranks print a line each epoch: print where {library.rank} == 0 only. {MACHINES}"
        )
    if lines == [0, 2]:
        raise NotYet(
            "rank 1 prints and rank 0 does not: print on rank 0, because every run has it."
        )
    if lines != [2, 0]:
        raise NotYet(
            f"in two epochs rank 0 prints {lines[0]} lines and rank 1 {lines[1]}, not 2 and 0."
        )


def check_shards(run: Watched, library: Library = HOROVOD) -> list[np.ndarray]:
    """Demand that each rank reads its own shard of 257 images, in equally many steps.

    Fewer images than ranks may be left out, so that all shards are equal.

    Returns:
        The indices that each rank read in the first epoch.
    """
    read = [run.examples(rank) for rank in range(2)]
    if not all(map(len, read)):
        raise NotYet(run.failure or "a rank recorded no examples.")
    steps = [run.lines(rank)["steps"].iloc[0] for rank in range(2)]
    overlap, covered = np.isin(read[1], read[0]).mean(), len(np.union1d(*read))
    if steps[0] != steps[1]:
        raise NotYet(
            f"rank 0 makes {steps[0]} steps an epoch and rank 1 makes {steps[1]}: one will wait for "
            f"gradients that never come. {IMAGES} images are sharded as {len(read[0])} and {len(read[1])}: "
            f"{library.equal_shards}"
        )
    if overlap > 0.9 and covered < IMAGES:
        raise NotYet(
            f"both ranks read the same {len(read[0])} images, and no rank reads the others: "
            f"{library.by_rank} {MACHINES}"
        )
    if overlap > 0.9:
        raise NotYet(
            f"both ranks read all {covered} images, in different orders: {library.by_rank_and_size}"
        )
    if overlap > 0.02:
        raise NotYet(
            f"the ranks share {overlap:.0%} of their images: each takes its shard from another permutation. "
            f"{library.one_seed}"
        )
    if covered <= IMAGES - run.ranks:
        raise NotYet(f"{IMAGES - covered} of {IMAGES} images are read by no rank.")
    if run.failure:
        raise NotYet(run.failure)
    check_loss(run, library)
    return read


def check_loss(run: Watched, library: Library = HOROVOD, combined: bool = False) -> None:
    """Demand the mean loss of the images of the first epoch, where PyTorch was observed.

    A mean of the means of all batches may differ a little, because the last batch is smaller.

    Args:
        combined: Whether it must be that of the images of all ranks, and not of the rank.
    """
    trained = [run.trained(rank)[0] for rank in range(run.ranks) if run.trained(rank)]
    if len(trained) < run.ranks:
        return
    together = tuple(np.sum(trained, axis=0))
    for rank, own in enumerate(trained):
        loss = run.lines(rank)["loss"].iloc[0]
        wanted = [together] if combined else [own, together]
        if not any(0.7 < loss / (total / count) < 1.4 for total, count in wanted):
            total, count = wanted[0]
            who = "all ranks" if combined else f"rank {rank}"
            raise NotYet(
                f"rank {rank} reports a loss of {loss:.3f} in epoch 0, but the mean loss of the images of "
                f"{who} is {total / count:.3f}. Divide the sum of the losses by the number of images "
                f"that were read, {count:g}: {library.read} on each rank."
            )


def check_combined_metrics(run: Watched, before: str, library: Library = HOROVOD) -> int:
    """Demand loss and accuracy over the examples of all ranks: each of 101 held-out images counts once.

    Args:
        before: The step whose run trained the same model, and in which each rank counted all images.

    Returns:
        The number of held-out images that are classified right.
    """
    validation = [n for n in ("val_loss", "val_accuracy") if any(n in run.lines(r) for r in (0, 1))]
    refuse_missing(run, "accuracy", *validation)
    last = [run.lines(rank).iloc[-1] for rank in range(2)]
    for name in ("loss", "accuracy", *validation):
        if abs(last[0][name] - last[1][name]) > 1e-6:
            sums = [last[rank][name] * len(run.evaluated(rank)) for rank in range(2)]
            if name != "loss" and sums[0] and abs(sums[0] - sums[1]) < 1e-3:
                raise NotYet(
                    f"{name}: both ranks have the same sum and divide it by the number of their own images: "
                    + _add_both(library)
                )
            raise NotYet(
                f"{name} is {last[0][name]:.4f} on rank 0 and {last[1][name]:.4f} on rank 1. Combine it "
                "over the ranks before any rank prints or records it."
            )
    check_evaluated(run, library)
    check_loss(run, library, combined=True)
    # With accuracies at chance the mean of two means is off by 1e-3 of an image only: check all epochs.
    accuracies = heldout_accuracies(run)
    for accuracy in accuracies:
        check_heldout_accuracy(accuracy, library)
    accuracy = accuracies.iloc[-1]
    count = accuracy * HELDOUT
    folder = runs(run.script)
    earlier = heldout_accuracies(Watched(run.script, folder / before, folder, 2))
    whole = earlier.iloc[-1] * HELDOUT if len(earlier) else 0.0
    if whole > 6 and abs(count - whole / 2) < 2:
        raise NotYet(HALVED + _add_both(library))
    if accuracies.max() > 1 or whole > 6 and abs(count - 2 * whole) < 2:
        raise NotYet(
            f"{round(count)} of {HELDOUT} held-out images right is too many: {_add_both(library)}"
        )
    printed = re.search(r"held-out ([0-9.]+)", (run.epoch_lines(0) or [""])[-1])
    if printed and abs(float(printed[1]) - accuracy) > 0.0006:
        raise NotYet(
            f"the line says {printed[1]} held-out and the record {accuracy:.3f}: the line is printed "
            "before the metrics are combined. Order matters in the list of callbacks."
        )
    return round(count)


def check_writers(run: Watched, library: Library = HOROVOD) -> str:
    """Demand that only rank 0 writes checkpoints.

    Returns:
        The names of the checkpoints.
    """
    wrote = [bool(run.checkpoints(rank)) for rank in range(2)]
    if wrote == [True, True]:
        raise NotYet(
            "both ranks write checkpoints: on a shared disk, into the same file at once. Write where "
            f"{library.rank} == 0. {MACHINES}"
        )
    if wrote != [True, False]:
        who = "rank 1 writes the" if wrote[1] else "no rank writes"
        raise NotYet(f"{who} checkpoints: write them where {library.rank} == 0.")
    return " and ".join(run.checkpoints(0))


def check_restarts(
    script: str | Path, library: Library = HOROVOD, cause: Callable[[], str] = str
) -> None:
    """Demand that a killed run continues after its last checkpoint: on two ranks, then on one.

    Each rank has its own folder, and only rank 0 finds a checkpoint, as on machines without a shared disk.
    """
    disk = runs(script) / "resume"
    shutil.rmtree(disk, ignore_errors=True)
    options = {"disk": disk, "complain": False, "launcher": library.launcher}
    keep = ("--checkpoint", "checkpoints", "--epochs")
    killed = run_step("resume/killed", script, *keep, 1000, HVDLAB_KILL_AFTER="3", **options)
    if not killed.checkpoints(0) or not len(killed.lines(0)):
        raise NotYet(f"there is no checkpoint to resume from: {killed.failure}")
    refuse_missing(killed)
    first, last = killed.lines(0)["loss"].iloc[[0, -1]]
    for ranks, where in ((2, "restarted on two ranks"), (1, "restarted on one rank")):
        if ranks == 2:
            killed.drop_last_checkpoint()
        done = killed.next_epoch()
        run = run_step(f"resume/{ranks}-ranks", script, *keep, done + 3, ranks=ranks, **options)
        first_epochs = [
            int(run.lines(r)["epoch"].iloc[0]) if len(run.lines(r)) else None for r in range(ranks)
        ]
        lonely = run.lonely_broadcast()
        if lonely and run.failure in ("", lonely):
            raise NotYet(f"{where}: {lonely}")
        if first_epochs != [done] * ranks and None not in first_epochs:
            raise NotYet(
                f"{where} after epoch {done - 1}, rank 0 begins with epoch {first_epochs[0]} and the last "
                f"rank with epoch {first_epochs[-1]}. Only rank 0 found the checkpoint: it must tell "
                "the other ranks by a broadcast."
            )
        if run.failure or None in first_epochs:
            raise NotYet(f"{where}: {run.failure or 'a rank recorded nothing.'}{cause()}")
        refuse_missing(run)
        refuse_unequal_rates(run, library)
        if summary(run.report())["models"] > 1:
            raise NotYet(f"{where}, the weights of the ranks differ: {library.restart}")
        read = [run.examples(rank, done) for rank in range(ranks)]
        if (covered := len(np.unique(np.concatenate(read)))) <= IMAGES - ranks:
            raise NotYet(
                f"{where} {covered} of {IMAGES} images are read: the shards need the number of ranks, "
                f"{library.size}, which is {ranks} there."
            )
        if run.lines(0)["loss"].iloc[0] > (first + last) / 2:
            raise NotYet(f"{where} the loss starts at {run.lines(0)['loss'].iloc[0]:.2f} again.")
        check_learning_rate(run, library)
        if ranks == 2:
            refuse_lost_state(killed, run, where, library)


def refuse_lost_state(
    before: Watched, after: Watched, where: str, library: Library = HOROVOD
) -> None:
    """Raise NotYet where the first epoch of a restarted run ends with other weights than before."""
    epoch = int(after.lines(0)["epoch"].iloc[0])
    if not {epoch - 1, epoch} <= set(before.lines(0)["epoch"]):
        return  # no epoch was repeated
    same_images = np.array_equal(before.examples(0, epoch), after.examples(0, epoch))
    apart = before.distance_of_repeated(after, epoch)
    if same_images and apart > MOST_APART:
        raise NotYet(
            f"{where}, epoch {epoch} reads the same images as before and ends with other weights: their "
            f"distance is {apart:.0%} of what the epoch changes. So the optimizer does not continue with "
            f"the state of the checkpoint, such as its momentum. {library.state}"
        )


def refuse_unequal_rates(run: Watched, library: Library = HOROVOD) -> None:
    """Raise NotYet where ranks have different learning rates, which also lets the models drift."""
    rates = [run.lines(rank)["learning_rate"].iloc[-1] for rank in range(run.ranks)]
    if abs(rates[-1] / rates[0] - 1) > 1e-3:
        raise NotYet(
            f"the learning rate is {rates[0]:g} on rank 0 and {rates[-1]:g} on rank {run.ranks - 1}, so the "
            f"ranks make different steps: --lr times {library.size}, which is the same on all ranks."
        )


def check_learning_rate(run: Watched, library: Library = HOROVOD) -> None:
    """Demand a learning rate of `--lr` times the number of ranks on every rank."""
    for rank in range(run.ranks):
        rate = run.lines(rank)["learning_rate"].iloc[-1]
        if abs(rate / (LEARNING_RATE * run.ranks) - 1) > 1e-3:
            raise NotYet(
                f"on {run.ranks} rank{'s' * (run.ranks > 1)} with --lr {LEARNING_RATE:g} the learning rate "
                f"is {rate:g} on rank {rank}, and should be {LEARNING_RATE * run.ranks:g}: --lr times "
                f"{library.size}, once. {MACHINES}"
            )


def check_evaluated(run: Watched, library: Library = HOROVOD) -> None:
    """Demand that the ranks together evaluate each held-out image once, where this was observed."""
    images = [run.evaluated(rank) for rank in range(2)]
    counts, together = [len(some) for some in images], len(set.union(*images))
    if not together:
        return
    way = f"Give each rank every N-th of the first args.heldout images, from {library.rank} on. {MACHINES}"
    if together > HELDOUT:
        raise NotYet(
            f"the ranks evaluate {together} images, and the script was started with --heldout {HELDOUT}: "
            "keep `args.heldout` in the slice."
        )
    if counts == [together] * 2:
        raise NotYet(f"both ranks evaluate the same {together} held-out images. {way}")
    if together < HELDOUT:
        raise NotYet(
            f"{HELDOUT - together} of {HELDOUT} held-out images are evaluated by no rank. {way}"
        )
    if sum(counts) > together:
        raise NotYet(
            f"the ranks evaluate {counts[0]} and {counts[1]} of {together} held-out images, so some count "
            f"twice. {way}"
        )


def check_heldout_accuracy(accuracy: float, library: Library = HOROVOD) -> None:
    """Demand a whole number of right answers of HELDOUT."""
    if abs(accuracy * HELDOUT - round(accuracy * HELDOUT)) < 1e-4:
        return
    if abs(accuracy * 2 * HELDOUT - round(accuracy * 2 * HELDOUT)) < 1e-4:
        raise NotYet(HALVED + _add_both(library))
    raise NotYet(
        f"a held-out accuracy of {accuracy:.6f} would be {accuracy * HELDOUT:.4f} of {HELDOUT} images right. "
        "It is the mean of two means, over 51 and over 50 images: add up sums and counts, then divide."
    )


def choose_gpu(script: str | Path, way: str, library: Library) -> dict:
    """Demand that local rank 1 chooses GPU 1 for its model, on a machine that pretends to have four.

    Args:
        way: What chooses it.

    Returns:
        The choice, see `pretended_gpus`.
    """
    run = run_step(
        "device/gpus", script, ranks=1, complain=False, launcher=library.launcher,
        HVDLAB_PRETENDED_GPUS="4", HVDLAB_LOCAL_RANKS="1",
    )  # fmt: skip
    found = run.chosen_gpu()
    if not found:
        text = ""
        if "not str" in run.failure or "device string" in run.failure:
            text = ' The environment contains texts: int(os.environ["LOCAL_RANK"]).'
        ended = run.failure.rstrip(".") or "the script ends before it uses a GPU"
        raise NotYet(f"on a machine with four GPUs {ended}.{text}")
    if found["model"] != 1:
        uses = "the processor" if found["model"] is None else f"GPU {found['model']}"
        raise NotYet(
            f"on a machine with four GPUs local rank 1 uses {uses}, not GPU 1. Choose the device by {way}. "
            f"{library.rank} would be wrong, too: it counts over all machines, and rank 4, the first one on "
            "the second machine, would look for a fifth GPU."
        )
    return found


def check_sent_state(before: Watched, script: str | Path) -> None:
    """Demand that all ranks resume with the optimizer's state of rank 0, whatever they have themselves.

    In the checkpoint of rank 1 the state becomes another one. Only PyTorch's checkpoints are changed.

    Args:
        before: a run of two epochs with checkpoints. Its second epoch is repeated.
    """
    before.drop_last_checkpoint()
    saved = sorted(before.disk.glob("rank-0/checkpoints/epoch-*.pt"))
    if not saved:
        return
    import torch

    def negated(value: object, is_state: bool = False) -> object:
        if isinstance(value, dict):
            return {key: negated(each, is_state or key == "state") for key, each in value.items()}
        is_momentum = is_state and isinstance(value, torch.Tensor) and value.ndim
        return -value if is_momentum else value

    other = before.disk / "rank-1" / "checkpoints" / saved[-1].name
    other.parent.mkdir(exist_ok=True)
    torch.save(negated(torch.load(saved[-1], map_location="cpu", weights_only=True)), other)
    run = run_step("broadcast/resumed", script, "--checkpoint", "checkpoints", disk=before.disk)
    if summary(run.report())["models"] > 1:
        raise NotYet(
            "the optimizer's state is not broadcast (hvd.broadcast_optimizer_state): when a run resumes, "
            "only rank 0 would have its momentum."
        )
    refuse_lost_state(before, run, "restarted")


def heldout_accuracies(run: Watched) -> pd.Series:
    """Return rank 0's held-out accuracy of each epoch."""
    lines = run.lines(0)
    return lines.get("val_accuracy", lines.get("accuracy", pd.Series(dtype=float)))
