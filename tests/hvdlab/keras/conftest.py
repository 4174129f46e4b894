"""`run_ranks`: start a script of `ranks/` on two ranks, with a wall-clock guard on all of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = Path(__file__).parent / "ranks"
MPIRUN = Path(sys.executable).with_name("mpirun")
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
}


@pytest.fixture
def run_ranks(tmp_path):
    """Return a function (script, np=2, **environment) -> (exit code, output)."""

    def run(script, np=2, **environment):
        command = [sys.executable, str(RANKS / script)]
        if np > 1:
            if not MPIRUN.exists():
                pytest.skip(f"needs {MPIRUN}: run `make setup`")
            command = [MPIRUN, *f"--oversubscribe --bind-to none -np {np}".split(), *command]
        process = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, **environment},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{script} did not end within 120 s:\n{output[-4000:]}")
        return process.returncode, output

    return run
