"""The submissions of tests/fixtures/submissions: a folder each, or a case of a family.

A family is a folder whose expected.toml has a table [cases]. Each case is a submission FOLDER-CASE: the
script of the folder, in which some constants have other values.
"""

import ast
import shutil
import tomllib
from pathlib import Path

SUBMISSIONS = Path(__file__).parents[1] / "fixtures" / "submissions"


def _table(folder: str) -> dict:
    return tomllib.loads((SUBMISSIONS / folder / "expected.toml").read_text(encoding="utf-8"))


FOLDERS = sorted(path.name for path in SUBMISSIONS.iterdir() if path.is_dir())
FAMILIES = {folder: cases for folder in FOLDERS if (cases := _table(folder).get("cases"))}
NAMES = sorted(
    [folder for folder in FOLDERS if folder not in FAMILIES]
    + [f"{folder}-{case}" for folder, cases in FAMILIES.items() for case in cases]
)


def as_expected(name: str) -> dict:
    """Return what expected.toml says of a submission."""
    expected = _table(name.partition("-")[0])
    expected.pop("cases", None)
    return expected


def source(name: str) -> str:
    """Return the script of a submission."""
    folder, _, case = name.partition("-")
    script = (SUBMISSIONS / folder / "assessment.py").read_text(encoding="utf-8")
    return with_constants(script, FAMILIES[folder][case]) if case else script


def with_constants(script: str, values: dict) -> str:
    """Return a script with other values of constants, which it assigns at its top level.

    Raises:
        ValueError: the script does not assign one of the constants.
    """
    tree, left = ast.parse(script), set(values)
    changes = []
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        else:
            pairs = [(target, value)]
        for name, old in pairs:
            if getattr(name, "id", None) in left:
                left.remove(name.id)
                new = values[name.id]
                new = tuple(new) if isinstance(new, list) else new
                changes.append((old.lineno - 1, old.col_offset, old.end_col_offset, repr(new)))
    if left:
        raise ValueError(f"the script assigns no constant {', '.join(sorted(left))}")
    lines = script.splitlines(keepends=True)
    for line, start, end, text in sorted(changes, reverse=True):
        lines[line] = lines[line][:start] + text + lines[line][end:]
    return "".join(lines)


def write(name: str, folder: Path) -> None:
    """Write a submission, with its links, to a new folder."""
    base = name.partition("-")[0]
    shutil.copytree(SUBMISSIONS / base, folder, symlinks=True)
    if base != name:
        (folder / "assessment.py").write_text(source(name), encoding="utf-8")
