"""The causes of failed checks: what each one is, what to do about it, and what rules it out.

A help text names the first two causes that the measurements of the same report leave possible. So each check
has a list of causes, the most likely first, and each cause has a condition.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hvdgrade.judge import conditions as measured
from hvdgrade.judge.check import Case
from hvdgrade.judge.libraries import HOROVOD, SILENT_KERAS, library_of


@dataclass(frozen=True)
class Cause:
    """A cause of a failed check.

    Attributes:
        text: what it is and what to do about it; or a function that returns this text for a case.
        possible: whether the evidence of a case leaves the cause possible. Default: always.
    """

    text: str | Callable[[Case], str]
    possible: Callable[[Case], object] = lambda case: True

    def says(self, case: Case) -> str:
        return self.text(case) if callable(self.text) else self.text


def likely(case: Case, *causes: Cause) -> str:
    """Return a help text that names the two most likely causes that the evidence does not rule out.

    Args:
        causes: the most likely one first. At least one of them is always possible.
    """
    said = [cause.says(case) for cause in causes if cause.possible(case)][:2]
    if len(said) == 1:
        return f"Likely cause: {said[0]}"
    return f"Likely causes: (1) {said[0]}; (2) {said[1]}"


def not_averaged(case: Case) -> str:
    """Return why gradients are not averaged, in the words of the library that the script uses."""
    library = library_of(case.evidence.script.imports)
    if library is SILENT_KERAS:
        return library.average
    if library:
        return f"the gradients are not averaged: {library.average}"
    found = measured.rounds(case)
    if found and max(found) >= measured.NO_ROUND:
        return f"the gradients are not averaged: with Horovod, {HOROVOD.average}"
    return (
        "the script never imports Horovod, torch.distributed or mpi4py, so each rank trains a model of its "
        "own"
    )


def broadcast(case: Case) -> str:
    library = library_of(case.evidence.script.imports) or HOROVOD
    return f"the ranks begin with different weights: {library.broadcast}"


def place(case: Case) -> str:
    library = library_of(case.evidence.script.imports) or HOROVOD
    return f"Batches does not get this process's place: give it rank={library.rank}, size={library.size}"


def rate(case: Case) -> str:
    size = (library_of(case.evidence.script.imports) or HOROVOD).size
    return (
        f"the learning rate does not suit the batch of all ranks together: scale it with {size}, and begin "
        "with a warmup"
    )


def compression(case: Case) -> str:
    found = case.evidence.script.compression
    return (
        f"{found or 'a compression'} rounds the gradients before they are averaged: send them as float32, or "
        "use another optimizer, because rounding changes the steps of some optimizers more than those of SGD"
    )


def start(case: Case) -> str:
    later = measured.seconds_of_later_epochs(case)
    times = f" ({case.timeline[0].seconds:.0f} s, a later epoch {later:.0f} s)" if later else ""
    return (
        f"the first epoch is the slow one{times}: start-up and compilation count, so leave out "
        "torch.compile, XLA (jit_compile) and a tf.function that is traced again for each size of batch"
    )


# Ranks train one model, and gradients are exchanged.
NOT_AVERAGED = Cause(not_averaged, lambda case: not measured.exchanges_enough(case))
BEGIN_DIFFERENT = Cause(broadcast, lambda case: not measured.begins_equal(case))
REPLICAS = (
    replace(NOT_AVERAGED, possible=measured.exchanges_little),
    BEGIN_DIFFERENT,
    Cause(
        "something depends on the rank, such as the learning rate or a step under 'if'",
        measured.begins_equal,
    ),
    UNUSED := Cause(
        "what the ranks exchange has no effect on their weights, for example because step() uses other "
        "gradients",
        measured.exchanges_enough,
    ),
    replace(NOT_AVERAGED, possible=lambda case: measured.rounds_per_step(case) is None),
)
EXCHANGE = (
    Cause(
        "the ranks exchange gradients in a way that the grader does not count, such as shared memory or "
        "files: exchange them through Horovod, torch.distributed or MPI messages",
        measured.is_equal_without_messages,
    ),
    Cause(not_averaged, lambda case: not measured.is_equal_without_messages(case)),
    Cause(
        "the script averages less often than in every fourth step",
        lambda case: max(measured.rounds(case) or [1]) >= measured.NO_ROUND,
    ),
)

# The probe.
NOTHING_LEARNED = (
    Cause(
        "the learning rate is zero or very small in the first steps, for example because of a long warmup: "
        "the schedule must begin to learn within the first four steps"
    ),
    Cause(
        "the script leaves out batches that are smaller than it asked for: it must train on every batch"
    ),
)
FLOW = (NOT_AVERAGED, replace(UNUSED, possible=lambda case: not measured.exchanges_little(case)))
UNEQUAL = (
    Cause(
        lambda case: (
            f"the gradients of {', '.join(case.evidence.probe.differing[:3])} are not averaged in each step: "
            "average the gradients of all layers before each step of the optimizer"
        ),
        measured.has_equal_layers,
    ),
    Cause("the script averages different layers in different steps", measured.has_equal_layers),
    Cause(
        "the script averages weights now and then: average gradients in each step",
        lambda case: not measured.has_equal_layers(case),
    ),
    Cause(
        "it averages gradients in some steps only, and trains with a rank's own gradients in the others",
        lambda case: not measured.has_equal_layers(case),
    ),
)
EQUIVALENCE = (
    Cause(
        lambda case: (
            f"{case.evidence.script.adasum} does not average gradients: use op=hvd.Average"
        ),
        lambda case: case.evidence.script.adasum,
    ),
    Cause(
        lambda case: (
            f"{case.evidence.script.reader} reads the images: train on the batches of hvdlab's Batches"
        ),
        lambda case: case.evidence.script.reader,
    ),
    Cause(
        lambda case: (
            f"{case.evidence.script.sum_loss} sums over the images: the loss must be their mean"
        ),
        lambda case: case.evidence.script.sum_loss,
    ),
    Cause(
        lambda case: (
            f"{case.evidence.script.random} makes the runs random: leave out your own augmentation, mixing "
            "of images, noise and dropout"
        ),
        lambda case: case.evidence.script.random,
    ),
    Cause(
        compression,
        lambda case: (
            (case.evidence.script.compression or measured.sends_narrow_numbers(case))
            and measured.may_be_rounding(case)
        ),
    ),
    Cause(
        "the script averages weights now and then: average gradients in each step",
        lambda case: (
            case.evidence.probe.probe.steps > 0
        ),  # weights are seen at the end of epochs only
    ),
    Cause(
        "the loss is not the mean over the images of its batch, or the script leaves out small batches"
    ),
    Cause("the script averages weights after the optimizer's step: average gradients in each step"),
)
TOO_RARE = (
    Cause("the script averages weights now and then instead of gradients in each step"),
    Cause("it averages gradients less often in later steps than in the first ones"),
)
GROWS = (
    Cause(
        "the ranks exchange images or activations instead of gradients: each rank must train on its own "
        "batch, and the number of gradients does not depend on the batch size"
    ),
    Cause("they gather the results of each batch for a metric: exchange the sum or the mean"),
)
PROBE_STOPPED = (
    Cause(
        "it works only with the numbers or the labels of the graded run: the labels are others here"
    ),
    Cause("it works only in float32: the network computes in float64 here"),
)
