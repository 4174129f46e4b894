# %% [markdown]
# # Lab 6: Scaling the batch
#
# In 2018 a team trained DeepLabv3+, a network that finds storms in climate data, on 27,360 GPUs of the
# supercomputer Summit. The GPUs reached 90.7 % of the throughput of perfect scaling ([Kurth et al.
# 2018](https://research.nvidia.com/publication/2018-11_exascale-deep-learning-climate-analytics)). So the
# number of images per second can grow very far. But every GPU that is added also makes the *batch* larger,
# and a larger batch changes the training itself. Beyond some size it brings [rapidly diminishing
# returns](https://openai.com/index/how-ai-training-scales/). Where does that limit come from?
#
# **After this lab you can**
#
# * explain why throughput, steps, images and accuracy give four different answers to the question "is a
#   larger batch better?";
# * compute the gradient noise scale from two gradient norms, and explain what it predicts;
# * compute steps and images for any batch from the law of steps, and fit this law to measurements;
# * choose a batch for a given deadline and price, and defend the choice;
# * read a critical batch size from published results, say where the law breaks, and compute what a growing
#   batch saves.
#
# **Builds on** lab 3 (mini-batches, throughput, how the experiments work) and lab 4 (data parallelism).
# **Time:** 150 minutes if you read everything and do every exercise. The computer needs about five of them.
# The optional notebook, "The generalisation gap", takes another 45 minutes.

# %% tags=["folded"]
import inspect
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course import frameworks
from hvdlab.course.experiment import QUICK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, overlay, predicted
from hvdlab.course.large_batch_tables import (
    best_rates,
    fit_each_seed,
    logarithmic,
    until_goal,
)
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab06_batch_choice as choice_exercises
from hvdlab.exercises import lab06_batch_ramp as ramp_exercises
from hvdlab.exercises import lab06_noise_scale as noise_exercises
from hvdlab.exercises import lab06_scaling_the_batch as exercises
from hvdlab.exercises import lab06_straight_line as line_exercises

workbook = Workbook(6)
hint = workbook.hint

# %% [markdown]
# ## Keras or PyTorch
#
# Set `FRAMEWORK` to the framework that you prefer. It selects the module
# `labs/hvdlab/course/dense_training_keras.py` or `dense_training_torch.py`. Both contain a class
# `DenseNetwork` with the same short methods. Read `train` and `gradient` before you continue, because the
# lab calls them. The reference results, which the figures show as lines, were measured with Keras. With
# PyTorch your points scatter around the same lines.

# %%
FRAMEWORK = "keras"  # or "torch"
training = frameworks.load("dense_training", FRAMEWORK)

# %% [markdown]
# The data are Fashion-MNIST: 60,000 training images of 784 pixels in ten classes. Of the 10,000 test images,
# 4,000 are held out to decide whether a training has reached its goal. The network has one hidden layer of
# 128 units.
#
# `network.train` takes a table of image numbers, with one row per step. The function `shuffled` makes these
# numbers. It reads each image once per *epoch* (one pass over the training set), in random order.


# %% tags=["folded"]
def shuffled(seed, n, examples):
    """The numbers of `examples` images: permutations of 0 .. n - 1, one after another."""
    rng = np.random.default_rng(seed)
    epochs = [rng.permutation(n) for _ in range(-(-examples // n))]
    return np.concatenate(epochs)[:examples]


data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
train_set = training.tensors(data.train_images, data.train_labels)
held_out = training.tensors(data.test_images[:4000], data.test_labels[:4000])
network = training.DenseNetwork([128])

# %% [markdown]
# ## Throughput and the limit of the batch
#
# A *rank* is one of the N processes that train together. In data-parallel training each rank computes the
# gradient of its own $b$ images, and an all-reduce averages the N gradients. The result is the step of one
# process with all $B = N b$ images, the *global batch*. For example, 64 ranks with 32 images each take steps
# with $B = 2{,}048$. **In this lab a single process therefore stands in for many ranks.** Read "batch
# size" as "number of ranks times images per rank".
#
# Can the batch grow indefinitely? Four quantities change with it:
#
# 1. **Images per second.** They grow with the number of ranks, as long as the network keeps up. Kurth et al.
#    also trained Tiramisu, on 5,300 GPUs with a parallel efficiency of 79 %.
# 2. **Steps.** A larger batch makes a better gradient, so training needs fewer steps to reach the same
#    accuracy. But their number does not fall forever.
# 3. **Images read.** This is steps times batch. If the batch doubles and the steps fall by less than half,
#    training costs more.
# 4. **Accuracy.** With the same number of epochs a large batch often ends with a lower accuracy on new
#    images.
#
# For example, with 60,000 images and $B = 60$ an epoch has 1,000 steps. With $B = 6{,}000$ it has 10. If 100
# times more ranks read the images 100 times faster, the epoch takes a hundredth of the time. But ten steps may
# not learn what 1,000 steps learn. So how does the number of *necessary* steps depend on the batch?
#
# ## Steps to convergence
#
# [Shallue et al. (2018)](https://arxiv.org/abs/1811.03600) counted the *steps to convergence* for each batch
# size, that is, the steps until a fixed accuracy was reached, the *goal*. They found the same three regimes
# everywhere:
#
# * **Perfect scaling.** While the batch is small, twice the batch needs half the steps. The images read stay
#   the same, so twice the ranks need half the time at the same cost.
# * **Diminishing returns.** Then twice the batch saves less than half of the steps.
# * **Maximal data parallelism.** For very large batches the number of steps no longer falls. More ranks only
#   cost more.
#
# ![Curve of the steps to a goal against the batch size on logarithmic axes. It falls along a straight line of perfect scaling, bends at the critical batch size, and ends at a constant minimum number of steps](pictures/scaling_regimes.svg)
#
# Where the curve bends depends on the network, the data and the optimizer. A comparison of batches is only
# fair if every batch has its own best learning rate, because the best rate grows with the batch. To respect
# this rule, Shallue et al. trained 168,160 models. This lab tries three learning rates per batch.
#
# ## Gradient noise scale
#
# Can we know the bend before we have paid for it? The answer comes from the *noise* of the gradient.
#
# The **true gradient** $G$ is the mean gradient over all images that we could draw. A batch gives only an
# estimate of it. Each image has its own gradient, and these scatter around $G$. Their scatter is described by
# the covariance matrix $\Sigma$. Its *trace* $\operatorname{tr}\Sigma$, the sum of its diagonal, is the sum
# of the variances of all weights' gradients. A mean over $B$ images has a variance that is $B$ times smaller,
# $\operatorname{tr}\Sigma / B$.
#
# ![Two boxes with arrows. With batches of 4 images the gradients point in clearly different directions around the true gradient. With batches of 64 images they nearly coincide with it](pictures/gradient_noise.svg)
#
# For the squared length $|g_B|^2$ of a batch's gradient this means, on average over many batches,
#
# $$E\,|g_B|^2 = |G|^2 + \frac{\operatorname{tr} \Sigma}{B}.$$
#
# **Worked example.** A model has one weight, and there are four images with the gradients 6, 2, 4 and 0. The
# true gradient is their mean, $G = 3$, so $|G|^2 = 9$. The variance is $(3^2 + 1^2 + 1^2 + 3^2) / 4 = 5$.
# With a batch of one image the mean square is $(36 + 4 + 16 + 0) / 4 = 14$, and indeed $14 = 9 + 5/1$. With
# batches of two, drawn independently, it is $9 + 5/2 = 11.5$. With batches of 100 it is $9.05$, and nearly
# all of that is the true gradient.
#
# So there are two regimes. If $B$ is small, the noise dominates, and doubling the batch makes each step about
# twice as effective. If $B$ is large, the true gradient dominates, and additional images add almost no
# information. The two parts are equal at the **gradient noise scale** ([McCandlish et al.
# 2018](https://arxiv.org/abs/1812.06162)):
#
# $$B_\text{simple} = \frac{\operatorname{tr} \Sigma}{|G|^2}.$$
#
# In the example it is $5 / 9 = 0.6$ images, because the four images largely agree. For real networks it is
# hundreds to millions. The paper's claim is that this number, measured in *one* run with *one* batch size,
# predicts the order of magnitude of the batch at which perfect scaling ends. "Noise scale" without a name means
# $B_\text{simple}$. A later section derives a second one, $B_\text{noise}$.
#
# ## Two-batch estimator
#
# The matrix $\Sigma$ is too large to compute, because it has as many rows as the network has weights. Two
# averages are enough. The equation above has two unknowns, $|G|^2$ and $S = \operatorname{tr}\Sigma$. The
# *two-batch estimator* takes the mean squared norms at two batch sizes, which make two equations. In the
# example they are
#
# $$14 = |G|^2 + S / 1, \qquad 11.5 = |G|^2 + S / 2.$$
#
# Their difference is $2.5 = S\,(1 - 1/2)$, so $S = 5$. To get $|G|^2$, multiply each equation by its batch
# size, $14 = |G|^2 + S$ and $23 = 2|G|^2 + S$, and subtract: $|G|^2 = 9$. These are the values that we
# computed from the single images.
#
# Data-parallel training has both norms at almost no cost. The gradient of a rank *before* the all-reduce
# belongs to the small batch. The averaged gradient *after* the all-reduce belongs to the large one.
#
# ## Exercise 1: The two-batch estimator
#
# **What:** solve the two equations for any two batch sizes.
#
# **Why:** this is the whole measurement of the gradient noise scale.
#
# **Signature:** `two_batch_estimate(small_norm2, big_norm2, small_batch, big_batch)` returns the pair
# `(G2, S)`, the estimates of $|G|^2$ and of $\operatorname{tr}\Sigma$. The norms are already squared and may
# be numbers or arrays. An estimate from one step is noisy and sometimes negative. Return it as it is, because
# clipping would bias the mean over many steps.
#
# <details><summary>Hint 1</summary>
#
# Write the equation once with `small_batch` and once with `big_batch`. Their difference contains only $S$. If
# you first multiply each equation by its batch size, the difference contains only $|G|^2$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With the numbers of the example, `two_batch_estimate(14, 11.5, 1, 2)`:
# $G2 = (2 \cdot 11.5 - 1 \cdot 14) / (2 - 1) = 9$ and $S = (14 - 11.5) / (1/1 - 1/2) = 5$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `G2 = (big_batch * big_norm2 - small_batch * small_norm2) / (big_batch - small_batch)`. The denominator of
# `S` is `1 / small_batch - 1 / big_batch`.
#
# </details>


# %%
def two_batch_estimate(small_norm2, big_norm2, small_batch, big_batch):
    # BEGIN SOLUTION: return G2 and S
    G2 = (big_batch * big_norm2 - small_batch * small_norm2) / (big_batch - small_batch)
    S = (small_norm2 - big_norm2) / (1 / small_batch - 1 / big_batch)
    return G2, S
    # END SOLUTION


# %%
exercises.check_two_batch_estimate(two_batch_estimate)

# %% [markdown]
# ## Exercise 2: Norms before and after the all-reduce
#
# **What:** from the gradients of all ranks compute the two squared norms that the estimator needs, and the
# average gradient for the step.
#
# **Why:** this is where the two batch sizes come from. With Horovod the average would be the result of
# `hvd.allreduce`.
#
# **Signature:** `norms_before_and_after(ranks)` takes a list with the gradient of each rank, which is a list of
# arrays, one for each weight array of the network. Return `(small_norm2, big_norm2, average)`: the mean over the
# ranks of their squared norms, the squared norm of the average gradient, and the average gradient as a list of
# arrays. The squared norm of a gradient is the sum of the squares of all numbers in all its arrays.
#
# <details><summary>Hint 1</summary>
#
# For `small_norm2` square first and average then. For `big_norm2` average first and square then.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Rank 0 has the arrays `[3, 0]` and `[4]`, and rank 1 has `[1, 2]` and `[0]`. Their squared norms are 25 and
# 5, so `small_norm2` is 15. The average gradient is `[2, 1]` and `[2]`, so `big_norm2` is $4 + 1 + 4 = 9$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `zip(*ranks)` groups the first arrays of all ranks, then the second ones:
# `average = [np.mean(parts, axis=0) for parts in zip(*ranks)]`. The squared norm of one gradient is
# `sum(np.sum(part**2) for part in gradient)`.
#
# </details>


# %%
def norms_before_and_after(ranks):
    # BEGIN SOLUTION: return the mean squared norm, the squared norm of the mean, and the mean
    small_norm2 = np.mean([sum(np.sum(part**2) for part in rank) for rank in ranks])
    average = [np.mean(parts, axis=0) for parts in zip(*ranks, strict=True)]
    big_norm2 = sum(np.sum(part**2) for part in average)
    return small_norm2, big_norm2, average
    # END SOLUTION


# %%
choice_exercises.check_norms_before_and_after(norms_before_and_after)

# %% [markdown]
# ## The noise scale during training
#
# The next cell trains the network as eight ranks with 32 images each would train it. In each step it computes
# eight gradients, takes both norms, and applies the average. (Every fifth step it also computes a second kind
# of norm, see the next section.) The estimate of a single step is useless, because that of $|G|^2$ may be close
# to zero or negative. So it averages `G2` and `S` *separately* over about the last 50 steps, and divides the
# averages. (`hvdlab.noise_scale.NoiseScale` does this for your own trainings.) The goal is that 85 % of the
# held-out images are classified correctly.

# %%
RANKS, SMALL, GOAL = 8, 32, 0.85
NOISE_STEPS = by_run_length(quick=60, learner=600, reference=600)


def watch_noise(seed):
    network.restart(seed, learning_rate=0.15)
    smooth, curved, rows = np.zeros(2), np.zeros(2), []
    order = shuffled(seed, 60_000, NOISE_STEPS * RANKS * SMALL)
    for step, chosen in enumerate(order.reshape(NOISE_STEPS, RANKS, SMALL), 1):
        gradients = [network.gradient(train_set, of_rank) for of_rank in chosen]
        small, big, average = norms_before_and_after(gradients)
        network.apply(average)
        estimate = np.array(two_batch_estimate(small, big, SMALL, RANKS * SMALL))
        smooth = 0.98 * smooth + 0.02 * estimate
        if step % 5 == 0:  # the same with g^T H g in place of |g|^2; H from other images
            some = shuffled([seed, step], 60_000, 500)
            *of_ranks, of_mean = network.curvatures(train_set, some, [*gradients, average])
            estimate = two_batch_estimate(np.mean(of_ranks), of_mean, SMALL, RANKS * SMALL)
            curved = 0.9 * curved + 0.1 * np.array(estimate)
        if step % 10 == 0:
            row = {"step": step, "noise_scale": smooth[1] / smooth[0]}
            row["hessian_noise_scale"] = curved[1] / curved[0]
            rows.append(row | {"held_out_accuracy": network.accuracy(held_out)})
    return rows


noise = sweep("noise_scale_live", watch_noise, grid(seed=seeds(3, 5)))


# %% tags=["folded"]
def mean_until_goal(noise):
    return until_goal(noise, GOAL).groupby("seed", as_index=False)["noise_scale"].mean()


shipped_noise = reference("noise_scale_live")
mean_noise, mean_shipped = mean_until_goal(noise), mean_until_goal(shipped_noise)
noise_scale = mean_noise["noise_scale"].mean()
figure, axes = plt.subplots()
overlay(axes, noise, shipped_noise, x="step", y="noise_scale")
goal_step = until_goal(shipped_noise, GOAL).groupby("seed")["step"].max().mean()
axes.axvline(goal_step, color="black", linestyle=":", label="goal reached (reference)")
axes.set(xlabel="step (of 256 images)", ylabel="gradient noise scale (images)")
logarithmic(axes.yaxis)
axes.legend()
print(f"Your gradient noise scale, mean until the goal: {noise_scale:.0f} images")
describe(
    figure,
    "The gradient noise scale against the training step, on a logarithmic axis. It grows from about 20 "
    "images after 10 steps to nearly 400 after 600 steps; the goal is reached after about 320 steps.",
)

# %% [markdown]
# At the beginning the gradients of most images point in similar directions, and the noise scale is about 20
# images. As the network improves, the true gradient becomes smaller, while the images still differ from each
# other. So the noise scale *grows* during training. In the reference run it reaches about 400 images after
# 600 steps, and its mean until the goal is **150 images** (standard deviation 19, n = 5).
#
# ## Critical batch size
#
# The noise also predicts the number of steps. How much does one step reduce the loss? Near the present weights
# the loss is a quadratic function with the Hessian $H$ of lab 2. A step $-\eta\, g_B$ changes it by
# $-\eta\, G^T g_B + \tfrac12 \eta^2\, g_B^T H g_B$. The mean over all batches is
#
# $$E\,\Delta L = -\eta\, |G|^2 + \tfrac12 \eta^2 \left( G^T H G + \frac{\operatorname{tr}(H \Sigma)}{B} \right),$$
#
# because $E\,g_B = G$, and $E\,g_B^T H g_B$ has a part of the true gradient and a part of the noise, like
# $E\,|g_B|^2$ above. The best learning rate makes the derivative with respect to $\eta$ zero,
#
# $$\eta = \frac{|G|^2}{G^T H G + \operatorname{tr}(H \Sigma) / B}, \qquad
# -E\,\Delta L = \frac{|G|^4 / 2}{G^T H G + \operatorname{tr}(H \Sigma) / B}
# = \frac{|G|^4 / (2\, G^T H G)}{1 + B_\text{noise} / B}, \qquad
# B_\text{noise} = \frac{\operatorname{tr}(H \Sigma)}{G^T H G}.$$
#
# So a step with a batch makes the fraction $1 / (1 + B_\text{noise} / B)$ of the progress of a step with the
# true gradient ([McCandlish et al. 2018](https://arxiv.org/abs/1812.06162), section 2.2). For example, with
# $B = B_\text{noise}$ it makes half of the progress, so twice as many steps are needed.
#
# $B_\text{noise}$ weights the noise by the curvature: noise in steep directions does more harm. If all
# directions were equally steep, $H$ would be a multiple of the identity matrix and would cancel, and
# $B_\text{noise}$ would be $B_\text{simple}$. Lab 2 showed that they are not. McCandlish et al. use
# $B_\text{simple}$, because it needs no Hessian, and found both within a small factor of each other. We can
# check this: the two-batch estimator works with $g^T H g$ in place of $|g|^2$, and one more backward pass gives
# each product $H g$. Your function estimated both above:

# %% tags=["folded"]
both = [
    until_goal(table, GOAL).groupby("seed", as_index=False)[["noise_scale", "hessian_noise_scale"]]
    .mean().melt("seed", var_name="what") for table in (noise, shipped_noise)
]  # fmt: skip
compare(*both, by=["what"], value="value")

# %% [markdown]
# In the reference run the means until the goal are $B_\text{simple}$ = 152 ± 19 and $B_\text{noise}$ = 91 ± 8
# images (n = 5), a factor of 1.7. So the curvature matters, and the order of magnitude is the same.
#
# If the fraction was constant during training, the number of steps $S(B)$ to the goal would be
#
# $$S(B) = S_\text{min} \left( 1 + \frac{B_\text{crit}}{B} \right).$$
#
# $S_\text{min}$ is the number of steps with an enormous batch. $B_\text{crit}$ is the **critical batch
# size**, the bend of the curve in the picture above. There a run needs twice the minimum of steps. The images
# read are $E(B) = B \cdot S(B)$.
#
# **Worked example.** Let $S_\text{min} = 100$ steps and $B_\text{crit} = 200$ images.
#
# | batch $B$ | steps $S(B)$ | images $E(B)$ | saved by $2B$ |
# |---|---|---|---|
# | 50 | $100\,(1 + 200/50) = 500$ | 25,000 | 40 %, because $S(100) = 300$ |
# | 200 | $100\,(1 + 1) = 200$ | 40,000 | 25 %, because $S(400) = 150$ |
# | 800 | $100\,(1 + 1/4) = 125$ | 100,000 | 10 %, because $S(1600) = 112.5$ |
#
# Perfect scaling would save 50 % at every doubling. In general the saved fraction is
# $1 - S(2B)/S(B) = \frac{B_\text{crit}}{2\,(B + B_\text{crit})}$. So the critical batch is where *a doubling of
# the batch begins to save less than a quarter of the steps*.
#
# ## Exercise 3: The law of steps
#
# **What:** compute a row of the table above.
#
# **Why:** with these three numbers you can say what the next doubling of the ranks is worth. The figures
# below draw your function.
#
# **Signature:** `scaling_law(batch, s_min, b_crit)` returns `(steps, images, saved)`, where `saved` is the
# fraction of the steps that twice the batch saves. `batch` may be a number or an array.
#
# <details><summary>Hint 1</summary>
#
# Each of the three results is one line, and the second one uses the first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For `scaling_law(50, 100, 200)`: the quotient `b_crit / batch` is 4, the steps are
# $100 \cdot (1 + 4) = 500$, the images $500 \cdot 50$, and the saved fraction is $200 / (2 \cdot 250) = 0.4$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `steps = s_min * (1 + b_crit / batch)`, and `saved = b_crit / (2 * (batch + b_crit))`.
#
# </details>


# %%
def scaling_law(batch, s_min, b_crit):
    # BEGIN SOLUTION: return steps, images and the saved fraction
    steps = s_min * (1 + b_crit / batch)
    images = steps * batch
    saved = b_crit / (2 * (batch + b_crit))
    return steps, images, saved
    # END SOLUTION


# %%
choice_exercises.check_scaling_law(scaling_law)

# %% [markdown]
# ## Measured steps
#
# Now the experiment of Shallue et al. in small: count the steps until 85 % of the held-out images are right,
# for batches from 16 to 2,048.

# %%
# Prediction 1: from which batch size on does doubling the batch save less than a quarter of the
# steps? Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %% [markdown]
# Each batch tries several learning rates around $\eta(B) = \eta_\text{max} / (1 + B_0 / B)$, as the noise model
# suggests. The best one has the fewest steps, by the median over the seeds.

# %%
BATCHES = [64, 256, 1024] if QUICK else [16, 32, 64, 128, 256, 512, 1024, 2048]
FACTORS = by_run_length(quick=[1.0], learner=[0.7, 1.0, 1.4], reference=[0.5, 0.7, 1.0, 1.4])


def count_steps(batch_size, factor, seed):
    every = max(2, 1024 // batch_size)  # look at the held-out images once in so many steps
    rounds = 800_000 // (every * batch_size)
    order = shuffled(seed, 60_000, rounds * every * batch_size).reshape(rounds, every, batch_size)
    network.train(train_set, order[0])  # prepares the network, before the time is measured
    learning_rate = factor * 0.25 / (1 + 64 / batch_size)
    network.restart(seed, learning_rate)
    steps, seconds, reached = 0, 0.0, False
    while not reached and steps < rounds * every:
        start = time.perf_counter()
        network.train(train_set, order[steps // every])
        seconds += time.perf_counter() - start
        steps += every
        reached = network.accuracy(held_out) >= GOAL
    found = {"steps": steps, "seconds": seconds} if reached else {}
    speed = steps * batch_size / seconds
    return found | {"learning_rate": learning_rate, "images_per_second": speed}


settings = grid(batch_size=BATCHES, factor=FACTORS, seed=seeds(3, 5))
runs = sweep("steps_to_goal", count_steps, settings)


# %% tags=["folded"]
best, best_shipped = best_rates(runs), best_rates(reference("steps_to_goal"))
compare(best, best_shipped, by=["batch_size"], value="steps")

# %% [markdown]
# From 16 to 32 images the steps fall from about 2,160 to 1,160, nearly by half. From 512 to 2,048 they fall
# from about 230 to 200, although each step reads four times more images. From 16 to 2,048 images the batch is
# 128 times larger, and the number of steps is 11 times smaller.
#
# ## Exercise 4: Fit of the critical batch size
#
# **What:** find $S_\text{min}$ and $B_\text{crit}$ from a table of batches and steps.
#
# **Why:** one of the two numbers can be compared with the noise scale.
#
# **Signature:** `fit_steps(batches, steps)` takes two arrays and returns `(s_min, b_crit)`. The scatter of
# `steps` between seeds is about the same *in percent* for every batch. Therefore relative errors must count
# equally.
#
# <details><summary>Hint 1</summary>
#
# With $x = 1/B$ the law is a straight line, $S = S_\text{min} + (S_\text{min} B_\text{crit})\, x$. What are
# its intercept and its slope?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The batches 100, 300 and 600 with 400, 200 and 150 steps lie exactly on the law. Over $x = 1/B$ the line
# goes from $(1/600, 150)$ to $(1/100, 400)$, so its slope is $250 / (1/100 - 1/600) = 30{,}000$ and its
# intercept is 100. So $B_\text{crit} = 30{,}000 / 100 = 300$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `slope, intercept = np.polyfit(x, steps, 1, w=1 / steps)`. The weights `w` turn absolute errors into
# relative ones.
#
# </details>


# %%
def fit_steps(batches, steps):
    # BEGIN SOLUTION: return s_min and b_crit
    slope, s_min = np.polyfit(1 / np.asarray(batches), steps, 1, w=1 / np.asarray(steps))
    return s_min, slope / s_min
    # END SOLUTION


# %%
exercises.check_fit_steps(fit_steps)


# %% tags=["folded"]
fits = fit_each_seed(best, fit_steps).merge(mean_noise)
shipped_fits = fit_each_seed(best_shipped, fit_steps).merge(mean_shipped)
s_min, b_crit = shipped_fits["s_min"].mean(), shipped_fits["b_crit"].mean()
sizes = np.geomspace(12, 2700, 100)
law, images, _ = scaling_law(sizes, s_min, b_crit)
figure, axes = plt.subplots(figsize=(8, 5))
overlay(axes, best, best_shipped, x="batch_size", y="steps")
axes.plot(sizes, law, "k-", linewidth=1, label="law, fitted to the reference")
axes.plot(sizes, s_min * b_crit / sizes, "k:", linewidth=1, label="perfect scaling")
axes.axhline(s_min, color="black", linestyle="-.", linewidth=1, label="minimum of steps")
axes.axvline(
    b_crit, color="black", linestyle="--", linewidth=1, label=f"fitted $B_{{crit}}$, {b_crit:.0f}"
)
axes.axvline(noise_scale, color="C1", linewidth=3, label=f"your noise scale, {noise_scale:.0f}")
expected = None if prediction is None else float(scaling_law(prediction, s_min, b_crit)[0])
predicted(axes, expected, x=prediction)
axes.set(xlabel="batch size (images)", ylabel="steps to the goal")
logarithmic(axes.xaxis, 4, [1])
logarithmic(axes.yaxis)
axes.set_ylim(s_min / 2, None)
axes.legend(fontsize=9)
describe(
    figure,
    "Steps to the goal against the batch size on logarithmic axes, measured and fitted. The curve bends at "
    "a critical batch of about 190 images, close to the measured gradient noise scale.",
)
complete = best.dropna(subset="steps")["batch_size"].nunique() == len(BATCHES)
workbook.result(1, (fits if complete else shipped_fits)["b_crit"].mean())

# %% tags=["folded"]
yours, course = (table.melt("seed", var_name="what") for table in (fits, shipped_fits))
compare(yours, course, by=["what"], value="value")

# %% [markdown]
# **Compare your prediction.** The noise scale estimates $B_\text{crit}$, so the prediction is your measured noise
# scale, about 150, or 90 if you took $B_\text{noise}$. In the reference run the fit gives $B_\text{crit}$ = 190 ± 8
# and $S_\text{min}$ = 161 ± 13 steps (n = 5). Both predictions have the right order of magnitude, and this is what
# the paper promises. $B_\text{noise}$, for which the law was derived, is too small by a factor of 2. One reason is
# that it grows during training, from 50 to 130 images at the goal, while the law assumes one value. That
# $B_\text{simple}$ is closer here is a coincidence. From one run with one batch size you know roughly how many
# ranks are worth their price, before you rent them.
#
# ## Time against cost
#
# A user waits for seconds and pays for rank-hours. On *one machine* the time to the goal is the images read,
# divided by the images per second. On *many ranks* with $b$ images each, a step takes about as long as a step
# with $b$ images on one rank, plus the communication. Then the time is proportional to the steps, and the cost
# to the images read. The law connects the two:
#
# ![Curve of images read against steps to the goal with one point per batch size. It approaches a minimum number of steps at the top and a minimum number of images at the right, so time and cost cannot both be minimal](pictures/steps_and_images.svg)
#
# Every batch size is a point on this curve. At the left end the batch is large: doubling it saves hardly any
# steps and doubles the images. At the right end the batch is small: halving it saves hardly any images and
# doubles the steps. The best trade-off is near the critical batch: there a run needs twice the minimum of steps
# and reads twice the minimum of images.

# %% tags=["folded"]
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4))
overlay(left, best, best_shipped, x="batch_size", y="images_per_second", times=True)
overlay(middle, best, best_shipped, x="batch_size", y="seconds", times=True)
points = best_shipped.dropna(subset="steps").groupby("batch_size")["steps"].mean()
right.plot(law, images, "k-", linewidth=1, label="law")
right.plot(points, points * points.index, "o", label="reference")
for batch, steps in points.items():
    where = (steps, steps * batch)
    right.annotate(f"{batch}", where, xytext=(6, 5), textcoords="offset points", fontsize=8)
left.set(xlabel="batch size (images)", ylabel="images per second")
middle.set(xlabel="batch size (images)", ylabel="seconds to the goal, one machine")
right.set(xlabel="steps to the goal", ylabel="images read to the goal")
for axes in (left, middle, right):
    logarithmic(axes.yaxis)
    logarithmic(axes.xaxis, *([10] if axes is right else [4, [1]]))
    axes.legend(fontsize=9)
describe(
    figure,
    "Three panels: images per second rise with the batch on one machine; the seconds to the goal do not "
    "fall in the same way and are longest for 2048 images; images read against steps follow the law.",
)

# %% [markdown]
# In the left panel the reference machine reads 4.6 times more images per second with a batch of 2,048 than
# with 16. In the middle panel the time does *not* follow: a run with 2,048 images reads 12 times more images,
# so every reference run with 2,048 images (1.4 to 2.1 s) was slower than every run with a smaller batch (at
# most 1.2 s).
#
# ## Exercise 5: A batch for a deadline and a price
#
# **What:** from a table of batch sizes choose the *cheapest* one whose run ends before a deadline.
#
# **Why:** this is the decision that you take before every large training.
#
# **Signature:** `choose_batch(batches, steps, step_seconds, images_per_rank, price, deadline)` gets three
# arrays, which are not sorted: batch sizes, their steps to the goal, and the seconds of one step. A run has
# `batch / images_per_rank` ranks, and each of them costs `price` per *hour*. `deadline` is in seconds, and a
# run that ends exactly at it is in time. Return `(batch, seconds, cost)` of the cheapest run in time, or `None`.
#
# <details><summary>Hint 1</summary>
#
# Go through the arrays with `zip`, and keep the best run so far, which is `None` at first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A batch of 32 with 16 images per rank has 2 ranks. With 2,000 steps of 1 s it takes 2,000 s. At 2.00 per
# rank and hour it costs $2 \cdot 2000 / 3600 \cdot 2 = 2.22$. A batch of 64 that takes 1,800 s costs
# $4 \cdot 1800 / 3600 \cdot 2 = 4.00$, and is right only with a deadline below 2,000 s.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `cost = batch / images_per_rank * seconds / 3600 * price`, and then
# `if seconds <= deadline and (best is None or cost < best[2]): best = batch, seconds, cost`.
#
# </details>


# %%
def choose_batch(batches, steps, step_seconds, images_per_rank, price, deadline):
    # BEGIN SOLUTION: return batch, seconds and cost of the cheapest run in time, or None
    best = None
    for batch, count, each in zip(batches, steps, step_seconds, strict=True):
        seconds = count * each
        cost = batch / images_per_rank * seconds / 3600 * price
        if seconds <= deadline and (best is None or cost < best[2]):
            best = batch, seconds, cost
    return best
    # END SOLUTION


# %%
choice_exercises.check_choose_batch(choose_batch)

# %% [markdown]
# Apply it to the measured steps of this lab. Assume that each rank has 16 images, that a step takes 0.40 s of
# computing and $0.05 \log_2 N$ s of communication on N ranks, and that a rank costs 3.00 per hour. Before you
# run the cell, decide yourself. You must finish within four minutes. A colleague proposes a batch of 2,048,
# because it reads the most images per second.

# %%
# Prediction 2: which batch from 16 to 2048 do you choose, and how do you defend it against your
# colleague? Replace both values of None.
workbook.predict(2, None, reason=None)

# %%
batches = points.index.values
step_seconds = 0.40 + 0.05 * np.log2(batches / 16)
choices = {}
for deadline in (900, 240, 180, 120):
    choice = choose_batch(batches, points.values, step_seconds, 16, 3.00, deadline)
    print(f"deadline {deadline} s:", choice and "batch {:.0f}, {:.0f} s, {:.2f}".format(*choice))
    choices[deadline] = choice
workbook.result(2, choices[240][0])

# %% [markdown]
# With 15 minutes a single rank is the cheapest (batch 16, 0.72). With four minutes the answer is batch 128 on
# eight ranks: 209 s for 1.40. A defence: "128 is the smallest batch that meets the deadline. Batch 2,048 needs
# 128 ranks and costs 15.84, eleven times more. It would finish after 149 s, but nothing requires that." For
# two minutes there is no answer, because the number of steps has a minimum and the communication grows with
# the ranks.
#
# ## Generalisation gap
#
# The fourth quantity is accuracy. The difference between the accuracy of a small and of a large batch on new
# images, if both fit the training images about equally well, is called the **generalisation gap**. With the
# same number of epochs our reference run found 0.24 percentage points between batches of 64 and 500, with a
# standard error of 0.16 (n = 10), so it may be no gap at all. The optional notebook [The generalisation
# gap](06_more_generalisation_gap.ipynb) makes the experiment. No later lab needs it.
#
# ## The law in a data centre
#
# Does the law also hold on many GPUs? Companies that train the same networks in a public benchmark of MLCommons
# have published how many epochs each batch size needed, with settings that they tuned for this batch (sources,
# licence and pitfalls: `labs/results/scaling_records/README.md`).
#
# Epochs are images divided by the size of the training set, so the law is a *straight line* over the batch:
#
# $$\text{epochs}(B) = E_0 \left(1 + \frac{B}{B_\text{crit}}\right).$$
#
# The intercept $E_0$ is the number of epochs with a very small batch. At $B_\text{crit}$ the line reaches
# $2 E_0$. For example, a line through 40 epochs at $B = 1{,}000$ and 50 epochs at $B = 2{,}000$ has the
# intercept 30 and reaches 60 epochs at $B_\text{crit} = 3{,}000$. The figure shows ResNet-50 on ImageNet
# for batches up to 8,192.

# %% tags=["folded"]
points = reference("scaling_records/convergence_points")
resnet = points[points["network"] == "ResNet-50"]
small = resnet[resnet["batch"] <= 8192]
figure, axes = plt.subplots(figsize=(8, 5))
axes.plot(small["batch"], small["epochs"], "ko", label="published, batch up to 8,192")
axes.set(xlabel="batch size (images)", ylabel="epochs to the goal", xlim=(0, 70_000), ylim=(0, 120))
axes.grid(visible=True)
axes.legend()
describe(
    figure,
    "Epochs to the goal over the batch size for ResNet-50. Five points lie between 35 and 42 epochs at "
    "batches from 1,632 to 8,192, and the axis continues to 70,000 without points.",
)

# %%
# Prediction 3: put a ruler through the five points. How many epochs does your line give at batch 65,536?
ruler = workbook.predict(3, None, reason=None)

# %%
# Prediction 4: you may leave out one point. Which batch size, and why? 0 means none.
left_out = workbook.predict(4, None, reason=None)

# %% [markdown]
# ## Exercise 6: The critical batch from a straight line
#
# **What:** find $E_0$ and $B_\text{crit}$ from batches and epochs.
#
# **Why:** with this line you can read a critical batch from any published table.
#
# **Signature:** `fit_law(batches, epochs)` takes two arrays and returns `(e0, b_crit)`. Relative errors must
# count equally, as in exercise 4.
#
# <details><summary>Hint 1</summary>
#
# What are the intercept and the slope of $E_0 + (E_0 / B_\text{crit})\, B$?
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the example the slope is $10 / 1{,}000 = 0.01$ and the intercept is 30, so $B_\text{crit}$ is
# $30 / 0.01 = 3{,}000$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `slope, e0 = np.polyfit(batches, epochs, 1, w=1 / epochs)`
#
# </details>


# %%
def fit_law(batches, epochs):
    # BEGIN SOLUTION: return e0 and b_crit
    slope, e0 = np.polyfit(batches, epochs, 1, w=1 / np.asarray(epochs))
    return e0, e0 / slope
    # END SOLUTION


# %%
line_exercises.check_fit_law(fit_law)


# %%
def epochs_at(batch, table):
    e0, b_crit = fit_law(table["batch"].values, table["epochs"].values)
    return e0 * (1 + batch / b_crit)


print(f"your line: {epochs_at(65_536, small[small['batch'] != left_out]):.1f} epochs")
for batch in (0, *small["batch"]):
    epochs = epochs_at(65_536, small[small["batch"] != batch])
    print(f"left out {batch or 'no point'}: {epochs:.1f} epochs")
workbook.result(3, epochs_at(65_536, small))

# %% tags=["folded"]
sizes = np.array([0, 70_000])
axes = figure.axes[0]
axes.plot(sizes, epochs_at(sizes, small), "C0--", label="line through these five")
rest = resnet[resnet["batch"] > 8192]
axes.plot(rest["batch"], rest["epochs"], "o", color="C1", label="published, larger batches")
axes.plot(sizes, epochs_at(sizes, resnet), "C1-", label="line through all twelve")
predicted(axes, ruler, x=65_536)
axes.legend()
describe(
    figure,
    "Epochs over the batch size with all twelve points, which lie close to one straight line. The line through "
    "the five smallest batches is steeper and ends above the points at 65,536.",
)

# %% [markdown]
# **Compare your prediction.** All five points give 95.5 epochs, and 84.5 were measured (n = 10), so to extrapolate
# by a factor of eight costs 13 %. Without one point the line gives 87 to 106. A distance from the line is no
# reason to leave a point out, because the result then confirms what you expected. A reason is a difference in
# how the points were made: the warmup of the learning rate (lab 7) takes 2 epochs at 1,632 and 3,264, and 5
# epochs at the others. All twelve points give $E_0 = 34.9$ epochs and $B_\text{crit} = 47{,}100$ images, and lie
# within 6.2 % of the line.

# %%
# Prediction 5: what is the critical batch size of the language model Llama 3.1 8B, in sequences?
workbook.predict(5, None, reason=None)

# %% tags=["folded"]
rows = []
for network, table in points.groupby("network", sort=False):
    batch, read = table["batch"].values, table["epochs"].fillna(table["examples"]).values
    e0, critical = fit_law(batch, read)
    off = e0 * (1 + batch / critical) / read - 1
    row = {"network": network, "batches": f"{batch[0]:,} to {batch[-1]:,} {table['unit'].iloc[0]}"}
    rows.append(row | {"B_crit": critical, "largest error %": 100 * off[abs(off).argmax()]})
laws = pd.DataFrame(rows).set_index("network")
workbook.result(5, laws.loc["Llama 3.1 8B", "B_crit"])
laws.round(1)

# %% [markdown]
# The critical batch depends on the task and not on the machine: 84 sequences for this language model, 47,100
# images for ResNet-50, and 317,000 clicks for the recommendation network DLRM. For the last three networks of
# the table the law breaks. *CosmoFlow* was not tuned equally well at batch 32 and 64, *3D U-Net* shows no effect
# of batches from 2 to 84, and *Llama 2 70B LoRA*, a fine-tuning (lab 15), follows a bent curve. The numbers were
# recomputed from public files and not verified by MLCommons Association.
#
# ## Critical batch size and training tokens
#
# Language models read *tokens*, which are words or pieces of words. Each new generation has more parameters and
# reads more tokens. Which of the two makes its critical batch larger? [Zhang et al.
# (2024)](https://arxiv.org/abs/2410.21676) varied one at a time, with networks of 85 million to 1.2 billion
# parameters. They call a batch critical if it needs 20 % more steps than perfect scaling, and fitted
# $B_\text{crit} \propto D^{0.47}$ for $D$ tokens, and $N^{0.087}$ for $N$ parameters with the same tokens. For
# example, eight times as many tokens make it $8^{0.47} = 2.7$ times larger, and eight times as many parameters
# $8^{0.087} = 1.2$ times.
#
# [Merrill et al. (2025)](https://arxiv.org/abs/2505.23971) measured it *during* the training of models with 1
# and 7 billion parameters. For both it starts near zero, grows quickly, and levels off near 4,096 sequences.
# $B_\text{simple}$ was too small by several orders of magnitude: the law above was derived for SGD, and these
# models are trained with Adam. They therefore trained short branches with different batches from a checkpoint,
# and took the largest batch that did not raise the loss.
#
# So a constant batch is too large at first or too small later. A **batch ramp** lets it grow:
#
# | model | batch |
# |---|---|
# | [GPT-3](https://arxiv.org/abs/2005.14165) | from 32,000 tokens to the full batch within the first 4 to 12 billion tokens |
# | [Llama 3 405B](https://arxiv.org/abs/2407.21783) | 4 million tokens, 8 million after 252 million tokens, 16 million after 2.87 trillion |
# | [DeepSeek-V3](https://arxiv.org/abs/2412.19437) | from 3,072 to 15,360 sequences within the first 469 billion of 14.8 trillion tokens |

# %%
# Prediction 6: Merrill et al. trained a model on 658 billion tokens. They doubled its batch after 168 billion
# and again after 503 billion tokens. What percentage of the steps did this ramp save?
workbook.predict(6, None, reason=None)

# %% [markdown]
# ## Exercise 7: Steps of a batch ramp
#
# **What:** compute the number of steps of a run whose batch grows.
#
# **Why:** the steps decide the time of a run.
#
# **Signature:** `ramp_steps(stages, tokens)` gets a list of pairs `(start, batch)` in increasing order: after
# `start` tokens each step reads `batch` tokens, until the next stage begins. The run ends after `tokens`
# tokens, which may be before the last stage. Do not round the steps.
#
# <details><summary>Hint 1</summary>
#
# `ramp_steps([(0, 100), (1000, 200)], 2000)` is $1000/100 + 1000/200 = 15$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A stage ends at the next start or at `tokens`, whichever is smaller: `max(min(end, tokens) - start, 0)`.
#
# </details>


# %%
def ramp_steps(stages, tokens):
    # BEGIN SOLUTION: return the number of steps
    ends = [start for start, _ in stages[1:]] + [tokens]
    steps = 0.0
    for (start, batch), end in zip(stages, ends, strict=True):
        steps += max(min(end, tokens) - start, 0) / batch
    return steps
    # END SOLUTION


# %%
ramp_exercises.check_ramp_steps(ramp_steps)

# %%
SEQUENCE = 4096  # tokens
olmo = [(0, 1024 * SEQUENCE), (168e9, 2048 * SEQUENCE), (503e9, 4096 * SEQUENCE)]
llama = [(0, 4e6), (252e6, 8e6), (2.87e12, 16e6)]
saved = {}
for name, stages, tokens in (("OLMo 1B", olmo, 658e9), ("Llama 3 405B", llama, 15.6e12)):
    small, ramp, large = (
        ramp_steps(each, tokens) for each in (stages[:1], stages, [(0, stages[-1][1])])
    )
    saved[name] = 100 * (1 - ramp / small)
    print(f"{name}: {ramp:,.0f} steps. Saved by the ramp: {saved[name]:.0f}%, ", end="")
    print(f"by the largest batch alone: {1 - large / small:.0%}")
workbook.result(6, saved["OLMo 1B"])

# %% [markdown]
# **Compare your prediction.** The paper reports 43 %, too. The batch ends four times larger, but most tokens were
# read before. The largest batch alone saved 75 %, and ended with the highest loss: 2.551, compared with 2.549 for
# the small batch and 2.543 for the ramp (n = 1 each).
#
# ## Exercise 8: Review of a noise monitor
# **Level:** choose and justify.
#
# **What:** a colleague sends you four patches of the function below. Decide which are correct. For each of the
# others, give a case in which its result is wrong.
#
# **Why:** all four pass the first test that one would write: one step, two ranks, one image per rank.
#
# **Signature:** `review_noise_scale()` returns a dict with the keys `"a"` to `"d"`. A value is `"correct"`, or a
# case such as `{"gradients": [[3.0, 1.0]], "images": 1}`: for each step a list with the gradient of each rank,
# which is one number.

# %%
print(inspect.getsource(noise_exercises.noise_scale))
print(noise_exercises.NOISE_SCALE_REVIEW)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# What changes with a second step, with more images, and with gradients of opposite signs?
#
# </details>
# <details><summary>Hint 2</summary>
#
# For the ranks `[1.0, -1.0]` the estimate of $|G|^2$ is $(2 \cdot 0 - 1) / 1 = -1$.
#
# </details>


# %%
def review_noise_scale():
    # BEGIN SOLUTION: return {"a": "correct" or a case, "b": ..., "c": ..., "d": ...}
    return {
        "a": {"gradients": [[3.0, 1.0], [2.0, 2.0]], "images": 1},
        "b": {"gradients": [[3.0, 1.0], [1.0, -1.0]], "images": 1},
        "c": "correct",
        "d": {"gradients": [[3.0, 1.0]], "images": 16},
    }
    # END SOLUTION


# %%
noise_exercises.check_review_noise_scale(review_noise_scale)

# %% [markdown]
# ## Exercise 9: A noise scale for ranks of any size
# **Level:** blank page.
#
# **What:** write `estimate_noise_scale(steps)`, by any method. `steps` is an iterator. Each step is a list with a
# pair for each rank: its gradient, an array of shape `(weights,)`, and the number of images in it. The true
# gradient turns from step to step. Return $B_\text{simple}$ of the run.
#
# **Why:** in real runs ranks read different numbers of images, and gradients do not fit into memory.
#
# **Rubric:** the check draws gradients with a known noise scale. Your estimate must be within 10 % of it for
# *2 ranks*, for *8 ranks*, for *uneven ranks* with 8, 32 and 64 images, and with *much noise*, where many
# estimates of $|G|^2$ are negative. *Memory:* it holds the gradients of at most 20 steps at once.
#
# <details><summary>Hint 1</summary>
#
# What is the mean of $|g|^2$ for a rank with $b$ images, and for the mean over all images of a step?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The mean product $g_i \cdot g_j$ of two different ranks is $|G|^2$, whatever their numbers of images.
#
# </details>


# %%
def estimate_noise_scale(steps):
    # BEGIN SOLUTION: return the noise scale in images
    G2 = S = 0.0
    for ranks in steps:
        images = np.array([count for _, count in ranks])
        gradients = np.stack([gradient for gradient, _ in ranks])
        mean = images @ gradients / images.sum()
        scatter = images @ np.sum((gradients - mean) ** 2, axis=1) / (len(ranks) - 1)
        S += scatter
        G2 += mean @ mean - scatter / images.sum()
    return S / G2
    # END SOLUTION


# %%
noise_exercises.check_estimate_noise_scale(estimate_noise_scale)

# %%
example = noise_exercises.draw_steps(noise_scale=300, images=(32, 16), steps=500)
print(f"true noise scale 300 images, your estimate {estimate_noise_scale(example):.0f}")

# %% [markdown]
# ## Summary
#
# * Throughput has hardly a limit. The limit of the batch comes from the number of steps and from the accuracy.
# * The steps to a goal show three regimes: perfect scaling, diminishing returns, and a minimum. In our
#   measurements a batch that is 128 times larger needed 11 times fewer steps.
# * The gradient noise scale $B_\text{simple} = \operatorname{tr}\Sigma / |G|^2$ can be computed from the gradient
#   norms before and after the all-reduce. It grows during training.
# * The law of steps follows from $B_\text{noise} = \operatorname{tr}(H\Sigma) / (G^T H G)$. Both predict the order
#   of magnitude of the critical batch size: we measured 152 and 91, and fitted 190 images.
# * Well below the critical batch, doubling the ranks nearly halves the time at nearly the same cost. Well above
#   it, additional ranks cost money and save almost no time.
# * Tune the learning rate of every batch before you compare batches, and compare steps to a goal.
# * Epochs over the batch are a straight line. ResNet-50 on ImageNet has a critical batch of 47,100 images.
# * The critical batch of language models grows with the training tokens and hardly with the parameters. A batch
#   ramp follows its growth.
#
# **Calculator:** the page `labs/calculators/batch.html` computes steps, hours and GPU hours for any batch
# size. Open it in a browser.
#
# ## Self-check questions
#
# Question 8 returns from lab 3 with other numbers.

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="c")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=1.2)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer=400)

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="b")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="a")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="d")

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer=6000)

# %%
workbook.question(8, answer=None)

# %% tags=["solution"]
workbook.question(8, answer=0.3)

# %% [markdown]
# **Next:** [lab 7](07_large_batch_remedies.ipynb) shows what can be done when the batch must be larger than you
# would like.
