"""Activations and optimizer state outside memory give the same losses and need less memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "labs" / "out_of_core.py"
SMALL = ["--num-layers", "6", "--hidden-size", "64", "--batch-size", "512", "--steps", "3"]


def run(*arguments, hidden=True):
    """Run the script, with GPUs hidden by default, and return its report."""
    own = {"OMP_NUM_THREADS": "1"} | ({"CUDA_VISIBLE_DEVICES": "-1"} if hidden else {})
    done = subprocess.run(
        [sys.executable, SCRIPT, *SMALL, *arguments], capture_output=True, text=True, timeout=200,
        env={**os.environ, **own},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def in_memory():
    return run()


@pytest.mark.thorough
def test_activations_in_files_have_equal_losses_and_free_memory(in_memory):
    found = run("--activations", "file")
    assert found["losses"] == in_memory["losses"]  # to the last bit, because a file keeps every bit
    # A block saves ten times its width per image: norm, up (4), gelu (4), down. At most two blocks stay in
    # memory.
    assert found["peak_bytes"] < in_memory["peak_bytes"] - 3 * 10 * 64 * 512 * 4
    assert found["file_bytes"] == 0  # all files are removed


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["recompute", "cpu"])
def test_recomputed_and_offloaded_activations(way, in_memory):
    found = run("--activations", way)
    assert found["losses"] == pytest.approx(in_memory["losses"], rel=1e-6)
    if way == "recompute":
        assert found["peak_bytes"] < in_memory["peak_bytes"] - 3 * 10 * 64 * 512 * 4


def test_optimizer_state_in_files_has_equal_losses(in_memory):
    found = run("--state", "file")
    assert found["losses"] == in_memory["losses"]
    parameters = 785 * 64 + 6 * (8 * 64**2 + 7 * 64) + 2 * 64 + 65 * 10
    assert found["file_bytes"] == 8 * parameters
    assert in_memory["file_bytes"] == 0


@pytest.mark.thorough
def test_mapped_state_is_not_in_anonymous_memory():
    large = ["--num-layers", "8", "--hidden-size", "512", "--batch-size", "16"]
    kept, mapped = (run(*large, "--state", place) for place in ("memory", "file"))
    saved = kept["anonymous_bytes"] - mapped["anonymous_bytes"]
    assert saved == pytest.approx(mapped["file_bytes"], rel=0.2)


def test_reports_a_bad_argument_in_one_sentence():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "0"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert "--steps: expected 1 or more, got 0" in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["recompute", "file", "cpu"])
def test_offloaded_activations_free_gpu_memory(way):
    kept, found = (run("--activations", each, hidden=False) for each in ("memory", way))
    assert found["losses"] == pytest.approx(kept["losses"], rel=1e-4)
    assert found["peak_bytes"] < kept["peak_bytes"] - 3 * 10 * 64 * 512 * 4
