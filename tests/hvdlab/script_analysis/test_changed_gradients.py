"""Changes of the gradients of one rank before they are averaged, read from a script's source."""

import pytest

from hvdlab.script_analysis.changed_gradients import changed_early
from hvdlab.script_analysis.script import Script

OWN = """\
def normalise(model):
    for p in model.parameters():
        p.grad.div_(p.grad.norm())
def limit(ps):
    grads = [p.grad for p in ps]
    for g in grads:
        g.mul_(0.1)
"""
LOOP = """\
import horovod.torch as hvd
optimizer = hvd.DistributedOptimizer(optimizer)
for x in data:
    loss.backward()
    {}
    optimizer.step()
"""


@pytest.mark.parametrize(
    "change, line",
    [
        ("commons.clip_grad_value_(ps, 5)", 5),
        ("optimizer.synchronize()\n    commons.clip_grad_value_(ps, 5)", None),
        ("torch.nn.utils.clip_grad_value_(ps, 5)", None),  # watched while it runs
        ("for p in ps: p.grad.data.mul_(0.1)", 5),
        ("for p in ps: p.grad /= 3", 5),
        ("for p in ps: p.grad.zero_()", None),
        ("normalise(model)", 5),
        ("limit(ps)", 5),
        ("print(5)", None),
    ],
)
def test_a_change_between_backward_and_the_step(change, line):
    found = changed_early(Script(f"{LOOP.format(change)}{OWN}".encode()))
    assert found == (line and (line, None))
    above = LOOP.replace("    loss", "    {}\n    loss").replace("    {}\n    opt", "    opt")
    assert changed_early(Script(f"{above.format(change)}{OWN}".encode())) is None


@pytest.mark.parametrize(
    "text, found",
    [
        ("grads, _ = tf.clip_by_global_norm(grads, 1)\ngrads = [hvd.allreduce(g) for g in grads]", (2, 3)),
        ("grads = [hvd.allreduce(g) for g in grads]\ngrads, _ = tf.clip_by_global_norm(grads, 1)", None),
        ("x = tf.clip_by_value(x, 0, 1)\ngrads = [hvd.allreduce(g) for g in grads]", None),
    ],
)  # fmt: skip
def test_a_clip_above_an_average_of_the_scripts_own(text, found):
    source = f"import horovod.tensorflow as hvd\n{text}"
    assert changed_early(Script(source.encode())) == found
