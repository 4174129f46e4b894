# %% [markdown]
# # Lab 13: Splitting layers
#
# GPT-3 has 175 billion parameters in 96 layers, and its activations have a width of 12,288 ([Brown et al.
# 2020](https://arxiv.org/abs/2005.14165), table 2.1). The two matrices of a single feed-forward layer have
# the shapes 12,288 x 49,152 and 49,152 x 12,288, so they contain 1.2 billion parameters. With 16 bytes per
# parameter (lab 12) this one layer needs 19 GB for training. DDP needs the whole network on every rank. FSDP
# does not remove the problem either, because a rank must gather the weights of a whole layer before it can
# compute it, and because every rank computes every layer. A layer that is too
# large or too slow for one device must be split itself. This is **tensor parallelism**, also called
# intra-layer parallelism. It is the standard method for large models inside a server, where GPUs exchange
# data quickly.
#
# **After this lab you can**
#
# * split a linear layer by columns and by rows, and say which of the two needs communication;
# * write Megatron-LM's operations *f* and *g* as autograd functions, and a split block that trains exactly
#   like a single process;
# * say for each tensor of a block whether it is split or replicated, and compute the memory of a rank;
# * find four typical mistakes from two symptoms: a wrong first loss, and copies that differ;
# * compute the bytes that one-dimensional and two-dimensional splits send, and choose between them.
#
# **Builds on** lab 4 (all-reduce) and lab 12 (DDP, sharding, `DTensor`). **Time:** about 2 hours for a
# learner who does all seven exercises, of which the computer needs two minutes. Lab 14 splits the network
# *between* its layers.

# %% tags=["folded"]
import json
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course.excerpt import excerpt
from hvdlab.course.experiment import (
    LABS,
    WORK,
    by_run_length,
    complete,
    grid,
    reference,
    seeds,
    sweep,
)
from hvdlab.course.figures import describe
from hvdlab.course.split_training import BATCH, HIDDEN, LAYERS, train
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab13_tensor_parallelism as tensor_exercises
from hvdlab.launch import call, run
from hvdlab.torch.model_parallel.analytic_costs import split_costs

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # CPUs for all ranks, also on a machine with GPUs
WORK.mkdir(parents=True, exist_ok=True)
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]  # one for each rank
workbook = Workbook(13)
hint = workbook.hint
# How much the experiments do in a quick run, in your run, and in a reference run (lab 3 explains this).
RANKS = by_run_length(quick=[2], learner=[2, 4], reference=[2, 4])
ROWS, COLUMNS = by_run_length(quick=(1, 2), learner=(2, 2), reference=(2, 2))

# %% [markdown]
# All ranks of this lab use CPUs. The lab counts the bytes that a rank sends, and the kernel counts them
# only in TCP connections. It also compares losses to $10^{-6}$. Several ranks that share a GPU could not run
# all modes of this lab, because some modes gather tensors, and Gloo gathers only tensors in CPU memory.
#
# ## Column and row split of a linear layer
#
# A linear layer computes $y = xA$. The matrix $A$ has a row for each input feature and a column for each
# output feature. There are two ways to split it among ranks.
#
# * **Column split:** each rank stores some columns of $A$. It reads the whole input and computes *some of
#   the outputs*, complete. Side by side, the results of the ranks are the output. No communication is
#   needed, as long as the next operation works on each output separately. If every rank needs all outputs,
#   an all-gather collects them.
# * **Row split:** each rank stores some rows of $A$. It reads only the inputs that belong to these rows and
#   computes *a part of the sum for every output*. The ranks must add their partial sums with an all-reduce.
#
# For example, let $x = [1, 2]$ and
#
# $$A = \begin{pmatrix} 1 & 0 & 2 & 1 \\ 0 & 1 & 1 & 3 \end{pmatrix}, \qquad
#   B = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 1 & 1 \\ 2 & 0 \end{pmatrix}.$$
#
# With a column split of $A$, rank 0 computes $[1, 2]$ and rank 1 computes $[4, 7]$, together $xA = [1, 2,
# 4, 7]$. With a row split of $B$, rank 0 multiplies its half $[1, 2]$ by the first two rows, which gives
# $[1, 2]$. Rank 1 multiplies $[4, 7]$ by the last two rows, which gives $[18, 4]$. The sum $[19, 6]$ is
# $xAB$. So a column split followed by a row split needs **one** all-reduce: the output of the first is
# exactly the input that the second needs, rank by rank.
#
# ![Small matrices on two ranks. Column split: both ranks read the whole input, and each computes two of the four outputs. Row split: each rank uses its two features and two rows of B and gets partial sums, which an all-reduce adds to the result 19 and 6.](pictures/column_row_split.svg)
#
# PyTorch stores the weight of `nn.Linear` transposed, with the shape (outputs, inputs). So a column split
# of $A$ is a split of the *first* dimension of `weight`, and a row split of $A$ is a split of the *second*
# dimension. The bias has one number per output. It is split with the columns. With a row split it must be
# added once, after the sum.
#
# ### Exercise 1: A linear layer in parts
#
# **What:** Write `parts(x, weight, ranks)`, which plays all ranks in a single process. `x` is (batch,
# inputs), and `weight` has PyTorch's shape (outputs, inputs). Return two lists with an entry for each rank:
# the outputs that it computes with a column split, and the partial sums that it computes with a row split.
#
# **Why:** You see the shapes before any communication is involved. Concatenation of the first list must
# give the output, and so must addition of the second.
#
# **Signature:** `parts(x, weight, ranks)` returns `(columns, rows)`, two lists of `ranks` tensors.
#
# <details><summary>Hint 1</summary><code>tensor.chunk(ranks, dim)</code> returns the list of parts along a
# dimension. Which dimension of <code>weight</code> has the outputs?</details>
#
# <details><summary>Hint 2</summary>With 2 inputs, 4 outputs and 2 ranks, the column split has two weights
# of the shape (2, 2). The row split has two weights of the shape (4, 1), and rank r also uses only column r
# of <code>x</code>.</details>
#
# <details><summary>Hint 3</summary>Columns: <code>[x @ part.T for part in weight.chunk(ranks, 0)]</code>.
# For rows, chunk both <code>x</code> and <code>weight</code> along dimension 1 and go through both lists
# with <code>zip</code>.</details>


# %%
def parts(x, weight, ranks):
    # BEGIN SOLUTION: return the outputs of a column split and the partial sums of a row split
    columns = [x @ part.T for part in weight.chunk(ranks, 0)]
    both = zip(x.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
    rows = [some_x @ part.T for some_x, part in both]
    return columns, rows
    # END SOLUTION


# %%
tensor_exercises.check_parts(parts)

# %% [markdown]
# ## Megatron-LM's split of a block
#
# The network is the `ResidualMLP` of lab 9: a stem, some blocks, and a head. A block is the feed-forward
# half of a transformer's layer (lab 15) and computes
#
# $$x + \mathrm{down}(\mathrm{gelu}(\mathrm{up}(\mathrm{norm}(x)))).$$
#
# `up` makes $4h$ features of $h$, gelu is an activation function that works on each number separately, and
# `down` makes $h$ features of $4h$. Megatron-LM ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053))
# splits `up` by columns, so gelu needs no other rank. It splits `down` by rows, so each rank already has
# the inputs of its rows. One all-reduce per block in the forward pass is enough.
#
# The other order would need an all-reduce before gelu, because gelu of a sum is not the sum of the gelus. For
# the partial sums 2 and -2, gelu(2 - 2) is 0, but gelu(2) + gelu(-2) is 1.95 - 0.05 = 1.9.
#
# The other half of a transformer's layer is *attention* (lab 15). Megatron-LM splits it in the same way: each
# rank computes some of its heads, which is a split by columns, and the matrix that follows them is split by
# rows. Again one all-reduce in the forward pass is enough.
#
# ![A block on two ranks. x and the norm are replicated. The operation f passes x to both ranks. Each rank has some columns of up, its gelu, and the matching rows of down. The operation g sums the results. f all-reduces in the backward pass and g in the forward pass.](pictures/tensor_parallel_block.svg)
#
# In contrast to data parallelism (lab 4), **all ranks read the same batch**, and each of them computes a
# part of every layer.
#
# ## Split and replicated tensors
#
# A *split tensor* is stored once across the group, so that every rank stores a part of it. A *replicated
# tensor* is stored on every rank, and all copies must be kept identical. In a block on $N$ ranks:
#
# | tensor | numbers in total | on each rank |
# |---|---|---|
# | `up.weight`, `up.bias` | $4h^2 + 4h$ | split by outputs, $1/N$ |
# | `down.weight` | $4h^2$ | split by inputs, $1/N$ |
# | `norm.weight`, `norm.bias`, `down.bias` | $3h$ | replicated, all of it |
# | $x$ and the output, (batch, $h$) | | replicated |
# | activations between `up` and `down`, (batch, $4h$) | | split by features, $1/N$ |
#
# For example, with $h = 1000$ and 4 ranks a rank stores $8{,}004{,}000 / 4 + 3{,}000 \approx 2.0$ million
# of 8.0 million parameters. Nothing keeps the replicated tensors identical except identical gradients. DDP
# would average the gradients. Here every rank must end up with the same complete gradient, and the next
# section shows how.
#
# **Initial weights.** All ranks must begin with parts of *one* network. So each rank draws every whole tensor
# with the same seed, and keeps its part. It would be a mistake to let each rank draw only its part with the
# same seed. All parts would be equal. They would get equal gradients and stay equal for ever, so the block would
# have only $4h/N$ different features, each of them $N$ times. It would run without an error, and the copies
# would be identical, but it would learn like a narrower network.
#
# ### Exercise 2: Parts of a rank
#
# **What:** Write `part_of(weights, rank, ranks)`. `weights` is a dict of the six tensors of a whole block:
# `norm.weight`, `norm.bias`, `up.weight` (4h, h), `up.bias`, `down.weight` (h, 4h) and `down.bias`. Return
# a dict with the same six names that contains what this rank stores.
#
# **Why:** The memory of a rank follows from it: a split tensor counts $1/N$, a replicated tensor counts
# fully.
#
# **Signature:** returns a new dict. In exercise 4 the function runs on the ranks, so it must import what it
# needs inside.
#
# <details><summary>Hint 1</summary>Look at the table above. Three of the six tensors are split.</details>
#
# <details><summary>Hint 2</summary>With h = 2 and 2 ranks, <code>up.weight</code> (8, 2) becomes (4, 2),
# <code>up.bias</code> (8) becomes (4), and <code>down.weight</code> (2, 8) becomes (2, 4).</details>
#
# <details><summary>Hint 3</summary>Start with <code>part = dict(weights)</code>, then replace three entries
# by <code>weights[name].chunk(ranks, dim)[rank]</code>.</details>


# %%
def part_of(weights, rank, ranks):
    # BEGIN SOLUTION: return what this rank stores of the six tensors
    part = dict(weights)  # the norm and the bias of down stay whole
    for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        part[name] = weights[name].chunk(ranks, dim)[rank]
    return part
    # END SOLUTION


# %%
tensor_exercises.check_part_of(part_of)

# %% [markdown]
# ## The operations f and g
#
# The ranks communicate at two places of a block. Megatron-LM calls the operations at these places *f* and
# *g*:
#
# | | forward pass | backward pass | reason |
# |---|---|---|---|
# | *f* | identity | all-reduce | Every rank uses the same $x$. In the backward pass each rank has only the gradient that comes from its own part of the work. |
# | *g* | all-reduce | identity | The partial sums are added. The gradient of a sum is the same for every summand. |
#
# For example, let $y = x w_0 + x w_1$ with $w_0 = 2$ on rank 0 and $w_1 = 3$ on rank 1. The gradient of $y$
# with respect to $x$ is $w_0 + w_1 = 5$. In the backward pass rank 0 knows only $w_0$ and rank 1 only
# $w_1$. The all-reduce of *f* gives both ranks 5. *g* must not all-reduce in its backward pass: both ranks
# already have the gradient of $y$, which is 1, and a sum would make it 2. With $N$ ranks it would be $N$.
#
# The norm stands before *f* and is replicated. Because *f* gives every rank the complete gradient, every rank
# computes the same gradient of the norm's parameters, and they need no all-reduce of their own. Without *f*
# every rank would continue with the gradient of its own part, and the copies of the norm would differ.
#
# ### Exercise 3: f and g
#
# **What:** Write `f_and_g()`. It returns both operations as functions of a tensor. Each is made of a class
# [`torch.autograd.Function`](https://docs.pytorch.org/docs/stable/notes/extending.html), which has a method
# for the forward pass and one for the backward pass.
#
# **Why:** Autograd does not know that other ranks exist. If the communication in a backward pass is
# missing, no error is raised.
#
# **Signature:** `f_and_g()` returns `(f, g)`.
#
# <details><summary>Hint 1</summary>Both operations consist of the same two methods, an identity and an
# all-reduce, in opposite order.</details>
#
# <details><summary>Hint 2</summary>A class has two static methods, <code>forward(ctx, x)</code> and
# <code>backward(ctx, gradient)</code>, and <code>Name.apply</code> is the function. With x = 1 on rank 0
# and x = 10 on rank 1, f returns 1 and 10, and g returns 11 on both.</details>
#
# <details><summary>Hint 3</summary><code>dist.all_reduce(tensor)</code> sums <em>in place</em> and returns
# None. Give it a copy: <code>tensor = tensor.clone(memory_format=torch.contiguous_format)</code>. The
# identity in a forward pass is <code>return x.view_as(x)</code>.</details>


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
# ### Exercise 4: The split block
#
# **What:** Write `block(x, part, f, g)`. `x` is (batch, h) and identical on all ranks, and `part` is what
# `part_of` returned. Return the output of the *whole* block. Use `f` and `g` once each. The operations are
# `F.layer_norm(x, x.shape[1:], weight, bias)`, `F.linear(x, weight, bias)` and `F.gelu(x)`.
#
# **Why:** These few lines are the core of Megatron-LM. Each call has exactly one right place, and wrong
# places run without an error.
#
# **Signature:** returns a tensor with the shape of `x`.
#
# <details><summary>Hint 1</summary>In the picture everything between <em>f</em> and <em>g</em> is split.
# Everything outside is replicated and must be added once.</details>
#
# <details><summary>Hint 2</summary>If every one of 2 ranks adds the bias [1] before the sum, the result
# contains 2. So <code>down</code> is applied without its bias, and the bias is added after
# <em>g</em>.</details>
#
# <details><summary>Hint 3</summary><code>y = f(F.layer_norm(...))</code>, then up and gelu, then <code>x +
# g(F.linear(y, part["down.weight"])) + part["down.bias"]</code>.</details>


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
# ## Equality with serial training
#
# `train` (in `hvdlab.course.split_training`) trains a `ResidualMLP` for 20 steps on Fashion-MNIST with
# *your* block, *your* parts and *your* f and g. The stem, the last norm and the head are replicated. For
# comparison, a single process trains the whole network on the same batches.
#
# Each block all-reduces an array of (batch, $h$) numbers twice per step, and a ring all-reduce sends
# $2(N-1)/N$ times the array. How many percent of the bytes of a rank in a group of **two** does a rank in a
# group of **four** send?

# %%
# Prediction 1: bytes of a rank of four, in percent of those of a rank of two. Replace both values of None.
workbook.predict(1, None, reason=None)

# %%
runs = {ranks: train([block], part_of, f_and_g, ranks=ranks)[0] for ranks in RANKS}
for ranks, found in runs.items():
    off = np.abs(np.subtract(found["losses"], found["alone"])).max()
    expected = 2 * LAYERS * 2 * (ranks - 1) / ranks * 4 * BATCH * HIDDEN
    print(
        f"{ranks} ranks: largest difference of a loss {off:.0e}, of a weight {found['weights off']:.0e}, "
        f"between copies {found['copies apart']:.0e}; sent {found['sent'] / 1e3:.0f} kB per step, "
        f"predicted {expected / 1e3:.0f} kB"
    )
if 4 in runs:  # not in a quick run
    workbook.result(1, 100 * runs[4]["sent"] / runs[2]["sent"])

# %% tags=["folded"]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for found, colour, marker in zip(runs.values(), COLOURS, "ov", strict=False):
    losses, alone = np.array(found["losses"]), np.array(found["alone"])
    left.plot(losses, marker, color=colour)
    right.plot(np.abs(losses - alone) + 1e-9, marker, color=colour)
left.plot(alone, color="black", zorder=1)
left.set(xlabel="step", ylabel="training loss")
right.set(xlabel="step", ylabel="difference from the serial loss\n(+ 1e-9)", yscale="log")
right.set_ylim(5e-10, 1)
figure.legend(["2 ranks", "4 ranks"][: len(runs)] + ["serial"], loc="outside lower center", ncols=3)
describe(
    figure,
    "Left: the training losses on two and on four ranks lie on the curve of the serial run. "
    "Right: the differences from the serial losses stay near the rounding of float32, about one"
    " millionth.",
)

# %% [markdown]
# **Result.** The curves coincide. The remaining difference is the rounding of float32, because the sum over
# the $4h$ features is taken in another order. The copies are equal to the last bit, because all ranks
# compute the same numbers from the same sums. A rank of four sends 150 % of the bytes of a rank of two,
# because $2 \cdot 3/4 = 1.5$ and $2 \cdot 1/2 = 1$. If you predicted 100 % or 50 %, you expected the
# communication to be divided among the ranks. It is not: with more ranks the work per rank shrinks, but the
# bytes per rank grow towards twice the array. (Gloo adds a header to each message, so the measured bytes
# are slightly above the formula.)
#
# ## Diagnosis of wrong blocks
#
# Each of the following blocks trains without an error, and each mistake has been made before. Compare them
# with your block, then look at their *symptoms*, that is, what a user sees of the mistake.


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


# %% tags=["folded"]
def symptoms(*blocks, **options):
    """A table of what is seen when blocks are trained on two ranks."""
    rows = {}
    for one, found in zip(blocks, train(list(blocks), part_of, f_and_g, **options), strict=True):
        off = np.abs(np.subtract(found["losses"], found["alone"]))
        rows[one.__name__] = {"first loss off": off[0], "most in 20 steps": off.max()}
        rows[one.__name__]["copies apart"] = found["copies apart"]
    return pd.DataFrame(rows).transpose().map("{:.0e}".format)


# %%
symptoms(block, case_a, case_b, case_c)

# %% [markdown]
# The columns are the difference of the first loss from the serial one, the largest difference in 20 steps,
# and the largest difference between two copies of a replicated tensor.
#
# ### Exercise 5: Name the mistakes
#
# **What:** Set `diagnosis` to a dict that gives each of `"case_a"`, `"case_b"` and `"case_c"` one of the
# five names that the next cell prints.
#
# **Why:** On a real run you see only symptoms. Two questions narrow the search: is the *first* loss right,
# and are the copies still equal?
#
# **Signature:** a dict with three keys, and names as values.
#
# <details><summary>Hint 1</summary>The first loss is computed before any update. A wrong first loss is
# therefore a mistake in the forward pass.</details>
#
# <details><summary>Hint 2</summary>Copies differ only if the ranks computed different gradients for them.
# If the copies are equal but the later losses are wrong, all ranks agree on wrong gradients.</details>
#
# <details><summary>Hint 3</summary>One case adds a bias in the wrong place, one never calls <em>f</em>, and
# one calls <em>f</em> after <em>g</em>, which adds an all-reduce to the backward pass.</details>

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
# **What the result means.** A wrong backward pass leaves the first loss right. Without *f* each rank passes
# on the gradient of its own part, so the copies of the norm differ, and everything in front of the block gets
# a wrong gradient. With a second all-reduce in the backward pass all ranks agree. In the last block the
# gradients of `up`, `down` and the norm are $N$ times too large. The gradient that leaves the block is a
# mixture, because the skip connection passes its part on once.
#
# The converse does not hold: a right first loss does not prove that the forward pass is right. If all biases
# began with zero, a bias that is added $N$ times would show only after the first update.
#
# ### Exercise 6: Gradient clipping with split parameters
#
# Gradient clipping limits the norm of the gradient of *all* weights together (lab 12). The function below
# does what a single process would do. Each rank computes another norm, because it has another part of the
# split tensors. It scales by another factor, and the replicated copies drift apart. The table shows the
# effect on two ranks.


# %%
def wrong_clip(split, shared, most):
    """Scale all gradients so that their norm is at most `most`; return the norm before."""
    import torch

    return torch.nn.utils.clip_grad_norm_([*split, *shared], most)


symptoms(block, clip=wrong_clip)

# %% [markdown]
# **What:** Write `clip(split, shared, most)`. `split` are the parameters of which each rank has a part, and
# `shared` the replicated ones. Change the gradients in place so that the global norm is at most `most`.
#
# **Why:** The same mistake is possible with every library that leaves the clipping to you.
#
# **Signature:** returns the norm before clipping.
#
# <details><summary>Hint 1</summary>Squares can be added over ranks, norms cannot. A replicated gradient
# must be counted once, and not once per rank.</details>
#
# <details><summary>Hint 2</summary>Two ranks with split gradients [3] and [4], and a replicated gradient
# [12]: the squares are 9 + 16 + 144 = 169, so the norm is 13.</details>
#
# <details><summary>Hint 3</summary><code>squares = sum(p.grad.square().sum() for p in split)</code>, then
# <code>dist.all_reduce(squares)</code>, then add the squares of <code>shared</code>. The root is the norm.
# Multiply each gradient by <code>min(1, most / norm)</code>.</details>


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
# With your function the losses are those of the serial run again, up to rounding, and the copies stay
# equal:

# %%
symptoms(block, clip=clip)

# %% [markdown]
# ## DTensor plans
#
# PyTorch offers the same split as a **plan**, a dict that says how each module is split.
# `parallelize_module` replaces the parameters by `DTensor`s. A *`DTensor`* knows its *placement* on a mesh of
# ranks: `Shard(0)` means split along dimension 0, `Replicate()` means a full copy on each rank, and
# `Partial()` means that the sum over the ranks is still missing. PyTorch derives the collectives from the
# placements. For example, a result that is `Partial()` must be all-reduced before it can become
# `Replicate()`. This function of `labs/tensor_parallel.py` splits the network:

# %%
excerpt(LABS / "tensor_parallel.py", "split_with_dtensor")

# %% [markdown]
# `ColwiseParallel` is our column split, and `RowwiseParallel` our row split. PyTorch inserts *f* and *g*
# itself.
#
# ## Sequence parallelism
#
# In Megatron-LM's split, $x$, the norm and the output are replicated: every rank stores the same activations
# and computes the same norm. *Sequence parallelism* ([Korthikanti et al.
# 2022](https://arxiv.org/abs/2205.05198)) also splits these, by tokens in a language model, and by examples
# in our network. Then *f* becomes an all-gather in the forward pass, because `up` needs all examples. *g*
# becomes a reduce-scatter, because each rank needs only the sums of its own examples. In the backward pass
# *f* is a reduce-scatter and *g* an all-gather. Because an all-reduce consists of a reduce-scatter and an
# all-gather (lab 12), the bytes are the same, but the activations between the blocks take only $1/N$ of the
# memory.
#
# ![Two rows that compare a block with and without sequence parallelism. Without it every rank holds all examples of x, f is the identity and g an all-reduce. With it a rank holds its part of the examples, f is an all-gather and g a reduce-scatter.](pictures/sequence_parallel.svg)
#
# ## Two-dimensional and three-dimensional splits: AxoNN
#
# With Megatron-LM's split every rank sends up to 4 arrays of (batch, $h$) per block and step: two all-reduces
# that send $2(N-1)/N$ arrays each. The next operation waits for each of them. So the ranks that split a layer
# belong on one server, where a link between GPUs carries 450 GB/s in place of 50 GB/s (lab 1). More ranks do
# not reduce these 4 arrays.
# **AxoNN** ([Singh et al. 2023](https://arxiv.org/abs/2305.13525)) arranges the ranks in a grid
# of $r$ rows and $c$ columns, and splits *every* matrix both ways. The outputs of `up` are split over the
# rows of the grid and its inputs over the columns of the grid, and `down` the other way round. Each rank stores
# $1/(rc)$ of both matrices. Now every product is a partial sum: that of `up` is all-reduced among the $c$ ranks
# in the same row of the grid, and that of `down` among the $r$ ranks in the same column. The code below names a
# group by what differs in it: the ranks of one row differ in their column, so their group is "columns". A third
# dimension, *depth*, splits the
# batch. It also shards each part of a weight once more and gathers it when it is needed, as FSDP does (lab
# 12).
#
# ![Tiles of the matrices up and down on four ranks. In the 4 x 1 split of Megatron-LM up is cut into four bands of rows and down into four bands of columns. In the 2 x 2 split of AxoNN both are cut into four quarters, and the sums are taken among pairs of ranks.](pictures/rank_grid.svg)
#
# The picture shows the weights as PyTorch stores them, (outputs, inputs). The next cell does the forward
# pass on a grid and compares it with the whole product.


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


pd.DataFrame(call(on_a_grid, ROWS, COLUMNS, ranks=ROWS * COLUMNS))

# %% [markdown]
# ### Exercise 7: Bytes of a grid
#
# **What:** Write `grid_bytes(batch, hidden, rows, columns)`, the bytes that a rank sends for one block in a
# step, forward and backward, with float32 numbers (4 bytes).
#
# **Why:** For $r = N$ and $c = 1$ it is Megatron-LM's split, so this one formula tells when a grid sends
# less.
#
# In the forward pass there are two all-reduces, of the outputs of `up` and of the outputs of `down`. In the
# backward pass there are also two, of gradients of the same two shapes: that of the inputs of `down`, among
# the ranks of a row, and that of the inputs of `up`, among the ranks of a column.
#
# **Signature:** returns a number of bytes.
#
# <details><summary>Hint 1</summary>How many numbers are this rank's part of the 4h outputs of up, and how
# many ranks add them? An all-reduce of S bytes among n ranks sends 2(n-1)/n S.</details>
#
# <details><summary>Hint 2</summary>Batch 10, h = 8 and 2 x 2 ranks: up has 10 x 32 / 2 = 160 numbers or 640
# bytes among 2 ranks, so 640 bytes are sent. Down has 10 x 8 / 2 = 40 numbers or 160 bytes among 2 ranks,
# so 160 bytes are sent. Forward and backward: 2 x 800 = 1600 bytes.</details>
#
# <details><summary>Hint 3</summary>Up: <code>4 * batch * 4 * hidden / rows</code> bytes among
# <code>columns</code> ranks. Down: <code>4 * batch * hidden / columns</code> bytes among <code>rows</code>
# ranks. Double the sum of what both send.</details>


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
# Use your function, or a calculator: on how many ranks (a power of two) does the best grid first send less
# than Megatron-LM's split?

# %%
# Prediction 2: the number of ranks. Replace both values of None.
prediction = workbook.predict(2, None, reason=None)


# %% tags=["folded"]
def arrays_sent(rows, columns):
    """In arrays of (batch, h): what a rank sends for a block in a step."""
    return grid_bytes(2048, 8192, rows, columns) / (4 * 2048 * 8192)


counts = [2**k for k in range(1, 11)]
grids = {n: [(n // c, c) for c in [1, *counts] if c <= n] for n in counts}
best = [min(grids[n], key=lambda rc: arrays_sent(*rc)) for n in counts]
figure, axes = plt.subplots(figsize=(8, 4))
axes.plot(counts, [arrays_sent(n, 1) for n in counts], "o-", label="N x 1: Megatron-LM")
axes.plot(counts, [arrays_sent(*rc) for rc in best], "v--", label="the best grid")
for n, (rows, columns) in list(zip(counts, best, strict=True))[3::2]:
    axes.text(n, arrays_sent(rows, columns) - 0.45, f"{rows} x {columns}", ha="center")
if prediction:
    axes.axvline(prediction, color="black", linestyle="--", label="your prediction")
axes.set(xscale="log", xlabel="ranks", ylim=(0, 4.4))
axes.set_title("A two-dimensional split sends less on many ranks")
axes.set_ylabel("arrays of (batch, h) that\na rank sends for a block in a step")
axes.set_xticks(counts, counts)
axes.legend()
describe(
    figure,
    "Arrays that a rank sends over the number of ranks. Megatron-LM's split approaches four "
    "arrays. The best grid is equal up to eight ranks and falls from sixteen ranks on.",
)
fewer = [n for n, rc in zip(counts, best, strict=True) if arrays_sent(*rc) < arrays_sent(n, 1)]
workbook.result(2, fewer[0])

# %% [markdown]
# **Result.** Megatron-LM's split approaches 4 arrays per block. By your formula a grid sends
# $\frac{4}{N}(4c + r - 5)$ arrays. This is smallest if $r = 4c$, and then it is $16/\sqrt{N} - 20/N$. With powers of two it
# is that or slightly more: the same as Megatron-LM's split on 8 ranks, 2.75 instead of 3.75 arrays on 16, and
# 0.92 instead of 3.98 on 256. On 4 ranks a grid of 2 x 2 sends *more*, 5 arrays instead of 3, because the
# outputs of `up` are four times as large as those of `down`. So the one-dimensional split is right within a
# server of 8 GPUs, and the grid saves most on hundreds of GPUs. The batch does not matter for this
# comparison, because both splits send only activations. There are also splits that send blocks of the
# weights, such as that of [Xu et al. 2021](https://arxiv.org/abs/2104.05343). They are an advantage only with
# large batches, because the blocks of the weights are sent however small the batch is. If you predicted a
# smaller number, you may have overlooked the all-reduce of the large outputs of `up`, which the
# one-dimensional split avoids.
#
# ## Measurement of all modes
#
# `labs/tensor_parallel.py` trains a larger network ($h = 256$, 4 blocks) in all these modes. `by-hand` and
# `grid` are your block for any number of columns, `dtensor` and `sequence` are PyTorch's, and `axonn` is
# the library AxoNN. AxoNN is written for GPUs and NCCL. Its code runs here unchanged, but four functions of
# PyTorch are replaced for it (`hvdlab/torch/model_parallel/axonn_on_cpu.py`). Its overlap of communication
# with computation needs a GPU, so take its bytes from this table and its speed from the papers.
#
# Which of the five modes stores the least on a rank of four? The parts of the blocks are equally large in all
# modes. So look at the stem, a layer of $784 \cdot 256$ weights: `by-hand` and `dtensor` replicate it, `grid`
# and `axonn` split it over the two columns of their grid, and `sequence` splits it over all ranks.

# %%
# Prediction 3: "by-hand", "dtensor", "sequence", "grid" or "axonn". Replace both values of None.
workbook.predict(3, None, form=["by-hand", "dtensor", "sequence", "grid", "axonn"], reason=None)

# %% tags=["folded"]
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


def modes_table(modes):
    groups = modes.groupby(["ranks", "mode"], sort=False)
    middle = groups.median(numeric_only=True)
    return pd.DataFrame({
        "loss off": middle["loss_difference"].map("{:.0e}".format),
        "MB stored": (middle["memory_bytes"] / 1e6).round(2),
        "predicted": (middle["memory_predicted"] / 1e6).round(2),
        "kB sent": (middle["sent_bytes"] / 1e3).round(0),
        "predicted ": (middle["sent_predicted"] / 1e3).round(0),
        "ms per step": (1e3 * middle["step_seconds"]).round(1),
        "collectives, forward and backward": groups["collectives"].first(),
    })  # fmt: skip


settings = grid(
    ranks=by_run_length(quick=[2], learner=[1, 2, 4], reference=[1, 2, 4]), repeat=seeds(1)
)

# %%
modes = sweep("tensor_modes", train_in_modes, settings)
print(modes_table(modes).to_string())
shipped = reference("tensor_modes")
four = complete(modes, shipped, "ranks", 4)
workbook.result(3, four.groupby("mode")["memory_bytes"].median().idxmin())
modes_table(shipped)

# %% [markdown]
# **Result.** The second table is the course's measurement (n = 3). All losses agree with the serial run, up
# to rounding. The memory agrees with the formula to the byte. On four ranks `by-hand` and `dtensor` store
# 8.8 MB, because they replicate the stem. `grid` and `axonn` split the stem over two columns and store 7.6
# MB. `sequence` splits it over all four ranks and stores 7.0 MB, the least.
#
# By hand and with DTensor the same collectives are called and the same 0.80 MB are sent. The grid sends
# more, 1.3 MB, as predicted for four ranks. `sequence` sends 1.5 MB, because Gloo's reduce-scatter does a
# whole all-reduce and keeps a part. With NCCL it would send as much in each block as `by-hand`. A single
# process is the fastest here, because the network is small and all ranks share two cores. These times say
# nothing about GPUs.
#
# ## Summary
#
# * A column split gives each rank complete outputs and needs no communication. A row split gives each rank
#   partial sums, which an all-reduce adds.
# * Megatron-LM splits `up` by columns and `down` by rows, so a block needs one all-reduce forward (*g*) and
#   one backward (*f*).
# * A split tensor is stored once across the group. A replicated tensor is stored on every rank, and all
#   copies must be kept identical.
# * The losses agree with a single process up to rounding. A wrong first loss points to the forward pass,
#   and copies that differ point to different gradients on the ranks.
# * A rank sends $2(N-1)/N$ times the array per all-reduce: 1.5 times as much on four ranks as on two. The
#   work per rank shrinks with $N$, the bytes do not.
# * Sequence parallelism replaces the all-reduces by all-gathers and reduce-scatters. It sends the same
#   bytes with NCCL and divides the replicated activations by $N$.
# * A two-dimensional grid sends about $16/\sqrt{N} - 20/N$ arrays per block instead of 4. It sends less from
#   16 ranks on.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="b")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=2.5)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="d")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="a")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer=6)

# %% [markdown]
# **Next:** Tensor parallelism sends activations in every block. [Lab 14](14_splitting_networks.ipynb)
# splits the network between its blocks, sends activations only at these places, and combines all methods.
