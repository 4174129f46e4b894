"""Exercises of lab 9: bytes of activations, loss scaling, reads from the device.

The right values come from plain float32 training of a network that is small enough for this.
The exercises on activation checkpointing and gradient accumulation are in `lab09_less_memory`.
"""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hvdlab.exercises import NotYet, call, number, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def activation_bytes(batch_size, num_layers, hidden_size, number_bytes=4):
    return batch_size * num_layers * 10 * hidden_size * number_bytes


# fmt: off
check_activation_bytes = FunctionExercise(
    activation_bytes,
    [
        Case((7, 3, 8), "By hand: 3 blocks of 10 * 8 numbers for each of 7 examples.", expected=6720),
        Case((7, 3, 8, 2), "A number has 2 bytes here, so these are half as many.", expected=3360),
    ],
    {
        "That is how many numbers; float32 has 4 bytes each.": (" * number_bytes", ""),
        "One block: there are num_layers of them.": ("num_layers * 10", "10"),
        "One example: each of the batch has its own activations.": ("batch_size * num", "num"),
        "6 hidden: the output of `up` counts twice, before and after the gelu.": ("10", "6"),
        "5 hidden: `up` needs its input, and gelu its own, of 4 hidden.": ("10", "5"),
        "9 hidden: norm and `up` each keep their own input of hidden numbers.": ("10", "9"),
        "11 hidden: the backward pass through + does not need the output of `down`, and as the input of the "
        "next block it is counted there.": ("10", "11"),
        "14 hidden: the backward pass needs neither three arrays of 4 hidden nor the output of `down`.":
            ("10", "14"),
        "Use the argument number_bytes in place of 4.": ("* number_bytes", "* 4"),
    },
    passed="6720 bytes for 3 blocks of width 8 and 7 examples, half of that with 2 bytes per number.",
    meaning="of bytes",
)
# fmt: on


def next_scale(scale, good_steps, overflow, interval=2000):
    if overflow:
        return scale / 2, 0
    if good_steps + 1 == interval:
        return scale * 2, 0
    return scale, good_steps + 1


# fmt: off
check_next_scale = FunctionExercise(
    next_scale,
    [
        Case((1024.0, 0, False, 3), "After a good step the scale stays, and the count is one more.",
             expected=(1024, 1)),
        Case((1024.0, 1, False, 3), "That is the second good step of three, so the scale stays.",
             expected=(1024, 2)),
        Case((1024.0, 2, False, 3), "That is the third good step of three: the scale doubles, and the count "
             "begins again at 0.", expected=(2048, 0)),
        Case((1024.0, 0, True, 3), "At an overflow the scale halves.", expected=(512, 0)),
        Case((1024.0, 2, True, 3), "At an overflow the scale halves, and the count begins again at 0.",
             expected=(512, 0)),
        Case((8.0, 0, False, 1), "With an interval of 1 the scale doubles at every good step.",
             expected=(16, 0)),
        Case((8.0, 1998, False), "The interval is 2000 if it is not given.", expected=(8, 1999)),
    ],
    {
        "Is good_steps back to 0 after the scale has doubled? It counts good steps since the last change.":
            [("scale * 2, 0", "scale * 2, good_steps"), ("scale * 2, 0", "scale * 2, good_steps + 1")],
        "Is good_steps back to 0 after an overflow? It counts good steps in a row.":
            [("scale / 2, 0", "scale / 2, good_steps"), ("scale / 2, 0", "scale / 2, good_steps + 1")],
        "The scale must double at the good step number `interval`: this step is good too, so count it.":
            [("good_steps + 1 == interval", "good_steps == interval"),
             ("good_steps + 1 == interval", "False")],
        "The scale doubles one good step too early: it doubles at the good step number `interval`.":
            ("good_steps + 1 == interval", "good_steps + 2 >= interval"),
        "An overflow is ignored: halve the scale.": ("if overflow", "if False"),
        "The scale stays at an overflow: halve it.": ("scale / 2, 0", "scale, 0"),
    },
    passed="your rule is that of torch.amp.GradScaler.", shape=2, meaning="(scale, good_steps)",
)
# fmt: on


def scaled_step(loss, optimizer, scale):
    (scale * loss).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        p.grad /= scale
    overflow = not all(torch.isfinite(p.grad).all() for p in parameters)
    if not overflow:
        optimizer.step()
    optimizer.zero_grad()
    return overflow


START, SLOPE = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([4.0, 8.0, 2.0])


def two_steps(scaled_step, scale, factors):
    """Return what two steps leave. The loss is 0 or nan: an inf shows in the gradients only.

    Args:
        factors: by which the slopes of the weights are multiplied in the second step.
    """
    weights = [nn.Parameter(part.clone()) for part in START.split([2, 1])]
    optimizer = torch.optim.SGD([{"params": [w]} for w in weights], 0.125, momentum=0.5)
    overflows = []
    for times in ((1.0, 1.0, 1.0), factors):
        flat = torch.cat(weights)
        loss = ((flat - flat.detach()) * SLOPE * torch.tensor(times)).sum()
        answer = call(scaled_step, loss, optimizer, scale, name="scaled_step")
        if torch.is_tensor(answer) and answer.numel() == 1:
            answer = answer.item()
        if not isinstance(answer, int | np.bool_):
            raise NotYet(
                "scaled_step must return whether the step overflowed, True or False. Received: "
                f"{received(answer)}"
            )
        overflows.append(bool(answer))
    velocity = [optimizer.state[w].get("momentum_buffer", 0 * w.detach()) for w in weights]
    return {
        "The vector of weights after": torch.cat(weights).detach().numpy(),
        "The momentum after": torch.cat(velocity).numpy(),
        "The number of parameters with a gradient after": sum(
            w.grad is not None and bool(w.grad.abs().sum() != 0) for w in weights
        ),
        "The first of the answers in": overflows[0],
        "The second of the answers in": overflows[1],
    }


# fmt: off
check_scaled_step = FunctionExercise(
    scaled_step,
    [
        Case((1024.0, (1.0, 1.0, 1.5)), call="two steps with a scale of 1024",
             reason="The steps must be those of training without a scale: a scale that is a power of two "
             "changes no digit."),
        Case((2.0**120, (1e3, 1.0, 1.0)), call="two steps of which the second has a gradient of inf",
             reason="A step with an inf must change neither weights nor momentum."),
        Case((1024.0, (1.0, 1.0, math.nan)), call="two steps of which the second has a gradient of nan",
             reason="A step with a nan must change neither weights nor momentum."),
        Case((1024.0, (math.nan, 1.0, 1.0)), call="two steps of which the second has another gradient of nan",
             reason="A step with a nan must change neither weights nor momentum."),
    ],
    {
        "Divide the gradients of every group by the scale before optimizer.step().":
            [("p.grad /= scale", "pass"), ("in parameters:", "in parameters[:1]:"),
             ("in optimizer.param_groups", "in optimizer.param_groups[:1]")],
        "Go backward from the loss times the scale.":
            [("scale * loss", "loss"), ("scale * loss", "loss", "p.grad /= scale", "pass")],
        "Step only if torch.isfinite(p.grad).all() of every p is true: one parameter does not show all "
        "overflows.": [("in parameters)", "in parameters[:1])"), ("in parameters)", "in parameters[-1:])"),
                       ("not all", "not any")],
        "A step with an inf or a nan must not be made: step only if torch.isfinite(p.grad).all() of every p "
        "is true.": ("if not overflow", "if True"),
        "A gradient of nan is an overflow too: use torch.isfinite.":
            ("torch.isfinite(p.grad)", "(~torch.isinf(p.grad))"),
        "A gradient of inf is an overflow too, and the loss does not show it: step only if "
        "torch.isfinite(p.grad).all() of every p is true.":
            [("torch.isfinite(p.grad)", "(~torch.isnan(p.grad))"),
             ("isfinite(p.grad)", "isfinite(loss * scale)")],
        "The weights do not move: when no gradient overflows, call optimizer.step().":
            ("optimizer.step()", "pass"),
        "After the step the gradients are still there, and the next backward adds to them: end with "
        "optimizer.zero_grad().": ("    optimizer.zero_grad()\n", ""),
        "A skipped step leaves its gradients: call zero_grad() there too.":
            ("    optimizer.zero_grad()", "        optimizer.zero_grad()"),
        "Return True for a step that overflowed.": ("return overflow", "return False"),
        "Return False for a step that did not overflow.": ("return overflow", "return True"),
        "The answer is reversed: return True if the step overflowed, and False if not.":
            ("return overflow", "return not overflow"),
    },
    passed="two steps equal to the unscaled ones, and none with inf or nan.", observe=two_steps,
)
# fmt: on


def clipped_step(model, images, labels, optimizer, scaler, max_norm=1.0):
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()


def two_clipped_steps(clipped_step, max_norm, scale, factor=1.0):
    """Return what two steps do, compared with float32, and which parts of mixed precision they use.

    Args:
        factor: by which the images are multiplied.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"  # like the lab: an answer may name it
    model, images, labels = (part.to(device) for part in small())
    plain, before, used = copy.deepcopy(model), flat(model), set()
    for _ in range(2):
        plain.zero_grad()
        F.cross_entropy(plain(images), labels).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
        torch.optim.SGD(plain.parameters(), 0.5).step()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    scaler = torch.amp.GradScaler(device, init_scale=scale)
    for name in ("scale", "step"):
        real = getattr(scaler, name)
        setattr(scaler, name, lambda *a, name=name, real=real, **k: used.add(name) or real(*a, **k))
    model.register_forward_hook(
        lambda *_: used.add("autocast") if torch.is_autocast_enabled(device) else None
    )
    arguments = model, images * factor, labels, optimizer, scaler, max_norm
    for _ in range(2):
        loss = call(clipped_step, *arguments, name="clipped_step")
    loss = number(loss.item() if torch.is_tensor(loss) else loss, "clipped_step", "(the loss)")
    moved, right = flat(model) - before, flat(plain) - before
    along = (moved @ right / (right @ right)).item()
    return {
        "Whether the weights are finite after": bool(moved.isfinite().all()),
        "The length, relative to that in float32, of": along,
        "Whether the weights move along the clipped gradient in": bool(
            (moved - along * right).norm() <= 0.05 * right.norm()  # autocast rounds
        ),
        "Whether the forward pass is under autocast in": "autocast" in used,
        "Whether backward starts from scaler.scale(loss) in": "scale" in used,
        "Whether scaler.step(optimizer) makes": "step" in used,
        "The loss that is returned by": loss,
    }


CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
UNSCALE = "    scaler.unscale_(optimizer)\n"
BY_HAND = "    for p in model.parameters():\n        p.grad /= scaler.get_scale()\n"
STEP = "    scaler.step(optimizer)\n    scaler.update()\n"
IF_FINITE = (
    "    if all(p.grad.isfinite().all() for p in model.parameters()):\n        optimizer.step()\n"
)

# fmt: off
check_clipped_step = FunctionExercise(
    clipped_step,
    [
        *[Case((max_norm, scale), "Are the gradients divided by the scale once, clipped, and emptied after "
               "each step?", f"two steps with max_norm={max_norm:g} and a scale of {scale:g}")
          for max_norm, scale in ((0.01, 1024.0), (100.0, 1024.0), (0.01, 1.0), (100.0, 1.0))],
        Case((0.01, 1024.0, math.inf), "A step with gradients of nan must change nothing.",
             "two steps with gradients of nan"),
    ],
    {
        "clip_grad_norm_ compares max_norm with gradients that are still multiplied by the scale, and step() "
        "divides by it afterwards: call scaler.unscale_(optimizer) before.": (UNSCALE, ""),
        "You divide by the scale yourself, and step() does it again: let scaler.unscale_(optimizer) do it.":
            (UNSCALE, BY_HAND),
        "The gradients are not clipped: call clip_grad_norm_ after unscale_.": (CLIP, ""),
        "The gradients are not emptied after each step, so the next backward adds to them: zero_grad().":
            ("    optimizer.zero_grad()\n", ""),
        "optimizer.step() makes a step with gradients of nan too: let scaler.step(optimizer) decide.":
            ("scaler.step(optimizer)", "optimizer.step()"),
        "The forward pass belongs under torch.autocast(..., torch.bfloat16), as before.":
            ("bfloat16)", "bfloat16, enabled=False)"),
        "The steps are right, but not in mixed precision: go backward from scaler.scale(loss), as before.":
            [("scaler.scale(loss)", "loss", UNSCALE, "", STEP, IF_FINITE),
             ("scaler.scale(loss)", "loss", UNSCALE, "", STEP, "    optimizer.step()\n")],
        "The steps are right, but they do not use the scaler: let scaler.step(optimizer) make the step.":
            (UNSCALE, BY_HAND, STEP, IF_FINITE),
        "Return the loss itself, not the scaled one.":
            ("return loss.item()", "return loss.item() * scaler.get_scale()"),
    },
    passed="the clipped step of float32 training, at scales of 1 and 1024, and no step with nan.",
    observe=two_clipped_steps, rtol=0.05,
)
# fmt: on


class Reads(TorchFunctionMode):
    """Count how often numbers are read from a tensor. What was copied to the processor is read already."""

    READS = set("item tolist numpy cpu __array__ __float__ __int__ __bool__ __index__".split())

    def __init__(self):
        super().__init__()
        self.count, self.copies = 0, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name in self.READS and not any(args[0] is copy for copy in self.copies):
            self.count += 1
        if name == "cpu":
            self.copies.append(result)
        return result


def train_epoch(model, batches, optimizer):
    total, count = 0.0, 0
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        count += len(labels)
    return total.item() / count


def epoch_of_three_batches(train_epoch):
    """Return the weights, the loss and the number of reads of an epoch with batches of 4, 4 and 2."""
    model, images, labels = small()
    batches = list(zip(images.split(4), labels.split(4), strict=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    with Reads() as reads:
        loss = call(train_epoch, model, batches, optimizer, name="train_epoch")
    if torch.is_tensor(loss):
        raise NotYet("train_epoch returns a tensor: return a number, with .item() after the loop.")
    return {
        "The vector of weights after": flat(model).numpy(),
        "The loss that is returned by": number(loss, "train_epoch"),
        "The number of reads from the device (.item(), .tolist(), .cpu(), float(), `if`) in": reads.count,
    }


# fmt: off
check_train_epoch = FunctionExercise(
    train_epoch,
    [Case((), "Call zero_grad(), backward() and step() once per batch, in this order, return the mean loss "
          "of the 10 examples, and read once.", "train_epoch with batches of 4, 4 and 2 examples")],
    {
        "The gradients of the batches add up: call zero_grad() before each backward().":
            ("        optimizer.zero_grad()\n", ""),
        "The weights do not change: call optimizer.step() for each batch, after backward() and before "
        "zero_grad() empties the gradients.":
            [("        optimizer.step()\n", ""),
             ("        optimizer.zero_grad()\n        loss.backward()",
              "        loss.backward()\n        optimizer.zero_grad()")],
        "That is the mean of three means; the last batch has 2 examples and not 4.":
            (" * len(labels)", "", "+= len(labels)", "+= 1"),
        "That is the sum over the examples: divide it by their number.": (".item() / count", ".item()"),
        "That is the loss of the last batch: return the mean of all examples.":
            ("return total.item() / count", "return loss.item()"),
        "Add up the losses as tensors, and call .item() once, after the loop.":
            [("loss.detach()", "loss.item()", "total.item()", "total"),
             ("return ", "assert total > 0\n    return ")],
    },
    passed="the steps and the mean loss of a plain loop, and one read from the device.",
    observe=epoch_of_three_batches, atol=1e-5,
)
# fmt: on


def small():
    """Return a network, 10 examples and their labels: the same ones at each call."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    images = torch.randn(10, 6, generator=generator)
    return model, images, torch.randint(3, (10,), generator=generator)


def flat(model):
    """Return a copy of all weights of a model as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])
