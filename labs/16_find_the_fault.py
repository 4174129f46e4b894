# %% [markdown]
# # Lab 16: Find the fault
#
# During 54 days of training Llama 3 on 16,384 GPUs, the run was interrupted 466 times, and 419 of these
# interruptions were unexpected ([Llama Team 2024](https://arxiv.org/abs/2407.21783)). That is one about
# every three hours. Most of them were faults of the hardware. The faults in this lab are smaller and more
# common: mistakes in the training script, which every author of a distributed program makes sooner or
# later. Many of them raise no error. The program trains, prints a falling loss, and produces a worse
# model, or it stops without a word. In this lab you learn a method to find such a fault from its symptoms,
# and you use it on seven scripts.
#
# **After this lab you can**
#
# * assign a failing run to one of four classes of symptoms, and say what to look at first;
# * find out where each rank of a hanging run waits, and which rank causes it;
# * compare two ranks step by step, and explain what the first difference means;
# * name a distributed mistake, support the diagnosis with evidence, and fix the script;
# * run `hvdlab check` on a script of your own, and say what it cannot find.
#
# **Builds on** lab 5 (the edits that turn a script into a Horovod script), lab 6 (why the learning rate
# grows with the number of ranks), and lab 4 (collectives and deadlock).
#
# **Time** 120 minutes. The computer needs about two minutes of them.

# %% tags=["folded"]


from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab16_find_the_fault as fault
from hvdlab.launch import LaunchError, call

workbook = Workbook(16)
hint = workbook.hint

# %% [markdown]
# ## Classes of symptoms
#
# A *symptom* is what a user sees. A *fault* is the line of the program that causes it. Many faults share a
# symptom, so the symptom does not tell the fault, but it tells where to look first. Distributed runs fail
# in four ways.
#
# | class | what the user sees | typical faults | look first at |
# |---|---|---|---|
# | error | the run ends with a message | Horovod not initialised, wrong tensor type, two ranks on one GPU, a file that several ranks write | the first message of the first rank that failed |
# | hang | no output, no end, no message | a collective on some ranks only, unequal numbers of batches, ranks that decide differently | the line in which each rank waits |
# | wrong result | the loss falls, but the model is worse than expected, or the ranks hold different models | weights not broadcast, gradients not averaged, wrong learning rate | values of two ranks, step by step |
# | slow | the result is right, but more ranks are not faster | all ranks read the same data, an input pipeline that is too slow, small messages | the time of each phase of a step |
#
# Two properties make distributed faults harder than others. First, the rank that shows the symptom is
# often not the rank with the fault. For example, rank 0 waits in an all-reduce because rank 1 has left the
# loop. Rank 0 is correct, and the fault is on rank 1. Second, a fault may appear only with more ranks, on
# another machine or in one of ten runs. A *race* is a fault of this kind: the result depends on which rank
# arrives first.
#
# ![A decision tree that begins with the question whether the run ends. A hang leads to the stacks of all ranks, an error to the first message, a wrong result to a comparison step by step, and a slow run to a timeline.](pictures/symptom_decision_tree.svg)
#
# ## A method in five steps
#
# Experienced engineers follow an order, because guessing costs hours on a shared machine.
#
# 1. **Make the run small.** Use two ranks on one machine, little data and few steps. A fault that appears
#    with two ranks on a laptop can be studied without a cluster. If it does not appear there, add one
#    thing at a time: more ranks, a second machine, real data.
# 2. **Make the run repeatable.** Set the seed of each random generator, use a fixed order of the data, and
#    note the versions of all packages. A repeatable run is called a *deterministic run*. Two deterministic
#    runs that differ in one setting show the effect of this setting. In contrast, two random runs show the
#    effect of chance as well. PyTorch offers `torch.manual_seed(seed)` and
#    `torch.use_deterministic_algorithms(True)`.
# 3. **Compare with a single process.** Run the same script with one rank. If it fails as well, the fault
#    is not distributed, and you can use ordinary tools. If one rank works and two do not, the difference
#    between them contains the fault.
# 4. **Look at one rank at a time.** Print the rank in front of each line, or write a file per rank. Do not
#    let only rank 0 print while you search for a fault, because then you see half of what happens.
# 5. **Change one thing, and predict the result.** Before you edit, say what the next run should show if
#    your diagnosis is right. If it shows something else, the diagnosis was wrong, even if the symptom is
#    gone.
#
# The fifth step protects against a common mistake. A change that removes a symptom need not repair the
# fault. For example, a shorter run never reaches the epoch in which it hangs.
#
# ## Hanging runs and stacks
#
# A *collective* is an operation in which all ranks of a group take part, for example an all-reduce. It
# ends only when all of them have called it. If one rank never calls it, the others wait forever. This is
# called a *deadlock*. A waiting process produces no output, and it may use a full core while it waits, so
# it looks busy.
#
# ![A timeline of two ranks. Both compute and take part in two all-reduces. Then rank 1 leaves the loop early, while rank 0 calls a third all-reduce, in which it waits without end.](pictures/two_ranks_one_waits.svg)
#
# The first question is: in which line is each rank? A *stack* is the list of functions that a process is
# executing, and the innermost line is the place where it waits. There are four methods to get it.
#
# * `py-spy dump --pid PID` prints the stack of a running Python process without stopping it and without
#   any preparation of the script ([py-spy](https://github.com/benfred/py-spy)). It needs the right to
#   trace the process, in a container `--cap-add SYS_PTRACE`. Run it for each rank, on each host.
# * `faulthandler.dump_traceback_later(300)`, a line of Python's own library in the script, prints the
#   stack after 300 seconds if the script has not ended by then.
# * Horovod prints a message after 60 seconds in which some ranks wait. The message names the tensor and
#   the ranks that are missing. `HOROVOD_STALL_CHECK_TIME_SECONDS` changes the time.
# * `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes PyTorch compare the collectives of all ranks before each call,
#   and `NCCL_DEBUG=INFO` shows how NCCL connects the GPUs.
#
# For example, two stacks may look like this (shortened):
#
# ```
# $ py-spy dump --pid 4711        # rank 0
#     synchronize (horovod/torch/mpi_ops.py)
#     step (horovod/torch/optimizer.py)
#     main (train.py:41)
# $ py-spy dump --pid 4712        # rank 1
#     allreduce (horovod/torch/mpi_ops.py)
#     main (train.py:47)
# ```
#
# Rank 0 waits in the optimizer, in line 41. Rank 1 waits in an all-reduce in line 47, and in the script this
# line comes after the loop. So rank 1 has left the loop and rank 0 has not. Most often the ranks have
# different numbers of batches. Otherwise look for a `break` that only one rank reaches.
#
# The next cell makes a small deadlock on purpose. The function `call` of this course starts two ranks, and
# reports the line of each rank when the time is over.


# %%
def three_sums(comm):
    for step in range(3):
        if step < 2 or comm.rank == 0:
            comm.allreduce(step)
    return "done"


try:
    print(call(three_sums, ranks=2, timeout=10))
except LaunchError as error:
    print(error)

# %% [markdown]
# Rank 0 waits in the all-reduce of the third step. Rank 1 never calls it, because the test of its rank is
# false there. It has left the loop and is done.
#
# A run with many ranks gives many stacks. The useful summary says, for each collective, which ranks have
# *not* arrived. Then ask why they have not.
#
# ### Exercise 1: Ranks that are missing
#
# **What:** write `missing_ranks(waiting, size)`.
#
# **Why:** Horovod's stall message, which you will meet in case 4, is computed like this.
#
# **Signature:** `waiting` is a dict that maps the number of each waiting rank to the name of the
# collective in which it waits. `size` is the number of all ranks. Return a dict that maps each of these
# names to the sorted list of the ranks that do not wait in it.
#
# <details><summary>Hint 1</summary>Collect the names first. Then go through all ranks for each name, and
# keep those that do not wait there.</details>
#
# <details><summary>Hint 2</summary>With <code>waiting = {0: "loss", 2: "loss"}</code> and 4 ranks there is
# one name, "loss". Ranks 0 and 2 wait there, so ranks 1 and 3 are missing.</details>
#
# <details><summary>Hint 3</summary><code>[rank for rank in range(size) if waiting.get(rank) !=
# name]</code> for each name in <code>set(waiting.values())</code></details>


# %%
def missing_ranks(waiting, size):
    # BEGIN SOLUTION: return, for each collective, the ranks that have not arrived
    missing = {}
    for name in set(waiting.values()):
        missing[name] = [rank for rank in range(size) if waiting.get(rank) != name]
    return missing
    # END SOLUTION


# %%
fault.check_missing_ranks(missing_ranks)

# %% [markdown]
# ## Wrong results and the first difference
#
# If a run ends with a wrong result, compare the ranks step by step. In data parallelism four values tell
# most faults apart:
#
# | value | should be on all ranks | what it means if it is not so |
# |---|---|---|
# | weights after each step | equal | the ranks train different models |
# | batch | different | each rank repeats the work of the others |
# | loss of the rank's own batch | different | probably the batches are equal |
# | learning rate | equal, and scaled once by the number of ranks | a wrong factor makes training slow or unstable |
#
# The *first* step at which two ranks differ says more than the size of the difference at the end. If the
# weights differ after step 1 by as much as two random networks differ, they were different before the
# training began. If they differ a little after step 1 and more after each step, they started equal, and
# each rank makes steps of its own.
#
# For example, two ranks record the sums of their weights as 5.00, 4.90, 4.81 and 5.00, 4.90, 4.75. With a
# tolerance of 0.01, the first difference is in step 3. The ranks agree in steps 1 and 2, so the broadcast
# and the averaging work. Something special happens in step 3.
#
# ### Exercise 2: First difference
#
# **What:** write `first_difference(values0, values1, tolerance)`.
#
# **Why:** you need a tolerance because sums in another order differ in their last digits. Without it,
# every comparison finds a difference in step 1.
#
# **Signature:** two lists of numbers of equal length, one number per step. Return the first step, counted
# from 1, at which they differ by more than `tolerance`, or `None`.
#
# <details><summary>Hint 1</summary>Go through both lists at the same time and stop at the first pair that
# is too far apart.</details>
#
# <details><summary>Hint 2</summary>For [1, 2, 3] and [1, 2.5, 3.5] with tolerance 0.1, the distances are
# 0, 0.5 and 0.5. The answer is 2.</details>
#
# <details><summary>Hint 3</summary><code>for step, (one, two) in enumerate(zip(values0, values1),
# 1):</code>, and <code>abs(one - two) > tolerance</code></details>


# %%
def first_difference(values0, values1, tolerance):
    # BEGIN SOLUTION: return the first step at which the values differ, or None
    for step, (one, two) in enumerate(zip(values0, values1, strict=True), 1):
        if abs(one - two) > tolerance:
            return step
    return None
    # END SOLUTION


# %%
fault.check_first_difference(first_difference)

# %% [markdown]
# ## The log of a case
#
# Each of the following cases is a script with one mistake. `fault.watch(case)` runs it for a few steps on
# two ranks and returns a log:
#
# | | what it contains |
# |---|---|
# | `log.ends` | per rank: the number of batches in an epoch (`length`), the steps that it made, and how it ended |
# | `log.side_by_side(column)` | a table with one row per step and one column per rank. The column is `"loss"`, `"rate"` (the learning rate), `"batch"` (a hash of the images that were read) or `"weights"` (the sum of the norms of all weights) |
# | `log.distance()` | after each step, the distance between the weights of the two ranks: the difference of the norms of each tensor, summed. It is zero if the weights are equal |
# | `fault.draw(log)` | three panels: loss, distance and learning rate |
#
# A *hash* is a short number that is computed from data. Equal hashes mean equal data. The training loops
# are stopped after eight steps, so a log contains two short epochs. `watch` also puts a copy of the script
# into `notebooks/work/`, for example `case_1.py`, which you edit. It leaves a copy alone that is already
# there. To start again, delete the copy.
#
# For each case you give a **diagnosis** and its **evidence**. The diagnosis is one of the names below,
# which are all mistakes that `hvdlab check` knows. The evidence is one number that you read from the log
# or from the script. The check looks at the evidence first, so that trying out names does not help.

# %%
for name, title in fault.NAMES.items():
    print(f"{name:26}{title}")

# %% [markdown]
# ## Case 1: Two models from one script
#
# *"The loss falls as it should. But the model that rank 0 saves is worse than what a single process gets
# with the same data, and when rank 1 saves its own, it is another model."*
#
# The class is *wrong result*, so we compare the ranks. A replica is the copy of the network on one rank,
# and all replicas should be equal after each step.

# %%
print(fault.copy(1).read_text())

# %%
# Prediction 1: after which step do the weights of the two ranks differ for the first time, if they started
# with different random weights? Replace both values of None.
workbook.predict(1, None, reason=None)

# %%
log = fault.watch(1)
if log:
    fault.draw(log)
    print(log.distance())

# %%
if log:
    norms = log.side_by_side("weights")
    step = first_difference(norms[0], norms[1], 1e-6)
    print("first difference: step", step)
    workbook.result(1, step)

# %% [markdown]
# **What the result means.** The log begins with the weights *after* step 1, and there they differ already. This
# alone does not tell whether the ranks started apart or whether the first step moved them
# apart. The size does: look at the first value of the distance, and compare it with the change from step
# to step.
#
# ### Exercise 3: Diagnosis of case 1
#
# **What:** set `evidence` to the distance of the weights after step 1, and `diagnosis` to one of the names
# above.
#
# <details><summary>Hint 1</summary>The ranks differ after the very first step. Is the distance after step
# 1 large or small compared with how much it changes from one step to the next?</details>
#
# <details><summary>Hint 2</summary>A step of this size changes the norms by a few thousandths. Compare
# with the first distance. If the distance is much larger, it was there before the training.</details>
#
# <details><summary>Hint 3</summary>Read the script from the creation of the model to the loop. Which of
# the nine edits of lab 5 makes all ranks start with the weights of rank 0?</details>

# %%
# BEGIN SOLUTION: set evidence to the distance after step 1, and diagnosis to a name
evidence = log.distance()[1] if log else 0.1
diagnosis = "no-broadcast"
# END SOLUTION

# %%
fault.check_diagnosis(1, diagnosis, evidence)

# %% [markdown]
# ### Exercise 4: Fix case 1
#
# **Edit your copy** `notebooks/work/case_1.py` and save it. The cell that raises `NotImplementedError` is
# a reminder, here and in the other cases: make the edit, delete that line, and continue. (The solutions
# make the same edit with `fault.replace`.)
#
# <details><summary>Hint 1</summary>The weights of rank 0 must reach all ranks before the first step. The
# optimizer has a state too.</details>
#
# <details><summary>Hint 2</summary>Horovod has one function for the weights and one for the state of the
# optimizer. Both need <code>root_rank=0</code>.</details>
#
# <details><summary>Hint 3</summary><code>hvd.broadcast_optimizer_state(optimizer, root_rank=0)</code> and
# <code>hvd.broadcast_parameters(model.state_dict(), root_rank=0)</code>, before the loop.</details>

# %%
# BEGIN SOLUTION: fix your copy, case_1.py
fault.replace(
    1,
    "    for epoch in range(EPOCHS):\n",
    "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
    "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
    "    for epoch in range(EPOCHS):\n",
)
# END SOLUTION

# %%
fault.check_fixed(1)

# %% [markdown]
# ## Case 2: No speed-up from the second rank
#
# *"Two ranks need as many epochs to 80 % as one does at the same learning rate, and each epoch takes as
# long as on one. All weights are equal."*
#
# The class is *slow*. Equal weights mean that the gradients are averaged. So the work is done, but it does
# not help.

# %%
# Prediction 2: both ranks compute the same gradient, for example [1, 2]. By what factor is their average
# larger than the gradient of one rank? Replace both values of None.
workbook.predict(2, None, reason=None)

# %%
log = fault.watch(2)
if log:
    fault.draw(log)
    print(log.side_by_side("batch"))
gradients = [1, 2], [1, 2]  # of both ranks
average = [sum(pair) / 2 for pair in zip(*gradients, strict=True)]
workbook.result(2, average[0] / gradients[0][0])

# %% [markdown]
# ### Exercise 5: Diagnosis of case 2
#
# **What:** set `evidence` to the percentage of steps in which both ranks read the same batch, and
# `diagnosis` to a name.
#
# <details><summary>Hint 1</summary>The distance is zero, so the gradients are averaged and both ranks
# started with the same weights. Look at what goes into a step.</details>
#
# <details><summary>Hint 2</summary>Suppose that rank 0 computes the gradient [1, 2] and rank 1 computes
# [1, 2] as well. Their average is [1, 2] again, and the second rank has added nothing.</details>
#
# <details><summary>Hint 3</summary>Compare the two columns of hashes row by row. Equal hashes are equal
# images.</details>

# %%
# BEGIN SOLUTION: set evidence to a percentage, and diagnosis to a name
evidence = 100
diagnosis = "identical-batches"
# END SOLUTION

# %%
fault.check_diagnosis(2, diagnosis, evidence)

# %% [markdown]
# **What the result means.** The factor of prediction 2 is 1, because the average of two equal gradients is
# the same gradient. A prediction of 2 confuses the average with the sum. Two ranks that read the same
# batch do the work of one rank twice, so the number of epochs and the time of an epoch stay as they were.
#
# ### Exercise 6: Fix case 2
#
# <details><summary>Hint 1</summary>A sampler partitions a data set among the ranks. The loader must then
# not shuffle by itself.</details>
#
# <details><summary>Hint 2</summary><code>torch.utils.data.distributed.DistributedSampler</code> needs the
# number of ranks and its own rank. With 8 images and 2 ranks, each rank reads 4 of them. The sampler must
# also learn the epoch, because otherwise all epochs have the order of the first.</details>
#
# <details><summary>Hint 3</summary><code>sampler = torch.utils.data.distributed.DistributedSampler(train,
# num_replicas=hvd.size(), rank=hvd.rank())</code>, then <code>DataLoader(train, BATCH_SIZE,
# sampler=sampler)</code>, and <code>sampler.set_epoch(epoch)</code> at the beginning of each
# epoch.</details>

# %%
# BEGIN SOLUTION: fix your copy, case_2.py
fault.replace(
    2,
    "DataLoader(train, BATCH_SIZE, shuffle=True, generator=order)",
    "DataLoader(train, BATCH_SIZE, sampler=sampler)",
)
fault.replace(
    2,
    "    order = torch.Generator().manual_seed(1)\n",
    "    sampler = torch.utils.data.distributed.DistributedSampler(\n"
    "        train, num_replicas=hvd.size(), rank=hvd.rank()\n"
    "    )\n",
)
fault.replace(2, "        total = 0.0\n", "        sampler.set_epoch(epoch)\n        total = 0.0\n")
# END SOLUTION

# %%
fault.check_fixed(2)

# %% [markdown]
# ## Case 3: Replicas that move apart
#
# *"The loss falls on both ranks. At the end their accuracies are 0.79 and 0.81, and I do not know which
# one to report."*
#
# The class is *wrong result* again, and the symptom resembles case 1. Compare the distances of both cases.

# %%
log = fault.watch(3)
if log:
    fault.draw(log)
    print(log.distance())

# %% [markdown]
# ### Exercise 7: Diagnosis of case 3
#
# **What:** set `evidence` to the distance of the weights after step 1, and `diagnosis` to a name.
#
# <details><summary>Hint 1</summary>Case 1 had a difference too. How large was it after the first step, and
# how large is it here?</details>
#
# <details><summary>Hint 2</summary>A small distance after step 1 that grows means that both ranks started
# with equal weights and then made steps of their own. For example, rank 0 subtracts its gradient [1, 2]
# and rank 1 its gradient [3, 4], where both should subtract [2, 3].</details>
#
# <details><summary>Hint 3</summary>Which object of Horovod averages the gradients before each update?
# Search for it in the script.</details>

# %%
# BEGIN SOLUTION: set evidence to the distance after step 1, and diagnosis to a name
evidence = log.distance()[1] if log else 0.001
diagnosis = "optimizer-not-wrapped"
# END SOLUTION

# %%
fault.check_diagnosis(3, diagnosis, evidence)

# %% [markdown]
# ### Exercise 8: Fix case 3
#
# <details><summary>Hint 1</summary>One statement is missing, directly after the optimizer is
# created.</details>
#
# <details><summary>Hint 2</summary>The new object must take the place of the old one, so that the loop
# uses it. Horovod also wants the names of the parameters, to match the gradients of different
# ranks.</details>
#
# <details><summary>Hint 3</summary><code>optimizer = hvd.DistributedOptimizer(optimizer,
# named_parameters=model.named_parameters())</code></details>

# %%
# BEGIN SOLUTION: fix your copy, case_3.py
fault.replace(
    3,
    "    hvd.broadcast_parameters(",
    "    optimizer = hvd.DistributedOptimizer(\n"
    "        optimizer, named_parameters=model.named_parameters()\n"
    "    )\n"
    "    hvd.broadcast_parameters(",
)
# END SOLUTION

# %%
fault.check_fixed(3)

# %% [markdown]
# ## Case 4: Hang at the end of the epoch
#
# *"The first epoch nearly ends. Then nothing happens. After a minute Horovod writes: One or more tensors
# were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of
# ranks for more than 60 seconds."*
#
# The class is *hang*. The message says that some ranks called an all-reduce and others did not. We need to
# know what the others did instead. The log comes from a run that was stopped before it could hang.

# %%
# Prediction 3: 4097 images are given to two ranks in turns, and a batch has 64 images. How many batches does
# an epoch have on rank 0, which gets the first image? Replace both values of None.
workbook.predict(3, None, reason=None)

# %%
log = fault.watch(4)
if log:
    print(log.ends)
    workbook.result(3, log.ends["length"][0])

# %% [markdown]
# ### Exercise 9: Diagnosis of case 4
#
# **What:** set `evidence` to the number of batches that an epoch has on rank 0, and `diagnosis` to a name.
#
# <details><summary>Hint 1</summary>A rank that has no batch left continues after the loop. What does the
# other rank do?</details>
#
# <details><summary>Hint 2</summary>With 5 images, two ranks and batches of 2, rank 0 gets 3 images, that
# is 2 batches, and rank 1 gets 2 images, that is 1 batch. In the second step rank 0 waits for a gradient
# that never comes.</details>
#
# <details><summary>Hint 3</summary>Compare the column <code>length</code> of both ranks.</details>

# %%
# BEGIN SOLUTION: set evidence to a number of batches, and diagnosis to a name
evidence = 33
diagnosis = "unequal-steps"
# END SOLUTION

# %%
fault.check_diagnosis(4, diagnosis, evidence)

# %% [markdown]
# **What the result means.** Rank 0 gets the images 0, 2, 4 and so on, which are 2049 images. These are 32
# full batches and one batch with a single image, so prediction 3 should be 33. Rank 1 gets 2048 images,
# which are exactly 32 batches. A prediction of 65 forgets that the ranks share the images.
#
# ### Exercise 10: Fix case 4
#
# There is more than one solution. You can leave out the short batch, give every rank the same number of
# images, or let `DistributedSampler` partition them (and call `sampler.set_epoch(epoch)` in each epoch).
#
# <details><summary>Hint 1</summary>The rank with 2049 images has a last batch of one image.</details>
#
# <details><summary>Hint 2</summary>The data loader of PyTorch can drop a last batch that is not full. Both
# ranks then have 32 batches. (With 4095 images it would not help: 2048 and 2047 images are 32 and 31 full
# batches.)</details>
#
# <details><summary>Hint 3</summary><code>drop_last=True</code> in the call of
# <code>DataLoader</code></details>

# %%
# BEGIN SOLUTION: fix your copy, case_4.py
fault.replace(4, "shuffle=True)", "shuffle=True, drop_last=True)")
# END SOLUTION

# %%
fault.check_fixed(4)

# %% [markdown]
# ## Case 5: Hang after the epoch
#
# *"Rank 0 never prints the loss of the first epoch. There is no error. It works on one rank."*
#
# The class is *hang*. In this log the ranks were stopped while they waited, so `log.ends` shows what
# `py-spy dump` would show.

# %%
log = fault.watch(5)
if log:
    print(log.ends.to_string())

# %% [markdown]
# ### Exercise 11: Diagnosis of case 5
#
# **What:** set `evidence` to the number of the line in which rank 0 waits, and `diagnosis` to a name.
#
# <details><summary>Hint 1</summary>Both ranks made the same number of steps. Open the script at the two
# lines in which they wait.</details>
#
# <details><summary>Hint 2</summary>Use exercise 1: rank 0 waits in one collective and rank 1 in another
# one, so each of them is missing in the collective of the other. Ask for each of the two lines which ranks
# can reach it.</details>
#
# <details><summary>Hint 3</summary>Look at the <code>if</code> above the line in which rank 0
# waits.</details>

# %%
# BEGIN SOLUTION: set evidence to a line number, and diagnosis to a name
lines = fault.original(5).splitlines()
evidence = next(n for n, line in enumerate(lines, 1) if "hvd.allreduce(" in line)
diagnosis = "collective-on-some-ranks"
# END SOLUTION

# %%
fault.check_diagnosis(5, diagnosis, evidence)

# %% [markdown]
# ### Exercise 12: Fix case 5
#
# <details><summary>Hint 1</summary>All ranks must take part in the average. Only one rank needs to print
# it.</details>
#
# <details><summary>Hint 2</summary>Separate the two actions that stand under the same <code>if</code>: one
# of them is a collective, and the other one is not.</details>
#
# <details><summary>Hint 3</summary>Move the line with <code>hvd.allreduce</code> up, before the
# <code>if</code>.</details>

# %%
# BEGIN SOLUTION: fix your copy, case_5.py
fault.replace(5, "        if hvd.rank() == 0:\n            mean =", "        mean =")
fault.replace(5, "            print(", "        if hvd.rank() == 0:\n            print(")
# END SOLUTION

# %%
fault.check_fixed(5)

# %% [markdown]
# ## Case 6: Worse with every rank
#
# *"With one rank and with two it trains. With four it learns more slowly, and with eight it learns nothing
# at all. And I did scale the learning rate, as the paper says."*
#
# The class is *wrong result*, but the ranks agree with each other. So a comparison of ranks cannot show
# the fault. In this situation compare the run with what it should do: a single process with learning rate
# 0.02 becomes two ranks with learning rate 0.04 (lab 6).

# %%
log = fault.watch(6)
if log:
    fault.draw(log)
    print(log.side_by_side("rate").head(3))

# %% [markdown]
# ### Exercise 13: Diagnosis of case 6
#
# **What:** set `evidence` to the learning rate of step 1 divided by `RATE` of the script, and `diagnosis`
# to a name.
#
# <details><summary>Hint 1</summary>The learning rate of a single process is 0.02. What should it be on two
# ranks?</details>
#
# <details><summary>Hint 2</summary>Linear scaling multiplies by the number of ranks. With 3 ranks the
# learning rate becomes 0.06. A rate of 0.18 on 3 ranks would contain the factor 3 too often.</details>
#
# <details><summary>Hint 3</summary>Count the places in the script where the learning rate is multiplied by
# <code>hvd.size()</code>.</details>

# %%
# BEGIN SOLUTION: set evidence to a factor, and diagnosis to a name
evidence = 4
diagnosis = "rate-scaled-twice"
# END SOLUTION

# %%
fault.check_diagnosis(6, diagnosis, evidence)

# %% [markdown]
# ### Exercise 14: Fix case 6
#
# <details><summary>Hint 1</summary>Search the script for <code>hvd.size()</code>.</details>
#
# <details><summary>Hint 2</summary>One factor is right. It does not matter which of the two you remove, as
# long as one remains.</details>
#
# <details><summary>Hint 3</summary><code>lr=RATE</code> in the call of the optimizer, if <code>RATE</code>
# itself is already scaled.</details>

# %%
# BEGIN SOLUTION: fix your copy, case_6.py
fault.replace(6, "lr=RATE * hvd.size()", "lr=RATE")
# END SOLUTION

# %%
fault.check_fixed(6)

# %% [markdown]
# ## Case 7: Hang in another epoch each time
#
# *"It stops early when the loss does not fall any more. On one rank this works. On two it hangs: after
# epoch 11 in one run, after epoch 17 in the next."*
#
# The class is *hang*, and the place changes from run to run. Such a fault depends on values that differ
# between runs. *Early stopping* ends a training when the loss has not improved for some epochs.

# %%
log = fault.watch(7)
if log:
    print(log.output)
    print(log.side_by_side("loss").tail(3))

# %% [markdown]
# ### Exercise 15: Diagnosis of case 7
#
# **What:** set `evidence` to the number of the line with the test that ends the training, and `diagnosis`
# to a name.
#
# <details><summary>Hint 1</summary>The weights are equal on both ranks, and the batches are not. Which
# numbers of the script are equal on both ranks, and which are not?</details>
#
# <details><summary>Hint 2</summary>Suppose that the best loss so far is 0.50 on both ranks. After the next
# epoch rank 0 has 0.49 and rank 1 has 0.51, because they read different images. The two ranks now count
# differently how long the loss has not improved.</details>
#
# <details><summary>Hint 3</summary>Follow the variable in the test above <code>break</code> back to where
# its value comes from. Was it averaged over the ranks?</details>

# %%
# BEGIN SOLUTION: set evidence to a line number, and diagnosis to a name
lines = fault.original(7).splitlines()
evidence = next(n for n, line in enumerate(lines, 1) if "if stale ==" in line)
diagnosis = "own-stop"
# END SOLUTION

# %%
fault.check_diagnosis(7, diagnosis, evidence)

# %% [markdown]
# ### Exercise 16: Fix case 7
#
# <details><summary>Hint 1</summary>All ranks must decide by the same number.</details>
#
# <details><summary>Hint 2</summary>Average the loss of the epoch over the ranks before the decision. If
# rank 0 has 0.49 and rank 1 has 0.51, both then decide by 0.50.</details>
#
# <details><summary>Hint 3</summary><code>mean = hvd.allreduce(torch.tensor(total / len(loader)),
# name="loss").item()</code></details>

# %%
# BEGIN SOLUTION: fix your copy, case_7.py
fault.replace(
    7,
    "        mean = total / len(loader)\n",
    '        mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()\n',
)
# END SOLUTION

# %%
fault.check_fixed(7)

# %% [markdown]
# **What the cases have in common.** In cases 4, 5 and 7 one rank calls a collective that another rank
# never calls. The reason differs: unequal data, a test of the rank, or a decision by a local value. The
# rule behind all three is that a collective must stand where every rank arrives equally often. In cases 1
# and 3 a broadcast or an average is missing, and the size of the first difference tells them apart. In
# cases 2 and 6 all ranks agree, so only a comparison with the intended run shows the fault.
#
# ## Faults that appear only sometimes
#
# Not every fault can be seen in eight steps on one machine. A typical example is a download race: all
# ranks of a host find that a data file is missing, and all of them download it into the same place. One
# rank may open the file while another one is still writing it. The first run on a new machine fails with a
# file that is too short, and the second run works, because the file is complete by then. The repair is
# that one rank per host downloads while the others wait at a barrier, as lab 11 explains. The command
# `hvdlab fault download_race_keras` prints a script with this fault.
#
# If you suspect a race, run the script many times, on an empty disk, and with a slower network if
# possible. Add a pause on one rank before the suspected line. If the pause makes the fault appear in each
# run, you have found the place.
#
# ## A check for your own script
#
# `hvdlab check` runs any Horovod script for a few steps and prints a table with the line, the mistake, the
# evidence and how to fix it:
#
# ```
# hvdlab check -np 2 train.py --its --arguments
# ```
#
# It has limits. It cannot see a mistake that needs more steps than it runs, or more ranks or machines than
# you give it. It does not know whether your network learns the right thing. If it finds nothing, none of
# the mistakes that it knows was found, and others may remain. `hvdlab fault` lists more scripts to try, with
# their symptoms. `hvdlab fault NAME --write faults` writes one of them, and `labs/faults/faults.toml` contains
# the answers.
#
# ## Summary
#
# * Failing runs show four classes of symptoms: error, hang, wrong result and slow. The class tells what to
#   look at first.
# * Make the run small and repeatable, compare with a single process, look at each rank, and change one
#   thing at a time.
# * In a hang, ask for the line in which each rank waits, and why the missing ranks never reach it. They may
#   have left the loop early, or a test of the rank may keep them away from the line.
# * In a wrong result, find the first step at which two ranks differ. A large distance after step 1 was
#   there before the training. A small one that grows comes from the steps.
# * If all ranks agree, compare with the run that you intended: learning rate, batches and number of
#   images.
# * A diagnosis needs evidence, that is, a number or a line that would be different if another fault were
#   the cause.
# * A collective must stand where all ranks arrive equally often.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="b")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="c")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer=3)

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="a")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="d")

# %% [markdown]
# Next: in [lab 17](17_read_a_trace.ipynb) you read timelines of training runs and find out where the time of
# a step goes.
