"""Locks and complete files. Only the lack of a feature of the file system is played."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hvdgrade.batch import command as batch
from hvdlab.data import download
from hvdlab.doctor.checks import machine
from hvdlab.system import file_system

HOLD = """\
import sys
from pathlib import Path
from hvdlab.system.file_system import locked

with locked(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder whose file system has no locks, and a folder for temporary files that has them."""
    (folder := tmp_path / "shared").mkdir()
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    real = fcntl.flock

    def flock(file, operation):
        number = file if isinstance(file, int) else file.fileno()
        if os.readlink(f"/proc/self/fd/{number}").startswith(str(folder)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    return folder


def refuse() -> None:
    raise RuntimeError("busy")


def test_only_one_process_holds_a_lock_and_its_end_frees_it(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RuntimeError, match="busy"), file_system.locked(path, refuse):
            pass
        process.kill()
        process.wait()
        with file_system.locked(path, refuse):
            pass


def test_without_locks_this_machine_has_one(shared, capsys):
    path = shared / "lock"
    with file_system.locked(path, refuse):
        warning = capsys.readouterr().err
        assert warning.startswith(f"The file system of {shared} has no locks: ")
        with pytest.raises(RuntimeError, match="busy"), file_system.locked(path, refuse):
            pass
        with file_system.locked(shared / "another", refuse):
            pass
    with file_system.locked(path, refuse):
        pass


def test_an_error_of_the_block_is_not_taken_for_a_missing_lock(tmp_path):
    ran = []
    with pytest.raises(OSError, match="disk"), file_system.locked(tmp_path / "lock", refuse):
        ran.append(1)
        raise OSError(errno.ENOLCK, "disk")
    assert ran == [1]


def test_data_and_batches_work_without_locks(shared):
    with download.one_process(shared, "cifar10"), batch.locked(shared):
        with pytest.raises(batch.Refused, match="another batch works in"), batch.locked(shared):
            pass


def test_what_a_file_system_lacks_is_found_and_reported(shared, monkeypatch):
    home = Path(tempfile.gettempdir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.delenv("HVDLAB_DATA", raising=False)
    monkeypatch.setattr(machine, "CHECKOUT", None)
    monkeypatch.chdir(home)
    assert file_system.lacks(home) == [] and machine.file_systems({}).state == "ok"
    monkeypatch.chdir(shared)

    def symlink(*_):
        raise OSError(errno.EPERM, "")

    monkeypatch.setattr(os, "symlink", symlink)
    assert file_system.lacks(shared) == ["locks", "symbolic links"]
    answer = machine.file_systems({})
    assert answer.state == "warning"
    assert f"the file system of {shared} has no locks, symbolic links" in answer.seen
    assert list(shared.iterdir()) == []


def test_a_file_is_replaced_whole_and_a_device_is_not(tmp_path):
    path = tmp_path / "result.json"
    file_system.write_text(path, "old")
    before = path.stat().st_ino
    (tmp_path / "link").symlink_to(path)
    file_system.write_text(tmp_path / "link", "new")
    assert path.read_text(encoding="utf-8") == "new" and path.stat().st_ino != before
    assert sorted(os.listdir(tmp_path)) == ["link", "result.json"]
    file_system.write_text(Path(os.devnull), "new")
    assert not Path(os.devnull).is_file()
    with pytest.raises(OSError, match="No such file"):
        file_system.write_text(tmp_path / "nowhere" / "file", "new")
