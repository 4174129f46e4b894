"""Count what a lab consists of: words, pictures, code that the learner writes, exercises and questions.

    .venv/bin/python tests/helpers/lab_counts.py      # print the table of all labs

A line of code is a line that is neither empty nor a comment. *Visible* code is all that a learner's notebook
shows without a click, and the solutions that the learner writes: cells tagged "folded" or "solution" do not
count, nor do self-check questions and the line that prepares `hint`. *Plotting* is a statement that calls
matplotlib or a function that draws.
"""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import jupytext
from rich.console import Console
from rich.table import Table

from hvdlab import exercises
from hvdlab.course import lab_source
from hvdlab.course.lab_source import LabSource

BEGIN, END = re.compile(r"\s*# BEGIN SOLUTION:"), re.compile(r"\s*# END SOLUTION")
PICTURE = re.compile(r"!\[([^\]]*)\]\(pictures/([a-z0-9_]+)\.svg\)")
DRAWS = {"plt", "axes", "figure", "overlay", "predicted", "describe", "interactive"}
NOT_CODE = ("workbook.question(", "hint = workbook.hint")
DIFFS = ("BOTH", "TORCH", "DIFF")  # in labNN_script_edits.py


@dataclass(frozen=True)
class Counts:
    """What a lab consists of.

    Args:
        words: of all Markdown cells.
        pictures: names of the SVG pictures that it shows, with their alternative texts.
        figures: number of cells that draw a figure.
        visible: lines of visible code.
        plotting: how many of these draw.
        written: how many of these the learner writes, with the lines that the learner adds to a script.
    """

    lab: LabSource
    words: int
    pictures: list[tuple[str, str]]
    figures: int
    visible: int
    plotting: int
    written: int

    @property
    def share(self) -> float:
        """The fraction of the visible lines, other than plotting, that the learner writes."""
        return self.written / (self.visible - self.plotting)


def count(lab: LabSource) -> Counts:
    """Return the counts of a lab."""
    cells = jupytext.read(lab.path, fmt="py:percent").cells
    markdown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    code = [cell for cell in cells if cell.cell_type == "code"]
    shown = [c.source for c in code if not {"folded", "solution"} & set(c.metadata.get("tags", []))]
    added = lines_added_to_a_script(lab.number)
    lines = [source_lines(source) for source in shown]
    return Counts(
        lab,
        sum(map(words, markdown)),
        [(name, alt) for text in markdown for alt, name in PICTURE.findall(text)],
        sum(bool(re.search(r"\bplt\.show\(|\bdescribe\(", cell.source)) for cell in code),
        sum(len(numbers) for numbers, _, _ in lines) + added,
        sum(len(plotting) for _, plotting, _ in lines),
        sum(len(written) for _, _, written in lines) + added,
    )


def words(markdown: str) -> int:
    """Return the number of words of a text, without pictures, formulas and HTML."""
    text = PICTURE.sub("", markdown)
    text = re.sub(r"\$\$.*?\$\$|\$[^$]+\$|<[^>]+>|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[A-Za-z0-9][\w'’.-]*", text))


def source_lines(source: str) -> tuple[set[int], set[int], set[int]]:
    """Return the numbers of the lines of code, of those that only draw, and of those in solutions."""
    lines = source.splitlines()
    code = {
        n
        for n, line in enumerate(lines, 1)
        if line.strip() and line.strip()[0] not in "#%!" and not line.startswith(NOT_CODE)
    }
    written, inside = set(), False
    for number, line in enumerate(lines, 1):
        inside = bool(BEGIN.match(line)) or (inside and not END.match(line))
        if inside and number in code:
            written.add(number)
    tree = ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in lines))
    plotting = {n for node in tree.body for n in plotting_lines(node)} & code
    return code, plotting - written, written


def plotting_lines(node: ast.stmt) -> set[int]:
    """Return the numbers of the lines of a statement that draw."""
    every = set(range(node.lineno, node.end_lineno + 1))
    name = getattr(node, "name", "")
    if name.startswith("draw") or (not hasattr(node, "body") and draws(node)):
        return every
    header = getattr(node, "iter", None) or next(iter(getattr(node, "items", [])), None)
    inner = {node.lineno} if header is not None and draws(header) else set()
    for each in [*getattr(node, "body", []), *getattr(node, "orelse", [])]:
        inner |= plotting_lines(each)
    return inner


def draws(node: ast.AST) -> bool:
    """Return whether a statement or expression calls something that draws."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    roots = {re.split(r"[.(\[]", ast.unparse(function))[0] for function in calls}
    return any(root in DRAWS or root.startswith("draw") for root in roots)


def lines_added_to_a_script(lab: int) -> int:
    """Return how many lines of code the learner of this lab writes into a script, in its PyTorch version.

    The module with the edits of a lab has them as a text in which added lines begin with "+".
    """
    modules = Path(exercises.__file__).parent.glob(f"lab{lab:02d}_script_edits.py")
    lines = []
    for module in modules:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in DIFFS:
                lines += ast.literal_eval(node.value).splitlines()
    return sum(line.startswith("+") and line[1:].strip()[:1] not in ("", "#") for line in lines)


def main() -> None:
    table = Table()
    names = (
        "lab",
        "words",
        "pictures",
        "figures",
        "learner lines",
        "share",
        *lab_source.LEVELS,
        "questions",
    )
    for name in names:
        table.add_column(name, justify="left" if name == "lab" else "right")
    for lab in lab_source.labs():
        found = count(lab)
        row = (
            found.words, len(found.pictures), found.figures, found.written, f"{found.share:.0%}",
            *(list(lab.levels.values()).count(level) for level in lab_source.LEVELS), len(lab.questions),
        )  # fmt: skip
        table.add_row(f"{lab.number} {lab.title}", *map(str, row))
    Console(width=140, file=sys.stdout).print(table)


if __name__ == "__main__":
    main()
