"""An environment in which users other than root can run the grader."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdgrade.sandbox import mounts

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def environment_for_all() -> Iterator[Path]:
    """Return the bin folder of a virtual environment that every user may read, with our packages."""
    if os.geteuid():
        pytest.skip("only root can become somebody else; run the other tests as a user instead")
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not Path(python).exists():
        pytest.skip(f"{python} is not installed")
    # Not in pytest's temporary folder, because other users cannot read it.
    place = tempfile.TemporaryDirectory(prefix="hvdlab-tests-")
    folder = Path(place.name)
    folder.chmod(0o755)
    made = subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], timeout=60)
    if made.returncode:
        pytest.skip("no virtual environment of the system's Python can be made")
    packages = next((folder / "venv" / "lib").glob("python3.*")) / "site-packages"
    ours = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    (packages / "ours.pth").write_text(f"{ours}\n{ROOT / 'assessment'}\n{ROOT / 'labs'}\n")
    mpirun = shutil.which("mpirun", path=mounts.search_path())
    (folder / "venv" / "bin" / "mpirun").symlink_to(Path(mpirun).resolve())
    nobody = pwd.getpwnam("nobody").pw_uid
    check = subprocess.run(
        [folder / "venv" / "bin" / "python", "-c", "import hvdgrade, mpi4py, psutil"],
        user=nobody, group=nobody, extra_groups=[], capture_output=True, text=True, cwd="/", timeout=60,
    )  # fmt: skip
    if check.returncode:
        pytest.skip(f"another user cannot read our packages: {check.stderr[-200:]}")
    yield folder / "venv" / "bin"
    place.cleanup()
