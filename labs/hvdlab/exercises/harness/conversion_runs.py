"""The runs of the checks of labs 5 and 11, which convert a script: start it, and read what every check reads.

`runs(script)/STEP` is the folder of a run, for `hvdlab.course.rank_report`.
"""

from dataclasses import dataclass
from pathlib import Path

from hvdlab.course.experiment import QUICK, REFERENCE
from hvdlab.course.rank_report import summary, text
from hvdlab.exercises import NotRun, NotYet, right
from hvdlab.exercises.harness import script_facts
from hvdlab.exercises.harness.script_run import Watched, watch

LIMIT_SECONDS = 120.0  # of one run
LEARNING_RATE = 0.05  # what the checks pass as --lr
IMAGES, HELDOUT = 257, 101  # odd, so that no number of ranks but one divides them
DATA = ("--images", IMAGES, "--batch-size", 32, "--heldout", HELDOUT, "--lr", LEARNING_RATE)
# A check runs each rank as if on a machine of its own, so that it sees which number a script uses.
MACHINES = (
    "The local rank and the local size count on one machine only. Here each rank runs as if on a machine of "
    "its own, with local rank 0."
)
RUN_IN_QUICK = {"metrics"}  # the step that depends on all steps before it


@dataclass(frozen=True)
class Library:
    """The library that a lab converts a script to, as its messages name it.

    Attributes:
        launcher: The program that starts the ranks.
        rank: The call that returns the number of a rank.
        size: The call that returns the number of ranks.
        sums: How a sum over the ranks is made of each of two numbers.
        one_model: What makes the ranks hold identical weights, and its exercise.
        equal_shards: What gives each rank equally many examples.
        by_rank: What the shards need so that the ranks read different examples.
        by_rank_and_size: The same, so that no rank reads all examples.
        one_seed: What the shards of all ranks need so that they do not overlap.
        restart: What to do where weights differ after a restart.
        state: What makes a restarted run continue with the state of the optimizer.
        read: How many examples a rank has read in an epoch.
    """

    launcher: str
    rank: str
    size: str
    sums: str
    one_model: str
    equal_shards: str
    by_rank: str
    by_rank_and_size: str
    one_seed: str
    restart: str
    state: str
    read: str


HOROVOD = Library(
    launcher="mpirun",
    rank="hvd.rank()",
    size="hvd.size()",
    sums="op=hvd.Sum for each",
    one_model="the broadcast of exercise 5",
    equal_shards="Batches(..., rank=..., size=...) gives each rank equally many.",
    by_rank="Batches needs rank=hvd.rank().",
    by_rank_and_size="Batches needs rank=hvd.rank() and size=hvd.size().",
    one_seed="The seed of Batches must be the same on all ranks: args.seed, not seed.",
    restart="broadcast optimizer state and weights after loading, in this order (a rank without a state gets "
    "it by a step, which can change its weights), and make sure that the loaded optimizer averages (Keras: "
    "hvd.load_model).",
    state="In PyTorch hvd.DistributedOptimizer returns an optimizer without a state: load the state into "
    "what it returns. In Keras hvd.load_model loads it.",
    read="len(batches.examples_read(epoch))",
)
TORCH_DISTRIBUTED = Library(
    launcher="torchrun",
    rank="dist.get_rank()",
    size="dist.get_world_size()",
    sums="dist.all_reduce of both",
    one_model="the wrapper of exercise 6",
    equal_shards="DistributedSampler gives each rank equally many.",
    by_rank="DistributedSampler finds the rank by itself, after init_process_group.",
    by_rank_and_size="pass sampler=DistributedSampler(...) to the DataLoader.",
    one_seed="The seed of DistributedSampler must be the same on all ranks: args.seed, not seed.",
    restart="every rank must load the model's weights before DistributedDataParallel wraps it, and the state "
    "of the optimizer, which the wrapper does not send.",
    state="Every rank must load it, before the first step.",
    read="len(sampler)",
)


def runs(script: str | Path) -> Path:
    """Return the folder in which the runs of a script are recorded, one folder per step."""
    path = Path(script)
    return path.with_name(f"{path.stem}_runs")


def run_step(
    step: str,
    script: str | Path,
    *arguments: object,
    ranks: int = 2,
    complain: bool = True,
    disk: Path | None = None,
    launcher: str = "mpirun",
    **variables: str,
) -> Watched:
    """Return the run of a check.

    Args:
        step: The name of the step, and of the folder of the run.
        ranks: The number of ranks.
        complain: Whether a failed or an incomplete run raises NotYet.
        disk: Where the ranks' own folders are. Default: the folder of the run.
        launcher: "mpirun", or "torchrun" for a script of torch.distributed.

    Raises:
        NotYet: With `complain`, the run failed or a rank did not record everything.
        NotRun: In a quick run and in a run that makes the reference results, which leave out most runs.
    """
    if (QUICK or REFERENCE) and step not in RUN_IN_QUICK:
        raise NotRun(step)
    folder = runs(script) / step
    arguments = arguments if "--epochs" in arguments else (*arguments, "--epochs", 2)
    arguments = (*arguments, *DATA)
    options = {"ranks": ranks, "limit": LIMIT_SECONDS, "launcher": launcher}
    run = watch(script, *arguments, folder=folder, disk=disk, **options, **variables)
    if complain:
        refuse_incomplete(run)
    return run


def refuse_incomplete(run: Watched) -> None:
    """Raise NotYet where a run failed, or where a rank did not record everything."""
    if run.failure:
        raise NotYet(run.failure)
    if not all(len(run.lines(rank)) for rank in range(run.ranks)):
        raise NotYet(
            "a rank recorded nothing: every rank needs its Recorder, also one that prints nothing."
        )
    refuse_missing(run)


def print_right(run: Watched, sentence: str) -> None:
    """Print a run's rank report and that the answer is right."""
    print(text(run.report()))
    right(sentence)


def describe_models(run: Watched, two: str, library: Library = HOROVOD) -> str:
    """Return `two` if the ranks' weights differ, else a sentence about a script that has later steps."""
    if summary(run.report())["models"] == 1:
        return f"They hold identical weights: the script already has {library.one_model}."
    return two


def refuse_missing(run: Watched, *names: str) -> None:
    """Raise NotYet where a rank does not record a number that the checks or the plots of the lab read.

    Args:
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
