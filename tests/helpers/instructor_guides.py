"""The instructor's guides, and the minutes that a lab states, for the tests of guides and schedules."""

import re
from pathlib import Path

from hvdlab.course import lab_source

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "assessment" / "instructor" / "guides"
LABS = [lab.path for lab in lab_source.labs()]
WORDS = {"two": 2, "three": 3, "two and a half": 2.5}


def guide_of(lab: Path) -> str:
    return (GUIDES / f"{lab.stem}.md").read_text(encoding="utf-8")


def section(guide: str, heading: str) -> str:
    return guide.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def stated_minutes(lab: Path) -> int:
    """Return the minutes that a lab states in its first cell, for example "about 2.5 hours"."""
    first_cell = lab.read_text(encoding="utf-8").split("\n# %%")[0]
    text = " ".join(line.removeprefix("# ") for line in first_cell.splitlines())
    found = re.search(r"\*\*Time:?\*\*:?\s+(?:about )?([a-z\d. ]+?) (minutes|hours)", text)
    number = WORDS.get(found[1]) or float(found[1])
    return round(number * (60 if found[2] == "hours" else 1))


def minutes(guide: str) -> dict[str, int]:
    """Return the minutes of each schedule in the table of a guide."""
    rows = re.findall(r"^\| ([a-z ]+?) \| (\d+) \|", section(guide, "Minutes"), re.MULTILINE)
    return {schedule: int(number) for schedule, number in rows}
