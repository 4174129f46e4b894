"""Every term of the glossary is defined in the lab that the glossary names, and no earlier lab uses it.

`labs/glossary.md` is a table of term, meaning and lab. The lab is the number of the one that defines the
term, in `*italics*` or `**bold**` and no later than in the paragraph that uses it first; or "grader", for a
term of the assessment. The first cell of a lab, which says what the lab is about, may use any term. So may a
sentence that names the lab in which the term is explained, such as "tensor parallelism (lab 13)".
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
    """A row. "Message Passing Interface (MPI)" is found by the name and by the abbreviation.

    In "Epoch (of N ranks)" the words in parentheses say which meaning of a common word is defined.
    """

    term: str
    meaning: str
    lab: str

    @property
    def names(self) -> list[str]:
        """The spellings by which a text may use the term."""
        long, _, short = self.term.removesuffix(")").partition(" (")
        return [long, short] if short and not self.qualified else [long]

    @property
    def qualified(self) -> bool:
        """Whether the term is a common word with a second meaning."""
        return bool(re.search(r" \([^)]* [^)]*\)$", self.term))

    def pattern(self, around: str = "") -> re.Pattern:
        """Return a pattern of the term, also in the plural, between marks such as `*`.

        Only a name without inner capitals, unlike "ZeRO", may be written with other capitals.
        """
        names = []
        for name in self.names:
            spelling = r"\s+".join(map(re.escape, name.split()))
            names.append(spelling if re.search(r"\w[A-Z]", name) else f"(?i:{spelling})")
        return re.compile(rf"(?<![\w-]){around}(?:{'|'.join(names)})s?[.:,]?{around}(?![\w-])")


def rows() -> list[Term]:
    return [Term(*found) for found in ROW.findall(GLOSSARY.read_text(encoding="utf-8"))]


def paragraphs(lab) -> list[str]:
    """Return the paragraphs of a lab after its first cell, without what is no prose of this lab.

    Code, formulas, pictures, links, headings and sentences that name another lab are left out.
    """
    cells = jupytext.read(lab.path, fmt="py:percent").cells
    text = "\n\n".join(cell.source for cell in cells[1:] if cell.cell_type == "markdown")
    text = lab_counts.PICTURE.sub("", text)
    text = re.sub(r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[[^\]]+\]\([^)]+\)", " ", text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"[^.|]*\b[Ll]abs? \d[^.|]*", " ", text)
    return text.split("\n\n")


def first(pattern: re.Pattern, texts: list[str]) -> int | None:
    """Return the number of the first paragraph that has a match."""
    return next((number for number, text in enumerate(texts) if pattern.search(text)), None)


def test_the_table_has_all_rows_in_alphabetical_order():
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    terms = rows()
    assert len(lines) == len(terms) + 2, "a row is not | term | meaning | lab |"
    names = [term.term.lower() for term in terms]
    assert names == sorted(names) and len(names) == len(set(names))
    assert len(terms) >= LEAST_TERMS


@pytest.fixture(scope="module")
def labs() -> dict[int, list[str]]:
    return {lab.number: paragraphs(lab) for lab in lab_source.labs()}


@pytest.mark.parametrize("term", [t for t in rows() if t.lab != "grader"], ids=lambda t: t.term)
def test_a_term_is_defined_before_it_is_used(term, labs):
    assert (wrong := fault(term, labs)) is None, wrong


def fault(term: Term, labs: dict[int, list[str]]) -> str | None:
    """Return what is wrong with a term, or None."""
    own = int(term.lab)
    if own not in labs:
        return f"there is no lab {own}"
    defined = first(term.pattern(r"(?:\*\*|\*)"), labs[own])
    if defined is None:
        return f"lab {own} does not define *{term.names[0]}*"
    if term.qualified:
        return None
    for number in sorted(labs):
        texts = [text.replace("*", " ") for text in labs[number]]
        used = first(term.pattern(), texts)
        if used is not None and (number < own or number == own and used < defined):
            found = term.pattern().search(texts[used])
            around = texts[used][max(0, found.start() - 60) : found.end() + 60]
            return f"lab {number} uses it before its definition: {' '.join(around.split())}"
    return None


@pytest.mark.parametrize(
    ("term", "texts", "wrong"),
    [
        ("Bucket", {1: ["", "A *bucket* is full. Buckets help."]}, None),
        ("Bucket", {1: ["A bucket helps. A **bucket** is full."]}, None),
        ("Bucket", {1: ["A bucket helps.", "A **bucket** is full."]}, "lab 1 uses it before"),
        ("Bucket", {0: ["Bucketing"], 1: ["A **bucket** is full."]}, None),
        ("Bucket", {0: ["Two buckets"], 1: ["A **bucket** is full."]}, "lab 0 uses it before"),
        ("Bucket", {1: ["A bucket is full."]}, r"lab 1 does not define \*Bucket\*"),
        ("Fusion buffer", {1: ["The *fusion\nbuffer* is full."]}, None),
        ("ZeRO", {0: ["From zero"], 1: ["**ZeRO** shards."]}, None),
        ("Zero Redundancy (ZeRO)", {0: ["ZeRO shards"], 1: ["*ZeRO*."]}, "lab 0 uses it before"),
        ("Epoch (of N ranks)", {0: ["An epoch"], 1: ["An *epoch* here"]}, None),
    ],
)
def test_a_fault_of_a_term_is_found(term, texts, wrong):
    found = fault(Term(term, "meaning", "1"), texts)
    assert found is None if wrong is None else re.match(wrong, found)
