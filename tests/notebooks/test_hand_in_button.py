"""The button *Hand in* in a real browser: it repeats one press with one key, and links to the submission.

test_hub.py presses it in a real JupyterHub with the real service.
"""

import json
import os
import re
import secrets

import jupyter_run
import pytest
from chromium import ARGUMENTS, CHROMIUM
from local_server import serving

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make setup`")
expect = sync_api.expect
pytestmark = [
    pytest.mark.browser,
    pytest.mark.notebook,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs {CHROMIUM}"),
]
STATUS = {"id": "s1", "number": 3, "state": "queued", "place": 2, "estimate_s": 200, "workers": 1}


@pytest.fixture
def page():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page
        browser.close()


def opened(page, lab):
    """Open the script in JupyterLab; return the button, and what the panel says of handing in."""
    workspace = secrets.token_hex(4)
    page.goto(f"{lab.address}/lab/workspaces/{workspace}/tree/assessment.py?token={lab.token}")
    expect(page.locator(".jp-Toolbar [data-jp-item-name=assess]")).to_be_visible()
    return (
        page.locator(".jp-Toolbar [data-jp-item-name=hand-in]"),
        page.locator(".hvdgrade-panel .handed"),
    )


def test_repeats_one_press_until_there_is_an_answer(page, tmp_path):
    requests, answers = [], [None, (503, {}, b""), (502, {}, b"<p>proxy")]

    def answer(request, _):
        requests.append(request)
        return answers.pop(0) if answers else (201, {}, json.dumps(STATUS).encode())

    (tmp_path / "served").mkdir()
    (tmp_path / "served/assessment.py").write_text("print('on disk')\n")
    with serving(answer) as url:
        variables = {"HVDGRADE_SERVICE_URL": f"{url}/a/hw1", "HVDGRADE_TOKEN": "mine"}
        with jupyter_run.running("lab", tmp_path, tmp_path / "served", **variables) as lab:
            button, said = opened(page, lab)
            expect(said).not_to_be_visible()
            page.locator(".jp-FileEditor .cm-content").click()
            page.keyboard.press("Control+Home")
            page.keyboard.type("# not saved yet\n")
            button.dblclick()
            expect(said).to_contain_text("No answer yet; the script is sent again.")
            words = "Handed in: assessment.py is submission 3. It has place 2 in the queue."
            expect(said).to_contain_text(words + " Its result is expected in about 4 min.")
            expect(said.get_by_role("link")).to_have_attribute("href", f"{url}/s/s1")
            page.screenshot(path=tmp_path / "handed in.png")
            assert len(requests) == 4 and len({r.headers["Idempotency-Key"] for r in requests}) == 1
            assert {request.body for request in requests} == {
                b"# not saved yet\nprint('on disk')\n"
            }

            answers.append((403, {}, b'{"error": "hw1 closed on Monday."}'))
            button.click()
            expect(said).to_have_text("Not handed in: hw1 closed on Monday.")
            assert len(requests) == 5  # an answer, so it is not repeated
            assert requests[4].headers["Idempotency-Key"] != requests[3].headers["Idempotency-Key"]


def test_without_a_service_there_is_no_button(page, tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served/assessment.py").write_text("")
    with jupyter_run.running("lab", tmp_path, tmp_path / "served") as lab:
        with page.expect_response(re.compile("hvdgrade/handin")) as asked:
            button, _ = opened(page, lab)
        assert asked.value.json() == {"page": None}
        expect(button).not_to_be_visible()
        page.keyboard.press("Control+Shift+C")
        page.keyboard.type("this script")
        expect(
            page.locator(".lm-CommandPalette-item", has_text="Assess this script")
        ).to_be_visible()
        expect(page.locator(".lm-CommandPalette-item", has_text="Hand in")).not_to_be_visible()
