"""Every term of the glossary is defined in the lab that the glossary names, and no earlier lab uses it.

`labs/glossary.md` is a table of term, meaning and lab. The lab is the number of the one that defines the
term, in `*italics*` or `**bold**` and no later than in the paragraph that uses it first; or "grader", for a
term of the assessment. The first cell of a lab, which says what the lab is about, may use any term, and
what it writes in italics or bold is defined there. A sentence that names the lab in which a term is
explained, such as "tensor parallelism (lab 13)", may use the term too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
import lab_counts
import pytest

from hvdlab.course import lab_source

GLOSSARY = Path(__file__).parents[2] / "labs/glossary.md"
LEAST_TERMS = 120
MOST_SENTENCES = 2
ROW = re.compile(r"^\| ([^|]+?) \| ([^|]+?) \| (\d+|grader) \|$", re.MULTILINE)
IN_EMPHASIS = re.compile(r"(?<!\*)(\*\*?)(?=[\w`\[])[^*\n]+\1")
CODE_IN_EMPHASIS = re.compile(r"(\*\*?)`([^`*\n]+)`\1")
LINK_IN_EMPHASIS = re.compile(r"(\*\*?)\[([^\]*]+)\]\([^)]+\)\1")


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
        return re.compile(
            rf"(?<![\w-]){around}(?:{'|'.join(names)})(?:e?s)?[.:,]?{around}(?![\w-])"
        )


def rows() -> list[Term]:
    return [Term(*found) for found in ROW.findall(GLOSSARY.read_text(encoding="utf-8"))]


def paragraphs(lab) -> list[str]:
    """Return the paragraphs of a lab after its first cell, without what is no prose of this lab.

    Those of its optional notebooks follow.

    Code, formulas, pictures, links, headings and sentences that name another lab are left out. Code and
    links in italics or bold stay, because they may define a term, as in *`torchrun`* and **[LoRA](...)**.
    The words in italics or bold of the first cell are the first paragraph.
    """
    introduction, *cells = jupytext.read(lab.path, fmt="py:percent").cells
    for path in lab.optional:
        cells += jupytext.read(path, fmt="py:percent").cells[1:]
    defined = " ".join(found[0] for found in IN_EMPHASIS.finditer(introduction.source))
    markdown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    text = "\n\n".join([defined, *markdown])
    text = lab_counts.PICTURE.sub("", text)
    text = CODE_IN_EMPHASIS.sub(r"\1\2\1", LINK_IN_EMPHASIS.sub(r"\1\2\1", text))
    text = re.sub(r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"<code>.*?</code>", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[([Ll]ab \d+)?[^\]]+\]\([^)]+\)", r" \1 ", text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    return [re.sub(r"[^.|]*\b[Ll]abs? \d[^.|]*", " ", each) for each in text.split("\n\n")]


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
    long = [t.term for t in terms if len(re.findall(r"\.(?= |$)", t.meaning)) > MOST_SENTENCES]
    assert long == [], f"write at most {MOST_SENTENCES} sentences"


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
        ("Batch", {0: ["Two batches"], 1: ["A **batch** is full."]}, "lab 0 uses it before"),
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


INTRODUCTION = "# # Lab 7: Warmup\n#\n# Warmup is *gradual warmup* or not.\n"
REST = """
# %% [markdown]
# *`torchrun`* starts, and `mpirun` does not. **[LoRA](http://a.b)** is [a link](http://a.b).
#
# Ranks are listed here:
#
# [Lab 13, Tensor parallelism](13.ipynb), splits tensors. <code>world_size</code> is $n$.
"""


def test_the_paragraphs_of_a_small_lab(tmp_path):
    (tmp_path / "07_warmup.py").write_text("# %% [markdown]\n" + INTRODUCTION + REST)
    (lab,) = lab_source.labs(tmp_path)
    texts = [" ".join(text.split()) for text in paragraphs(lab)]
    words = ["*torchrun* starts, and does not. **LoRA** is .", "Ranks are listed here:", ". is ."]
    assert texts == ["*gradual warmup*", *words]
