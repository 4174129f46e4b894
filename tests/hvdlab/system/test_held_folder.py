"""A killed process leaves its folder for temporary files, and the next one removes it."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from hvdlab.system import held_folder
from hvdlab.system.held_folder import HeldFolder

MAKE_ONE = """\
import sys, time
from hvdlab.system.held_folder import HeldFolder

folder = HeldFolder("course-")
(folder.path / "data").mkdir()
print(folder.path, flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_ends_with_its_block(temporary):
    with held_folder.held_folder("course-") as folder:
        (folder.path / "file").touch()
        assert folder.path.parent == temporary and folder.path.stat().st_mode & 0o777 == 0o700
    assert names(temporary) == []


def test_the_next_command_removes_the_folder_of_a_killed_one_and_no_other(temporary):
    process = subprocess.Popen([sys.executable, "-c", MAKE_ONE], stdout=subprocess.PIPE, text=True)
    try:
        left = process.stdout.readline().strip().rpartition("/")[2]
        (temporary / "course-of-another-program").mkdir()
        (temporary / "course-link").symlink_to(temporary / left)
        with held_folder.held_folder("course-") as folder:  # it still runs
            both = sorted(["course-link", "course-of-another-program", left])
            assert names(temporary) == sorted([*both, folder.path.name])
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        with held_folder.held_folder("course-") as folder:
            assert left not in names(temporary) and folder.path.is_dir()
        assert names(temporary) == ["course-link", "course-of-another-program"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_child_that_inherits_the_lock_holds_the_folder():
    folder = HeldFolder("course-")
    child = subprocess.Popen(["sleep", "1000"], pass_fds=folder.locks)
    try:
        folder.release()
        assert held_folder.left_over("course-") == []
    finally:
        child.kill()
        child.wait()
    assert held_folder.left_over("course-") == [folder.path]


def test_a_folder_without_locks_is_never_taken_for_left_over(monkeypatch):
    def refuse(*_):
        raise OSError(37, os.strerror(37))  # ENOLCK

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        folder = HeldFolder("course-")
    assert folder.locks == [] and folder.path.is_dir()
    assert held_folder.left_over("course-") == []
