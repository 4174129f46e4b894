# %% [markdown]
# # Start here: training neural networks on many GPUs
#
# This course teaches you to train neural networks on many processes at the same time, on the GPUs of a
# cluster or on the CPU cores of a laptop. It is for students and engineers who have trained a network on one
# device and now have a network or a data set that is too large for it. You need Python, NumPy, and the basics
# of Keras or PyTorch. Two CPU cores and no GPU are enough for every lab.
#
# **After the course you can**
#
# * explain why training needs many GPUs, and estimate what a training run costs before you start it;
# * convert a training script for one device to Horovod, or to PyTorch's DistributedDataParallel (DDP);
# * choose the batch size and the learning rate for many processes, so that the accuracy does not suffer;
# * make one device fast, and say whether computing, memory, the input data or the network limits it;
# * divide a network that does not fit on one device, and fine-tune a language model;
# * find the typical faults of distributed training, and measure whether a speed-up is real.
#
# At the end of lab 8 you have a script that trains on CIFAR-10 with any number of processes. An automatic
# grader runs it and measures its accuracy, its time and its communication.

# %% [markdown]
# ## The labs
#
# A lab is a written lecture with experiments that your computer runs. The minutes are estimates for a learner
# who reads everything and does every exercise. The computer needs at most about ten of them.
#
# | lab | minutes | what you learn there |
# |---|---|---|
# | [1: Why many GPUs](01_why_many_gpus.ipynb) | 85 | two ranks in ten minutes, how compute has grown, the parts of a training step, the links between GPUs |
# | [2: Gradient descent](02_gradient_descent.ipynb) | 160 | loss surfaces, gradients, the largest step size that converges, and what changes in a network |
# | [3: SGD and batch size](03_stochastic_gradient_descent.ipynb) | 135 | the noise of small batches, throughput and time to accuracy; how the experiments of the course work |
# | [4: Data parallelism by hand](04_data_parallelism.ipynb) | 155 | MPI, collectives, your own ring all-reduce and distributed optimizer, and why N processes give the result of one |
# | [5: Horovod](05_horovod.ipynb) | 190 | the conversion of a script to Horovod, step by step; scaling and its measurement; a script of your own |
# | [6: Scaling the batch](06_scaling_the_batch.ipynb) | 150 | the gradient noise scale, and how far a larger batch saves steps |
# | [7: Remedies for large batches](07_large_batch_remedies.ipynb) | 120 | scaling and warmup of the learning rate, WSD, batch normalisation, LARS, AdamW and Muon |
# | [8: CIFAR-10 and the assessment](08_cifar10_assessment.ipynb) | 145 | a complete training script, measured by the grader |
# | [9: One device, used fully](09_one_device.ipynb) | 180 | number formats, mixed precision, activation checkpointing, gradient accumulation |
# | [10: Feed the device](10_feed_the_device.ipynb) | 110 | the input pipeline: workers, prefetching, file formats, random access |
# | [11: From one GPU to DDP](11_from_one_gpu_to_ddp.ipynb) | 120 | the conversion of a PyTorch script to DDP |
# | [12: DDP and sharding](12_ddp_and_sharding.ipynb) | 180 | buckets and overlap; ZeRO and FSDP, which divide the memory |
# | [13: Splitting layers](13_splitting_layers.ipynb) | 120 | tensor parallelism, by hand and with PyTorch's DTensor |
# | [14: Splitting networks](14_splitting_networks.ipynb) | 150 | pipeline parallelism, its schedules and idle times, and combinations of all methods |
# | [15: Fine-tuning a language model](15_fine_tuning.ipynb) | 150 | a small GPT, fine-tuned on instructions as a whole and with LoRA |
# | [16: Find the fault](16_find_the_fault.ipynb) | 120 | seven scripts with one mistake each: symptoms, diagnosis, repair |
# | [17: Read a trace](17_read_a_trace.ipynb) | 110 | profiles of real runs, and what they say about waiting GPUs |
# | [18: Past one machine](18_past_one_machine.ipynb) | 120 | latency, bandwidth, and a model that predicts the speed of thousands of GPUs |

# %% [markdown]
# ## Paths through the course
#
# Every lab names the labs that it builds on. Do the labs of a path in the order of their numbers. "Core of 1"
# means the core sections of lab 1, which the next section lists.
#
# | you have | Horovod path (Keras or PyTorch) | PyTorch path | optional |
# |---|---|---|---|
# | half a day, 4 hours | core of 1; 5 | core of 1; 11 | the other sections of 1 |
# | one day, 8 hours | core of 1; 4, 5, 8 | core of 1; 4, 11, 16 | core of 2 and 3 |
# | three days, 16 to 18 hours | core of 1 to 3; 4 to 8, 16, 18 | core of 1 to 3; 4, 6, 9 to 12, 16 | the other sections of 1 to 3 |
# | ten weeks, about 42 hours | 1 to 18 | 1 to 18 | the other sections of 1 to 3, as homework |
#
# On a half day, read only what the lab needs from the labs between: the start of lab 5 and of lab 11 says what
# that is. Horovod is the shorter way to see every idea in one call. New code for PyTorch mostly uses DDP and
# FSDP, which labs 11 and 12 teach.

# %% [markdown]
# ## Core path of labs 1 to 3
#
# Labs 1 to 3 explain the foundations: what training costs, gradient descent, and batches. If you have trained a
# network before, you know a part of this. Below the heading of each section a line says how many minutes it
# takes, and whether it is *Core* or *Optional*. Other optional sections are in notebooks of their own, for lab 1
# in [Learning curves and large models](01_more_learning_curves.ipynb) and for lab 3 in [Time budgets and loss
# surfaces](03_more_loss_surfaces.ipynb). The later labs build on the core sections. There are two exceptions:
# lab 6 uses *Hessian and its eigenvalues* of lab 2 in one derivation, and lab 7 quotes the result of *Edge of
# stability*.
#
# * **The [entry test](00_test_and_bridge.ipynb)** has 17 questions and takes about five minutes. It marks each
#   section as *skip*, *skim* or *do*. The marks are advice, and no section is locked.
# * **The algebra bridge** in the same notebook explains eigenvalues, the variance of a mean and curvature in about
#   30 minutes, with four exercises. Do it if these words are new to you.
# * **In a section that you leave out, run the cells** without solving the exercises, because later cells may need
#   the data. A cell that calls a function that you have not written stops with `NotImplementedError`. Continue
#   with the cell after it.

# %%
from hvdlab.course import entry_test

entry_test.show()

# %% [markdown]
# ## How a lab works
#
# A *rank* is one of the processes that train together, and also its number, from 0.
#
# * **Run the cells from top to bottom** with Shift+Enter. The run stops with `NotImplementedError` at each
#   exercise, because that is where you write code.
# * **Exercise.** The text says what your function takes and returns, and why it is needed. Replace the line
#   `raise NotImplementedError(...)`.
# * **Hints.** The cell of an exercise, or the cell of its check, has the line `# hint()`. Remove the `#` and run the
#   cell to open the next hint. Most exercises have three: the idea, a smaller case with numbers, and nearly the whole
#   line. Put the `#` back before you run your own code, because each run opens one more hint.
# * **Level.** Most exercises have a function to complete. Two other levels are named below the heading. In *choose
#   and justify* you decide which patches of a function are correct, and give a case in which each of the others
#   fails. In *blank page* you write a whole program, and a list says which of its properties the check measures.
# * **Check.** The line after the exercise calls your function on cases that can be computed by hand. It prints
#   `Right: ...`, or `Not yet: ...` with the mistake that it recognised. You can run it as often as you like.
# * **Prediction.** Before an experiment, replace the two values `None` by your prediction and by one sentence
#   with its reason. A later cell says both in one line, your prediction and the result, and `hvdlab progress` counts
#   how many were near. You learn most from a prediction that was wrong, if you know which reason led to it.
# * **Figures.** A line is a reference result of the course, and the points are yours. Small differences come
#   from the random seeds and from your machine. Times depend on the machine, and accuracies do not.
# * **Hidden cells.** Cells that only draw a figure are hidden. Click on the three dots to see them.
# * **Self-check questions** at the end of a lab give feedback on every answer. In some of them the numbers are drawn
#   for you. These questions return in a later lab with other numbers, so that you notice what you have forgotten.
# * **Solutions** are complete notebooks. `hvdlab notebooks --solution 2` copies that of lab 2 to the folder `solutions`
#   of your work. Try the exercise first.
# * **What you write** stays in `notebooks/work`, and these notebooks are your copies. A newer version of the course
#   updates them and keeps what you wrote. To start again with a notebook, delete it and restart `make lab`. Your
#   predictions, answers, solved exercises and opened hints are in `answers.json`. Nothing is sent anywhere, and
#   nothing is graded. An instructor of a course may collect this file to see where the class is stuck.
# * **Commands** such as `hvdlab ...` or `make ...` are typed in a terminal at the top of the repository, after
#   `source .venv/bin/activate`.
# * **Terms** are printed in bold or italics where they are defined. The [glossary](glossary.ipynb) has
#   all of them.

# %% [markdown]
# ## Your progress
#
# The table counts your exercises, predictions, questions and opened hints. In a terminal, `hvdlab progress` prints
# the same table, and the marks of the entry test.

# %%
from hvdlab.course import progress

progress.show()

# %% [markdown]
# ## Interrupting and shortening a run
#
# * **Interrupt** an experiment with the stop button (■). It ends every process that the experiment has started,
#   and keeps the runs that are complete. Runs on several ranks also have a time limit.
# * **Shorten** all labs with `LAB_QUICK=1 make lab`. Each lab then needs about a minute, but trains so little
#   that its figures do not show the effects.
# * **Close other programs** while a time is measured, because two ranks need two cores.

# %% [markdown]
# ## The hardware and software of this machine

# %%
import os

from hvdlab.course import experiment
from hvdlab.system import hardware

gpus = hardware.gpu_compute_capability()
print("cores     ", hardware.usable_cores())
print(
    "GPU       ", f"compute capability {gpus[0]}.{gpus[1]}" if gpus else "none, and none is needed"
)
print("memory    ", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB")
print("LAB_QUICK ", "on: figures show the machinery only" if experiment.QUICK else "off")

# %%
from importlib import metadata

from hvdlab.data import DataError, load_cifar10, load_fashion_mnist
from hvdlab.system.command_name import hvdlab

for package in ("tensorflow", "keras", "torch", "horovod", "mpi4py"):
    try:
        print(f"{package:11}{metadata.version(package)}")
    except metadata.PackageNotFoundError:
        print(f"{package:11}missing: run `make setup`")
for name, load in (("cifar10", load_cifar10), ("fashion_mnist", load_fashion_mnist)):
    try:
        found = load()
        print(f"{name:14}{'SYNTHETIC' if found.synthetic else 'found'}: {found.folder}")
    except DataError:
        print(f"{name:14}missing: run `{hvdlab()} data {name} --or-synthetic` in a terminal")

# %% [markdown]
# ## If something is missing
#
# * **Something does not start.** Type `.venv/bin/hvdlab doctor` in a terminal. It says what is wrong, and prints
#   the command that fixes it.
# * **No data, and no network.** `make lab` downloads two data sets, or generates synthetic data sets with ten
#   classes. With synthetic data all labs run, but the numbers of labs 3 to 8 cannot be compared with ours.
#   `.venv/bin/hvdlab data cifar10` says what you have, and how to get the real data later. The same works with
#   `fashion_mnist`. Data of your own are expected in `$HVDLAB_DATA` or in `~/.cache/hvdlab`.
# * **No kernel.** The notebooks use a kernel with the name `hvdlab`, which `make setup` registers. If your Jupyter
#   is another one, for example under JupyterHub or in VS Code, run this once at the top of the repository, and
#   choose *Course lab (hvdlab)*:
#
#   ```
#   .venv/bin/python -m ipykernel install --user --name hvdlab --display-name "Course lab (hvdlab)"
#   ```
# * **A cluster, or a container of [NVIDIA's catalogue NGC](https://catalog.ngc.nvidia.com).** The file
#   `docker/README.md` describes the set-up with Docker, Apptainer and Slurm.
# * **A 3-D figure does not turn.** The server that shows the page needs the package `ipympl`, which `make lab` has.
#   The lab works without it.
#
# ## Your opinion
#
# The [course survey](survey.ipynb) has ten questions. If you take part in a class, your instructor will tell
# you where to send the answers.
#
# ## Begin
#
# [Entry test](00_test_and_bridge.ipynb), then [Lab 1: Why many GPUs](01_why_many_gpus.ipynb)
