# %% [markdown]
# # Lab 5: Horovod
#
# Engineers at Uber found that distributed TensorFlow lost about half of the power of 128 GPUs ([Sergeev and
# Del Balso, 2018](https://arxiv.org/abs/1802.05799)). With their library Horovod, the networks Inception V3
# and ResNet-101 kept 90 % of the ideal speed on 512 GPUs in 128 servers, and VGG-16 kept 68 % ([Horovod's
# README](https://github.com/horovod/horovod#readme)). Lab 4 averaged gradients by hand. Now you convert a
# complete training script to Horovod, prove after each edit what it changed, and measure the gain.
#
# **After this lab you can**
#
# * explain what Horovod is, which libraries it calls, and what is used today;
# * convert a Keras or PyTorch script to any number of ranks, and say why each edit is needed;
# * compare three options to partition a data set, and compute which fraction of the images a rank reads;
# * diagnose missing edits from their symptoms;
# * measure a speed-up with a fair baseline, and write a training script for two ranks from an empty file.
#
# **Builds on** lab 1 (nodes, NVLink, PCIe), lab 3 (the paragraph "How the experiments work") and lab 4 (MPI,
# collectives and the gradient identity). **Time**: about 190 minutes for a learner who does every exercise, 40 of
# them for exercise 12. The computer needs about ten of them. The optional notebook [More of
# Horovod](05_more_horovod.ipynb) has tensor fusion, the timeline, containers, and five scripts of other authors.

# %% tags=["folded"]
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab import launch
from hvdlab.course.experiment import (
    LABS,
    WORK,
    by_run_length,
    complete,
    grid,
    reference,
    seeds,
    sweep,
)
from hvdlab.course.figures import clear_best, compare, describe, overlay
from hvdlab.course.rank_report import curve, rank_report, text
from hvdlab.course.rank_report import summary as in_short
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab05_horovod as exercises
from hvdlab.exercises import lab05_script_edits as edits
from hvdlab.exercises.lab05_own_script import check_own_script
from hvdlab.exercises.lab05_partition import check_partition
from hvdlab.exercises.lab05_review import TRAIN_REVIEW, check_review_train

workbook = Workbook(5)
hint = workbook.hint
SECONDS = by_run_length(quick=8, learner=20, reference=20)  # until a deadlock is ended

# %% [markdown]
# Choose your framework, "keras" or "torch". The edits are the same in both.

# %%
FRAMEWORK = by_run_length(quick="torch", learner="keras", reference="keras")
SERIAL = edits.serial_script(FRAMEWORK)
SCRIPT = WORK / f"fashion_mnist_{FRAMEWORK}.py"  # your copy
RUNS = exercises.runs(SCRIPT)  # where the runs of your script are recorded
if not SCRIPT.exists():
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.copy(SERIAL, SCRIPT)
print(f"Your copy: {SCRIPT.relative_to(LABS.parent)}")
if load_fashion_mnist().synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")

# %% [markdown]
# ## Horovod and its history
#
# **What it is.** Horovod is a library for *synchronous* data-parallel training: all ranks average their
# gradients in every step. The name is that of a Russian folk dance in a circle. Horovod works with TensorFlow, Keras, PyTorch and Apache MXNet.
#
# **What it replaced.** The first method of distributed TensorFlow was the **parameter server**, a process
# that holds weights. Workers send it gradients and get new weights back. All bytes pass through the servers, so
# with too few servers the workers wait. With Horovod all ranks are equal and call an all-reduce.
#
# ![On the left four workers send gradients up to a parameter server and receive weights from it, so all bytes pass the server. On the right four equal ranks hold the weights and pass gradients round a ring, so the same number of bytes passes every rank.](pictures/parameter_server.svg)
#
# **Who made it.** Uber published it in 2017. Since 2018 it is a [project of
# the LF AI
# Foundation](https://lfdl.io/press/2018/12/13/lf-deep-learning-welcomes-horovod-distributed-training-framework-as-newest-project/).
#
# ### Horovod, MPI, NCCL and the network
#
# Horovod decides *when* which gradients are averaged. For the all-reduce it calls a **communication
# library**, which sends the bytes. Which one depends on the build:
#
# * **MPI** (lab 4) starts the ranks and adds gradients in the memory of CPUs, by its collective
#   `MPI_Allreduce`.
# * **NCCL**, the NVIDIA Collective Communications Library, adds gradients of NVIDIA GPUs. It sends them
#   through NVLink or PCIe within a node (one machine) and through the network between nodes.
# * **Gloo**, by Meta, does the same as MPI on CPUs without MPI.
#
# ![A stack of layers. On top the training script of the ML engineer, who chooses one of TensorFlow, Keras, PyTorch and MXNet. Below it Horovod, which averages gradients. Below that MPI, NCCL and Gloo, which move the bytes, then shared memory, NVLink, PCIe, network and RDMA, then the hardware. The lower layers belong to the infrastructure team.](pictures/software_stack.svg)
#
# **Installation.** With today's software `pip install horovod` *fails*. `make setup` therefore compiles Horovod
# with corrections.

# %%
import horovod.torch as hvd

print("MPI:", hvd.mpi_built(), " Gloo:", hvd.gloo_built(), " NCCL:", bool(hvd.nccl_built()))

# %% [markdown]
# On a machine without GPUs the course builds Horovod with MPI and Gloo, and `mpirun` makes it use MPI. So
# **without GPUs each all-reduce in this lab is a call of `MPI_Allreduce`**.
#
# ### Horovod today
#
# The last release is [0.28.1 of June 2023](https://github.com/horovod/horovod/releases/tag/v0.28.1). PyTorch has its own
# `DistributedDataParallel` (DDP) and FSDP, which also shards the weights. TensorFlow has `tf.distribute`.
# Start new PyTorch projects with DDP or FSDP (labs 11 and 12).
#
# Why do you learn Horovod then? Many scripts still use it. More importantly, its calls are **explicit**: you can
# leave one out and watch what happens. The mistakes with DDP are the same.
#
# ## The script for one process
#
# Open your copy in JupyterLab's editor (file browser, `work/`). It trains a small convolutional network on
# Fashion-MNIST in one process. `Batches` shuffles the images and yields the mini-batches. A *checkpoint* is a
# file with the weights and the state of the optimizer, from which training can resume. `Recorder` writes down
# the weights of this process and the numbers of the images that it has read.
#
# ### The serial script on two ranks
#
# What happens if you start this script with `mpirun -np 2`, without any edit? `launch.run` executes this
# command, with 257 training images and 101 *held-out* images, which only measure the accuracy.

# %%
FEW = ["--epochs", 2, "--images", 257, "--heldout", 101, "--batch-size", 32, "--lr", 0.05]
shutil.rmtree(RUNS / "serial", ignore_errors=True)
launch.run(SERIAL, *FEW, ranks=2, HVDLAB_RUN_DIR=str(RUNS / "serial"))
print(text(rank_report(RUNS / "serial")))

# %% [markdown]
# The last lines are the **rank report**, the evidence of this lab. It has one row per rank:
#
# | column | meaning |
# |---|---|
# | weights | the beginning of a hash of all trained weights. Equal hashes mean weights that are equal to the last bit |
# | examples, overlap | images that the rank read in the epoch, and the fraction of them that rank 0 read too |
# | steps | updates that the rank made in the epoch |
# | loss, accuracy | training loss and held-out accuracy, as the script reports them |
#
# The hashes differ, so these are two networks. Each rank read all 257 images, so nothing became faster. **The
# same serial training ran twice**, and no error message reports it.
#
# ## The nine edits
#
# The first word of a row is the name of the edit. `hvd` is Horovod. `hvd.size()` is the number of ranks,
# `hvd.rank()` the number of this rank, and `hvd.local_rank()` its number within its node. A **shard** is the
# fraction of the images that one rank reads (lab 4). A *callback* is an object whose methods Keras calls
# during training (lab 3).
#
# | edit | exercise | call | without it |
# |---|---|---|---|
# | init: initialize Horovod | 1 | `hvd.init()` | the processes do not know each other |
# | device: one GPU per rank | 2 | `rank_device(hvd)`, or `torch.cuda.set_device(hvd.local_rank())` | all ranks of a node use GPU 0 |
# | output: print on rank 0 | 3 | `if hvd.rank() == 0:` | every rank prints every line |
# | optimizer: average gradients | 4 | `hvd.DistributedOptimizer(optimizer)`, learning rate times `hvd.size()` | every rank trains its own network |
# | broadcast: send rank 0's initial state | 5 | `hvd.broadcast_parameters(...)`, or a callback in Keras | the ranks start with different weights and stay apart |
# | sharding: each rank reads its own shard | 7 | `rank=hvd.rank(), size=hvd.size()` | every rank reads every image |
# | metrics: combine them over the ranks | 8 | `hvd.allreduce(..., op=hvd.Sum)`, or a callback in Keras | every rank reports other numbers |
# | checkpoint: write on rank 0 | 9 | `if hvd.rank() == 0:` | ranks damage each other's files |
# | resume: all ranks at the same epoch | 10 | `hvd.broadcast_object(first_epoch, root_rank=0)` | ranks wait for ever after a restart |
#
# A check runs your script on two ranks after each edit. Make the edit, delete the line that raises
# `NotImplementedError`, and continue. Hint 3 is the cell below each exercise, which prints the edit as a diff.
#
# ## Initialization
#
# `mpirun` starts the processes, but they do not know each other yet. `hvd.init()` connects them. After it,
# `hvd.rank()` returns a number from 0 to `hvd.size()` $- 1$. Before it, every other call of Horovod is an error.
#
# ### Exercise 1: Initialize Horovod
#
# **Edit your copy.** Import Horovod, and call `hvd.init()` right after the arguments are parsed.
#
# * **Keras**: `import hvdlab.keras.horovod as hvd`. Horovod's own `horovod.tensorflow.keras` replaces a
#   method of the optimizer that Keras 3 no longer calls. So it accepts a Keras 3 optimizer, reports no error
#   and averages nothing.
# * **PyTorch**: `import horovod.torch as hvd`.
#
# <details><summary>Hint 1: the idea</summary>Two lines: one among the imports, and one at the beginning of
# <code>main</code>.</details>
#
# <details><summary>Hint 2: a smaller script</summary>The shortest Horovod program is <code>import
# horovod.torch as hvd</code>, <code>hvd.init()</code>, <code>print(hvd.rank(), hvd.size())</code>. On two
# ranks it prints 0 2 and 1 2.</details>

# %%
# print(edits.diff("init", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: import Horovod as hvd, and call hvd.init()
shutil.copy(SERIAL, SCRIPT)  # from the beginning, whatever was there
edits.apply(SCRIPT, "init", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_init(SCRIPT)

# %% [markdown]
# ## One GPU per rank
#
# On a node with GPUs, every process computes on GPU 0 unless the script chooses another one. Therefore each
# rank must choose the GPU with the number of its **local rank**, its number within its node. This is *pinning*
# the GPU. For example, on two nodes with four GPUs each, rank 5 has local rank 1 and takes GPU 1 of
# the second node. `hvd.rank()` would be wrong, because no node has a GPU 5. Without pinning, the four ranks of a
# node share GPU 0. With NCCL the job then stops with the error "Duplicate GPU detected". Without NCCL it runs, but
# it is no faster.
#
# ```python
# torch.cuda.set_device(hvd.local_rank())                                        # PyTorch
#
# gpus = tf.config.list_physical_devices("GPU")                                  # TensorFlow
# for gpu in gpus:
#     tf.config.experimental.set_memory_growth(gpu, True)
# if gpus:
#     tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
# ```
#
# Without `set_memory_growth` TensorFlow reserves nearly all memory of every GPU that it sees. `rank_device(hvd)` of
# this course makes the same choice, and also works without a GPU ([details](05_more_horovod.ipynb)).
#
# ### Exercise 2: Choose the device of each rank
#
# **Edit your copy.** Call `chosen = rank_device(hvd)` after `hvd.init()`.
#
# * **Keras**: import it from `hvdlab.keras.device`, and call it before Keras computes anything.
# * **PyTorch**: import it from `hvdlab.torch.device`, and use `chosen.device` as the script's `device`.
#
# The code block above also passes the check, in PyTorch under `if torch.cuda.is_available():`.
#
# <details><summary>Hint 1: the idea</summary>Two or three lines change: an import, the call after
# <code>hvd.init()</code>, and in PyTorch the line that sets <code>device</code>.</details>
#
# <details><summary>Hint 2: a smaller script</summary><code>hvd.init()</code>, <code>chosen =
# rank_device(hvd)</code>, <code>print(hvd.rank(), chosen)</code>.</details>

# %%
# print(edits.diff("device", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: choose the device of each rank
edits.apply(SCRIPT, "device", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_device(SCRIPT)

# %% [markdown]
# ## Output of one rank
#
# By convention only rank 0 prints.
#
# ### Exercise 3: Print on rank 0 only
#
# **Edit your copy.** Print the line of an epoch on rank 0 only. Every rank continues to record.
#
# <details><summary>Hint 1: the idea</summary>One <code>if</code> around one <code>print</code>.</details>
#
# <details><summary>Hint 2: a smaller script</summary><code>if hvd.rank() == 0:</code> and, indented below it,
# <code>print("epoch", epoch)</code>.</details>

# %%
# print(edits.diff("output", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: print on rank 0 only
edits.apply(SCRIPT, "output", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_output(SCRIPT)

# %% [markdown]
# The output looks like one training now, although there are still two networks. **What a script prints does
# not prove that it trains in parallel.**
#
# ## Averaged gradients
#
# `optimizer = hvd.DistributedOptimizer(optimizer)` returns a wrapper around your optimizer. Before the update the
# wrapper averages every gradient over all ranks. So **all ranks update with the same gradient**.
#
# The wrapper adds five things between a gradient and the update:
#
# 1. The wrapper learns that a gradient is ready. In PyTorch a *hook* reports it (lab 4), so the exchange begins
#    during the backward pass. In Keras the module of this course exchanges all gradients after it.
# 2. In the **negotiation** the ranks agree which gradient is next. A gradient may be averaged only when *all*
#    ranks have it, and in the same order on all ranks, because collectives must match (lab 4).
# 3. Small gradients are copied next to each other into one array, the **fusion buffer**. So one message
#    carries several gradients, which is called **tensor fusion**. It saves *latency* (lab 4).
# 4. The all-reduce adds the arrays of all ranks.
# 5. The sum is divided by the number of ranks and copied back into the gradients.
#
# ![Two timelines of a training step of one rank, with a row for computing and a row for the exchange. In PyTorch the gradients of the last layers are exchanged during the backward pass, and only those of the first layers after it. In Keras all gradients are exchanged after the backward pass, so the update begins later.](pictures/distributed_optimizer.svg)
#
# **Learning rate.** With $N$ ranks a step averages $N$ times as many images, so its gradient is less noisy.
# The usual rule multiplies the learning rate by $N$. For example, `--lr 0.05` on two ranks becomes 0.1. Labs
# 6 and 7 ask when that is right.
#
# ### Exercise 4: Wrap the optimizer
#
# **Edit your copy.** Multiply the learning rate by `hvd.size()`, wrap the optimizer, and train with the
# object that the wrapper returns.
#
# * **Keras**: wrap it before the model is compiled, with `device_dense=chosen.device_dense`.
# * **PyTorch**: also pass `model.named_parameters()`, which gives each gradient a name that all ranks share,
#   and `compression=chosen.compression`. The wrapper begins without a state. So wrap the optimizer before the
#   line `optimizer.load_state_dict(state)`, which then loads the state into the wrapper.
#
# The argument from `chosen` says where the gradients are averaged. Without GPUs it changes nothing.
#
# <details><summary>Hint 1: the idea</summary>Change the learning rate in the line that makes the optimizer, and
# wrap after it.</details>
#
# <details><summary>Hint 2: a smaller script</summary>PyTorch: <code>optimizer =
# torch.optim.SGD(model.parameters(), 0.05 * hvd.size())</code>, then <code>optimizer =
# hvd.DistributedOptimizer(optimizer, model.named_parameters())</code>. Keras: the same, without the names, and
# before <code>model.compile(optimizer, loss)</code>. If you continued with the old optimizer, Keras would average
# nothing and report nothing.</details>

# %%
# print(edits.diff("optimizer", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %% [markdown]
# With this edit, how many *different* networks will two ranks hold after training, one or two? Think of where
# they start.

# %%
# Prediction 1: the number of different networks on two ranks. Replace both values of None.
workbook.predict(1, None, reason=None)

# %%
# BEGIN SOLUTION: edit your copy of the script: wrap the optimizer, multiply the rate by hvd.size()
edits.apply(SCRIPT, "optimizer", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_optimizer(SCRIPT)
if any(RUNS.glob("optimizer/rank-1/epoch-*.npz")):  # a quick run leaves this check out
    workbook.result(1, in_short(rank_report(RUNS / "optimizer"))["models"])

# %% [markdown]
# There are still two. Averaged gradients mean equal *steps*, but the two ranks start with different random
# weights. If $w_0 = 1$ and $w_1 = 4$ and both subtract 0.5 in each step, their difference stays 3 for ever.
#
# ## Broadcast of the initial state
#
# A **broadcast** copies an array from one rank, the root, to all others. Before the first step, rank 0
# broadcasts its weights and the state of its optimizer, such as the momentum.
#
# ### Exercise 5: Broadcast the initial state
#
# **Edit your copy.**
#
# * **Keras**: put `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` first in the list of callbacks.
# * **PyTorch**: call `hvd.broadcast_optimizer_state(optimizer, root_rank=0)` and then
#   `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`. Put both calls just before
#   `model.to(device)`, because a Horovod without NCCL cannot send arrays that are on a GPU. Broadcast the weights
#   last, because the broadcast of the state makes a step, which can change the weights.
#
# So the order is: make the optimizer, load a checkpoint, broadcast the state, broadcast the weights,
# `model.to(device)`, wrap the optimizer, load its state into the wrapper.
#
# <details><summary>Hint 1: the idea</summary>Every rank makes the call, rank 0 too. All ranks take part in a
# collective, the sender and the receivers.</details>
#
# <details><summary>Hint 2: a smaller script</summary>Rank 0 has the weights [1, 2] and rank 1 has [7, 7].
# After <code>hvd.broadcast_parameters({"w": w}, root_rank=0)</code> on both ranks, both have [1, 2]. With an
# <code>if hvd.rank() == 0:</code> around it, rank 0 would wait for ever.</details>

# %%
# print(edits.diff("broadcast", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: broadcast weights and optimizer state from rank 0
edits.apply(SCRIPT, "broadcast", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_broadcast(SCRIPT)

# %% [markdown]
# The hashes are equal: the ranks hold one network, to the last bit. But the overlap is still 100 %, so all
# work is done twice.
#
# ## Data partition options
#
# Each rank must read other images than the other ranks. There are three common options. In the picture two
# ranks share the images 0 to 7.
#
# 1. **Reshuffle, then split.** In every epoch all ranks make the *same* random permutation of the whole set,
#    and rank $r$ of $N$ takes every $N$-th image of it, beginning with number $r$. If $N$ divides the number
#    of images, every image is read exactly once per epoch. In each epoch a rank gets another random part, so it
#    must be able to read the whole set. PyTorch's `DistributedSampler` does this, and so does `Batches(...,
#    style="whole")`. If each rank made a permutation of its own, the parts would overlap.
# 2. **Random reads.** Every rank draws its images at random from the whole set, *with replacement*: an image
#    can be drawn again. In an epoch some images are read twice, and some never.
# 3. **Fixed shards.** The set is split once, before training. A rank keeps its shard and only reshuffles it.
#    It needs only $1/N$ of the images on its disk. `Batches(..., style="own")` and `shard` of `tf.data` do
#    this. Split at random, because files are often sorted by class.
#
# ![Eight images on two ranks in two epochs. With reshuffle and split each epoch reads every image once, and a rank gets other images in the next epoch. With fixed shards a rank keeps its four images and changes their order. With random reads some images are read twice and some never.](pictures/partition_options.svg)
#
# **Which fraction do random reads see?** The set has $n$ images, and all ranks together make $n$ reads per
# epoch. One read misses a given image with the probability $1 - 1/n$, so all $n$ reads miss it with the
# probability $(1 - 1/n)^n$. For large $n$ this approaches $1/e = 0.37$. So **random reads see about $1 - 1/e = 63
# \%$ of the images in an epoch**.
#
# ### Exercise 6: Three partitions
#
# **What.** Write `partition(option, n, rank, size, epoch, seed)`. **Why.** A wrong seed is a common mistake
# in data loaders for several ranks. **Signature.** `option` is "reshuffle", "random" or "fixed". Return an
# array with the numbers of the `n // size` images that the rank reads in this epoch, in this order. `n` is a
# multiple of `size`. Draw from `np.random.default_rng([...])`. Its list of numbers is the *seed*, which
# decides what is drawn.
#
# <details><summary>Hint 1: the idea</summary>What may the seed contain? For "reshuffle" the argument
# <code>seed</code> and the epoch, but not the rank, because all ranks must split the same permutation. For
# "random" all three.</details>
#
# <details><summary>Hint 2: a smaller case</summary>The permutation [3, 1, 0, 7, 6, 2, 5, 4] is split into [3,
# 0, 6, 5] for rank 0 and [1, 7, 2, 4] for rank 1: <code>order[rank::size]</code>. For "fixed" the permutation
# depends on the seed only. The shard is then permuted again, with a generator that knows the epoch.</details>
#
# <details><summary>Hint 3: nearly the lines</summary>"random": <code>np.random.default_rng([seed, epoch,
# rank]).integers(n, size=n // size)</code>. "fixed": <code>shard =
# np.random.default_rng(seed).permutation(n)[rank::size]</code>, then permute <code>shard</code>.</details>


# %%
def partition(option, n, rank, size, epoch, seed):
    """Return the numbers of the images that a rank reads in an epoch, n // size of them."""
    # BEGIN SOLUTION: return the images of this rank in this epoch for each of the three options
    if option == "random":
        return np.random.default_rng([seed, epoch, rank]).integers(n, size=n // size)
    if option == "fixed":
        shard = np.random.default_rng(seed).permutation(n)[rank::size]
        return np.random.default_rng([seed, epoch, rank]).permutation(shard)
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return order[rank::size]
    # END SOLUTION


# %%
check_partition(partition)

# %% [markdown]
# The next cell shows which fraction of 10,000 images two ranks read.

# %% tags=["folded"]
NUMBER, OPTIONS = 10_000, {"reshuffle": "o", "fixed": "s", "random": "^"}
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for axes, ranks, title in zip(panels, ([0], [0, 1]), ("rank 0 of 2", "both ranks"), strict=True):
    for option, marker in OPTIONS.items():
        read, fractions = set(), []
        for epoch in range(6):
            for rank in ranks:
                read.update(partition(option, NUMBER, rank, 2, epoch, 1).tolist())
            fractions.append(len(read) / NUMBER)
        axes.plot(range(1, 7), fractions, marker=marker, label=option)
    axes.set(xlabel="epochs", title=title, ylim=(0, 1.05))
panels[0].set_ylabel("fraction of the images that were read")
panels[1].legend(loc="lower right")
describe(
    figure,
    "Fraction of the images that were read against epochs, for rank 0 and for both ranks. Reshuffle and "
    "fixed read all images in the first epoch together, random reads 63 percent of them.",
)

# %% [markdown]
# The right panel shows 1 for reshuffle and for fixed, and 0.63, 0.86, 0.95 and so on for random reads.
# Reshuffle-then-split is the standard choice if every rank can read the whole set.
#
# ## Equal numbers of batches
#
# All ranks must make the same number of steps. Suppose 257 images are split as 129 and 128, with 32 images
# per batch. Rank 0 has $\lceil 129/32 \rceil = 5$ batches, and rank 1 has 4. In step 5, rank 0 calls the
# all-reduce for its gradients. Rank 1 never calls it, so rank 0 waits **for ever**. This is the deadlock of
# lab 4 in another form. After 60 seconds Horovod warns about "stalled" ranks, but it does not stop the program.
#
# The next cell provokes the deadlock, with a time limit. After its 4 steps rank 1 waits in `Barrier`, which
# returns when all ranks have called it.


# %%
def epoch_of_unequal_length(comm):
    import horovod.torch as hvd
    import torch

    hvd.init()
    for step in range(5 if hvd.rank() == 0 else 4):
        hvd.allreduce(torch.ones(1), name=f"gradient of step {step}")
    comm.Barrier()


try:
    launch.call(epoch_of_unequal_length, ranks=2, timeout=SECONDS)
except launch.TimeUp as error:
    print(error)

# %% [markdown]
# To get equal numbers of batches, read a few images twice, leave a few out (`drop_last=True` of PyTorch's
# `DistributedSampler`), or let every rank make a fixed number of steps. `Batches` reads a few images twice: with
# 257 images on two ranks each rank reads 129.
#
# In a plain PyTorch loop `DistributedSampler` shards by rank and size, as `Batches` does here. Call
# `sampler.set_epoch(epoch)` before each epoch, because its permutation depends on the seed plus the epoch. Without the
# call every epoch has the same order, and no error message reports it.
#
# ### Exercise 7: Shard the images
#
# **Edit your copy.** Give `Batches` the `rank`, the `size`, a common `seed` (`args.seed`) and a `style`:
# "whole" or "own".
#
# <details><summary>Hint 1: the idea</summary>The variable <code>seed</code> of the script differs between
# ranks, so that untouched ranks draw different weights. With it the shards would overlap, as in exercise
# 6.</details>
#
# <details><summary>Hint 2: a smaller script</summary>In a plain PyTorch script the same edit is
# <code>DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)</code>.</details>

# %%
# print(edits.diff("sharding", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: shard the images by rank and size, with one seed
edits.apply(SCRIPT, "sharding", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_sharding(SCRIPT)

# %% [markdown]
# ## Metrics over all ranks
#
# Each rank now knows the loss of its own images only, and still evaluates all held-out images. Let each rank
# evaluate its shard of them, and combine the results. With $r_k$ right answers among $n_k$ images on rank
# $k$,
#
# $$\text{accuracy} = \frac{\sum_k r_k}{\sum_k n_k} \qquad\text{and not}\qquad
# \frac{1}{N}\sum_k \frac{r_k}{n_k}.$$
#
# For example, rank 0 has 3 of 3 right and rank 1 has 1 of 2. The accuracy
# is $4/5 = 0.8$. The mean of the two accuracies is $(1 + 0.5)/2 = 0.75$, because each image of rank 1 gets a
# larger weight. Unequal shards cause no deadlock here, because the evaluation has a single all-reduce at its
# end.
#
# ### Exercise 8: Combine the metrics
#
# **Edit your copy.** Slice the held-out images by rank and size, and combine.
#
# * **Keras**: add `hvd.callbacks.MetricAverageCallback()` before every callback that reads metrics. This
#   callback of the course adds up sums and counts. Horovod's own one averages the accuracies of the ranks, which is
#   wrong if their shards are unequal.
# * **PyTorch**: in the function `mean`, all-reduce the total and the count with `op=hvd.Sum`, then divide.
#
# <details><summary>Hint 1: the idea</summary>Add up sums and counts over the ranks first. Divide
# last.</details>
#
# <details><summary>Hint 2: a smaller case</summary><code>images[hvd.rank() : 5 : hvd.size()]</code> gives
# rank 0 of 2 the images 0, 2, 4 and rank 1 the images 1, 3. <code>hvd.allreduce(torch.tensor([3.0, 3.0]),
# op=hvd.Sum)</code> on rank 0 and the same with [1, 2] on rank 1 give [4, 5] on both. In Keras the callback
# does this for every metric.</details>

# %%
# print(edits.diff("metrics", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: evaluate in parts, add up sums and counts
edits.apply(SCRIPT, "metrics", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_metrics(SCRIPT)

# %% [markdown]
# ## Checkpoints on rank 0
#
# All ranks hold the same weights, so one copy is enough. Two ranks that write one file at the same time can
# damage it.
#
# ### Exercise 9: Write checkpoints on rank 0
#
# **Edit your copy.** Write checkpoints on rank 0 only. The check gives each rank a folder of its own.
#
# <details><summary>Hint 1: the idea</summary>It is one more condition in an <code>if</code>.</details>
#
# <details><summary>Hint 2: a smaller script</summary><code>if hvd.rank() == 0:</code> and, indented below it,
# <code>torch.save(model.state_dict(), "weights.pt")</code>. Use <code>hvd.rank()</code> and not
# <code>hvd.local_rank()</code>, or one rank of every node would write.</details>

# %%
# print(edits.diff("checkpoint", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: write checkpoints on rank 0 only
edits.apply(SCRIPT, "checkpoint", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_checkpoint(SCRIPT)

# %% [markdown]
# ## Resuming from a checkpoint
#
# A long run is often interrupted, because a node fails or its time is over. The serial script resumes from
# its latest checkpoint. With several ranks four things go wrong:
#
# * Often only rank 0 finds a checkpoint, because each node has its own disk. Then the other ranks start with
#   epoch 0, make more steps, and wait for ever.
# * The checkpoint holds the learning rate for the *old* number of ranks.
# * `load_model` of Keras returns an optimizer that is not wrapped, so nothing is averaged any more.
# * `hvd.DistributedOptimizer` of PyTorch returns an optimizer without a state. A state that was loaded before
#   is lost on all ranks, and no error reports it.
#
# ### Exercise 10: Resume on any number of ranks
#
# **Edit your copy.** After loading, send rank 0's `first_epoch` to all ranks with `hvd.broadcast_object`, and
# set the learning rate again (`model.optimizer.learning_rate`, or `optimizer.param_groups[0]["lr"]`). In
# Keras load the model with `hvd.load_model`. The broadcast of exercise 5 must stand after the loading. The check
# kills one of two ranks, removes the last checkpoint and restarts the script on two ranks. The repeated epoch must
# end with the same weights as before. Then the check restarts the script on one rank.
#
# <details><summary>Hint 1: the idea</summary>The call of <code>hvd.broadcast_object</code> must not stand
# inside <code>if saved:</code>, because only rank 0 gets there.</details>
#
# <details><summary>Hint 2: a smaller case</summary>Rank 0 has found epoch 3 and rank 1 nothing, so
# <code>first_epoch</code> is 4 and 0. After <code>first_epoch = hvd.broadcast_object(first_epoch,
# root_rank=0)</code> on both ranks it is 4 and 4. With --lr 0.05 on 2 ranks the learning rate is 0.1, and on
# 1 rank 0.05.</details>

# %%
# print(edits.diff("resume", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: resume on all ranks where rank 0's checkpoint ends
edits.apply(SCRIPT, "resume", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_resume(SCRIPT)

# %% tags=["folded"]
figure, axes = plt.subplots(figsize=(6, 3.2))
for name, label in (("killed", "2 ranks, killed"), ("2-ranks", "2 ranks"), ("1-ranks", "1 rank")):
    run = RUNS / "resume" / name
    if (run / "rank-0" / "record.jsonl").exists():  # a quick run leaves this check out
        lines = curve(run)
        axes.plot(lines["epoch"], lines["loss"], marker="o", label=label)
        axes.axvline(lines["epoch"].iloc[-1] + 0.5, color="grey", linewidth=1, linestyle=":")
        axes.legend()
axes.set(xlabel="epoch", ylabel="training loss")
describe(
    figure,
    "Training loss against the epoch for a run on two ranks that was killed, its continuation on two ranks "
    "and then on one. Dotted lines mark where all processes ended, and the loss continues behind them.",
)

# %% [markdown]
# All processes ended at each dotted line. Only the unfinished epoch was lost.
#
# ### Effect of each edit
#
# The figure shows all rank reports.

# %% tags=["folded"]
steps = [name for name in ("serial", *edits.STEPS) if any(RUNS.glob(f"{name}/rank-1/epoch-*.npz"))]
short = pd.DataFrame([in_short(rank_report(RUNS / name)) for name in steps], index=steps)
figure, panels = plt.subplots(3, 1, figsize=(7, 5.4), sharex=True)
for axes, column, label in zip(
    panels,
    ["models", "overlap", "spread"],
    ["different\nnetworks", "images read\nby both", "largest difference\nof a metric"],
    strict=True,
):
    bars = axes.bar(steps, short[column])
    axes.bar_label(
        bars, fmt={"models": "%d", "overlap": "{:.0%}", "spread": "%.2g"}[column], padding=2
    )
    axes.set_ylabel(label)
    axes.margins(y=0.25)
panels[2].tick_params(axis="x", rotation=30)
describe(
    figure,
    "Three bar charts over the edits. The number of different networks falls from two to one with the "
    "broadcast, the overlap to almost nothing with the sharding, the difference of metrics to zero.",
)

# %% [markdown]
# The broadcast edit reduces two networks to one. The sharding edit reduces the images that both ranks read to
# almost none. The metrics edit makes the metrics equal. **A script without one of these edits or the optimizer
# edit still runs, and its loss still falls.** Only the report shows the mistake.
#
# ## Uncoordinated ranks compared with the finished script
#
# Now both scripts, the serial and the finished one, train for three epochs on 5,000 images on two ranks, with
# 64 images per batch and rank. The reference has $n = 3$ runs with different seeds.
#
# The serial script makes $\lceil 5000/64 \rceil = 79$ steps per epoch on each rank. How many steps does each
# rank make with the finished script?

# %%
# Prediction 2: steps per epoch of each rank, finished script, 2 ranks. Replace both values of None.
workbook.predict(2, None, reason=None)

# %% tags=["folded"]
HELDOUT = ["--heldout", by_run_length(quick=500, learner=10_000, reference=10_000)]
EPOCHS = by_run_length(quick=1, learner=3, reference=3)
IMAGES = by_run_length(quick=1000, learner=5000, reference=5000)
TRAINING = ["--epochs", EPOCHS, "--images", IMAGES, *HELDOUT]
steps_per_epoch = {}  # of each rank, for each script


def train(script, *arguments, ranks=2, **variables):
    """Run a script on real numbers of images; return the folder of its records."""
    folder = RUNS / "experiment"
    shutil.rmtree(folder, ignore_errors=True)
    variables = {"HVDLAB_RUN_DIR": str(folder), **variables}
    launch.run(script, *arguments, ranks=ranks, show=False, **variables)
    return folder


def uncoordinated(script, seed):
    path = SERIAL if script == "serial" else SCRIPT
    # Ranks draw with seed + rank: seeds far apart share no draw.
    report = rank_report(train(path, *TRAINING, "--seed", 10 * seed))
    print(f"{script}: {', '.join(str(n) for n in report['steps'])} steps per epoch")
    steps_per_epoch[script] = report["steps"].max()
    return [{"rank": rank, "accuracy": row["accuracy"]} for rank, row in report.iterrows()]


both = ["serial", "finished"]
pairs = sweep(
    "uncoordinated_ranks",
    uncoordinated,
    grid(script=by_run_length(quick=both[1:], learner=both, reference=both), seed=seeds(1, 3)),
)
if "finished" in steps_per_epoch:  # the reference has no steps
    workbook.result(2, steps_per_epoch["finished"])

# %% tags=["folded"]
shipped_pairs = reference("uncoordinated_ranks")
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for axes, script in zip(panels, both, strict=True):
    for number, (table, name) in enumerate(((shipped_pairs, "reference"), (pairs, "yours"))):
        for rank, marker in ((0, "o"), (1, "x")):
            points = table[(table["script"] == script) & (table["rank"] == rank)]
            at = points["seed"] + 0.15 * number
            label = f"rank {rank}, {name}"
            axes.plot(at, points["accuracy"], marker, color=f"C{number}", markersize=8, label=label)
    axes.set(
        xlabel="seed", title=f"{script} script, two ranks", xticks=shipped_pairs["seed"].unique()
    )
panels[0].set_ylabel("held-out accuracy")
panels[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
describe(
    figure,
    "Held-out accuracy of two ranks for three seeds. With the serial script the ranks mostly end with "
    "different accuracies, with the finished script always with the same.",
)


def disagreement(table):
    """How far apart the two ranks of a run end, in percentage points."""
    ranks = table.pivot(index=["script", "seed"], columns="rank", values="accuracy")
    return (100 * (ranks[0] - ranks[1]).abs()).rename("points").reset_index()


# %% tags=["folded"]
compare(disagreement(pairs), disagreement(shipped_pairs), by=["script"], value="points")

# %% tags=["folded"]
first = [table[table["rank"] == 0] for table in (pairs, shipped_pairs)]
compare(*first, by=["script"], value="accuracy")

# %% [markdown]
# **What the result means.** With the finished script each rank reads 2500 images and makes $\lceil 2500/64
# \rceil = 40$ steps. With the serial script, two ranks train two networks. In the reference their accuracies
# differ by 0.2, 1.2 and 0.0 percentage points. In the third run they agree by chance. **Equal accuracies prove
# nothing, and equal hashes do.**
#
# ## Strong and weak scaling
#
# How much faster are two ranks than one? **Strong scaling** keeps the images per step constant: 1 rank with 128
# images, or 2 ranks with 64 each. **Weak scaling** keeps the images per step *and rank* constant: 1 rank with 64
# images, or 2 ranks with 64 each.
#
# With $v_n$ images/s of $n$ ranks together, the **speed-up** is $v_n / v_1$, and the **efficiency** is $v_n /
# (n\,v_1)$. For example, 9,000 images/s on one rank and 12,000 on two are a speed-up of 1.33 and an
# efficiency of 0.67.
#
# **A fair baseline.** "What does a second core bring?" compares one core with two. But a single process uses all
# cores if nothing limits it. Therefore we set `OMP_NUM_THREADS=1` and `TF_NUM_INTRAOP_THREADS=1` also for one rank.
# The line "strong, unfair" is one rank with two threads. On GPUs compare with the *original* script on one GPU.
#
# A single rank processes fewer images/s with 64 images per step than with 128, because each step has a fixed
# overhead (lab 3). Is the speed-up larger with strong or with weak scaling, and why?

# %%
# Prediction 3: "strong", "weak" or "equal", and why? Replace both values of None.
workbook.predict(3, None, form=["strong", "weak", "equal"], reason=None)

# %% tags=["folded"]
SETTINGS = {  # ranks, images per step and rank, threads of a rank
    "1 x 128": (1, 128, 1),
    "2 x 64": (2, 64, 1),
    "1 x 64": (1, 64, 1),
    "1 x 128, two threads": (1, 128, 2),
}
ON_PROCESSORS = {"CUDA_VISIBLE_DEVICES": "-1"}  # like the reference
NAMES = by_run_length(quick=list(SETTINGS)[1:2], learner=list(SETTINGS), reference=list(SETTINGS))


def speed(folder, ranks):
    """Images/s of all ranks together, after the first epoch, in which all warms up."""
    lines = [curve(folder, rank) for rank in range(ranks)]
    return sum(each["images_per_second"][1:].mean() for each in lines)


def throughput(setting, seed):
    ranks, batch_size, threads = SETTINGS[setting]
    epochs = by_run_length(quick=2, learner=3, reference=3)
    images = by_run_length(quick=640, learner=6000, reference=6000)
    arguments = ["--epochs", epochs, "--images", images, "--heldout", 500]
    arguments += ["--batch-size", batch_size, "--seed", seed]
    variables = {"OMP_NUM_THREADS": str(threads), "TF_NUM_INTRAOP_THREADS": str(threads)}
    folder = train(SCRIPT, *arguments, ranks=ranks, **variables, **ON_PROCESSORS)
    return {"images_per_second": speed(folder, ranks)}


scalings = sweep("scaling_horovod", throughput, grid(setting=NAMES, seed=seeds(1, 3)))

# %% tags=["folded"]
BASELINES = {"strong": "1 x 128", "weak": "1 x 64", "strong, unfair": "1 x 128, two threads"}


def speed_ups(table):
    """Of "2 x 64" over each baseline, seed by seed."""
    speeds = table.pivot(index="seed", columns="setting", values="images_per_second")
    speeds, parts = speeds.reindex(columns=list(SETTINGS)), []
    for scaling, one in BASELINES.items():
        for ranks, name in ((1, one), (2, "2 x 64")):
            ratio = (speeds[name] / speeds[one]).dropna()
            parts.append(pd.DataFrame({"scaling": scaling, "ranks": ranks, "speed_up": ratio}))
    return pd.concat(parts).assign(efficiency=lambda t: t["speed_up"] / t["ranks"])


shipped_scalings = reference("scaling_horovod")
mine, theirs = speed_ups(scalings), speed_ups(shipped_scalings)
figure, panels = plt.subplots(1, 2, figsize=(10, 3.8))
for axes, column, ideal in zip(panels, ["speed_up", "efficiency"], ([1, 2], [1, 1]), strict=True):
    axes.plot([1, 2], ideal, color="grey", linestyle=":", label="ideal")
    overlay(axes, mine, theirs, x="ranks", y=column, by="scaling", labels={k: k for k in BASELINES})
    axes.set(xticks=[1, 2], xlim=(0.9, 2.1), ylim=(0, None))
panels[0].set_ylabel("speed-up")
panels[0].get_legend().remove()
panels[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
describe(
    figure,
    "Speed-up and efficiency of two ranks for strong, weak and unfair strong scaling, with a dotted ideal "
    "line. Weak scaling has the largest speed-up, and all stay below the ideal.",
)
both = complete(*(t[t["ranks"] == 2] for t in (mine, theirs)), "scaling", "strong", "weak")
workbook.result(3, clear_best(both.groupby("scaling")["speed_up"]))

# %% tags=["folded"]
compare(mine[mine["ranks"] == 2], theirs[theirs["ranks"] == 2], by=["scaling"], value="speed_up")

# %% tags=["folded"]
compare(scalings, shipped_scalings, by=["setting"], value="images_per_second")

# %% [markdown]
# **What the result means.** In the reference (n=3, two cores) the speed-up is 1.31 with strong scaling and
# 1.65 with weak scaling. Two causes of an efficiency below 1 are the exchange of gradients and the wait for
# the slower rank. The third is the smaller batch: a single rank processes about a fifth fewer images/s with
# 64 images per step than with 128. This lowers only the strong scaling, because only its baseline has 128
# images per step. Always report a speed-up with its baseline and the number of measurements.
#
# ## Practice without a template
#
# ### Exercise 11: Review four patches of a training loop
#
# **Level:** choose and justify.
#
# The next cell prints the function `train` and four patches of it. `train` ends as soon as the held-out accuracy is
# not better than the best one before. A colleague has tested each patch with 2 ranks, 16 images, 8 held-out images and 1
# epoch.
#
# **What.** Decide which patches are correct. For each of the others give a case in which it fails. A patch fails if
# a rank waits for ever, if the order does not change between epochs, or if the accuracy is not that of all held-out
# images. With $N$ ranks it also fails if $N$ or more images are left out, or if $N$ or more are read twice. The check
# runs the patches on simulated ranks.
#
# <details><summary>Hint 1: the idea</summary>Which number would have to be odd, or larger than 1, so that the patch
# makes a difference?</details>
#
# <details><summary>Hint 2: a smaller case</summary>Two ranks have 3 and 2 held-out images, of which 3 and 1 are
# right. What does each rank compute?</details>
#
# <details><summary>Hint 3: nearly the lines</summary><code>"b": {"ranks": 2, "images": 16, "heldout": 8,
# "epochs": n}</code></details>

# %%
print(TRAIN_REVIEW)


# %%
def review_train():
    """Return for each patch "correct", or a case in which it fails."""
    # BEGIN SOLUTION: return {"a": "correct", "b": {"ranks": 2, "images": 16, "heldout": 8, "epochs": 1}, ...}
    small = {"ranks": 2, "images": 16, "heldout": 8, "epochs": 1}
    return {
        "a": small | {"heldout": 9},  # the ranks have 5 and 4 images
        "b": small | {"epochs": 2},  # the seed does not contain the epoch
        "c": "correct",  # reads a few images twice instead of leaving them out
        "d": small | {"epochs": 4},  # a rank ends in another epoch than the others
    }
    # END SOLUTION


# %%
check_review_train(review_train)

# %% [markdown]
# ### Exercise 12: A script from an empty file
#
# **Level:** blank page.
#
# Write the script `work/own_script.py`, in the editor, with PyTorch or Keras and Horovod. From this course it may
# import `hvdlab.keras.horovod` only. It learns which of 2,048 points are outside of a sphere:
#
# ```python
# points = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
# labels = (points**2).sum(1) > 15.5
# ```
#
# One hidden layer of 64 units is enough. `hvdlab check` and `hvdlab run -np 2 --report` watch the script from
# outside. The check demands:
#
# * both ranks end with the same weights;
# * together they read each of the 2,048 examples once per epoch, and no example twice;
# * they make equally many steps;
# * the training loss of the last epoch is below 0.3;
# * the learning rate grows with the number of ranks.
#
# <details><summary>Hint 1: the idea</summary>Write the script for one process first, and make the edits init,
# optimizer, broadcast and sharding.</details>
#
# <details><summary>Hint 2: a smaller script</summary><code>points[hvd.rank() :: hvd.size()]</code> is a
# shard.</details>

# %%
# from hvdlab.exercises import lab05_own_script; print(lab05_own_script.SCRIPT)  # hint 3: a whole script

# %%
OWN_SCRIPT = WORK / "own_script.py"
# BEGIN SOLUTION: write the file own_script.py, here or in the editor
from hvdlab.exercises import lab05_own_script

_ = OWN_SCRIPT.write_text(lab05_own_script.SCRIPT)
# END SOLUTION

# %%
check_own_script(OWN_SCRIPT)

# %% [markdown]
# ## Summary
#
# * Horovod averages gradients between equal ranks by MPI, NCCL or Gloo. Its last release is of 2023, and new
#   PyTorch projects use DDP or FSDP.
# * A serial script on two ranks trains two networks without any error message.
# * Nine edits make one training of it. Without some of them it still runs, and only the rank report shows the
#   mistake.
# * Averaged gradients without the broadcast keep the ranks apart for ever.
# * Reshuffle-then-split reads every image once per epoch, random reads about 63 % of them. Fixed shards need
#   only $1/N$ of the images on each rank.
# * All ranks need the same number of training batches, or the program waits for ever.
# * Two ranks were 1.31 times as fast as one with strong scaling and 1.65 times with weak scaling (n=3).
#
# ## Self-check questions
#
# Question 7 returns from lab 1 with other numbers.

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="b")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=7)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="b")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer=0.632)

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="b")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer=0.84)

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer=0.8)

# %% [markdown]
# **Optional:** [More of Horovod](05_more_horovod.ipynb). **Next:** [lab 6](06_scaling_the_batch.ipynb) asks how large the batch may become.
