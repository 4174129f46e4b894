"""Keras on ranks that share a GPU, or have none."""

import json
import os

import pytest

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
pytest.importorskip("horovod.tensorflow", reason="needs Horovod: run `make setup`")

from hvdlab.keras import _gpus_tensorflow, device  # noqa: E402
from hvdlab.system import gpu_assignment  # noqa: E402
from hvdlab.system.hardware import visible_gpus  # noqa: E402

KINDS = {
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "torch": {"KERAS_BACKEND": "torch"},
    "torch, by hvdlab.torch.device": {"KERAS_BACKEND": "torch", "TORCH_HELPER": "1"},
}


@pytest.fixture
def train(run_ranks):
    """Return a function that trains on two ranks, checks the result, and returns what each rank found."""

    def run(**environment):
        code, output = run_ranks("device.py", 2, **environment)
        assert code == 0, output[-4000:]
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        found.sort(key=lambda each: each["rank"])
        for each in found:
            assert each["gap"] < 2e-6 < 1e-2 < each["moved"] and each["metric_gap"] < 2e-6, each
            assert each["sum"] == 1 and each["rows"] == [[0, 0], [1, 1], [1, 1]]
            assert each["objects"] == [0, 1]
            assert each["gathered"] == [["GPU-0"], ["GPU-1"]]
        return found, output

    return run


@pytest.mark.mpi
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("tensorflow", marks=pytest.mark.thorough),
        pytest.param("torch", marks=pytest.mark.thorough),
        "torch, by hvdlab.torch.device",
    ],
)
def test_two_ranks_on_processors_equal_one_process(train, kind):
    found, _ = train(**KINDS[kind])
    assert [(each["device"], each["ranks"], each["direct"]) for each in found] == [
        ("cpu", 0, False)
    ] * 2


@pytest.mark.gpu
@pytest.mark.mpi
@pytest.mark.parametrize("build", [{}, {"NO_NCCL": "1"}], ids=["as built", "without NCCL"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_that_share_a_gpu_equal_one_process(train, kind, build):
    torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    sees = {
        "tensorflow": tf.config.list_physical_devices("GPU"),
        "torch": torch.cuda.is_available(),
    }
    if not sees[KINDS[kind]["KERAS_BACKEND"]]:
        pytest.skip("needs a GPU that the framework can use")
    variables = {"CUDA_VISIBLE_DEVICES": visible_gpus()[0], "NVIDIA_TF32_OVERRIDE": "0"}
    found, output = train(**KINDS[kind], **variables, **build)
    assert [(each["ranks"], each["direct"]) for each in found] == [(2, False)] * 2
    assert "so the ranks exchange gradients through host memory." in output


# --- by situation (which GPU: tests/hvdlab/system/test_gpu_assignment.py) ---


class Horovod:
    """Rank `number` of some, of a Horovod that was built with NCCL or not."""

    def __init__(self, number, nccl):
        self.rank, self.size, self.nccl_built = lambda: number, lambda: 2, lambda: nccl


@pytest.fixture
def as_rank(monkeypatch):
    """Return a function: what `rank_device` returns on a rank, given what all ranks see."""
    set_up = []
    monkeypatch.delenv(gpu_assignment.MANY_RANKS, raising=False)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: set_up.append(given))
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda *given: set_up.append(given)
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    monkeypatch.setattr(device, "backend", _gpus_tensorflow)

    def run(number, visible, nccl=22907):
        set_up.clear()
        seen = visible[number]
        count = min(1, len(seen)) if "MIG-" in str(seen) else len(seen)
        gpus = [tf.config.PhysicalDevice(f"GPU:{i}", "GPU") for i in range(count)]
        monkeypatch.setattr(_gpus_tensorflow, "gpus", lambda: seen)
        monkeypatch.setattr(_gpus_tensorflow, "gather", lambda hvd, mine: visible)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
        mine = device.rank_device(Horovod(number, nccl))
        names = [given[0].name for given in set_up]
        assert names == ([mine.gpu] * 2 if mine.gpu else [])  # chosen, and its memory grows
        return mine.gpu, mine.ranks, mine.direct, mine.device_dense

    return run


@pytest.mark.parametrize(
    ("visible", "nccl", "found", "says"),
    [
        ([["GPU-a", "GPU-b"]] * 2, 22907, ("GPU:1", 1, True, ""), ""),
        ([["GPU-a"], ["GPU-b"]], 22907, ("GPU:0", 1, True, ""), ""),
        ([["GPU-a"]] * 2, 22907, ("GPU:0", 2, False, "CPU:0"), "2 ranks share 1 GPU"),
        ([["GPU-a", "GPU-b"]] * 2, 0, ("GPU:1", 1, False, "CPU:0"), "this build has no NCCL"),
        ([["GPU-a"], []], 22907, (None, 0, False, ""), "1 of 2 ranks see no GPU"),
        (
            [["MIG-1", "MIG-2"]] * 2,
            22907,
            ("GPU:0", 1, False, "CPU:0"),
            "NCCL does not connect MIG",
        ),
        ([[], []], 22907, (None, 0, False, ""), ""),
    ],
)
def test_a_rank_learns_its_gpu_and_rank_0_says_why_not_directly(
    visible, nccl, found, says, as_rank, capsys
):
    as_rank(0, visible, nccl)
    error = capsys.readouterr().err
    assert error.startswith(says) and error.count("\n") == bool(says)
    assert as_rank(1, visible, nccl) == found
    assert capsys.readouterr().err == ""
    hidden = "-1" if found[0] is None else "MIG-2" if "MIG-2" in visible[1] else "all"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == hidden


def test_gradients_as_slices_go_where_dense_gradients_go():
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("needs Keras on TensorFlow")
    import hvdlab.keras.horovod as hvd

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), device_dense="CPU:0")
    assert optimizer._horovod["device_sparse"] == "CPU:0"
