"""A headless Chromium for the tests of pages that need no server."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
NEEDED = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs {CHROMIUM}")


def started() -> Iterator[Any]:
    """Yield a Chromium, which leaves no process."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: run `make setup`"
    )
    before = set(psutil.Process().children())
    with sync_api.sync_playwright() as playwright:
        (driver,) = set(psutil.Process().children()) - before
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        processes = driver.children(recursive=True)
        browser.close()
    assert not psutil.wait_procs([driver, *processes], timeout=10)[1]
