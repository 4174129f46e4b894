# %% [markdown]
# # Lab 8: CIFAR-10 and the assessment
#
# In 2017 a group at Facebook trained a ResNet-50 on ImageNet in one hour. The training used 256 GPUs and
# 8,192 images per step, kept the accuracy of small batches, and scaled from 8 to 256 GPUs with an efficiency
# of about 90 % ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)). Time and accuracy belong together. A
# parallel training is a success only if it reaches the *same* accuracy in *less* time. The same accuracy
# could be reached by one process with more time, and a run is easily fast if its result does not matter. The
# assessment of this course asks for both, and a grader measures both on your machine. In this lab you use
# everything from labs 1 to 7 on real photographs: you compare optimizers, find out where the time of a run
# goes, convert a script, and hand it in.
#
# **After this lab you can**
#
# * compute which parallel efficiency a time budget demands;
# * divide the time of a run into start-up, reading, compute, exchange and evaluation, and compute the
#   largest possible speed-up (Amdahl's law);
# * judge a run with the rule of the assessment, and read the report of the grader;
# * convert a serial training script into one that passes the assessment;
# * find the case in which a wrong conversion fails, and plan a run for a budget.
#
# **Builds on** lab 5 (the edits that make a Horovod script, efficiency), lab 6 (critical batch size) and
# lab 7 (optimizers, scaling and warmup of the learning rate). **Time:** 145 minutes, 7 of them for the
# computer (34 on a processor without AVX-512). About 35 minutes are the conversion of the script in exercise 4.

# %% tags=["folded"]

import inspect
import math
import shutil
import textwrap
import time
import tomllib

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab import launch
from hvdlab.course.experiment import (
    LABS,
    QUICK,
    REFERENCE,
    WORK,
    by_run_length,
    grid,
    reference,
    sweep,
)
from hvdlab.course.figures import compare, describe
from hvdlab.course.training_runs import PARTS, epoch_rows, read_marks
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_cifar10
from hvdlab.exercises import lab08_cifar10_assessment as exercises
from hvdlab.exercises import lab08_conversion_review as review_exercises
from hvdlab.exercises import lab08_run_plan as plan_exercises

workbook = Workbook(8)
hint = workbook.hint
ROOT = LABS.parent
WORK.mkdir(parents=True, exist_ok=True)

# %%
FRAMEWORK = "keras"  # or "torch": the script that you will hand in
if QUICK:
    FRAMEWORK = "torch"  # it starts in half the time

# %% [markdown]
# ## CIFAR-10 data set
#
# CIFAR-10 contains 60,000 colour photographs of 32 x 32 pixels in ten classes. 50,000 of them are for
# training, and 10,000 are **held out**: the network never trains on them, so they show how well it
# classifies images that it has not seen. A network that guesses reaches an accuracy of 0.1, because all
# classes are equally frequent. The network of the assessment has four convolutions and a linear layer. It
# is small enough for a laptop.

# %% tags=["folded"]
data = load_cifar10()
shown = [np.flatnonzero(data.train_labels == label)[:12] for label in range(10)]
mosaic = np.vstack([np.hstack(data.train_images[row]) for row in shown])

figure, axes = plt.subplots(figsize=(7, 6))
axes.imshow(mosaic)
axes.set_xticks([])
axes.set_yticks(16 + 32 * np.arange(10), data.class_names)
axes.grid(False)
axes.spines[:].set_visible(False)
describe(
    figure,
    "Ten rows of twelve small colour photographs each, one row per class of CIFAR-10, with the name of the class on "
    "the left. The images of a class differ strongly in colour and position.",
)
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")

# %% [markdown]
# ## Assessment task and grading
#
# You get a script that trains this network with **one** process. It is correct and its hyperparameters are
# tuned. (A *hyperparameter* is a number that you choose and that is not learned, for example the learning
# rate or the batch size.) Your task is to change it so that
#
#     mpirun -np N python assessment.py
#
# reaches two accuracies, in two consecutive epochs, **within a time in which a single process cannot reach
# them**. An *epoch* is one pass of all ranks together over the training images. The cell prints the rules
# from the file that the grader reads. The full rules are in `assessment/README.md`, and it is worth reading
# them before exercise 4.

# %% tags=["folded"]
serial = ROOT / "assessment" / FRAMEWORK / "assessment.py"
rules = tomllib.loads((ROOT / "assessment" / "profiles.toml").read_text(encoding="utf-8"))
target, points = rules["cpu"], rules["points"]
print(f"train      {target['train_accuracy']:.2f}   on 10,000 training images drawn for your run")
print(f"held out   {target['heldout_accuracy']:.2f}   on 5,000 that your run is not shown")
print(f"in         {target['consecutive_epochs']} consecutive epochs")
print(f"within     start-up + {target['budget_serial_epochs']} epochs of one process")
print(f"points     {points}")

# %% [markdown]
# The grader does not believe what a script prints, because a script can print anything. It measures four
# things, one after the other:
#
# ![Four parts of a grading in a row. Calibration: one process trains and gives the budget of 2.6 epochs.
# Graded run: the script trains on N ranks, and the grader keeps weights and time of every epoch. Probe: two
# short runs of the script, once with own labels on each rank and once with the batches of all ranks, must
# give nearly equal weights. Finally the accuracies are recomputed from the weights. All four lead to the
# verdict.](pictures/grading_runs.svg)
#
# 1. **Calibration.** One process trains on *your* machine for some seconds, just before your run. Its speed
#    gives the time budget: 2.6 epochs of this process, plus its start-up. A slow computer is therefore no
#    disadvantage.
# 2. **Graded run.** Your script runs on N ranks. After each epoch every rank leaves its weights and the
#    list of the images that it read. The grader takes the time when the weights of the last rank arrive.
# 3. **Probe.** Two short additional runs of the same script show whether the ranks really train together.
#    In the first run all ranks read the same images, but the grader gives each rank different labels for
#    these images. In the second run each rank reads the batches of all ranks, like a single process with N
#    times the batch. If gradients are averaged, both runs end at nearly the same weights, because the average
#    over all ranks is the gradient of all their examples (lab 4).
# 4. **Accuracies.** The grader computes both accuracies itself, from the weights of rank 0. It uses 10,000
#    training images, and those 5,000 held-out images that your run never got.
#
# Why must the accuracies hold in *two* consecutive epochs? A single good epoch can be luck, because the
# accuracy fluctuates from epoch to epoch.

# %%
print(serial.read_text(encoding="utf-8"))

# %% [markdown]
# Read `main()` from top to bottom: the data, the network, the learning rate, the optimizer, the loop (or
# `fit`), and the recorder that leaves the weights. You will edit these places in exercise 4.
#
# ## Time budget and parallel efficiency
#
# The serial script needs three epochs to reach the target twice. The budget allows the time of 2.6 epochs
# of one process. So one process comes too late by 0.4 epochs, and several ranks can be in time only if they
# share the work well. The **parallel efficiency** $E$ (lab 5) is the speed-up divided by the number of
# ranks. With efficiency
# $E$, $N$ ranks finish $N \cdot E$ epochs while one process finishes one.
#
# ![Above, the learning rate of the script over three epochs: it rises linearly in the first 0.45 epochs,
# falls along half a cosine, and stays at two percent of its largest value. Below, bars on a time axis:
# three epochs of one process end after the budget of 2.6 epochs, three epochs of two ranks with an
# efficiency of 0.8 end after the time of 1.9 epochs, within the budget.](pictures/learning_rate_budget.svg)
#
# For example, two ranks with an efficiency of 0.8 finish 2 x 0.8 = 1.6 epochs in the time of one. Three
# epochs then take as long as 3 / 1.6 = 1.9 epochs of one process, which is less than 2.6.
#
# ### Exercise 1: Least efficiency
#
# **What:** Write `least_efficiency(ranks, epochs, budget)`. A run needs `epochs` epochs, and the budget is
# the time of `budget` epochs of one process. Return the smallest efficiency that keeps the budget. A result
# above 1 means that it cannot be kept.
#
# **Why:** The number tells you how much you may lose to communication, and whether a batch so large that it
# needs more epochs can still be in time.
#
# <details><summary>Hint 1</summary>How many epochs do N ranks with efficiency E finish during the whole
# budget? This number must be at least <code>epochs</code>.</details>
#
# <details><summary>Hint 2</summary>With 2 ranks, E = 0.8 and a budget of 2.6, the ranks finish 2 x 0.8 x
# 2.6 = 4.16 epochs. For exactly 3 epochs E may fall to 3 / (2 x 2.6) = 0.58.</details>
#
# <details><summary>Hint 3</summary>Solve <code>ranks * E * budget = epochs</code> for E.</details>


# %%
def least_efficiency(ranks, epochs, budget):
    # BEGIN SOLUTION: return the smallest parallel efficiency that keeps the budget
    return epochs / (ranks * budget)
    # END SOLUTION


# %%
exercises.check_least_efficiency(least_efficiency)

# %%
for ranks in (1, 2, 4, 8):
    needed = least_efficiency(ranks, epochs=3, budget=target["budget_serial_epochs"])
    remark = "cannot be done" if needed > 1 else ""
    print(f"{ranks} ranks, 3 epochs: efficiency {needed:.2f} {remark}")

# %% [markdown]
# One process cannot keep the budget. Two ranks need an efficiency of 0.58. In lab 5 the shipped runs had
# 0.66 with strong scaling and 0.83 with weak scaling, so this is possible. With five epochs instead of
# three two ranks would need 0.96. So a larger batch is useful only as long as it needs no additional
# epochs.
#
# ## Time of a run and Amdahl's law
#
# Where does the rest of the efficiency go? `labs/cifar10_torch.py` is the serial script after its
# conversion. With `--times FILE` rank 0 records when each part of its work begins:
#
# | part | what it contains | divided among the ranks? |
# |---|---|---|
# | start-up | start of the processes, imports, building the network, first broadcast | no |
# | reading | gathering and augmenting the images of a batch | yes |
# | compute | forward and backward pass, update of the weights | yes |
# | exchange | waiting for the all-reduce after the backward pass (the part that overlaps with the backward pass counts as compute) | no, it appears only with several ranks |
# | evaluation | computing the accuracies after an epoch | yes, each rank evaluates its own part |
#
# **Amdahl's law** says how much these parts limit. Let $s$ be the fraction of the time of one process that
# is *not* divided. With $N$ ranks the time falls to $s + (1 - s)/N$ of it, so the speed-up is
#
# $$S(N) = \frac{1}{s + (1 - s)/N} \;<\; \frac{1}{s}.$$
#
# However many ranks there are, the speed-up stays below $1/s$ (Gene Amdahl, 1967). Data parallelism adds the
# exchange, which a single process does not have and which does not vanish with more ranks. We compute with
# the same exchange on any number of ranks. So the bound becomes the time of one process, divided by the
# undivided time with the exchange.
#
# For example, a run on 2 ranks takes 22 s: start-up 6, reading 1, compute 10, exchange 3, evaluation 2. The
# divided parts are 1 + 10 + 2 = 13 s. One process would need 6 + 2 x 13 = 32 s, because it must do the
# divided work of both ranks and has nothing to exchange. With very many ranks the divided parts vanish, and
# 6 + 3 = 9 s remain. The bound of the speed-up is 32 / 9 = 3.6.
#
# ![Bars for the worked example. One rank takes 32 seconds, two ranks 22, four ranks 15.5, eight ranks 12.2
# and very many ranks 9 seconds, because start-up and exchange do not become shorter. The speed-up stays
# below 3.6.](pictures/amdahl_bound.svg)
#
# ### Exercise 2: Where the time goes
#
# **What:** Write `where_time_goes(marks, ranks)`. `marks` is a list of pairs `(part, seconds)`: what
# begins, and when. The first pair is `("start-up", 0.0)` and the last is `("end", ...)`. A part lasts until
# the next mark, and it may occur many times. Return three things: a dict with the seconds of each part in
# `PARTS`, a dict with their fractions of the whole time, and the bound of the speed-up over one process as
# in the example.
#
# **Why:** This calculation comes before any optimisation. It shows which part is worth improving, and it
# may show that more ranks are useless.
#
# <details><summary>Hint 1</summary>Go through neighbouring pairs of marks: the later time minus the earlier
# time belongs to the part of the earlier mark.</details>
#
# <details><summary>Hint 2</summary>For the marks ("start-up", 0), ("reading", 6), ("compute", 7),
# ("reading", 9), ("end", 10) the seconds are start-up 6, reading 1 + 1 = 2, compute 2. On 2 ranks one
# process would need 6 + 2 x 4 = 14 s, and the bound is 14 / 6 = 2.3.</details>
#
# <details><summary>Hint 3</summary><code>for (part, begin), (_, end) in zip(marks, marks[1:]):
# seconds[part] += end - begin</code>. The bound is <code>(seconds["start-up"] + ranks * divided) /
# (seconds["start-up"] + seconds["exchange"])</code>.</details>


# %%
def where_time_goes(marks, ranks):
    seconds = dict.fromkeys(PARTS, 0.0)
    # BEGIN SOLUTION: return the seconds and the fraction of each part, and the bound of the speed-up
    for (part, begin), (_, end) in zip(marks, marks[1:], strict=False):
        seconds[part] += end - begin
    total = sum(seconds.values())
    fractions = {part: value / total for part, value in seconds.items()}
    divided = seconds["reading"] + seconds["compute"] + seconds["evaluation"]
    undivided = seconds["start-up"] + seconds["exchange"]
    return seconds, fractions, (seconds["start-up"] + ranks * divided) / undivided
    # END SOLUTION


# %%
exercises.check_where_time_goes(where_time_goes)

# %%
# Prediction 1: a short run has one epoch on two ranks. Which part takes the longest: "start-up", "reading",
# "compute", "exchange" or "evaluation"? Replace both values of None.
workbook.predict(
    1, None, form=["start-up", "reading", "compute", "exchange", "evaluation"], reason=None
)

# %% tags=["folded"]
TIMES = WORK / "times.json"
IMAGES = by_run_length(quick=512, learner=10_000, reference=10_000)


def timed_run(*arguments):
    """Run cifar10_torch.py on two ranks, and return its marks."""
    launched = time.time()
    launch.run(LABS / "cifar10_torch.py", *arguments, "--times", TIMES, show=False)
    return read_marks(TIMES, launched)


# %%
marks = timed_run("--epochs", 1, "--warmup", 0.45, "--images", IMAGES)
seconds, fractions, bound = where_time_goes(marks, ranks=2)
for part in PARTS:
    print(f"{part:11}{seconds[part]:6.1f} s {fractions[part]:6.0%}")
print(f"at most {bound:.1f} times as fast as one process")
workbook.result(1, max(seconds, key=seconds.get))

# %% [markdown]
# In so short a run the start-up is a large part, because importing a framework takes seconds on any
# machine. The evaluation is large too: it uses up to 20,000 images, and this run trains on fewer. The bound
# is therefore low. It is higher for a longer run, because the start-up stays the same while the other parts
# grow with the number of epochs. This is also why the budget of the assessment contains the start-up of one
# process.
#
# Look at the fraction of *exchange* compared with reading and compute. It contains the transfer of the
# gradients and the time in which a rank waits for a slower one. With a larger batch per rank an epoch has fewer
# steps, and therefore fewer exchanges.
#
# ## Rule for the target
#
# After each epoch rank 0 prints one line, and `epoch_rows(output)` turns these lines into a list of dicts,
# one per epoch:
#
#     epoch 0  loss 1.323  train 0.613  held-out 0.601  19.2 s
#     {"epoch": 0, "loss": 1.323, "train_accuracy": 0.613, "heldout_accuracy": 0.601, "seconds": 19.2}
#
# An epoch is *good* if both accuracies are at their target or above. The target is reached when the second
# of two consecutive good epochs ends.
#
# For example, the epochs of a run end after 20, 40, 60 and 80 s, and the second, third and fourth are good.
# The target is reached after 60 s. If only the second and the fourth were good, it would not be reached at
# all.
#
# ### Exercise 3: Judge a run
#
# **What:** Write `seconds_to_target(rows)`. It returns the `seconds` at which the *second* of the first two
# consecutive good epochs ended, or `None`. An epoch is good with a `train_accuracy` of at least 0.75
# **and** a `heldout_accuracy` of at least 0.70.
#
# **Why:** You will compare optimizers with the rule that counts, and not with the accuracy at the end.
#
# <details><summary>Hint 1</summary>While you go through the rows, remember whether the row before was
# good.</details>
#
# <details><summary>Hint 2</summary>For good = [no, yes, no, yes, yes] with 10 s per epoch: the second of
# the first two consecutive good epochs is number 4, which ends after 50 s.</details>
#
# <details><summary>Hint 3</summary><code>before = False</code>; in the loop <code>good = ...</code>, then
# <code>if good and before: return row["seconds"]</code>, then <code>before = good</code>.</details>


# %%
def seconds_to_target(rows):
    # BEGIN SOLUTION: return the seconds at the second of two good epochs in a row, or None
    before = False
    for row in rows:
        good = row["train_accuracy"] >= 0.75 and row["heldout_accuracy"] >= 0.70
        if good and before:
            return row["seconds"]
        before = good
    return None
    # END SOLUTION


# %%
exercises.check_seconds_to_target(seconds_to_target)

# %% [markdown]
# ## Comparison of five optimizers
#
# Five optimizers of lab 7 train the same network on two ranks, with 96 images per rank and step, for four
# epochs. Each has its own tuned learning rate: SGD with Nesterov momentum, LARS, LARC (LARS whose factor
# never makes a step longer than that of SGD), LAMB and NovoGrad. You run SGD in your framework, for a minute
# or two. The course ships the other runs.
#
# Two quantities are of interest, and they need not have the same winner: the accuracy after the last epoch,
# and the time until the target is reached.

# %%
# Prediction 2: how many seconds does SGD need to reach the target on your machine? You know its images per
# second from lab 5. Replace both values of None.
prediction_seconds = workbook.predict(2, None, reason=None)

# %%
OPTIMIZERS = ["sgd", "lars", "larc", "lamb", "novograd"]
SHORT = ["--epochs", 1, "--images", 512] if QUICK else []


def train(framework, optimizer, seed):
    script = LABS / f"cifar10_{framework}.py"
    print(f"{script.name}, {optimizer}, seed {seed}")
    return epoch_rows(launch.run(script, "--optimizer", optimizer, "--seed", seed, *SHORT))


# %% tags=["folded"]
runs = sweep(
    "cifar10_optimizers",
    train,
    by_run_length(
        quick=grid(framework=["torch"], optimizer=["sgd"], seed=[1]),
        learner=grid(framework=[FRAMEWORK], optimizer=["sgd"], seed=[1]),
        reference=grid(framework=["keras", "torch"], optimizer=OPTIMIZERS, seed=[1, 2, 3]),
    ),
)
shipped = reference("cifar10_optimizers")
RUN = ["framework", "optimizer", "seed"]

figure, both = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True)
panels = {"keras": both[0], "torch": both[1]}
colours = dict(zip(OPTIMIZERS, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
markers = dict(zip(OPTIMIZERS, "os^Dv", strict=True))


def line(table, framework, optimizer, *style, **look):
    x, y = table["seconds"], table["heldout_accuracy"]
    panels[framework].plot(x, y, *style, color=colours[optimizer], **look)


for (framework, optimizer, _), run in shipped.groupby(RUN):
    line(run, framework, optimizer, linewidth=1, alpha=0.3)
for (framework, optimizer), some in shipped.groupby(RUN[:2]):
    mean = some.groupby("epoch")[["seconds", "heldout_accuracy"]].mean()
    line(mean, framework, optimizer, marker=markers[optimizer], markersize=4, label=optimizer)
for (framework, optimizer, _), run in runs.groupby(RUN):
    line(run, framework, optimizer, markers[optimizer] + ":", markeredgecolor="black", markersize=9)
if prediction_seconds is not None:
    panels[FRAMEWORK].axvline(prediction_seconds, color="black", linestyle=":")
for framework, axes in panels.items():
    axes.axhline(target["heldout_accuracy"], color="black", linestyle="--", linewidth=1)
    axes.set(title=framework, xlabel="seconds of training")
both[0].set_ylabel("held-out accuracy")
figure.legend(*both[0].get_legend_handles_labels(), loc="outside right center")
describe(
    figure,
    "Held-out accuracy over seconds of training for five optimizers, one panel for Keras and one for PyTorch. All "
    "optimizers end close together near 0.79, and NovoGrad is two to three points lower.",
)

# %% [markdown]
# A thin line is one run that the course ships, and a thick line is the mean of three runs. Large points
# with a black edge are yours. The dashed line is the target for the held-out accuracy, and a dotted
# vertical line is your prediction.
#
# The seconds depend on the machine, so they cannot be compared with yours. The accuracy after the last
# epoch can be compared:

# %%
last = shipped["epoch"].max()
ends = [table[table["epoch"] == last] for table in (runs, shipped)]
compare(*ends, by=["framework", "optimizer"], value="heldout_accuracy")

# %% [markdown]
# Now the rule of the assessment, with your function of exercise 3. After how many epochs was the target
# reached? `n` is the number of runs that reached it at all.


# %% tags=["folded"]
def judged(table):
    """One row per run: how many epochs it took to the target, and how many seconds."""
    found = []
    for names, run in table.groupby(RUN):
        reached = seconds_to_target(run.to_dict("records"))
        epochs = (run["seconds"] <= reached).sum() if reached is not None else np.nan
        found.append((*names, epochs, reached))
    columns = [*RUN, "epochs", "seconds"]
    return pd.DataFrame(found, columns=columns).astype({"epochs": float, "seconds": float})


# %%
compare(judged(runs), judged(shipped), by=["framework", "optimizer"], value="epochs")

# %%
mine, theirs = (judged(t).groupby(RUN[:2])["seconds"].median() for t in (runs, shipped))
workbook.result(2, mine.fillna(theirs)[FRAMEWORK, "sgd"])  # the reference if yours did not reach it
compare(judged(runs), judged(shipped), by=["framework", "optimizer"], value="seconds")

# %% [markdown]
# Three observations:
#
# * **An epoch less saves a quarter of the time.** An epoch costs nearly the same with every optimizer. SGD
#   reached the target after three epochs in five of its six shipped runs. LARS needed four epochs in all of
#   its runs, although its accuracy at the end is higher.
# * **Compare a difference with the spread of the seeds.** After four epochs SGD has 0.79 and LARS 0.80 (n =
#   3 each, standard deviations 0.001 to 0.004). NovoGrad has 0.76 to 0.77. Where the thin lines of two
#   optimizers cross, the runs do not decide which one is better.
# * **The best accuracy and the shortest time to the target belong to different optimizers.** The assessment
#   measures the time.
#
# At 192 images per step plain SGD works well, so LARS and LAMB, which were designed for batches of
# thousands, have nothing to fix.
#
# ## Warmup and linear scaling at a larger batch
#
# Lab 7 gave the recipe for a larger batch: scale the learning rate with the batch, and warm it up. This
# experiment takes the recipe apart. The learning rate of SGD, 0.35, was tuned for 192 images per step. Now
# a step has 1,024 images, 512 per rank, and the run has two epochs:
#
# * `small-batch rate`: a learning rate of 0.35, with warmup;
# * `scaled`: 0.35 x 1024 / 192 = 1.87, from the first step on;
# * `scaled + warmup`: the same, approached linearly over the first 0.45 epochs.
#
# The number of steps is 2 x 50,000 / 1,024, or 98. With warmup 22 of them have a reduced learning rate. You
# run `scaled`. The shipped results contain all three.

# %%
# Prediction 3: which of the three recipes has the highest held-out accuracy after two epochs? Write its name.
# Replace both values of None.
workbook.predict(3, None, form=["small-batch rate", "scaled", "scaled + warmup"], reason=None)

# %%
RECIPES = {
    "small-batch rate": ["--lr", 0.35],
    "scaled": ["--warmup", 0],
    "scaled + warmup": [],
}


def train_recipe(recipe, seed):
    arguments = ["--batch-size", 512, "--epochs", 2, *RECIPES[recipe], "--seed", seed]
    if QUICK:
        arguments += ["--epochs", 1, "--images", 1024]
    print(f"cifar10_torch.py, {recipe}, seed {seed}")
    return epoch_rows(launch.run(LABS / "cifar10_torch.py", *arguments))


# %% tags=["folded"]
ablation = sweep(
    "cifar10_ablation",
    train_recipe,
    by_run_length(
        quick=grid(recipe=["scaled"], seed=[1]),
        learner=grid(recipe=["scaled"], seed=[1]),
        reference=grid(recipe=RECIPES, seed=[1, 2, 3]),
    ),
)
shipped_ablation = reference("cifar10_ablation")
last = shipped_ablation["epoch"].max()
after = shipped_ablation[shipped_ablation["epoch"] == last].groupby("recipe")["heldout_accuracy"]
mean, std = after.mean().reindex(RECIPES), after.std().reindex(RECIPES)

figure, axes = plt.subplots()
axes.errorbar(list(RECIPES), mean, std, fmt="s", capsize=4, label="reference, mean of 3 seeds")
yours = ablation[ablation["epoch"] == last]
axes.plot(yours["recipe"], yours["heldout_accuracy"], "o", mec="black", label="yours")
axes.set(ylabel="held-out accuracy after two epochs")
axes.margins(x=0.2)
axes.set_ylim(0, None)
axes.axhline(0.1, color="black", linestyle=":", linewidth=1, label="chance")
figure.legend(loc="outside upper center", ncols=3)
describe(
    figure,
    "Held-out accuracy after two epochs of three recipes. The small-batch rate reaches 0.63, scaled with warmup 0.56, "
    "and scaled without warmup stays at chance, 0.12.",
)
print(mean.sort_values().round(2).to_string())
workbook.result(3, mean.idxmax())

# %% [markdown]
# The error bars are one standard deviation over the seeds. **The scaled learning rate without warmup stays at
# chance** (0.12 +- 0.02, n = 3). At the beginning the gradients are large and change quickly. Steps of this size
# lead the weights to a region from which two epochs do not bring them back. The same learning rate, reached
# slowly, trains (0.56 +- 0.02). Yet it is worse than the small one (0.63 +- 0.02).
#
# In lab 7 scaling with warmup reached the small batch. Why not here? There are two explanations. The run may
# have too few steps: 22 of its 98 steps belong to the warmup, and Goyal et al. trained for 90 epochs. Or the
# batch may be above the critical batch, so that 5.3 times the learning rate is too much for any number of steps.
# The next cell tests both, with a learning rate in between and with six epochs. It shows shipped runs, because they
# take a quarter of an hour.


# %% tags=["folded"]
def train_longer(epochs, rate, seed):
    arguments = ["--batch-size", 512, "--epochs", epochs, "--lr", rate, "--seed", seed]
    return epoch_rows(launch.run(LABS / "cifar10_torch.py", *arguments, timeout=1800))[-1]


every = grid(epochs=[2], rate=[0.7], seed=[1, 2, 3])
every += grid(seed=[1, 2, 3], epochs=[6], rate=[0.35, 1.87])
if REFERENCE:
    sweep("cifar10_recipe", train_longer, every)
compare(None, reference("cifar10_recipe"), by=["epochs", "rate"], value="heldout_accuracy")

# %% [markdown]
# Both explanations hold in part. With six epochs the scaled learning rate comes closer, from seven points to four
# (0.738 ± 0.023 and 0.776 ± 0.004, n = 3), but it stays behind. In two epochs even twice the small-batch rate is not
# better than the small-batch rate itself (0.612 ± 0.020 and 0.63 ± 0.02). In lab 7 the learning rate was tuned for 16
# images, far below the critical batch, and could grow by a factor of 16. Here it was tuned for 192 images, and hardly
# any room was left.
#
# For the assessment this means: choose a batch that leaves enough steps, begin with the scaled learning
# rate and its warmup, and measure whether another learning rate is better.
#
# ## Conversion of the script
#
# The cell puts the serial script at `notebooks/work/assessment.py`. It does so once and never overwrites
# what you wrote. To start again, or with the other framework, delete the file and run the cell again.

# %%
script = WORK / "assessment.py"
if not script.exists():
    shutil.copy(serial, script)
print(f"Edit {script.relative_to(ROOT)}")

# %% [markdown]
# ### Exercise 4: Make the script use N processes
#
# **What:** Open `work/assessment.py` in the file browser on the left, edit it as you did in lab 5, and save
# it. Then run the check below. It runs your script on two ranks for a few steps with `hvdlab check`, and
# reports what is missing.
#
# **Why:** This file is what you hand in. The check trains for a few steps only, and the grader decides.
#
# <details><summary>Hint 1: the seven places</summary>
#
# 1. Import Horovod, <code>import hvdlab.keras.horovod as hvd</code> or <code>import horovod.torch as
#    hvd</code>, and call <code>hvd.init()</code> first in <code>main()</code>.
# 2. Choose the device of each process with <code>rank_device(hvd)</code>: a GPU of its own, a GPU that
#    ranks share, or the processor.
# 3. Pass <code>rank=hvd.rank(), size=hvd.size()</code> to <code>Batches</code>, and choose the batch size of
#    a rank.
# 4. Multiply the learning rate of one process by <code>hvd.size()</code>. The warmup is there already.
# 5. Wrap the optimizer with <code>hvd.DistributedOptimizer(optimizer, ...)</code> before it is used.
# 6. Broadcast the weights of rank 0 to all ranks; in PyTorch also the state of the optimizer, and before
#    <code>model.to(device)</code>.
# 7. Print on rank 0 only, and print numbers that are averaged over the ranks. The recorder stays on
#    <i>all</i> ranks.
# </details>
# <details><summary>Hint 2: a smaller case</summary>In lab 5 the same seven edits converted
# <code>fashion_mnist_keras.py</code> or <code>fashion_mnist_torch.py</code>. Compare your finished script
# of lab 5 with its serial version, edit by edit. Then find the line of the assessment script at which each
# edit belongs.</details>
# <details><summary>Hint 3: the lines, Keras</summary>
#
# ```python
# from hvdlab.keras.device import rank_device
# mine = rank_device(hvd)  # before Keras computes anything
# optimizer = hvd.DistributedOptimizer(optimizer, device_dense=mine.device_dense)
# callbacks=[
#     hvd.callbacks.BroadcastGlobalVariablesCallback(0),
#     hvd.callbacks.MetricAverageCallback(),
#     Recorder(batches),
# ],
# verbose=2 if hvd.rank() == 0 else 0,
# ```
# </details>
# <details><summary>Hint 3: the lines, PyTorch</summary>
#
# ```python
# from hvdlab.torch.device import rank_device
# mine = rank_device(hvd)
# device = mine.device
# model = assessment_network()  # still in host memory, which every build of Horovod can send
# hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# model.to(device)
# optimizer = hvd.DistributedOptimizer(
#     optimizer, named_parameters=model.named_parameters(), compression=mine.compression
# )
# loss = total_loss.item() / len(batches.examples_read(epoch))  # this rank read a part of the images
# loss = hvd.allreduce(torch.tensor(loss), name="loss").item()  # of all ranks, not of rank 0 only
# accuracy = hvd.allreduce(torch.tensor(accuracy), name="accuracy").item()
# ```
# </details>

# %% tags=["solution"]
# The reference solution goes next to your script, which stays as it is.
script = WORK / "assessment_solution.py"
shutil.copy(ROOT / "assessment" / "solutions" / FRAMEWORK / "assessment.py", script)

# %%
exercises.check_conversion(script)

# %% [markdown]
# ## Practice run on two ranks
#
# A practice run executes all of your script, but on the first 2,000 images only. It takes seconds instead
# of a minute, and crashes and deadlocks appear here. A small starter script shortens the data set, and then
# runs your script as it is.

# %% tags=["folded"]
FIRST_IMAGES = """\
# A practice run: the first 2,000 training images, and 1,000 held-out ones.
import hvdlab.data


def load_firsts(folder=None, load_all=hvdlab.data.load_cifar10):
    whole = load_all(folder)
    firsts = {"train_images": 2000, "train_labels": 2000, "test_images": 1000, "test_labels": 1000}
    return whole._replace(**{name: getattr(whole, name)[:n] for name, n in firsts.items()})


hvdlab.data.load_cifar10 = load_firsts
"""
START = """
import runpy
import sys

runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
one_epoch = "import sys\n\nsys.argv += ['--epochs', '1']\n" if QUICK else ""
practice, record = WORK / "practice.py", WORK / "practice"
practice.write_text(one_epoch + FIRST_IMAGES + START, encoding="utf-8")
shutil.rmtree(record, ignore_errors=True)

# %%
output = launch.run(practice, script, ranks=2, timeout=300, HVDLAB_RUN_DIR=str(record))

# %% [markdown]
# ## Records of the ranks
#
# After each epoch every rank leaves its weights and the list of the images that it read. These files are
# what the grader sees. If two ranks train one model, their trained weights are equal, to the last bit or
# nearly. If they divide the work, they share no image.

# %% tags=["folded"]
for path in sorted(record.glob("rank-0/*.npz")):
    other = record / "rank-1" / path.name
    if not other.exists():
        print(f"{path.stem}: rank 1 has recorded nothing")
        continue
    ours, theirs = np.load(path), np.load(other)
    trained = [name for name in ours.files if name.endswith((".weight", ".bias"))]
    apart = max(np.abs(ours[name] - theirs[name]).max() for name in trained)
    both_read = np.intersect1d(ours["examples_read"], theirs["examples_read"])
    print(f"{path.stem}: weights differ by {apart:.1e}, ranks share {len(both_read)} images")

# %% [markdown]
# ## Submission and report
#
# Now hand your script in. The grader needs one to ten minutes: calibration, graded run, probe and
# accuracies follow each other as in the first picture.

# %%
# Prediction 4: how many seconds after the launch will your script have reached the target? The start-up
# counts too. Replace both values of None.
prediction_target = workbook.predict(4, None, reason=None)

# %% tags=["folded"]
handed_in, profile = script, "cpu"
if QUICK:
    handed_in, profile = practice, "dli"
    # a single file is graded
    practice.write_text(
        one_epoch + FIRST_IMAGES + script.read_text(encoding="utf-8"), encoding="utf-8"
    )
    print("A quick run hands in the practice script, for one epoch of 2,000 images: it must fail.")

# %%
code, report = exercises.hand_in(handed_in, WORK / "report.json", profile=profile)

# %% [markdown]
# `hvdgrade` ends with one of four exit codes. A program or a course platform reads them.

# %% tags=["folded"]
MEANING = {
    0: "Pass: every check holds.",
    1: "Fail: a check does not hold. Below, each says what was seen and what to do.",
    2: "Not gradable: your script could not even be started. No attempt is lost.",
    3: "A fault of the grader, never yours. Try again, and show it to your instructor.",
}
print(f"Exit code {code}. {MEANING.get(code, 'The grading was ended from outside.')}")
print(report.get("reason", ""))

# %% [markdown]
# In the figure each point is an epoch, at the second at which the weights of its last rank arrived. A run
# passes if two points in a row have both curves above their dashed lines, and if the second of them lies to
# the left of the budget.

# %% tags=["folded"]
timeline = pd.DataFrame(report.get("timeline", []))
asked = rules[report["grader"]["profile"]] if report else target
figure, axes = plt.subplots()
for name, label, colour, marker in (
    ("train", "train", "C0", "o-"),
    ("heldout", "held out", "C1", "s-"),
):
    at = asked[f"{name}_accuracy"]
    axes.axhline(at, color=colour, linestyle="--", linewidth=1, label=f"{label}: target")
    if len(timeline):
        seen = timeline[f"{name}_accuracy"]
        axes.plot(timeline["seconds"], seen, marker, color=colour, label=label)
if report.get("budget"):
    axes.axvline(report["budget"]["seconds"], color="black", label="budget")
if prediction_target is not None:
    axes.axvline(prediction_target, color="black", linestyle=":", label="your prediction")
axes.set(xlabel="seconds since launch", ylabel="accuracy", xlim=(0, None), ylim=(0, 1))
axes.set_title((report.get("verdict") or report.get("status", "no report")).upper())
figure.legend(loc="outside lower center", ncols=3)
describe(
    figure,
    "Training and held-out accuracy of each epoch over the seconds since the launch, with a dashed line for each "
    "target and a vertical line for the time budget.",
)
if report.get("seconds_to_target"):  # None: it was not reached
    workbook.result(4, report["seconds_to_target"])

# %% [markdown]
# The report lists eight checks. Read them in this order. The first one that fails matters most, because a
# check that depends on a failed check is skipped.

# %% tags=["folded"]
for check in report.get("checks", []):
    print(f"{check['state']:8}{check['points']:3} of {check['max_points']:2}  {check['title']}")
    for what, text in (("seen", check["rationale"]), ("do", check["help"])):
        print(
            *textwrap.wrap(text, 80, initial_indent=f"    {what:6}", subsequent_indent=" " * 10),
            sep="\n",
        )

# %% [markdown]
# | a check that fails | look first at | lab |
# |---|---|---|
# | every rank runs and records | the output of the practice run; a recorder under `if hvd.rank() == 0` | 5 |
# | ranks train one model | `DistributedOptimizer`, the broadcast; for Keras the module that you import | 5 |
# | gradients are exchanged | is the optimizer that steps the one that `DistributedOptimizer` returned? | 5 |
# | ranks learn from each other, N ranks train like a single process | gradients averaged in each step; randomness of your own | 4 |
# | ranks read different data | `rank=` and `size=` of `Batches` | 5 |
# | equal steps, whole epochs | your own slicing of the data | 5 |
# | accuracy reached in time | batch size, learning rate, warmup; other programs on your machine | 6, 7 |
#
# `assessment/failed_checks.md` explains the causes of each failed check in detail.
#
# ## Efficiency of your run
#
# The report also contains the speed of one process from the calibration. With it you can compute the
# efficiency that your ranks reached, and compare it with the smallest allowed one of exercise 1.

# %% tags=["folded"]
one = np.mean((report.get("budget") or {}).get("serial_images_per_second", np.nan))
if len(timeline) > 1 and np.isfinite(one):
    an_epoch = timeline["seconds"].diff().mean()
    ranks = report["grader"]["ranks"]
    efficiency = len(data.train_images) / an_epoch / (ranks * one)
    needed = least_efficiency(ranks, len(timeline), target["budget_serial_epochs"])
    print(f"one process {one:,.0f} images/s, {ranks} ranks an epoch in {an_epoch:.1f} s:")
    print(f"efficiency {efficiency:.2f}, needed for {len(timeline)} epochs {needed:.2f}")
else:
    print("No calibration in this report: hand in with the profile cpu for it.")

# %% [markdown]
# The time of an epoch includes your evaluation at its end, so the efficiency is a little lower than that of
# the training alone. If you passed, the measured efficiency is above the needed one. If it is not, return
# to exercise 2: its table tells you which part to improve first.
#
# **If you want to continue:**
#
# * `make assess SUBMISSION=notebooks/work/assessment.py NP=4`, at the top of the repository, does the same
#   grading from a terminal on four ranks.
# * Use the optimizer that reached the target first in the figure above. Does your script still pass, and
#   with how much time left?
# * Which is the largest batch that still passes? Predict it from the noise scale of lab 6 first.
#
# ## Review of a conversion
#
# The function below does in small what the ranks of a run do, without a network: the steps of an epoch on each
# rank, the held-out accuracy of all ranks, and the learning rate of each step.
#
# ### Exercise 5: Review of four patches
# **Level:** choose and justify.
#
# **What:** A colleague sends you four patches of this function. Decide which are correct. For each of the
# others, give a case in which the run goes wrong: a deadlock, a wrong accuracy, or a schedule that does not have
# one learning rate for each step.
#
# **Why:** A conversion can be right with the numbers of one run and wrong with others.
#
# **Signature:** `review_conversion()` returns a dict with the keys `"a"` to `"d"`. A value is `"correct"`, or a
# case such as `{"images": 16, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2}`. `images` is the
# number of training images, `batch` belongs to one rank, and `correct` has a 1 for each held-out image that is
# classified correctly.

# %%
print(inspect.getsource(review_exercises.converted_run))
print(review_exercises.CONVERSION_REVIEW)

# %% [markdown]
# <details><summary>Hint 1</summary>Compute by hand what two ranks do with 9 training images and 3 held-out
# images. In Python <code>-(-9 // 2)</code> is 9 / 2, rounded up.</details>
#
# <details><summary>Hint 2</summary>When is the mean of two fractions not the fraction of the whole? When do
# two roundings, one per epoch, add up to more than one rounding at the end?</details>


# %%
def review_conversion():
    # BEGIN SOLUTION: return {"a": "correct" or a case, "b": ..., "c": ..., "d": ...}
    return {
        "a": {"images": 16, "correct": [1, 0, 1], "batch": 4, "ranks": 2, "epochs": 2},
        "b": {"images": 9, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2},
        "c": "correct",
        "d": {"images": 10, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2},
    }
    # END SOLUTION


# %%
review_exercises.check_review_conversion(review_conversion)

# %% [markdown]
# ## Plan of a run
#
# ### Exercise 6: Ranks and batch for a budget
# **Level:** blank page.
#
# **What:** Write `plan_run(measured, batches, max_ranks, budget)`. Choose the number of ranks, from 1 to
# `max_ranks`, and the batch of a rank, from `batches`, so that the run ends within `budget` seconds. Return
# `{"ranks": ..., "batch": ..., "epochs": ..., "seconds": ...}` of the plan with the fewest rank-seconds (ranks
# times seconds), or `None` if no plan is in time.
#
# `measured` is a dict with the seconds of one process: `start_up`, `image` (reading and computing one training
# image) and `evaluation` (after each epoch). `exchange` is the time of one all-reduce. `images` is the number of
# training images. The epochs follow the law of lab 6, `e0 * (1 + B / b_crit)` with the batch `B` of all ranks.
# They are rounded up, because the accuracy is measured after whole epochs.
#
# **Why:** You should know the seconds and the price of a run before you start it.
#
# **Rubric,** measured in seven situations:
#
# * *Possible:* ranks and batch are among the allowed ones.
# * *Forecast:* `epochs` and `seconds` are those of the plan. All times of images are divided among the ranks. A
#   run with several ranks makes one all-reduce per step, and the last step of an epoch may be incomplete.
# * *In time:* `seconds` is at most `budget`.
# * *Cheapest:* no other plan in time has fewer rank-seconds. *No plan:* `None` where nothing is in time.
#
# <details><summary>Hint 1</summary>In the example below 2 ranks and a batch of 100 need 2.6 (1 + 200 / 2000)
# = 2.86, so 3 epochs. An epoch has 250 steps and takes 20 + 2 + 250 x 0.03 = 29.5 s, and the run 94.5
# s. Compute all plans.</details>


# %%
def plan_run(measured, batches, max_ranks, budget):
    # BEGIN SOLUTION: return the cheapest plan in time, or None
    best = None
    for ranks in range(1, max_ranks + 1):
        for batch in batches:
            epochs = math.ceil(measured["e0"] * (1 + ranks * batch / measured["b_crit"]))
            an_epoch = (measured["images"] * measured["image"] + measured["evaluation"]) / ranks
            if ranks > 1:
                an_epoch += math.ceil(measured["images"] / (ranks * batch)) * measured["exchange"]
            seconds = measured["start_up"] + epochs * an_epoch
            plan = {"ranks": ranks, "batch": batch, "epochs": epochs, "seconds": seconds}
            if seconds <= budget and (
                best is None or ranks * seconds < best["ranks"] * best["seconds"]
            ):
                best = plan
    return best
    # END SOLUTION


# %%
example = {
    "start_up": 6.0, "image": 0.0008, "evaluation": 4.0, "exchange": 0.03, "images": 50_000,
    "e0": 2.6, "b_crit": 2000,
}  # fmt: skip
for budget in (40, 60, 100, 200):
    print(budget, "s:", plan_run(example, [50, 100, 200, 400], 4, budget))

# %%
plan_exercises.check_plan_run(plan_run)

# %% [markdown]
# ## Summary
#
# * A parallel training is judged by accuracy *and* time. The assessment demands 0.75 on training images and
#   0.70 on held-out images, in two consecutive epochs, within 2.6 epochs of one process plus its start-up.
# * With three epochs one process is too late. Two ranks need an efficiency of at least 0.58, four ranks
#   0.29.
# * The time of a run divides into start-up, reading, compute, exchange and evaluation. Start-up and
#   exchange are not divided among the ranks, so by Amdahl's law they bound the speed-up.
# * At 192 images per step SGD, LARS, LARC and LAMB end within one percentage point (0.79 to 0.80), and
#   NovoGrad is two to three points lower. SGD reached the target earliest in most runs.
# * At 1,024 images per step and two epochs the scaled learning rate needs a warmup (0.56 with, 0.12
#   without), and the unscaled one is better still (0.63), also in six epochs. A rate that was tuned for 192 images
#   has hardly any room to grow.
# * The grader trusts measurements: weights, bytes, time and the probe. It recomputes the accuracies from
#   the weights.
#
# ## Self-check questions
#
# Questions 6 to 8 return from labs 5 to 7 with other numbers.

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=0.75)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=4)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="b")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="c")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="a")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer=8)

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer=1500)

# %%
workbook.question(8, answer=None)

# %% tags=["solution"]
workbook.question(8, answer=0.068)

# %% [markdown]
# The file that you hand in is `notebooks/work/assessment.py`. **Next:** lab 9 uses one device fully, with
# other number formats and less memory.
