"""The wheel, for who installs without a checkout: all that the packages read at run time is in it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"labs/hvdlab": "hvdlab", "assessment/hvdgrade": "hvdgrade"}


def test_it_has_every_file_of_the_packages(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE", "labs", "assessment"):
        source = ROOT / name
        if source.is_dir():  # without what a test beside this one compiles
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", tmp_path, tmp_path], check=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    there = set(zipfile.ZipFile(wheel).namelist())
    installed = {name.partition(".data/data/")[2] or name for name in there}
    missing = []
    for folder, package in PACKAGES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_dir() or path.suffix == ".md" or path.parent.name == "__pycache__":
                continue
            inner = path.relative_to(ROOT / folder)
            # The Assess button goes to where JupyterLab looks.
            elsewhere = any(name.endswith(f"/{path.name}") for name in installed - there)
            if f"{package}/{inner}" not in there and not elsewhere:
                missing.append(f"{package}/{inner}")
    assert missing == []
