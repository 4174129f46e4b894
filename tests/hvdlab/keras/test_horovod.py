"""Horovod for Keras 3: two ranks are one process on the union of their batches."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")


@pytest.mark.mpi
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("equals_serial.py", marks=pytest.mark.slow),
        "custom_loops.py",
        "fit_safety.py",
    ],
)
def test_two_ranks_stay_equal_at_every_step(run_ranks, script):
    code, output = run_ranks(script)
    assert code == 0, output[-4000:]
    if script == "fit_safety.py":
        assert output.count("continuing with jit_compile=False") == 1, output[-4000:]


@pytest.mark.mpi
def test_collectives_take_numbers_arrays_tensors_and_variables(run_ranks):
    code, output = run_ranks("values.py")
    assert code == 0, output[-4000:]


@pytest.mark.mpi
def test_horovods_own_module_diverges_in_silence_and_is_recognised(run_ranks):
    code, output = run_ranks("official_module.py")
    assert code == 0, output[-4000:]


@pytest.mark.mpi
def test_horovods_own_module_is_right_on_legacy_keras(run_ranks):
    pytest.importorskip("tf_keras", reason="needs tf-keras: run `make setup`")
    code, output = run_ranks("legacy_keras.py", TF_USE_LEGACY_KERAS="1")
    assert code == 0, output[-4000:]


def test_refusals_names_and_state_in_one_process(run_ranks):
    code, output = run_ranks("refusals.py", np=1)
    assert code == 0, output[-4000:]


HIDE_HOROVOD = "import sys; sys.modules['horovod.tensorflow'] = None; "


@pytest.mark.parametrize(
    ("environment", "before", "sentence"),
    [
        (
            {"KERAS_BACKEND": "torch"},
            "",
            "set KERAS_BACKEND=tensorflow before Python starts, or use",
        ),
        ({"TF_USE_LEGACY_KERAS": "1"}, "", "import horovod.tensorflow.keras as hvd, or unset"),
        ({}, HIDE_HOROVOD, "run `make setup`"),
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
