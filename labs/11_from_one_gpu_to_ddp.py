# %% [markdown]
# # Lab 11: From one GPU to DDP
#
# PyTorch's own data parallelism is called `DistributedDataParallel`, or DDP. Its authors report near-linear scaling up to
# 256 GPUs ([Li et al., 2020](https://arxiv.org/abs/2006.15704)). A *near-linear* speed-up means that 256 GPUs process almost
# 256 times as many images per second as one GPU. DDP is a part of PyTorch, so a script needs no further library.
#
# A script for one GPU does not become parallel by itself. It needs a few small changes, and each change has a typical mistake
# that produces no error message. For example, a script that is started twice without any change trains two separate models. Its
# output looks like a normal training run. In this lab you convert such a script in nine edits. After every edit the script
# runs on two ranks, and a table shows what the edit has changed.
#
# **After this lab you can**
#
# * explain what a process group, a backend and a rendezvous are, and which variables `torchrun` gives to each rank,
# * convert a PyTorch script for one GPU to DDP in nine edits, and prove with a rank report that the ranks train one model,
# * write the shard of a rank as `DistributedSampler` computes it, and explain why `set_epoch` is needed,
# * translate each call of Horovod into the call of `torch.distributed` that does the same,
# * start a DDP script on several nodes of a cluster with `sbatch`, `torchrun` and a container.
#
# **Builds on** lab 4 (how an all-reduce averages gradients), lab 5 (the same conversion with Horovod, and the rank report) and
# lab 6 (why the learning rate grows with the number of ranks).
#
# **Time** about 2 hours, of which the computer needs a few minutes.

# %% tags=["folded"]
import os
import shutil

import matplotlib.pyplot as plt
import pandas as pd
import torch

from hvdlab import launch
from hvdlab.course.experiment import LABS, WORK, by_run_length
from hvdlab.course.figures import describe
from hvdlab.course.rank_report import curve, rank_report, text
from hvdlab.course.rank_report import summary as in_short
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab11_from_one_gpu_to_ddp as exercises
from hvdlab.exercises import lab11_ranks_and_shards as functions
from hvdlab.exercises.lab11_script_edits import EDITS

workbook = Workbook(11)
hint = workbook.hint
# All ranks of this lab run on CPUs, also where there are GPUs, because a laptop has fewer GPUs than ranks.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
SERIAL = EDITS.serial
WORK.mkdir(parents=True, exist_ok=True)
SCRIPT = WORK / "fashion_mnist_my_ddp.py"
RUNS = exercises.runs(SCRIPT)  # where the checks record the runs of your script
if not SCRIPT.exists():
    shutil.copy(SERIAL, SCRIPT)
print(f"Your copy: {SCRIPT.relative_to(LABS.parent)}")
if load_fashion_mnist().synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")

# %% [markdown]
# ## The serial script, started twice
#
# Open your copy in JupyterLab's editor (file browser, folder `work/`), next to this notebook. The script trains a small
# convolutional network on Fashion-MNIST with one process. Find the lines that load the data, make the model, make the
# optimizer, train, print, and write a checkpoint. `Recorder` writes the weights of this process and the numbers of the images
# that it read. The rank report is made from these files. To start again, delete your copy and run the cell above again.
#
# *`torchrun`* is PyTorch's program for starting ranks. A **rank** is one of the processes of a run, and also the number of this
# process. The next cell types this command for you:
#
#     torchrun --standalone --nproc-per-node 2 labs/fashion_mnist_torch.py --epochs 2 --images 257 ...
#
# You can use `hvdlab run -np 2 --launcher torchrun SCRIPT` instead. If a rank fails, it names the rank that failed first.
# The run uses 257 training images and 101 held-out images. Both are prime numbers, so that no number of ranks from 2 to 100
# divides them. Mistakes in the division of the data then become visible.

# %%
FEW = ["--epochs", 2, "--images", 257, "--heldout", 101, "--batch-size", 32, "--lr", 0.05]
shutil.rmtree(RUNS / "serial", ignore_errors=True)
launch.run(SERIAL, *FEW, ranks=2, launcher="torchrun", HVDLAB_RUN_DIR=str(RUNS / "serial"))
print(text(rank_report(RUNS / "serial")))

# %% [markdown]
# The rank report has one row per rank, as in lab 5:
#
# | column | meaning |
# |---|---|
# | weights | the first digits of a hash (SHA-256) of all trained weights; two equal hashes mean weights that are equal to the last bit |
# | examples, overlap | images that the rank read in the epoch, and the percentage of them that rank 0 read too |
# | steps | updates that the rank made in the epoch |
# | loss, accuracy | training loss and held-out accuracy, as the script reports them |
#
# There are two different hashes, so there are two models. Each rank read all 257 images, and the two lines that were printed
# for each epoch disagree. The two processes did the same work twice, and they did not exchange a single number.
#
# ## Process group, backend and rendezvous
#
# The module `torch.distributed` contains everything that ranks need in order to exchange tensors. It uses four terms.
#
# * A **process group** is a set of ranks that communicate with each other. Every collective operation, for example an all-reduce,
#   runs in a process group. All ranks of the group must call the same collectives in the same order. The default group contains all
#   ranks.
# * A **backend** is the library that moves the data. `nccl` is NVIDIA's library for tensors on GPUs. `gloo` is a library for
#   tensors in the memory of the CPU, and it works over ordinary network connections. `mpi` uses an MPI library, but only if
#   PyTorch was compiled from source with it. The usual choice is `nccl` with GPUs and `gloo` without.
# * The **rendezvous** is the first meeting of the ranks. At the start, a rank does not know where the others are. So all of them
#   connect to one known address, `MASTER_ADDR:MASTER_PORT`, where rank 0 or `torchrun` runs a small key-value store. Each rank
#   writes its own address there and reads the addresses of the others.
# * A **launcher** starts the processes and tells each of them its number. `torchrun` passes the numbers in environment variables, and
#   `init_process_group` reads them there. This method is called `env://`, and it is the default.
#
# | variable | meaning | on 2 nodes with 4 ranks each |
# |---|---|---|
# | `RANK` | number of this rank among all ranks | 0 to 7 |
# | `WORLD_SIZE` | number of all ranks, the *world size* | 8 |
# | `LOCAL_RANK` | number of this rank on its own node | 0 to 3 on each node |
# | `LOCAL_WORLD_SIZE` | number of ranks on this node | 4 |
# | `MASTER_ADDR`, `MASTER_PORT` | where the ranks meet | the same on all ranks |
#
# A **node** is one machine of a cluster. The picture shows two nodes with two ranks each.
#
# ![Two nodes with one torchrun each. Every torchrun starts two ranks and gives them RANK, LOCAL_RANK and WORLD_SIZE in the environment. All four ranks then join one process group, which uses the backend gloo or nccl.](pictures/process_group_torchrun.svg)
#
# **torchrun compared with mpirun.** `mpirun` starts ranks on all nodes from one command, and it uses ssh or
# the scheduler to reach them. `torchrun` starts ranks only on the node where you type it, so it must be
# started once on every node. Under `mpirun` the ranks find each other through the MPI library, and under
# `torchrun` through the key-value store. If a rank fails, both of them end the other ranks. In addition,
# `torchrun --max-restarts N` starts all ranks again up to N times.
#
# A script that reads `RANK` from the environment does not run under `mpirun` or `srun`, because they use other names, for example
# `OMPI_COMM_WORLD_RANK` and `SLURM_PROCID`. This course's function `rendezvous()` from `hvdlab.torch.process_group` translates
# these names. The finished example `labs/fashion_mnist_ddp.py` calls it, and therefore runs under all three launchers.
#
# ### Exercise 1: The variables of a rank
#
# **What:** write `torchrun_variables(node, local_rank, ranks_per_node, nodes)`. It returns a dict with the four numbers `RANK`,
# `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE`. Nodes and local ranks count from 0.
#
# **Why:** confusing `RANK` with `LOCAL_RANK` is the most frequent mistake on a cluster, and it stays invisible on a single machine.
#
# **Signature:** four whole numbers in, a dict from names to whole numbers out.
#
# <details><summary>Hint 1</summary>All ranks of node 0 come first, then all ranks of node 1. So count how many ranks stand before a
# node.</details>
#
# <details><summary>Hint 2</summary>With four ranks per node, node 1 begins with rank 4. Its local rank 2 is rank 4 + 2 = 6, and with
# two nodes there are 2 x 4 = 8 ranks.</details>
#
# <details><summary>Hint 3</summary><code>"RANK": node * ranks_per_node + local_rank</code>, and
# <code>"WORLD_SIZE": nodes * ranks_per_node</code>.</details>


# %%
def torchrun_variables(node, local_rank, ranks_per_node, nodes):
    # BEGIN SOLUTION: return the four numbers that torchrun gives to this rank
    return {
        "RANK": node * ranks_per_node + local_rank,
        "WORLD_SIZE": nodes * ranks_per_node,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": ranks_per_node,
    }
    # END SOLUTION


# %%
functions.check_torchrun_variables(torchrun_variables)

# %% [markdown]
# Compare your answer with the real variables of two ranks on this machine:

# %%
PROBE = WORK / "print_rank_variables.py"
PROBE.write_text(
    "import os\n"
    "for name in 'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR':\n"
    "    print(f'{name}={os.environ[name]}', end='  ')\n"
    "print()\n",
    encoding="utf-8",
)
launch.run(PROBE, ranks=2, launcher="torchrun")
print("yours:", [torchrun_variables(0, local, 2, 1) for local in (0, 1)])

# %% [markdown]
# ## Horovod and torch.distributed, call by call
#
# Horovod and DDP do the same thing: every rank holds the whole model, computes the gradients of its own
# images, and the ranks average the gradients before each update. They differ in where the calls are. Horovod
# wraps the optimizer, so `optimizer.step()` waits for the average. DDP wraps the model, so `loss.backward()`
# waits for it. The table has both calls next to each other. The nine edits of this lab use
# these calls, and the edit that adds the wrapper does two lines of the table.
#
# | edit | Horovod | torch.distributed |
# |---|---|---|
# | connect the ranks | `hvd.init()` | `dist.init_process_group("nccl")`, or `"gloo"` on CPUs |
# | choose a device | `torch.cuda.set_device(hvd.local_rank())` | `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` |
# | shard the data | `DistributedSampler(data, hvd.size(), hvd.rank())` | `DistributedSampler(data)`, which finds rank and size by itself |
# | begin with equal weights | `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` | `DistributedDataParallel(model)` |
# | average the gradients | `hvd.DistributedOptimizer(optimizer, ...)` | the same wrapper, `DistributedDataParallel(model)` |
# | wait for all ranks | `hvd.barrier()` | `dist.barrier()` |
# | only one rank prints | `if hvd.rank() == 0:` | `if dist.get_rank() == 0:` |
# | add up a metric | `total = hvd.allreduce(total, op=hvd.Sum)`, which returns the sum | `dist.all_reduce(total)`, which changes `total` itself |
# | send the optimizer's state | `hvd.broadcast_optimizer_state(optimizer, root_rank=0)` | every rank loads the same state; DDP does not send it |
# | send any Python object | `hvd.broadcast_object(value, root_rank=0)` | `dist.broadcast_object_list([value], src=0)` |
# | end | nothing | `dist.destroy_process_group()` |
#
# Two differences cause mistakes when people switch. First, Horovod's `allreduce` averages by default and returns a new tensor,
# but `dist.all_reduce` sums by default and overwrites its argument. Second, Horovod's wrapper has no weights, so the model keeps its
# names. DDP's wrapper is a module that contains the model under the name `module`, and this name appears in checkpoints.

# %% [markdown]
# ## Process group initialisation
#
# `dist.init_process_group(backend)` performs the rendezvous and returns when all ranks have called it. Before this call, every other
# function of `torch.distributed` raises an error. After it, `dist.get_rank()` and `dist.get_world_size()` return the two numbers.
# At the end of the script `dist.destroy_process_group()` closes the connections. Without this call PyTorch prints a warning when the
# script ends with the backend `nccl`, and a rank may exit while another one still waits for its data.
#
# Destroy the group after `main()` has returned. The variables of `main` contain the wrapped network, and the
# wrapped network keeps the group in memory. If you destroy the group first, the wrapped network frees the
# group's memory later. With Gloo a rank can then hang forever. Only one thread at a time may run Python, and
# it holds a lock while it does (the *global interpreter lock*). The thread that frees the group holds this
# lock while it waits until Gloo's threads end. But one of these threads waits for the lock, because it must
# free a tensor. This happens rarely, and mostly on a busy machine ([PyTorch issue
# 56297](https://github.com/pytorch/pytorch/issues/56297)).
#
# ### Exercise 2: Connect the ranks
#
# **What:** edit your copy. Import `torch.distributed` as `dist`, call `dist.init_process_group(...)` right after the arguments are
# parsed, and call `dist.destroy_process_group()` in the last line of the script, after `main()`. Choose the backend by
# `torch.cuda.is_available()`.
#
# **Why:** without a process group, the processes cannot exchange anything.
#
# **How the exercises work:** the code cell that raises `NotImplementedError` is only a reminder. Make the edit in your copy, delete
# this line, and continue with the check. The check starts your script on two ranks and prints the rank report.
#
# <details><summary>Hint 1</summary>Three lines change: one among the imports, one at the beginning of <code>main</code>, and one at
# the end of the script, after the call of <code>main</code>.</details>
#
# <details><summary>Hint 2</summary>On a machine without GPUs the ranks must use "gloo", because "nccl" needs one GPU per rank. The
# expression <code>"nccl" if torch.cuda.is_available() else "gloo"</code> is right on both.</details>
#
# <details><summary>Hint 3</summary>Run <code>print(EDITS.diff("init"))</code> in a new cell. It shows the whole edit.</details>

# %%
# BEGIN SOLUTION: edit your copy of the script: create and destroy the process group
shutil.copy(SERIAL, SCRIPT)  # start from the serial script
EDITS.apply(SCRIPT, "init")
# END SOLUTION

# %%
exercises.check_init(SCRIPT)

# %% [markdown]
# The ranks are connected, but they do not use the connection yet. The report is the same as before.
#
# ## Device of each rank
#
# On a node with four GPUs, every process uses GPU 0 unless the script chooses another one. All four ranks
# would then share one GPU, and NCCL refuses this with the message "Duplicate GPU detected". The rule is that
# the rank with local rank `i` uses GPU `i` of its node. `RANK` is the wrong number. For example, on the
# second of two nodes with four GPUs each, the ranks are 4 to 7, but the GPUs are 0 to 3. These ranks would
# stop with the error "invalid device ordinal".
#
# `torch.cuda.set_device(device)` makes this GPU the default one of the process. It must stand before the first tensor is moved, because
# some operations of NCCL, for example `dist.barrier()` and `dist.broadcast_object_list`, use the default GPU.
#
# If a node has fewer GPUs than ranks, or if the launcher shows each rank only one GPU, use `group_device()` of this course. It is the
# counterpart of `rank_device(hvd)` in lab 5.
#
# ### Exercise 3: Choose the device
#
# **What:** edit your copy. Read `LOCAL_RANK` from the environment, and build `device` with it. Without a GPU the device stays the CPU.
#
# **Why:** each rank needs a GPU of its own for speed, and NCCL demands it.
#
# <details><summary>Hint 1</summary>The environment contains texts, so convert the value to a whole number.</details>
#
# <details><summary>Hint 2</summary>Local rank 2 needs <code>torch.device("cuda", 2)</code>. Call
# <code>torch.cuda.set_device</code> only if the device is a GPU.</details>
#
# <details><summary>Hint 3</summary><code>local_rank = int(os.environ["LOCAL_RANK"])</code>. The whole edit:
# <code>print(EDITS.diff("device"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: choose the device by LOCAL_RANK
EDITS.apply(SCRIPT, "device")
# END SOLUTION

# %%
exercises.check_device(SCRIPT)

# %% [markdown]
# ## DistributedSampler and set_epoch
#
# Each rank should read a different **shard** of the data, that is, its own fraction of the images. A `DataLoader` takes the
# indices of its examples from a **sampler**. *`DistributedSampler`* yields only the indices of one rank.
#
# It works without any message between the ranks. All ranks use the same seed, so they compute the same random
# order. Rank `r` of `N` then takes every N-th index, beginning with number `r`. If the number of images is
# not divisible by `N`, the first indices are appended to the end, so that all shards have the same length.
# Equal lengths are necessary because every rank must make the same number of steps. Otherwise one rank waits
# forever for the gradients of a rank that has already finished. For example, 10 images on 4 ranks in the
# order 0 to 9 become the shards [0, 4, 8], [1, 5, 9], [2, 6, 0] and [3, 7, 1]: the images 0 and 1 are read
# twice. With `drop_last=True` the sampler leaves images out instead, here 8 and 9. `shuffle=False` keeps the
# order of the data, as a test set needs it.
#
# **For example**, five images and two ranks: the order is [3, 0, 4, 1, 2]. The first index is appended, which gives
# [3, 0, 4, 1, 2, 3]. Rank 0 reads 3, 4, 2 and rank 1 reads 0, 1, 3. Image 3 is read twice, and no image is left out.
#
# ![Five images and two ranks. In each epoch all ranks compute the same random order and append its first index. Rank 0 takes the indices at even positions and rank 1 those at odd positions. Epoch 1 has another order, so the shards change.](pictures/distributed_sampler.svg)
#
# The seed of the order is `seed + epoch`, and the sampler does not know the epoch. `sampler.set_epoch(epoch)` tells it. If a script
# forgets this call, the epoch stays 0. Every epoch then has the same order, and each rank sees the same half of the images in the whole
# training.
#
# ### Exercise 4: The shard of a rank
#
# **What:** write `shard_indices(n, rank, size, epoch, seed)`, which returns the same list of indices as `DistributedSampler`.
#
# **Why:** when you know these four lines, you can predict what goes wrong without `set_epoch`, or with a different seed on each rank.
#
# **Signature:** five whole numbers in, a list of `ceil(n / size)` indices out. Use `torch.randperm(n, generator=generator)` with a
# generator whose seed is `seed + epoch`.
#
# <details><summary>Hint 1</summary>Compute the whole order first, with a generator that is the same on all ranks. Make its length
# divisible by <code>size</code>. Take your own indices last.</details>
#
# <details><summary>Hint 2</summary>With n = 5 and size = 2, one index is missing, and <code>-5 % 2</code> is 1. With n = 6 none is
# missing, and <code>-6 % 2</code> is 0. So <code>order[: -n % size]</code> is the part to append.</details>
#
# <details><summary>Hint 3</summary><code>order = torch.randperm(n, generator=generator).tolist()</code>, then
# <code>order += order[: -n % size]</code>, then <code>return order[rank::size]</code>. The generator is
# <code>torch.Generator().manual_seed(seed + epoch)</code>.</details>


# %%
def shard_indices(n, rank, size, epoch, seed):
    # BEGIN SOLUTION: return the indices that a rank reads in an epoch
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    order += order[: -n % size]
    return order[rank::size]
    # END SOLUTION


# %%
functions.check_shard_indices(shard_indices)

# %% [markdown]
# Predict the result of the next edit before you make it. After it, every rank reads its own shard, and nothing else is new.

# %%
# Prediction 1: how many different models will two ranks train after the sampler edit? Replace both values of None.
workbook.predict(1, None, reason=None)

# %% [markdown]
# ### Exercise 5: Shard the data
#
# **What:** edit your copy. Replace `Batches` by a `DataLoader` with a `DistributedSampler`, and call `set_epoch` at the start of each
# epoch. The script works on arrays, so it takes four steps:
#
# 1. Make a data set of tensors: `examples = TensorDataset(to_input(images, "cpu"), torch.tensor(labels).long())`.
# 2. Make the sampler with the common seed `args.seed`, and the loader with this sampler. Keep the name `batches` for the loader, because
#    `Recorder` gets it.
# 3. Loop over `batches`. It yields tensors, so the model gets `x.to(device)`, and the loss gets `y.to(device)`.
# 4. The number of images that this rank reads in an epoch is now `len(sampler)`.
#
# **Why:** with N ranks, each rank has to read only 1/N of the images, which is where the speed-up comes from.
#
# <details><summary>Hint 1</summary>A <code>DataLoader</code> takes either a sampler or <code>shuffle=True</code>, and not both. The
# sampler shuffles by default.</details>
#
# <details><summary>Hint 2</summary>The variable <code>seed</code> of the script differs between the ranks: it is 1 on rank 0 and 2 on
# rank 1, because the script adds the
# number of the process to it, as in lab 5. With it, the ranks would compute different orders,
# and some images would be read twice and others never.</details>
#
# <details><summary>Hint 3</summary><code>sampler = DistributedSampler(examples, seed=args.seed)</code> and
# <code>batches = DataLoader(examples, args.batch_size, sampler=sampler)</code>. The whole edit:
# <code>print(EDITS.diff("sampler"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: read the shard of each rank with a DistributedSampler
EDITS.apply(SCRIPT, "sampler")
# END SOLUTION

# %%
exercises.check_sampler(SCRIPT)
if any(RUNS.glob("sampler/rank-1/epoch-*.npz")):  # a quick run leaves this run out
    workbook.result(1, in_short(rank_report(RUNS / "sampler"))["models"])

# %% [markdown]
# There are still two models, because no gradient has been exchanged. The overlap has fallen to 1 %: rank 0
# also reads one of the 129 images of rank 1, because 257 is odd. In one respect the result is now worse than
# before. Each model has seen only half of the images. The reasoning that leads to the right prediction is
# that sharding concerns the input only, and equal weights need equal initial weights *and* equal gradients.
#
# ## DistributedDataParallel
#
# `parallel = DistributedDataParallel(model)` returns a wrapper around the model. The wrapper does three things.
#
# 1. **When it is created**, it compares the shapes of all parameters between the ranks. Then it broadcasts the parameters and
#    buffers of rank 0 to all ranks. (A *buffer* is a tensor of the model that is not trained, for example a running mean of batch norm.)
#    Afterwards all ranks hold the weights of rank 0.
# 2. **In every forward pass of a training step**, it broadcasts the buffers of rank 0 again (`broadcast_buffers=True`, the default). So
#    the running means of batch norm follow the images of rank 0, and are not means over all ranks.
# 3. **In every backward pass**, it averages the gradients. The wrapper registers a function, called a *hook*, for each parameter. The hook
#    runs as soon as the gradient of its parameter is ready. When the gradients of a group of parameters, called a *bucket*,
#    are ready, an all-reduce of the bucket starts while the backward pass still computes earlier layers. Lab 12 measures this.
#
# **For example**, rank 0 begins with w = 1 and rank 1 with w = -2. The wrapper sets both to 1. In the first step rank 0 computes the
# gradient 2 and rank 1 computes 4. After the backward pass both have the mean, 3. With a learning rate of 0.1 both ranks
# update to 1 - 0.1 x 3 = 0.7, so the weights stay equal without being sent again.
#
# ![The wrapper broadcasts the weight 1 of rank 0 to rank 1 once. In every step each rank computes its own gradient, 2 and 4. The all-reduce gives both ranks the mean 3, and both update their weight to 0.7.](pictures/ddp_wrapper.svg)
#
# The training step must call the *wrapper*, `parallel(x)`, because the wrapper's forward pass prepares the
# exchange. If the step calls `model(x)`, no gradient is averaged, and there is no error message. The ranks
# begin with equal weights and drift apart.
#
# Two more rules follow. DDP expects a gradient for every parameter in every step. If a part of the network is
# not used, the second step raises an error that names the option `find_unused_parameters=True`. And DDP
# divides the sum of the gradients by the number of ranks. The result is the gradient of the whole batch only
# if every rank has as many images of this batch as every other rank.
#
# With N ranks one step uses N times as many images, so multiply the learning rate by `dist.get_world_size()`. Lab 6 explains when this is
# right.
#
# ### Exercise 6: Wrap the model
#
# **What:** edit your copy. Multiply the learning rate, wrap the model just before `Recorder` is created, and call the wrapper in the
# training step. Leave the names `model` and `parallel` for the model and its wrapper: evaluation and checkpoints
# continue to use `model`.
#
# **Why:** this is the edit that turns two training runs into one.
#
# <details><summary>Hint 1</summary>Wrap the model after <code>model.to(device)</code> and after a checkpoint was loaded, because
# the wrapper sends the weights that the model has at this moment.</details>
#
# <details><summary>Hint 2</summary>Only one call in the training loop changes. The wrapper holds the same parameters as the model, so the
# optimizer, which got <code>model.parameters()</code>, updates the right ones.</details>
#
# <details><summary>Hint 3</summary><code>parallel = DistributedDataParallel(model)</code>, and in the loop
# <code>parallel(x.to(device))</code>. The whole edit: <code>print(EDITS.diff("ddp"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: wrap the model, scale the learning rate, call the wrapper
EDITS.apply(SCRIPT, "ddp")
# END SOLUTION

# %%
exercises.check_ddp(SCRIPT)

# %% [markdown]
# The hashes are equal: there is one model. With Horovod this took two edits, the wrapped optimizer and the broadcast of the initial
# weights. The loss and the accuracy of the ranks still differ, because each rank reports its own images, or its own count.
#
# ## Download on local rank 0
#
# A training script often downloads its data when it starts. If four ranks of a node find no file, all four download it into the same
# folder at the same time. One rank may then read a file that another rank has only half written. On a shared disk with 1,000
# ranks, the download may also overload the server.
#
# The usual solution uses a barrier. `dist.barrier()` is a collective that returns when all ranks have called it. The ranks with another
# local rank than 0 wait in the barrier *before* they load the data. Local rank 0 loads the data first, and calls the barrier
# *afterwards*. The others continue at this moment, and they find complete files.
#
# ![Timeline of two nodes with two ranks each. On each node local rank 0 downloads and reads, while local rank 1 waits in a barrier. When both local ranks 0 have called the barrier too, the other ranks read the files and all ranks train.](pictures/download_barrier.svg)
#
# The test uses the *local* rank, because each node may have its own disk. With the test `dist.get_rank() == 0`, only the first
# node would get the files. Every rank calls the barrier exactly once. A rank that does not call it would leave all others waiting.
#
# ### Exercise 7: Download once per node
#
# **What:** edit your copy, so that local rank 0 calls `load_fashion_mnist()` first. The check makes loading one second slower, and
# compares the times at which the ranks begin and end.
#
# **Why:** a *race* is a fault whose effect depends on which rank arrives first. If two ranks write one file, a race
# damages it rarely and at random, which makes it hard to find later.
#
# <details><summary>Hint 1</summary>The call of <code>load_fashion_mnist</code> stays where it is, and every rank makes it. There is one
# <code>if</code> before it and one after it.</details>
#
# <details><summary>Hint 2</summary>With two ranks: rank 1 calls the barrier first and waits. Rank 0 loads and then calls the
# barrier. Now both continue, and rank 1 loads. Each rank has called the barrier once.</details>
#
# <details><summary>Hint 3</summary><code>if local_rank != 0: dist.barrier()</code> before, and
# <code>if local_rank == 0: dist.barrier()</code> after. The whole edit: <code>print(EDITS.diff("download"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: let local rank 0 load the data first
EDITS.apply(SCRIPT, "download")
# END SOLUTION

# %%
exercises.check_download(SCRIPT)

# %% [markdown]
# ## Output on rank 0
#
# With 256 ranks, a print in each epoch gives 256 lines. It is usual that only rank 0 prints. Here the test uses `dist.get_rank()`,
# because local rank 0 exists once on *every* node. What is printed must be correct for the whole run, which is the subject of the next
# section. Everything else, for example `recorder.epoch_end(...)`, continues to run on all ranks.
#
# ### Exercise 8: Print on one rank
#
# **What:** edit your copy, so that only rank 0 prints the line of an epoch.
#
# **Why:** readable output, and a log that does not grow with the number of ranks.
#
# <details><summary>Hint 1</summary>One <code>if</code> around one <code>print</code>.</details>
#
# <details><summary>Hint 2</summary>On two nodes with four ranks each there are two local ranks 0, namely the ranks 0 and 4, but only one
# rank 0.</details>
#
# <details><summary>Hint 3</summary><code>if dist.get_rank() == 0:</code>. The whole edit:
# <code>print(EDITS.diff("output"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: print on rank 0 only
EDITS.apply(SCRIPT, "output")
# END SOLUTION

# %%
exercises.check_output(SCRIPT)

# %% [markdown]
# ## Metrics over all ranks
#
# Each rank has the loss of its own images only, and all ranks evaluate the same held-out images. It is better that each rank evaluates a part of
# them, and that the ranks add up their results. If rank $k$ classifies $r_k$ of $n_k$ images correctly,
#
# $$\text{accuracy} = \frac{\sum_k r_k}{\sum_k n_k} \qquad\text{and not}\qquad \frac{1}{N}\sum_k \frac{r_k}{n_k}.$$
#
# The second expression is wrong if the $n_k$ differ. **For example**, rank 0 has 2 of 2 images right and rank 1 has 0 of 1. The
# accuracy is 2/3. The mean of the two accuracies is (1 + 0) / 2 = 1/2.
#
# `dist.all_reduce(tensor)` replaces the tensor on every rank by the sum over all ranks. The tensor must be on the device of the backend:
# with `nccl` on the GPU, and with `gloo` on the CPU.
#
# ### Exercise 9: Combine the metrics
#
# **What:** edit your copy. Let each rank evaluate every N-th of the first `args.heldout` images, beginning with its own number. In `mean`, add
# up the total and the count over all ranks, and then divide. `mean` needs the device for this, so pass it.
#
# **Why:** a decision that depends on a metric, for example *early stopping*, which ends a training when the metric no longer
# improves, must be the same on all ranks.
#
# <details><summary>Hint 1</summary><code>slice(start, stop, step)</code> with the rank as the start and the number of ranks as the
# step.</details>
#
# <details><summary>Hint 2</summary>With 101 images and two ranks, rank 0 evaluates the images 0, 2, ..., 100, which are 51, and rank 1
# evaluates 1, 3, ..., 99, which are 50. One tensor with two numbers, [right, count], needs a single all-reduce.</details>
#
# <details><summary>Hint 3</summary><code>both = torch.tensor([total, count], dtype=torch.float64, device=device)</code>, then
# <code>dist.all_reduce(both)</code>. The whole edit: <code>print(EDITS.diff("metrics"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: evaluate in parts, add up sums and counts
EDITS.apply(SCRIPT, "metrics")
# END SOLUTION

# %%
exercises.check_metrics(SCRIPT)

# %% [markdown]
# ## Checkpoints without the prefix module.
#
# All ranks hold the same weights, so one file is enough. Two ranks that write the same file at the same time may leave a damaged
# one. The test uses `dist.get_rank() == 0`, because the checkpoint is needed once per run.
#
# There is a second trap. The wrapper is a module that contains the model under the name `module`. So `parallel.state_dict()`
# has the names `module.0.weight`, `module.0.bias`, and so on. The serial script expects `0.weight`, and cannot load such a file.
# `model.state_dict()` has the right names, and so does `parallel.module.state_dict()`.
#
# ### Exercise 10: Write checkpoints on rank 0
#
# **What:** edit your copy, so that only rank 0 writes, and that the file contains the weights of the model itself. The check
# gives each rank a folder of its own in order to see which ranks write. It also reads the names in the file.
#
# **Why:** a checkpoint should not depend on the number of ranks, nor on the library that trained it.
#
# <details><summary>Hint 1</summary>One more condition in an <code>if</code>. Check what <code>save</code> gets.</details>
#
# <details><summary>Hint 2</summary>If you named the wrapper <code>model</code>, the model itself is <code>model.module</code>. If you
# kept the two names of exercise 6, <code>save</code> already gets the model.</details>
#
# <details><summary>Hint 3</summary><code>if args.checkpoint and dist.get_rank() == 0:</code>. The whole edit:
# <code>print(EDITS.diff("checkpoint"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: write checkpoints of the model on rank 0
EDITS.apply(SCRIPT, "checkpoint")
# END SOLUTION

# %%
exercises.check_checkpoint(SCRIPT)

# %% [markdown]
# ## Resuming with another number of ranks
#
# Long runs are interrupted, for example by the time limit of a job. The serial script continues from its latest checkpoint. With ranks,
# three more things are needed.
#
# * **The other ranks must learn what rank 0 found.** If each node has its own disk, only rank 0 finds the file. A rank that starts at
#   epoch 0 while rank 0 starts at epoch 3 would make more steps than rank 0.
# * **The state of the optimizer must be sent too.** DDP broadcasts weights and buffers, but it does not know the optimizer. Without
#   its momentum the other ranks make different updates, and the models drift apart.
# * **The learning rate must fit the new number of ranks.** The checkpoint contains the learning rate of the old number.
#
# `dist.broadcast_object_list(found, src=0)` sends a list of Python objects from rank 0, and overwrites the list on the other ranks. All ranks
# call it, with a list of the same length.
#
# ### Exercise 11: Resume on all ranks
#
# **What:** edit your copy. Rank 0 loads the newest checkpoint and broadcasts its content and the first epoch. Every rank then loads
# the weights and the optimizer's state, and sets `optimizer.param_groups[0]["lr"]` again. The check kills one of two ranks
# during training, restarts on two ranks, and then on one.
#
# **Why:** a job that is interrupted at night should continue on any number of GPUs that are free in the morning.
#
# <details><summary>Hint 1</summary>The broadcast must stand outside of every <code>if</code> that depends on the rank or on
# <code>saved</code>, because all ranks must call it.</details>
#
# <details><summary>Hint 2</summary>Start with <code>found = [None, 0]</code> on every rank. Rank 0 replaces it by the state and the
# number of the next epoch if there is a file. After the broadcast all lists are equal, and <code>state</code> is None on
# all ranks or on none.</details>
#
# <details><summary>Hint 3</summary><code>dist.broadcast_object_list(found, src=0)</code>, then
# <code>state, first_epoch = found</code>. The whole edit: <code>print(EDITS.diff("resume"))</code></details>

# %%
# BEGIN SOLUTION: edit your copy of the script: resume on all ranks from rank 0's checkpoint
EDITS.apply(SCRIPT, "resume")
# END SOLUTION

# %%
exercises.check_resume(SCRIPT)

# %% [markdown]
# ## Rank report after each edit
#
# The checks kept the runs that they made. The figure shows their rank reports in three numbers per edit. (A quick run of this
# notebook leaves most of the runs out.)

# %% tags=["folded"]
kept = [name for name in ("serial", *EDITS.steps) if any(RUNS.glob(f"{name}/rank-1/epoch-*.npz"))]
short = pd.DataFrame([in_short(rank_report(RUNS / name)) for name in kept], index=kept)
figure, panels = plt.subplots(3, 1, figsize=(7, 5.4), sharex=True)
for axes, column, label, form in zip(
    panels,
    ["models", "overlap", "spread"],
    ["distinct\nmodels", "images read\nby both", "largest difference\nin a metric"],
    ["%d", "{:.0%}", "%.2g"],
    strict=True,
):
    axes.bar_label(axes.bar(kept, short[column]), fmt=form, padding=2)
    axes.set_ylabel(label)
    axes.margins(y=0.25)
panels[2].tick_params(axis="x", rotation=30)
describe(
    figure,
    "Three bars per edit: the number of distinct models falls from two to one with the DDP edit, the images that "
    "both ranks read fall to almost none with the sampler, and the metrics agree after the metrics edit.",
)

# %% [markdown]
# Each number is repaired by exactly one edit. The sampler reduces the images that both ranks read to almost none, the wrapper makes one
# model, and the all-reduce of the metrics makes the ranks agree. A script without one of these edits still runs, and still prints a
# falling loss.
#
# ## Fashion-MNIST with DDP
#
# Now train for real. If data parallelism is implemented correctly, two ranks with 64 images each must train exactly like a single process
# with 128 images per step. You can test it with your own script. Start it with one rank and `--batch-size 128 --lr 0.04`, and with two ranks and
# `--batch-size 64 --lr 0.02`. The sampler gives the two ranks together the same 128 images per step, and the learning rate is 0.04 in
# both runs, because your script multiplies it by the number of ranks.

# %%
# Prediction 2: is the training loss of the last epoch on two ranks "lower", "equal" or "higher"? Add your reason.
workbook.predict(2, None, form=["lower", "equal", "higher"], reason=None)

# %%
IMAGES = by_run_length(quick=1024, learner=8192, reference=8192)
EPOCHS = by_run_length(quick=1, learner=3, reference=3)
HELDOUT = by_run_length(quick=1000, learner=5000, reference=5000)
SHARED = ["--images", IMAGES, "--epochs", EPOCHS, "--heldout", HELDOUT]
SETTINGS = {1: ["--batch-size", 128, "--lr", 0.04], 2: ["--batch-size", 64, "--lr", 0.02]}


def train(ranks):
    folder = RUNS / f"experiment-{ranks}"
    shutil.rmtree(folder, ignore_errors=True)
    options = dict(ranks=ranks, launcher="torchrun", show=False, OMP_NUM_THREADS="1")
    launch.run(SCRIPT, *SETTINGS[ranks], *SHARED, HVDLAB_RUN_DIR=str(folder), **options)
    return folder


folders = {ranks: train(ranks) for ranks in SETTINGS}
print(text(rank_report(folders[2])))

# %% tags=["folded"]
curves = {ranks: curve(folder) for ranks, folder in folders.items()}
table = pd.DataFrame({
    f"{ranks} x {SETTINGS[ranks][1]}": {
        "steps per epoch": lines["steps"].iloc[-1],
        "training loss": lines["loss"].iloc[-1],
        "held-out accuracy": lines["accuracy"].iloc[-1],
        "images/s of rank 0": lines["images_per_second"].iloc[-1],
    }
    for ranks, lines in curves.items()
})  # fmt: skip
difference = (curves[1]["loss"] - curves[2]["loss"]).abs().max()
print(f"Largest difference of the training loss in an epoch: {difference:.1e}")
alone, together = (lines["loss"].iloc[-1] for lines in curves.values())
is_equal = abs(together - alone) < 0.01 * alone  # training makes the rounding errors larger
workbook.result(2, "equal" if is_equal else "lower" if together < alone else "higher")
table.round(4)

# %% [markdown]
# The losses are equal except for rounding: both runs add the same numbers in a different order, and training makes the difference
# larger with each step. So the right reasoning is that the mean over two halves of equal size is the mean over the whole batch, and that everything else is the same as well. This is a strong
# test. If one of the edits were wrong, for example the learning rate or the order of the sampler, the losses would differ in the first digits.
#
# The last row is the speed of rank 0 alone. The speed of the run is the sum over its ranks. Lab 5 explains how to measure a speed-up fairly.
#
# ## DDP on a cluster
#
# On a cluster you do not start ranks directly. You describe the job in a shell script, and the *scheduler*, a program such as Slurm, queues the job
# and assigns nodes to it. The commands in this section are shown and not run, because this machine has no Slurm. The course's own job
# scripts are in `docker/slurm/`, and `docker/slurm/README.md` says on which systems they were tested.
#
# ### One torchrun per node
#
# `torchrun` starts ranks only on its own node. So the job starts one `torchrun` on each node with `srun`, the command that starts
# processes on the nodes of a job. All of them get the same address as meeting point: the first node of the job.
#
#     #!/bin/bash
#     #SBATCH --nodes=2                 # two machines
#     #SBATCH --ntasks-per-node=1       # one torchrun on each of them
#     #SBATCH --gpus-per-node=4
#     #SBATCH --cpus-per-task=32        # cores for the four ranks of a node
#     #SBATCH --time=00:30:00
#
#     first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
#     export OMP_NUM_THREADS=8          # cores per rank
#     srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
#         torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
#         --rdzv-backend=c10d --rdzv-endpoint="$first:29500" --rdzv-id="$SLURM_JOB_ID" \
#         labs/fashion_mnist_ddp.py --epochs 3
#
# The option `--nnodes` is the number of nodes, and `--nproc-per-node` is the number of ranks on each of them. `--rdzv-endpoint` is the
# meeting point, and `--rdzv-id` is a name that separates this job from others. With 2 nodes and 4 ranks per node, the world size
# is 8.
#
# The course's `docker/slurm/torch.sbatch` uses the other method. There `srun` starts every rank itself, and the script calls
# `rendezvous()`, which reads Slurm's variables:
#
# ```bash
# sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 docker/slurm/torch.sbatch labs/fashion_mnist_ddp.py --epochs 3
# ```
#
# ### Reservations with sbatch
#
# On a busy cluster a job can wait for hours. For a course, the operators can set nodes aside for some hours and some users. This is
# called a *reservation*, and it has a name. A job uses these nodes only if it gives the name:
#
# ```bash
# scontrol show reservation                       # names, nodes, times and users of all reservations
# sbatch --reservation=ddp_course --nodes=2 --ntasks-per-node=4 docker/slurm/torch.sbatch labs/fashion_mnist_ddp.py
# squeue --me                                     # your jobs, and why a job waits
# ```
#
# Replace `ddp_course` by the name that your teacher announces. Slurm rejects the job if your account is not on the list of
# the reservation. The job stays in the queue if it asks for more nodes than the reservation has, or for a time limit that goes beyond its end. So ask for a short
# `--time`. After the course, leave the option out, because the reservation no longer exists.
#
# ### Containers with Apptainer and NGC
#
# A *container image* is a file with a complete software environment: the operating system's libraries, CUDA, NCCL, PyTorch. With an
# image, the same versions run on every node, and you do not have to install anything. *NGC* is NVIDIA's registry of such images, for example
# `nvcr.io/nvidia/pytorch`. *Apptainer*, formerly called Singularity, runs images on clusters. It does not need root permissions, in contrast
# to Docker, and therefore clusters allow it.
#
# ```bash
# apptainer pull pytorch.sif docker://nvcr.io/nvidia/pytorch:25.02-py3      # once; writes one large file
# apptainer exec --nv pytorch.sif python -c "import torch; print(torch.cuda.device_count())"
# apptainer exec --nv pytorch.sif torchrun --standalone --nproc-per-node 4 my_ddp_script.py
# ```
#
# `--nv` makes the GPUs of the node and its NVIDIA driver visible in the container. The image brings CUDA and
# PyTorch, and the driver always belongs to the node. A folder with data becomes visible with `--bind
# /scratch/data:/data`, where the first path is that of the node. On several nodes put `apptainer exec --nv
# pytorch.sif` between `srun` and `torchrun` in the job script above. Then there is one container per node,
# and all ranks of a node run inside it. The tag 25.02 is a year and a
# month: take the newest one that your driver supports. The image contains PyTorch and not this course. `docker/README.md`
# explains how to build an image of the course, and `docker/apptainer.def` converts it for Apptainer.
#
# ## Summary
#
# * A process that is started twice trains two models. On two ranks, the report of the serial script shows two hashes and an overlap of 100 %.
# * `init_process_group` connects the ranks. It reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, which `torchrun` sets. The
#   backend is `nccl` between GPUs and `gloo` between CPUs.
# * `LOCAL_RANK` chooses the GPU and the rank that downloads, because GPUs and disks belong to a node. `dist.get_rank()` chooses the
#   rank that prints and saves, because this happens once per run.
# * `DistributedSampler` gives every rank every N-th index of one common order. Its seed is `seed + epoch`, and without `set_epoch` all
#   epochs have the same order.
# * `DistributedDataParallel` broadcasts rank 0's weights once, its buffers in every forward pass, and averages the gradients in every
#   backward pass. It does so only if the training step calls the wrapper.
# * Metrics need sums and counts over all ranks. Checkpoints contain the weights of the model and not those of the wrapper. After a restart
#   every rank needs the optimizer's state, which DDP does not send.
# * Two ranks with 64 images each train like one process with 128 images. The losses differ only by rounding.
# * On a cluster one `torchrun` runs on each node, and all of them meet at the first node.

# %% [markdown]
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
workbook.question(3, answer="c")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="a")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer=0.7)

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="d")

# %% [markdown]
# The next lab, [lab 12](12_ddp_and_sharding.ipynb), measures what DDP sends and when, and shards the weights so that larger models fit.
