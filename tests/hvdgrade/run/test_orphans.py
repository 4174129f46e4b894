"""What a killed grader leaves, the next grading ends and removes."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from hvdgrade import grade, profiles
from hvdgrade.run.orphans import PREFIX
from hvdgrade.sandbox import cgroup, tiers

# A grader in the middle of a run: a sandbox that is set up, and a process of the submission in it.
GRADER = """\
import subprocess, sys, time
from pathlib import Path
from hvdgrade.run.sandboxed_run import SandboxedRun

with SandboxedRun(b"", 2, Path(sys.argv[2]), tier=sys.argv[1]) as run:
    ranks = subprocess.Popen(["sleep", "1000"], env={"HOME": str(run.box.folder / "home")})
    places = [run.box.folder, *([run.shared_memory.path] if run.shared_memory else [])]
    places += run.box.cgroup.folders.values() if run.box.cgroup else []
    print(ranks.pid, *places, flush=True)
    time.sleep(1000)
"""


def runs(pid: str) -> bool:
    """Return whether a process runs; a killed one may wait for its parent to notice."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of this test alone, which a submission can pass through."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("tier", [tiers.TIERS[-1], "strongest"])
def test_the_next_grading_clears_what_a_killed_one_left(tier, temporary, tmp_path):
    tier = tiers.choose() if tier == "strongest" else tier
    (data := tmp_path / "data").mkdir()
    script = tmp_path / "assessment.py"
    script.write_text("")  # not gradable, so that this grading takes no time
    command = [sys.executable, "-c", GRADER, tier, str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        rank, *places = process.stdout.readline().split()
        assert all(Path(place).is_dir() for place in places) and runs(rank)
        grade.grade(script, 2, profiles.load("cpu"))  # next to one that runs
        assert all(Path(place).is_dir() for place in places) and runs(rank)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        grade.grade(script, 2, profiles.load("cpu"))
        if tier.endswith("+cgroup"):
            cgroup.Cgroup(1 << 30, 100).close()  # as the sandbox of a gradable script does
        assert [place for place in places if Path(place).exists()] == []
        assert not runs(rank)
        assert list(temporary.glob(f"{PREFIX}*")) == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
