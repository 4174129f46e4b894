"""JupyterLab in a real browser: open the start page, run lab 2 from the menu, turn a figure by the mouse.

The tests start the server like `make lab`, on a copy of the notebooks, because JupyterLab saves the notebooks
that it runs. Chromium is Debian's: `apt-get install chromium`.
"""

import base64
import json
import os
import re
import secrets
import shutil
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import jupyter_run
import learner_folder
import nbformat
import numpy as np
import psutil
import pytest
from matplotlib.image import imread

from hvdlab.course import lab_source

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make setup`")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
# Render every cell, visible or not.
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"}}
LAB = "solutions/02_gradient_descent.ipynb"
EXECUTED = re.compile(r"^\[\d+\]:$")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.notebook,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start JupyterLab on a learner's folder, like `make lab`."""
    folder = tmp_path_factory.mktemp("server")
    work = learner_folder.make(folder)
    for name, values in SETTINGS.items():
        path = folder / f"SETTINGS/@jupyterlab/{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)  # so that a kernel uses the widget backend
        with jupyter_run.running("lab", folder, work, LAB_QUICK="1") as jupyter:
            yield jupyter


@pytest.fixture
def page():
    """Open a page in a headless Chromium, which ends with the test."""
    before = set(psutil.Process().children())
    with sync_api.sync_playwright() as playwright:
        (driver,) = set(psutil.Process().children()) - before
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        yield page
        started = driver.children(recursive=True)
        browser.close()
    assert not psutil.wait_procs([driver, *started], timeout=10)[1]


def open_notebook(page, server, path):
    # A new workspace, so that nothing is restored that another test has opened.
    workspace = secrets.token_hex(4)
    page.goto(f"{server.address}/lab/workspaces/{workspace}/tree/{path}?token={server.token}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()


def test_the_start_page_links_to_the_labs(server, page, tmp_path):
    open_notebook(page, server, "00_start_here.ipynb")
    notebook = page.locator(".jp-Notebook")
    notebook.get_by_role("heading", name="Start here").first.wait_for()
    table = notebook.locator("table", has_text="minutes")
    table.wait_for()
    labs = lab_source.labs()
    assert table.locator("tbody tr").count() == len(labs) >= 9
    page.screenshot(path=tmp_path / "start.png")

    table.get_by_role("link", name="Gradient descent", exact=False).first.click()
    page.locator(".jp-Notebook:visible h1", has_text="Lab 2: Gradient descent").wait_for()
    page.screenshot(path=tmp_path / "lab1.png")


def test_jupyterlab_fetches_no_news_and_does_not_ask_about_them(server):
    kind = "@jupyterlab/apputils-extension:notification"
    address = f"{server.address}/lab/api/settings/{quote(kind)}?token={server.token}"
    with urllib.request.urlopen(address, timeout=60) as answer:
        properties = json.load(answer)["schema"]["properties"]
    assert properties["fetchNews"]["default"] == "false"  # JupyterLab's own: "none", which asks


SHOWN = """\
import matplotlib.pyplot as plt
from hvdlab.course.figures import describe
figure, axes = plt.subplots()
axes.plot([1, 2])
describe(figure, "A line rises from 1 to 2.")
"""


@pytest.mark.slow
def test_pictures_are_shown_and_described_and_folded_cells_are_folded(server, page, tmp_path):
    data = base64.b64encode((ROOT / "labs/pictures/training_step.png").read_bytes()).decode()
    text = nbformat.v4.new_markdown_cell("![The parts of a step](attachment:step.png)")
    text.attachments = {"step.png": {"image/png": data}}
    folded = nbformat.v4.new_code_cell("hidden = 1", metadata={"jupyter": {"source_hidden": True}})
    kernel = {"name": "hvdlab", "display_name": "Course lab (hvdlab)", "language": "python"}
    cells = [text, folded, nbformat.v4.new_code_cell(SHOWN)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, server.served / "shown.ipynb")

    open_notebook(page, server, "shown.ipynb")
    picture = page.get_by_alt_text("The parts of a step")
    picture.wait_for()
    wait_for_width(page, picture, 1000)
    assert page.locator(".jp-CodeCell .jp-Collapser").count() >= 2
    assert page.locator(".jp-CodeCell .jp-Placeholder").count() == 1
    assert not page.locator(".jp-CodeCell").first.locator(".cm-content").is_visible()
    run_all(page)
    figure = page.get_by_alt_text("A line rises from 1 to 2.")
    figure.wait_for()
    wait_for_width(page, figure, 300)
    page.screenshot(path=tmp_path / "shown.png")


@pytest.mark.slow
def test_lab_1_runs_from_the_menu_and_its_figure_can_be_turned(server, page, tmp_path):
    path = server.served / LAB
    cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code" and c.source.strip()]
    open_notebook(page, server, LAB)
    run_all(page)
    page.screenshot(path=tmp_path / "done.png")

    saved = [cell for cell in save(page, path).cells if cell.cell_type == "code"]
    outputs = [output for cell in saved for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert sum(cell.execution_count is not None for cell in saved) == len(cells)

    figure = page.locator(".jupyter-matplotlib").first
    canvas = figure.locator("canvas").last
    canvas.scroll_into_view_if_needed()
    before = picture(page, canvas, tmp_path / "before.png")
    assert changed(before, picture(page, canvas, tmp_path / "again.png")) == 0
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 120, middle[1] + 40, steps=10)
    page.mouse.up()
    after = picture(page, canvas, tmp_path / "after.png", other_than=before)
    assert changed(before, after) > 0.05


def run_all(page, seconds=420):
    """Click Run > Run All Cells, and wait until no cell runs any more, at the end or after an error."""
    page.locator(".jp-NotebookPanel-toolbar").get_by_text("Course lab (hvdlab)").first.wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    prompts = page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-prompt")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        texts = [text.strip() for text in prompts.all_inner_texts()]
        if "[*]:" not in texts and any(map(EXECUTED.match, texts)):
            return
        page.wait_for_timeout(500)
    pytest.fail(f"after {seconds} s {texts.count('[*]:')} of {len(texts)} cells had still to run")


def save(page, path, seconds=30):
    """Save the notebook in the browser, and return its content."""
    before = path.stat().st_mtime_ns
    page.keyboard.press("Control+s")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        page.wait_for_timeout(200)
        if path.stat().st_mtime_ns != before and (text := path.read_text()).endswith("}\n"):
            return nbformat.reads(text, 4)
    pytest.fail(f"the notebook was not saved within {seconds} s")


def wait_for_width(page, image, least, seconds=30):
    """Wait until an image is loaded and at least so many pixels wide."""
    deadline = time.monotonic() + seconds
    while image.evaluate("image => image.complete ? image.naturalWidth : 0") < least:
        assert time.monotonic() < deadline, f"the image was not shown within {seconds} s"
        page.wait_for_timeout(200)


def picture(page, canvas, path, seconds=60, other_than=None):
    """Return the pixels of the canvas, once it shows another picture, which no longer changes.

    The kernel may draw a figure twice, and on a busy machine the second picture follows after a second.
    """
    last, equal, deadline = None, 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        page.wait_for_timeout(500)
        canvas.screenshot(path=path)
        now = imread(path)
        new = other_than is None or changed(other_than, now) > 0.05
        equal = equal + 1 if np.array_equal(last, now) else 0
        if now.std() > 0.01 and new and equal == 6:
            return now
        last = now
    pytest.fail(f"the figure did not come to rest within {seconds} s, see {path}")


def changed(one, other) -> float:
    """Return the fraction of pixels that differ."""
    return (np.abs(one - other).max(axis=-1) > 0.02).mean()
