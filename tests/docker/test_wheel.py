"""The wheel, for users without a checkout, contains all files that the packages read at run time."""

import subprocess
import sys
import zipfile
from pathlib import Path

import checkout_copy

ROOT = Path(__file__).parents[2]
PACKAGES = {"labs/hvdlab": "hvdlab", "assessment/hvdgrade": "hvdgrade"}


def test_the_wheel_has_every_file_of_the_packages(tmp_path):
    checkout_copy.copy(tmp_path, "pyproject.toml", "README.md", "LICENSE", "labs", "assessment")
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
            # The Assess button is installed where JupyterLab looks for extensions.
            elsewhere = any(name.endswith(f"/{path.name}") for name in installed - there)
            if f"{package}/{inner}" not in there and not elsewhere:
                missing.append(f"{package}/{inner}")
    assert missing == []
