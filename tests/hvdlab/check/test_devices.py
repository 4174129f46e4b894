"""What is said of the GPU that a rank takes, and of tensors that Horovod cannot take."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from check_events import named, plus, run

from hvdlab.check.command import check
from hvdlab.check.hooks import horovod
from hvdlab.check.static import read
from hvdlab.trace import records

INIT = "hvd.init()\n"


def test_a_gpu_is_chosen_by_the_rank_on_the_machine(facts):
    use = (INIT, f"{INIT}model.cuda()\n")
    assert named(run(), facts(use)) == [("device-not-pinned", 3)]
    pin = ("model.cuda()\n", "model.cuda(); torch.cuda.set_device(hvd.local_rank())\n")
    assert named(run(), facts(use, pin)) == []
    by_rank = ("model.cuda()\n", "model.cuda()\ntorch.cuda.set_device(hvd.rank())\n")
    assert named(run(), facts(use, by_rank)) == [("device-not-pinned", 4)]
    both = ("model.cuda()\n", "torch.device(f'cuda:{hvd.rank()}')\nmodel.cuda(hvd.local_rank())\n")
    assert named(run(), facts(use, both)) == [("device-not-pinned", 3)]
    # The launcher shows each rank one GPU of its own.
    events = run()
    for rank in events:
        plus(events, rank, kind="devices", line=0, count=1, visible=str(rank))
    assert named(events, facts(use)) == []


def test_of_several_gpus_tensorflow_takes_the_first(facts):
    pin = (INIT, f"{INIT}set_visible_devices(gpus[hvd.local_rank()], 'GPU')\n")
    for count, changes, wanted in (
        (4, (), [("device-not-pinned", 6)]),
        (4, (pin,), []),
        (1, (), []),
    ):
        events = run()
        for rank in events:
            plus(events, rank, kind="devices", line=6, count=count, visible="")
            plus(events, rank, kind="fit", line=6, length=5, content=None)
        assert named(events, facts(*changes)) == wanted


# The number of a GPU as a remainder: with fewer GPUs than ranks two ranks get the same one.
REMAINDERS = {
    "torch": "torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())",
    "torch, a variable": "mine = hvd.local_rank() % n\ntorch.cuda.set_device(mine)",
    "torch, in a string": "model.to(f'cuda:{hvd.local_rank() % max(1, n)}')",
    "TensorFlow": "tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], 'GPU')",
    "TensorFlow, a variable": "mine = local % len(gpus)\ntf.config.set_visible_devices(gpus[mine])",
    "a list of another name": "x = cards[hvd.local_rank() % len(cards)]\nmodel.to(x)",
    "from the launcher": "model.to(int(os.environ['OMPI_COMM_WORLD_LOCAL_RANK']) % n)",
    "in place": "local %= n\nmodel.to(local)",
    "in a function": "def pick(local_rank):\n    return local_rank % count()\npick(local)",
}
NO_REMAINDERS = {
    "the rank on its machine": "torch.cuda.set_device(hvd.local_rank())",
    "of all ranks": "torch.cuda.set_device(hvd.rank() % torch.cuda.device_count())",
    "by the machines": "x = hvd.rank() % hvd.cross_size()",
    "by the hosts": "x = hvd.local_rank() % len(hosts)",
    "the rank on its GPU": "x = hvd.local_rank() % (hvd.local_size() // n)",
    "the first rank of a GPU": "if hvd.local_rank() % n == 0:\n    print(n)",
    "where all have one": "if n >= hvd.local_size():\n    torch.cuda.set_device(local % n)",
    "through host memory": "model.to(local % n)\nhvd.DistributedOptimizer(o, compression=OnHost)",
    "Keras through host memory": "x = gpus[local % len(gpus)]\nf(o, device_dense='CPU:0')",
    "a string": "model.to('cuda:%d' % hvd.local_rank())",
    "the helper": "mine = rank_device(hvd)\nmodel.to(mine.device)",
}
BEFORE = """\
import horovod.torch as hvd
n = torch.cuda.device_count()
gpus, cards = tf.config.list_physical_devices("GPU"), tf.config.list_physical_devices("GPU")
local = hvd.local_rank()
def count():
    return torch.cuda.device_count()
"""


@pytest.mark.parametrize("text", REMAINDERS.values(), ids=REMAINDERS)
def test_a_remainder_by_the_number_of_gpus_is_named(text):
    Path("script.py").write_text(BEFORE + text, encoding="utf-8")
    line = next(i for i, each in enumerate((BEFORE + text).splitlines(), 1) if "%" in each)
    assert read(Path("script.py")).remainder == line


@pytest.mark.parametrize("text", NO_REMAINDERS.values(), ids=NO_REMAINDERS)
def test_another_remainder_is_left_alone(text):
    Path("script.py").write_text(BEFORE + text, encoding="utf-8")
    assert read(Path("script.py")).remainder is None


def test_a_remainder_of_fp16_compression_is_named_too():
    """Many scripts give DistributedOptimizer one of Horovod's compressions, which stay on the GPU."""
    text = "c = hvd.Compression.fp16 if a else hvd.Compression.none\nmodel.to(local % n)\n"
    Path("script.py").write_text(
        f"{BEFORE}{text}hvd.DistributedOptimizer(o, compression=c)", encoding="utf-8"
    )
    assert read(Path("script.py")).remainder == 8


def test_a_remainder_is_right_where_the_launcher_shows_each_rank_one_gpu(facts):
    remainder = facts((INIT, f"{INIT}{REMAINDERS['torch']}\n"))
    assert named(run(), remainder) == [("gpu-by-remainder", 3)]
    events = run()
    for rank in events:
        plus(events, rank, kind="devices", line=0, count=1, visible=str(rank))
    assert named(events, remainder) == []


@pytest.mark.parametrize("helper", ["rank_device(hvd)", "group_device()"])
def test_a_helper_chooses_a_device(helper, facts):
    use = f"{INIT}mine = {helper}\nmodel.cuda()\n"
    assert named(run(), facts((INIT, use))) == []


@pytest.mark.parametrize(
    "error, line, wanted",
    [
        ("ValueError: Tensor is required to be contiguous.", 4, [("tensor-not-accepted", 4)]),
        ("ValueError: Tensor type torch.BFloat16Tensor is not supported.", 6, None),
        ("ValueError: the loss is not supported", 6, []),
    ],
)
def test_horovods_error_about_a_tensor_is_a_finding(error, line, wanted, facts):
    events = run()
    for rank in events:
        plus(events, rank, kind="end", line=line, error=error, made=None)
    wanted = [("tensor-not-accepted", line)] if wanted is None else wanted
    assert named(events, facts()) == wanted


def test_a_cuda_tensor_of_a_gradient_is_named_where_the_optimizer_is_wrapped(facts):
    events = run()
    plus(events, 0, kind="cudatensor", line=None, device="cuda:0")
    wrap = next(event["line"] for event in events[0] if event["kind"] == "wrap")
    assert named(events, facts()) == [("cuda-without-nccl", wrap)]


# A CUDA tensor on a machine without a GPU: PyTorch's fake tensors have a device and a type, and no memory.
CUDA_TENSORS = """\
import horovod.torch as hvd, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from hvdlab.torch.device import rank_device
hvd.init()
mine = rank_device(hvd)
with FakeTensorMode():
    tensor = torch.ones(3, device="cuda")
for send in (
    hvd.allreduce_,
    hvd.allreduce_async_,
    lambda one: hvd.grouped_allreduce_([one, one]),
    lambda one: hvd.broadcast_(one, 0),
    lambda one: hvd.broadcast_parameters({"weight": one}, 0),
):
    try:
        send(tensor)
    except SystemExit:
        pass
hvd.allreduce(torch.ones(3))
"""


@pytest.mark.mpi
def test_a_cuda_tensor_is_named_before_a_horovod_without_cuda_waits_for_ever():
    hvd = pytest.importorskip("horovod.torch")
    if hvd.cuda_built():
        pytest.skip("this Horovod was built with CUDA")
    Path("mine.py").write_text(CUDA_TENSORS, encoding="utf-8")
    found = check("mine.py", timeout=60)
    assert [(one.id, one.line) for one in found.findings] == [("cuda-without-nccl", 16)]
    assert "compression=mine.compression" in found.findings[0].fix
    assert (found.error, found.ended) == (None, "itself")
    for rank in (0, 1):  # each operation was stopped, and the tensor in host memory was not
        passed = [e for e in found.events[rank] if isinstance(e, records.CudaTensor)]
        assert len(passed) == 5


def test_a_horovod_with_cuda_gets_its_cuda_tensors(tmp_path):
    operations = SimpleNamespace(
        _check_function=lambda factory, tensor: "sent", cuda_built=lambda: 1
    )
    send = horovod._without_cuda(operations, watch=None)
    assert send(None, SimpleNamespace(device=SimpleNamespace(type="cuda"))) == "sent"
