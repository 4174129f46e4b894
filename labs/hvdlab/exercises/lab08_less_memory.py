"""Checks of lab 8: activation checkpointing and gradient accumulation."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call, right
from hvdlab.exercises.lab08_one_device import small
from hvdlab.torch.lab_networks import Block


class Counted(Block):
    """A block that writes down when it runs, and has dropout."""

    def __init__(self, hidden_size, number, ran, dropout=0.0):
        super().__init__(hidden_size)
        self.number, self.ran, self.dropout = number, ran, nn.Dropout(dropout)

    def forward(self, x):
        self.ran.append(self.number)
        return self.dropout(super().forward(x))


def check_run_in_segments(run_in_segments) -> None:
    """Demand equal gradients, each block run twice, and one recomputation a segment, the last first."""
    for layers, segments in ((8, 3), (6, 1), (6, 6), (7, 2), (5, 4), (10, 4)):
        case = f"{layers} blocks in {segments} segment{'s' * (segments > 1)}"
        torch.manual_seed(0)
        ran = []
        blocks = nn.ModuleList(Counted(8, number, ran) for number in range(layers))
        x = torch.randn(4, 8, requires_grad=True)
        y = x
        for block in blocks:
            y = block(y)
        wanted = torch.autograd.grad(y.square().sum(), [x, *blocks.parameters()])
        ran.clear()
        y = call(run_in_segments, blocks, x, segments)
        if not torch.is_tensor(y):
            raise NotYet(f"run_in_segments shall return the output of the last block, not {y!r}.")
        forward = list(ran)
        ran.clear()
        if forward != list(range(layers)):
            raise NotYet(f"{case}: forward, the blocks ran in the order {forward}.")
        try:
            inputs = [x, *blocks.parameters()]
            grads = torch.autograd.grad(y.square().sum(), inputs, allow_unused=True)
        except RuntimeError as error:
            says = (
                f"blocks {ran} ran again, and others were asked for. In a loop a lambda sees the last part "
                "alone: nn.Sequential(*part) keeps its own."
                if ran
                else "Is use_reentrant=False, and no block under no_grad?"
            )
            first = str(error).partition("\n")[0]
            raise NotYet(f"{case}: the backward pass fails ({first}): {says}") from None
        if any(grad is None for grad in grads):
            raise NotYet(f"{case}: some gradients are missing. Was a part run under no_grad?")
        if not ran:
            raise NotYet(f"{case}: no block ran again, so everything was kept: checkpoint(...).")
        once = sorted(set(range(layers)) - set(ran))
        if once:
            raise NotYet(
                f"{case}: blocks {once} did not run again, so their activations were kept. "
                "(checkpoint_sequential leaves out the last segment; here checkpoint each.)"
            )
        parts = _ascending(ran)
        if [number for part in parts[::-1] for number in part] != forward:
            raise NotYet(f"{case}: backward, the blocks ran in the order {ran}.")
        sizes = [len(part) for part in parts]
        if len(parts) != segments:
            raise NotYet(
                f"{case}: backward, {len(parts)} segments were recomputed, of {sizes[::-1]} blocks: "
                "each call of checkpoint makes one."
            )
        if max(sizes) - min(sizes) > 1:
            raise NotYet(
                f"{case}: the segments have {sizes[::-1]} blocks. The largest decides the memory: their "
                "sizes should differ by one at most."
            )
        if not all(torch.equal(*pair) for pair in zip(grads, wanted, strict=True)):
            raise NotYet(f"{case}: the gradients differ from those of the plain chain.")
    right(
        "equal gradients to the last digit, and every block ran twice, in 1, 2, 3, 4 and 6 segments."
    )


def _ascending(numbers):
    """Cut a list where the next number is not one more: [4, 5, 2, 3] is [[4, 5], [2, 3]]."""
    parts = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


def check_recomputed(recomputed) -> None:
    """Demand the gradients of two plain blocks with dropout, and a generator left as it would be."""
    for dropout in (0.0, 0.5):
        ran = []
        torch.manual_seed(0)
        blocks = nn.ModuleList(Counted(16, number, ran, dropout) for number in range(2))
        x = torch.randn(32, 16, requires_grad=True)

        def trained(run, blocks=blocks, x=x):
            torch.manual_seed(1)
            torch.rand(1)  # so the seed alone does not tell where the generator stood
            blocks.zero_grad()
            x.grad = None
            y = x
            for block in blocks:
                y = run(block, y)
                if not torch.is_tensor(y):
                    return y, [], None
            torch.rand(1)  # other draws come between
            y.square().sum().backward()
            grads = [value.grad for value in (x, *blocks.parameters())]
            return y.detach(), [None if g is None else g.clone() for g in grads], torch.rand(1)

        plain, wanted, wanted_next = trained(lambda block, x: block(x))
        ran.clear()
        y, grads, after = call(trained, recomputed, name="recomputed")
        if not torch.is_tensor(y):
            raise NotYet(f"recomputed(block, x) shall return the block's output, not {y!r}.")
        case = f"with a dropout of {dropout:g}"
        if not torch.equal(y, plain):
            raise NotYet(f"{case} the output differs from that of block(x): change backward only.")
        if len(ran) != 4:
            raise NotYet(
                f"two blocks ran {len(ran)} times in forward and backward together, expected 4: each twice."
            )
        if any(grad is None for grad in grads):
            raise NotYet(f"{case} there are gradients missing.")
        worst = max(float((a - b).abs().max()) for a, b in zip(grads, wanted, strict=True))
        if worst > 0:
            raise NotYet(
                f"{case} the gradients are off by up to {worst:.2g}. Forward and recomputation must drop the "
                "same activations: keep the generator's state of each forward pass, and put it back "
                "before that block runs again."
            )
        if not torch.equal(after, wanted_next):
            raise NotYet(
                "the gradients are right. But the backward pass leaves the generator in another state than a "
                "plain one does, and the next step draws the same dropout again: use torch.random.fork_rng()."
            )
    right(
        "gradients with a dropout of 0.5 equal to the last digit, and the generator is undisturbed."
    )


def check_accumulate(accumulate) -> None:
    """Demand the gradient of the mean loss of 10 examples from three micro-batches of 4 at most."""
    model, images, labels = small()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    loss = loss.item()
    wanted = _gradient(model)
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
    found = _gradient(model)
    parts = []
    for x, y in zip(images.split(sizes), labels.split(sizes), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        parts.append(_gradient(model))
    for wrong, says in (
        (sum(parts), "that is the sum of three means: each counts with its share of the batch."),
        (sum(parts) / 3, f"the last micro-batch has {sizes[-1]} examples and counts like one of 4: its share "
                         f"is {sizes[-1]}/10, not 1/3."),
        (parts[-1], "only the last micro-batch is in it: was zero_grad() called between?"),
        (parts[-1] * sizes[-1] / 10, "only the last micro-batch is in it: was zero_grad() called between?"),
        (wanted * 10, "that is the sum over the examples, not their mean."),
    ):  # fmt: skip
        if torch.allclose(found, wrong, rtol=1e-4, atol=1e-8):
            raise NotYet(f"the gradient is not that of the whole batch: {says}")
    worst = float((found - wanted).abs().max())
    if worst > 1e-6:
        raise NotYet(f"the gradient differs from that of the whole batch by {worst:.2g}.")
    says = f"the gradients are right; return the mean loss, a number, here {loss:.4f}. Received:"
    try:
        mean = float(returned)
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of many
        raise NotYet(f"{says} {returned!r}") from None
    if abs(mean - loss) > 1e-5:
        raise NotYet(f"{says} {mean:.4f}")
    right("10 examples in three micro-batches: the gradient and the loss of the whole batch.")


def _gradient(model):
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten().clone() for grad in grads])
