"""The checks of lab 14's pipelines, on real ranks: the right answer passes, and mistakes are named."""

import pytest

pytest.importorskip("torch")

from changed import changed  # noqa: E402

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab14_pipeline_parallelism as exercises  # noqa: E402
from hvdlab.exercises.harness import gloo_ranks  # noqa: E402

pytestmark = pytest.mark.mpi


def pipeline_step(stage, images, labels, width):
    """Backward from the last micro-batch to the first, unlike the lab's."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept = []
    for x, y in zip(images, labels, strict=True):
        if rank > 0:
            x = torch.empty(len(y), width)
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        out = stage(x)
        if rank < last:
            dist.send(out.detach(), dst=rank + 1)
        else:
            out = F.cross_entropy(out, y) / len(images)
        kept.append((x, out))
    total = sum(out.item() for _, out in kept) if rank == last else None
    while kept:
        x, out = kept.pop()
        gradient = None
        if rank < last:
            gradient = torch.empty_like(out)
            dist.recv(gradient, src=rank + 1)
        out.backward(gradient)
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
    return total


def swap(mine, yours, other):
    import torch.distributed as dist

    if dist.get_rank() < other:
        dist.send(mine, dst=other)
    dist.recv(yours, src=other)
    if dist.get_rank() > other:
        dist.send(mine, dst=other)


@pytest.fixture
def impatient(monkeypatch):
    """For answers that do wait for ever."""
    monkeypatch.setattr(gloo_ranks, "SECONDS", 4)


def stub(*arguments):
    raise NotImplementedError("Lab 14, exercise 1: write it")


def thorough(*values):
    return pytest.param(*values, marks=pytest.mark.thorough)


@pytest.mark.thorough
def test_a_stub_stays_a_stub():
    with pytest.raises(NotImplementedError, match="exercise 1"):
        exercises.check_pipeline_step(stub)


@pytest.mark.thorough
def test_the_gradients_of_serial_training_are_right(capsys):
    exercises.check_pipeline_step(pipeline_step)
    assert "Right: three stages" in capsys.readouterr().out


BACKWARD = "out.backward(gradient)"


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        (" / len(images)", "", r"4 micro-batches the loss is .*4 times the serial .*a sum of means"),
        thorough("            x.requires_grad_()\n", "",
                 r"without `x.requires_grad_\(\)` before the forward"),
        thorough(BACKWARD, f"stage.zero_grad(); {BACKWARD}",
                 "with 4 micro-batches rank 0's gradients are wrong .* with 1 they are right"),
        thorough(BACKWARD, "(out * (len(images) if rank == last else 1)).backward(gradient)",
                 "with 4 .* the loss is right, but .* are 4 times the serial ones"),
        thorough("return total", "return None", "return the loss of the batch"),
        thorough("return total", "return total or 0.0", "returns 0 on rank 0: return None"),
    ],
)  # fmt: skip
def test_a_wrong_step_is_named(line, instead, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_pipeline_step(changed(pipeline_step, line, instead))


@pytest.mark.thorough
def test_a_gradient_that_is_not_sent_back_is_a_deadlock(impatient):
    send = "        if rank > 0:\n            dist.send(x.grad, dst=rank - 1)\n"
    with pytest.raises(NotYet, match=r"after \d+ s rank 0 in `dist.recv\(gradient"):
        exercises.check_pipeline_step(changed(pipeline_step, send, ""))


@pytest.mark.thorough
def test_a_swap_in_turns_is_right(capsys):
    exercises.check_swap(swap)
    assert "Right: two ranks exchange" in capsys.readouterr().out


def test_both_send_first_is_a_deadlock(impatient):
    both = changed(swap, "    if dist.get_rank() < other:\n        dist.send", "    dist.send")
    with pytest.raises(
        NotYet, match=r"swap: .*after \d+ s rank 0 in `dist.send\(mine.* and rank 1 in"
    ):
        exercises.check_swap(both)


def together(mine, yours, other):
    import torch.distributed as dist

    both = dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, yours, other)
    for message in dist.batch_isend_irecv([*both]):
        message.wait()


def leaves_its_send(mine, yours, other):
    import torch.distributed as dist

    sending = dist.isend(mine, dst=other)
    dist.recv(yours, src=other)
    return sending


@pytest.mark.thorough
def test_a_swap_by_messages_on_their_way(capsys):
    exercises.check_swap(together)
    assert "Right: two ranks exchange" in capsys.readouterr().out
    with pytest.raises(NotYet, match=r"has a wait\(\): call it on each before you return"):
        exercises.check_swap(leaves_its_send)


@pytest.mark.thorough
def test_a_swap_that_does_not_wait_is_named(impatient):
    hasty = changed(swap, "    dist.recv(yours, src=other)\n", "    dist.irecv(yours, src=other)\n")
    with pytest.raises(NotYet, match="wait for the receive|must receive first"):
        exercises.check_swap(hasty)


# Rank 0 goes backward from the first micro-batch to the last.
faulty = changed(pipeline_step, "kept.pop()", "kept.pop(-rank)")


@pytest.mark.thorough
def test_the_fixed_line_is_right(capsys):
    exercises.check_fixed_line(faulty, "x, out = kept.pop(-rank)", "x, out = kept.pop()")
    assert "Right: with that line" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ("out = kept.pop(7)", "out = kept.pop()", "is 0 times in pipeline_step"),
        ("x, out = kept.pop(-rank)", "x, out = (", "is not valid Python"),
        (None, "x", "`line` must be a line of Python"),
        thorough("x, out = kept.pop(-rank)", "x, out = kept.pop(rank - 1)",
                 "rank 0's gradients are wrong .* with 1 they are right"),
    ],
)  # fmt: skip
def test_a_wrong_mending_is_named(line, instead, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_fixed_line(faulty, line, instead)
