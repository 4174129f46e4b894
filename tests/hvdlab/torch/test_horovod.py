"""The optimizers inside `hvd.DistributedOptimizer`: two ranks are one process on both batches."""

import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")


@pytest.mark.mpi
def test_every_optimizer_sees_the_averaged_gradient(run_ranks):
    code, output = run_ranks("optimizers.py")
    assert code == 0, output[-4000:]
    assert output.count("Tied") == output.count("frozen") == 5, output
