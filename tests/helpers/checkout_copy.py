"""Copy parts of this checkout, for tests that change them or build from them."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy(folder: Path, *names: str) -> Path:
    """Copy files and folders without __pycache__, because a parallel test may be writing there."""
    for name in names:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return folder
