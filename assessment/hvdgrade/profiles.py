"""Reads profiles.toml, the one home of every threshold, and says by which rules a verdict is made."""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

import hvdlab
from hvdgrade.record_limits import RecordLimits

GRADER, LABS = Path(__file__).parent, Path(hvdlab.__file__).parent
PROFILES = GRADER / "profiles.toml"  # a link to the one beside the README
# What decides beside the numbers there: whoever changes a line of these changes the rules.
JUDGES = tuple(
    folder / f"{name}.py"
    for folder, names in {
        GRADER: "calibrate grading observe probe views evaluate judge checks parallel jail walls enter "
        "processes submission/script visible gpu_access devices record_limits",
        GRADER / "calibration": "keras torch",
        LABS: "probe_mode record assessment_networks data/batches data/files",
        LABS / "keras": "models wide_resnet throughput device",
        LABS / "torch": "models wide_resnet throughput device",
    }.items()
    for name in names.split()
)


class UnknownProfile(Exception):
    """A profile that profiles.toml does not have."""


@dataclass(frozen=True)
class Profile:
    """One table of profiles.toml together with what is common to all; see there for the units."""

    name: str
    title: str
    devices: str
    network: str
    max_epochs: int
    train_accuracy: float
    heldout_accuracy: float
    consecutive_epochs: int
    budget: float | str
    train_sample: int
    replica_tolerance: float
    max_shared_examples: float
    min_coverage: float
    min_epoch_share: float
    stall_seconds: float
    probe_seconds: float
    min_exchanges: float
    min_exchange_share: float
    min_flow: float
    min_learned: float
    equivalence_tolerance: float
    max_exchange_drop: float
    max_exact_drop: float
    max_exchange_growth: float
    time_margin: float
    accuracy_margin: float
    repeats: int
    evaluation_seconds: float
    max_ranks: int
    points: dict[str, int]
    rules_sha256: str
    budget_serial_epochs: float = 0.0
    calibration_seconds: float = 0.0
    batch_size: int = 0

    @property
    def uses_gpus(self) -> bool:
        """Whether a run gets the GPUs that the grader sees."""
        return self.devices != "processor"

    @property
    def records(self) -> RecordLimits:
        """What a run may record."""
        return RecordLimits.of(self.network, self.max_epochs)


def load(name: str, path: Path = PROFILES) -> Profile:
    """The profile called `name`. Raises UnknownProfile with the names that there are."""
    text = path.read_bytes()
    tables = tomllib.loads(text.decode())
    common, points = tables.pop("common"), tables.pop("points")
    if name not in tables:
        raise UnknownProfile(f"there is no profile '{name}'; {path.name} has: {', '.join(tables)}.")
    return Profile(
        name=name, points=points, rules_sha256=rules_sha256(text), **{**common, **tables[name]}
    )


def rules_sha256(profiles: bytes, judges: tuple[Path, ...] = JUDGES) -> str:
    """The hash of thresholds and judges together: verdicts with unequal ones do not compare."""
    parts = [profiles, *(path.read_bytes() for path in judges)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
