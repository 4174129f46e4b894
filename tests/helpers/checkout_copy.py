"""A part of this checkout elsewhere, for tests that change it or build from it."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy(folder: Path, *names: str) -> Path:
    """Copy files and folders, but for what Python compiles: a test beside this one may just do that."""
    for name in names:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return folder
