"""The runs of lab 5's checks: start the learner's script on some ranks, and read what every check reads.

`runs(script)/STEP` is the folder of a run, for `hvdlab.course.rank_report`.
"""

from pathlib import Path

import pandas as pd

from hvdlab.course.experiment import QUICK, REFERENCE
from hvdlab.course.rank_report import summary, text
from hvdlab.exercises import NotYet, right
from hvdlab.exercises.harness import script_facts
from hvdlab.exercises.harness.script_run import Watched, watch

LIMIT_SECONDS = 120.0  # of one run
LEARNING_RATE = 0.05  # what the checks pass as --lr
IMAGES, HELDOUT = 257, 101  # odd, so that no number of ranks but one divides them
ALL_HELDOUT = 10_000
DATA = ("--images", IMAGES, "--batch-size", 32, "--heldout", HELDOUT, "--lr", LEARNING_RATE)
ADD_BOTH = (
    "add up the right answers and the images over the ranks (op=hvd.Sum for each), then divide."
)
HALVED = (
    "the held-out accuracy is half of the true one: it is divided by a count of all images on each rank. "
    f"Count only the rank's own images, and {ADD_BOTH}"
)
RUN_IN_QUICK = {"metrics"}  # the step that depends on all steps before it


def runs(script: str | Path) -> Path:
    """Return the folder in which the runs of a script are recorded, one folder per step.

    Args:
        script: The path of the script.
    """
    path = Path(script)
    return path.with_name(f"{path.stem}_runs")


def run_step(
    step: str,
    script: str | Path,
    *arguments: object,
    ranks: int = 2,
    complain: bool = True,
    disk: Path | None = None,
    **variables: str,
) -> Watched | None:
    """Return the run of a check, or None in a quick run, which leaves out most runs.

    Args:
        step: The name of the step, and of the folder of the run.
        script: The path of the learner's script.
        *arguments: More arguments of the script.
        ranks: The number of ranks.
        complain: Whether a failed or an incomplete run raises NotYet.
        disk: Where the ranks' own folders are. Default: the folder of the run.
        **variables: Environment variables.

    Raises:
        NotYet: With `complain`, the run failed or a rank did not record everything.
    """
    if (QUICK or REFERENCE) and step not in RUN_IN_QUICK:
        return None
    folder = runs(script) / step
    arguments = arguments if "--epochs" in arguments else (*arguments, "--epochs", 2)
    arguments = (*arguments, *DATA)
    run = watch(
        script, *arguments, folder=folder, disk=disk, ranks=ranks, limit=LIMIT_SECONDS, **variables
    )
    if run.failure and complain:
        raise NotYet(run.failure)
    if complain and not all(len(run.lines(rank)) for rank in range(ranks)):
        raise NotYet(
            "a rank recorded nothing: every rank needs its Recorder, also one that prints nothing."
        )
    if complain:
        refuse_missing(run)
    return run


def print_right(run: Watched | None, sentence: str) -> None:
    """Print a run's rank report and that the answer is right.

    Args:
        run: The run, or None where the script was only read.
        sentence: What was found.
    """
    if run:
        print(text(run.report()))
    right(sentence if run else f"(read only, not run) {sentence}".rstrip())


def describe_models(run: Watched | None, two: str) -> str:
    """Return `two` if the ranks' weights differ, else a sentence about a script that has later steps.

    Args:
        run: The run, or None where the script was only read.
        two: A sentence for weights that differ.
    """
    if run and summary(run.report())["models"] == 1:
        return "They hold identical weights: the script already has the broadcast of exercise 5."
    return two if run else ""


def refuse_missing(run: Watched, *names: str) -> None:
    """Raise NotYet where a rank does not record a number that the checks or the plots of the lab read.

    Args:
        run: The run.
        *names: Numbers that it must record, besides loss, speed and learning rate.
    """
    missing = run.missing("loss", "images_per_second", "learning_rate", *names)
    if not missing:
        return
    rank, name = missing
    advice = "EpochLine must run on every rank, only its print is rank 0's."
    if rank == 0:
        advice = "EpochLine adds it, on every rank, and must be before the Recorder in the list."
    if name not in ("images_per_second", "learning_rate"):
        advice = "fit needs the same metrics and validation_data on every rank."
    if script_facts.read(run.script).imported("hvdlab.torch"):
        advice = f"recorder.epoch_end(..., {name}=...) must get it on every rank."
    raise NotYet(f"rank {rank} records no {name}: {advice}")


def check_learning_rate(run: Watched) -> None:
    """Demand a learning rate of `--lr` times the number of ranks on every rank.

    Args:
        run: The run.
    """
    for rank in range(run.ranks):
        rate = run.lines(rank)["learning_rate"].iloc[-1]
        if abs(rate / (LEARNING_RATE * run.ranks) - 1) > 1e-3:
            raise NotYet(
                f"on {run.ranks} rank{'s' * (run.ranks > 1)} with --lr {LEARNING_RATE:g} the learning rate "
                f"is {rate:g} on rank {rank}, and should be {LEARNING_RATE * run.ranks:g}: --lr times "
                "hvd.size(), once."
            )


def check_heldout_accuracy(accuracy: float) -> None:
    """Demand a whole number of right answers of HELDOUT; name what else the accuracy is a fraction of.

    Args:
        accuracy: A held-out accuracy that a rank recorded.
    """

    def is_of(images: int, tolerance: float = 1e-4) -> bool:
        return abs(accuracy * images - round(accuracy * images)) < tolerance

    if is_of(HELDOUT):
        return
    if is_of(2 * HELDOUT):
        raise NotYet(HALVED)
    case = f"a held-out accuracy of {accuracy:.6f} is one of"
    if is_of(102):
        raise NotYet(
            f"{case} 102 images: both ranks evaluate one of {HELDOUT}, so that they have equally many. Give "
            "each rank every size-th."
        )
    if is_of(ALL_HELDOUT, 2e-3) and not is_of(2 * 51 * 50, 2e-3):
        raise NotYet(
            f"{case} all {ALL_HELDOUT} images, and the script was started with --heldout {HELDOUT}: keep "
            "`args.heldout` in the slice."
        )
    means = "mean of two means, over 51 and over 50 images: add up sums and counts, then divide."
    if is_of(100):
        raise NotYet(
            f"{case} 100 images, and there are {HELDOUT}: with {HELDOUT} // 2 for each no rank evaluates "
            f"the last one. Give each rank every size-th. (Or it is the {means})"
        )
    raise NotYet(
        f"a held-out accuracy of {accuracy:.6f} would be {accuracy * HELDOUT:.4f} of {HELDOUT} images right. "
        f"It is the {means}"
    )


def heldout_accuracies(run: Watched) -> pd.Series:
    """Return rank 0's held-out accuracy of each epoch.

    Args:
        run: The run.
    """
    lines = run.lines(0)
    return lines.get("val_accuracy", lines.get("accuracy", pd.Series(dtype=float)))
