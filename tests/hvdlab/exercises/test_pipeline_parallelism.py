"""The checks of lab 10's pipelines, on real ranks: the right answer passes, and mistakes are named."""

import inspect

import pytest

pytest.importorskip("torch")

from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import pipeline_parallelism as exercises  # noqa: E402

pytestmark = pytest.mark.mpi


def pipeline_step(stage, images, labels, width):
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
        x, out = kept.pop(0)
        gradient = None
        if rank < last:
            gradient = torch.empty_like(out)
            dist.recv(gradient, src=rank + 1)
        out.backward(gradient)
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
    return total


def early_step(stage, images, labels, width):
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    if dist.get_rank() == 0:
        outputs = []
        for x in images:
            outputs.append(stage(x))
            dist.send(outputs[-1].detach(), dst=1)
        while outputs:
            out = outputs.pop()
            gradient = torch.empty_like(out)
            dist.recv(gradient, src=1)
            out.backward(gradient)
        return None
    total, sending = 0.0, []
    for y in labels:
        x = torch.empty(len(y), width)
        dist.recv(x, src=0)
        x.requires_grad_()
        loss = F.cross_entropy(stage(x), y) / len(labels)
        loss.backward()
        sending.append((dist.isend(x.grad, dst=0), x))
        total += loss.item()
    for work, _ in sending:
        work.wait()
    return total


def swap(mine, yours, other):
    import torch.distributed as dist

    if dist.get_rank() < other:
        dist.send(mine, dst=other)
    dist.recv(yours, src=other)
    if dist.get_rank() > other:
        dist.send(mine, dst=other)


@pytest.fixture
def changed(tmp_path):
    """Return a function: (function, line, instead) -> the function with that line replaced."""

    def change(function, line, instead):
        source = inspect.getsource(function)
        assert source.count(line) == 1
        path = tmp_path / "changed.py"
        path.write_text(source.replace(line, instead))
        spec = exercises.importlib.util.spec_from_file_location("changed", path)
        module = exercises.importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, function.__name__)

    return change


@pytest.fixture
def impatient(monkeypatch):
    """For answers that do wait for ever."""
    monkeypatch.setattr(exercises, "SECONDS", 4)


def stub(*arguments):
    raise NotImplementedError("Lab 10, exercise 1: write it")


def test_a_stub_stays_a_stub():
    with pytest.raises(NotImplementedError, match="exercise 1"):
        exercises.check_pipeline_step(stub)


def test_the_gradients_of_serial_training_are_right(capsys):
    exercises.check_pipeline_step(pipeline_step)
    assert "Right: three stages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        (" / len(images)", "", r"4 micro-batches the loss is .*4 times the serial .*a sum of means"),
        ("            x.requires_grad_()\n", "", r"without `x.requires_grad_\(\)` before the forward"),
        pytest.param(
            "out.backward(gradient)",
            "stage.zero_grad(); out.backward(gradient)",
            "with 4 micro-batches rank 0's gradients are wrong .* with 1 they are right",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "return total", "return None", "return the loss of the batch", marks=pytest.mark.thorough
        ),
    ],
)  # fmt: skip
def test_a_wrong_step_is_named(changed, line, instead, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_pipeline_step(changed(pipeline_step, line, instead))


@pytest.mark.thorough
def test_a_gradient_that_is_not_sent_back_is_a_deadlock(changed, impatient):
    send = "        if rank > 0:\n            dist.send(x.grad, dst=rank - 1)\n"
    with pytest.raises(NotYet, match=r"waits for ever: after 4 s rank 0 in `dist.recv\(gradient"):
        exercises.check_pipeline_step(changed(pipeline_step, send, ""))


@pytest.mark.thorough
def test_gradients_that_are_not_divided_are_named(changed):
    whole = "(out * (len(images) if rank == last else 1)).backward(gradient)"
    with pytest.raises(
        NotYet, match="with 4 .* the loss is right, but .* are 4 times the serial ones"
    ):
        exercises.check_pipeline_step(changed(pipeline_step, "out.backward(gradient)", whole))


def test_a_swap_in_turns_is_right(capsys):
    exercises.check_swap(swap)
    assert "Right: two ranks exchange" in capsys.readouterr().out


def test_both_send_first_is_a_deadlock(changed, impatient):
    both = changed(swap, "    if dist.get_rank() < other:\n        dist.send", "    dist.send")
    with pytest.raises(
        NotYet, match=r"deadlock: after 4 s rank 0 in `dist.send\(mine.* and rank 1 in"
    ):
        exercises.check_swap(both)


@pytest.mark.thorough
def test_a_swap_that_does_not_wait_is_named(changed, impatient):
    hasty = changed(swap, "    dist.recv(yours, src=other)\n", "    dist.irecv(yours, src=other)\n")
    with pytest.raises(NotYet, match="wait for the receive|deadlock"):
        exercises.check_swap(hasty)


def test_the_mended_line_is_right(capsys):
    exercises.check_mended(early_step, "out = outputs.pop()", "out = outputs.pop(0)")
    assert "Right: with that line" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ("out = outputs.pop(7)", "out = outputs.pop(0)", "is 0 times in early_step"),
        ("out = outputs.pop()", "out = (", "is no line of Python"),
        (None, "x", "`line` shall be a line of Python"),
        pytest.param(
            "loss.backward()",
            "(2 * loss).backward()",
            "gradients are wrong|times the serial",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_wrong_mending_is_named(line, instead, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_mended(early_step, line, instead)
