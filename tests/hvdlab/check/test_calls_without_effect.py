"""Calls of Horovod that have no effect, and shards that the local rank chooses, as the source shows them."""

import pytest

from hvdlab.check.static import discarded, local_shard, uncalled
from hvdlab.script_analysis.script import Script

IMPORTS = "import horovod.torch as hvd\nfrom torch import optim\n"


def line(node):
    return node and node.lineno


@pytest.mark.parametrize(
    "text, found",
    [
        ("if hvd.rank == 0: save()", 3),
        ("if hvd.rank() == 0: save()", None),
        ("run(hvd.rank)", None),
        ("if hvd.rank: save()", 3),
        ("if not hvd.rank: save()", 3),
        ("for i in range(hvd.size): run(i)", 3),
        ("main = hvd.rank", None),
        ("if mine.rank == 0: save()", None),
    ],
)
def test_a_function_that_is_used_as_a_number(text, found):
    assert line(uncalled(Script(f"{IMPORTS}{text}".encode()))) == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("def mean(x):\n    hvd.allreduce(x)\n    return x", 4),
        ("def mean(x):\n    hvd.allreduce_(x)\n    return x", None),
        ("def mean(x):\n    x = hvd.allreduce(x)\n    return x", None),
        ("def mean(x):\n    return hvd.allreduce(x)", None),
        ("hvd.allreduce(torch.tensor(0), name='barrier')", None),
        ("x = torch.zeros(1)\nhvd.allreduce(x)", None),  # as a barrier, too
        ("hvd.allreduce(x)\nx = 3\nprint(x)", None),
        ("for v in (x, y):\n    hvd.allreduce(v)\nprint(y)", 4),
        ("for v in (x, y):\n    hvd.allreduce(v)\nprint(v)", None),
        ("def mean(x):\n    return hvd.allreduce(x).item()\nmean(x)\nprint(x)", 5),
        ("def mean(x):\n    y = hvd.allreduce(x)\n    return y.item()\nmean(x)\nprint(x)", 6),
        ("def mean(x):\n    return hvd.allreduce(x)\nx = mean(x)\nprint(x)", None),
        ("def wait(x):\n    hvd.allreduce(x)\nwait(x)\nprint(x)", None),
        ("hvd.allreduce(torch.tensor(x), name='x')\nprint(x)", 3),
        ("hvd.allreduce(self.x).item()\nprint(self.x)", 3),
        ("hvd.allreduce(self.x).item()\nprint(self.y)", None),
        ("for p in model.parameters():\n    hvd.allreduce(p.grad)\nstep(model)", 4),
        ("for p in model.parameters():\n    p.grad = hvd.allreduce(p.grad)\nstep(model)", None),
        ("hvd.broadcast_object(x, root_rank=0)\nprint(x)", 3),
        ("every = hvd.allgather(x).cpu().numpy()\nprint(x)", 3),
        ("every = hvd.allgather(x).cpu().numpy()\nprint(x, every)", None),
        ("use(hvd.allreduce(x).item())\nprint(x)", None),
        ("hvd.allreduce(torch.zeros(len(x)))\nprint(x)", None),  # as a barrier
    ],
)
def test_a_collective_whose_result_is_discarded(text, found):
    assert line(discarded(Script(f"{IMPORTS}{text}".encode()))) == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("data.shard(hvd.size(), hvd.local_rank())", 3),
        ("data.shard(hvd.size(), hvd.rank())", None),
        ("read(path, shard_num=hvd.size(), shard_idx=hvd.local_rank())", 3),
        ("log(path, n=hvd.size(), where=hvd.local_rank())", None),
        ("data.shard(hvd.local_size(), hvd.local_rank())", None),
        ("DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.local_rank())", 3),
        ("r = hvd.local_rank()\nown = data[r::hvd.size()]", 4),
        ("n = len(x) // hvd.size()\nfirst = hvd.local_rank() * n\nown = x[first:first + n]", 5),
        ("n = len(x) // hvd.size()\nfirst = hvd.rank() * n\nown = x[first:first + n]", None),
        ("gpus = all_gpus[hvd.local_rank():hvd.local_rank() + 1]", None),
    ],
)
def test_a_shard_of_all_ranks_is_not_chosen_by_the_local_rank(text, found):
    assert line(local_shard(Script(f"{IMPORTS}{text}".encode()))) == found
