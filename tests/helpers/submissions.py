"""The submissions of tests/fixtures/submissions, a folder each.

expected.toml says what is expected of the grading. The script is one of these:

* assessment.py of the folder.
* An edit of another submission: `diff` in expected.toml, in the format of `hvdlab.variants`, and `base`.
* A case of a family, if expected.toml has a table [cases]: the submission FOLDER-CASE is the script of the
  folder with other values of some constants.
* Generated: see GENERATED.
"""

import ast
import base64
import random
import shutil
import tomllib
from pathlib import Path

from hvdlab.variants import edited
from tests.measurements.styles import script as composed
from tests.measurements.styles.table import settings, styles

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
    return {key: value for key, value in expected.items() if key not in ("cases", "base", "diff")}


def source(name: str) -> str:
    """Return the script of a submission."""
    folder, _, case = name.partition("-")
    if folder in GENERATED:
        return GENERATED[folder](case)
    table = _table(folder)
    if "diff" in table:
        script = edited(source(table["base"]), table["diff"])
    else:
        script = (SUBMISSIONS / folder / "assessment.py").read_text(encoding="utf-8")
    return with_constants(script, FAMILIES[folder][case]) if case else script


def style(name: str) -> str:
    """Return one of the scripts that tests/measurements/styles composes."""
    (found,) = (one for one in styles() if one.name == name)
    return composed.script(found, settings(found))


def too_large(_: str) -> str:
    """Return a script with random bytes of the size of a layer's weights: more than a script may hold."""
    packed = base64.encodebytes(random.Random(0).randbytes(50_000)).decode()
    return f'''"""Brings a layer's weights with it: more than a script may hold."""

WEIGHTS = """
{packed}"""
'''


def pretrained(_: str) -> str:
    """Return a script with weights, which are trained now."""
    from tests.helpers import pretrained  # it imports PyTorch

    return pretrained.source()


GENERATED = {
    "style": style,
    "too_large": too_large,
    "pretrained": pretrained,
}


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
    if base != name or base in GENERATED or "diff" in _table(base):
        (folder / "assessment.py").write_text(source(name), encoding="utf-8")
