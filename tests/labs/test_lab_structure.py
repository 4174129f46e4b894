"""Every lab has objectives, a summary and questions with feedback; the learner writes enough of its code."""

import json
import re
from pathlib import Path

import lab_counts
import pytest

from hvdlab.course import lab_source, workbook

LABS = lab_source.labs()
LEAST_LINES, LEAST_SHARE, MOST_PLOTTING, LEAST_QUESTIONS = 12, 0.20, 0.05, 5
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.path.stem)


def markdown(lab) -> str:
    return re.sub(r"^# ?", "", lab.path.read_text(encoding="utf-8"), flags=re.M)


@each_lab
def test_a_lab_has_objectives_a_summary_and_questions(lab):
    text = markdown(lab)
    objectives = re.search(
        r"^\*\*After this lab you can:?\*\*.*?\n((?:\n|[*-] .*\n|  .*\n)+)", text, re.M
    )
    assert objectives, "**After this lab you can** must be followed by a list"
    assert 3 <= len(re.findall(r"^[*-] ", objectives[1], re.M)) <= 5
    assert re.search(r"^\*\*Time\*\*|\*\*Time:?\*\*", text, re.M), "**Time** is missing"
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[-2:] == ["Summary", "Self-check questions"]


@each_lab
def test_every_question_has_feedback_and_a_cell(lab):
    asked = workbook.questions(lab.number)
    assert len(asked) >= LEAST_QUESTIONS
    assert lab.questions == set(range(1, len(asked) + 1))
    for number, question in enumerate(asked, 1):
        assert question.explanation, number
        assert question.wrong(question.answer) is None, number
        if question.choices:
            assert len(question.choices) >= 3, number
            assert set(question.feedback) == set(question.letters) - {question.answer}, number
            assert all(question.feedback.values()), number
        else:
            assert question.otherwise, number
            for wrong, sentence in question.mistakes:
                assert question.wrong(wrong) == sentence, (number, wrong)


@each_lab
def test_the_learner_writes_enough_and_scrolls_past_few_figures(lab):
    found = lab_counts.count(lab)
    assert found.written >= LEAST_LINES, f"{found.written} lines"
    assert found.share >= LEAST_SHARE, f"{found.written} lines are {found.share:.0%}"
    plotting = found.plotting / found.visible
    assert plotting < MOST_PLOTTING, f"{found.plotting} of {found.visible} lines draw"


SOURCE = '''\
# %% [markdown]
# # Lab 7: A title
# Three words here. $a + b$ [one link](http://nowhere) <summary>Hint 1</summary>
#
# ![Two words](pictures/ring.svg)

# %%
import matplotlib.pyplot as plt  # a line

# a comment
def double(x):
    # BEGIN SOLUTION: return twice x
    return (
        2 * x
    )
    # END SOLUTION

figure, axes = plt.subplots()
for value in (1, 2):
    print(value)
    axes.plot(
        [value]
    )
describe(figure, "text")

# %% tags=["folded"]
plt.show()

# %% tags=["solution"]
workbook.question(1, answer="b")
'''  # fmt: skip


def test_the_counts_of_a_small_lab(tmp_path):
    (tmp_path / "07_title.py").write_text(SOURCE)
    (lab,) = lab_source.labs(tmp_path)
    found = lab_counts.count(lab)
    assert found.words == 11  # no formula, no address, no description of a picture
    assert found.pictures == [("ring", "Two words")]
    assert (found.visible, found.plotting, found.written, found.figures) == (12, 5, 3, 2)
    assert found.share == 3 / 7


def formulas(text: str) -> list[str]:
    """Return the LaTeX formulas of a Markdown text."""
    # A dollar in code begins no formula.
    text = re.sub(r"```.*?```|(?<=\n\n)(?: {4}[^\n]*\n)+|`[^`]*`", "", text, flags=re.S)
    found = re.findall(r"(?<!\\)\$\$(.+?)\$\$|(?<![\\$])\$(?!\$)([^$]+?)(?<!\\)\$", text, re.S)
    return [re.sub(r"\\tag\{[^}]*\}", "", block or inline) for block, inline in found]


@pytest.mark.parametrize(
    "path", [path for lab in LABS for path in (lab.path, *lab.optional)], ids=lambda path: path.stem
)
def test_every_formula_can_become_mathml(path):
    """The site shows formulas as MathML, and its build ends at one that cannot be translated."""
    latex2mathml = pytest.importorskip("docutils.utils.math.latex2mathml")
    notebook = Path(__file__).parents[2] / "notebooks" / f"{path.stem}.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    for formula in formulas(text):
        latex2mathml.tex2mathml(formula.replace("\n", " "))
