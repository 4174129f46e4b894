# %% [markdown]
# # Lab 1: Why many GPUs
#
# In 2017 Facebook trained the network ResNet-50 in one hour on 256 GPUs, and it was as accurate as after slow
# training with small batches ([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)). (A *GPU*, a graphics
# processing unit, is a chip that performs thousands of simple operations at the same time.) In the first ten
# minutes of this lab you start a script on two processes, and turn two trainings into one by a single edit. Each
# process uses a core of the processor, so you need no GPU. Then the lab explains why training needs so much
# computing, and which hardware and software let many GPUs train one network.
#
# **After this lab you can**
#
# * start a script on two processes, and tell from a report whether they train one network or two;
# * explain why training needs many GPUs, and why the time of one experiment decides how fast a team makes
#   progress;
# * name the parts of a training step, and say which of them limits the speed;
# * name the links between GPUs with their speeds, and say what MPI, NCCL, Gloo, Horovod and DDP are for.
#
# **Builds on** nothing but Python with NumPy, and logarithms. **Time** 85 minutes: ten for two ranks, 20 to
# read, 30 for four short exercises, and 25 for two longer ones. The cells of the first section run for about two
# minutes, all others for a few seconds. The optional notebook [Learning curves and large
# models](01_more_learning_curves.ipynb) computes what a training run needs, and compares training with inference.

# %%
import math
import re
import shutil

from hvdlab import launch
from hvdlab.check.rank_report import report_of, show
from hvdlab.course.experiment import LABS, WORK, grid, reference, seeds, sweep
from hvdlab.course.figures import compare
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab01_cluster
from hvdlab.exercises import lab01_why_many_gpus as exercises
from hvdlab.exercises.lab01_script_edits import EDITS, ONE_CORE, check_first_script

workbook = Workbook(1)
hint = workbook.hint

# %% [markdown]
# ## Two ranks in ten minutes
#
# *Core, 10 minutes.*
#
# The script below trains a small network on 8,192 images of clothes, in one **process**, which is a running
# program with memory of its own. Nothing in it deals with several processes. Choose your framework, "keras" or
# "torch". The cell makes a copy of the script for you and shows it.

# %%
FRAMEWORK = "torch"  # or "keras"
SERIAL = LABS / f"first_{FRAMEWORK}.py"
SCRIPT = WORK / SERIAL.name  # your copy
WORK.mkdir(parents=True, exist_ok=True)
if not SCRIPT.exists():
    shutil.copy(SERIAL, SCRIPT)
print(f"Your copy: {SCRIPT.relative_to(LABS.parent)}\n\n{SCRIPT.read_text()}")

# %% [markdown]
# ### The serial script on two ranks
#
# The command `mpirun -np 2 python first_torch.py` starts the script twice, as two processes that run at the same
# time. The processes that train together are numbered from 0. The number of a process is its **rank**, and the
# process itself is also called a rank. Each rank gets one core of the processor, as each rank of a cluster gets one
# GPU. The next cell executes this command, and prints the **rank report**, which has a row for each rank.
# Starting takes some seconds. On the reference machine TensorFlow's import took 5.0 ± 0.5 s and
# PyTorch's 1.8 ± 0.1 s (n = 3). The first one after the installation takes longer.

# %%
show(report_of(SERIAL, ranks=2, **ONE_CORE), 2)

# %% [markdown]
# *weights* is a short code, a *hash*, of all numbers that the network has learned. Two equal hashes mean equal
# networks, to the last bit. Here the hashes differ, so **these are two networks**. *examples* and *overlap* say
# why nothing became faster. In each *epoch*, one pass over the images, both ranks read all 8,192 images, and all
# images of rank 1 are also images of rank 0. No error message reports any of this.
#
# ### Exercise 1: One edit, one network
#
# **What:** edit your copy so that two ranks train one network. This cell prints the edit: remove the lines with
# `-`, and add the lines with `+`.

# %%
print(EDITS[FRAMEWORK].diff("horovod"))

# %% [markdown]
# `hvd` is **Horovod**, a library that connects the ranks. `hvd.rank()` is the number of this rank and `hvd.size()`
# the number of all ranks. The edit has four parts, and lab 5 explains each of them.
#
# * Each rank reads other images, half of them.
# * A *step* is one change of the network. In each step `DistributedOptimizer` averages what the ranks have learned
#   from their images. So both ranks change their networks in the same way.
# * A step uses twice as many images, so the learning rate, the length of a step, is doubled (lab 6 says when this
#   is right).
# * Both ranks begin with the weights of rank 0.
#
# **Why:** this is the method of the whole course, *data parallelism*.
#
# <details><summary>Hint 1</summary>
#
# Open your copy in JupyterLab's file browser, in the folder whose name the first cell has printed. Save it before you
# run the check.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The check runs your copy on two ranks and prints the rank report. If the weights differ, it also looks for the
# cause, which takes half a minute longer.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `EDITS[FRAMEWORK].apply(SCRIPT, "horovod")` makes the edit in an unchanged copy.
#
# </details>

# %%
# BEGIN SOLUTION: make the edit in your copy of the script
shutil.copy(SERIAL, SCRIPT)  # from the beginning, whatever was there
EDITS[FRAMEWORK].apply(SCRIPT, "horovod")
# END SOLUTION

# %%
check_first_script(SCRIPT)

# %% [markdown]
# One hash on both ranks: **these two ranks have trained one network.** Is it faster? The next cell trains with the
# serial script on one rank, and with your copy on two. Both read each image three times.


# %%
def training_time(ranks, seed):
    script = SERIAL if ranks == 1 else SCRIPT
    printed = launch.run(script, ranks=ranks, show=False, **ONE_CORE)
    return {"seconds": max(float(each) for each in re.findall(r"epochs in ([\d.]+) s", printed))}


times = sweep("first_script", training_time, grid(ranks=[1, 2], seed=seeds(1, 5)))


# %% tags=["folded"]
def speed_up(times):
    """Seconds of one rank divided by those of two, for each seed."""
    by_ranks = times.pivot(index="seed", columns="ranks", values="seconds")
    return (by_ranks[1] / by_ranks[2]).rename("speed_up").reset_index().assign(ranks=2)


shipped_times = reference("first_script")
print(compare(times, shipped_times, by=["ranks"], value="seconds").to_string())
compare(speed_up(times), speed_up(shipped_times), by=["ranks"], value="speed_up")

# %% [markdown]
# In the reference run (PyTorch, two cores, n = 5) one rank took 10.9 ± 0.8 s and two ranks 6.5 ± 0.6 s, which is a
# *speed-up* of 1.69 ± 0.12. It is below 2, because in each step a rank waits for the other one, and for the
# average. With Keras the same network took 7.3 s on one rank and 6.7 s on two (n = 5). So the speed-up depends on
# more than the number of ranks, and the course measures on what.
#
# The rest of the course is about what this edit does, when it needs more care, and what still works with hundreds of
# GPUs. This lab continues with the question why anybody needs that many.
#
# ## Trends in training compute
#
# *Optional, 8 minutes.*
#
# AlphaGo Zero, the program that learned Go by playing against itself, was trained with 300,000 times as many
# arithmetic operations as AlexNet, the program for recognising images that started the present wave of neural
# networks five years before ([OpenAI, "AI and Compute"](https://openai.com/research/ai-and-compute), 2018).
# No chip became 300,000 times as fast in five years. According to OpenAI, the main reason was that
# researchers found methods to use more chips together.
#
# A *neural network*, also called a *model*, computes an answer from an input, for example from an image the
# name of what it shows. It does so in several stages, the *layers*, each of which uses the result of the layer before. The answer
# depends on many adjustable numbers, the **parameters** or weights. To *train* the network means to adjust
# them until it gives good answers on given examples.
#
# The work is counted in floating-point operations. One of them, a **FLOP**, is one addition or one
# multiplication of two numbers. *Operation* always means this here, and the *compute* of a training run is
# the number of its operations. The speed of a chip is stated in TFLOP/s, which are $10^{12}$ operations per
# second, or in petaflop/s, which are $10^{15}$. Its *peak* is the highest speed that the maker states. A
# **petaflop/s-day** is the work of a machine that does $10^{15}$ operations per second for one day, about
# $10^{20}$ operations.
#
# For example,
# [AlexNet](https://papers.nips.cc/paper/4824-imagenet-classification-with-deep-convolutional-neural-networks.pdf)
# (2012) was trained on two GPUs for five to six days. A GPU of that type has a peak of 1.58 TFLOP/s, which is
# 0.00158 petaflop/s. OpenAI assumes that a third of the peak was reached. So the compute was
#
# $$2 \times 0.00158\ \text{petaflop/s} \times 5.5\ \text{days} \times 0.33 = 0.0057\ \text{petaflop/s-days},$$
#
# or $5 \cdot 10^{17}$ operations. Counted in the same way, AlphaGo Zero (2017) needed more than 1,700
# petaflop/s-days.
#
# ![A chart with the year from 2012 to 2026 and the operations of one training run on a logarithmic axis. The points rise from AlexNet with 5e17 operations through AlphaGo Zero with 1.5e23 to Llama 3 405B with 3.8e25.](pictures/training_compute.svg)
#
# From AlexNet to AlphaGo Zero the largest runs doubled every 3.4 months (OpenAI), which is a factor of about
# 12 per year. For the largest runs since 2018, [Epoch
# AI](https://epoch.ai/blog/training-compute-of-frontier-ai-models-grows-by-4-5x-per-year) finds a factor of
# about 4 per year. In contrast, Moore's law for chips means a doubling about every two years, a factor of 1.4
# per year.
#
# A growth by a factor $f$ consists of $\log_2 f$ doublings, because 2 multiplied $\log_2 f$ times is $f$.
#
# ### Exercise 2: Doubling time
#
# **What:** return the months of one doubling, for a growth by a given factor in a given number of years.
#
# **Why:** the doubling time compares trends that were measured over different periods.
#
# **Signature:** `doubling_months(factor, years)` returns a number.
#
# <details><summary>Hint 1</summary>
#
# How many doublings are in the factor?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: a factor of 16 in 2 years. $16 = 2^4$, so there are 4 doublings in 24 months, and one takes
# 6 months.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `math.log2(factor)` is the number of doublings. Divide `12 * years` by it.
#
# </details>


# %%
def doubling_months(factor, years):
    # BEGIN SOLUTION: return the months of one doubling
    doublings = math.log2(factor)
    return 12 * years / doublings
    # END SOLUTION


# %%
exercises.check_doubling_months(doubling_months)
print(f"AlexNet to AlphaGo Zero: {doubling_months(300_000, years=5.1):.1f} months")
print(f"Since 2018, 4 per year:  {doubling_months(4, years=1):.1f} months")

# %% [markdown]
# The first line agrees with OpenAI's fit. The second line shows that the growth became slower after 2018, but
# it is still a doubling every six months.
#
# ## The number of GPUs in the growth
#
# *Optional, 3 minutes.*
#
# Compare AlexNet with [Llama 3 405B](https://arxiv.org/abs/2407.21783) (2024), which needed $3.8 \cdot
# 10^{25}$ operations, 76 million times as many. Four factors explain it.
#
# * **Peak of a GPU.** The [H100](https://www.nvidia.com/en-us/data-center/h100/) has 989 TFLOP/s in 16-bit
#   arithmetic, which was used for this run. AlexNet was trained in 32-bit arithmetic, whose numbers are
#   stored in 32 bits and take longer to compute. The factor is 630.
# * **Number of GPUs.** There were up to 16,384 in place of two, a factor of 8,200.
# * **Time.** The GPU time that Meta reports is 78 days on 16,384 GPUs, a factor of 14.
# * **Fraction of the peak.** About 0.40 was reached in place of 0.33, a factor of 1.2.
#
# The product is about 87 million. It is larger than 76 million, partly because the reported time includes
# interruptions. The largest factor is **the number of GPUs**.
#
# OpenAI's history says the same. Until 2014 most results used 1 to 8 GPUs, and from 2014 to 2016 the large
# ones used 10 to 100.

# %% [markdown]
# ## Iteration time of experiments
#
# *Core, 6 minutes.*
#
# Formulas predict the cost of a training run ([optional notebook](01_more_learning_curves.ipynb)). But no formula gives the best number of
# layers, or the best *learning rate*, which says how far each *step*, one change of the
# parameters, moves them. Such settings, which
# are chosen before training and not learned by it, are called **hyperparameters**. They are found by
# experiments, each of which builds on the last. The *iteration time*, from the idea to the result, limits how
# many ideas are tested. With an iteration time of a week, a mistake made in the morning costs a week. With
# one hour, the team can try eight ideas in a day.
#
# ![A week from Monday to Sunday for a run of 150 GPU-hours. One GPU gives one result by Sunday, four GPUs at 75 percent efficiency give three results, and sixteen GPUs give thirteen.](pictures/iteration_time.svg)
#
# Several GPUs can train independent networks, which tests several ideas at a time, but does not shorten the
# wait for any of them. This is the better choice for a search over settings that do not depend on each other,
# such as ten learning rates. Or they work on one network together, so that the result is there earlier, and
# the next idea can build on it. For this the GPUs must exchange data, so it is not perfectly efficient. The
# *speed-up* is the time on one GPU divided by the time on several. The **parallel efficiency** is the
# speed-up divided by the number of GPUs. For example, if 4 GPUs make a run 3 times as fast, the efficiency is
# 75 %.
#
# ### Exercise 3: Results per week
#
# **What:** return how many runs finish within a given time, one after the other, if all GPUs work on each run
# together.
#
# **Why:** this is the number of ideas, each built on the last result, that a team can test.
#
# **Signature:** `experiments(hours, gpu_hours, gpus, efficiency)` returns a whole number. `gpu_hours` is the
# time of a run on one GPU.
#
# <details><summary>Hint 1</summary>
#
# How long does one run take on all GPUs? A run that does not finish gives no result.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: a run takes 12 hours on one GPU. On 4 GPUs at 75 % it takes $12 / (4 \cdot 0.75) = 4$ hours.
# In 10 hours, two runs finish, and the third is not complete.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `hours_each = gpu_hours / (gpus * efficiency)`. The operator `//` divides and rounds down.
#
# </details>


# %%
def experiments(hours, gpu_hours, gpus, efficiency):
    # BEGIN SOLUTION: return how many runs finish, as a whole number
    hours_each = gpu_hours / (gpus * efficiency)
    return int(hours // hours_each)
    # END SOLUTION


# %%
exercises.check_experiments(experiments)
for gpus, efficiency in ((1, 1.0), (4, 0.75), (16, 0.75), (16, 0.50)):
    print(
        f"{gpus:2} GPUs at {efficiency:.0%}: {experiments(7 * 24, 150, gpus, efficiency)} results per week"
    )

# %% [markdown]
# The same sixteen GPUs give 13 or 8 results, depending on their efficiency.

# %% [markdown]
# ## Data parallelism and model parallelism
#
# *Core, 4 minutes.*
#
# In this course every GPU is driven by one rank, and on a machine without GPUs each rank uses CPU cores instead.
# So a run on 4 GPUs consists of the ranks 0, 1, 2 and 3, which all execute the same script.
#
# A network is trained in steps, each with a **batch** of examples. From the batch the **gradient** is
# computed. It has one number per parameter, which says whether the error rises or falls, and how strongly, if
# this parameter is increased. Then the step changes the parameters so that the error falls. Several GPUs can
# divide this work in two ways.
#
# ![On the left, data parallelism: two ranks hold all layers, each reads half of the batch, and they exchange gradients. On the right, model parallelism: each rank holds half of the layers, and activations pass between them.](pictures/two_kinds_of_parallelism.svg)
#
# In **data parallelism** each rank works with the complete network on a different part of the batch. Each
# computes a gradient, and the ranks average the gradients before they change their parameters. For example,
# rank 0 has the gradient [1, 2] of its examples, and rank 1 has [3, 4] of its own. The average is [2, 3],
# both ranks apply it, so both copies of the network stay identical. In each step a rank sends its gradient.
# A larger batch does not make the gradient larger, because it has one number per parameter.
#
# In **model parallelism** each rank holds only some layers, or a part of every layer. All ranks work on the
# same examples and send each other *activations*, the results of layers. Model parallelism can train a
# network that does not fit into the memory of one GPU. Keeping all ranks busy is harder, because a layer
# needs the result of the layer before it.
#
# Data parallelism is simpler and is used wherever the network fits. It is the subject of labs 4 to 12. Labs
# 13 and 14 split the network.

# %% [markdown]
# ## Processes, nodes and links
#
# *Core, 13 minutes.*
#
# The time of the averaging depends on the links between the GPUs. A **node** is one machine of a *cluster*, a
# group of machines that are connected by a network. It has CPU cores, memory, and typically four or eight
# GPUs. The **bandwidth** of a link is the number of bytes per second that it carries. Its **latency** is the
# time until the first byte arrives. Even the shortest message needs this time.
#
# ![Two nodes with CPU cores and four GPUs each. Every GPU has one process with a rank from 0 to 7. NVLink connects the GPUs of a node, PCIe connects the GPUs and the network cards to the CPU, and InfiniBand or Ethernet connects the nodes.](pictures/node_and_network.svg)
#
# | link | connects | bandwidth in each direction | time for 1 GB |
# |---|---|---|---|
# | NVLink of the [H100](https://www.nvidia.com/en-us/data-center/h100/) | GPUs of a node | 450 GB/s | 2.2 ms |
# | PCIe, generation 5, 16 lanes | a GPU or a network card with the CPU | 64 GB/s | 16 ms |
# | [InfiniBand NDR](https://www.nvidia.com/en-us/networking/infiniband-adapters/) | nodes | 400 Gbit/s = 50 GB/s per network card | 20 ms |
# | Ethernet, 10 Gbit/s | nodes, laptops | 1.25 GB/s | 800 ms |
#
# A byte has 8 bits, so 400 Gbit/s are 50 GB/s. *PCIe* connects the devices of a machine. Its lanes are
# parallel connections, and each generation is about twice as fast as the one before. A *network card*
# connects a node to the network. The card sits on PCIe, so data that leave a node pass through PCIe first.
#
# These are peak numbers of the makers, and lab 18 measures what a program reaches. NVLink is 7 times as fast
# as PCIe, 9 times as fast as an InfiniBand card, and 360 times as fast as this Ethernet.
#
# A communication in which all ranks take part is called a **collective**. The most important one is the
# **all-reduce**. It combines one array of each rank, by a sum or an average, and gives the result to every
# rank. In the example above, an all-reduce turned [1, 2] and [3, 4] into [2, 3] on both ranks.
#
# A common algorithm, the *ring all-reduce*, arranges the ranks in a ring. Rank 0 sends to rank 1, rank 1 to rank 2, and the last rank
# to rank 0. With $R$ ranks it cuts the array into $R$ pieces. In the first phase each rank sends $R - 1$
# messages of one piece each, and the sums are formed. In the second phase the finished sums travel around the
# ring, in $R - 1$ more messages per rank. So each link carries $2(R-1)$ pieces. A piece is $1/R$ of the array.
# Together they are $2(R-1)/R$ times as large as the array. For two ranks this factor is 1, for four ranks it
# is 1.5, and it is always below 2.
#
# All links carry the same number of bytes at the same time, and the all-reduce ends when the last link is
# done. So **the slowest link decides** how long it takes. You program this algorithm in lab 4.
#
# ### Exercise 4: Time of a ring all-reduce
#
# **What:** return the seconds of a ring all-reduce. Ignore the latency.
#
# **Why:** it tells whether a network is fast enough, before anyone buys it.
#
# **Signature:** `ring_seconds(size, links)` returns a number. `size` is the size of the array in bytes, and
# `links` has the bandwidth of the link from each rank to the next one, in bytes per second. There are as many
# links as ranks.
#
# <details><summary>Hint 1</summary>
#
# How many bytes does each link carry? Which link finishes last?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: 2 ranks, 100 bytes, links of 10 and 50 bytes per second. Each link carries $2 \cdot \frac12
# \cdot 100 = 100$ bytes. The first needs 10 seconds and the second 2, so the all-reduce takes 10 seconds.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `ranks = len(links)` each link carries `2 * (ranks - 1) / ranks * size` bytes. Divide by `min(links)`.
#
# </details>


# %%
def ring_seconds(size, links):
    # BEGIN SOLUTION: return the time of a ring all-reduce in seconds
    ranks = len(links)
    sent = 2 * (ranks - 1) / ranks * size
    return sent / min(links)
    # END SOLUTION


# %%
exercises.check_ring_seconds(ring_seconds)

# %% [markdown]
# Eight GPUs in two nodes train a network of one billion parameters. The gradient is stored in 16-bit numbers,
# which have 2 bytes, so 2 GB are averaged in each step. Six of the eight links of the ring are NVLink. The
# other two connect the nodes. PCIe is faster than the networks, so we ignore it here.

# %%
# Prediction 1: the links between the nodes are 10 Gbit/s Ethernet. How many seconds does an all-reduce take? Replace both values of None.
workbook.predict(1, None, reason=None)

# %%
NVLINK, INFINIBAND, ETHERNET = 450e9, 50e9, 1.25e9
rings = {
    "one node": [NVLINK] * 8,
    "two nodes, InfiniBand": [NVLINK] * 6 + [INFINIBAND] * 2,
    "two nodes, Ethernet": [NVLINK] * 6 + [ETHERNET] * 2,
}
for name, links in rings.items():
    print(f"{name:22} {ring_seconds(2e9, links):6.3f} s")
workbook.result(1, ring_seconds(2e9, rings["two nodes, Ethernet"]))

# %% [markdown]
# With Ethernet each link carries $2 \cdot \frac78 \cdot 2 = 3.5$ GB, and the slow links need $3.5 / 1.25 =
# 2.8$ seconds for it. The average bandwidth of the ring is about 340 GB/s, but the fast links wait for the
# slow ones. A prediction from the average would have been $3.5 / 340$ s, which is 10 ms and wrong by a factor of
# more than 250.

# %% [markdown]
# ## The parts of a training step
#
# *Core, 9 minutes.*
#
# A **training step** is everything from reading a batch to the point where the loop can begin the next step.
# Any part can be the slowest. In the list, the device that does a part stands in parentheses.
#
# ![A timeline of fifteen parts of a training step in four lanes: storage, CPU, GPU and network. Parts 1 to 6 prepare the batch, 7 to 11 compute gradients, 12 averages them over the network, and 13 to 15 finish the step.](pictures/training_step.svg)
#
# 1. **Read** the files of some examples (storage).
# 2. **Transport** them to the memory of the node, often through a network (storage).
# 3. **Decode** them, for example from JPEG to pixels (CPU).
# 4. **Augment** them, for example by shifting or mirroring an image at random (CPU).
# 5. **Collect** them into a batch (CPU).
# 6. Put the batch into a **queue**, where it waits until the GPU is ready for it (CPU).
# 7. **Copy** it to the memory of the GPU, through PCIe (GPU).
# 8. The **forward pass** computes the answers of the network (GPU).
# 9. The **loss** is computed, one number that compares them with the right answers (GPU).
# 10. The **backward pass** computes the gradients, from the last layer to the first (GPU).
# 11. **Pack** the gradients into one *buffer*, a single piece of memory (GPU).
# 12. The **all-reduce** sends them through the links, and returns the average (network).
# 13. **Unpack** the average (GPU).
# 14. The **optimizer**, the rule that turns a gradient into changes, updates the parameters (GPU).
# 15. **Log** the loss, and **return control** to the loop (CPU).
#
# The parts do not have to wait for each other. While the GPU computes a step, the CPU can already prepare the
# next batch. This is called *prefetching*, and the queue of part 6 makes it possible. For example, let
# loading take 0.3 s, computing 0.5 s and the exchange 0.1 s. Without prefetching a step takes 0.9 s. With
# prefetching the loading is hidden, and it takes 0.6 s. If loading takes 0.9 s instead, a step takes 0.9 s,
# however fast the GPU is. Lab 10 shows what helps then.
#
# Part of the exchange can be hidden as well, because the all-reduce of the last layers can begin while the
# backward pass still works on the first layers. The exercise leaves this out.
#
# ### Exercise 5: Time of a step
#
# **What:** return the time per step, with or without prefetching.
#
# **Why:** it tells which part limits you, before you buy a faster GPU or network.
#
# **Signature:** `step_seconds(load, compute, exchange, prefetch)` takes three times and `True` or `False`,
# and returns a number.
#
# <details><summary>Hint 1</summary>
#
# With prefetching, two chains run at the same time. One loads the next batch. The other computes with this
# batch and exchanges its gradients. The longer chain decides.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: load 4, compute 2, exchange 1. Without prefetching: 7. With prefetching one chain takes 4
# and the other 3, and the next step starts when both have ended: 4.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `max(load, compute + exchange)` if `prefetch`, else the sum of the three.
#
# </details>


# %%
def step_seconds(load, compute, exchange, prefetch):
    # BEGIN SOLUTION: return the seconds per step
    if prefetch:
        return max(load, compute + exchange)
    return load + compute + exchange
    # END SOLUTION


# %%
exercises.check_step_seconds(step_seconds)

# %% [markdown]
# ## Choice of a cluster
#
# *Optional, 25 minutes.*
#
# The formulas of this lab predict time and price of a run, before anyone rents GPUs.
#
# ### Exercise 6: Review of four patches
#
# **Level:** choose and justify.
#
# **What:** a colleague proposes four patches of `ring_seconds`. Decide which of them are correct. For each of the
# others give a case in which it does not return the time of a ring all-reduce.
#
# **Why:** a test with eight equal links finds none of the faults.
#
# **Signature:** `review_ring()` returns a dict with the keys "a", "b", "c" and "d". A value is "correct", or a case
# such as `{"links": [4e9, 4e9, 4e9]}`, the bandwidths of a ring of three ranks. The array always has 8 GB.

# %%
print(lab01_cluster.RING_REVIEW)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Each patch assumes something about the ring. Give a ring for which this is false.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Try rings with another number of ranks, with one slow link, and with the slow link at another place.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `lab01_cluster.ring_seconds(8e9, links)` is the right time. Change your own function as the patch does, and compare
# both for `[1e9, 1e9]`, `[1e9, 9e9, 9e9]` and `[9e9, 9e9, 1e9]`.
#
# </details>


# %%
def review_ring():
    # BEGIN SOLUTION: return "correct" or a case in which it fails, for each patch
    return {
        "a": {"links": [1e9, 1e9]},
        "b": {"links": [1e9, 9e9, 9e9]},
        "c": "correct",
        "d": {"links": [9e9, 9e9, 1e9]},
    }
    # END SOLUTION


# %%
lab01_cluster.check_review_ring(review_ring)

# %% [markdown]
# ### Exercise 7: The cheapest offer within a deadline
#
# **Level:** blank page.
#
# **What:** write `choose_offer(offers, run, hours)`. It returns the name of the offer that completes a run within
# the given hours at the lowest cost.
#
# **Why:** more GPUs finish earlier, but the exchange makes each result more expensive.
#
# The next cell shows the data. `links` are those of the ring, one per GPU, and `price` is for one GPU and one hour.
# A run has `steps`. In a step the ranks divide the work, for which one GPU needs `seconds`, and then they average
# `size` bytes. Nothing overlaps.
#
# **Rubric:** the check measures six properties.
#
# * *Deadline:* the chosen offer completes the run in time.
# * *Price:* it has the lowest cost of the whole run among the offers in time.
# * *Slowest link* and *all-reduce:* the time of a step includes the exchange.
# * *No offer in time:* the function returns `None`.
# * *Order of the offers:* it does not matter.

# %%
print(lab01_cluster.RUN, *lab01_cluster.OFFERS, sep="\n")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Compute for each offer the seconds of a step, the hours of the run, and its cost.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: 3,600 steps of 4 s on one GPU are 4 hours. On 4 GPUs a step takes 1 s and, for example, 0.5 s for
# the exchange, so the run takes 1.5 hours. At 2 per GPU-hour it costs $1.5 \cdot 4 \cdot 2 = 12$ in place of 8.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A step takes `run["seconds"] / gpus` and the exchange of exercise 4. Keep the costs of the offers in time in a
# dict, and use `min(costs, key=costs.get, default=None)`.
#
# </details>


# %%
def choose_offer(offers, run, hours):
    """Return the name of the cheapest offer that completes the run in time, or None."""
    # BEGIN SOLUTION: write the whole function
    costs = {}
    for offer in offers:
        gpus = len(offer["links"])
        exchange = 2 * (gpus - 1) / gpus * run["size"] / min(offer["links"])
        step = run["seconds"] / gpus + exchange
        needed = run["steps"] * step / 3600
        if needed <= hours:
            costs[offer["name"]] = needed * gpus * offer["price"]
    return min(costs, key=costs.get, default=None)
    # END SOLUTION


# %%
lab01_cluster.check_choose_offer(choose_offer)
for hours in (24, 2):
    print(f"{hours:2} hours:", choose_offer(lab01_cluster.OFFERS, lab01_cluster.RUN, hours))

# %% [markdown]
# Without haste a single GPU is cheapest, because it exchanges nothing. Several GPUs cost more per result,
# and they are worth it where time counts. The office is never chosen, although its GPUs are cheapest.

# %% [markdown]
# ## MPI, NCCL, Gloo and Horovod
#
# *Core, 4 minutes.*
#
# A training script calls a library that averages gradients, and this library calls another one that sends the
# bytes.
#
# ![Four layers of software and hardware. A training script calls Horovod, PyTorch DDP or FSDP, these call NCCL, Gloo or MPI, and these send the bytes through NVLink, PCIe, InfiniBand or Ethernet.](pictures/software_layers.svg)
#
# * **MPI**, the Message Passing Interface, is a standard of the supercomputing community, whose first version
#   appeared in 1994. It says how processes are numbered, and how they send messages and run collectives. The
#   course uses its implementation [Open MPI](https://www.open-mpi.org).
#   `mpirun -np 4 python train.py` starts 4 ranks.
# * **NCCL**, the [NVIDIA Collective Communications Library](https://developer.nvidia.com/nccl), was made by
#   NVIDIA and runs collectives between NVIDIA GPUs. It chooses the links and the algorithm.
# * **Gloo** is a [library for collectives](https://github.com/pytorch/gloo) made by Facebook (now Meta).
#   PyTorch uses it for CPUs.
# * **Horovod** averages gradients by MPI, NCCL or Gloo. It works with TensorFlow, Keras, PyTorch and MXNet,
#   which are *frameworks*, libraries for writing and training networks. Uber published it in 2017 ([Sergeev
#   and Del Balso 2018](https://arxiv.org/abs/1802.05799)).
# * **DDP** (DistributedDataParallel) and **FSDP** (Fully Sharded Data Parallel) are the corresponding parts
#   of PyTorch itself. FSDP is data parallelism too, because each rank has its own part of the batch. But each
#   rank stores only a fraction of the parameters, and receives the others when a layer needs them, so that
#   larger networks fit.
#
# Early systems for data parallelism used a **parameter server**, a process that keeps the parameters,
# collects the gradients of all *workers*, as the ranks were called there, and sends back the result ([Li et
# al. 2014](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu)). The all-reduce
# replaced it for *dense* gradients, in which every parameter gets a value in every step. Recommender systems
# still use parameter servers for their tables of user and product vectors, because these tables are too large
# for a GPU and a batch touches only a few of their rows ([Liu et al. 2022](https://arxiv.org/abs/2209.07663)).
#
# ![On the left a parameter server exchanges data with four workers, so that all gradients pass through its network card. On the right four ranks form a ring, in which no link carries more than another.](pictures/parameter_server_and_ring.svg)
#
# With 4 workers and gradients of 1 GB, the server receives 4 GB and sends 4 GB per step. With 100 workers it
# is 100 GB each way. In a ring, each rank sends less than 2 GB whatever the number of ranks. The ring
# algorithm itself was published in 2009, before it was used for neural networks ([Patarasuk and
# Yuan](https://doi.org/10.1016/j.jpdc.2008.09.002)). Baidu brought it to deep learning in 2017. Horovod
# started from Baidu's code, and for several years it was the usual tool for many GPUs.
#
# Today the frameworks do this work themselves, and DDP and FSDP have replaced Horovod in most new PyTorch
# code. Horovod's last release is [0.28.1 of June 2023](https://github.com/horovod/horovod/releases). This
# course teaches it because it makes each idea visible in one call, works with Keras and PyTorch alike, and is
# used by many existing scripts. The ideas are the same in DDP, to which labs 11 and 12 lead.

# %% [markdown]
# ## Summary
#
# *Core, 1 minute.*
#
# * From AlexNet to AlphaGo Zero the compute of the largest runs grew 300,000 times in five years, and since
#   2018 it has grown 4 times per year. From AlexNet to Llama 3 405B the largest factor is the number of GPUs.
# * The time of one experiment decides how many ideas a team can test. Sixteen GPUs give 13 results in a week
#   at 75 % efficiency, and 8 at 50 %.
# * In data parallelism the ranks share the batch and average gradients. In model parallelism they share the
#   network and send activations.
# * A ring all-reduce of $R$ ranks sends $2(R-1)/R$ times the array through every link, and the slowest link
#   decides. NVLink carries 450 GB/s, InfiniBand 50 GB/s, and 10 Gbit/s Ethernet 1.25 GB/s.
# * A training step has fifteen parts. With prefetching the longer of two chains decides: loading, or
#   computing plus exchange.

# %% [markdown]
# ## Self-check questions
#
# *Core, 2 minutes.*

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=6)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=0.75)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="b")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="a")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="d")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="b")

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer=0.28)

# %% [markdown]
# Next: [Lab 2: Gradient descent](02_gradient_descent.ipynb), where you write the step that all of this
# repeats.
