"""The data types of the report, written to JSON and read from it."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

VERSION = 1  # of the JSON file


class State(StrEnum):
    """The state of a part; after the run, how it ended."""

    WAITING = "not run"
    RUNNING = "running"
    OK = "ok"
    WRONG = "wrong"  # it ran, and one of its results is not the expected one
    FAILED = "failed"  # it ended with an error, or reported nothing
    TIMED_OUT = "timed out"
    NO_TIME = "no time left"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Fact:
    """A property of the machine or of its software.

    Attributes:
        name: the property.
        value: as text.
        expected: the value that it should have; "" where no value is expected.
        ok: whether `value` is as expected.
        table: title of its table.
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
        table: title of its table.
        what: the result that was compared.
        device: where it was computed.
        dtype: its type.
        expected: where the expected values come from, such as "NumPy".
        n: number of compared values, over all ranks.
        median: of the absolute differences; None if a difference is not finite, or if the operation raised.
        largest: the largest absolute difference, or None as `median`.
        limit: largest difference that is accepted.
        ok: whether `largest` is within the limit.
        note: for the reader.
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
        table: title of its table.
        what: what was measured.
        device: on which device.
        dtype: with which type or precision.
        unit: of `median`, `low` and `high`.
        n: number of samples.
        median: of the samples.
        low: the smallest sample.
        high: the largest sample.
        more_is_better: whether a larger number is the better one.
        peer: the measurement of the same table with which it is compared; "" for a peer itself.
        ratio: median / median of the peer.
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
        """The attributes that identify the same measurement in another report."""
        return self.table, self.what, self.device, self.dtype, self.unit


Finding = Fact | Check | Measurement
KINDS = {kind.__name__.lower(): kind for kind in (Fact, Check, Measurement)}


@dataclass(frozen=True)
class GpuUse:
    """What nvidia-smi reported while a part ran, twice per second: medians, and three maxima."""

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
        name: for `--only`.
        title: for the reader.
        question: the question that the part answers, one sentence.
        state: how it ended.
        reason: why it failed or did not run.
        ranks: number of processes.
        seconds: time that it needed.
        limit_seconds: its time limit.
        gpu_use: use of the GPU; None without a GPU.
        findings: in the order in which they were reported.
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
        """The findings that are measurements."""
        return [one for one in self.findings if isinstance(one, Measurement)]


@dataclass(frozen=True)
class Comparison:
    """One measurement in this report and in an older one.

    Attributes:
        part: name of the part.
        what: what was measured, on which device and with which type.
        unit: of the measurements.
        now: the measurement in this report.
        before: the measurement in the older report.
        ratio: this median / the older one.
        lost: whether it is worse and the two ranges do not overlap.
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
    """The whole report.

    Attributes:
        headline: the first line that a reader sees.
        gpu: whether PyTorch can use a GPU here.
        created: UTC, ISO 8601.
        commit: of the course; "" if it is not known.
        budget_seconds: time limit of all parts together.
        parts: in the order in which they run.
        seconds: time of all parts together.
        against: name of the older report; "" without one.
        comparisons: with the older report.
        version: of the JSON file.
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
    """Return the text of gpu.json."""
    return encode(report, indent=1) + "\n"


def encode(value: Report | Finding, indent: int | None = None) -> str:
    """Return a report or a finding as JSON; a finding has its "kind" in addition to its attributes."""
    return json.dumps(value, default=_attributes, indent=indent)


def _attributes(value: object) -> dict:
    kind = {"kind": type(value).__name__.lower()} if isinstance(value, Finding) else {}
    return {**kind, **vars(value)}


def finding(document: dict) -> Finding:
    """Return the finding that a JSON object holds.

    Raises:
        KeyError: `document` is no finding.
        TypeError: `document` has other attributes than its kind of finding.
    """
    return KINDS[document["kind"]](**{k: v for k, v in document.items() if k != "kind"})


def read_parts(path: Path) -> list[PartResult]:
    """Return the parts of a report that `to_json` wrote.

    Raises:
        ValueError: the file is no such report; the message is one sentence.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
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
