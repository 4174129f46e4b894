"""Checks of lab 9: bytes of activations, loss scaling, reads from the device.

Each check compares with plain float32 training of a network that is small enough for an exact comparison.
The checks of activation checkpointing and gradient accumulation are in `lab09_less_memory`.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hvdlab.exercises import NotYet, call, compare, exercise, number, right


@exercise
def check_activation_bytes(activation_bytes: Callable) -> None:
    """Demand 10 hidden numbers per example and block: what autograd keeps for the backward pass.

    Args:
        activation_bytes: The learner's
            `activation_bytes(batch_size, num_layers, hidden_size, number_bytes=4)`.
    """
    case = "activation_bytes(batch_size=7, num_layers=3, hidden_size=8)"
    by_hand = 7 * 3 * 10 * 8 * 4
    mistakes = {
        "That is how many numbers; float32 has 4 bytes each.": by_hand / 4,
        "One block: there are num_layers of them.": by_hand / 3,
        "One example: each of the batch has its own activations.": by_hand / 7,
        "6 hidden: the output of `up` counts twice, before and after the gelu.": by_hand * 6 / 10,
        "5 hidden: `up` needs its input, and gelu its own, of 4 hidden.": by_hand * 5 / 10,
        "9 hidden: norm and `up` each keep their own input of hidden numbers.": by_hand * 9 / 10,
        "11 hidden: the backward pass through + does not need the output of `down`, and as the input of the "
        "next block it is counted there.": by_hand * 11 / 10,
        "14 hidden: the backward pass needs neither three arrays of 4 hidden nor the output of `down`.":
            by_hand * 14 / 10,
    }  # fmt: skip
    for options, factor in (((), 1), ((2,), 0.5)):
        if options:
            case = f"With 4 bytes per number it is right. {case[:-1]}, number_bytes=2)"
            mistakes = {"Use the argument number_bytes in place of 4.": by_hand}
        answer = number(call(activation_bytes, 7, 3, 8, *options), case, "of bytes")
        how = "By hand: 3 blocks of 10 * 8 numbers for each of 7 examples."
        compare(case, answer, by_hand * factor, mistakes, how)
    right(
        "6720 bytes for 3 blocks of width 8 and 7 examples, half of that with 2 bytes per number."
    )


OVERFLOWS = (0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1)
INTERVAL = 3  # good steps after which the scale doubles


@exercise
def check_next_scale(next_scale: Callable) -> None:
    """Demand the sequence of scales of torch.amp.GradScaler over 20 steps, five with an overflow.

    Args:
        next_scale: The learner's `next_scale(scale, good_steps, overflow, interval)`.
    """
    wanted = _scales_of_torch()
    scale, good_steps, found = 1024.0, 0, []
    for overflow in OVERFLOWS:
        answer = call(next_scale, scale, good_steps, bool(overflow), INTERVAL)
        if not (isinstance(answer, tuple) and len(answer) == 2 and None not in answer):
            raise NotYet(f"next_scale must return (scale, good_steps). Received: {answer!r}")
        scale, good_steps = answer
        found.append(float(scale))
    if found == wanted:
        right(f"the {len(wanted)} scales of torch.amp.GradScaler, from {min(wanted):g} to 1024.")
        return
    step = next(i for i in range(len(wanted)) if found[i] != wanted[i])
    before = 1024.0 if step == 0 else wanted[step - 1]
    good = 0
    while good < step and not OVERFLOWS[step - 1 - good]:
        good += 1
    happened = "overflowed" if OVERFLOWS[step] else f"was good, as were the {good} before it"
    why = "It halves at an overflow, doubles after `interval` good steps in a row, and otherwise stays."
    if not OVERFLOWS[step] and found[step] > wanted[step]:
        why = "Is good_steps back to 0 after an overflow, and after the scale has doubled?"
    raise NotYet(
        f"with an interval of {INTERVAL}, step {step + 1} {happened}: from {before:g} GradScaler goes to "
        f"{wanted[step]:g}, yours to {found[step]:g}. {why}"
    )


def _scales_of_torch() -> list[float]:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=INTERVAL)
    scales = []
    for overflow in OVERFLOWS:
        loss = (weight * (float("inf") if overflow else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales


START, SLOPE = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([4.0, 8.0, 2.0])


@exercise
def check_scaled_step(scaled_step: Callable) -> None:
    """Demand the step of unscaled training to the last digit, no step on inf or nan, and the answer.

    Args:
        scaled_step: The learner's `scaled_step(loss, optimizer, scale)`, which returns whether the step
            overflowed.
    """
    moved, answers, left, _ = _two_steps(scaled_step, 1024.0, 1.0)
    if any(answer is None for answer in answers):
        raise NotYet("scaled_step returns None: return whether the step overflowed, True or False.")
    once = START - 0.125 * SLOPE
    twice = once - 0.125 * 1.5 * SLOPE
    lead = (
        f"two steps from {START.tolist()} with a scale of 1024 lead to {moved.tolist()}, without scaling "
        f"to {twice.tolist()}"
    )
    if torch.equal(moved, START):
        raise NotYet("the weights do not move: when no gradient overflows, call optimizer.step().")
    if (moved - twice).abs().max() > 100:
        raise NotYet(
            f"{lead}: divide the gradients of every group by the scale before optimizer.step()."
        )
    if left:
        raise NotYet(
            "after the step the gradients are still there, and the next backward adds to them: end "
            "with optimizer.zero_grad()."
        )
    if not torch.equal(moved, twice):
        raise NotYet(f"{lead}. A scale that is a power of two changes no digit.")
    if any(answers):
        raise NotYet(
            f"no gradient was infinite, but scaled_step returns {answers}: return False for both steps."
        )
    for scale, factor, what in ((2.0**120, 1e3, "inf"), (1024.0, float("nan"), "nan")):
        moved, answers, left, velocity = _two_steps(scaled_step, scale, factor)
        if not torch.equal(moved, once) or not torch.equal(velocity, SLOPE):
            raise NotYet(
                f"a step with one gradient of {what} must change neither weights nor momentum; they are "
                f"{moved.tolist()} and {velocity.tolist()}. Step only if torch.isfinite(p.grad).all() of "
                "every p is true."
            )
        if answers != [False, True]:
            raise NotYet(
                f"the second of two steps has a gradient of {what}: return False, then True, not {answers}."
            )
        if left:
            raise NotYet(
                f"a skipped step leaves its {what} in the gradients: zero_grad() there too."
            )
    right("two steps equal to the unscaled ones to the last digit, and none with inf or nan.")


def _two_steps(scaled_step: Callable, scale: float, factor: float) -> tuple:
    """Return weights, answers, remaining gradients and momentum after two steps by the learner.

    In the second step one gradient is `factor` times as large. The weights are two parameters in two groups.
    The loss is always 0, so that only the gradients show an overflow.
    """
    weights = [nn.Parameter(part.clone()) for part in START.split([2, 1])]
    optimizer = torch.optim.SGD([{"params": [w]} for w in weights], 0.125, momentum=0.5)
    answers = []
    for times in (1.0, factor):
        flat = torch.cat(weights)
        loss = ((flat - flat.detach()) * SLOPE * torch.tensor([times, 1.0, 1.0])).sum()
        answers.append(call(scaled_step, loss, optimizer, scale))
    left = [w.grad for w in weights if w.grad is not None and w.grad.abs().sum() != 0]
    velocity = [optimizer.state[w].get("momentum_buffer", 0 * w.detach()) for w in weights]
    return torch.cat(weights).detach(), answers, left, torch.cat(velocity)


@exercise
def check_clipped_step(clipped_step: Callable) -> None:
    """Demand a step along the gradient that is clipped in its own units, at every loss scale.

    Args:
        clipped_step: The learner's
            `clipped_step(model, images, labels, optimizer, scaler, max_norm)`, which returns the loss.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"  # like the lab: an answer may name it
    model, images, labels = (part.to(device) for part in small())
    for max_norm, scale in ((0.01, 1024.0), (100.0, 1024.0), (0.01, 1.0), (100.0, 1.0)):
        expected, gradient = _clipped(model, images, labels, max_norm)
        moved, loss, used = _try_clipped(clipped_step, model, images, labels, max_norm, scale)
        case = f"max_norm={max_norm:g}, a gradient of norm {gradient:.2g} and a scale of {scale:g}"
        length, wanted = float(moved.norm()), float(expected.norm())
        if float((moved - expected).norm()) < 0.05 * wanted:  # autocast rounds
            if loss is None:
                raise NotYet("clipped_step returns None: return the loss, as before.")
            continue
        if length < wanted / 10:
            raise NotYet(
                f"with {case} two steps move the weights by {length:.3g} and should by {wanted:.3g}: "
                f"{wanted / max(length, 1e-30):.3g} times too little. clip_grad_norm_ compares max_norm with "
                "gradients that are still multiplied by the scale, and step() divides by it afterwards. Or "
                "you divided by it yourself, and step() does it again: let scaler.unscale_(optimizer) do it."
            )
        says = "divided by the scale twice?"
        if length > wanted:
            says = "clipped, and emptied after each step?"
        raise NotYet(
            f"with {case} two steps move the weights by {length:.3g}, expected {wanted:.3g}: are the "
            f"gradients {says}"
        )
    moved, *_ = _try_clipped(clipped_step, model, images * float("inf"), labels, 0.01, 1024.0)
    if moved.isnan().any() or moved.abs().sum() > 0:
        raise NotYet(
            "a step with gradients of nan changes the weights: let scaler.step(optimizer) decide."
        )
    for name, says in (
        ("autocast", "the forward pass belongs under torch.autocast(..., torch.bfloat16), as before."),
        ("scale", "go backward from scaler.scale(loss), as before."),
        ("step", "let scaler.step(optimizer) make the step, as before."),
    ):  # fmt: skip
        if name not in used:  # plain float32 takes the right steps, too
            raise NotYet(f"the steps are right, but not in mixed precision: {says}")
    right("the clipped step of float32 training, at scales of 1 and 1024, and no step with nan.")


def _clipped(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, max_norm: float
) -> tuple[torch.Tensor, float]:
    """Return how far two clipped float32 steps move the weights, and the gradient's norm."""
    model = copy.deepcopy(model)
    before = flat(model)
    for _ in range(2):
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        torch.optim.SGD(model.parameters(), 0.5).step()
    return flat(model) - before, float(norm)


def _try_clipped(
    clipped_step: Callable, model: nn.Module, images: torch.Tensor, labels: torch.Tensor,
    max_norm: float, scale: float,
) -> tuple[torch.Tensor, object, set[str]]:  # fmt: skip
    """Return how far two steps move the weights, the loss, and which of autocast, scale, step they used."""
    model, used, kind = copy.deepcopy(model), set(), images.device.type
    before = flat(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    scaler = torch.amp.GradScaler(images.device.type, init_scale=scale)
    for name in ("scale", "step"):
        real = getattr(scaler, name)
        setattr(scaler, name, lambda *a, name=name, real=real, **k: used.add(name) or real(*a, **k))
    model.register_forward_hook(
        lambda *_: used.add("autocast") if torch.is_autocast_enabled(kind) else None
    )
    for _ in range(2):
        loss = call(clipped_step, model, images, labels, optimizer, scaler, max_norm)
    return flat(model) - before, loss, used


class _Reads(TorchDispatchMode):
    """Count how often a number is read from a tensor: `.item()`, `float()`, `if`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@exercise
def check_train_epoch(train_epoch: Callable) -> None:
    """Demand the steps of a plain loop, the mean loss over all examples, and one read from the device.

    Args:
        train_epoch: The learner's `train_epoch(model, batches, optimizer)`, which returns the mean loss.
    """
    model, images, labels = small()
    batches = list(zip(images.split(4), labels.split(4), strict=True))  # of 4, 4 and 2
    wanted = copy.deepcopy(model)
    optimizer = torch.optim.SGD(wanted.parameters(), 0.5, momentum=0.9)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(wanted(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mean = sum(loss * len(y) for loss, (_, y) in zip(losses, batches, strict=True)) / len(labels)

    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    with _Reads() as reads:
        returned = call(train_epoch, model, batches, optimizer)
    if not torch.equal(flat(model), flat(wanted)):
        raise NotYet(
            "after batches of 4, 4 and 2 the weights are not those of a plain loop: zero_grad(), backward() "
            "and step() once per batch, in this order."
        )
    if returned is None:
        raise NotYet("train_epoch returns None: return the mean loss.")
    if torch.is_tensor(returned):
        raise NotYet("train_epoch returns a tensor: return a number, with .item() after the loop.")
    mistakes = {
        "That is the mean of three means; the last batch has 2 examples and not 4.": sum(losses) / 3
    }
    compare("the mean loss of the 10 examples", returned, mean, mistakes, atol=1e-5)
    if reads.count != 1:
        raise NotYet(
            f"three batches read a number from the device {reads.count} times, expected once. .item(), "
            "float() and `if` read: add up the losses as tensors, and call .item() once, after the loop."
        )
    right("the steps and the mean loss of a plain loop, and one read from the device.")


def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a network, 10 examples and their labels: the same ones at each call."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    images = torch.randn(10, 6, generator=generator)
    return model, images, torch.randint(3, (10,), generator=generator)


def flat(model: nn.Module) -> torch.Tensor:
    """Return a copy of all weights of a model as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])
