"""A submission cannot read the grader or the solutions, even if they are inside a folder that it may read."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hvdgrade.sandbox.tiers import tier

ROOT = Path(__file__).parents[3]
# Starts the sandbox with copies of both packages, and prints the files that a submission can read.
PROGRAM = """
import json, subprocess, sys, tempfile
from pathlib import Path
import hvdgrade
from hvdgrade.sandbox.tiers import tier
from hvdgrade.sandbox.sandbox import Sandbox
LOOK = '''
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        try:
            open(path, "rb").read(1)
        except OSError:
            continue
        print(path)
'''
folder = Path(sys.argv[1])
assert Path(hvdgrade.__file__).is_relative_to(folder), hvdgrade.__file__
data = Path(tempfile.mkdtemp())
data.chmod(0o755)
with Sandbox(tier("bubblewrap"), 1, [data]) as box:
    look = [sys.executable, "-BESsc", LOOK, sys.argv[2]]
    done = subprocess.run(box.command([*box.entry(), *look]), env={**box.environment(),
        "OMPI_COMM_WORLD_RANK": "0"}, capture_output=True, text=True, timeout=60)
assert done.returncode == 0, done.stderr
print(json.dumps([line[len(sys.argv[2]) + 1 :] for line in done.stdout.splitlines()]))
"""


@pytest.fixture
def environment(tmp_path):
    """Return an environment with all packages of this one except hvdlab and hvdgrade."""
    if not tier("bubblewrap").works:
        pytest.skip(tier("bubblewrap").reason)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    place = tmp_path / "env"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--copies", place], check=True, timeout=60
    )
    site = next(place.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place, site


def readable_files(
    environment: Path, folder: Path, *path: Path, below: Path | None = None
) -> list[str]:
    """Run the grader of `folder`; return the files below `below`, or `folder`, that a rank can read."""
    done = subprocess.run(
        [environment / "bin/python", "-c", PROGRAM, folder, below or folder],
        env={"PYTHONPATH": ":".join(map(str, path)), "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copy(package: Path, folder: Path) -> None:
    shutil.copytree(package, folder, ignore=shutil.ignore_patterns("__pycache__"))


def test_hides_the_grader_in_site_packages(environment):
    place, site = environment
    copy(ROOT / "labs/hvdlab", site / "hvdlab")
    copy(ROOT / "assessment/hvdgrade", site / "hvdgrade")
    found = readable_files(place, site)
    assert "hvdlab/record.py" in found  # submissions import it
    assert not [name for name in found if name.startswith("hvdgrade")]


def test_hides_the_solutions_of_a_checkout_inside_the_environment(environment):
    place, _ = environment
    course = place / "course"
    copy(ROOT / "labs/hvdlab", course / "labs/hvdlab")
    for name in ("hvdgrade", "solutions"):
        copy(ROOT / "assessment" / name, course / "assessment" / name)
    shutil.copy(ROOT / "pyproject.toml", course)
    found = readable_files(place, course, course / "labs", course / "assessment")
    assert "labs/hvdlab/record.py" in found
    assert not [name for name in found if not name.startswith("labs/hvdlab/")]


def test_shows_the_packages_that_a_pth_file_adds(environment, tmp_path):
    """An environment can use the packages of a container's or a cluster's environment."""
    place, site = environment
    copy(ROOT / "labs/hvdlab", site / "hvdlab")
    copy(ROOT / "assessment/hvdgrade", site / "hvdgrade")
    added = tmp_path / "opt" / "site-packages"
    added.mkdir(parents=True)
    (added / "torch.py").write_text("")
    (added.parent / "gradebook.csv").write_text("secret")
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(added)!r})\n")
    assert readable_files(place, site, below=added.parent) == ["site-packages/torch.py"]
