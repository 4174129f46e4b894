"""What the parts find, as data types, and how it is written to and read from JSON."""

import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

VERSION = 1  # of the JSON file


class State(StrEnum):
    """How a part ended."""

    WAITING = "not run"
    RUNNING = "running"
    OK = "ok"
    WRONG = "wrong"  # it ran, and one of its results is not what it must be
    FAILED = "failed"  # it ended with an error, or reported nothing
    TIMED_OUT = "timed out"
    NO_TIME = "no time left"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Fact:
    """A property of the machine or of its software.

    Attributes:
        expected: what it should be; "" where nothing is expected.
    """

    name: str
    value: str
    expected: str = ""
    ok: bool = True
    table: str = ""


@dataclass(frozen=True)
class Check:
    """A comparison of results with an independent calculation.

    Attributes:
        expected: where the expected values come from, such as "NumPy".
        n: number of values compared, over all ranks.
        median, largest: of the absolute differences; None if one of them is not finite, or if the operation
            raised.
        limit: largest difference that is accepted.
    """

    table: str
    what: str
    device: str
    dtype: str
    expected: str
    n: int
    median: float | None
    largest: float | None
    limit: float
    ok: bool
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """A time, a speed or a size.

    Attributes:
        n: number of samples; median, low and high are of them.
        peer: the measurement of the same table that it is compared with; "" for a peer itself.
        ratio: median / median of the peer.
        more_is_better: whether a larger number is the better one.
    """

    table: str
    what: str
    device: str
    dtype: str
    unit: str
    n: int
    median: float
    low: float
    high: float
    more_is_better: bool
    peer: str = ""
    ratio: float | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the same measurement in another report."""
        return self.table, self.what, self.device, self.dtype, self.unit


Finding = Fact | Check | Measurement
KINDS = {kind.__name__.lower(): kind for kind in (Fact, Check, Measurement)}


@dataclass(frozen=True)
class GpuUse:
    """What nvidia-smi reported while a part ran, twice per second: medians, and the two maxima."""

    samples: int
    utilisation_percent: float
    clock_mhz: float
    power_watts_max: float
    temperature_celsius_max: float
    memory_mib_max: float


@dataclass
class PartResult:
    """One part of the report.

    Attributes:
        question: what the part answers, one sentence.
        reason: why it failed or did not run.
        seconds: it took; limit_seconds: it was given.
        output: the last lines that it printed, if it failed.
    """

    name: str
    title: str
    question: str
    state: State = State.WAITING
    reason: str = ""
    ranks: int = 1
    seconds: float = 0.0
    limit_seconds: float = 0.0
    gpu_use: GpuUse | None = None
    findings: list[Finding] = field(default_factory=list)
    output: str = ""

    @property
    def measurements(self) -> list[Measurement]:
        return [one for one in self.findings if isinstance(one, Measurement)]


@dataclass(frozen=True)
class Comparison:
    """One measurement in this report and in an older one.

    Attributes:
        ratio: this median / the older one.
        lost: it is worse, and the two ranges do not overlap.
    """

    part: str
    what: str
    unit: str
    now: Measurement
    before: Measurement
    ratio: float
    lost: bool


@dataclass
class Report:
    """All of it.

    Attributes:
        headline: the first line that a reader sees.
        gpu: whether PyTorch can use a GPU here.
        created: UTC, ISO 8601.
        against: name of the older report; "" without one.
    """

    headline: str
    gpu: bool
    created: str
    commit: str
    budget_seconds: float
    parts: list[PartResult]
    seconds: float = 0.0
    against: str = ""
    comparisons: list[Comparison] = field(default_factory=list)
    version: int = VERSION


# --- to JSON and back ---------------------------------------------------------------------------------


def to_json(report: Report) -> str:
    return json.dumps(_plain(report), indent=1) + "\n"


def _plain(value):
    if isinstance(value, tuple(KINDS.values())):
        return {"kind": type(value).__name__.lower(), **_fields(value)}
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _fields(value) -> dict:
    return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}


def finding(document: dict) -> Finding:
    """A finding from its JSON object. Raises KeyError or TypeError if it is none."""
    return KINDS[document["kind"]](**{k: v for k, v in document.items() if k != "kind"})


def read_parts(path: Path) -> list[PartResult]:
    """The parts of a report that `to_json` wrote.

    Raises:
        ValueError: the file is no such report: one sentence.
    """
    try:
        document = json.loads(path.read_text())
        if document["version"] != VERSION:
            raise ValueError(f"it has version {document['version']}, not {VERSION}")
        parts = []
        for one in document["parts"]:
            one["findings"] = [finding(each) for each in one["findings"]]
            one["gpu_use"] = GpuUse(**one["gpu_use"]) if one["gpu_use"] else None
            parts.append(PartResult(**{**one, "state": State(one["state"])}))
        return parts
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} is no report of `hvdlab gpu`: {why}") from None


def write(path: Path, text: str) -> None:
    """Replace a file by another text, so that a reader finds the old or the new one, whole."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
