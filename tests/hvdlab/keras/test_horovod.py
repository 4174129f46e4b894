"""Horovod for Keras 3: two ranks are one process on the union of their batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")


@pytest.fixture
def run(run_ranks):
    """Return a function that runs a rank script, which must end with 0; it returns the output."""

    def run(script, np=2, arguments=(), **environment):
        if environment.get("KERAS_BACKEND") == "torch":
            pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
        code, output = run_ranks(script, np, arguments, **environment)
        assert code == 0, output[-4000:]
        return output

    return run


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        ("tensorflow", ("nesterov", "fp16", "mean of passes")),
        pytest.param("tensorflow", (), marks=pytest.mark.thorough),  # all settings
        pytest.param("torch", (), marks=pytest.mark.thorough),
    ],
)
def test_two_ranks_equal_one_process_and_legacy_keras(run, backend, settings):
    pytest.importorskip("tf_keras", reason="needs tf-keras: run `make setup`")
    run("legacy_keras.py", arguments=settings, TF_USE_LEGACY_KERAS="1")
    run("equals_serial.py", arguments=settings, KERAS_BACKEND=backend)


@pytest.mark.mpi
@pytest.mark.slow
def test_custom_loops_names_of_messages_and_kinds_of_values(run):
    """Three scripts share one start, because the start of TensorFlow takes most of the time."""
    run("one_after_another.py", arguments=("custom_loops.py", "unequal_names.py", "values.py"))


@pytest.mark.mpi
def test_fit_is_safe_and_one_process_goes_on(run):
    output = run("fit_safety.py")
    assert output.count("continuing with jit_compile=False") == 1, output[-4000:]
    run("resume.py", np=1)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("torch", marks=pytest.mark.thorough)]
)
def test_ranks_that_called_unequally_often_understand_each_other_and_never_mix(run, backend):
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"}
    output = run("unequal_calls.py", KERAS_BACKEND=backend, **stall)
    if backend == "torch":  # Horovod says who waits for which gradients
        for rank in (0, 1):
            assert f"DistributedSGD_float32_0_without_{rank}" in output, output[-4000:]


@pytest.mark.mpi
def test_values_and_networks_of_bfloat16_on_torch(run):
    run("one_after_another.py", arguments=("values.py", "bfloat16.py"), KERAS_BACKEND="torch")


@pytest.mark.mpi
@pytest.mark.thorough
def test_networks_of_bfloat16_are_broadcast_and_averaged(run):
    run("bfloat16.py")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
@pytest.mark.thorough
def test_each_process_set_trains_a_model_of_its_own(run, backend):
    run("process_sets.py", np=4, KERAS_BACKEND=backend)


@pytest.mark.mpi
def test_horovods_own_module_diverges_in_silence_and_is_recognised(run):
    run("official_module.py")


def test_refusals_names_and_state_in_one_process(run):
    run("refusals.py", np=1)


FIND_JAX = "import sys; sys.path.append(sys.prefix + '/oracles'); "
HIDE = "import sys; sys.modules['horovod.{}'] = None; "


@pytest.mark.parametrize(
    ("environment", "before", "sentence"),
    [
        # Keras on NumPy needs jax.
        ({"KERAS_BACKEND": "numpy"}, "", "cannot run on numpy, because jax is not installed"),
        pytest.param(
            {"KERAS_BACKEND": "numpy"},
            FIND_JAX,
            "needs Keras on TensorFlow or PyTorch, not on numpy",
            marks=pytest.mark.skipif(
                not Path(sys.prefix, "oracles", "jax").is_dir(),
                reason="needs jax: run `make setup`",
            ),
        ),
        ({"TF_USE_LEGACY_KERAS": "1"}, "", "import horovod.tensorflow.keras as hvd, or unset"),
        pytest.param(
            {},
            HIDE.format("tensorflow"),
            "its tensorflow extension is missing: `hvdlab doctor`",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"KERAS_BACKEND": "torch"},
            HIDE.format("torch"),
            "its torch extension is missing: `hvdlab doctor`",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_wrong_set_up_is_told_in_one_sentence(environment, before, sentence):
    done = subprocess.run(
        [sys.executable, "-c", before + "import hvdlab.keras.horovod"],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: ") and sentence in last_line, done.stderr[-4000:]
