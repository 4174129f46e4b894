"""The result document of one grading: the types of its fields.

`hvdgrade run --json` writes it, and a batch adds `batch`. assessment/result.schema.json is the same as a JSON
Schema; `python -m hvdgrade.result_document` prints it. A document may come from another version or from a run
that never began. So only what a reader needs to know whose result it is must be there.
"""

import json
from functools import cache
from typing import Any, Literal, Required

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from hvdgrade import HvdgradeError

SCHEMA = "hvdgrade/1"
Verdict = Literal["pass", "fail"]
State = Literal["pass", "partial", "fail", "skipped", "error"]


class SubmissionPart(TypedDict, total=False):
    """Whose script was graded. A batch adds what the platform and the table of students say."""

    id: Required[str]
    sha256: str | None
    student: str | None
    name: str | None
    email: str | None
    platform: str | None
    left_out: list[str]


class GraderPart(TypedDict, total=False):
    """With what it was graded."""

    version: str
    profile: str
    network: str
    rules_sha256: str
    sandbox_tier: str | None
    sandbox: dict[str, Any] | None
    ranks: int
    hardware: str
    data: str | None


class OtherWorkPart(TypedDict, total=False):
    """The processor time that other programs took: seconds, and as a fraction; or why it is not known."""

    seconds: float | None
    fraction: float | None
    unknown: str


class BudgetPart(TypedDict, total=False):
    """The seconds of a round, and what they follow from if the machine was measured."""

    seconds: float
    framework: str
    startup_seconds: float
    serial_images_per_second: list[float]
    serial_epochs: float
    other_work: OtherWorkPart


class TargetsPart(TypedDict, total=False):
    """Accuracies to reach, as fractions, in so many consecutive epochs."""

    train_accuracy: float
    heldout_accuracy: float
    consecutive_epochs: int


class RoundPart(TypedDict, total=False):
    """One of the rounds."""

    verdict: str
    seconds_to_target: float | None
    budget: float


class CheckPart(TypedDict, total=False):
    """One check of the decisive round."""

    id: str
    title: str
    state: State
    points: float
    max_points: float
    evidence: Any
    rationale: str
    help: str
    depends_on: list[str]


class EpochPart(TypedDict, total=False):
    """One epoch: seconds since the launch, recomputed accuracies, bytes that all ranks have sent so far."""

    epoch: int
    seconds: float
    train_accuracy: float
    heldout_accuracy: float
    weights_sha256: str
    bytes_on_wire: int | None
    steps: int | None


class HintPart(TypedDict, total=False):
    """A likely mistake. `mistake` is its id in `hvdlab.mistakes`."""

    line: int | None
    topic: str
    text: str
    mistake: str


class FlagPart(TypedDict, total=False):
    """A place for the instructor to look at."""

    kind: str
    line: int | None
    text: str


class ResourcesPart(TypedDict, total=False):
    """What the decisive run used: seconds, bytes, and the seconds of each stage of the grading."""

    wall: float
    cpu: float
    computed: list[float]
    max_rss: int
    devices: list[str]
    bytes_on_wire: int | None
    exit: int | None
    stop_cause: str
    survivors: int
    other_work: OtherWorkPart
    grading_wall: float
    stages: dict[str, float]


class FaultPart(TypedDict, total=False):
    """A later grading that ended in a fault of the grader, so that the result stayed."""

    call: str
    reason: str | None


class BatchPart(TypedDict, total=False):
    """What a batch adds: the name of the submission's files, a hash of what decides the result, the end."""

    name: str
    key: str
    call: str
    finished: str
    attempts: int
    failed_again: FaultPart


class ResultDocument(TypedDict, total=False):
    """One result.

    `status` says whether there is a verdict. If not, `reason` is a sentence about it, and `grade_again` says
    that the machine is the reason.
    """

    schema: str
    submission: Required[SubmissionPart]
    grader: GraderPart | None
    status: Required[Literal["graded", "not_gradable", "infrastructure_error"]]
    reason: str | None
    grade_again: bool
    verdict: Verdict | None
    score: float | None
    max_score: float | None
    seconds_to_target: float | None
    budget: BudgetPart | None
    targets: TargetsPart | None
    runs: list[RoundPart]
    checks: list[CheckPart]
    timeline: list[EpochPart]
    hints: list[HintPart]
    flags: list[FlagPart]
    resources: ResourcesPart | None
    output: str | None
    batch: BatchPart


class NotAResult(HvdgradeError):
    """A JSON value is not a result document."""


def read(text: str | bytes) -> ResultDocument:
    """Return the result document that a JSON text holds.

    Raises:
        NotAResult: it holds something else, or a verdict without points.
    """
    try:
        document = json.loads(text)
        _adapter().validate_python(document, strict=True)
    except (ValueError, RecursionError) as error:  # pydantic's error is a ValueError
        raise NotAResult(f"not a result of hvdgrade: {str(error).partition(chr(10))[0]}") from None
    needed = (document.get(name) for name in ("verdict", "score", "max_score"))
    if document["status"] == "graded" and None in needed:
        raise NotAResult("not a result of hvdgrade: it is graded, and has no verdict or no points")
    return document


def schema() -> dict:
    """Return the JSON Schema of a result document."""
    return _adapter().json_schema()


@cache
def _adapter() -> TypeAdapter:
    return TypeAdapter(ResultDocument)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
