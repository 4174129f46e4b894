"""Print the decks of the site as PDF, where Chromium is installed."""

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BROWSERS = "chromium", "chromium-browser", "google-chrome"
SECONDS = 120  # for one deck
AT_ONCE = 2


def browser() -> str | None:
    """Return the path of the browser that prints, or None if there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def print_slides(folder: Path) -> None:
    """Write NAME.pdf next to the NAME.html of each deck, or say why there are none.

    Args:
        folder: the folder of the decks.
    """
    if not (program := browser()):
        print(
            f"No PDF of the slides: found none of {', '.join(BROWSERS)}. Print them from a browser."
        )
        return
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []  # root cannot have Chromium's sandbox

    def print_deck(page: Path) -> None:
        with tempfile.TemporaryDirectory() as profile:
            subprocess.run(
                [
                    *(program, *as_root, "--headless", "--disable-gpu", "--no-first-run"),
                    *("--disable-background-networking", f"--user-data-dir={profile}"),
                    *("--no-pdf-header-footer", "--virtual-time-budget=10000"),
                    *(f"--print-to-pdf={page.with_suffix('.pdf')}", f"{page.as_uri()}?print-pdf"),
                ],
                timeout=SECONDS,
                check=True,
                capture_output=True,
            )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(print_deck, sorted(folder.glob("[0-9]*.html"))))
