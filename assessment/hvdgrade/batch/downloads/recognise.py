"""Recognise the learning platform whose download a folder is."""

from pathlib import Path

from hvdgrade.batch.downloads import (
    blackboard,
    brightspace,
    canvas,
    github_classroom,
    gradescope,
    moodle,
    nbgrader,
    plain,
)
from hvdgrade.batch.downloads.claim import Claims, Entry

# Each platform is a module with TITLE, its name, and read(folder, entries), which returns the students of
# the entries that the platform can have made. To add a platform, write such a module and add a line here.
PLATFORMS = {
    "gradescope": gradescope,
    "moodle": moodle,
    "blackboard": blackboard,
    "brightspace": brightspace,
    "canvas": canvas,
    "nbgrader": nbgrader,
    "github": github_classroom,
    "plain": plain,
}


def recognise(
    folder: Path, entries: list[Entry], platform: str | None = None
) -> tuple[str, Claims]:
    """Return the platform that made most of the entries, and the students of all entries.

    An entry that the platform cannot have made belongs to the student whose id is its name.

    Args:
        folder: the folder of the class.
        entries: its content.
        platform: the platform, if it is known. Default: None, the first one that made more than half of
            the entries.

    Raises:
        DownloadProblem: a file of the platform cannot be read.
        OSError: a folder cannot be read.
    """
    for name in [platform] if platform else PLATFORMS:
        claims = PLATFORMS[name].read(folder, entries)
        if platform or 2 * len(claims) > len(entries):
            return name, plain.read(folder, entries) | claims
    return "plain", {}
