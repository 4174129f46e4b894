# %% [markdown]
# # Start here: training neural networks on many processes
#
# Fourteen notebooks, from one neuron and plain gradient descent to a script of yours that trains on N processes and is
# graded by measurement. Two cores and no GPU are enough for all of it. The scripts are written for GPUs too, and have not run on one yet.
#
# | lab | minutes | you measure |
# |---|---|---|
# | [2: Gradient descent](02_gradient_descent.ipynb) | 45 | a loss surface in 3-D, the path down it, the largest step size that converges |
# | [3: SGD and batch size](03_stochastic_gradient_descent.ipynb) | 75 | the noise of small batches, images/s and time to an accuracy against the batch size, what skip connections do to a loss surface |
# | [4: Data parallelism by hand](04_data_parallelism.ipynb) | 75 | how exactly N ranks equal one, and what your own ring all-reduce costs |
# | [5: Horovod](05_horovod.ipynb) | 90 | a serial script becoming a Horovod script, rank by rank; fusion, compression, scaling |
# | [6: Scaling the batch](06_scaling_the_batch.ipynb) | 75 | how far a larger batch saves steps, and whether the noise in the gradient predicts it |
# | [7: What can be done about it](07_large_batch_remedies.ipynb) | 60 | rate scaling, warmup, ghost batch norm, noise, longer training, LARS, LAMB, NovoGrad |
# | [8: CIFAR-10 and the assessment](08_cifar10_assessment.ipynb) | 75 | two optimizers in a race against time, compared with shipped runs of five; then the grader measures you |
# | [9: One device, used fully](09_one_device.ipynb) | 100 | where memory and time of a step go; mixed precision, activation checkpointing, gradient accumulation; what keeps a GPU busy |
# | [12: DDP and sharding](12_ddp_and_sharding.ipynb) | 100 | Horovod, DDP and your own all-reduce, compared with each other; ZeRO's three stages, in bytes held and bytes sent |
# | [13: Splitting layers](13_splitting_layers.ipynb) | 60 | the matrices of a layer on several ranks, by hand, with DTensor and AxoNN: one loss curve, less memory, known traffic |
# | [14: Splitting networks](14_splitting_networks.ipynb) | 90 | a network cut between its layers, schedules and their bubbles, and a search for the best of all splits |
# | [15: Fine-tuning a language model](15_fine_tuning.ipynb) | 90 | a small GPT trained from nothing and fine-tuned on instructions, whole and with LoRA |
# | [16: Find the fault](16_find_the_fault.ipynb) | 60 | broken scripts: their symptoms, your diagnosis, and what `hvdlab check` says |
# | [18: Past one machine](18_past_one_machine.ipynb) | 60 | a message's latency and bandwidth here, and what they predict for 2 to 10,000 GPUs |
#
# Do 2 to 8 in this order: each uses what the one before has shown. 9 to 14 leave Horovod for the rest of the field, in PyTorch, and
# build on each other too; 15 and 16 need only 2 to 8. The minutes are yours, for reading, thinking and exercises; the computer works
# for about ten of them at most.

# %% [markdown]
# ## How a lab works
#
# A *rank* is one of the N processes that train together, and its number, from 0 on.
#
# * **Run the cells from top to bottom** with Shift+Enter. A lab stops at its first exercise: `NotImplementedError` there is not a
#   fault, it is your turn.
# * **Exercise**: the cell says what your function takes and returns. Replace the line `raise NotImplementedError(...)`.
#   Two hints fold out above it, the second says nearly everything.
# * **Check**: the one line after it tries your function on cases that one can do by hand. It says `Right: ...`, or `Not yet: ...`
#   with the mistake that it recognised. Run it as often as you like, nothing is counted.
# * **Prediction**: before an experiment a cell asks `prediction = None`. Put your guess in place of `None`: the next figure shows it
#   next to the result, as a star. A wrong guess teaches more than a right one. If you leave `None`, the figure has no star.
# * **Figures** of experiments lay your run over results that the course ships (`labs/results`, three seeds or more). Small deviations are
#   the seeds and your machine. A time belongs to a machine, an accuracy does not.
# * **Solutions** are complete notebooks in `notebooks/solutions/`: [open the one of lab 2](solutions/02_gradient_descent.ipynb) to see one. Try first.
# * **Commands** in the text (`hvdlab ...`, `make ...`, `torchrun ...`) are for a terminal at the top of the repository, after
#   `source .venv/bin/activate` there.
# * **What you write** goes to `notebooks/work/`, which git leaves alone. Nothing overwrites a script that you have edited there; the
#   solutions write theirs to `notebooks/work/solutions/`.

# %% [markdown]
# ## Stop something, or make it shorter
#
# * **Interrupt** with the stop button (■). It ends the experiment and every process that it started on other cores; the runs
#   that are done are kept and can be plotted. What starts ranks also has a time limit, so a hang ends by itself.
# * **`LAB_QUICK=1`** in the environment (`LAB_QUICK=1 make lab`) lets every lab go through all its cells in about a minute, with
#   so little training that the figures show the machinery and not the effect.
# * **No GPU, few cores?** Close other programs while something is timed: two ranks want two cores for themselves.

# %% [markdown]
# ## See what this machine has

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
# * **Something does not start**: `.venv/bin/hvdlab doctor` in a terminal says what is wrong, and prints the command that fixes it.
# * **Data, no network**: `make lab` has downloaded both data sets, or generated synthetic data sets with ten classes that can be learned. With
#   synthetic data the labs run, and labs 3 to 8 say that their numbers are not comparable. `.venv/bin/hvdlab data cifar10` in the top folder says what you
#   have, and how to get the real data later; the same with `fashion_mnist`. Data of your own lie where `$HVDLAB_DATA` points, or in
#   `~/.cache/hvdlab`.
# * **The kernel**: the notebooks name a kernel `hvdlab`, which `make setup` registers for `make lab`. Under JupyterHub, in VS Code
#   or in an NGC container, whose Jupyter is not the one of this course, run this once in a terminal at the top of the
#   repository, then choose *Course lab (hvdlab)*:
#
#   ```
#   .venv/bin/python -m ipykernel install --user --name hvdlab --display-name "Course lab (hvdlab)"
#   ```
# * **A 3-D figure does not turn**: the server that shows the page needs `ipympl` too (`make lab` has it). The lab works without.
#
# ## Begin
#
# [Lab 2: Gradient descent](02_gradient_descent.ipynb)
