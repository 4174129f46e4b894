# %% [markdown]
# # Lab 8: CIFAR-10 with Horovod, and the assessment
#
# **Time:** 75 minutes, six of them computing. **You measure** accuracy against time of two optimizers on two ranks, compared with
# shipped runs of five in Keras and in PyTorch, and what rate and warmup do to it. Then the grader measures you. **You need** lab 5 (what
# makes a script a Horovod script) and lab 7 (the optimizers).

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import re
import shutil
import textwrap
import tomllib

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab import launch
from hvdlab.course.experiment import LABS, QUICK, WORK, by_run_length, grid, reference, sweep
from hvdlab.course.figures import compare
from hvdlab.data import load_cifar10
from hvdlab.exercises import lab08_cifar10_assessment as exercises

ROOT = LABS.parent
FRAMEWORK = "keras"  # or "torch": the script that you will hand in
if QUICK:
    FRAMEWORK = "torch"  # it starts in half the time

# %% [markdown]
# ## Look at CIFAR-10
#
# 50,000 training images and 10,000 held-out ones, 32 x 32 pixels, ten classes. Chance is 0.1.

# %%
data = load_cifar10()
shown = [np.flatnonzero(data.train_labels == label)[:12] for label in range(10)]
mosaic = np.vstack([np.hstack(data.train_images[row]) for row in shown])

figure, axes = plt.subplots(figsize=(7, 6))
axes.imshow(mosaic)
axes.set_xticks([])
axes.set_yticks(16 + 32 * np.arange(10), data.class_names)
axes.grid(False)
axes.spines[:].set_visible(False)
plt.show()
if data.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")

# %% [markdown]
# ## Read the script that you start from
#
# It is honest, it is tuned, and it uses one process. Read `main()`: the data, the network, the rate, `fit`.

# %%
serial = ROOT / "assessment" / FRAMEWORK / "assessment.py"
print(serial.read_text())

# %% [markdown]
# ## Read what the assessment asks
#
# Make that script use N processes with Horovod so that `mpirun -np N python assessment.py` reaches both
# accuracies, in two consecutive epochs, **within a time in which a single process cannot do it**. The grader
# measures one process on *your* machine just before your run. So a slow computer is no drawback: what counts is that
# the ranks share the work. It recomputes the accuracies from the weights that your ranks leave; it
# does not believe what a script prints. The rules in full: `assessment/README.md`.

# %%
rules = tomllib.loads((ROOT / "assessment" / "profiles.toml").read_text())
target, points = rules["cpu"], rules["points"]
print(f"train      {target['train_accuracy']:.2f}   on 10,000 training images drawn for your run")
print(f"held out   {target['heldout_accuracy']:.2f}   on 5,000 that your run is not shown")
print(f"in         {target['consecutive_epochs']} consecutive epochs")
print(f"within     start-up + {target['budget_serial_epochs']} epochs of one process")
print(f"points     {points}")

# %% [markdown]
# ## Exercise 1: how efficient must your ranks be?
#
# A run needs `epochs` passes over the data. The budget is what one process does in `budget` passes. N ranks
# with parallel efficiency $E$ make $N \cdot E$ passes while one process makes one. Write
# `least_efficiency(ranks, epochs, budget)`: the smallest $E$ that keeps the budget. A result above 1 says that it cannot
# be done.
#
# <details><summary>Hint 1</summary>In the time of <code>budget</code> passes of one process, N ranks make
# <code>ranks * E * budget</code> passes.</details>
# <details><summary>Hint 2</summary>Set that equal to <code>epochs</code> and solve for E.</details>


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
# Compare with the efficiency that you measured in lab 5. There is room, but not for a batch so large that it needs
# twice as many epochs.
#
# ## Train with two ranks
#
# `labs/cifar10_keras.py` and `labs/cifar10_torch.py` are the script above made a Horovod script, with the optimizers of lab 7 to choose
# from. After each epoch rank 0 prints one line. The accuracies are over all ranks; the loss is too with Keras, and of rank 0's last batch
# with PyTorch:
#
#     epoch 0  loss 1.323  train 0.613  held-out 0.601  19.2 s
#
# ## Exercise 2: read the result of a run
#
# Write `rows(output)`: for each such line a dict with the numbers `epoch`, `loss`, `train_accuracy`, `heldout_accuracy`,
# `seconds`. All other lines are somebody else's.
#
# <details><summary>Hint 1</summary>One regular expression with five groups, <code>re.finditer(pattern, output,
# re.MULTILINE)</code>. A number is <code>(\S+)</code> here: a loss may be <code>nan</code>.</details>
# <details><summary>Hint 2</summary><code>r"^epoch (\d+)  loss (\S+)  train (\S+)  held-out (\S+)  (\S+) s$"</code>;
# then <code>int</code> for the epoch and <code>float</code> for the rest.</details>


# %%
def rows(output):
    # BEGIN SOLUTION: return a list of dicts, one for each line of an epoch
    line = r"^epoch (\d+)  loss (\S+)  train (\S+)  held-out (\S+)  (\S+) s$"
    names = ("loss", "train_accuracy", "heldout_accuracy", "seconds")
    return [
        {"epoch": int(found[1])} | dict(zip(names, map(float, found.groups()[1:]), strict=True))
        for found in re.finditer(line, output, re.MULTILINE)
    ]
    # END SOLUTION


# %%
exercises.check_rows(rows)

# %% [markdown]
# ## Exercise 3: judge a run as the grader does
#
# Write `seconds_to_target(rows)`: the `seconds` at which the *second* of the first two consecutive good epochs ended, or
# `None`. An epoch is good with `train_accuracy` of at least 0.75 **and** `heldout_accuracy` of at least 0.70.
#
# <details><summary>Hint 1</summary>Remember whether the epoch before was good.</details>
# <details><summary>Hint 2</summary><code>before = False</code>; in the loop: <code>good = ...</code>; if <code>good and
# before</code> return the seconds; <code>before = good</code>.</details>


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
# ## Predict, then race five optimizers
#
# Two ranks, 96 images a rank and step, four epochs, each optimizer at its own tuned rate: SGD with Nesterov momentum,
# LARS, LARC (LARS that only ever makes a step smaller), LAMB and NovoGrad. You run SGD and NovoGrad in your framework, a minute or
# two each; the other runs are the course's. To run more, add them to the second `grid` below.
#
# What will the held-out accuracy of SGD be after four epochs, and after how many seconds does it reach the target? You
# know the speed of your machine from lab 5.

# %%
predicted_accuracy = None  # your guesses, before you run the next cell
predicted_seconds = None

# %%
OPTIMIZERS = ["sgd", "lars", "larc", "lamb", "novograd"]
SHORT = ["--epochs", 2, "--images", 2000] if QUICK else []


def train(framework, optimizer, seed):
    script = LABS / f"cifar10_{framework}.py"
    print(f"{script.name}, {optimizer}, seed {seed}")
    return rows(launch.run(script, "--optimizer", optimizer, "--seed", seed, *SHORT))


runs = sweep(
    "cifar10_optimizers",
    train,
    by_run_length(
        quick=grid(framework=["torch"], optimizer=["sgd"], seed=[1]),
        learner=grid(framework=[FRAMEWORK], optimizer=["sgd", "novograd"], seed=[1]),
        reference=grid(framework=["keras", "torch"], optimizer=OPTIMIZERS, seed=[1, 2, 3]),
    ),
)
shipped = reference("cifar10_optimizers")

# %% [markdown]
# A thin line is one run that the course ships, a thick line the mean of three. Points with a black edge are yours, the
# two dotted lines are your prediction, the dashed line is the target.

# %%
figure, both = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True)
panels = {"keras": both[0], "torch": both[1]}
colours = dict(zip(OPTIMIZERS, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
RUN = ["framework", "optimizer", "seed"]


def line(table, framework, optimizer, *style, **look):
    x, y = table["seconds"], table["heldout_accuracy"]
    panels[framework].plot(x, y, *style, color=colours[optimizer], **look)


for (framework, optimizer, _), run in shipped.groupby(RUN):
    line(run, framework, optimizer, linewidth=1, alpha=0.3)
for (framework, optimizer), some in shipped.groupby(RUN[:2]):
    mean = some.groupby("epoch")[["seconds", "heldout_accuracy"]].mean()
    line(mean, framework, optimizer, label=optimizer)
for (framework, optimizer, _), run in runs.groupby(RUN):
    line(run, framework, optimizer, "o:", markeredgecolor="black")
if predicted_accuracy is not None and predicted_seconds is not None:
    panels[FRAMEWORK].axhline(predicted_accuracy, color="black", linestyle=":")  # at the right end
    panels[FRAMEWORK].axvline(predicted_seconds, color="black", linestyle=":")
for framework, axes in panels.items():
    axes.axhline(target["heldout_accuracy"], color="black", linestyle="--", linewidth=1)
    axes.set(title=framework, xlabel="seconds of training")
both[0].set_ylabel("held-out accuracy")
figure.legend(*both[0].get_legend_handles_labels(), loc="outside right center")
plt.show()

# %% [markdown]
# The seconds belong to the machine that the first lines of `labs/results/cifar10_optimizers.csv` name. What belongs to no machine
# is the accuracy after the last epoch:

# %%
last = shipped["epoch"].max()
ends = [table[table["epoch"] == last] for table in (runs, shipped)]
compare(*ends, by=["framework", "optimizer"], value="heldout_accuracy")

# %% [markdown]
# Now by the rule of the assessment, with your function of exercise 3: after how many passes over the data was the target
# reached? `n` counts the runs that reached it at all; `nan` means that none did.


# %%
def judged(table):
    """One row a run: how many passes it took to the target, and how many seconds."""
    found = []
    for names, run in table.groupby(RUN):
        seconds = seconds_to_target(run.to_dict("records"))
        passes = (run["seconds"] <= seconds).sum() if seconds is not None else np.nan
        found.append((*names, passes, seconds))
    columns = [*RUN, "passes", "seconds"]
    return pd.DataFrame(found, columns=columns).astype({"passes": float, "seconds": float})


compare(judged(runs), judged(shipped), by=["framework", "optimizer"], value="passes")

# %%
compare(judged(runs), judged(shipped), by=["framework", "optimizer"], value="seconds")

# %% [markdown]
# Look at three things:
#
# * **A pass less is a quarter of the time.** A pass costs nearly the same with each optimizer, so who is good a pass earlier wins.
# * **How large is the gap between two optimizers compared with the spread of their seeds?** Where thin lines cross, the runs do not decide which optimizer is better.
# * **The best accuracy at the end and the shortest time to the target need not be the same optimizer's.** The assessment pays for time.
#
# The remedies of lab 7 were made for batches of thousands. Here a step uses 192 images, and plain SGD works well with batches of that
# size. So SGD should keep up with LARS and LAMB, and that is no failure of theirs.
#
# ## Predict which part of the recipe pays
#
# Lab 7 gave the recipe for a larger batch: scale the rate with it, and warm up. Here it is taken apart. SGD's rate of
# 0.35 was tuned for 192 images a step. Now a step has 1024, 512 a rank, and there are two epochs:
#
# * `small-batch rate`: still 0.35, with the warmup;
# * `scaled`: 0.35 x 1024 / 192 from the first step on;
# * `scaled + warmup`: the same rate, approached in a line over the first 0.45 epochs (the rate falls over all
#   updates as a cosine, so the line ends at 0.89 of it).
#
# What held-out accuracy does the full recipe reach in two epochs, and which one comes last?

# %%
prediction = None  # held-out accuracy of "scaled + warmup" after two epochs

# %%
RECIPES = {
    "small-batch rate": ["--lr", 0.35],
    "scaled": ["--warmup", 0],
    "scaled + warmup": [],
}


def train_recipe(recipe, seed):
    arguments = ["--batch-size", 512, "--epochs", 2, *RECIPES[recipe], "--seed", seed]
    if QUICK:
        arguments += ["--epochs", 1, "--images", 2000]
    print(f"cifar10_torch.py, {recipe}, seed {seed}")
    return rows(launch.run(LABS / "cifar10_torch.py", *arguments))


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

# %%
last = shipped_ablation["epoch"].max()
after = shipped_ablation[shipped_ablation["epoch"] == last].groupby("recipe")["heldout_accuracy"]
mean, std = after.mean().reindex(RECIPES), after.std().reindex(RECIPES)

figure, axes = plt.subplots()
axes.errorbar(list(RECIPES), mean, std, fmt="s", capsize=4, label="reference, mean of 3 seeds")
yours = ablation[ablation["epoch"] == last]
axes.plot(yours["recipe"], yours["heldout_accuracy"], "o", mec="black", label="yours")
if prediction is not None:
    axes.plot("scaled + warmup", prediction, "*k", markersize=15, label="your prediction")
axes.set(ylabel="held-out accuracy after two epochs")
axes.margins(x=0.2)
axes.set_ylim(0, None)
axes.axhline(0.1, color="black", linestyle=":", linewidth=1, label="chance")
figure.legend(loc="outside upper center", ncols=4)
plt.show()
print(mean.sort_values().round(3).to_string())

# %% [markdown]
# Error bars are one standard deviation of the seeds. Two things to look at:
#
# * **The full rate from the first step on.** How far above chance is its accuracy at the end? The first steps throw the network to a place
#   from which two epochs do not bring it back. The same rate, reached slowly, trains.
# * **Is the scaled rate better than the small one?** Two epochs of 1024 images are 98 steps, and 22 of them are warmup. Goyal et
#   al. trained for 90 epochs. Linear scaling is a starting point to be measured, not a law, and least of all in so short a run.
#
# For the assessment that means: choose a batch that leaves you enough steps, begin with the scaled rate and its warmup,
# and measure whether another rate does better.
#
# ## Convert your script
#
# This cell puts the serial script at `notebooks/work/assessment.py`, once: it never overwrites what you
# wrote. (To start again, or with the other framework, delete the file and run the cell again.)

# %%
WORK.mkdir(parents=True, exist_ok=True)
script = WORK / "assessment.py"
if not script.exists():
    shutil.copy(serial, script)
print(f"Edit {script.relative_to(ROOT)}")

# %% [markdown]
# ## Exercise 4: make it use N processes
#
# Open `work/assessment.py` in the file browser on the left, edit it as you did in lab 5, and save. Then run
# the check below: it reads your script without running it, and says what is missing. Its words are hints; the grader
# decides.
#
# <details><summary>Hint 1: the seven places</summary>
#
# 1. import Horovod: <code>import hvdlab.keras.horovod as hvd</code> or <code>import horovod.torch as hvd</code>, and call
#    <code>hvd.init()</code> first in <code>main()</code>
# 2. the device of each process, by <code>rank_device(hvd)</code>: a GPU of its own, a GPU that ranks share, or the processor
# 3. <code>Batches(..., rank=hvd.rank(), size=hvd.size())</code>, and a batch size that you choose
# 4. the rate of one process times <code>hvd.size()</code>; the warmup is there already
# 5. <code>optimizer = hvd.DistributedOptimizer(optimizer, ...)</code>, before it is used; the device says how to exchange
# 6. the weights of rank 0 for all; in PyTorch the optimizer's state too, and before <code>model.to(device)</code>
# 7. output on rank 0 only, of numbers averaged over the ranks. The recorder stays on <i>all</i> ranks.
# </details>
# <details><summary>Hint 2: the lines, Keras</summary>
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
# <details><summary>Hint 2: the lines, PyTorch</summary>
#
# ```python
# from hvdlab.torch.device import rank_device
# mine = rank_device(hvd)
# device = mine.device
# model = assessment_network()  # still in host memory, which every build of Horovod can send
# hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# model.to(device)
# optimizer.load_state_dict(optimizer.state_dict())  # its momentum follows the weights
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
# ## Practise on two ranks
#
# All of your script, on the first 2,000 images only: seconds instead of a minute. Crashes and hangs show here. A small starter
# shortens the data, and then runs your script as it is.

# %%
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
practice, record = WORK / "practice.py", WORK / "practice"
practice.write_text(FIRST_IMAGES + START)
shutil.rmtree(record, ignore_errors=True)
output = launch.run(practice, script, ranks=2, timeout=300, HVDLAB_RUN_DIR=str(record))

# %% [markdown]
# ## See what the grader sees
#
# After each epoch every rank leaves its weights and the list of the examples it read. Two ranks that train one model have the
# same trained weights, to the last bit or nearly; two ranks that divide the work share no example.

# %%
for path in sorted(record.glob("rank-0/*.npz")):
    twin = record / "rank-1" / path.name
    if not twin.exists():
        print(f"{path.stem}: rank 1 has recorded nothing")
        continue
    ours, theirs = np.load(path), np.load(twin)
    trained = [name for name in ours.files if name.endswith((".weight", ".bias"))]
    apart = max(np.abs(ours[name] - theirs[name]).max() for name in trained)
    both_read = np.intersect1d(ours["examples_read"], theirs["examples_read"])
    print(f"{path.stem}: weights differ by {apart:.1e}, ranks share {len(both_read)} examples")

# %% [markdown]
# ## Predict, then hand it in
#
# In which second after the launch will your script have reached the target, and will that be in time? The start-up
# counts too: importing a framework takes seconds.

# %%
prediction = None  # seconds; your guess, before you run the next cell

# %%
handed_in, profile = script, "cpu"
if QUICK:
    handed_in, profile = practice, "dli"
    one_epoch = "import sys\n\nsys.argv += ['--epochs', '1']\n"
    practice.write_text(one_epoch + FIRST_IMAGES + script.read_text())  # a single file is graded
    print("A quick run hands in the practice script, for one epoch of 2,000 images: it must fail.")
code, report = exercises.hand_in(handed_in, WORK / "report.json", profile=profile)

# %% [markdown]
# ## Read the verdict
#
# `hvdgrade` ends with one of four exit codes; a script or a course platform reads them.

# %%
MEANING = {
    0: "Pass: every check holds.",
    1: "Fail: a check does not hold. Below, each says what was seen and what to do.",
    2: "Not gradable: your script could not even be started. No attempt is lost.",
    3: "A fault of the grader, never yours. Try again, and show it to your instructor.",
}
print(f"Exit code {code}. {MEANING.get(code, 'The grading was ended from outside.')}")
print(report.get("reason", ""))

# %% [markdown]
# ## See the run as the grader saw it
#
# Each point is an epoch, at the second in which the weights of its last rank arrived on the grader's clock. Passing means
# two points in a row with both curves above their dashed lines, and the second of them left of the budget.

# %%
timeline = pd.DataFrame(report.get("timeline", []))
asked = rules[report["grader"]["profile"]] if report else target
figure, axes = plt.subplots()
for name, label, colour in (("train", "train", "C0"), ("heldout", "held out", "C1")):
    at = asked[f"{name}_accuracy"]
    axes.axhline(at, color=colour, linestyle="--", linewidth=1, label=f"{label}: target")
    if len(timeline):
        axes.plot(
            timeline["seconds"], timeline[f"{name}_accuracy"], "o-", color=colour, label=label
        )
if report.get("budget"):
    axes.axvline(report["budget"]["seconds"], color="black", label="budget")
if prediction is not None:
    axes.axvline(prediction, color="black", linestyle=":", label="your prediction")
axes.set(xlabel="seconds since launch", ylabel="accuracy", xlim=(0, None), ylim=(0, 1))
axes.set_title((report.get("verdict") or report.get("status", "no report")).upper())
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ## Read the checks
#
# In this order, and the first that fails matters most: what depends on it is skipped, not failed again.

# %%
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
# | every rank runs and records | the output of the practice run; a recorder under `if hvd.rank() == 0` | 4 |
# | ranks train one model | `DistributedOptimizer`, the broadcast; for Keras the module you import | 4 |
# | gradients are exchanged | is the optimizer that steps the one that `DistributedOptimizer` returned? | 4 |
# | ranks learn from each other, N ranks train like a single process | gradients averaged in each step; randomness of your own | 3 |
# | ranks read different data | `rank=` and `size=` of `Batches` | 3 |
# | equal steps, whole epochs | your own slicing of the data | 3 |
# | accuracy reached in time | batch size, rate, warmup; what else your machine is doing | 5, 6 |
#
# ## Close the circle
#
# The report also holds what one process did on this machine just before. So it gives the efficiency that exercise 1 asked for.

# %%
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
# The time of an epoch includes your evaluation at its end.
#
# ## Go further
#
# * `make assess SUBMISSION=notebooks/work/assessment.py NP=4`, at the top of the repository, is the same grading from a terminal, on
#   four ranks.
# * Give your script the optimizer that is fastest in the figure above. Does it still pass, and with how much time left?
# * Which is the largest batch that still passes? Predict it from the noise scale of lab 6 first.
#
# What you hand in is that one file, `notebooks/work/assessment.py`.
