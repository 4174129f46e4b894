"""Write what a platform receives for one submission: a file each, or one file for a single result."""

import json
from collections.abc import Callable
from pathlib import Path

from hvdgrade.batch.results import ungraded
from hvdgrade.output.files import write
from hvdgrade.result_document import ResultDocument


def text(payload: dict | str) -> str:
    """Return the content of the platform's file: JSON for a dict, and a text as it is."""
    return payload if isinstance(payload, str) else json.dumps(payload, indent=2) + "\n"


def write_each(
    documents: list[ResultDocument],
    payload: Callable[[ResultDocument], dict | str | None],
    folder: Path,
    pattern: str,
) -> list[str]:
    """Write the payload of each result; return lines for the instructor. Errors as in `write_payloads`."""
    payloads = {document["batch"]["name"]: payload(document) for document in documents}
    return write_payloads(payloads, folder, pattern, ungraded(documents))


def write_payloads(
    payloads: dict[str, dict | str | None], folder: Path, pattern: str, messages: list[str]
) -> list[str]:
    """Write a file for each submission that has a payload.

    Files of an earlier export are not removed, but the returned lines name them.

    Args:
        payloads: name of the submission -> content of its file, or None if it gets no file.

    Returns:
        Lines for the instructor.

    Raises:
        CannotWrite: a file cannot be written.
    """
    written = {
        folder / pattern.replace("*", name): payload
        for name, payload in payloads.items()
        if payload
    }
    for path, payload in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text(payload))
    earlier = sorted(set(folder.glob(pattern)) - set(written))
    return [
        f"{folder}: {len(written)} files",
        *messages,
        *(f"left by an earlier export, remove it: {path}" for path in earlier),
    ]
