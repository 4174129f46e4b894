# %% [markdown]
# # Lab 7, optional: More remedies for large batches
#
# This notebook continues lab 7 with a remedy that failed (noise on the gradient), a remedy that saves updates (a
# growing batch), and one more optimizer (NovoGrad). No later lab needs it.
#
# **After this notebook you can** compute the noise that a large batch lacks, count the updates of a growing
# batch, and write an update of NovoGrad.
#
# **Builds on** lab 7. **Time:** 35 minutes. The computer needs about two of them.

# %% tags=["folded"]
import matplotlib.pyplot as plt
import numpy as np

from hvdlab import schedules
from hvdlab.course import frameworks
from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import describe, overlay
from hvdlab.course.large_batch_tables import dots
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab07_large_batch_remedies as exercises
from hvdlab.exercises import lab07_schedule_and_statistics as more_exercises
from hvdlab.exercises.lab07_growth_player import show_growth
from hvdlab.noise_scale import loss_weight_std

workbook = Workbook(7)
hint = workbook.hint
LAYERS = by_run_length(quick=2, learner=5, reference=5)
IMAGES = by_run_length(quick=2_000, learner=10_000, reference=10_000)
EPOCHS, DROPS = by_run_length(quick=(1, []), learner=(6, [3, 5]), reference=(6, [3, 5]))
SMALL, LARGE, BASE_RATE = 64, 1024, 0.01

# %%
FRAMEWORK = "keras"  # or "torch"
training = frameworks.load("f1_training", FRAMEWORK)


# %% tags=["folded"]
def pixels(images):
    """Flat float32 with mean 0 and standard deviation 1."""
    return ((images.reshape(len(images), -1) / 255 - 0.286) / 0.353).astype("float32")


def train(seed, schedule, batch_size, epochs, every=None, **options):
    """Train F1 with a schedule, a function step -> learning rate, and return its test accuracies."""
    steps = schedules.updates(IMAGES, [batch_size] * epochs)
    network = training.F1Training(seed, schedule, steps, hidden_layers=LAYERS, **options)
    return network.fit((x, y), test, batch_size, epochs, every or epochs)


data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
x, y = pixels(data.train_images[:IMAGES]), data.train_labels[:IMAGES].astype("int32")
test = pixels(data.test_images[:IMAGES]), data.test_labels[:IMAGES].astype("int32")

# %% [markdown]
# ## Noise on the gradient
#
# Another idea is to give the large batch the noise that it lost. The covariance matrix $\Sigma$ of lab 6
# describes how the gradients $g_n$ of single examples vary. Their mean over $M$ examples has the covariance
# $\Sigma / M$. Multiply the loss of each example by a random number $z_n$ from a normal distribution with
# mean 1 and variance $s^2$. The mean of the gradient does not change. If the gradients of single examples
# are much larger than their average over the batch, this average can be neglected, and the covariance of the
# gradient is about
#
# $$ g = \frac1M \sum_n z_n g_n, \qquad \operatorname{Cov}(g) \approx \frac{1 + s^2}{M}\, \Sigma. $$
#
# To give a large batch $M_L$ the noise of a small one $M_S$, set $(1 + s^2) / M_L = 1 / M_S$, so
# $s^2 = M_L / M_S - 1$ (Hoffer et al., section 4). For example, $M_L = 128$ and $M_S = 64$ need $s = 1$.
#
# Another method adds to every entry of the gradient in update $t$ a random number with mean 0 and variance
# $a / (1 + t)^{0.55}$, whatever the examples are ([Neelakantan et al.
# 2015](https://arxiv.org/abs/1511.06807)). They used strengths $a$ from 0.01 on, for very deep networks. The
# experiment tries the loss weights $z_n$, and $a = 10^{-4}$ and $10^{-2}$, with batch 1,024 and the learning
# rate of batch 64, as in column LB of lab 7.

# %%
# Prediction 8: which s do the loss weights need to give batch 1024 the noise of batch 64?
# Replace both values of None.
prediction = workbook.predict(8, None, reason=None)

# %%
NOISES = ["none", "loss weights", "additive 1e-4", "additive 1e-2"]
STD = loss_weight_std(LARGE, SMALL)
print(f"s = {STD:.2f}; your prediction: {prediction}")


def noisy_run(noise, seed):
    steps = schedules.updates(IMAGES, [LARGE] * EPOCHS)
    schedule = schedules.step_decay(BASE_RATE, [drop * steps // EPOCHS for drop in DROPS], 0.1)
    eta = float(noise.split()[1]) if noise.startswith("additive") else 0
    std = STD if noise == "loss weights" else 0
    options = {"gradient_noise": eta, "loss_weight_std": std}
    rows = train(seed, schedule, LARGE, EPOCHS, **options)
    return [{"number": NOISES.index(noise), **row} for row in rows]


gradient_noise = sweep("gradient_noise", noisy_run, grid(noise=NOISES, seed=seeds(1)))

# %% tags=["folded"]
shipped_noise = reference("gradient_noise")
small = reference("hoffer").query("column == 'SB'")["test_accuracy"].mean()
figure, axes = plt.subplots()
axes.axhline(small, color="gray", linestyle=":", label=f"batch {SMALL}, reference")
dots(axes, gradient_noise, shipped_noise, NOISES)
axes.set_xlabel("noise on the gradients of a batch of 1024")
axes.legend(loc="center", bbox_to_anchor=(0.6, 0.75))  # between the line and the points
describe(
    figure,
    "Test accuracy at batch 1024 without noise, with loss weights, and with two strengths of additive "
    "noise. None of the three is better than no noise, and all are below the small batch.",
)

# %% [markdown]
# **Compare your prediction.** $s = \sqrt{1024/64 - 1} = \sqrt{15} = 3.9$. With such a large $s$ about 40 % of
# the loss weights $z_n$ are *negative*, and in that step the network unlearns these examples.
#
# Noise does not help here. In the reference (n = 3) the accuracies are 0.831 without noise, 0.788 with loss
# weights, and 0.830 and 0.802 with additive noise. The loss weights lose 4.3 points. A likely reason is that
# noise averages out only over many updates. The small batch has the same noise per update, but 942 updates,
# and here there are only 60. The small additive noise is negligible compared with the gradients, and the
# large one dominates them.
#
# ## Growing the batch during training
#
# Lab 6 showed that the gradient noise scale, up to which a larger batch is worth its cost, grows during
# training. So a large batch is most useful late. Many schedules lower the learning rate in steps, and with it
# the noise per unit of training time, which is proportional to $\eta / B$. Therefore, where a schedule
# divides $\eta$ by 5, you can multiply $B$ by 5 instead ([Smith et al.
# 2018](https://arxiv.org/abs/1711.00489)). In both cases $\eta / B$ and the distance per epoch become a
# fifth. (The noise per update, $\eta^2 / B$, does not fall equally.) With the larger batch there are fewer
# updates, and more ranks can share each of them.
#
# Why does $\eta / B$ measure the noise? Measure *training time* by the sum of the learning rates. For example, with
# $\eta = 0.1$ ten updates make the sum 1. In general $1/\eta$ updates make the sum 1. If the gradient stays the
# same, they move the weights by exactly this gradient. Each update adds the variance $\eta^2 \operatorname{tr}\Sigma / B$, so $1/\eta$ of them add $\eta \operatorname{tr}\Sigma /
# B$. The noise *per unit of training time* is therefore proportional to $\eta / B$. For example, with $2\eta$
# and $2B$ each update has twice the variance, but there are half as many.
#
# **Worked example.** 100 examples, batch 10, six epochs, and a factor of 4 at the epochs 2 and 3, counted
# from 0. Epochs 0 and 1 have 10 updates each. Epoch 2 has batch 40, so 3 updates, the last of them with 20
# examples. Epochs 3, 4 and 5 have batch 160, so 1 update each. Together these are
# $10 + 10 + 3 + 1 + 1 + 1 = 26$ updates instead of 60.
#
# ## Exercise 6: The updates of a growing batch
#
# **What:** count the updates of a whole run.
#
# **Why:** on many ranks the time is proportional to the updates, so this number is the gain of the method.
#
# **Signature:** `updates_with_growth(n, batch, milestones, factor, epochs)` for `n` examples. At each of the
# `milestones` the batch becomes `factor` times larger. Epochs count from 0, and epoch `milestones[0]` is the
# first with the new batch. The last batch of an epoch may be short, and it is an update like any other.
#
# <details><summary>Hint 1</summary>
#
# Go through the epochs. How many milestones has epoch e passed? Each of them multiplies the batch by
# `factor`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the worked example epoch 2 has passed one milestone, so the batch is $10 \cdot 4^1 = 40$. 100 / 40 = 2.5,
# rounded up to 3 updates.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `passed = sum(milestone <= epoch for milestone in milestones)`. Rounded up, n / b is `-(-n // b)` or
# `math.ceil(n / b)`.
#
# </details>


# %%
def updates_with_growth(n, batch, milestones, factor, epochs):
    # BEGIN SOLUTION: add up the updates of all epochs
    total = 0
    for epoch in range(epochs):
        passed = sum(milestone <= epoch for milestone in milestones)
        total += -(-n // (batch * factor**passed))
    return total
    # END SOLUTION


# %%
exercises.check_updates_with_growth(updates_with_growth)

# %% [markdown]
# The experiment runs ten epochs, at first with learning rate 0.01 and batch 64. At the epochs 3 and 6
# (counted from 0) either the learning rate is divided by 5, or the batch is multiplied by 5.

# %%
# Prediction 9: which fraction of the updates does the growing batch need? Compute it by hand, and
# replace both values of None.
prediction = workbook.predict(9, None, reason=None)

# %%
GROWTH_EPOCHS, MILESTONES = by_run_length(
    quick=(3, [1, 2]), learner=(10, [3, 6]), reference=(10, [3, 6])
)
decaying = updates_with_growth(IMAGES, SMALL, [], 5, GROWTH_EPOCHS)
growing = updates_with_growth(IMAGES, SMALL, MILESTONES, 5, GROWTH_EPOCHS)
print(f"{growing} of {decaying} updates: {growing / decaying:.2f}; your prediction: {prediction}")
PLANS = ["lower the rate", "grow the batch"]


def phases_of(plan):
    largest = SMALL * 25 if plan == "grow the batch" else SMALL
    return schedules.batch_growth(GROWTH_EPOCHS, MILESTONES, 5, SMALL, largest, BASE_RATE)


def growth_run(plan, seed):
    phases = phases_of(plan)
    counts = [schedules.updates(IMAGES, [batch_size]) for batch_size, _ in phases]
    rates = [rate for (_, rate), count in zip(phases, counts, strict=True) for _ in range(count)]
    network = training.F1Training(seed, rates.__getitem__, len(rates), hidden_layers=LAYERS)
    rows = []
    for epoch, (batch_size, _) in enumerate(phases, start=1):
        [row] = network.fit((x, y), test, batch_size, epochs=1)
        rows.append({**row, "epoch": epoch, "updates": sum(counts[:epoch])})
    return rows


growth = sweep("batch_growth", growth_run, grid(plan=PLANS, seed=seeds(1)))

# %% tags=["folded"]
shipped_growth = reference("batch_growth")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
names = {plan: plan for plan in PLANS}
overlay(left, growth, shipped_growth, x="epoch", y="test_accuracy", by="plan", labels=names)
overlay(right, growth, shipped_growth, x="updates", y="test_accuracy", by="plan", labels=names)
left.set(xlabel="epochs", ylabel="accuracy on test images")
left.xaxis.get_major_locator().set_params(integer=True)
left.legend(loc="lower right")
right.set_ylabel("")
right.get_legend().remove()
describe(
    figure,
    "Test accuracy against epochs, where lowering the rate and growing the batch nearly coincide, and "
    "against updates, where the growing batch reaches the same accuracy with 595 instead of 1570.",
)

# %% [markdown]
# **Compare your prediction.** Without growth there are $10 \cdot 157 = 1{,}570$ updates. With growth there
# are $3 \cdot 157 + 3 \cdot 32 + 4 \cdot 7 = 595$, a fraction of 0.38.
#
# Against epochs the two curves nearly coincide: both reference runs end at 0.862 (n = 3, scatter 0.002). So a
# batch five times larger did the same as a learning rate five times lower, with 38 % of the updates. Only the
# batches of the later epochs are large enough for many ranks, so a run with a fixed number of ranks cannot
# use all of this gain. With this and similar rules Smith et al. trained ResNet-50 on ImageNet to 76.1 % in
# under 30 minutes.
#
# The next cell shows *your* runs epoch by epoch. Compare the distance between the points of the two plans after
# epoch 3, where one divides the learning rate by 5 and the other multiplies the batch by 5.

# %%
show_growth(growth, {plan: phases_of(plan) for plan in PLANS})

# %% [markdown]
# ## NovoGrad
#
# **NovoGrad** ([Ginsburg et al. 2019](https://arxiv.org/abs/1905.11286)) needs less memory. It keeps only
# *one number* $v$ per layer, the moving average of the squared gradient norm, and divides the gradient by its
# root *before* the momentum:
#
# $$ v \leftarrow \beta_2 v + (1 - \beta_2)\, \|g\|^2, \qquad m \leftarrow \beta_1 m + \left( \frac{g}{\sqrt v + \epsilon} + d\, w \right), \qquad w \leftarrow w - \eta m. $$
#
# The first update is an exception: there $v$ is set to $\|g\|^2$ itself. For example, a first gradient
# $(3, 4)$ has $v = 25$ and becomes $(0.6, 0.8)$, of length 1, whatever its size was. Here NovoGrad differs
# from LARS and LAMB: apart from the weight decay its step does not depend on $\|w\|$.
#
# ## Exercise 7: NovoGrad
#
# **What:** one update of NovoGrad for one layer.
#
# **Why:** it normalises the gradient, whereas LAMB normalises the step.
#
# **Signature:** `novograd_update(w, gradient, m, v, learning_rate, beta1, beta2, weight_decay)` returns
# `(w, m, v)`. `v` is a number. Only before the first update it is 0. Leave out $\epsilon$ or use $10^{-8}$.
#
# <details><summary>Hint 1</summary>
#
# There is one line for each of $v$, $m$ and $w$. Only $v$ has a special case, the first update.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With $v = 25$ and the gradient $(12, 16)$, whose squared norm is 400, and $\beta_2 = 0.9$:
# $v = 0.9 \cdot 25 + 0.1 \cdot 400 = 62.5$. The gradient is divided by $\sqrt{62.5} = 7.9$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `v = square if v == 0 else beta2 * v + (1 - beta2) * square`, and
# `m = beta1 * m + gradient / np.sqrt(v) + weight_decay * w`.
#
# </details>


# %%
def novograd_update(w, gradient, m, v, learning_rate, beta1, beta2, weight_decay):
    # BEGIN SOLUTION: return w, m and v
    square = np.sum(gradient**2)
    v = square if v == 0 else beta2 * v + (1 - beta2) * square
    m = beta1 * m + gradient / (np.sqrt(v) + 1e-8) + weight_decay * w
    return w - learning_rate * m, m, v
    # END SOLUTION


# %%
more_exercises.check_novograd_update(novograd_update)
