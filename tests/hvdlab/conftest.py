"""The fixture `run_ranks`, and a trajectory that distinguishes variants of optimizers."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hvdlab import reference

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
def run_ranks(request, tmp_path):
    """Return a function (script, np=2, arguments=(), **environment) -> (exit code, output).

    The function starts a script of the folder `ranks` next to the test on `np` ranks, with a time limit.
    """
    folder = request.path.parent / "ranks"

    def run(script, np=2, arguments=(), **environment):
        command = [sys.executable, str(folder / script), *arguments]
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
            output, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{script} did not end within 300 s:\n{output[-4000:]}")
        return process.returncode, output

    return run


@pytest.fixture
def fake_nvidia_smi(tmp_path, monkeypatch):
    """Return a function that puts an nvidia-smi first in PATH, which prints the given lines."""

    def make(*lines):
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


# --- optimizers ------------------------------------------------------------------------------------

STATE = {
    "lars": lambda w: [np.zeros_like(w)],
    "lamb": lambda w: [np.zeros_like(w), np.zeros_like(w)],
    "novograd": lambda w: [np.zeros_like(w), np.zeros(())],
}


@dataclass
class Trajectory:
    """Fourteen steps with given gradients of a matrix, a vector and a matrix of zeros; float64.

    The learning rate changes at every step, because the forms of momentum differ only then. Step 5 has
    gradients of zero. The gradients do not depend on the weights, so that an error does not grow.
    """

    weights: list[np.ndarray]
    gradients: list[list[np.ndarray]]  # [step][tensor]
    rates: list[float]

    def without_zero_gradients(self) -> "Trajectory":
        steps = [t for t, gradients in enumerate(self.gradients) if gradients[0].any()]
        return Trajectory(
            self.weights, [self.gradients[t] for t in steps], [self.rates[t] for t in steps]
        )

    def reference(self, name, exclude_1d=True, **options) -> list[np.ndarray]:
        """Return the final weights according to `hvdlab.reference`."""
        final = []
        for i, w in enumerate(self.weights):
            state = STATE[name](w)
            for t, (gradients, rate) in enumerate(zip(self.gradients, self.rates, strict=True), 1):
                time = [t] if name == "lamb" else []
                adapt = w.ndim > 1 or not exclude_1d
                w, *state = getattr(reference, name)(
                    w, gradients[i], *state, *time, rate, adapt=adapt, **options
                )
            final.append(w)
        return final


@pytest.fixture(scope="session")
def trajectory() -> Trajectory:
    rng = np.random.default_rng(7)
    weights = [rng.normal(size=(5, 7)), rng.normal(size=7), np.zeros((3, 4))]
    gradients = [[rng.normal(size=w.shape) for w in weights] for _ in range(14)]
    gradients[4] = [np.zeros_like(w) for w in weights]
    return Trajectory(weights, gradients, list(rng.uniform(0.01, 0.05, size=14)))


# --- a table of the largest error of every comparison, after the tests ------------------------------

ERRORS: list[tuple[str, str, float]] = []


@pytest.fixture
def assert_close(request):
    """Return a function (ours, theirs, between) that asserts 1e-12 and remembers the error."""

    def check(ours, theirs, between, tolerance=1e-12):
        error = max(float(np.max(np.abs(a - b))) for a, b in zip(ours, theirs, strict=True))
        ERRORS.append((between, request.node.callspec.id, error))
        assert error <= tolerance, f"{between}: largest error {error:.1e}"

    return check


def pytest_terminal_summary(terminalreporter):
    if ERRORS:
        terminalreporter.section("largest errors of the optimizers")
        for between, case, error in ERRORS:
            terminalreporter.write_line(f"{between:34} {case:40} {error:.1e}")
