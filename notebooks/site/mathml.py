"""A Sphinx extension: write formulas as MathML, which browsers draw without a script.

docutils translates LaTeX to MathML. A formula that it cannot translate ends the build with an error, so no
page shows a broken formula.
"""

import re
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

# MathML has no numbers of equations, so the number becomes the end of the formula.
TAG = re.compile(r"\\tag\{([^}]+)\}")


def _write(translator, node: nodes.Element, as_block: bool) -> None:
    try:
        formula = tex2mathml(TAG.sub(r"\\qquad (\1)", node.astext()), as_block=as_block)
    except MathError as error:
        raise SphinxError(
            f"{node.source}: cannot translate the formula {node.astext()!r}: {error}"
        ) from None
    if as_block:
        formula = f'<div class="formula" tabindex="0">{formula}</div>'
    translator.body.append(formula)
    raise nodes.SkipNode


def _copy_font(app: Sphinx, error: Exception | None) -> None:
    """Write STIX Two Math, which has the symbols of formulas, as a web font."""
    if error is None:
        with TTFont(files("ziamath") / "fonts/STIXTwoMath-Regular.ttf") as font:
            font.flavor = "woff"
            font.save(Path(app.outdir, "_static/math.woff"))


def setup(app: Sphinx) -> dict:
    """Register the renderer."""
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _write(self, node, as_block=False), None),
        (lambda self, node: _write(self, node, as_block=True), None),
    )
    app.config.html_math_renderer = "mathml"
    app.connect("build-finished", _copy_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
