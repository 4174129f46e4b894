# %% [markdown]
# # Lab 10: Splitting the model
#
# **About 90 minutes**, five of them computing. You split the matrices of a layer among ranks, then the layers
# themselves, then both together with the data. You measure memory, bytes and seconds of each way beside a formula, and
# each must train exactly as one rank does. You need lab 3 (all-reduce) and lab 9 (DDP and sharding).
#
# Data parallelism, sharded or not, has one limit that no engine lifts: **every rank must compute every layer**. A layer
# that is too large or too slow for one device has to be split itself.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.patches import Rectangle
from torch.nn import functional as F

from hvdlab.calls import call
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import tensor_parallelism as tensor_exercises
from hvdlab.experiment import WORK, size
from hvdlab.plots import predicted
from hvdlab.torch.networks import ResidualMLP

WORK.mkdir(parents=True, exist_ok=True)
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]  # one for each rank

# %% [markdown]
# ## Split each layer
#
# The network is `ResidualMLP` of lab 8: a stem, blocks, a head. A block computes
#
# $$x + \mathrm{down}(\mathrm{gelu}(\mathrm{up}(\mathrm{norm}(x)))),$$
#
# where $\mathrm{up}$ makes $4h$ features of $h$, and $\mathrm{down}$ makes $h$ of $4h$: the feed-forward half of a transformer's block.
# Megatron-LM ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)) splits it so that the ranks talk **once** on the
# way forward. $\mathrm{up}$ is split by its *outputs*, so each rank has some of the $4h$ features whole, and gelu can be
# applied to each alone. $\mathrm{down}$ is split by its *inputs*: each rank multiplies the features that it has, and the
# products only need to be added up. Other than in lab 3, **all ranks read the same batch**.


# %%
def box(axes, x, y, width, height, text="", rank=None):
    colour = "lightgrey" if rank is None else COLOURS[rank]
    style = {"facecolor": colour, "edgecolor": "black", "alpha": 0.8}
    axes.add_patch(Rectangle((x, y), width, height, **style))
    white = {"color": "black" if rank is None else "white"}
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, **white)


def draw_block(axes, ranks):
    """Who holds what of a block: colours are ranks, grey is on every rank."""
    box(axes, 0, 1.5, 1, 1, "x")
    box(axes, 1.7, 1.5, 0.5, 1, "norm")
    for rank in range(ranks):
        high = 4 / ranks
        box(axes, 3.2, 4 - high * (rank + 1), 1, high, f"up\nrank {rank}", rank)
        box(axes, 5, 4 - high * (rank + 1), 0.6, high, "gelu", rank)
        box(axes, 6.4 + high * rank, 1.5, high, 1, f"down\nrank {rank}", rank)
    box(axes, 11.6, 1.5, 0.5, 1, "bias")
    box(axes, 12.9, 1.5, 1, 1, "output")
    for x, name in ((2.7, "f"), (11, "g")):
        axes.text(x, 2, name, ha="center", va="center", fontsize=16, fontstyle="italic")
    says = {2.7: "back:\nall-reduce", 11: "forth:\nall-reduce"}
    for x, text in says.items():
        axes.text(x, 0.6, text, ha="center", va="center", fontsize=9)
    axes.set(xlim=(-0.2, 14.2), ylim=(-0.2, 4.3), aspect="equal", title=f"A block on {ranks} ranks")
    axes.axis("off")


figure, axes = plt.subplots(figsize=(11, 3.8))
draw_block(axes, 2)
plt.show()

# %% [markdown]
# ### Exercise 1: Who holds what
#
# **What:** write `part_of(weights, rank, ranks)`. `weights` is a dict of a whole block's six tensors: `norm.weight`, `norm.bias`,
# `up.weight` (4h, h), `up.bias`, `down.weight` (h, 4h) and `down.bias`. Return the dict of what this rank holds, with
# the same six names.
#
# **Why:** what is split takes memory once, what is not takes it on every rank, and must stay equal there.
#
# <details><summary>Hint 1</summary>A weight of <code>nn.Linear</code> has the shape (outputs, inputs). Up's bias
# goes with up's outputs. Down's bias belongs to outputs that no rank has to itself.</details>
#
# <details><summary>Hint 2</summary><code>tensor.chunk(ranks, dim)[rank]</code> is a part. Three of the six are
# split.</details>


# %%
def part_of(weights, rank, ranks):
    # BEGIN SOLUTION: return what this rank holds of the six tensors
    part = dict(weights)  # the norm and the bias of down stay whole
    for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        part[name] = weights[name].chunk(ranks, dim)[rank]
    return part
    # END SOLUTION


# %%
tensor_exercises.check_part_of(part_of)

# %% [markdown]
# ### Exercise 2: f and g
#
# The two places where ranks meet have conjugate passes:
#
# | | forward | backward | why |
# |---|---|---|---|
# | *f* | nothing | all-reduce | all ranks use the same $x$; each has the gradient of its part of the work |
# | *g* | all-reduce | nothing | the parts of the work are summed; a sum hands its gradient to each summand |
#
# **What:** write `f_and_g()`, which returns both as functions of a tensor, made of two classes
# [`torch.autograd.Function`](https://docs.pytorch.org/docs/stable/notes/extending.html).
#
# **Why:** autograd knows nothing of other ranks. If the backward pass of a collective is forgotten, no error tells.
#
# <details><summary>Hint 1</summary><code>class F(torch.autograd.Function)</code> has two static methods,
# <code>forward(ctx, x)</code> and <code>backward(ctx, gradient)</code>; <code>F.apply</code> is the function. An identity that
# returns <code>x</code> itself is fine in backward; in forward, return <code>x.view_as(x)</code>.</details>
#
# <details><summary>Hint 2</summary><code>dist.all_reduce(tensor)</code> sums <em>in place</em>, returns None and wants a
# contiguous tensor. So give it a copy: <code>y = x.clone(memory_format=torch.contiguous_format)</code>.</details>


# %%
def f_and_g():
    import torch
    import torch.distributed as dist

    # BEGIN SOLUTION: return f and g, made of two autograd functions
    def summed(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(tensor)
        return tensor

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return summed(gradient)

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return summed(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Copy.apply, Reduce.apply
    # END SOLUTION


# %%
tensor_exercises.check_f_and_g(f_and_g)

# %% [markdown]
# ### Exercise 3: The split block
#
# **What:** write `block(x, part, f, g)`: `x` is (batch, h) and the same on all ranks, `part` is what `part_of` returned; return the
# output of the *whole* block, with `f` and `g` once each. `F.layer_norm(x, x.shape[1:], weight, bias)`, `F.linear(x, weight, bias)` and
# `F.gelu(x)` are the operations.
#
# **Why:** these few lines are Megatron. Each has one right place, and the wrong ones run as well.
#
# <details><summary>Hint 1</summary>Only what is right of <em>f</em> and left of <em>g</em> in the figure is
# split. What is outside must see whole gradients, and be added once.</details>
#
# <details><summary>Hint 2</summary><code>f</code> takes what the norm returns. <code>g</code> takes
# <code>F.linear(..., part["down.weight"])</code> <em>without</em> a bias.</details>


# %%
def block(x, part, f, g):
    import torch.nn.functional as F

    # BEGIN SOLUTION: return the output of the whole block
    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]
    # END SOLUTION


# %%
tensor_exercises.check_block(block, part_of, f_and_g)

# %% [markdown]
# ## Train as one rank does
#
# First the training to compare with: the whole network, in this process. It leaves its weights, at the start and at the end,
# and its data in a file for the ranks.

# %%
LAYERS, HIDDEN, BATCH, STEPS, MOST = 2, 64, 64, 20, 1.0
WHOLE = str(WORK / "whole_network.pt")

fashion = load_fashion_mnist()
count = BATCH * STEPS
images = torch.from_numpy(fashion.train_images[:count].astype(np.float32) / 255).flatten(1)
labels = torch.from_numpy(fashion.train_labels[:count]).long()


def train_alone(clipped):
    """Train; return the loss of each step. `clipped`: limit the norm of the gradient to MOST."""
    torch.manual_seed(1)
    network = ResidualMLP(LAYERS, HIDDEN, image_size=28)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    losses = []
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(network.parameters(), MOST)
        optimizer.step()
        losses.append(loss.item())
    file = {"size": (LAYERS, HIDDEN), "start": start, "end": network.state_dict()}
    torch.save(file | {"images": images, "labels": labels}, WHOLE)
    return np.array(losses)


clipped_alone, alone = train_alone(True), train_alone(False)

# %% [markdown]
# Now on ranks. The stem, the last norm and the head stay whole on every rank; nothing keeps those copies equal but equal
# gradients. At the end each part is compared with the same part of the weights that one rank got.


# %%
def train(comm, blocks, whole, batch_size, clip, most):
    """Train with the blocks split, once with each of `blocks` (names); a dict of what happened each."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from hvdlab.torch.networks import ResidualMLP
    from hvdlab.torch.process_group import rendezvous
    from hvdlab.wire import bytes_sent

    def largest(tensors):
        value = torch.stack([tensor.detach().abs().max() for tensor in tensors]).max()
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return value.item()

    rendezvous()
    dist.init_process_group("gloo")
    f, g = f_and_g()
    file, rows = torch.load(whole, weights_only=True), []
    for name in blocks:
        network = ResidualMLP(*file["size"], image_size=28)
        network.load_state_dict(file["start"])
        parts = []
        for number in range(len(network.blocks)):
            mine = part_of(network.blocks[number].state_dict(), comm.rank, comm.size)
            parts.append({key: tensor.clone().requires_grad_() for key, tensor in mine.items()})
        network.blocks = None  # from here on this rank has its parts only
        is_split = ("up.weight", "up.bias", "down.weight").__contains__
        split = [part[key] for part in parts for key in part if is_split(key)]
        shared = [part[key] for part in parts for key in part if not is_split(key)]
        shared += network.parameters()

        optimizer = torch.optim.SGD([*split, *shared], 0.05, momentum=0.9)
        losses, before = [], bytes_sent()
        for start in range(0, len(file["labels"]), batch_size):
            x = network.stem(file["images"][start : start + batch_size])
            for part in parts:
                x = globals()[name](x, part, f, g)
            logits = network.head(network.norm(x))
            loss = F.cross_entropy(logits, file["labels"][start : start + batch_size])
            optimizer.zero_grad()
            loss.backward()
            if clip:
                globals()[clip](split, shared, most)
            optimizer.step()
            losses.append(loss.item())
        sent = (bytes_sent() - before) / len(losses)

        first = [parameter.detach().clone() for parameter in shared]
        for parameter in first:
            dist.broadcast(parameter, src=0)
        off = [tensor - file["end"][key] for key, tensor in network.state_dict().items()]
        for number, part in enumerate(parts):
            end = {key: file["end"][f"blocks.{number}.{key}"] for key in part}
            end = part_of(end, comm.rank, comm.size)
            off += [part[key] - end[key] for key in part]
        apart = largest([a - b for a, b in zip(shared, first, strict=True)])
        rows.append(
            {"losses": losses, "sent": sent, "copies apart": apart, "weights off": largest(off)}
        )
    dist.destroy_process_group()
    return rows


def train_with(*blocks, ranks=2, clip=None):
    """What happened with each of the blocks, a list of dicts, as rank 0 saw it."""
    helpers = [part_of, f_and_g] + [clip] * (clip is not None)
    names, clip = [one.__name__ for one in blocks], clip and clip.__name__
    arguments = names, WHOLE, BATCH, clip, MOST
    return call(train, *arguments, ranks=ranks, timeout=120, uses=(*blocks, *helpers))[0]


# %% [markdown]
# Before you run it: how far will the losses of 20 steps be from those of one rank? And a rank of **two** sends in a step
# $2 \times$ blocks $\times$ one all-reduce of a (batch, h) array: what does a rank of **four** send, in percent of that?

# %%
prediction = None  # the largest difference of a loss
prediction_bytes = None  # percent

# %%
runs = {ranks: train_with(block, ranks=ranks)[0] for ranks in size([2], [2, 4], [2, 4])}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
left.plot(alone, color="lightgrey", linewidth=7, label="one rank")
for number, (ranks, found) in enumerate(runs.items()):
    losses, style = (
        np.array(found["losses"]),
        {"color": COLOURS[number], "marker": "ov"[number]},
    )
    left.plot(losses, label=f"{ranks} ranks, blocks split", **style)
    right.plot(np.abs(losses - alone) + 1e-9, label=f"{ranks} ranks", **style)
left.set(xlabel="step", ylabel="training loss", title="The same training")
right.set(xlabel="step", ylabel="difference from one rank's loss (+ 1e-9)", yscale="log",
          title="up to rounding", ylim=(5e-10, 1))  # fmt: skip
predicted(right, prediction)
left.legend()
right.legend()
plt.show()

for ranks, found in runs.items():
    off = np.abs(np.array(found["losses"]) - alone).max()
    foretold = 2 * LAYERS * 2 * (ranks - 1) / ranks * 4 * BATCH * HIDDEN
    print(
        f"{ranks} ranks: loss off by {off:.0e}, weights by {found['weights off']:.0e}, copies apart by "
        f"{found['copies apart']:.0e}; {found['sent'] / 1e3:.0f} kB sent a step, foretold {foretold / 1e3:.0f}"
    )

# %% [markdown]
# **What you should see.** The curves lie on each other. What is left is the rounding of float32, as the sum over the $4h$
# features is taken in another order. The copies of what is not split are equal to the last bit: all ranks compute the
# same numbers from the same sums. A rank of four sends 150 % of what a rank of two sends, and more ranks do not make it
# less: $2(N-1)/N$ again. So the computing per rank shrinks with $N$, and the talking does not. (Gloo adds a head of some hundred bytes to
# each of its messages.)
#
# ## Three wrong blocks
#
# Each of these trains without an error, and each has been written before. Read them, then look at the symptoms.


# %%
def case_a(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"], part["down.bias"]))


def case_b(x, part, f, g):
    import torch.nn.functional as F

    y = F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"])
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def case_c(x, part, f, g):
    import torch.nn.functional as F
    from torch.distributed.nn.functional import all_reduce  # "PyTorch has it, with a backward pass"

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + all_reduce(F.linear(y, part["down.weight"])) + part["down.bias"]


# %%
CASES = case_a, case_b, case_c


def symptoms(*blocks, alone=alone, **options):
    """A table of what is seen when blocks are trained on two ranks."""
    rows = {}
    for one, found in zip(blocks, train_with(*blocks, **options), strict=True):
        off = np.abs(np.array(found["losses"]) - alone)
        rows[one.__name__] = {"first loss off": off[0], "most in 20 steps": off.max()}
        rows[one.__name__] |= {"copies apart": found["copies apart"]}
    return pd.DataFrame(rows).transpose().map("{:.0e}".format)


symptoms(block, *CASES)

# %% [markdown]
# ### Exercise 4: Name the mistakes
#
# **What:** set `diagnosis` to a dict: for each of `"case_a"`, `"case_b"`, `"case_c"` one of the five names that the next cell prints.
#
# **Why:** on a real run you see only the symptoms. "Is the *first* loss right?" and "are the copies still equal?" halve the
# search twice.
#
# <details><summary>Hint 1</summary>A wrong first loss is a mistake of the forward pass. Copies that part got different
# gradients.</details>
#
# <details><summary>Hint 2</summary>Two cases have a right forward pass. In one of them the ranks agree on gradients that
# are wrong.</details>

# %%
for name, says in tensor_exercises.MISTAKES.items():
    print(f"{name:32} {says}")

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of each case
diagnosis = {
    "case_a": "bias on every rank",
    "case_b": "no f",
    "case_c": "all-reduce in g's backward pass",
}
# END SOLUTION

# %%
tensor_exercises.check_diagnosis(diagnosis, CASES, part_of, f_and_g)

# %% [markdown]
# ### Exercise 5: Mend the clipping
#
# Large networks limit the norm of the gradient of *all* weights together. The function below does it as on one rank.
# Look at what it does on two.


# %%
def wrong_clip(split, shared, most):
    """Scale all gradients so that their norm is at most `most`; return the norm that it was."""
    import torch

    return torch.nn.utils.clip_grad_norm_([*split, *shared], most)


symptoms(block, alone=clipped_alone, clip=wrong_clip)

# %% [markdown]
# **What:** write `clip(split, shared, most)`: `split` are the parameters of which each rank has a part, `shared` those that all
# ranks have whole, `most` the limit. Change the gradients in place, return the norm before.
#
# **Why:** each rank finds another norm, scales by it, and the copies drift apart: the same in every engine that leaves
# the clipping to you.
#
# <details><summary>Hint 1</summary>Squares add up over ranks, norms do not. What all ranks have must be added
# once.</details>
#
# <details><summary>Hint 2</summary><code>squares = sum(p.grad.square().sum() for p in split)</code>, then
# <code>dist.all_reduce(squares)</code>, then add those of <code>shared</code>; the root is the norm. Scale
# by <code>most / norm</code>, if the norm is larger.</details>


# %%
def clip(split, shared, most):
    import torch.distributed as dist

    # BEGIN SOLUTION: scale the gradients by the norm of the whole network's gradient
    squares = sum(parameter.grad.square().sum() for parameter in split)
    dist.all_reduce(squares)
    norm = (squares + sum(parameter.grad.square().sum() for parameter in shared)).sqrt().item()
    for parameter in [*split, *shared]:
        parameter.grad *= min(1, most / norm)
    return norm
    # END SOLUTION


# %%
tensor_exercises.check_clip(clip)

# %%
symptoms(block, alone=clipped_alone, clip=clip)

# %% [markdown]
# ## Let an engine split it
#
# PyTorch has the same as a **plan**: which module is split how. A parameter becomes a `DTensor`, which knows its placement on a mesh of
# ranks, and the collectives follow from the placements. From `tensor_parallel.py`, beside this lab:
#
# ```python
# plan["blocks.0.up"] = ColwiseParallel()
# plan["blocks.0.down"] = RowwiseParallel()
# parallelize_module(network, init_device_mesh("cpu", (4,)), plan)
# ```
#
# (PyTorch names the ways by columns and rows of $W^T$: "colwise" splits the outputs.) With *sequence parallelism*
# ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)) what lies between the blocks is split too, by examples
# (in a transformer by tokens): *f* becomes an all-gather and *g* a reduce-scatter, an all-reduce in two halves, and
# the activations in between take $1/N$ of the memory.
#
# ## Split both sides: 2-D
#
# In Megatron's way $x$ and its gradient stay whole on every rank, and so do the bytes. **AxoNN** ([Singh et al.
# 2023](https://arxiv.org/abs/2305.13525)) puts the ranks into a grid of $r$ rows and $c$ columns, and splits *every* matrix both ways: up's outputs over the rows and its inputs over the columns,
# down's the other way round. Each rank holds $1/rc$ of both. Every product is now a partial sum: up's is all-reduced over the
# $c$ ranks of a row of the grid, down's over the $r$ of a column. (A third dimension, depth, splits the batch, and
# each part of a weight once more, gathered when it is needed, as in lab 9.)


# %%
def draw_grid(axes, rows, columns):
    """Which block of up (4h x h) and of down (h x 4h) each rank of the grid holds."""
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        wide, high = 2 / columns, 4 / rows
        box(axes, wide * column, 4 - high * (row + 1), wide, high, f"{rank}", rank)
        wide, high = 4 / rows, 2 / columns
        box(axes, 4.6 + wide * row, 3 - high * (column + 1), wide, high, f"{rank}", rank)
    for x, y, text in ((1, -0.4, "inputs of up"), (6.6, 0.6, "inputs of down")):
        axes.text(x, y, text, ha="center", va="center")
    axes.text(-0.3, 2, "outputs", rotation=90, ha="center", va="center")
    axes.text(4.3, 2, "outputs", rotation=90, ha="center", va="center")
    axes.set(xlim=(-0.6, 8.8), ylim=(-0.7, 4.2), aspect="equal", title=f"{rows} x {columns} ranks")
    axes.axis("off")


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4))
draw_grid(left, 4, 1)
draw_grid(right, 2, 2)
left.set_title("4 x 1 ranks: Megatron")
plt.show()

# %% [markdown]
# ### Exercise 6: Bytes of a grid
#
# **What:** write `grid_bytes(batch, hidden, rows, columns)`: the bytes that a rank sends for one block in a step, forward and backward,
# with float32 numbers.
#
# **Why:** for $r = N, c = 1$ it is Megatron's, so this one formula tells when the grid pays.
#
# Forward there are two all-reduces, of up's outputs and of down's. Backward there are two as well, of gradients of the same two shapes: that of
# down's inputs, over the columns, and that of up's inputs, over the rows.
#
# <details><summary>Hint 1</summary>How many numbers has this rank's part of up's 4h outputs, and how many ranks sum it up?
# An all-reduce of S bytes among n ranks sends 2(n-1)/n S.</details>
#
# <details><summary>Hint 2</summary>Up: 4 x batch x 4 hidden / rows bytes, among <code>columns</code> ranks. Down: 4 x batch x hidden / columns
# bytes, among <code>rows</code> ranks. And that twice.</details>


# %%
def grid_bytes(batch, hidden, rows, columns):
    # BEGIN SOLUTION: return the bytes that a rank sends for one block in a step
    def ring(ranks, nbytes):
        return 2 * (ranks - 1) / ranks * nbytes

    up, down = 4 * batch * 4 * hidden / rows, 4 * batch * hidden / columns
    return 2 * (ring(columns, up) + ring(rows, down))
    # END SOLUTION


# %%
tensor_exercises.check_grid_bytes(grid_bytes)

# %% [markdown]
# From how many ranks on does the best grid send less than Megatron's way?

# %%
prediction = None  # ranks

# %%
figure, axes = plt.subplots(figsize=(8, 4))
counts = 2 ** np.arange(1, 11)
one_array = 4 * 2048 * 8192  # 2048 examples, h = 8192: about a block of a language model
shapes = {n: [(n // c, c) for c in counts // 2 if c <= n] for n in map(int, counts)}
best = {n: min(s, key=lambda rc: grid_bytes(2048, 8192, *rc)) for n, s in shapes.items()}
axes.plot(
    counts,
    [grid_bytes(2048, 8192, n, 1) / one_array for n in counts],
    "o-",
    label="N x 1: Megatron",
)
axes.plot(
    counts, [grid_bytes(2048, 8192, *best[n]) / one_array for n in best], "v--", label="best grid"
)
for n in (4, 16, 64, 256, 1024):
    rows, columns = best[n]
    axes.annotate(f"{rows} x {columns}", (n, grid_bytes(2048, 8192, rows, columns) / one_array),
                  xytext=(0, -16), textcoords="offset points", ha="center")  # fmt: skip
if prediction:
    axes.axvline(prediction, color="black", linestyle="--", label="your prediction")
axes.set(
    xscale="log",
    xlabel="ranks",
    ylabel="arrays of (batch, h) that a rank sends\nfor a block in a step",
)
axes.set_xticks(counts, counts)
axes.set_ylim(0, 4.3)
axes.legend()
plt.show()
