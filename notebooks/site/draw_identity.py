"""Draw the identity of the course: the logo, the icon of a tab, and the picture for links to the site.

    python notebooks/site/draw_identity.py

It writes logo.svg, favicon.svg and social_card.png to _static/. The logo is a ring of eight ranks. One of
them, in orange, sends a chunk to its neighbour, as in the ring all-reduce of lab 4. Chromium draws the card.
"""

import math
import os
from pathlib import Path

from playwright.sync_api import sync_playwright
from print_slides import browser

STATIC = Path(__file__).resolve().parent / "_static"
NAVY, BLUE, ORANGE, WHITE = "#0b2239", "#56b4e9", "#ff9d4d", "#ffffff"
RANKS, CENTRE, RADIUS, DOT = 8, 32, 22, 5.4  # numbers of the picture are units of a square of 64
SENDER = 6  # the rank at the upper right, counted clockwise from the right
CARD = {"width": 1200, "height": 630}  # pixels, as services that show links expect


def ring() -> str:
    """Return the shapes of the logo."""
    shapes = [
        f'<circle cx="{CENTRE}" cy="{CENTRE}" r="{RADIUS}" fill="none" stroke="{BLUE}" stroke-width="2.4"/>'
    ]
    for rank in range(RANKS):
        x, y = _place(rank)
        colour = ORANGE if rank == SENDER else BLUE
        shapes.append(f'<circle cx="{x}" cy="{y}" r="{DOT}" fill="{colour}"/>')
    (x1, y1), (x2, y2) = _place(SENDER + 0.28), _place(SENDER + 1)
    shapes.append(
        f'<path d="M{x1},{y1} A{RADIUS},{RADIUS} 0 0 1 {x2},{y2}" fill="none" stroke="{ORANGE}"'
        ' stroke-width="4.4" stroke-linecap="round"/>'
    )
    return "".join(shapes)


def _place(rank: float) -> tuple[float, float]:
    angle = 2 * math.pi * rank / RANKS
    return tuple(round(CENTRE + RADIUS * turn(angle), 2) for turn in (math.cos, math.sin))


def svg(shapes: str) -> str:
    """Return a picture of the shapes."""
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">{shapes}</svg>\n'


def card() -> str:
    """Return the page that becomes the social card."""
    return f"""<body style="margin:0;background:{NAVY};color:{WHITE};
        font-family:'DejaVu Sans',Verdana,sans-serif;height:630px;overflow:hidden;position:relative">
      <div style="position:absolute;right:-110px;top:-5px;width:640px;opacity:0.95">{svg(ring())}</div>
      <div style="position:absolute;left:80px;top:120px;width:640px">
        <p style="font-size:74px;font-weight:bold;line-height:1.12;margin:0">
          Train on many GPUs with Horovod</p>
        <p style="font-size:33px;line-height:1.45;margin:44px 0 0;color:#cfe6f7">
          18 labs, and a grader that measures what your script does. Two CPU cores are enough.</p>
      </div></body>"""


if __name__ == "__main__":
    (STATIC / "logo.svg").write_text(svg(ring()), encoding="utf-8")
    ground = f'<rect width="64" height="64" rx="13" fill="{NAVY}"/>'
    (STATIC / "favicon.svg").write_text(svg(ground + ring()), encoding="utf-8")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser(), chromium_sandbox=os.geteuid() != 0
        )
        page = chromium.new_page(viewport=CARD)
        page.set_content(card())
        page.screenshot(path=STATIC / "social_card.png")
        chromium.close()
