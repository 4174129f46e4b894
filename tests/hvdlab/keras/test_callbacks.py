"""hvd.callbacks on two ranks: learning rates, metrics of all ranks, momentum correction."""

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")


@pytest.mark.mpi
@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("torch", marks=pytest.mark.thorough)]
)
def test_rates_metrics_and_momentum_match_their_formulas(run_ranks, backend):
    if backend == "torch":
        pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    code, output = run_ranks("callbacks.py", KERAS_BACKEND=backend)
    assert code == 0, output[-4000:]
