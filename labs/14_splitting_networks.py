# %% [markdown]
# # Lab 14: Splitting networks
#
# Llama 3 with 405 billion parameters was trained on 16,384 GPUs ([Grattafiori et al.
# 2024](https://arxiv.org/abs/2407.21783)). With 16 bytes per parameter, weights, gradients and optimizer
# state need 6.5 TB, and no GPU has more than a small part of this memory. Meta divided each layer among 8
# GPUs and the layers among 16 groups of GPUs, and trained 128 such groups side by side, each with other
# data. So every GPU took part in three kinds of parallelism at once. Labs 4, 12 and 13 explained data
# parallelism, sharding and tensor parallelism. This lab adds the missing one, **pipeline parallelism**,
# which divides a network between its layers. It is the kind that sends the least, so it can cross slow
# networks. Then the lab combines all three on a device mesh and asks which combination is fastest.
#
# **After this lab you can**
#
# * write a training step in which activations and gradients travel through the stages of a pipeline;
# * avoid a deadlock between two ranks that send to each other, and a wrong order of messages;
# * compute the bubble of a pipeline, and explain what 1F1B improves compared with GPipe;
# * compare data, tensor, pipeline and hybrid parallelism by what they store and send, and place the axes of
#   a device mesh on a cluster;
# * predict the time of a step for every split with a cost model, and say where such a model fails.
#
# **Builds on** lab 4 (messages between ranks), lab 12 (FSDP2) and lab 13 (tensor parallelism, `DTensor`).
# **Time:** about 2.5 hours for a learner who does all seven exercises, of which the computer needs four
# minutes.

# %% tags=["folded"]
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from hvdlab.course import split_measurements
from hvdlab.course.excerpt import excerpt
from hvdlab.course.experiment import (
    LABS,
    QUICK,
    by_run_length,
    complete,
    grid,
    reference,
    seeds,
    sweep,
)
from hvdlab.course.figures import describe, overlay, predicted
from hvdlab.course.split_measurements import BATCH, HIDDEN, LAYERS, MICRO_BATCHES, STEPS
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab14_cost_of_a_split as costs
from hvdlab.exercises import lab14_pipeline_parallelism as pipelines
from hvdlab.system.hardware import usable_cores

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # CPUs for all ranks, also on a machine with GPUs
COLOURS = plt.rcParams["axes.prop_cycle"].by_key()["color"]
workbook = Workbook(14)
hint = workbook.hint
# How much the experiments do in a quick run, in your run, and in a reference run (lab 3 explains this).
COUNTS = by_run_length(quick=(1, 4), learner=(1, 2, 4, 8, 16), reference=(1, 2, 4, 8, 16))
STAGES = by_run_length(quick=2, learner=4, reference=4)
DRAWN = by_run_length(
    quick=4, learner=8, reference=8
)  # micro-batches of the schedules that are drawn

# %% [markdown]
# All ranks of this lab use CPUs. The lab counts the bytes that a rank sends, and the kernel counts them only
# in TCP connections. The formula for the time of a step, at the end of the lab, is fitted to CPUs, and ranks
# that share a GPU cannot send activations to each other by Gloo.
#
# ## Pipeline stages and messages
#
# Tensor parallelism communicates in every block. If the network is cut *between* blocks instead,
# communication is needed only at the cuts. Each of $p$ ranks stores a **stage**, that is, some successive
# blocks. In the forward pass a stage receives activations from the stage before it, computes, and sends its
# output to the next stage. In the backward pass the gradients of these activations travel back.
#
# ![Three ranks with two blocks each. In the forward pass the activations go from each rank to the next one, and the last rank computes the loss. In the backward pass the gradients of the activations go back from rank to rank.](pictures/pipeline_stages.svg)
#
# For example, a network with 8 blocks of width 256 on 2 ranks sends one array of (64, 256) numbers forward
# and one back for a batch of 64 examples. That is 66 kB in each direction. Tensor parallelism on 2 ranks
# all-reduces such an array 16 times per step, together 1 MB.
#
# ### Micro-batches
#
# With a whole batch only one stage works at a time, and all others wait for it. Therefore the batch is cut
# into $m$ **micro-batches** that follow each other, like cars on an assembly line ([Huang et al.
# 2019](https://arxiv.org/abs/1811.06965)). While stage 1 computes the first micro-batch, stage 0
# already computes the second. The gradients of the micro-batches are added, and the optimizer makes one
# update per batch. So the result must be the one of a single process: if each micro-batch loss is divided
# by $m$, the sum of the gradients is the gradient of the mean loss (gradient accumulation, lab 9).
#
# The labs' network is a `ResidualMLP` with 8 blocks, trained with SGD for 20 steps.
# `split_measurements.serial` trains it in a single process.
#
# ### Exercise 1: A pipeline step
#
# **What:** Write `pipeline_step(stage, images, labels, width)`. Every rank calls it with its own `stage`, a
# module, and with the same two lists of micro-batches. First take all micro-batches forward: receive from
# the rank before you (rank 0 takes the images), compute, and send to the next rank; the last rank computes
# the loss. Then take all micro-batches backward: receive the gradient of your output, go backward from it,
# and send the gradient of your input.
#
# **Why:** Autograd records only what happens inside a process. At the border between two ranks you must
# pass on the chain rule yourself.
#
# **Signature:** the last rank returns the loss of the batch, a number: the mean over all micro-batches. The
# other ranks return None. A message has the shape (examples in the micro-batch, `width`).
#
# <details><summary>Hint 1</summary>Keep the input and the output of every micro-batch. A received
# activation is a new leaf of this rank's graph: only with <code>x.requires_grad_()</code> will the backward
# pass leave its gradient in <code>x.grad</code>.</details>
#
# <details><summary>Hint 2</summary>Two ranks, one micro-batch: rank 0 computes a = stage(x) and sends a.
# Rank 1 computes the loss L(a) and its gradient dL/da = a.grad, and sends it. Rank 0 calls
# <code>a.backward(dL/da)</code>, and autograd multiplies by da/dweights.</details>
#
# <details><summary>Hint 3</summary>Last rank: <code>out = F.cross_entropy(out, y) / len(images)</code>,
# later <code>out.backward()</code>. Others: <code>gradient = torch.empty_like(out); dist.recv(gradient,
# src=rank + 1); out.backward(gradient)</code>. Then <code>dist.send(x.grad, dst=rank - 1)</code> on all but
# rank 0.</details>


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
# ## Schedules: GPipe and 1F1B
#
# A *schedule* is the order in which a stage does its forward and backward passes. Your function does all
# forward passes first. This is the schedule of **GPipe** (Huang et al.). Its disadvantage is memory: a stage
# must keep the activations of all $m$ micro-batches until their backward passes. The schedule **1F1B** (one
# forward, one backward; [Narayanan et al. 2019](https://doi.org/10.1145/3341301.3359646), PipeDream) starts
# the backward passes as early as possible. A stage does a few forward passes at the start, and then
# alternates: one backward pass, one forward pass. The activations of a micro-batch are freed after its
# backward pass, so they are kept for a shorter time.
#
# ![Two schedules of four stages and eight micro-batches. GPipe does all forward passes, then all backward passes. 1F1B starts a backward pass on the last stage after the first forward pass and alternates. Both need the same time and have the same empty spaces, the bubble.](pictures/pipeline_schedules.svg)
#
# Read the picture row by row. A backward pass takes about twice as long as a forward pass, because it
# computes two gradients, that of the input and that of the weights. The empty space is the **bubble**, the
# time in which a stage has nothing to do. A stage works in $m$ turns (a turn is one forward and one
# backward pass). The whole takes $m + p - 1$ turns, because filling and emptying the pipeline takes $p - 1$
# more. So the bubble is
#
# $$\frac{p - 1}{m + p - 1}$$
#
# of the time, with both schedules. For example, 4 stages and 8 micro-batches give 3/11 = 27 %. More
# micro-batches make it smaller, but at a fixed batch each of them has fewer examples. Small matrices use a
# device poorly, and every micro-batch pays the overhead of its messages. The time of the two schedules is
# equal, but their memory is not. With GPipe stage 0 keeps the activations of all 8 micro-batches. With 1F1B
# stage $s$ (counted from 0) keeps those of at most $p - s$.
#
# ![The number of micro-batches whose activations stage 0 holds over time. With GPipe it grows to eight and then falls. With 1F1B it grows to four and stays there until the end.](pictures/activations_held.svg)
#
# Two refinements reduce the bubble itself. **Interleaved 1F1B** ([Narayanan et al.
# 2021](https://arxiv.org/abs/2104.04473)) gives each rank $v$ smaller stages instead of one large stage. The
# bubble is $(p-1)/m$ of the time of the *work*. It becomes $v$ times smaller, $(p-1)/(vm)$, but activations
# cross more borders: $vp - 1$ instead of $p - 1$. **Zero-bubble** schedules ([Qi et al.
# 2023](https://arxiv.org/abs/2401.10241)) compute the gradient of the weights separately from the gradient of
# the input. No other stage waits for the gradient of the weights, so a stage computes it when it has nothing
# else to do, and this fills the bubble.
#
# ### Deadlock in blocking sends
#
# In 1F1B two neighbours have something for each other *at the same time*: an activation in one direction,
# and a gradient in the other. A colleague writes the exchange like this, and the training hangs:


# %%
def swap(mine, yours, other):
    """Send `mine` to rank `other`, and receive what it sends into `yours`."""
    import torch.distributed as dist

    dist.send(mine, dst=other)
    dist.recv(yours, src=other)


if not QUICK:
    pipelines.show_swap(swap)

# %% [markdown]
# **Fault 1 is a deadlock:** both ranks wait for each other forever. `dist.send` of Gloo returns only when
# the other rank *receives*. This is called a **rendezvous send**. Both ranks are in the line `send`, so
# none of them reaches the line `recv`. MPI sends small messages **eagerly**, without waiting for the
# receiver. With MPI the same program works until the activations become larger than a limit, which makes
# this fault hard to find.
#
# ### Exercise 2: Exchange without a deadlock
#
# **What:** Write `swap` so that no rank waits forever, whatever the size of the message.
#
# **Why:** Every schedule that mixes forward and backward passes needs such an exchange.
#
# **Signature:** `swap(mine, yours, other)` sends the tensor `mine` and fills the tensor `yours`. Both ranks
# call it, each with the other's number.
#
# <details><summary>Hint 1</summary>There are two solutions. Either one of the two ranks receives first, or
# neither waits for its own send before it receives.</details>
#
# <details><summary>Hint 2</summary>Ranks 0 and 1: if rank 0 sends first and rank 1 receives first, the
# first message passes. Then rank 1 sends and rank 0 receives. Which condition do both ranks evaluate
# differently?</details>
#
# <details><summary>Hint 3</summary><code>sending = dist.isend(mine, dst=other)</code> returns at once. Call
# <code>dist.recv(...)</code>, then <code>sending.wait()</code>.</details>


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
# ### Order of messages
#
# **Fault 2** is more dangerous, because nothing hangs. This pipeline of two stages starts the backward
# passes early, and its losses fall.


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
# The next figure shows how far its losses are from the serial ones, with one micro-batch and with four.

# %% tags=["folded"]
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
    describe(
        figure,
        "Difference of the losses from the serial run over the steps. With one micro-batch it "
        "stays near the rounding of float32. With four micro-batches it is large from the "
        "second step on.",
    )

# %% [markdown]
# With one micro-batch the losses are right up to rounding. With four they are right only in the first step,
# before any gradient was used. So the gradients are wrong when there are several micro-batches. A message
# carries no name: the $k$-th send of a rank meets the $k$-th receive of the other. (Gloo supports a `tag`,
# and NCCL does not.)
#
# ### Exercise 3: Fix the order of the gradients
#
# **What:** Set `line` to the faulty line of `early_step`, and `instead` to the line that should be there.
#
# **Why:** The shapes are right, nothing hangs, and the loss falls. Only the comparison with a serial run
# shows this fault.
#
# **Signature:** two strings, each one line of Python.
#
# <details><summary>Hint 1</summary>In which order does rank 1 send its gradients? With which output does
# rank 0 use the first of them?</details>
#
# <details><summary>Hint 2</summary>Rank 1 sends the gradients of the micro-batches 1, 2, 3, 4 in this
# order. Rank 0 takes the outputs in the order 4, 3, 2, 1.</details>
#
# <details><summary>Hint 3</summary><code>list.pop()</code> removes the last entry (a stack), and
# <code>list.pop(0)</code> removes the first one (a queue).</details>

# %%
# BEGIN SOLUTION: set line and instead to the faulty line and the fixed one
line = "out = outputs.pop()"
instead = "out = outputs.pop(0)"
# END SOLUTION

# %%
pipelines.check_fixed_line(early_step, line, instead)

# %% [markdown]
# ## Measured schedules
#
# `torch.distributed.pipelining` provides the schedules. A `PipelineStage` wraps your module.
# `ScheduleGPipe`, `Schedule1F1B` and `ScheduleInterleaved1F1B` do what your `pipeline_step` does, and there
# are zero-bubble schedules too. `labs/hybrid_parallel.py` uses them. This function builds the stages of a
# rank:

# %%
excerpt(LABS / "hybrid_parallel.py", "build")

# %% [markdown]
# Each rank records when it computed what, and all clocks start at a barrier. With more ranks than cores the
# record would show how ranks compete for cores. So for **four stages each rank simulates a device**: it
# computes, and then *sleeps* until 20 ms have passed for a forward pass, or 40 ms for a backward pass. The
# compute time is simulated there, but sends, waits and the order are real. **Two stages** have a core each,
# and nothing is simulated.
#
# Four stages, eight micro-batches, 1F1B: in which fraction of the time does a rank have nothing to do? Use
# the formula above. Will the measurement be above or below it?

# %%
# Prediction 1: the measured idle fraction, between 0 and 1. Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %% tags=["folded"]
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B"}


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


chosen = [
    found
    for found in split_measurements.schedules(STAGES, COUNTS, 1)
    if found["micro_batches"] == DRAWN
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
describe(
    figure,
    "Measured schedules of GPipe and 1F1B: a row for each rank and a numbered box for each "
    "pass. They look like the drawn schedules, with small gaps between the passes, in which "
    "messages are sent.",
)

# %% [markdown]
# ### Exercise 4: Measure the bubble
#
# **What:** Write `bubble(events, ranks)`, the fraction of the time in which a rank has nothing to do, over
# all ranks. An event is `(stage, kind, micro-batch, start, end)`. The time is from the first start of all
# events to the last end of all events.
#
# **Why:** The formula assumes passes of equal length and messages that take no time. If one stage takes
# longer, the others wait for it, and the slowest stage decides the time of every micro-batch. The measurement
# shows what these assumptions are worth.
#
# **Signature:** returns a number between 0 and 1.
#
# <details><summary>Hint 1</summary>Add the lengths of all events. How much could all ranks together have
# worked in the same time?</details>
#
# <details><summary>Hint 2</summary>Two ranks, first start at 3 s, last end at 13 s: together they have 2
# times 10 s, that is 20 s. If all events add up to 12 s, the bubble is 1 - 12/20 = 0.4.</details>
#
# <details><summary>Hint 3</summary><code>busy = sum(end - start for ...)</code>, and the result is
# <code>1 - busy / (ranks * span)</code>.</details>


# %%
def bubble(events, ranks):
    # BEGIN SOLUTION: return the idle fraction of the time of all ranks
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
measured = sweep("pipeline_bubble", measure_bubble, settings)

# %% tags=["folded"]
shipped_bubbles = reference("pipeline_bubble")
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
describe(
    figure,
    "Bubble over the number of micro-batches, for two stages that compute and for four that "
    "simulate devices. With four stages it follows the formula closely, with two stages it "
    "falls more slowly.",
)
four = mine if len(mine) else theirs  # the last of the loop: four stages
four = four[(four["schedule"] == "1f1b") & (four["micro_batches"] == 8)]
workbook.result(1, four["bubble"].median())

# %% [markdown]
# **Result.** With four simulated stages the bubble is slightly above the formula: 0.30 for 1F1B with 8
# micro-batches, where the formula gives 0.27 (medians, n = 3). If you predicted a value above 0.27, you
# considered that messages take time too. With two stages that compute, the bubble falls more slowly, to
# 0.16 with 16 micro-batches and 1F1B, where the formula gives 0.06. Everything that is not a pass counts as
# idle: sends and receives, PyTorch's own work around them, and the wait of a stage that has less to do than
# the other. So more micro-batches help until a pass is too short compared with a message, or until the
# batch has no more examples.
#
# ### Activation memory
#
# A `Block` keeps its input, the normalised input, and two tensors of four times the width for its backward
# pass, together 10 numbers for each example and feature. A stage with two blocks also keeps the activation
# at its border. With micro-batches of 64 examples and a width of 128 this is $4 \cdot 64 \cdot 128 \cdot
# 21$ bytes $= 0.69$ MB for each micro-batch. GPipe keeps that of all $m$ micro-batches. (GPipe's paper
# keeps only the borders of the stages and computes the rest again, as in lab 9.) 1F1B keeps that of at most
# $p - s$ micro-batches on stage $s$.

# %% tags=["folded"]
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
describe(
    figure,
    "Memory for activations over the number of micro-batches, on the first and the last of four"
    " stages. GPipe's grows with each micro-batch. That of 1F1B stays at four micro-batches on "
    "the first stage and at one on the last.",
)

# %% [markdown]
# **Result.** With 16 micro-batches GPipe allocates 11.4 MB on stage 0, and 1F1B allocates 3.2 MB (n = 3).
# GPipe's peak grows with every micro-batch, and 1F1B's stops at $p - s$ of them. The small distance to the
# lines is temporary memory of a backward pass. This is why large models are trained with 1F1B or one of its
# descendants: a small bubble requires many micro-batches, and 1F1B makes them affordable. (PyTorch also
# keeps one receive buffer for each micro-batch, which is allocated in the first step and not counted here.)
#
# ## Data, tensor, pipeline and hybrid parallelism compared
#
# Training offers several opportunities for parallelism. Different *runs* (seeds, hyperparameters) are
# independent of each other. Within a run the steps depend on each other, so the parallelism must come from
# inside a step. A step can be divided along the images of the batch, inside each layer, or between the
# layers.
#
# ![Four ways to place a network of four layers on four ranks. Data parallelism: each rank has all layers and a quarter of the images. Intra-layer: each rank has a quarter of every layer. Inter-layer: each rank has one layer. Hybrid: each rank has half of two layers.](pictures/four_kinds_of_parallelism.svg)
#
# | | data | tensor (intra-layer) | pipeline (inter-layer) | hybrid |
# |---|---|---|---|---|
# | what is split | the batch | each layer | the list of layers | several of these |
# | weights on a rank | all (DDP), $1/d$ (FSDP) | $1/t$ | $1/p$ | $1/(t p)$, with FSDP $1/(d t p)$ |
# | what is sent | gradients (FSDP: also weights) | activations, twice per block | activations at the borders of stages | the sum over the axes |
# | how often | once per step, in buckets | in every block | once per micro-batch and border | |
# | limit | the batch size (lab 6) | the width of a layer, the speed of the network | the number of layers, the bubble | the number of ranks |
# | typical place | between servers | inside a server | between servers | all of them |
# | labs | 4, 5, 12 | 13 | this one | this one |
#
# Data parallelism is the simplest, and it is the first choice as long as the network fits. FSDP extends it to
# larger networks for the price of more communication. Tensor parallelism sends often, so it needs the fast
# connection inside a server. A pipeline sends little and rarely, so it may cross the slow network between
# servers, but it has a bubble. Because they split different things, they can be combined. The combination is
# called *hybrid parallelism*, or *3-D parallelism* if it has three axes.
#
# ## Hybrid parallelism on a device mesh
#
# A **device mesh** arranges the ranks in a box with named axes. Each rank takes part in one group along
# each axis. With 8 ranks and three axes of size 2:
#
# ![A cube of eight ranks with the axes tensor, data and pipeline. Ranks 0 and 1 are neighbours along the tensor axis, ranks 0 and 2 along the data axis, ranks 0 and 4 along the pipeline axis.](pictures/device_mesh.svg)
#
# ```python
# mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pipeline", "data", "tensor"))
# module = stage(network, mesh.get_local_rank("pipeline"), 2)      # the blocks of this stage
# parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
# fully_shard(module, mesh=mesh["data"])                           # FSDP2 shards what is left
# PipelineStage(module, ..., group=mesh.get_group("pipeline"))
# ```
#
# The order of the axes matters. Ranks with consecutive numbers are usually on the same server, and they are
# neighbours along the *last* axis. So the last axis should be the one that sends most often: `tensor`. Rank
# numbers count like a clock: rank $= 4 \cdot$ pipeline $+ 2 \cdot$ data $+$ tensor. This is the function
# `build` that you saw above. On GPUs the same file uses NCCL.
#
# ### Exercise 5: Groups of the mesh
#
# **What:** Write `neighbours(rank, shape, axis)`, the ranks of the group that this rank belongs to along
# one axis, in ascending order and with the rank itself. Compute the position of a rank on the mesh first.
#
# **Why:** With this function you can predict which ranks communicate, and check that a tensor group stays
# inside a server.
#
# **Signature:** `shape` is a tuple such as `(2, 2, 2)`, and `axis` is 0, 1 or 2. The function returns a
# list of ranks.
#
# <details><summary>Hint 1</summary>The last coordinate changes fastest, like the last digit of a number.
# The ranks of a group differ only in the coordinate of the axis.</details>
#
# <details><summary>Hint 2</summary>Rank 6 in (2, 2, 2): 6 = 4 x 1 + 2 x 1 + 0, so the position is (1, 1,
# 0). Its group along axis 2 has the positions (1, 1, 0) and (1, 1, 1), so the ranks 6 and 7.</details>
#
# <details><summary>Hint 3</summary>A function that computes the position goes through
# <code>reversed(shape)</code>, keeps <code>number % size</code> and continues with <code>number //
# size</code>. Then keep each number of <code>range(math.prod(shape))</code> whose position is equal in all
# other axes.</details>


# %%
def neighbours(rank, shape, axis):
    import math

    # BEGIN SOLUTION: return the ranks of the group along this axis
    def other_coordinates(number):
        position = []
        for size in reversed(shape):
            position.insert(0, number % size)
            number //= size
        return position[:axis] + position[axis + 1 :]

    mine = other_coordinates(rank)
    return [number for number in range(math.prod(shape)) if other_coordinates(number) == mine]
    # END SOLUTION


# %%
costs.check_neighbours(neighbours)

# %% [markdown]
# ### Exercise 6: Bytes of each axis
#
# **What:** Write `sent_bytes(split, weights, activation, blocks)`, the bytes that one rank sends in a step
# along each axis. `split` is $(d, t, p)$, the number of ranks along data, tensor and pipeline. `weights`
# are the bytes of the weights that the rank's FSDP2 group shards, `activation` the bytes of the activations
# of the *whole batch* at one place of the network, and `blocks` the blocks of the whole network.
#
# * **data:** FSDP2 all-gathers the weights once per step, and reduce-scatters the gradients. (A stage is
#   sharded as one module, and FSDP2 keeps the outermost module whole until the backward pass.) In a group of
#   $d$ ranks the all-gather sends $(d-1)/d$ of the bytes, and Gloo's reduce-scatter sends as much as an
#   all-reduce, $2(d-1)/d$.
# * **tensor:** two all-reduces per block, one forward and one backward, each of $2(t-1)/t$ times the rank's
#   activations.
# * **pipeline:** the rank's activations to the next stage, and gradients of the same size to the stage
#   before. Count the rank that sends most: it has one neighbour if $p = 2$, and two if $p > 2$.
#
# **Why:** These three numbers explain why tensor parallelism stays inside a server (the last axis), and why
# pipelines cross the network (the first axis).
#
# **Signature:** returns `{"data": ..., "tensor": ..., "pipeline": ...}`.
#
# <details><summary>Hint 1</summary>A rank has 1/d of the batch and 1/p of the blocks. Micro-batches do not
# change the sum.</details>
#
# <details><summary>Hint 2</summary>Split (1, 2, 1), activations of 960 bytes, 8 blocks: 16 all-reduces of
# 960 bytes, each sends 2(2-1)/2 = 1 times 960 bytes, together 15,360 bytes.</details>
#
# <details><summary>Hint 3</summary>data: <code>3 * (d - 1) / d * weights</code>. tensor: <code>2 * blocks /
# p * 2 * (t - 1) / t * activation / d</code>. A rank of the pipeline has <code>min(p - 1, 2)</code>
# neighbours.</details>


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
# The next experiment trains all modes for 20 steps from the same weights. It compares the losses with those
# of the serial run. It also compares memory and bytes with the formulas, each on the rank that has the most.
# Parameters, gradients and momentum need 12 bytes per parameter. How large is the largest difference of a
# loss from the serial run on 8 ranks? Compare with your result in lab 12.

# %%
# Prediction 2: the largest difference of a loss on 8 ranks. Replace both values of None.
prediction = workbook.predict(2, None, reason=None)

# %% tags=["folded"]
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
CHOSEN = by_run_length(quick=[(2, None)], learner=RUNS, reference=RUNS)


def measure_modes(repeat):
    alone = split_measurements.serial(repeat)
    by_hand = split_measurements.by_hand(pipeline_step, repeat)
    rows = [
        mode("serial", (1, 1, 1), [alone], alone),
        mode("pipeline by hand", (1, 1, 2), by_hand, alone),
    ]
    for ranks, only in CHOSEN:
        for (split, schedule), found in split_measurements.trained(ranks, repeat, only).items():
            if split[:2] == (1, 1):
                rows.append(mode(f"{NAMES[schedule]}, {ranks} stages", split, found, alone))
            elif split.count(1) < 2 and schedule == "1f1b":
                name = "data {} x tensor {} x pipeline {}".format(*split)
                rows.append(mode(name, split, found, alone))
    return rows


# %%
modes = sweep("pipeline_modes", measure_modes, grid(repeat=seeds(1)))
shipped_modes = reference("pipeline_modes").groupby(["mode", "ranks"], sort=False).median()
largest, others = (
    table.groupby("ranks")["loss_difference"].max() for table in (modes, shipped_modes)
)
workbook.result(2, largest.combine_first(others)[8])
shipped_modes.drop(columns="repeat").style.format("{:.3g}")

# %% tags=["folded"]
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
describe(
    figure,
    "Left: the losses of all modes lie on one curve. Right: their differences from the serial "
    "losses stay below one millionth in all steps.",
)

# %% [markdown]
# **Result.** All curves coincide. The largest difference on 8 ranks is $2 \times 10^{-7}$ (n = 3), the
# rounding of float32. If you predicted a value that grows with the number of ranks, note that the ranks add
# the same numbers in another order, and do not repeat the error. The table is the course's measurement.
# Memory agrees with the formula. Bytes are slightly above it, because Gloo sends a header with each
# message, and tensor parallelism has many small messages. On 4 ranks, data 1 x tensor 2 x pipeline 2 sends
# 0.61 MB, the pipeline of 4 stages 0.13 MB, and the splits with a data axis 13 to 14 MB.
#
# No split is faster than a single process that takes its batch as a whole. On two cores and with such a
# small network, splitting saves memory and not time.
#
# ## Search for the best split
#
# With 4 ranks there are six splits $(d, t, p)$, and with 1,024 ranks there are 66. Systems such as FlexFlow
# ([Jia et al. 2019](https://arxiv.org/abs/1807.05358)) and Alpa ([Zheng et al.
# 2022](https://arxiv.org/abs/2201.12023)) search such spaces with a **cost model**, a formula that predicts
# the time of a step without running it. The model of this lab is
#
# $$t = t_\text{compute} + \text{messages} \cdot \alpha + \frac{\text{bytes}}{\beta}$$
#
# with the latency $\alpha$ of a message and the bandwidth $\beta$. For example, 10 messages with $\alpha =
# 1$ ms and 100 MB with $\beta = 1$ GB/s add 10 + 100 = 110 ms to the compute time.
#
# ### Exercise 7: Compute time of a split
#
# **What:** Write `compute_time(split, micro_batches, work, cores)`, the seconds that a step computes,
# including the bubble. `work` is the time of one core for the whole batch.
#
# **Why:** The important part is `cores`. Two cores cannot do the work of four, however many ranks share
# them. In this case a rank that waits in a bubble costs nothing, because its core works for another rank.
# The time is then `work / cores`, and it is never less than that.
#
# **Signature:** returns seconds.
#
# <details><summary>Hint 1</summary>A rank has 1/(d t p) of the work, and it works only in the fraction 1 -
# bubble of the time.</details>
#
# <details><summary>Hint 2</summary>Work 12 s, split (1, 1, 2), 4 micro-batches, 2 cores: each rank works 6
# s of 4 turns out of 5, so the step takes 6 x 5/4 = 7.5 s. 12 / 2 = 6 s would be the limit of the
# cores.</details>
#
# <details><summary>Hint 3</summary>The larger of <code>work / (d * t * p) * (micro_batches + p - 1) /
# micro_batches</code> and <code>work / cores</code>.</details>


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
# The values of $\alpha$ and $\beta$ are measured now, with Gloo's all-reduce between as many ranks. `work`
# is the time of the serial network. The model predicts the time of all splits of 2 and of 4 ranks, and the
# figure compares it with the runs above. (Restart the kernel to measure them again.) Which of the six
# splits of 4 ranks is the slowest? Consider how many messages each axis sends.

# %%
# Prediction 3: the slowest split of 4 ranks, data x tensor x pipeline, such as "2x2x1". Replace both None.
splits = ["x".join(map(str, split)) for split in split_measurements.decompositions(4)]
workbook.predict(3, None, form=splits, reason=None)


# %%
def step_time(split, work, alpha, beta, cores):
    d, t, p = split
    messages = (
        2 * (d > 1)  # one all-gather, one reduce-scatter
        + 2 * LAYERS // p * MICRO_BATCHES * (t > 1)  # all-reduces
        + 2 * MICRO_BATCHES * (p > 1)  # sends, or receives that it waits for
    )
    weights = 4 * split_measurements.parameters(split)
    nbytes = sum(sent_bytes(split, weights, 4 * BATCH * HIDDEN, LAYERS).values())
    return compute_time(split, MICRO_BATCHES, work, cores) + messages * alpha + nbytes / beta


# %% tags=["folded"]
def measure_splits(ranks, repeat):
    """Return the predicted time of each split, and the time that its runs took."""
    work = np.median(split_measurements.serial(repeat, MICRO_BATCHES)["seconds"][3:])
    alpha, beta = split_measurements.link(ranks)
    rows = []
    for split in split_measurements.decompositions(ranks):
        found = split_measurements.trained(ranks, repeat, None)[split, "1f1b"]
        seconds = np.max([rank["seconds"] for rank in found], axis=0)
        rows.append({
            "split": "x".join(map(str, split)), "work": work, "alpha": alpha, "beta": beta,
            "predicted": step_time(split, work, alpha, beta, usable_cores()),
            "measured": np.median(seconds[3:]),
        })  # fmt: skip
    return rows


settings = grid(ranks=by_run_length(quick=[2], learner=[2, 4], reference=[2, 4]), repeat=seeds(1))

# %%
searched = sweep("decomposition_search", measure_splits, settings)

# %% tags=["folded"]
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
axes.set(
    xscale="log", yscale="log", xlabel="ms per step, predicted", ylabel="ms per step, measured"
)
axes.legend(fontsize=8)
describe(
    figure,
    "Measured over predicted time of a step for each split. Most points lie above the diagonal,"
    " so the model is too optimistic, but it orders pipelines before splits with a tensor axis "
    "correctly.",
)

# %%
medians = searched.groupby(["ranks", "split"], as_index=False)[["predicted", "measured"]].median()
for ranks, table in medians.groupby("ranks"):
    best, worst = table.loc[table["measured"].idxmin()], table.loc[table["measured"].idxmax()]
    chosen = table.loc[table["predicted"].idxmin()]
    print(
        f"{ranks} ranks: the model picks {chosen['split']} ({1000 * chosen['measured']:.0f} ms measured); "
        f"the fastest is {best['split']} ({1000 * best['measured']:.0f} ms), the slowest {worst['split']}"
    )
four = complete(searched, shipped_searches, "ranks", 4)
workbook.result(3, four.groupby("split")["measured"].median().idxmax())

# %% [markdown]
# **Result.** In our runs the pipeline 1x1x4 is the fastest split of 4 ranks (79 ms per step), and the
# tensor split 1x4x1 is the slowest (820 ms; medians, n = 3). The reasoning that leads there counts
# messages: in the split 1x4x1 a rank takes part in 2 all-reduces for each of 8 blocks and 4 micro-batches,
# that is 64 per step, and in the pipeline 1x1x4 it has 8 messages. With more ranks than cores, each
# of these messages also waits until all ranks that take part in it have had a core.
#
# The model predicts times only roughly. It knows such waits only through $\alpha$, and it does not know
# what DTensor and FSDP2 do around a message. Four ranks on two cores have no more compute power than two.
# So use a model to discard bad splits, and measure the remaining ones on the machine that you will train
# on.
#
# What would the model choose on other machines? The next table assumes a core for each rank, and four GPUs
# that are each 100 times as fast as one of these cores, with 20 microseconds per message and 100 GB/s. It
# shows predicted milliseconds per step; they were not measured.

# %% tags=["folded"]
last = searched[["work", "alpha", "beta"]].iloc[-1]
two = searched[searched["ranks"] == 2].iloc[-1]  # a core for each; of four the ring has 6 turns
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

# %%
pd.DataFrame(expected).style.format("{:.3g}").highlight_min(props="font-weight: bold")

# %% [markdown]
# ## Published systems for parallel training
#
# Many systems implement these ideas. The table lists ten of them with numbers of devices and parameters that
# their authors report in the abstract or the announcement. The sizes are as published, on the authors' hardware, and none of
# them was measured here. `labs/parallel_systems.md` describes these systems in more detail, with the links,
# what each rank stores, what it sends, and which of them ran in these labs.
#
# | system | kind of parallelism | devices | parameters |
# |---|---|---|---|
# | DDP (PyTorch) | data | 256 GPUs | |
# | ZeRO (DeepSpeed) | data, sharded; the layers were split too | 400 GPUs | more than 100 billion |
# | KARMA | data, with offload to CPU memory | | |
# | LBANN | data, and images split in space | 2K GPUs | |
# | Mesh-TensorFlow | any named dimension of a tensor | 512 TPU cores | 5 billion |
# | Megatron-LM (2019) | tensor and data | 512 GPUs (8 x 64) | 8.3 billion |
# | GPipe | pipeline | | 6 billion |
# | PipeDream | pipeline and data | | |
# | Megatron-LM (2021) | data, tensor and pipeline | 3,072 GPUs | 1 trillion |
# | AxoNN | data and 3-D tensor | 32,768 GPU dies (GCDs) | 80 billion, on 1,024 GPUs |
#
# FlexFlow and Alpa, from the section about search, choose among these kinds automatically. The rows
# are ordered by the kind of parallelism, and not by year. Most of the largest runs combine several splits:
# Megatron-LM of 2019 already used 8-way tensor and 64-way data parallelism. An empty field means that we found no number at its source.
#
# ## Summary
#
# * A pipeline gives each rank some successive layers. It sends activations and their gradients only between
#   neighbouring stages: 66 kB per rank and step with two stages in this lab, where tensor parallelism sends 1
#   MB.
# * Micro-batches let the stages work at the same time. The bubble is $(p-1)/(m+p-1)$ of the time, for
#   example 27 % with 4 stages and 8 micro-batches. We measured 30 %.
# * GPipe and 1F1B have the same bubble. GPipe keeps the activations of all $m$ micro-batches, 1F1B those of
#   at most $p - s$: 11.4 compared with 3.2 MB.
# * Two ranks that both send first wait for each other forever. A wrong order of messages does not hang and
#   only shows in a comparison with a serial run.
# * Data, tensor and pipeline parallelism split the batch, the layers, and the list of layers. They combine
#   on a device mesh, whose last axis should be the tensor axis, because it sends most often.
# * All modes had the losses of a single process to $2 \times 10^{-7}$, and memory and bytes followed from a
#   count.
# * A cost model of compute time, messages and bytes orders the splits roughly. Here it found that pipelines
#   are fast and tensor splits slow. Measure the best candidates.
#
# **Calculator:** the page `labs/calculators/pipeline.html` draws the schedules for any number of stages and
# micro-batches, with their bubbles. Open it in a browser.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=0.2)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="c")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="a")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer=2)

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="b")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer=13)

# %% [markdown]
# **Next:** [Lab 15](15_fine_tuning.ipynb) uses DDP, FSDP2 and mixed precision to fine-tune a language
# model.
