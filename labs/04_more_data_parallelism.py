# %% [markdown]
# # Lab 4, optional: More of data parallelism
#
# This notebook continues lab 4. It compares data and model parallelism layer by layer, counts the bytes of your
# all-reduces, and measures their time. No later lab needs it.
#
# **After this notebook you can** compute the bytes and the time of an all-reduce by three algorithms, tell latency
# from bandwidth in a measurement, and find page faults that make a program slow.
#
# **Builds on** lab 4. **Time:** 50 minutes. The computer needs about two of them.

# %% tags=["folded"]
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import clear_best, compare, describe, overlay, predicted
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab04_rank_functions as rank_exercises
from hvdlab.exercises.lab04_data_parallelism import combine, naive_all_reduce, ring_all_reduce
from hvdlab.exercises.lab04_time import check_all_reduce_time
from hvdlab.launch import call

workbook = Workbook(4)

# %% [markdown]
# ## Bytes per step of each layer of a network
#
# Krizhevsky ([2014](https://arxiv.org/abs/1404.5997)) observed that in his image network the convolutions have
# about 90 to 95 % of the computation and about 5 % of the parameters, and that the fully connected layers have
# the rest. The next cell computes with the formulas of lab 4 how many bytes each layer of such a network
# exchanges on 4 ranks. In the backward pass of model parallelism each rank knows a part of the sum for the
# gradient of every input. The ranks add up these parts, and each rank keeps only the inputs that it has computed
# itself. This is half of what an all-reduce does, so it costs half. The first layer needs no gradient of its
# inputs, because these are the images.

# %% tags=["folded"]
RANKS, BATCH = 4, 512
#         kernel, inputs, outputs, width before, width after (fully connected: kernel = width = 1)
LAYERS = {
    "conv 1": (11, 3, 96, 227, 55), "conv 2": (5, 96, 256, 27, 27), "conv 3": (3, 256, 384, 13, 13),
    "conv 4": (3, 384, 384, 13, 13), "conv 5": (3, 384, 256, 13, 13),
    "fc 6": (1, 9216, 4096, 1, 1), "fc 7": (1, 4096, 4096, 1, 1), "fc 8": (1, 4096, 1000, 1, 1),
}  # fmt: skip

weights = {name: k * k * a * b for name, (k, a, b, _, _) in LAYERS.items()}
work = {name: weights[name] * LAYERS[name][4] ** 2 for name in LAYERS}  # products per example
data_mb = [2 * (RANKS - 1) / RANKS * 4 * w / 1e6 for w in weights.values()]
model_mb = [
    (RANKS - 1) / RANKS * 4 * BATCH * (a * before**2 * (name != "conv 1") + b * after**2) / 1e6
    for name, (_, a, b, before, after) in LAYERS.items()
]
for what, amounts in (("weights", weights), ("multiplications", work)):
    convolutions = sum(amounts[name] for name in LAYERS if name.startswith("conv"))
    print(f"{convolutions / sum(amounts.values()):5.1%} of the {what} are in the convolutions")

figure, axes = plt.subplots(figsize=(9, 4))
at = np.arange(len(LAYERS))
axes.bar(at - 0.2, data_mb, 0.4, label="data parallel: gradients")
axes.bar(at + 0.2, model_mb, 0.4, hatch="//", label="model parallel: activations")
axes.set(yscale="log", ylabel="MB that a rank sends per step", xticks=at, xticklabels=LAYERS)
axes.set_title(f"Exchange per layer ({RANKS} ranks, {BATCH} examples in all)")
figure.legend(loc="outside lower center", ncols=2)
describe(
    figure,
    "Bars of the megabytes that a rank sends per step for eight layers. For the five convolutions data "
    "parallelism sends far less, for the three fully connected layers model parallelism sends less.",
)

# %% [markdown]
# The convolutions are cheaper with data parallelism, because they have few weights and large activations. The
# fully connected layers are cheaper with model parallelism. Krizhevsky combined both: 98.05 hours on one GPU
# became 15.68 hours on eight GPUs, 6.25 times as fast.
#
# ## Error of the plain mean
#
# How large is the error if the plain mean averages the gradients of *unequal* shards? The next cell takes the
# linear neuron of lab 2, splits 120 examples among 4 ranks at random, gives rank 0 more and more of them, and
# compares the plain mean and `combine` of exercise 1 with the gradient of the whole batch.

# %% tags=["folded"]
rng = np.random.default_rng(0)
x = rng.uniform(0, 10, 120)
y = 10 * (x + rng.normal(size=120)) + 2


def line_gradient(x, y):
    """(dw, db) of the mean squared error of w x + b, where both are still 0."""
    return -2 * np.array([np.mean(x * y), np.mean(y)])


def errors(largest):
    """Relative error of both means, for one random split with that many examples on rank 0."""
    rest = (120 - largest) // 3
    shards = np.split(rng.permutation(120), [largest, largest + rest, largest + 2 * rest])
    local = [line_gradient(x[shard], y[shard]) for shard in shards]
    both = np.mean(local, axis=0), combine(local, [len(shard) for shard in shards])
    return [np.linalg.norm(g / line_gradient(x, y) - 1) for g in both]


largest = np.array([30, 45, 60, 75, 90, 105, 114])
found = np.array([[errors(on_rank_0) for _ in range(100)] for on_rank_0 in largest])
figure, axes = plt.subplots()
for kind, label in enumerate(("plain mean of the four gradients", "combine: weights $n_k/n$")):
    mean, std = 100 * found[..., kind].mean(axis=1), 100 * found[..., kind].std(axis=1)
    axes.errorbar(100 * largest / 120, mean, std, fmt="o-", capsize=3, label=label)
axes.set(xlabel="examples on rank 0, % of all", ylabel="relative error of the gradient, %")
axes.legend(loc="upper left")
describe(
    figure,
    "Relative error of the gradient against the percentage of examples on rank 0, mean and deviation of "
    "100 splits. The plain mean is exact at 25 percent and gets worse, the weighted mean is always exact.",
)

# %% [markdown]
# With equal shards (25 % on rank 0) the plain mean is exact. With unequal shards its error grows, because a few
# examples of the small shards get too much weight.
#
# ## Algorithms of NCCL and Horovod
#
# [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002) described the ring.
# [Baidu](https://andrew.gibiansky.com/blog/machine-learning/baidu-allreduce/) brought it to deep learning in 2017
# with a patch for TensorFlow. Horovod started from Baidu's code in the same year and soon replaced it by calls of
# NCCL and MPI ([Sergeev and Del Balso, 2018](https://arxiv.org/abs/1802.05799)). So today Horovod does not contain
# a ring of its own. On CPUs the build of this course calls `MPI_Allreduce`. On GPUs Horovod calls NCCL, which
# chooses between rings and trees. On large systems NCCL uses [double binary
# trees](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/), in which every rank
# has work in each step.
#
# ## Counted bytes of an all-reduce
#
# ### Exercise 8: Bytes through the busiest rank
#
# **What.** Write `busiest_bytes(algorithm, ranks, size)`. **Why.** You need such a formula whenever you
# estimate whether a network is fast enough (lab 18). **Signature.** `algorithm` is "naive" (the root
# algorithm), "tree" or "ring", `ranks` is a power of two, and `size` is the number of bytes of the array.
# Return the bytes that the busiest rank sends and receives together.
#
# <details><summary>Hint 1: the idea</summary>Use the second column of the table in lab 4.</details>
#
# <details><summary>Hint 2: a smaller case</summary>For 4 ranks and 1000 bytes: root 2 * 3 * 1000 = 6000, tree
# 2 * 2 * 1000 = 4000, ring 4 * 3/4 * 1000 = 3000.</details>
#
# <details><summary>Hint 3: nearly the lines</summary>Make a dict from the name to the number of arrays, for
# example <code>"tree": 2 * np.log2(ranks)</code>, and multiply its value by <code>size</code>.</details>


# %%
def busiest_bytes(algorithm, ranks, size):
    """Return the bytes that the busiest rank sends and receives in an all-reduce."""
    # BEGIN SOLUTION: return the bytes in and out of the busiest rank
    arrays = {
        "naive": 2 * (ranks - 1),
        "tree": 2 * np.log2(ranks),
        "ring": 4 * (ranks - 1) / ranks,
    }
    return arrays[algorithm] * size
    # END SOLUTION


# %%
rank_exercises.check_busiest_bytes(busiest_bytes)

# %% [markdown]
# The next cell counts the bytes of the root algorithm and the ring on 2, 3 and 4 ranks, and draws your formula next to
# them. Predict the ring's number first: how many MB pass through a rank for an array of 1 MB on 16 ranks?

# %%
# Prediction 2: MB through each rank of the ring, 16 ranks, array of 1 MB. Replace both values of None.
prediction = workbook.predict(2, None, reason=None)


# %% tags=["folded"]
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
ranks = np.array([2, 4, 8, 16])
figure, axes = plt.subplots()
for name in ("naive", "tree", "ring"):
    formula = [busiest_bytes(name, n, 1) for n in ranks]
    (line,) = axes.plot(ranks, formula, "--", label=f"{name}, your formula")
    if name in rows[0]:
        counted = [row[name] / 1e6 for row in rows]
        axes.plot([2, 3, 4], counted, "o", color=line.get_color(), label=f"{name}, counted")
predicted(axes, prediction, x=16)
axes.set(xlabel="ranks", ylabel="MB through the busiest rank\nfor an array of 1 MB")
axes.legend()
describe(
    figure,
    "Megabytes through the busiest rank against the number of ranks for an array of 1 MB. The root "
    "algorithm grows linearly to 30, the tree to 8, and the ring stays below 4.",
)
workbook.result(2, busiest_bytes("ring", 16, 1))

# %% [markdown]
# On 2 ranks all three algorithms move 2 MB through each rank. From 4 ranks on the ring moves the fewest
# bytes. With 16 ranks its number is $4 \cdot 15/16 = 3.75$ MB, one eighth of the root's 30 MB.
#
# ## Time of an all-reduce
#
# A message of $m$ bytes takes about $\alpha + m/\beta$ seconds, with the latency $\alpha$ and the bandwidth
# $\beta$. The steps of an all-reduce follow each other, so their times add up.
#
# ### Exercise 9: Time of an all-reduce
#
# **What.** Write `all_reduce_time(algorithm, ranks, size, latency, bandwidth)`. **Why.** It tells for which sizes a
# tree is faster than a ring. **Signature.** `algorithm` is "tree" or "ring", `ranks` is a power of two, `size` is
# the number of bytes of the array, `latency` is in seconds and `bandwidth` in bytes per second. Return the seconds
# of all steps, without the time of the additions.
#
# <details><summary>Hint 1: the idea</summary>Multiply the number of steps by the time of the message of one
# step.</details>
#
# <details><summary>Hint 2: a smaller case</summary>On 4 ranks the tree has 2 * 2 = 4 steps with the whole array,
# and the ring 2 * 3 = 6 steps with a quarter of it.</details>
#
# <details><summary>Hint 3: nearly the lines</summary><code>steps, part = ...</code> for each algorithm, then
# <code>steps * (latency + part * size / bandwidth)</code>.</details>


# %%
def all_reduce_time(algorithm, ranks, size, latency, bandwidth):
    """Return the seconds of an all-reduce of an array of `size` bytes."""
    # BEGIN SOLUTION: multiply the steps by the time of a message
    steps, part = {
        "tree": (2 * np.log2(ranks), 1),
        "ring": (2 * (ranks - 1), 1 / ranks),
    }[algorithm]
    return steps * (latency + part * size / bandwidth)
    # END SOLUTION


# %%
check_all_reduce_time(all_reduce_time)

# %% tags=["folded"]
sizes = 4.0 ** np.arange(5, 14)
figure, axes = plt.subplots()
for ranks, color in ((4, "C0"), (64, "C1")):
    for algorithm, style in (("tree", "--"), ("ring", "-")):
        milliseconds = [1000 * all_reduce_time(algorithm, ranks, size, 5e-6, 2e9) for size in sizes]
        label = f"{algorithm}, {ranks} ranks"
        axes.plot(sizes / 1024, milliseconds, style, color=color, label=label)
axes.set(xscale="log", yscale="log", xlabel="size of the array, KB", ylabel="computed time, ms")
axes.legend()
describe(
    figure,
    "Computed time of a tree and of a ring against the size of the array, for 4 and 64 ranks. For small "
    "arrays the tree is faster, for large ones the ring.",
)

# %% [markdown]
# With $\alpha = 5$ µs and $\beta = 2$ GB/s the tree is faster for small arrays and the ring for large ones. The
# more ranks, the larger is the size at which the lines cross.
#
# ### Algorithm bandwidth and bus bandwidth
#
# Benchmarks such as nccl-tests report two measures. The *algorithm bandwidth* is the size of the array
# divided by the time. The *bus bandwidth* multiplies it by $2(N-1)/N$, the arrays that each rank must send in
# any case. It can be compared across numbers of ranks.
#
# $$\text{algbw} = \frac{\text{bytes}}{t}, \qquad \text{busbw} = \text{algbw} \cdot \frac{2(N-1)}{N}.$$


# %%
def measure(comm, sizes):
    """The time of some all-reduces at each size in bytes: the slowest rank, the median of some rounds."""
    from mpi4py import MPI

    def mpi_all_reduce(comm, values):
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        return total

    def mpi_same_array_all_reduce(comm, values):
        comm.Allreduce(values, kept)
        return kept

    rows = []
    for nbytes in sizes:
        kept = np.zeros(nbytes // 4, dtype=np.float32)  # used again in every round
        values, rounds = np.zeros(nbytes // 4, dtype=np.float32), max(5, min(100, 2**23 // nbytes))
        mine, slowest = np.empty(rounds), np.empty(rounds)
        for all_reduce in (
            naive_all_reduce,
            ring_all_reduce,
            mpi_all_reduce,
            mpi_same_array_all_reduce,
        ):
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
# We compare the two functions of lab 4 with MPI's own `comm.Allreduce`, for arrays of 1 KB to 16 MB. It runs twice:
# once with a new array for the result in every call, and once with an array that is kept. The reference has
# no results of the second. For orientation, the next cell measures how long one process takes to copy 16 MB
# within memory. On one node a message is also a copy in memory.

# %%
values, spans = np.ones(2**22, dtype=np.float32), []
for _ in range(5):
    start = perf_counter()
    values.copy()
    spans.append(1000 * (perf_counter() - start))
print(f"{np.median(spans):.1f} ms to copy 16 MB")

# %% [markdown]
# On 2 ranks the root algorithm and the ring move the same bytes. Which of the two functions needs less
# time for 16 MB on 2 ranks, and why?

# %%
# Prediction 3: "naive", "ring" or "equal", and why? Replace both values of None.
workbook.predict(3, None, form=["naive", "ring", "equal"], reason=None)

# %% tags=["folded"]
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


times = sweep("allreduce_time", all_reduce_time, grid(ranks=[2, 4], repeat=seeds(3, 5)))

# %% tags=["folded"]
shipped_times = reference("allreduce_time")
ALGORITHMS = {"naive": "root", "ring": "ring", "mpi": "comm.Allreduce"}
ALGORITHMS["mpi_same_array"] = "comm.Allreduce, same result array"


def draw_times(column, label):
    figure, both = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axes, ranks in zip(both, (2, 4), strict=True):
        mine = times[times["ranks"] == ranks]
        theirs = shipped_times[shipped_times["ranks"] == ranks]
        columns = {"x": "KB", "y": column, "by": "algorithm"}
        overlay(axes, mine, theirs, **columns, labels=ALGORITHMS, times=True)
        axes.set(xscale="log", yscale="log", title=f"{ranks} ranks", ylabel=label)
        axes.set_xlabel("size of the array, KB")
    both[1].get_legend().remove()
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    both[0].get_legend().remove()
    return figure


describe(
    draw_times("milliseconds", "time of an all-reduce, ms"),
    "Time of all-reduces against the size of the array, for 2 and for 4 ranks. Small arrays need "
    "microseconds, and from 1 MB on the time grows in proportion to the size.",
)
largest = times[(times["ranks"] == 2) & (times["bytes"] == times["bytes"].max())]
own = largest[largest["algorithm"].isin(["naive", "ring"])]  # not that of MPI
workbook.result(3, clear_best(own.groupby("algorithm")["milliseconds"], lowest=True))

# %% tags=["folded"]
describe(
    draw_times("busbw", "bus bandwidth, GB/s"),
    "Bus bandwidth of all-reduces against the size of the array, for 2 and for 4 ranks. It rises "
    "with the size and levels off between 1 and 4 gigabytes per second.",
)

# %% tags=["folded"]
few = [table[table["bytes"].isin([2**10, 2**20, 2**24])] for table in (times, shipped_times)]
compare(*few, by=["ranks", "KB", "algorithm"], value="milliseconds")

# %% [markdown]
# **What the result means: latency.** From 1 KB to 64 KB the array grows 64-fold and the time grows far less.
# That is latency. The ring has the most of it, because its $2(N-1)$ steps follow each other, and because
# Python itself cuts the array into chunks, which takes some microseconds. **Bandwidth.** From 1 MB on the
# time is roughly proportional to the size. The ring is then faster than the root algorithm on 2 ranks,
# although both move the same bytes: in the reference seven times at 1 MB (0.16 ms compared with 1.12 ms) and
# twice at 16 MB (5.0 ms compared with 10.6 ms, medians of 5). One cause is that in the ring both ranks send and
# add at the same time. In the root algorithm rank 1 waits while rank 0 adds. The next section shows a second cause, which has nothing to do with
# messages.
#
# ### Why comm.Allreduce looks slow here
#
# In the figure the ring of lab 4, written in Python, is faster than MPI's own `comm.Allreduce` from 1 MB on: 0.16 ms
# compared with 0.78 ms for 1 MB in the reference (2 ranks, medians of 5). Do not conclude that MPI is slow.
# Look at the jump of its time between 256 KB and 1 MB, which is 13-fold for 4 times the bytes. The root
# algorithm jumps at the same place. The ring jumps far less. All three run on one node, so their messages are
# copies in memory. What differs is where the *result* goes.
#
# Each call makes a new array for the result, as `np.empty_like` does. The operating system gives memory to a
# process in *pages* of 4 KB, and only when the process touches them for the first time. This is a **page
# fault**, and it takes of the order of a microsecond. When arrays are freed, the memory allocator of the C
# library returns a large free block to the system, and keeps a smaller one for the next call. On two ranks
# the ring frees one and a half arrays per call: the result, and the received chunk, which is half an array.
# This block stays with the process. `comm.Allreduce` with a new result frees two: the result, and an array of
# the same size inside the library. The root algorithm frees two as well. These go back to the system, and the
# next call must fetch every page again.
#
# The next cell repeats the measurement for 1 MB and counts page faults. It adds a third variant, which calls
# `comm.Allreduce` with a result array that it keeps and uses again.


# %%
def count_page_faults(comm, length, rounds):
    """Median time and page faults per call of this rank, for three ways to compute a sum."""
    import resource

    from mpi4py import MPI

    def new_array(comm, values):
        total = np.empty_like(values)
        comm.Allreduce(values, total)

    def same_array(comm, values):
        comm.Allreduce(values, kept)

    rows, values, kept = [], np.ones(length, dtype=np.float32), np.zeros(length, dtype=np.float32)
    for all_reduce in (ring_all_reduce, new_array, same_array):
        seconds, faults = [], []
        for _ in range(rounds):
            comm.Barrier()
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, MPI.Wtime()
            all_reduce(comm, values)
            seconds.append(MPI.Wtime() - start)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        row = {"page faults": int(np.median(faults)), "ms": round(1000 * np.median(seconds), 2)}
        rows.append({"all-reduce": all_reduce.__name__, **row})
    return rows


measured = call(count_page_faults, 2**18, 40, ranks=2, uses=(ring_all_reduce,))[0]
pd.DataFrame(measured).set_index("all-reduce")


# %% [markdown]
# **What the result means.** The ring and the call with the same result array have no page faults. The call
# with a new result array has hundreds per MB. We tried other settings for 1 MB on 2 ranks, on a machine that
# had other work to do. The times are the shortest of 300 calls.
#
# | variant | page faults per call | ms |
# |---|---|---|
# | the ring of this lab | 0 | 0.34 |
# | `comm.Allreduce`, new result array | 353 | 1.5 |
# | `comm.Allreduce`, same result array | 0 | 0.34 |
# | new result array, with the variable `MALLOC_TRIM_THRESHOLD_=4294967296`, so that freed memory stays with the process | 0 | 0.29 |
# | new result array, with Open MPI's own ring (`OMPI_MCA_coll_tuned_use_dynamic_rules=1` and `OMPI_MCA_coll_tuned_allreduce_algorithm=4`), which needs a smaller temporary array | 0 | 0.31 |
# | new result array, without single-copy messages (`OMPI_MCA_smsc=^cma`) | 353 | 1.8 |
#
# So the page faults explain the difference, and the messages do not. Without page faults `comm.Allreduce` is
# as fast as the ring or a little faster. The lesson is useful beyond this lab: **allocate buffers once and
# use them again**. Horovod does so with its fusion buffer (lab 5), and DDP with its buckets (lab 12).
# Remember also that this is one node with shared memory, where 4 ranks may share 2 cores. Between nodes the
# network is far slower than page faults, so expect other numbers on a cluster.
