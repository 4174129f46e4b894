"""Recognise the learning platform whose download a folder is."""

from collections.abc import Iterable
from pathlib import Path

from hvdgrade.batch.downloads import (
    blackboard,
    brightspace,
    canvas,
    classroom50,
    github_classroom,
    gradescope,
    moodle,
    nbgrader,
    plain,
)
from hvdgrade.batch.downloads.claim import Claims, Download, Entry

# Each platform is a module with TITLE, its name, and read(download), which returns the students of the
# entries that the platform can have made. To add a platform, write such a module and add a line here.
PLATFORMS = {
    "gradescope": gradescope,
    "moodle": moodle,
    "blackboard": blackboard,
    "brightspace": brightspace,
    "canvas": canvas,
    "nbgrader": nbgrader,
    "classroom50": classroom50,
    "github": github_classroom,
    "plain": plain,
}


def recognise(
    folder: Path,
    entries: list[Entry],
    platform: str | None = None,
    logins: Iterable[str] = (),
) -> tuple[str, Claims]:
    """Return the platform that made most of the entries, and the students of all entries.

    An entry that the platform cannot have made belongs to the student whose id is its name.

    Args:
        platform: the platform, if it is known. Default: None, the first one that made more than half of
            the entries.
        logins: what the instructor's table of ids calls the students. Default: none.

    Raises:
        DownloadProblem: the platform's files cannot be read, or do not say who the students are.
        OSError: a folder cannot be read.
    """
    download = Download(folder, entries, platform is not None, frozenset(logins))
    for name in [platform] if platform else PLATFORMS:
        claims = PLATFORMS[name].read(download)
        if platform or 2 * len(claims) > len(entries):
            return name, plain.read(download) | claims
    return "plain", {}
