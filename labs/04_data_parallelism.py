# %% [markdown]
# # Lab 4: Data parallelism by hand
#
# **Time:** 75 minutes. **You measure** how far training on 2 and 4 ranks is from training on one, and what an
# all-reduce costs. **You need** NumPy and lab 3 (mini-batches).
#
# Horovod does one thing between two training steps: it makes the mean of all gradients appear on every rank.
# Here you build that yourself, from *send* and *receive*, and see where the time and the bytes go.

# %%
from functools import cache
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch, Rectangle

from hvdlab.course.experiment import WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, overlay, predicted
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab04_data_parallelism as exercises
from hvdlab.launch import call, run

WORK.mkdir(parents=True, exist_ok=True)  # your own files: notebooks/work
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]  # one for each rank

# %% [markdown]
# ## Split the batch, or split the weights
#
# A layer multiplies a batch of examples by its weights. Two ranks can share that work in two ways:
#
# * **Data parallel**: each rank has *all weights* and a part of the batch. After the backward pass the ranks
#   must agree on one gradient: they exchange an array as large as **the weights**.
# * **Model parallel**: each rank has *a part of the weights* and the whole batch. The next layer needs all
#   outputs, so the ranks exchange an array as large as **the activations**, forward and backward.


# %%
def box(axes, x, y, width, height, rank, text):
    patch = Rectangle((x, y), width, height, facecolor=COLOURS[rank], edgecolor="black", alpha=0.75)
    axes.add_patch(patch)
    axes.annotate(text, (0.5, 0.5), xycoords=patch, ha="center", va="center", color="white")


def draw_split(axes, title, sent, split_batch):
    """Two ranks, one above the other: what each holds of the batch (left) and the weights (right)."""
    for rank, y in ((0, 3.2), (1, 0)):
        axes.text(-0.3, y + 1, f"rank {rank}", ha="right", va="center", fontweight="bold")
        axes.text(2.1, y + 1, "×", ha="center", va="center", fontsize=16)
        for x, width in ((0, 1.6), (2.6, 2.2)):  # what there is
            axes.add_patch(Rectangle((x, y), width, 2, fill=False, linestyle=":", edgecolor="grey"))
        if split_batch:
            box(axes, 0, y + (1 - rank), 1.6, 1, rank, "half the\nbatch")
            box(axes, 2.6, y, 2.2, 2, rank, "all weights")
        else:
            box(axes, 0, y, 1.6, 2, rank, "all\nexamples")
            box(axes, 2.6 + 1.1 * rank, y, 1.1, 2, rank, "half the\nweights")
    arrow = {"arrowstyle": "<|-|>", "linewidth": 2, "color": "black"}
    axes.annotate("", (3.7, 3.2), (3.7, 2.0), arrowprops=arrow)
    axes.text(3.9, 2.6, sent, ha="left", va="center")
    axes.set(title=title, xlim=(-1.5, 7.4), ylim=(-0.2, 5.4), aspect="equal")
    axes.axis("off")


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9))
draw_split(left, "Data parallel", "gradients\n(as many as weights)", split_batch=True)
draw_split(right, "Model parallel", "activations\n(batch × outputs)", split_batch=False)
plt.show()

# %% [markdown]
# ### Count the bytes
#
# Which way is cheaper depends on the layer. Krizhevsky (2014, [arXiv:1404.5997](https://arxiv.org/abs/1404.5997))
# observed that convolutions have about 90-95 % of the compute and about 5 % of the parameters, and fully
# connected layers the rest. Here are the layers of a network like his: kernel size, channels, and the width of
# the image that comes out. With $N$ ranks and numbers of 4 bytes, a rank sends in one step
#
# $$\text{data: } \tfrac{2(N-1)}{N}\,4\,W
# \qquad \text{model: } \tfrac{N-1}{N}\,4\,B\,(\text{inputs}+\text{outputs})$$
#
# for $W$ weights and $B$ examples in the batch of all ranks: the outputs are gathered on the way forward, the
# gradients of the inputs are summed on the way back (but for conv 1, whose inputs are the images). (You meet the factor $2(N-1)/N$ again below.)

# %%
RANKS, BATCH = 4, 512
#         kernel, inputs, outputs, width before, width after (fully connected: kernel = width = 1)
LAYERS = {
    "conv 1": (11, 3, 96, 227, 55), "conv 2": (5, 96, 256, 27, 27), "conv 3": (3, 256, 384, 13, 13),
    "conv 4": (3, 384, 384, 13, 13), "conv 5": (3, 384, 256, 13, 13),
    "fc 6": (1, 9216, 4096, 1, 1), "fc 7": (1, 4096, 4096, 1, 1), "fc 8": (1, 4096, 1000, 1, 1),
}  # fmt: skip

weights = {name: k * k * a * b for name, (k, a, b, _, _) in LAYERS.items()}
work = {name: weights[name] * LAYERS[name][4] ** 2 for name in LAYERS}  # multiplications an example
data_mb = [2 * (RANKS - 1) / RANKS * 4 * w / 1e6 for w in weights.values()]
model_mb = [
    (RANKS - 1) / RANKS * 4 * BATCH * (a * before**2 * (name != "conv 1") + b * after**2) / 1e6
    for name, (_, a, b, before, after) in LAYERS.items()
]
for what, amounts in (("weights", weights), ("multiplications", work)):
    convolutions = sum(amounts[name] for name in LAYERS if name.startswith("conv"))
    print(f"{convolutions / sum(amounts.values()):5.1%} of the {what} are in the convolutions")

# %%
figure, axes = plt.subplots(figsize=(9, 4))
at = np.arange(len(LAYERS))
axes.bar(at - 0.2, data_mb, 0.4, label="data parallel: gradients")
axes.bar(at + 0.2, model_mb, 0.4, hatch="//", label="model parallel: activations")
axes.set(yscale="log", ylabel="MB a rank sends in a step", xticks=at, xticklabels=LAYERS)
axes.set_title(f"Split the batch where the weights are few ({RANKS} ranks, {BATCH} examples)")
figure.legend(loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# Convolutions are cheaper data parallel, fully connected layers model parallel. Today's image networks have few
# large fully connected layers, and this course stays data parallel up to lab 13, which splits layers. Krizhevsky mixed both: 98.05 hours on
# one GPU became 15.68 on eight, 6.25 times as fast.
#
# ## Combine the gradients of unequal shards
#
# Rank $k$ has $m_k$ of the $n$ examples and knows the mean gradient $g_k$ over *its* examples. The gradient of the
# whole batch is
#
# $$g = \frac{1}{n}\sum_{i=1}^{n} \nabla \ell_i = \sum_k \frac{m_k}{n}\, g_k .$$
#
# ### Exercise 1
#
# Write `combine(local_gradients, local_counts)`: a list of arrays of one shape (any shape) and a list of numbers of
# examples. Return the mean gradient over all examples.
#
# <details><summary>Hint 1</summary>How many examples does a gradient speak for? That, divided by the number of all
# examples, is its weight.</details>
#
# <details><summary>Hint 2</summary><code>zip(local_gradients, local_counts)</code> gives the pairs; the weights must
# add up to 1.</details>


# %%
def combine(local_gradients, local_counts):
    """Return the mean gradient over the examples of all ranks."""
    # BEGIN SOLUTION: return the mean gradient over the examples of all ranks
    n = sum(local_counts)
    return sum(m / n * g for g, m in zip(local_gradients, local_counts, strict=True))
    # END SOLUTION


# %%
exercises.check_combine(combine)

# %% [markdown]
# Try it on the linear neuron of lab 2. We deal 120 examples to 4 ranks, ever more of them to rank 0, and compare the
# combined gradient with that of the whole batch (means and standard deviations of 100 deals).

# %%
rng = np.random.default_rng(0)
x = rng.uniform(0, 10, 120)
y = 10 * (x + rng.normal(size=120)) + 2


def gradient(x, y):
    """(dw, db) of the mean squared error of w x + b, where both are still 0."""
    return -2 * np.array([np.mean(x * y), np.mean(y)])


def errors(largest):
    """Relative error of both ways, for one random deal with that many examples on rank 0."""
    rest = (120 - largest) // 3
    shards = np.split(rng.permutation(120), [largest, largest + rest, largest + 2 * rest])
    local = [gradient(x[shard], y[shard]) for shard in shards]
    both = np.mean(local, axis=0), combine(local, [len(shard) for shard in shards])
    return [np.linalg.norm(g / gradient(x, y) - 1) for g in both]


largest = np.array([30, 45, 60, 75, 90, 105, 114])
found = np.array([[errors(on_rank_0) for _ in range(100)] for on_rank_0 in largest])
figure, axes = plt.subplots()
for way, label in enumerate(("plain mean of the four gradients", "combine: weights $m_k/n$")):
    mean, std = 100 * found[..., way].mean(axis=1), 100 * found[..., way].std(axis=1)
    axes.errorbar(100 * largest / 120, mean, std, fmt="o-", capsize=3, label=label)
axes.set(xlabel="share of the examples on rank 0, %", ylabel="relative error of the gradient, %")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# With equal shards (25 %) the plain mean is right, and it is what Horovod computes. With unequal ones it gives the few
# examples of the small shards too much weight. The easiest way out is to deal every rank equally many examples.
#
# ## Start four ranks
#
# A program on $N$ ranks is **one script, started $N$ times**. `MPI.COMM_WORLD` tells each copy which one it is
# (`rank`) and how many there are (`size`). `run(script, ranks=4)` starts `mpirun -np 4 python script` and shows what
# the ranks print. Run the second cell several times: who prints first?

# %%
hello = WORK / "hello.py"
_ = hello.write_text("""\
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"I am rank {comm.rank} of {comm.size}", flush=True)

mine = np.array([float(comm.rank) ** 2])
everyone = np.empty(comm.size) if comm.rank == 0 else None
comm.Gather(mine, everyone, root=0)  # every rank calls it; only the root gets the result
if comm.rank == 0:
    print("rank 0 speaks for all:", everyone)
""")

# %%
printed = run(hello, ranks=4)

# %% [markdown]
# The order of the lines is an accident: the ranks run at the same time. So the rule of all that follows: **collect on
# rank 0, and let rank 0 print** (and write files).
#
# For short pieces there is `call(function, *arguments, ranks=N)`. It sends the *source* of a function to $N$ ranks,
# runs `function(comm, *arguments)` there and returns the list of what each returned. The function can use only what
# is inside it, `np` and `MPI`, and your functions that you name in `uses=(...)`. What goes in and out are numbers, texts, lists and dicts; arrays become lists.


# %%
def square_of_rank(comm):
    return {"rank": comm.rank, "square": comm.rank**2}


call(square_of_rank, ranks=4)

# %% [markdown]
# ## Train on 1, 2 and 4 ranks
#
# The claim of data parallelism: **N ranks with B examples each take the same steps as one rank with N·B**, as long as no
# layer looks across the examples, as batch norm does (lab 7). We test it on Fashion-MNIST with the smallest network there
# is, one layer with softmax, on every fourth pixel. The ranks read the data from a file.

# %%
fashion = load_fashion_mnist()
if fashion.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
images = fashion.train_images[:, ::4, ::4, 0].reshape(-1, 49).astype(np.float32) / 255
np.savez(WORK / "fashion_7x7.npz", images=images[:8192], labels=fashion.train_labels[:8192])

# %% [markdown]
# Read the function twice: this is all there is to data parallel training. Each rank takes its slice of the batch;
# rank 0's weights are broadcast once; the gradients are averaged in each step. Two switches leave a line out.


# %%
def train(comm, file, seed, global_batch, steps, broadcast, average):
    """Softmax regression with SGD; returns the weights before each step and at the end."""
    data, batch = np.load(file), global_batch // comm.size
    weights = np.random.default_rng([seed, comm.rank]).normal(0, 0.01, (50, 10)).astype(np.float32)
    if broadcast:
        comm.Bcast(weights, root=0)
    order, history = np.random.default_rng(seed).permutation(len(data["labels"])), [weights.copy()]
    images = np.pad(data["images"], [(0, 0), (0, 1)], constant_values=1)  # a one for the bias
    for step in range(steps):
        start = step * global_batch + comm.rank * batch
        chosen = order[start : start + batch]
        x, labels = images[chosen], data["labels"][chosen]
        scores = np.exp(x @ weights)
        error = scores / scores.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[labels]
        gradient = x.T @ error / batch  # the mean over this rank's examples
        if average:
            total = np.empty_like(gradient)
            comm.Allreduce(gradient, total)
            gradient = total / comm.size
        weights -= np.float32(0.1) * gradient
        history.append(weights.copy())
    return np.array(history)


# %% [markdown]
# What do you expect: how large is the largest difference between a weight on 4 ranks and the same weight on one rank
# after the last step? The numbers are float32, and the weights start at about 0.01.

# %%
prediction = None  # your guess of that difference, before you run the next cell

# %%
FILE, BATCH = str(WORK / "fashion_7x7.npz"), 64
STEPS = by_run_length(quick=10, learner=60, reference=120)


@cache
def train_alone(seed):
    return np.array(call(train, FILE, seed, BATCH, STEPS, True, True, ranks=1)[0])


def compare_with_one_rank(ranks, case, seed):
    switches = case != "not broadcast", case != "not averaged"
    together = np.array(call(train, FILE, seed, BATCH, STEPS, *switches, ranks=ranks))
    differences = np.abs(together - train_alone(seed))  # rank, step, input, class
    largest = differences.max(axis=(0, 2, 3))
    return [{"step": step, "difference": value} for step, value in enumerate(largest) if value]


cases = [(2, "right"), (4, "right"), (4, "not averaged"), (4, "not broadcast")]
settings = [
    {"ranks": ranks, "case": case, "seed": seed} for ranks, case in cases for seed in seeds(1)
]
equality = sweep("serial_equals_parallel", compare_with_one_rank, settings)

# %%
shipped = reference("serial_equals_parallel")
figure, axes = plt.subplots(figsize=(9, 4.5))
axes.set_yscale("log")
for table in (equality, shipped):
    table["run"] = table["ranks"].astype(str) + " ranks, " + table["case"]
labels = {run: run for run in equality["run"].unique()}
every_fifth = equality[equality["step"] % 5 == 0]
overlay(axes, every_fifth, shipped, x="step", y="difference", by="run", labels=labels)
axes.axhline(1e-6, color="grey", linestyle=":")
predicted(axes, prediction, x=STEPS)
axes.set_ylabel("largest difference of a weight\nfrom training on one rank")
axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
plt.show()

# %% [markdown]
# **What you should see.** Averaged and broadcast, all ranks stay within $10^{-6}$ of the single one: what is left is the
# rounding of float32, because the sum over the batch is taken in another order. Without the broadcast the ranks start
# apart and stay apart. Without averaging each trains its own network on its own examples, and it walks away.
# Neither mistake stops the program: you have to look.
#
# ## See the collectives
#
# `Bcast` and `Allreduce` are two of the *collectives*: operations that **all ranks call together**. Here are seven, run
# on 4 ranks. Rank $r$ starts with squares a, b, c, d in its own colour. Each square holds the number $2^{4c + r}$ for
# chunk $c$ and rank $r$: a sum of such numbers tells exactly what was added, so the picture is drawn from real results.


# %%
def collectives(comm):
    """Run seven collectives; return {name: [before, after]} of this rank."""
    squares = 2 ** (4 * np.arange(4) + comm.rank)  # mine: a, b, c, d
    one = squares[comm.rank : comm.rank + 1]
    on_root = squares if comm.rank == 0 else np.zeros(4, dtype=int)
    broadcast = on_root.copy()
    comm.Bcast(broadcast, root=0)
    results = {"broadcast": [on_root, broadcast]}
    for name, collective, before, length in (
        ("scatter", comm.Scatter, on_root, 1),
        ("gather", comm.Gather, one, 4),
        ("all-gather", comm.Allgather, one, 4),
        ("reduce", comm.Reduce, squares, 4),
        ("all-reduce", comm.Allreduce, squares, 4),
        ("reduce-scatter", comm.Reduce_scatter_block, squares, 1),
    ):
        after = np.zeros(length, dtype=int)
        collective(before, after)
        results[name] = [before, after]
    return results


results = call(collectives, ranks=4)


# %%
def square(axes, x, y, number):
    """Draw one number: a stripe in the colour of each rank in it, and the letter of its chunk."""
    axes.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, linestyle=":", edgecolor="grey"))
    parts = [bit for bit in range(16) if number >> bit & 1]
    for place, bit in enumerate(parts):
        at, width = x + 0.9 * place / len(parts), 0.9 / len(parts)
        axes.add_patch(Rectangle((at, y), width, 0.9, facecolor=COLOURS[bit % 4]))
        axes.text(x + 0.45, y + 0.42, "abcd"[bit // 4], ha="center", va="center", color="white")


def draw_collective(axes, name, ranks):
    """One row for each rank: its squares before (left) and after (right)."""
    for rank, before_after in enumerate(ranks):
        axes.text(-0.2, 3.45 - rank, str(rank), ha="right", va="center")
        for side, numbers in enumerate(before_after):
            for chunk in range(4):
                number = sum(n for n in numbers if n >> 4 * chunk & 15)  # that of this letter
                square(axes, 5.2 * side + chunk, 3 - rank, number)
    axes.annotate("", (5.1, 2), (4.0, 2), arrowprops={"arrowstyle": "-|>", "linewidth": 2})
    axes.set(title=name, xlim=(-0.8, 9.3), ylim=(-0.1, 4.1), aspect="equal")
    axes.axis("off")


figure, all_axes = plt.subplots(2, 4, figsize=(13, 4))
for axes, name in zip(all_axes.flat, results[0], strict=False):
    draw_collective(axes, name, [result[name] for result in results])
all_axes.flat[-1].axis("off")
legend = [Patch(color=COLOURS[rank], label=f"from rank {rank}") for rank in range(4)]
all_axes.flat[-1].legend(handles=legend, loc="center", fontsize=12)
plt.show()

# %% [markdown]
# A square with four stripes is a sum over four ranks. Reduce-scatter leaves each rank one finished square, and all-gather
# hands such squares to everyone: **reduce-scatter, then all-gather, is all-reduce.** Exercise 3 uses that.
#
# ## Write an all-reduce
#
# Only four methods are allowed from here on: `comm.Send(array, dest=k)`, `comm.Recv(array, source=k)`, both in one,
# `comm.Sendrecv(out, dest=k, recvbuf=into, source=j)`, and `comm.Isend` (it returns at once; call `.Wait()` on what it
# returns). `Recv` writes into an array that you make beforehand, of the same type and length as what was sent.
#
# ### Exercise 2: the naive way
#
# Write `naive_all_reduce(comm, values)`: rank 0 receives the array of every other rank, adds them up, and sends the sum
# to every other rank. Each rank returns the sum.
#
# <details><summary>Hint 1</summary>Rank 0 and the others run the same function: <code>if comm.rank == 0:</code> receive
# from 1, 2, ..., then send to them; <code>else:</code> the mirror image of it.</details>
#
# <details><summary>Hint 2</summary><code>received = np.empty_like(values)</code>, then
# <code>comm.Recv(received, source=rank)</code> in a loop over <code>range(1, comm.size)</code>.</details>


# %%
def naive_all_reduce(comm, values):
    """Return the sum of `values` over all ranks: everything goes to rank 0, and back."""
    # BEGIN SOLUTION: gather on rank 0, add, and send the sum to all
    total = values.copy()
    if comm.rank == 0:
        received = np.empty_like(values)
        for rank in range(1, comm.size):
            comm.Recv(received, source=rank)
            total += received
        for rank in range(1, comm.size):
            comm.Send(total, dest=rank)
    else:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
    return total
    # END SOLUTION


# %%
exercises.check_naive_all_reduce(naive_all_reduce)

# %% [markdown]
# ### Exercise 3: the ring
#
# With the naive way rank 0 does all the work. The ring (Baidu's, and the one Horovod took over) shares it: the array is
# cut into $N$ chunks, and rank $r$ only ever sends to $r+1$ and receives from $r-1$ (modulo $N$).
# Steps count from 0.
#
# 1. **Reduce-scatter**, $N-1$ steps: in step $s$ rank $r$ sends chunk $r-s$, receives chunk $r-s-1$ and *adds* it to its
#    own. At the end rank $r$ has the finished sum of chunk $r+1$.
# 2. **All-gather**, $N-1$ steps: in step $s$ rank $r$ sends chunk $r+1-s$ (finished) and *puts* the one it receives,
#    chunk $r-s$, in its place.
#
# Write `ring_all_reduce(comm, values)` for a vector of any length, on 1, 2, 3 or 4 ranks. Each step sends
# one chunk, so a rank sends $2(N-1)/N$ times the bytes of the vector, however many ranks there are.
#
# <details><summary>Hint 1</summary><code>chunks = np.array_split(result, comm.size)</code> also cuts lengths that
# <code>size</code> does not divide. The chunks are views: writing into one writes into <code>result</code>.</details>
#
# <details><summary>Hint 2</summary>If everyone sends first, nobody receives: use <code>comm.Sendrecv</code>. One step of
# phase 1 is a <code>Sendrecv</code> into an empty array like <code>chunks[(rank - step - 1) % size]</code>, and an
# addition. In phase 2 you can receive right into the chunk.</details>


# %%
def ring_all_reduce(comm, values):
    """Return the sum of the vector `values` over all ranks, sending one chunk a step round a ring."""
    # BEGIN SOLUTION: reduce-scatter in N-1 steps, then all-gather in N-1 steps
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    result = values.copy()
    chunks = np.array_split(result, size)
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        received = np.empty_like(mine)
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        mine += received
    for step in range(size - 1):
        stale = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank + 1 - step) % size], dest=right, recvbuf=stale, source=left)
    return result
    # END SOLUTION


# %%
exercises.check_ring_all_reduce(ring_all_reduce)

# %% [markdown]
# Watch your ring at work. `Counting` is a communicator that counts bytes and keeps every message; the check uses it too.
# With the numbers of the collectives above, each message tells what is in it: this is what each rank *sends*, step by
# step.


# %%
def messages_of_the_ring(comm):
    from hvdlab.exercises.harness.counting_communicator import Counting

    counting = Counting(comm)
    ring_all_reduce(counting, 2 ** (4 * np.arange(comm.size) + comm.rank))
    return [message.tolist() for message in counting.messages]


sent = call(messages_of_the_ring, ranks=4, uses=(ring_all_reduce,))

figure, axes = plt.subplots(figsize=(7, 3.8))
for rank, messages in enumerate(sent):
    axes.text(-0.2, 3.45 - rank, f"rank {rank} sends", ha="right", va="center")
    for step, (number,) in enumerate(messages):
        square(axes, step + 0.5 * (step > 2), 3 - rank, number)
axes.text(1.45, 4.15, "reduce-scatter", ha="center")
axes.text(4.95, 4.15, "all-gather", ha="center")
axes.set(xlim=(-2, 6.6), ylim=(-0.1, 4.5), aspect="equal")
axes.axis("off")
plt.show()

# %% [markdown]
# In the first half the squares grow from one stripe to three: partial sums. In the second half every square has four:
# finished sums on their way round.
#
# ## Measure bytes and time
#
# How many bytes go through the busiest rank, in and out? The naive root receives $N-1$ arrays and sends $N-1$; a rank
# of the ring sends $2(N-1)/N$ arrays and receives as many.

# %%
prediction = None  # naive, 4 ranks, arrays of 1 MB: MB through rank 0


# %%
def count_bytes(comm, length):
    """Bytes through this rank when the first 2, 3 and 4 ranks do it: rank 0 is the busiest."""
    from hvdlab.exercises.harness.counting_communicator import Counting

    rows = []
    for ranks in (2, 3, 4):
        some = comm.Split(color=int(comm.rank < ranks))  # those below `ranks`, and the others
        row = {}
        for name, all_reduce in (("naive", naive_all_reduce), ("ring", ring_all_reduce)):
            counting = Counting(some)
            all_reduce(counting, np.zeros(length, dtype=np.float32))
            row[name] = counting.sent + counting.received
        rows.append(row)
    return rows


OURS = naive_all_reduce, ring_all_reduce
rows = call(count_bytes, 250_000, ranks=4, uses=OURS)[0]
ranks = np.arange(2, 17)
figure, axes = plt.subplots()
for name, formula in (("naive", 2 * (ranks - 1)), ("ring", 4 * (ranks - 1) / ranks)):
    (line,) = axes.plot(ranks, formula, "--", label=f"{name}, by the formula")
    counted = [row[name] / 1e6 for row in rows]
    axes.plot([2, 3, 4], counted, "o", color=line.get_color(), label=f"{name}, counted")
predicted(axes, prediction, x=4)
axes.set(xlabel="ranks", ylabel="MB through the busiest rank (rank 0)\nfor arrays of 1 MB")
axes.legend()
plt.show()

# %% [markdown]
# Now the time, compared with MPI's own `comm.Allreduce`, for arrays of 1 KB to 16 MB. Two measures are common (nccl-tests and
# others use them): the *algorithm bandwidth* is the size of the array over the time, and the *bus bandwidth* corrects it
# for what has to be sent anyway, so that it can be compared across numbers of ranks:
#
# $$\text{algbw} = \frac{\text{bytes}}{t}, \qquad \text{busbw} = \text{algbw} \cdot \frac{2(N-1)}{N}.$$


# %%
def measure(comm, sizes):
    """The time of three all-reduces at each size in bytes: the slowest rank, the median of some rounds."""
    from mpi4py import MPI

    def mpi_all_reduce(comm, values):
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        return total

    rows = []
    for nbytes in sizes:
        values, rounds = np.zeros(nbytes // 4, dtype=np.float32), max(5, min(100, 2**23 // nbytes))
        mine, slowest = np.empty(rounds), np.empty(rounds)
        for all_reduce in (naive_all_reduce, ring_all_reduce, mpi_all_reduce):
            all_reduce(comm, values)  # the first call makes connections
            for i in range(rounds):
                comm.Barrier()
                start = MPI.Wtime()
                all_reduce(comm, values)
                mine[i] = MPI.Wtime() - start
            comm.Allreduce(mine, slowest, MPI.MAX)
            row = {"bytes": nbytes, "milliseconds": 1000 * np.median(slowest)}
            rows.append({"algorithm": all_reduce.__name__.removesuffix("_all_reduce"), **row})
    return rows


# %% [markdown]
# For comparison, here is how long one process takes to copy 16 MB within memory. How long will `comm.Allreduce` take for
# 16 MB on 2 ranks?

# %%
values, spans = np.ones(2**22, dtype=np.float32), []
for _ in range(5):
    start = perf_counter()
    values.copy()
    spans.append(1000 * (perf_counter() - start))
print(f"{np.median(spans):.1f} ms")

# %%
prediction = None  # milliseconds

# %%
SIZES = by_run_length(
    quick=[2**10, 2**17, 2**20],
    learner=[4**k for k in range(5, 13)],
    reference=[4**k for k in range(5, 13)],
)


def all_reduce_time(ranks, repeat):
    rows = call(measure, SIZES, ranks=ranks, timeout=300, uses=OURS)[0]
    for row in rows:
        gigabytes, seconds = row["bytes"] / 1e9, row["milliseconds"] / 1e3
        row["KB"] = row["bytes"] // 1024
        row["busbw"] = gigabytes / seconds * 2 * (ranks - 1) / ranks
    return rows


settings = grid(ranks=[2, 4], repeat=seeds(3, 5))
times = sweep("allreduce_time", all_reduce_time, settings)

# %%
shipped_times = reference("allreduce_time")
ALGORITHMS = {"naive": "naive", "ring": "ring", "mpi": "comm.Allreduce"}


def draw_times(column, says, prediction):
    figure, both = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axes, ranks in zip(both, (2, 4), strict=True):
        mine, theirs = (
            times[times["ranks"] == ranks],
            shipped_times[shipped_times["ranks"] == ranks],
        )
        columns = {"x": "KB", "y": column, "by": "algorithm"}
        overlay(axes, mine, theirs, **columns, labels=ALGORITHMS, times=True)
        axes.set(xscale="log", yscale="log", title=f"{ranks} ranks", ylabel=says)
        axes.set_xlabel("size of the array, KB")
    predicted(both[0], prediction, x=SIZES[-1] / 1024)
    both[1].get_legend().remove()
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    both[0].get_legend().remove()
    plt.show()


draw_times("milliseconds", "time of an all-reduce, ms", prediction)

# %%
draw_times("busbw", "bus bandwidth, GB/s", None)

# %% [markdown]
# **What you should see.** From 1 KB to 64 KB the array grows 64-fold and the time far less: that is the *latency* of
# starting a message. The ring has the most of it: on 2 ranks it is Python that cuts the array into chunks and adds, which alone
# takes microseconds; on 4 each of the $2(N-1)$ steps also waits for the step before it on another rank. Large arrays
# cost roughly in proportion to their size: that is the *bandwidth*. There your ring is ahead of the naive way on 2 ranks,
# although both move the same bytes: in the ring both ranks send and add at once. Look also at MPI's own: a library
# picks its way by size, tuned for a network. On one machine all ranks share one memory, and 4 ranks may share 2 cores, so
# expect other orders of magnitude on a cluster.

# %%
few = [table[table["bytes"].isin([2**10, 2**20, 2**24])] for table in (times, shipped_times)]
compare(*few, by=["ranks", "KB", "algorithm"], value="milliseconds")
