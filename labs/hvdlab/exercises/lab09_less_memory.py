"""Exercises of lab 9: activation checkpointing and gradient accumulation."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from hvdlab.exercises import NotYet, call, number, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.lab09_one_device import small
from hvdlab.torch.lab_networks import Block


class Runs(list):
    """The numbers of blocks that have run, also those of a copied block."""

    def __deepcopy__(self, copies):
        return self


class Counted(Block):
    """A block with dropout that appends its number to `ran` in each forward pass."""

    def __init__(self, hidden_size, number, ran, dropout=0.0):
        super().__init__(hidden_size)
        self.number, self.ran, self.dropout = number, ran, nn.Dropout(dropout)

    def forward(self, x):
        self.ran.append(self.number)
        return self.dropout(super().forward(x))


def output(answer, name):
    """Return the output of a block, which a learner's function returned."""
    if not torch.is_tensor(answer):
        raise NotYet(
            f"{name} must return the output of the last block. Received: {received(answer)}"
        )
    return answer


def run_in_segments(blocks, x, segments):
    for numbers in np.array_split(range(len(blocks)), segments):
        segment = nn.Sequential(*(blocks[i] for i in numbers))
        x = checkpoint(segment, x, use_reentrant=False)
    return x


def runs_of_blocks(run_in_segments, layers, segments):
    """Return which blocks run in the forward and the backward pass, and whether the gradients are right."""
    torch.manual_seed(0)
    ran = Runs()
    blocks = nn.ModuleList(Counted(8, number, ran) for number in range(layers))
    x = torch.randn(4, 8, requires_grad=True)
    inputs = [x, *blocks.parameters()]
    expected = torch.autograd.grad(nn.Sequential(*blocks)(x).square().sum(), inputs)
    ran.clear()
    y = output(
        call(run_in_segments, blocks, x, segments, name="run_in_segments"), "run_in_segments"
    )
    values = {
        "The order of the blocks in the forward pass of": np.array(ran),
        "Whether the output has a graph in": y.requires_grad,
    }
    ran.clear()
    try:
        gradients = torch.autograd.grad(y.square().sum(), inputs, allow_unused=True)
    except RuntimeError:
        gradients = []
    parts = np.split(ran, np.flatnonzero(np.diff(ran) != 1) + 1)  # [4, 5, 2, 3]: [4, 5] and [2, 3]
    return values | {
        "The blocks that run again, in ascending order, in": np.sort(ran),
        "Whether the backward pass ends without an error in": bool(gradients),
        "The lengths of the segments that are recomputed, in descending order, in": np.sort(
            [len(part) for part in parts]
        )[::-1],
        "The number of parameters and inputs to which torch.autograd.grad gives no gradient in": sum(
            g is None for g in gradients
        ),
        "Whether the gradients are equal to those of the plain chain in": all(
            g is not None and torch.equal(g, wanted)
            for g, wanted in zip(gradients, expected, strict=bool(gradients))
        ),
    }


UNEVEN = (
    "The largest segment decides the memory, so their lengths should differ by at most one: use "
)
NUMBERS, SPLIT = "np.array_split(range(len(blocks)), segments)", "np.split(np.arange(len(blocks)), "

# fmt: off
check_run_in_segments = FunctionExercise(
    run_in_segments,
    [Case((layers, segments), f"The segments have {lengths}. Each one runs again once, the last one first, "
          "and the gradients are those of the plain chain.",
          f"{layers} blocks in {segments} segment{'s' * (segments > 1)}")
     for layers, segments, lengths in [
        (8, 3, "3, 3 and 2 blocks"), (6, 1, "6 blocks"), (6, 6, "1 block each"), (7, 2, "4 and 3 blocks"),
        (5, 4, "2, 1, 1 and 1 blocks"), (10, 4, "3, 3, 2 and 2 blocks")]],
    {
        "No block ran again, so everything was kept: call checkpoint(...) for each segment.":
            ("checkpoint(segment, x, use_reentrant=False)", "segment(x)"),
        "checkpoint_sequential leaves out the last segment, so its activations are kept: checkpoint each.":
            lambda blocks, x, segments: checkpoint_sequential(blocks, segments, x, use_reentrant=False),
        "Only the blocks of the last segment ran again. A lambda in a loop sees the last segment only when "
        "it runs again: nn.Sequential(*part) keeps its own.":
            ("checkpoint(segment", "checkpoint(lambda x: segment(x)"),
        "Write use_reentrant=False: the old form of checkpoint fails with torch.autograd.grad.":
            ("use_reentrant=False", "use_reentrant=True"),
        "Run no block under no_grad: without a graph there is no backward pass.":
            ("        x = checkpoint(segment, x, use_reentrant=False)",
             "        with torch.no_grad():\n            x = segment(x)"),
        "Each call of checkpoint makes a segment, and you call it for each block: call it `segments` times.":
            (NUMBERS, "[[i] for i in range(len(blocks))]"),
        UNEVEN + "np.array_split, not a last segment with all the rest.":
            (NUMBERS, SPLIT + "[len(blocks) // segments * i for i in range(1, segments)])"),
        UNEVEN + "np.array_split, not segments of a rounded length.":
            (NUMBERS, SPLIT + "range(0, len(blocks), -(-len(blocks) // segments))[1:])"),
        "The blocks run in a wrong order: begin with blocks[0].": ("blocks[i]", "blocks[-1 - i]"),
        "Do not detach the input of a segment: the gradient must pass through it.":
            ("segment, x", "segment, x.detach()"),
    },
    passed="equal gradients to the last digit, and every block ran twice, in 1, 2, 3, 4 and 6 segments.",
    observe=runs_of_blocks,
)
# fmt: on


def recomputed(block, x):
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, block, x):
            ctx.block, ctx.random_state = block, torch.get_rng_state()
            ctx.save_for_backward(x)
            return block(x)

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                torch.set_rng_state(ctx.random_state)
                y = ctx.block(x)
            y.backward(gradient)
            return None, x.grad

    return Recompute.apply(block, x)


def two_blocks(run, dropout):
    """Return output, gradients and the generator's next number of two blocks, and how often they ran."""
    torch.manual_seed(0)
    ran = Runs()
    blocks = nn.ModuleList(Counted(16, number, ran, dropout) for number in range(2))
    x = torch.randn(32, 16, requires_grad=True)
    torch.manual_seed(1)
    torch.rand(1)  # so that the seed alone does not give the generator's state
    y = x
    for block in blocks:
        y = output(call(run, block, y, name="recomputed"), "recomputed(block, x)")
    torch.rand(1)  # a draw between forward and backward pass
    y.square().sum().backward()
    gradients = [
        [x.grad, *(p.grad for p in blocks[0].parameters())],
        [p.grad for p in blocks[1].parameters()],
    ]
    return y, gradients, torch.rand(1), len(ran)


def compared_with_plain(recomputed, dropout):
    """Return how two recomputed blocks differ from two plain ones."""
    y, gradients, drawn, ran = two_blocks(recomputed, dropout)
    plain, expected, next_number, _ = two_blocks(lambda block, x: block(x), dropout)
    equal = [
        all(a is not None and torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        for found, wanted in zip(gradients, expected, strict=True)
    ]
    return {
        "Whether the output is that of block(x) in": torch.equal(y, plain),
        "The number of runs of a block, forward and backward together, in": ran,
        "The number of missing gradients in": sum(g is None for part in gradients for g in part),
        "Whether the gradients of the second block are right in": equal[1],
        "Whether the gradients of the first block are right in": equal[0],
        "Whether the generator is as after a plain step in": torch.equal(drawn, next_number),
    }


RESTORE = "torch.set_rng_state(ctx.random_state)"

# fmt: off
check_recomputed = FunctionExercise(
    recomputed,
    [
        Case((0.0,), "Each block runs twice: forward, and again before its backward pass.",
             "two blocks with a dropout of 0"),
        Case((0.5,), "Forward and recomputation must drop the same activations: keep the generator's state "
             "of each forward pass, and restore it before that block runs again.",
             "two blocks with a dropout of 0.5"),
    ],
    {
        "The recomputation drops other activations than the forward pass: keep the generator's state in "
        "forward, and restore it before the block runs again.":
            [(RESTORE, "pass"), (RESTORE, "torch.manual_seed(torch.initial_seed())")],
        "Both blocks share one state, that of the last forward pass: keep the state of each forward pass in "
        "its own ctx.": ("ctx.random_state", "recomputed.random_state"),
        "The gradients are right. But the backward pass leaves the generator in another state than a plain "
        "one does, and the next step draws the same dropout again: use torch.random.fork_rng().":
            ("fork_rng(devices=[])", "fork_rng(devices=[], enabled=False)"),
        "The block is not run again: its activations are kept.": ("Recompute.apply(block, x)", "block(x)"),
        "Return the gradient of the input: the block before needs it.":
            ("return None, x.grad", "return None, None"),
    },
    passed="gradients with a dropout of 0.5 equal to the last digit, and an unchanged generator.",
    observe=compared_with_plain,
)
# fmt: on


def accumulate(model, images, labels, micro_batch):
    total = 0.0
    for x, y in zip(images.split(micro_batch), labels.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(x), y) * (len(y) / len(labels))
        loss.backward()
        total += loss.detach()  # without detach() it would keep every graph
    return total.item()


def passes_and_gradient(accumulate):
    """Return the passes of 10 examples in micro-batches of 4, the gradient, and the loss."""
    model, images, labels = small()
    events = []
    model.register_forward_pre_hook(lambda _, inputs: events.append(len(inputs[0])))
    model[0].weight.register_hook(lambda gradient: events.append("backward"))
    loss = call(accumulate, model, images, labels, 4, name="accumulate")
    sizes = [event for event in events if event != "backward"]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    loss = loss.detach() if torch.is_tensor(loss) else loss
    return {
        "The number of examples that the model sees in": sum(sizes),
        "The number of micro-batches in": len(sizes),  # 4, 4 and 2, or 4, 3 and 3
        "The number of examples in the largest micro-batch of": max(sizes, default=0),
        "The number of backward passes in": events.count("backward"),
        "Whether each micro-batch goes backward before the next one goes forward in": events[1::2]
        == ["backward"] * len(sizes),
        "The gradient after": torch.cat([gradient.flatten() for gradient in gradients]).numpy(),
        "The mean loss, a number, that is returned by": number(
            loss, "accumulate", "(the mean loss)"
        ),
    }


SHARE = " * (len(y) / len(labels))"
ALL = "zip(images.split(micro_batch), labels.split(micro_batch), strict=True)"
EVEN = (
    "images.split(micro_batch), labels.split(micro_batch)",
    "images.tensor_split(3), labels.tensor_split(3)",
)
BACKWARD = "        loss.backward()\n"

# fmt: off
check_accumulate = FunctionExercise(
    accumulate,
    [Case((), "It is the gradient, and the loss, of the mean over all 10 examples.",
          "accumulate with 10 examples in micro-batches of 4")],
    {
        "That is the sum of three means: weight each with its fraction of the batch.": (SHARE, ""),
        "Every micro-batch counts equally, but they have 4, 4 and 2 examples: the fraction of the last one "
        "is 2/10, not 1/3.": (SHARE, " / 3"),
        "Every micro-batch counts equally, but they have 4, 3 and 3 examples: the fraction of the last one "
        "is 3/10, not 1/3.": (SHARE, " / 3", *EVEN),
        "It has only the last micro-batch: was zero_grad() called between?":
            [(BACKWARD, "        model.zero_grad()\n" + BACKWARD),
             (BACKWARD, "        model.zero_grad()\n" + BACKWARD, SHARE, "")],
        "That is the sum over the examples, not their mean.": ("len(y) / len(labels)", "len(y)"),
        "There is no backward pass: call loss.backward() for each micro-batch.": (BACKWARD, ""),
        "Call backward() for each micro-batch before the next one goes forward, or the activations of all "
        "stay in memory.":
            (BACKWARD, "", "loss.detach()", "loss", "    return", "    total.backward()\n    return"),
        "At most `micro_batch` examples may be in memory at once: split the batch.":
            (ALL, "[(images, labels)]"),
        "The last micro-batch is smaller than the others, and you leave it out.":
            (ALL, ALL.replace("images.", "images[:8].").replace("labels.", "labels[:8].")),
        "The gradient is right, but you return the sum of three means: return the mean loss of all examples.":
            ("total += loss.detach()", "total += loss.detach() * len(labels) / len(y)"),
        "The gradient is right, but you return the loss of the last micro-batch only.":
            ("total +=", "total ="),
    },
    passed="10 examples in three micro-batches: the gradient and the loss of the whole batch.",
    observe=passes_and_gradient, rtol=1e-4, atol=1e-6,
)
# fmt: on
