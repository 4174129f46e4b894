"""Find out which submissions exist, and whether each result in OUT is still valid.

A batch may be interrupted, a student may hand in again, also under another name, and CIFAR-10 may become
available after runs on the synthetic data set. No result is dropped; the instructor gets a line for each.
"""

import hashlib
from collections.abc import Collection, Hashable
from pathlib import Path

from hvdgrade.batch.id_table import read_students
from hvdgrade.report.wording import part
from hvdgrade.result_document import ResultDocument


def not_reached(documents: list[ResultDocument], out: Path) -> list[str]:
    """Return a line about submissions without a result, and one about those with an outdated result.

    An interrupted batch leaves such submissions.
    """
    results = {document["batch"]["name"]: document["submission"] for document in documents}
    ids_by_problem = {
        "not graded yet": sorted(
            student.id for name, student in read_students(out).items() if name not in results
        ),
        "result of an earlier submission": [
            submission["id"]
            for name, submission in results.items()
            if script_sha256(out, name) not in (None, submission.get("sha256"))
        ],
    }
    return [f"{problem}: {', '.join(ids)}" for problem, ids in ids_by_problem.items() if ids]


def script_sha256(out: Path, name: str) -> str | None:
    """Return the hash of the newest script of a submission, or None if OUT/submissions does not have it."""
    try:
        script = (out / "submissions" / f"{name}.py").read_bytes()
    except FileNotFoundError:
        return None
    return hashlib.sha256(script).hexdigest()


def still_there(documents: list[ResultDocument], out: Path) -> list[dict]:
    """Return the results of students who were in DIR when the last batch began.

    Args:
        documents: the results. All of them are returned if OUT has no list of submissions.
    """
    names = read_students(out)
    return [document for document in documents if not names or document["batch"]["name"] in names]


def withdrawn(documents: list[ResultDocument], out: Path) -> list[str]:
    """Return a line for each result whose student was not in DIR when the last batch began."""
    there = still_there(documents, out)
    return [
        f"no longer in DIR: {document['submission']['id']}; its result stays until you remove "
        f"{out / 'results' / document['batch']['name']}.json"
        for document in documents
        if document not in there
    ]


def practice(documents: list[ResultDocument]) -> list[str]:
    """Return a line with the number of practice runs, or [] if all scores come from CIFAR-10."""
    count = sum(map(is_practice, documents))
    return [f"{count} were graded on synthetic data: practice runs"] if count else []


def is_practice(document: ResultDocument) -> bool:
    """Return whether a score comes from the synthetic data set instead of CIFAR-10."""
    on_synthetic_data = "synthetic" in str(part(document, "grader").get("data"))
    return document.get("status") == "graded" and on_synthetic_data


def settle(
    claims: dict[Hashable, list[ResultDocument]],
    labels: dict[Hashable, str],
    names: Collection[str],
) -> tuple[dict[Hashable, dict], list[str]]:
    """Choose one of several results for a student: the one whose submission is still handed in.

    Args:
        claims: student -> results.
        labels: student -> name that the instructor knows.

    Returns:
        A dict from student to result, for each student with exactly one such result; and a line for each
        result that is not used, or for each student without a single such result.
    """
    settled, messages = {}, []
    for student, rivals in claims.items():
        candidates = rivals
        if len(rivals) > 1:
            candidates = [document for document in rivals if document["batch"]["name"] in names]
        ids = [document["submission"]["id"] for document in rivals]
        if len(candidates) == 1:
            settled[student] = candidates[0]
            used = candidates[0]["submission"]["id"]
            messages += [f"superseded by {used}: {id}" for id in ids if id != used]
        else:
            messages.append(
                f"several results for {labels[student]}: {', '.join(ids)}; none is used"
            )
    return settled, messages
