# %% [markdown]
# # Lab 5, optional: More of Horovod
#
# This notebook continues lab 5. The first half looks at the messages that Horovod sends, and at clusters. In the
# second half you convert five scripts of other authors. No later lab needs it.
#
# **After this notebook you can** predict the messages of a training step, read Horovod's timeline, start a script in
# a container, and convert a script that imports nothing of this course.
#
# **Builds on** lab 5. **Time:** 80 minutes, 50 of them for the five scripts. The computer needs about five of them.

# %% tags=["folded"]
import os
import shutil
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab import launch
from hvdlab.course import horovod_timeline
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
from hvdlab.course.figures import describe, predicted, summary
from hvdlab.course.rank_report import curve, rank_report
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab05_horovod as exercises
from hvdlab.exercises import lab05_script_edits as edits
from hvdlab.exercises import lab05_transfer as transfer
from hvdlab.exercises.lab05_negotiation_player import show_negotiation
from hvdlab.exercises.lab05_partition import check_fuse

workbook = Workbook(5)
hint = workbook.hint

# %% [markdown]
# The experiments need a finished script. The next cell writes one with all nine edits. Your own copy stays as it is.

# %%
FRAMEWORK = by_run_length(quick="torch", learner="keras", reference="keras")
SCRIPT = WORK / f"finished_{FRAMEWORK}.py"
RUNS = exercises.runs(SCRIPT)
RUNS.mkdir(parents=True, exist_ok=True)
_ = SCRIPT.write_text(edits.after("resume", FRAMEWORK))

# %% tags=["folded"]
HELDOUT = ["--heldout", by_run_length(quick=500, learner=10_000, reference=10_000)]
ON_PROCESSORS = {"CUDA_VISIBLE_DEVICES": "-1"}


def train(script, *arguments, **variables):
    """Run a script on two ranks; return the folder of its records."""
    folder = RUNS / "experiment"
    shutil.rmtree(folder, ignore_errors=True)
    variables = {"HVDLAB_RUN_DIR": str(folder), **variables}
    launch.run(script, *arguments, ranks=2, show=False, **variables)
    return folder


def speed(folder, ranks):
    """Images/s of all ranks together, after the first epoch, in which all warms up."""
    lines = [curve(folder, rank) for rank in range(ranks)]
    return sum(each["images_per_second"][1:].mean() for each in lines)


# %% [markdown]
# ## Tensor fusion
#
# The network of the script has four layers with a weight array and a bias array each, so eight gradients, of
# 10 to 100,352 numbers. Eight messages would pay eight times the *latency*, the time that even an empty
# message takes (lab 4). **Tensor fusion** puts gradients that are ready at the same time into the fusion
# buffer, so that one all-reduce averages them. By default up to 128 MiB share a message.
#
# A message with *all* gradients would pay the latency once. But it could leave only when the backward pass is
# over, and none of its time would overlap with computing. So Horovod compromises. It looks every millisecond
# (`HOROVOD_CYCLE_TIME`) which gradients are ready, and sends these together.
#
# ![Without fusion four gradients w1, b1, w2, b2 are sent by four all-reduces. With fusion they are copied next to each other into one fusion buffer, and one all-reduce sends all of them.](pictures/fusion_buffer.svg)
#
# ### Exercise 13: Messages after fusion
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
# ## The timeline of Horovod
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
# Prediction 4: "negotiate", "copy in", "all-reduce" or "copy out", and why? Replace both values of None.
workbook.predict(4, None, form=["negotiate", "copy in", "all-reduce", "copy out"], reason=None)

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
print(f"The longest phase, by its median, is: {longest}.")
workbook.result(4, longest)

# %% [markdown]
# One row is one gradient, and the marks show when each rank had it. A negotiation lasts until the *later*
# rank is ready. It is usually the longest phase here, because 423 kB are added within a fraction of a
# millisecond. Bars exactly above each other belong to one message.
#
# The next cell shows the events of this step one after another. Use the slider, the buttons or the arrow keys. Find
# the event after which all ranks have announced a gradient, and the message in which it is sent. Horovod does not
# record which gradients share a message. But rank 0 begins the all-reduce of a message after the one before has
# ended, so gradients whose all-reduces overlap are in the same message.

# %%
show_negotiation(one)

# %% [markdown]
# ## Fewer messages and fewer bytes
#
# `HOROVOD_FUSION_THRESHOLD=0` switches fusion off. `compression=hvd.Compression.fp16` converts gradients to
# float16 before they are sent, 2 bytes per number instead of 4, and back afterwards. This experiment
# always runs on CPUs, like the reference.
#
# How many messages does a step need *without* fusion?

# %%
# Prediction 5: messages per step without fusion. Replace both values of None.
prediction = workbook.predict(5, None, reason=None)

# %%
FP16 = WORK / f"fashion_mnist_{FRAMEWORK}_fp16.py"
_ = FP16.write_text(edits.with_float16(SCRIPT.read_text()))
print(edits.unified(SCRIPT.read_text(), FP16.read_text(), "float16"))

# %% tags=["folded"]
OPTIONS = ["default", "no fusion", "float16"]


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
workbook.result(5, complete(exchanges, shipped_exchanges, "option", "no fusion")["messages"].mean())

# %% [markdown]
# **What the result means.** Without fusion each of the eight gradients is a message of its own. With float16
# a step sends half of the bytes, 212 instead of 423 kB. In the reference (n=3) the error bars of the speeds
# overlap, and so do those of the accuracies. Ranks of one node share memory, so a message is cheap. Between
# nodes fusion is worth more. Horovod's authors report up to 65 % more images/s for networks with many layers
# over an ordinary TCP network ([Sergeev and Del Balso, 2018](https://arxiv.org/abs/1802.05799)).
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
# The finished script of lab 5 runs on more nodes without a change. Only the command differs. On a node with four
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
# ## Network cards and GPU memory
#
# Two hardware features make NCCL and MPI fast between nodes. With **RDMA** (*remote direct memory access*) a
# network card writes into the memory of another node without its processor. With **GPUDirect RDMA** it reads
# and writes the memory of a *GPU*, without a copy in the memory of the processor. Your script does not change
# for them.
#
# ## Installation of Horovod
#
# PyPI has Horovod as source code only, so `pip install horovod` compiles it, with NCCL if
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
#
# ## GPUs that ranks share or do not see
#
# The code block of exercise 2 pins the GPU with the number `hvd.local_rank()`. There are three situations:
#
# * **One GPU per rank, and each rank sees all GPUs of its node.** The code is right, and NCCL sends gradients
#   from GPU to GPU.
# * **Each rank sees one GPU only**, for example with `--gpus-per-task=1` of Slurm, which starts jobs on many
#   clusters. This GPU has the number 0 on every rank, so the code fails on local rank 1.
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
# ## Images that one rank has read
#
# With random reads $1/e^3 = 5 \%$ of the images have never been read by any rank after three epochs.
#
# What has *one* rank of four seen after three epochs? With fixed shards it is always 25 %. With reshuffle and
# split the rank misses an image in an epoch with the probability 3/4, so after three epochs it has seen $1 -
# (3/4)^3 = 58 \%$. With random reads it has made $3n/4$ reads after three epochs. All of them miss an image with
# the probability $(1 - 1/n)^{3n/4}$, about $e^{-3/4} = 47 \%$, so it has seen 53 %.

# %% [markdown]
# ## Scripts of other authors
#
# The script of lab 5 uses `Batches` and `Recorder`, which help you. The scripts that you will meet import
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
# ### Exercise 14: A loop of PyTorch
#
# **Edit your copy** of `torch_loop.py`. Its `DataLoader` shuffles by itself, so give it a `DistributedSampler`.
#
# A script that uses a `DataLoader` gets its shard from the sampler:
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
# ### Exercise 15: Keras with fit
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
# ### Exercise 16: A GradientTape
#
# **Edit your copy** of `gradient_tape.py`. The data come from `tf.data`, whose data sets have a method
# `shard(number of parts, part)`. Wrap the optimizer by `hvdlab.keras.horovod`, because this is Keras 3.

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
# ### Exercise 17: A class that trains
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
# ### Exercise 18: Arguments and checkpoints
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
