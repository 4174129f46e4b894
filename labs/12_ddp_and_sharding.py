# %% [markdown]
# # Lab 12: DDP and sharding
#
# GPT-2 has 1.5 billion parameters. In 16-bit numbers its weights need only 3 GB, but training it with Adam
# needs at least 24 GB before the first activation is stored ([Rajbhandari et al.
# 2020](https://arxiv.org/abs/1910.02054), section 3.1). Data parallelism as in labs 4 and 5 copies these 24
# GB to every GPU, so a hundred GPUs cannot train a larger network than one. This lab explains the two kinds
# of data parallelism that most new PyTorch code uses. `DistributedDataParallel` (DDP) keeps all copies and
# hides the communication behind the backward pass. *Sharding* removes the copies: ZeRO is the algorithm, and
# FSDP2 and DeepSpeed implement it. You need to know what each of the two stores, what it sends, and when it
# sends it.
#
# **After this lab you can**
#
# * explain how DDP packs gradients into buckets, and why it does not wait for the end of the backward pass;
# * predict how many all-reduces and how many bytes a step of DDP needs, also with `no_sync` and with
#   communication hooks;
# * compute the memory of a rank for ZeRO stages 0 to 3, and the bytes that each stage sends;
# * write an optimizer that follows ZeRO stage 1, and shard a network with FSDP2;
# * find four mistakes that raise no error: a sampler without its epoch, a metric that counts images twice,
#   an optimizer that was created too early, and a gradient norm over one shard.
#
# **Builds on** lab 4 (all-reduce), lab 9 (activation checkpointing, gradient accumulation) and lab 11 (from
# a serial script to DDP). **Time:** about 3 hours for a learner who does all eight exercises, of which the
# computer needs four minutes. The section "ZeRO" is a good place for a break.

# %% tags=["folded"]
import json
import os
import shutil
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DistributedSampler

from hvdlab.course.excerpt import excerpt
from hvdlab.course.experiment import LABS, WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, medians, predicted
from hvdlab.course.rank_report import rank_report, text
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab12_ddp_and_sharding as exercises
from hvdlab.launch import call, run
from hvdlab.torch.lab_networks import ResidualMLP

WORK.mkdir(parents=True, exist_ok=True)  # your own files: notebooks/work
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]
workbook = Workbook(12)
hint = workbook.hint
# How much the experiments do in a quick run, in your run, and in a reference run (lab 3 explains this).
EPOCHS = by_run_length(quick=1, learner=2, reference=2)
STEPS = by_run_length(quick=6, learner=20, reference=20)
THREE = ["hand", "ddp", "horovod"]
COMPARED = by_run_length(quick=["ddp"], learner=THREE, reference=THREE)
DDP_STEPS = by_run_length(quick=5, learner=10, reference=20)

# %% [markdown]
# ## DDP compared with Horovod
#
# Horovod (lab 5), DDP and an all-reduce that you write yourself compute the same updates. Every *rank*, that
# is, every process of the run, holds all weights and reads its own part of the batch. After the backward pass
# every rank holds the mean of the gradients of all ranks, so all ranks make the same update. The three
# methods differ in the calls that your script contains. Lab 11 added the calls of the column "DDP".
#
# | step | Horovod | DDP | by hand |
# |---|---|---|---|
# | equal weights at the start | `hvd.broadcast_parameters(...)` | the constructor `DistributedDataParallel(model)` | `dist.broadcast(p.data, src=0)` for each parameter |
# | equal optimizer state | `hvd.broadcast_optimizer_state(...)` | every rank loads the same checkpoint | the same as DDP |
# | average the gradients | `hvd.DistributedOptimizer`; `step()` waits for the result | no call: `backward()` does it and waits for the result | `dist.all_reduce(p.grad)`, then divide |
#
# DDP broadcasts weights and buffers from rank 0 when it is constructed, but not the optimizer's state.
#
# `labs/fashion_mnist_ddp.py` is the finished script. The next cell trains it on two ranks. The report
# should show identical weights on both ranks (equal hashes), different images on each rank, and metrics on
# which both ranks agree.

# %%
RECORD = WORK / "fashion_mnist_ddp"
shutil.rmtree(RECORD, ignore_errors=True)
few = ["--epochs", EPOCHS, "--images", 2001, "--heldout", 501]
run(LABS / "fashion_mnist_ddp.py", *few, ranks=2, HVDLAB_RUN_DIR=str(RECORD))
print(text(rank_report(RECORD)))

# %% [markdown]
# From here on the lab uses CPUs only, even on a machine with GPUs, for two reasons. First, it measures the
# bytes that a rank sends with a counter of the operating system's kernel, which covers only TCP. Gloo,
# PyTorch's communication library for CPUs, uses TCP, but it cannot gather GPU tensors. NCCL, the library for
# GPUs, avoids TCP where it can. Second, the lab compares losses to $10^{-6}$ with results of CPUs, and a GPU
# adds the numbers of a sum in another order.

# %%
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # no GPU for this notebook and for what it starts

# %% [markdown]
# ## Gradient buckets
#
# A network has dozens of gradients, and most of them are small. An all-reduce of $S$ bytes between two ranks
# takes about $\alpha + S/\beta$ seconds. The *latency* $\alpha$ is paid for every message, and $\beta$ is the
# bandwidth. For example, let $\alpha$ be 0.5 ms and $\beta$ be 1 GB/s. One hundred gradients of 10 kB then
# take $100 \times (0.5 + 0.01) = 51$ ms. One message with all 1,000 kB takes $0.5 + 1 = 1.5$ ms. Therefore
# DDP copies many gradients into one flat tensor, a **bucket**, and all-reduces the bucket. Horovod does the
# same and calls it tensor fusion (lab 5).
#
# ### Exercise 1: One bucket
#
# **What:** Write `average_gradients(model)`. Afterwards every `.grad` is the mean over the ranks. Use
# **one** all-reduce for all of them. Parameters without a gradient (frozen parameters, whose `.grad` is
# None) stay as they are.
#
# **Why:** This is what DDP does after a backward pass.
#
# **Signature:** `average_gradients(model)` changes the gradients in place and returns nothing. It runs on
# the ranks, so it imports what it needs inside.
#
# <details><summary>Hint 1</summary>Copy all gradients into one flat tensor, sum that tensor over the ranks,
# divide by the number of ranks, and copy each piece back.</details>
#
# <details><summary>Hint 2</summary>Two gradients with 2 and 3 numbers make a bucket of 5 numbers. Rank 0
# has [1, 2, 3, 4, 5] and rank 1 has [3, 2, 1, 0, 1]. The all-reduce gives [4, 4, 4, 4, 6], the division [2,
# 2, 2, 2, 3]. The first gradient gets [2, 2].</details>
#
# <details><summary>Hint 3</summary><code>bucket = torch.cat([g.ravel() for g in gradients])</code>, and
# after the all-reduce <code>for g, piece in zip(gradients, bucket.split([g.numel() for g in gradients])):
# g.copy_(piece.view_as(g))</code>.</details>


# %%
def average_gradients(model):
    import torch
    import torch.distributed as dist

    # BEGIN SOLUTION: average all gradients over the ranks, in one bucket
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    bucket = torch.cat([g.ravel() for g in gradients])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for g, piece in zip(gradients, bucket.split([g.numel() for g in gradients]), strict=True):
        g.copy_(piece.view_as(g))
    # END SOLUTION


# %%
exercises.check_average_gradients(average_gradients)

# %% [markdown]
# ## Equality with serial training
#
# A parallel mode is correct if it takes the same steps as a single process that reads the whole batch.
# `labs/sharded_training.py` trains a `ResidualMLP` with 2.3 million parameters, most of them in four equal
# *blocks* of two linear layers. Its twelve modes are `serial`, `hand`, `ddp`, `horovod`, `zero1`, and seven
# more that the later sections of this lab explain. All start from the same weights and read the same global
# batch of 64 images. The ranks start with different random seeds, so a missing broadcast would show in the
# losses. These lines are the mode `hand`, which all-reduces every gradient separately, and the mode `ddp`:

# %%
SCRIPT = LABS / "sharded_training.py"
excerpt(SCRIPT, "by_hand")
excerpt(SCRIPT, "ddp")

# %% [markdown]
# By default DDP keeps two copies of every gradient, one in `.grad` and one in a bucket. With
# `gradient_as_bucket_view=True`, as in the second excerpt, each `.grad` is a *view* of a bucket: it uses the
# bucket's memory. This saves 4 bytes per parameter.
#
# Adam divides a gradient by its size plus a small number, *epsilon*. The size of the gradient cancels, so a
# sum in place of a mean, a common mistake, would hardly change the losses. The script sets epsilon to
# $10^{-4}$ instead of $10^{-8}$. It is then not negligible next to small gradients, so the mistake is
# visible.
#
# Lab 4 compared one rank with several. How large is the difference between the loss of step 20 on two ranks
# and the loss of a single process?

# %%
# Prediction 1: the difference of the two losses after 20 steps. Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %%
SAME = {"OMP_NUM_THREADS": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}


@cache
def train(mode, ranks, repeat, *arguments):
    """The report of one run of sharded_training.py."""
    arguments = [mode, "--seed", repeat, "--steps", STEPS, *arguments]
    printed = run(SCRIPT, *arguments, ranks=ranks, show=False, timeout=300, **SAME)
    return json.loads(next(line for line in printed.splitlines() if line.startswith('{"mode"')))


alone = np.array(train("serial", 1, 1)["losses"])
losses = {mode: np.array(train(mode, 2, 1)["losses"]) for mode in COMPARED}
for mode, found in losses.items():
    print(f"{mode}: at most {np.abs(found - alone).max():.1e} from the serial run in {STEPS} steps")

# %% tags=["folded"]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
steps = range(1, STEPS + 1)
left.plot(steps, alone, color="black", label="serial, the whole batch")
for (mode, found), marker in zip(losses.items(), "ox^", strict=False):
    left.plot(steps, found, marker, fillstyle="none", label=f"{mode}, 2 ranks")
    right.plot(steps, np.abs(found - alone) + 1e-9, marker, fillstyle="none", label=mode)
predicted(right, prediction, x=STEPS)
left.set(xlabel="step", ylabel="loss of the global batch")
right.set(xlabel="step", ylabel="difference from the serial run", yscale="log", ylim=(5e-10, 1e-4))
for axes in (left, right):
    axes.legend()
describe(
    figure,
    "Two panels. Left: the losses of the modes on two ranks lie on the curve of the serial run."
    " Right: the differences from the serial run stay below one millionth in every step.",
)
workbook.result(1, max(abs(found[-1] - alone[-1]) for found in losses.values()))

# %% [markdown]
# **Result.** In our runs the largest difference is $3 \times 10^{-7}$ (2 ranks, 20 steps, n = 3 repetitions).
# It comes from the rounding of float32, which has about 7 significant digits: two ranks add the same numbers
# in another order. If you predicted a value near $10^{-7}$, you probably reasoned from these digits. If you
# predicted 0 (the figure shows it at $10^{-9}$), remember that floating-point addition is not associative. A
# difference far above $10^{-6}$ would be a mistake in the program.
#
# ## Data partition and metrics
#
# DDP averages gradients. It checks neither which images the ranks read nor how you compute a metric. Two
# mistakes are common, and neither raises an error.
#
# ### Shuffling with DistributedSampler
#
# `DistributedSampler` partitions the numbers of the images: it shuffles them with a seed that all ranks
# share, then rank $r$ of $N$ takes every $N$-th one. For example, the order [3, 0, 2, 1] gives rank 0 the
# images 3 and 2, and rank 1 the images 0 and 1. The shuffle depends on the seed *and* on the epoch number,
# which your script must pass to the
# [sampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler). A
# colleague reports: "The loss goes up and down with the same pattern in every epoch." The next cell shows
# what the ranks of this colleague read.


# %%
def faulty_orders(images, epochs, rank, size):
    """The numbers of the images that a rank reads, epoch by epoch."""
    sampler = DistributedSampler(range(images), num_replicas=size, rank=rank, seed=1)
    return [list(sampler) for epoch in range(epochs)]


for rank in range(2):
    for epoch, order in enumerate(faulty_orders(12, 3, rank, 2)):
        print(f"rank {rank}, epoch {epoch}: {order}")

# %% [markdown]
# ### Exercise 2: Fix the order
#
# **What:** Write `orders(images, epochs, rank, size)` with the same sampler and seed 1, but without the
# colleague's mistake.
#
# **Why:** With the mistake every epoch has the same batches in the same order, and each of $N$ ranks always
# reads the same $1/N$ of the images. The epochs are then no longer fresh random samples (lab 3).
#
# **Signature:** `orders(images, epochs, rank, size)` returns a list with one list of image numbers for each
# epoch.
#
# <details><summary>Hint 1</summary>Compare the lines of one rank above. What should differ from epoch to
# epoch?</details>
#
# <details><summary>Hint 2</summary>With 4 images and 2 ranks, rank 0 might read [3, 2] in epoch 0 and [0,
# 3] in epoch 1. The sampler computes the shuffle from seed + epoch.</details>
#
# <details><summary>Hint 3</summary>Call <code>sampler.set_epoch(epoch)</code> before each
# <code>list(sampler)</code>.</details>


# %%
def orders(images, epochs, rank, size):
    # BEGIN SOLUTION: return the orders of the sampler without the mistake
    sampler = DistributedSampler(range(images), num_replicas=size, rank=rank, seed=1)
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found
    # END SOLUTION


# %%
exercises.check_orders(orders)

# %% [markdown]
# ### Metrics over unequal shards
#
# A second colleague reports: "My accuracy depends on the number of ranks, but the weights are the same." The
# sampler gives every rank equally many images. If the number of images is not a multiple of the number of
# ranks, it repeats some of them. The next cell computes the accuracy of a network that classifies 4 of 5
# images correctly, as this colleague does.


# %%
def faulty_accuracy(rank, size, is_right):
    """Each rank evaluates the images that the sampler gives it; the accuracies are averaged."""
    mine = list(DistributedSampler(is_right, num_replicas=size, rank=rank, shuffle=False))
    return is_right[mine].mean()


is_right = np.array([0.0, 1, 1, 1, 1])
for ranks in (1, 2, 3, 4):
    parts = [faulty_accuracy(rank, ranks, is_right) for rank in range(ranks)]
    print(f"{ranks} ranks: accuracy {np.mean(parts):.3f}, mean of {np.round(parts, 2).tolist()}")

# %% [markdown]
# The accuracy of this network is 0.8. With two ranks the sampler repeats image 0, which is classified
# wrongly, so the result is too low. Without the repetition a mean of the ranks' accuracies is wrong too: with
# shards of 3 and 2 images, the images of the smaller shard get a larger weight.
#
# ### Exercise 3: Count each image once
#
# **What:** Write `accuracy(predict, images, labels)`. It runs on every rank, and every rank has all held-out
# images, that is, images that training does not use. `predict(some_images)` returns their predicted labels as
# a tensor. Return the accuracy over all images, on every rank. Each image must be classified by one rank
# only.
#
# **Why:** In training a repeated image is harmless. In a published accuracy it is an error.
#
# **Signature:** `accuracy(predict, images, labels)` returns a number between 0 and 1.
#
# <details><summary>Hint 1</summary>Sums and counts can be added over ranks, means cannot. Which two numbers
# does a rank know about its own images?</details>
#
# <details><summary>Hint 2</summary>5 images on 2 ranks: rank 0 has the images 0, 2, 4, of which 2 are
# right, and rank 1 has 1 and 3, of which 2 are right. The sums are 4 right of 5, so the accuracy is 0.8.
# The mean of the means would be 0.83. A rank may also have no image: then both of its numbers are
# 0.</details>
#
# <details><summary>Hint 3</summary><code>mine = slice(dist.get_rank(), None, dist.get_world_size())</code>,
# then all-reduce <code>torch.tensor([right, count], dtype=torch.float64)</code> and divide.</details>


# %%
def accuracy(predict, images, labels):
    import torch
    import torch.distributed as dist

    # BEGIN SOLUTION: return the accuracy over all images, each classified once
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (predict(images[mine]) == labels[mine]).sum()
    both = torch.tensor([right.item(), len(labels[mine])], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    # END SOLUTION


# %%
exercises.check_accuracy(accuracy)

# %% [markdown]
# ## Overlap of communication and backward pass
#
# By the chain rule, the gradient of a layer is computed from that of the layer after it, so the backward pass
# goes from the last layer to the first. The gradients of the last layer are ready early. When DDP is
# constructed, it registers an *autograd hook* on every parameter, that is, a function that autograd calls as soon as
# the gradient of this parameter is ready. When the last gradient of a bucket has arrived, DDP starts the
# all-reduce of this bucket in the background, and the backward pass continues. At its end, `backward()` waits
# for the buckets that are still on their way.
#
# ![Two timelines of one training step with a row for computing and a row for the network. With one bucket the all-reduce starts after the backward pass, and the update waits for all of it. With four buckets most of the communication happens during the backward pass, so that the update starts earlier.](pictures/ddp_buckets.svg)
#
# The size of a bucket is a compromise. Small buckets start early, but every bucket pays the latency. One
# bucket with all gradients pays the latency once, but its all-reduce cannot overlap with anything. The
# argument `bucket_cap_mb` sets the size at which a bucket is closed, in MiB ($2^{20}$ bytes). Without the
# argument, the **first** bucket has a limit of 1 MiB, so that communication starts early, and all others have
# 25 MiB. The documentation calls 25 the default. But if you pass `bucket_cap_mb=25`, the first bucket has 25
# MiB too. So passing this number changes the buckets, as `_BucketCapacityConfig` in PyTorch's
# [`distributed.py`](https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/distributed.py) shows.
#
# These limits hold from the second step on. In the first step DDP does not know the order in which gradients
# arrive, so it uses a single bucket, and nothing overlaps. Then it builds the buckets in the order that it
# observed. Rank 0 broadcasts the assignment, so all ranks use the same buckets.
#
# ### Exercise 4: Assign gradients to buckets
#
# **What:** Write `buckets(sizes, first, cap)`. `sizes` are the bytes of the gradients in the order in which
# the backward pass computes them. Gradients join the current bucket one after the other. A bucket is closed
# as soon as its size has reached its limit, so it may be larger than the limit. The limit is `first` bytes
# for the first bucket and `cap` bytes for all others.
#
# **Why:** The number of buckets is the number of all-reduces in a step.
#
# **Signature:** `buckets(sizes, first, cap)` returns a list of buckets, and each bucket is the list of the
# positions of its gradients in `sizes`.
#
# <details><summary>Hint 1</summary>Keep a list of finished buckets and one open bucket. After each gradient
# decide whether the open bucket is finished.</details>
#
# <details><summary>Hint 2</summary><code>buckets([600, 500, 900], 1000, 2000)</code>: gradient 0 makes 600
# bytes, which is below 1000. Gradient 1 makes 1100, so the first bucket is [0, 1]. The limit is now 2000.
# Gradient 2 makes 900 and stays in the last bucket [2].</details>
#
# <details><summary>Hint 3</summary>In the loop <code>for number, size in enumerate(sizes)</code>: append
# the number, add the size, and <code>if filled &gt;= limit: result.append(bucket); bucket, filled, limit =
# [], 0, cap</code>. After the loop append the open bucket if it is not empty.</details>


# %%
def buckets(sizes, first, cap):
    # BEGIN SOLUTION: return the positions of the gradients in each bucket
    result, bucket, filled, limit = [], [], 0, first
    for number, size in enumerate(sizes):
        bucket.append(number)
        filled += size
        if filled >= limit:
            result.append(bucket)
            bucket, filled, limit = [], 0, cap
    if bucket:
        result.append(bucket)
    return result
    # END SOLUTION


# %%
exercises.check_buckets(buckets)

# %% [markdown]
# The next experiment uses a network with 4.4 million parameters, that is, 17.7 MB of gradients. Your
# function says how many all-reduces a step will need with each setting:

# %%
MIB = 2**20
network = ResidualMLP(8, 256, image_size=28)
sizes = [4 * parameter.numel() for parameter in reversed(list(network.parameters()))]
for name, first, cap in (("1", 1, 1), ("4", 4, 4), ("25", 25, 25), ("default", 1, 25)):
    found = buckets(sizes, first * MIB, cap * MIB)
    megabytes = [round(sum(sizes[number] for number in bucket) / 1e6, 1) for bucket in found]
    more = " and so on" if len(found) > 4 else ""
    print(f"bucket_cap_mb {name}: {len(found)} buckets, of {megabytes[:4]} MB{more}")

# %% [markdown]
# ### Gradient accumulation with no_sync
#
# Gradient accumulation (lab 9) runs several backward passes before one update, so that a large batch fits
# into memory. DDP cannot know which pass is the last one before the update, so it all-reduces in every pass,
# although only the sum matters. Inside of *`no_sync`*, as in `with model.no_sync():`, DDP skips the exchange, and the gradients add
# up on each rank. All forward and backward passes but the last pair must stand inside the
# block. The last pair stands outside and exchanges the sums.
#
# ### Communication hooks
#
# A *communication hook* replaces the all-reduce of a bucket by a function of your own. PyTorch's
# `fp16_compress_hook` casts the bucket to float16, which halves the bytes and rounds the gradients to about 3
# digits. **PowerSGD** ([Vogels et al. 2019](https://arxiv.org/abs/1905.13727)) approximates the gradient
# matrix of a layer by the product of two thin matrices, and sends only these. For example, a matrix of 1024 x
# 256 has 262,144 numbers. One column times one row (a matrix of *rank 1*; this rank is not a process) needs
# only 1024 + 256 = 1,280 numbers, 205 times fewer. Vectors such as biases are sent whole. Both hooks change
# the losses.
#
# `labs/ddp_communication.py` varies these settings and records one step with PyTorch's profiler. This is
# its step:

# %%
excerpt(LABS / "ddp_communication.py", "step")

# %% [markdown]
# The gradients are 17.7 MB, and there are two ranks. In a ring all-reduce, where ranks send chunks to their
# neighbours (lab 4), each rank sends $2(N-1)/N$ times the size of the tensor. How many MB does a rank send in
# a step with four passes and without `no_sync`?

# %%
# Prediction 2: MB that a rank sends in a step with four passes, without no_sync. Replace both values of None.
workbook.predict(2, None, reason=None)

# %% tags=["folded"]
WAYS = {
    "default": [], "1 MB": ["--bucket-mb", 1], "4 MB": ["--bucket-mb", 4], "25 MB": ["--bucket-mb", 25],
    # The following use one bucket of 25 MiB for each pass.
    "4 passes": ["--bucket-mb", 25, "--passes", 4],
    "4 passes, no_sync": ["--bucket-mb", 25, "--passes", 4, "--no-sync"],
    "float16 hook": ["--bucket-mb", 25, "--hook", "fp16"],
    "PowerSGD hook": ["--bucket-mb", 25, "--hook", "powersgd"],
}  # fmt: skip
names = by_run_length(quick=[], learner=list(WAYS), reference=list(WAYS))
timelines = {}


def communicate(way, repeat):
    arguments = [*WAYS[way], "--steps", DDP_STEPS]
    printed = run(LABS / "ddp_communication.py", *arguments, ranks=2, show=False, timeout=120)
    report = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    timelines[way] = report["events"]
    return {"collectives": report["collectives"], "sent_MB": report["bytes"] / 1e6,
            "milliseconds": 1000 * report["seconds"]}  # fmt: skip


# %%
sent = sweep("ddp_communication", communicate, grid(way=names, repeat=seeds(1)))

# %% tags=["folded"]
drawn = [way for way in ("1 MB", "4 MB", "25 MB", "default") if way in timelines]
if drawn:  # nothing was measured while another experiment made its reference results
    figure, panels = plt.subplots(len(drawn), 1, figsize=(10, 1 + 1.5 * len(drawn)), sharex=True, squeeze=False)  # fmt: skip
    for axes, way in zip(panels[:, 0], drawn, strict=True):
        bars = {"backward": [], "all-reduce": []}
        for what, start, duration in timelines[way]:
            bars[what].append((start, duration))
        axes.broken_barh(bars["backward"], (1, 0.8), color=COLOURS[0])
        for number, bar in enumerate(sorted(bars["all-reduce"])):
            row = number % 4  # buckets overlap each other: four rows
            axes.broken_barh([bar], (0.2 * row, 0.18), color=COLOURS[1], edgecolor="black", linewidth=0.5)  # fmt: skip
        axes.set_yticks([0.4, 1.4], [f"{len(bars['all-reduce'])} all-reduces", "backward"])
        axes.set_title(f"bucket_cap_mb: {way}", loc="left", fontsize=10)
    panels[-1, 0].set_xlabel("milliseconds of the step on rank 0 (with the profiler's own time)")
    describe(
        figure,
        "Timelines of one step for each bucket size: bars of the backward pass above, bars of "
        "the all-reduces below. The smaller the first bucket is, the earlier the first "
        "all-reduce starts.",
    )

# %%
columns = ["collectives", "sent_MB", "milliseconds"]
traffic = medians(sent, reference("ddp_communication"), by=["way"], columns=columns)
# Yours, or the reference where you have no measurement.
workbook.result(2, traffic.loc["4 passes"][:, "sent_MB"].dropna().iloc[0])
traffic.round(1)

# %% [markdown]
# **Result.** With `bucket_cap_mb=1` (in the table "1 MB") there are 17 all-reduces, and the first one starts
# soon after the backward pass has started. With an explicit 25 there is only one, and it starts when all
# gradients are ready. DDP's default has two (your own run shows it; the reference did not measure it): a
# bucket of 1.1 MB starts early, and the remaining 16.6 MB follow at the end.
#
# The bytes do not depend on the buckets: $2(N-1)/N = 1$ times 17.7 MB on two ranks. Four passes send 71 MB,
# four times as much. If you predicted this, you knew that DDP exchanges in every backward pass. With
# `no_sync` it is 17.7 MB again. Float16 halves the bytes to 8.8 MB. PowerSGD sends 0.15 MB: 0.09 MB of thin
# matrices, and 0.06 MB of biases and LayerNorm weights. It needs three all-reduces, one for these vectors and
# two for the matrices. The profile sees only the first, because *callbacks*, functions that run when the one
# before is complete, start the others. Gloo's threads run them, so with several buckets two ranks may start
# the all-reduces in different orders, and Gloo then ends the run. PowerSGD therefore gets one bucket here.
#
# The milliseconds do not improve here. Gloo's threads use the same two cores that compute, so communication
# and computation compete. On GPUs the network card transfers data while the GPU computes, so the overlap
# can hide most of the communication (lab 18).
#
# ## ZeRO: sharding of optimizer state, gradients and weights
#
# Training with Adam in float32 needs 16 bytes per parameter: 4 for the weight, 4 for its gradient, and 8 for
# the *optimizer state*, which consists of the running means of the gradient and of its square (Adam's
# *moments*). DDP with `gradient_as_bucket_view=True` stores all 16 bytes on **every** rank, and 20 without
# it. This is redundant, because every rank stores the same numbers. **ZeRO** (Zero Redundancy Optimizer)
# removes the redundancy by *sharding* tensors: each of $N$ ranks stores $1/N$ of them. Each of its three
# stages shards more.
#
# * **Stage 1** shards the optimizer state. A rank updates only its own shard of the weights, so it needs the
#   mean gradient of this shard only. A *reduce-scatter* computes it: it sums a tensor over all ranks and
#   leaves each rank one part of the result. Every rank still stores its own gradients whole. After the
#   update, an *all-gather* gives every rank the new weights of all shards.
# * **Stage 2** also shards the gradients. The reduce-scatter takes place during the backward pass, and a rank
#   frees the gradients outside its shard as soon as they have been sent.
# * **Stage 3** also shards the weights. Before a layer computes, an all-gather collects its weights, and
#   afterwards they are freed.
#
# ![Four rows for DDP and ZeRO stages 1 to 3, and four ranks per row. DDP stores weights, gradients and optimizer state on every rank, 16 bytes per parameter. Stage 1 shards the state, stage 2 also the gradients, stage 3 also the weights, so that four ranks store 10, 7 and 4 bytes per parameter.](pictures/zero_stages.svg)
#
# For $\Psi$ parameters and $N$ ranks, a rank stores
#
# $$\text{stage 1: } (4 + 4 + \tfrac{8}{N})\,\Psi \qquad
#   \text{stage 2: } (4 + \tfrac{4 + 8}{N})\,\Psi \qquad \text{stage 3: } \tfrac{4 + 4 + 8}{N}\,\Psi$$
#
# bytes. For example, one billion parameters on 4 ranks need 16 GB per rank with DDP, 10 GB with stage 1, 7 GB
# with stage 2 and 4 GB with stage 3.
#
# In mixed precision the sum is 16 bytes as well, but the parts depend on the implementation:
#
# * *Autocast* (lab 9) keeps weights, gradients and state in float32, $4 + 4 + 8$ bytes, and makes copies in 16
#   bits only for a step. So the stages store the same as above, for example $8 + 8/N$ in stage 1.
# * *DeepSpeed* and ZeRO's paper store 2 bytes for the weight, 2 for the gradient, and 12 for the state, which
#   contains a float32 copy of the weight (4) and the moments (8). The stages then store $4 + 12/N$,
#   $2 + 14/N$ and $16/N$ bytes.
# * *FSDP2* (below) with `MixedPrecisionPolicy(param_dtype=torch.bfloat16)` stores float32 shards, and gathers
#   the weights in bfloat16, which halves the bytes of each all-gather.
#
# The activations are not part of this count. Each rank computes the activations of its own images, so they
# are not redundant.
#
# ### Exercise 5: Memory of a rank
#
# **What:** Write `rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8)`, the bytes that
# one rank stores. Stage 0 means DDP.
#
# **Why:** The function tells you which stage fits your GPU.
#
# **Signature:** returns a number of bytes. `weights`, `gradients` and `state` are bytes per parameter.
#
# <details><summary>Hint 1</summary>Each of the three kinds of tensors is divided by the number of ranks
# from some stage on. From which stage on?</details>
#
# <details><summary>Hint 2</summary>100 parameters on 4 ranks in stage 2: weights 400, gradients 400 / 4 =
# 100, state 800 / 4 = 200, together 700 bytes.</details>
#
# <details><summary>Hint 3</summary><code>state / ranks if stage &gt;= 1 else state</code>, the same for
# gradients from stage 2 and for weights in stage 3; multiply the sum by <code>parameters</code>.</details>


# %%
def rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8):
    # BEGIN SOLUTION: return the bytes that one rank stores
    parts = ((weights, 3), (gradients, 2), (state, 1))
    return parameters * sum(part / ranks if stage >= first else part for part, first in parts)
    # END SOLUTION


# %%
exercises.check_rank_bytes(rank_bytes)

# %% tags=["folded"]
ranks = 2 ** np.arange(11)
figure, axes = plt.subplots(figsize=(7, 4.2))
for stage, style in enumerate(("-", "--", "-.", ":")):
    gigabytes = [rank_bytes(7.5e9, int(n), stage, 2, 2, 12) / 1e9 for n in ranks]
    axes.plot(ranks, gigabytes, style, label=f"stage {stage}" if stage else "DDP")
axes.axhline(80, color="grey", linewidth=1, label="a GPU of 80 GB")
axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="GB on each (without activations)")
axes.set_title("7.5 billion parameters, 2 + 2 + 12 bytes each")
axes.legend()
describe(
    figure,
    "Memory of a rank over the number of ranks, on logarithmic axes. DDP stays at 120 GB. "
    "Stages 1 and 2 fall to 30 and 15 GB and then stay there. Stage 3 falls in proportion to "
    "the number of ranks.",
)

# %% [markdown]
# The figure computes the paper's example with your function: 7.5 billion parameters in the mixed precision of
# DeepSpeed, $2 + 2 + 12$ bytes. DDP needs 120 GB on any number of ranks, which is more than a GPU of 80 GB has. On 64 ranks stages 1, 2 and 3
# need 31, 17 and 1.9 GB. Stage 1 cannot fall below 30 GB, because weights and gradients remain whole, and
# stage 2 not below 15 GB, because the weights do. Only stage 3 has no such limit.
#
# ### Exercise 6: ZeRO stage 1
#
# **What:** Write `zero1(model, lr)`. It creates an Adam over *this rank's* parameters only, and a function
# `step` that updates them and then gives all ranks all new weights. A shard consists of whole parameters
# (tensors), and all shards should have about equally many numbers. Before `step()`, an all-reduce has
# averaged all gradients, which is simpler than a reduce-scatter.
#
# **Why:** Ten lines divide the largest part of the memory by the number of ranks.
#
# **Signature:** `zero1(model, lr)` returns `(optimizer, step)`.
#
# <details><summary>Hint 1</summary>Every parameter has an owner. Only the owner updates it, and afterwards
# the owner broadcasts it. All ranks must call all broadcasts in the same order.</details>
#
# <details><summary>Hint 2</summary>Sizes 6, 2, 6, 2 on two ranks. Giving every second parameter to the same
# rank makes shards of 12 and 4. Instead give each parameter to the rank that has the fewest numbers so far:
# 6 to rank 0, 2 to rank 1, 6 to rank 1, 2 to rank 0. Both ranks then have 8.</details>
#
# <details><summary>Hint 3</summary><code>owner = numbers.index(min(numbers))</code> with <code>numbers =
# [0] * size</code> at the start, then <code>numbers[owner] += parameter.numel()</code>. In
# <code>step</code>: <code>optimizer.step()</code>, then <code>dist.broadcast(parameter.data,
# src=owner)</code> for each parameter.</details>


# %%
def zero1(model, lr):
    import torch
    import torch.distributed as dist

    # BEGIN SOLUTION: return an optimizer over this rank's parameters, and step
    rank, size = dist.get_rank(), dist.get_world_size()
    owners, numbers = [], [0] * size
    for parameter in model.parameters():  # to the rank that has the fewest numbers so far
        owner = numbers.index(min(numbers))
        owners.append((parameter, owner))
        numbers[owner] += parameter.numel()
    optimizer = torch.optim.Adam([p for p, owner in owners if owner == rank], lr)

    def step():
        optimizer.step()
        for parameter, owner in owners:
            dist.broadcast(parameter.data, src=owner)

    return optimizer, step
    # END SOLUTION


# %%
exercises.check_zero1(zero1)

# %% [markdown]
# ## FSDP2: gather, compute, free
#
# `fully_shard` is PyTorch's implementation of ZeRO stage 3 and is called **FSDP2** (Fully Sharded Data
# Parallel, second version). It replaces each parameter of a module by a `DTensor` (distributed tensor), of
# which each rank stores one part of the rows. You call it for every block and then for the whole model. Each
# call forms a group of the parameters that no earlier call has taken, so the last group contains only the
# layers outside the blocks. Before a group computes, its weights are gathered, and afterwards they are freed.
# The backward pass gathers them again, because it needs the weights to compute the gradients. Each gradient
# is reduce-scattered as soon as its block is done. By default the group of the whole model is an exception: it
# stays whole after the forward pass, because the backward pass needs its last layer at once. The lab sets
# `reshard_after_forward=True` for it too, so that every weight is gathered twice, as in ZeRO stage 3.
#
# ![A timeline of FSDP for three blocks with rows for the network, for computing and for the whole weights in memory. The weights of the next block are gathered while the current block computes. After the forward pass of a block its weights are freed, and the backward pass gathers them again. Gradients are reduce-scattered after the backward pass of their block.](pictures/fsdp_timeline.svg)
#
# Two details of the picture matter. First, the all-gather of the next block overlaps with the computation of
# the current block, so it costs little time if the network is fast enough. Second, only one or two blocks are
# whole at the same time. If you call `fully_shard` only for the whole model, all weights are one group and
# are whole together, as with DDP. So call it for every block.
#
# With `reshard_after_forward=False` the weights stay whole from the forward to the backward pass. This saves
# one of the two all-gathers, so a step sends as much as ZeRO stage 2, and the lab calls it "FSDP2 stage 2".
# Outside of the two passes, however, a rank stores only its shard of the weights. These lines of
# `sharded_training.py` shard the network:

# %%
excerpt(SCRIPT, "fsdp")

# %% [markdown]
# The `mesh` is the group of ranks that share the parameters, together with their kind of device. A
# colleague's network does not learn. The next cell shows the colleague's function and the losses of six
# steps on the same 64 images.


# %%
def faulty_shard(model, lr):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # CPUs, all ranks
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return optimizer


# %% tags=["folded"]
def losses_of(comm, name):
    """The loss on the same 64 images, step by step."""
    import torch
    import torch.distributed as dist

    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model, found = ResidualMLP(2, 32, 8), []
    optimizer = globals()[name](model, 0.01)
    images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


# %%
print(np.round(call(losses_of, "faulty_shard", ranks=2, uses=(faulty_shard,))[0], 3))

# %% [markdown]
# ### Exercise 7: Fix the sharded optimizer
#
# **What:** Find the reason, and write `shard(model, lr)`, which shards the model and returns an optimizer
# that updates it.
#
# **Why:** The mistake raises no error.
#
# **Signature:** `shard(model, lr)` changes the model in place and returns the optimizer.
#
# <details><summary>Hint 1</summary>Which tensors does the optimizer know, and which tensors does the model
# contain at the end?</details>
#
# <details><summary>Hint 2</summary>Imagine a list <code>a = [w]</code> and an optimizer that stores
# <code>w</code>. Then <code>a[0] = v</code> replaces the entry. An update of <code>w</code> does not change
# <code>a</code>.</details>
#
# <details><summary>Hint 3</summary>First call <code>fully_shard(..., mesh=mesh)</code> for the blocks and
# for the model, then create <code>torch.optim.Adam(model.parameters(), lr)</code>.</details>


# %%
def shard(model, lr):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # CPUs, all ranks
    # BEGIN SOLUTION: shard the model, and return its optimizer
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr)
    # END SOLUTION


# %%
exercises.check_shard(shard)

# %% [markdown]
# The found script raised no error, because the tensors that its optimizer knows still exist, although the model
# does not contain them any more. They get no gradient, and an optimizer skips parameters without a gradient. So
# check after every change of a model that the weights move.
#
# ### Gradient norm over shards
#
# Gradient clipping (lab 9) limits the norm of the whole gradient. With sharded gradients each rank knows only
# a part of it. A colleague calls `clip_grad_norm_` on the shard of each rank. The next cell does this with
# two numbers, one on each of two ranks.

# %%
for gradient in ([3.0, 4.0], [0.5, 8.0]):
    shards = [torch.nn.Parameter(torch.zeros(1)) for _ in gradient]
    for one, value in zip(shards, gradient, strict=True):
        one.grad = torch.tensor([value])
        torch.nn.utils.clip_grad_norm_([one], 1.0)  # on its rank, which knows only this shard
    print(f"gradient {gradient}, clipped by each rank: {[round(s.grad.item(), 3) for s in shards]}")

# %% [markdown]
# The gradient [3, 4] has the norm 5, and clipped to 1 it is [0.6, 0.8]. The ranks compute [1, 1] instead,
# which has another direction. Clipping should only shorten the gradient.
#
# ### Exercise 8: Clip by the global norm
#
# **What:** Write `clip(gradients, most)`. `gradients` is the list of tensors that this rank stores. Scale
# them in place so that the norm over **all ranks** is at most `most`.
#
# **Why:** The DTensors of FSDP2 (lab 13) compute the global norm themselves. If you shard tensors yourself,
# you must do it.
#
# **Signature:** `clip(gradients, most)` returns the global norm before clipping, a number.
#
# <details><summary>Hint 1</summary>Norms of shards cannot be added, but squares of norms can.</details>
#
# <details><summary>Hint 2</summary>Ranks with norms 3 and 4: the squares are 9 and 16, their sum is 25, and
# the global norm is 5. With <code>most = 1</code> every rank multiplies its gradients by 1/5.</details>
#
# <details><summary>Hint 3</summary><code>total = sum(g.pow(2).sum() for g in gradients)</code>, all-reduce
# it, take the square root. If the norm is larger than <code>most</code>, <code>g.mul_(most / norm)</code>
# for each gradient.</details>


# %%
def clip(gradients, most):
    import torch.distributed as dist

    # BEGIN SOLUTION: clip by the norm over all ranks
    total = sum(g.pow(2).sum() for g in gradients)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > most:
        for g in gradients:
            g.mul_(most / norm)
    return norm.item()
    # END SOLUTION


# %%
exercises.check_clip(clip)

# %% [markdown]
# ## DeepSpeed
#
# [DeepSpeed](https://www.deepspeed.ai) is the library of ZeRO's authors and implements all three stages. You
# pass a configuration, and `deepspeed.initialize` returns an *engine* that replaces the model and the
# optimizer. The calls become `engine(images)`, `engine.backward(loss)` and `engine.step()`. In short:
#
# ```python
# config = {
#     "train_micro_batch_size_per_gpu": 32,  # images per rank and backward pass
#     "gradient_clipping": 0.0,
#     "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
# }
# engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
# ```
#
# Two of DeepSpeed's defaults are surprising. It clips gradients at a norm of 1, and in stage 3 it keeps small
# tensors whole. The script switches both off.
#
# ## Communication volume of the stages
#
# Sharding saves memory, but it may send more. An all-reduce consists of two halves, a reduce-scatter followed
# by an all-gather, and each half sends $(N-1)/N$ times the tensor. DDP all-reduces the gradients: two halves,
# or **1** all-reduce. Stages 1 and 2 reduce-scatter the gradients and all-gather the weights: also **1**.
# Stage 3 gathers the weights twice, for the forward and for the backward pass, and reduce-scatters the
# gradients: three halves, or **1.5** all-reduces.
#
# ![Bars of the bytes that a step sends, in units of an all-reduce. DDP sends 1. Stages 1 and 2 send 1 with NCCL, and 1.5 with Gloo, whose reduce-scatter sends as much as an all-reduce. Stage 3 sends 1.5 with NCCL and 2 with Gloo.](pictures/zero_traffic.svg)
#
# The count depends on the library. Gloo's reduce-scatter does a whole all-reduce and keeps one part, so it
# sends twice as much as NCCL's, and the stages send 1.5, 1.5 and 2. Your `zero1` and PyTorch's version of it,
# `ZeroRedundancyOptimizer`, all-reduce the gradients and then broadcast the new weights, so they send 1.5
# with every library.
#
# ## Measurement of all modes
#
# The next experiment runs each mode on 2 ranks, and FSDP2 stage 3 also on 4. It measures the memory between
# the backward pass and the update, and your formula predicts it. It also measures the bytes of a step, and
# the count above predicts these. The network has 2.3 million parameters. How many MB does a rank store with
# FSDP2 stage 3 on 2 ranks?

# %%
# Prediction 3: MB that a rank stores with FSDP2 stage 3 on 2 ranks. Replace both values of None.
prediction = workbook.predict(3, None, reason=None)

# %% tags=["folded"]
MODES = {  # mode of the script: (name, stage, bytes of state, halves of an all-reduce)
    "serial": ("serial", 0, 8, 0), "hand": ("by hand", 0, 8, 2), "ddp": ("DDP", 0, 8, 2),
    "horovod": ("Horovod", 0, 8, 2), "zero1": ("ZeRO-1 torch", 1, 8, 3),
    "fsdp2": ("FSDP2 stage 2", 2, 8, 3), "fsdp3": ("FSDP2 stage 3", 3, 8, 4),
    # DeepSpeed always holds a float32 copy of the weights that a rank updates: K = 12.
    "deepspeed1": ("DeepSpeed 1", 1, 12, 3), "deepspeed2": ("DeepSpeed 2", 2, 12, 3),
    "deepspeed3": ("DeepSpeed 3", 3, 12, 4),
}  # fmt: skip
two = by_run_length(quick=["serial", "ddp"], learner=list(MODES), reference=list(MODES))
four = by_run_length(quick=[], learner=["fsdp3"], reference=["ddp", "zero1", "fsdp3", "deepspeed3"])
settings = [
    {"mode": mode, "ranks": 1 if mode == "serial" else ranks, "repeat": repeat}
    for repeat in seeds(1)
    for ranks, modes in ((2, two), (4, four))
    for mode in modes
]


# %%
def measure(mode, ranks, repeat):
    report, serial = train(mode, ranks, repeat), train("serial", 1, repeat)
    name, stage, state, halves = MODES[mode]
    psi = report["parameters"]
    difference = np.abs(np.array(report["losses"]) - serial["losses"]).max()
    return {
        "mode": name, "loss_difference": difference, "memory_bytes": report["memory_bytes"],
        "memory_predicted": rank_bytes(psi, ranks, stage, state=state),
        "sent_bytes": report["sent_bytes"],
        "sent_predicted": halves * (ranks - 1) / ranks * 4 * psi,
        "step_seconds": report["step_seconds"],
    }  # fmt: skip


modes = sweep("sharding_modes", measure, settings)

# %% tags=["folded"]
shipped = reference("sharding_modes")
figure, panels = plt.subplots(1, 2, figsize=(12, 5), sharey=True)
groups = shipped.groupby(["mode", "ranks"], sort=False).median(numeric_only=True)
mine = modes.groupby(["mode", "ranks"], sort=False).median(numeric_only=True).reindex(groups.index)
rows = np.arange(len(groups))
for axes, column, says in zip(panels, ("memory", "sent"), ("stored by a rank", "sent by a rank per step"), strict=True):  # fmt: skip
    axes.barh(rows, groups[f"{column}_bytes"] / 1e6, color=COLOURS[0], alpha=0.6, label="reference")
    axes.plot(groups[f"{column}_predicted"] / 1e6, rows, "k|", markersize=16, markeredgewidth=2, label="formula")  # fmt: skip
    axes.plot(mine[f"{column}_bytes"] / 1e6, rows, "o", color=COLOURS[1], markeredgecolor="black", label="yours")  # fmt: skip
    axes.set_xlabel(f"MB {says}")
panels[0].set_yticks(rows, [f"{mode}, {n} rank{'s' * (n > 1)}" for mode, n in groups.index])
panels[0].invert_yaxis()
if prediction is not None:
    panels[0].axvline(prediction, color="black", linestyle="--", label="your prediction")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
describe(
    figure,
    "Two bar charts with a row for each mode: memory of a rank, and bytes that it sends per "
    "step. Black marks show the formulas. Memory falls from 37 MB with DDP to 18 MB with stage "
    "3, and the bytes grow from 9 to 18 MB.",
)
stored = mine["memory_bytes"].fillna(groups["memory_bytes"])  # the reference where yours is missing
workbook.result(3, stored["FSDP2 stage 3", 2] / 1e6)

# %%
print(f"largest difference from the serial loss: {modes['loss_difference'].max():.1e} (yours), "
      f"{shipped['loss_difference'].max():.1e} (reference)")  # fmt: skip
compare(modes, shipped, by=["ranks", "mode"], value="step_seconds")

# %% [markdown]
# **Result.** Every mode has the losses of the serial run, up to rounding. DDP, Horovod and the mode `hand`
# store 37 MB on each rank, which is $16 \times 2.3$ million bytes. FSDP2 stage 3 stores half of it, 18 MB. If
# you predicted 18, you divided all 16 bytes by the two ranks. The other modes follow the formula, with three
# exceptions:
#
# * PyTorch's ZeRO-1 partitions *whole tensors*, so one rank stores slightly more than half of the state.
#   The figure shows the largest rank.
# * FSDP2 stage 2 stores less than the formula of stage 2 says, because its weights are whole only from the
#   forward to the backward pass.
# * DeepSpeed 1 stores less than the formula of stage 1 says, because after the backward pass it keeps only
#   the gradients of its shard, like DeepSpeed 2. All three DeepSpeed modes have buffers of about 1 MB. Their
#   formulas count 12 bytes of state, because DeepSpeed keeps a float32 copy of the weights that a rank
#   updates.
#
# No sharded mode is faster than DDP here: a step takes 32 ms with DDP and 104 ms with FSDP2 stage 3 (medians,
# 2 ranks, n = 3). Use sharding when the memory requires it.
#
# ### Peak memory of stage 3
#
# The next table shows a network with twelve blocks and 26 MB of weights. `held_MB` is stored all the time.
# `on_top_MB` is the largest amount that is allocated in addition within a step: gradients, activations, and
# the gathered weights of FSDP2.


# %%
def peaks(mode, repeat):
    ranks = 1 if mode == "serial" else 2
    report = train(mode, ranks, repeat, "--num-layers", 12, "--steps", 5)
    held_before = report["memory_bytes"] - 4 * report["parameters"] / ranks  # without the gradients
    return {"held_MB": held_before / 1e6, "on_top_MB": report["peak_bytes"] / 1e6}


KINDS = ["serial", "fsdp2", "fsdp3"]
kinds = by_run_length(quick=[], learner=KINDS, reference=KINDS)
tops = sweep("sharding_peaks", peaks, grid(mode=kinds, repeat=seeds(1)))
medians(tops, reference("sharding_peaks"), by=["mode"], columns=["held_MB", "on_top_MB"]).round(1)

# %% [markdown]
# Stage 2 needs 35 MB on top and stage 3 needs 27 MB (n = 3). The difference is less than 26 MB, because the
# peaks are at different times. In stage 2 the peak is at the end of the forward pass, when all weights are
# whole. Its backward pass frees the whole weights of a block as soon as the block's gradients are there. In
# stage 3 it is near the end of the backward pass, when a rank stores the weights of one or two blocks and
# most gradients of its shard (13 MB).
#
# ## Offload to CPU memory or disk
#
# If even a shard is too large for the GPU, the next larger memory can store it: CPU memory for a GPU, or a
# disk for a CPU. This is called *offload*. Two kinds of tensors suit it.
#
# * **Activations** are saved by the forward pass and used once by the backward pass. PyTorch calls two
#   functions of yours, `saved_tensors_hooks`, which move a tensor when it is saved and when it is needed
#   again. The alternative is to compute the activations again (activation checkpointing, lab 9).
# * **Optimizer state** is used only once per step, so it may be stored where access is slow.
#
# This lab uses CPUs, so the next memory is a file. These lines of `labs/out_of_core.py` write each saved
# activation to a file and read it back:

# %%
excerpt(LABS / "out_of_core.py", "to_file")

# %% [markdown]
# Which is slower: writing and reading the activations ("file"), or computing them again ("recompute")?
# Consider that recomputation adds one more forward pass, and that the kernel keeps a new file in its own
# memory, the page cache.

# %%
# Prediction 4: "file" or "recompute". Replace both values of None.
workbook.predict(4, None, form=["file", "recompute"], reason=None)


# %%
def out_of_core(repeat, **where):
    options = [part for name, place in where.items() for part in (f"--{name}", place)]
    options += ["--seed", repeat, "--steps", by_run_length(quick=1, learner=5, reference=10)]
    printed = run(LABS / "out_of_core.py", *options, ranks=1, show=False, timeout=300)
    report = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return {"peak_MB": report["peak_bytes"] / 1e6, "milliseconds": 1000 * report["seconds"],
            "in_files_MB": report["file_bytes"] / 1e6, "own_MB": report["anonymous_bytes"] / 1e6,
            "last_loss": report["losses"][-1]}  # fmt: skip


PLACES = ["memory", "recompute", "file"]
places = by_run_length(quick=["file"], learner=PLACES, reference=PLACES)
core = sweep("out_of_core", out_of_core, grid(activations=places, repeat=seeds(1)))
print(core.groupby("activations")["last_loss"].max())
columns = ["peak_MB", "milliseconds"]
costs = medians(core, reference("out_of_core"), by=["activations"], columns=columns)
# Your times if you have all of them, otherwise those of the reference.
milliseconds = costs.xs("milliseconds", axis=1, level=1).dropna(axis=1).iloc[:, 0]
workbook.result(4, milliseconds[["file", "recompute"]].idxmax())
costs.round(1)

# %% [markdown]
# **Result.** The losses are the same. Recomputation reduces the peak from 90 to 24 MB, and files reduce it to
# 14 MB. A step takes 231 ms with the activations in memory, 288 ms with recomputation, and 322 ms with files
# (medians, n = 3). If you predicted "file", you compared two copies of every activation with one more forward
# pass. The times of the runs with files and with recomputation overlap, so your run may show the opposite
# order. A real disk, without the page cache, would be slower.
#
# ### Optimizer state in a file
#
# `torch.from_file(..., shared=True)` returns a tensor whose memory is a file. The column `own_MB` below is
# the growth of the memory that belongs to the process and to no file. Adam's moments, 8 bytes per parameter,
# should move from there to `in_files_MB`.

# %%
hidden = by_run_length(quick=128, learner=512, reference=512)
large = {"repeat": 1, "hidden-size": hidden, "batch-size": 64}
places = by_run_length(quick=[], learner=["memory", "file"], reference=["memory", "file"])
table = pd.DataFrame({f"state in {place}": out_of_core(state=place, **large) for place in places})
table.drop("peak_MB", errors="ignore").round(3)

# %% [markdown]
# The state has left the process's own memory, and the loss is the same. The row `milliseconds` shows the
# cost. On GPUs, the following lines move tensors to CPU memory:
#
# * FSDP2: `fully_shard(block, offload_policy=CPUOffloadPolicy())` stores the shards of weights, gradients
#   and state in CPU memory.
# * DeepSpeed: `"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}`, or `"nvme"` with
#   stage 3 for a fast disk.
# * Activations: `with torch.autograd.graph.save_on_cpu(pin_memory=True):` around the forward pass, with
#   pinned memory (lab 9).
#
# `sharded_training.py fsdp3-offload` and `deepspeed2-offload` contain the first two, and `out_of_core.py
# --activations cpu` contains the third ([what ran on which hardware](../docker/README.md#hardware-that-the-course-ran-on)).
#
# ## Summary
#
# * Horovod, DDP, ZeRO and FSDP2 compute the same updates as a single process. The losses agree to $10^{-6}$,
#   and a difference far above this is a mistake.
# * DDP all-reduces gradients in buckets during the backward pass. By default the first bucket has a limit of
#   1 MiB and the others of 25 MiB. An explicit `bucket_cap_mb=25` applies to all buckets, so the network with
#   17.7 MB of gradients needs 1 all-reduce with it, and 2 by default.
# * Four backward passes send four times the bytes (71 MB instead of 18 MB), unless `no_sync` suppresses the
#   exchange in the first three.
# * ZeRO stages 1 to 3 shard the optimizer state, the gradients and the weights. On 4 ranks a rank stores
#   10, 7 and 4 bytes per parameter instead of 16.
# * In units of one all-reduce of all gradients, a step sends 1 with DDP, 1 with stages 1 and 2, and 1.5 with
#   stage 3. With Gloo, whose reduce-scatter sends twice as much, it is 1, 1.5 and 2.
# * FSDP2 gathers the weights of a block, computes and frees them. Call `fully_shard` for every block, and
#   create the optimizer afterwards.
# * Offload moves activations or optimizer state to a larger and slower memory. Here the peak fell from 90
#   to 14 MB, and a step took 1.4 times as long.
# * A sampler without `set_epoch`, a metric that counts images twice, an optimizer that was created too early
#   and a gradient norm over one shard raise no error. Test for them.
#
# **Calculator:** the page `labs/calculators/memory.html` computes the memory of each GPU that trains a
# language model (lab 15), for every ZeRO stage and split. Open it in a browser.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="c")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=18)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="b")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer=4)

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="a")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer=0.8)

# %% [markdown]
# **Next:** With DDP and with sharding every rank still computes every layer. [Lab
# 13](13_splitting_layers.ipynb) splits the layers themselves.
