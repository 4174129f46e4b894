"""Take the picture of a calculator that the README shows.

    python notebooks/site/photograph_calculator.py

It opens labs/calculators/memory.html in Chromium and writes _static/memory_calculator.png.
"""

import os
from pathlib import Path

from playwright.sync_api import sync_playwright
from print_slides import browser

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "labs/calculators/memory.html"
SIZE = {"width": 1100, "height": 880}  # pixels: the inputs, the chart and its table

if __name__ == "__main__":
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser(), chromium_sandbox=os.geteuid() != 0
        )
        page = chromium.new_page(viewport=SIZE)
        page.goto(PAGE.as_uri())
        page.locator(".chart svg").first.wait_for()
        page.screenshot(path=HERE / "_static/memory_calculator.png")
        chromium.close()
