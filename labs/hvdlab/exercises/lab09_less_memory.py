"""Checks of lab 9: activation checkpointing and gradient accumulation."""

import contextlib
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call, compare, exercise, right
from hvdlab.exercises.lab09_one_device import small
from hvdlab.torch.lab_networks import Block


class Counted(Block):
    """A block with dropout that records when it runs.

    Args:
        hidden_size: The width.
        number: The number of the block.
        ran: Where the block appends its number in each forward pass.
        dropout: The probability of dropout.
    """

    def __init__(self, hidden_size: int, number: int, ran: list[int], dropout: float = 0.0) -> None:
        super().__init__(hidden_size)
        self.number, self.ran, self.dropout = number, ran, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output and record the forward pass.

        Args:
            x: The input, of shape (batch, hidden_size).
        """
        self.ran.append(self.number)
        return self.dropout(super().forward(x))


@exercise
def check_run_in_segments(run_in_segments: Callable) -> None:
    """Demand equal gradients, each block run twice, and one recomputation per segment, the last first.

    Args:
        run_in_segments: The learner's `run_in_segments(blocks, x, segments)`.
    """
    for layers, segments in ((8, 3), (6, 1), (6, 6), (7, 2), (5, 4), (10, 4)):
        case = f"{layers} blocks in {segments} segment{'s' * (segments > 1)}"
        torch.manual_seed(0)
        ran = []
        blocks = nn.ModuleList(Counted(8, number, ran) for number in range(layers))
        x = torch.randn(4, 8, requires_grad=True)
        y = x
        for block in blocks:
            y = block(y)
        expected = torch.autograd.grad(y.square().sum(), [x, *blocks.parameters()])
        ran.clear()
        y = call(run_in_segments, blocks, x, segments)
        if not torch.is_tensor(y):
            raise NotYet(f"run_in_segments must return the output of the last block, not {y!r}.")
        if ran != list(range(layers)):
            raise NotYet(f"{case}: in the forward pass the blocks ran in the order {ran}.")
        ran.clear()
        gradients = _backward(y, [x, *blocks.parameters()], ran, case)
        _check_recomputation(ran, layers, segments, case)
        if not all(map(torch.equal, gradients, expected)):
            raise NotYet(f"{case}: the gradients differ from those of the plain chain.")
    right(
        "equal gradients to the last digit, and every block ran twice, in 1, 2, 3, 4 and 6 segments."
    )


def _backward(
    y: torch.Tensor, inputs: list[torch.Tensor], ran: list[int], case: str
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of all inputs, or raise NotYet where the backward pass fails."""
    try:
        gradients = torch.autograd.grad(y.square().sum(), inputs, allow_unused=True)
    except RuntimeError as error:
        advice = (
            f"blocks {ran} ran again, but not those that it needed. In a loop a lambda sees the last part "
            "only: nn.Sequential(*part) keeps its own."
            if ran
            else "Is use_reentrant=False, and no block under no_grad?"
        )
        first = str(error).partition("\n")[0]
        raise NotYet(f"{case}: the backward pass fails ({first}): {advice}") from None
    if any(gradient is None for gradient in gradients):
        raise NotYet(f"{case}: some gradients are missing. Was a part run under no_grad?")
    return gradients


def _check_recomputation(ran: list[int], layers: int, segments: int, case: str) -> None:
    """Demand that each segment was recomputed once, the last first, and that their sizes are even."""
    if not ran:
        raise NotYet(f"{case}: no block ran again, so everything was kept: checkpoint(...).")
    if once := sorted(set(range(layers)) - set(ran)):
        raise NotYet(
            f"{case}: blocks {once} did not run again, so their activations were kept. "
            "(checkpoint_sequential leaves out the last segment; here checkpoint each.)"
        )
    parts = _ascending(ran)
    if [number for part in parts[::-1] for number in part] != list(range(layers)):
        raise NotYet(f"{case}: in the backward pass the blocks ran in the order {ran}.")
    sizes = [len(part) for part in parts]
    if len(parts) != segments:
        raise NotYet(
            f"{case}: in the backward pass {len(parts)} segments were recomputed, of {sizes[::-1]} blocks: "
            "each call of checkpoint makes one."
        )
    if max(sizes) - min(sizes) > 1:
        raise NotYet(
            f"{case}: the segments have {sizes[::-1]} blocks. The largest decides the memory: their sizes "
            "should differ by at most one."
        )


def _ascending(numbers: list[int]) -> list[list[int]]:
    """Return a list cut where the next number is not one more: [4, 5, 2, 3] gives [[4, 5], [2, 3]]."""
    parts = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


@exercise
def check_recomputed(recomputed: Callable) -> None:
    """Demand the gradients of two plain blocks with dropout, and an unchanged state of the generator."""
    for dropout in (0.0, 0.5):
        ran = []
        torch.manual_seed(0)
        blocks = nn.ModuleList(Counted(16, number, ran, dropout) for number in range(2))
        x = torch.randn(32, 16, requires_grad=True)
        plain, expected, expected_next = _train(lambda block, x: block(x), blocks, x)
        ran.clear()
        y, gradients, after = call(_train, recomputed, blocks, x, name="recomputed")
        if not torch.is_tensor(y):
            raise NotYet(f"recomputed(block, x) must return the block's output, not {y!r}.")
        case = f"with a dropout of {dropout:g}"
        if not torch.equal(y, plain):
            raise NotYet(f"{case} the output differs from that of block(x): change backward only.")
        if len(ran) != 4:
            raise NotYet(
                f"two blocks ran {len(ran)} times in forward and backward together, expected 4: each twice."
            )
        if any(gradient is None for gradient in gradients):
            raise NotYet(f"{case} some gradients are missing.")
        worst = max(float((a - b).abs().max()) for a, b in zip(gradients, expected, strict=True))
        if worst > 0:
            raise NotYet(
                f"{case} the gradients are off by up to {worst:.2g}. Forward and recomputation must drop the "
                "same activations: keep the generator's state of each forward pass, and restore it before "
                "that block runs again."
            )
        if not torch.equal(after, expected_next):
            raise NotYet(
                "the gradients are right. But the backward pass leaves the generator in another state than a "
                "plain one does, and the next step draws the same dropout again: use torch.random.fork_rng()."
            )
    right("gradients with a dropout of 0.5 equal to the last digit, and an unchanged generator.")


def _train(run: Callable, blocks: nn.ModuleList, x: torch.Tensor) -> tuple:
    """Return output, gradients and the generator's next number after `run(block, x)` of both blocks."""
    torch.manual_seed(1)
    torch.rand(1)  # so that the seed alone does not give the generator's state
    blocks.zero_grad()
    x.grad = None
    y = x
    for block in blocks:
        y = run(block, y)
        if not torch.is_tensor(y):
            return y, [], None
    torch.rand(1)  # a draw between forward and backward pass
    y.square().sum().backward()
    gradients = [value.grad for value in (x, *blocks.parameters())]
    return y.detach(), [None if g is None else g.clone() for g in gradients], torch.rand(1)


@exercise
def check_accumulate(accumulate: Callable) -> None:
    """Demand the gradient of the mean loss of 10 examples from three micro-batches of at most 4.

    Args:
        accumulate: The learner's `accumulate(model, images, labels, micro_batch)`, which returns the loss.
    """
    model, images, labels = small()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    loss = loss.item()
    expected = _gradient(model)
    model.zero_grad()
    events = []
    with contextlib.ExitStack() as hooks:
        for hook in (
            model.register_forward_pre_hook(lambda _, inputs: events.append(len(inputs[0]))),
            model[0].weight.register_hook(lambda gradient: events.append("backward")),
        ):
            hooks.callback(hook.remove)
        returned = call(accumulate, model, images, labels, 4)
    sizes = [event for event in events if event != "backward"]
    if sum(sizes) != 10 or max(sizes) > 4 or len(sizes) != 3:  # 4, 4 and 2, or 4, 3 and 3
        raise NotYet(
            f"of 10 examples in micro-batches of 4 the model saw {sizes}, expected [4, 4, 2]."
        )
    if "backward" not in events:
        raise NotYet("there was no backward pass: call loss.backward() for each micro-batch.")
    if events != [event for size in sizes for event in (size, "backward")]:
        raise NotYet(
            f"forward and backward passes came in the order {events}: call backward() for each micro-batch "
            "before the next one goes forward, or the activations of all stay in memory."
        )
    answer = _gradient(model)
    parts = []
    for x, y in zip(images.split(sizes), labels.split(sizes), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        parts.append(_gradient(model))
    mistakes = {
        "That is the sum of three means: weight each with its fraction of the batch.": sum(parts),
        f"The last micro-batch has {sizes[-1]} examples and counts like one of 4: its fraction is "
        f"{sizes[-1]}/10, not 1/3.": sum(parts) / 3,
        "It has only the last micro-batch: was zero_grad() called between?":
            [parts[-1], parts[-1] * sizes[-1] / 10],
        "That is the sum over the examples, not their mean.": expected * 10,
    }  # fmt: skip
    off = f"It is off by up to {float((answer - expected).abs().max()):.2g}."
    compare(
        "the gradient of the whole batch", answer, expected, mistakes, off, rtol=1e-4, atol=1e-6
    )
    wrong_loss = (
        f"the gradients are right; return the mean loss, a number, here {loss:.4f}. Received:"
    )
    try:
        mean = float(returned)
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of many
        raise NotYet(f"{wrong_loss} {returned!r}") from None
    if abs(mean - loss) > 1e-5:
        raise NotYet(f"{wrong_loss} {mean:.4f}")
    right("10 examples in three micro-batches: the gradient and the loss of the whole batch.")


def _gradient(model: nn.Module) -> torch.Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten().clone() for grad in grads])
