"""The Assess button in a real browser: press it, watch, reload the page, read the verdict; cancel.

The tests start the server like `make lab`, on a copy of the notebooks. Their screenshots are in the test's
folder (pytest --basetemp=DIR keeps it).
"""

import json
import os
import re
import secrets
import shutil
import urllib.request
from pathlib import Path

import jupyter_run
import learner_folder
import psutil
import pytest
from graded_ranks import wait_for_ranks

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make setup`")
expect = sync_api.expect

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
# It does not train, but writes the record of a training script: two ranks, four epochs.
SLOW = """\
import time

import horovod.torch as hvd
from hvdlab.data import Batches, load_cifar10
from hvdlab.torch.models import AssessmentNet
from hvdlab.torch.recorder import Recorder

hvd.init()
data = load_cifar10()
images, labels = data.train_images[:256], data.train_labels[:256]
batches = Batches(images, labels, 64, rank=hvd.rank(), size=hvd.size())
recorder = Recorder(AssessmentNet(), batches)
for epoch in range(4):
    for _ in batches.epoch(epoch):
        pass
    recorder.epoch_end(epoch, loss=2.0 - 0.25 * epoch, accuracy=0.25 * epoch)
    time.sleep((3, 3, 12, 0)[epoch])  # the page is loaded anew during the third
"""
SLEEPS = "import time\ntime.sleep(1000)\n"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.notebook,
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs {CHROMIUM}"),
]


@pytest.fixture
def lab(tmp_path, cifar10_folder):
    """Start JupyterLab on a learner's folder, like `make lab`."""
    work = learner_folder.make(tmp_path)
    settings = tmp_path / "SETTINGS/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    with jupyter_run.running("lab", tmp_path, work, HVDLAB_DATA=cifar10_folder) as jupyter:
        yield jupyter


@pytest.fixture
def page():
    """Open a page in a headless Chromium, which ends with the test."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page
        browser.close()


def open_document(page, lab, path, source=None):
    if source:
        (lab.served / path).write_text(source)
    workspace = secrets.token_hex(4)
    page.goto(f"{lab.address}/lab/workspaces/{workspace}/tree/{path}?token={lab.token}")
    name = re.escape(Path(path).name)
    page.locator(".jp-MainAreaWidget .jp-Toolbar, .lm-DockPanel-tabBar").first.wait_for()
    page.get_by_role("tab", name=re.compile(name)).first.wait_for()


def button(page):
    """Return the button in the toolbar of the document."""
    return page.locator(".jp-Toolbar [data-jp-item-name=assess]")


def state(lab) -> dict:
    url = f"{lab.address}/hvdgrade/assess?token={lab.token}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def graders(lab) -> set[psutil.Process]:
    """Return the running graders, found by their command lines."""
    found = set()
    for process in lab.process.children(recursive=True):
        try:
            if "hvdgrade.cli" in process.cmdline():
                found.add(process)
        except psutil.Error:  # it has ended
            continue
    return found


def test_grades_shows_progress_and_survives_a_reload(lab, page, tmp_path):
    open_document(page, lab, "assessment.py", SLOW)
    editor = page.locator(".jp-FileEditor .cm-content")
    editor.click()
    page.keyboard.press("Control+Home")
    page.keyboard.type("# written in the browser, and not saved yet\n")
    expect(button(page)).to_be_visible()
    page.screenshot(path=tmp_path / "1 button.png")

    panel = page.locator(".hvdgrade-panel")
    expect(panel).not_to_be_visible()
    panel.locator("select").select_option("dli", force=True)
    button(page).dblclick()
    expect(panel).to_be_visible()
    expect(panel.locator(".what")).to_contain_text("assessment.py")
    expect(panel.locator(".stage")).to_contain_text("Running the submission")
    # The second click starts no second grading.
    expect(panel.locator(".message")).not_to_be_visible()
    first = panel.locator("tbody tr").first
    expect(first).to_contain_text("0.000")
    expect(first).to_contain_text("2.000")
    expect(panel.locator(".work .note")).to_contain_text(re.compile(r"at most \d+ s left"))
    page.screenshot(path=tmp_path / "2 running.png")
    assert (lab.served / "assessment.py").read_text().startswith("# written in the browser")

    button(page).click()  # only one grading at a time
    expect(panel.locator(".message")).to_contain_text("Another grading is running")

    before = state(lab)
    assert before["state"] == "running" and before["profile"] == "dli"
    before_reload = graders(lab)
    page.reload()
    expect(panel).to_be_visible()  # opened by itself, because a grading is running
    expect(panel.locator("tbody tr").nth(2)).to_contain_text("0.500")
    after = state(lab)
    assert (after["state"], after["number"]) == ("running", before["number"])
    assert len(before_reload) == 1 and graders(lab) == before_reload

    expect(panel.locator(".verdict")).to_have_text("Not passed yet", timeout=240_000)
    result = state(lab)["result"]
    expect(panel.locator(".points")).to_contain_text(f"{result['score']} of {result['max_score']}")
    expect(panel.locator(".checks li")).to_have_count(len(result["checks"]))
    # A screen reader announces the verdict by itself, and each check's state as a word.
    expect(panel.get_by_role("status").filter(has_text="Not passed yet")).to_have_count(1)
    for line, check in zip(panel.locator(".checks li").all(), result["checks"], strict=True):
        expect(line).to_contain_text(f"{check['state']}: {check['title']}")
    expect(panel.locator(".work")).not_to_be_visible()
    page.screenshot(path=tmp_path / "3 verdict.png")

    panel.get_by_role("button", name="Open report").click()
    frame = page.locator(".jp-MainAreaWidget iframe[src*='hvdgrade/report']")
    expect(frame).to_have_attribute("sandbox", "")
    report = page.frame_locator("iframe[src*='hvdgrade/report']")
    expect(report.locator("body")).to_contain_text("Not passed yet")
    for check in result["checks"]:
        expect(report.locator("body")).to_contain_text(check["title"])
    page.screenshot(path=tmp_path / "4 report.png")


def test_cancel_ends_all_processes(lab, page, tmp_path):
    open_document(page, lab, "train.py", SLEEPS)
    # Not a hand-in by its file name, but the command palette still grades it.
    expect(button(page)).not_to_be_visible()
    page.locator(".jp-SideBar [data-id=filebrowser]").click()  # instead of the panel of the course
    file = page.locator(".jp-DirListing-item", has_text="train.py")
    file.click(button="right")
    expect(page.locator(".lm-Menu-item", has_text="Assess this script")).to_be_visible()
    page.keyboard.press("Escape")

    panel = page.locator(".hvdgrade-panel")
    panel.locator("select").select_option("dli", force=True)
    page.locator(".jp-FileEditor .cm-content").click()
    page.keyboard.press("Control+Shift+C")
    page.keyboard.type("Assess this script")
    page.locator(".lm-CommandPalette-item", has_text="Assess this script").first.click()

    expect(panel.locator(".stage")).to_contain_text("Running the submission")
    expect(panel.locator(".what")).to_contain_text("train.py")
    wait_for_ranks(lab.process)
    started = lab.process.children(recursive=True)
    assert graders(lab)
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.locator(".message")).to_contain_text("Cancelled")
    expect(panel.get_by_role("button", name="Assess again")).to_be_visible()
    expect(panel.locator(".verdict")).not_to_be_visible()
    page.screenshot(path=tmp_path / "5 cancelled.png")
    assert state(lab)["state"] == "cancelled"
    assert psutil.wait_procs(started, timeout=20)[1] == []
    assert lab.process.children(recursive=True) == []


def test_lab_8_shows_the_button_and_names_the_missing_script(lab, page, tmp_path):
    open_document(page, lab, "02_gradient_descent.ipynb")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    expect(button(page)).not_to_be_visible()

    open_document(page, lab, "solutions/08_cifar10_assessment.ipynb")
    panel = page.locator(".hvdgrade-panel")
    asked = "**/hvdgrade/assess*"
    for code, said in (
        (403, "The server refuses this (403)"),
        (502, "Its answer: 502 Bad Gateway"),
    ):
        page.route(asked, lambda route, _, code=code: route.fulfill(status=code, body="<p>No"))
        button(page).click()
        expect(panel.locator(".message")).to_contain_text(said)
        page.unroute(asked)
    button(page).click()
    expect(panel.locator(".message")).to_contain_text("There is no file assessment.py")
    page.screenshot(path=tmp_path / "6 lab 8.png")

    (lab.served / "assessment.py").write_text("def 7")
    panel.get_by_role("button", name="Assess").click()
    expect(panel.locator(".verdict")).to_have_text("Not gradable: no attempt lost")
    expect(panel.locator(".points")).to_contain_text("is not valid Python")
    page.screenshot(path=tmp_path / "7 not gradable.png")
