# %% [markdown]
# # Lab 5: Horovod
#
# Engineers at Uber found that distributed TensorFlow lost about half of the power of 128 GPUs ([Sergeev and
# Del Balso, 2018](https://arxiv.org/abs/1802.05799)). With their library Horovod, the networks Inception V3
# and ResNet-101 kept 90 % of the ideal speed on 512 GPUs in 128 servers, and VGG-16 kept 68 % ([Horovod's
# README](https://github.com/horovod/horovod#readme)). A script needs only a few more lines for it. Lab 4
# averaged gradients by hand. In this lab you convert a complete training script to Horovod, prove after each
# edit what it changed, and measure what the finished script gains.
#
# **After this lab you can**
#
# * explain what Horovod is, which libraries it calls, what it replaced and what is used today;
# * convert a Keras or PyTorch script from one process to any number of ranks, and say why each edit is
#   needed;
# * compare three options to partition a data set, and compute which fraction of the images a rank reads;
# * diagnose missing edits from their symptoms: different weights, overlapping images, different metrics, a
#   deadlock;
# * read Horovod's timeline, explain tensor fusion, and measure a speed-up with a fair baseline.
#
# **Builds on** lab 4 (MPI, ranks, all-reduce and the gradient identity) and lab 3 (the paragraph "How the
# experiments work"). **Time**: about 160 minutes if you read everything and do all eleven exercises. The
# computer needs about eight of them.

# %% tags=["folded"]
import os
import shutil
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab import launch
from hvdlab.course import horovod_timeline
from hvdlab.course.experiment import LABS, WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, overlay, predicted, summary
from hvdlab.course.rank_report import curve, rank_report, text
from hvdlab.course.rank_report import summary as in_short
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab05_horovod as exercises
from hvdlab.exercises import lab05_script_edits as edits
from hvdlab.exercises.lab05_partition import check_fuse, check_partition

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
workbook = Workbook(5)
SECONDS = by_run_length(quick=8, learner=20, reference=20)  # until a deadlock is ended

# %% [markdown]
# Choose your framework in the next cell, "keras" or "torch". The edits are the same in both.

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
# **What it is.** Horovod is a library for synchronous data-parallel training. It lets the ranks of a program
# average their gradients in every step. The name is that of a Russian folk dance in which the dancers move in
# a circle, as the chunks of a ring all-reduce do. It works with TensorFlow, Keras, PyTorch and Apache MXNet,
# and the calls have the same names in all of them.
#
# **What it replaced.** The first method of distributed TensorFlow was the **parameter server**. Special
# processes hold the weights. Workers send their gradients to them and get new weights back. This has two
# problems. All bytes pass through the servers, as through the root of lab 4, so you must find out how many
# servers your workers need. And the script needs many new concepts: workers, servers, their addresses, and
# the placement of every variable. Horovod has neither servers nor placement. All ranks are equal, run the
# same script, and exchange gradients by an all-reduce.
#
# ![On the left four workers send gradients up to a parameter server and receive weights from it, so all bytes pass the server. On the right four equal ranks hold the weights and pass gradients round a ring, so the same number of bytes passes every rank.](pictures/parameter_server.svg)
#
# **Who made it.** Alexander Sergeev and Mike Del Balso published it at Uber in 2017 (version 0.9.0 is of
# August 2017). They started from Baidu's ring all-reduce and soon replaced it by calls of NCCL and MPI. In
# December 2018 it became a [project of the LF AI
# Foundation](https://lfdl.io/press/2018/12/13/lf-deep-learning-welcomes-horovod-distributed-training-framework-as-newest-project/),
# a part of the Linux Foundation.
#
# ### Horovod, MPI, NCCL and the network
#
# Horovod itself moves no bytes. It decides *when* which gradients are averaged, and calls a **communication
# library** for the all-reduce. Which one depends on how it was built:
#
# * **MPI** (lab 4) starts the ranks and averages gradients in the memory of CPUs. Its collectives are
#   `MPI_Allreduce` and so on.
# * **NCCL**, the NVIDIA Collective Communications Library, averages gradients between NVIDIA GPUs. It sends
#   them through NVLink or PCIe within a node and through the network between nodes.
# * **Gloo**, by Meta, does the same as MPI on CPUs, and it needs no MPI on the machine.
#
# Two features of the hardware make NCCL and MPI fast between nodes. With **RDMA** (*remote direct memory
# access*) a network card writes into the memory of another node without its processor. With **GPUDirect
# RDMA** the network card reads and writes the memory of a *GPU*, so gradients do not pass through the memory
# of the processor at all. Horovod gains from both without a change of your script.
#
# ![A stack of layers. On top the training script of the ML engineer, who chooses one of TensorFlow, Keras, PyTorch and MXNet. Below it Horovod, which averages gradients. Below that MPI, NCCL and Gloo, which move the bytes, then shared memory, NVLink, PCIe, network and RDMA, then the hardware. The lower layers belong to the infrastructure team.](pictures/software_stack.svg)
#
# **Who does what.** This stack separates two jobs. The *infrastructure team* installs drivers, NCCL, MPI and
# Horovod once, so that they fit the network of the cluster. The *machine-learning engineer* adds a few lines
# to the script and does not need to know the network. The same script runs on a laptop with two ranks and on
# a cluster with 512.
#
# **Installation.** `pip install horovod` compiles Horovod for CPUs. `HOROVOD_GPU_OPERATIONS=NCCL pip install
# horovod` compiles it with NCCL. Both need the framework, a compiler and MPI or CMake on the machine. `make
# setup` has done this for you. The next cell asks the installed Horovod what it was built with.

# %%
environment = os.environ | launch.environment(1)
ended = subprocess.run(
    ["horovodrun", "--check-build"], env=environment, capture_output=True, text=True
)
print(ended.stdout)

# %% [markdown]
# An X marks what is built in. Without GPUs the build of this course has MPI and Gloo and no NCCL. Started by
# `mpirun`, it uses MPI, so **each all-reduce in this lab is a call of `MPI_Allreduce`**.
#
# ### Horovod today
#
# The last release of Horovod is [0.28.1 of June 2023](https://pypi.org/project/horovod/0.28.1/). PyTorch has
# its own `DistributedDataParallel` (DDP) and FSDP, and TensorFlow has `tf.distribute`. PyTorch Lightning
# [removed](https://github.com/Lightning-AI/pytorch-lightning/pull/16150) its Horovod strategy at the end of
# 2022. Start new PyTorch projects with DDP (labs 11 and 12) or FSDP.
#
# Why do you learn Horovod then? First, many scripts and clusters still use it. Second, and more importantly,
# its calls are **explicit**. You see the broadcast, the wrapped optimizer, the shard and the averaged metric
# as one line each, and you can leave one of them out and watch what happens. DDP does some of them for you,
# and hides them. The mistakes are the same in both, so what you learn here stays useful.
#
# ## The script for one process
#
# Open your copy in JupyterLab's editor (file browser, `work/`), next to this notebook. It trains a small
# convolutional network on Fashion-MNIST in one process. Find the lines that load the data, make the model,
# make the optimizer, train, print, and write a checkpoint. A *checkpoint* is a file with the weights and the
# state of the optimizer, from which training can resume. `Recorder` writes down the weights of this process
# and the numbers of the images that it has read. To start again, delete the copy and run the cell above
# again.
#
# ### The serial script on two ranks
#
# What happens if you start this script with `mpirun -np 2`, without any edit? `launch.run` types the command
# for you. 257 training images and 101 held-out images are enough to see it, and both numbers are odd on
# purpose. (*Held-out* images are not used for training. They measure the accuracy.)

# %%
FEW = ["--epochs", 2, "--images", 257, "--heldout", 101, "--batch-size", 32, "--lr", 0.05]
shutil.rmtree(RUNS / "serial", ignore_errors=True)
launch.run(SERIAL, *FEW, ranks=2, HVDLAB_RUN_DIR=str(RUNS / "serial"))
print(text(rank_report(RUNS / "serial")))

# %% [markdown]
# The last lines are the **rank report**, which this lab uses as evidence. It has one row per rank:
#
# | column | meaning |
# |---|---|
# | weights | the beginning of a hash (SHA-256) of all trained weights. Equal hashes mean weights that are equal to the last bit |
# | examples, overlap | images that the rank read in the epoch, and the fraction of them that rank 0 read too |
# | steps | updates that the rank made in the epoch |
# | loss, accuracy | training loss and held-out accuracy, as the script reports them |
#
# The two hashes differ, so these are two different networks. Each rank read all 257 images, so nothing became
# faster. For each epoch two lines were printed, and they disagree. The two processes ran independently of
# each other. **This is not data-parallel training. It is the same serial training, run twice**, and no error
# message says so.
#
# To make it one training, the ranks must average their gradients in every step, so that all of them make the
# same update. They must also start with the same weights, read different images, and combine what they
# report. The nine edits do exactly this.
#
# ## The nine edits
#
# | edit | call | without it |
# |---|---|---|
# | initialize | `hvd.init()` | the processes do not know each other |
# | pin the GPU | `rank_device(hvd)`, or `torch.cuda.set_device(hvd.local_rank())` | all ranks of a node use GPU 0 |
# | print on rank 0 | `if hvd.rank() == 0:` | every line is printed by every rank |
# | average gradients | `hvd.DistributedOptimizer(optimizer)`, learning rate times `hvd.size()` | every rank trains its own network |
# | broadcast the initial state | `hvd.broadcast_parameters(...)`, or a callback in Keras | the ranks start with different weights and stay apart |
# | partition the images | `rank=hvd.rank(), size=hvd.size()` | every rank reads every image |
# | combine the metrics | `hvd.allreduce(..., op=hvd.Sum)`, or a callback in Keras | every rank reports other numbers |
# | write checkpoints on rank 0 | `if hvd.rank() == 0:` | ranks damage each other's files |
# | resume on all ranks | `hvd.broadcast_object(first_epoch, root_rank=0)` | ranks wait for ever after a restart |
#
# Every edit has the same form: what to do and why, three hints, and a check that runs your script on two
# ranks. The cell that raises `NotImplementedError` is a reminder. Make the edit, delete that line, and
# continue. Hint 3 is the cell below the hints, which prints the whole edit as a diff: lines with `-` are
# removed, and lines with `+` are added.
#
# ## Initialization
#
# `mpirun` starts the processes, but they do not know each other yet. `hvd.init()` connects them. After it,
# `hvd.rank()` returns the number of this process, and `hvd.size()` the number of all processes. Before it,
# every other call of Horovod is an error.
#
# ### Exercise 1: Initialize Horovod
#
# **Edit your copy.** Import Horovod as `hvd`, and call `hvd.init()` right after the arguments are parsed.
#
# * **Keras**: `import hvdlab.keras.horovod as hvd`. Horovod's own `horovod.tensorflow.keras` was written for
#   Keras 2. Keras 3 applies gradients by another method, which that module does not replace. It accepts your
#   optimizer and never averages anything. The module of this course has the same names and works with Keras
#   3.
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
# On a node with GPUs, every process uses GPU 0 unless it is told otherwise. All ranks would fill the memory
# of GPU 0, and the others would be idle. Therefore each rank chooses the GPU with the number of its **local
# rank**, its number within its node. For example, on two nodes with four GPUs each, rank 5 has local rank 1
# and takes GPU 1 of the second node. `hvd.rank()` would be wrong, because no node has a GPU 5.
#
# In PyTorch this is one line, and in TensorFlow a few:
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
# `set_memory_growth` is needed because TensorFlow otherwise reserves nearly all memory of every GPU that it
# sees when it starts. (These lines have not been run on a GPU.)
#
# **Do not write `hvd.local_rank() % torch.cuda.device_count()`.** You will find this remainder in many
# scripts. With one GPU per rank it changes nothing. With fewer GPUs than ranks it gives two ranks the same
# GPU, and NCCL refuses that with the error "Duplicate GPU detected"
# ([horovod#3929](https://github.com/horovod/horovod/issues/3929)). Without the remainder the script stops at
# once with "invalid device ordinal", which names the real problem: there are too few GPUs.
#
# There are three situations:
#
# * **One GPU per rank, and each rank sees all GPUs of its node.** `hvd.local_rank()` is right, and NCCL sends
#   gradients from GPU to GPU.
# * **The launcher shows each rank one GPU only**, as Slurm does with `--gpus-per-task=1`. Then that GPU has
#   the number 0 on every rank, and local rank 1 must not ask for GPU 1.
# * **Fewer GPUs than ranks**, for example two ranks on the single GPU of a laptop. Two ranks can share a GPU
#   if their gradients are copied to the memory of the processor, averaged there by MPI, and copied back. The
#   result is the same. It is good for learning and for tests, and it does not make training faster.
#
# `rank_device(hvd)` of this course covers all three. The ranks compare the identifiers of the GPUs that they
# see, and each takes the one that the fewest others use. Its result also says how gradients must be
# exchanged, and exercise 4 passes that on. Without a GPU it chooses the processor.
#
# ### Exercise 2: Choose the device of each rank
#
# **Edit your copy.** Call `chosen = rank_device(hvd)` after `hvd.init()`.
#
# * **Keras**: import it from `hvdlab.keras.device`, and call it before Keras computes anything.
# * **PyTorch**: import it from `hvdlab.torch.device`, and use `chosen.device` as the script's `device`.
#
# The lines above also pass the check, if they stand under "if there is a GPU". They are right in the first
# situation only.
#
# <details><summary>Hint 1: the idea</summary>Two or three lines change: an import, the call after
# <code>hvd.init()</code>, and in PyTorch the line that sets <code>device</code>.</details>
#
# <details><summary>Hint 2: a smaller script</summary><code>hvd.init()</code>, <code>chosen =
# rank_device(hvd)</code>, <code>print(hvd.rank(), chosen)</code>. On this node it prints the processor or a
# GPU for each rank.</details>

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
# With 100 ranks the script would print 100 lines per epoch, which are too many to read. By convention rank 0
# prints, and the others are silent.
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
# The output looks like one training now, although the report still shows two different networks. **What a
# script prints does not prove that it trains in parallel.**
#
# ## Averaged gradients
#
# This is the central edit. `optimizer = hvd.DistributedOptimizer(optimizer)` returns a wrapper around your
# optimizer. The forward pass and the backward pass stay as they are, so each rank computes the gradients of
# its own images. Before the optimizer updates the weights, the wrapper averages every gradient over all
# ranks. So **all ranks update with the same gradient**, and a step uses the images of all ranks.
#
# In detail, the wrapper adds five things between the backward pass and the update:
#
# 1. A hook on each weight reports when its gradient is ready. Gradients of the last layers are ready first,
#    so they can be exchanged while the backward pass still works on the first layers.
# 2. The ranks **negotiate**. A gradient may be averaged only when *all* ranks have it, and all ranks must
#    average the gradients in the same order, because collectives must match (lab 4).
# 3. Small gradients are copied next to each other into one array, the **fusion buffer**, so that one message
#    carries several of them.
# 4. The all-reduce adds the arrays of all ranks.
# 5. The sum is divided by the number of ranks and copied back into the gradients.
#
# ![One training step on two ranks. Each rank does its own forward and backward pass, unchanged. The wrapper then adds a block: hooks report ready gradients, ranks negotiate, gradients are copied into the fusion buffer, all-reduced, divided by the number of ranks and copied out. Each rank then has the mean gradient and makes the same update.](pictures/distributed_optimizer.svg)
#
# **Learning rate.** With $N$ ranks a step averages $N$ times as many images, so its gradient is less noisy
# and a larger learning rate is possible. The usual rule multiplies the learning rate by $N$. For example,
# `--lr 0.05` on two ranks becomes 0.1. Lab 6 and lab 7 ask when that is right.
#
# ### Exercise 4: Wrap the optimizer
#
# **Edit your copy.** Multiply the learning rate by `hvd.size()`, wrap the optimizer, and train with the
# object that the wrapper returns.
#
# * **Keras**: wrap it before the model is compiled. With `rank_device`, pass
#   `device_dense=chosen.device_dense`.
# * **PyTorch**: also pass `model.named_parameters()`, which gives each gradient a name that all ranks share.
#   Wrap it after `model.to(device)`, because a move to another device discards the hooks. With `rank_device`,
#   pass `compression=chosen.compression`.
#
# The argument from `chosen` matters only if ranks share a GPU. It then sends gradients through the memory of
# the processor.
#
# <details><summary>Hint 1: the idea</summary>Two places change: the line that makes the optimizer, for the
# learning rate, and the wrapping after it.</details>
#
# <details><summary>Hint 2: a smaller script</summary>Keras: <code>optimizer = keras.optimizers.SGD(0.05 *
# hvd.size())</code>, then <code>optimizer = hvd.DistributedOptimizer(optimizer)</code>, then
# <code>model.compile(optimizer, loss)</code>. PyTorch: <code>optimizer = torch.optim.SGD(model.parameters(),
# 0.05 * hvd.size())</code>, then <code>optimizer = hvd.DistributedOptimizer(optimizer,
# model.named_parameters())</code>. The name <code>optimizer</code> now means the wrapper. If you gave the
# wrapper another name and continued with the old one, nothing would be averaged.</details>

# %%
# print(edits.diff("optimizer", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %% [markdown]
# Before you run the check: with this edit, how many *different* networks will two ranks hold after training,
# one or two? Think of where the two ranks start.

# %%
# Prediction 1: the number of different networks on two ranks. Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %%
# BEGIN SOLUTION: edit your copy of the script: wrap the optimizer, multiply the rate by hvd.size()
edits.apply(SCRIPT, "optimizer", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_optimizer(SCRIPT)

# %% [markdown]
# There are still two. Averaged gradients mean equal *steps*, but the two ranks start with different random
# weights. If $w_0 = 1$ and $w_1 = 4$ and both subtract 0.5 in each step, their difference stays 3 for ever.
# It is even worse: each gradient was computed with the weights of one rank and is used for the weights of
# another.
#
# ## Broadcast of the initial state
#
# A **broadcast** copies an array from one rank, the root, to all others (lab 4). Before the first step, rank
# 0 broadcasts its weights and the state of its optimizer, such as the momentum. This is needed for random
# initial weights, and also when rank 0 has loaded a checkpoint.
#
# ### Exercise 5: Start with the same weights
#
# **Edit your copy.**
#
# * **Keras**: put `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` first in the list of callbacks.
# * **PyTorch**: call `hvd.broadcast_optimizer_state(optimizer, root_rank=0)` and then
#   `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`, just before `model.to(device)`. The weights
#   come last, because an optimizer without state gets one by a step with gradients of zero, in which weight
#   decay would move the weights. Both calls come before the move, because a Horovod without NCCL must not get
#   tensors on a GPU.
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
# The hashes are equal: the ranks hold one network, to the last bit. But the overlap is still 100 %. Each rank
# reads every image, so all work is done twice.
#
# ## Data partition options
#
# Each rank must read other images than the other ranks, so that a step uses new images from all of them.
# There are three common options. In the examples two ranks share the images 0 to 7.
#
# 1. **Reshuffle, then split** (option 1). In every epoch all ranks make the *same* random permutation of the
#    whole set, and rank $r$ of $N$ takes every $N$-th image of it, beginning with number $r$. Every image is
#    read exactly once per epoch. Over the epochs a rank sees all images, so it must be able to read the whole
#    set. PyTorch's `DistributedSampler` does this, and so does `Batches(..., style="whole")` of this course.
# 2. **Random reads** (option 2). Every rank reads random images of the whole set, independently of the
#    others. It needs no agreement between the ranks, only different seeds. But chance decides which images
#    are read: in an epoch some are read twice, and some never.
# 3. **Fixed shards**. The set is split once, before training. A rank keeps its shard and only reshuffles it.
#    It needs only $1/N$ of the images on its disk, which is the reason to choose it for very large sets.
#    `Batches(..., style="own")` and `shard` of `tf.data` do this. The images of one shard are always averaged
#    with the same other shards, so all shards should be drawn at random.
#
# ![Eight images on two ranks in two epochs. With reshuffle and split each epoch reads every image once, and a rank gets other images in the next epoch. With fixed shards a rank keeps its four images and changes their order. With random reads some images are read twice and some never.](pictures/partition_options.svg)
#
# **Which fraction do random reads miss?** An epoch has $n$ reads in all. One read misses a given image with
# the probability $1 - 1/n$, so all $n$ reads miss it with the probability $(1 - 1/n)^n$. For $n = 4$ this is
# $(3/4)^4 = 0.32$. For large $n$ it approaches $1/e = 0.37$. So **random reads see about $1 - 1/e = 63 \%$ of
# the images in an epoch**, and some of them several times. After three epochs $1/e^3 = 5 \%$ of the images
# have never been read. One rank of two reads only $n/2$ images per epoch, so it sees $1 - e^{-1/2} = 39 \%$
# of them.
#
# ### Exercise 6: Three partitions
#
# **What.** Write `partition(option, n, rank, size, epoch, seed)`. **Why.** Every data loader for several
# ranks contains one of these options, and a wrong seed in it is a common mistake. **Signature.** `option` is
# "reshuffle", "fixed" or "random". Return an array with the `n // size` numbers of the images that the rank
# reads in this epoch, in the order in which it reads them. `n` is a multiple of `size`. Draw from
# `np.random.default_rng([...])`, whose list of numbers decides what is drawn, so that every rank can repeat
# it.
#
# <details><summary>Hint 1: the idea</summary>What may the seed contain? For "reshuffle" the seed and the
# epoch, but not the rank, because all ranks must split the same permutation. For "random" all
# three.</details>
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
# The next cell uses your function with two ranks. It counts which fraction of 10,000 images rank 0, and both
# ranks together, have read after some epochs.

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
# The right panel shows 1 for reshuffle and for fixed from the first epoch on, and 0.63, 0.86, 0.95 and so on
# for random reads. In the left panel rank 0 stays at one half with fixed shards, because it never sees the
# other images. This lab does not measure whether the option changes the accuracy. If every rank can read the
# whole set, reshuffle-then-split is the standard choice.
#
# ## Equal numbers of batches
#
# All ranks must make the same number of steps. Suppose 257 images are split as 129 and 128, with 32 images
# per batch. Rank 0 has $\lceil 129/32 \rceil = 5$ batches, and rank 1 has 4. In step 5, rank 0 calls the
# all-reduce for its gradients. Rank 1 has finished its epoch and never calls it. An all-reduce needs all
# ranks, so rank 0 waits **for ever**. This is the deadlock of lab 4 in another form. Horovod prints a warning
# about "stalled" ranks after 60 seconds, and it does not stop the program.
#
# The next cell provokes it, with a time limit. `Barrier` waits until all ranks have called it,
# as rank 1 would wait in the evaluation.


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
# There are three ways to get equal numbers of batches: read a few images twice, leave a few out
# (`drop_last=True` in PyTorch), or let every rank make a fixed number of steps. `Batches` reads a few images
# twice. With 257 images on two ranks each rank reads 129, and one image is read by both.
#
# ### Exercise 7: Partition the images
#
# **Edit your copy.** Give `Batches` the `rank`, the `size`, a common `seed` (`args.seed`) and a `style`:
# "whole" or "own".
#
# <details><summary>Hint 1: the idea</summary>The variable <code>seed</code> of the script differs between
# ranks, so that untouched ranks draw different weights. With it the shards would overlap, as in exercise
# 6.</details>
#
# <details><summary>Hint 2: a smaller script</summary>In a plain PyTorch script the same edit is
# <code>DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)</code>, passed as
# <code>sampler</code> to the <code>DataLoader</code>, and <code>sampler.set_epoch(epoch)</code> in every
# epoch.</details>

# %%
# print(edits.diff("sharding", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of the script: divide the images by rank and size, with one seed
edits.apply(SCRIPT, "sharding", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_sharding(SCRIPT)

# %% [markdown]
# ## Metrics over all ranks
#
# Each rank now knows the loss of its own images only, and every rank still evaluates all held-out images,
# which is twice the work. Let each rank evaluate its fraction, and combine the results. With $r_k$ right
# answers among $n_k$ images on rank $k$,
#
# $$\text{accuracy} = \frac{\sum_k r_k}{\sum_k n_k} \qquad\text{and not}\qquad
# \frac{1}{N}\sum_k \frac{r_k}{n_k}.$$
#
# This is the weighted mean of lab 4 again. For example, rank 0 has 3 of 3 right and rank 1 has 1 of 2. The
# accuracy is $4/5 = 0.8$. The mean of the two accuracies is $(1 + 0.5)/2 = 0.75$, because each image of rank
# 1 gets a larger weight. 101 held-out images are split as 51 and 50.
#
# ### Exercise 8: Combine the metrics
#
# **Edit your copy.** Slice the held-out images by rank and size, and combine.
#
# * **Keras**: add `hvd.callbacks.MetricAverageCallback()` before every callback that reads metrics. Ours adds
#   up sums and counts.
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
# leave a damaged file.
#
# ### Exercise 9: Write checkpoints on rank 0
#
# **Edit your copy.** Write checkpoints on rank 0 only. The check gives each rank a folder of its own, to see
# which rank writes.
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
# Long runs are often interrupted: a node fails, or the time of the job is over. The serial script resumes
# from its latest checkpoint. With several ranks three things go wrong:
#
# * Only rank 0 may find a checkpoint, because each node has its own disk. Then the other ranks start with
#   epoch 0, make more steps, and wait for ever.
# * The checkpoint holds the learning rate for the *old* number of ranks.
# * `load_model` of Keras returns an optimizer that is not wrapped, so nothing is averaged any more.
#
# ### Exercise 10: Resume on any number of ranks
#
# **Edit your copy.** After loading, send rank 0's `first_epoch` to all ranks with `hvd.broadcast_object`, and
# set the learning rate again (`model.optimizer.learning_rate`, or `optimizer.param_groups[0]["lr"]`). In
# Keras load the model with `hvd.load_model`. Weights and momentum are broadcast by exercise 5, if that stands
# after the loading. The check kills one of two ranks during the run, restarts on two ranks, and then on one.
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
# At each dotted line all processes ended. The curve continues behind it, so nothing was lost except the
# unfinished epoch.
#
# ### What each edit changed
#
# The checks kept the runs that they made. The figure shows their rank reports, in three numbers each.

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
# The number of different networks falls to one with the broadcast. The images that both ranks read fall to
# almost none with the sharding (257 is odd, so one image goes to both ranks). The difference of the metrics
# falls to zero with the metrics. **A script without one of these edits still runs, and its loss still
# falls.** Only the report shows the mistake.
#
# ## Horovod for TensorFlow, Keras, PyTorch and MXNet
#
# Horovod has one module per framework, with the same names in each:
#
# | module | how gradients are averaged |
# |---|---|
# | `horovod.torch` | `hvd.DistributedOptimizer` wraps a `torch.optim` optimizer |
# | `horovod.tensorflow` | `hvd.DistributedGradientTape` wraps a `tf.GradientTape`, for training loops without `fit` |
# | `horovod.tensorflow.keras` | `hvd.DistributedOptimizer` wraps a Keras 2 optimizer. For Keras 3 use `hvdlab.keras.horovod` of this course |
# | `horovod.mxnet` | `hvd.DistributedTrainer` replaces MXNet's `Trainer` |
#
# Apache [retired](https://attic.apache.org/projects/mxnet.html) MXNet in 2023, so you will meet the last
# module in old scripts only.
#
# TensorFlow's *gradient tape* records the forward pass and computes gradients from the record.
# `DistributedGradientTape` wraps the tape, so that `tape.gradient(...)` returns gradients that are already
# averaged. The next cell runs one such step on two ranks. The network is $y = w x$, the target is $3x$, and
# the loss is the mean of $(wx - 3x)^2$. Rank 0 holds $x = 1, 2$ and rank 1 holds $x = 3, 4$. At $w = 0$ the
# gradient $-6 \cdot \text{mean}(x^2)$ is $-6 \cdot 2.5 = -15$ on rank 0 and $-6 \cdot 12.5 = -75$ on rank 1.
# Their mean is $-45$.

# %%
tape_script = WORK / "gradient_tape.py"
_ = tape_script.write_text("""\
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
x = tf.constant([[1.0, 2.0], [3.0, 4.0]][hvd.rank()])  # the shard of this rank
w = tf.Variable(10.0 * hvd.rank())  # ranks start with 0 and 10
hvd.broadcast_variables([w], root_rank=0)  # now both have 0

with tf.GradientTape() as tape:
    loss = tf.reduce_mean((w * x - 3 * x) ** 2)
tape = hvd.DistributedGradientTape(tape)  # gradient() averages over the ranks
(gradient,) = tape.gradient(loss, [w])
w.assign_sub(0.01 * gradient)
print(f"rank {hvd.rank()}: loss {loss:.1f}, gradient {gradient:.1f}, new weight {w.numpy():.2f}")
""")
lines = launch.run(tape_script, ranks=2, show=False, TF_CPP_MIN_LOG_LEVEL="3").splitlines()
print("\n".join(line for line in lines if line.startswith("rank")))

# %% [markdown]
# The losses differ, because the ranks hold different examples. The gradient is $-45$ on both, so both have
# the same new weight.
#
# ## Several nodes and containers
#
# Your finished script needs no change for more nodes. Only the command changes. On a single node with four
# GPUs, and on two nodes with four GPUs each:
#
# ```bash
# mpirun -np 4 python fashion_mnist_torch.py
# mpirun -np 8 -H server1:4,server2:4 python fashion_mnist_torch.py
# horovodrun -np 8 -H server1:4,server2:4 python fashion_mnist_torch.py     # the same, by Horovod's own launcher
# ```
#
# All nodes need the same versions of the framework, Horovod, MPI and NCCL. A **container** is the usual
# solution: an image file that contains all the software of a program except for the kernel of the operating
# system and the driver of the GPU. NVIDIA publishes tested images with frameworks, NCCL and MPI in its
# catalogue **NGC**. A container on one node with four GPUs starts like this:
#
# ```bash
# docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/work" -w /work \
#     nvcr.io/nvidia/tensorflow:25.02-tf2-py3 \
#     mpirun -np 4 --allow-run-as-root python fashion_mnist_keras.py
# ```
#
# * `--gpus all` makes the GPUs of the node visible in the container.
# * `--ipc=host` and `--ulimit memlock=-1` give NCCL and MPI the shared memory and the fixed pages of memory
#   that they need. With Docker's default of 64 MB shared memory NCCL may fail.
# * `-v "$PWD:/work" -w /work` makes your folder visible in the container and starts there.
# * The image name has a version (25.02), so that the run can be repeated. The image of this version is the
#   last one of TensorFlow that NVIDIA ships with Horovod.
#
# Clusters usually do not allow Docker, because its users could become root. They use **Apptainer** (formerly
# Singularity), which runs the same images as an ordinary user. With Slurm, each task starts in its own
# container, and a task is a rank:
#
# ```bash
# apptainer pull tensorflow.sif docker://nvcr.io/nvidia/tensorflow:25.02-tf2-py3
# srun --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --mpi=pmix \
#     apptainer exec --nv tensorflow.sif python fashion_mnist_keras.py
# ```
#
# `--nv` makes the driver of the GPU visible. `--mpi=pmix` lets Slurm tell each process its rank. These
# commands for GPUs have not been run. The course's own image, its job scripts for Slurm and what was tested
# are in [docker/README.md](../docker/README.md) and [docker/slurm](../docker/slurm/README.md). The next cell
# runs the form for one node with a short program. It reads the rank and the local rank from environment
# variables that Open MPI sets.

# %%
program = """
from os import environ
print("rank", environ["OMPI_COMM_WORLD_RANK"], "local rank", environ["OMPI_COMM_WORLD_LOCAL_RANK"])
"""
command = ["mpirun", "-np", "2", "-H", "localhost:2", "python", "-c", program]
environment = os.environ | launch.environment(2)
print(subprocess.run(command, env=environment, capture_output=True, text=True).stdout)

# %% [markdown]
# ## Uncoordinated ranks compared with the finished script
#
# The checks trained for a few steps only. Now both scripts train for three epochs on 5,000 images on two
# ranks, with a batch of 64 images per rank: the serial script as it was, and your finished script.
#
# In an epoch, the serial script makes $\lceil 5000/64 \rceil = 79$ steps on each rank. How many steps does
# each rank make with the finished script?

# %%
# Prediction 2: steps per epoch of each rank, finished script, 2 ranks. Replace both values of None.
prediction = workbook.predict(2, None, reason=None)

# %% tags=["folded"]
HELDOUT = ["--heldout", by_run_length(quick=500, learner=10_000, reference=10_000)]
EPOCHS = by_run_length(quick=1, learner=3, reference=3)
IMAGES = by_run_length(quick=1000, learner=5000, reference=5000)
TRAINING = ["--epochs", EPOCHS, "--images", IMAGES, *HELDOUT]


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
    return [{"rank": rank, "accuracy": row["accuracy"]} for rank, row in report.iterrows()]


both = ["serial", "finished"]
pairs = sweep(
    "uncoordinated_ranks",
    uncoordinated,
    grid(script=by_run_length(quick=both[1:], learner=both, reference=both), seed=seeds(1, 3)),
)
if prediction is not None:
    print(f"You predicted {prediction} steps per epoch for each rank of the finished script.")

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
# **What the result means.** With the finished script each rank reads half of the images, 2500, and makes
# $\lceil 2500/64 \rceil = 40$ steps. Each step uses 128 images. With the serial script, two ranks train two
# networks, and mostly their accuracies show it. In the reference they differ by 0.2, 1.2 and 0.0 percentage
# points at three seeds. At the third seed the accuracies agree by chance. **Equal accuracies prove nothing,
# and equal hashes do.** A launcher that starts a serial script on 100 ranks trains 100 networks and wastes 99
# % of the time. The second table has the accuracies of rank 0. Whether fewer, larger steps cost accuracy in
# such a short training is the question of lab 6.
#
# ## Tensor fusion and the timeline
#
# A network has many small gradients. The network of the script has four layers with a weight array and a bias
# array each, so eight gradients, of 10 to 100,352 numbers. Eight messages would pay the latency eight times
# (lab 4). **Tensor fusion** copies the gradients that are ready at the same time into one buffer and averages
# them with one all-reduce. By default up to 128 MiB share a message.
#
# ![Without fusion four gradients w1, b1, w2, b2 are sent by four all-reduces. With fusion they are copied next to each other into one fusion buffer, and one all-reduce sends all of them.](pictures/fusion_buffer.svg)
#
# ### Exercise 11: Messages after fusion
#
# **What.** Write `fuse(sizes, threshold)`. **Why.** With it you can predict how many messages a network sends
# per step. **Signature.** `sizes` is the list of the sizes of the gradients, in the order in which they are
# ready. `threshold` is the size of the fusion buffer. Go through the gradients in order. A gradient joins the
# current message if the message then has at most `threshold` bytes. Otherwise it begins a new message. Return
# the list of messages, each of them a list of sizes. (Horovod also waits at most 1 ms for more gradients,
# which we leave out.)
#
# <details><summary>Hint 1: the idea</summary>Keep a list of messages. Look only at the last one.</details>
#
# <details><summary>Hint 2: a smaller case</summary>The sizes 40, 10, 60 and 30 with the threshold 100: 40 and
# 10 are 50. With 60 the message would have 110, so 60 begins a new one, and 30 joins it. The result is [[40,
# 10], [60, 30]]. With the threshold 0 it is [[40], [10], [60], [30]].</details>
#
# <details><summary>Hint 3: nearly the lines</summary><code>if messages and sum(messages[-1]) + size <=
# threshold:</code> append to <code>messages[-1]</code>. <code>else:</code> append <code>[size]</code> to
# <code>messages</code>.</details>


# %%
def fuse(sizes, threshold):
    """Return the messages in which gradients of these sizes are sent, each a list of sizes."""
    # BEGIN SOLUTION: put each gradient into the last message if it fits, else begin a new one
    messages = []
    for size in sizes:
        if messages and sum(messages[-1]) + size <= threshold:
            messages[-1].append(size)
        else:
            messages.append([size])
    return messages
    # END SOLUTION


# %%
check_fuse(fuse)

# %% [markdown]
# ### The timeline of Horovod
#
# With the environment variable `HOROVOD_TIMELINE=file.json` rank 0 records what happens to each gradient:
#
# | phase | what happens |
# |---|---|
# | negotiate | begins when the first rank has this gradient, and ends when all ranks have it |
# | copy in | gradients are copied next to each other into the fusion buffer |
# | all-reduce | the message itself |
# | copy out | the sums are copied back |
#
# From the second step on Horovod remembers what it has negotiated and records less of it.
# `HOROVOD_CACHE_CAPACITY=0` makes it negotiate in every step, so that we can see it. The two ranks of this
# node never finish a backward pass at exactly the same time. All gradients together have 423 KB, and the
# message stays in the memory of this node. Which phase takes longest?

# %%
# Prediction 3: "negotiate", "copy in", "all-reduce" or "copy out", and why? Replace both values of None.
prediction = workbook.predict(3, None, reason=None)

# %%
path = RUNS / "timeline.json"
variables = {"HOROVOD_TIMELINE": str(path), "HOROVOD_CACHE_CAPACITY": "0"}
train(SCRIPT, "--epochs", 2, "--images", 1280, "--heldout", 100, **variables)
recorded = horovod_timeline.read(path)
recorded = recorded[recorded["step"] > recorded["step"].max() // 2]  # the second epoch only
PHASES = ["negotiate", "copy in", "all-reduce", "copy out"]
found = recorded.groupby("phase")["milliseconds"].describe()
found.reindex(PHASES)[["25%", "50%", "75%", "max"]].round(3)  # milliseconds

# %% tags=["folded"]
spans = recorded.groupby("step")["milliseconds"].sum()
step = (spans - spans.median()).abs().idxmin()  # one that is neither fast nor slow
one = recorded[recorded["step"] == step].sort_values("start")
one = one.assign(start=one["start"] - one["start"].min(), row=pd.factorize(one["tensor"])[0])
figure, axes = plt.subplots(figsize=(8, 3.6))
for number, phase in enumerate(PHASES):
    bars = one[one["phase"] == phase]
    axes.barh(
        bars["row"], bars["milliseconds"], left=bars["start"], color=f"C{number}", label=phase
    )
for rank, marker in ((0, "o"), (1, "x")):
    marks = one[one["phase"] == f"ready {rank}"]
    axes.plot(marks["start"], marks["row"], marker, color="black", label=f"rank {rank} is ready")
first = one.drop_duplicates("tensor")
axes.set_yticks(first["row"], first["shape"])
axes.invert_yaxis()
axes.set(xlabel="milliseconds since the first gradient was ready", ylabel="gradient, by its shape")
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
describe(
    figure,
    "A timeline of one training step with one row per gradient. Marks show when each rank was ready, bars "
    "show negotiation, copying into the buffer, all-reduce and copying out.",
)
longest = recorded.groupby("phase")["milliseconds"].median().idxmax()
print(f"You predicted: {prediction}. Longest phase, by its median: {longest}.")

# %% [markdown]
# One row is one gradient, and the marks show when each rank had it. A negotiation lasts until the *later*
# rank is ready, so most of it is waiting for the slower rank. It is usually the longest phase here, because
# 423 KB are added within a fraction of a millisecond. Bars that stand exactly above each other belong to one
# message: these gradients were fused.
#
# ### Fewer messages and fewer bytes
#
# Two settings change how gradients are sent. `HOROVOD_FUSION_THRESHOLD=0` switches fusion off.
# `compression=hvd.Compression.fp16` converts gradients to float16 before they are sent, 2 bytes per number
# instead of 4, and back afterwards. This experiment and the next one run on CPUs, also where there are GPUs,
# because the reference was measured there.
#
# How many messages does a step need *without* fusion? You know the network.

# %%
# Prediction 4: messages per step without fusion. Replace both values of None.
prediction = workbook.predict(4, None, reason=None)

# %%
FP16 = WORK / f"fashion_mnist_{FRAMEWORK}_fp16.py"
_ = FP16.write_text(edits.with_float16(SCRIPT.read_text()))
print(edits.unified(SCRIPT.read_text(), FP16.read_text(), "float16"))

# %% tags=["folded"]
OPTIONS = ["default", "no fusion", "float16"]
ON_PROCESSORS = {"CUDA_VISIBLE_DEVICES": "-1"}


def speed(folder, ranks):
    """Images/s of all ranks together, after the first epoch, in which all warms up."""
    lines = [curve(folder, rank) for rank in range(ranks)]
    return sum(each["images_per_second"][1:].mean() for each in lines)


def exchange(option, seed):
    script = FP16 if option == "float16" else SCRIPT
    variables = {"HOROVOD_FUSION_THRESHOLD": "0"} if option == "no fusion" else {}
    epochs = by_run_length(quick=2, learner=3, reference=3)
    images = by_run_length(quick=640, learner=6000, reference=6000)
    arguments = ["--epochs", epochs, "--images", images, "--batch-size", 32]
    arguments += [*HELDOUT, "--seed", seed]
    folder = train(script, *arguments, HOROVOD_TIMELINE=str(path), **variables, **ON_PROCESSORS)
    sent = horovod_timeline.messages(horovod_timeline.read(path)).mean()
    return {
        "messages": sent["operations"],
        "kilobytes": sent["bytes"] / 1000,
        "images_per_second": speed(folder, ranks=2),
        "accuracy": rank_report(folder)["accuracy"].iloc[0],
    }


choices = by_run_length(quick=OPTIONS[2:], learner=OPTIONS, reference=OPTIONS)
exchanges = sweep("exchange_options", exchange, grid(option=choices, seed=seeds(1, 3)))

# %% tags=["folded"]
shipped_exchanges = reference("exchange_options")
figure, panels = plt.subplots(1, 4, figsize=(12, 3.2))
names = {"messages": "messages per step", "kilobytes": "kB per step"}
names |= {"images_per_second": "images/s", "accuracy": "held-out accuracy"}
for axes, (column, name) in zip(panels, names.items(), strict=True):
    for table, shift, marker in ((shipped_exchanges, -0.12, "s"), (exchanges, 0.12, "o")):
        points = summary(table, ["option"], column).set_index("option").reindex(OPTIONS)
        label = f"{'yours' if table is exchanges else 'reference'} (n={points['count'].min():.0f})"
        at = np.arange(len(OPTIONS)) + shift
        axes.errorbar(at, points["mean"], points["std"], fmt=marker, capsize=3, label=label)
    axes.set_xticks(range(len(OPTIONS)), OPTIONS, rotation=20)
    axes.set(ylabel=name, xlim=(-0.5, len(OPTIONS) - 0.5))
    if column != "accuracy":
        axes.set_ylim(0, None)
panels[3].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
predicted(panels[0], prediction, x=OPTIONS.index("no fusion"))
describe(
    figure,
    "Messages per step, kilobytes per step, images per second and held-out accuracy for the default, no "
    "fusion and float16. No fusion needs eight messages instead of one, float16 half of the bytes.",
)

# %% [markdown]
# **What the result means.** Without fusion each of the eight gradients is a message of its own. With float16
# a step sends half of the bytes, 212 instead of 423 kB. The third panel shows what that is worth in images/s
# on this node, and the fourth whether the accuracy suffers. In the reference (n=3) the error bars of the
# speeds overlap, and the accuracies agree within their error bars. Ranks of one node share memory, so a
# message is cheap. Between nodes fusion is worth more: Horovod's authors report up to 65 % more images/s for
# networks with many layers over a TCP network ([Sergeev and Del Balso,
# 2018](https://arxiv.org/abs/1802.05799)).
#
# ## Strong and weak scaling
#
# How much faster are two ranks than one? There are two questions:
#
# * **Strong scaling** keeps the images per step constant: 1 rank with 128 images, compared with 2 ranks with
#   64 images each.
# * **Weak scaling** keeps the images per step *and rank* constant: 1 rank with 64 images, compared with 2
#   ranks with 64 images each.
#
# Let $v_n$ be the images/s of $n$ ranks together. The **speed-up** is $v_n / v_1$, and the **efficiency** is
# $v_n / (n\,v_1)$. For example, 9,000 images/s on one rank and 12,000 on two are a speed-up of 1.33 and an
# efficiency of 0.67.
#
# **A fair baseline.** A speed-up is meaningful only if nothing but the number of ranks changes between the
# two runs. A single process uses all cores if nothing limits it. Two ranks with one core each would then be
# compared with one rank with two cores. So we set `OMP_NUM_THREADS=1` and `TF_NUM_INTRAOP_THREADS=1` for one
# rank, too. The line "strong, unfair" has the other baseline, to show the difference.
#
# A single rank processes fewer images/s with 64 images per step than with 128, because each step has a fixed
# overhead (lab 3). Which speed-up is larger, that of strong or that of weak scaling, and why?

# %%
# Prediction 5: "strong", "weak" or "equal", and why? Replace both values of None.
larger = workbook.predict(5, None, reason=None)

# %% tags=["folded"]
SETTINGS = {  # ranks, images per step and rank, threads of a rank
    "1 x 128": (1, 128, 1),
    "2 x 64": (2, 64, 1),
    "1 x 64": (1, 64, 1),
    "1 x 128, two threads": (1, 128, 2),
}
NAMES = by_run_length(quick=list(SETTINGS)[:2], learner=list(SETTINGS), reference=list(SETTINGS))


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

# %% tags=["folded"]
compare(mine[mine["ranks"] == 2], theirs[theirs["ranks"] == 2], by=["scaling"], value="speed_up")

# %% tags=["folded"]
compare(scalings, shipped_scalings, by=["setting"], value="images_per_second")

# %% [markdown]
# **What the result means.** In the reference (n=3) the speed-up is 1.31 with strong scaling and 1.65 with
# weak scaling. An efficiency below 1 has three causes. Two are the exchange of gradients and the wait for the
# slower rank, which the timeline shows. The third is the smaller batch: a single rank processes about a fifth
# fewer images/s with 64 images per step than with 128. Strong scaling pays for it, because its baseline has
# the large batch. Weak scaling does not, because its baseline has the small batch too.
#
# The unfair baseline gives another number for the same two ranks, although nothing about Horovod has changed.
# It also varies more: in the reference two threads are faster than one at two seeds, and slower at the third.
# Always report a speed-up together with its baseline and the number of measurements.
#
# ## Summary
#
# * Horovod averages gradients between equal ranks. It calls MPI, NCCL or Gloo for the all-reduce. In this
#   build each all-reduce is a call of `MPI_Allreduce`. It replaced parameter servers, its last release is of
#   2023, and new PyTorch projects use DDP or FSDP.
# * A serial script started on two ranks trains two networks, without any error message.
# * Nine edits make one training of it: initialize, one device per rank, print on rank 0, wrap the optimizer,
#   broadcast the initial state, partition the images, combine metrics, write checkpoints on rank 0, resume on
#   all ranks.
# * Averaged gradients without the broadcast keep the ranks apart for ever. The rank report proves equality by
#   a hash of the weights.
# * Reshuffle-then-split reads every image once per epoch. Random reads see about 63 % of them. Fixed shards
#   need only $1/N$ of the images on each node.
# * All ranks need the same number of batches, or the program waits for ever.
# * Tensor fusion sent one message per step instead of eight, and float16 sent 212 kB instead of 423 kB.
# * Two ranks were 1.31 times as fast as one with strong scaling and 1.65 times with weak scaling (n=3, two
#   cores).
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="b")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=5)

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

# %% [markdown]
# **Next:** [lab 6](06_scaling_the_batch.ipynb) asks how large the batch of all ranks together may become
# before more ranks stop paying.
