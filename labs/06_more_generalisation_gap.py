# %% [markdown]
# # Lab 6, optional: The generalisation gap
#
# This notebook is seminar material for lab 6. It measures whether a large batch generalises worse, looks at
# the shape of the two minima, and shows that a picture of a minimum can mislead. No later lab needs it.
#
# **After this notebook you can** say what the generalisation gap is, why a measurement of it needs several
# seeds, and why the sharpness of a minimum does not decide how well a network generalises.
#
# **Builds on** lab 6. **Time:** 45 minutes. The computer needs about two of them.

# %% tags=["folded"]
import matplotlib.pyplot as plt
import numpy as np

from hvdlab.course import frameworks, loss_landscape
from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, overlay
from hvdlab.course.large_batch_tables import gaps, logarithmic
from hvdlab.course.sharpness import sharpness
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab06_batch_choice as choice_exercises
from hvdlab.exercises import lab06_scaling_the_batch as exercises

workbook = Workbook(6)
hint = workbook.hint

# %%
FRAMEWORK = "keras"  # or "torch"
training = frameworks.load("dense_training", FRAMEWORK)

# %% tags=["folded"]
data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")

# %% [markdown]
# ## Generalisation gap
#
# In lab 6 a run continued until it reached the goal. Often a run has a
# fixed number of epochs instead. Then a batch that is eight times larger makes eight times fewer steps, and
# the question is how good the result is on *new* images. The difference between the held-out accuracy of a
# small and of a large batch that fit the training images about equally well is called the **generalisation
# gap**.
#
# [Keskar et al. (2017)](https://arxiv.org/abs/1609.04836) trained with batches of 256 and with 10 % of all
# images, using Adam, until the loss stopped falling. Both fitted the training images. On test images the
# small batch was better: approximately 98.0 against 97.8 % for a fully connected network on MNIST, and
# approximately 80 against 77 % for a convolutional network on CIFAR-10. Their explanation has two parts:
#
# * **Flat and sharp minima.** The test loss is a slightly different function from the training loss. In a
#   *flat* minimum a small shift changes the loss little. In a *sharp* minimum it changes the loss much.
# * **Noise.** The gradient noise of a small batch pushes the weights out of sharp minima, in which they
#   cannot stay, but not out of flat ones. A large batch has little noise, so it remains in the first minimum
#   that it reaches.
#
# ![Training loss with a flat and a sharp minimum, and the test loss as the same curve shifted a little. In the flat minimum the two losses hardly differ, in the sharp one the test loss is much higher](pictures/flat_and_sharp_minima.svg)
#
# The **sharpness** of a minimum $w$ is measured as the largest rise of the loss $L$ in a small box around it,
# in percent of $1 + L$:
#
# $$\max_{w'} \frac{L(w') - L(w)}{1 + L(w)} \cdot 100, \qquad |w_i' - w_i| \le \varepsilon\, (|w_i| + 1), \quad \varepsilon = 10^{-3}.$$
#
# For example, if the loss is 0.10 at the minimum and 0.32 at the worst point of the box, the sharpness is
# $(0.32 - 0.10) / 1.10 \cdot 100 = 20$.
#
# The experiment repeats this with 5,000 images: batches of 64 and 500, the same initial weights for both (one
# seed), the same 60 epochs, and Adam.

# %%
# Prediction 7: which batch has the higher held-out accuracy, "64" or "500", and why? Replace both
# values of None.
workbook.predict(7, None, form=["64", "500"], reason=None)

# %%
EPOCHS = by_run_length(quick=3, learner=60, reference=60)
few = training.tensors(data.train_images[:5000], data.train_labels[:5000])
test_set = training.tensors(data.test_images, data.test_labels)
classifier = training.DenseNetwork([256, 256], optimizer="adam")
minima = {}  # (batch size, seed) -> weights


def loss_at(weights):
    classifier.set_weights(weights)
    return classifier.loss(few)


def gradient_at(weights):
    classifier.set_weights(weights)
    return classifier.gradient(few, np.arange(5000))


def find_minimum(batch_size, seed):
    classifier.restart(seed, learning_rate=0.001)
    for epoch in range(EPOCHS):
        order = np.random.default_rng([seed, epoch]).permutation(5000)
        order = order[: 5000 // batch_size * batch_size].reshape(-1, batch_size)
        classifier.train(few, order)
    minima[batch_size, seed] = minimum = classifier.get_weights()
    accuracies = {"training": classifier.accuracy(few), "held_out": classifier.accuracy(test_set)}
    return accuracies | {"sharpness": sharpness(loss_at, gradient_at, minimum)}


gap = sweep("generalisation_gap", find_minimum, grid(seed=seeds(3, 10), batch_size=[64, 500]))


# %% tags=["folded"]
shipped_gap = reference("generalisation_gap")
for column in ("training", "held_out", "sharpness"):
    print(f"{column}:\n{compare(gap, shipped_gap, by=['batch_size'], value=column)}\n")
for name, table in (("yours", gap), ("reference", shipped_gap)):
    found = gaps(table, 64, 500).agg(["mean", "sem", "count"])
    print("gap, {}: {:.2f} points, standard error {:.2f} (n={:.0f})".format(name, *found))
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4))
overlay(left, gap, shipped_gap, x="batch_size", y="held_out")
left.set(ylabel="held-out accuracy")
middle.plot(gaps(shipped_gap, 64, 500), "s", label="reference")
middle.plot(gaps(gap, 64, 500), "o", markeredgecolor="black", label="yours")
middle.axhline(0, color="grey", linewidth=1)
middle.set(xlabel="seed", ylabel="gap: batch 64 minus 500 (points)")
middle.set_xticks(shipped_gap["seed"].unique())
middle.legend()
overlay(right, gap, shipped_gap, x="batch_size", y="sharpness")
right.set(ylabel="sharpness (% of 1 + loss)")
logarithmic(right.yaxis)
for axes in (left, right):
    axes.set(xscale="log", xlabel="batch size (images)", xlim=(45, 700))
    axes.minorticks_off()
    axes.set_xticks([64, 500], ["64", "500"])
describe(
    figure,
    "Three panels for batches of 64 and 500: held-out accuracy, the gap of each seed, which is above zero "
    "for most and below for some, and the sharpness, which is more than ten times higher for 500.",
)
points = next(t for t in (gaps(gap, 64, 500), gaps(shipped_gap, 64, 500)) if t.notna().any())
workbook.result(7, "64" if points.mean() > 0 else "500")

# %% [markdown]
# **Compare your prediction.** Both reasons that you know lead to batch 64: it makes eight times more steps in
# the same epochs, and its noise leads to flatter minima. In the reference run both batches learn (nearly) all
# training images. The sharpness is 23 ± 10 with batch 64 and 370 ± 76 with batch 500 (n = 10), which is 16
# times as much (± is the standard deviation over the seeds). The gap is 0.24 percentage points in favour of the
# small batch. To judge such a mean of $n$ differences, divide their standard deviation by $\sqrt n$. This is
# the *standard error* of the mean, here 0.16. By chance alone a mean rarely lies more than two standard errors
# away from the truth, so a gap that is smaller than this may be no gap at all. Ours has the same sign as in the
# paper, but it is smaller than 0.32, and single seeds differ in sign. Ten seeds make the gap likely and do not
# prove it. With one seed you could have "shown" the opposite.
#
# Two warnings belong to this result. *First*, both batches had the same epochs, so the large batch had an
# eighth of the steps. [Shallue et al.](https://arxiv.org/abs/1811.03600) found no evidence that a large batch
# generalises worse once its learning rate and its number of steps are tuned. Lab 7 works on these remedies.
# *Second*, that sharpness and gap appear together does not prove that the sharpness is the cause. A later
# section shows why it is disputed.
#
# ## Exercise 10: One step of the sharpness search
#
# **What:** one step of the search for the worst point in the box. Each weight moves by *half of its
# half-width* $h_i = \varepsilon (|w_i| + 1)$ uphill, along the *sign* of its gradient. Then it is put back
# into the box around the *minimum*.
#
# **Why:** a few such steps reach a bad corner of the box. Eight gradients are enough for a lower bound that
# tells sharp from flat.
#
# **Signature:** `box_step(weights, gradient, minimum, eps)` takes arrays of one shape: where you are, the
# gradient there, and the centre of the box. Return the new weights.
#
# <details><summary>Hint 1</summary>
#
# There are three parts: the half-widths, the step, and the clip. `np.sign` of 0 is 0.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With a minimum of 1 and `eps = 0.1` the half-width is $0.1 \cdot (1 + 1) = 0.2$, so the box is 0.8 to 1.2.
# From 1.15 with a positive gradient the step leads to 1.25, and the clip to 1.2.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)`, where `half` is computed
# from `minimum` and not from `weights`.
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
# ## The line between two minima
#
# The picture of the paper is the loss along the straight line through both minima,
# $w(\alpha) = (1 - \alpha)\, w_{64} + \alpha\, w_{500}$.

# %% tags=["folded"]
for key in ((64, 1), (500, 1)):
    if key not in minima:
        find_minimum(*key)
small, large = minima[64, 1], minima[500, 1]
alphas = np.linspace(-0.5, 1.5, by_run_length(quick=9, learner=41, reference=41))


def along_the_line(start, end):
    direction = [b - a for a, b in zip(start, end, strict=True)]
    return loss_landscape.slice_1d(loss_at, start, direction, alphas)


figure, axes = plt.subplots()
from_small = along_the_line(small, large)
axes.plot(alphas, from_small)
for alpha, name in ((0, "batch 64"), (1, "batch 500")):
    axes.axvline(alpha, color="black", linestyle=":")
    axes.annotate(name, (alpha, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
axes.set(xlabel=r"$\alpha$", ylabel="training loss", yscale="log")
describe(
    figure,
    "Training loss along the straight line from the minimum of batch 64 to that of batch 500: two valleys "
    "with a hill between them, and the valley of batch 500 is the narrower one.",
)

# %% [markdown]
# ## Sharpness and reparametrization
#
# There are two valleys with a hill between them, and the valley of the large batch is narrower. So is it
# sharper? Before you answer, consider that ReLU passes a positive factor through:
# $\max(0, w x / 4) = \max(0, w x) / 4$. If you divide the weights and biases of the first layer by 4 and
# multiply the weights of the second layer by 4, *the network computes the same function* for every image.
#
# ## Exercise 11: The same function with other weights
#
# **What:** return the weights of a network that computes the same function.
#
# **Why:** if such a change alters the sharpness, then sharpness alone cannot decide how well a network
# generalises.
#
# **Signature:** `rescaled(weights, factor)` takes the list `[first, first_bias, second, second_bias, ...]`.
# Divide the first layer by `factor`, and compensate in the second one. Return a new list.
#
# <details><summary>Hint 1</summary>
#
# Both arrays of the first layer are divided. Its outputs then are `factor` times smaller. Which array of the
# second layer multiplies these outputs?
#
# </details>
# <details><summary>Hint 2</summary>
#
# One unit per layer: $w_1 = 2$, $b_1 = 1$, $w_2 = 3$, $b_2 = 5$ and the input 1 give $3 \cdot 3 + 5 = 14$.
# With the factor 4: $w_1 = 0.5$, $b_1 = 0.25$, $w_2 = 12$ give $12 \cdot 0.75 + 5 = 14$. The bias $b_2$
# stays.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `first, first_bias, second, *rest = weights`, and `rest` stays as it is.
#
# </details>


# %%
def rescaled(weights, factor):
    # BEGIN SOLUTION: return the weights with the first layer divided and the second multiplied
    first, first_bias, second, *rest = weights
    return [first / factor, first_bias / factor, second * factor, *rest]
    # END SOLUTION


# %%
choice_exercises.check_rescaled(rescaled)

# %% tags=["folded"]
same_function = rescaled(small, 4)
faces = [("batch 64", small), ("batch 500", large), ("batch 64, rescaled", same_function)]
for name, weights in faces:
    value = sharpness(loss_at, gradient_at, weights, step=box_step)
    print(f"{name}: loss {loss_at(weights):.6f}, sharpness {value:.0f}")

# %% tags=["folded"]
figure, panels = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
for (name, weights), look in zip(faces, ("C0-", "C1-", "k--"), strict=True):
    plain = loss_landscape.random_direction(weights, np.random.default_rng(0))
    normalised = loss_landscape.filter_normalize(plain, weights)
    for axes, direction, reach in ((panels[1], plain, 0.03), (panels[2], normalised, 1)):
        steps = np.linspace(-reach, reach, by_run_length(quick=9, learner=31, reference=31))
        slice_ = loss_landscape.slice_1d(loss_at, weights, direction, steps)
        axes.plot(steps, slice_, look, label=name)
panels[0].plot(alphas, from_small, "C2-", label="from batch 64")
panels[0].plot(alphas, along_the_line(same_function, large), "k--", label="from batch 64, rescaled")
panels[0].set(xlabel=r"$\alpha$, line to batch 500", ylabel="training loss", yscale="log")
panels[1].set(xlabel="along a random direction")
panels[2].set(xlabel="along the same, filter-normalised")
for axes in panels[:2]:
    axes.legend(fontsize=9)
describe(
    figure,
    "Slices of the training loss. On the line and along a random direction the rescaled network looks "
    "different from the original; along a filter-normalised direction the two curves coincide.",
)

# %% [markdown]
# One function has two sharpnesses, and two shapes in the left and the middle panel. The reason is that all
# weights move by steps of about the same size. The small weights of the rescaled network feel them most, so
# that the "flat" minimum becomes the sharp one ([Dinh et al. 2017](https://arxiv.org/abs/1703.04933)).
#
# ## Weight decay in pictures of minima
#
# Users do not rescale networks on purpose, but *weight decay* does it. Weight decay shrinks the weights a
# little in every step. With the same epochs the small batch makes more steps, so its weights become smaller,
# and small weights look sharp in such a picture. [Li et al. (2018)](https://arxiv.org/abs/1712.09913) show
# one-dimensional pictures of trainings in which the small batch looks flat without weight decay and sharp
# with it, although its accuracy is higher in both cases. Their remedy is *filter normalisation*: each filter
# of the direction, which means the weights into one unit, gets the length of the same filter of the network.
# In the right panel the rescaled network and the original are therefore one curve.
#
# ## Two-dimensional pictures with filter normalisation
#
# Two filter-normalised directions span a surface. One unit changes each filter by 100 %.

# %% tags=["folded"]
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
describe(
    figure,
    "Two contour maps of the training loss around the minima of batch 64 and batch 500 along "
    "filter-normalised directions. The region of low loss is about twice as large for batch 64.",
)

# %% [markdown]
# The minimum of the small batch is the wider one here, too, but by less than its sharpness suggests. In our
# runs with Keras and the seeds 1, 2 and 3 its loss is below 0.1 on 30, 25 and 30 % of the area, and that of
# the large batch on 16, 13 and 13 %. Twice the area means 1.4 times as far from the centre. The sharpnesses
# differ by factors of 12, 16 and 26, and in a bowl this would mean 3 to 5 times as far. Directions that
# respect the scale of the weights leave a part of the difference, but not all of it.
#
# **To continue:** give the SGD optimizer of lab 6 in `dense_training_keras.py` or `dense_training_torch.py` a momentum
# of 0.9 and use a tenth of the learning rate. Where is the critical batch now? Or measure the noise scale
# with a goal of 0.83.
