# %% [markdown]
# # Lab 6: Scaling the batch
#
# **Time:** 75 minutes, three of them computing. **You measure** how many steps a batch of 16 to 2048 images takes to
# the same accuracy, predict from gradients alone where more images stop paying, and look at what a large batch
# finds. **You need** lab 3 (mini-batches) and lab 4 (data parallelism).
#
# $N$ ranks with $b$ images each take one step with a *global batch* of $B = N b$ images. Lab 4 showed that
# this is the same step as one process with a batch of $B$ takes. So here **one process stands in for many
# ranks**: at 32 images a rank, a batch of 2048 is a step of 64 ranks. Read every axis called "batch size" as
# "number of ranks".

# %%
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf
from matplotlib.ticker import LogLocator

from hvdlab.course import loss_landscape
from hvdlab.course.experiment import QUICK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, overlay, predicted
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab06_scaling_the_batch as exercises
from hvdlab.noise_scale import steps_to_goal

# %% [markdown]
# ## Load the images, build a network
#
# Fashion-MNIST, as rows of 784 pixels with mean 0 and deviation 1. The 60 000 training images are for
# training, 4 000 of the others decide whether the goal is reached.


# %%
def tensors(images, labels):
    pixels = (images.reshape(-1, 784) / np.float32(255) - 0.286) / 0.353
    return tf.constant(pixels), tf.constant(labels.astype("int32"))


data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
train_set = tensors(data.train_images, data.train_labels)
held_out = tensors(data.test_images[:4000], data.test_labels[:4000])
print(f"{len(train_set[0])} images to train on, {len(held_out[0])} held out")

# %% [markdown]
# The network is small, so that hundreds of trainings fit into minutes. Training is a short loop compiled by
# `tf.function`: it takes a table of image numbers, one row a step.


# %%
loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build(*widths):
    hidden = [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])


def gradient(model, dataset, chosen):
    images, labels = (tf.gather(values, chosen) for values in dataset)
    with tf.GradientTape() as tape:
        loss = loss_function(labels, model(images))
    return tape.gradient(loss, model.trainable_variables)


def make_train(model, optimizer, dataset):
    optimizer.build(model.trainable_variables)

    @tf.function
    def train(order):  # image numbers, shape (steps, batch size)
        for chosen in order:
            optimizer.apply(gradient(model, dataset, chosen))

    return train


# %% [markdown]
# `restart` makes a new training of the same network, `shuffled` deals the images, epoch after epoch, and
# `accuracy` looks at any set.


# %%
def restart(model, optimizer, seed, learning_rate):
    keras.utils.set_random_seed(seed)
    model.set_weights(keras.models.clone_model(model).get_weights())
    for variable in optimizer.variables:
        variable.assign(tf.zeros_like(variable))
    optimizer.learning_rate = learning_rate


def shuffled(seed, n, examples):
    """The numbers of `examples` images: permutations of 0 .. n - 1, one after another."""
    rng = np.random.default_rng(seed)
    epochs = [rng.permutation(n) for _ in range(-(-examples // n))]
    return np.concatenate(epochs)[:examples].astype("int32")


@tf.function
def accuracy(model, images, labels):
    right = tf.argmax(model(images), axis=1, output_type=tf.int32) == labels
    return tf.reduce_mean(tf.cast(right, tf.float32))


model, sgd = build(128), keras.optimizers.SGD()
train = make_train(model, sgd, train_set)

# %% [markdown]
# ## Measure the noise in the gradient
#
# How large a batch is worth its images? The gradient of $B$ images is the true gradient $G$ plus noise, and
# the noise shrinks with $B$:
#
# $$E\,|g_B|^2 = |G|^2 + \frac{\operatorname{tr} \Sigma}{B},$$
#
# where $\Sigma$ is the covariance of the gradients of single images. While noise rules, twice the batch makes
# a step twice as good. Once $G$ rules, more images tell the step what it knows already. The two are equal at
# the **gradient noise scale**
#
# $$B_\text{noise} = \frac{\operatorname{tr} \Sigma}{|G|^2}$$
#
# (McCandlish et al. 2018, [arXiv:1812.06162](https://arxiv.org/abs/1812.06162)). Their claim: this number,
# measured in *one* run at *one* batch size, tells the order of magnitude of the batch at which scaling stops
# to pay. You will test that.
#
# ## Exercise 1: Write the two-batch estimator
#
# **What:** one equation has two unknowns, $|G|^2$ and $S = \operatorname{tr} \Sigma$; squared norms at two
# batch sizes make two equations. Solve them.
#
# **Why:** in data-parallel training both norms are available without extra work: the gradient of a rank *before* the
# all-reduce is one of the small batch, *after* it one of the large batch.
#
# **Signature:** `two_batch_estimate(small_norm2, big_norm2, small_batch, big_batch)` returns `(G2, S)`. The
# norms are squared already, and may be numbers or arrays. Each estimate is noisy, even negative at times:
# leave it as it is.
#
# <details><summary>Hint 1</summary>
#
# Write the equation twice, with $B_\text{small}$ and with $B_\text{big}$. Their difference has no $|G|^2$ in
# it, which gives $S$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Multiply each by its batch size and subtract: now $S$ is gone, and $G2 = (B_\text{big} |g_\text{big}|^2 -
# B_\text{small} |g_\text{small}|^2) / (B_\text{big} - B_\text{small})$. And $S = (|g_\text{small}|^2 -
# |g_\text{big}|^2) / (1/B_\text{small} - 1/B_\text{big})$.
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
# ## Watch the noise while a network trains
#
# A step as eight ranks of 32 images would take it: eight gradients, their mean (the all-reduce), and the
# squared norms before and after.

# %%
RANKS, SMALL = 8, 32


def squared_norm(parts):
    return tf.add_n([tf.reduce_sum(part**2) for part in parts])


@tf.function
def noisy_step(order):  # image numbers, shape (RANKS, SMALL)
    ranks = [gradient(model, train_set, chosen) for chosen in tf.unstack(order)]
    average = [tf.add_n(tensors) / RANKS for tensors in zip(*ranks, strict=True)]
    sgd.apply(average)
    return tf.add_n([squared_norm(rank) for rank in ranks]) / RANKS, squared_norm(average)


# %% [markdown]
# The ratio of one step would be useless: $G2$ may come out near zero. So average *both* over the last 50 steps
# or so, and divide then. (`hvdlab.noise_scale.NoiseScale` does this for your own trainings.)

# %%
GOAL = 0.85  # held-out accuracy


def watch_noise(seed):
    restart(model, sgd, seed, learning_rate=0.15)
    steps, averages, rows = by_run_length(quick=120, learner=600, reference=600), np.zeros(2), []
    batches = shuffled(seed, 60_000, steps * RANKS * SMALL).reshape(steps, RANKS, SMALL)
    for step, order in enumerate(batches, 1):
        small, big = (float(norm2) for norm2 in noisy_step(tf.constant(order)))
        estimate = np.array(two_batch_estimate(small, big, SMALL, RANKS * SMALL))
        averages = 0.98 * averages + 0.02 * estimate
        if step % 10 == 0:
            noise_scale, now = averages[1] / averages[0], float(accuracy(model, *held_out))
            rows.append({"step": step, "noise_scale": noise_scale, "held_out_accuracy": now})
    return rows


noise = sweep("noise_scale_live", watch_noise, grid(seed=seeds(3, 5)))


# %%
def logarithmic(axis, base=10, subs=(1, 2, 5)):
    """Make an axis logarithmic, with plain numbers on it."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(base, subs))
    axis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def until_goal(noise):
    """Of each seed, the rows before the goal is reached for the first time."""
    reached = noise["held_out_accuracy"].ge(GOAL).groupby(noise["seed"]).cummax()
    return noise[~reached]


shipped_noise = reference("noise_scale_live")
figure, axes = plt.subplots()
overlay(axes, noise, shipped_noise, x="step", y="noise_scale")
goal_step = until_goal(shipped_noise).groupby("seed")["step"].max().mean()
axes.axvline(goal_step, color="black", linestyle=":", label="goal reached (reference)")
axes.set(xlabel="step (of 256 images)", ylabel="gradient noise scale (images)")
logarithmic(axes.yaxis)
axes.legend()
plt.show()

# %% [markdown]
# At first all images agree which way is down, and the noise scale is small. The better the network, the
# smaller the gradient that is left, and the more the images differ: the noise scale *grows* through training,
# as in the paper. (This is why some schedules let the batch grow, lab 7.) The dotted line is where the
# reference reached the goal.
#
# The paper measured an average of about 900 for a small convolutional network on MNIST, trained much longer.
# Our goal comes early, so expect less here. Average until the goal:


# %%
def mean_until_goal(noise):
    return until_goal(noise).groupby("seed", as_index=False)["noise_scale"].mean()


mean_noise, mean_shipped = mean_until_goal(noise), mean_until_goal(shipped_noise)
noise_scale = mean_noise["noise_scale"].mean()
print(f"gradient noise scale until the goal: {noise_scale:.0f} images")

# %% [markdown]
# ## Predict the knee
#
# Now the experiment itself: count the steps until 85 % of the held-out images are right, for batches from 16
# to 2048. From which batch on does *twice the batch* save *less than a quarter* of the steps?

# %%
prediction = None  # a batch size: your guess, before you run the next cells

# %% [markdown]
# A comparison is only fair if every batch has its own best learning rate (Shallue et al. 2018,
# [arXiv:1811.03600](https://arxiv.org/abs/1811.03600), trained 168 160 models to keep this rule). So each
# batch tries several rates around a scaled one, $\eta(B) = \eta_\text{max} / (1 + B_0 / B)$: linear in $B$ for
# small batches, level for large ones. The best rate is the one with the fewest steps, by median over the
# seeds.

# %%
BATCHES = [16, 128, 1024] if QUICK else [16, 32, 64, 128, 256, 512, 1024, 2048]
FACTORS = by_run_length(quick=[1.0], learner=[0.7, 1.0, 1.4], reference=[0.5, 0.7, 1.0, 1.4])


def count_steps(batch_size, factor, seed):
    every = max(2, 1024 // batch_size)  # look at the held-out images once in so many steps
    rounds = 800_000 // (every * batch_size)
    order = shuffled(seed, 60_000, rounds * every * batch_size).reshape(rounds, every, batch_size)
    train(tf.constant(order[0]))  # compiles, before the clock starts
    learning_rate = factor * 0.25 / (1 + 64 / batch_size)
    restart(model, sgd, seed, learning_rate)
    steps, seconds, reached = 0, 0.0, False
    while not reached and steps < rounds * every:
        start = time.perf_counter()
        train(tf.constant(order[steps // every]))
        seconds += time.perf_counter() - start
        steps += every
        reached = float(accuracy(model, *held_out)) >= GOAL
    found = {"steps": steps, "seconds": seconds} if reached else {}
    speed = steps * batch_size / seconds
    return found | {"learning_rate": learning_rate, "images_per_second": speed}


settings = grid(batch_size=BATCHES, factor=FACTORS, seed=seeds(3, 5))
runs = sweep("steps_to_goal", count_steps, settings)
shipped = reference("steps_to_goal")


# %%
def best_rates(runs):
    """The runs at the best learning rate of each batch: fewest steps, by median over the seeds, then by mean."""
    counted = runs.assign(steps=runs["steps"].fillna(np.inf))  # not reached: more than any number
    over_seeds = counted.groupby(["batch_size", "factor"])["steps"].agg(["median", "mean"])
    in_order = over_seeds.sort_values(["median", "mean"]).reset_index()
    return runs.merge(in_order.drop_duplicates("batch_size")[["batch_size", "factor"]])


best, best_shipped = best_rates(runs), best_rates(shipped)
compare(best, best_shipped, by=["batch_size"], value="steps")

# %% [markdown]
# ## Exercise 2: Fit the law
#
# The noise model makes a law for the steps to a goal:
#
# $$S(B) = S_\text{min} \left( 1 + \frac{B_\text{crit}}{B} \right).$$
#
# $S_\text{min}$ are the steps of an enormous batch, and at $B_\text{crit}$ a run takes twice as many.
#
# **What:** find both from a table of batches and steps.
#
# **Why:** $B_\text{crit}$ is the knee that the noise scale should predict. It also answers the question above:
# twice the batch saves $1 - S(2B) / S(B) = \frac{B_\text{crit}}{2 (B + B_\text{crit})}$ of the steps, and that
# is a quarter exactly at $B = B_\text{crit}$.
#
# **Signature:** `fit_steps(batches, steps)` takes two arrays and returns `(s_min, b_crit)`. The errors of
# `steps` are about the same *in percent*: a fit that counts absolute errors would look at the smallest batches
# only.
#
# <details><summary>Hint 1</summary>
#
# With $x = 1/B$ the law is a straight line, $S = S_\text{min} + S_\text{min} B_\text{crit}\, x$. What is its
# intercept, what its slope?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `slope, intercept = np.polyfit(x, steps, 1, w=1 / steps)`: the weights `w` turn errors into relative ones.
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

# %% [markdown]
# ## Compare the knee with the noise
#
# The law, its two limits, and the noise scale that you measured before the first of these trainings ran.


# %%
def fit_table(best, mean_noise):
    """Return one fit per seed, together with the noise scale of that seed."""
    rows = []
    for seed, of_seed in best.dropna(subset="steps").groupby("seed"):
        s_min, b_crit = fit_steps(of_seed["batch_size"].values, of_seed["steps"].values)
        rows.append({"seed": seed, "s_min": s_min, "b_crit": b_crit})
    return pd.DataFrame(rows).merge(mean_noise)


fits, shipped_fits = fit_table(best, mean_noise), fit_table(best_shipped, mean_shipped)
s_min, b_crit = shipped_fits["s_min"].mean(), shipped_fits["b_crit"].mean()

# %%
sizes = np.geomspace(12, 2700, 100)
figure, axes = plt.subplots(figsize=(8, 5))
overlay(axes, best, best_shipped, x="batch_size", y="steps")
law = steps_to_goal(sizes, s_min, b_crit)
axes.plot(sizes, law, "k-", linewidth=1, label="law, fitted to the reference")
axes.plot(sizes, s_min * b_crit / sizes, "k:", linewidth=1, label="perfect scaling")
axes.axhline(s_min, color="black", linestyle="-.", linewidth=1, label="maximal parallelism")
axes.axvline(b_crit, color="black", linestyle="--", linewidth=1, label=f"fitted knee, {b_crit:.0f}")
axes.axvline(noise_scale, color="C1", linewidth=3, label=f"your noise scale, {noise_scale:.0f}")
expected = None if prediction is None else float(steps_to_goal(prediction, s_min, b_crit))
predicted(axes, expected, x=prediction)
axes.set(xlabel="batch size (images)", ylabel="steps to the goal")
logarithmic(axes.xaxis, 4, [1])
logarithmic(axes.yaxis)
axes.set_ylim(s_min / 2, None)
axes.legend(fontsize=9)
plt.show()


# %%
yours, course = (table.melt("seed", var_name="what") for table in (fits, shipped_fits))
compare(yours, course, by=["what"], value="value")

# %% [markdown]
# Left of the knee steps fall nearly as fast as the batch grows: twice the ranks, half the time. Right of it
# they level off. The two vertical lines are closer together than the paper promises, which is the order of
# magnitude: do not count on that with other networks and goals. The noise scale moves all through the run, and
# the law has one number for it.

# %% [markdown]
# ## Find the fastest batch
#
# Images per second rise with the batch, steps fall: what about the time? On one machine it is images read
# divided by images per second. On many ranks with a free network, one for every 16 images, a step always takes
# as long as a step of 16 images.

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4))
overlay(left, best, best_shipped, x="batch_size", y="images_per_second", times=True)
overlay(middle, best, best_shipped, x="batch_size", y="seconds", times=True)
points = best_shipped.dropna(subset="steps").groupby("batch_size")["steps"].mean()
step_of_16 = 16 / best_shipped.query("batch_size == 16")["images_per_second"].mean()
middle.plot(points * step_of_16, "--", color="C2", label="computed: a rank\nfor every 16 images")
right.plot(law, law * sizes, "k-", linewidth=1, label="law")
right.plot(points, points * points.index, "o", label="reference")
for batch, steps in points.items():
    where = (steps, steps * batch)
    right.annotate(f"{batch}", where, xytext=(6, 5), textcoords="offset points", fontsize=8)
left.set(xlabel="batch size (images)", ylabel="images per second")
middle.set(xlabel="batch size (images)", ylabel="seconds to the goal")
right.set(xlabel="steps to the goal", ylabel="images read to the goal")
middle.set_ylim(points.min() * step_of_16 / 4, None)  # room for the legend
for axes in (left, middle, right):
    logarithmic(axes.yaxis)
    logarithmic(axes.xaxis, *([10] if axes is right else [4, [1]]))
    axes.legend(fontsize=9)
plt.show()

# %% [markdown]
# *One machine* (left, middle): up to a batch of 128 the images per second grow faster than the images that are
# needed, so the time falls, if not at every point. From 256 on throughput still grows, but the images grow faster, and more images only
# take longer: **time to the goal has a bottom**. The throughput by itself would suggest a larger batch. *Many ranks*: the
# time follows the steps. Beyond the knee twice the ranks hardly save any, and a real all-reduce costs on top.
#
# Right, the same law as a price list: time (steps) against the bill (images read). Every batch is a point.
# Going up the left end, a few steps less cost twice the images; going down the right end, a few images less
# cost twice the steps. The knee is between.

# %% [markdown]
# ## Predict the generalisation gap
#
# So far a large batch only cost computing. Keskar et al. (2017,
# [arXiv:1609.04836](https://arxiv.org/abs/1609.04836)) asked what it *finds*: they trained with 256 images and
# with 10 % of all images a batch, Adam, until the loss stopped falling, and compared accuracies on the test set.
# Now something like it with 5 000 images: batches of 64 and of 500, and the same 60 epochs for both.
#
# What will the held-out accuracy of the small batch be, *minus* that of the large batch, in percentage points?

# %%
gap_prediction = None  # above 0: the small batch generalises better; 0; below 0

# %% [markdown]
# ## Exercise 3: Climb out of the minimum
#
# Their explanation is the shape of the minimum. *Sharpness* is the largest rise of the loss in a small box
# around it, in percent of $1 + L$:
#
# $$\max_{w'} \frac{L(w') - L(w)}{1 + L(w)} \cdot 100, \qquad |w_i' - w_i| \le \varepsilon\, (|w_i| + 1), \quad \varepsilon = 10^{-3}.$$
#
# **What:** one step of the search for that maximum. Each weight moves by *half of its half-width* $h_i =
# \varepsilon (|w_i| + 1)$ uphill, along the *sign* of its gradient, and is then put back into the box of the
# *minimum*.
#
# **Why:** a few such steps reach a bad corner: eight gradients give a lower bound that tells sharp from flat.
#
# **Signature:** `box_step(weights, gradient, minimum, eps)` takes arrays of one shape (where you are, the
# gradient there, the centre of the box) and returns the new weights.
#
# <details><summary>Hint 1</summary>
#
# Three lines: the half-widths, the step, the clip. `np.sign` of 0 is 0.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)`, with `half` from
# `minimum`, not from `weights`.
#
# </details>


# %%
def box_step(weights, gradient, minimum, eps):
    # BEGIN SOLUTION: return the weights after one step uphill, inside the box
    half = eps * (np.abs(minimum) + 1)
    return np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)
    # END SOLUTION


# %%
exercises.check_box_step(box_step)

# %% [markdown]
# ## Train two kinds of minima
#
# Both batches start from the same weights (same seed), see the same images equally often, and use the same
# Adam. Only the number of images a step differs.

# %%
EPOCHS = by_run_length(quick=8, learner=60, reference=60)
few = tensors(data.train_images[:5000], data.train_labels[:5000])
test_set = tensors(data.test_images, data.test_labels)
classifier, adam = build(256, 256), keras.optimizers.Adam()
train_few = make_train(classifier, adam, few)


@tf.function
def loss_of_few():
    return loss_function(few[1], classifier(few[0]))


@tf.function
def gradient_of_few():
    return gradient(classifier, few, tf.range(5000))


def loss_at(weights):
    classifier.set_weights(weights)
    return float(loss_of_few())


# %%
def sharpness(minimum, eps=1e-3):
    weights, start = minimum, loss_at(minimum)
    worst = start
    for _ in range(8):
        gradients = [g.numpy() for g in gradient_of_few()]
        layers = zip(weights, gradients, minimum, strict=True)
        weights = [box_step(*arrays, eps) for arrays in layers]
        worst = max(worst, loss_at(weights))
    return 100 * (worst - start) / (1 + start)


# %%
minima = {}  # (batch size, seed) -> weights


def find_minimum(batch_size, seed):
    restart(classifier, adam, seed, learning_rate=0.001)
    for epoch in range(EPOCHS):
        order = np.random.default_rng([seed, epoch]).permutation(5000)
        order = order[: 5000 // batch_size * batch_size].reshape(-1, batch_size)
        train_few(tf.constant(order.astype("int32")))
    minima[batch_size, seed] = minimum = classifier.get_weights()
    training, held_out = (float(accuracy(classifier, *part)) for part in (few, test_set))
    return {"training": training, "held_out": held_out, "sharpness": sharpness(minimum)}


gap = sweep("generalisation_gap", find_minimum, grid(seed=seeds(3, 10), batch_size=[64, 500]))
shipped_gap = reference("generalisation_gap")
for column in ("training", "held_out", "sharpness"):
    print(f"{column}:\n{compare(gap, shipped_gap, by=['batch_size'], value=column)}\n")


# %%
def gaps(table):
    """Of each seed: held-out accuracy of batch 64 minus that of batch 500, in points."""
    wide = table.pivot(index="seed", columns="batch_size", values="held_out").reindex(
        columns=[64, 500]
    )
    return 100 * (wide[64] - wide[500])


for name, table in (("yours", gap), ("reference", shipped_gap)):
    found = gaps(table).agg(["mean", "sem", "count"])
    print("gap, {}: {:.2f} points, standard error {:.2f} (n={:.0f})".format(name, *found))

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4))
overlay(left, gap, shipped_gap, x="batch_size", y="held_out")
left.set(ylabel="held-out accuracy")
middle.plot(gaps(shipped_gap), "s", label="reference")
middle.plot(gaps(gap), "o", markeredgecolor="black", label="yours")
middle.axhline(0, color="grey", linewidth=1)
middle.set(xlabel="seed", ylabel="gap: batch 64 minus 500 (points)")
middle.set_xticks(shipped_gap["seed"].unique())
middle.legend()
predicted(middle, gap_prediction)
overlay(right, gap, shipped_gap, x="batch_size", y="sharpness")
right.set(ylabel="sharpness (% of 1 + loss)")
logarithmic(right.yaxis)
for axes in (left, right):
    axes.set(xscale="log", xlabel="batch size (images)", xlim=(45, 700))
    axes.minorticks_off()
    axes.set_xticks([64, 500], ["64", "500"])
plt.show()

# %% [markdown]
# Both batches know (nearly) all training images by heart, and the minimum of the large one is sharper by an
# order of magnitude. Held out, the small one is ahead on average by a fraction of a point, less than single
# seeds scatter and less than twice its standard error: ten seeds make it likely, and do not prove it. The paper has the same signs: approximately
# 98.0 against 97.8 % for a fully connected network on MNIST, with sharpness approximately 1 against 200, and
# approximately 80 against 77 % for a convolutional network on CIFAR-10.
#
# Two warnings. *The same epochs*, a limit of this lab, give the large batch an eighth of the steps; Shallue et al. found no evidence
# that a large batch generalises worse once it is tuned, and lab 7 works on that. And that sharpness comes with the gap does not
# prove that it is the cause. You see next why it is disputed.

# %% [markdown]
# ## Walk from one minimum to the other
#
# The paper's picture: the straight line through both minima, $w(\alpha) = (1 - \alpha)\, w_{64} + \alpha\,
# w_{500}$.

# %%
for key in ((64, 1), (500, 1)):
    if key not in minima:
        find_minimum(*key)
small, large = minima[64, 1], minima[500, 1]
alphas = np.linspace(-0.5, 1.5, by_run_length(quick=9, learner=41, reference=41))


def along_the_line(start, end):
    direction = [b - a for a, b in zip(start, end, strict=True)]
    return loss_landscape.slice_1d(loss_at, start, direction, alphas)


figure, axes = plt.subplots()
axes.plot(alphas, along_the_line(small, large))
for alpha, name in ((0, "batch 64"), (1, "batch 500")):
    axes.axvline(alpha, color="black", linestyle=":")
    axes.annotate(name, (alpha, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
axes.set(xlabel=r"$\alpha$", ylabel="training loss", yscale="log")
plt.show()

# %% [markdown]
# ## Fall into the trap
#
# Two minima with a hill between, the large batch's in the narrower valley. So is it sharper? Before you
# answer: ReLU passes a positive factor through. Divide weights and biases of the first layer by 4, multiply
# the weights of the second by 4, and *the network is the same function*, image by image.


# %%
def rescaled(weights, factor):
    first, first_bias, second, *rest = weights
    return [first / factor, first_bias / factor, second * factor, *rest]


disguised = rescaled(small, 4)
faces = [("batch 64", small), ("batch 500", large), ("batch 64, disguised", disguised)]
for name, weights in faces:
    print(f"{name}: loss {loss_at(weights):.6f}, sharpness {sharpness(weights):.0f}")

# %%
figure, panels = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
for (name, weights), look in zip(faces, ("C0-", "C1-", "k--"), strict=True):
    plain = loss_landscape.random_direction(weights, np.random.default_rng(0))
    normalised = loss_landscape.filter_normalize(plain, weights)
    for axes, direction, reach in ((panels[1], plain, 0.03), (panels[2], normalised, 1)):
        steps = np.linspace(-reach, reach, by_run_length(quick=9, learner=31, reference=31))
        axes.plot(
            steps, loss_landscape.slice_1d(loss_at, weights, direction, steps), look, label=name
        )
panels[0].plot(alphas, along_the_line(small, large), "C2-", label="from batch 64")
panels[0].plot(alphas, along_the_line(disguised, large), "k--", label="from its disguise")
panels[0].set(xlabel=r"$\alpha$, line to batch 500", ylabel="training loss", yscale="log")
panels[1].set(xlabel="along a random direction")
panels[2].set(xlabel="along the same, filter-normalised")
for axes in panels[:2]:
    axes.legend(fontsize=9)
plt.show()

# %% [markdown]
# One and the same function has two sharpnesses, and (left, middle) two shapes. The step is alike for all
# weights, so the small weights of the disguise feel it most, and the "flat" minimum becomes the sharp one
# (Dinh et al. 2017, [arXiv:1703.04933](https://arxiv.org/abs/1703.04933)). Nobody rescales on purpose, but
# weight decay does: it shrinks the weights most where most steps are taken, with the small batch. Li et al.
# (2018, [arXiv:1712.09913](https://arxiv.org/abs/1712.09913)) show trainings in which that turns the picture
# round.
#
# Right, their cure: give each filter (the weights into one unit) of the direction the length of the same
# filter of the network. Disguise and original are one curve.

# %% [markdown]
# ## Look at both minima, filter by filter
#
# Two such directions make a surface. One unit changes each filter by 100 %. Find the same colour on both sides:
# how much farther from the cross does the small batch reach it? Compare that with the ratio of the sharpnesses.

# %%
axis = np.linspace(-1, 1, by_run_length(quick=5, learner=17, reference=17))
figure, panels = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True)
for axes, (name, weights) in zip(panels, faces[:2], strict=True):
    rng = np.random.default_rng(0)
    plain = [loss_landscape.random_direction(weights, rng) for _ in range(2)]
    pair = [loss_landscape.filter_normalize(direction, weights) for direction in plain]
    surface = np.log10(loss_landscape.slice_2d(loss_at, weights, *pair, axis, axis))
    levels = np.linspace(-4, 1.5, 12)
    print(f"{name}: the loss is below 0.1 on {np.mean(surface < -1):.0%} of the area")
    drawn = axes.contourf(axis, axis, surface, levels, cmap="viridis", extend="both")
    axes.plot(0, 0, "w+", markersize=12)
    axes.set(xlabel="first direction", title=name, aspect="equal")
panels[0].set_ylabel("second direction")
figure.colorbar(drawn, ax=panels, label="log10 of the training loss")
plt.show()

# %% [markdown]
# The minimum of the small batch is the wider one here, too, but by less than its sharpness says. At the seeds 1, 2 and 3
# its loss is below 0.1 on 30, 25 and 30 % of the area, that of the large batch on 16, 13 and 13 % (before the cell above, `faces = [("64", minima[64, 2]),
# ("500", minima[500, 2])]` shows those of seed 2): twice the area is 1.4 times as far from the cross. Their sharpnesses differ by factors of 12, 16 and 26; in a bowl that would
# be 3 to 5 times as far. Directions that know the scale of the weights leave a part of the difference, not all of it.
#
# ## Take with you
#
# * Tune the learning rate at every batch before you compare batches, and count steps to a goal, not epochs.
# * Below the knee, doubling the ranks nearly halves the time. Beyond it, more ranks hardly save any time. The noise
#   scale predicts the order of magnitude of the knee from one run, and grows through training.
# * At the same epochs a large batch may generalise worse; measure with several seeds, for the gap is small.
#   Lab 7 works on it.
# * A picture of a minimum needs directions that know the scale of the weights.
#
# **To continue:** put momentum 0.9 into `keras.optimizers.SGD` and a tenth of the learning rate. Where is the knee
# now? Or watch the noise with a goal of 0.83.
