"""Print the decks of the site as PDF, where Chromium is installed."""

import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfReader

BROWSERS = "chromium", "chromium-browser", "google-chrome"
SECONDS = 120  # for each step of one deck
# reveal.js makes a page of each slide after the page has loaded, and then sends this event.
LAID_OUT = "document.addEventListener('pdf-ready', () => { window.laidOut = true; })"
PICTURES = "() => Promise.all([...document.images].map(image => image.decode()))"


class MissingPages(Exception):
    """A PDF that has fewer pages than its deck has slides."""


def browser() -> str | None:
    """Return the path of the browser that prints, or None if there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def print_slides(folder: Path) -> None:
    """Write NAME.pdf next to the NAME.html of each deck, or say why there are none.

    Args:
        folder: the folder of the decks.

    Raises:
        MissingPages: a PDF has fewer pages than its deck has slides.
    """
    if not (program := browser()):
        print(
            f"No PDF of the slides: found none of {', '.join(BROWSERS)}. Print them from a browser."
        )
        return
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program,
            args=["--disable-gpu", "--no-first-run", "--disable-background-networking"],
            chromium_sandbox=os.geteuid() != 0,  # root cannot have Chromium's sandbox
        )
        for deck in sorted(folder.resolve().glob("[0-9]*.html")):
            _print_deck(chromium, deck)
        chromium.close()


def _print_deck(chromium: Browser, deck: Path) -> None:
    pdf = deck.with_suffix(".pdf")
    page = chromium.new_page()
    page.set_default_timeout(1000 * SECONDS)
    page.add_init_script(LAID_OUT)
    page.goto(f"{deck.as_uri()}?print-pdf")
    page.wait_for_function("window.laidOut")
    page.evaluate(PICTURES)
    slides = page.evaluate("Reveal.getTotalSlides()")
    page.pdf(path=pdf, prefer_css_page_size=True, print_background=True)
    page.close()
    if (pages := len(PdfReader(pdf).pages)) < slides:
        raise MissingPages(f"{pdf.name} has {pages} pages, but the deck has {slides} slides")
