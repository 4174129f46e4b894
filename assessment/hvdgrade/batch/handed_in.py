"""Find out which submissions exist, and whether each result in OUT is still valid.

A batch may be interrupted, a student may hand in again, also under another name, and CIFAR-10 may become
available after runs on the synthetic data set. No result is dropped; the instructor gets a line for each.
"""

import hashlib
import json
import unicodedata
from collections.abc import Collection, Hashable
from pathlib import Path

from hvdgrade.report.wording import part

# In OUT: all submissions that the last batch found, as a JSON object: name of their files -> id.
HANDED_IN = ".handed-in"


def handed_in(out: Path) -> dict[str, str]:
    """All submissions that the last batch found, name -> id; empty if OUT does not tell."""
    try:
        found = json.loads((out / HANDED_IN).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def not_reached(documents: list[dict], out: Path) -> list[str]:
    """A line about the submissions that an interrupted batch has left without a result, and one about
    those that it has left with an old one."""
    results = {document["batch"]["name"]: document["submission"] for document in documents}
    left = {
        "not graded yet": sorted(id for name, id in handed_in(out).items() if name not in results),
        "result of an earlier submission": [
            submission["id"]
            for name, submission in results.items()
            if script_sha256(out, name) not in (None, submission.get("sha256"))
        ],
    }
    return [f"{what}: {', '.join(names)}" for what, names in left.items() if names]


def script_sha256(out: Path, name: str) -> str | None:
    """Of the script in OUT/submissions: the last one that a batch was to grade; None without one."""
    try:
        script = (out / "submissions" / f"{name}.py").read_bytes()
    except FileNotFoundError:
        return None
    return hashlib.sha256(script).hexdigest()


def still_there(documents: list[dict], out: Path) -> list[dict]:
    """The results of those who were in DIR when the last batch began; all where OUT does not tell."""
    names = handed_in(out)
    return [document for document in documents if not names or document["batch"]["name"] in names]


def withdrawn(documents: list[dict], out: Path) -> list[str]:
    """A line for each result whose student was not in DIR when the last batch began."""
    there = still_there(documents, out)
    return [
        f"no longer in DIR: {document['submission']['id']}; its result stays until you remove "
        f"{out / 'results' / document['batch']['name']}.json"
        for document in documents
        if document not in there
    ]


def practice(documents: list[dict]) -> list[str]:
    """A line if some scores do not come from CIFAR-10."""
    count = sum(map(is_practice, documents))
    return [f"{count} were graded on synthetic data: practice runs"] if count else []


def is_practice(document: dict) -> bool:
    """Return whether a score comes from the synthetic data set instead of CIFAR-10."""
    on_twin = "synthetic" in str(part(document, "grader").get("data"))
    return document.get("status") == "graded" and on_twin


def settle(
    claims: dict[Hashable, list[dict]], who: dict[Hashable, str], names: Collection[str]
) -> tuple[dict[Hashable, dict], list[str]]:
    """Of several results for one student take the one whose submission is still handed in.

    Args:
        claims: student -> results.
        who: student -> what the instructor calls them.
        names: of the submissions that still are.

    Returns:
        Student -> result, where exactly one is left; a line for each result that is not taken, or for
        each student of whose results none is.
    """
    settled, said = {}, []
    for student, rivals in claims.items():
        left = rivals
        if len(rivals) > 1:
            left = [document for document in rivals if document["batch"]["name"] in names]
        ids = [document["submission"]["id"] for document in rivals]
        if len(left) == 1:
            settled[student] = left[0]
            taken = left[0]["submission"]["id"]
            said += [f"superseded by {taken}: {id}" for id in ids if id != taken]
        else:
            said.append(f"several results for {who[student]}: {', '.join(ids)}; none is taken")
    return settled, said


def comparable(name: str) -> str:
    """A name as it is compared: macOS takes "é" apart, other systems and platforms do not."""
    return unicodedata.normalize("NFC", name.strip())
