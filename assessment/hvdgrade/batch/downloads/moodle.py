"""Moodle, "Download all submissions": folders NAME_PARTICIPANT_assignsubmission_file_, or flat files.

Typed text is in NAME_PARTICIPANT_assignsubmission_onlinetext_. The participant number is the number in the
column "Identifier" of Moodle's grading worksheet. Students may choose their name and file names. If one of
them contains the same pattern again, the whole name becomes the student's id.
"""

import re

from hvdgrade.batch.downloads import plain
from hvdgrade.batch.downloads.claim import Claim, Claims, Download, Entry

TITLE = "Moodle"
PARTICIPANT = re.compile(r"_([0-9]+)_assignsubmission_([a-z]+)_?")


def read(download: Download) -> Claims:
    """Return the student of each file or folder that Moodle can have named."""
    return {
        entry.name: [claim(entry)] for entry in download.entries if PARTICIPANT.search(entry.name)
    }


def claim(entry: Entry) -> Claim:
    """Return the student of a file or folder that Moodle named."""
    first, *others = PARTICIPANT.finditer(entry.name)
    if others:
        return plain.claim(entry)
    file = entry.name[first.end() :]
    if file.startswith("."):  # a text without a file name of its own
        file = first[2] + file
    return Claim(
        first[1],
        "" if entry.is_folder else file,
        name=entry.name[: first.start()],
        platform="moodle",
    )
