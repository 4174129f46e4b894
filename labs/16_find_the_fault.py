# %% [markdown]
# # Lab 16: Find the fault
#
# **Time:** 60 minutes. Seven scripts train on two ranks, and each has one mistake. None of them says so. You read the
# symptoms as you would on a cluster, from curves and from what the ranks did, **name the mistake**, and only then
# fix it and let `hvdlab check` look at your script.
#
# **You need** the edits that make a script a Horovod script (lab 5), and why the rate grows with the ranks (lab 6).

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from hvdlab.exercises import lab16_find_the_fault as fault

for name, title in fault.NAMES.items():
    print(f"{name:26}{title}")

# %% [markdown]
# These are the names of all mistakes that `hvdlab check` knows. Seven of them are in this lab.
#
# `fault.watch(case)` runs a case for a few steps, and returns a log:
#
# | | what it has |
# |---|---|
# | `log.ends` | of each rank: batches in an epoch (`length`), steps made, how it ended |
# | `log.side_by_side(column)` | `"loss"`, `"rate"`, `"batch"` (a hash of what was read) or `"weights"` (the sum of the norms of all weights), step by step, one column per rank |
# | `log.distance()` | how far the norms of the two ranks are apart, tensor by tensor, summed, after each step: zero where their weights are equal |
#
# Loops that train are cut after eight steps, so a log has two short epochs. It also puts your copy of
# the script, `case_1.py` and so on, into `notebooks/work/`, and leaves one that is there as it is. To start again, delete the copy.

# %% [markdown]
# ## Case 1: Lower than one rank
#
# *"The loss falls as it should. But the model that rank 0 saves is worse than what a single process gets with the same
# data, and when rank 1 saves its own, it is another model."*

# %%
print(fault.copy(1).read_text())

# %%
log = fault.watch(1)
if log:
    fault.draw(log)
    print(log.ends)

# %% [markdown]
# ### Exercise 1: Name the mistake of case 1
#
# Set `diagnosis` to one of the names above.
#
# <details><summary>Hint 1</summary> The two ranks differ after the very first step, and by much. Could one step with a
# gradient of its own each have done that?</details>
# <details><summary>Hint 2</summary> It was there before: they make the same steps, from different places.</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 1
diagnosis = "no-broadcast"
# END SOLUTION

# %%
fault.check_diagnosis(1, diagnosis)

# %% [markdown]
# ### Exercise 2: Fix your copy
#
# **Edit your copy** `notebooks/work/case_1.py`, and save it. The cell that raises `NotImplementedError` is a reminder, here and in the
# other cases: make the edit, delete that line, and continue.
#
# <details><summary>Hint 1</summary> Rank 0's weights must come to all ranks before the first step. The optimizer has a
# state too.</details>
# <details><summary>Hint 2</summary> <code>hvd.broadcast_optimizer_state(optimizer, root_rank=0)</code> and
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
fault.check_mended(1)

# %% [markdown]
# ## Case 2: No faster
#
# *"Two ranks need as many epochs to 80 % as one does at the same rate, and each epoch takes as long as on one. All weights are
# equal."*

# %%
log = fault.watch(2)
if log:
    fault.draw(log)
    print(log.side_by_side("batch"))

# %% [markdown]
# ### Exercise 3: Name the mistake of case 2
#
# <details><summary>Hint 1</summary> The distance is zero: gradients are averaged, and both ranks started with the same weights. What is
# the average of two equal gradients?</details>
# <details><summary>Hint 2</summary> Compare the two columns of hashes.</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 2
diagnosis = "identical-batches"
# END SOLUTION

# %%
fault.check_diagnosis(2, diagnosis)

# %% [markdown]
# ### Exercise 4: Fix your copy
#
# <details><summary>Hint 1</summary> <code>torch.utils.data.distributed.DistributedSampler</code> partitions a data set among
# the ranks; the loader then must not shuffle by itself.</details>
# <details><summary>Hint 2</summary> <code>sampler = torch.utils.data.distributed.DistributedSampler(train,
# num_replicas=hvd.size(), rank=hvd.rank())</code>, then <code>DataLoader(train, BATCH_SIZE, sampler=sampler)</code>, and <code>sampler.set_epoch(epoch)</code> at the beginning of each epoch, or
# all epochs have the order of the first.</details>

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
fault.check_mended(2)

# %% [markdown]
# ## Case 3: Two models
#
# *"The loss falls on both ranks. At the end their accuracies are 0.79 and 0.81, and I do not know which one to report."*

# %%
log = fault.watch(3)
if log:
    fault.draw(log)
    print(log.distance())

# %% [markdown]
# ### Exercise 5: Name the mistake of case 3
#
# <details><summary>Hint 1</summary> Case 1 had a difference too. How large was it after the first step?</details>
# <details><summary>Hint 2</summary> They begin at the same place (the script broadcasts), and one step parts them a
# little: each takes steps of its own. Which line should have averaged them?</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 3
diagnosis = "optimizer-not-wrapped"
# END SOLUTION

# %%
fault.check_diagnosis(3, diagnosis)

# %% [markdown]
# ### Exercise 6: Fix your copy
#
# <details><summary>Hint 1</summary> One line, right after the optimizer is made.</details>
# <details><summary>Hint 2</summary> <code>optimizer = hvd.DistributedOptimizer(optimizer,
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
fault.check_mended(3)

# %% [markdown]
# ## Case 4: It stops at the end of the epoch
#
# *"The first epoch nearly ends. Then nothing happens. After a minute Horovod writes: One or more tensors were submitted to be
# reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds."*
#
# The log is from a run that was cut before it could hang.

# %%
log = fault.watch(4)
if log:
    print(log.ends)

# %% [markdown]
# ### Exercise 7: Name the mistake of case 4
#
# <details><summary>Hint 1</summary> A rank that has no batch left continues with the next line. What does the other one
# do?</details>
# <details><summary>Hint 2</summary> 4097 images, two ranks, batches of 64: how many batches has each?</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 4
diagnosis = "unequal-steps"
# END SOLUTION

# %%
fault.check_diagnosis(4, diagnosis)

# %% [markdown]
# ### Exercise 8: Fix your copy
#
# There is more than one solution: leave out the short batch, give every rank the same number of images, or let
# `DistributedSampler` partition them (and pass it the epoch: `sampler.set_epoch(epoch)`).
#
# <details><summary>Hint 1</summary> The rank with 2049 images has a batch of one image at its end.</details>
# <details><summary>Hint 2</summary> <code>drop_last=True</code> in the loader. (With 4095 images it would not help: 2048 and
# 2047 are 32 whole batches and 31.)</details>

# %%
# BEGIN SOLUTION: fix your copy, case_4.py
fault.replace(4, "shuffle=True)", "shuffle=True, drop_last=True)")
# END SOLUTION

# %%
fault.check_mended(4)

# %% [markdown]
# ## Case 5: It stops after the epoch
#
# *"Rank 0 never prints the loss of the first epoch. There is no error. It works on one rank."*

# %%
log = fault.watch(5)
if log:
    print(log.ends.to_string())

# %% [markdown]
# ### Exercise 9: Name the mistake of case 5
#
# <details><summary>Hint 1</summary> Both made equally many steps. Open the script at the two lines in which they
# wait.</details>
# <details><summary>Hint 2</summary> Which rank can come to the line of the all-reduce at all?</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 5
diagnosis = "collective-on-some-ranks"
# END SOLUTION

# %%
fault.check_diagnosis(5, diagnosis)

# %% [markdown]
# ### Exercise 10: Fix your copy
#
# <details><summary>Hint 1</summary> All ranks average, one rank prints.</details>
# <details><summary>Hint 2</summary> Move the line with <code>hvd.allreduce</code> up, before the <code>if</code>.</details>

# %%
# BEGIN SOLUTION: fix your copy, case_5.py
fault.replace(
    5,
    "        if hvd.rank() == 0:\n            mean =",
    "        mean =",
)
fault.replace(
    5,
    "            print(",
    "        if hvd.rank() == 0:\n            print(",
)
# END SOLUTION

# %%
fault.check_mended(5)

# %% [markdown]
# ## Case 6: Worse with every rank
#
# *"On one rank all is well, and on two. On four it learns more slowly, on eight nothing at all. And I did scale the rate, as the paper says."*

# %%
log = fault.watch(6)
if log:
    fault.draw(log)
    print(log.side_by_side("rate").head(3))

# %% [markdown]
# ### Exercise 11: Name the mistake of case 6
#
# <details><summary>Hint 1</summary> The rate of one process is 0.02. What should it be on two ranks?</details>
# <details><summary>Hint 2</summary> 0.08 is 0.02 times 2 times 2.</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 6
diagnosis = "rate-scaled-twice"
# END SOLUTION

# %%
fault.check_diagnosis(6, diagnosis)

# %% [markdown]
# ### Exercise 12: Fix your copy
#
# <details><summary>Hint 1</summary> Search for <code>hvd.size()</code>.</details>
# <details><summary>Hint 2</summary> Take one of the two factors away.</details>

# %%
# BEGIN SOLUTION: fix your copy, case_6.py
fault.replace(6, "lr=RATE * hvd.size()", "lr=RATE")
# END SOLUTION

# %%
fault.check_mended(6)

# %% [markdown]
# ## Case 7: It hangs on another epoch each time
#
# *"It stops early when the loss does not fall any more. On one rank this works. On two it hangs: after epoch 11 in one run,
# after epoch 17 in the next."*

# %%
log = fault.watch(7)
if log:
    print(log.output)
    print(log.side_by_side("loss").tail(3))

# %% [markdown]
# ### Exercise 13: Name the mistake of case 7
#
# <details><summary>Hint 1</summary> The weights are equal, the batches are not. So which numbers of the script are equal on
# both ranks, and which are not?</details>
# <details><summary>Hint 2</summary> One rank has had no new best loss of its own for two epochs and leaves the loop. The other
# one has had one.</details>

# %%
# BEGIN SOLUTION: set diagnosis to the name of the mistake of case 7
diagnosis = "own-stop"
# END SOLUTION

# %%
fault.check_diagnosis(7, diagnosis)

# %% [markdown]
# ### Exercise 14: Fix your copy
#
# <details><summary>Hint 1</summary> All ranks must decide by the same number.</details>
# <details><summary>Hint 2</summary> <code>mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()</code></details>

# %%
# BEGIN SOLUTION: fix your copy, case_7.py
fault.replace(
    7,
    "        mean = total / len(loader)\n",
    '        mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()\n',
)
# END SOLUTION

# %%
fault.check_mended(7)

# %% [markdown]
# ## Your own script
#
# ```
# hvdlab check -np 2 train.py --its --arguments
# ```
#
# runs any Horovod script for a few steps and prints a table: line, mistake, evidence, how to fix it. What it
# cannot see: a mistake that needs more steps than it runs, one that needs more ranks or machines than you give it, and
# whether your network learns the right thing. Nothing found means that none of these mistakes was found.
#
# The other scripts of `labs/faults/` are yours to try: their first lines tell the symptom, `faults.toml` has the answers.
