"""The causes of failed checks of a run, of what its ranks read, and of its time, see `causes`."""

from collections.abc import Callable
from signal import SIGKILL

from hvdgrade.judge import conditions as measured
from hvdgrade.judge.check import Case
from hvdgrade.judge.parallel_causes import Cause, place, rate, start


def stopped_by(*causes: str) -> Callable[[Case], bool]:
    """Return the condition that a run ended for one of these reasons."""
    return lambda case: case.evidence.observation.stop_cause in causes


def was_killed(case: Case) -> bool:
    """Return whether signal 9 ended the run, which a fault inside a library does not send."""
    return (case.evidence.observation.exit_code or 128 + SIGKILL) == 128 + SIGKILL


SLOW_START = Cause(start, measured.starts_slowly)

# Every rank runs and records.
KILLED = (
    Cause(
        "a crash in a library below Python: read the end of the output",
        lambda case: not was_killed(case),
    ),
    Cause("too little memory: use a smaller batch", was_killed),
    Cause("the script or one of its processes sends a signal: leave that out"),
)
LIMIT = (
    Cause("a loop keeps more in memory in each step", stopped_by("out_of_memory")),
    Cause("the batch is too large", stopped_by("out_of_memory")),
    Cause("a loop starts processes or threads in each step", stopped_by("too_many_processes")),
    Cause(
        "a loader or a library starts many workers: use num_workers=0",
        stopped_by("too_many_processes"),
    ),
    Cause("a loop writes more files in each step", stopped_by("disk_full")),
    Cause("the script saves checkpoints or data: leave that out", stopped_by("disk_full")),
)
OTHER_CORES = (
    Cause(
        "the script or a library sets the affinity of its processes: leave that out, because other "
        "submissions are graded on the other cores"
    ),
    Cause("it starts its own mpirun or horovodrun with a binding of processes"),
)
FLOOD = (
    Cause("it prints in each step: print once per epoch, on rank 0 only"),
    Cause("a loop never ends"),
)
HANG = (
    Cause(
        "a rank stops earlier than the others, for example because of its own accuracy",
        lambda case: not measured.recorded_equally_many(case),
    ),
    Cause("the ranks make unequal numbers of steps", lambda case: not measured.reads_equally(case)),
    Cause("only some ranks make a collective call, for example under 'if rank == 0'"),
)
NOTHING_RECORDED = (
    Cause(
        "recorder.epoch_end(epoch) is not called on every rank after each epoch (Keras: the callback)"
    ),
    Cause("the script ends before its first epoch is over", stopped_by("ended")),
    SLOW_START,
)
RANK_RECORDED_NOTHING = (
    Cause("the recorder is under 'if rank == 0': every rank records its own weights"),
    Cause("a rank ends before its first epoch is over: read its output"),
)
FEW_EPOCHS = (
    Cause("the script trains for too few epochs", stopped_by("ended")),
    SLOW_START,
    Cause("its epochs take too long for the budget", stopped_by("timeout")),
)
OTHER_EPOCHS = (
    Cause(
        "recorder.epoch_end is given a number that differs between the ranks: give it the number of the epoch"
    ),
    Cause(
        "a rank stops earlier than the others, for example because of its own accuracy",
        lambda case: not measured.recorded_equally_many(case),
    ),
)

# What the ranks read.
SHARDS = (
    Cause(place),
    Cause(
        "each rank cuts out its own part of the training set: give Batches the whole set, because two parts "
        "look the same to the grader",
        lambda case: min(e.coverage for e in case.evidence.epochs) < case.rules.min_coverage,
    ),
)
NOTHING_READ = (
    Cause(
        lambda case: f"{case.evidence.script.reader} reads the images: {TRAIN_ON_BATCHES}",
        lambda case: case.evidence.script.reader,
    ),
    Cause("batches.epoch(epoch) and recorder.epoch_end(epoch) are called with different numbers"),
    Cause(lambda case: f"another reader or process reads the images: {TRAIN_ON_BATCHES}"),
)
TRAIN_ON_BATCHES = (
    "train on the batches of the hvdlab Batches that the Recorder is given, in the rank's own process "
    "(num_workers=0)"
)
UNEQUAL_READING = (
    Cause("the script leaves out batches on some ranks: make len(batches) steps on each rank"),
    Cause("each rank cuts out its own part of the training set: give Batches the whole set"),
)
OUTSIDE = (
    Cause("test images or other images were appended: give Batches the training set only"),
    Cause("the Recorder is given other Batches than those that the script trains on"),
)


def reads_nothing_later(case: Case) -> bool:
    """Return whether a later epoch is the first one that reads too little, and it reads nothing."""
    epochs = case.evidence.epochs
    short = next(e for e in epochs if e.coverage < case.rules.min_coverage)
    return short.coverage == 0 and short is not epochs[0]


INCOMPLETE = (
    Cause(
        "it reads the same epoch again: read each epoch by its number, batches.epoch(epoch), because each "
        "has an order of its own",
        reads_nothing_later,
    ),
    Cause(
        "a Keras dataset restarts in each fit: call fit once for all epochs, or make "
        "dataset(batches, first_epoch=epoch)",
        reads_nothing_later,
    ),
    Cause(
        "the script leaves out batches, or records more often than once per pass: an epoch is one pass of "
        "all ranks together, len(batches) steps"
    ),
    Cause("it cuts out a part of the training set before Batches divides it"),
)
TOO_FAST = (
    Cause("the script reads batches without training on them"),
    Cause("it records more often than once per pass"),
)

# The accuracy and its time.
TOO_SLOW = (
    SLOW_START,
    Cause(
        "each rank makes as many steps as a single process: it must make 1/N of them",
        lambda case: not measured.divides_the_work(case),
    ),
    Cause(
        "the batch of a rank is small, so that exchanging gradients takes most of the time: use a larger "
        "batch",
        lambda case: measured.has_small_batches(case) and not measured.trains_at_full_speed(case),
    ),
    Cause(
        "the accuracy needs too many epochs: tune the learning rate, its warmup and its schedule",
        lambda case: not measured.starts_slowly(case),
    ),
    Cause(
        "a step takes longer than it needs to, for example because ranks wait for each other or more threads "
        "run than there are cores: measure its parts (lab 8)",
        lambda case: not measured.trains_at_full_speed(case),
    ),
)
UNSTABLE = (
    Cause("the accuracy is not stable: decrease the learning rate towards the end"),
    Cause("the schedule does not fit the number of epochs: let it end with the last epoch"),
)
TOO_LOW = (
    Cause(rate),
    Cause(
        "there are too few epochs: the accuracy still rises, so train for more epochs within the budget",
        lambda case: measured.still_rises(case) and measured.has_time_left(case),
    ),
    *(
        Cause(
            cause.text,
            lambda case, possible=cause.possible: (
                measured.still_rises(case) and not measured.has_time_left(case) and possible(case)
            ),
        )
        for cause in TOO_SLOW
    ),
    Cause(
        "the accuracy no longer rises: the learning rate is too high at the end, or falls too early",
        lambda case: not measured.still_rises(case),
    ),
)
