# %% [markdown]
# # Lab 9: One device, used fully
#
# **Time:** 100 minutes, two of them computing. **You measure** where the memory and the time of a training step go, and what
# three techniques do to both: mixed precision, activation checkpointing, gradient accumulation. Then you learn what keeps
# a GPU busy. **You need** PyTorch (a training loop) and lab 3 (mini-batches).
#
# The first question of "train on more devices" is what one device can do. The lines that decide it are in
# `labs/one_device.py`, each where it acts; read it now. The cells here use your GPU if there is one, else the processor. The
# figures also show results that the course ships. **Those were measured on processors**, so on a GPU expect
# other times; the bytes are nearly the same.

# %%
import statistics
import sys
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector as flat
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hvdlab.course.experiment import LABS, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import medians, overlay, predicted
from hvdlab.data import Batches, load_fashion_mnist
from hvdlab.exercises import lab09_less_memory
from hvdlab.exercises import lab09_one_device as exercises
from hvdlab.torch.device import InHorovodsLayout
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.lab_networks import Block, ConvNet, ResidualMLP
from hvdlab.torch.memory import peak
from hvdlab.torch.precision import operation_types, output_gradients, use_fast_kernels

sys.path.append(str(LABS))
import one_device  # the script next to this lab

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = DEVICE.type == "cuda"
print("These cells use", torch.cuda.get_device_name() if GPU else "the processor")


def now():
    """Seconds, when the device has done all that was asked of it."""
    if GPU:
        torch.cuda.synchronize()
    return perf_counter()


def train(report=lambda line: None, **options):
    """What `python one_device.py --OPTION VALUE ...` does, and returns what it took."""
    args = one_device.parse_args(["--image-size", "28"])
    vars(args).update(options)
    return one_device.train(args, report)


took = train(print, num_layers=2, hidden_size=64, steps=20)
{name: f"{n / 1e6:.2f} MB" for name, n in took["held"].items()}

# %% [markdown]
# ## See where the memory goes
#
# Between two steps the device holds the parameters, 4 bytes each, and Adam's two averages, 8 more for each parameter. During
# a step come the gradients, 4, and the **activations**: what the forward pass computed and the backward pass will need. Only
# they grow with the batch.
#
# Autograd keeps an array if the derivative of some operation asks for it. A linear layer needs its *input* (for the gradient
# of its weights), gelu its input, layer norm its input; `+` needs nothing. One array that two operations need is kept once.
# A block of our network is
#
#     x + down(gelu(up(norm(x))))        x: hidden,  up: hidden -> 4 hidden,  down: 4 hidden -> hidden
#
# ### Exercise 1: Count the activations
#
# **What:** write `activation_bytes(batch_size, num_layers, hidden_size, number_bytes=4)`: the bytes that `num_layers` blocks
# keep. Leave out the mean and the deviation of the norm, two numbers an example.
#
# **Why:** this number decides whether a batch fits. You can know it before you own the GPU.
#
# <details><summary>Hint 1</summary>Go through norm, up, gelu, down. How long is the input of each, for one example? The
# output of a block is the input of the next one: count it there.</details>
#
# <details><summary>Hint 2</summary>hidden + hidden + 4 hidden + 4 hidden numbers for each example and block.</details>


# %%
def activation_bytes(batch_size, num_layers, hidden_size, number_bytes=4):
    # BEGIN SOLUTION: return the bytes that the blocks keep for the backward pass
    return batch_size * num_layers * 10 * hidden_size * number_bytes
    # END SOLUTION


# %%
exercises.check_activation_bytes(activation_bytes)

# %% [markdown]
# At which batch size do the activations of 8 blocks of width 128 need as much as all that does not depend on the batch?

# %%
LAYERS, HIDDEN = by_run_length(quick=(4, 32), learner=(8, 128), reference=(8, 128))
parameters = sum(p.numel() for p in ResidualMLP(LAYERS, HIDDEN, 28).parameters())
print(f"{parameters:,} parameters: 4 + 4 + 8 bytes each are {16 * parameters / 1e6:.1f} MB")
prediction = None  # images

# %%
rows, powers = [], [32, 64, 128, 256, 512, 1024]
for batch_size in by_run_length(quick=powers[1::3], learner=powers, reference=powers):
    took = train(num_layers=LAYERS, hidden_size=HIDDEN, batch_size=batch_size, steps=4)
    rows.append({"batch size": batch_size, "peak": took["peak_bytes"]} | took["held"])
memory = pd.DataFrame(rows).set_index("batch size")
counted = pd.DataFrame({
    "parameters": memory["parameters"], "Adam's averages": memory["optimizer"],
    "gradients (counted: 4 bytes a parameter)": memory["parameters"],
    "activations (counted by you)": [activation_bytes(n, LAYERS, HIDDEN) for n in memory.index],
}) / 1e6  # fmt: skip
measured = (memory["parameters"] + memory["optimizer"] + memory["peak"]) / 1e6
axes = counted.plot.bar(stacked=True, rot=0, ylabel="MB", edgecolor="white", figsize=(8, 4.6))
axes.plot(range(len(rows)), measured, "ko", label="measured: held, and the peak of a step")
if prediction:
    place = np.interp(np.log2(prediction), np.log2(memory.index), range(len(rows)))
    axes.axvline(place, color="black", linestyle="--", label="your prediction")
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
# **What you should see.** Your count is right within a few percent where one of the two parts is much larger than the other.
# In between it is too high: the activations of a block are freed as soon as its gradients are there, so the two are never
# there all at once. Most of what does *not* grow with the batch is not the model: it is gradients and Adam. Labs 12 to 14
# share exactly these among devices; this one attacks the activations.
#
# ## Formats of numbers: float32, TF32, bfloat16, float16
#
# | | float32 | TF32 | bfloat16 | float16 |
# |---|---|---|---|---|
# | sign + exponent + fraction, bits | 1 + 8 + 23 | 1 + 8 + 10 | 1 + 8 + 7 | 1 + 5 + 10 |
# | bytes in memory | 4 | 4 | 2 | 2 |
#
# The exponent is the range, the fraction the precision. bfloat16 has the range of float32 and two to three decimal digits;
# float16 has another digit, and a range that training leaves in both directions.
#
# **TF32** is a format of the tensor cores of GPUs since Ampere (2020), and of nothing else. The numbers stay float32 in memory. A
# tensor core drops 13 bits of the fraction when it reads them, and adds the products in float32. So TF32 saves time and no
# memory, and no line of the network changes. PyTorch uses it for convolutions unless it is told not to, and for matrix
# products only if it is told to. `use_fast_kernels()` of `hvdlab.torch.precision` does so; read its docstring. How large is
# the error of a product of two matrices?

# %%
pd.DataFrame({
    f.dtype: {"largest": f.max, "smallest normal": f.smallest_normal,
              "smallest of all (subnormal)": f.smallest_normal * f.eps, "from 1 to the next number": f.eps}
    for f in map(torch.finfo, (torch.float32, torch.bfloat16, torch.float16))
}).map("{:.2g}".format)  # fmt: skip

# %%
torch.manual_seed(1)
a, b = torch.randn(2, 512, 512, device=DEVICE)
exact, errors = a.double() @ b.double(), {}
for name, fast, dtype in (("float32", False, torch.float32), ("TF32", True, torch.float32), ("bfloat16", True, torch.bfloat16)):  # fmt: skip
    use_fast_kernels(fast)
    error = (a.to(dtype) @ b.to(dtype)).double() - exact
    errors[name] = f"{float(error.norm() / exact.norm()):.1e}"
use_fast_kernels(False)
print(errors)

# %% [markdown]
# **What you should see.** An error of 2e-7 or less in float32 and about 3e-3 in bfloat16. On a GPU with TF32 the middle one is
# near 3e-4. A processor has no TF32, so there it equals float32. Networks learn the same with all three. But a comparison of two
# gradients to 1e-6 needs float32, so the cells of this lab turn TF32 off where they compare.
#
# **Mixed precision** uses two bytes where it pays and four where it must be. `torch.autocast` decides by operation: it casts
# the inputs of each call. Which operations of our networks will run in two bytes? Watch every call that reaches the kernels:

# %%
x, y = torch.randn(4, 1, 28, 28, device=DEVICE), torch.arange(4, device=DEVICE)
rows = []
for dtype in (torch.bfloat16, torch.float16):
    for network in (ResidualMLP(1, 16, 28), ConvNet(1, 4, 28)):
        network.to(DEVICE)
        with torch.autocast(DEVICE.type, dtype):
            rows += operation_types(lambda network=network: F.cross_entropy(network(x), y))
pd.DataFrame(rows).drop_duplicates(ignore_index=True)

# %% [markdown]
# **What you should see.** Matrix products and convolutions get two bytes and give two bytes: they are most of the work. The
# loss (`_log_softmax`, `nll_loss`) is float32. In between each operation takes what comes; the norms have two-byte inputs
# with float32 weights. On a GPU the list of PyTorch is longer: there `layer_norm`, `group_norm`, `softmax`, `exp`, `pow` and
# sums give float32 too ([documentation of torch.amp](https://docs.pytorch.org/docs/stable/amp.html)). The
# weights themselves are float32 in all of this: autocast makes a copy for the step.
#
# ### Watch gradients vanish
#
# float16 ends at $2^{-24} \approx 6 \cdot 10^{-8}$, and below $2^{-14}$ it loses digits. Gradients with respect to activations
# are small, because the loss is a mean over the batch; a loss that is a mean over the pixels of an image as well makes them
# smaller still. We give ours the factor that 128 x 128 pixels would have, $2^{-14}$. What part of these gradients will
# float16 turn to 0?

# %%
prediction = None  # percent

# %%
WEIGHT, SCALE = 2.0**-14, 2.0**16
data = load_fashion_mnist()


def batch(n, start=0):
    images, labels = (a[start : start + n] for a in (data.train_images, data.train_labels))
    images, labels = (torch.tensor(a, device=DEVICE) for a in (images, labels))
    return one_device.enlarged(images, 28), labels.long()


def gradients(dtype, scale):
    with torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32):
        return output_gradients(model, lambda: scale * WEIGHT * F.cross_entropy(model(x), y)).cpu()


torch.manual_seed(1)
model = ResidualMLP(2, 64, 28).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
# Train the network for some steps, because the gradients of an untrained one look different.
for step in range(by_run_length(quick=5, learner=50, reference=50)):
    x, y = batch(128, 128 * step)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

x, y = batch(128, 50_000)
figure, axes = plt.subplots(figsize=(8, 4.4))
for dtype, scale in ((torch.float32, 1), (torch.bfloat16, 1), (torch.float16, 1), (torch.float16, SCALE)):  # fmt: skip
    got = gradients(dtype, scale)
    zero = f"{(got == 0).float().mean():.1%} are 0"
    print(f"{dtype}, loss times {scale:g}: {zero}, {int((~got.isfinite()).sum())} inf or nan")
    if dtype == torch.float16:
        exact = gradients(torch.float32, scale).abs().numpy()
        axes.hist(np.log2(exact[exact > 0]), bins=range(-48, 17), alpha=0.6, label=f"loss times {scale:g}: {zero}")  # fmt: skip
axes.axvspan(-48, -25, color="black", alpha=0.15, label="0 in float16")
axes.axvspan(-25, -14, color="black", alpha=0.06, label="subnormal: fewer digits")
axes.axvline(16, color="black", label="float16 ends: inf")
axes.set(xlabel="log2 |gradient of an activation|, in float32", ylabel="how many", xlim=(-48, 17))
axes.legend(fontsize=9, title=f"you predicted {prediction} %" if prediction is not None else None)
plt.show()

# %% [markdown]
# **What you should see.** The gradients span several powers of ten, and the left part of them is lost. Multiplying the *loss*
# by $2^{16}$ multiplies every gradient (the chain rule) and moves the histogram to the right, into the range of float16.
# After the backward pass one divides by it, in float32. A power of two costs no digit. bfloat16 needs none of this.
#
# ### Exercise 2: Choose the scale
#
# Too small a scale loses gradients, too large a one gives inf. The scale that is *just* not too large is found by trying:
# **halve it when a step overflows, double it after `interval` good steps in a row**.
#
# **What:** write `next_scale(scale, good_steps, overflow, interval)`. `good_steps` counts the good steps since the scale last
# changed. Return `(scale, good_steps)` for the next step.
#
# **Why:** `torch.amp.GradScaler` does this from 65,536 on, with an interval of 2,000 (loss scaling: Micikevicius et al. 2018,
# [arXiv:1710.03740](https://arxiv.org/abs/1710.03740)). A training whose scale only falls has gradients of inf or nan.
#
# <details><summary>Hint 1</summary>Three cases: an overflow; the last good step of an interval; any other good
# step.</details>
#
# <details><summary>Hint 2</summary>In the first two cases good_steps is 0 afterwards.</details>


# %%
def next_scale(scale, good_steps, overflow, interval=2000):
    # BEGIN SOLUTION: return the scale and the good steps for the next step
    if overflow:
        return scale / 2, 0
    if good_steps + 1 == interval:
        return scale * 2, 0
    return scale, good_steps + 1
    # END SOLUTION


# %%
exercises.check_next_scale(next_scale)

# %% [markdown]
# ### Exercise 3: Step with a scale
#
# **What:** write `scaled_step(loss, optimizer, scale)`: go backward from the scaled loss, make the gradients what they would
# be without scaling, and step, unless some gradient is inf or nan: then change nothing. Leave no gradients behind. Return
# whether it overflowed. **Why:** with exercise 2 this is all of `GradScaler`.
#
# <details><summary>Hint 1</summary>The parameters are in <code>group["params"] for group in optimizer.param_groups</code>.
# Adam's averages must not see an inf either: they would keep it for ever.</details>
#
# <details><summary>Hint 2</summary><code>p.grad /= scale</code> for each p, then <code>all(torch.isfinite(p.grad).all()
# for p in parameters)</code> decides about <code>optimizer.step()</code>.</details>


# %%
def scaled_step(loss, optimizer, scale):
    # BEGIN SOLUTION: go backward from the scaled loss, unscale, step if all is finite
    (scale * loss).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        p.grad /= scale
    overflow = not all(torch.isfinite(p.grad).all() for p in parameters)
    if not overflow:
        optimizer.step()
    optimizer.zero_grad()
    return overflow
    # END SOLUTION


# %%
exercises.check_scaled_step(scaled_step)

# %% [markdown]
# Train with it. The loss still has its factor $2^{-14}$. How will the four curves differ?

# %%
prediction = None  # the loss of float16 without scaling at the end, if float32 comes to 0.6

# %%
SMALL = dict(num_layers=2, hidden_size=by_run_length(quick=16, learner=64, reference=64))
STEPS, EVERY = by_run_length(quick=20, learner=100, reference=200), 10
WAYS = {"float32": {}, "bf16": {"precision": "bf16"}, "fp16, scaled": {"precision": "fp16"},
        "fp16, not scaled": {"precision": "fp16", "no_scaling": True}}  # fmt: skip


def mixed_precision(way, seed):
    took = train(**WAYS[way], **SMALL, steps=STEPS, loss_weight=WEIGHT, seed=seed)
    losses = np.reshape(took["losses"], (-1, EVERY)).mean(axis=1) / WEIGHT
    return [
        {"step": EVERY * (i + 1), "loss": loss, "scale": took["scales"][EVERY * i],
         "step_seconds": took["step_seconds"], "peak_bytes": took["peak_bytes"]}
        for i, loss in enumerate(losses)
    ]  # fmt: skip


def distance(table):
    """Mean distance of the losses from those of float32, of each way."""
    losses = table.pivot(index=["seed", "step"], columns="way", values="loss")
    return losses.sub(losses["float32"], axis=0).abs().mean()


curves = sweep("mixed_precision", mixed_precision, grid(way=WAYS, seed=seeds(1, 3)))
shipped = reference("mixed_precision")

figure, axes = plt.subplots(figsize=(8, 4.2))
overlay(axes, curves, shipped, x="step", y="loss", by="way", labels={way: way for way in WAYS})
predicted(axes, prediction, x=STEPS)
axes.set(ylabel="training loss, mean of 10 steps")
axes.legend(fontsize=8, ncols=2)
plt.show()
pd.DataFrame({"|loss - loss of float32|, yours": distance(curves), "reference": distance(shipped)})

# %% [markdown]
# **What you should see.** float32, bf16 and scaled fp16 lie on one another; the table shows by how little they differ, and
# fp16 less than bf16, because it has three bits more. Without a scale most of the gradient is 0 and the network learns
# at first and then stands still, *without any error*: no nan, no warning, just a worse model. That is why one looks at histograms.
#
# ### Exercise 4: Find the fault (clipping)
#
# A colleague clips gradients to a norm of 1, as most language models do. In float32 it trained; "with mixed precision SGD
# does not learn".


# %%
def clipped_step(model, images, labels, optimizer, scaler, max_norm=1.0):
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()


def draw_clipped(step):
    figure, axes = plt.subplots(figsize=(7, 3))
    for scale in (1.0, 64.0, 65536.0):
        torch.manual_seed(1)
        model = ResidualMLP(2, 32, 28).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=scale)
        losses = [
            step(model, *batch(64, 64 * i), optimizer, scaler)
            for i in range(by_run_length(quick=20, learner=60, reference=60))
        ]
        axes.plot(losses, label=f"loss scale {scale:g}")
    axes.set(xlabel="step", ylabel="training loss")
    axes.legend()
    plt.show()


draw_clipped(clipped_step)

# %% [markdown]
# The scale should not matter at all. **What:** repair the function. **Why:** Adam divides by the size of the gradient, so
# with it this mistake hardly shows, and may stay for years.
#
# <details><summary>Hint 1</summary>In which units is max_norm, and in which the gradients that it is compared
# with?</details>
#
# <details><summary>Hint 2</summary>GradScaler has <code>unscale_(optimizer)</code>; its step() then knows that it has been
# done.</details>


# %%
def clipped_step(model, images, labels, optimizer, scaler, max_norm=1.0):  # noqa: F811
    # BEGIN SOLUTION: the same, with the fault repaired
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()
    # END SOLUTION


# %%
exercises.check_clipped_step(clipped_step)
draw_clipped(clipped_step)

# %% [markdown]
# ### Keep the weights in float32
#
# Why not everything in two bytes? A step changes a weight by a small part of it. bfloat16 has 8 significant bits, so a weight
# $w$ only moves when the change is more than $|w|/512$ to $|w|/256$ (half of the distance to the next number); a smaller one
# is rounded away, every time. We train twice with Adam at a rate of $10^{-4}$: all in bfloat16, and with autocast, whose
# weights are float32. What share of the weights does a step move?

# %%
prediction = None  # percent, all in bfloat16


# %%
def master_weights(way, seed):
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if way == "all bfloat16" else torch.float32
    model = ResidualMLP(2, 64, 28).to(DEVICE, dtype)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    rows = []
    for step in range(by_run_length(quick=10, learner=80, reference=80)):
        x, y = batch(128, (seed * 100 + step) * 128 % 50_000)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        before = flat(model.parameters()).detach()
        optimizer.step()
        optimizer.zero_grad()
        moved = 100 * (flat(model.parameters()) != before).float().mean().item()
        if step % 5 == 4:
            rows.append({"step": step + 1, "loss": loss.item(), "moved": moved})
    return rows


MASTER = {"all bfloat16": "all bfloat16", "autocast": "float32 weights, autocast"}
masters = sweep("master_weights", master_weights, grid(way=MASTER, seed=seeds(1, 3)))
shipped = reference("master_weights")
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
overlay(left, masters, shipped, x="step", y="loss", by="way", labels=MASTER)
overlay(right, masters, shipped, x="step", y="moved", by="way", labels=MASTER)
left.set(ylabel="training loss")
right.set(ylabel="weights that a step moves, %", ylim=(0, 105))
predicted(right, prediction)
plt.show()

# %% [markdown]
# **What you should see.** Nearly all float32 weights move in each step. Of the bfloat16 ones only those do whose change is
# large enough for them; the others stand still, and the loss falls more slowly. (With float16 weights GradScaler refuses to
# step: "Attempting to unscale FP16 gradients".) The copies in two bytes are for the matrix products; **the weights that learn
# are float32**. That is why autocast saves *activations*, and no memory for parameters: it is 4 + 4 + 8 bytes as before.
#
# ## Compute again instead of keeping
#
# The backward pass needs the activations of a block once. Throw them away, keep the block's *input*, and run the block a
# second time when its turn comes: **activation checkpointing** (Chen et al. 2016,
# [arXiv:1604.06174](https://arxiv.org/abs/1604.06174)). With $L$ blocks cut into $s$ segments there are $s$ inputs, and
# inside the one segment that is being run again all activations:
#
# $$M(s) \approx \underbrace{s}_{\text{inputs}} + \underbrace{10\,\frac{L}{s}}_{\text{one segment}} \quad \text{times batch} \times \text{hidden} \times 4 \text{ bytes.}$$
#
# Its smallest value is at $s = \sqrt{10 L}$; if a block kept one array instead of ten, this would be the famous $\sqrt{L}$.
#
# ### Exercise 5: Run a chain in segments
#
# **What:** write `run_in_segments(blocks, x, segments)`: the output of `blocks[-1](... blocks[0](x))`, keeping only the
# inputs of that many segments, as equally long as can be. `checkpoint(function, *inputs, use_reentrant=False)` runs
# `function(*inputs)` that way. **Why:** how finely you cut is the dial between memory and time.
#
# <details><summary>Hint 1</summary><code>np.array_split(range(len(blocks)), segments)</code> gives the numbers of each
# segment's blocks.</details>
#
# <details><summary>Hint 2</summary>A segment is a function: <code>nn.Sequential(*part)</code>. In a loop a
# <code>lambda</code> would see the last part when it is run again.</details>


# %%
def run_in_segments(blocks, x, segments):
    # BEGIN SOLUTION: run each segment under checkpoint
    for numbers in np.array_split(range(len(blocks)), segments):
        segment = nn.Sequential(*(blocks[i] for i in numbers))
        x = checkpoint(segment, x, use_reentrant=False)
    return x
    # END SOLUTION


# %%
lab09_less_memory.check_run_in_segments(run_in_segments)

# %% [markdown]
# Measure with 32 blocks. How many segments need the least memory? And the time: a backward pass costs two forward passes, so
# one more forward should make 4/3. Does it?

# %%
prediction = None  # segments

# %%
DEPTH, WIDTH, BATCH = by_run_length(
    quick=(8, 32, 64), learner=(32, 128, 256), reference=(32, 128, 256)
)


def activation_checkpointing(segments, repeat):
    """Peak and multiplications of a forward and backward pass, and its time over that without."""
    torch.manual_seed(repeat)
    blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH)).to(DEVICE)
    x = torch.randn(BATCH, WIDTH, device=DEVICE)

    def plain():
        nn.Sequential(*blocks)(x).square().mean().backward()

    def again():
        run_in_segments(blocks, x, segments).square().mean().backward()

    step = again if segments else plain  # 0: everything is kept
    step()  # from here on the gradients are there
    with peak(DEVICE) as most:
        step()
    with FlopCounterMode(display=False) as counter:
        step()
    ratios = []
    for _ in range(5):  # in turns, so that other programs on the machine slow both
        marks = [now()]
        for run in (plain, step):
            run()
            marks.append(now())
        ratios.append((marks[2] - marks[1]) / (marks[1] - marks[0]))
    return {"peak_bytes": most.bytes, "flops": counter.get_total_flops(),
            "times_plain": statistics.median(ratios)}  # fmt: skip


cuts = [0, *(2**k for k in range(10) if 2**k <= DEPTH)]
settings = grid(segments=cuts, repeat=seeds(2, 5))
kept = sweep("activation_checkpointing", activation_checkpointing, settings)
shipped = reference("activation_checkpointing")
for table in (kept, shipped):
    table["MB"] = table["peak_bytes"] / 1e6
    table["work"] = table["flops"] / table[table["segments"] == 0]["flops"].mean()

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
yours, theirs = kept[kept["segments"] > 0], shipped[shipped["segments"] > 0]
overlay(left, yours, theirs, x="segments", y="MB")
s = np.geomspace(1, DEPTH, 50)
left.plot(s, BATCH * WIDTH * 4 / 1e6 * (s + 10 * DEPTH / s), "k:", label="s + 10 L / s")
everything = kept[kept["segments"] == 0]["MB"].mean()
left.axhline(everything, color="grey", linestyle="-.", label="everything kept, yours")
if prediction:
    left.axvline(prediction, color="black", linestyle="--", label="your prediction")
overlay(right, yours, theirs, x="segments", y="times_plain", times=True)
right.plot(yours["segments"], yours["work"], "s", color="C2", label="multiplications, counted")
right.axhline(4 / 3, color="black", linestyle=":", label="4/3: one more forward pass")
left.set(ylabel="peak of a step, MB")
right.set(ylabel="times what it takes without", ylim=(0.9, None))
for axes in (left, right):
    axes.set(xscale="log")
    axes.set_xticks(cuts[1:], cuts[1:])
    axes.minorticks_off()
    axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# **What you should see.** The valley is where the formula has it, and a constant above it: the gradients on their way through
# a block. One segment saves nothing: all of it is there again when the backward pass begins. The multiplications are *below*
# 4/3 and fall with the number of segments, because PyTorch stops a recomputation as soon as it has what the backward pass
# asked for, and nobody asks for the output of the last `down` of a segment: with one block a segment half of the forward pass
# is saved, and $3.5/3 = 1.17$ remain. The *time* lies above, at one and a half times: in blocks so narrow a good part of it is not
# multiplication.
#
# ### Exercise 6: Find the fault (by hand, with dropout)
#
# Here is checkpointing as a `torch.autograd.Function`, in a dozen lines. Without dropout its gradients are right to the last
# digit. With dropout the loss is right too, and the gradients are not. (Each device has its own generator of random numbers. This
# exercise uses the processor's.)


# %%
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)  # in a Function's forward nothing is recorded

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        y.backward(gradient)  # adds to the block's own gradients
        return None, x.grad


def recomputed(block, x):
    return Recompute.apply(block, x)


def gradient_error(dropout):
    """Relative error of the recomputed gradients, against the block run plainly with the same seed."""
    torch.manual_seed(0)
    block = nn.Sequential(Block(32), nn.Dropout(dropout))
    x, grads = torch.randn(64, 32, requires_grad=True), []
    for run in (lambda block, x: block(x), recomputed):
        torch.manual_seed(1)
        block.zero_grad()
        run(block, x).square().sum().backward()
        grads.append(flat(p.grad for p in block.parameters()))
    return f"{(grads[1] - grads[0]).norm() / grads[0].norm():.2g}"


print({f"dropout {p}": gradient_error(p) for p in (0.0, 0.1, 0.5)})

# %% [markdown]
# **What:** repair `Recompute`. **Why:** any state that forward changes must be put back for the second run: the random
# numbers, and the running averages of batch norm too. `torch.utils.checkpoint` keeps the first (`preserve_rng_state=True`),
# not the second.
#
# <details><summary>Hint 1</summary>The second run draws new random numbers, and drops other activations than the first. And
# it draws them from the generator that the rest of the training uses.</details>
#
# <details><summary>Hint 2</summary><code>torch.get_rng_state()</code> in forward; in backward <code>with
# torch.random.fork_rng(devices=[]):</code> and in it <code>torch.set_rng_state(...)</code>. (On a GPU:
# <code>torch.cuda.get_rng_state()</code> as well.)</details>


# %%
class Recompute(torch.autograd.Function):  # noqa: F811
    # BEGIN SOLUTION: the same, with the fault repaired
    @staticmethod
    def forward(ctx, block, x):
        ctx.block, ctx.random_state = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random_state)
            y = ctx.block(x)
        y.backward(gradient)
        return None, x.grad

    # END SOLUTION


# %%
lab09_less_memory.check_recomputed(recomputed)
print({f"dropout {p}": gradient_error(p) for p in (0.0, 0.1, 0.5)})

# %% [markdown]
# ## Gradient accumulation: a large batch in micro-batches
#
# A batch that does not fit can go through in **micro-batches**, whose gradients PyTorch adds up in `.grad` by itself. It is
# lab 4 with the ranks one after another, and has the same formula: with $m_k$ of the $n$ examples in micro-batch $k$
#
# $$g = \sum_k \frac{m_k}{n}\, g_k .$$
#
# ### Exercise 7: Accumulate
#
# **What:** write `accumulate(model, images, labels, micro_batch)`: leave the gradient of the mean cross-entropy of all
# examples in `.grad` (empty before), with at most `micro_batch` examples in memory at once, in as few micro-batches as that takes.
# The last one may be smaller. Return the mean loss, a number.
#
# **Why:** the batch that you want (lab 6) and the batch that fits are two numbers.
#
# <details><summary>Hint 1</summary><code>images.split(micro_batch)</code>. When are the activations of a micro-batch
# freed?</details>
#
# <details><summary>Hint 2</summary>Multiply each loss by <code>len(y) / len(labels)</code>, and call its backward() before
# the next micro-batch goes forward.</details>


# %%
def accumulate(model, images, labels, micro_batch):
    # BEGIN SOLUTION: add up the gradients of the micro-batches
    total = 0.0
    for x, y in zip(images.split(micro_batch), labels.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(x), y) * (len(y) / len(labels))
        loss.backward()
        total += loss.detach()  # without detach() it would keep every graph
    return total.item()
    # END SOLUTION


# %%
lab09_less_memory.check_accumulate(accumulate)

# %% [markdown]
# One batch of 500, in micro-batches of 500 to 32. What becomes of the memory and the time? And is the gradient always the
# same? The second network has batch norm, which takes mean and variance over the examples that it sees *together*.

# %%
prediction = None  # peak with micro-batches of 32, as a share of that with one batch of 500


# %%
NORMS = {
    "layer norm": lambda: ResidualMLP(LAYERS, HIDDEN, 28),
    "batch norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)),
}  # fmt: skip


def gradient_accumulation(micro_batch, repeat):
    use_fast_kernels(False)  # gradients are compared, so no TF32
    x, y = batch(500, 500 * repeat)
    row = {}
    for name, make in NORMS.items():
        torch.manual_seed(repeat)
        model, grads = make().to(DEVICE), []
        for size in (len(y), micro_batch):
            model.zero_grad(set_to_none=False)
            accumulate(model, x, y, size)
            grads.append(flat(p.grad for p in model.parameters()))
        row[f"difference, {name}"] = float((grads[1] - grads[0]).norm() / grads[0].norm())
        if name == "layer norm":
            with peak(DEVICE) as most:
                accumulate(model, x, y, micro_batch)
            began = now()
            accumulate(model, x, y, micro_batch)
            row |= {"peak_bytes": most.bytes, "seconds": now() - began}
    return row


micro_batches = [500, 250, 128, 64, 32]
settings = grid(micro_batch=micro_batches, repeat=seeds(3, 5))
bitten = sweep("gradient_accumulation", gradient_accumulation, settings)
shipped = reference("gradient_accumulation")
for table in (bitten, shipped):
    table["MB"], table["ms"] = table["peak_bytes"] / 1e6, 1e3 * table["seconds"]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
overlay(left, bitten, shipped, x="micro_batch", y="MB")
counted = [activation_bytes(size, LAYERS, HIDDEN) / 1e6 for size in micro_batches]
left.plot(micro_batches, counted, "k:", label="activations, counted by you")
if prediction:
    predicted(left, prediction * shipped["MB"].max(), x=32)
overlay(right, bitten, shipped, x="micro_batch", y="ms", times=True)
left.set(xlabel="examples in a micro-batch", ylabel="peak, MB", ylim=(0, None))
right.set(xlabel="examples in a micro-batch", ylabel="ms for 500 examples", ylim=(0, None))
left.legend(fontsize=9)
plt.show()
differences = [f"difference, {name}" for name in NORMS]
bitten.groupby("micro_batch")[differences].mean().map("{:.1e}".format)

# %% [markdown]
# **What you should see.** The memory falls nearly in proportion to the micro-batch. (Only activations are in the figure: the gradients, and the
# parameters and the optimizer's averages of a training, do not depend on the micro-batch.) Small micro-batches waste time,
# as small batches do (lab 3): those of 250, 64 and 32 take 1.2, 2.0 and 2.8 times as long as one of 500 (medians of 5 on the Xeon
# of the reference). With layer norm the gradient differs by rounding alone, though 500 does not divide by 128; with
# batch norm it is *another gradient*: accumulation is exact only where no operation looks across the examples. (With ranks it
# is the same: labs 4 and 7.)
#
# ## Feeding the device
#
# A GPU and the processor work side by side. A call such as `model(x)` puts work into the queue of the GPU and returns. So the
# processor can prepare the images of the next step while the GPU computes this one. A step then takes the longer
# of the two times, and not their sum. Two things spoil this: copies that wait, and a processor that prepares images more
# slowly than the GPU uses them.
#
# **Copies.** The operating system may move ordinary (**pageable**) memory at any moment. A GPU can only fetch data from
# memory that stays where it is (**pinned**, or page-locked, memory). A copy from pageable memory therefore goes through a
# pinned buffer of the driver first, and the call waits for that. From pinned memory the GPU fetches by itself, and
# `x.to("cuda", non_blocking=True)` returns at once. For example, 128 images of CIFAR-10 are 393 kB. PCIe 4.0 with 16 lanes moves
# at most 31.5 GB/s, so they travel for at least 12 us.

# %%
random = np.random.default_rng(1)
images = torch.from_numpy(random.integers(256, size=(128, 32, 32, 3)).astype(np.uint8))


def copy_times(source, **options):
    """Median microseconds until the call returns, and until the copy is done."""
    times = []
    for _ in range(by_run_length(quick=5, learner=50, reference=50)):
        began = now()
        source.to(DEVICE, copy=True, **options)
        returned = perf_counter()
        times.append((1e6 * (returned - began), 1e6 * (now() - began)))
    return np.median(times, axis=0).round(1)


rows = {"pageable": copy_times(images)}
if GPU:
    rows["pinned"] = copy_times(images.pin_memory())
    rows["pinned, non_blocking"] = copy_times(images.pin_memory(), non_blocking=True)
pd.DataFrame(rows, index=["us until the call returns", "us until it is done"]).transpose()

# %% [markdown]
# **What you should see.** On a GPU only the last call returns long before its copy is done. A processor shows one row, a copy
# within its memory.
#
# **Images.** `hvdlab.torch.device_batches` is what our scripts use; read its first lines. A small data set is copied to the GPU
# once. Each batch is then gathered and augmented there. Of a larger data set each batch is gathered in pinned memory, and
# copied one step ahead in a second queue of the GPU (a **stream**). The random numbers of the augmentation are the same in all
# cases, so the images are equal to the byte. What fraction of its speed without augmentation does `Batches` keep with it?

# %%
prediction = None  # percent

# %%
COUNT = by_run_length(quick=2_000, learner=60_000, reference=60_000)


def per_second(batches):
    """Images per second that arrive on the device, without any training."""
    began, count = now(), 0
    for x, y in batches.epoch(0):
        x = torch.as_tensor(x, device=DEVICE)
        count += len(torch.as_tensor(y, device=DEVICE))
    return count / (now() - began)


plain, augmented = (Batches(data.train_images[:COUNT], data.train_labels[:COUNT], 128, augment=a) for a in (False, True))  # fmt: skip
rows = {"Batches": per_second(plain), "Batches, augmented": per_second(augmented)}
if GPU:
    for name, resident in (("streamed, augmented on the GPU", False), ("resident, augmented on the GPU", True)):  # fmt: skip
        rows[name] = per_second(DeviceBatches(augmented, DEVICE, resident))
steps = by_run_length(quick=5, learner=20, reference=20)
took = train(network="conv", num_layers=2, hidden_size=16, batch_size=128, steps=steps)
rows["training of a small network needs"] = 128 / took["step_seconds"]
if prediction is not None:
    print(
        f"you predicted {prediction} %; it is {100 * rows['Batches, augmented'] / rows['Batches']:.0f} %"
    )
pd.Series(rows, name="images/s").map("{:,.0f}".format).to_frame()

# %% [markdown]
# **What you should see.** `Batches` delivers with augmentation a fraction of what it delivers without. Compare the last row. On a
# processor the training needs far fewer images than `Batches` delivers, but both take their time from the same cores. A GPU may
# use more images than one core of the processor can prepare: then the GPU waits, unless it augments by itself.
#
# ## Synchronisation: .item()
#
# `loss.item()` gives a number of Python. The GPU must have computed it, so the call waits until the queue is empty. So do
# `float(loss)`, `print(loss)`, `loss.cpu()` and `if loss > 3:`. While the processor waits, it prepares nothing. For example, let
# the processor need 1 ms for a batch and the GPU 3 ms for a step. Without a read the next batch is ready in time, and a step takes
# 3 ms. With one read per step the GPU is idle while the next batch is prepared, and a step takes 4 ms. The cure is to add up the losses
# on the device, and to read their sum once an epoch.
#
# ### Exercise 8: Read the loss once
#
# **What:** write `train_epoch(model, batches, optimizer)`. `batches` gives pairs `(images, labels)` that are on the device; the
# last pair may be smaller. Train on each with `F.cross_entropy`. Return the mean loss of all examples, a number. Read
# from the device once.
#
# **Why:** a read per step is the most frequent reason that a GPU is slower than it could be. It changes no result, so no test
# finds it.
#
# <details><summary>Hint 1</summary>The mean over the examples needs the loss of each batch times its number of examples.
# <code>len(labels)</code> is known to the processor, so it costs no wait.</details>
#
# <details><summary>Hint 2</summary><code>total += loss.detach() * len(labels)</code> stays on the device. Without detach() it keeps
# the graph of every step. Call <code>.item()</code> after the loop.</details>


# %%
def train_epoch(model, batches, optimizer):
    # BEGIN SOLUTION: train on all batches, and return the mean loss of all examples
    total, count = 0.0, 0
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        count += len(labels)
    return total.item() / count
    # END SOLUTION


# %%
exercises.check_train_epoch(train_epoch)


# %%
def with_a_read_per_step(model, batches, optimizer):
    losses = []
    for one in batches:
        losses.append(train_epoch(model, [one], optimizer))  # which reads once
    return np.mean(losses)


some = [batch(128, 128 * i) for i in range(by_run_length(quick=4, learner=40, reference=40))]
milliseconds = {}
for name, run in (
    ("one read per step", with_a_read_per_step),
    ("one read per epoch", train_epoch),
) * 2:
    model = ConvNet(2, 16, 28).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    began = now()
    run(model, some, optimizer)
    milliseconds[name] = (
        1e3 * (now() - began) / len(some)
    )  # of the second time: the first one warms up
pd.Series(milliseconds, name="ms per step").round(2).to_frame()

# %% [markdown]
# **What you should see.** On a processor both rows are equal except for noise, because every call of PyTorch returns when it is done.
# On a GPU the read per step costs the more, the smaller the network is. Here the batches are prepared already. Where they are
# not, their time comes on top.
#
# ## Memory layout: channels last
#
# A batch of images has four indices: image, channel, row, column. In **contiguous** order (NCHW) memory holds all of channel
# 0, then all of channel 1. In **channels-last** order (NHWC) the channels of a pixel are neighbours. The shape is the same. What
# differs are the **strides**: how far apart in memory two neighbours are along each index. A tensor of shape (1, 3, 2, 2) has
# strides (12, 4, 2, 1) or (12, 1, 6, 3).
#
# Tensor cores, and the kernels of processors too, multiply the channels of a pixel. So they want them next to each other, and
# otherwise convert every layer's input. If the images *or* the weights of a convolution are channels-last, so is its output,
# and the next layer's input.

# %%
torch.manual_seed(1)
x = torch.randn(32, 32, 16, 16, device=DEVICE)
times = {}
for name, of_images, of_weights in (("contiguous", False, False), ("channels-last images", True, False), ("channels-last images and weights", True, True)):  # fmt: skip
    model = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))).to(DEVICE)
    model.to(memory_format=torch.channels_last if of_weights else torch.contiguous_format)
    image = x.to(memory_format=torch.channels_last if of_images else torch.contiguous_format)
    found = []
    for _ in range(by_run_length(quick=3, learner=20, reference=20)):
        began = now()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            y = model(image)
        y.float().square().mean().backward()
        found.append(1e3 * (now() - began))
    times[name] = {
        "ms, forward and backward": np.median(found),
        "strides of the output": y.stride(),
    }
pd.DataFrame(times).transpose()

# %% [markdown]
# **What you should see.** The strides say what the convolutions did: the images alone decide. The times depend on the device
# and on the sizes, so measure with your own network. The weights' own order saves a small conversion per layer at most.
#
# **What Horovod refuses.** After `model.to(memory_format=torch.channels_last)` Horovod 0.28.1 stops in `broadcast_parameters` and in
# `DistributedOptimizer`: "Tensor is required to be contiguous". Weights in bfloat16 give "Tensor type torch.BFloat16Tensor is not
# supported". There are two solutions:
#
# 1. Keep the weights contiguous and in float32. Channels-last images and autocast still give fast convolutions. Our networks do
#    so: their images are NHWC in memory.
# 2. Broadcast first and convert afterwards, and let a *compression* send the gradients:
#    `hvd.DistributedOptimizer(optimizer, ..., compression=mine.compression)` with `mine = rank_device(hvd)`. It sends contiguous
#    float32 copies, and converts what it receives back.

# %%
gradient = torch.randn(8, 3, 2, 2).to(torch.bfloat16, memory_format=torch.channels_last)
sent, context = InHorovodsLayout.compress(gradient)
received = InHorovodsLayout.decompress(sent, context)
for name, tensor in (("gradient", gradient), ("sent", sent), ("received", received)):
    print(
        f"{name:9} {tensor.dtype}, strides {tensor.stride()}, contiguous: {tensor.is_contiguous()}"
    )

# %% [markdown]
# Solution 1 needs no copy for Horovod, and solution 2 needs two per step, so our scripts take solution 1.
#
# ## Choose what pays here
#
# All of it together, on two networks. Which combination needs the least memory, and which is the fastest *on this machine*?

# %%
prediction_precision = (
    None  # the fastest precision here: "float32", "bf16", "fp16", on a GPU also "tf32"
)

# %%
NETWORKS = {
    "mlp": dict(
        num_layers=by_run_length(quick=2, learner=8, reference=8),
        hidden_size=128,
        batch_size=by_run_length(quick=64, learner=512, reference=512),
    ),
    "conv": dict(
        num_layers=by_run_length(quick=2, learner=4, reference=4),
        hidden_size=16,
        batch_size=by_run_length(quick=16, learner=64, reference=64),
    ),
}


def one_of_all(network, precision, checkpointing, micro_batches, repeat):
    took = train(network=network, precision=precision, checkpointing=checkpointing, accumulate=micro_batches,
                 steps=by_run_length(quick=4, learner=6, reference=8), seed=repeat, **NETWORKS[network])  # fmt: skip
    return {"step_seconds": took["step_seconds"], "peak_bytes": took["peak_bytes"]}


PRECISIONS = by_run_length(
    quick=["float32", "bf16"],
    learner=["float32", "bf16", "fp16"],
    reference=["float32", "bf16", "fp16"],
)
every = grid(network=NETWORKS, precision=[*PRECISIONS, "tf32"] if GPU else PRECISIONS,
             checkpointing=[False, True], micro_batches=[1, 4], repeat=seeds(1))  # fmt: skip
combined, shipped = sweep("one_device", one_of_all, every), reference("one_device")
for table in (combined, shipped):
    table["ms"], table["MB"] = 1e3 * table["step_seconds"], table["peak_bytes"] / 1e6
by = ["network", "precision", "checkpointing", "micro_batches"]
plain = combined[~combined["checkpointing"] & (combined["micro_batches"] == 1)]
fastest = plain.pivot_table(index="network", columns="precision", values="ms", aggfunc="median").idxmin(axis=1)  # fmt: skip
print(f"fastest, with nothing else changed: {fastest.to_dict()}; you said {prediction_precision}")
medians(combined, shipped, by=by, columns=["ms", "MB"]).round(1)

# %% [markdown]
# **What you should see.** Checkpointing and micro-batches save memory on both networks. bfloat16 alone lowers the
# peak to a little over 60 %, not to half, as not everything that is there at the peak has two bytes, and it adds a copy of the weights
# for the time of the step: on the mlp, whose activations the other two have made small, it saves nothing more. Whether it saves *time* is a matter of instructions and of how fast they are, so look at your table: the
# Xeon of the reference has one for bfloat16 (AVX-512 BF16, without the faster AMX), and a step takes 1.1 (conv) to 1.5 times (mlp) as
# long as in float32; `hvdlab bench precision` asks your machine about the assessment network. float16 is the extreme: that Xeon
# multiplies matrices in it (AVX512-FP16), so the mlp is as fast as in float32, and the conv net, for which PyTorch does not use
# that, nearly sixty times slower; without such instructions both are. A GPU has tensor cores for TF32, bf16 and fp16. Networks as
# small as these two do not fill them, so the differences may be small there. The order on a new
# machine: measure bf16 first, then fill the memory with a larger batch, accumulate when the batch that you *want* does not
# fit, and checkpoint when a single micro-batch does not.
#
# ## Take with you
#
# * Count 16 bytes per parameter with Adam, and add the activations: you know what fits before you try.
# * bf16 needs an autocast and nothing else. fp16 needs a scale, and unscaling before you look at gradients.
# * The weights that learn stay float32.
# * Checkpointing gives memory for at most a third more multiplications; accumulation for no more of them, but for time: the
#   smaller the micro-batch, the more.
# * A GPU works while the processor continues, as long as nothing waits: keep the images on the GPU or copy them from pinned
#   memory, augment there, and read the loss once an epoch.
# * Channels-last images are enough for convolutions; Horovod accepts neither channels-last nor bfloat16 weights.
