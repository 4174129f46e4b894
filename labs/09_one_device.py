# %% [markdown]
# # Lab 9: One device, used fully
#
# A course of the computing centre NERSC trains a vision transformer on one A100 GPU. In ordinary 32-bit
# arithmetic it processes 10 samples per second. With the format TF32 it processes 13, and with 16-bit mixed
# precision, which takes a few more lines of code, about 53 ([NERSC, Deep Learning at
# Scale](https://github.com/NERSC/dl-at-scale-training#enabling-mixed-precision-training)). Before you train
# on five GPUs, it is therefore worth asking whether one GPU can do the work of five. Memory is the second
# reason to use one device fully. A network that does not fit on one device needs the much more complicated
# methods of labs 12 to 14, unless one of the methods of this lab makes it fit.
#
# **After this lab you can**
#
# * read and write a training loop in PyTorch, if you know Keras;
# * compute how much memory a training step needs, before you run it;
# * choose a number format, explain why float16 needs loss scaling, and find two typical faults of mixed
#   precision;
# * trade computing time for memory with activation checkpointing and gradient accumulation, and say how
#   much each costs;
# * find out whether the device waits for copies or for a read of a number.
#
# **Builds on** lab 3 (mini-batches, Adam is explained in lab 7). **Time:** 180 minutes if you read
# everything and do all eight exercises; a good place for a break is after *Master weights*. The computer
# needs three of them.

# %% tags=["folded"]
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
from hvdlab.course.figures import describe, medians, overlay, predicted
from hvdlab.course.workbook import Workbook
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

workbook = Workbook(9)
hint = workbook.hint

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


data = load_fashion_mnist()


def batch(n, start=0):
    """n images of Fashion-MNIST as floats, and their labels, on the device."""
    images, labels = (a[start : start + n] for a in (data.train_images, data.train_labels))
    images, labels = (torch.tensor(a, device=DEVICE) for a in (images, labels))
    return one_device.enlarged(images, 28), labels.long()


took = train(num_layers=2, hidden_size=64, steps=20)  # the first run also warms the device up

# %% [markdown]
# The cells use your GPU if there is one, otherwise the processor. The shipped results in the figures
# (lines; points are yours, as in lab 3) were measured on processors. On a GPU the times differ, and the
# numbers of bytes are nearly the same.
#
# ## PyTorch basics
#
# Readers who know PyTorch can skip this section. PyTorch is a library for arrays and derivatives. In
# contrast to Keras it has no `fit`: you write the loop over the batches yourself. This is a few lines more,
# and in return everything that a technique of this lab changes is visible in those lines.
#
# ### Tensors
#
# A **tensor** is an array with any number of axes, as in NumPy. Two more properties matter here: its number
# format (`dtype`), and the **device** that holds it, for example `"cpu"` or `"cuda"` (an NVIDIA GPU). An
# operation runs on the device of its inputs. Inputs on two different devices are an error, so both images
# and network must be moved with `.to(device)`.

# %%
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
print(x.shape, x.dtype, x.device)
print(x @ x)  # product of two matrices
print(x.mean(dim=0))  # mean over axis 0: one number per column

# %% [markdown]
# ### Autograd
#
# **Autograd** computes derivatives. If a tensor has `requires_grad=True`, PyTorch records every operation
# on it in a graph. `loss.backward()` goes through this graph from the end to the beginning and applies the
# chain rule. The derivative with respect to `w` is afterwards in `w.grad`.
#
# For example, with x = 3, y = 5 and w = 2 the loss is (w x - y)² = 1. Its derivative is 2 (w x - y) x = 6.
#
# ![A graph from left to right: x = 3 and w = 2 give w x = 6, minus y = 5 gives 1, squared gives loss = 1.
# Arrows from right to left multiply derivatives: 2, then 1, then x = 3, so the gradient of w is
# 6.](pictures/autograd_graph.svg)
#
# Two facts about autograd explain most of this lab. First, the backward pass needs values of the forward
# pass (here x = 3 and w x - y = 1), so they must stay in memory until then. Second, `backward()` **adds**
# to `.grad` and does not replace it.

# %%
w = torch.tensor(2.0, requires_grad=True)
for call in (1, 2):
    loss = (w * 3 - 5) ** 2
    loss.backward()
    print(f"after call {call} of backward: w.grad = {w.grad.item()}")

# %% [markdown]
# ### Modules and torch.nn
#
# A network is a class that inherits from `nn.Module`. Its layers are attributes, and `forward` says how the
# output follows from the input. `model(x)` calls `forward`, and `model.parameters()` returns all weights.
# `torch.nn` contains the usual layers, and `torch.nn.functional` (here `F`) contains functions without
# weights, such as `F.cross_entropy`.
#
# | Keras | PyTorch |
# |---|---|
# | `keras.Model`, `call` | `nn.Module`, `forward` |
# | `model.compile(optimizer, loss)` | `optimizer = torch.optim.Adam(model.parameters(), lr)`; the loss is a function that you call |
# | `model.fit(x, y)` | your own loop |
# | `training=True` / `False` | `model.train()` / `model.eval()` |
# | `model.predict` | `with torch.inference_mode(): model(x)` |
#
# The last two lines do different things. `model.eval()` changes what layers compute: dropout keeps
# everything, and batch norm uses its running statistics. It does not save memory. `torch.inference_mode()`,
# and the older `torch.no_grad()`, tell PyTorch that no backward pass will follow, so that it keeps no layer
# outputs for it. Without them an evaluation computes the same numbers, but it needs nearly as much memory as
# training.


# %%
class TwoLayers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(28 * 28, width)
        self.second = nn.Linear(width, 10)

    def forward(self, images):
        return self.second(F.relu(self.first(images.flatten(1))))


print(sum(p.numel() for p in TwoLayers(64).parameters()), "parameters")

# %% [markdown]
# ### Training loop
#
# A training step has four lines. The forward pass computes the loss. `zero_grad` removes the gradients of
# the step before, because `backward` adds. `backward` computes the new gradients, and `step` changes the
# weights.

# %%
torch.manual_seed(1)
model = TwoLayers(64).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    images, labels = batch(128, 128 * step)
    loss = F.cross_entropy(model(images), labels)  # forward pass
    optimizer.zero_grad()
    loss.backward()  # backward pass
    optimizer.step()  # optimizer step
    if step % 25 == 0 or step == 99:
        print(f"step {step:3}  loss {loss.item():.3f}")

# %% [markdown]
# ## Training script for one device
#
# `labs/one_device.py` is the complete script of this lab: a training for one GPU with an option for each
# technique. Read it now; it has 200 lines. In the following labs the same networks are trained on several
# devices. Its defaults are:
#
#     python labs/one_device.py --num-layers 4 --image-size 64 --lr 1e-3
#
# * `--num-layers 4`: four **blocks**. A block is half of a transformer layer (lab 15): it normalises its
#   input, expands it to four times the width (`up`), applies the function GELU, reduces it again (`down`),
#   and adds the result to its input.
# * `--image-size 64`: the images of Fashion-MNIST, 28 x 28 pixels, are enlarged to 64 x 64. The first layer
#   then has 64² inputs. More pixels mean more work without another data set.
# * `--lr 1e-3`: the learning rate of Adam, 0.001.
#
# The script prints the time of a step, the bytes that the device holds between two steps, and the
# additional bytes at the peak of a step. `train(...)` in this notebook calls the same function and returns
# these numbers.

# %%
took = train(print, num_layers=4, hidden_size=64, image_size=64, lr=1e-3, steps=20)
print({name: f"{n / 1e6:.2f} MB" for name, n in took["held"].items()})
print(f"peak of a step: {took['peak_bytes'] / 1e6:.2f} MB more")

# %% [markdown]
# ## Memory of a training step
#
# Four kinds of data need memory on the device during training:
#
# * the **parameters** (weights), 4 bytes each in float32;
# * the **optimizer state**: Adam keeps two running averages per parameter, 8 bytes;
# * the **gradients**, 4 bytes per parameter, from the backward pass until the step;
# * the **activations**: intermediate results of the forward pass that the backward pass needs.
#
# The first three depend on the network only: 16 bytes per parameter. The activations also grow in
# proportion to the batch.
#
# ![Memory over the time of one step. Parameters and the averages of Adam are always there. Activations grow
# during the forward pass, reach the peak at its end, and are freed during the backward pass, while
# gradients appear. After the optimizer step the gradients are freed.](pictures/memory_of_a_step.svg)
#
# Which intermediate results does autograd keep? It keeps an array if the derivative of some operation
# contains it. The gradient of the weights of a linear layer contains the *input* of the layer. GELU and
# layer norm need their inputs as well. The operation `+` needs nothing, because its derivative is 1. An
# array that two operations need is kept once. A block of our network is
#
#     x + down(gelu(up(norm(x))))        x: hidden,  up: hidden -> 4 hidden,  down: 4 hidden -> hidden
#
# For example, a single linear layer from 8 to 32 numbers keeps its input, 8 numbers per example. With a
# batch of 100 in float32 these are 8 x 100 x 4 = 3,200 bytes.
#
# ### Exercise 1: Count the activations
#
# **What:** Write `activation_bytes(batch_size, num_layers, hidden_size, number_bytes=4)`: the bytes that
# `num_layers` blocks keep. Leave out the mean and the standard deviation of the norm, which are only two
# numbers per example.
#
# **Why:** This number decides whether a batch fits. You can know it before you pay for the GPU.
#
# <details><summary>Hint 1</summary>Go through norm, up, gelu and down. How many numbers has the input of
# each, for one example? The output of a block is the input of the next one, so count it there.</details>
#
# <details><summary>Hint 2</summary>For hidden = 8 the inputs are: norm 8, up 8, gelu 32, down 32. Together
# 80 numbers per example and block.</details>
#
# <details><summary>Hint 3</summary>The sum is 10 hidden numbers per example and block. Multiply by the
# batch size, the blocks and the bytes of a number.</details>


# %%
def activation_bytes(batch_size, num_layers, hidden_size, number_bytes=4):
    # BEGIN SOLUTION: return the bytes that the blocks keep for the backward pass
    return batch_size * num_layers * 10 * hidden_size * number_bytes
    # END SOLUTION


# %%
exercises.check_activation_bytes(activation_bytes)

# %% [markdown]
# From which batch size on do the activations of 8 blocks of width 128 need more memory than everything that
# does not depend on the batch?

# %%
LAYERS, HIDDEN = by_run_length(quick=(4, 32), learner=(8, 128), reference=(8, 128))
parameters = sum(p.numel() for p in ResidualMLP(LAYERS, HIDDEN, 28).parameters())
print(f"{parameters:,} parameters: 4 + 4 + 8 bytes each are {16 * parameters / 1e6:.1f} MB")
# Prediction 1: at which batch size are the two equal? Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %% tags=["folded"]
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
describe(
    axes.figure,
    "Stacked bars of the memory for batch sizes from 32 to 1024: parameters, averages of Adam and gradients stay the "
    "same, activations grow with the batch. Measured points lie at or a little below the bars.",
)
workbook.result(1, 16 * parameters / activation_bytes(1, LAYERS, HIDDEN))

# %% [markdown]
# The prediction follows from two numbers: one image keeps 8 x 10 x 128 numbers of 4 bytes, or 41 kB, and
# the rest needs 18.5 MB. The two are equal at 18.5 MB / 41 kB = 450 images. Your estimate is within a few
# percent of the measurement when either weights and optimizer state or the activations dominate. In between
# it is too high, because the activations of a block are freed as soon as its gradients are there, so not
# all of both are in memory at the same time. Most of the memory that does *not* grow with the batch belongs
# to gradients and optimizer state, and not to the weights. Labs 12 to 14 divide exactly these among
# devices. This lab reduces the activations.
#
# ## Number formats FP64, FP32, TF32, BF16, FP16 and FP8
#
# A floating-point number has three parts: a sign, an **exponent** and a **fraction**. The value is ±
# 1.fraction x 2^exponent. The exponent determines the **range**, that is, the largest and smallest numbers.
# The fraction determines the **precision**, that is, the number of digits. Two bytes instead of four mean
# half the memory, half the time for a transfer, and shorter multiplications.
#
# ![Bits of seven formats as bars. FP64 has 11 bits of exponent and 52 of fraction, FP32 8 and 23, TF32 8
# and 10, BF16 8 and 7, FP16 5 and 10, FP8 E5M2 5 and 2, FP8 E4M3 4 and 3. BF16 keeps the exponent of FP32,
# FP16 keeps more fraction.](pictures/number_formats.svg)
#
# * **FP64** (double precision) has 16 decimal digits. Simulations need it. Neural networks do not, so we
#   use it only as the exact value in comparisons.
# * **FP32** (float32) is the default of PyTorch, with 7 digits.
# * **TF32** is FP32 with a shortened fraction. It exists only inside of the *tensor cores*, the matrix units
#   of NVIDIA GPUs, since Ampere (2020). The numbers in memory stay FP32, so it saves time and no memory, and
#   no line of the network changes. PyTorch uses it for convolutions by default, and for matrix products only
#   if it is told to. `use_fast_kernels()` of `hvdlab.torch.precision` does so.
# * **BF16** (bfloat16) keeps the exponent of FP32 and has only 2 to 3 digits.
# * **FP16** (float16) has another digit, and a range that gradients leave in both directions.
# * **FP8** has one byte, in two variants: E4M3 with more precision and E5M2 with more range. It needs a
#   scale factor per tensor, and GPUs since Hopper (2022) compute with it. We do not use it here.
#
# For example, 1/3 is 0.33333334 in FP32, 0.33325195 in FP16 and 0.33398438 in BF16. And 1e-8 is 1e-8 in
# BF16, nearly, but 0 in FP16.
#
# **Tensor cores.** A tensor core is a part of a GPU that multiplies two small matrices in one instruction.
# It reads its inputs in a short format and adds up the products in FP32. Because most of the work of a
# network consists of matrix products, tensor cores determine its speed. NVIDIA states these peak rates for
# an H100 SXM, in TFLOP/s, that is, 10^12 operations per second: FP64 34, FP32 67, TF32 495, BF16 and FP16
# 990, FP8 1,980 ([NVIDIA](https://www.nvidia.com/en-us/data-center/h100/); the page gives the doubled
# values for sparse matrices). From FP32 to BF16 the peak increases by a factor of 15. A real training
# reaches only a part of it.

# %%
formats = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
pd.DataFrame({
    f.dtype: {"largest": f.max, "smallest normal": f.smallest_normal,
              "smallest (subnormal)": f.smallest_normal * f.eps, "from 1 to the next number": f.eps}
    for f in map(torch.finfo, formats)
}).map("{:.2g}".format)  # fmt: skip

# %% [markdown]
# How large is the error of a product of two matrices with 512 rows and columns? The exact value is computed
# in FP64.

# %% tags=["folded"]
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
# The relative error is about 2e-7 in FP32 and about 3e-3 in BF16. On a GPU with TF32 the middle one is near
# 3e-4. A processor has no TF32, so there it equals FP32. Networks learn equally well with all three. But a
# comparison of two gradients to 1e-6 needs FP32, so the cells of this lab switch TF32 off where they
# compare.
#
# ## Automatic mixed precision (AMP)
#
# **Mixed precision** uses two bytes where this saves time and memory, and four bytes where precision is
# needed. *Automatic* means that PyTorch decides for each operation. Inside of `with torch.autocast(device,
# torch.bfloat16):` it converts the inputs of each call as a list prescribes. The weights stay in float32,
# and autocast makes two-byte copies of them for the step. Which operations of our networks run in two
# bytes? The cell watches every call that reaches a kernel (a *kernel* is a function that computes on the
# device).

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
# Matrix products and convolutions get two bytes and return two bytes. They are most of the work. The loss
# (`_log_softmax`, `nll_loss`) is in float32, because sums and exponentials need precision and range. The
# operations in between take what they get; the norms have two-byte inputs with float32 weights. On a GPU
# the list is longer: there `layer_norm`, `group_norm`, `softmax`, `exp`, `pow` and sums give float32 too
# ([documentation of torch.amp](https://docs.pytorch.org/docs/stable/amp.html)).
#
# ## Loss scaling for float16
#
# The largest number of float16 is 65,504, and what is larger becomes infinite. The smallest positive number
# is $2^{-24} \approx 6 \cdot 10^{-8}$. What is not larger than half of it, $2^{-25}$, becomes 0. Below
# $2^{-14} \approx 6 \cdot 10^{-5}$ a number has fewer digits. (bfloat16 has the range of float32, so these
# limits are far away.) Gradients with respect to activations are small, because the loss is a mean over the
# batch: each example contributes only 1/128 of it. A loss that is also a mean over the pixels of an image
# makes them smaller still. We imitate such a loss with the factor that $128 \cdot 128 = 2^{14}$ pixels would
# have, $1/2^{14}$.
#
# The remedy is **loss scaling**: multiply the *loss* by a large number before the backward pass. By the
# chain rule every gradient is then larger by this factor, and it fits into the range of float16. Afterwards
# divide the gradients by the factor, in float32. A power of two as the factor changes only the exponent and
# costs no digit.
#
# For example, a gradient of $10^{-9}$ is 0 in float16. With the scale $2^{16} = 65{,}536$ it is $6.6 \cdot
# 10^{-5}$, which float16 can represent. After the division it is $10^{-9}$ again, in float32.

# %%
# Prediction 2: which percentage of these gradients becomes 0 in float16 without scaling? The median of their
# absolute values is near 2^-29. Replace both values of None.
prediction = workbook.predict(2, None, reason=None)

# %% tags=["folded"]
WEIGHT, SCALE = 2.0**-14, 2.0**16


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
describe(
    figure,
    "Two histograms of the logarithm of the gradients. Without scaling a large part lies in the region that float16 "
    "turns to zero. With a loss times 2 to the 16 the histogram lies inside the range of float16.",
)
workbook.result(2, 100 * (gradients(torch.float16, 1) == 0).float().mean().item())

# %% [markdown]
# A number below 2^-25 is nearer to 0 than to the smallest number of float16, so it becomes 0. The median is
# 2^-29, so more than half of the gradients are lost; the measurement shows about 95 %. The gradients span
# several powers of ten, and the left part of them is lost. With the scaled loss the histogram moves to the
# right, into the range of float16. BF16 does not need this, because it has the exponent of FP32.
#
# ### Exercise 2: Choose the scale
#
# A scale that is too small loses gradients, and one that is too large gives infinity (inf). The best scale
# changes during training. So it is found by trying: **halve it when a step overflows, and double it after
# `interval` good steps in a row.** A step *overflows* if one of its gradients is inf or nan (not a number).
#
# **What:** Write `next_scale(scale, good_steps, overflow, interval)`. `good_steps` is the number of good
# steps since the scale last changed, without this one. Return `(scale, good_steps)` for the next step.
#
# **Why:** `torch.amp.GradScaler` does exactly this, beginning at 65,536 with an interval of 2,000 (loss
# scaling: [Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)). If the scale of a training only
# falls, its gradients are inf or nan for another reason.
#
# <details><summary>Hint 1</summary>There are three cases: an overflow; the last good step of an interval;
# any other good step.</details>
#
# <details><summary>Hint 2</summary>With an interval of 3 and the scale 8: good, good, good gives 16 with a
# count of 0. An overflow gives 8 again, with a count of 0.</details>
#
# <details><summary>Hint 3</summary><code>if overflow: return scale / 2, 0</code>, then
# <code>if good_steps + 1 == interval: ...</code>.</details>


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
# **What:** Write `scaled_step(loss, optimizer, scale)`. Go backward from the scaled loss, and divide the
# gradients by the scale. Then step, unless some gradient is inf or nan: in this case change nothing. Leave
# no gradients behind. Return whether the step overflowed.
#
# **Why:** Together with exercise 2 this is all of `GradScaler`.
#
# <details><summary>Hint 1</summary>The parameters are in <code>group["params"] for group in
# optimizer.param_groups</code>. The averages of Adam must never see an inf either, because they would keep
# it.</details>
#
# <details><summary>Hint 2</summary>With the loss 3w and the scale 1024, <code>w.grad</code> is 3072 after
# the backward pass and must be 3 before <code>optimizer.step()</code>.</details>
#
# <details><summary>Hint 3</summary><code>p.grad /= scale</code> for each p, then <code>overflow = not
# all(torch.isfinite(p.grad).all() for p in parameters)</code>.</details>


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
# Now train with it. The loss still has its factor $2^{-14}$.

# %%
# Prediction 3: float32 reaches a loss near 0.5 after 200 steps. Which loss does float16 without scaling reach?
# Replace both values of None.
prediction = workbook.predict(3, None, reason=None)

# %% tags=["folded"]
SMALL = dict(num_layers=2, hidden_size=by_run_length(quick=16, learner=64, reference=64))
STEPS, EVERY = by_run_length(quick=20, learner=100, reference=200), 10
METHODS = {"float32": {}, "bf16": {"precision": "bf16"}, "fp16, scaled": {"precision": "fp16"},
        "fp16, not scaled": {"precision": "fp16", "no_scaling": True}}  # fmt: skip


def mixed_precision(way, seed):
    took = train(**METHODS[way], **SMALL, steps=STEPS, loss_weight=WEIGHT, seed=seed)
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


curves = sweep("mixed_precision", mixed_precision, grid(way=METHODS, seed=seeds(1, 3)))
shipped = reference("mixed_precision")

figure, axes = plt.subplots(figsize=(8, 4.2))
overlay(axes, curves, shipped, x="step", y="loss", by="way", labels={way: way for way in METHODS})
predicted(axes, prediction, x=200)
axes.set(ylabel="training loss, mean of 10 steps")
axes.legend(fontsize=8, ncols=2)
describe(
    figure,
    "Training loss over steps for float32, bf16, and fp16 with and without loss scaling. Three curves coincide, and "
    "the curve of fp16 without scaling stays clearly above them.",
)
# The mean at the last step of the reference, because your run has fewer steps.
last = shipped[shipped["step"] == shipped["step"].max()].groupby("way")["loss"].mean()
workbook.result(3, last["fp16, not scaled"])
pd.DataFrame({"|loss - loss of float32|, yours": distance(curves), "reference": distance(shipped)})

# %% [markdown]
# float32, bf16 and scaled fp16 coincide: after 200 steps the loss is 0.47 with all three (n = 3), and
# without scaling it is 0.82. The table shows the small differences. They are smaller for fp16 than for
# bf16, because fp16 has three more bits of fraction. Without a scale most gradients are 0, and the network
# learns at first and then stops, *without any error message*: no nan and no warning, only a worse model.
# This is why one looks at histograms.
#
# ### Exercise 4: Fault in gradient clipping
#
# **Gradient clipping** limits the norm of the gradient, so that a single bad batch cannot destroy the
# weights. Most language models clip to a norm of 1. A colleague does so too. In float32 the training
# worked, and "with mixed precision SGD does not learn".


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


# %% tags=["folded"]
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
    describe(
        figure,
        "Training loss over steps for loss scales of 1, 64 and 65536. In a correct training the three curves "
        "coincide; in the faulty one the loss falls more slowly the larger the scale is.",
    )


draw_clipped(clipped_step)

# %% [markdown]
# The scale should not matter at all. **What:** Repair the function. **Why:** Adam divides by the size of
# the gradient, so with Adam this fault hardly shows, and it may stay in a program for years.
#
# <details><summary>Hint 1</summary>In which units is <code>max_norm</code>, and in which units are the
# gradients that it is compared with?</details>
#
# <details><summary>Hint 2</summary>A gradient of norm 0.5 must not be clipped to 1. With the scale 65,536
# its norm is 32,768 when <code>clip_grad_norm_</code> sees it, so it is reduced to 1, and after the
# division it is 0.000015.</details>
#
# <details><summary>Hint 3</summary><code>scaler.unscale_(optimizer)</code> before the clipping. The method
# <code>step</code> then knows that the division has been done.</details>


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
# ## Master weights
#
# Why not store everything in two bytes? One step changes a weight by a small fraction of its value. BF16
# has 8 significant bits, so a weight $w$ changes only if the change is larger than half of the distance to
# the next number, which is between $|w|/512$ and $|w|/256$. A smaller change is rounded away, in every step
# again.
#
# For example, the next BF16 number after 1 is 1.0078. A step of 0.001 gives 1.001, which is rounded to 1.
# After 1,000 such steps the weight is still 1, although it should be 2.
#
# We train twice with Adam and a learning rate of $10^{-4}$: once with everything in bfloat16, and once with
# autocast, whose weights are float32. These float32 weights are called **master weights**.

# %%
# Prediction 4: which percentage of the weights does a step change at the end, with everything in bfloat16?
# Replace both values of None.
prediction = workbook.predict(4, None, reason=None)


# %% tags=["folded"]
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
describe(
    figure,
    "Left, training loss over steps: weights in bfloat16 learn more slowly than float32 weights with autocast. Right, "
    "the percentage of weights that a step changes: 100 percent with float32, and below 50 percent and falling with "
    "bfloat16.",
)
last = masters[masters["step"] == masters["step"].max()].groupby("way")["moved"].mean()
workbook.result(4, last["all bfloat16"])

# %% [markdown]
# Nearly all float32 weights change in each step. With bfloat16 weights a step changes only 19 % of them
# after 80 steps (n = 3). The others stand still, and the loss falls more slowly: 0.97 instead of 0.84.
# (With float16 weights GradScaler refuses to step: "Attempting to unscale FP16 gradients".) The two-byte
# copies are for the matrix products, and the weights that learn are float32. So autocast saves
# *activations*, and no memory for parameters, gradients and optimizer state.
#
# ## Activation checkpointing
#
# The backward pass needs the activations of a block once. **Activation checkpointing** discards them after
# the forward pass and keeps only the *input* of a group of blocks, a **segment**. When the backward pass
# reaches the segment, the forward pass of the segment runs a second time, and its activations are there
# again ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)). It trades computing time for memory.
#
# ![Eight blocks. Without checkpointing the activations of all eight are in memory after the forward pass.
# With two checkpointed segments only the inputs of blocks 0 and 4 are kept. During the backward pass the
# four blocks of segment 2 are computed again, later those of segment
# 1.](pictures/activation_checkpointing.svg)
#
# With $L$ blocks in $s$ segments, $s$ inputs are kept, and at most one segment has all its activations:
#
# $$M(s) \approx \underbrace{s}_{\text{inputs}} + \underbrace{10\,\frac{L}{s}}_{\text{one segment}} \quad \text{times batch} \times \text{hidden} \times 4 \text{ bytes.}$$
#
# For example, 32 blocks keep 320 units of memory without checkpointing. With 16 segments they keep 16 + 10
# x 32 / 16 = 36 units. The smallest value is at $s = \sqrt{10 L}$, which is 18 here. If a block kept one
# array instead of ten, this would be the well-known $\sqrt{L}$.
#
# ### Exercise 5: Run blocks in segments
#
# **What:** Write `run_in_segments(blocks, x, segments)`: the output of `blocks[-1](... blocks[0](x))`,
# where only the inputs of `segments` segments are kept. Their lengths differ by at most one.
# `checkpoint(function, *inputs, use_reentrant=False)` runs `function(*inputs)` in this manner.
#
# **Why:** The number of segments is what you adjust if memory is short.
#
# <details><summary>Hint 1</summary><code>np.array_split(range(len(blocks)), segments)</code> returns the
# numbers of the blocks of each segment.</details>
#
# <details><summary>Hint 2</summary>7 blocks in 2 segments are [0, 1, 2, 3] and [4, 5, 6]. The first call of
# <code>checkpoint</code> runs four blocks, and its result is the input of the second call.</details>
#
# <details><summary>Hint 3</summary><code>segment = nn.Sequential(*(blocks[i] for i in numbers))</code>,
# then <code>x = checkpoint(segment, x, use_reentrant=False)</code>. A <code>lambda</code> in a loop would
# see the last segment only when it runs again.</details>


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
# Now measure with 32 blocks. A backward pass needs about twice the multiplications of a forward pass, so a
# step costs 1 + 2 = 3 forward passes. One additional forward pass makes this 4/3.

# %%
# Prediction 5: how many segments need the least memory with 32 blocks? Replace both values of None.
prediction = workbook.predict(5, None, reason=None)

# %% tags=["folded"]
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
describe(
    figure,
    "Left, the peak of memory over the number of segments: it falls from 43 MB with one segment to a minimum near 16 "
    "segments and rises again. Right, time and multiplications relative to a step without checkpointing.",
)
peaks, others = (table.groupby("segments")["MB"].median() for table in (yours, theirs))
workbook.result(5, peaks.combine_first(others).idxmin())

# %% [markdown]
# The formula predicts the minimum at the square root of 10 x 32, or 18 segments. The peak falls from 43 MB to
# 5.5 MB with 16 segments (n = 5). The minimum is where the formula puts it, and all measured values are
# higher than the formula by a constant. It consists of the gradients with respect to the activations of the
# block that the backward pass has reached, which the formula does not count. One segment saves nothing,
# because all its activations are there again when the backward pass begins.
#
# The multiplications are *fewer* than 4/3, and they fall with the number of segments. PyTorch stops a
# recomputation as soon as it has what the backward pass needs. The output of the last `down` of a segment is
# never needed, and `down` has as many multiplications as `up`. With one block per segment half of the
# additional forward pass is therefore saved: $3.5/3 = 1.17$. The *time* is about 1.5 times as long. In blocks
# as narrow as these a large part of the time is not multiplication.
#
# ### Exercise 6: Fault in a recomputation with dropout
#
# Here is checkpointing as a `torch.autograd.Function`, a class that defines the forward and the backward
# pass of an operation itself. Without dropout its gradients are right to the last digit. With **dropout**,
# which sets random activations to 0, the loss is right too, and the gradients are not. (Each device has its
# own generator of random numbers. This exercise uses the one of the processor.)


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
# **What:** Repair `Recompute`. **Why:** Everything that the forward pass changes must be restored for the
# second run: the random numbers, and the running averages of batch norm too. `torch.utils.checkpoint`
# restores the random numbers (`preserve_rng_state=True`), but not the running averages.
#
# <details><summary>Hint 1</summary>The second run draws new random numbers, so it drops other activations
# than the first run. It also takes them from the generator that the rest of the training uses.</details>
#
# <details><summary>Hint 2</summary>If the first run drops activations 1 and 3 of 4, the second run must
# drop 1 and 3 as well. Afterwards the generator must be in the state in which it was before the second
# run.</details>
#
# <details><summary>Hint 3</summary><code>torch.get_rng_state()</code> in forward; in backward <code>with
# torch.random.fork_rng(devices=[]):</code>, and in it <code>torch.set_rng_state(...)</code>. (On a GPU also
# <code>torch.cuda.get_rng_state()</code>.)</details>


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
# ## Gradient accumulation
#
# If a batch does not fit, it can be divided into **micro-batches**, which go through the network one after
# the other. Because `backward` adds to `.grad`, the gradients accumulate, and one optimizer step follows at
# the end. This is **gradient accumulation**. It is data parallelism (lab 4) with the ranks one after
# another, and it has the same formula. With $m_k$ of the $n$ examples in micro-batch $k$, and its mean
# gradient $g_k$,
#
# $$g = \sum_k \frac{m_k}{n}\, g_k .$$
#
# ![Four micro-batches of two images run one after the other, each with a forward and a backward pass. Each
# backward pass adds two eighths of its gradient to the gradient buffer. One optimizer step
# follows.](pictures/gradient_accumulation.svg)
#
# For example, 10 examples in micro-batches of 4, 4 and 2 have the weights 0.4, 0.4 and 0.2. With the
# weights 1/3 each, the two examples of the last one would count twice as much as the others.
#
# ### Exercise 7: Accumulate gradients
#
# **What:** Write `accumulate(model, images, labels, micro_batch)`. It leaves the gradient of the mean
# cross-entropy of all examples in `.grad` (which is empty before). At most `micro_batch` examples are in
# memory at once, in as few micro-batches as possible. The last one may be smaller. Return the mean loss, a
# number.
#
# **Why:** The batch that you want (lab 6) and the batch that fits are two different numbers.
#
# <details><summary>Hint 1</summary><code>images.split(micro_batch)</code> divides the batch. When are the
# activations of a micro-batch freed?</details>
#
# <details><summary>Hint 2</summary>With 10 examples in micro-batches of 4, multiply the mean losses by
# 4/10, 4/10 and 2/10, and call <code>backward()</code> on each product.</details>
#
# <details><summary>Hint 3</summary><code>loss = F.cross_entropy(model(x), y) * (len(y) /
# len(labels))</code>, and <code>loss.backward()</code> before the next micro-batch goes forward.</details>


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
# One batch of 500, in micro-batches of 500 to 32: how do memory and time change? And is the gradient always
# the same? The second network has batch norm, which computes mean and variance over the examples that it
# sees *together* (lab 7).

# %%
# Prediction 6: the peak with micro-batches of 32, as a fraction of the peak with one batch of 500?
# Replace both values of None.
prediction = workbook.predict(6, None, reason=None)

# %% tags=["folded"]
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
accumulated = sweep("gradient_accumulation", gradient_accumulation, settings)
shipped = reference("gradient_accumulation")
for table in (accumulated, shipped):
    table["MB"], table["ms"] = table["peak_bytes"] / 1e6, 1e3 * table["seconds"]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
overlay(left, accumulated, shipped, x="micro_batch", y="MB")
counted = [activation_bytes(size, LAYERS, HIDDEN) / 1e6 for size in micro_batches]
left.plot(micro_batches, counted, "k:", label="activations, counted by you")
if prediction:
    predicted(left, prediction * shipped["MB"].max(), x=32)
overlay(right, accumulated, shipped, x="micro_batch", y="ms", times=True)
left.set(xlabel="examples in a micro-batch", ylabel="peak, MB", ylim=(0, None))
right.set(xlabel="examples in a micro-batch", ylabel="ms for 500 examples", ylim=(0, None))
left.legend(fontsize=9)
describe(
    figure,
    "Left, the peak of memory is nearly proportional to the examples in a micro-batch. Right, the time for 500 examples "
    "rises when the micro-batches become small.",
)
peaks, others = (table.groupby("micro_batch")["MB"].median() for table in (accumulated, shipped))
peaks = peaks.combine_first(others)
workbook.result(6, peaks[32] / peaks[500])
differences = [f"difference, {name}" for name in NORMS]
accumulated.groupby("micro_batch")[differences].mean().map("{:.1e}".format)

# %% [markdown]
# 32 of 500 images are a fraction of 0.064, and the measured one is 0.08. The memory is nearly proportional
# to the micro-batch. (The figure shows activations only. Gradients, parameters and optimizer state do not
# depend on the micro-batch.) Small micro-batches need more time, as small batches do (lab 3):
# those of 250, 64 and 32 take 1.2, 2.0 and 2.8 times as long as one of 500 (medians of 5 on the machine of
# the shipped results). With layer norm the gradient differs only by rounding, at most 3e-7. With batch norm
# it is *another gradient*: it differs by 5 to 12 %. So accumulation is exact only if no operation combines
# examples. The same holds for ranks (labs 4 and 7).
#
# ## Copies to the device and pinned memory
#
# A GPU and the processor work at the same time. A call such as `model(x)` puts work into the queue of the
# GPU and returns. So the processor can prepare the images of the next step while the GPU computes this one.
# A step then takes the longer of the two times, and not their sum (lab 10 examines this in detail). Two
# things prevent it: copies that wait, and a processor that prepares images more slowly than the GPU uses
# them.
#
# The operating system may move ordinary (**pageable**) memory at any time. A GPU can fetch data only from
# memory that stays where it is (**pinned memory**, also called page-locked memory). A copy from pageable
# memory therefore goes through a pinned buffer of the driver first, and the call waits for that. From pinned
# memory the GPU fetches the data by itself, and `x.to("cuda", non_blocking=True)` returns at once.
#
# For example, 128 images of CIFAR-10 are 393 kB. PCIe 4.0 with 16 lanes, the usual connection to a GPU,
# moves at most 31.5 GB/s, so the copy takes at least 12 microseconds.

# %% tags=["folded"]
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
# On a GPU only the last call returns long before its copy is done. A processor shows one row, a copy within
# its memory.
#
# ## Augmentation on the device
#
# `hvdlab.torch.device_batches` is what the scripts of this course use. A small data set is copied to the
# GPU once, and each batch is gathered and augmented there. Of a larger data set each batch is gathered in
# pinned memory, and copied one step ahead in a second queue of the GPU, a **stream**. The random numbers of
# the augmentation are the same in all cases, so the images are equal to the byte.

# %%
# Prediction 7: the speed of `Batches` with augmentation, in percent of its speed without? Replace both values
# of None.
workbook.predict(7, None, reason=None)

# %% tags=["folded"]
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
workbook.result(7, 100 * rows["Batches, augmented"] / rows["Batches"])
pd.Series(rows, name="images/s").map("{:,.0f}".format).to_frame()

# %% [markdown]
# With augmentation `Batches` delivers only a part of what it delivers without. Compare with the last row.
# On a processor the training needs far fewer images than `Batches` delivers, but both use the same cores. A
# GPU may use more images than one core can prepare. Then the GPU waits, unless it augments by itself.
#
# ## Synchronisation by .item()
#
# `loss.item()` returns a number of Python. The GPU must have computed it, so the call waits until the queue
# of the GPU is empty. This is a **synchronisation**. `float(loss)`, `print(loss)`, `loss.cpu()` and `if loss >
# 3:` wait in the same way. While the processor waits, it prepares nothing.
#
# For example, the processor needs 1 ms for a batch and the GPU needs 3 ms for a step. Without a read, the
# next batch is ready in time, and a step takes 3 ms. With one read per step the GPU is idle while the next
# batch is prepared, and a step takes 4 ms. The remedy is to add up the losses on the device, and to read
# their sum once per epoch.
#
# ### Exercise 8: Read the loss once
#
# **What:** Write `train_epoch(model, batches, optimizer)`. `batches` gives pairs `(images, labels)` that
# are on the device; the last pair may be smaller. Train on each with `F.cross_entropy`. Return the mean
# loss of all examples, a number. Read from the device once.
#
# **Why:** A read per step is the most frequent reason why a GPU is slower than it could be. It changes no
# result, so no test finds it.
#
# <details><summary>Hint 1</summary>The mean over the examples needs the loss of each batch times its number
# of examples. <code>len(labels)</code> is known to the processor, so it costs no wait.</details>
#
# <details><summary>Hint 2</summary>Batches of 4, 4 and 2 examples with the mean losses 1, 2 and 3 have the
# sum 4 + 8 + 6 = 18, and the mean 1.8.</details>
#
# <details><summary>Hint 3</summary><code>total += loss.detach() * len(labels)</code> stays on the device.
# Without <code>detach()</code> it keeps the graph of every step. Call <code>.item()</code> after the
# loop.</details>


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


# %% tags=["folded"]
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
# On a processor both rows are equal except for noise, because every call of PyTorch returns only when it is
# done. On a GPU a read per step costs more, the smaller the network is. Here the batches are prepared
# already. Where they are not, their preparation is added.
#
# ## Channels-last memory layout
#
# A batch of images has four axes: image, channel, row, column. In **contiguous** order (NCHW) memory
# contains all of channel 0, then all of channel 1. In **channels-last** order (NHWC) the channels of a
# pixel are neighbours. The shape is the same. What differs are the **strides**: how far apart in memory two
# neighbours are along each axis. For example, a tensor of shape (1, 3, 2, 2) has the strides (12, 4, 2, 1)
# or (12, 1, 6, 3).
#
# Tensor cores, and the kernels of processors too, multiply the channels of a pixel, so they work best if
# the channels are neighbours. Otherwise the input of every layer is converted. If the images *or* the
# weights of a convolution are channels-last, so is its output, and with it the input of the next layer.

# %% tags=["folded"]
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
# The strides show what the convolutions did: channels-last images are enough, whatever the order of the
# weights is. The times depend on the device and on
# the sizes, so measure with your own network. The order of the weights saves at most a small conversion per
# layer.
#
# **What Horovod refuses.** After `model.to(memory_format=torch.channels_last)` Horovod 0.28.1 stops in
# `broadcast_parameters` and in `DistributedOptimizer`: "Tensor is required to be contiguous". Weights in
# bfloat16 give "Tensor type torch.BFloat16Tensor is not supported". There are two solutions:
#
# 1. Keep the weights contiguous and in float32. Channels-last images and autocast still give fast
#    convolutions. Our networks do so.
# 2. Broadcast first and convert afterwards, and let a *compression* send the gradients. This is what Horovod
#    calls a pair of functions that convert a gradient before it is sent and after it has arrived. Here they
#    make contiguous float32 copies and convert back: `hvd.DistributedOptimizer(optimizer, ...,
#    compression=mine.compression)` with `mine = rank_device(hvd)` of lab 5.
#
# Solution 1 needs no copies for Horovod, and solution 2 needs two per step, so our scripts use solution 1.
# The cell shows what solution 2 does.

# %%
gradient = torch.randn(8, 3, 2, 2).to(torch.bfloat16, memory_format=torch.channels_last)
sent, context = InHorovodsLayout.compress(gradient)
received = InHorovodsLayout.decompress(sent, context)
for name, tensor in (("gradient", gradient), ("sent", sent), ("received", received)):
    print(
        f"{name:9} {tensor.dtype}, strides {tensor.stride()}, contiguous: {tensor.is_contiguous()}"
    )

# %% [markdown]
# ## Combination of all techniques
#
# The last experiment combines number formats, checkpointing and micro-batches on two networks: `mlp`, the
# residual network of this lab, and `conv`, a small convolutional network.

# %%
# Prediction 8: which precision is the fastest on this machine: "float32", "bf16", "fp16", or on a GPU "tf32"?
# Replace both values of None.
workbook.predict(8, None, form=["float32", "bf16", "fp16", "tf32"], reason=None)

# %% tags=["folded"]
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
times = plain.pivot_table(index="network", columns="precision", values="ms", aggfunc="median")
print(f"fastest, with nothing else changed: {times.idxmin(axis=1).to_dict()}")
# The networks may differ: the mean of both, relative to float32.
workbook.result(8, times.div(times["float32"], axis=0).mean().idxmin())
medians(combined, shipped, by=by, columns=["ms", "MB"]).round(1)

# %% [markdown]
# Checkpointing and micro-batches save memory on both networks. bfloat16 alone lowers the peak to a little
# over 60 %, and not to half, because not everything at the peak has two bytes, and because it adds a copy
# of the weights.
#
# Whether two bytes save *time* depends on the instructions of the machine. The processor of the shipped
# results has instructions for bfloat16, but no matrix unit for it (AMX), so a step takes 1.1 (conv) to 1.5
# times (mlp) as long as in float32. In float16 the mlp is as fast as in float32, and the convolutional
# network is nearly sixty times slower, because PyTorch has no fast float16 convolution for this processor.
# A GPU has tensor cores for TF32, BF16 and FP16. Networks as small as these two do not keep them busy, so
# the differences may be small there. `hvdlab bench precision` measures your machine with the network of the
# assessment.
#
# On a new machine use this order: measure bf16 first. Then use the free memory for a larger batch.
# Accumulate if the batch that you *want* does not fit, and checkpoint if a single micro-batch does not fit.
#
# ## Summary
#
# * Training with Adam needs 16 bytes per parameter plus the activations. A block of this lab keeps 10 x
#   hidden numbers per example, so you know what fits before you try.
# * The exponent of a format gives its range and the fraction its precision. BF16 has the range of FP32,
#   FP16 has more precision and a range that gradients leave.
# * bf16 needs an autocast and nothing else. fp16 needs loss scaling (without it the loss was 0.82 instead
#   of 0.47), and the gradients must be unscaled before they are clipped.
# * The weights that learn stay in float32. With bfloat16 weights a step changed only 19 % of them.
# * Activation checkpointing lowered the peak from 43 to 5.5 MB, for at most a third more multiplications.
#   All state of the forward pass must be restored for the second run.
# * Gradient accumulation makes the memory proportional to the micro-batch. It is exact without batch norm,
#   and slower if the micro-batches are small.
# * A GPU works while the processor continues, as long as nothing waits: use pinned memory, augment on the
#   device, and read the loss once per epoch.
# * Channels-last images are enough for fast convolutions. Horovod accepts neither channels-last nor
#   bfloat16 weights.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=96)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="b")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="a")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="c")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer=20)

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="d")

# %% [markdown]
# **Next:** lab 10 looks at the other side of the device: how images get to it fast enough.
