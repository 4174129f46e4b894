"""A GPU for each rank of a machine, or the processor for all: device and backend follow one decision."""

import importlib.util
import os
import sys
from contextlib import nullcontext
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
    """The ranks would meet now, by this backend."""


@pytest.fixture
def script(request, monkeypatch):
    """The script as rank 1 of 2 on a machine, up to where the ranks meet."""
    path = LABS / f"{request.param}.py"
    spec = importlib.util.spec_from_file_location(request.param, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [str(path), *SCRIPTS[request.param]])
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


@pytest.mark.parametrize(("gpus", "backend"), [(0, "gloo"), (1, "gloo"), (2, "nccl")])
@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_two_ranks_use_two_gpus_or_none(script, gpus, backend, monkeypatch):
    def meet(backend, **options):
        raise Meeting(backend, options.get("device_id"))

    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", meet)
    with (
        pytest.warns(UserWarning, match="1 GPUs for 2 ranks") if gpus == 1 else nullcontext(),
        pytest.raises(Meeting) as meeting,
    ):
        script.main()
    own = [torch.device("cuda", 1)] if backend == "nccl" else []
    assert (meeting.value.args[0], taken) == (backend, own)
    assert meeting.value.args[1] in [None, *own]


@pytest.mark.parametrize("script", ["sharded_training"], indirect=True)
def test_deepspeed_uses_the_processor_with_the_model(script, monkeypatch):
    """DeepSpeed itself takes a GPU wherever there is one, also where there are too few for all ranks."""
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
