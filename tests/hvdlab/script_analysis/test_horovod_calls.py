"""Calls of Horovod and of schedules that have no effect, or that only some ranks make."""

import pytest

from hvdlab.script_analysis.horovod_calls import discarded, own_schedule, uncalled
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

IMPORTS = "import horovod.torch as hvd\nfrom torch import optim\n"
SCHEDULE = "s = optim.lr_scheduler.StepLR(o, 1)\nfor epoch in range(3):\n"


def line(node):
    return node and node.lineno


@pytest.mark.parametrize(
    "text, found",
    [
        ("if hvd.rank == 0: save()", 3),
        ("if hvd.rank() == 0: save()", None),
        ("run(hvd.rank)", None),
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
        ("    pass\nif hvd.rank() == 0: own = [ReduceLROnPlateau()]", 6),
        ("    pass\nown = [ReduceLROnPlateau(verbose=hvd.rank() == 0)]", None),
        ("    pass\nif hvd.rank() == 0: a = EarlyStopping()\nelse: a = EarlyStopping()", None),
    ],
)
def test_a_schedule_that_only_some_ranks_use(text, found):
    script = Script(f"{IMPORTS}{SCHEDULE}{text}".encode())
    assert line(own_schedule(script, Guards(script))) == found
