"""Make the notebooks from their sources, `labs/NN_name.py` (jupytext percent, with solutions) and two pages.

    python notebooks/build.py            # write notebooks/*.ipynb and notebooks/solutions/*.ipynb
    python notebooks/build.py --check    # write nothing; say which are not what would be written

The solutions become stubs in the learner's version (hvdlab/course/stubs.py). A source without a solution has
no solution version. The hints of an exercise are left out of the learner's version, and a comment in a cell
of the exercise calls `hint()`, which opens them (hvdlab/course/exercise_hints.py).

A code cell tagged "folded" is hidden until the reader clicks on it: it draws a figure, or prepares an
experiment. A picture, `![what it shows](pictures/NAME.svg)`, is embedded in the notebook, so that a copy of
the notebook shows it wherever it lies. What is embedded is NAME.png, because JupyterLab does not show an
embedded SVG file.
"""

import argparse
import base64
import copy
import re
import sys
from pathlib import Path

import jupytext
import nbformat

from hvdlab.course import exercise_hints
from hvdlab.course.exercise_hints import Cell
from hvdlab.course.learner_notebooks import KERNEL
from hvdlab.course.stubs import BEGIN, END, OPTIONAL, BadSource, exercises_before, stubbed

NOTEBOOKS = Path(__file__).resolve().parent
LABS = NOTEBOOKS.parent / "labs"
APART = """\
# This version works in a folder of its own: what you have written stays as it is.
import os

os.environ.setdefault("LAB_WORK", "notebooks/work/solutions")
"""
PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}
PAGES = "glossary.md", "survey.md", "colab_and_kaggle.md"  # each becomes a notebook
SOURCE_NAME = re.compile(r"\d\d_[a-z0-9_]+\.py")
PICTURE = re.compile(r"(!\[[^\]]+\]\()pictures/([a-z0-9_]+)\.svg\)")


def sources() -> list[Path]:
    """The lab sources, in the order of the course, and the pages."""
    labs = [path for path in LABS.glob("*.py") if SOURCE_NAME.fullmatch(path.name)]
    labs.sort(key=lambda path: (path.name[:2], OPTIONAL in path.name, path.name))
    return labs + [LABS / name for name in PAGES if (LABS / name).exists()]


def read(path: Path):
    """Return the notebook that a source describes, complete."""
    return jupytext.read(path, fmt="py:percent" if path.suffix == ".py" else "md")


def build(path: Path) -> dict[Path, str]:
    """Return what a source becomes: {path relative to notebooks/: text of the notebook}."""
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            _embed_pictures(cell, path)
    stubs, exercises = learner(notebook, path)
    _close_hints(stubs.cells, int(path.name[:2]) if exercises else 0)
    # A page may be opened where only the kernel of the machine exists.
    built = {Path(f"{path.stem}.ipynb"): _text(stubs, KERNEL if path.suffix == ".py" else PYTHON)}
    if exercises:
        complete = solution(notebook)
        complete.cells[0].source += "\n\n**This is the version with the solutions.**"
        # Not in the learner's version, because that file has the solutions.
        complete.cells[0].source += f" It is generated from `labs/{path.name}`: edit that file."
        built[Path("solutions", f"{path.stem}.ipynb")] = _text(complete, KERNEL)
    return built


def _embed_pictures(cell, path):
    """Turn the pictures that a text refers to into attachments of its cell."""
    for _, name in PICTURE.findall(cell.source):
        picture = LABS / "pictures" / f"{name}.png"
        if not picture.exists():
            raise BadSource(f"{path.name} shows {name}, and there is no labs/pictures/{name}.png")
        data = base64.b64encode(picture.read_bytes()).decode("ascii")
        cell.setdefault("attachments", {})[picture.name] = {"image/png": data}
    cell.source = PICTURE.sub(r"\1attachment:\2.png)", cell.source)


def learner(notebook, path: Path):
    """Return the notebook with stubs in place of solutions, and how many exercises it has."""
    before = exercises = exercises_before(path)
    cells = []
    for number, cell in enumerate(notebook.cells):
        if "solution" in cell.metadata.get("tags", []):
            continue
        cell = copy.deepcopy(cell)
        if cell.cell_type == "code":
            cell.source, exercises = stubbed(cell.source, path, number, exercises)
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells), exercises - before


def _close_hints(cells, lab):
    """Remove the hints from the text, and put the comment that opens them into a cell of each exercise."""
    content = [Cell(cell.cell_type == "markdown", cell.source) for cell in cells]
    for exercise in exercise_hints.exercises(content, lab):
        if exercise.hints:
            cell = cells[exercise.place]
            cell.source = f"{exercise_hints.CALL}\n\n{cell.source}"
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = exercise_hints.without_hints(cell.source)
    cells[:] = [cell for cell in cells if cell.cell_type == "code" or cell.source]


def solution(notebook):
    """Return the complete notebook, without the marks. It works in a folder of its own."""
    cells = copy.deepcopy(notebook.cells)
    for cell in cells:
        lines = cell.source.splitlines()
        cell.source = "\n".join(
            line for line in lines if not (BEGIN.match(line) or END.match(line))
        )
    cells.insert(1, nbformat.v4.new_code_cell(APART.rstrip("\n")))
    return nbformat.v4.new_notebook(cells=cells)


def _text(notebook, kernel) -> str:
    """The notebook as a file: no outputs, and ids that stay the same from build to build."""
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:03d}"
        cell.metadata = {k: v for k, v in cell.metadata.items() if k == "tags"}
        if "folded" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check

    try:
        wanted = {path: text for source in sources() for path, text in build(source).items()}
    except BadSource as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    present = {path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.glob("*.ipynb")}
    present |= {path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.glob("solutions/*.ipynb")}
    wrong = [
        path
        for path, text in wanted.items()
        if path not in present or (NOTEBOOKS / path).read_text(encoding="utf-8") != text
    ]
    stale = present - wanted.keys()
    if check:
        for path in wrong:
            print(f"build: notebooks/{path} is not what its source gives", file=sys.stderr)
        for path in stale:
            print(f"build: notebooks/{path} has no source in labs/", file=sys.stderr)
        if wrong or stale:
            print("build: run `make notebooks` and commit what it writes", file=sys.stderr)
        return bool(wrong or stale)
    for path in wrong:
        (NOTEBOOKS / path).parent.mkdir(exist_ok=True)
        part = NOTEBOOKS / f"{path}.part"
        part.write_text(wanted[path], encoding="utf-8")
        part.replace(NOTEBOOKS / path)  # so that an interruption leaves no half of a notebook
        print(f"wrote notebooks/{path}")
    for path in stale:
        (NOTEBOOKS / path).unlink()
        print(f"removed notebooks/{path}: it has no source")
    return 0


if __name__ == "__main__":
    sys.exit(main())
