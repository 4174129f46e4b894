"""The instructor's guides: each lab has one, its times are those of the lab, and it quotes real messages."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from instructor_guides import LABS, ROOT, guide_of, minutes, section, stated_minutes

HEADINGS = [
    *("Objective", "Prerequisites", "Minutes", "Where people get stuck"),
    *("When time is short", "Discussion", "Questions for a vote"),
]


@pytest.fixture(params=LABS, ids=lambda path: path.stem)
def lab(request) -> Path:
    return request.param


def messages(lab: Path) -> list[str]:
    """Return all texts in the checks of a lab, without the values that they insert.

    The checks of labs 5, 11 and 16 also use the rules of `hvdlab check` and its catalogue.
    """
    package = ROOT / "labs" / "hvdlab"
    paths = [*(package / "exercises").glob(f"lab{lab.name[:2]}_*.py")]
    paths += (package / "exercises" / "harness").glob("*.py")
    if lab.name[:2] in ("05", "11", "16"):
        paths += [package / "mistakes.py", *(package / "check").rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    return [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_the_guide_has_all_sections_in_order_and_the_length_of_a_guide(lab):
    guide = guide_of(lab)
    title = re.search(r"^# # (Lab \d+: .+)$", lab.read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert guide.startswith(f"# Guide to lab {title.removeprefix('Lab ')}\n")
    assert re.findall(r"^## (.+)$", guide, re.MULTILINE) == HEADINGS
    prose = [line for line in guide.splitlines() if not line.startswith(("|", "#"))]
    assert 400 <= len(" ".join(prose).split()) <= 700
    assert 3 <= len(re.findall(r"^\d\. \*.+", section(guide, "Discussion"), re.MULTILINE)) <= 5


def test_the_complete_time_is_the_one_that_the_lab_states(lab):
    times = minutes(guide_of(lab))
    assert times["complete"] == stated_minutes(lab)
    assert all(short < times["complete"] for name, short in times.items() if name != "complete")


def test_every_quoted_message_occurs_in_the_checks(lab):
    guide, texts = " ".join(guide_of(lab).split()), messages(lab)
    quotes = re.findall("“([^”]*)”", guide)
    assert len(quotes) >= 6
    for quote in quotes:
        for part in filter(None, map(str.strip, quote.split("…"))):
            assert any(part in text for text in texts), quote


def test_the_questions_for_a_vote_exist(lab):
    chosen = re.findall(r"^\* \*\*Question (\d+)\*\*", guide_of(lab), re.MULTILINE)
    path = ROOT / "labs" / "questions" / f"{lab.stem}.toml"
    count = len(tomllib.loads(path.read_text(encoding="utf-8"))["question"])
    assert len(chosen) >= 2 and all(1 <= int(number) <= count for number in chosen)


def test_sections_and_exercises_that_a_guide_names_exist_in_the_lab(lab):
    sources = [lab, *lab.parent.glob(f"{lab.name[:2]}_more_*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    guide = guide_of(lab)
    cut = section(guide, "When time is short") + section(guide, "Minutes")
    for name in re.findall(r"(?<![*\w])\*([A-Z][^*]+)\*(?![*\w])", " ".join(cut.split())):
        assert re.search(rf"^# ##+ {re.escape(name)}\b", text, re.MULTILINE) or name in text, name
    exercises = {int(n) for n in re.findall(r"[Ee]xercises? (\d+)", guide)}
    last = max(map(int, re.findall(r"^# ##+ Exercise (\d+)", text, re.MULTILINE)))
    assert max(exercises) <= last
