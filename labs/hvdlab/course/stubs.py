"""Replace the solutions in the source of a lab by stubs.

Two marks make the learner's version. In a code cell, the lines from `# BEGIN SOLUTION: what to do`
to `# END SOLUTION` become one line at the same indent,

    raise NotImplementedError("Lab 2, exercise 2: what to do")

and a cell tagged "solution" is left out. An optional notebook of a lab, `labs/NN_more_name.py`, continues the
numbers of the exercises of the lab.
"""

import re
from pathlib import Path

OPTIONAL = "_more_"  # in the name of an optional notebook
BEGIN = re.compile(r"^(\s*)# BEGIN SOLUTION: (.+)$")
END = re.compile(r"^\s*# END SOLUTION$")
CELL = re.compile(r"^(?=# %%)", re.MULTILINE)
IS_SOLUTION = re.compile(r'# %%.*tags=\[[^\]]*"solution"')


class BadSource(Exception):
    """A source that cannot be built: file, cell and reason."""


def stubbed(cell: str, path: Path, number: int, exercises: int) -> tuple[str, int]:
    """Return a code cell with stubs in place of its solutions, and the number of exercises up to its end.

    Args:
        path: source of the lab.
        number: number of the cell, for the message of an error.
        exercises: number of exercises before the cell.

    Raises:
        BadSource: the marks do not come in pairs.
    """
    lines, skipping = [], False
    for line in cell.splitlines():
        begin, end = BEGIN.match(line), END.match(line)
        if "SOLUTION" in line and (not (begin or end) or skipping == bool(begin)):
            raise BadSource(
                f"{path.name}, cell {number}: `# BEGIN SOLUTION: what to do` and "
                f"`# END SOLUTION` must come in pairs. Found: {line.strip()!r} in\n{cell}"
            )
        if begin:
            skipping, exercises = True, exercises + 1
            todo = f"Lab {int(path.name[:2])}, exercise {exercises}: {begin[2]}".replace('"', "'")
            lines.append(f'{begin[1]}raise NotImplementedError("{todo}")')
        elif end:
            skipping = False
        elif not skipping:
            lines.append(line)
    if skipping:
        raise BadSource(f"{path.name}, cell {number}: # END SOLUTION is missing in\n{cell}")
    return "\n".join(lines), exercises


def exercises_before(path: Path) -> int:
    """Return how many exercises precede those of a source: for an optional notebook those of its lab."""
    if OPTIONAL not in path.name:
        return 0
    (lab,) = [one for one in path.parent.glob(f"{path.name[:2]}_*.py") if OPTIONAL not in one.name]
    lines = lab.read_text(encoding="utf-8").splitlines()
    return sum(bool(BEGIN.match(line)) for line in lines)


def without_solutions(path: Path) -> str:
    """Return the source of a lab with stubs in place of its solutions.

    Raises:
        BadSource: the marks do not come in pairs.
    """
    kept, exercises = [], exercises_before(path)
    for number, cell in enumerate(CELL.split(path.read_text(encoding="utf-8"))):
        if IS_SOLUTION.match(cell):
            continue
        if not cell.startswith("# %% [markdown]"):
            source, exercises = stubbed(cell, path, number, exercises)
            cell = source + "\n" * cell.endswith("\n")
        kept.append(cell)
    return "".join(kept)
