# %% [markdown]
# # Lab 3: Stochastic gradient descent
#
# **Time:** 75 minutes. **You measure** what a small batch costs in noise and what a large one costs in
# time: the noise ball of SGD, throughput and time to accuracy of a real network against the batch size, and
# what skip connections do to a loss surface. **You need** lab 2 and a little Keras.
#
# Lab 2 computed each gradient from all examples. Networks are trained on a few examples at a time, the
# *batch*, and its size is the number that this course turns most often: training on many processes means
# training with large batches.

# %%
import os
import time
from functools import cache

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from keras import layers

from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, overlay, predicted, summary
from hvdlab.course.loss_landscape import filter_normalize, random_direction, slice_1d, slice_2d
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab03_stochastic_gradient_descent as exercises

# %% [markdown]
# # Part A: one neuron
#
# The data and the model of lab 2: a hundred points and a line $\hat y = w x + b$ with the mean squared
# error. $x$ is centred, so that the bowl is not too long; then the largest eigenvalue of the Hessian
# belongs to $w$ alone and is $\lambda = 2\,\overline{x^2}$.


# %%
def make_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, 100)
    y = 10 * (x + rng.normal(size=100)) + 2
    return x - x.mean(), y


def gradient(w, b, x, y):
    errors = w * x + b - y
    return 2 * np.mean(errors * x), 2 * np.mean(errors)


x, y = make_data(seed=1)
w_best, b_best = np.polyfit(x, y, 1)
print(f"the best line: w={w_best:.3f}, b={b_best:.2f}")

# %% [markdown]
# ## Exercise 1: Deal the data in batches
#
# **What:** yield the indices in `order`, `batch_size` at a time. Every index comes exactly once and in its
# order; where the batch size does not divide the number of examples, the last batch is shorter. Any batch
# size from 1 to the number of examples must work.
#
# **Why:** in one *epoch* every example is read once, in an order that is new each time. A batcher that
# drops the tail, or reads examples twice, trains on other data than you think.
#
# **Signature:** `batches(order, batch_size)` yields arrays of indices; `order` is an array, such as
# `rng.permutation(100)`.
#
# <details><summary>Hint 1</summary>
#
# A batch is a slice, `order[start:stop]`. Which values does `start` take? `range` has a third argument.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A slice may reach beyond the end of an array: `order[96:128]` of a hundred has four elements. So no case
# is needed for the tail.
#
# </details>


# %%
def batches(order, batch_size):
    # BEGIN SOLUTION: yield the indices in order, batch_size at a time
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
    # END SOLUTION


# %%
exercises.check_batches(batches)

# %% [markdown]
# ## Descend with small batches
#
# The step is that of lab 2; only the gradient now comes from the examples of one batch. On average it is
# the gradient of all examples. Each single one is not.


# %%
def descend(batch_size, learning_rate, epochs, seed=1):
    rng = np.random.default_rng(seed)
    w, b = 0.0, 18.0
    path = [(w, b)]
    for _ in range(epochs):
        for chosen in batches(rng.permutation(len(x)), batch_size):
            dw, db = gradient(w, b, x[chosen], y[chosen])
            w, b = w - learning_rate * dw, b - learning_rate * db
            path.append((w, b))
    return np.array(path)


figure, panels = plt.subplots(1, 3, figsize=(12, 4), sharey=True)
w_grid, b_grid = np.meshgrid(np.linspace(-3, 20, 100), np.linspace(10, 65, 100))
excess = (w_grid - w_best) ** 2 * np.mean(x**2) + (b_grid - b_best) ** 2  # exact: x is centred
for axes, batch_size in zip(panels, (1, 32, 100), strict=True):
    path = descend(batch_size, learning_rate=0.02, epochs=10)
    axes.contour(w_grid, b_grid, excess, np.geomspace(3, 3000, 8), cmap="viridis", linewidths=1)
    axes.plot(*path.T, ".-", color="#D55E00", linewidth=0.7, markersize=4, label="descent")
    axes.plot(w_best, b_best, "*", color="black", markersize=12, label="least squares", zorder=5)
    axes.set(xlabel="w", title=f"batches of {batch_size}: {len(path) - 1} steps")
panels[0].set_ylabel("b")
panels[2].legend(loc="lower right", frameon=True, framealpha=1)
plt.show()

# %% [markdown]
# **What you should see:** each panel read every example ten times. With batches of 1 that made a thousand
# steps, which arrived early and now dance around the minimum; the full batch made ten smooth steps and is
# still on its way. Small batches buy more steps for the same reading, and pay with noise.
#
# ## Predict the noise ball
#
# At a constant step size the dance never ends: $w$ stays in a *noise ball* around the minimum. How large is
# it? Here is its variance for batches of 1, at the step size 0.005. What will it be for batches of 10?

# %%
RATE = 0.005
CHAINS = 20  # descents side by side, as columns of arrays
STEPS = by_run_length(quick=300, learner=1500, reference=2500)


def noise_ball(batch_size, sampling, seed):
    x, y = make_data(seed)
    rng = np.random.default_rng(seed)
    w_best, b_best = np.polyfit(x, y, 1)
    w, b, visited = np.full((CHAINS, 1), w_best), np.full((CHAINS, 1), b_best), []
    while len(visited) < STEPS:
        orders = rng.integers(0, len(x), (CHAINS, len(x)))
        if sampling == "each once an epoch":
            orders = rng.permuted(np.tile(np.arange(len(x)), (CHAINS, 1)), axis=1)
        for columns in batches(np.arange(len(x)), batch_size):
            x_batch, y_batch = x[orders[:, columns]], y[orders[:, columns]]
            errors = w * x_batch + b - y_batch
            w = w - RATE * 2 * np.mean(errors * x_batch, axis=1, keepdims=True)
            b = b - RATE * 2 * np.mean(errors, axis=1, keepdims=True)
            visited.append(w)
    late = np.array(visited[STEPS // 5 :])  # when the ball has its size
    curvature, C = 2 * np.mean(x**2), np.mean((2 * (w_best * x + b_best - y) * x) ** 2)
    theory = RATE * C / (curvature * (2 - RATE * curvature) * batch_size)
    return {"variance": np.mean((late - w_best) ** 2), "theory": theory}


print(f"batches of 1: variance {noise_ball(1, 'with replacement', seed=1)['variance']:.2f}")

# %%
prediction = None  # your guess, before you run the next cells: the variance of w for batches of 10

# %% [markdown]
# ## Derive the noise ball
#
# Near the minimum a step multiplies the distance $\delta = w - w^*$ by $1 - \eta\lambda$ (lab 2) and adds
# the noise of the gradient, whose variance is $C / B$ for $B$ examples drawn at random. In the long run
# what the first takes away the second brings back:
#
# $$\operatorname{Var} \delta = (1 - \eta\lambda)^2 \operatorname{Var} \delta + \eta^2 \frac{C}{B}
# \qquad\Longrightarrow\qquad \operatorname{Var} \delta = \frac{\eta\, C}{\lambda (2 - \eta\lambda) B} .$$
#
# For our line $\lambda = 2\,\overline{x^2}$, and $C$ is the mean of the squared gradients of the single
# examples, so that $\operatorname{Var} w$ is about $\eta / B$ times the least loss. **Twice the batch, half
# the variance**; and half the step size does the same.
#
# The experiment draws the examples by two methods: *with replacement*, where each example is drawn from the whole set,
# as the derivation assumes, and *each once an epoch*, which is what your batcher does.

# %%
samplings = ["with replacement", "each once an epoch"]
settings = grid(sampling=samplings, batch_size=[1, 2, 5, 10, 20, 50], seed=seeds(3, 5))
balls = sweep("noise_ball", noise_ball, settings)
shipped_balls = reference("noise_ball")

# %%
figure, axes = plt.subplots(figsize=(8, 4.5))
names = {name: name for name in samplings}
overlay(axes, balls, shipped_balls, x="batch_size", y="variance", by="sampling", labels=names)
theory = summary(shipped_balls, ["batch_size"], "theory")
axes.plot(theory["batch_size"], theory["mean"], "k:", label="theory")
predicted(axes, prediction, x=10)
axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="variance of w around the minimum")
axes.set_xticks(theory["batch_size"], labels=theory["batch_size"])
axes.legend()
plt.show()

# %%
compare(balls, shipped_balls, by=["sampling", "batch_size"], value="variance")

# %% [markdown]
# **What you should see:** with replacement, the variance falls along the line of the theory, in proportion to
# $1/B$. (With batches of one it lies a little above: the noise grows with the distance from the minimum,
# and the derivation takes it as constant.) Your batcher does better, the more so the larger the batch: the
# errors of an epoch's batches add up to almost nothing, because all examples come. The descent remembers
# about $1/(\eta\lambda)$ steps; once an epoch is shorter than that, its noise cancels. With the full batch
# none is left.
#
# # Part B: a real network
#
# Fashion-MNIST: photos of clothes, 28 x 28 pixels, ten classes. We train on 10,000 of its 60,000 images,
# and hold 2000 test images out. The network is a small CNN, so that everything runs within minutes on two
# cores.

# %%
data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
TRAIN = by_run_length(quick=1000, learner=10_000, reference=10_000)
HELD_OUT = by_run_length(quick=500, learner=2000, reference=2000)
train_images = data.train_images[:TRAIN].astype("float32") / 255
train_labels = data.train_labels[:TRAIN].astype("int32")
held_out_images = data.test_images[:HELD_OUT].astype("float32") / 255
held_out_labels = data.test_labels[:HELD_OUT].astype("int32")


def small_cnn(seed):
    keras.utils.set_random_seed(seed)
    images = keras.Input((28, 28, 1))
    hidden = layers.Conv2D(8, 5, strides=2, activation="relu")(images)
    hidden = layers.Conv2D(16, 3, strides=2, activation="relu")(hidden)
    hidden = layers.Dense(64, activation="relu")(layers.Flatten()(hidden))
    return keras.Model(images, layers.Dense(10)(hidden))


print(f"{small_cnn(1).count_params()} weights, {TRAIN} training images, {HELD_OUT} held out")

# %% [markdown]
# ## Measure the throughput
#
# How many images a second does training read? A callback stops the time of each epoch. The first epoch is
# left out: in it Keras compiles the training step.


# %%
class Stopwatch(keras.callbacks.Callback):
    """The seconds that each epoch trains; what is measured after it (validation) does not count."""

    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.now = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(self.now - self.started)


def compiled(model, learning_rate, momentum=0.0):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(learning_rate, momentum)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def throughput(batch_size, seed):
    model, stopwatch = compiled(small_cnn(seed), learning_rate=0.1), Stopwatch()
    length = {"batch_size": batch_size, "epochs": by_run_length(quick=2, learner=3, reference=4)}
    model.fit(train_images, train_labels, **length, verbose=0, callbacks=[stopwatch])
    return {"images_per_second": TRAIN / np.median(stopwatch.seconds[1:])}


print(f"batches of 16: {throughput(16, seed=1)['images_per_second']:.0f} images a second")

# %%
prediction = None  # your guess, before you run the next cell: images a second with batches of 256

# %%
sizes = by_run_length(
    quick=[16, 256], learner=[8, 32, 128, 256, 1024], reference=[8, 16, 32, 64, 128, 256, 512, 1024]
)
speeds = sweep("throughput_batch_size", throughput, grid(batch_size=sizes, seed=seeds(1, 3)))
shipped_speeds = reference("throughput_batch_size")

# %%
figure, axes = plt.subplots()
overlay(axes, speeds, shipped_speeds, x="batch_size", y="images_per_second", times=True)
predicted(axes, prediction, x=256)
axes.set(xscale="log", xlabel="batch size", ylabel="images a second", ylim=(0, None))
axes.set_xticks(shipped_speeds["batch_size"].unique(), labels=shipped_speeds["batch_size"].unique())
axes.minorticks_off()
plt.show()

# %% [markdown]
# **What you should see:** throughput doubles with the batch at first, and grows more slowly later. A step has a
# fixed price (starting the operations, updating the weights) and a price for each image. Small batches pay
# mostly the first, large ones mostly the second; a batch that pays only the second just takes longer. A GPU has
# thousands of units to keep busy, so it gets there later. Your machine is not the one that made the line: expect
# other heights, and steps in it. (In the median our line stands still from 256 to 512 and doubles to 1024; the band shows how far
# single runs differ there.)
#
# ## Exercise 2: Write the rule that ends a training run
#
# Throughput is not the goal; a trained network is. So we measure the **time to accuracy**: until the
# held-out accuracy has been at the goal for some epochs in a row. (A single epoch may be luck.)
#
# **What:** say whether each of the last `patience` accuracies is at least `goal`.
#
# **Signature:** `reached(accuracies, goal, patience)` takes the held-out accuracies so far, a list with one
# number an epoch, and returns `True` or `False`.
#
# <details><summary>Hint 1</summary>
#
# The last ones are `accuracies[-patience:]`. What is that where the list is shorter than `patience`?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Two conditions joined by `and`: there are at least `patience` accuracies, and `all(...)` of the last ones
# are at least the goal.
#
# </details>


# %%
def reached(accuracies, goal, patience):
    # BEGIN SOLUTION: return True if each of the last accuracies is at least the goal
    return len(accuracies) >= patience and all(a >= goal for a in accuracies[-patience:])
    # END SOLUTION


# %%
exercises.check_reached(reached)

# %% [markdown]
# ## Measure the time to accuracy
#
# The clock counts the steps of training alone: neither validation nor compiling (for that, one step runs
# first and its weights are put back; where the last batch of an epoch is shorter, Keras compiles once more,
# a tenth to a fifth of a second of the first epoch). The learning rate stays the same for all batch sizes.
# Which batch size gets to an accuracy of 0.8 first?
#
# Most runs take seconds. One that never arrives is ended after 100 epochs, which with batches of 4, the last
# ones, are ten minutes; the runs before it are kept when you interrupt it.

# %%
GOAL, PATIENCE, LEARNING_RATE = by_run_length(quick=0.3, learner=0.8, reference=0.8), 2, 0.1


class StopAtGoal(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.accuracies = []

    def on_epoch_end(self, epoch, logs=None):
        self.accuracies.append(logs["val_accuracy"])
        self.model.stop_training = reached(self.accuracies, GOAL, PATIENCE)


def time_to_accuracy(batch_size, seed):
    model = compiled(small_cnn(seed), LEARNING_RATE)
    start = model.get_weights()
    model.fit(train_images[:batch_size], train_labels[:batch_size], batch_size, verbose=0)
    model.set_weights(start)
    stopwatch, stop = Stopwatch(), StopAtGoal()
    validation = {
        "validation_data": (held_out_images, held_out_labels),
        "validation_batch_size": 500,
    }
    length = {"batch_size": batch_size, "epochs": 100}
    callbacks = [stopwatch, stop]
    model.fit(train_images, train_labels, **length, **validation, callbacks=callbacks, verbose=0)
    done = reached(stop.accuracies, GOAL, PATIENCE)
    return {"seconds": sum(stopwatch.seconds) if done else np.nan, "epochs": len(stop.accuracies)}


# %%
prediction = None  # your guess, before you run the next cell: the fastest batch size

# %%
sizes = by_run_length(
    quick=[16, 128], learner=[16, 64, 256, 1024, 4], reference=[16, 64, 256, 1024, 4]
)
times = sweep("time_to_accuracy", time_to_accuracy, grid(batch_size=sizes, seed=seeds(1, 3)))
shipped_times = reference("time_to_accuracy")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
there, shipped_there = times.dropna(), shipped_times.dropna()  # the runs that reached the goal
overlay(left, there, shipped_there, x="batch_size", y="seconds", times=True)
overlay(right, there, shipped_there, x="batch_size", y="epochs", times=True)
if prediction is not None:
    left.axvline(prediction, color="black", linestyle="--", label="your prediction")
    left.legend()
ticks = sorted({*times["batch_size"], *shipped_times["batch_size"]})
for axes, what in ((left, f"seconds to accuracy {GOAL}"), (right, f"epochs to accuracy {GOAL}")):
    axes.set(xscale="log", xlabel="batch size", ylabel=what, ylim=(0, None))
    axes.set_xticks(ticks, labels=ticks)
    axes.minorticks_off()
plt.show()

# %%
never = shipped_times[shipped_times["seconds"].isna()]
print(f"{len(never)} of {len(shipped_times)} reference runs did not get there in 100 epochs:")
print(f"batch sizes {never['batch_size'].tolist()}")
compare(times, shipped_times, by=["batch_size"], value="seconds")

# %% [markdown]
# **What you should see:** both ends lose. The smallest batch has the lowest throughput, so each of its
# epochs takes long; it even needs more of them than the next one, as its noise ball is wide for this
# learning rate (part A), and a run may be thrown so far that it never arrives. Large batches read images fast, but make few steps an epoch, and so need many
# epochs. The best lies between; the spread over seeds says how well we know it.
#
# Much of the right end is due to the learning rate, which we did not touch: a less noisy gradient allows
# larger steps. Lab 6 turns both together, and shows where that ends, too.
#
# # Part C: the surface of a real loss
#
# The bowl of lab 2 had two dimensions. The networks of this course have thousands to millions, and their
# losses are no bowls. Li et al. (2018) made them visible: stand at the trained weights $\theta$, choose two
# random directions $d_1, d_2$, and draw
#
# $$ (\alpha, \beta) \;\mapsto\; L(\theta + \alpha d_1 + \beta d_2) . $$
#
# So that networks can be compared, each filter of a direction is made as long as the same filter of the
# network (`filter_normalize`): at $\alpha = 1$ each filter has been changed by as much as itself.
#
# Their most famous pair of pictures shows a deep network with *skip connections* and the same network
# without. Ours has up to 26 dense layers of width 32, on Fashion-MNIST at 14 x 14 pixels, so that it trains
# in seconds. A skip is one `Add`.

# %%
shape = (TRAIN, 14, 2, 14, 2)
small_images = data.train_images[:TRAIN].reshape(shape).mean((2, 4), dtype="float32")[..., None]
small_images = (small_images - small_images.mean()) / small_images.std()
BLOCKS = by_run_length(quick=[1], learner=[2, 6, 12], reference=[2, 6, 12])


def deep_network(blocks, skips, seed, width=32):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((14, 14, 1))
    hidden = layers.Dense(width)(layers.Flatten()(inputs))
    for _ in range(blocks):
        branch = hidden
        for _ in range(2):
            branch = layers.Activation("relu")(layers.BatchNormalization()(branch))
            branch = layers.Dense(width, kernel_initializer="he_normal")(branch)
        hidden = layers.Add()([hidden, branch]) if skips else branch
    hidden = layers.Activation("relu")(layers.BatchNormalization()(hidden))
    return keras.Model(inputs, layers.Dense(10)(hidden))


# %% [markdown]
# `loss(weights)` puts weights into the network and returns its loss on 1000 training images. Batch norm
# uses the statistics of these images, as in training: we look at the surface that the training walked on.
# (The averages that batch norm keeps for later do not fit weights far from the trained ones.)


# %%
@cache
def train_deep(blocks, skips, seed):
    """The trained weights, their loss as a function, and the training loss of the last epoch."""
    model = compiled(deep_network(blocks, skips, seed), learning_rate=0.05, momentum=0.9)
    epochs = by_run_length(quick=1, learner=8, reference=8)
    history = model.fit(small_images, train_labels, 128, epochs=epochs, verbose=0)
    images, labels = tf.constant(small_images[:1000]), tf.constant(train_labels[:1000])

    @tf.function(autograph=False)
    def forward():
        return model.loss(labels, model(images, training=True))

    def loss(weights):
        model.set_weights(weights)
        return float(forward())

    return model.get_weights(), loss, history.history["loss"][-1]


print(f"{2 * BLOCKS[-1] + 2} layers with skips: loss {train_deep(BLOCKS[-1], True, seed=1)[2]:.2f}")

# %%
prediction = None  # your guess, before you run the next cell: the same loss without skips

# %% [markdown]
# ## Cut the surface along random lines
#
# A convex function bends upwards everywhere, and descent cannot get lost on it. So we count how much of
# each slice bends *downwards*: the share of its points where the second difference is negative. A bowl has
# 0; pure noise would have one half.

# %%
ALPHAS = np.linspace(-1, 1, by_run_length(quick=5, learner=21, reference=21))


def skip_slices(blocks, skips, seed):
    weights, loss, training_loss = train_deep(blocks, skips, seed)
    rng, rows = np.random.default_rng(seed), []
    for number in range(by_run_length(quick=1, learner=3, reference=3)):
        direction = filter_normalize(random_direction(weights, rng), weights)
        losses = slice_1d(loss, weights, direction, ALPHAS)
        bends_down = np.mean(np.diff(losses, 2) < 0)
        row = {"layers": 2 * blocks + 2, "training_loss": training_loss, "bends_down": bends_down}
        rows += [
            {**row, "direction": number, "alpha": alpha, "loss_there": value}
            for alpha, value in zip(ALPHAS, losses, strict=True)
        ]
    return rows


settings = grid(blocks=BLOCKS, skips=[True, False], seed=seeds(1, 3))
slices = sweep("skip_connections", skip_slices, settings)
shipped_slices = reference("skip_connections")

# %%
names = {True: "with skips", False: "without"}
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2))
once = [
    t.groupby(["layers", "skips", "seed"], as_index=False).mean() for t in (slices, shipped_slices)
]
overlay(left, *once, x="layers", y="training_loss", by="skips", labels=names)
overlay(middle, *once, x="layers", y="bends_down", by="skips", labels=names)
deepest = [t[t["layers"] == t["layers"].max()] for t in (slices, shipped_slices)]
overlay(right, *deepest, x="alpha", y="loss_there", by="skips", labels=names)
predicted(left, prediction, x=26)
left.set(ylabel="training loss of the last epoch", ylim=(0, None))
middle.set(ylabel="share of the slice that bends down", ylim=(-0.02, 0.55))
right.set(
    xlabel=r"$\alpha$", ylabel=f"loss with {deepest[0]['layers'].max()} layers", ylim=(0, None)
)
for axes in (middle, right):
    axes.get_legend().remove()
left.legend(fontsize="small", loc="upper left")
plt.show()

# %%
compare(*once, by=["layers", "skips"], value="bends_down")

# %% [markdown]
# ## Draw the two surfaces

# %%
across = np.linspace(-1, 1, by_run_length(quick=5, learner=21, reference=21))
levels = np.arange(0, 4.6, 0.25)
figure, panels = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True)
for axes, skips in zip(panels, (True, False), strict=True):
    weights, loss, _ = train_deep(BLOCKS[-1], skips, seed=1)
    rng = np.random.default_rng(1)
    first, second = (filter_normalize(random_direction(weights, rng), weights) for _ in range(2))
    surface = slice_2d(loss, weights, first, second, across, across)
    filled = axes.contourf(across, across, surface, levels, cmap="viridis", extend="max")
    axes.contour(across, across, surface, levels, colors="black", linewidths=0.4)
    axes.plot(0, 0, "*", color="white", markeredgecolor="black", markersize=14)
    axes.set(xlabel=r"$\alpha$", title=names[skips], aspect="equal")
panels[0].set_ylabel(r"$\beta$")
figure.colorbar(filled, ax=panels, label="loss on 1000 training images")
plt.show()

# %% [markdown]
# **What you should see:** with skips nearly a bowl, with the trained network at its bottom, however many layers
# there are (a few points of a hundred bend down). Without them a basin in a rugged highland: the deeper the network, the more of each slice bends
# down and the higher the loss where training ends. (Error bars on the right are over directions and seeds.)
# Both networks have the same layers and weights. Skips do not make the network richer; they make its
# surface one that gradient descent can walk on.
#
# Where we differ from the paper: its networks are ResNets for CIFAR-10, trained to the end; ours are dense,
# and trained for eight epochs.

# %% [markdown]
# ## What to remember
#
# * A batch of $B$ examples makes a gradient with $1/B$ of the noise variance; at a constant step size the
#   noise ball shrinks in proportion.
# * An epoch that reads each example once has less noise than the theory says.
# * Throughput grows with the batch, fast at first, and ends where the machine is busy. The time to accuracy has its best batch size
#   between the extremes.
# * What gradient descent can do depends on the surface; architecture shapes it.
#
# **To continue, if you like:** halve `LEARNING_RATE` or double it, and predict first how the right panel of the
# time to accuracy changes. Or remove the batch norm in `deep_network` (and lower its learning rate): what
# do skips need it for?
#
# Reference: Li, Xu, Taylor, Studer, Goldstein, *Visualizing the Loss Landscape of Neural Nets*, 2018,
# [arXiv:1712.09913](https://arxiv.org/abs/1712.09913).
