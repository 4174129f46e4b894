"""Configuration of the site for Sphinx. `make_site.py` next to it makes the pages and starts Sphinx.

Everything that a page needs is part of the site, so that it can be read from the file system and without a
network: formulas are MathML, which browsers draw themselves, and there is no script or font of another host.
"""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
COURSE = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]

project = "Train on many GPUs with Horovod"
author = "the course lab"
copyright = "the authors, Apache License 2.0"
version = release = COURSE["version"]

extensions = [
    "myst_nb",
    "mathml",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
]
# Two pages include cards.md; the slides are built for themselves.
exclude_patterns = ["cards.md", "labs/slides/*"]
root_doc = "index"

# --- notebooks: make_site.py has run them and stored their outputs ---------------------------------------
nb_execution_mode = "off"
nb_output_stderr = "remove"
nb_render_markdown_format = "myst"
# A rotatable figure also stores a picture of itself; a page without a kernel shows the picture.
nb_mime_priority_overrides = [
    ("html", "image/svg+xml", 10),
    ("html", "image/png", 20),
    ("html", "text/html", 30),
    ("html", "text/markdown", 40),
    ("html", "text/plain", 50),
]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "html_image"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure"]

# --- the public packages ----------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"  # single backticks in a docstring
napoleon_custom_sections = [("Source", "notes_style")]

# --- the look ---------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = project
html_baseurl = COURSE["urls"].get("Documentation", "")
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(HERE / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
# Dark or light, as the reader's system. `repository`: the address on each page.
html_context = {"default_mode": "auto", "repository": COURSE["urls"].get("Repository", "")}
html_sidebars = {name: [] for name in ("index", "404", "results/*", "try/*")}
html_theme_options = {
    "logo": {
        "text": "Many GPUs with Horovod",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "back_to_top_button": False,
    "footer_start": ["course"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
