"""What a run left behind, as data types."""

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

# Why a run ended. "ended" means that the run ended by itself with exit code 0.
STOP_CAUSES = (
    *("ended", "crashed", "killed", "timeout", "hang", "output_flood"),
    *("out_of_memory", "too_many_processes", "disk_full", "took_more_cores"),
)

LEAST_OWN_FRACTION = 0.05  # of the processor time, so that no speed is infinite


@dataclass(frozen=True)
class OtherWork:
    """The processor time that other programs took from a run, see `hvdgrade.run.other_work`.

    Attributes:
        seconds: processor time in seconds, added up over all processors.
        fraction: the same relative to all processor time there was, 0..1; None if it was not measured.
        unknown: why it was not measured, as the end of a sentence.
    """

    seconds: float = 0.0
    fraction: float | None = None
    unknown: str = ""


@dataclass
class Weights:
    """One rank's weights after one epoch: where the copy lies and when the original appeared.

    On a busy machine the grader finds them late, so it also keeps how many bytes the ranks had sent when it
    looked and did not find them yet.
    """

    rank: int
    epoch: int
    seconds: float  # since launch, on the grader's clock
    path: Path
    sha256: str
    bytes_on_wire: int | None = None  # between the ranks, since launch; None where not known
    bytes_before: int = 0  # ... when the weights were not there yet


@dataclass
class Observation:
    """All that was seen of one run."""

    ranks: int
    started: float = 0.0  # CLOCK_MONOTONIC at launch
    stop_cause: str = "ended"
    exit_code: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    computed: dict[int, float] = field(default_factory=dict)  # rank -> its processor seconds
    devices: list[str] = field(
        default_factory=list
    )  # of each rank, see `hvdgrade.run.rank_devices`
    max_rss_bytes: int = 0
    weights: list[Weights] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # files that are not what they should be
    torch_seen: bool = False  # one of its processes had PyTorch loaded
    bytes_on_wire: int | None = None
    copied_bytes: int = 0  # of weights
    free_bytes: float = inf  # least seen on the disk that the run needs
    output: str = ""
    output_bytes: int = 0
    stacks: dict[int, str] = field(default_factory=dict)  # Python stacks of a hanging run
    survivors: int = 0
    other_work: OtherWork = OtherWork()

    def of(self, rank: int) -> dict[int, Weights]:
        """The weights of one rank: epoch -> weights."""
        return {w.epoch: w for w in self.weights if w.rank == rank}


@dataclass(frozen=True)
class ProbeForm:
    """A form of the probe, for scripts that do not suit its usual one.

    Attributes:
        steps: steps of an epoch, for a script that writes the record itself, or whose weights move late.
            Default 0: as in the graded run.
        bits: precision of the networks, 64 or 32. Default None: 64 unless batches are too large for that.
        in_turns_of: an earlier probe: its first run is kept, and the second run is repeated with the copies
            of a batch in turns, see `hvdlab.probe_mode`. Default: none.
    """

    steps: int = 0
    bits: int | None = None
    in_turns_of: "Probe | None" = None


@dataclass
class Probe:
    """The files to compare: for each run, the number of steps done -> one file of weights per rank.

    Attributes:
        batch_size: batch size per rank in the graded run.
        steps: steps of an epoch; 0 if epochs are as long as in the graded run.
        bits: precision of the networks, 64 or 32.
        runs: the files of each run, "apart" and "together".
        seen: what was observed of each run.
        failed: the run that failed; None if both succeeded.
        views_enforced: whether a rank could not read the data of another rank.
    """

    batch_size: int = 0
    steps: int = 0
    bits: int = 64
    runs: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    seen: dict[str, Observation] = field(default_factory=dict)
    failed: Observation | None = None
    views_enforced: bool = True


@dataclass(frozen=True)
class Calibration:
    """The seconds from launch to the first finished step, and the training images/s of each process.

    `other_work` is what other programs took meanwhile. The budget follows from the speed without them:
    a busy machine must not give a submission more time.
    """

    framework: str
    startup_seconds: float
    images_per_second: list[float]
    other_work: OtherWork = OtherWork()

    @property
    def own_fraction(self) -> float:
        """Return the fraction of the processor time that other programs left to the calibration."""
        return max(LEAST_OWN_FRACTION, 1 - (self.other_work.fraction or 0.0))

    @property
    def serial_rate(self) -> float:
        """Return the images/s of one of the N processes, without the other programs.

        It is the mean of all processes, because what slows one of them may slow another one next time.
        """
        return sum(self.images_per_second) / len(self.images_per_second) / self.own_fraction

    def budget(self, examples: int, epochs: float) -> float:
        """Return the seconds that a single process needs for `epochs` passes over `examples` examples."""
        return self.startup_seconds * self.own_fraction + epochs * examples / self.serial_rate
