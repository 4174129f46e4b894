"""Write one JSON file per submission, for platforms that receive each score separately."""

import json
from pathlib import Path

from hvdgrade.output.files import write


def write_payloads(
    payloads: dict[str, dict | None], folder: Path, pattern: str, messages: list[str]
) -> list[str]:
    """Write a JSON file for each submission that has a payload.

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
        write(path, json.dumps(payload, indent=2) + "\n")
    earlier = sorted(set(folder.glob(pattern)) - set(written))
    return [
        f"{folder}: {len(written)} files",
        *messages,
        *(f"left by an earlier export, remove it: {path}" for path in earlier),
    ]
