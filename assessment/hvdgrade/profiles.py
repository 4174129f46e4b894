"""Read profiles.toml, which holds every threshold, and identify the rules by which a verdict is made."""

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.record_limits import RecordLimits

PROFILES = Path(__file__).with_name("profiles.toml")  # a link to the file next to the README


class UnknownProfile(HvdgradeError):
    """profiles.toml has no such profile. The message lists the profiles that it has."""


@dataclass(frozen=True)
class Profile:
    """One table of profiles.toml together with the values common to all; units are explained there."""

    name: str
    title: str
    rules_version: int
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
    evidence_budgets: float
    stall_seconds: float
    probe_seconds: float
    min_exchanges: float
    min_flow: float
    min_learned: float
    max_unseen: float
    equivalence_tolerance: float
    rounding_tolerance: float
    max_exchange_growth: float
    time_margin: float
    accuracy_margin: float
    repeats: int
    max_other_work: float
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
        """The limits on what a run may record."""
        return RecordLimits.of(self.network, self.max_epochs)


def names(path: Path = PROFILES) -> list[str]:
    """Return the names of all profiles."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return [name for name in tables if name not in ("common", "points")]


def load(name: str, path: Path = PROFILES) -> Profile:
    """Return a profile.

    Args:
        path: the file with the profiles. Default: profiles.toml.

    Raises:
        UnknownProfile: the file has no profile of that name.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    digest = rules_sha256(tables)
    common, points = tables.pop("common"), tables.pop("points")
    if name not in tables:
        raise UnknownProfile(f"there is no profile '{name}'; {path.name} has: {', '.join(tables)}.")
    return Profile(name=name, points=points, rules_sha256=digest, **{**common, **tables[name]})


def rules_sha256(tables: dict) -> str:
    """Return the hash of all thresholds and of the version of the judging code.

    Verdicts with different hashes cannot be compared. A comment in profiles.toml does not change the hash.
    """
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()
