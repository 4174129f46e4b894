# %% [markdown]
# # Lab 3, optional: Time budgets and loss surfaces
#
# This notebook continues lab 3. You choose a batch size for ten seconds, and measure how skip connections change
# the loss surface of a deep network. No later lab needs it.
#
# **After this notebook you can** predict the time to an accuracy on another machine, explain why loss surfaces of
# networks are not convex, and say what skip connections change.
#
# **Builds on** lab 3. **Time:** 53 minutes. The computer needs about two of them.

# %% tags=["folded"]
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course.experiment import by_run_length, complete, grid, reference, seeds, sweep
from hvdlab.course.figures import clear_best, compare, describe, overlay
from hvdlab.course.loss_landscape import filter_normalize, random_direction, slice_1d, slice_2d
from hvdlab.course.source import show_source
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab03_networks as network_exercises

workbook = Workbook(3)
hint = workbook.hint

# %%
# Write "keras" or "torch" in place of the call: the experiments are the same.
FRAMEWORK = by_run_length(quick="torch", learner="keras", reference="keras")
if FRAMEWORK == "keras":
    from hvdlab.course import sgd_keras as sgd
else:
    from hvdlab.course import sgd_torch as sgd

# %% tags=["folded"]
data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
TRAIN = by_run_length(quick=1000, learner=10_000, reference=10_000)
train_labels = data.train_labels[:TRAIN].astype("int32")
shipped_speeds = reference("throughput_batch_size")
shipped_times = reference("time_to_accuracy")

# %% [markdown]
# ## Seconds to the goal
#
# *Optional, 25 minutes.*
#
# Lab 3 measured the time to accuracy directly. Here you compute it from the throughput and from the epochs, and
# choose a batch size for a time budget. All numbers are the reference results of lab 3.
#
# ### Exercise 8: Seconds to the goal
#
# **What:** compute the seconds to the goal from two separate measurements: the throughput of each batch size,
# and the epochs that each run needed.
#
# **Why:** on a real project you measure both separately. The throughput takes a minute on any new machine.
# The number of epochs does not depend on the machine, so you can measure it once, or take it from a paper.
# Together they predict the time on a machine on which you have not trained yet.
#
# **Signature:** `seconds_to_goal(speeds, epochs, images)` returns a dict from batch size to a list of
# seconds. `speeds` is a dict from batch size to images per second. `epochs` is a dict from batch size to a
# list with the epochs of each run, which is `nan` for a run that never arrived. `images` is the number of
# images in an epoch. Leave out batch sizes without a measured speed.
#
# <details><summary>Hint 1</summary>
#
# Use the formula of "Time to accuracy" for each run of each batch size. Which dict decides for which batch
# sizes you can compute something?
#
# </details>
# <details><summary>Hint 2</summary>
#
# 1,000 images at 500 images per second take 2 s per epoch. So a batch size with the epochs `[5, 10]` has the
# seconds `[10, 20]`. The batch size itself does not occur in the calculation.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Loop with `for batch_size, runs in epochs.items():`, and if `batch_size in speeds`, store
# `[images * run / speeds[batch_size] for run in runs]`.
#
# </details>


# %%
def seconds_to_goal(speeds, epochs, images):
    # BEGIN SOLUTION: return a dict from batch size to the seconds of each run
    seconds = {}
    for batch_size, runs in epochs.items():
        if batch_size in speeds:
            seconds[batch_size] = [images * run / speeds[batch_size] for run in runs]
    return seconds
    # END SOLUTION


# %%
network_exercises.check_seconds_to_goal(seconds_to_goal)

# %% [markdown]
# ### Exercise 9: Batch sizes within a budget
#
# **What:** return the batch sizes of which *every* run keeps the time budget.
#
# **Why:** you will train once, with one seed, and you do not know whether this run will be a lucky one. So
# the slowest run counts, not the fastest one and not the median.
#
# **Signature:** `within_budget(seconds, budget)` takes a dict as your `seconds_to_goal` returns it, and
# returns a list of batch sizes. A run of exactly `budget` seconds keeps the budget. A run with `nan`
# seconds does not.
#
# <details><summary>Hint 1</summary>
#
# For each batch size you need one answer to the question "do all runs keep the budget?".
#
# </details>
# <details><summary>Hint 2</summary>
#
# With a budget of 10 s the runs `[4, 5]` are kept and `[3, 12]` are not. For `[4, 5, nan]` be careful:
# `max([4, 5, nan])` is 5 in Python, because every comparison with `nan` is false. And `nan <= 10` is false.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `all(run <= budget for run in runs)` is the condition. Append the batch size to a list if it is true.
#
# </details>


# %%
def within_budget(seconds, budget):
    # BEGIN SOLUTION: return the batch sizes of which every run keeps the budget
    good = []
    for batch_size, runs in seconds.items():
        if all(run <= budget for run in runs):
            good.append(batch_size)
    return good
    # END SOLUTION


# %%
network_exercises.check_within_budget(within_budget)

# %% [markdown]
# Now apply both functions to the reference results. The median throughput and the epochs come from two
# different experiments.

# %%
speed_of = shipped_speeds.groupby("batch_size")["images_per_second"].median().to_dict()
arrived = shipped_times.assign(
    epochs=shipped_times["epochs"].where(shipped_times["seconds"].notna())
)
epochs_of = arrived.groupby("batch_size")["epochs"].apply(list).to_dict()
computed = seconds_to_goal(speed_of, epochs_of, images=10_000)
measured = shipped_times.groupby("batch_size")["seconds"].apply(list).to_dict()
rows = {
    size: [[round(run, 1) for run in runs], [round(run, 1) for run in measured[size]]]
    for size, runs in computed.items()
}
print("every run within 10 s, computed:", within_budget(computed, 10))
print("every run within 10 s, measured:", within_budget(measured, 10))
pd.DataFrame.from_dict(rows, orient="index", columns=["computed seconds", "measured seconds"])

# %% [markdown]
# ### Decision: a batch size for ten seconds
#
# You have ten seconds on the machine of the reference results, and one attempt. Which batch size do you
# choose? Enter it with your reasons. Name the numbers that speak for it, and the risk that remains.

# %%
# Decision 4: the batch size for a budget of ten seconds. Replace both values of None.
workbook.predict(4, None, reason=None)

# %% [markdown]
# **What the result means.** The computed and the measured seconds agree within about 30 %. For the batch
# size 1,024 the computed times are the smaller ones (6.1 to 8.5 s against 8.5 to 12.0 s), because the
# throughput was measured in another run, in which the machine was faster. So this
# kind of prediction is good for ruling out batch sizes, and not for choosing between two similar ones.
#
# A good decision for this budget is 16. All three runs took about half of the budget, in both columns.
# 1,024 keeps the budget according to the computed column only: one measured run took 12 s. 64 and 256 are fast
# in the median, but one run of three took more than ten seconds. With several GPUs the answer changes. A batch
# of 16 cannot be divided among 32 GPUs, and a batch of 1,024 can. This is the reason why labs 6 and 7 make
# large batches work.
#
# ## Order of the examples in Keras and PyTorch
#
# *Optional, 1 minute.*
#
# The two frameworks of lab 3 differ in one point. If a seed is set for the whole program, as our Keras networks do, `model.fit` draws the
# *same* order of the examples in every epoch (Keras 3 with TensorFlow). PyTorch draws a new order each time.
# This changes the *reported* loss of an epoch, the mean over its batches. After eight epochs it was 0.34 with
# Keras and 0.36 with PyTorch in a trial, although the loss on all training images was 0.32 in both.
#
# ## Connections and parameters of modern networks
#
# *Optional, 3 minutes.*
#
# How do networks in use today differ from this small one? In the number of their parameters, and in the way
# in which their neurons are connected.
#
# *Parameters.* AlexNet won the ImageNet competition of 2012 with 60 million parameters ([Krizhevsky et
# al.](https://proceedings.neurips.cc/paper/2012/hash/c399862d3b9d6b76c8436e924a68c45b-Abstract.html)).
# GPT-3 had 175 billion in 2020 ([Brown et al.](https://arxiv.org/abs/2005.14165)), about 3,000 times as
# many. The line of lab 3 has two.
#
# *Connections.* A dense layer connects everything with everything. For an image this is wasteful. One neuron
# that sees an image of 224 x 224 pixels in three colours needs 150,528 weights. Modern networks use other
# connections:
#
# * A **convolution** connects a neuron only to a small window of the image, for example 5 x 5 pixels, and
#   uses the same weights at every place. So it can find an edge anywhere in the image. Such a set of weights is
#   a *filter*. It reads all channels of its input, such as three colours, and makes one channel of the output.
#   For example, 8 filters on a grey image have $8 \cdot 25$ weights and 8 biases, which are 208 parameters for
#   the whole image.
# * A **skip connection** adds the input of some layers to their output. The last section of this notebook shows
#   why deep networks need them.
# * **Attention**, the main part of language models, computes the strength of the connections from the inputs
#   themselves (lab 15).
# * **Normalisation** layers keep the values between the layers at a common scale, as lab 2 did with the
#   inputs.
#
# ## Non-convex loss surfaces
#
# *Optional, 6 minutes.*
#
# The bowl of lab 2 has one minimum, and every descent with a small enough learning rate finds it. A
# function that curves upwards everywhere, in every direction, is called **convex**. The mean squared error
# of a linear model is convex. The loss of a neural network is not. For example, exchange two hidden neurons
# of a trained network together with all their weights. The network computes the same function, so the loss
# is the same at two different places. Between them the loss is usually higher. So there are several minima,
# and a convex function cannot have several separate ones.
#
# ![Left: a convex parabola with a single minimum. Right: a curve that is not convex. It has a local and a global minimum, and between them a region, drawn thick, in which it curves downwards.](pictures/convex_and_nonconvex.svg)
#
# A *local minimum* is lower than its surroundings, and the *global minimum* is the lowest of all. At a
# *saddle point* the gradient is zero as well, but the loss falls in some directions and rises in others.
# Gradient descent only sees the slope at its current point, so it could end in a bad local minimum, or
# spend a long time near a saddle point. Why does training find good solutions nevertheless? This question
# is not completely answered. Three findings help:
#
# * *In many dimensions bad local minima seem to be rare.* At a point with zero gradient the loss has to
#   curve upwards in all of a million directions to be a minimum. Under simplifying assumptions, Choromanska
#   et al. showed that the number of local minima far above the global minimum decreases exponentially with
#   the size of the network ([2015](https://arxiv.org/abs/1412.0233)). Dauphin et al. argue that saddle
#   points are the greater difficulty ([2014](https://arxiv.org/abs/1406.2572)).
# * *Large networks have more parameters than necessary*, so many different parameters fit the data. Gradient
#   methods often reach a training loss close to zero.
# * *The noise of SGD moves the weights*, so a narrow minimum or a saddle point does not hold them as
#   easily. In this sense the noise ball of lab 3 is also useful. Lab 6 compares the minima that small and large
#   batches find.
#
# The architecture has a large influence. Li et al. made loss surfaces visible
# ([2018](https://arxiv.org/abs/1712.09913)). They take the trained weights $\theta$, choose two random
# directions $d_1$ and $d_2$ in the space of all weights, and draw the loss
#
# $$ (\alpha, \beta) \;\mapsto\; L(\theta + \alpha d_1 + \beta d_2) . $$
#
# Such a picture is a *slice* through the surface. So that networks can be compared, the change of each filter
# (in a dense layer: of the weights of each neuron) is scaled to be as long, as a vector, as the filter itself
# (`filter_normalize`). At $\alpha = 1$ a filter has been moved by its own length. Their best-known pictures
# show the network ResNet-56, which has 56 layers. With skip connections its slice looks nearly convex.
# Without them it is rugged.
#
# ## Skip connections
#
# *Optional, 18 minutes.*
#
# A **skip connection** adds the input of a block of layers to its output, $x + f(x)$ in place of $f(x)$.
# Networks with them are called *residual networks* or ResNets ([He et al.
# 2015](https://arxiv.org/abs/1512.03385)). Their authors found that a plain network with 56 layers has a
# higher training error than one with 20 layers, although it could represent everything that the smaller one
# can. So the difficulty is in the optimization.
#
# ![Left: two layers without a skip connection, and below them the loss along nine directions, irregular curves that rise steeply and then bend downwards. Right: the same layers with an arrow that adds the input to the output, and the loss along nine directions, which are smooth bowls.](pictures/skip_connection.svg)
#
# Which difficulty? An obvious guess is that gradients *vanish*: the backward pass multiplies the slopes of
# all blocks, and a product of small slopes is nearly zero. But the plain networks of the paper contain batch
# normalisation (lab 7), which keeps signals and gradients at a normal size. The authors measured the
# gradients, found them healthy, and call this explanation unlikely (their section 4.1). What they did not
# explain can be seen in the slices of Li et al.: without skip connections the loss surface of a deep network
# becomes irregular. A gradient is a local slope (lab 2), and on such a surface it soon points in a wrong
# direction. In our experiment the networks with and without skip connections both normalise, as in the paper.
#
# ### Exercise 10: Curvature of a slice
#
# **What:** return the fraction of the inner points of a slice at which the loss curves downwards. The losses
# belong to points at equal distances.
#
# **Why:** on a convex function this fraction is 0. So it measures how far a slice is from being convex.
#
# **Signature:** `fraction_downwards(losses)` takes an array and returns a number from 0 to 1.
#
# <details><summary>Hint 1</summary>
#
# The second derivative says how a curve bends. For points at equal distances the second difference takes its
# place: $L_{i+1} - 2 L_i + L_{i-1}$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The losses 0, 1, 0, 1, 4 have three inner points. Their second differences are $0 - 2 + 0 = -2$,
# $1 - 0 + 1 = 2$ and $4 - 2 + 0 = 2$. One of three is negative, so the answer is 1/3.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `losses[2:] - 2 * losses[1:-1] + losses[:-2]` contains all second differences, and `np.mean(... < 0)` is the
# fraction of negative ones.
#
# </details>


# %%
def fraction_downwards(losses):
    # BEGIN SOLUTION: return the fraction of the inner points that curve downwards
    second_differences = losses[2:] - 2 * losses[1:-1] + losses[:-2]
    return np.mean(second_differences < 0)
    # END SOLUTION


# %%
network_exercises.check_fraction_downwards(fraction_downwards)

# %% [markdown]
# The experiment trains networks of 6, 14 and 26 dense layers with 32 neurons each, with and without skip
# connections, for eight epochs on Fashion-MNIST images of 14 x 14 pixels. Both kinds have exactly the same
# layers and weights. Then it computes slices along three random directions. Batch normalisation (lab 7)
# uses the statistics of the 1,000 images of the slice, as in training.

# %%
show_source(sgd.deep_network)

# %% tags=["folded"]
shape = (TRAIN, 14, 2, 14, 2)
small_images = data.train_images[:TRAIN].reshape(shape).mean((2, 4), dtype="float32")[..., None]
small_images = (small_images - small_images.mean()) / small_images.std()
BLOCKS = by_run_length(quick=[1], learner=[2, 6, 12], reference=[2, 6, 12])
ALPHAS = np.linspace(-1, 1, by_run_length(quick=5, learner=21, reference=21))


@cache
def train_deep(blocks, skips, seed):
    """The trained weights, their loss as a function, and the training loss of the last epoch."""
    model = sgd.deep_network(blocks, skips, seed)
    epochs = by_run_length(quick=1, learner=8, reference=8)
    settings = {"batch_size": 128, "learning_rate": 0.05, "momentum": 0.9, "epochs": epochs}
    log = sgd.train(model, small_images, train_labels, **settings)
    loss = sgd.loss_function(model, small_images[:1000], train_labels[:1000])
    return sgd.get_weights(model), loss, log.losses[-1]


def skip_slices(blocks, skips, seed):
    weights, loss, training_loss = train_deep(blocks, skips, seed)
    rng, rows = np.random.default_rng(seed), []
    for number in range(by_run_length(quick=1, learner=3, reference=3)):
        random = random_direction(weights, rng)
        direction = filter_normalize(random, weights, sgd.FILTER_AXIS)
        losses = slice_1d(loss, weights, direction, ALPHAS)
        row = {"layers": 2 * blocks + 2, "training_loss": training_loss}
        row["bends_down"] = fraction_downwards(losses)
        rows += [
            {**row, "direction": number, "alpha": alpha, "loss_there": value}
            for alpha, value in zip(ALPHAS, losses, strict=True)
        ]
    return rows


# %% [markdown]
# ### Prediction: the deeper network
#
# Which network with 26 layers has the lower training loss after eight epochs: the one "with" skip
# connections or the one "without", or are they "equal"? Give the reason.

# %%
# Prediction 5: "with", "without" or "equal". Replace both values of None.
workbook.predict(5, None, form=["with", "without", "equal"], reason=None)

# %%
settings = grid(blocks=BLOCKS, skips=[True, False], seed=seeds(1, 3))
slices = sweep("skip_connections", skip_slices, settings)
shipped_slices = reference("skip_connections")

# %% tags=["folded"]
names = {True: "with skips", False: "without"}
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2))
once = [
    t.groupby(["layers", "skips", "seed"], as_index=False).mean() for t in (slices, shipped_slices)
]
overlay(left, *once, x="layers", y="training_loss", by="skips", labels=names)
overlay(middle, *once, x="layers", y="bends_down", by="skips", labels=names)
deepest = [t[t["layers"] == t["layers"].max()] for t in (slices, shipped_slices)]
overlay(right, *deepest, x="alpha", y="loss_there", by="skips", labels=names)
left.set(ylabel="training loss of the last epoch", ylim=(0, None))
middle.set(ylabel="fraction that curves downwards", ylim=(-0.02, 0.55))
right.set(
    xlabel=r"$\alpha$", ylabel=f"loss with {deepest[0]['layers'].max()} layers", ylim=(0, None)
)
for axes in (middle, right):
    axes.get_legend().remove()
left.legend(fontsize="small", loc="upper left")
describe(
    figure,
    "Without skip connections the training loss and the fraction of the slices that curves downwards grow "
    "with the number of layers; with them both stay low, and the slice is a bowl.",
)
deepest = complete(*(t[t["layers"] == 2 * BLOCKS[-1] + 2] for t in once), "skips", True, False)
lowest = clear_best(deepest.groupby("skips")["training_loss"], lowest=True)
workbook.result(5, {True: "with", False: "without"}.get(lowest, lowest))

# %%
compare(*once, by=["layers", "skips"], value="bends_down")

# %% tags=["folded"]
across = np.linspace(-1, 1, by_run_length(quick=5, learner=21, reference=21))
levels = np.arange(0, 4.6, 0.25)
figure, panels = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True)
for axes, skips in zip(panels, (True, False), strict=True):
    weights, loss, _ = train_deep(BLOCKS[-1], skips, seed=1)
    rng = np.random.default_rng(1)
    first, second = (
        filter_normalize(random_direction(weights, rng), weights, sgd.FILTER_AXIS) for _ in range(2)
    )
    surface = slice_2d(loss, weights, first, second, across, across)
    filled = axes.contourf(across, across, surface, levels, cmap="viridis", extend="max")
    axes.contour(across, across, surface, levels, colors="black", linewidths=0.4)
    axes.plot(0, 0, "*", color="white", markeredgecolor="black", markersize=14)
    axes.set(xlabel=r"$\alpha$", title=names[skips], aspect="equal")
panels[0].set_ylabel(r"$\beta$")
figure.colorbar(filled, ax=panels, label="loss on 1000 training images")
describe(
    figure,
    "Two maps of the loss around the trained weights. With skip connections the rings are nearly round; "
    "without them a small basin lies in an irregular surface.",
)

# %% [markdown]
# **What the result means.** With skip connections the slices are nearly bowls, however deep the network is.
# The fraction that curves downwards stays at or below 3 %, and the loss after training even falls slightly
# with the depth, from 0.34 to 0.31. Without them both grow with the depth: at 26 layers 30 % of each slice
# curve downwards, and the loss is 0.89 (n = 3). So the right prediction is "with". The reason is not that
# skip connections let the network represent more functions. They change its surface, so that gradient
# descent makes progress on it.
#
# Our experiment differs from the paper. Its networks are ResNets for CIFAR-10 that were trained to the end,
# and ours are dense and were trained for eight epochs. A network also has thousands of directions, and our
# slices show one or two at a time.
