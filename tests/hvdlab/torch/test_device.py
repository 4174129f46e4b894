"""Ranks that share a GPU, or have none, train what a single process trains."""

import json
import os

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod.torch", reason="needs Horovod: run `make setup`")

from hvdlab.system import gpu_assignment  # noqa: E402
from hvdlab.system.hardware import visible_gpus  # noqa: E402
from hvdlab.torch import device  # noqa: E402
from hvdlab.torch.device import InHorovodsLayout, ThroughHost, choose  # noqa: E402

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
LAYOUTS = ("contiguous_format", "channels_last")
# 4 steps of weights below 1: rounding of a bfloat16 weight is 2**-9 at most.
TOLERANCE = {"float64": 1e-12, "bfloat16": 2**-8}


@pytest.fixture
def train(run_ranks):
    """Return a function that trains on two ranks, and returns what each found."""

    def run(*arguments, **environment):
        code, output = run_ranks("device.py", 2, arguments=arguments, **environment)
        assert code == 0, output[-4000:]
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return sorted(lines, key=lambda found: found["rank"]), output

    return run


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("float64", "channels_last"),
        pytest.param("bfloat16", "contiguous_format", marks=pytest.mark.thorough),
        pytest.param("float64", "contiguous_format", marks=pytest.mark.thorough),
        pytest.param("bfloat16", "channels_last", marks=pytest.mark.thorough),
    ],
)
def test_two_ranks_on_processors_equal_one_process(train, dtype, layout):
    found, _ = train(dtype, layout)
    for rank in found:
        assert rank["device"] == "cpu" and rank["compression"] == "InHorovodsLayout"
        assert rank["gap"] <= TOLERANCE[dtype] and rank["gradients"] == [f"cpu torch.{dtype}"]


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.thorough), "bfloat16"])
def test_an_exchange_through_host_memory_equals_one_process(train, dtype):
    found, _ = train(dtype, "channels_last", "ThroughHost")
    assert all(rank["gap"] <= TOLERANCE[dtype] for rank in found)


@pytest.mark.gpu
@pytest.mark.mpi
@GPU
@pytest.mark.parametrize("build", [{}, {"NO_NCCL": "1"}], ids=["as built", "without NCCL"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_two_ranks_that_share_a_gpu_equal_one_process(train, dtype, layout, build):
    found, output = train(dtype, layout, CUDA_VISIBLE_DEVICES=visible_gpus()[0], **build)
    for rank in found:
        assert (rank["device"], rank["ranks"], rank["direct"]) == ("cuda:0", 2, False), output
        assert rank["gradients"] == [f"cuda torch.{dtype}"] and rank["gap"] <= TOLERANCE[dtype]
    assert output.count("so the ranks exchange gradients through host memory.") == 1


@pytest.mark.gpu
@pytest.mark.mpi
@GPU
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_with_a_gpu_each_equal_one_process(train, layout):
    if len(gpus := visible_gpus()) < 2:
        pytest.skip("needs two GPUs")
    found, _ = train("float64", layout, CUDA_VISIBLE_DEVICES=",".join(gpus[:2]))
    assert [rank["device"] for rank in found] == ["cuda:0", "cuda:1"]
    assert all(rank["ranks"] == 1 and rank["gap"] <= 1e-12 for rank in found)


@pytest.mark.gpu
@GPU
def test_pytorch_and_nvidia_smi_name_the_same_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert sorted(device.gpus_of_torch()) == sorted(visible_gpus())


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("compression", [InHorovodsLayout, ThroughHost])
def test_gradients_on_a_gpu_come_back_as_they_were(compression):
    check_round_trip(compression, "cuda")


@pytest.mark.parametrize("compression", [InHorovodsLayout, ThroughHost])
def test_gradients_come_back_as_they_were(compression):
    check_round_trip(compression, "cpu")


def check_round_trip(compression, place):
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for shape in [(), (5,), (4, 3), (2, 3, 3, 3), (4, 3, 1, 1), (2, 3, 4, 5, 6)]:
            gradient = torch.randn(shape, device=place).to(dtype)
            kinds = [gradient, gradient.transpose(0, -1) if gradient.dim() else gradient]
            if gradient.dim() == 4:
                kinds.append(gradient.to(memory_format=torch.channels_last))
            for one in kinds:
                sent, context = compression.compress(one)
                wanted = "cpu" if compression is ThroughHost else place
                assert sent.is_contiguous() and sent.device.type == wanted
                assert (
                    sent.dtype != torch.bfloat16 and sent.shape == one.shape
                )  # Horovod compares shapes
                back = compression.decompress(sent.clone(), context)
                assert (back.dtype, back.device) == (one.dtype, one.device) and torch.equal(
                    back, one
                )
            if gradient.dim() == 4:
                assert back.stride() == one.stride()  # channels_last stays what it was


# --- what a rank is told, by situation (which GPU: tests/hvdlab/system/test_gpu_assignment.py) ---


@pytest.fixture
def as_rank(monkeypatch):
    """Return a function: what `choose` returns on a rank, given what all ranks see."""
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.delenv(gpu_assignment.MANY_RANKS, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")

    def run(rank, visible, nccl=22907, share=True):
        taken.clear()
        monkeypatch.setattr(device, "gpus_of_torch", lambda: visible[rank])
        found = choose(rank, lambda mine: visible, nccl, share)
        assert taken == ([found.device] if found.device.type == "cuda" else [])
        return found.device.index, found.ranks, found.direct, found.compression, found.backend

    return run


@pytest.mark.parametrize(
    ("visible", "nccl", "index", "ranks", "sentence"),
    [
        ([["GPU-a", "GPU-b"]] * 2, 22907, 1, 1, ""),
        ([["GPU-a"], ["GPU-b"]], 22907, 0, 1, ""),
        ([["GPU-a"]] * 2, 22907, 0, 2, "2 ranks share 1 GPU"),
        ([["GPU-a", "GPU-b"]] * 2, 0, 1, 1, "this build has no NCCL"),
        ([[], ["GPU-a"]], 22907, 0, 1, "1 of 2 ranks see no GPU"),
        ([[], []], 22907, None, 0, ""),
    ],
)
def test_a_rank_learns_its_device_and_rank_0_says_why_not_directly(
    visible, nccl, index, ranks, sentence, as_rank, capsys
):
    direct = not sentence and index is not None
    how = InHorovodsLayout if direct or index is None else ThroughHost
    found = as_rank(1, visible, nccl)
    assert found == (index, ranks, direct, how, "nccl" if direct else "gloo")
    assert capsys.readouterr().err == ""
    as_rank(0, visible, nccl)
    says = f"{sentence}, so the ranks exchange gradients through host memory.\n" if sentence else ""
    assert capsys.readouterr().err == says


def test_ranks_that_cannot_share_use_the_processor(as_rank, capsys):
    assert as_rank(0, [["GPU-a"]] * 2, share=False)[:3] == (None, 0, False)
    assert capsys.readouterr().err == "2 ranks share 1 GPU, so the ranks use the processor.\n"
    assert as_rank(0, [["GPU-a"], ["GPU-b"]], share=False)[:3] == (0, 1, True)
    assert as_rank(0, [["MIG-1"]], share=False)[:3] == (0, 1, True)  # one rank connects to nobody


def test_a_rank_chooses_its_slice_of_a_gpu_before_cuda_starts(as_rank):
    found = as_rank(1, [["MIG-1", "MIG-2"]] * 2)
    assert found[:3] == (0, 1, False) and os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-2"


def test_whole_gpus_are_chosen_by_their_numbers(as_rank):
    as_rank(1, [["GPU-a", "GPU-b"]] * 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "all"
