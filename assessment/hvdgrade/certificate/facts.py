"""What a certificate states about a result, and the hash that identifies the result."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.batch.handed_in import is_practice
from hvdgrade.batch.id_table import read_students
from hvdgrade.batch.results import UNGRADED
from hvdgrade.output.text import decimal, is_finite, printable
from hvdgrade.report.wording import in_words, part
from hvdgrade.result_document import NotAResult, ResultDocument, read


class NoCertificate(HvdgradeError):
    """A result yields no certificate, or its file cannot be read. The message says why in one sentence."""


@dataclass(frozen=True)
class Facts:
    """The statements of a certificate.

    Attributes:
        name: the learner.
        course: title of the course.
        issued: date of the certificate, for example "26 November 2026".
        rows: label and text of each line about the result.
        result_sha256: hash of the result, see `result_sha256`.
    """

    name: str
    course: str
    issued: str
    rows: tuple[tuple[str, str], ...]
    result_sha256: str


def read_result(path: Path) -> dict:
    """Return a result document.

    Raises:
        NoCertificate: the file cannot be read, or it is not a result.
    """
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise NoCertificate(f"{path} cannot be read: {error.strerror}.") from None
    except NotAResult:
        raise NoCertificate(
            f"{path} is not a result of hvdgrade: name a file in OUT/results of 'hvdgrade batch', or the "
            "--json file of 'hvdgrade run'."
        ) from None


def result_sha256(document: ResultDocument) -> str:
    """Return the SHA-256 of the canonical form of a result, as 64 hexadecimal digits.

    The canonical form is the JSON document in UTF-8 with sorted keys and without spaces. It does not contain
    the field `batch`, in which `hvdgrade batch` keeps notes of its own and changes them later.
    """
    kept = {key: value for key, value in document.items() if key != "batch"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def listed_name(path: Path) -> str | None:
    """Return the name of a result's student, or the id, by the students.json of its batch.

    A learning platform's id may be a number, by which a batch then names the file of the result.

    Returns:
        None if no batch lists this result.
    """
    result = path.resolve()
    student = (
        read_students(result.parents[1]).get(result.stem)
        if result.parent.name == "results"
        else None
    )
    return (student.name or student.id) if student else None


def of_pass(document: ResultDocument, name: str | None, course: str, issued: str) -> Facts:
    """Return what a certificate states about a result.

    Args:
        name: the learner. None: the student that the result names.

    Raises:
        NoCertificate: the result is not a pass on CIFAR-10.
    """
    submission = part(document, "submission")
    student = printable(str(submission.get("student") or submission["id"]))
    points = f"{decimal(document['score'])} of {decimal(document['max_score'])} points"
    if document["status"] in UNGRADED:
        raise NoCertificate(f"no certificate for {student}: {UNGRADED[document['status']]}.")
    if document["verdict"] != "pass":
        raise NoCertificate(f"no certificate for {student}: the verdict is fail, {points}.")
    if is_practice(document):
        raise NoCertificate(
            f"no certificate for {student}: the run used synthetic data, so it was a practice run."
        )
    return Facts(
        printable(name or student), printable(course), issued,
        tuple((label, printable(text)) for label, text in _rows(document, points) if text),
        result_sha256(document),
    )  # fmt: skip


def _rows(document: ResultDocument, points: str) -> list[tuple[str, str]]:
    grader, targets = part(document, "grader"), part(document, "targets")
    devices = part(document, "resources").get("devices")
    budget, seconds = part(document, "budget").get("seconds"), document.get("seconds_to_target")
    in_time = (
        f", after {decimal(seconds, 1)} s of {decimal(budget, 1)} s"
        if is_finite(seconds) and is_finite(budget)
        else ""
    )
    return [
        ("Verdict", f"pass, {points}"),
        (
            "Accuracy",
            f"at least {decimal(targets.get('train_accuracy'), 2)} in training and "
            f"{decimal(targets.get('heldout_accuracy'), 2)} on "
            f"hidden images, in {targets.get('consecutive_epochs')} consecutive epochs{in_time}",
        ),
        ("Run", f"{grader.get('ranks')} processes, data set {grader.get('data')}"),
        ("Hardware", str(grader.get("hardware") or "")),
        ("Devices", in_words(list(map(str, devices))) if isinstance(devices, list) else ""),
        (
            "Grader",
            f"hvdgrade {grader.get('version')}, profile {grader.get('profile')}, "
            f"rules {str(grader.get('rules_sha256'))[:16]}",
        ),
        ("Graded", str(part(document, "batch").get("finished") or "")[:10]),
        ("Script", f"SHA-256 {part(document, 'submission').get('sha256')}"),
    ]
