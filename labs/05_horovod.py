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
# * read Horovod's timeline, explain tensor fusion, and measure a speed-up with a fair baseline.
#
# **Builds on** lab 1 (nodes, NVLink, PCIe), lab 3 (the paragraph "How the experiments work") and lab 4 (MPI,
# collectives and the gradient identity). **Time**: about 155 minutes if you read everything and do the first eleven
# exercises. About eight of these minutes are computing time. Five more exercises, on scripts of other styles, take ten
# minutes each.

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
from hvdlab.exercises import lab05_transfer as transfer
from hvdlab.exercises.lab05_partition import check_fuse, check_partition

workbook = Workbook(5)
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
# gradients in every step, and no rank starts the next step earlier. The name is that of a Russian folk dance
# in a circle, like the ring all-reduce of lab 4. Horovod works with TensorFlow, Keras, PyTorch and Apache
# MXNet.
#
# **What it replaced.** The first method of distributed TensorFlow was the **parameter server**, a process
# that holds weights. Workers send it gradients and get new weights back. This has two problems. First, all
# bytes pass through the servers, as through the root in lab 4. With too few servers the workers wait, so you
# must find out how many they need. Second, the script must place workers, servers and every variable. With
# Horovod all ranks are equal and call an all-reduce. (Recommender systems have large tables of user and
# product vectors, of which a batch changes only a few rows. For these, parameter servers are still in use.)
#
# ![On the left four workers send gradients up to a parameter server and receive weights from it, so all bytes pass the server. On the right four equal ranks hold the weights and pass gradients round a ring, so the same number of bytes passes every rank.](pictures/parameter_server.svg)
#
# **Who made it.** Alexander Sergeev and Mike Del Balso published it at Uber in 2017. Since 2018 it is a
# [project of the LF AI
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
# Two hardware features make NCCL and MPI fast between nodes. With **RDMA** (*remote direct memory access*) a
# network card writes into the memory of another node without its processor. With **GPUDirect RDMA** it reads
# and writes the memory of a *GPU*, without a copy in the memory of the processor. Your script does not change
# for them.
#
# ![A stack of layers. On top the training script of the ML engineer, who chooses one of TensorFlow, Keras, PyTorch and MXNet. Below it Horovod, which averages gradients. Below that MPI, NCCL and Gloo, which move the bytes, then shared memory, NVLink, PCIe, network and RDMA, then the hardware. The lower layers belong to the infrastructure team.](pictures/software_stack.svg)
#
# **Who does what.** The *infrastructure team* installs drivers, NCCL, MPI and Horovod once, so that they fit
# the cluster. The *machine-learning engineer* adds a few lines to the script.
#
# **Installation.** PyPI has Horovod as source code only, so `pip install horovod` compiles it, with NCCL if
# `HOROVOD_GPU_OPERATIONS=NCCL` is set. It needs the framework, a C++ compiler and the build tool CMake. MPI is
# optional, because Gloo comes with Horovod. With today's software this command *fails*. The last release,
# 0.28.1, asks for C++14, and PyTorch 2.1 and newer need C++17
# ([horovod#3996](https://github.com/horovod/horovod/issues/3996),
# [#4014](https://github.com/horovod/horovod/issues/4014)). It imports Python's module distutils, which Python
# 3.12 no longer has, and it calls a function that TensorFlow 2.21 has removed. `make setup` therefore runs
# `docker/build_horovod.sh`, which corrects these places in the source, compiles, and tests the result. It works
# for your own environment as well: `docker/build_horovod.sh /path/to/python` installs Horovod there, and keeps
# the wheel in `~/.cache/hvdlab/wheels`, from where you can copy it to machines with the same versions. The
# environment needs torch or TensorFlow, an MPI, cmake, ninja, setuptools, cloudpickle and packaging.

# %%
import horovod.torch as hvd

print("MPI:", hvd.mpi_built(), " Gloo:", hvd.gloo_built(), " NCCL:", bool(hvd.nccl_built()))

# %% [markdown]
# This is what the installed Horovod was built with. In a terminal `horovodrun --check-build` prints a longer
# table, and needs about 25 seconds here, because it imports each framework several times. On a machine
# without GPUs the course builds Horovod with MPI and Gloo, and `mpirun` makes it use MPI. So **without GPUs
# each all-reduce in this lab is a call of `MPI_Allreduce`**.
#
# ### Horovod today
#
# The last release is [0.28.1 of June 2023](https://github.com/horovod/horovod/releases/tag/v0.28.1). PyTorch has its own
# `DistributedDataParallel` (DDP) and FSDP, which also shards the weights. TensorFlow has `tf.distribute`.
# Start new PyTorch projects with DDP or FSDP (labs 11 and 12).
#
# Why do you learn Horovod then? Many scripts still use it. More importantly, its calls are **explicit**: each
# task is a line or a few, and you can leave one out and watch what happens. DDP does some tasks itself, for
# example the first broadcast of the weights. Others remain yours, for example sharding the images and
# combining the metrics, and the mistakes there are the same.
#
# ## The script for one process
#
# Open your copy in JupyterLab's editor (file browser, `work/`). It trains a small convolutional network on
# Fashion-MNIST in one process. `Batches` shuffles the images and yields the mini-batches. A *checkpoint* is a
# file with the weights and the state of the optimizer, from which training can resume. `Recorder` writes down
# the weights of this process and the numbers of the images that it has read. To start again, delete the copy
# and run the cell above.
#
# ### The serial script on two ranks
#
# What happens if you start this script with `mpirun -np 2`, without any edit? `launch.run` executes this
# command, with 257 training images and 101 *held-out* images, which only measure the accuracy. Both numbers
# are odd on purpose.

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
# The hashes differ, so these are two networks. Each rank read all 257 images, so nothing became faster. The
# two lines of an epoch disagree. **The same serial training ran twice**, each time with random numbers of its
# own, and no error message reports it.
#
# To make it one training, the ranks must average their gradients in every step, start with the same weights,
# read different images, and combine what they report.
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
# `NotImplementedError`, and continue. Hint 3 is the cell below the hints, which prints the whole edit as a
# diff: lines with `-` are removed, and lines with `+` are added.
#
# ## Initialization
#
# `mpirun` starts the processes, but they do not know each other yet. `hvd.init()` connects them. After it,
# `hvd.size()` returns the number $N$ of all processes, and `hvd.rank()` the number of this process, from 0 to
# $N - 1$. Before it, every other call of Horovod is an error.
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
# rank must choose the GPU with the number of its **local rank**, its number within its node. This is called
# *pinning* the GPU. For example, on two nodes with four GPUs each, rank 5 has local rank 1 and takes GPU 1 of
# the second node. `hvd.rank()` would be wrong, because no node has a GPU 5: the ranks 4 to 7 would stop with
# the framework's error for an invalid device, and `mpirun` would then end the others. Without pinning, the four
# ranks of a node share GPU 0 while three GPUs do nothing. With NCCL the job stops with the error "Duplicate GPU
# detected". Without NCCL it runs, but four copies of the network must fit into the memory of one GPU, and it
# is no faster.
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
# Without `set_memory_growth` TensorFlow reserves nearly all memory of every GPU that it sees, also of those
# on which it does not compute.
#
# There are three situations:
#
# * **One GPU per rank, and each rank sees all GPUs of its node.** The lines above are right, and NCCL sends
#   gradients from GPU to GPU.
# * **Each rank sees one GPU only**, for example with `--gpus-per-task=1` of Slurm, which starts jobs on many
#   clusters. This GPU has the number 0 on every rank, so the lines above fail on local rank 1.
# * **Fewer GPUs than ranks**, for example two ranks on the single GPU of a laptop. They can share it if
#   gradients are copied to the memory of the processor, averaged there by MPI, and copied back. This does not
#   make training faster.
#
# **Do not write `hvd.local_rank() % torch.cuda.device_count()`**, which many scripts contain. The remainder
# is right in the first two situations. In the third it gives two ranks the same GPU without a message, and
# Horovod still sends by NCCL. NCCL stops with the error "Duplicate GPU detected"
# ([horovod#3929](https://github.com/horovod/horovod/issues/3929)), which does not say that there are too few
# GPUs.
#
# `rank_device(hvd)` of this course covers all three. The ranks tell each other which GPUs they see. Then they
# choose in the order of their numbers. Each rank takes the GPU that the fewest lower ranks have chosen, or
# the processor if it sees no GPU. For example, with two GPUs the ranks 0, 1, 2 and 3 take GPU 0, 1, 0 and 1.
# If ranks share a GPU, it also says so and makes Horovod send through the memory of the processor.
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
# With 100 ranks the script would print 100 lines per epoch. By convention only rank 0 prints.
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
# `optimizer = hvd.DistributedOptimizer(optimizer)` returns a wrapper around your optimizer. Each rank still
# computes the gradients of its own images. Before the update the wrapper averages every gradient over all
# ranks. So **all ranks update with the same gradient**.
#
# The wrapper adds five things between a gradient and the update:
#
# 1. The wrapper learns that a gradient is ready. In PyTorch a *hook* reports it, a function that PyTorch
#    calls at this moment. Gradients of the last layers are ready first, so their exchange begins while the
#    backward pass still works on the first layers. In Keras the module of this course exchanges all gradients
#    together, after the backward pass.
# 2. In the **negotiation** the ranks agree which gradient is next. A gradient may be averaged only when *all*
#    ranks have it, and in the same order on all ranks, because collectives must match (lab 4).
# 3. Small gradients are copied next to each other into one array, the **fusion buffer**, so that one message
#    carries several.
# 4. The all-reduce adds the arrays of all ranks.
# 5. The sum is divided by the number of ranks and copied back into the gradients.
#
# ![Two timelines of a training step of one rank, with a row for computing and a row for the exchange. In PyTorch the gradients of the last layers are exchanged during the backward pass, and only those of the first layers after it. In Keras all gradients are exchanged after the backward pass, so the update begins later.](pictures/distributed_optimizer.svg)
#
# **Learning rate.** With $N$ ranks a step averages $N$ times as many images, so its gradient is less noisy.
# The usual rule multiplies the learning rate by $N$. For example, `--lr 0.05` on two ranks becomes 0.1. Labs
# 6 and 7 ask when that is right. Lab 7 also shows why the learning rate then begins small and rises during the
# first epochs.
#
# ### Exercise 4: Wrap the optimizer
#
# **Edit your copy.** Multiply the learning rate by `hvd.size()`, wrap the optimizer, and train with the
# object that the wrapper returns.
#
# * **Keras**: wrap it before the model is compiled, with `device_dense=chosen.device_dense`.
# * **PyTorch**: also pass `model.named_parameters()`, which gives each gradient a name that all ranks share,
#   and `compression=chosen.compression`. Wrap the optimizer between `state = optimizer.state_dict()` and
#   `optimizer.load_state_dict(state)`. This is after `model.to(device)`, because a move to another device
#   discards the hooks, and before the state is loaded, because the wrapper begins without a state.
#
# The argument from `chosen` matters only if ranks share a GPU or Horovod has no NCCL.
#
# <details><summary>Hint 1: the idea</summary>Two places change: the line that makes the optimizer, for the
# learning rate, and the wrapping after it.</details>
#
# <details><summary>Hint 2: a smaller script</summary>Keras: <code>optimizer = keras.optimizers.SGD(0.05 *
# hvd.size())</code>, then <code>optimizer = hvd.DistributedOptimizer(optimizer)</code>, then
# <code>model.compile(optimizer, loss)</code>. PyTorch: <code>optimizer = torch.optim.SGD(model.parameters(),
# 0.05 * hvd.size())</code>, then <code>optimizer = hvd.DistributedOptimizer(optimizer,
# model.named_parameters())</code>. The name <code>optimizer</code> now means the wrapper. If you gave the
# wrapper another name and continued with the old one, Keras would average nothing and report nothing, and
# PyTorch would stop in the second step with an AssertionError.</details>

# %%
# print(edits.diff("optimizer", FRAMEWORK))  # hint 3: uncomment to see the whole edit

# %% [markdown]
# With this edit, how many *different* networks will two ranks hold after training, one or two? Think of where
# they start.

# %%
# Prediction 1: the number of different networks on two ranks. Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %%
# BEGIN SOLUTION: edit your copy of the script: wrap the optimizer, multiply the rate by hvd.size()
edits.apply(SCRIPT, "optimizer", FRAMEWORK)
# END SOLUTION

# %%
exercises.check_optimizer(SCRIPT)
if prediction is not None:
    print(f"You predicted {prediction} different networks.")

# %% [markdown]
# There are still two. Averaged gradients mean equal *steps*, but the two ranks start with different random
# weights. If $w_0 = 1$ and $w_1 = 4$ and both subtract 0.5 in each step, their difference stays 3 for ever.
# It is even worse: each rank updates its weights with a mean that contains gradients of *other* weights.
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
#   `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`, just before `model.to(device)`, because a
#   Horovod without NCCL must not get arrays on a GPU. The weights come second, because
#   `broadcast_optimizer_state` makes a step with gradients of zero to create a state that does not exist yet,
#   such as the momentum, which PyTorch makes in the first step. Weight decay, which shrinks the weights a
#   little in every step, would move weights that were broadcast before.
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
#    style="whole")`. If each rank made a permutation of its own, the parts would overlap, and other images
#    would be read by nobody: with four ranks $(3/4)^4 = 32 \%$ of them.
# 2. **Random reads.** Every rank draws its images at random from the whole set, *with replacement*: an image
#    can be drawn again. The ranks need only different seeds. In an epoch some images are read twice, and some
#    never.
# 3. **Fixed shards.** The set is split once, before training. A rank keeps its shard, only reshuffles it, and
#    never sees the other images. It needs only $1/N$ of them on its disk. `Batches(..., style="own")` and
#    `shard` of `tf.data` do this. Split at random, because files are often sorted by class.
#
# ![Eight images on two ranks in two epochs. With reshuffle and split each epoch reads every image once, and a rank gets other images in the next epoch. With fixed shards a rank keeps its four images and changes their order. With random reads some images are read twice and some never.](pictures/partition_options.svg)
#
# **Which fraction do random reads see?** The set has $n$ images, and all ranks together make $n$ reads per
# epoch. One read misses a given image with the probability $1 - 1/n$, so all $n$ reads miss it with the
# probability $(1 - 1/n)^n$. For $n = 4$ this is $(3/4)^4 = 0.32$. For large $n$ it approaches $1/e = 0.37$.
# So **random reads see about $1 - 1/e = 63 \%$ of the images in an epoch**. After three epochs $1/e^3 = 5 \%$
# of the images have never been read.
#
# The same product tells what *one* rank of four has seen. With fixed shards it is always 25 %. With reshuffle
# and split it misses an image in an epoch with the probability 3/4, so after three epochs it has seen $1 -
# (3/4)^3 = 58 \%$. With random reads it has made $3n/4$ reads after three epochs. All of them miss an image with
# the probability $(1 - 1/n)^{3n/4}$, about $e^{-3/4} = 47 \%$, so it has seen 53 %.
#
# ### Exercise 6: Three partitions
#
# **What.** Write `partition(option, n, rank, size, epoch, seed)`. **Why.** A wrong seed is a common mistake
# in data loaders for several ranks. **Signature.** `option` is "reshuffle", "random" or "fixed" (options 1, 2
# and 3). Return an array with the numbers of the `n // size` images that the rank reads in this epoch, in
# this order. `n` is a multiple of `size`. Draw from `np.random.default_rng([...])`. Its list of numbers is
# the *seed*, which decides what is drawn.
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
# The next cell counts which fraction of 10,000 images two ranks have read after some epochs.

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
# The right panel shows 1 for reshuffle and for fixed, and 0.63, 0.86, 0.95 and so on for random reads. Rank 0
# alone stays at one half with fixed shards. If every rank can read the whole set, reshuffle-then-split is the
# standard choice.
#
# ## Equal numbers of batches
#
# All ranks must make the same number of steps. Suppose 257 images are split as 129 and 128, with 32 images
# per batch. Rank 0 has $\lceil 129/32 \rceil = 5$ batches, and rank 1 has 4. In step 5, rank 0 calls the
# all-reduce for its gradients. Rank 1 has finished its epoch and never calls it, so rank 0 waits **for
# ever**. This is the deadlock of lab 4 in another form. After 60 seconds Horovod warns about "stalled" ranks,
# but it does not stop the program.
#
# The next cell provokes it, with a time limit. After its 4 steps rank 1 waits in `Barrier`, which returns
# when all ranks have called it. In the finished script rank 1 would wait in the all-reduce of its metrics, and
# rank 0 in that of its gradients. Horovod tells them apart by their names, and begins neither, because each has
# been called by one rank only.


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
# `DistributedSampler`), or let every rank make a fixed number of steps. The argument `drop_last` of the
# `DataLoader` is not enough: it leaves out incomplete batches, and with 32 images per batch, 96 images still
# make 3 batches and 95 images only 2. `Batches` reads a few images twice if necessary: with 257 images on
# two ranks each rank reads 129, and one image is read by both.
#
# A PyTorch script that uses a `DataLoader` gets its shard from a `DistributedSampler`:
#
# ```python
# sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
# loader = DataLoader(data, batch_size=32, sampler=sampler)
# for epoch in range(epochs):
#     sampler.set_epoch(epoch)
# ```
#
# The sampler shuffles with a common seed, splits, and pads the shards to equal lengths. It adds the number of the epoch
# to the seed. Without `set_epoch` each epoch has the same order, and no error message reports it.
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
# <details><summary>Hint 2: a smaller script</summary>In a plain PyTorch script the same edit is the
# <code>DistributedSampler</code> above.</details>

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
# This is the weighted mean of lab 4. For example, rank 0 has 3 of 3 right and rank 1 has 1 of 2. The accuracy
# is $4/5 = 0.8$. The mean of the two accuracies is $(1 + 0.5)/2 = 0.75$, because each image of rank 1 gets a
# larger weight. Unequal shards, such as 51 and 50 held-out images, cause no deadlock here, because the
# evaluation has no all-reduce per batch, only one at its end.
#
# ### Exercise 8: Combine the metrics
#
# **Edit your copy.** Slice the held-out images by rank and size, and combine.
#
# * **Keras**: add `hvd.callbacks.MetricAverageCallback()` before every callback that reads metrics. Horovod's
#   own callback takes the plain mean over the ranks, and ours adds up sums and counts.
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
# Keras load the model with `hvd.load_model`. The broadcast of exercise 5 must stand after the loading, so
# that it sends the loaded weights and momentum. The check kills one of two ranks, and `mpirun` then ends the
# other too. It removes the last checkpoint and restarts the script on two ranks. So one epoch is repeated, and
# must end with the same weights as before. Then it restarts the script on one rank.
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
# At each dotted line all processes ended. Only the unfinished epoch was lost.
#
# ### Effect of each edit
#
# The figure shows the rank reports of all checks.

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
# almost none (257 is odd, so one image goes to both). The metrics edit reduces the difference of the metrics
# to zero. **A script without the optimizer, broadcast, sharding or metrics edit still runs, and its loss
# still falls.** Only the report shows the mistake.
#
# ## Horovod for TensorFlow, Keras, PyTorch and MXNet
#
# Horovod has one module per framework. `init`, `rank`, `size`, `allreduce` and `broadcast` have the same
# names in each, but the wrapper fits the framework:
#
# | module | how gradients are averaged |
# |---|---|
# | `horovod.torch` | `hvd.DistributedOptimizer` wraps a `torch.optim` optimizer |
# | `horovod.tensorflow` | `hvd.DistributedGradientTape` wraps a `tf.GradientTape`, for training loops without `fit` |
# | `horovod.tensorflow.keras` | `hvd.DistributedOptimizer` wraps a Keras 2 optimizer. For Keras 3 use `hvdlab.keras.horovod` |
# | `horovod.mxnet` | `hvd.DistributedTrainer` replaces MXNet's `Trainer` |
#
# Apache [retired](https://attic.apache.org/projects/mxnet.html) MXNet in 2023, so the last module occurs in
# old scripts only.
#
# TensorFlow's *gradient tape* records the forward pass and computes gradients from it. The wrapped tape
# returns averaged gradients. The next cell runs one such step on two ranks. The loss is the mean of $(wx -
# 3x)^2$. Rank 0 holds $x = 1, 2$ and rank 1 holds $x = 3, 4$. At $w = 0$ the gradient $-6 \cdot
# \text{mean}(x^2)$ is $-6 \cdot 2.5 = -15$ on rank 0 and $-6 \cdot 12.5 = -75$ on rank 1. Their mean is
# $-45$.

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
lines = launch.run(tape_script, ranks=2, show=False).splitlines()
print("\n".join(line for line in lines if line.startswith("rank")))

# %% [markdown]
# The losses differ, because the ranks hold different examples. The gradient is $-45$ on both, so both have
# the same new weight.
#
# ## Several nodes and containers
#
# Your finished script runs on more nodes without a change. Only the command differs. On a node with four
# GPUs, and on two such nodes:
#
# ```bash
# mpirun -np 4 python fashion_mnist_torch.py
# mpirun -np 8 -H server1:4,server2:4 python fashion_mnist_torch.py
# horovodrun -np 8 -H server1:4,server2:4 python fashion_mnist_torch.py     # the same, by Horovod's own launcher
# ```
#
# `-np 8` starts eight processes in all. `-H server1:4,server2:4` names the nodes, and the number behind the
# colon says how many of these processes a node can take. The launcher fills the nodes in this order. So ranks
# 0 to 3 run on server1 and ranks 4 to 7 on server2, and on each node the local ranks are 0 to 3.
#
# All nodes need the same versions of the software. The usual solution is a **container**: an image file with
# all the software of a program except for the kernel and the driver of the GPU. NVIDIA publishes tested
# images in its catalogue **NGC**. On one node with four GPUs:
#
# ```bash
# docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/work" -w /work \
#     nvcr.io/nvidia/tensorflow:25.02-tf2-py3 \
#     mpirun -np 4 --allow-run-as-root python fashion_mnist_keras.py
# ```
#
# * `--gpus all` makes the GPUs visible in the container, and `-v "$PWD:/work"` your folder. `-w /work` starts
#   there.
# * `--ipc=host` and `--ulimit memlock=-1` give NCCL and MPI enough shared memory and fixed pages of memory.
# * The version 25.02 makes the run repeatable. It is NVIDIA's last TensorFlow image with Horovod.
#
# Clusters usually do not allow Docker, because its users could become root. They use **Apptainer** (formerly
# Singularity), which runs the same images as an ordinary user. With Slurm each task is a rank in its own
# container:
#
# ```bash
# apptainer pull tensorflow.sif docker://nvcr.io/nvidia/tensorflow:25.02-tf2-py3
# srun --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --mpi=pmix \
#     apptainer exec --nv tensorflow.sif python fashion_mnist_keras.py
# ```
#
# `--nv` makes the driver of the GPU visible. `--mpi=pmix` lets Slurm tell each process its rank, by the
# interface PMIx. [docker/README.md](../docker/README.md#hardware-that-the-course-ran-on) says what ran on which
# hardware, and [docker/slurm](../docker/slurm/README.md) has job scripts. The next cell runs
# `mpirun` on this node with a program that prints the rank and the local rank.

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
# Now both scripts, the serial and the finished one, train for three epochs on 5,000 images on two ranks, with
# 64 images per batch and rank. As in lab 3, the *reference* is the set of results that the course comes with,
# from $n = 3$ runs with different seeds. Error bars are standard deviations.
#
# The serial script makes $\lceil 5000/64 \rceil = 79$ steps per epoch on each rank. How many steps does each
# rank make with the finished script?

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
# $\lceil 2500/64 \rceil = 40$ steps. Each step but the last uses 128 images. With the serial script, two
# ranks train two networks, and in most cases the two accuracies differ. In the reference they differ by 0.2,
# 1.2 and 0.0 percentage points. In the third run they agree by chance. **Equal accuracies prove nothing, and
# equal hashes do.**
#
# ## Tensor fusion and the timeline
#
# The network of the script has four layers with a weight array and a bias array each, so eight gradients, of
# 10 to 100,352 numbers. Eight messages would pay eight times the *latency*, the time that even an empty
# message takes (lab 4). **Tensor fusion** puts gradients that are ready at the same time into the fusion
# buffer, so that one all-reduce averages them. By default up to 128 MiB share a message.
#
# A message with *all* gradients would pay the latency once. But it could leave only when the backward pass is
# over, and then nothing of its time would overlap with computing. So Horovod compromises. It looks every
# millisecond (`HOROVOD_CYCLE_TIME`) which gradients are ready, and sends these together.
#
# ![Without fusion four gradients w1, b1, w2, b2 are sent by four all-reduces. With fusion they are copied next to each other into one fusion buffer, and one all-reduce sends all of them.](pictures/fusion_buffer.svg)
#
# ### Exercise 11: Messages after fusion
#
# **What.** Write `fuse(sizes, threshold)`. **Why.** It predicts the messages of a network per step.
# **Signature.** `sizes` lists the sizes of the gradients in the order in which they are ready. `threshold` is
# the size of the fusion buffer. Go through the gradients in order. A gradient joins the current message if
# the message then has at most `threshold` bytes. Otherwise it begins a new message. Return the list of
# messages, each of them a list of sizes.
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
# After the first steps Horovod remembers names, shapes and types of the gradients, and the ranks tell each
# other only which of them are ready. `HOROVOD_CACHE_CAPACITY=0` makes it negotiate everything in every step,
# so that we can see it. The two ranks never finish a backward pass at exactly the same time. All gradients
# together have 423 kB and stay in the memory of this node. Which phase takes longest?

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
if prediction is not None:
    print(f"You predicted that this phase is the longest: {prediction}.")
print(f"The longest phase, by its median, is: {longest}.")

# %% [markdown]
# One row is one gradient, and the marks show when each rank had it. A negotiation lasts until the *later*
# rank is ready. It is usually the longest phase here, because 423 kB are added within a fraction of a
# millisecond. Bars exactly above each other belong to one message.
#
# ### Fewer messages and fewer bytes
#
# `HOROVOD_FUSION_THRESHOLD=0` switches fusion off. `compression=hvd.Compression.fp16` converts gradients to
# float16 before they are sent, 2 bytes per number instead of 4, and back afterwards. This experiment and the
# next one always run on CPUs, like the reference.
#
# How many messages does a step need *without* fusion?

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
# a step sends half of the bytes, 212 instead of 423 kB. In the reference (n=3) the error bars of the speeds
# overlap, and so do those of the accuracies. Ranks of one node share memory, so a message is cheap. Between
# nodes fusion is worth more. Horovod's authors report up to 65 % more images/s for networks with many layers
# over an ordinary TCP network ([Sergeev and Del Balso, 2018](https://arxiv.org/abs/1802.05799)).
#
# ## Strong and weak scaling
#
# How much faster are two ranks than one? This has two meanings:
#
# * **Strong scaling** keeps the images per step constant: 1 rank with 128 images, or 2 ranks with 64 each.
# * **Weak scaling** keeps the images per step *and rank* constant: 1 rank with 64 images, or 2 ranks with 64
#   each.
#
# With $v_n$ images/s of $n$ ranks together, the **speed-up** is $v_n / v_1$, and the **efficiency** is $v_n /
# (n\,v_1)$. For example, 9,000 images/s on one rank and 12,000 on two are a speed-up of 1.33 and an
# efficiency of 0.67.
#
# **A fair baseline.** Which $v_1$ is fair depends on the question. "What does a second core bring?" compares one
# core with two. But a single process uses all cores if nothing limits it, so one rank with two cores would be
# compared with two ranks with one core each. Therefore we set `OMP_NUM_THREADS=1` and
# `TF_NUM_INTRAOP_THREADS=1` also for one rank. The line "strong, unfair" has the other baseline, one rank
# with two threads. "What do I gain by four GPUs?" compares with the best that you can do without them, which is
# the *original* script on one GPU. The converted script on one rank can be slower than it, because the wrapper
# works although there is nothing to exchange. If the original makes 1,000 images/s, the converted script 900
# on one rank and 3,240 on four, the gain is 3.24, not 3.6.
#
# A single rank processes fewer images/s with 64 images per step than with 128, because each step has a fixed
# overhead (lab 3). Is the speed-up larger with strong or with weak scaling, and why?

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
NAMES = by_run_length(quick=list(SETTINGS)[1:2], learner=list(SETTINGS), reference=list(SETTINGS))


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
# **What the result means.** In the reference (n=3, two cores) the speed-up is 1.31 with strong scaling and
# 1.65 with weak scaling. Two causes of an efficiency below 1 are the exchange of gradients and the wait for
# the slower rank. The third is the smaller batch: a single rank processes about a fifth fewer images/s with
# 64 images per step than with 128. This third cause lowers only the strong scaling, whose baseline has 128
# images per step. In weak scaling the baseline has 64 as well.
#
# The unfair baseline gives another number for the same two ranks. Always report a speed-up with its baseline
# and the number of measurements.

# %% [markdown]
# ## Scripts of other authors
#
# The script of this lab uses `Batches` and `Recorder`, which help you. The scripts that you will meet import
# nothing of this course. The folder `labs/transfer` has five small ones in common styles. Their data are synthetic.
# `hvdlab run -np 2 --report script.py` prints the rank report of any script: it watches the script from outside, as
# `hvdlab check` does. Convert the scripts. Each check runs `hvdlab check` and the report on your copy, each time in an
# empty folder. The exercises are independent of each other, and two of them are enough for practice.

# %%
TRANSFER = WORK / "transfer"
TRANSFER.mkdir(exist_ok=True)
for path in transfer.SERIAL.values():
    if not (TRANSFER / path.name).exists():
        shutil.copy(path, TRANSFER)
print(f"Your copies: {TRANSFER.relative_to(LABS.parent)}")

# %% [markdown]
# ### Exercise 12: A loop of PyTorch
#
# **Edit your copy** of `torch_loop.py`. Its `DataLoader` shuffles by itself, so give it a `DistributedSampler`.

# %%
# print(transfer.EDITS["torch_loop"].diff("horovod"))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of torch_loop.py
shutil.copy(transfer.SERIAL["torch_loop"], TRANSFER)  # from the beginning, whatever was there
transfer.EDITS["torch_loop"].apply(TRANSFER / "torch_loop.py", "horovod")
# END SOLUTION

# %%
transfer.check_transfer(1, TRANSFER / "torch_loop.py")

# %% [markdown]
# ### Exercise 13: Keras with fit
#
# **Edit your copy** of `keras_fit.py`. A callback stops by the validation loss. Which ranks must see the same value?

# %%
# print(transfer.EDITS["keras_fit"].diff("horovod"))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of keras_fit.py
shutil.copy(transfer.SERIAL["keras_fit"], TRANSFER)  # from the beginning, whatever was there
transfer.EDITS["keras_fit"].apply(TRANSFER / "keras_fit.py", "horovod")
# END SOLUTION

# %%
transfer.check_transfer(2, TRANSFER / "keras_fit.py")

# %% [markdown]
# ### Exercise 14: A GradientTape
#
# **Edit your copy** of `gradient_tape.py`. The data come from `tf.data`, whose data sets have a method `shard(number of parts, part)`. Wrap the optimizer by `hvdlab.keras.horovod`, because this is Keras 3.

# %%
# print(transfer.EDITS["gradient_tape"].diff("horovod"))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of gradient_tape.py
shutil.copy(transfer.SERIAL["gradient_tape"], TRANSFER)  # from the beginning, whatever was there
transfer.EDITS["gradient_tape"].apply(TRANSFER / "gradient_tape.py", "horovod")
# END SOLUTION

# %%
transfer.check_transfer(3, TRANSFER / "gradient_tape.py")

# %% [markdown]
# ### Exercise 15: A class that trains
#
# **Edit your copy** of `trainer.py`. The loss that it prints is a mean over all images.

# %%
# print(transfer.EDITS["trainer"].diff("horovod"))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of trainer.py
shutil.copy(transfer.SERIAL["trainer"], TRANSFER)  # from the beginning, whatever was there
transfer.EDITS["trainer"].apply(TRANSFER / "trainer.py", "horovod")
# END SOLUTION

# %%
transfer.check_transfer(4, TRANSFER / "trainer.py")

# %% [markdown]
# ### Exercise 16: Arguments and checkpoints
#
# **Edit your copy** of `checkpoints.py`. The check runs it twice in one folder. The second run must resume on both ranks.

# %%
# print(transfer.EDITS["checkpoints"].diff("horovod"))  # hint 3: uncomment to see the whole edit

# %%
# BEGIN SOLUTION: edit your copy of checkpoints.py
shutil.copy(transfer.SERIAL["checkpoints"], TRANSFER)  # from the beginning, whatever was there
transfer.EDITS["checkpoints"].apply(TRANSFER / "checkpoints.py", "horovod")
# END SOLUTION

# %%
transfer.check_transfer(5, TRANSFER / "checkpoints.py")

# %% [markdown]
# ## Summary
#
# * Horovod averages gradients between equal ranks by MPI, NCCL or Gloo. Its last release is of 2023, and new
#   PyTorch projects use DDP or FSDP.
# * A serial script on two ranks trains two networks without any error message.
# * Nine edits make one training of it. Without some of them it still runs, and only the rank report shows the
#   mistake.
# * Averaged gradients without the broadcast keep the ranks apart for ever. Equal hashes of the weights prove
#   equality.
# * Reshuffle-then-split reads every image once per epoch, random reads about 63 % of them. Fixed shards need
#   only $1/N$ of the images on each rank.
# * All ranks need the same number of training batches, or the program waits for ever.
# * Tensor fusion sent one message per step instead of eight, and float16 sent 212 kB instead of 423 kB.
# * Two ranks were 1.31 times as fast as one with strong scaling and 1.65 times with weak scaling (n=3).
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
