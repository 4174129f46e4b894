# %% [markdown]
# # Lab 7: What can be done about it
#
# **Time:** 60 minutes, less than ten of them computing. **You measure** what each remedy for the large batch is worth:
# scaling the learning rate, warming it up, ghost batch norm, longer training, noise, growing the batch, and a rate for each
# layer. **You need** lab 4 (N ranks as one) and lab 6 (what a large batch costs).
#
# N processes with batches of b are one process with a batch of N b, as long as no layer looks across the
# examples (lab 4 showed it). So everything here runs in one process, and "large batch" stands for "many processes". Batch norm does
# look across the examples: what it makes of many processes is said where ghost batch norm is.
#
# Each experiment goes the same way: you write down a guess, run it, and see your result, mostly of one seed, as points over the results
# that the course ships, with their deviation.

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from keras import layers

from hvdlab import schedules
from hvdlab.course.experiment import by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, overlay, predicted, summary
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab07_large_batch_remedies as exercises
from hvdlab.keras import LAMB, LARS, GhostBatchNormalization, NovoGrad
from hvdlab.keras.noise import LossWeights, NoisySGD
from hvdlab.keras.schedules import Schedule

# %% [markdown]
# ## Load ten thousand images
#
# A sixth of Fashion-MNIST, so that an epoch takes about a second. All 10,000 test images judge.

# %%
data = load_fashion_mnist()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
N = by_run_length(quick=2_000, learner=10_000, reference=10_000)


def pixels(images):
    """Flat float32 with mean 0 and standard deviation 1."""
    return ((images.reshape(len(images), -1) / 255 - 0.286) / 0.353).astype("float32")


x, y = pixels(data.train_images[:N]), data.train_labels[:N].astype("int32")
test = pixels(data.test_images[:N]), data.test_labels[:N].astype("int32")
print(x.shape, "training images,", test[0].shape, "test images")

# %% [markdown]
# ## Build the network of Hoffer et al.
#
# *F1* of [Hoffer et al. 2017](https://arxiv.org/abs/1705.08741): 784-512x5-10, batch norm after every hidden layer, weight decay 1e-4.
# Keras' `L2(c)` adds $c\,w^2$ to the loss, whose gradient is $2cw$: half of the decay stands there.


# %%
def f1(norm=lambda: layers.BatchNormalization(momentum=0.9), decay=1e-4):
    """Five hidden layers of 512, each normalised by `norm()`, or by nothing where norm is None."""
    l2 = keras.regularizers.L2(decay / 2) if decay else None
    net = keras.Sequential([layers.Input((784,))])
    for _ in range(by_run_length(quick=2, learner=5, reference=5)):
        net.add(layers.Dense(512, kernel_regularizer=l2))
        if norm:
            net.add(norm())
        net.add(layers.ReLU())
    net.add(layers.Dense(10, kernel_regularizer=l2))
    return net


def compiled(net, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return net


def fit(net, batch_size, epochs, every=1, batches=None):
    """Train on x, y or on `batches`; return a row for each epoch tested, which is every `every`-th."""
    validation = {"validation_data": test, "validation_batch_size": 2500, "validation_freq": every}
    source = (batches,) if batches else (x, y, batch_size)
    history = net.fit(*source, epochs=epochs, shuffle=not batches, verbose=0, **validation).history
    tested = zip(range(every, epochs + 1, every), history["val_accuracy"], strict=True)
    return [{"epoch": epoch, "test_accuracy": accuracy} for epoch, accuracy in tested]


def dots(axes, yours, shipped, names):
    """Accuracy with error bars for each `number`, whose name is `names[number]`."""
    for table, label, shift in ((shipped, "reference", -0.06), (yours, "yours", 0.06)):
        points = summary(table, ["number"], "test_accuracy")
        label = f"{label} (n={points['count'].min()})"
        at = points["number"] + shift
        axes.errorbar(at, points["mean"], points["std"], fmt="o", capsize=3, label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="accuracy on test images")
    axes.legend()


# %% [markdown]
# ## Scale the learning rate
#
# A batch that is k times larger makes k times fewer updates an epoch. Three answers:
#
# * *constant*: keep the rate;
# * *square root*: times $\sqrt k$, which keeps the variance of an update (Krizhevsky 2014; Hoffer et al. 2017);
# * *linear*: times k, which keeps the way covered in an epoch ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)).
#
# Six epochs, rate falling linearly to 0. At batch 64 the rate is 0.01, the best there of 0.003, 0.01, 0.03 and 0.1 (runs that are not shipped).
# Guess the accuracy on test images that the constant rate leaves at a batch of 2048.

# %%
prediction = None  # for instance 0.8

# %%
SMALL, BASE_RATE = 64, 0.01
RULES = {
    "constant": lambda rate, k: rate,
    "square root": schedules.square_root_scaling,
    "linear": schedules.linear_scaling,
}


def scaled_run(batch_size, rule, seed):
    keras.utils.set_random_seed(seed)
    epochs = by_run_length(quick=1, learner=6, reference=6)
    steps = schedules.updates(N, [batch_size] * epochs)
    rate = RULES[rule](BASE_RATE, batch_size / SMALL)
    schedule = Schedule(schedules.polynomial_decay(rate, steps, power=1), steps)
    net = compiled(f1(), keras.optimizers.SGD(schedule, 0.9))
    return fit(net, batch_size, epochs, every=epochs)


batch_sizes = by_run_length(quick=[512], learner=[256, 2048], reference=[256, 1024, 2048])
settings = grid(batch_size=[SMALL], rule=["constant"], seed=seeds(1))
settings += grid(batch_size=batch_sizes, rule=RULES, seed=seeds(1))
rate_scaling = sweep("rate_scaling", scaled_run, settings)

# %%
shipped_rates = reference("rate_scaling")
figure, axes = plt.subplots()
names = {rule: rule for rule in RULES}
overlay(
    axes, rate_scaling, shipped_rates, x="batch_size", y="test_accuracy", by="rule", labels=names
)
predicted(axes, prediction, x=2048)
axes.set_xscale("log", base=2)
ticks = sorted(shipped_rates["batch_size"].unique())
axes.set_xticks(ticks, ticks)
axes.set(xlabel="batch size", ylabel="accuracy on test images")
plt.show()

# %%
compare(rate_scaling, shipped_rates, by=["rule", "batch_size"], value="test_accuracy")

# %% [markdown]
# ## What you should see: scaling
#
# With the rate unchanged the accuracy falls as the batch grows: six epochs are then too few updates. At batches of 256 and
# 1024 both rules win much of it back, and it matters little which. At 2048 the linear rule overshoots and wins hardly any; the
# square root still wins half. Linear scaling
# has an end, and a way to move it: the next section.

# %% [markdown]
# ## Warm the rate up
#
# Right after the start weights change fast, and a large rate throws them off. Goyal et al. compare three starts of ResNet-50 on ImageNet
# with a batch of 8192 and the linear rate, errors on validation images in percent:
#
# | | error |
# |---|---|
# | batch 256 | 23.60 +- 0.12 |
# | batch 8192, no warmup | 24.84 +- 0.37 |
# | batch 8192, constant warmup: the small rate for 5 epochs, then the large one | 25.88 +- 0.56 |
# | batch 8192, gradual warmup: from the small rate to the large one in 5 epochs | 23.74 +- 0.09 |
#
# Batch norm forgives large rates, so here F1 goes without it. Batch 512, small rate 0.02, large rate 0.25 for two of eight
# epochs, then falling linearly to 0. The warmup takes the first two. Guess the accuracy that a run without warmup ends with.

# %%
prediction = None  # for instance 0.5

# %%
WARMUPS = {
    "none": lambda schedule, steps, small: schedule,
    "constant": schedules.constant_warmup,
    "gradual": schedules.gradual_warmup,
}


def warmup_run(warmup, seed):
    keras.utils.set_random_seed(seed)
    batch_size, small, large = 512, 0.02, 0.25
    epochs = by_run_length(quick=2, learner=8, reference=8)
    steps = schedules.updates(N, [batch_size] * epochs)
    warmup_steps = steps // 4
    fall = schedules.polynomial_decay(large, steps - warmup_steps, power=1)
    schedule = WARMUPS[warmup](lambda step: fall(max(step - warmup_steps, 0)), warmup_steps, small)
    net = compiled(f1(norm=None), keras.optimizers.SGD(Schedule(schedule, steps), 0.9))
    return fit(net, batch_size, epochs)


warmups = sweep("warmup", warmup_run, grid(warmup=WARMUPS, seed=seeds(1)))

# %%
shipped_warmups = reference("warmup")
figure, axes = plt.subplots()
names = {"none": "no warmup", "constant": "constant", "gradual": "gradual"}
overlay(axes, warmups, shipped_warmups, x="epoch", y="test_accuracy", by="warmup", labels=names)
predicted(axes, prediction, x=shipped_warmups["epoch"].max())
axes.set(xlabel="epochs", ylabel="accuracy on test images", ylim=(0, 1))
axes.xaxis.get_major_locator().set_params(integer=True)
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## What you should see: warmup
#
# Without warmup the run is thrown off in the first epochs and never comes back: its accuracy is that of a guess, 0.1, since its
# weights are nan. Constant warmup puts the jump off to epoch 3: of three seeds two are lost there, and one is thrown back and recovers.
# So this start varies most from seed to seed, as its band shows. Gradual warmup reaches the same full rate with a network that can bear it.
#
# As in Goyal et al., constant warmup is no rescue: what helps is that the rate rises slowly, not that it rises late.

# %% [markdown]
# ## Exercise 1: write ghost batch norm
#
# Batch norm in a batch of 64 adds noise: an example is shifted and scaled by the 63 that happen to be with it. In a batch of 1024 this
# noise is gone: in one process, or in ranks whose batch norm is synchronised. Ranks whose batch norms know nothing of each other, as is
# usual, keep it, each with a batch of its own. *Ghost batch norm* imitates such
# separate ranks within one process, and so brings the noise back: cut the batch into ghosts G of consecutive examples, and normalise
# each by its own mean and (biased) variance, feature by feature:
#
# $$ y_i = \frac{x_i - \mu_G}{\sqrt{\sigma_G^2 + \epsilon}}, \qquad i \in G $$
#
# Write `ghost_batch_norm(x, ghost_size, eps)` in NumPy. `x` has the shape (examples, features). If the ghosts do not divide the batch, the
# last ghost has what remains. Return a new array.
#
# <details><summary>Hint 1</summary>
# Go through <code>range(0, len(x), ghost_size)</code>. A slice that goes beyond the end of an array is just shorter.
# </details>
# <details><summary>Hint 2</summary>
# Of <code>ghost = x[start : start + ghost_size]</code> the mean of each feature is <code>ghost.mean(axis=0)</code>; NumPy's <code>var</code> is
# the biased one.
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
# ## See the noise of ghosts
#
# The same 1024 images in 20 random orders: how much does the normalised value of one pixel of one image change with its company?

# %%
sample = x[:1024, 300:400]
ghost_sizes, noise = [16, 64, 256, 1024], []
for ghost_size in ghost_sizes:
    outputs = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(sample))
        shuffled = ghost_batch_norm(sample[order], ghost_size, 1e-3)
        outputs.append(shuffled[np.argsort(order)])
    noise.append(np.std(outputs, axis=0).mean())

sizes = np.array(ghost_sizes)
theory = np.sqrt(1 / sizes - 1 / len(sample))
figure, axes = plt.subplots()
axes.semilogx(sizes, noise, "o", base=2, label="measured")
axes.semilogx(sizes, noise[0] * theory / theory[0], label=r"$\propto \sqrt{1/g - 1/1024}$")
axes.set_xticks(sizes, sizes)
axes.set(xlabel="ghost size g, examples", ylabel="standard deviation of a\nnormalised pixel")
axes.legend()
plt.show()

# %% [markdown]
# A mean of g examples out of 1024 scatters like $\sqrt{1/g - 1/1024}$. With one ghost of 1024 nothing is left to chance.

# %% [markdown]
# ## Repair the large batch step by step
#
# Table 1 of Hoffer et al. adds one remedy after the other, each column keeping those before:
#
# * **SB**: small batch; **LB**: large batch, nothing else changed;
# * **+LR**: the rate times the square root of k, gradients clipped to norm 5 (so does the paper's repository);
# * **+GBN**: ghost batch norm with ghosts of the small batch;
# * **+RA**: *regime adaptation*, k times as many epochs: as many updates as the small batch had.
#
# Theirs is F1 on MNIST, batch 128 against 4096. Ours is F1 on 10,000 images of Fashion-MNIST, 64 against 1024, k = 16. The rate is
# divided by 10 after a half and after five sixths of the run. Guess the accuracy of the last column, if SB has 0.85.

# %%
prediction = None  # for instance 0.84

# %%
LARGE = 1024
COLUMNS = ["SB", "LB", "+LR", "+GBN", "+RA"]
PUBLISHED = [98.27, 97.05, 97.55, 97.60, 98.53]  # MNIST, percent
EPOCHS, DROPS = by_run_length(quick=(1, []), learner=(6, [3, 5]), reference=(6, [3, 5]))


def ghosts():
    return GhostBatchNormalization(SMALL, momentum=0.9)


def repaired_run(column, seed):
    keras.utils.set_random_seed(seed)
    level = COLUMNS.index(column)
    batch_size = SMALL if level == 0 else LARGE
    epochs, drops, rate = EPOCHS, DROPS, BASE_RATE
    if level >= 2:
        rate = schedules.square_root_scaling(BASE_RATE, LARGE / SMALL)
    if level >= 4:
        epochs, drops = schedules.regime_adaptation(epochs, drops, SMALL, LARGE)
    per_epoch = schedules.updates(N, [batch_size])
    schedule = schedules.step_decay(rate, [drop * per_epoch for drop in drops], 0.1)
    optimizer = keras.optimizers.SGD(
        Schedule(schedule, epochs * per_epoch), 0.9, global_clipnorm=5 if level >= 2 else None
    )
    net = compiled(f1(ghosts) if level >= 3 else f1(), optimizer)
    rows = fit(net, batch_size, epochs, every=epochs)
    return [{"number": level, "updates": epochs * per_epoch, **row} for row in rows]


columns = by_run_length(quick=COLUMNS[:4], learner=COLUMNS[:4], reference=COLUMNS)
hoffer = sweep("hoffer", repaired_run, grid(column=columns, seed=seeds(1)))

# %% [markdown]
# The last column costs more than all others together, so your run leaves it to the shipped results. To run it yourself, which takes a
# minute or two: `repaired_run("+RA", seed=1)`.

# %%
shipped_hoffer = reference("hoffer")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
dots(left, hoffer, shipped_hoffer, COLUMNS)
predicted(left, prediction, x=4)
left.set_title("F1, Fashion-MNIST, here")
right.plot(range(5), np.array(PUBLISHED) / 100, "s", color="black")
right.set_xticks(range(5), COLUMNS)
right.set(ylabel="accuracy on validation images", title="F1, MNIST, Hoffer et al.")
plt.show()

# %%
table = compare(hoffer, shipped_hoffer, by=["number", "column"], value="test_accuracy")
table.assign(**{"Hoffer et al., MNIST": [PUBLISHED[level] / 100 for level, _ in table.index]})

# %% [markdown]
# ## What you should see: the repairs
#
# The large batch is worse than the small one, and the larger rate brings a good part of it back: as in the paper. Ghost batch norm changes
# little: as in the paper for this network, where it was worth 0.05 points. Regime adaptation brings the rest: it was mostly the number
# of updates that was missing. The paper's last column passes the small batch; whether ours does, the deviations of the
# reference must say.
#
# Note the price of the last column: as many updates as the small batch, k times the examples. It is worth having only if k
# processes share the work.

# %% [markdown]
# ## Add the noise that the large batch lost
#
# The gradient of a batch of M examples is a mean, its covariance about $C / M$. Weights $z_n \sim N(1, s^2)$ on the losses,
#
# $$ g = \frac1M \sum_n z_n g_n, \qquad \text{make it about}\quad \frac{1 + s^2}{M} C , $$
#
# so that $s^2 = M_L / M_S - 1$ gives a large batch the noise of a small one (Hoffer et al., section 4). Another noise is blind:
# $N(0, \eta / (1 + t)^{0.55})$ added to every gradient at update t ([Neelakantan et al. 2015](https://arxiv.org/abs/1511.06807)).
# They try $\eta$ from 0.01 on; here it is 1e-4 and 1e-2.
#
# Batch 1024 at the rate of batch 64, as in column LB. Guess the accuracy that the weights lead to.

# %%
prediction = None  # for instance 0.83

# %%
NOISES = ["none", "loss weights", "additive 1e-4", "additive 1e-2"]
STD = LossWeights.std_for(LARGE, SMALL)
print(f"s = {STD:.2f}: many weights are negative, and unlearn their example in that step")


def noisy_run(noise, seed):
    keras.utils.set_random_seed(seed)
    steps, batches = schedules.updates(N, [LARGE] * EPOCHS), None
    drops = [drop * steps // EPOCHS for drop in DROPS]
    schedule = Schedule(schedules.step_decay(BASE_RATE, drops, 0.1), steps)
    optimizer = keras.optimizers.SGD(schedule, 0.9)
    if noise.startswith("additive"):
        optimizer = NoisySGD(schedule, momentum=0.9, eta=float(noise.split()[1]), seed=seed)
    if noise == "loss weights":
        pairs = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(N, seed=seed).batch(LARGE)
        batches = pairs.map(LossWeights(STD, seed=seed))
    rows = fit(compiled(f1(), optimizer), LARGE, EPOCHS, every=EPOCHS, batches=batches)
    return [{"number": NOISES.index(noise), **row} for row in rows]


gradient_noise = sweep("gradient_noise", noisy_run, grid(noise=NOISES, seed=seeds(1)))

# %%
shipped_noise = reference("gradient_noise")
small = reference("hoffer").query("column == 'SB'")["test_accuracy"].mean()
figure, axes = plt.subplots()
axes.axhline(small, color="gray", linestyle=":", label=f"batch {SMALL}, reference")
dots(axes, gradient_noise, shipped_noise, NOISES)
predicted(axes, prediction, x=1)
axes.set_xlabel("noise on the gradients of a batch of 1024")
axes.legend(loc="center", bbox_to_anchor=(0.6, 0.75))  # between the line and the points
plt.show()

# %% [markdown]
# ## What you should see: noise
#
# Noise does not help here. The loss weights make the large batch worse: they give it the noise of the small batch and leave it with a
# sixteenth of its updates, and no update gets better by noise alone. (Batch norm plays a part too: it ties the examples of a batch
# together, so that the weighted gradients are not quite those of the theory.) The small
# additive noise is lost among the gradients; the large one drowns them.
#
# Hoffer et al. get the square root rule from the same aim: a larger *step* gives an update the same variance; the weights are their
# other way to it, which leaves the mean alone. The step helps, as column +LR showed. Neelakantan et al. report gains for very deep networks that are hard to train; this one is not.

# %% [markdown]
# ## Exercise 2: count the updates of a growing batch
#
# The noise of SGD goes like rate / batch. So where a schedule divides the rate by 5, you may as well multiply the batch by 5
# ([Smith et al. 2018](https://arxiv.org/abs/1711.00489)): the same noise, fewer updates, and a batch that ever more processes can share.
#
# Write `updates_with_growth(n, batch, milestones, factor, epochs)`: the updates of a whole run over n examples. At each of the
# `milestones` the batch becomes `factor` times larger. Epochs count from 0, and epoch `milestones[0]` is the first with the new batch. An
# epoch's last batch may be short, and is an update like any other.
#
# <details><summary>Hint 1</summary>
# How many milestones has epoch e passed? <code>sum(milestone <= e for milestone in milestones)</code>.
# </details>
# <details><summary>Hint 2</summary>
# Rounded up, n / b is <code>-(-n // b)</code> or <code>math.ceil(n / b)</code>.
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
# ## Grow the batch instead of lowering the rate
#
# Ten epochs, rate 0.01 and batch 64 at first; at epochs 3 and 6 either the rate is divided by 5 or the batch multiplied by 5. Guess the growing
# batch's part of the updates before you compute it.

# %%
prediction = None  # for instance 0.5

# %%
GROWTH_EPOCHS, MILESTONES = by_run_length(
    quick=(3, [1, 2]), learner=(10, [3, 6]), reference=(10, [3, 6])
)
decaying = updates_with_growth(N, SMALL, [], 5, GROWTH_EPOCHS)
growing = updates_with_growth(N, SMALL, MILESTONES, 5, GROWTH_EPOCHS)
print(f"{growing} of {decaying} updates: {growing / decaying:.0%}; your guess: {prediction}")

# %% [markdown]
# Now run both and compare accuracy against epochs (left) and updates (right).


# %%
def growth_run(plan, seed):
    keras.utils.set_random_seed(seed)
    largest = SMALL * 25 if plan == "grow the batch" else SMALL
    phases = schedules.batch_growth(GROWTH_EPOCHS, MILESTONES, 5, SMALL, largest, BASE_RATE)
    net = compiled(f1(), keras.optimizers.SGD(BASE_RATE, 0.9))
    rows, done = [], 0
    for epoch, (batch_size, rate) in enumerate(phases, start=1):
        net.optimizer.learning_rate = rate
        [row] = fit(net, batch_size, epochs=1)
        done += schedules.updates(N, [batch_size])
        rows.append({**row, "epoch": epoch, "updates": done})
    return rows


PLANS = ["lower the rate", "grow the batch"]
growth = sweep("batch_growth", growth_run, grid(plan=PLANS, seed=seeds(1)))

# %%
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
plt.show()

# %% [markdown]
# ## What you should see: growth
#
# Against epochs the two curves almost coincide: a batch five times larger is as good as a rate five times lower. Against updates the
# growing batch is far ahead. After a milestone the falling rate may look better for some epochs; the end decides. And the later epochs
# have batches large enough for many processes, which the first ones have not.

# %% [markdown]
# ## Exercise 3: write LARS
#
# One global rate must not be too large for the most sensitive layer. *LARS* ([You et al. 2017](https://arxiv.org/abs/1708.03888))
# gives each tensor w with gradient g its own, so that each step is a part of the tensor's own length:
#
# $$ \lambda = \eta \frac{\|w\|}{\|g\| + \beta \|w\|}, \qquad v \leftarrow \mu v + \lambda (g + \beta w), \qquad w \leftarrow w - \gamma v $$
#
# (the paper has $\gamma$ inside the velocity; here it stands outside, as in torch)
# with the learning rate $\gamma$, momentum $\mu$, weight decay $\beta$ and trust coefficient $\eta$; $\|\cdot\|$ is the root of the sum
# of all squares of the tensor. Where $\|w\|$ or $\|g\|$ is 0, $\lambda$ is 1.
#
# Write `lars_update` for one tensor. Return the new `(w, velocity)`, and leave the arguments as they are.
#
# <details><summary>Hint 1</summary>
# <code>np.linalg.norm</code> of a matrix is the root of the sum of its squares. The denominator adds two norms; it is not the norm of
# a sum.
# </details>
# <details><summary>Hint 2</summary>
# Compute the local rate first, 1 if a norm is 0; then <code>velocity = momentum * velocity + local * (gradient + weight_decay *
# w)</code>. The learning rate comes last, outside of the velocity.
# </details>


# %%
def lars_update(w, gradient, velocity, learning_rate, momentum, weight_decay, trust_coefficient):
    # BEGIN SOLUTION: compute the local rate, then the velocity and the step
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
# ## See how different the layers are
#
# $\|w\| / \|g\|$ of each weight matrix of F1, without batch norm, for the first batch: the rate that LARS gives it, up to $\eta$.

# %%
keras.utils.set_random_seed(1)
net = f1(norm=None)
with tf.GradientTape() as tape:
    logits = net(x[:1024], training=True)
    losses = keras.losses.sparse_categorical_crossentropy(y[:1024], logits, from_logits=True)
    loss = keras.ops.mean(losses)
matrices = [w for w in net.trainable_weights if len(w.shape) == 2]
gradients = tape.gradient(loss, [w.value for w in matrices])
ratios = [np.linalg.norm(w) / np.linalg.norm(g) for w, g in zip(matrices, gradients, strict=True)]

figure, axes = plt.subplots()
axes.bar([f"dense {i + 1}" for i in range(len(ratios))], ratios)
axes.set(ylabel=r"$\|w\| / \|g\|$", xlabel="weight matrix")
plt.show()

# %% [markdown]
# A rate that suits the hidden layers is too large for the layer with the smallest ratio, and one that suits that layer lets the others crawl.

# %% [markdown]
# ## Compare optimizers at the largest batch
#
# Batch 2000, five updates an epoch, six epochs: 30 updates in all, for a network without batch norm. Everyone gets weight decay 1e-4, a
# linear fall to 0 over all updates with a linear warmup in the first quarter (so at most 0.8 of the rate is reached), and three
# candidates for the rate, three times apart. They are tried on seed 0; the best of each is judged on other seeds. LARC is LARS whose local rate is never above the global one. The trust
# coefficient is 0.02, because biases are not adapted: they take the global rate as it is.
#
# Adam, whose rates differ from weight to weight, is there to tell what a rate for each *layer* adds. Guess the accuracy of the best,
# if SGD has 0.75.

# %%
prediction = None  # for instance 0.76

# %%
LARGEST = 2000
OPTIMIZERS = {  # how it is made, decay in the loss, candidates for the rate
    "SGD": (lambda rate: keras.optimizers.SGD(rate, 0.9), 1e-4, [0.01, 0.03, 0.1]),
    "Adam": (lambda rate: keras.optimizers.Adam(rate), 1e-4, [0.0003, 0.001, 0.003]),
    "LARS": (lambda rate: LARS(rate, 0.9, 1e-4, trust_coefficient=0.02), 0, [0.3, 1.0, 3.0]),
    "LARC": (lambda rate: LARS(rate, 0.9, 1e-4, clip=True), 0, [0.1, 0.3, 1.0]),
    "LAMB": (lambda rate: LAMB(rate, weight_decay=1e-4), 0, [0.003, 0.01, 0.03]),
    "NovoGrad": (lambda rate: NovoGrad(rate, weight_decay=1e-4), 0, [0.01, 0.03, 0.1]),
}
BATCH_NORM = {"SGD": [0.1, 0.3, 1.0], "LARS": [0.15, 0.5, 1.5]}  # reference run only


def optimizer_run(network, optimizer, rate, seed):
    keras.utils.set_random_seed(seed)
    epochs = by_run_length(quick=2, learner=6, reference=6)
    steps = schedules.updates(N, [LARGEST] * epochs)
    fall = schedules.polynomial_decay(rate, steps, power=1)
    schedule = Schedule(schedules.gradual_warmup(fall, steps // 4, start=0), steps)
    make, decay, _ = OPTIMIZERS[optimizer]
    net = f1(decay=decay) if network == "batch norm" else f1(norm=None, decay=decay)
    return fit(compiled(net, make(schedule)), LARGEST, epochs, every=epochs)


settings = [
    {"network": network, "optimizer": optimizer, "rate": rate, "seed": seed}
    for network, table in (
        ("plain", {name: rates for name, (_, _, rates) in OPTIMIZERS.items()}),
        ("batch norm", by_run_length(quick={}, learner={}, reference=BATCH_NORM)),
    )
    for optimizer, rates in table.items()
    for rate in rates[: by_run_length(quick=1, learner=3, reference=3)]
    for seed in range(by_run_length(quick=1, learner=1, reference=3) + 1)
]
tried = sweep("large_batch_optimizers", optimizer_run, settings)


# %%
def tuned(table, network="plain"):
    """The rows of seeds 1, 2, ... at the rate that was best on seed 0."""
    table = table[table["network"] == network]
    first = table[table["seed"] == 0]
    best = first.loc[first.groupby("optimizer")["test_accuracy"].idxmax(), ["optimizer", "rate"]]
    rows = table[table["seed"] > 0].merge(best)
    return rows.assign(number=rows["optimizer"].map(list(OPTIMIZERS).index))


shipped_optimizers = reference("large_batch_optimizers")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
first = shipped_optimizers[
    (shipped_optimizers["seed"] == 0) & (shipped_optimizers["network"] == "plain")
]
for optimizer, rows in first.groupby("optimizer", sort=False):
    left.plot(rows["rate"], rows["test_accuracy"], "o-", label=optimizer)
left.set(xscale="log", xlabel="learning rate", ylabel="accuracy on test images")
left.set_title("candidates, seed 0, reference")
left.legend()
dots(right, tuned(tried), tuned(shipped_optimizers), list(OPTIMIZERS))
predicted(right, prediction)
right.set_title("the best of each, other seeds")
plt.show()

# %%
compare(
    tuned(tried),
    tuned(shipped_optimizers),
    by=["number", "optimizer", "rate"],
    value="test_accuracy",
)

# %% [markdown]
# ## What you should see: optimizers
#
# With 30 updates and no batch norm, SGD needs a rate that its most sensitive layer bears; the others crawl. A rate for each
# layer is worth three points to LARS and one to NovoGrad; the one of LARC is less than its seeds scatter. LAMB is six ahead of SGD, but nearly as far ahead is Adam, on which it is
# built: most of that comes from a rate for each *weight*, and what the layers add to it is less than the seeds scatter. Look at the left figure before you praise anyone: each optimizer has its own scale of rates, and an
# untuned LARS is worse than a tuned SGD. Three candidates are few, and whose best is at the edge may have a better one outside.
#
# With batch norm, which makes a layer's output independent of its weights' length, much of the difference is gone (from the
# reference run). Well-tuned plain optimizers matched LARS and LAMB in [Nado et al. 2021](https://arxiv.org/abs/2102.06356) as well.

# %%
compare(
    None, tuned(shipped_optimizers, "batch norm"), by=["optimizer", "rate"], value="test_accuracy"
)

# %% [markdown]
# ## What to take along
#
# 1. First give the large batch the updates it lacks: a larger rate, with warmup, then more epochs.
# 2. Where a schedule lowers the rate, it may grow the batch instead.
# 3. A rate for each layer, or for each weight, helps where layers differ much and updates are few. Tune it, and tune SGD as well before you compare.
# 4. One seed is an anecdote: look at the deviation over several before you call a difference an effect.
