"""Canvas, "Download Submissions": flat files NAME_[LATE_]USER_ATTACHMENT_FILE.

Text and links that were handed in become NAME_[LATE_]USER_text.html and _link.html. In an anonymous
assignment, anon_LETTERS takes the place of the name and the user id. A student chooses NAME and FILE, which
may contain the same pattern. If more than one number in a file name could be the user id, the whole file name
becomes the student's id. `hvdgrade export` then looks for the student's name in the gradebook.

Source: lib/content_zipper.rb of https://github.com/instructure/canvas-lms
"""

import re

from hvdgrade.batch.downloads import plain
from hvdgrade.batch.downloads.claim import Claim, Claims, Download, Entry

TITLE = "Canvas"
USER_ID = re.compile(r"_(?=([0-9]+)_(?:[0-9]+_(.+)|((?:text|link)\.html))\Z)", re.DOTALL)
ANONYMOUS = re.compile(r"(?:LATE_)?(anon_[^_]+)_(?:[0-9]+_(.+)|((?:text|link)\.html))\Z", re.DOTALL)


def read(download: Download) -> Claims:
    """Return the student of each file that Canvas can have named."""
    claims = {entry.name: claim(entry) for entry in download.entries if not entry.is_folder}
    return {name: [found] for name, found in claims.items() if found}


def claim(entry: Entry) -> Claim | None:
    """Return the student of a file, or None if Canvas gives no file such a name."""
    if anonymous := ANONYMOUS.match(entry.name):
        return Claim(anonymous[1], own_name(anonymous[2], anonymous[3]))
    places = list(USER_ID.finditer(entry.name))
    if not places:
        return None
    if len({place[1] for place in places}) > 1:
        return plain.claim(entry)
    user, uploaded, typed = places[0].groups()
    name = entry.name[: places[0].start()].removesuffix("_LATE")
    return Claim(user, own_name(uploaded, typed), name=name, platform="canvas")


def own_name(uploaded: str | None, typed: str | None) -> str:
    """Return the name that the student gave a file. Canvas adds "-1" if the student hands it in again.

    Args:
        typed: otherwise "text.html" or "link.html".
    """
    return re.sub(r"-[0-9]+(?=\.[^.]+\Z)", "", uploaded) if uploaded else f"_{typed}"
