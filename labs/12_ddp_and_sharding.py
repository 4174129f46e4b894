# %% [markdown]
# # Lab 12: DDP and sharding
#
# **Time:** 100 minutes, four of them computing. **You measure** what PyTorch's own data parallelism sends and when, and how
# much memory a rank needs when weights, gradients and optimizer state are *sharded* instead of copied. **You need** lab 4
# (all-reduce) and lab 5 (the Horovod edits).
#
# Horovod, DDP and ten lines of your own do the same thing. What differs is who holds what, and who sends it when.

# %%
import difflib
import json
import os
import shutil
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DistributedSampler

from hvdlab.course.experiment import LABS, WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, medians, predicted
from hvdlab.course.rank_report import rank_report, text
from hvdlab.exercises import lab05_script_edits
from hvdlab.exercises import lab12_ddp_and_sharding as exercises
from hvdlab.launch import call, run

WORK.mkdir(parents=True, exist_ok=True)  # your own files: notebooks/work
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]

# %% [markdown]
# ## Lay three ways side by side
#
# | | Horovod | DDP | by hand |
# |---|---|---|---|
# | meet | `hvd.init()` | `rendezvous()`, `dist.init_process_group(chosen.backend)`: "nccl" between GPUs, else "gloo" | the same |
# | take a GPU | `chosen = rank_device(hvd)` | `chosen = group_device()` | the same |
# | on a shared GPU | `compression=chosen.compression`: through host memory | Gloo copies through host memory by itself | the same |
# | divide the images | `Batches(rank=, size=, seed=)` | the same, or `DistributedSampler` and `set_epoch` | the same |
# | begin with equal weights | `hvd.broadcast_parameters(...)` | `DistributedDataParallel(model)` does it | `dist.broadcast(p.data, src=0)` for each |
# | and optimizer state | `hvd.broadcast_optimizer_state(...)` | every rank loads the same checkpoint: DDP sends weights and buffers only | the same |
# | average the gradients | `hvd.DistributedOptimizer(...)`: `step()` waits for it | hooks of the wrapper: `backward()` waits for it | `dist.all_reduce(p.grad)`, divide |
# | average the metrics | `hvd.allreduce(torch.tensor([total, count]), op=hvd.Sum)` | `dist.all_reduce(...)`, then divide | the same |
# | speak, write a checkpoint | `if hvd.rank() == 0:` | `if dist.get_rank() == 0:`, `model.module`'s weights | the same |
# | leave | (nothing) | `dist.destroy_process_group()` | the same |
#
# `rendezvous` is this course's: it tells `torch.distributed` what `mpirun` and `srun` say in words of their own, so one script
# starts under each of them, under `torchrun`, and alone.
#
# Here is lab 5's finished script against `labs/fashion_mnist_ddp.py`, line by line.

# %%
DDP = LABS / "fashion_mnist_ddp.py"
converted = lab05_script_edits.after("resume", "torch").split("def main")[1].splitlines()
ours = DDP.read_text().split("def main")[1].splitlines()
print("\n".join(difflib.unified_diff(converted, ours, "Horovod", "DDP", lineterm="", n=0)))

# %% [markdown]
# It runs on two ranks, and ends with one model (equal hashes), different images on each rank, and metrics on which both agree:

# %%
EPOCHS = by_run_length(quick=1, learner=2, reference=2)
FEW = ["--epochs", EPOCHS, "--images", 2001, "--heldout", 501]
RECORD = WORK / "fashion_mnist_ddp"
shutil.rmtree(RECORD, ignore_errors=True)
run(DDP, *FEW, ranks=2, HVDLAB_RUN_DIR=str(RECORD))
print(text(rank_report(RECORD)))

# %% [markdown]
# These ranks used a GPU each, or shared one, if this machine has GPUs. **From here on the lab uses processors only**, for two
# reasons. It counts the bytes that a rank sends, and the kernel counts them only in TCP connections: NCCL sends from GPU to GPU over
# NVLink, PCIe or shared memory, where the count would be 0. It also compares losses to 1e-6, and GPUs round in another way: by
# default their convolutions multiply TF32 numbers, which have 11 bits.

# %%
os.environ["CUDA_VISIBLE_DEVICES"] = (
    "-1"  # hides GPUs from this notebook and from all that it starts
)

# %% [markdown]
# ## Average the gradients by hand
#
# `dist.all_reduce(tensor)` adds a tensor up over all ranks, in place. A network has dozens of gradients, most of them small, and
# each all-reduce has its latency (lab 18): so all of them go into one flat **bucket**.
#
# ### Exercise 1: One bucket
#
# **What:** write `average_gradients(model)`: every `.grad` becomes the mean over the ranks, with **one** all-reduce. Parameters
# without a gradient (frozen: `.grad` is None) stay so.
#
# **Why:** it is what DDP's hooks do, and with it you train on any number of ranks without DDP.
#
# The function runs on the ranks: import what it needs inside it.
#
# <details><summary>Hint 1</summary><code>torch.cat([g.ravel() for g in gradients])</code> is the bucket. Afterwards each
# gradient copies its own piece back: <code>bucket.split([g.numel() for g in gradients])</code>.</details>
#
# <details><summary>Hint 2</summary><code>g.copy_(piece.view_as(g))</code>, after
# <code>bucket /= dist.get_world_size()</code>.</details>


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
# ## Take the same steps
#
# `labs/sharded_training.py` (read it) trains one network in twelve modes: the same weights, the same global batch, Adam in
# float32. Its ranks start with different seeds, so that a forgotten broadcast would show. `hand` is an all-reduce for each
# gradient, `horovod` runs on MPI, which we send over TCP like Gloo, so that the kernel counts its bytes too.
#
# By how much will the loss of step 20 differ between two ranks and one that takes the whole batch?

# %%
prediction = None  # the difference of the two losses

# %%
SCRIPT, STEPS = LABS / "sharded_training.py", by_run_length(quick=6, learner=20, reference=20)
SAME = {"OMP_NUM_THREADS": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}


@cache
def train(mode, ranks, repeat, *arguments):
    """The report of one run of sharded_training.py."""
    arguments = [mode, "--seed", repeat, "--steps", STEPS, *arguments]
    printed = run(SCRIPT, *arguments, ranks=ranks, show=False, timeout=300, **SAME)
    return json.loads(next(line for line in printed.splitlines() if line.startswith('{"mode"')))


alone, steps = np.array(train("serial", 1, 1)["losses"]), range(1, STEPS + 1)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
left.plot(steps, alone, color="black", label="serial, the whole batch")
markers = {"hand": "o", "ddp": "x", "horovod": "^"}
compared = by_run_length(quick=["hand"], learner=list(markers), reference=list(markers))
for mode in compared:
    losses = np.array(train(mode, 2, 1)["losses"])
    off = np.abs(losses - alone)
    left.plot(steps, losses, markers[mode], fillstyle="none", label=f"{mode}, 2 ranks")
    right.plot(steps, off + 1e-9, markers[mode], fillstyle="none", label=mode)
    print(f"{mode}: at most {off.max():.1e} from the serial run in {STEPS} steps")
predicted(right, prediction, x=STEPS)
left.set(xlabel="step", ylabel="loss of the global batch")
right.set(xlabel="step", ylabel="difference from the serial run", yscale="log", ylim=(5e-10, 1e-4))
for axes in (left, right):
    axes.legend()
plt.show()

# %% [markdown]
# **What you should see.** All curves lie on each other. What is left is the rounding of float32: sums are taken in another order.
# (An exact 0 is drawn at $10^{-9}$.) Any larger difference is a mistake; that is how all modes of this lab are tested. The
# bound must be tight, and the optimizer must not hide mistakes: Adam divides a gradient by its own size, so that even a *sum* in
# place of the mean hardly shows. (The script's Adam has a larger epsilon for that reason.) Exercise 1 compares the gradients.
#
# ## Two mistakes that no error message names
#
# A colleague feeds his ranks from `DistributedSampler`. "The loss goes up and down by the same pattern in every epoch." Here is
# what his ranks read.


# %%
def faulty_orders(images, epochs, rank, size):
    """The numbers of the images that a rank reads, epoch by epoch."""
    sampler = DistributedSampler(range(images), num_replicas=size, rank=rank, seed=1)
    return [list(sampler) for epoch in range(epochs)]


for rank in range(2):
    for epoch, order in enumerate(faulty_orders(12, 3, rank, 2)):
        print(f"rank {rank}, epoch {epoch}: {order}")

# %% [markdown]
# ### Exercise 2: Repair the order
#
# **What:** say what is wrong, and write `orders(images, epochs, rank, size)` with the same sampler, seed 1, repaired.
#
# **Why:** a sampler knows no epoch by itself. Without it every epoch has the same batches in the same order, each rank sees the
# same part of the images for ever, and the epochs are no longer fresh draws (lab 3).
#
# <details><summary>Hint 1</summary>Compare the epochs of one rank.</details>
#
# <details><summary>Hint 2</summary><code>sampler.set_epoch(epoch)</code> before each epoch.</details>


# %%
def orders(images, epochs, rank, size):
    # BEGIN SOLUTION: return the orders of the repaired sampler
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
# The second: "My accuracy depends on the number of ranks. The weights are the same!" Here is what he computes, for a
# network that is right on 4 of 5 images, with the numbers of all ranks played through in one process.


# %%
def faulty_accuracy(rank, size, is_right):
    """Each rank evaluates what the sampler gives it; the accuracies are averaged."""
    mine = list(DistributedSampler(is_right, num_replicas=size, rank=rank, shuffle=False))
    return is_right[mine].mean()


is_right = np.array([0.0, 1, 1, 1, 1])
for ranks in (1, 2, 3, 4):
    parts = [faulty_accuracy(rank, ranks, is_right) for rank in range(ranks)]
    print(f"{ranks} ranks: accuracy {np.mean(parts):.3f}, of {np.round(parts, 2).tolist()}")

# %% [markdown]
# ### Exercise 3: Count each image once
#
# **What:** write `accuracy(predict, images, labels)`, which runs on every rank with all held-out images in hand:
# `predict(some images)` gives their labels (tensors). Return the accuracy over all images, on every rank, and let each image be
# classified by one rank only.
#
# **Why:** the sampler fills up until all ranks have equally many. In training that is harmless, in a published number it is not.
#
# <details><summary>Hint 1</summary><code>images[rank::size]</code> gives each image to one rank. The parts differ in length: what
# can you add up over the ranks, and divide after?</details>
#
# <details><summary>Hint 2</summary>All-reduce the tensor <code>[right, count]</code>. A rank may have no image: then both are
# 0.</details>


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
# ## See the buckets travel
#
# DDP does not wait for the end of the backward pass. As soon as a bucket of gradients is full its all-reduce starts, while the
# layers before it still compute. `bucket_cap_mb` says how full. Small buckets start early and are many; one large one starts
# when nothing is left to hide behind.
#
# `labs/ddp_communication.py` (read its `step`) trains 4.4 million parameters (18 MB of gradients) and takes a profile of one
# step. In addition to the bucket size it varies this: four backward passes a step, with and without `no_sync()`, and two **communication hooks**,
# which send something smaller: float16, or the two thin factors of PowerSGD (Vogels et al. 2019,
# [arXiv:1905.13727](https://arxiv.org/abs/1905.13727)).

# %%
WAYS = {
    "1 MB": ["--bucket-mb", 1], "4 MB": ["--bucket-mb", 4], "25 MB": ["--bucket-mb", 25],
    "4 passes": ["--passes", 4], "4 passes, no_sync": ["--passes", 4, "--no-sync"],
    "float16 hook": ["--hook", "fp16"], "PowerSGD hook": ["--hook", "powersgd"],
}  # fmt: skip
timelines = {}


def communicate(way, repeat):
    arguments = [*WAYS[way], "--steps", by_run_length(quick=5, learner=10, reference=20)]
    printed = run(LABS / "ddp_communication.py", *arguments, ranks=2, show=False, timeout=120)
    report = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    timelines[way] = report["events"]
    return {"collectives": report["collectives"], "sent_MB": report["bytes"] / 1e6,
            "milliseconds": 1000 * report["seconds"]}  # fmt: skip


# %% [markdown]
# The gradients are 18 MB, and two ranks. How many MB does a rank send in a step with four passes and without `no_sync`?

# %%
prediction = None  # MB

# %%
names = by_run_length(quick=["1 MB"], learner=list(WAYS), reference=list(WAYS))
sent = sweep("ddp_communication", communicate, grid(way=names, repeat=seeds(1)))

# %%
drawn = [way for way in ("1 MB", "4 MB", "25 MB") if way in timelines]
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
        axes.set_title(f"bucket_cap_mb = {way}", loc="left", fontsize=10)
    panels[-1, 0].set_xlabel("milliseconds of the step on rank 0 (with the profiler's own time)")
    plt.show()

# %%
if prediction is not None:
    print(f"you predicted {prediction} MB for 4 passes")
columns = ["collectives", "sent_MB", "milliseconds"]
medians(sent, reference("ddp_communication"), by=["way"], columns=columns).round(1)

# %% [markdown]
# **What you should see.** With buckets of 1 MB the first all-reduce starts soon after the backward pass does; with 25 MB there
# is one, and it starts when all gradients are there. The bytes are the same: $2(N-1)/N$ of 18 MB. Four passes send four times
# as much, unless `no_sync` keeps the first three quiet. float16 halves the bytes, PowerSGD sends next to nothing (and
# approximates: its loss is *not* the serial one; of its three all-reduces the profile sees the first, the others start from
# callbacks). What the overlap is worth in ms depends on who does the sending. Here Gloo's threads take the same cores that
# compute; on GPUs the network card works while the GPU does, and the overlap can hide it (lab 18).
#
# ## Shard what every rank holds
#
# With Adam in float32 a parameter costs 4 bytes, its gradient 4 and the two moments 8. DDP holds all 16 on *every* rank (and 4 more,
# its buckets, unless `gradient_as_bucket_view=True` lets the gradients live in them). **ZeRO**
# (Rajbhandari et al. 2020, [arXiv:1910.02054](https://arxiv.org/abs/1910.02054)) shards them, in three stages: optimizer state (1),
# gradients too (2), weights too (3). A part that is sharded counts $1/N$:
#
# $$\text{stage 1: } (4 + 4 + \tfrac{8}{N})\,\Psi \qquad
#   \text{2: } (4 + \tfrac{4 + 8}{N})\,\Psi \qquad \text{3: } \tfrac{4 + 4 + 8}{N}\,\Psi$$
#
# bytes for $\Psi$ parameters. Where weights and gradients are held in two bytes it is 2, 2 and $K = 12$, 16 again: the state has
# the float32 weights that learn. (Lab 9's autocast holds 4, 4 and 8.)
#
# ### Exercise 4: Predict the memory
#
# **What:** write `rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8)`: the bytes on one rank; stage 0 is
# DDP.
#
# **Why:** it says which stage fits your GPU *before* you ask for 64 of them.
#
# <details><summary>Hint 1</summary>Divide <code>state</code> by the ranks from stage 1 on, <code>gradients</code> from stage 2 on,
# <code>weights</code> in stage 3.</details>
#
# <details><summary>Hint 2</summary><code>state / ranks if stage &gt;= 1 else state</code>, and so on.</details>


# %%
def rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8):
    # BEGIN SOLUTION: return the bytes that one rank holds
    parts = ((weights, 3), (gradients, 2), (state, 1))
    return parameters * sum(part / ranks if stage >= first else part for part, first in parts)
    # END SOLUTION


# %%
exercises.check_rank_bytes(rank_bytes)

ranks = 2 ** np.arange(11)
figure, axes = plt.subplots(figsize=(7, 4.2))
for stage, style in enumerate(("-", "--", "-.", ":")):
    gigabytes = [rank_bytes(7.5e9, int(n), stage, 2, 2, 12) / 1e9 for n in ranks]
    axes.plot(ranks, gigabytes, style, label=f"stage {stage}" if stage else "DDP")
axes.axhline(80, color="grey", linewidth=1, label="a GPU of 80 GB")
axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="GB on each (without activations)")
axes.set_title("7.5 billion parameters, 2 + 2 + 12 bytes each")
axes.legend()
plt.show()

# %% [markdown]
# ### Exercise 5: ZeRO-1 by hand
#
# **What:** write `zero1(model, lr)`. It returns `(optimizer, step)`: an Adam over *this rank's* share of the parameters, and a
# function that updates them and lets every rank have all new weights. The shares are whole parameters, about equal in numbers. The gradients are averaged already when `step()` is called.
#
# **Why:** ten lines divide the largest part of the memory by the number of ranks.
#
# <details><summary>Hint 1</summary>Each parameter has an owner. Only the owner updates it, then the owner broadcasts it; all ranks
# call all broadcasts, in one order. Weights and biases alternate: who owns every second parameter owns all weights or
# none. Give each parameter to the rank that has the fewest numbers so far.</details>
#
# <details><summary>Hint 2</summary><code>owner = numbers.index(min(numbers))</code>, with <code>numbers = [0] * size</code> at the
# start; after <code>optimizer.step()</code>, <code>dist.broadcast(p.data, src=owner)</code> for each.</details>


# %%
def zero1(model, lr):
    import torch
    import torch.distributed as dist

    # BEGIN SOLUTION: return an optimizer over this rank's parameters, and step
    rank, size = dist.get_rank(), dist.get_world_size()
    owners, numbers = [], [0] * size
    for parameter in model.parameters():  # to whom has least so far
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
# ### Two mistakes with shards
#
# `fully_shard` (FSDP2) shards a module's parameters in place: each becomes a `DTensor` of which a rank holds a part. Before the
# module computes, its weights are gathered; afterwards they are freed (stage 3), or kept until the backward pass is through
# (`reshard_after_forward=False`, close to stage 2). The `mesh` names the ranks that share, and their kind of device: without
# one it is the GPU wherever PyTorch was built for GPUs. A colleague's network does not learn:


# %%
def faulty_shard(model, lr):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # on the processor, over all ranks
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return optimizer


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


print(np.round(call(losses_of, "faulty_shard", ranks=2, uses=(faulty_shard,))[0], 3))

# %% [markdown]
# ### Exercise 6: Repair it
#
# **What:** say why, and write `shard(model, lr)`, which returns an optimizer that works.
#
# <details><summary>Hint 1</summary>Which parameters does the optimizer know, and which does the model have at the end?</details>
#
# <details><summary>Hint 2</summary>First <code>fully_shard(..., mesh=mesh)</code>, then
# <code>torch.optim.Adam(model.parameters(), lr)</code>.</details>


# %%
def shard(model, lr):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # on the processor, over all ranks
    # BEGIN SOLUTION: shard the model, and return its optimizer
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr)
    # END SOLUTION


# %%
exercises.check_shard(shard)

# %% [markdown]
# Another: "With my own ZeRO I clip the gradients by their norm, as always. On one rank it trains, on eight it is worse." He calls
# `clip_grad_norm_` on the part of the gradient that the rank holds. Two numbers show it, one on each of two ranks:

# %%
for gradient in ([3.0, 4.0], [0.5, 8.0]):
    shards = [torch.nn.Parameter(torch.zeros(1)) for _ in gradient]
    for one, value in zip(shards, gradient, strict=True):
        one.grad = torch.tensor([value])
        torch.nn.utils.clip_grad_norm_([one], 1.0)  # on its rank, which knows only this
    print(f"gradient {gradient}, clipped by each rank: {[round(s.grad.item(), 3) for s in shards]}")

# %% [markdown]
# ### Exercise 7: Clip by the norm of all
#
# **What:** write `clip(gradients, most)`: `gradients` is the list of tensors that this rank holds. Scale them in place so that the
# norm over **all ranks** is at most `most`, and return that norm as it was before.
#
# **Why:** clipping must shorten the gradient, not turn it. (FSDP2's DTensors know this; a sharding of your own does not.)
#
# <details><summary>Hint 1</summary>The squared norm of the whole is the sum of the squared norms of the shards: that sum can be
# all-reduced.</details>
#
# <details><summary>Hint 2</summary><code>total = sum(g.pow(2).sum() for g in gradients)</code>, all-reduce, root; if it is larger
# than <code>most</code>, <code>g.mul_(most / norm)</code>.</details>


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
# ## Measure all modes
#
# Each mode, on 2 ranks (some on 4): memory between the backward pass and the step, against your formula; bytes sent in a step,
# against a count of collectives. Gloo's all-reduce sends $2(N-1)/N$ of the array, its all-gather $(N-1)/N$, and its
# *reduce-scatter as much as an all-reduce* (NCCL's sends half of that). So in units of $(N-1)/N \cdot 4\Psi$ bytes:
#
# | mode | a step does | units here | units in the paper |
# |---|---|---|---|
# | by hand, DDP, Horovod | all-reduce of the gradients | 2 | 2 |
# | DeepSpeed 1, 2; FSDP2 that keeps weights | reduce-scatter or reduce (2 here), all-gather of the weights (1) | 3 | 2 |
# | ZeRO-1 of PyTorch, over DDP | all-reduce (2), broadcast of the weights (1) | 3 | (3) |
# | FSDP2, DeepSpeed 3 | all-gather twice (1 + 1), reduce-scatter (2 here) | 4 | 3 |
#
# How many MB does a rank hold with FSDP2, stage 3, on 2 ranks? The network has 2.3 million parameters.

# %%
prediction = None  # MB

# %%
MODES = {  # mode of the script: (name, stage, bytes of state, units sent)
    "serial": ("serial", 0, 8, 0), "hand": ("by hand", 0, 8, 2), "ddp": ("DDP", 0, 8, 2),
    "horovod": ("Horovod", 0, 8, 2), "zero1": ("ZeRO-1 torch", 1, 8, 3),
    "fsdp2": ("FSDP2 stage 2", 2, 8, 3), "fsdp3": ("FSDP2 stage 3", 3, 8, 4),
    # DeepSpeed always holds a float32 copy of the weights that a rank updates: K = 12.
    "deepspeed1": ("DeepSpeed 1", 1, 12, 3), "deepspeed2": ("DeepSpeed 2", 2, 12, 3),
    "deepspeed3": ("DeepSpeed 3", 3, 12, 4),
}  # fmt: skip


def measure(mode, ranks, repeat):
    report, serial = train(mode, ranks, repeat), train("serial", 1, repeat)
    name, stage, state, units = MODES[mode]
    psi = report["parameters"]
    difference = np.abs(np.array(report["losses"]) - serial["losses"]).max()
    return {
        "mode": name, "loss_difference": difference, "memory_bytes": report["memory_bytes"],
        "memory_predicted": rank_bytes(psi, ranks, stage, state=state),
        "sent_bytes": report["sent_bytes"],
        "sent_predicted": units * (ranks - 1) / ranks * 4 * psi,
        "step_seconds": report["step_seconds"],
    }  # fmt: skip


two = by_run_length(quick=["serial", "hand"], learner=list(MODES), reference=list(MODES))
four = by_run_length(quick=[], learner=["fsdp3"], reference=["ddp", "zero1", "fsdp3", "deepspeed3"])
settings = [
    {"mode": mode, "ranks": 1 if mode == "serial" else ranks, "repeat": repeat}
    for repeat in seeds(1)
    for ranks, modes in ((2, two), (4, four))
    for mode in modes
]
modes = sweep("sharding_modes", measure, settings)

# %%
shipped = reference("sharding_modes")
figure, panels = plt.subplots(1, 2, figsize=(12, 5), sharey=True)
groups = shipped.groupby(["mode", "ranks"], sort=False).median(numeric_only=True)
mine = modes.groupby(["mode", "ranks"], sort=False).median(numeric_only=True).reindex(groups.index)
rows = np.arange(len(groups))
for axes, column, says in zip(panels, ("memory", "sent"), ("held by a rank", "sent by a rank in a step"), strict=True):  # fmt: skip
    axes.barh(rows, groups[f"{column}_bytes"] / 1e6, color=COLOURS[0], alpha=0.6, label="reference")
    axes.plot(groups[f"{column}_predicted"] / 1e6, rows, "k|", markersize=16, markeredgewidth=2, label="formula")  # fmt: skip
    axes.plot(mine[f"{column}_bytes"] / 1e6, rows, "o", color=COLOURS[1], markeredgecolor="black", label="yours")  # fmt: skip
    axes.set_xlabel(f"MB {says}")
panels[0].set_yticks(rows, [f"{mode}, {n} rank{'s' * (n > 1)}" for mode, n in groups.index])
panels[0].invert_yaxis()
if prediction is not None:
    panels[0].axvline(prediction, color="black", linestyle="--", label="your prediction")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()
print(f"largest difference from the serial loss: {modes['loss_difference'].max():.1e} (yours), "
      f"{shipped['loss_difference'].max():.1e} (reference)")  # fmt: skip
compare(modes, shipped, by=["ranks", "mode"], value="step_seconds")

# %% [markdown]
# **What you should see.** All losses are the serial one. DDP, Horovod and your own loop hold everything on each rank. The stages
# hold what the formula says, with three exceptions that are worth knowing:
#
# * ZeRO-1 of PyTorch shards *whole tensors*, so one rank has a little more than its share (the largest is shown).
# * FSDP2 "stage 2" holds less than stage 2's formula between two steps: its whole weights are there only from forward to
#   backward. The next table shows them.
# * DeepSpeed 1 holds no more gradients than DeepSpeed 2, and all three have about 1 MB of buffers, which a large network would not notice.
#
# Here each saving is paid in bytes, and none of the sharded modes is faster than DDP: shard when the memory asks for it. (By the
# paper, and with NCCL's reduce-scatter, stages 1 and 2 cost no bytes; stage 3 always does. PyTorch's ZeRO-1 over DDP all-reduces
# *and* broadcasts with NCCL, too: half as much again as DDP.)
#
# ### See what stage 3 frees
#
# The peak within one step of twelve blocks: what is held all the time, and the most that is allocated on top. The gradients are
# in it, and with FSDP the weights that were gathered: all of them in stage 2, those of the blocks at work in stage 3.


# %%
def peaks(mode, repeat):
    ranks = 1 if mode == "serial" else 2
    report = train(mode, ranks, repeat, "--num-layers", 12, "--steps", 5)
    held_before = report["memory_bytes"] - 4 * report["parameters"] / ranks  # without the gradients
    return {"held_MB": held_before / 1e6, "on_top_MB": report["peak_bytes"] / 1e6}


kinds = by_run_length(
    quick=[], learner=["serial", "fsdp2", "fsdp3"], reference=["serial", "fsdp2", "fsdp3"]
)
tops = sweep("sharding_peaks", peaks, grid(mode=kinds, repeat=seeds(1)))
medians(tops, reference("sharding_peaks"), by=["mode"], columns=["held_MB", "on_top_MB"]).round(1)

# %% [markdown]
# ## Move it out of the core
#
# When even a shard is too large, the next larger memory must help: CPU memory for a GPU, a disk for a CPU. **Activations**: what the
# forward pass saves for the backward pass can go out and come back (`saved_tensors_hooks`), or be computed again
# (activation checkpointing, lab 9). **Optimizer state**: it is touched once a step, so it may live far away.
#
# This lab uses the processor alone, so nothing can be moved *off* a GPU. We write to a file instead, with the same hooks. Which is
# slower: write and read the activations, or compute them again?

# %%
prediction = None  # "file" or "recompute"


# %%
def out_of_core(repeat, **where):
    options = [part for name, place in where.items() for part in (f"--{name}", place)]
    options += ["--seed", repeat, "--steps", by_run_length(quick=1, learner=5, reference=10)]
    printed = run(LABS / "out_of_core.py", *options, ranks=1, show=False, timeout=300)
    report = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return {"peak_MB": report["peak_bytes"] / 1e6, "milliseconds": 1000 * report["seconds"],
            "in_files_MB": report["file_bytes"] / 1e6, "own_MB": report["anonymous_bytes"] / 1e6,
            "last_loss": report["losses"][-1]}  # fmt: skip


places = by_run_length(
    quick=["file"],
    learner=["memory", "recompute", "file"],
    reference=["memory", "recompute", "file"],
)
ways = grid(activations=places, repeat=seeds(1))
core = sweep("out_of_core", out_of_core, ways)
print(core.groupby("activations")["last_loss"].max())
milliseconds = core.groupby("activations")["milliseconds"].median().round(1)
print(f"milliseconds a step: {milliseconds.to_dict()}; slower, you said: {prediction}")
columns = ["peak_MB", "milliseconds"]
medians(core, reference("out_of_core"), by=["activations"], columns=columns).round(1)

# %% [markdown]
# **What you should see.** Both ways cut the peak to a fraction, with the same losses. A "file" that was written a moment ago is
# still in the kernel's own memory (the page cache), so this is the price of copying, not of a slow disk.
#
# ### Map the optimizer's state to a file
#
# `torch.from_file(..., shared=True)` is a tensor whose memory *is* a file. Adam does not notice. `RssAnon` is the memory of this
# process that no file stands behind, as the kernel counts it (`own_MB`: by how much it grew). Adam's two moments are 8 bytes a
# parameter: do you find them again in the right column?


# %%
large = {
    "repeat": 1,
    "hidden-size": by_run_length(quick=128, learner=512, reference=512),
    "batch-size": 64,
}
places = by_run_length(quick=["file"], learner=["memory", "file"], reference=["memory", "file"])
table = pd.DataFrame({f"state in {place}": out_of_core(state=place, **large) for place in places})
table.drop("peak_MB").round(3)

# %% [markdown]
# The state has left this process's own memory, and the loss is the same.
#
# **On GPUs** three lines do the same, with CPU memory for the file:
#
# * `fully_shard(block, offload_policy=CPUOffloadPolicy())`: shards of weights, gradients and state in CPU memory;
# * DeepSpeed: `"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}` (or `"nvme"`, stage 3);
# * `with torch.autograd.graph.save_on_cpu(pin_memory=True):` around the forward pass.
#
# `sharded_training.py fsdp3-offload` and `deepspeed2-offload` have the first two, `out_of_core.py --activations cpu` the third. **No GPU
# was at hand for this course, so on GPUs none of them has been run.** Without one, DeepSpeed's takes the same steps as ever, and
# the script refuses FSDP2's: there is no accelerator whose memory it could save.
#
# ## Take with you
#
# * Horovod, DDP, FSDP and ZeRO are one algorithm: the loss curve is the serial one to $10^{-6}$, and a larger difference is a bug.
# * Memory and bytes follow from a count: 16 bytes a parameter, divided by $N$ part by part; 2, 3 or 4 halves of an all-reduce.
# * `set_epoch`, sums and counts, the optimizer after `fully_shard`, the norm over all shards: nothing of it raises an error.
