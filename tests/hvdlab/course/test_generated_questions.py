"""Drawn questions: right answers computed again here, named mistakes, and other numbers at the return."""

import json
import math
import re
import tomllib
from itertools import combinations
from random import Random

import pytest

from hvdlab.course import answers_file, generated_questions, workbook
from hvdlab.course.answers_file import AnswersFile, QuizAnswer, SolvedExercise, WorkbookError
from hvdlab.course.workbook import Question, Workbook

TEMPLATES = generated_questions.templates()
SEEDS = [13, 2**32 - 1, *Random(1).sample(range(2**32), 10)]
each_template = pytest.mark.parametrize("name", TEMPLATES)


def asked() -> list[tuple[int, int, str, int]]:
    """Return lab, number of the question, template and occurrence of each drawn question of the course."""
    found = []
    for path in sorted(workbook.QUESTIONS.glob("[0-9]*.toml")):
        entries = tomllib.loads(path.read_text("utf-8"))["question"]
        found += [
            (int(path.name[:2]), number, entry["generated"], entry["occurrence"])
            for number, entry in enumerate(entries, 1)
            if "generated" in entry
        ]
    return found


def drawn(name: str, seed: int, occurrence: int) -> Question:
    return Question(**generated_questions.question(name, occurrence, seed))


def numbers_of(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*\.?\d*(?<!,)", text)]


# What a learner computes from the numbers in the text, in their order.
def efficiency(single, one, several, gpus):
    return single / (several * gpus)


def ring_seconds(size, ranks, slow, fast):
    piece = size / ranks
    return sum(piece / min(slow, fast) for _ in range(2 * (int(ranks) - 1)))


def largest_rate(curvature):
    return max(rate / 1e5 for rate in range(1, 60_000) if abs(1 - rate / 1e5 * curvature) < 1)


def batch_variance(small, variance, large):
    return variance * small / large


def ring_bytes(size, ranks):
    return sum(size / ranks for phase in range(2) for step in range(int(ranks) - 1))


def rank_steps(ranks, images, batch):
    shard = range(0, int(images), int(ranks))  # of rank 0
    return len(range(0, len(shard), int(batch)))


def law_steps(s_min, one, critical, batch):
    return s_min + s_min * critical / batch


def warmup_rate(batch, rate, ranks, same, warmup, step, one):
    grows = (rate * ranks - rate) / warmup
    return rate + sum(grows for _ in range(int(step)))


RECOMPUTED = {
    one.__name__: one
    for one in (
        *(efficiency, ring_seconds, largest_rate, batch_variance, ring_bytes, rank_steps),
        *(law_steps, warmup_rate),
    )
}


@each_template
def test_the_answer_is_what_another_computation_gives(name):
    for seed in SEEDS:
        for occurrence in (0, 1):
            question = drawn(name, seed, occurrence)
            text = re.sub(r"\bOne GPU\b", "GPU", question.text).replace("one GPU", "1 GPU")
            by_hand = RECOMPUTED[name](*numbers_of(text))
            assert question.answer == pytest.approx(by_hand, rel=1e-3), question.text


@each_template
def test_each_mistake_is_named_and_no_two_give_the_same_number(name):
    template = TEMPLATES[name]
    for seed in SEEDS:
        for occurrence in (0, 1):
            question = drawn(name, seed, occurrence)
            assert question.wrong(question.answer) is None
            assert len(question.mistakes) == len(template.mistakes) >= 3
            for value, sentence in question.mistakes:
                assert question.wrong(value) == sentence
            values = [question.answer, *(value for value, _ in question.mistakes)]
            for one, other in combinations(values, 2):
                assert not math.isclose(one, other, rel_tol=2 * question.tolerance), question.text


@each_template
def test_no_choice_of_numbers_makes_two_mistakes_equal(name):
    template = TEMPLATES[name]
    for numbers in template.choices():
        expressions = ["answer", *(expression for expression, _ in template.mistakes)]
        values = [generated_questions.evaluate(each, numbers) for each in expressions]
        for one, other in combinations(values, 2):
            assert not math.isclose(one, other, rel_tol=2 * template.tolerance), numbers


@each_template
def test_texts_have_no_placeholder_and_no_number_with_many_digits(name):
    for seed in SEEDS:
        question = drawn(name, seed, 0)
        texts = [question.text, question.explanation, question.otherwise]
        texts += [sentence for _, sentence in question.mistakes]
        for text in texts:
            assert not re.search(r"[{}]|\d\.\d{5}|e[-+]\d", text), text


@each_template
def test_the_return_has_another_answer_and_learners_have_other_numbers(name):
    texts = set()
    for seed in SEEDS:
        first, second = (drawn(name, seed, occurrence) for occurrence in (0, 1))
        assert first.wrong(second.answer) is not None
        assert drawn(name, seed, 0) == first
        texts.add(first.text)
    assert len(texts) > 3


def test_every_template_is_asked_first_and_returns_in_a_later_lab():
    for name in TEMPLATES:
        labs = {occurrence: lab for lab, _, asked_name, occurrence in asked() if asked_name == name}
        assert set(labs) == {0, 1} and labs[0] < labs[1] <= 8
    assert sum(lab <= 6 and occurrence == 0 for lab, _, _, occurrence in asked()) >= 6


def test_the_numbers_stay_when_the_cell_runs_again_and_in_a_new_kernel(tmp_path, capsys):
    lab, number, name, _ = asked()[0]
    file = AnswersFile(tmp_path / "answers.json")
    file.add(SolvedExercise(1, "lab01.one", "t"))  # a file of an earlier version has no seed
    shown = set()
    for _ in range(3):
        Workbook(lab, AnswersFile(file.path)).question(number, answer=-1)
        shown.add(capsys.readouterr().out)
    assert len(shown) == 1
    seed = json.loads(file.path.read_text())["seed"]
    question = drawn(name, seed, 0)
    assert question.text in shown.pop()
    Workbook(lab, AnswersFile(file.path)).question(number, answer=question.answer)
    assert "**Right.**" in capsys.readouterr().out
    kept = [one.right for one in file.entries() if isinstance(one, QuizAnswer)]
    assert kept == [False, False, False, True]
    assert json.loads(file.path.read_text())["seed"] == seed


def test_two_learners_get_seeds_of_their_own(tmp_path):
    seeds = {AnswersFile(tmp_path / name / "answers.json").seed() for name in "abcd"}
    assert len(seeds) == 4


def test_a_seed_does_not_hide_a_broken_file(tmp_path):
    path = tmp_path / "answers.json"
    path.write_text("[]")
    with pytest.raises(WorkbookError, match="is not a file of answers"):
        AnswersFile(path).seed()


def test_a_script_has_the_numbers_of_the_example(capsys):
    lab, number, name, occurrence = asked()[0]
    assert answers_file.learners_file() is None
    Workbook(lab).question(number)
    assert drawn(name, generated_questions.EXAMPLE, occurrence).text in capsys.readouterr().out
