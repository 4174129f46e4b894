"""Configuration of the slides for Sphinx: every NN_name.md here becomes a deck of reveal.js."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "notebooks/site"), str(ROOT / "labs/slides")]  # the extensions

project = "Slides of the course"
extensions = ["myst_parser", "sphinx_revealjs", "mathml", "player_pages", "lab_charts", "lab_code"]
root_doc = "README"
suppress_warnings = ["toc.not_included"]  # each deck stands alone
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_dmath_double_inline = True

revealjs_static_path = ["_static"]
revealjs_css_files = ["slides.css"]
revealjs_style_theme = "white"
revealjs_script_plugins = [
    {"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"},
    {"name": "RevealHighlight", "src": "revealjs/plugin/highlight/highlight.js"},
]
revealjs_script_conf = {
    "width": 1280,
    "height": 720,
    "margin": 0.04,
    "center": False,
    "display": "flex",  # a picture takes the space that the text leaves, see slides.css
    "hash": True,
    "slideNumber": "c/t",
    "transition": "none",
    "pdfSeparateFragments": False,
    "pdfMaxPagesPerSlide": 1,
}
