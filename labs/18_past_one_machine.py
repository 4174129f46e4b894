# %% [markdown]
# # Lab 18: Past one machine
#
# Llama 3 with 405 billion parameters was trained on up to 16,384 GPUs ([Llama Team
# 2024](https://arxiv.org/abs/2407.21783)). Nobody can try out every setting on a machine of this size,
# because a single hour costs more than most research budgets. Engineers therefore predict the speed of a
# large run from a few measurements on a small one. Such a prediction answers three questions before any
# money is spent. How many GPUs are still worth their price? Which limit will the run meet first,
# computing, waiting, latency or bandwidth? And which change would move that limit? In this lab you build
# the prediction, test it on your machine and on published results for 512 GPUs, and use it for 10,000
# GPUs.
#
# **After this lab you can**
#
# * compute the time of a message and of an all-reduce from the latency, the bandwidth and the cost of
#   additions of a machine;
# * explain why a ring all-reduce becomes slow on thousands of ranks, and why a tree does not;
# * compute the efficiency of a training step in which communication overlaps with the backward pass;
# * find out which cost limits a run, and name the change that helps against this cost;
# * explain why data parallelism ends at the critical batch size, and split the efficiency of a published
#   run into what the batch and what the machine cost.
#
# **Builds on** lab 4 (the ring all-reduce), lab 5 (tensor fusion) and lab 6 (the critical batch size).
#
# **Time** 120 minutes. The computer needs about one minute of them.

# %% tags=["folded"]
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import describe, overlay, predicted
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab18_efficiency_split as split_exercises
from hvdlab.exercises import lab18_past_one_machine as exercises
from hvdlab.launch import call
from hvdlab.scaling import ALGORITHMS, Link, first_below, forecast, published

workbook = Workbook(18)
hint = workbook.hint

# %% [markdown]
# ## Hosts, links and efficiency
#
# A large run uses many *hosts*, which are also called nodes. A host is one computer with its own memory,
# its processors and often four or eight GPUs. One process, a *rank*, drives each GPU. Inside a host the
# GPUs are connected by fast links, for example NVLink or PCI Express. Between hosts the data pass through
# a *network card* and cables, for example InfiniBand or Ethernet, which are slower and have a longer
# delay.
#
# Two numbers describe a link. The *latency* $\alpha$ is the time, in seconds, that passes before the first
# byte of a message arrives. The *bandwidth* $\beta$ is the number of bytes per second that follow. For
# example, a network card of 25 Gbit/s moves at most $25 \cdot 10^9 / 8 = 3.1 \cdot 10^9$ bytes per second.
#
# The *efficiency* of $N$ ranks is the number of images per second of all ranks, divided by $N$ times the
# images per second of a single rank. For example, if one GPU trains 120 images per second and 16 GPUs
# train 1,750, the efficiency is $1750 / (16 \cdot 120) = 0.91$. The remaining 9 % of the GPU time is lost,
# because the ranks wait for each other and for messages.
#
# ## Latency and bandwidth of a message
#
# We need the cost of one message first, because every collective consists of messages. The oldest model of
# a message of $S$ bytes has the two constants from above (Hockney 1994):
#
# $$t(S) = \alpha + \frac{S}{\beta}$$
#
# For example, let $\alpha = 5$ µs and $\beta = 2$ GB/s. A message of 1 KB takes $5 + 0.5 = 5.5$ µs, so
# nearly all of its time is latency. A message of 16 MB takes about 8,000 µs, and the latency does not
# matter. Both parts are equal at $S = \alpha \beta = 10$ KB.
#
# The next cell measures four things on two ranks of this machine, each for arrays of 1 KB to 16 MB (in its
# results 1 KB has 1,024 bytes):
#
# * `message`: both ranks send each other the whole array at the same time, like neighbours in a ring;
# * `half`: the same with half of the array, because a ring on two ranks sends halves;
# * `addition`: each rank adds the half that it has just received to its own half;
# * `ring`: a complete ring all-reduce, that is, send a half, add, send a half.
#
# Two details of the measurement matter. First, each rank writes its array again before every round. The
# gradients of a real step are new as well, and a processor needs longer to read data that another core has
# just written than data that it already has in its cache. Second, we keep the fastest of all rounds,
# because other programs can only make a round slower. Click on the folded cell to read the code.


# %% tags=["folded"]
def messages(comm, sizes):
    """Return seconds of a message, of half a message, of an addition and of a ring, for each size."""
    from time import perf_counter

    from mpi4py import MPI

    mine, yours, rows = comm.rank, 1 - comm.rank, []

    def swap(out, into):
        comm.Sendrecv(out, dest=yours, recvbuf=into, source=yours)

    for nbytes in sizes:
        values, into = np.ones((2, nbytes // 4), dtype=np.float32)
        half, received = np.split(values, 2), np.split(into, 2)[0]

        def message(values=values, into=into):
            swap(values, into)

        def half_message(half=half, received=received):
            swap(half[yours], received)

        def addition(half=half, received=received):
            half[mine] += received

        def ring(half=half, received=received):  # lab 4, for two ranks
            swap(half[yours], received)  # reduce-scatter: one chunk there, one here, and add
            half[mine] += received
            swap(half[mine], half[yours])  # all-gather

        acts = {"message": message, "half": half_message, "addition": addition, "ring": ring}
        rounds = 3 + max(40, min(300, 2**26 // nbytes))
        times = np.empty((len(acts), rounds))
        for i in range(rounds):
            for row, (what, act) in zip(times, acts.items(), strict=True):
                values.fill(1.0)  # new values, as after a backward pass
                if what == "addition":
                    half_message()
                comm.Barrier()
                start = perf_counter()
                act()
                row[i] = perf_counter() - start
        slowest = np.empty_like(times)
        comm.Allreduce(times, slowest, MPI.MAX)
        for what, seconds in zip(acts, slowest[:, 3:].min(axis=1), strict=True):
            rows.append({"what": what, "bytes": nbytes, "seconds": float(seconds)})
    return rows


SIZES = by_run_length(
    quick=[4**5, 4**8, 4**10],
    learner=[4**k for k in range(5, 13)],
    reference=[4**k for k in range(5, 13)],
)


def message_time(repeat):
    return call(messages, SIZES, ranks=2, timeout=240)[0]


# %%
times = sweep("message_time", message_time, grid(repeat=seeds(3, 5)))
measured = times.groupby(["bytes", "what"])["seconds"].min().unstack()
(1e6 * measured).round(1)  # microseconds

# %% [markdown]
# ### Exercise 1: Fit latency and bandwidth
#
# **What:** write `fit_link(nbytes, seconds)`. It receives two arrays and returns `(alpha, beta)`.
#
# **Why:** every later prediction of this lab uses these two numbers.
#
# **Signature:** `nbytes` are sizes in bytes, `seconds` the measured times; return seconds and bytes per
# second.
#
# The sizes span four orders of magnitude, and the errors are about equal *in percent*. Give each point the
# weight `1 / seconds`, because otherwise only the largest size decides.
#
# <details><summary>Hint 1</summary>The model is a straight line over S. One of the two constants is the
# intercept of the line. The other one follows from its slope.</details>
#
# <details><summary>Hint 2</summary>For example, the points (1000 bytes, 3 µs) and (2000 bytes, 4 µs) lie
# on a line with the slope 1 ns per byte and the intercept 2 µs. So alpha is 2 µs and beta is 1 / 1 ns = 1
# GB/s.</details>
#
# <details><summary>Hint 3</summary><code>slope, alpha = np.polyfit(nbytes, seconds, 1, w=1 /
# seconds)</code></details>


# %%
def fit_link(nbytes, seconds):
    # BEGIN SOLUTION: return alpha and beta
    weights = 1 / np.asarray(seconds)
    slope, alpha = np.polyfit(nbytes, seconds, 1, w=weights)
    return alpha, 1 / slope
    # END SOLUTION


# %%
exercises.check_fit_link(fit_link)

# %% [markdown]
# The same function fits the times of the additions. Its second result is then the number of bytes that a rank
# adds per second, and the time per added byte, $\gamma$, is one over it. The cell divides the sizes by two,
# because a rank adds only half of the array.

# %%
alpha, beta = fit_link(measured.index, measured["message"].values)
gamma = 1 / fit_link(measured.index / 2, measured["addition"].values)[1]
print(f"alpha = {1e6 * alpha:.1f} microseconds, beta = {beta / 1e9:.2f} GB/s")
print(f"gamma = {1e9 * gamma:.3f} ns per byte; a byte that is sent takes {1e9 / beta:.3f} ns")

# %% [markdown]
# ## Cost of a ring all-reduce
#
# The ring all-reduce of lab 4 has two phases. In the reduce-scatter each rank sends $N-1$ times one chunk
# of $S/N$ bytes to its neighbour, and adds each chunk that it receives. In the all-gather each rank again
# sends $N-1$ chunks, and adds nothing. All ranks work at the same time, so the time of one rank is the
# time of the collective:
#
# $$t_\text{ring} = 2(N-1)\left(\alpha + \frac{S}{N\beta}\right) + (N-1)\frac{S}{N}\gamma$$
#
# This is the *alpha-beta-gamma model* ([Thakur, Rabenseifner and Gropp
# 2005](https://doi.org/10.1177/1094342005051521)). Patarasuk and Yuan (2009) showed that no all-reduce
# sends fewer bytes per rank than the ring. Baidu brought the ring to deep learning in 2017. Horovod itself
# does not contain a ring: it calls the all-reduce of NCCL on GPUs and that of MPI on processors.
#
# For example, take $N = 4$, $S = 8000$ bytes, $\alpha = 0.5$ s, $\beta = 1000$ bytes/s and $\gamma =
# 0.001$ s per byte. A chunk has 2000 bytes. Each of the 6 messages takes $0.5 + 2 = 2.5$ s, and each of
# the 3 additions takes 2 s. The sum is $15 + 6 = 21$ s.
#
# ### Exercise 2: Time of a ring all-reduce
#
# **What:** write `ring_time(nbytes, ranks, alpha, beta, gamma)`, which returns seconds.
#
# **Why:** the formula shows which part of the time grows with the number of ranks and which part does not.
#
# **Signature:** `nbytes` is $S$, `ranks` is $N$, and the other three are the constants of the machine. A
# single rank needs 0 seconds.
#
# <details><summary>Hint 1</summary>Count three things for one rank: how many messages it sends one after
# the other, how many bytes each of them has, and how often it adds a chunk.</details>
#
# <details><summary>Hint 2</summary>With 3 ranks and 6000 bytes a chunk has 2000 bytes. There are 4
# messages of 2000 bytes and 2 additions of 2000 bytes.</details>
#
# <details><summary>Hint 3</summary><code>chunk = nbytes / ranks</code>, then <code>2 * (ranks - 1) *
# (alpha + chunk / beta)</code> for the messages, and <code>(ranks - 1) * chunk * gamma</code> for the
# additions.</details>


# %%
def ring_time(nbytes, ranks, alpha, beta, gamma):
    # BEGIN SOLUTION: return the seconds of a ring all-reduce
    chunk = nbytes / ranks
    sending = 2 * (ranks - 1) * (alpha + chunk / beta)
    adding = (ranks - 1) * chunk * gamma
    return sending + adding
    # END SOLUTION


# %%
exercises.check_ring_time(ring_time)

# %% [markdown]
# Now compare the formula with the ring that was measured. Predict first, with the formula and two ranks.

# %%
# Prediction 1: how many times as long as one message of 1 MB does a ring all-reduce of 1 MB take on two
# ranks? Replace both values of None.
workbook.predict(1, None, reason=None)

# %% tags=["folded"]
shipped = reference("message_time")
for table in (times, shipped):
    table["KB"], table["microseconds"] = table["bytes"] / 1024, 1e6 * table["seconds"]
wanted = [table[table["what"].isin(["message", "ring"])] for table in (times, shipped)]
sizes = np.geomspace(SIZES[0], SIZES[-1], 50)
figure, axes = plt.subplots(figsize=(8, 4.8))
labels = {"message": "message", "ring": "ring all-reduce"}
overlay(axes, *wanted, x="KB", y="microseconds", by="what", labels=labels, times=True)
expected = [1e6 * ring_time(nbytes, 2, alpha, beta, gamma) for nbytes in sizes]
axes.plot(sizes / 1024, expected, "k--", label="ring, predicted with your three constants")
parts = 2 * measured["half"] + measured["addition"]
axes.plot(
    measured.index / 1024, 1e6 * parts, "kx", markersize=9, label="ring, predicted from its parts"
)
axes.set(xscale="log", yscale="log", xlabel="KB of the array")
axes.legend(fontsize=9)
describe(figure, "Time of a message and of a ring all-reduce on two ranks over the size of the array. The "
         "crosses, two half messages and one addition, lie close to the measured ring.")  # fmt: skip
workbook.result(1, (measured["ring"] / measured["message"])[2**20])

# %%
each = times.pivot_table(index=["bytes", "repeat"], columns="what", values="seconds")
ratios = (2 * each["half"] + each["addition"]) / each["ring"]
line = [ring_time(nbytes, 2, alpha, beta, gamma) for nbytes in measured.index]
check = pd.DataFrame({"parts / measured": ratios.groupby("bytes").median()})
check["three constants / measured"] = line / measured["ring"]
check.index = measured.index / 1024
check.rename_axis("KB").round(2)

# %% [markdown]
# **What the result means.** The formula predicts a ratio of $(2\alpha + S/\beta + \frac{S}{2}\gamma) /
# (\alpha + S/\beta)$. At 1 MB the latency hardly matters, so the ratio is $1 + \beta\gamma / 2$. A prediction
# of 2 comes from counting two whole messages, but each message carries only half of the array. A prediction
# of exactly 1 leaves out the additions. The reference run measured 1.3. This is a little more than the
# formula gives. The formula assumes that two half messages take exactly one latency longer than one whole
# message. On this machine they take more.
#
# The last table contains two predictions. *Parts* uses the measured time of two half messages and one
# addition of the same size. The ratio is computed within each repeat, so that both sides had the same
# conditions, and the table shows the median. This column tests whether our description of the ring is
# complete. In the reference run the parts take between 0.76 and 1.1 times as long as the measured ring from
# 64 KB to 16 MB, so the description lacks no large part. *Three constants* uses one latency, one bandwidth
# and one $\gamma$ for all sizes. It is between 0.5 and 1.5 times the measured ring in the same range. The
# difference between the two columns is the price of a straight line. On a real machine the bandwidth is not
# one number: small arrays stay in the cache of a core, larger ones in the cache that the cores share, and the
# largest ones must be read from main memory. The reference machine sent an array of 4 MB at 25 GB/s and one
# of 16 MB at 11 GB/s.
#
# On another machine, an earlier version of this measurement predicted the ring too low by a factor of up
# to 3.7. It did not write the array again before each round, and it left out the additions. Data that have not
# changed since the last round can come from the cache of the core that reads them, while a ring must fetch new
# data in each phase. A benchmark
# must move the same kind of data as the program that it stands for.
#
# ## Double binary trees
#
# The ring has one weakness. Its latency term is $2(N-1)\alpha$, which grows in proportion to the number of
# ranks. With $\alpha = 14$ µs, 512 ranks need 14 ms for latency only, and 10,000 ranks need 280 ms, which
# is more than half of a training step of each of the three neural networks that we study below.
#
# A *tree* avoids this. The root has one child, and every other rank has at most two children. Partial sums
# travel from the leaves to the root, and the result travels back. With $k$ levels below the root the tree has
# at most $2^k$ ranks: the root, one rank below it, then 2, 4 and so on. So $N$ ranks need $\lceil \log_2 N
# \rceil$ levels, and the latency is $2 \lceil \log_2 N \rceil \alpha$. For example, 8 ranks have 3 levels and
# need 6 latencies, where the ring needs 14. For 10,000 ranks it is 28 instead of 19,998.
#
# ![Two diagrams of eight ranks. On the left a ring, in which a chunk passes 14 messages one after the other. On the right a binary tree with three levels, in which a sum needs three messages up and three down.](pictures/ring_and_tree_latency.svg)
#
# Few messages are not enough. If each rank waited for the whole tensor before it sent it on, each of the
# $\log_2 N$ levels would take at least $\alpha + S/\beta$ on the way up, and as much on the way down. For 80
# MB on 8 ranks at 10 GB/s these are at least $6 \cdot 8 = 48$ ms, and a ring needs 14 ms. Two ideas solve
# this problem. The first one is to cut the tensor into many small pieces that follow each other up the tree
# like the wagons of a train. While an inner rank sends one piece on, its children send it the next one. So
# the time of the bytes counts once and not once per level.
#
# The second idea divides the work. In a single tree an inner rank receives the data of two children and sends
# on the sum, while half of the ranks are leaves and have nothing to add. The busiest rank decides the time. A
# *double binary tree* uses two trees with half of the tensor each. A rank that is a leaf in one tree is an
# inner rank in the other, so all ranks do about the same work ([Sanders, Speck and Träff
# 2009](https://doi.org/10.1016/j.parco.2009.09.001)). How much is it? A tree of $N$ ranks has $N-1$
# connections, and half of the tensor passes each of them once up and once down. The bytes are those of two
# trees with $N-1$ connections each, two directions and $S/2$ bytes, that is, $2 \cdot (N-1) \cdot 2 \cdot
# \frac{S}{2} = 2(N-1)S$. Each of the $N$ ranks thus sends $2\frac{N-1}{N}S$ bytes and adds $\frac{N-1}{N}S$
# bytes, exactly as in a ring:
#
# $$t_\text{tree} = 2\lceil\log_2 N\rceil\,\alpha + \frac{N-1}{N} S \left(\frac{2}{\beta} + \gamma\right)$$
#
# NCCL has used double binary trees since its version 2.4 of 2019 ([NVIDIA
# 2019](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)). It builds the
# trees between hosts and a chain inside each host, and it chooses between ring and tree by size and number
# of ranks. Our formula leaves out the time until the train of pieces has filled all levels, so it is a
# little too optimistic for tensors of medium size.
#
# ### Exercise 3: Time of a tree all-reduce
#
# **What:** write `tree_time(nbytes, ranks, alpha, beta, gamma)`, which returns seconds.
#
# **Why:** this formula shows below that data parallelism on 10,000 GPUs can be efficient. Predictions with rings
# only, which were common before 2019, come to the opposite conclusion.
#
# **Signature:** as `ring_time`. Use `np.log2` and `np.ceil`.
#
# <details><summary>Hint 1</summary>Only one of the three terms differs from the ring.</details>
#
# <details><summary>Hint 2</summary>With 5 ranks the tree has 3 levels below the root, because with 2 levels it
# has at most 4 ranks. A sum passes 3 messages up and 3 down.</details>
#
# <details><summary>Hint 3</summary><code>latency = 2 * np.ceil(np.log2(ranks)) * alpha</code>, and
# <code>(ranks - 1) / ranks * nbytes</code> bytes, each of which costs <code>2 / beta +
# gamma</code>.</details>


# %%
def tree_time(nbytes, ranks, alpha, beta, gamma):
    # BEGIN SOLUTION: return the seconds of an all-reduce in a double binary tree
    latency = 2 * np.ceil(np.log2(ranks)) * alpha
    moved = (ranks - 1) / ranks * nbytes
    return latency + moved * (2 / beta + gamma)
    # END SOLUTION


# %%
exercises.check_tree_time(tree_time)
for ranks in (2, 16, 512, 10_000):
    both = [1e3 * time(64e6, ranks, 14e-6, 2.6e9, 0) for time in (ring_time, tree_time)]
    print(f"{ranks:6,} ranks, 64 MB: ring {both[0]:6.1f} ms, tree {both[1]:5.1f} ms")

# %% [markdown]
# Both algorithms need the same time on two ranks. With 512 ranks the ring needs 28 % more, and
# with 10,000 ranks more than six times as long as the tree. (The additions are left out, because a GPU
# adds much faster than a network sends.)
#
# ## Hierarchical all-reduce
#
# There is a second method to shorten the chain of messages. A *hierarchical all-reduce* works in three
# phases. First the GPUs of each host carry out a reduce-scatter over their fast links, after which each
# GPU holds the sum of one shard. Then the GPUs with the same shard form a ring across the hosts. Finally
# the GPUs of each host collect all shards with an all-gather. With 4 GPUs per host, the rings between the
# hosts have only a quarter as many steps.
#
# ![Two hosts with four GPUs each. Phase one is a reduce-scatter inside each host, phase two a ring between GPUs that hold the same shard, and phase three an all-gather inside each host.](pictures/hierarchical_all_reduce.svg)
#
# For example, 512 GPUs on 128 hosts need $2 \cdot 127 = 254$ steps between hosts and $2 \cdot 3 = 6$ steps
# inside them, instead of 1,022 steps. However, the phases follow each other, so the time inside the host is
# added to the time between the hosts. If bandwidth is the limit, a hierarchical ring can therefore be slower
# than a plain ring. Its number of steps also grows in proportion to the number of hosts. A ring and a tree
# are two extremes, and the hierarchical ring lies between them.
#
# ## Efficiency of a training step
#
# An all-reduce does not have to lengthen the step. The backward pass computes the gradients of the last layer
# first. As soon as they are ready they can be sent, while the computing continues with the layers before.
# Communication is *hidden* as long as it overlaps with computing. *Exposed communication* is what remains
# after the computing, and it makes the step longer.
#
# ![Timeline of one step. Computing consists of forward and backward pass. The all-reduces start during the backward pass. The part of the last all-reduce that is later than the end of the backward pass is exposed and makes the step longer.](pictures/exposed_communication.svg)
#
# For example, a step computes for 300 ms. Half of this time can hide communication. An all-reduce of 250 ms
# then has 150 hidden and 100 exposed milliseconds. The step takes 400 ms, and the efficiency is $300 / 400 =
# 0.75$. A single GPU would need only the 300 ms of computing. So the efficiency is also the images per second
# of each GPU, divided by those of a run on one GPU.
#
# ### Exercise 4: Efficiency with overlap
#
# **What:** write `step_efficiency(compute, communication, overlap)`.
#
# **Why:** this formula explains why a network can look perfect at 16 GPUs and fail at 512: the exposed
# part is zero until the overlap is used up.
#
# **Signature:** `compute` and `communication` are seconds per step, and `overlap` is the fraction of the
# compute time that can hide communication. Return a number between 0 and 1.
#
# <details><summary>Hint 1</summary>The step is the computing plus the exposed communication. The exposed
# part cannot be negative.</details>
#
# <details><summary>Hint 2</summary>With 200 ms of computing, overlap 0.5 and 80 ms of communication, 100
# ms could be hidden, so nothing is exposed and the efficiency is 1. With 140 ms, 40 ms are exposed and the
# efficiency is 200 / 240.</details>
#
# <details><summary>Hint 3</summary><code>exposed = max(0, communication - overlap *
# compute)</code></details>


# %%
def step_efficiency(compute, communication, overlap):
    # BEGIN SOLUTION: return compute / step
    hidden = overlap * compute
    exposed = max(0, communication - hidden)
    return compute / (compute + exposed)
    # END SOLUTION


# %%
exercises.check_step_efficiency(step_efficiency)

# %% [markdown]
# A real step has three more properties, which the module `hvdlab.scaling` simulates. Gradients become
# ready one after the other. Horovod collects what is ready in a *fusion buffer* of up to 64 MB and looks
# every 5 ms (its defaults in 2018; today it is 128 MiB and 1 ms). And all ranks wait for the slowest rank,
# a *straggler*. If the compute times differ by a standard deviation of $\sigma$ percent, the slowest of
# 512 ranks is about $3\sigma$ late.
#
# ## Comparison with published efficiencies
#
# A model deserves trust only if it predicts numbers that were not used to build it. Uber published how
# Horovod scaled on servers with four Pascal GPUs and a network of 25 Gbit/s ([Sergeev and Del Balso
# 2018](https://arxiv.org/abs/1802.05799) and Horovod's README). There are results for three networks:
# Inception V3 with 24 million parameters, ResNet-101 with 45 million and VGG-16 with 138 million.
#
# Three constants of the machine were never published: the latency, the fraction of the 25 Gbit/s that is
# reached, and the jitter $\sigma$. They were fitted to the six efficiencies at 16 and 128 GPUs, with the
# same constants for all three networks. The three efficiencies at 512 GPUs were not used for the fit. (All
# nine numbers were known when the form of the model was chosen.)
#
# The step times of one GPU for 64 images are 0.48 s (Inception V3), 0.54 s (ResNet-101) and 0.49 s
# (VGG-16). Use exercise 4 for a rough prediction. The gradients of VGG-16 have 553 MB, so that a ring on
# 512 GPUs needs about 0.44 s.

# %%
# Prediction 2: which efficiency does VGG-16 reach at 512 GPUs, if two thirds of the computing can hide
# communication? Replace both values of None.
prediction = workbook.predict(2, None, reason=None)

# %% tags=["folded"]
CLUSTER = published.pascal_cluster(*published.FITTED)
COUNTS = np.unique(
    np.geomspace(1, 10_000, by_run_length(quick=15, learner=60, reference=60)).astype(int)
)


def curve(network, cluster=CLUSTER, **options):
    return [forecast(network, cluster, int(n), **options).efficiency for n in COUNTS]


figure, axes = plt.subplots(figsize=(8, 4.8))
for name, network in published.NETWORKS.items():
    (line,) = axes.plot(COUNTS, curve(network), label=f"{name}, ring")
    axes.plot(
        COUNTS, curve(network, algorithm="tree"), ":", color=line.get_color(), label=f"{name}, tree"
    )
    for ranks, efficiency in published.PUBLISHED[name].items():
        fitted = ranks in published.FITTED_TO
        axes.plot(ranks, efficiency, "o" if fitted else "s", color=line.get_color(), markeredgecolor="black",
                  markersize=7 if fitted else 10)  # fmt: skip
predicted(axes, prediction, x=512)
axes.set(xscale="log", xlabel="GPUs", ylabel="efficiency", ylim=(0, 1.02))
axes.set_title("Circles: published, fitted. Squares: published, predicted")
axes.legend(loc="lower left", fontsize=9)
describe(figure, "Efficiency of three networks over the number of GPUs, with published points up to 512. With "
         "a ring all curves fall below one half before 10,000 GPUs, with a tree none does.")  # fmt: skip
workbook.result(2, published.PUBLISHED["VGG-16"][512])

# %%
rows = pd.DataFrame(published.rows())
rows["points off"] = 100 * (rows["model"] - rows["published"])
rows.round(2)

# %% [markdown]
# **What the result means.** The rough formula gives $0.49 / (0.49 + 0.44 - 0.327) = 0.81$ for VGG-16. The
# simulation gives 0.72 and Uber published 0.68. The rough formula is too high for two reasons. It lets the
# whole backward pass, about two thirds of the computing, hide communication, although the first gradients are
# ready only some time after its start. And it knows no stragglers, while the simulated ranks wait for the
# slowest one. A prediction near 0.5 forgets the overlap.
#
# The three squares are within five percentage points of the model. The model is too low for two networks and
# too high for one, so it can tell 90 % from 70 % but not 90 % from 88 %. The column `limit` names the largest
# loss. Inception V3 and ResNet-101 mostly wait for the slowest GPU, and VGG-16 waits for the network. The
# curves have jumps, which come from the simulated fusion buffers. With more GPUs an all-reduce takes longer.
# More gradients become ready while it runs, and they share the next buffer, until a step needs one all-reduce
# less. There the curve jumps.
#
# The last rows of the table belong to another machine and another method. Krizhevsky (2014) split the
# convolutions by data and the fully connected layers by model (lab 13) on eight GPUs of one computer. No
# constant is fitted there: the bytes are counted and divided by the 6 GB/s of the bus. We assume that two
# groups of four GPUs share one path through the host, and that both directions together have this rate. The
# table then gives an efficiency of 0.79 for eight GPUs, where 0.78 was published. If each direction had this
# rate, it would be 0.86. So the result depends on an assumption that was not published.
#
# ## Limits of scaling
#
# To decide what to buy, one must know which cost limits the run. Adding up the costs is misleading,
# because communication and computing overlap. There is a better method: remove one cost in the model, set
# it to zero, and look how much shorter the step becomes. The cost whose removal helps most is the limit.
#
# For example, a step takes 1.00 s. Without stragglers it would take 0.95 s, without latency 0.90 s, and
# with infinite bandwidth 0.70 s. Bandwidth is the limit, because its removal saves 0.30 s. If no removal
# saves at least 5 % of the step, we say that computing is the limit.
#
# ### Exercise 5: Name the limit
#
# **What:** write `limit(step, without)`.
#
# **Why:** each limit has its own remedy. Bandwidth needs fewer bytes or a faster network, latency needs
# fewer messages, and stragglers need equal work for all ranks. A larger batch per GPU helps against bandwidth
# and latency, because the same number of images then needs fewer steps and fewer all-reduces.
#
# **Signature:** `step` is the time of the step in seconds. `without` is a dict that maps "stragglers",
# "latency" and "bandwidth" to the time of the step without this cost. Return one of these names, or
# "compute" if the largest saving is below 5 % of the step.
#
# <details><summary>Hint 1</summary>Compute the saving of each removal first. Then find the name with the
# largest saving.</details>
#
# <details><summary>Hint 2</summary>For a step of 2 s and <code>{"latency": 1.2, "bandwidth": 1.99}</code>
# the savings are 0.8 s and 0.01 s, so the answer is "latency". With <code>{"latency": 1.95, "bandwidth":
# 1.99}</code> the largest saving is 0.05 s, less than 0.1 s, so the answer is "compute".</details>
#
# <details><summary>Hint 3</summary><code>saved = {name: step - seconds for name, seconds in
# without.items()}</code>, then <code>worst = max(saved, key=saved.get)</code>.</details>


# %%
def limit(step, without):
    # BEGIN SOLUTION: return the name of the cost whose removal saves most, or "compute"
    saved = {name: step - seconds for name, seconds in without.items()}
    worst = max(saved, key=saved.get)
    if saved[worst] < 0.05 * step:
        return "compute"
    return worst
    # END SOLUTION


# %%
exercises.check_limit(limit)

# %% [markdown]
# `forecast` uses the same rule. The next table changes one property of Uber's cluster at a time, for
# VGG-16. Before you run it, think about GPUs that are ten times as fast on the same network. Use exercise
# 4: computing then takes 0.049 s, and the ring on 512 GPUs still takes 0.44 s.

# %%
# Prediction 3: which efficiency do GPUs that are ten times as fast reach at 512 GPUs on this network?
workbook.predict(3, None, reason=None)

# %%
VGG, net, inside = published.NETWORKS["VGG-16"], CLUSTER.network, CLUSTER.inside
FAST_NET = replace(CLUSTER, network=Link(net.latency, 4 * net.bandwidth))
SHORT_LATENCY = replace(
    CLUSTER,
    network=Link(net.latency / 4, net.bandwidth),
    inside=Link(inside.latency / 4, inside.bandwidth),
)
WHAT_IF = {
    "ring, as published": (VGG, CLUSTER, {}),
    "tree": (VGG, CLUSTER, {"algorithm": "tree"}),
    "hierarchical ring": (VGG, CLUSTER, {"algorithm": "hierarchical"}),
    "ring, 100 Gbit/s": (VGG, FAST_NET, {}),
    "tree, 100 Gbit/s": (VGG, FAST_NET, {"algorithm": "tree"}),
    "ring, a quarter of the latency": (VGG, SHORT_LATENCY, {}),
    "tree, a quarter of the latency": (VGG, SHORT_LATENCY, {"algorithm": "tree"}),
    "ring, 128 images a GPU": (replace(VGG, batch_size=128), CLUSTER, {}),
    "tree, float16 gradients": (VGG, CLUSTER, {"algorithm": "tree", "number_bytes": 2}),
    "ring, no fusion": (VGG, CLUSTER, {"fusion": 0}),
    "tree, no overlap": (VGG, CLUSTER, {"algorithm": "tree", "overlap": False}),
    "ring, GPUs ten times as fast": (replace(VGG, images_per_second=1309), CLUSTER, {}),
}


# %% tags=["folded"]
def what_if(network, cluster, options):
    row = {}
    for ranks in (16, 128, 512, 2048, 10_000):
        found = forecast(network, cluster, ranks, **options)
        row[f"{ranks:,}"] = f"{found.efficiency:.2f} {found.limit}"
    return row | {
        "below 1/2 from": first_below(network, cluster, 0.5, 10_000, **options) or "never"
    }


network, cluster, options = WHAT_IF["ring, GPUs ten times as fast"]
workbook.result(3, forecast(network, cluster, 512, **options).efficiency)
pd.DataFrame({name: what_if(*case) for name, case in WHAT_IF.items()}).transpose()

# %% tags=["folded"]
figure, axes = plt.subplots(figsize=(8, 4.8))
styles = ("-", ":", "--", "-.")
for number, name in enumerate(
    (
        "ring, as published",
        "tree",
        "hierarchical ring",
        "ring, 100 Gbit/s",
        "tree, 100 Gbit/s",
        "tree, no overlap",
    )
):
    network, cluster, options = WHAT_IF[name]
    axes.plot(COUNTS, curve(network, cluster, **options), styles[number % 4], label=name)
axes.set(xscale="log", xlabel="GPUs", ylabel="efficiency of VGG-16", ylim=(0, 1.02))
axes.legend(loc="lower left", fontsize=9)
describe(figure, "Efficiency of VGG-16 over the number of GPUs for six settings. Rings fall beyond a few "
         "hundred GPUs, because their latency grows with the number of GPUs. Trees stay level.")  # fmt: skip

# %% [markdown]
# **What the result means.** Which cost limits the run depends on the algorithm of the all-reduce.
#
# * *Ring.* At 512 GPUs the number of bytes matters most. Links between the hosts that are four times as fast
#   raise the efficiency from 0.72 to 0.87, and so does twice the batch. At 10,000 GPUs each all-reduce has
#   19,998 messages in a row. The limit is latency, the efficiency is 0.28, and four times the bandwidth
#   raises it only to 0.35.
# * *Tree.* The efficiency is 0.81 at 512 GPUs and 0.80 at 10,000. Latency is never the limit, even at 10,000
#   GPUs: these are 2,500 hosts, and a tree of hosts has 12 levels. It needs only 24 messages in a row between
#   hosts, and a few fast ones inside each host. Bandwidth is the limit at every size. Faster links or float16
#   gradients raise the efficiency at 10,000 GPUs to 0.87, and then stragglers are the limit.
# * *Faster GPUs.* With a ring, GPUs that are ten times as fast reach an efficiency of 0.10 at 512 GPUs,
#   because the communication stays the same and there is less computing to hide it. Exercise 4 gives 0.11,
#   because it knows neither stragglers nor fusion buffers. A prediction above 0.72 confuses speed with
#   efficiency: the run is faster, but each GPU waits longer. This is why the links in today's servers carry
#   hundreds of gigabytes per second.
#
# So the sentence "at 10,000 GPUs the number of messages decides" holds for rings only. With the trees that
# NCCL uses today, the bytes and the slowest rank decide at every size of this model. The model is
# optimistic for very large runs: it knows no other jobs on the network, no congested switch and no broken
# host. Llama 3 had 419 unexpected interruptions in 54 days, about one every three hours ([Llama Team
# 2024](https://arxiv.org/abs/2407.21783)).
#
# ![Bars for 16, 512 and 10,000 GPUs with ring and with tree. The ring loses most of its time at 10,000 GPUs to latency, while the tree loses a constant part to bandwidth at every size.](pictures/what_limits_where.svg)
#
# ## Critical batch size and the end of data parallelism
#
# Efficiency is not the goal. The goal is a trained model. With 64 images per GPU, $N$ GPUs take steps of
# $B = 64N$ images, and lab 6 showed how many steps a batch of this size needs:
#
# $$S(B) = S_\text{min}\left(1 + \frac{B_\text{crit}}{B}\right)$$
#
# $S_\text{min}$ is the number of steps that even an infinite batch needs, and $B_\text{crit}$ is the
# critical batch size. For example, let $S_\text{min} = 1000$ and $B_\text{crit} = 6000$. A batch of 3000
# needs 3000 steps, and a batch of 6000 needs 2000. Twice the GPUs save a third of the steps. A batch of
# 60,000 needs 1,100 steps, and no batch needs fewer than 1000.
#
# ### Exercise 6: Hours to the goal
#
# **What:** write `hours_to_goal(images_per_second, global_batch, s_min, b_crit)`.
#
# **Why:** it combines the speed of the machine with the number of steps that training needs, and gives the
# time that a user waits.
#
# **Signature:** `images_per_second` is the speed of all GPUs together, and `global_batch` is $B$. Return
# hours.
#
# <details><summary>Hint 1</summary>Compute the number of steps first, then the number of images, then the
# time.</details>
#
# <details><summary>Hint 2</summary>With 1000 images per second, a batch of 3000, S_min = 2400 and B_crit =
# 6000 there are 7200 steps. They read 21.6 million images in 21,600 seconds, which are 6 hours.</details>
#
# <details><summary>Hint 3</summary><code>steps = s_min * (1 + b_crit / global_batch)</code>; each step
# reads <code>global_batch</code> images; an hour has 3600 seconds.</details>


# %%
def hours_to_goal(images_per_second, global_batch, s_min, b_crit):
    # BEGIN SOLUTION: return the hours until the goal
    steps = s_min * (1 + b_crit / global_batch)
    images = steps * global_batch
    return images / images_per_second / 3600
    # END SOLUTION


# %%
exercises.check_hours_to_goal(hours_to_goal)

# %% [markdown]
# We apply it to ResNet-101 on ImageNet, in round numbers. $B_\text{crit} = 15{,}000$ images is the average
# that McCandlish et al. (2018) measured for a training on ImageNet. A batch much smaller than $B_\text{crit}$
# needs about $S_\text{min} B_\text{crit} / B$ steps, so training with small batches reads $S_\text{min}
# B_\text{crit}$ images in all. We assume that these are 90 epochs of ImageNet's 1.28 million images. With a
# tree, the efficiency is nearly the same at 4,096 and at 10,000 GPUs. The batch grows from 262,144 to 640,000
# images.

# %%
# Prediction 4: by what factor does the time to the goal fall from 4,096 to 10,000 GPUs, with a tree?
workbook.predict(4, None, reason=None)

# %%
RESNET, B_CRIT = published.NETWORKS["ResNet-101"], 15_000
S_MIN = 90 * 1.28e6 / B_CRIT


def hours(gpus, algorithm):
    found = forecast(RESNET, CLUSTER, int(gpus), algorithm=algorithm)
    return hours_to_goal(found.images_per_second, 64 * gpus, S_MIN, B_CRIT)


ends = pd.DataFrame({name: [hours(n, name) for n in COUNTS] for name in ALGORITHMS}, index=COUNTS)
print(f"4,096 to 10,000 GPUs, tree: {hours(4096, 'tree') / hours(10_000, 'tree'):.3f}")
print(f"4,096 to 10,000 GPUs, ring: {hours(4096, 'ring') / hours(10_000, 'ring'):.3f}")
workbook.result(4, hours(4096, "tree") / hours(10_000, "tree"))

# %% tags=["folded"]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.3))
for name, style in zip(ALGORITHMS, ("-", "--", ":"), strict=True):
    left.plot(COUNTS, ends[name], style, label=name)
    right.plot(COUNTS, ends[name] * COUNTS / ends[name].iloc[0], style, label=name)
left.plot(COUNTS, ends["ring"].iloc[0] / COUNTS, color="grey", linewidth=1, label="perfect")
for axes, says in ((left, "hours to the goal"), (right, "GPU hours, times those of one GPU")):
    axes.axvline(B_CRIT / 64, color="grey", linestyle="-.", label="batch = $B_{crit}$")
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel=says)
    axes.legend(fontsize=9)
describe(figure, "Hours and GPU hours to the goal over the number of GPUs. With a tree the hours level off at 1.4 "
         "beyond 2,000 GPUs, and the price keeps rising. With a ring the hours rise again.")  # fmt: skip
fastest = pd.DataFrame({"GPUs": ends.idxmin(), "hours": ends.min()})
fastest["GPU hours"] = fastest["GPUs"] * fastest["hours"]
fastest.round(1)

# %% [markdown]
# **What the result means.** Far to the left of the vertical line, twice the GPUs nearly halve the time. The
# doubling that arrives at the line saves only a third of the steps, and the next one saves a quarter. Beyond
# the line the batch is larger than it is useful. The gradient is accurate already, and averaging it over more
# images hardly changes it, so each image teaches the model less.
#
# With a tree, 4,096 GPUs need 1.39 hours and 10,000 need 1.36, so the time falls by a factor of 1.02 while
# the price per hour grows by 2.4. The number of steps predicts this: $(1 + 15/262) / (1 + 15/640) = 1.03$,
# and the efficiency falls a little. With a ring, 10,000 GPUs are slower than 4,096, at 3.8 hours instead
# of 2.1, because of the latency. So two different limits exist. The slow ring is a property of an
# algorithm, which a better algorithm removes. The number of steps is a property of the training, which no
# network can change. In this model the critical batch size ends data parallelism before the network does.
# Beyond this point one must also split the model (labs 13 and 14), or find a problem with a larger
# $B_\text{crit}$.
#
# ## Horovod on 4,320 GPUs
#
# The companies that sell and rent accelerators publish how fast their systems train the same networks to the
# same accuracy. Their scripts, settings and logs are public. `labs/results/scaling_records/` contains the few
# rows that we need. In every round from 2018 to 2024 the ResNet-50 result on the most GPUs used Horovod.

# %%
records = reference("scaling_records/results").rename(columns={"accelerators": "gpus"})
records = records.set_index("id")
largest = records.loc[["r0020", "r0102", "r0211", "r0326", "r0551", "r0784", "r1235"]]
columns = ["round", "submitter", "system", "accelerator", "gpus", "batch", "epochs", "seconds"]
largest[columns].fillna("").reset_index(drop=True)

# %% [markdown]
# The rounds 2.1, 3.1 and 4.0 contain the same best runs again. The logs of the rows without a time are not
# available, and only their code shows Horovod. This history has ended: from round 4.1 on no result uses
# Horovod. ResNet-50 is no longer part of the benchmark, and the large language models that followed are
# trained with other software (labs 12 to 14).
#
# The settings of these runs are the ones of lab 5. Each link leads to the file.
#
# | setting | 8 A100 ([file](https://github.com/mlcommons/training_results_v2.0/blob/8437fbb78349aa3c3054aeccb1d47d2a315a80e7/NVIDIA/benchmarks/resnet/implementations/mxnet/config_DGXA100.sh)) | 4,216 A100 ([file](https://github.com/mlcommons/training_results_v2.0/blob/8437fbb78349aa3c3054aeccb1d47d2a315a80e7/NVIDIA/benchmarks/resnet/implementations/mxnet/config_DGXA100_multi_527x8x16xgbn2_larsv2.sh)) | 3,584 H100 ([file](https://github.com/mlcommons/training_results_v3.0/blob/63e326c400f5d8bb8c6070a9ab08332d4931152e/NVIDIA_CoreWeave/benchmarks/resnet/implementations/mxnet/config_DGXH100_multi_448x8x16.sh)) |
# |---|---|---|---|
# | images per GPU | 408 | 16 | 16 |
# | `HOROVOD_FUSION_THRESHOLD` | 64 MiB | 64 MiB | 64 MiB |
# | `HOROVOD_CYCLE_TIME` | 0.1 ms | 0.1 ms | 0.1 ms |
# | `HOROVOD_NUM_NCCL_STREAMS` | 2 | 1 | 1 |
# | gradient groups (`num_groups`) | 1 | 1 | 1 |
#
# The 25.6 million gradients of ResNet-50 have 51 MB in float16, so they fit into one fusion buffer. With one
# group Horovod reduces all of them together, as soon as the last one is ready. So in these runs the
# communication does not overlap with the backward pass. ([Round
# 0.6](https://github.com/mlcommons/training_results_v0.6/blob/e045ad7b72314d95cb8128331193e49bbc8e0bec/NVIDIA/benchmarks/resnet/implementations/mxnet/config_DGX2.sh)
# used 20 groups.) A cycle time of 0.1 ms instead of 1 ms shortens the wait of the last gradient.
#
# ## Statistical and hardware efficiency
#
# The run on 4,216 GPUs has 527 times as many GPUs as the run on 8 GPUs of the same round.

# %%
# Prediction 5: how many times faster does it reach the goal? Replace both values of None.
workbook.predict(5, None, reason=None)

# %%
A100 = records.loc[["r0795", "r0786", "r0776", "r0784"]].copy()
A100["ms per step"] = 1000 * A100["seconds"] / A100["steps"]
A100["times faster"] = A100["seconds"].iloc[0] / A100["seconds"]
workbook.result(5, A100.loc["r0784", "times faster"])
A100[["gpus", "batch", "epochs", "steps", "seconds", "ms per step", "times faster"]].round(1)

# %% [markdown]
# The *total efficiency* of a run on $N$ GPUs that needs $T$ seconds, compared with a run on $N_0$ GPUs, is
# $T_0 N_0 / (T N)$. Two different losses are in it:
#
# * The *statistical efficiency* is the number of examples that the small run reads until the goal, divided by
#   that of the large run. It is the price of the larger batch.
# * The *hardware efficiency* is the number of examples per second and GPU of the large run, divided by that of
#   the small run. It is the efficiency of the first section. The speeds leave out the evaluations.
#
# The total is $\text{statistical} \cdot \text{hardware} \cdot \text{rest}$. The rest comes from the time
# of the evaluations.
#
# **Worked example.** Two GPUs read 1,000 examples at 10 per second and need 100 s. Eight GPUs read 1,250
# examples at 31.25 per second and need 50 s, of which evaluations take 10 s. The total efficiency is
# $100 \cdot 2 / (50 \cdot 8) = 0.5$. The statistical efficiency is $1000 / 1250 = 0.8$. The hardware efficiency
# is $(31.25 / 8) / (10 / 2) = 0.78$. The rest is $0.5 / (0.8 \cdot 0.78) = 0.8$.
#
# ### Exercise 7: Split the efficiency
#
# **What:** write `split_efficiency(small, large)`.
#
# **Why:** a faster network improves only the hardware efficiency. To improve the statistical efficiency,
# change the batch or the optimizer.
#
# **Signature:** both arguments are dicts with the keys "gpus", "seconds", "examples", "steps" and
# "examples_per_second" (of all GPUs together). Return `(total, statistical, hardware, rest)`.
#
# <details><summary>Hint 1</summary>Which of the five keys does each factor need? One key is not needed at
# all.</details>
#
# <details><summary>Hint 2</summary>In the worked example the speed per GPU is 10 / 2 = 5 in the small run and
# 31.25 / 8 = 3.9 in the large run.</details>
#
# <details><summary>Hint 3</summary><code>rest = total / (statistical * hardware)</code></details>


# %%
def split_efficiency(small, large):
    # BEGIN SOLUTION: return total, statistical and hardware efficiency, and the rest
    total = small["seconds"] * small["gpus"] / (large["seconds"] * large["gpus"])
    statistical = small["examples"] / large["examples"]
    small_speed = small["examples_per_second"] / small["gpus"]
    large_speed = large["examples_per_second"] / large["gpus"]
    hardware = large_speed / small_speed
    rest = total / (statistical * hardware)
    return total, statistical, hardware, rest
    # END SOLUTION


# %%
split_exercises.check_split_efficiency(split_efficiency)

# %% [markdown]
# Two results of NVIDIA used 64 A100 and Horovod. In round 1.0 the batch was 13,056, and the hardware
# efficiency was 0.94. In round 1.1 the batch was 3,264, and the hardware efficiency was 0.80, because each GPU
# had only 51 images per step.

# %%
# Prediction 6: how many times as long as the run with batch 13,056 does the run with batch 3,264 take?
workbook.predict(6, None, reason=None)

# %%
PAIRS = {
    "A100, 8 to 64": ("r0795", "r0786"),
    "A100, 8 to 1,024": ("r0795", "r0776"),
    "A100, 8 to 4,216": ("r0795", "r0784"),
    "H100, 8 to 3,584": ("r1227", "r1235"),
    "A100, 8 to 64, batch 13,056": ("r0336", "r0332"),
    "A100, 8 to 64, batch 3,264": ("r0560", "r0554"),
    "GPT-3, H100, 512 to 10,752": ("r1412", "r1403"),
}
split = {
    name: split_efficiency(*(records.loc[id].to_dict() for id in ids))
    for name, ids in PAIRS.items()
}
parts = pd.DataFrame(split, index=["total", "statistical", "hardware", "rest"]).transpose()
parts["seconds"] = [records.loc[large, "seconds"] for _, large in PAIRS.values()]
ratio = records.loc["r0554", "seconds"] / records.loc["r0332", "seconds"]
workbook.result(6, ratio)
parts.round(3)

# %% [markdown]
# **What the result means.** The run on 4,216 GPUs is 89.8 times faster, an efficiency of
# $0.170 = 0.407 \cdot 0.435 \cdot 0.963$. About half of the loss comes from the batch, which needs 86 epochs
# instead of 35. The other half comes from the machine. At the speed of the 8-GPU run, the 16 images of a GPU
# would take 4.9 ms, and a step takes 11.7 ms. A prediction near 500 expects a perfect machine and forgets the
# batch.
#
# On 64 GPUs the run with the *lower* hardware efficiency wins, with 272 instead of 295 s, because it needs 35
# epochs instead of 45. The two rounds used different versions of the software. Their speeds hardly differ: on
# 8 GPUs with batch 3,264 they need 1,726 and 1,749 s.
#
# GPT-3 loses almost nothing to the batch. With 21 times as many GPUs the batch grows from 2,048 to only 2,688
# sequences, because the model is split over many GPUs (labs 13 and 14). Small networks pay both prices, and
# large networks mainly that of the machine.
#
# All results of this section were recomputed from the public logs. Their result ids are not given, and they
# were not verified by MLCommons Association. The first table names submitter and system. The README in
# `labs/results/scaling_records/` names sources, licence and pitfalls, and `results.csv` the directories.
#
# ## Course survey
#
# This is the last lab. Please tell the people who maintain the course what you think of it. The
# [survey](survey.md) asks which labs you did, how long they took, which sections you had to read twice,
# which exercise taught you most, and what you expected and did not find. It takes about five minutes, and
# no answer is compulsory. If you take the course in a class, give the answers to your teacher. If you work
# alone, you can open an issue in the repository with those answers that you want to share. The most useful
# answers name a lab and a section, because we can then change exactly this place.
#
# ## Summary
#
# * A message takes $\alpha + S/\beta$. A ring all-reduce takes $2(N-1)$ messages of $S/N$ bytes and $N-1$
#   additions. Predicted from measured parts, the ring agreed with the measured ring within 24 % from 64 KB
#   to 16 MB.
# * A double binary tree that sends the tensor in small pieces sends and adds as much as a ring, but its latency
#   grows with $2\log_2 N$ instead of $2(N-1)$. For 10,000 ranks that is 28 instead of 19,998 messages in a row.
# * Communication that overlaps with the backward pass costs nothing. Only the exposed part makes a step
#   longer.
# * A model with three fitted constants predicted the efficiency of 512 GPUs within five percentage points.
# * With a ring, latency limits VGG-16 at 10,000 GPUs to an efficiency of 0.28. With a tree it stays at
#   0.80, and bandwidth is the limit.
# * To find the limit of a run, remove one cost at a time and see how much shorter the step becomes.
# * The critical batch size limits data parallelism in any case. In our example 10,000 GPUs are only 1.02
#   times as fast as 4,096.
# * Horovod trained ResNet-50 on up to 4,320 A100 GPUs. On 4,216 GPUs the efficiency was 0.17. About half of
#   the loss came from the larger batch, and half from the machine.
#
# **Calculator:** the page `labs/calculators/scaling.html` draws the efficiency on up to 10,000 GPUs, with a
# ring, a tree and a hierarchical all-reduce, and `cost.html` next to it computes days, GPU hours and money of a
# training. Open them in a browser.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="c")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="b")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer=0.8)

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="d")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="a")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer=17)

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer=0.78)

# %% [markdown]
# You have reached the end of the course. [The start page](00_start_here.ipynb) lists all labs, and lab 8
# contains the assessment if you have not taken it yet.
