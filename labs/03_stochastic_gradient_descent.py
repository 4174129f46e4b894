# %% [markdown]
# # Lab 3: SGD and batch size
#
# In 2017 a team trained the network ResNet-50 on the 1.3 million images of ImageNet in one hour, with 256
# GPUs ([Goyal et al.](https://arxiv.org/abs/1706.02677)). Each step used a **batch** of 8,192 images, 32 for
# each GPU. A GPU with fewer images would not be used well, so every additional device adds its images to the
# batch. This has a price, as you will see. So the question "how many GPUs can I use?" becomes "how large may
# the batch be?".
#
# This lab answers the question for one process. You measure what a small batch costs, which is noise, and
# what a large batch costs, which is a small number of steps.
#
# **After this lab you can**
#
# * write stochastic gradient descent (SGD) with batches and epochs;
# * compute how far the weights scatter around the minimum for a given learning rate and batch size;
# * explain the four parts of a training step, and what a neural network computes;
# * compute the time to a target accuracy from throughput and epochs, and judge measurements of a few runs;
# * design an experiment that decides whether the batch or the learning rate causes a higher loss.
#
# **Builds on** lab 2 (gradient descent, learning rate, curvature). You need Python with NumPy, and a little
# Keras or PyTorch. The [algebra bridge](00_test_and_bridge.ipynb) explains the variance of a mean.
#
# **Time:** 135 minutes for a learner who reads everything and does every exercise. The computer needs about
# four of them. A good place for a break is the section "Neural networks". [The start page](00_start_here.ipynb)
# explains the marks *Core* and *Optional*.

# %% tags=["folded"]
import matplotlib.pyplot as plt
import numpy as np

from hvdlab.course.experiment import by_run_length, complete, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, overlay, predicted, summary
from hvdlab.course.source import show_source
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab03_cause_of_a_loss as cause_exercises
from hvdlab.exercises import lab03_networks as network_exercises
from hvdlab.exercises import lab03_stochastic_gradient_descent as exercises
from hvdlab.exercises.lab03_noise_ball_player import show_noise_ball

workbook = Workbook(3)
hint = workbook.hint

# %%
# Write "keras" or "torch" in place of the call: the experiments are the same.
FRAMEWORK = by_run_length(quick="torch", learner="keras", reference="keras")
if FRAMEWORK == "keras":
    from hvdlab.course import sgd_keras as sgd
else:
    from hvdlab.course import sgd_torch as sgd

# %% [markdown]
# ## Data and model
#
# *Core, 3 minutes.*
#
# The first half of the lab uses the data and the model of lab 2: a hundred examples and a line
# $\hat y = w x + b$ with the mean squared error. The inputs are centred, so that the Hessian (the matrix of
# second derivatives, lab 2) is diagonal: $w$ and $b$ are independent. The curvature in the
# direction of $w$ is $\lambda = 2\,\overline{x^2}$, where the bar means the average over the examples. For
# these inputs it is about 17.


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
print(f"the best line: w={w_best:.2f}, b={b_best:.1f}")

# %% [markdown]
# ## Batches, steps and epochs
#
# *Core, 8 minutes. Later cells call `batches`.*
#
# Lab 2 computed each gradient from all examples. For a million images this would be wasteful, so training uses
# a few examples at a time. These words are used in the whole course:
#
# * A **batch** is the set of examples from which one gradient is computed. Many texts call it a mini-batch.
# * The **batch size** $B$ is the number of examples in a batch. It is a hyperparameter, as the learning rate
#   is.
# * A **step**, also called an update or an iteration, computes one gradient and changes the parameters once.
# * An **epoch** is a pass in which every example is read exactly once, usually in a new order.
#
# With $n$ examples an epoch has $n / B$ steps, rounded up. For example, 50,000 images with a batch size of
# 100 make 500 steps per epoch. With a batch size of 1,000 they make 50 steps, although the same number of
# images is read.
#
# ![Ten numbered examples in a random order, cut into batches of four, four and two. Each batch makes one step, so an epoch has three steps. The second epoch has a different order and makes the steps four to six.](pictures/batches_of_an_epoch.svg)
#
# ### Exercise 1: Batches
#
# **What:** yield the numbers in `order`, `batch_size` at a time. Every number comes exactly once and in its
# order. If the batch size does not divide the number of examples, the last batch is smaller. Any batch size
# from 1 to the number of examples must work.
#
# **Why:** a program that leaves out the last examples, or reads some of them twice, trains on other data than
# its author believes. In lab 4 each process gets its own examples, and this mistake becomes harder to see.
#
# **Signature:** `batches(order, batch_size)` yields arrays of example numbers. `order` is an array, such as
# `rng.permutation(100)`, which is a random order of the numbers 0 to 99.
#
# <details><summary>Hint 1</summary>
#
# A batch is a slice, `order[start:stop]`. Which values does `start` take?
#
# </details>
# <details><summary>Hint 2</summary>
#
# With ten examples and a batch size of 4 the slices are `order[0:4]`, `order[4:8]` and `order[8:12]`. The
# last one reaches beyond the end, and NumPy then returns the two elements that exist.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `range(0, len(order), batch_size)` counts 0, 4, 8. Yield `order[start : start + batch_size]`.
#
# </details>


# %%
def batches(order, batch_size):
    # BEGIN SOLUTION: yield the numbers in order, batch_size at a time
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
    # END SOLUTION


# %%
exercises.check_batches(batches)

# %% [markdown]
# ## Stochastic gradient descent
#
# *Core, 12 minutes. Later cells call `descend`.*
#
# **Stochastic gradient descent** (SGD) is gradient descent in which each gradient comes from one batch.
# *Stochastic* means random: the batch is a random sample of the examples, so its gradient is a random
# estimate of the gradient of all examples.
#
# For example, let the gradients of four single examples be 1, 5, 3 and 7. The gradient of all examples is
# their mean, 4. The batch of the first two has the gradient 3, and that of the last two has the gradient 5.
# Each batch is wrong by 1, but on average over both batches the gradient is right. This holds in general,
# because the mean of the means of equally large batches is the mean of everything. The estimate has no
# systematic error, only **noise**.
#
# ### Exercise 2: SGD
#
# **What:** in each epoch draw a new order of all examples, and make one step for each batch of your
# `batches`. Append $(w, b)$ to `path` after every step.
#
# **Why:** this is the training loop of every network in this course. The new order makes every batch a random
# sample. If the examples were sorted by class, a batch in that order would contain a single class, and its
# gradient would be far from that of all examples.
#
# **Signature:** `descend(x, y, batch_size, learning_rate, epochs, seed=1)` returns an array with one row
# `(w, b)` for the start and for each step. The generator of random numbers, the start and the list `path` are
# given.
#
# <details><summary>Hint 1</summary>
#
# You need two loops: one over the epochs, and inside it one over the batches of a new permutation. The step
# is that of lab 2.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If `chosen` is the array `[7, 2]`, then `x[chosen]` contains the inputs of the examples 7 and 2.
# With ten examples, a batch size of 4 and 2 epochs, the result has $1 + 2 \cdot 3 = 7$ rows.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The inner loop is `for chosen in batches(rng.permutation(len(x)), batch_size):`. The gradient is
# `gradient(w, b, x[chosen], y[chosen])`.
#
# </details>


# %%
def descend(x, y, batch_size, learning_rate, epochs, seed=1):
    rng = np.random.default_rng(seed)
    w, b = 0.0, 18.0
    path = [(w, b)]
    # BEGIN SOLUTION: make one step for each batch of each epoch, and append (w, b) to path
    for _ in range(epochs):
        for chosen in batches(rng.permutation(len(x)), batch_size):
            dw, db = gradient(w, b, x[chosen], y[chosen])
            w, b = w - learning_rate * dw, b - learning_rate * db
            path.append((w, b))
    # END SOLUTION
    return np.array(path)


# %%
exercises.check_descend(descend)

# %% tags=["folded"]
figure, panels = plt.subplots(1, 3, figsize=(12, 4), sharey=True)
w_grid, b_grid = np.meshgrid(np.linspace(-3, 20, 100), np.linspace(10, 65, 100))
excess = (w_grid - w_best) ** 2 * np.mean(x**2) + (b_grid - b_best) ** 2  # exact: x is centred
for axes, batch_size in zip(panels, (1, 32, 100), strict=True):
    path = descend(x, y, batch_size, learning_rate=0.02, epochs=10)
    axes.contour(w_grid, b_grid, excess, np.geomspace(3, 3000, 8), cmap="viridis", linewidths=1)
    axes.plot(*path.T, ".-", color="#D55E00", linewidth=0.7, markersize=4, label="descent")
    axes.plot(w_best, b_best, "*", color="black", markersize=12, label="least squares", zorder=5)
    axes.set(xlabel="w", title=f"batch size {batch_size}: {len(path) - 1} steps")
panels[0].set_ylabel("b")
panels[2].legend(loc="lower right", frameon=True, framealpha=1)
describe(
    figure,
    "Paths of SGD over rings of equal loss after ten epochs. With batch size 1 a thousand noisy steps "
    "scatter around the minimum; with 100 ten smooth steps are still on their way to it.",
)

# %% [markdown]
# **What the result means.** In each panel every example was read ten times. With a batch size of 1 this
# made a thousand steps. They arrived early, and now they scatter around the minimum without end. The full
# batch of 100 made ten smooth steps and has not arrived. Small batches give more steps for the same number
# of examples, and they pay for it with noise.
#
# ## Noise ball
#
# *Optional, 18 minutes.*
#
# With a constant learning rate the scattering never ends. The weight stays in a region around the minimum
# that is called the **noise ball**. How large is it? Two effects balance each other.
#
# *Each step pulls the weight towards the minimum.* Let $\delta = w - w^*$ be the distance from the best
# weight $w^*$. Without noise a step multiplies it by $1 - \eta\lambda$, as you know from lab 2.
#
# *Each step adds noise.* Let $C$ be the variance of the gradients of single examples. The average of $B$
# independent examples has the variance $C / B$. Its standard deviation, the square root of this, falls like
# $1 / \sqrt{B}$: a batch that is four times as large halves it. The step multiplies the gradient by $\eta$,
# which multiplies the variance by $\eta^2$. The noise of a step is independent of the noise before it, so the
# variances add up: the step adds $\eta^2 C / B$.
#
# In the long run the variance of $\delta$ is the same before and after a step:
#
# $$\operatorname{Var} \delta = (1 - \eta\lambda)^2 \operatorname{Var} \delta + \eta^2 \frac{C}{B}
# \qquad\Longrightarrow\qquad \operatorname{Var} \delta = \frac{\eta\, C}{\lambda\, (2 - \eta\lambda)\, B} .$$
#
# For example, let $C = 8$, $\lambda = 2$ and $\eta = 0.1$. With $B = 1$ the variance is $0.1 \cdot 8 / (2
# \cdot 1.8) = 0.22$. With $B = 4$ it is a quarter of this, 0.056. With half the learning rate and $B = 1$
# it is $0.05 \cdot 8 / (2 \cdot 1.9) = 0.11$, about one half. **A batch that is twice as large halves the
# variance, and a learning rate that is half as large does about the same.** This is why most trainings lower
# the learning rate towards the end (lab 7).
#
# For our line the gradient of example $i$ with respect to $w$ is $g_i = 2 e_i x_i$. At the best line the mean
# of all $g_i$ is 0, so their variance $C$ is the mean of their squares.
#
# ### Exercise 3: Variance of the noise ball
#
# **What:** compute the best line for the data with `np.polyfit`, the gradients $g_i$ of the single examples
# there, $C$ and $\lambda$, and return the variance of $w$.
#
# **Why:** the formula connects the learning rate with the batch size. Lab 7 uses it to answer how the
# learning rate should grow when the batch grows.
#
# **Signature:** `noise_variance(x, y, learning_rate, batch_size)` returns one number. The mean of `x` is 0.
#
# <details><summary>Hint 1</summary>
#
# `np.polyfit(x, y, 1)` returns the slope and the bias of the best line. With both you have the errors, and
# with the errors the gradients of the single examples.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For $x = (-1, 0, 1)$ and $y = (0, 3, 0)$ the best line has $w = 0$ and $b = 1$. The errors are $(1, -2, 1)$,
# the gradients $2 e_i x_i$ are $(-2, 0, 2)$, so $C = (4 + 0 + 4) / 3 = 8/3$. The curvature is
# $2 \cdot 2/3 = 4/3$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `noise = np.mean((2 * (w * x + b - y) * x) ** 2)` and `curvature = 2 * np.mean(x**2)`. The last line is the
# formula above.
#
# </details>


# %%
def noise_variance(x, y, learning_rate, batch_size):
    # BEGIN SOLUTION: return the variance of w around the minimum
    w, b = np.polyfit(x, y, 1)
    noise = np.mean((2 * (w * x + b - y) * x) ** 2)
    curvature = 2 * np.mean(x**2)
    return learning_rate * noise / (curvature * (2 - learning_rate * curvature) * batch_size)
    # END SOLUTION


# %%
exercises.check_noise_variance(noise_variance)
for batch_size in (1, 10, 100):
    print(f"batch size {batch_size}: variance {noise_variance(x, y, 0.005, batch_size):.4f}")

# %% [markdown]
# ### Prediction: examples without replacement
#
# The derivation draws each example at random from the whole set, so an example may come twice or not at all.
# This is called sampling *with replacement*. In contrast, your `batches` returns every example once per epoch.
# Is the variance of $w$ then larger than the formula says, smaller, or equal? Think of the sum of the noise over
# one epoch.

# %%
# Prediction 1: "larger", "smaller" or "equal". Replace both values of None.
workbook.predict(1, None, form=["larger", "smaller", "equal"], reason=None)

# %% [markdown]
# ## How the experiments work
#
# *Core, 5 minutes.*
#
# An experiment is a function that trains once and returns its measurements.
# `grid(batch_size=[1, 10], seed=seeds(3))` lists every combination of the given values. A *seed* is the number
# that starts a generator of random numbers: each seed gives other initial weights and another order of the
# examples, so several seeds show how much a result depends on chance.
# `sweep(name, function, settings)` calls the function with every setting and returns a table with one row per
# run. If it takes too long, interrupt it with the stop button, and it keeps the runs that are done.
#
# `reference(name)` returns results that the course measured before on one machine, usually with three or more
# seeds. In the figures **lines are reference results and points are yours**. A band around a line and bars at
# a point show one standard deviation over the seeds. For times the figures show the median and the range from
# the fastest to the slowest run, because one run that other programs disturb would spoil the mean. The number
# of runs is $n$. Tables write "mean +- standard deviation". With $n = 3$ a standard deviation is only a rough
# estimate. If the ranges of two settings overlap, do not conclude that one of them is better.
#
# Cells that only prepare an experiment or draw a figure are folded. Click on the bar on the left to open one.

# %% tags=["folded"]
RATE = 0.005
CHAINS = 20  # descents at the same time, as rows of arrays
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
    theory = exercises.noise_variance(x, y, RATE, batch_size)
    return {"variance": np.mean((late - w_best) ** 2), "theory": theory}


# %%
samplings = ["with replacement", "each once an epoch"]
settings = grid(sampling=samplings, batch_size=[1, 2, 5, 10, 20, 50], seed=seeds(3, 5))
balls = sweep("noise_ball", noise_ball, settings)

# %% tags=["folded"]
shipped_balls = reference("noise_ball")
figure, axes = plt.subplots(figsize=(8, 4.5))
names = {name: name for name in samplings}
overlay(axes, balls, shipped_balls, x="batch_size", y="variance", by="sampling", labels=names)
theory = summary(shipped_balls, ["batch_size"], "theory")
axes.plot(theory["batch_size"], theory["mean"], "k:", label="formula")
axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="variance of w around the minimum")
axes.set_xticks(theory["batch_size"], labels=theory["batch_size"])
axes.legend()
describe(
    figure,
    "Variance of w against the batch size, both logarithmic. With replacement it follows the formula, "
    "in proportion to 1/B. With each example once per epoch it lies below and falls faster.",
)
once = complete(balls, shipped_balls, "sampling", samplings[1])
ratios = once["variance"] / once["theory"]
workbook.result(1, "smaller" if ratios.max() < 1 else "larger" if ratios.min() > 1 else "equal")

# %%
compare(balls, shipped_balls, by=["sampling", "batch_size"], value="variance")

# %% [markdown]
# **What the result means.** With replacement the variance follows the formula and falls in proportion to
# $1/B$. At a batch size of 1 it is about 5 % larger, because $C$ is larger away from the minimum.
#
# If each example comes once per epoch, the variance is **smaller**, and the difference grows with the batch
# size. With a batch size of 10 it is 0.012 in place of 0.053. The reason is that the noise of the batches of
# one epoch adds up to almost nothing, because all examples together have no noise. But the noise of
# a step does not stay: every later step multiplies it by $1 - \eta\lambda = 0.915$, so after 12 steps about a
# third is left. With a
# batch size of 10 an epoch has 10 steps. The noise of its first step is still large at its last step, so most
# of the noise cancels. With a batch size of 1 an epoch has 100 steps. The early noise fades before the late
# noise can cancel it.
#
# The next cell shows your updates and the ball of two predicted standard deviations.

# %%
show_noise_ball(descend, exercises.noise_variance, x, y)

# %% [markdown]
# ## Review of a training loop
#
# *Optional, 10 minutes.*
#
# A *patch* is a change of code: lines with `-` are removed, and lines with `+` are added.
#
# ### Exercise 4: Review of patches of SGD
#
# **Level:** choose and justify.
#
# **What:** decide which patches of `descend` keep two promises. Each epoch reads every example exactly once, and each step
# uses the mean gradient of its batch. For each other patch give a case in which it breaks a promise.
#
# **Why:** each of these mistakes still trains, so no error message tells you about it.
#
# **Signature:** `review_descend()` returns a dict from the letter of a patch to `"correct"` or to a case. An
# example of a case is `{"examples": 8, "batch_size": 8, "epochs": 2}`. In this case all four patches work. A case
# has 1 to 10 examples, 1 to 5 epochs, and a batch size from 1 to the number of examples.
#
# <details><summary>Hint 1</summary>
#
# Write down the batches of one epoch, first for 8 examples with the batch size 4, then for 9 and 10 examples.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `np.array_split` cuts three examples into two and one. `rng.choice` knows nothing about the batches before.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The gradients 1, 5 and 9 have the mean 5. What does each patch compute for such a batch?
#
# </details>

# %%
print(exercises.DESCEND_REVIEW)


# %%
def review_descend():
    # BEGIN SOLUTION: return {"a": ..., "b": ..., "c": ..., "d": ...} with "correct" or a case for each patch
    return {
        "a": {"examples": 9, "batch_size": 3, "epochs": 1},
        "b": "correct",
        "c": {"examples": 8, "batch_size": 4, "epochs": 1},
        "d": {"examples": 10, "batch_size": 4, "epochs": 1},
    }
    # END SOLUTION


# %%
exercises.check_review_descend(review_descend)

# %% [markdown]
# ## Neural networks
#
# *Optional, 17 minutes.*
#
# So far the model was a line. A **neural network** is a function that is built from many neurons, and it can
# approximate nearly any relation.
#
# ### Neural networks as parameterized functions
#
# A *layer* applies many neurons to the same inputs. With the inputs as a row vector $x$, the weights of all
# neurons as the columns of a matrix $W$ and their biases as a vector $b$, a layer computes $x W + b$. Such a
# layer is called *dense* or fully connected, because each neuron is connected to every input.
#
# Two layers one after the other would still compute a linear function, because
# $(x W_1 + b_1) W_2 + b_2 = x\,(W_1 W_2) + (b_1 W_2 + b_2)$ is again a matrix and a vector. So a nonlinear
# function stands between them, the *activation function*. The most common one is the ReLU (rectified linear
# unit), $\operatorname{relu}(z) = \max(z, 0)$. It replaces negative numbers by zero.
#
# The layers between inputs and outputs are called *hidden layers*. The whole network is one function
# $f(x; \theta)$ of the inputs $x$ and of the parameters $\theta$, which are all weights and biases together.
#
# ![A network with three inputs, two hidden layers of four neurons and two outputs. Every neuron is connected to all neurons of the layer before. The three layers have 16, 20 and 10 parameters, together 46.](pictures/network_layers.svg)
#
# What can such a function represent? Take one input, three hidden neurons with the weights 1, 1, 1 and the
# biases 0, $-1$, $-2$, and one output with the weights 1, $-2$, 1 and the bias 0. It computes
# $\operatorname{relu}(x) - 2 \operatorname{relu}(x - 1) + \operatorname{relu}(x - 2)$. This is a triangle
# between 0 and 2 with its tip at 1: at $x = 1$ the value is 1, and at $x = 3$ it is $3 - 4 + 1 = 0$. With
# more neurons you can add more triangles, with other places, widths and heights, and so approximate any
# curve. The figure after the exercise does this for a sine curve. Networks with one hidden layer can
# approximate every continuous function on a bounded region ([Cybenko
# 1989](https://doi.org/10.1007/BF02551274), for another activation function). This does not say that training
# finds suitable parameters.
#
# ### Exercise 5: Forward pass
#
# **What:** compute the output of a network of dense layers. A ReLU follows every layer but the last.
#
# **Why:** computing the output of a network is the *forward pass*, the first part of every training step. The
# frameworks hide it behind `model(inputs)`.
#
# **Signature:** `forward(network, inputs)` returns an array of shape (examples, outputs). `network` is a list
# of pairs `(weights, bias)`, one for each layer. `weights` has the shape (inputs of the layer, outputs of the
# layer), and `inputs` has the shape (examples, inputs of the network).
#
# <details><summary>Hint 1</summary>
#
# Start with the inputs, and replace them by the output of one layer after the other. In NumPy `@` multiplies
# matrices.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For the triangle above and the input 1.5 the first layer gives $(1.5, 0.5, -0.5)$, the ReLU makes it
# $(1.5, 0.5, 0)$, and the last layer gives $1.5 - 1 + 0 = 0.5$, without a ReLU.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `for number, (weights, bias) in enumerate(network, start=1):` counts the layers. The layer is
# `hidden = hidden @ weights + bias`, and the ReLU is `np.maximum(hidden, 0)` if `number < len(network)`.
#
# </details>


# %%
def forward(network, inputs):
    # BEGIN SOLUTION: apply all layers, with a ReLU after every layer but the last
    hidden = inputs
    for number, (weights, bias) in enumerate(network, start=1):
        hidden = hidden @ weights + bias
        if number < len(network):
            hidden = np.maximum(hidden, 0)
    return hidden
    # END SOLUTION


# %%
network_exercises.check_forward(forward)
triangle = [
    (np.array([[1.0, 1.0, 1.0]]), np.array([0.0, -1.0, -2.0])),
    (np.array([[1.0], [-2.0], [1.0]]), np.array([0.0])),
]

# %% tags=["folded"]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), sharex=True)
line = np.linspace(-1, 4, 201)[:, None]
left.plot(line, forward(triangle, line))
left.set(xlabel="input", ylabel="output", title="three hidden neurons, chosen by hand")
right.plot(line, np.sin(2 * line), "k:", label="sin 2x")
for width in (6, 24):
    knots = np.linspace(-1, 4, width + 1)
    slopes = np.diff(np.sin(2 * knots)) / np.diff(knots)
    changes = np.diff(slopes, prepend=0)[
        :, None
    ]  # each hidden neuron changes the slope at its knot
    layers = [(np.ones((1, width)), -knots[:-1]), (changes, np.sin(2 * knots[:1]))]
    right.plot(line, forward(layers, line), label=f"{width} hidden neurons")
right.set(xlabel="input", title="a sine from hidden neurons")
right.legend(loc="upper center", fontsize="small")
describe(
    figure,
    "Left: the output of the network with three hidden neurons is a triangle between 0 and 2. Right: "
    "6 hidden neurons give a coarse approximation of a sine curve, and 24 a close one.",
)

# %% [markdown]
# ### A convolutional network
#
# The network of the next sections is a small *convolutional neural network* (CNN). A *convolution* connects a
# neuron only to a small window of the image, for example 5 x 5 pixels, and uses the same weights at every
# place. Such a set of weights is a *filter*. It reads all channels of its input and makes one channel of the
# output. For example, 8 filters on a grey image have $8 \cdot 25$ weights and 8 biases, which are 208
# parameters. The network has two convolutions and two dense layers:
#
# | layer | output | parameters |
# |---|---|---|
# | convolution, 8 filters of 5 x 5, every second place | 12 x 12 x 8 | 8 · 25 + 8 = 208 |
# | convolution, 16 filters of 3 x 3 x 8, every second place | 5 x 5 x 16 | 16 · 72 + 16 = 1,168 |
# | dense, 64 neurons with 400 inputs each | 64 | 64 · 400 + 64 = 25,664 |
# | dense, 10 neurons, one for each class | 10 | 10 · 64 + 10 = 650 |
#
# Most of the 27,690 parameters are in the first dense layer, although the convolutions do most of the
# computing. The data are Fashion-MNIST, photos of clothes with 28 x 28 pixels in ten classes. We train on
# 10,000 of its images, and hold out 2,000 test images. These *held-out images* are not used for training, so
# that they show how good the network is on new images. Where the photos are missing, a *synthetic data set*
# replaces them, with generated patterns of the same shapes.

# %% tags=["folded"]
data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
TRAIN = by_run_length(quick=1000, learner=10_000, reference=10_000)
HELD_OUT = by_run_length(quick=500, learner=2000, reference=2000)
train_images = data.train_images[:TRAIN].astype("float32") / 255
train_labels = data.train_labels[:TRAIN].astype("int32")
held_out_images = data.test_images[:HELD_OUT].astype("float32") / 255
held_out_labels = data.test_labels[:HELD_OUT].astype("int32")

# %%
model = sgd.small_cnn(seed=1)
print(f"{sgd.count_parameters(model)} parameters, {TRAIN} training images, {HELD_OUT} held out")

# %% [markdown]
# ## Training step of a network
#
# *Optional, 7 minutes.*
#
# The outputs of the network are ten numbers per image, one for each class. The loss is the *cross-entropy*.
# It is the negative logarithm of the probability that the network assigns to the right class. For example,
# a network that gives the right class a probability of 0.1 has the loss $-\ln 0.1 = 2.3$. This is what
# guessing among ten classes gives. With a probability of 0.9 the loss is 0.1.
#
# A training step has four parts, in every framework:
#
# 1. **Forward pass.** Compute the outputs of the network for the images of one batch.
# 2. **Loss.** Compare the outputs with the right classes.
# 3. **Backward pass**, also called *backpropagation*. Compute the gradient of the loss with respect to
#    every weight by the chain rule, from the last layer back to the first. It needs the layer outputs of
#    the forward pass, so these stay in memory until then. Lab 9 shows how much memory this takes.
#    For example, take $y = w_2 \operatorname{relu}(w_1 x)$ with $w_1 = 2$, $w_2 = 0.5$, the input 3 and the
#    loss $L = (y - 1)^2 / 2$. The forward pass gives $h = \operatorname{relu}(6) = 6$, $y = 3$ and $L = 2$. Back
#    from the loss: $dL/dy = y - 1 = 2$, then $dL/dw_2 = 2 h = 12$ and $dL/dh = 2 w_2 = 1$. The ReLU has the
#    slope 1 for a positive number and 0 for a negative one. So $dL/dw_1 = 1 \cdot 1 \cdot x = 3$.
# 4. **Update.** The *optimizer* changes the weights. With SGD it subtracts the learning rate times the
#    gradient. In the example with $\eta = 0.01$ the weights become $w_1 = 1.97$ and $w_2 = 0.38$, and the loss
#    falls to 0.78.
#
# The training loop repeats these steps for all batches of an epoch, then measures the loss and the accuracy
# on held-out examples, and begins the next epoch. A network whose training is over needs the forward pass
# alone, and can free each layer output as soon as the next layer has read it.
#
# ![Upper row, the forward pass: a batch passes through three layers to the loss. Middle row, the backward pass: gradients are computed from the last layer to the first, with the kept outputs of the forward pass. Lower row: the optimizer updates the weights of each layer with its gradient.](pictures/forward_backward_update.svg)
#
# The next cell shows one training step in your framework and makes twenty steps with the same batch of 32
# images. On the whole the loss falls, because the network learns these 32 images by heart.

# %%
show_source(sgd.training_step)
batch, classes = train_images[:32], train_labels[:32]
for step in range(20):
    loss = sgd.training_step(model, batch, classes, learning_rate=0.05)
    if step % 5 == 0 or step == 19:
        print(f"step {step}: loss {loss:.2f}")

# %% [markdown]
# The function `sgd.train` makes the same steps for whole epochs and reports the seconds, the loss and the
# held-out accuracy of each epoch. With Keras it calls `model.fit`, which contains the loop. With PyTorch the
# loop is written out. All reference results of this lab were measured with Keras, so the times of PyTorch can
# differ from the lines.
#
# ## Throughput and batch size
#
# *Core, 11 minutes.*
#
# The **throughput** is the number of images that training reads per second. How does it depend on the batch
# size? The time of a step has two parts. A fixed part $a$ starts the operations and updates the weights, and
# it does not depend on the batch. The second part is proportional to the batch, with the time $c$ per image:
#
# $$T(B) = a + c B, \qquad \text{throughput} = \frac{B}{a + c B} .$$
#
# For example, let a step take 3 ms with 10 images and 4 ms with 20 images. Ten images more take 1 ms more,
# so $c = 0.1$ ms, and $a = 3 - 1 = 2$ ms. Then a step with 100 images takes 12 ms. The throughput is $10 /
# 0.003 = 3{,}300$ images per second with the smallest batch, and 8,300 with the largest. It can never
# exceed $1 / c = 10{,}000$.
#
# With small batches the fixed part dominates, so the throughput grows in proportion to the batch. With large
# batches the time per image dominates, and the throughput stops growing. A GPU has thousands of arithmetic
# units that work at the same time, so it reaches this limit at larger batches than a CPU.

# %% tags=["folded"]


def throughput(batch_size, seed):
    log = sgd.train(
        sgd.small_cnn(seed),
        train_images,
        train_labels,
        batch_size=batch_size,
        learning_rate=0.1,
        epochs=by_run_length(quick=2, learner=3, reference=4),
    )
    # The first epoch does not count: it contains the preparation of the first step.
    return {"images_per_second": TRAIN / np.median(log.seconds[1:])}


sizes = by_run_length(
    quick=[16, 256],
    learner=[16, 64, 128, 256, 1024],
    reference=[8, 16, 32, 64, 128, 256, 512, 1024],
)

# %%
for batch_size in (16, 128):
    speed = throughput(batch_size, seed=1)["images_per_second"]
    print(
        f"batch size {batch_size}: {speed:.0f} images/s, {1000 * batch_size / speed:.1f} ms per step"
    )

# %% [markdown]
# ### Prediction: throughput at batch size 256
#
# Compute $a$ and $c$ from the two measured steps, and predict the throughput with 256 images per step.

# %%
# Prediction 2: images per second with a batch size of 256. Replace both values of None.
prediction = workbook.predict(2, None, reason=None)

# %%
speeds = sweep("throughput_batch_size", throughput, grid(batch_size=sizes, seed=seeds(1, 3)))
shipped_speeds = reference("throughput_batch_size")

# %% tags=["folded"]
figure, axes = plt.subplots()
overlay(axes, speeds, shipped_speeds, x="batch_size", y="images_per_second", times=True)
predicted(axes, prediction, x=256)
axes.set(xscale="log", xlabel="batch size", ylabel="images per second", ylim=(0, None))
axes.set_title("line: Keras on the machine of the course; points: yours", fontsize="medium")
axes.set_xticks(shipped_speeds["batch_size"].unique(), labels=shipped_speeds["batch_size"].unique())
axes.minorticks_off()
describe(
    figure,
    "Throughput against the batch size. In the reference results it grows from about 3,600 images per "
    "second with 8 images per step to about 75,000 with 1,024.",
)
measured = complete(speeds, shipped_speeds, "batch_size", 256)
workbook.result(2, measured["images_per_second"].median())

# %% [markdown]
# **What the result means.** At first the throughput nearly doubles with the batch, and later it grows more
# slowly. In the reference results it is 3,600 images per second with a batch of 8, and 31,000 with a batch
# of 128. The same two-part calculation, from 16 and 128, predicts 39,000 for 256, and the measured range is
# 34,000 to 42,000. Your absolute numbers will differ.
#
# ## Time to accuracy
#
# *Core, 13 minutes.*
#
# This section measures the **time to
# accuracy**, the time until the network classifies a given fraction of the held-out images correctly. It is
# the product of two quantities that depend on the batch size in opposite ways:
#
# $$\text{time} = \text{number of epochs} \times \frac{\text{images per epoch}}{\text{throughput}} .$$
#
# A large batch has a high throughput, but it makes few steps per epoch and therefore needs more epochs.
#
# ### Exercise 6: Stop rule
#
# **What:** report whether each of the last `patience` accuracies is at least `goal`.
#
# **Why:** the accuracy varies from epoch to epoch. A single epoch above the goal can be luck, so the
# measurement asks for two epochs in a row. The assessment at the end of this course uses the same rule.
#
# **Signature:** `reached(accuracies, goal, patience)` takes the held-out accuracies so far, one per epoch,
# and returns `True` or `False`.
#
# <details><summary>Hint 1</summary>
#
# The last accuracies are `accuracies[-patience:]`. What is that if the list is shorter than `patience`?
#
# </details>
# <details><summary>Hint 2</summary>
#
# With the goal 0.8 and the patience 2 the accuracies 0.81, 0.79, 0.82 have not reached the goal, and 0.79,
# 0.81, 0.80 have. A single accuracy of 0.9 has not, because there is no second one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two conditions joined by `and`: `len(accuracies) >= patience`, and `all(... for a in
# accuracies[-patience:])`.
#
# </details>


# %%
def reached(accuracies, goal, patience):
    # BEGIN SOLUTION: return True if each of the last accuracies is at least the goal
    return len(accuracies) >= patience and all(a >= goal for a in accuracies[-patience:])
    # END SOLUTION


# %%
network_exercises.check_reached(reached)

# %% [markdown]
# ### Prediction: the fastest batch size
#
# The experiment trains with the batch sizes 4, 16, 64, 256 and 1,024 until the held-out accuracy is 0.8 in
# two epochs in a row. The learning rate is 0.1 for all of them. Only the training steps count in the time.
# Which batch size reaches the goal first?

# %%
# Prediction 3: the batch size that is fastest to 80 % accuracy. Replace both values of None.
prediction = workbook.predict(3, None, reason=None)

# %% [markdown]
# A run that does not reach the goal ends after 100 epochs. With a batch size of 4, which comes last, this can
# take ten minutes. If you interrupt it, the runs before it are kept.

# %% tags=["folded"]
GOAL, PATIENCE = by_run_length(quick=0.3, learner=0.8, reference=0.8), 2


def time_to_accuracy(batch_size, seed):
    log = sgd.train(
        sgd.small_cnn(seed),
        train_images,
        train_labels,
        batch_size=batch_size,
        learning_rate=0.1,
        epochs=100,
        held_out=(held_out_images, held_out_labels),
        stop=lambda accuracies: reached(accuracies, GOAL, PATIENCE),
    )
    done = reached(log.accuracies, GOAL, PATIENCE)
    return {"seconds": sum(log.seconds) if done else np.nan, "epochs": len(log.seconds)}


sizes = by_run_length(
    quick=[16, 256], learner=[16, 64, 256, 1024, 4], reference=[16, 64, 256, 1024, 4]
)

# %%
times = sweep("time_to_accuracy", time_to_accuracy, grid(batch_size=sizes, seed=seeds(1, 3)))
shipped_times = reference("time_to_accuracy")

# %% tags=["folded"]
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
figure.suptitle("lines: Keras on the machine of the course; points: yours", fontsize="medium")
describe(
    figure,
    "Seconds and epochs to 80 % accuracy against the batch size. Batch size 4 takes 46 seconds, the others "
    "4 to 13 seconds; the number of epochs grows from 3 at batch size 16 to about 53 at 1,024.",
)
measured = there if len(there) else shipped_there
workbook.result(3, measured.groupby("batch_size")["seconds"].median().idxmin())

# %%
never = shipped_times[shipped_times["seconds"].isna()]
print(f"{len(never)} of {len(shipped_times)} reference runs did not reach the goal in 100 epochs:")
print(f"batch size {never['batch_size'].tolist()}")
compare(times, shipped_times, by=["batch_size"], value="seconds")

# %% [markdown]
# **What the result means.** The right panel is clear: from 16 to 1,024 the number of epochs grows from 3 to
# about 53 (medians of 3 runs). The left panel needs more care, because there are only three runs per batch
# size.
#
# | batch size | seconds of the three reference runs |
# |---|---|
# | 4 | 42, 50, and one that never reached the goal |
# | 16 | 3.7, 4.0, 5.2 |
# | 64 | 4.8, 7.5, 13.0 |
# | 256 | 4.9, 6.2, 11.4 |
# | 1,024 | 8.5, 9.2, 12.0 |
#
# Two statements are safe. Batch size 4 is much slower than all others. And 16 is faster than 1,024, because
# the slowest run of one is faster than the fastest run of the other. In contrast, **these runs do not show an
# order of 64 and 256**, because their ranges overlap. More seeds could decide it.
#
# Both ends have an explanation. The smallest batch has the lowest throughput. It even needs more epochs than
# 16, because its noise ball is wide for this learning rate. Large batches make few steps per epoch. Batch size
# 16 needs 3 epochs of 625 steps, which are 1,875 steps, and 1,024 needs 53 epochs of 10 steps, which are 530.
# The batch is 64 times as large, and the steps are only 3.5 times fewer. Is this due to the batch, or to the
# learning rate, which we did not change? A less noisy gradient allows larger steps.
#
# ## Design of an experiment
#
# *Optional, 25 minutes.*
#
# A colleague's training has a higher loss with a batch of 1,024 than with 32, both at the learning rate 0.1.
# There are two claims. *Learning rate*: with a suitable learning rate the large batch reaches a lower loss than
# the small batch. *Batch*: with any learning rate the loss of the large batch is at least 1.5 times that of the
# small batch. The loss depends on the seed: its standard deviation is about 70 % of the mean.
#
# ### Exercise 7: Learning rate or batch
#
# **Level:** blank page.
#
# **What:** write an experiment that finds out which claim holds for a training.
#
# **Why:** a comparison at a single learning rate cannot tell the two causes apart.
#
# **Signature:** `decide(train)` returns `"learning rate"` or `"batch"`.
# `train(batch_size, learning_rate, seed)` is one run and returns the loss at its end, or nan if it diverged.
# The same arguments give the same loss.
#
# **Rubric:** the check calls `decide` with 20 simulated trainings for each claim, SGD on bowls.
#
# * At least 19 of 20 verdicts are right, for each claim.
# * No verdict takes more than 120 runs.
#
# <details><summary>Hint 1</summary>
#
# Compare the loss of the small batch at 0.1 with the *best* learning rate of the large batch.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The limit of the learning rate lies between 0.5 and 2.4. So try 0.2, 0.4, 0.8 and 1.6. That leaves about 20
# seeds for each.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Take the mean over the seeds for each setting. `np.nanmin` finds the smallest number that is not nan.
#
# </details>

# %%
for cause in cause_exercises.CAUSES:
    train = cause_exercises.training(cause, number=0)  # other numbers are other trainings
    print(f"cause {cause}, batch 32:  ", [round(train(32, 0.1, seed), 2) for seed in (1, 2, 3)])
    print(f"cause {cause}, batch 1024:", [round(train(1024, 0.1, seed), 2) for seed in (1, 2, 3)])


# %%
def decide(train):
    """Return the cause of the higher loss of the large batch, "learning rate" or "batch"."""
    # BEGIN SOLUTION: write the experiment, so that it fulfils the rubric
    small = np.mean([train(32, 0.1, seed) for seed in range(20)])
    rates = (0.2, 0.4, 0.8, 1.6)
    large = [np.mean([train(1024, rate, seed) for seed in range(20)]) for rate in rates]
    return "learning rate" if np.nanmin(large) < small else "batch"
    # END SOLUTION


# %%
cause_exercises.check_decide(decide)

# %% [markdown]
# The optional notebook [Time budgets and loss surfaces](03_more_loss_surfaces.ipynb) continues this lab.
#
# ## Summary
#
# *Core, 2 minutes.*
#
# * SGD computes each gradient from a batch. Its noise has a variance in proportion to $1 / B$.
# * With a constant learning rate the weights scatter around the minimum. The variance is
#   $\eta C / (\lambda (2 - \eta\lambda) B)$.
# * A training step has four parts: forward pass, loss, backward pass and update.
# * The throughput grows with the batch size and approaches a limit.
# * The number of epochs to a given accuracy grows with the batch size, from 3 at 16 to 53 at 1,024
#   (medians, n = 3). The time to accuracy is the product of both effects, so the extreme batch sizes are
#   slow.
# * With three runs per setting, overlapping ranges do not show an order. A comparison of batch sizes at a single
#   learning rate does not show the cause.
#
# ## Self-check questions
#
# *Core, 4 minutes.*
#
# Question 9 returns from lab 2 with other numbers.

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=79)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="b")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="c")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer=20000)

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="d")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="a")

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer=1010)

# %%
workbook.question(8, answer=None)

# %% tags=["solution"]
workbook.question(8, answer=0.1)

# %%
workbook.question(9, answer=None)

# %% tags=["solution"]
workbook.question(9, answer=0.1)

# %% [markdown]
# **Next:** in [lab 4](04_data_parallelism.ipynb) several processes share the work of one batch. You write the
# exchange of the gradients yourself.
