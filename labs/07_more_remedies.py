# %% [markdown]
# # Lab 7, optional: More remedies for large batches
#
# This notebook continues lab 7 with details of its remedies (ghost batch norm, a growing batch, LARS and LAMB), with
# a remedy that failed (noise on the gradient), and with two more optimizers (LARC and NovoGrad). No later lab
# needs it.
#
# **After this notebook you can** write ghost batch norm, compute the noise that a large batch lacks, count the
# updates of a growing batch, and write the updates of LARS, LAMB and NovoGrad.
#
# **Builds on** lab 7. **Time:** 70 minutes. The computer needs about two of them.

# %% tags=["folded"]
import matplotlib.pyplot as plt
import numpy as np

from hvdlab import schedules
from hvdlab.course import frameworks
from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, overlay
from hvdlab.course.large_batch_tables import dots, tuned
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
# ## Noise of ghost batch norm
#
# Ghost batch norm (lab 7) cuts a large batch into *ghosts*, groups of consecutive examples, and normalises each
# ghost $G$ by its own mean and variance:
#
# $$ y_i = \frac{x_i - \mu_G}{\sqrt{\sigma_G^2 + \epsilon}}, \qquad i \in G. $$
#
# A single GPU with a large batch needs the layer: `hvdlab.keras.GhostBatchNormalization` or
# `hvdlab.torch.GhostBatchNorm1d`.
#
# ## Exercise 6: Ghost batch norm
#
# **What:** the forward pass of ghost batch norm in NumPy, with $\gamma = 1$ and $\beta = 0$.
#
# **Why:** it shows exactly which examples influence each other.
#
# **Signature:** `ghost_batch_norm(x, ghost_size, eps)` takes an array of shape (examples, features). If the
# ghosts do not divide the batch, the last ghost contains the remainder. Each feature has its own mean and
# *biased* variance (divided by the number of examples). Return a new array.
#
# <details><summary>Hint 1</summary>
#
# Go through `range(0, len(x), ghost_size)`. A slice that goes beyond the end of an array is just shorter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The column 0, 2, 4, 8 in ghosts of 2 with `eps = 0`: the first ghost has mean 1 and variance 1, the second
# one mean 6 and variance 4. So the result is $-1, +1, -1, +1$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For `ghost = x[start : start + ghost_size]` it is
# `(ghost - ghost.mean(axis=0)) / np.sqrt(ghost.var(axis=0) + eps)`. NumPy's `var` is the biased one.
# `np.concatenate` joins the ghosts.
#
# </details>


# %%
def ghost_batch_norm(x, ghost_size, eps):
    # BEGIN SOLUTION: normalise each ghost by its own mean and variance
    ghosts = [x[start : start + ghost_size] for start in range(0, len(x), ghost_size)]
    return np.concatenate(
        [(ghost - ghost.mean(axis=0)) / np.sqrt(ghost.var(axis=0) + eps) for ghost in ghosts]
    )
    # END SOLUTION


# %%
exercises.check_ghost_batch_norm(ghost_batch_norm)

# %% [markdown]
# How large is the noise? Take 1,024 images in 20 random orders, and measure how much a normalised pixel
# changes with the other images of its ghost. In theory the mean of $b$ examples that are drawn from
# $M = 1{,}024$ without replacement has a standard deviation proportional to $\sqrt{1/b - 1/M}$.

# %%
# Prediction 8: by which factor does the noise grow when the ghosts shrink from 64 to 16 images?
# Replace both values of None.
workbook.predict(8, None, reason=None)

# %%
sample = x[:1024, 300:400]
ghost_sizes, noise = np.array([16, 64, 256, 1024]), []
for ghost_size in ghost_sizes:
    outputs = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(sample))
        normalised = ghost_batch_norm(sample[order], ghost_size, 1e-3)
        outputs.append(normalised[np.argsort(order)])
    noise.append(np.std(outputs, axis=0).mean())
print(f"ghosts of 16 have {noise[0] / noise[1]:.2f} times the noise of ghosts of 64")
workbook.result(8, noise[0] / noise[1])

# %% tags=["folded"]
theory = np.sqrt(1 / ghost_sizes - 1 / len(sample))
figure, axes = plt.subplots()
axes.semilogx(ghost_sizes, noise, "o", base=2, label="measured")
axes.semilogx(ghost_sizes, noise[0] * theory / theory[0], label=r"$\propto \sqrt{1/b - 1/1024}$")
axes.set_xticks(ghost_sizes, ghost_sizes)
axes.set(xlabel="ghost size b, examples", ylabel="standard deviation of a\nnormalised pixel")
axes.legend()
describe(
    figure,
    "Standard deviation of a normalised pixel against the ghost size. It falls like the square root of "
    "1/b minus 1/1024, and is zero with a single ghost of 1024 examples.",
)

# %% [markdown]
# **Compare your prediction.** The formula gives
# $\sqrt{(1/16 - 1/1024) / (1/64 - 1/1024)}$, or $\sqrt{63/15} = 2.05$. A quick estimate is $\sqrt{64/16} = 2$.
#
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
# Prediction 9: which s do the loss weights need to give batch 1024 the noise of batch 64?
# Replace both values of None.
workbook.predict(9, None, reason=None)

# %%
NOISES = ["none", "loss weights", "additive 1e-4", "additive 1e-2"]
STD = loss_weight_std(LARGE, SMALL)
workbook.result(9, STD)


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
# ## Exercise 7: The updates of a growing batch
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
# Prediction 10: which fraction of the updates does the growing batch need? Compute it by hand, and
# replace both values of None.
workbook.predict(10, None, reason=None)

# %%
GROWTH_EPOCHS, MILESTONES = by_run_length(
    quick=(3, [1, 2]), learner=(10, [3, 6]), reference=(10, [3, 6])
)
decaying = updates_with_growth(IMAGES, SMALL, [], 5, GROWTH_EPOCHS)
growing = updates_with_growth(IMAGES, SMALL, MILESTONES, 5, GROWTH_EPOCHS)
print(f"{growing} of {decaying} updates: {growing / decaying:.2f}")
workbook.result(10, growing / decaying)
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
# ## LARS and LAMB
#
# Lab 7 explains the trust ratio of **LARS**,
#
# $$ r = \tau \frac{\|w\|}{\|g\| + d\, \|w\|}, \qquad v \leftarrow \mu v + r\, (g + d\, w), \qquad w \leftarrow w - \eta v. $$
#
# (In the paper, which calls $r$ the local learning rate, $\eta$ is inside the velocity. Here it is outside, as in
# PyTorch.) Where $\|w\|$ or $\|g\|$ is 0, $r$ is 1. Biases take the step of SGD with momentum, that is $r = 1$
# and $d = 0$.
#
# **Worked example.** $w = (3, 4)$ and $g = (8, -6)$ have $\|w\| = 5$ and $\|g\| = 10$. With $\tau = 0.25$ and
# $d = 0.5$ the trust ratio is $r = 0.25 \cdot 5 / (10 + 2.5) = 0.1$. With $v = 0$ at first,
# $v = 0.1 \cdot (9.5, -4) = (0.95, -0.4)$. With $\eta = 2$ the new weights are
# $(3 - 1.9,\ 4 + 0.8) = (1.1,\ 4.8)$.
#
# ## Exercise 8: LARS
#
# **What:** one update of LARS for one array.
#
# **Why:** three lines contain the whole method, and their order matters.
#
# **Signature:**
# `lars_update(w, gradient, velocity, learning_rate, momentum, weight_decay, trust_coefficient)` returns the
# new `(w, velocity)` and leaves its arguments as they are.
#
# <details><summary>Hint 1</summary>
#
# `np.linalg.norm` of a matrix is the root of the sum of its squares. The denominator adds two norms. It is
# not the norm of a sum.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Follow the worked example: first the two norms 5 and 10, then $r = 0.1$, then the velocity $(0.95, -0.4)$,
# and the learning rate 2 only in the last line.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Let `local` be the trust ratio (the local rate), and begin with `local = 1.0`. If both norms are above 0,
# `local = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm)`. Then
# `velocity = momentum * velocity + local * (gradient + weight_decay * w)`.
#
# </details>


# %%
def lars_update(w, gradient, velocity, learning_rate, momentum, weight_decay, trust_coefficient):
    # BEGIN SOLUTION: compute the trust ratio, then the velocity and the step
    w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(gradient)
    local = 1.0
    if w_norm > 0 and g_norm > 0:
        local = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm)
    velocity = momentum * velocity + local * (gradient + weight_decay * w)
    return w - learning_rate * velocity, velocity
    # END SOLUTION


# %%
exercises.check_lars_update(lars_update)

# %% [markdown]
# **LAMB** multiplies the finished step of AdamW, with Adam's update $a$, by a trust ratio:
#
# $$ u = a + d\, w, \qquad r = \frac{\|w\|}{\|u\|}, \qquad w \leftarrow w - \eta\, r\, u. $$
#
# There is no trust coefficient. Where a norm is 0 the ratio is 1, and biases take Adam's step. For example,
# $w = (3, 4)$, $a = (4.5, -10)$ and $d = 0.5$ give $u = (6, -8)$ with $\|u\| = 10$. The trust ratio is
# $r = 5/10 = 0.5$. With $\eta = 0.2$ the step is $0.2 \cdot 0.5 \cdot (6, -8) = (0.6, -0.8)$. Its length is
# $1 = \eta \|w\|$, and the new weights are $(2.4, 4.8)$.
#
# ## Exercise 9: The trust ratio of LAMB
#
# **What:** from Adam's update $a$ compute the new weights of one layer.
#
# **Why:** these lines are the difference between Adam and LAMB.
#
# **Signature:** `lamb_update(w, adam, learning_rate, weight_decay)` returns the new weights, where `adam` is
# the array $a$.
#
# <details><summary>Hint 1</summary>
#
# Add the weight decay first. The trust ratio uses the norm of the sum, whereas LARS adds two norms.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the worked example $u = (6, -8)$ has the norm 10, and $\|w\| = 5$, so the ratio is 0.5.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `u = adam + weight_decay * w`, and `ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0`. Return
# `w - learning_rate * ratio * u`.
#
# </details>


# %%
def lamb_update(w, adam, learning_rate, weight_decay):
    # BEGIN SOLUTION: return the new weights of the layer
    u = adam + weight_decay * w
    w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
    ratio = 1.0
    if w_norm > 0 and u_norm > 0:
        ratio = w_norm / u_norm
    return w - learning_rate * ratio * u
    # END SOLUTION


# %%
more_exercises.check_lamb_update(lamb_update)

# %% [markdown]
# ## LARC and NovoGrad
#
# **LARC** is LARS with a limit. The learning rate of a layer is $\min(r, \eta)$ in place of $\eta r$, so no
# layer makes a longer step than with SGD.
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
# | optimizer | learning rate per | state per weight | step of a layer is proportional to |
# |---|---|---|---|
# | SGD with momentum | network | 1 | $\|g\|$ |
# | Adam | weight | 2 | (each weight moves by at most about $\eta$) |
# | LARS | layer | 1 | $\|w\|$ |
# | LARC | layer | 1 | $\|w\|$, or $\|g\|$ where the limit acts |
# | LAMB | weight and layer | 2 | $\|w\|$ |
# | NovoGrad | layer | 1 | $\|g\|$ divided by its recent average |
#
# The next table has the reference of *Optimizers at a large batch* in lab 7 for these optimizers.

# %% tags=["folded"]
NAMES = ["SGD", "Adam", "LARS", "LARC", "LAMB", "NovoGrad"]
compare(
    None,
    tuned(reference("large_batch_optimizers"), NAMES),
    by=["number", "optimizer", "rate"],
    value="test_accuracy",
)

# %% [markdown]
# After 30 updates (n = 3) NovoGrad is 1.2 points better than SGD, with a scatter of 0.8. LARC gains 0.9 points,
# less than its scatter of 2.0. So a limit at the step of SGD takes away most of the three points that LARS
# gains.
#
# ## Exercise 10: NovoGrad
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
