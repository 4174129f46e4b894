"""A Sphinx extension: the directives `lab-code` and `lab-edit` show code of the labs, step by step.

    ```{lab-code} fashion_mnist_torch.py
    :from: for x, y in batches.epoch
    :to: total +=
    :steps: loss = | loss.backward ... optimizer.step
    ```
    ```{lab-edit} lab05_script_edits torch optimizer
    :steps: hvd.size | DistributedOptimizer ... )
    ```

`lab-code` takes a file in labs/, and `function` (its name) or `from` and `to` (words of the first and of the
last line). `lab-edit` takes a module of hvdlab.exercises with `EDITS`, a framework, and one or more steps of
the conversion.

A slide begins with the whole code. Each of the `steps` then highlights all lines that contain its words, or
with `A ... B` the lines from the first with A to the next with B. Code without `steps` is shown at once.
"""

import re
import textwrap
from importlib import import_module
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

from hvdlab.course.excerpt import ExcerptError, function_source

LABS = Path(__file__).resolve().parents[1]
# Lines of a diff that say nothing on a slide: headings, and context without a name.
HEADINGS = re.compile(r"^(---|\+\+\+) .*\n|^ [\s)\]}]*(#.*)?\n|^@@.*@@$", re.MULTILINE)
# Short code has larger letters (slides.css): the second class of its block, its most lines and columns.
SIZES = {"large": (12, 76), "medium": (14, 90)}


class CodeError(SphinxError):
    """A slide asks for code that the lab does not have."""


class LabCode(SphinxDirective):
    """The directive `lab-code`."""

    required_arguments = 1
    option_spec = dict.fromkeys(("function", "from", "to", "steps"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        """Return a block of code."""
        path = LABS / self.arguments[0]
        self.env.note_dependency(str(path))
        return [_block(excerpt(path, self.options), "python", self.options.get("steps"))]


class LabEdit(SphinxDirective):
    """The directive `lab-edit`."""

    required_arguments, optional_arguments = 3, 1
    final_argument_whitespace = True
    option_spec = {"steps": directives.unchanged}  # noqa: RUF012  as docutils has it

    def run(self) -> list[nodes.Node]:
        """Return the diff of one or more steps."""
        module, framework, *steps = " ".join(self.arguments).split()
        edits = import_module(f"hvdlab.exercises.{module}").EDITS[framework]
        self.env.note_dependency(str(edits.serial))
        diffs = [HEADINGS.sub("", edits.diff(step)).strip("\n") for step in steps]
        return [_block("\n\n".join(diffs), "diff", self.options.get("steps"))]


def excerpt(path: Path, options: dict[str, str]) -> str:
    """Return a function of a file, or the lines from one with the words `from` to one with the words `to`.

    Raises:
        CodeError: the file has no such code, or it is the solution of an exercise.
    """
    if "function" in options:
        try:
            code = function_source(path, options["function"])
        except ExcerptError as error:
            raise CodeError(str(error)) from None
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        first = _line(lines, options["from"], path.name)
        last = _line(lines, options["to"], path.name, first)
        code = textwrap.dedent("\n".join(lines[first : last + 1]))
    if "BEGIN SOLUTION" in code:
        raise CodeError(f"{path.name}: a slide must not show the solution of an exercise:\n{code}")
    return re.sub(r"\n{3,}", "\n\n", code)


def _block(code: str, language: str, steps: str | None) -> nodes.literal_block:
    lines = code.splitlines()
    longest = max(map(len, lines))
    fitting = [
        size for size, (most, wide) in SIZES.items() if len(lines) <= most and longest <= wide
    ]
    classes = " ".join([language, *fitting[:1]])
    block = nodes.literal_block(code, code, language=classes, linenos=False)
    if steps:
        block["data-line-numbers"] = line_numbers(code, steps)
    return block


def line_numbers(code: str, steps: str) -> str:
    """Return the lines of each step as reveal.js takes them: "|2,5|7-9". The first step is the whole code.

    Args:
        steps: words of the lines, see the module.

    Raises:
        CodeError: no line contains the words of a step.
    """
    lines, found = code.splitlines(), [""]
    for step in (each.strip() for each in steps.split("|")):
        begin, to, end = (each.strip() for each in step.partition("..."))
        first = _line(lines, begin, "the code of the slide")
        if to:
            last = _line(lines, end, "the code of the slide", first)
            found.append(f"{first + 1}-{last + 1}")
        else:
            found.append(",".join(str(n) for n, line in enumerate(lines, 1) if begin in line))
    return "|".join(found)


def _line(lines: list[str], words: str, where: str, start: int = 0) -> int:
    """Return the number of the first line that contains some words, from 0."""
    for number in range(start, len(lines)):
        if words in lines[number]:
            return number
    after = f" after line {start + 1}" if start else ""
    raise CodeError(f"{where} has no line with {words!r}{after}. Correct the words in the deck.")


def setup(app: Sphinx) -> dict:
    """Add the directives."""
    app.add_directive("lab-code", LabCode)
    app.add_directive("lab-edit", LabEdit)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
