"""hvd.callbacks on two ranks: learning rates, averaged metrics, momentum correction."""

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")


@pytest.mark.mpi
def test_rates_metrics_and_momentum_match_their_formulas(run_ranks):
    code, output = run_ranks("callbacks.py")
    assert code == 0, output[-4000:]
