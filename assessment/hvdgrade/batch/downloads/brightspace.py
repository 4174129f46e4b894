"""Brightspace, "Download" of an assignment: folders or files USER-FOLDER - NAME - TIME [- FILE].

A student who hands in again gets another folder. The time says which is the last.
"""

import contextlib
import datetime
import re

from hvdgrade.batch.downloads.claim import Claim, Claims, Download

TITLE = "Brightspace"
WHEN = r"(?:[0-9]{1,2} [^\W\d_]+|[^\W\d_]+ [0-9]{1,2}),? [0-9]{4} [0-9]{3,4}(?: ?[AaPp][Mm])?"
NAMED = re.compile(rf"([0-9]+)-[0-9]+ - (.+?) - ({WHEN})(?: - (.+))?\Z", re.DOTALL)
OVERVIEW = "index.html"
FORMATS = [
    f"{date} {time}"
    for date in ("%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y")
    for time in ("%I%M %p", "%H%M")
]


def read(download: Download) -> Claims:
    """Return the student of each file or folder that Brightspace can have named."""
    matches = {entry.name: NAMED.match(entry.name) for entry in download.entries}
    claims: Claims = {
        name: [Claim(found[1], found[4] or "", found[2], sent=moment(found[3]))]
        for name, found in matches.items()
        if found
    }
    if claims and OVERVIEW in matches:
        claims[OVERVIEW] = []
    return claims


def moment(when: str) -> str:
    """Return a time as text that sorts by time, or "" if it is not in English.

    Args:
        when: for example "2 May, 2026 1010 AM".
    """
    day, month, year, clock, *half = re.sub(r"(?<=[0-9])(?=[AaPp][Mm])", " ", when).split(" ")
    text = " ".join([day.strip(","), month.strip(","), year, clock.zfill(4), *half])
    for form in FORMATS:
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(text, form).isoformat()
    return ""
