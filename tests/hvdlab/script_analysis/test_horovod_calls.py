"""Calls of Horovod and of schedules that have no effect, or that only some ranks make."""

import pytest

from hvdlab.script_analysis.horovod_calls import (
    discarded,
    fewer_rounds,
    local_shard,
    own_breaks,
    own_schedule,
    plain_gradient,
    uncalled,
)
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

IMPORTS = "import horovod.torch as hvd\nfrom torch import optim\n"
SCHEDULE = "s = optim.lr_scheduler.StepLR(o, 1)\nfor epoch in range(3):\n"


GROUPS = "for g in o.param_groups:\n        "


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
        ("    if hvd.rank() == 0:\n        s.step(loss)", 6),
        ("    s.step()", None),
        ("    if hvd.rank() == 0: s.step()\n    else: s.step()", None),
        ("    if hvd.rank() == 0: s.step()\n    hvd.broadcast_optimizer_state(o, 0)", None),
        ("    if hvd.rank() == 0: profiler.step()", None),
        (f"    {GROUPS}if hvd.rank() == 0: g['lr'] *= 0.1", 6),
        (f"    {GROUPS}if hvd.rank() == 0: g['lr'] = 1\n        else: g['lr'] = 1", None),
        (f"    {GROUPS}g['lr'] *= 0.1\n    if hvd.rank() == 0: args.lr = 3", None),
        ("    if hvd.rank() == 0: table['lr'] = 3", None),
        ("    if hvd.rank() == 0: self.optimizer.lr = 3", 5),
        ("    pass\nif hvd.rank() == 0: own = [ReduceLROnPlateau()]", 6),
        ("    pass\nown = [ReduceLROnPlateau(verbose=hvd.rank() == 0)]", None),
        ("    pass\nif hvd.rank() == 0: a = EarlyStopping()\nelse: a = EarlyStopping()", None),
        ("    pass\na = EarlyStopping()\nif hvd.rank() == 0: own.append(a)", 6),
        ("    pass\na = EarlyStopping()\nown.append(a)\nif hvd.rank() == 0: print(a)", None),
    ],
)
def test_a_schedule_that_only_some_ranks_use(text, found):
    script = Script(f"{IMPORTS}{SCHEDULE}{text}".encode())
    own = own_schedule(script, Guards(script))
    assert line(own and own[0]) == found


@pytest.mark.parametrize(
    "body, found",
    [
        ("if hvd.rank() == 0:\n        if done: break", [(3, 5, 4)]),
        ("if hvd.rank() == 0: save()\n    else:\n        break", [(3, 6, 4)]),
        ("if hvd.rank() == 0: break\n    else: break", []),
        ("if done: break", []),
        ("if hvd.rank() == 0:\n        for x in y: break", []),
    ],
)
def test_a_way_out_of_a_loop_that_only_some_ranks_have(body, found):
    script = Script(f"{IMPORTS}for step in range(3):\n    {body}".encode())
    ways = own_breaks(script, Guards(script))
    assert [(loop, out.lineno, test.lineno) for loop, out, test in ways] == found


@pytest.mark.parametrize(
    "wrap, found",
    [
        ("", 6),
        ("one = hvd.DistributedGradientTape(one)", 7),
        ("one = hvd.DistributedGradientTape(one)\ntwo = hvd.DistributedGradientTape(two)", None),
        ("other = hvd.DistributedGradientTape(one)", 6),
    ],
)
def test_a_gradient_of_a_tape_that_horovod_does_not_replace(wrap, found):
    tapes = "with tf.GradientTape() as one, tf.GradientTape() as two:\n    loss = 1\n"
    source = f"{IMPORTS}{tapes}{wrap}\none.gradient(loss, w)\ntwo.gradient(loss, w)"
    assert line(plain_gradient(Script(source.encode()))) == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("epochs = epochs // hvd.size()", True),
        ("steps //= hvd.size()", True),
        ("loss = loss / hvd.size()", False),
        ("epochs = epochs // 2", False),
    ],
)
def test_rounds_that_are_divided_by_the_ranks(text, found):
    assert fewer_rounds(Script(f"{IMPORTS}{text}".encode())) == found


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
