from pathlib import Path

import chromium
import pytest

CALCULATORS = Path(__file__).parents[2] / "labs/calculators"


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium for all tests of a file."""
    yield from chromium.started()


@pytest.fixture
def visit(browser):
    """Return a function that opens a calculator without a network, which it may not ask for."""
    contexts, complaints = [], []

    def note(request):
        if not request.url.startswith(("file:", "data:")):
            complaints.append(request.url)

    def open_page(name, fragment="", **options):
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note)
        page.goto(f"{CALCULATORS.as_uri()}/{name}.html{fragment}")
        page.locator(".chart svg").first.wait_for(state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
