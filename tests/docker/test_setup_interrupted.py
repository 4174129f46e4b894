"""Interrupt `make setup`: all its processes end, and the next set-up is not disturbed.

The scripts are real. Python, pip and mpirun are replaced: every command ends at once, except one.
"""

import fcntl
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import checkout_copy
import psutil
import pytest

# LASTS names the command that does not end. It has a child, like pip when it builds a package.
PLAYED = """\
#!/bin/sh
words="${0##*/} $*"
for last; do :; done
case "$words" in *"$LASTS"*) touch "$TMPDIR/download"; sleep 300 & touch "$STARTED"; wait; exit 1;; esac
case "$words" in
    *_base_executable*) echo "$0";;
    *" -V") echo Python 3.11.9;;
    *"import venv, ensurepip"*) echo headers;;
    *" -m venv "*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/pip;;
    *'("torch", "tensorflow") if'*) echo tensorflow;;
    *cuda_build.py*) echo "device=cpu why=played torch_cuda= cuda_home= compiler= nccl_library= search=";;
    *" -m pip download "*) cp "$SOURCE" "$last";;
    *" -m pip wheel "*) mkdir "${last%/*}/wheel"; touch "${last%/*}/wheel/horovod-0.28.1-any.whl";;
esac
"""
EDITED = {  # texts of Horovod's source that build_horovod.sh replaces
    "CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14) project(horovod CXX) "
    "check_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)",
    "horovod/torch/CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14) "
    "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
    "horovod/tensorflow/mpi_ops.cc": "#endif // TENSORFLOW_VERSION >= 2011000000\n#endif // HAVE_GPU",
    "cmake/Modules/FindPytorch.cmake": "(CUDA_HOME is not None)",
    "horovod/tensorflow/CMakeLists.txt": "list(APPEND TF_SOURCES "
    '"${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
}


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Copy the files that set-up reads; add the replaced programs and Horovod's source."""
    extensions = ("assessment/hvdgrade/jupyter", "labs/hvdlab/jupyter")
    folder = checkout_copy.copy(
        tmp_path / "course", "docker", *extensions, "Makefile", "pyproject.toml"
    )
    for script in (folder / "docker").glob(
        "*.sh"
    ):  # a zip file made on Windows has no execute bits
        script.chmod(0o644)
    (tmp_path / "bin").mkdir()
    free = "#!/bin/sh\necho head\necho /dev/x 9 9 99999999 9% /\n"
    for name, text in (("python3", PLAYED), ("mpirun", PLAYED), ("df", free)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for name, text in EDITED.items():
        (path := tmp_path / "horovod-0.28.1" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(tmp_path / "horovod-0.28.1.tar.gz", "w:gz") as source:
        source.add(tmp_path / "horovod-0.28.1", "horovod-0.28.1")
    (tmp_path / "tmp").mkdir()
    return folder


def played(folder: Path, lasts: str) -> dict[str, str]:
    """Return an environment with the replaced programs in PATH, of which `lasts` does not end."""
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "LASTS": lasts,
        "SOURCE": str(folder / "horovod-0.28.1.tar.gz"),
    }


def alive(session: int) -> list[str]:
    """Return the processes of a session, in all its process groups."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (ProcessLookupError, psutil.Error):
            pass
    return found


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Ctrl-C and a closed terminal signal the foreground process group, `kill` only the process that it names.
@pytest.mark.parametrize(
    "send, ending",
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM), (os.killpg, signal.SIGHUP)],
    ids=["Ctrl-C", "kill", "closed"],
)
@pytest.mark.parametrize("lasts", ["pip install", "-m pip wheel", "mpirun"])
def test_an_interrupted_set_up_leaves_no_process(lasts, send, ending, checkout, tmp_path):
    started = tmp_path / "started"
    process = subprocess.Popen(
        ["make", "setup", "PYTHON=python3"],
        cwd=checkout,
        env=played(tmp_path, lasts) | {"STARTED": str(started)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: started.exists() or process.poll() is not None)
        assert started.exists(), process.communicate()
        send(process.pid, ending)
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        wait_for(lambda: alive(process.pid) == [])
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], timeout=60)
    # No message about a failure, because nothing has failed.
    assert "setup: " not in said and "build_horovod: " not in said, said
    assert list((tmp_path / "tmp").iterdir()) == []
    wheels = tmp_path / "cache" / "hvdlab" / "wheels"
    assert [path.name for path in wheels.glob("build.*")] == []
    for lock in (checkout / ".setup.lock", wheels / ".lock"):
        if lock.exists():
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the lock is still held
    assert not (checkout / ".venv" / ".complete").exists()


def test_an_uninterrupted_set_up_succeeds(checkout, tmp_path):
    """Without an interruption, the replaced programs are sufficient for the whole set-up."""
    answer = subprocess.run(
        ["make", "setup", "PYTHON=python3"],
        cwd=checkout,
        env=played(tmp_path, lasts="nothing"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert "Horovod works: tensorflow all-reduce" in answer.stdout
    assert (checkout / ".venv" / ".complete").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
