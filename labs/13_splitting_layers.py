# %% [markdown]
# # Lab 13: Splitting layers
#
# **Time:** 60 minutes, two of them computing. **You split** the matrices of a layer among ranks, by hand and with two engines, and
# measure memory, bytes and seconds of each method, compared with a formula; each must train exactly as one rank does. **You need**
# lab 4 (all-reduce) and lab 12 (DDP and sharding). Lab 14 splits the network between its layers.
#
# Data parallelism, sharded or not, has one limit that no engine lifts: **every rank must compute every layer**. A layer
# that is too large or too slow for one device has to be split itself.

# %%
import json
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from hvdlab.course.experiment import LABS, WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import predicted
from hvdlab.course.split_training import BATCH, HIDDEN, LAYERS, train
from hvdlab.exercises import lab13_tensor_parallelism as tensor_exercises
from hvdlab.launch import call, run
from hvdlab.torch.model_parallel.analytic_costs import split_costs

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the processor for all ranks, also where there are GPUs
WORK.mkdir(parents=True, exist_ok=True)
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]  # one for each rank

# %% [markdown]
# All ranks of this lab use processors, also where there are GPUs. The lab counts the bytes that a rank sends, and the kernel counts
# them only in TCP connections: NCCL sends from GPU to GPU over NVLink, PCIe or shared memory, where the count would be 0. It also
# compares losses to 1e-6, and four ranks that share a GPU could not split a layer: Gloo gathers only what is in host memory.
#
# ## Split each layer
#
# The network is `ResidualMLP` of lab 9: a stem, blocks, a head. A block computes
#
# $$x + \mathrm{down}(\mathrm{gelu}(\mathrm{up}(\mathrm{norm}(x)))),$$
#
# where $\mathrm{up}$ makes $4h$ features of $h$, and $\mathrm{down}$ makes $h$ of $4h$: the feed-forward half of a transformer's block.
# Megatron-LM ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)) splits it so that the ranks talk **once** on the
# way forward. $\mathrm{up}$ is split by its *outputs*, so each rank has some of the $4h$ features whole, and gelu can be
# applied to each alone. $\mathrm{down}$ is split by its *inputs*: each rank multiplies the features that it has, and the
# products only need to be added up. Unlike in lab 4, **all ranks read the same batch**.


# %%
def box(axes, x, y, width, height, text, rank=None):
    """A rectangle in the colour of a rank; grey is on every rank."""
    colour, ink = ("lightgrey", "black") if rank is None else (COLOURS[rank], "white")
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="black"))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=ink, fontsize=9)


figure, axes = plt.subplots(figsize=(11, 3.6))
axes.plot([0, 13.5], [2, 2], color="grey", zorder=0)
whole = (0, 1, "x"), (1.7, 0.6, "norm"), (11.6, 0.7, "+ bias\n+ x"), (12.9, 1, "output")
for x, width, text in whole:
    box(axes, x, 1.5, width, 1, text)
for rank in (0, 1):
    box(axes, 3.4, 2 - 2 * rank, 1, 2, f"up\nrank {rank}", rank)
    box(axes, 5.1, 2 - 2 * rank, 0.7, 2, "gelu", rank)
    box(axes, 6.5 + 2 * rank, 1.5, 2, 1, f"down\nrank {rank}", rank)
for x, name, way in ((2.85, "f", "back"), (11.05, "g", "forth")):
    style = {"fontsize": 16, "fontstyle": "italic", "backgroundcolor": "white"}
    axes.text(x, 2, name, ha="center", va="center", **style)
    axes.text(x, 0.7, f"{way}:\nall-reduce", ha="center", va="center", fontsize=9)
axes.set(xlim=(-0.2, 14.2), ylim=(-0.2, 4.2), aspect="equal", title="A block on 2 ranks")
axes.axis("off")
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
# In exercise 3 the function runs on the ranks: import what it needs inside it.
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
# `train` (in `hvdlab.course.split_training`) trains `ResidualMLP` for 20 steps on Fashion-MNIST with *your* block, *your* parts and
# *your* f and g. The stem, the last norm and the head are whole on every rank; nothing keeps those copies equal but
# equal gradients. For comparison, one process trains the whole network.
#
# How far will the losses of the ranks be from those of the one process? And what does a rank of **four** send in a step,
# in percent of what a rank of **two** sends?

# %%
prediction = None  # the largest difference of a loss
prediction_bytes = None  # percent

# %%
runs = {
    ranks: train([block], part_of, f_and_g, ranks=ranks)[0]
    for ranks in by_run_length(quick=[2], learner=[2, 4], reference=[2, 4])
}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for found, colour, marker in zip(runs.values(), COLOURS, "ov", strict=False):
    losses, alone = np.array(found["losses"]), np.array(found["alone"])
    left.plot(losses, marker, color=colour)
    right.plot(np.abs(losses - alone) + 1e-9, marker, color=colour)
left.plot(alone, color="black", zorder=1)
left.set(xlabel="step", ylabel="training loss")
right.set(xlabel="step", ylabel="difference of the loss from one rank's\n(+ 1e-9)", yscale="log")
right.set_ylim(5e-10, 1)
figure.legend(
    ["2 ranks", "4 ranks"][: len(runs)] + ["one rank"], loc="outside lower center", ncols=3
)
predicted(right, prediction)
plt.show()
for ranks, found in runs.items():
    off = np.abs(np.subtract(found["losses"], found["alone"])).max()
    expected = 2 * LAYERS * 2 * (ranks - 1) / ranks * 4 * BATCH * HIDDEN
    print(f"{ranks} ranks: losses off by {off:.0e}, weights by {found['weights off']:.0e}, copies apart by "
          f"{found['copies apart']:.0e}; sent {found['sent'] / 1e3:.0f} kB a step, predicted {expected / 1e3:.0f}")  # fmt: skip

if prediction_bytes:
    print(f"your prediction: {prediction_bytes} % of what a rank of two sends")

# %% [markdown]
# **What you should see.** The curves lie on each other. What is left is the rounding of float32: the sum over the $4h$
# features is taken in another order. The copies are equal to the last bit, because all ranks compute the same from the
# same sums. A rank of four sends 150 % of what a rank of two sends, $2(N-1)/N$ again: with more ranks the computing per rank
# shrinks, and the talking does not. (Gloo adds a head to each of its messages.)
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

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + f(g(F.linear(y, part["down.weight"]))) + part["down.bias"]


# %%
def symptoms(*blocks, **options):
    """A table of what is seen when blocks are trained on two ranks."""
    rows = {}
    for one, found in zip(blocks, train(list(blocks), part_of, f_and_g, **options), strict=True):
        off = np.abs(np.subtract(found["losses"], found["alone"]))
        rows[one.__name__] = {"first loss off": off[0], "most in 20 steps": off.max()}
        rows[one.__name__]["copies apart"] = found["copies apart"]
    return pd.DataFrame(rows).transpose().map("{:.0e}".format)


symptoms(block, case_a, case_b, case_c)

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
tensor_exercises.check_diagnosis(diagnosis, [case_a, case_b, case_c], part_of, f_and_g)

# %% [markdown]
# ### Exercise 5: Fix the gradient clipping
#
# Large networks limit the norm of the gradient of *all* weights together. The function below does it as on one rank.
# Look at what it does on two.


# %%
def wrong_clip(split, shared, most):
    """Scale all gradients so that their norm is at most `most`; return the norm that it was."""
    import torch

    return torch.nn.utils.clip_grad_norm_([*split, *shared], most)


symptoms(block, clip=wrong_clip)

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

# %% [markdown]
# And in the training. The losses are those of one rank again, up to rounding, and the copies stay equal:

# %%
symptoms(block, clip=clip)

# %% [markdown]
# ## Let an engine split it
#
# PyTorch has the same as a **plan**: which module is split how. A parameter becomes a `DTensor`, which knows its placement on a mesh of
# ranks, and the collectives follow from the placements. From `tensor_parallel.py`, next to this lab:
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
# each part of a weight once more, gathered when it is needed, as in lab 12.)


# %%
figure, all_axes = plt.subplots(1, 2, figsize=(11, 3.8))
for axes, (rows, columns) in zip(all_axes, ((4, 1), (2, 2)), strict=True):
    for rank in range(4):
        row, column = divmod(rank, columns)
        for x, wide, high, i, j in (
            (0, 2 / columns, 4 / rows, row, column),
            (4, 4 / rows, 2 / columns, column, row),
        ):
            box(axes, x + wide * j, 4 - high * (i + 1), wide, high, f"rank {rank}", rank)
    axes.text(1, -0.4, "up (4h x h)", ha="center", va="center")
    axes.text(6, 1.6, "down (h x 4h)", ha="center", va="center")
    axes.set(xlim=(-0.2, 8.2), ylim=(-0.7, 4.2), aspect="equal", title=f"{rows} x {columns} ranks")
    axes.axis("off")
plt.show()


# %%
def on_a_grid(comm, rows, columns):
    """x up^T down^T, where x has 8 features, on a grid of ranks; how far from the whole product."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    mesh = init_device_mesh("cpu", (rows, columns), mesh_dim_names=("rows", "columns"))
    row, column = mesh.get_coordinate()
    torch.manual_seed(0)
    x, up, down = torch.randn(5, 8), torch.randn(32, 8), torch.randn(8, 32)

    my_x = x.chunk(columns, 1)[column]
    my_up = up.chunk(rows, 0)[row].chunk(columns, 1)[column]
    my_down = down.chunk(columns, 0)[column].chunk(rows, 1)[row]
    y = my_x @ my_up.T  # partial sums, for the outputs of my row
    dist.all_reduce(y, group=mesh.get_group("columns"))
    z = y @ my_down.T  # partial sums, for the outputs of my column
    dist.all_reduce(z, group=mesh.get_group("rows"))

    off = (z - (x @ up.T @ down.T).chunk(columns, 1)[column]).abs().max().item()
    dist.destroy_process_group()
    return {"my x": list(my_x.shape), "my up": list(my_up.shape), "my down": list(my_down.shape),
            "my output": list(z.shape), "off": f"{off:.0e}"}  # fmt: skip


ROWS, COLUMNS = by_run_length(quick=(1, 2), learner=(2, 2), reference=(2, 2))
pd.DataFrame(call(on_a_grid, ROWS, COLUMNS, ranks=ROWS * COLUMNS))

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
def arrays_sent(rows, columns):
    """In arrays of (batch, h): what a rank sends for a block in a step."""
    return grid_bytes(2048, 8192, rows, columns) / (4 * 2048 * 8192)


counts = [2**k for k in range(1, 11)]
grids = {n: [(n // c, c) for c in [1, *counts] if c <= n] for n in counts}
best = [min(grids[n], key=lambda rc: arrays_sent(*rc)) for n in counts]
figure, axes = plt.subplots(figsize=(8, 4))
axes.plot(counts, [arrays_sent(n, 1) for n in counts], "o-", label="N x 1: Megatron")
axes.plot(counts, [arrays_sent(*rc) for rc in best], "v--", label="the best grid")
for n, (rows, columns) in list(zip(counts, best, strict=True))[3::2]:
    axes.text(n, arrays_sent(rows, columns) - 0.45, f"{rows} x {columns}", ha="center")
if prediction:
    axes.axvline(prediction, color="black", linestyle="--", label="your prediction")
axes.set(
    xscale="log", xlabel="ranks", ylim=(0, 4.4), title="Two dimensions pay when ranks are many"
)
axes.set_ylabel("arrays of (batch, h) that\na rank sends for a block in a step")
axes.set_xticks(counts, counts)
axes.legend()
plt.show()

# %% [markdown]
# **What you should see.** Megatron's way costs ever nearer to 4 arrays, whatever the number of ranks. The best grid costs
# $16/\sqrt{N} - 20/N$ or little more: on 8 ranks as much, from 16 on less. On 4 ranks 2 x 2 sends *more*, 5 arrays instead of 3.
# So Megatron's way is right within one server of 8 GPUs, and AxoNN's is for hundreds.
#
# ## Measure all of it
#
# `tensor_parallel.py` trains a larger network ($h = 256$, 4 blocks) in all these ways. `by-hand` and `grid` are your block for any
# number of columns (`hvdlab/torch/model_parallel/tensor_parallel_layers.py`); `dtensor` and `sequence` are PyTorch's. **AxoNN** is written for GPUs: it asks for CUDA devices and
# NCCL. Its code runs here unchanged, with four answers of PyTorch replaced; read
# `hvdlab/torch/model_parallel/axonn_on_cpu.py`, it is 50 lines. What that cannot stand in for is its overlap of communication with computing, which
# was not run here: take AxoNN's bytes from this table and its speed from the papers. On GPUs the same script uses NCCL, and nothing is replaced.
#
# The formulas for memory and bytes are in `hvdlab/torch/model_parallel/analytic_costs.py`. Which way needs the least memory? Which
# sends the least?

# %%
prediction_modes = None, None  # two modes, of 4 ranks: the least memory, the fewest bytes

# %%
SAVED = WORK / "tensor_modes.json"
ALL = ["by-hand", "dtensor", "sequence", "grid", "axonn"]
RUNS = {1: ["serial"], 2: by_run_length(quick=ALL[:1], learner=ALL[:2], reference=ALL[:2]), 4: ALL}


def train_in_modes(ranks, repeat):
    steps = by_run_length(quick=6, learner=20, reference=20)
    options = ["--compare", "--save", SAVED, "--steps", steps]
    run(LABS / "tensor_parallel.py", *options, "--modes", *RUNS[ranks], ranks=ranks, show=False)
    rows = []
    for found in json.loads(SAVED.read_text()):
        costs = split_costs(found["mode"], ranks)
        rows.append({
            "mode": found["mode"], "ranks": ranks, "repeat": repeat,
            "loss_difference": found["loss_difference"],
            "memory_bytes": found["memory_bytes"], "memory_predicted": costs.memory,
            "sent_bytes": found["sent_bytes"], "sent_predicted": costs.sent,
            "step_seconds": found["step_seconds"], "collectives": found["collectives"],
        })  # fmt: skip
    return rows


everything = grid(
    ranks=by_run_length(quick=[2], learner=[1, 2, 4], reference=[1, 2, 4]), repeat=seeds(1)
)
modes = sweep("tensor_modes", train_in_modes, everything)


# %%
def modes_table(modes):
    groups = modes.groupby(["ranks", "mode"], sort=False)
    middle = groups.median(numeric_only=True)
    return pd.DataFrame({
        "loss off": middle["loss_difference"].map("{:.0e}".format),
        "MB held": (middle["memory_bytes"] / 1e6).round(2),
        "predicted": (middle["memory_predicted"] / 1e6).round(2),
        "kB sent": (middle["sent_bytes"] / 1e3).round(0),
        "predicted ": (middle["sent_predicted"] / 1e3).round(0),
        "ms a step": (1e3 * middle["step_seconds"]).round(1),
        "calls, forth and back": groups["collectives"].first(),
    })  # fmt: skip


print(modes_table(modes).to_string())
of_four = modes[modes["ranks"] == modes["ranks"].max()].groupby("mode")
least = [of_four[f"{what}_bytes"].median().idxmin() for what in ("memory", "sent")]
print(f"least memory: {least[0]}, fewest bytes: {least[1]}; you said {prediction_modes}")
modes_table(reference("tensor_modes"))

# %% [markdown]
# **What you should see.** All losses are those of one rank, up to rounding. The memory agrees with the formula to the byte: the
# stem is whole by hand and with DTensor, split over two columns on the grid, and over all four ranks with `sequence`. By hand and with DTensor
# the same collectives are called, and the same bytes sent. On four ranks the grid sends more, as predicted. `sequence`
# sends more because Gloo's reduce-scatter all-reduces the whole array and keeps a part; with NCCL it would send in each block as much
# as `by-hand`. A single rank is the fastest: the network is small, and two cores are under all the ranks. The seconds say
# nothing about GPUs.
