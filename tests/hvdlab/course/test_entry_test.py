"""The core path of labs 1 to 3 is short enough, and the entry test marks sections that exist."""

import ast
import re

import pytest
from instructor_guides import LABS, stated_minutes

from hvdlab.course import answers_file, entry_test, lab_source, progress, workbook
from hvdlab.course.answers_file import AnswersFile, QuizAnswer, SolvedExercise, WorkbookError
from hvdlab.course.entry_test import Section

FIRST_LABS = [lab for lab in lab_source.labs() if lab.number <= 3]
SECTIONS = entry_test.sections()
QUESTIONS = workbook.questions(entry_test.LAB)
MOST_CORE_MINUTES = 150
DO_NOT_KNOW = "I do not know."
each_source = pytest.mark.parametrize(
    "path",
    [path for lab in FIRST_LABS for path in (lab.path, *lab.optional)],
    ids=lambda path: path.stem,
)

RIGHT, WRONG, UNKNOWN = True, False, None


@pytest.mark.parametrize(
    ("answers", "mark", "if_needed"),
    [
        ([], "do", "do"),
        ([RIGHT], "skip", "skim"),
        ([WRONG], "do", "do"),
        ([UNKNOWN], "do", "do"),
        ([RIGHT, RIGHT], "skip", "skim"),
        ([RIGHT, WRONG], "skim", "skim"),
        ([WRONG, RIGHT], "skim", "skim"),
        ([WRONG, WRONG], "do", "do"),
        ([RIGHT, UNKNOWN], "do", "do"),
        ([UNKNOWN, RIGHT], "do", "do"),
        ([WRONG, UNKNOWN], "do", "do"),
        ([UNKNOWN, UNKNOWN], "do", "do"),
    ],
)
def test_the_mark_of_every_pattern_of_answers(answers, mark, if_needed):
    assert entry_test.mark(answers) == mark
    assert entry_test.mark(answers, needed=True) == if_needed


@each_source
def test_every_section_has_a_path_and_minutes_that_add_up(path):
    headings = re.findall(r"^# ## (.+)$", path.read_text("utf-8"), re.MULTILINE)
    own = [section for section in SECTIONS if section.source == path.name]
    assert set(headings) - {section.title for section in own} == set(), (
        "write a line such as `*Core, 10 minutes.*` below these headings"
    )
    assert entry_test.minutes(own) == stated_minutes(path)


def test_only_labs_1_to_3_have_such_sections_and_the_core_path_is_short():
    assert {section.lab for section in SECTIONS} == {1, 2, 3}
    core = [section for section in SECTIONS if section.core]
    assert entry_test.minutes(core) <= MOST_CORE_MINUTES
    assert {section.path for section in SECTIONS} == {"core", "optional", "optional notebook"}


def called_later(path) -> dict[str, set[str]]:
    """Return the functions of exercises that the code of later sections calls, by title of a section."""
    text = path.read_text("utf-8")
    starts = [(found["title"], found.start()) for found in entry_test.MARKED.finditer(text)]
    ends = [start for _, start in starts[1:]] + [len(text)]
    codes = [text[start:end] for (_, start), end in zip(starts, ends, strict=True)]
    found = {}
    for number, (title, _) in enumerate(starts):
        written = re.findall(
            r"^def (\w+)\(.*\n(?:    .*\n)*?    # BEGIN SOLUTION", codes[number], re.M
        )
        after = ast.walk(ast.parse(text[ends[number] :]))
        used = {node.id for node in after if isinstance(node, ast.Name)}
        found[title] = set(written) & used
    return found


@each_source
def test_a_section_names_the_functions_that_later_cells_call(path):
    own = {one.title: set(one.called) for one in SECTIONS if one.source == path.name}
    assert own == called_later(path)
    assert any(own.values()) or path.name.startswith("01") or path not in LABS


def test_every_question_of_the_entry_test_is_complete_and_covers_sections_that_exist():
    assert 13 <= len(QUESTIONS) <= 17
    names = {section.name for section in SECTIONS}
    for number, question in enumerate(QUESTIONS, 1):
        assert question.sections and set(question.sections) <= names, number
        assert question.choices[-1] == DO_NOT_KNOW, number
        assert DO_NOT_KNOW not in question.choices[:-1] and len(question.choices) >= 3, number
        assert question.answer in question.letters[:-1] and question.explanation, number
        assert set(question.feedback) == set(question.letters) - {question.answer}, number
    letters = [question.answer for question in QUESTIONS]
    assert all(letters.count(letter) < len(letters) / 2 for letter in letters)


def test_the_notebook_asks_every_question_and_checks_every_exercise():
    lab = lab_source.read(entry_test.SOURCE)
    assert lab.questions == set(range(1, len(QUESTIONS) + 1))
    assert lab.exercises == tuple(
        f"lab00.{name}"
        for name in ("eigenvalue_of", "eigenvalues", "variance_of_mean", "curvature")
    )
    assert f"{len(QUESTIONS)} short questions" in lab.path.read_text("utf-8")
    assert f"has {len(QUESTIONS)} questions" in (lab.path.parent / "00_start_here.py").read_text(
        "utf-8"
    )


def answer(number, letter):
    right = QUESTIONS[number - 1].wrong(letter) is None
    return QuizAnswer(entry_test.LAB, number, letter, right, "t")


GRADIENT = Section(2, "Gradient", True, 11, ("gradient",))
LOSS = Section(2, "Loss function", False, 7, ())
OTHER = Section(2, "Summary", True, 2, ())
(OF_GRADIENT,) = [
    n for n, question in enumerate(QUESTIONS, 1) if GRADIENT.name in question.sections
]


@pytest.mark.parametrize(
    ("letters", "gradient", "loss"),
    [
        ([], "do", "do"),
        ([QUESTIONS[OF_GRADIENT - 1].answer], "skim", "skip"),
        ([f" {QUESTIONS[OF_GRADIENT - 1].answer.upper()}"], "skim", "skip"),
        (["a"], "do", "do"),
        (["d"], "do", "do"),
        (["d", QUESTIONS[OF_GRADIENT - 1].answer], "skim", "skip"),  # the last answer counts
        ([QUESTIONS[OF_GRADIENT - 1].answer, " D "], "do", "do"),
    ],
)
def test_marks_follow_the_last_answer_and_a_needed_section_is_at_least_skimmed(
    letters, gradient, loss
):
    entries = [answer(OF_GRADIENT, letter) for letter in letters]
    entries += [
        QuizAnswer(7, OF_GRADIENT, "d", False, "t"),
        SolvedExercise(2, "check_gradient", "t"),
    ]
    entries += [QuizAnswer(entry_test.LAB, 99, "a", True, "t")]  # of another version of the test
    found = entry_test.marks(entries, [GRADIENT, LOSS, OTHER])
    assert found == {GRADIENT.name: gradient, LOSS.name: loss, OTHER.name: "do"}


def test_one_right_and_one_wrong_answer_about_a_section_say_skim():
    section = next(
        section for section in SECTIONS if section.title == "Stochastic gradient descent"
    )
    first, second = [
        n for n, question in enumerate(QUESTIONS, 1) if section.name in question.sections
    ]
    entries = [answer(first, QUESTIONS[first - 1].answer), answer(second, "a")]
    assert entry_test.marks(entries, [section]) == {section.name: "skim"}


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def test_without_answers_the_sections_have_no_marks_and_a_sentence_names_the_test(
    tmp_path, wide, capsys
):
    entry_test.show(AnswersFile(tmp_path / "answers.json"))
    said = capsys.readouterr().out
    assert "Your mark" not in said and "skip" not in said.splitlines()[3]
    rows = [line for line in said.splitlines() if "│" in line]
    assert len(rows) == len(SECTIONS) and "Hessian and its eigenvalues" in said
    assert said.splitlines()[-1].endswith(
        "The entry test takes five minutes and says which sections you can skip."
    )


def test_with_all_answers_right_the_last_line_says_how_much_you_can_skip(tmp_path, wide, capsys):
    file = AnswersFile(tmp_path / "answers.json")
    for number, question in enumerate(QUESTIONS, 1):
        file.add(answer(number, question.answer))
    entry_test.show(file)
    said = capsys.readouterr().out
    assert "Your mark" in said
    (row,) = [line for line in said.splitlines() if "Gradient descent loop" in line]
    assert "skim" in row and "core" in row
    found = entry_test.marks(file.entries(), SECTIONS)
    skipped = [section for section in SECTIONS if section.core and found[section.name] == "skip"]
    assert said.splitlines()[-1].endswith(f"You can skip {entry_test.minutes(skipped)} of them.")
    assert not any(section.called for section in skipped) and entry_test.minutes(skipped) > 40


def test_progress_shows_the_marks_after_the_test(tmp_path, wide, monkeypatch, capsys):
    monkeypatch.setattr(answers_file, "PATH", tmp_path / "answers.json")
    AnswersFile(answers_file.PATH).add(SolvedExercise(2, "check_gradient", "t"))
    assert progress.main(None) == 0
    assert "Your mark" not in capsys.readouterr().out
    AnswersFile(answers_file.PATH).add(answer(1, "b"))
    assert progress.main(None) == 0
    said = capsys.readouterr().out
    assert "Your mark" in said and "Entry test" in said and f"1 of {len(QUESTIONS)}" in said


def test_a_broken_file_is_one_error(tmp_path):
    (tmp_path / "answers.json").write_text("{")
    with pytest.raises(WorkbookError, match="Move it away"):
        entry_test.show(AnswersFile(tmp_path / "answers.json"))
