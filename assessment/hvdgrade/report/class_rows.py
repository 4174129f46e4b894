"""What distinguishes students with similar names on the class page, and which error ended a submission."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

from hvdgrade.judge.check import last_error
from hvdgrade.output.text import plain
from hvdgrade.report.wording import items, part
from hvdgrade.result_document import ResultDocument

ERROR_IN_HELP = re.compile(r"rank \d+ says: .+?(?=\. Likely causes: | More: |\Z)")
# The tag of mpirun, and that of torch.distributed.
TAG = re.compile(r"\[\d+,(\d+)\]<stderr>: ?(?:\[rank\d+\]: ?)?")
LINE_CHARACTERS = 300
CRASHES = ("crashed", "killed")  # as in `wording.ENDINGS`


def told_apart(names: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, str]:
    """Return what distinguishes submissions whose names look the same.

    Names look the same if they differ only in their Unicode form, in upper and lower case, in white space or
    in characters that `plain` replaces.

    Args:
        names: name of the submission's files -> name of the student, as the page shows it.
        ids: name of the submission's files -> id of the student.

    Returns:
        Name of the submission's files -> words, for example "id 'Zoe\\u0308', files Zoe_~1f3a"; only for
        names that look like another one.
    """
    looks = {file: appearance(name) for file, name in names.items()}
    count = Counter(looks.values())
    return {
        file: f"id {escaped(ids[file])}, files {plain(file)}"
        for file in names
        if count[looks[file]] > 1
    }


def escaped(text: str) -> str:
    """Return text in quotes, with escapes for all but ASCII letters and spaces that a page does not show."""
    return re.sub(r"(?<=[' ]) | (?=')", r"\\x20", ascii(text))


def appearance(name: str) -> str:
    """Return a form of a name that is equal for all names that a reader may take for it."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(folded.split())


def error_line(document: ResultDocument) -> str:
    """Return the last line of the error that ended a submission, with its rank; "" if there is none."""
    output = str(document.get("output") or "")
    if part(document, "resources").get("stop_cause") in CRASHES:
        return plain(last_error(output) or last_of_stderr(output))
    # The output of the probe is not in the result, but its error is in the help of the check that failed.
    helps = (
        str(check.get("help"))
        for check in items(document, "checks")
        if check.get("state") == "fail"
    )
    found = filter(None, map(ERROR_IN_HELP.search, helps))
    return next((plain(error[0]) for error in found), "")


def last_of_stderr(output: str) -> str:
    """Return the last line that a rank wrote to standard error, with the rank; "" if there is none."""
    for line in reversed(output.splitlines()):
        tag = TAG.match(line)
        if tag and (text := line[tag.end() :].strip()):
            return f"rank {tag[1]} says: {text[:LINE_CHARACTERS]}"
    return ""
