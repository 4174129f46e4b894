"""The device and the backend of the torch.distributed scripts, by the GPUs that the ranks see."""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

LABS = Path(__file__).parents[2] / "labs"
SCRIPTS = {
    "ddp_communication": [],
    "fashion_mnist_ddp": [],
    "hybrid_parallel": ["2x1x1"],
    "sharded_training": ["ddp"],
    "tensor_parallel": [],
}


class Meeting(Exception):
    """Raised where the process group would be initialised, with the backend."""


def load(name):
    spec = importlib.util.spec_from_file_location(name, LABS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(request, monkeypatch):
    """Run the script as rank 1 of 2 up to the point where the process group is initialised."""
    module = load(request.param)
    monkeypatch.setattr(sys, "argv", [module.__file__, *SCRIPTS[request.param]])
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "nowhere")
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    if hasattr(module, "load_fashion_mnist"):
        monkeypatch.setattr(module, "load_fashion_mnist", lambda: None)
    return module


A, B = "GPU-a", "GPU-b"
SHARE = {
    "ddp_communication",
    "fashion_mnist_ddp",
}  # they only broadcast and all-reduce, which Gloo supports on GPUs
# GPUs of the two ranks; rank 1's device and backend if ranks may share a GPU, and if not.
SITUATIONS = {
    "no GPU": ([[], []], ("cpu", "gloo"), ("cpu", "gloo")),
    "one GPU, shared": ([[A], [A]], ("cuda:0", "gloo"), ("cpu", "gloo")),
    "a GPU each": ([[A, B], [A, B]], ("cuda:1", "nccl"), ("cuda:1", "nccl")),
    "the launcher shows one each": ([[A], [B]], ("cuda:0", "nccl"), ("cuda:0", "nccl")),
    "slices": ([["MIG-1", "MIG-2"]] * 2, ("cuda:0", "gloo"), ("cpu", "gloo")),
    "a host without GPUs": ([[A], []], ("cpu", "gloo"), ("cpu", "gloo")),
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_device_and_backend_follow_from_the_visible_gpus(script, situation, monkeypatch):
    def meet(backend, **options):
        raise Meeting(backend, options.get("device_id"))

    visible, *found = SITUATIONS[situation]
    device, backend = found[script.__name__ not in SHARE]
    taken = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    monkeypatch.setattr("hvdlab.torch.device.gpus_of_torch", lambda: visible[1])
    monkeypatch.setattr("hvdlab.torch.process_group._gather", lambda mine: visible)
    monkeypatch.setattr("hvdlab.torch.process_group.nccl_version", lambda: 22907)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", meet)
    with pytest.raises(Meeting) as meeting:
        script.main()
    assert meeting.value.args[0] == backend
    assert taken == ([torch.device(device)] if device != "cpu" else [])
    assert meeting.value.args[1] in [None, *(taken if backend == "nccl" else [])]


@pytest.mark.parametrize(
    ("nccl", "gpus", "local_rank", "device"),
    [(22907, 2, 1, "cuda:1"), (22907, 0, 1, "cpu"), (0, 2, 2, "cpu"), (22907, 2, 2, None)],
)
def test_an_elastic_rank_uses_the_gpu_of_its_slot_or_ends(
    nccl, gpus, local_rank, device, monkeypatch
):
    pytest.importorskip("horovod.torch", reason="needs Horovod: run `make setup`")
    script = load("fashion_mnist_elastic")
    taken = []
    monkeypatch.setattr(script.hvd, "nccl_built", lambda: nccl)
    monkeypatch.setattr(script.hvd, "local_rank", lambda: local_rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    if device:
        assert script.own_device() == torch.device(device)
        assert taken == ([1] if device == "cuda:1" else [])
        return
    with pytest.raises(SystemExit) as left:
        script.own_device()
    assert left.value.code == (
        "fashion_mnist_elastic.py: slot 2 of this host (counted from 0) has no GPU of its own, because the "
        "host has 2: let the host discovery script print HOST:2."
    )


@pytest.mark.parametrize("script", ["sharded_training"], indirect=True)
def test_deepspeed_uses_the_processor_with_the_model(script, monkeypatch):
    """DeepSpeed by default uses any GPU, also if there are fewer GPUs than ranks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setenv("DS_ACCELERATOR", "")
    engine = SimpleNamespace(backward=None)
    deepspeed = SimpleNamespace(
        ops=SimpleNamespace(__compatible_ops__={}), initialize=lambda **settings: (engine,)
    )
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    args = SimpleNamespace(lr=0.1, global_batch=2)
    script.deepspeed(torch.nn.Linear(1, 1), args, stage=2)
    assert os.environ["DS_ACCELERATOR"] == "cpu"
