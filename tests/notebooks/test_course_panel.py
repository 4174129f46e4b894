"""The panel *Course* and the boxes of checks in a real browser, with a real kernel and a learner's files."""

import json
import os
import re
import secrets

import chromium
import jupyter_run
import learner_folder
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make setup`")
expect = sync_api.expect
pytestmark = [
    pytest.mark.browser,
    pytest.mark.notebook,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    chromium.NEEDED,
]
# The environment names the folder of this test. A learner's notebook has no such variable.
LEARNER = """\
import os
from hvdlab.course.experiment import WORK
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import NotYet, lab02_gradient_descent as exercises
os.environ.pop("LAB_WORK")
SCRIPT = WORK / "script.py"
"""
CELLS = [
    LEARNER,
    "Workbook(2).question(1, answer=None)",
    "exercises.check_gradient(exercises.check_gradient.right)",
    'raise NotYet("line 12 reads `all` images.")',
]


@pytest.fixture(scope="module")
def browser():
    yield from chromium.started()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    yield page
    page.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    work = learner_folder.make(folder)
    with jupyter_run.running("lab", folder, work, LAB_WORK=work) as jupyter:
        yield jupyter


def open_notebook(page, lab, name):
    workspace = secrets.token_hex(4)
    page.goto(f"{lab.address}/lab/workspaces/{workspace}/tree/{name}?token={lab.token}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.get_by_text("Course lab (hvdlab) | Idle").wait_for()  # the kernel has said what it is


def tab(page, name):
    return page.locator(".lm-DockPanel .lm-TabBar-tab", has_text=name)


@pytest.mark.parametrize("name", ["00_start_here", "02_gradient_descent", "glossary"])
def test_opening_a_notebook_changes_nothing(page, lab, name):
    path = lab.served / f"{name}.ipynb"
    before = path.read_bytes()
    open_notebook(page, lab, path.name)
    expect(tab(page, name)).to_be_visible()
    expect(tab(page, name)).not_to_have_class(re.compile("jp-mod-dirty"))
    assert path.read_bytes() == before


def test_the_panel_opens_the_next_exercise_and_ticks_what_is_solved(page, lab, tmp_path):
    cells = [new_markdown_cell("# Mine"), *map(new_code_cell, CELLS)]
    kernel = {"name": "hvdlab", "display_name": "Course lab (hvdlab)", "language": "python"}
    nbformat.write(
        new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.served / "mine.ipynb"
    )
    (lab.served / "script.py").write_text("".join(f"line = {n}\n" for n in range(1, 31)))
    open_notebook(page, lab, "mine.ipynb")
    panel = page.locator(".hvdlab-panel")
    expect(panel).to_be_visible()  # it is open in a new workspace
    expect(panel.locator("details")).to_have_count(18)
    expect(panel.locator(".next")).to_contain_text("0 of ")
    expect(panel.locator(".next")).to_contain_text("Next: Exercise 1: One edit, one network")
    page.screenshot(path=tmp_path / "1 panel.png")

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    right, not_yet = page.locator(".hvdlab-right"), page.locator(".hvdlab-not-yet")
    expect(not_yet).to_contain_text("Not yet: line 12 reads all images.")
    expect(right).to_contain_text("Right: ")
    error = page.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    expect(error).to_have_count(1)
    expect(error).not_to_be_visible()  # the box says the same

    expect(panel.locator(".next")).to_contain_text("1 of ")
    expect(panel.locator(".next")).to_contain_text("Next: Exercise 2: The loop of gradient descent")
    second = panel.locator("details[data-lab='2']")
    expect(second).to_contain_text("160 min, 1/8 exercises, 0/7 questions")
    buttons = page.locator(".jp-OutputArea .jupyter-button")
    expect(buttons).to_have_text(["a", "b", "c", "d"])
    buttons.nth(1).click()
    expect(page.get_by_text("Not yet. The gradient points to larger losses.")).to_be_visible()
    buttons.nth(2).click()
    expect(page.get_by_text("Right. A positive derivative")).to_be_visible()
    expect(second).to_contain_text("160 min, 1/8 exercises, 1/7 questions")
    kept = json.loads((lab.served / "answers.json").read_text())
    assert [(one["answer"], one["right"]) for one in kept["questions"]] == [
        ("b", False),
        ("c", True),
    ]
    assert [one["exercise"] for one in kept["exercises"]] == ["lab02.gradient"]
    page.screenshot(path=tmp_path / "2 boxes.png")

    not_yet.get_by_role("link", name="Open line 12 of script.py").click()
    expect(page.locator(".jp-FileEditor")).to_be_visible()
    expect(page.locator(".jp-Notebook")).to_be_visible()  # the script is next to it
    expect(page.get_by_text("Ln 12, Col 1")).to_be_visible()
    page.screenshot(path=tmp_path / "3 script.png")

    panel.get_by_role("button", name="Next: Exercise 2").click()
    heading = page.locator(".jp-Notebook:visible").get_by_role(
        "heading", name="Exercise 2: The loop of gradient descent"
    )
    expect(heading).to_be_in_viewport()
    expect(tab(page, "02_gradient_descent")).to_be_visible()
    page.screenshot(path=tmp_path / "4 exercise.png")


def test_a_file_of_answers_that_cannot_be_read_is_named(page, lab):
    answers = lab.served / "answers.json"
    kept = answers.read_text() if answers.exists() else None
    answers.write_text("no JSON")
    try:
        open_notebook(page, lab, "00_start_here.ipynb")
        expect(page.locator(".hvdlab-panel .message")).to_contain_text("is not a file of answers")
    finally:
        os.remove(answers)
        if kept:
            answers.write_text(kept)
