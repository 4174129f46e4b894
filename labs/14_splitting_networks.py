# %% [markdown]
# # Lab 14: Splitting networks
#
# **Time:** 90 minutes, four of them computing. **You cut** a network between its layers and send activations along a pipeline, draw its
# schedules from traces, measure the bubble, put data, tensor and pipeline parallelism together, and let a model of the costs
# search for the best of all splits. **You need** labs 12 and 13; `mpirun` and PyTorch do the rest.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from hvdlab.course import split_measurements
from hvdlab.course.experiment import QUICK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import overlay, predicted
from hvdlab.course.split_measurements import BATCH, HIDDEN, LAYERS, MICRO_BATCHES, STEPS
from hvdlab.exercises import lab14_cost_of_a_split as costs
from hvdlab.exercises import lab14_pipeline_parallelism as pipelines
from hvdlab.system.hardware import usable_cores

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the processor for all ranks, also where there are GPUs
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]

# %% [markdown]
# All ranks of this lab use processors, also where there are GPUs. The lab counts the bytes that a rank sends, and the kernel counts
# them only in TCP connections: NCCL sends from GPU to GPU over NVLink, PCIe or shared memory, where the count would be 0. Its model of
# the costs is also fitted to processors, and ranks that share a GPU cannot send activations to each other by Gloo.
#
# ## Split the layers among ranks
#
# Tensor parallelism sends activations twice in *every* block. Cut the network between its blocks instead, and they are
# sent only where it was cut. Each of $p$ ranks has a **stage**, some of the blocks; a batch goes through them one after
# the other, and its gradients come back.
#
# One after the other: while one stage works, all others wait. So the batch is cut, too, into $m$ **micro-batches** that
# follow each other like cars in a factory ([Huang et al. 2019](https://arxiv.org/abs/1811.06965), GPipe). The gradients
# of the micro-batches add up, the optimizer steps once, and nothing has changed but who computes what: the losses must be
# those of one process. `splits.serial` in `hvdlab/course/split_measurements.py` is that process: a `ResidualMLP`, 20 steps of SGD.

# %% [markdown]
# ### Exercise 1: A pipeline by hand
#
# **What:** write `pipeline_step(stage, images, labels, width)`. Every rank calls it with its own `stage`, a module, and
# the same two lists of micro-batches. First all micro-batches go forward: receive what the rank before you sends (rank 0
# takes the images), compute, send it on; the last rank computes the loss. Then all go backward: receive the gradient
# of your output, go backward from it, send the gradient of your input. The last rank returns the loss of the batch (a
# number), the mean over all micro-batches; the others None.
#
# **Why:** the graph of autograd ends where a rank ends. You are the one who carries the chain rule over the border.
#
# What passes between two stages has the shape (examples in the micro-batch, `width`).
#
# <details><summary>Hint 1</summary>Keep the input and the output of every micro-batch. A received activation is a new
# leaf: only with <code>x.requires_grad_()</code> will backward leave its gradient in <code>x.grad</code>.</details>
#
# <details><summary>Hint 2</summary>On the last rank <code>out = F.cross_entropy(out, y) / len(images)</code> and later
# <code>out.backward()</code>; on the others <code>dist.recv(gradient, src=rank + 1)</code> into
# <code>torch.empty_like(out)</code>, then <code>out.backward(gradient)</code>.</details>


# %%
def pipeline_step(stage, images, labels, width):
    """All micro-batches forward, then all backward; return the loss on the last rank."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    # BEGIN SOLUTION: take the micro-batches forward and backward through the stages
    inputs, outputs = [], []
    for x, y in zip(images, labels, strict=True):
        if rank > 0:
            x = torch.empty(len(y), width)
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        out = stage(x)
        if rank < last:
            dist.send(out.detach(), dst=rank + 1)
        else:
            out = F.cross_entropy(out, y) / len(images)
        inputs.append(x)
        outputs.append(out)
    for x, out in zip(inputs, outputs, strict=True):
        gradient = None
        if rank < last:
            gradient = torch.empty_like(out)
            dist.recv(gradient, src=rank + 1)
        out.backward(gradient)
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
    return sum(out.item() for out in outputs) if rank == last else None
    # END SOLUTION


# %%
pipelines.check_pipeline_step(pipeline_step)

# %% [markdown]
# ### Exercise 2: Both send first
#
# **Fault 1.** Your pipeline keeps the activations of all $m$ micro-batches until the last one is through. The schedule **1F1B**
# (one forward, one backward; [PipeDream](https://arxiv.org/abs/1806.03377)) begins the backward passes as early as it can.
# Then two neighbours have something for each other *at the same time*: an activation this way, a gradient that way. A
# colleague writes:


# %%
def swap(mine, yours, other):
    """Send `mine` to rank `other`, and receive what it sends into `yours`."""
    import torch.distributed as dist

    dist.send(mine, dst=other)
    dist.recv(yours, src=other)


if not QUICK:
    pipelines.show_swap(swap)

# %% [markdown]
# `dist.send` returns when the message is on its way, and Gloo puts it on its way when the other side *receives* (a
# **rendezvous**). Both ranks stand in line one. (MPI sends small messages **eagerly**, at once: there the same program
# works, until the model grows.)
#
# **What:** fix the deadlock: write `swap` so that no rank waits for ever, whatever the size.
#
# <details><summary>Hint 1</summary>Two ways: one of the two receives first (who? both run the same function), or
# neither waits for its send before it receives.</details>
#
# <details><summary>Hint 2</summary><code>sending = dist.isend(mine, dst=other)</code> returns at once;
# <code>sending.wait()</code> comes after the <code>recv</code>.</details>


# %%
def swap(mine, yours, other):
    """Send `mine` to rank `other`, and receive what it sends into `yours`."""
    import torch.distributed as dist

    # BEGIN SOLUTION: swap without a deadlock
    sending = dist.isend(mine, dst=other)
    dist.recv(yours, src=other)
    sending.wait()
    # END SOLUTION


# %%
pipelines.check_swap(swap)

# %% [markdown]
# ### Exercise 3: The loss falls, and is wrong
#
# **Fault 2.** This pipeline of two stages goes backward early, and it does not hang. Its losses fall.


# %%
def early_step(stage, images, labels, width):
    """As `pipeline_step`, for two ranks: the last one goes backward right after each forward pass."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    if dist.get_rank() == 0:
        outputs = []
        for x in images:
            outputs.append(stage(x))
            dist.send(outputs[-1].detach(), dst=1)
        while outputs:
            out = outputs.pop()
            gradient = torch.empty_like(out)
            dist.recv(gradient, src=1)
            out.backward(gradient)
        return None
    losses, sending = [], []
    for y in labels:
        x = torch.empty(len(y), width)
        dist.recv(x, src=0)
        x.requires_grad_()
        loss = F.cross_entropy(stage(x), y) / len(labels)
        loss.backward()
        sending.append((dist.isend(x.grad, dst=0), x))
        losses.append(loss.item())
    for work, _ in sending:
        work.wait()
    return sum(losses)


# %% [markdown]
# Where does it leave the serial losses, with one micro-batch and with four?

# %%
if not QUICK:
    figure, axes = plt.subplots()
    alone = np.array(split_measurements.serial(1)["losses"])
    for count in (1, 4):
        losses = split_measurements.by_hand(early_step, 1, micro_batches=count)[-1]["losses"]
        label = f"{count} micro-batch{'es' if count > 1 else ''}"
        axes.plot(range(1, STEPS + 1), np.abs(losses - alone) + 1e-8, "o-", label=label)
    axes.set(yscale="log", xlabel="step", ylabel="difference from the serial loss + $10^{-8}$")
    axes.set_xticks(range(2, STEPS + 1, 2))
    axes.legend()
    plt.show()

# %% [markdown]
# With one micro-batch it is right to the last digit, with four only in the first step (before any gradient was used).
# A message has no name: the $k$-th send meets the $k$-th receive. (Gloo knows a `tag`; NCCL does not.)
#
# **What:** set `line` to the faulty line of `early_step`, and `instead` to what should be there.
#
# <details><summary>Hint 1</summary>In which order does rank 1 send its gradients? With which output does rank 0 put the
# first of them together?</details>
#
# <details><summary>Hint 2</summary>A list can be a stack, last in first out, or a queue.</details>

# %%
# BEGIN SOLUTION: set line and instead to the faulty line and the fixed one
line = "out = outputs.pop()"
instead = "out = outputs.pop(0)"
# END SOLUTION

# %%
pipelines.check_mended(early_step, line, instead)

# %% [markdown]
# ### Draw the schedules
#
# `torch.distributed.pipelining` has the schedules ready: a `PipelineStage` takes your module, and `ScheduleGPipe`,
# `Schedule1F1B` or `ScheduleInterleaved1F1B` does what your `pipeline_step` does. `labs/hybrid_parallel.py` (read `build` and
# `train`) uses them, and each rank writes down when it computed what; all clocks start at a barrier.
#
# With more ranks than cores the picture would show how ranks fight for cores. So for **four stages each rank plays a device**:
# it computes, and then *sleeps* until 20 ms have passed for a forward pass, 40 ms for a backward pass. Compute time is
# simulated there; sends, waits and the order of things are real. **Two stages** have a core each: nothing is simulated.
#
# Four stages, eight micro-batches: which part of the time does a rank have nothing to do with GPipe, and with 1F1B?

# %%
prediction = None  # the idle part with 1F1B, between 0 and 1


# %%
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B"}
COUNTS = by_run_length(quick=(1, 4), learner=(1, 2, 4, 8, 16), reference=(1, 2, 4, 8, 16))


def draw_schedule(axes, result):
    """A row for each rank, a box for each pass, with the number of its micro-batch."""
    for rank, measured in enumerate(result["ranks"]):
        for _, kind, chunk, start, end in measured["events"]:
            box = {"left": 1000 * start, "width": 1000 * (end - start), "edgecolor": "white"}
            axes.barh(rank, **box, height=0.8, color=COLOURS[kind == "backward"])
            middle = 500 * (start + end)
            axes.text(middle, rank, chunk + 1, ha="center", va="center", color="white", fontsize=8)
    axes.set(yticks=range(len(result["ranks"])), ylabel="rank")
    axes.invert_yaxis()
    axes.grid(False)


STAGES = by_run_length(quick=2, learner=4, reference=4)
chosen = [
    found
    for found in split_measurements.schedules(STAGES, COUNTS, 1)
    if found["micro_batches"] == by_run_length(quick=4, learner=8, reference=8)
]
figure, rows = plt.subplots(len(chosen), sharex=True, figsize=(10, 4.4))
for axes, found in zip(rows, chosen, strict=True):
    draw_schedule(axes, found)
    axes.set_title(NAMES[found["schedule"]])
rows[-1].set_xlabel("milliseconds after the barrier" + " (simulated compute time)" * (STAGES > 2))
boxes = [
    Patch(color=COLOURS[k], label=f"{what} pass") for k, what in enumerate(("forward", "backward"))
]
figure.legend(handles=boxes, loc="outside right upper")
plt.show()

# %% [markdown]
# Both take the same time: 1F1B does in another order what GPipe does, and waits as long. What it gains is memory.
#
# ### Exercise 4: Measure the bubble
#
# **What:** write `bubble(events, ranks)`: the part of the time in which a rank has nothing to do, over all ranks. An event is
# `(stage, kind, micro-batch, start, end)`; the time is from the first start of all to the last end of all.
#
# **Why:** with passes of equal length each rank works in $m$ of $m + p - 1$ turns, so that the bubble is
# $(p-1)/(m+p-1)$ with both schedules. Is it, here?
#
# <details><summary>Hint 1</summary>Add the lengths of all events. How much could all ranks together have
# worked?</details>
#
# <details><summary>Hint 2</summary><code>1 - busy / (ranks * span)</code>.</details>


# %%
def bubble(events, ranks):
    # BEGIN SOLUTION: return the idle part of the time of all ranks
    busy = sum(end - start for _, _, _, start, end in events)
    span = max(event[4] for event in events) - min(event[3] for event in events)
    return 1 - busy / (ranks * span)
    # END SOLUTION


# %%
costs.check_bubble(bubble)


# %%
def measure_bubble(stages, repeat):
    rows = []
    for found in split_measurements.schedules(stages, COUNTS, repeat):
        ranks = found["ranks"]
        rows.append({
            "schedule": found["schedule"], "micro_batches": found["micro_batches"],
            "bubble": bubble([event for rank in ranks for event in rank["events"]], stages),
            "peak_first": ranks[0]["peak"], "peak_last": ranks[-1]["peak"],
        })  # fmt: skip
    return rows


settings = grid(stages=by_run_length(quick=[2], learner=[2, 4], reference=[2, 4]), repeat=seeds(1))
measured, shipped_bubbles = (
    sweep("pipeline_bubble", measure_bubble, settings),
    reference("pipeline_bubble"),
)

# %%
TURNS = np.linspace(1, 16, 100)
figure, both = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
for axes, stages in zip(both, (2, 4), strict=True):
    mine, theirs = (table[table["stages"] == stages] for table in (measured, shipped_bubbles))
    options = dict(x="micro_batches", y="bubble", by="schedule", labels=NAMES, times=True)
    overlay(axes, mine, theirs, **options)
    axes.plot(TURNS, (stages - 1) / (TURNS + stages - 1), "k:", label="$(p-1)/(m+p-1)$")
    how = "computed" if stages == 2 else "simulated compute time"
    axes.set(
        xscale="log", title=f"{stages} stages, {how}", xlabel="micro-batches $m$", ylim=(0, 0.9)
    )
    axes.set_xticks([1, 2, 4, 8, 16], [1, 2, 4, 8, 16])
    axes.set_ylabel("bubble" if stages == 2 else "")
    axes.legend(fontsize=8)
predicted(both[1], prediction, x=8)
plt.show()

# %% [markdown]
# **What you should see.** With four simulated stages the bubble falls as the formula does, a little above it. With
# two that compute it falls more slowly, to three times the formula at 16 micro-batches. Whatever is no pass counts as idle:
# sends and receives, what PyTorch does around them, and the wait of a stage that has less to do than the other. More
# micro-batches help until passes are too short for that, or the batch has no more examples.
#
# Now the memory. A `Block` keeps its input, the normalised input, and two tensors of four times the width for
# its backward pass: $10\,b\,h$ numbers for $b$ examples of width $h$. GPipe's schedule keeps that of all $m$ micro-batches
# (its paper keeps their borders only, and computes the rest again: lab 9's checkpointing), 1F1B of at most
# $p - s$ on stage $s$ (counted from 0). Four stages of two blocks, micro-batches of 64 examples:

# %%
KEPT = 4 * 64 * 128 * (2 * 10 + 1)  # bytes of a micro-batch: of two blocks, and the stage's border
figure, both = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
for axes, column, stage in zip(both, ("peak_first", "peak_last"), (0, 3), strict=True):
    tables = [
        table[table["stages"] == 4].assign(MB=table[column] / 1e6)
        for table in (measured, shipped_bubbles)
    ]
    overlay(axes, *tables, x="micro_batches", y="MB", by="schedule", labels=NAMES)
    axes.plot(TURNS, TURNS * KEPT / 1e6, "k--", label="predicted: $m$ of them")
    expected = np.minimum(TURNS, 4 - stage) * KEPT / 1e6
    axes.plot(TURNS, expected, "k:", label="predicted: at most $p - s$")
    axes.set(title=f"Stage {stage} of 4", xlabel="micro-batches $m$")
    axes.set_ylabel("MB allocated at once in a step" if stage == 0 else "")
    axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# **What you should see.** GPipe's peak grows with every micro-batch, 1F1B's stops at $p - s$ of them. The distance to the lines
# is what a backward pass needs for a moment. That is why large models are trained with 1F1B or one of its descendants: the
# bubble asks for many micro-batches, and 1F1B lets you have them. (PyTorch also keeps a receive buffer of $b\,h$ numbers
# for each micro-batch, made in the first step and not counted here.) `--schedules interleaved` gives every rank two
# smaller stages: half the bubble, and two to three times the sends: $2p - 1$ borders instead of $p - 1$.
#
# ## Combine all three
#
# Data, tensor and pipeline parallelism split different things, so they combine. Arrange the ranks in a box, a **device
# mesh** with three axes, and each rank takes part in one group along each axis:
#
#     mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pipeline", "data", "tensor"))
#     module = stage(network, mesh.get_local_rank("pipeline"), 2)      # my blocks
#     parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
#     fully_shard(module, mesh=mesh["data"])                           # FSDP2 shards what is left
#     PipelineStage(module, ..., group=mesh.get_group("pipeline"))
#
# That is `build` in `labs/hybrid_parallel.py`. The order counts: along the *last* axis are ranks with consecutive numbers,
# and they share a server. With GPUs the same file takes one for each rank, and NCCL; that was not run
# for this course, which was measured on a machine without. Each axis sends something else.
#
# ### Exercise 5: Count the bytes of each axis
#
# **What:** write `sent_bytes(split, weights, activation, blocks)`, the bytes that one rank sends in a step, as
# `{"data": ..., "tensor": ..., "pipeline": ...}`. `split` is $(d, t, p)$; `weights` the bytes of the weights that the rank's
# FSDP2 group shards; `activation` the bytes of the activations of the *whole batch* at one place; `blocks` the blocks of the
# whole network.
#
# * **data**: FSDP2 all-gathers the weights once a step and reduce-scatters the gradients. In a group of $d$ the all-gather
#   sends $(d-1)/d$ of the bytes, and Gloo's reduce-scatter as much as an all-reduce: $2(d-1)/d$.
# * **tensor**: two all-reduces a block, one forward and one backward, each $2(t-1)/t$ times the rank's activations.
# * **pipeline**: the rank's activations to the next stage, and as large gradients to the one before. Count the
#   rank that sends most: it has one neighbour if $p = 2$, two if $p > 2$.
#
# **Why:** these three numbers explain why tensor parallelism stays within a server (the last axis), and why
# pipelines cross the network (the first).
#
# <details><summary>Hint 1</summary>A rank has 1/d of the batch, and 1/p of the blocks. Micro-batches do not change the
# sum.</details>
#
# <details><summary>Hint 2</summary>data: <code>3 * (d - 1) / d * weights</code>; a rank has
# <code>min(p - 1, 2)</code> neighbours.</details>


# %%
def sent_bytes(split, weights, activation, blocks):
    d, t, p = split
    # BEGIN SOLUTION: return the bytes that a rank sends along each axis
    mine = activation / d
    return {
        "data": 3 * (d - 1) / d * weights,
        "tensor": 2 * blocks / p * 2 * (t - 1) / t * mine,
        "pipeline": min(p - 1, 2) * mine,
    }
    # END SOLUTION


# %%
costs.check_sent_bytes(sent_bytes)

# %% [markdown]
# Now all modes, for 20 steps each, from the same weights: the losses against the serial ones, the memory and the bytes of the
# rank with most of them against the formulas. Parameters, gradients and momentum are 12 bytes a parameter; `splits.parameters`
# counts them. How large is the largest difference of a loss, on 8 ranks?

# %%
prediction = None  # your guess of that difference


# %%
curves = {}  # mode: losses, of the last repeat


def mode(name, split, ranks, alone):
    """A row of the table, from what each rank measured and from the formulas."""
    last = [rank["losses"] for rank in ranks if rank["losses"][0] is not None]
    curves[name] = np.mean(last, axis=0)
    sent = sent_bytes(split, 4 * split_measurements.parameters(split), 4 * BATCH * HIDDEN, LAYERS)
    seconds = np.max([rank["seconds"] for rank in ranks], axis=0)
    return {
        "mode": name,
        "ranks": len(ranks),
        "loss_difference": np.abs(curves[name] - alone["losses"]).max(),
        "memory_bytes": max(rank["memory"] for rank in ranks),
        "memory_predicted": 12 * split_measurements.parameters(split) / split[0],
        "sent_bytes": max(rank["sent"] for rank in ranks),
        "sent_predicted": sum(sent.values()),
        "step_seconds": np.median(seconds[3:]),
    }


RUNS = [(2, None), (4, None), (8, "2x2x2")]  # ranks, and which split of them


def measure_modes(repeat):
    alone = split_measurements.serial(repeat)
    by_hand = split_measurements.by_hand(pipeline_step, repeat)
    rows = [
        mode("serial", (1, 1, 1), [alone], alone),
        mode("pipeline by hand", (1, 1, 2), by_hand, alone),
    ]
    for ranks, only in by_run_length(quick=[(2, None)], learner=RUNS, reference=RUNS):
        for (split, schedule), found in split_measurements.trained(ranks, repeat, only).items():
            if split[:2] == (1, 1):
                rows.append(mode(f"{NAMES[schedule]}, {ranks} stages", split, found, alone))
            elif split.count(1) < 2 and schedule == "1f1b":
                name = "data {} x tensor {} x pipeline {}".format(*split)
                rows.append(mode(name, split, found, alone))
    return rows


modes = sweep("pipeline_modes", measure_modes, grid(repeat=seeds(1)))

# %%
shipped_modes = reference("pipeline_modes").groupby(["mode", "ranks"], sort=False).median()
shipped_modes.drop(columns="repeat").style.format("{:.3g}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4))
numbers = np.arange(1, STEPS + 1)
for k, (name, losses) in enumerate(curves.items()):
    style = {"color": COLOURS[k % 7], "linestyle": ("-", "--")[k // 7], "linewidth": 1}
    if name == "serial":
        style = {"color": "black", "alpha": 0.3, "linewidth": 6}
    left.plot(numbers, losses, **style, label=name)
    right.plot(numbers, np.abs(losses - curves["serial"]) + 1e-9, **style)
left.set(xlabel="step", ylabel="loss", xticks=range(0, STEPS + 1, 5))
right.set(xlabel="step", ylabel="difference from the serial loss + $10^{-9}$", yscale="log")
right.set(ylim=(1e-9, 1e-4), xticks=range(0, STEPS + 1, 5))
predicted(right, prediction)
figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
plt.show()

# %% [markdown]
# **What you should see.** All curves are one curve; the differences are the rounding of float32, which adds in another order.
# (`loss_difference` in the table is the largest over 20 steps, and the table is the course's measurement.) Memory is
# what the formula says. Bytes are a little above it: Gloo sends a header with each message, and tensor
# parallelism has many small ones. Compare its bytes with those of the pipeline. And no split is faster than one rank that
# takes its batch whole: with four micro-batches, which the next exercise gives it too, one rank takes about as long as two stages
# do. On two cores, with so small a network, splitting buys memory, not time.
#
# ## Search for the best split
#
# With 4 ranks there are six splits, with 1024 there are 66. FlexFlow ([Jia et al. 2019](https://arxiv.org/abs/1807.05358)) and Alpa
# ([Zheng et al. 2022](https://arxiv.org/abs/2201.12023)) search such a space with a **cost model**. Ours in miniature:
#
# $$t = t_\text{compute} + \text{messages} \cdot \alpha + \frac{\text{bytes}}{\beta}$$
#
# ### Exercise 6: Time to compute
#
# **What:** write `compute_time(split, micro_batches, work, cores)`: the seconds that a step computes, bubble included. `work` is
# the seconds of one core for the whole batch.
#
# **Why:** the honest part is `cores`. Two cores cannot do the work of four, however many ranks share them. Then a rank that
# waits in a bubble costs nothing, because its core works for another, and `work / cores` is what remains; it is never less
# than that.
#
# <details><summary>Hint 1</summary>A rank has its part of the work, and works only in 1 - bubble of the time.</details>
#
# <details><summary>Hint 2</summary><code>work / ranks * (m + p - 1) / m</code>, or <code>work / cores</code>, whichever
# is more.</details>


# %%
def compute_time(split, micro_batches, work, cores):
    d, t, p = split
    # BEGIN SOLUTION: return the seconds of computing, with the bubble and the cores
    own = work / (d * t * p) * (micro_batches + p - 1) / micro_batches
    return max(own, work / cores)
    # END SOLUTION


# %%
costs.check_compute_time(compute_time)

# %% [markdown]
# `alpha` and `beta` are those of Gloo's all-reduce between as many ranks, here, now; `work` is that of the serial network.
# The model predicts the time of all splits of 2 and of 4 ranks. The figure compares it with the times of the runs above (restart
# the kernel to measure them again). Which one of 4 ranks is fastest, and which one slowest?

# %%
prediction_splits = None, None  # such as "2x2x1", "1x1x4"


# %%
def step_time(split, work, alpha, beta, cores):
    d, t, p = split
    messages = (
        2 * (d > 1)  # one all-gather, one reduce-scatter
        + 2 * LAYERS // p * MICRO_BATCHES * (t > 1)  # all-reduces
        + 2 * MICRO_BATCHES * (p > 1)  # sends, or receives that it waits for
    )
    nbytes = sum(
        sent_bytes(
            split, 4 * split_measurements.parameters(split), 4 * BATCH * HIDDEN, LAYERS
        ).values()
    )
    return compute_time(split, MICRO_BATCHES, work, cores) + messages * alpha + nbytes / beta


def measure_splits(ranks, repeat):
    """Return the predicted time of each split, and the time that its runs took."""
    work = np.median(split_measurements.serial(repeat, MICRO_BATCHES)["seconds"][3:])
    alpha, beta = split_measurements.link(ranks)
    rows = []
    for split in split_measurements.decompositions(ranks):
        seconds = np.max(
            [
                rank["seconds"]
                for rank in split_measurements.trained(ranks, repeat, None)[split, "1f1b"]
            ],
            axis=0,
        )
        rows.append({
            "split": "x".join(map(str, split)), "work": work, "alpha": alpha, "beta": beta,
            "predicted": step_time(split, work, alpha, beta, usable_cores()),
            "measured": np.median(seconds[3:]),
        })  # fmt: skip
    return rows


settings = grid(ranks=by_run_length(quick=[2], learner=[2, 4], reference=[2, 4]), repeat=seeds(1))
searched = sweep("decomposition_search", measure_splits, settings)

# %%
shipped_searches = reference("decomposition_search")
figure, axes = plt.subplots(figsize=(6.5, 5))
for table, style in ((shipped_searches, "s"), (searched, "o")):
    for k, (ranks, part) in enumerate(table.groupby("ranks")):
        part = 1000 * part.groupby("split")[["predicted", "measured"]].median()
        label = f"{ranks} ranks, {'yours' if style == 'o' else 'reference'}"
        edge = "black" if style == "o" else "none"
        axes.plot(
            part["predicted"], part["measured"], style, color=COLOURS[k], mec=edge, label=label
        )
        for name, row in part.iterrows():
            axes.annotate(name, row, xytext=(5, 3), textcoords="offset points", fontsize=8)
limits = np.array(axes.get_xlim())
axes.plot(limits, limits, "k:", label="as predicted")
axes.set(xscale="log", yscale="log", xlabel="ms a step, predicted", ylabel="ms a step, measured")
axes.legend(fontsize=8)
plt.show()

# %%
medians = searched.groupby(["ranks", "split"], as_index=False)[["predicted", "measured"]].median()
for ranks, table in medians.groupby("ranks"):
    best, worst = table.loc[table["measured"].idxmin()], table.loc[table["measured"].idxmax()]
    chosen = table.loc[table["predicted"].idxmin()]
    print(
        f"{ranks} ranks: the model picks {chosen['split']} ({1000 * chosen['measured']:.0f} ms measured); "
        f"the fastest is {best['split']} ({1000 * best['measured']:.0f} ms), the slowest {worst['split']}"
    )
print(f"of 4 ranks you said: fastest {prediction_splits[0]}, slowest {prediction_splits[1]}")

# %% [markdown]
# **What you should see.** Pipelines win here and tensor parallelism loses, by more than the model says. It sends *often*: over
# two ranks it has 64 all-reduces a step, the pipeline 8 messages, and with more ranks than cores each of them waits until all
# its ranks have had a core. The model gives times only roughly: of such waits it knows nothing but `alpha`, and nothing
# of what DTensor and FSDP2 do around a message. And four ranks on two cores have no more to compute with than two. Measure on the machine that you will
# train on.
#
# What would the model pick on another machine? A core for each rank, and four GPUs: 100 times as fast as one of these cores,
# 20 microseconds for any message, 100 GB/s. (Predicted milliseconds per step; they were not measured.)

# %%
last = searched[["work", "alpha", "beta"]].iloc[-1]
two = searched[searched["ranks"] == 2].iloc[
    -1
]  # here with a core for each; of four the ring has 6 turns, not 2
MACHINES = {
    "this machine": (last["work"], last["alpha"], last["beta"], usable_cores()),
    "a core for each rank": (last["work"], 3 * two["alpha"], two["beta"], 4),
    "four GPUs": (last["work"] / 100, 2e-5, 1e11, 4),
}
expected = {
    name: {
        "x".join(map(str, split)): 1000 * step_time(split, *machine)
        for split in split_measurements.decompositions(4)
    }
    for name, machine in MACHINES.items()
}
pd.DataFrame(expected).style.format("{:.3g}").highlight_min(props="font-weight: bold")
