"""The instructor's pages: their commands, links and points exist, and their sums are right."""

import argparse
import importlib
import re
import tomllib

import pytest
from instructor_guides import ROOT

from hvdgrade import cli as hvdgrade
from hvdgrade import run_command
from hvdlab import cli as hvdlab

FOLDER = ROOT / "assessment" / "instructor"
PAGES = [*FOLDER.glob("*.md"), *(FOLDER / "guides").glob("*.md")]


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def options_of(program: str, command: str) -> set[str]:
    """Return the options of `hvdlab COMMAND` or `hvdgrade COMMAND`."""
    parser = argparse.ArgumentParser(add_help=False)
    if program == "hvdlab":
        importlib.import_module(hvdlab.COMMANDS[command][0]).add_arguments(parser)
    elif command == "run":
        run_command.add_arguments(parser)
    else:
        assert command in hvdgrade.COMMANDS
        importlib.import_module(f"hvdgrade.{command}.command").add_arguments(parser)
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):  # as of `hvdgrade certificate make`
            found = found.union(*(each._option_string_actions for each in action.choices.values()))
    return found


def commands() -> list[tuple[str, str]]:
    """Return (page, command) for each command of the project in a block or in the text of a page."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = re.findall(r"^    (.+)$", text, re.MULTILINE)
        lines += re.findall(r"`([^`\n]+)`", " ".join(text.split()))
        found += [
            (page.name, line.partition("  #")[0].strip())
            for line in lines
            if re.match(r"(LAB_QUICK=1 )?(hvdlab|hvdgrade|make) \w", line)
        ]
    return found


def test_every_command_and_each_of_its_options_exists():
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    checked = set()
    for page, line in commands():
        words = line.removeprefix("LAB_QUICK=1 ").split()
        if words[0] == "make":
            assert words[1] in targets, f"{page}: {line}"
            continue
        program, command = words[:2]
        known = options_of(program, command)
        # What follows a script belongs to the script.
        own = words[2:]
        script = next(
            (n for n, word in enumerate(own) if command == "run" and ".py" in word), len(own)
        )
        if program == "hvdlab":
            own = own[: script + 1]
        for word in own:
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"{page}: {line}"
        checked.add(f"{program} {command}")
    assert {"hvdlab doctor", "hvdlab data", "hvdgrade batch", "hvdgrade certificate"} <= checked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_to_a_heading(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings}
            assert anchor in slugs, target


def test_the_rubric_has_the_points_of_the_profile():
    points = tomllib.loads((ROOT / "assessment" / "profiles.toml").read_text("utf-8"))["points"]
    rows = re.findall(r"^\| ([a-zN ,]+) \| (\d+) \|", text_of("rubric.md"), re.MULTILINE)
    titles = {}
    for id in points:
        importlib.import_module("hvdgrade.judge.verdict")
        titles[importlib.import_module("hvdgrade.judge.check").CHECKS[id].title] = points[id]
    assert {title: int(number) for title, number in rows} == titles
    assert f"{int(0.25 * points['targets'])} of {points['targets']} points" in text_of("rubric.md")


def test_the_sums_of_the_worked_cases_are_right():
    sums = re.findall(r"(\d+(?: \+ \d+)+)\s+=\s+(\d+)", " ".join(text_of("rubric.md").split()))
    assert len(sums) == 2
    for terms, total in sums:
        assert sum(map(int, terms.split(" + "))) == int(total)
    assert len(re.findall(r"^### Case \d", text_of("rubric.md"), re.MULTILINE)) == 5
