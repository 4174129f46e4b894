"""A Sphinx extension: read docstrings whose examples and formulas are indented, as in Markdown.

reStructuredText wants `::` before such a block, and gives a meaning to `|` in a sentence.
"""

import re

from sphinx.application import Sphinx

SECTION = re.compile(r"(Args|Attributes|Example|Examples|Raises|Returns|Source|Yields):$")
ITEM = re.compile(r"\s*([*-]|\d+\.) ")


def marked(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with each indented block marked as a literal one.

    Args:
        lines: the docstring without its common indentation.
    """
    result, inside, in_section = [], False, False
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        if SECTION.match(line):
            in_section = True
        elif line and not line.startswith(" "):
            inside = in_section = False
        indented = line.startswith("    ") and not in_section and not ITEM.match(line)
        if indented and not inside and not before.strip():
            result += ["::", ""]
            inside = True
        result.append(line if inside else line.replace("|", "\\|"))
    return result


def setup(app: Sphinx) -> dict:
    """Mark the blocks before napoleon, whose priority is 500, reads the sections."""
    app.connect(
        "autodoc-process-docstring",
        lambda app, what, name, thing, options, lines: lines.__setitem__(
            slice(None), marked(lines)
        ),
        priority=400,
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
