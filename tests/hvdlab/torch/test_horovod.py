"""Under Horovod two ranks equal a single process, step by step."""

import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")


@pytest.mark.mpi
def test_every_optimizer_sees_the_averaged_gradient(run_ranks):
    code, output = run_ranks("optimizers.py")
    assert code == 0, output[-4000:]
    assert output.count("Tied") == output.count("frozen") == 5, output


@pytest.mark.mpi
def test_local_batch_norm_on_two_ranks_is_ghost_batch_norm_on_one(run_ranks):
    code, output = run_ranks("ghost_batch_norm.py")
    assert code == 0 and "equal" in output, output[-4000:]
