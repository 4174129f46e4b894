"""Every term of the glossary is defined in the lab that the glossary names, and no earlier lab uses it.

`labs/glossary.md` is a table of term, meaning and lab. The lab is the number of the one that defines the
term, in `*italics*` or `**bold**` and at or before its first use there; or "grader", for a term of the
assessment.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
import lab_counts
import pytest

from hvdlab.course import lab_source

GLOSSARY = Path(__file__).parents[2] / "labs/glossary.md"
LEAST_TERMS = 70
ROW = re.compile(r"^\| ([^|]+?) \| ([^|]+?) \| (\d+|grader) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Term:
    """A row. A term with an abbreviation, "Message Passing Interface (MPI)", is found by either."""

    term: str
    meaning: str
    lab: str

    @property
    def names(self) -> list[str]:
        """The spellings by which a text may use the term."""
        long, _, short = self.term.removesuffix(")").partition(" (")
        return [name for name in (long, short) if name]

    def pattern(self, around: str = "") -> re.Pattern:
        """Return a pattern of the term, also in the plural, between marks such as `*`."""
        names = "|".join(re.escape(name).replace(r"\\ ", r"\\s+") for name in self.names)
        return re.compile(rf"(?<![\w-]){around}(?:{names})s?{around}(?![\w-])", re.IGNORECASE)


def rows() -> list[Term]:
    return [Term(*found) for found in ROW.findall(GLOSSARY.read_text(encoding="utf-8"))]


def prose(lab) -> str:
    """Return the Markdown of a lab, without code, formulas, pictures, links to other labs and objectives."""
    cells = jupytext.read(lab.path, fmt="py:percent").cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = lab_counts.PICTURE.sub("", text)
    text = re.sub(r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[[^\]]+\]\([^)]+\)", " ", text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    return re.sub(
        r"\*\*After this lab you can\*\*.*?(?=\n\n(?![*-] )|\Z)", " ", text, flags=re.DOTALL
    )


def test_the_table_has_all_rows_in_alphabetical_order():
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    terms = rows()
    assert len(lines) == len(terms) + 2, "a row is not | term | meaning | lab |"
    names = [term.term.lower() for term in terms]
    assert names == sorted(names) and len(names) == len(set(names))
    assert len(terms) >= LEAST_TERMS


@pytest.mark.parametrize("term", [t for t in rows() if t.lab != "grader"], ids=lambda t: t.term)
def test_a_term_is_defined_before_it_is_used(term):
    labs = {lab.number: lab for lab in lab_source.labs()}
    own = int(term.lab)
    text = prose(labs[own])
    defined = term.pattern(r"(?:\*\*|\*)").search(text)
    assert defined, f"lab {own} does not define *{term.term}*"
    used = term.pattern().search(re.sub(r"\*", " ", text))
    assert used.start() >= defined.start(), f"lab {own} uses it before: {context(text, used)}"
    for number, lab in labs.items():
        if number < own and (used := term.pattern().search(prose(lab))):
            pytest.fail(f"lab {number} uses it before: {context(prose(lab), used)}")


def context(text: str, used: re.Match) -> str:
    return " ".join(text[max(0, used.start() - 60) : used.end() + 60].split())
