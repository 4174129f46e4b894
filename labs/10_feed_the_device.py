# %% [markdown]
# # Lab 10: Feed the device
#
# The course of the computing centre NERSC that opens lab 9 trains a vision transformer on one A100 GPU.
# With the default settings of the data loader it processes 8.8 samples per second. Four worker processes
# that prepare the data raise this to 12.5 samples per second, and a library that prepares them on the GPU
# raises it to 13.2 ([NERSC, Deep Learning at
# Scale](https://github.com/NERSC/dl-at-scale-training#data-loading-optimizations)). Neither the network nor
# the GPU changed. The GPU had been idle for about 30 % of the time, because no batch was ready when it
# needed one. With sixteen workers the same training is slower again, at 10.8 samples per second. So the
# input pipeline must be measured and designed like the rest of the training. It matters even more for the
# rest of this course, because a job on 100 GPUs reads data a hundred times as fast as a job on one GPU,
# from the same file system.
#
# **After this lab you can**
#
# * measure the stages of an input pipeline, and compute the throughput that follows from them, with and
#   without overlap;
# * say from which number on more workers no longer help, and why;
# * write an augmentation that treats a whole batch with a few array operations, and prove that it equals
#   the one for single images;
# * divide a data set of shards so that every sample is read exactly once, over all ranks and all their
#   workers;
# * choose a file format, and prepare a data set once per node.
#
# **Builds on** lab 1 (the 15 steps of a training step), lab 5 (rank, local rank, shards of equal length)
# and lab 9 (a training loop in PyTorch, copies to a GPU). **Time:** 110 minutes with all exercises. The
# computer needs two minutes of them.

# %% tags=["folded"]
import time
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from hvdlab.course.experiment import WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import describe, predicted
from hvdlab.course.input_pipeline import (
    PAD,
    augment_image,
    decode,
    draw,
    file_formats,
    label_of,
    number_of,
    read_shard,
    stage_times,
    timed,
    write_images,
    write_shards,
)
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_cifar10
from hvdlab.exercises import lab10_feed_the_device as exercises
from hvdlab.system.hardware import usable_cores

workbook = Workbook(10)
hint = workbook.hint
CORES, BATCH = usable_cores(), 128
torch.set_num_threads(1)  # training uses one core, so that a worker can use the other one
data = load_cifar10()
COUNT = by_run_length(quick=2_560, learner=10_240, reference=10_240)
images, labels = data.train_images[:COUNT], data.train_labels[:COUNT].astype(np.int64)
FOLDER = WORK / "feed"
paths = write_images(images, labels, FOLDER / "png")
print(f"{len(paths):,} image files in {FOLDER.name}/png, for example {paths[12].name}")

# %% [markdown]
# ## Input pipeline
#
# The **input pipeline** is everything that happens to an example between the disk and the network. Lab 1
# shows a training step as 15 small steps, and the first half of them belongs to this pipeline. Here we
# group them into stages:
#
# 1. **Read:** the bytes of a file come from the disk, or over the network from a file server.
# 2. **Decode:** a compressed image (PNG or JPEG) becomes an array of pixels.
# 3. **Augment:** the image is changed at random, for example mirrored, so that the network never sees
#    exactly the same image twice.
# 4. **Collate:** many examples are stacked into one array, the batch.
# 5. **Copy:** the batch moves from the memory of the processor to the memory of the GPU.
#
# Only then comes the **training**: forward pass, backward pass, and the step of the optimizer. If the
# training has to wait for a batch, the waiting time is called a **data stall**. Mohan et al. measured nine
# networks on the servers of a production cluster. They found that data stalls dominate the training time in
# many cases, and a better loader made training up to 5 times as fast on a single server ([Analyzing and
# Mitigating Data Stalls in DNN Training, 2021](https://arxiv.org/abs/2007.06775)).
#
# The pipeline below is the usual first version. A PyTorch `Dataset` has a length and returns one example
# for a number (`__getitem__`). The `DataLoader` draws numbers in a random order, asks for the examples, and
# collates them. Each image is one file, and each image is augmented by itself: it is padded by 4 pixels on
# each side, a window of 32 x 32 pixels is cut out at a random place, and half of the windows are mirrored.
# This is the standard augmentation for CIFAR-10.


# %%
class ImageFiles(Dataset):
    """One file per image, read and augmented one by one."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        pixels = decode(self.paths[number].read_bytes())
        top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
        pixels = augment_image(pixels, torch.rand(()) < 0.5, top, left)
        return as_floats(torch.from_numpy(pixels[None]))[0], label_of(self.paths[number])


def as_floats(images):
    """Convert uint8 (batch, height, width, channels) to float (batch, channels, height, width), -1 to 1."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


# %% [markdown]
# Which stage needs the most time? We send 512 images through all stages, one after the other, and add up
# the time of each stage. The network of this lab is very small on purpose: a single convolution and a
# linear layer. One core then needs about as little time for the training as a GPU needs for a large
# network. So the pipeline is the bottleneck here, as it often is on a GPU.

# %%
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(images, labels):
    """One training step. Images of type uint8 are converted to float here, as a whole batch."""
    x = as_floats(images) if images.dtype == torch.uint8 else images
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %% tags=["folded"]
random = np.random.default_rng(1)
chain = {
    "read": Path.read_bytes,
    "decode": decode,
    "augment": lambda pixels: augment_image(pixels, *(each[0] for each in draw(random, 1))),
    "convert": lambda pixels: as_floats(torch.from_numpy(pixels[None]))[0],
}
some = [paths[number] for number in random.permutation(COUNT)[:512]]
floats, stages = stage_times(chain, some)
parts = [floats[i : i + BATCH] for i in range(0, len(some), BATCH)]
batches, per_batch = timed(default_collate, parts)
stages["collate"] = per_batch / BATCH
train_step(batches[0], torch.arange(BATCH) % 10)  # the first step also allocates memory
_, per_batch = timed(lambda x: train_step(x, torch.arange(BATCH) % 10), batches * 4)
stages["train"] = per_batch / BATCH

figure, axes = plt.subplots(figsize=(7, 2.8))
axes.barh(list(stages), list(stages.values()), color=["C0"] * 5 + ["C2"])
axes.invert_yaxis()
axes.set_xlabel("microseconds per image")
describe(
    figure,
    "Horizontal bars with the microseconds per image of the stages read, decode, augment, convert, collate and "
    "train. Decoding takes the longest, and training is one of the shorter bars.",
)
LOAD = sum(stages.values()) - stages["train"]  # microseconds per image
print(f"loading {LOAD:.0f} us per image, training {stages['train']:.0f} us per image")

# %% [markdown]
# Decoding a PNG file takes longer than any other stage, and much longer than everything that the network
# does with the image. Reading a file is short here, because the files were written a moment ago, and the
# operating system still keeps them in memory (the **page cache**). From a disk or a file server the bar of
# *read* would be longer.
#
# One detail of the measurement matters. The stages take turns, as in the real pipeline. If we called
# `decode` 512 times in a row, it would seem faster than it is, because its code and its data would stay in
# the caches of the processor.
#
# ## Serial and overlapped loading
#
# How do the times of the stages combine? If one process does everything, one after another, the times **add
# up**. If other processes load the next batches while this one trains, loading and training **overlap**.
# Then the slower of the two decides, and not the sum.
#
# ![Two timelines. Above, one process loads a batch for 30 ms, trains for 10 ms, and repeats, so a step
# takes 40 ms. Below, a worker loads without a pause while the main process trains on the batch before, so a
# step takes 30 ms and the main process still waits for 20 ms of it.](pictures/overlapped_loading.svg)
#
# For example, loading a batch of 128 images takes 30 ms, and training on it takes 10 ms.
#
# * **Serial:** a step takes 30 + 10 = 40 ms, which is 128 / 0.040 = 3,200 images per second.
# * **One worker:** a step takes max(30, 10) = 30 ms, which is 4,267 images per second. The training still
#   waits 20 ms per step.
# * **Two workers:** together they finish a batch every 30 / 2 = 15 ms. But three processes now share the
#   cores. On two cores the work of a step, 30 + 10 = 40 ms, takes at least 40 / 2 = 20 ms. So this third
#   time decides: 6,400 images per second.
# * **Four workers** on the same two cores: the limit of 20 ms remains, so two more workers bring nothing.
#
# With $w$ workers, $c$ cores, the time $t_\text{load}$ to load a batch on one core and the time
# $t_\text{train}$ to train on it:
#
# $$t_\text{step} = \begin{cases} t_\text{load} + t_\text{train} & w = 0 \\[2pt] \max\left(\dfrac{t_\text{load}}{w},\; t_\text{train},\; \dfrac{t_\text{load} + t_\text{train}}{c}\right) & w \ge 1\end{cases}$$
#
# If a GPU trains, the training needs no core, and the third term is only $t_\text{load} / c$.
#
# ### Exercise 1: Throughput from the times of the stages
#
# **What:** Write `images_per_second(batch_size, load, train, workers, cores)`. `load` and `train` are the
# seconds per batch. Return the throughput that follows from the formula.
#
# **Why:** If you know these two times, you know before any experiment whether workers can help, and how
# many.
#
# <details><summary>Hint 1</summary>Compute the seconds of a step first. There are two cases: no worker, and
# at least one worker.</details>
#
# <details><summary>Hint 2</summary>With load = 0.03, train = 0.01, two workers and two cores the three
# candidates are 0.015, 0.01 and 0.02 s. The largest is 0.02 s, so the throughput is 128 / 0.02 = 6,400
# images per second.</details>
#
# <details><summary>Hint 3</summary><code>seconds = max(load / workers, train, (load + train) /
# cores)</code></details>


# %%
def images_per_second(batch_size, load, train, workers, cores):
    # BEGIN SOLUTION: return the throughput with and without workers
    if workers == 0:
        seconds = load + train
    else:
        seconds = max(load / workers, train, (load + train) / cores)
    return batch_size / seconds
    # END SOLUTION


# %%
exercises.check_images_per_second(images_per_second)

# %% [markdown]
# The largest throughput that any loader can reach is that of a loader without work. Such a loader returns
# the same batch of zeros again and again. The training then never waits, so this is the **upper bound**. To
# compare a real training with zeros is also the quickest test for a data stall in your own program: replace
# the loader by constant batches, and see whether the training becomes faster.
#
# We measure both. The first batch does not count, because workers need time to start.

# %%
# Prediction 1: how many images per second does the serial loader reach? Use the two times that were printed
# above. Replace both values of None.
workbook.predict(1, None, reason=None)


# %%
def throughput(batches):
    """Train on all batches. Return the images per second, without the first batch."""
    count, began = 0, None
    for batch_images, batch_labels in batches:
        train_step(batch_images, batch_labels)
        if began is None:
            began = time.perf_counter()
        else:
            count += len(batch_labels)
    return count / (time.perf_counter() - began)


serial = DataLoader(ImageFiles(paths), BATCH, shuffle=True)
zeros = [(torch.zeros(BATCH, 32, 32, 3, dtype=torch.uint8), torch.zeros(BATCH, dtype=torch.int64))]
speed = {"serial": throughput(serial), "zeros": throughput(zeros * 400)}

# %% tags=["folded"]
computed = images_per_second(BATCH, BATCH * LOAD / 1e6, BATCH * stages["train"] / 1e6, 0, CORES)
print(f"serial: {speed['serial']:,.0f} images/s, computed {computed:,.0f}")
workbook.result(1, speed["serial"])
print(f"zeros (upper bound): {speed['zeros']:,.0f} images/s")
print(f"the training waits {1 - speed['serial'] / speed['zeros']:.0%} of the time")

# %% [markdown]
# The sum of the stage times predicts the serial loader. The two need not agree exactly, because the loader
# itself needs some microseconds per image for drawing random numbers and calling Python methods. The last
# line is the fraction of data stalls. If a training waits for its data during 80 % of the time, a device that
# is ten times as fast saves only 18 % of the time.
#
# ## DataLoader workers and prefetching
#
# `DataLoader(..., num_workers=2)` starts two more processes, the **workers**. Each worker has a copy of the
# `Dataset`, prepares whole batches, and sends them to the main process through shared memory. They work
# ahead of the training, which is called **prefetching**: each worker keeps `prefetch_factor` batches ready
# (2 by default). The most important settings are these:
#
# | argument | meaning | when to change it |
# |---|---|---|
# | `num_workers` | number of processes that load (default 0: no prefetching at all) | increase it until the throughput no longer grows |
# | `prefetch_factor` | batches that each worker keeps ready | increase it if the loading time varies a lot, for example on a busy file system |
# | `persistent_workers` | keep the workers after an epoch | set it if an epoch is short, because starting the workers again costs time |
# | `pin_memory` | copy batches into pinned memory (last section) | set it if a GPU trains |
#
# Workers are not free. Each one needs memory for its batches, and it needs a core. With four ranks on a node
# of 16 cores, four workers per rank already use every core, even if the ranks themselves only start work on
# GPUs. At NERSC a single rank was slower with sixteen workers than with four. A probable reason is that the
# workers compete with each other and with the training for cores and for the file system.
#
# **Random numbers in workers.** How a worker starts depends on Python. Up to Python 3.13 on Linux it starts as
# a copy of the main process (*fork*). From Python 3.14 on a small server process, which has loaded none of your
# data, starts it (*forkserver*), and your `Dataset` is sent to it by pickle. So code that must not run in the
# workers stands below `if __name__ == "__main__":`. The lab sets `fork` explicitly, because a notebook's own
# classes cannot be sent. In both cases a NumPy generator of the `Dataset` is copied with its state, so all
# workers draw the *same* random numbers: the first image of each worker gets the same window, and so on. PyTorch gives each worker another seed for `torch`
# and for the global functions of `numpy.random`, but it cannot know your own generator objects. Draw with
# `torch.randint` as above, or create the generator inside of the worker.

# %%
# Prediction 2: by what factor do two workers raise the throughput on this machine? Use your function of
# exercise 1. Replace both values of None.
prediction_workers = workbook.predict(2, None, reason=None)


# %%
def with_workers(workers):
    """The loader of single files with workers. They start as copies of this process (fork)."""
    if workers == 0:
        return DataLoader(ImageFiles(paths), BATCH, shuffle=True)
    own = {"num_workers": workers, "multiprocessing_context": "fork"}
    return DataLoader(ImageFiles(paths), BATCH, shuffle=True, **own)


WORKERS = by_run_length(quick=[0, 2], learner=[0, 1, 2, 4], reference=[0, 1, 2, 4])
measured = {workers: throughput(with_workers(workers)) for workers in WORKERS}

# %% tags=["folded"]
SECONDS = [BATCH * LOAD / 1e6, BATCH * stages["train"] / 1e6]
formula = [images_per_second(BATCH, *SECONDS, workers, CORES) for workers in WORKERS]
figure, axes = plt.subplots()
axes.plot(WORKERS, formula, "-", label=f"formula of exercise 1, {CORES} cores")
axes.plot(WORKERS, list(measured.values()), "o", markeredgecolor="black", label="measured")
axes.set(xlabel="workers", ylabel="images per second", ylim=(0, None), xticks=WORKERS)
if prediction_workers is not None:
    predicted(axes, prediction_workers * measured[0], x=2)
axes.legend()
describe(
    figure,
    "Images per second over the number of workers, computed and measured. One worker gains little, two workers nearly "
    "double the throughput on two cores, and four workers gain nothing more.",
)
workbook.result(2, measured[2] / measured[0])

# %% [markdown]
# One worker gains little, because loading takes much longer than training: max(load, train) is
# nearly load + train. Two workers gain up to a factor of two. More workers than cores gain nothing. If other programs
# use the cores of your machine, your points lie below the line. So the workers **hide** the work, but they
# do not reduce it. On a machine with many cores per GPU this may be enough. Otherwise the work itself must
# become less, and the next two sections show how.
#
# ## Augmentation placement
#
# The augmentation can run at four places.
#
# | place | what it costs | when it is right |
# |---|---|---|
# | per image, in Python | interpreter and array overhead for each image | images of different sizes, or few images per second |
# | per batch, vectorised | a few array operations per batch | images of the same size |
# | in workers | a core per worker; the training does not wait | if there are free cores |
# | on the device | time of the GPU, which is short | if the processor is the bottleneck; lab 9 measures it with `DeviceBatches` |
#
# A **vectorised operation** is one call of an array library that treats a whole batch. NumPy needs about a
# microsecond to start even the simplest operation, however small its arrays are. For one image of 3 kB that
# overhead is as long as the work itself. For 128 images at once it is paid once.
#
# The window can be cut out without a loop, by a **view**: an array that shares the memory of another one.
# `sliding_window_view(padded, (32, 32), axis=(1, 2))` is a view of all windows at all places, and it copies
# nothing. A small example in one dimension: `sliding_window_view([10, 20, 30, 40], 2)` is `[[10, 20], [20,
# 30], [30, 40]]`, and its row number 1 is the window that begins at position 1. With an array of indices
# for each axis, one window per image is taken out of it.
#
# ### Exercise 2: Augment a whole batch
#
# **What:** Write `augment_batch(images, flipped, top, left)`. `images` is uint8 of shape `(b, height,
# width, 3)`. The other three are arrays of length `b`, as `draw` returns them. Return the same result as
# `augment_image` for each image, without a loop over the images.
#
# **Why:** The same pixels come out, several times as fast. That you can *prove* it, by comparing with the
# slow version, makes such an optimisation safe.
#
# <details><summary>Hint 1</summary>Pad the whole batch at once: the axis of the images and the axis of the
# channels get no padding. Then take the windows, and mirror the flipped ones.</details>
#
# <details><summary>Hint 2</summary>For two padded images of 40 x 40, the view of all windows has the shape
# (2, 9, 9, 3, 32, 32). Indexing it with <code>[[0, 1], top, left]</code> gives the shape (2, 3, 32, 32),
# where the channels come before rows and columns.</details>
#
# <details><summary>Hint 3</summary><code>windows[np.arange(len(images)), top, left].transpose(0, 2, 3,
# 1)</code>, and then <code>chosen[flipped] = chosen[flipped][:, :, ::-1]</code>.</details>


# %%
def augment_batch(images, flipped, top, left):
    # BEGIN SOLUTION: pad the batch, take one window of each image, and mirror some
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    windows = sliding_window_view(padded, images.shape[1:3], axis=(1, 2))
    chosen = windows[np.arange(len(images)), top, left].transpose(0, 2, 3, 1)
    chosen[flipped] = chosen[flipped][:, :, ::-1]
    return chosen
    # END SOLUTION


# %%
exercises.check_augment_batch(augment_batch)

# %% tags=["folded"]
drawn = draw(np.random.default_rng(2), BATCH)
one_by_one, single = timed(lambda each: augment_image(*each), zip(images, *drawn, strict=False))
batches, whole = timed(lambda part: augment_batch(part, *drawn), [images[:BATCH]] * 10)
print(f"equal: {np.array_equal(one_by_one, batches[0])}")
print(f"one by one {single:.1f} us per image, as a batch {whole / BATCH:.1f} us per image")

# %% [markdown]
# Both give the same bytes, because both got the same random numbers. The same *seed* does not suffice: a
# version that draws all shifts first and then all flips takes the numbers of the generator in another order
# than one that draws image by image. So compare two versions with numbers that were drawn once. The
# vectorised version needs a fraction of the time. Compare the saving with the first figure: the augmentation
# becomes faster, but the decoding is still there. By Amdahl's law (lab 8) the throughput improves only a
# little as long as the largest stage remains. So the next step is to get rid of the decoding.
#
# ## File formats
#
# A data set can be stored in several ways. They differ in three respects: how many files are opened, how
# many bytes are read, and how much work the decoding is.
#
# ![Three ways to store images. Left, many small files: each image needs an open, a read and a decode.
# Middle, shards: a few large tar files that are read from the beginning to the end, so there is one open
# for thousands of images. Right, one array of decoded pixels, mapped into memory: any image is found by its
# position, and nothing is decoded.](pictures/storage_formats.svg)
#
# * **Many small files.** Simple, and every image can be exchanged. But each image needs an open, and on the
#   parallel file system of a cluster an open is a request to a metadata server that all users share.
#   ImageNet has 1.28 million training images. With ten epochs a training makes 12.8 million such requests.
# * **Shards.** A shard is one large file with many examples, for example a `tar` file with 1,000 images. A
#   reader opens it once and reads from the beginning to the end.
#   [WebDataset](https://github.com/webdataset/webdataset) uses tar files, TensorFlow uses `TFRecord` files.
#   Examples cannot be reached by number, so one shuffles the order of the shards and, within a buffer of
#   some thousand, the order of examples.
# * **One array.** Decoded pixels in one file, for example `.npy` or HDF5. `np.load(path, mmap_mode="r")`
#   makes a **memory map** of the file, an array whose numbers stay in the file. The operating system reads
#   only those pages that are used, and all processes of a node share them. Nothing is decoded. The price is
#   size: the decoded pixels of a photo have several times the bytes of its JPEG file.
#
# For example, an image of CIFAR-10 has 32 x 32 x 3 = 3,072 bytes as an array. As a PNG file it has about
# 2,300 bytes, and as a JPEG file about 900 bytes, but JPEG changes the pixels. So decoding can be avoided
# for 30 % more bytes.

# %%
# Prediction 3: which is the fastest to read here: "png", "jpg", "tar" or "npy"? Replace both values of None.
workbook.predict(3, None, form=["png", "jpg", "tar", "npy"], reason=None)

# %%
compared = file_formats(
    images, labels, FOLDER / "formats", by_run_length(quick=500, learner=2000, reference=2000)
)
workbook.result(3, min(compared, key=lambda row: row["us per image"])["format"])
pd.DataFrame(compared).round(1)

# %% [markdown]
# The array is faster by a factor of ten or more, because nothing is decoded. The tar shards are *not*
# faster than single files here. They hold the same PNG images, so the decoding remains, and the module
# `tarfile` of Python needs more time to find the next file than the operating system needs to open a file
# that is already in its page cache. The advantage of shards appears where an open is expensive: on a
# network file system with thousands of clients. Each file in a tar archive also has a header of 512 bytes
# and is padded to a multiple of 512 bytes, so small images need more space there. So a rule such as "use
# shards" must not be applied without knowing its reason.
#
# ## Sharded reading by rank and worker
#
# With data parallelism each rank reads its own part of the data (lab 5). For a `Dataset` with numbers, a
# sampler gives each rank its own numbers, and the `DataLoader` distributes them over its workers. An
# `IterableDataset` has no numbers: it only yields example after example. **Each worker gets a copy of it
# and runs through all of it.** So without any precaution, two ranks with two workers each yield every
# example four times per epoch. No error appears. The epoch is simply four times as long, and the "shuffled"
# data contains repetitions.
#
# ![Eight shards are assigned to two ranks with two workers each. Rank 0 worker 0 is reader 0 and gets
# shards 0 and 4, rank 0 worker 1 is reader 1 and gets shards 1 and 5, rank 1 worker 0 is reader 2 with
# shards 2 and 6, rank 1 worker 1 is reader 3 with shards 3 and 7.](pictures/sharded_reading.svg)
#
# The solution is to number all **readers** of the job. With $W$ workers per rank, worker $w$ of rank $r$ is
# reader number $r W + w$, and there are $N W$ readers in total. Reader $k$ takes the shards $k$, $k + NW$,
# $k + 2NW$ and so on. Inside a worker, `get_worker_info()` returns an object with the worker's number `id`
# and the number of workers `num_workers`. Outside of any worker it returns `None`: then the process itself
# is the only reader of its rank.
#
# For example, 8 shards, 2 ranks and 2 workers per rank give 4 readers. Worker 1 of rank 0 is reader 0 * 2 +
# 1 = 1, so it reads shards 1 and 5.
#
# ### Exercise 3: Read each shard exactly once
#
# **What:** Write the generator `my_shards(shards, rank, size)`. It yields those of the shards (a list of
# paths) that this process must read: on rank `rank` of `size`, in any worker of it, or without workers.
#
# **Why:** This is the most frequent fault in pipelines of large language models and of WebDataset. It
# changes the meaning of an epoch silently.
#
# <details><summary>Hint 1</summary>Find the number of this reader and the number of all readers. A slice
# with a step then gives every n-th shard.</details>
#
# <details><summary>Hint 2</summary>Worker 0 of rank 1, with two ranks and two workers: reader = 1 * 2 + 0 =
# 2 of 4, so <code>shards[2::4]</code> are the shards 2 and 6.</details>
#
# <details><summary>Hint 3</summary><code>worker = get_worker_info()</code>, then <code>number, count =
# (worker.id, worker.num_workers) if worker else (0, 1)</code>, and at the end <code>yield from
# shards[rank * count + number :: size * count]</code>.</details>


# %%
def my_shards(shards, rank, size):
    # BEGIN SOLUTION: yield every n-th shard, where n is the number of readers of all ranks
    worker = get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker else (0, 1)
    reader, readers = rank * count + number, size * count
    yield from shards[reader::readers]
    # END SOLUTION


# %%
exercises.check_my_shards(my_shards)

# %% [markdown]
# Now real shards are read by two ranks with two workers each, once with every shard in every reader, and
# once with your function. A single process plays both ranks here, one after the other. How often does each
# image appear in an epoch?


# %% tags=["folded"]
class Stream(IterableDataset):
    """Whatever a function yields, as a dataset."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


def streamed(make, workers=2):
    """A loader whose workers each run through `make()`; it does not collate."""
    own = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    return DataLoader(Stream(make), batch_size=None, **own)


# %%
shards = write_shards(paths[:800], FOLDER / "shards", 8)


def numbers(chosen):
    return [number_of(name) for shard in chosen for name, _ in read_shard(shard)]


for name, choose in (("every shard", lambda shards, rank, size: shards), ("my_shards", my_shards)):
    parts = [streamed(lambda r=r, f=choose: numbers(f(shards, r, 2))) for r in (0, 1)]
    read = [number for part in parts for number in part]
    times = Counter(Counter(read).values())
    print(f"{name:12} {len(read):5} examples; images that appear N times: {dict(times)}")

# %% [markdown]
# Without a division each of the 800 images appears 4 times, that is, once per reader. With your function
# each appears exactly once.
#
# **Equal numbers.** Eight shards divide evenly among four readers. With nine shards one reader would have a
# shard more than the others, so its rank would have more batches. This rank would then wait for ever in an
# all-reduce that the other ranks, whose epoch has ended, never call (lab 5). Three remedies are common: make the number of shards a multiple of
# the number of readers, stop all ranks after the same number of batches, or repeat some examples as
# `DistributedSampler` does. And each epoch needs a new order of the shards: shuffle the list with a
# generator whose seed is the number of the epoch, the same on all ranks.
#
# ## One download per node
#
# Before the first epoch the data set must be on the node. If every rank downloads it, eight ranks of a node
# load the server eight times, and they write the same file at the same time. A rank may then read a file
# that another rank has only half written.
#
# A **barrier** is a collective operation in which every rank waits until all ranks have arrived. With it
# the order is fixed. On each node one rank downloads, the one with local rank 0. The other ranks of the
# node wait at the barrier. After the barrier all ranks read the local copy. The local rank is the number of
# a rank within its node (lab 5). The condition must use the *local* rank. With `hvd.rank() == 0` only the
# first node would have the data, unless all nodes share a file system.
#
# ### Exercise 4: Prepare the data once per node
#
# **What:** Write `load_on_node(local_rank, download, barrier, load)`. All but the first argument are
# functions without arguments. `download()` puts the data on the node, `barrier()` waits for all ranks, and
# `load()` reads the data. Return what `load()` returns, on every rank.
#
# **Why:** A wrong order works on your laptop, where the data is already there, and fails on the first day
# on a cluster.
#
# <details><summary>Hint 1</summary>Which of the three calls may depend on the rank? A barrier that one rank
# skips lets the others wait for ever.</details>
#
# <details><summary>Hint 2</summary>Local rank 0 must do: download, barrier, load. Local ranks 1, 2, ...
# must do: barrier, load.</details>
#
# <details><summary>Hint 3</summary><code>if local_rank == 0: download()</code>, then two lines that every
# rank executes.</details>


# %%
def load_on_node(local_rank, download, barrier, load):
    # BEGIN SOLUTION: download on one rank of the node, wait, and load on all
    if local_rank == 0:
        download()
    barrier()
    return load()
    # END SOLUTION


# %%
exercises.check_load_on_node(load_on_node)

# %% [markdown]
# With Horovod the call is `load_on_node(hvd.local_rank(), download, hvd.barrier, load)`, and with PyTorch
# `load_on_node(int(os.environ["LOCAL_RANK"]), download, torch.distributed.barrier, load)`. A download that
# takes longer than the time limit of the barrier fails, so large data sets are prepared in a job of their
# own. The command `hvdlab data` of this course uses another method, a lock on a file, because it may run
# several times without any ranks.
#
# ## Batches from a decoded array
#
# Now all parts come together. The images are decoded once, before the first epoch, and kept as one array of
# bytes. A batch is then one gather from this array, one vectorised augmentation, and one conversion. The
# images stay uint8 until they are on the device. They then have a quarter of the bytes of float32, so the
# copy to a GPU is four times as short, and the conversion runs on the device for the whole batch.
#
# ### Exercise 5: Edit the loader
#
# **What:** Write the generator `array_batches(images, labels, batch_size, random)`. `images` and `labels`
# are NumPy arrays of the whole data set, and `random` is a NumPy generator. Go through the data once in a
# random order. For each batch yield a pair of tensors: the augmented images as uint8 of shape `(b, height,
# width, 3)`, and their labels. The last batch may be smaller.
#
# **Why:** It replaces the `Dataset`, the `DataLoader` and all their calls per image. The check afterwards
# demands at least twice the throughput.
#
# <details><summary>Hint 1</summary>One permutation gives the order of the epoch. A slice of it gives the
# numbers of a batch, and an array of numbers as an index gathers the images.</details>
#
# <details><summary>Hint 2</summary>For 5 images and a batch size of 2 the permutation may be [3, 0, 4, 1,
# 2]. The batches are images [3, 0], [4, 1] and [2]. <code>draw(random, len(chosen))</code> gives the three
# arrays for <code>augment_batch</code>.</details>
#
# <details><summary>Hint 3</summary><code>changed = augment_batch(images[chosen], *draw(random,
# len(chosen)))</code> and <code>yield torch.from_numpy(changed),
# torch.from_numpy(labels[chosen])</code>.</details>


# %%
def array_batches(images, labels, batch_size, random):
    # BEGIN SOLUTION: yield augmented batches of the whole array in a random order
    order = random.permutation(len(labels))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        changed = augment_batch(images[chosen], *draw(random, len(chosen)))
        yield torch.from_numpy(changed), torch.from_numpy(labels[chosen])
    # END SOLUTION


# %%
exercises.check_array_batches(array_batches)

# %% [markdown]
# The last experiment compares five loaders with the same training. Two of them use your function: once in
# the main process, and once in one worker that works ahead. The generator is created inside of the
# function, so it is created in the worker.

# %%
LOADERS = {
    "files, serial": lambda: with_workers(0),
    "files, 2 workers": lambda: with_workers(2),
    "array": lambda: array_batches(images, labels, BATCH, np.random.default_rng(3)),
    "array, 1 worker": lambda: streamed(
        lambda: array_batches(images, labels, BATCH, np.random.default_rng(3)), workers=1
    ),
    "zeros": lambda: zeros * (COUNT // BATCH),
}


def feed_the_device(loader, repeat):
    return {"images_per_second": throughput(LOADERS[loader]())}


feeds = sweep("feed_the_device", feed_the_device, grid(loader=LOADERS, repeat=seeds(3, 5)))
middle = feeds.groupby("loader", sort=False)["images_per_second"].median()
exercises.check_throughput(middle["files, serial"], middle["array"], middle["zeros"])

# %% tags=["folded"]
figure, axes = plt.subplots(figsize=(7, 2.8))
axes.barh(list(middle.index), list(middle), color=["C1", "C1", "C0", "C0", "0.6"], label="yours")
shipped = reference("feed_the_device").groupby("loader")["images_per_second"].median()
axes.plot(shipped[middle.index], middle.index, "k|", markersize=16, label="reference (n=5)")
axes.invert_yaxis()
axes.set_xlabel("images per second, median")
axes.legend()
describe(
    figure,
    "Horizontal bars of the images per second of five loaders, with the reference as black marks. Both loaders of single "
    "files are slow, the two loaders from an array are several times as fast, and zeros are the upper bound.",
)

# %% [markdown]
# Your loader is several times as fast as the first version, on the same machine and with the same pixels.
# The two workers doubled the throughput at best, because they only distributed the work. The array
# *removed* the work: in the reference run it gave 36,000 images per second where the serial loader of files
# gave 3,500 (medians of 5, two cores of an AMD EPYC). With a worker in addition, loading and training overlap. This can bring the throughput
# closer to the upper bound, but the batch must also be sent from one process to the other. When the loader
# is fast already, this transfer may cost as much as it saves, so measure both on your machine. (You can
# delete the folder `notebooks/work/feed` now.)
#
# The order of the steps is the same for any training:
#
# 1. Measure the training with constant batches. If this is not faster, the pipeline is good enough, and you
#    can stop.
# 2. Measure the stages, and remove work: decode once, vectorise, store in another format.
# 3. Hide what remains: workers, prefetching, asynchronous copies.
# 4. Move what still remains to the device.
#
# ## Pinned memory and asynchronous copies
#
# This section describes what is different on a GPU. The lab does not run it, because it must work without
# one. Lab 9 has a cell that measures these copies if a GPU is there, and explains pinned memory in detail.
#
# A GPU has its own memory, so each batch must be copied there. `images.to("cuda")` from ordinary memory
# makes the processor wait until the data has been copied into a buffer of the driver. With
# `pin_memory=True` a thread of the `DataLoader` puts each batch into pinned memory, which the operating
# system never moves. The GPU can fetch it from there by itself, and with `non_blocking=True` the call
# returns at once:
#
# ```python
# loader = DataLoader(dataset, batch_size=128, num_workers=4, pin_memory=True, persistent_workers=True)
# for images, labels in loader:
#     images = images.to("cuda", non_blocking=True)      # returns at once
#     labels = labels.to("cuda", non_blocking=True)
#     loss = F.cross_entropy(model(as_floats(images)), labels)  # waits for the copy on the GPU, not here
# ```
#
# Operations on the same stream of a GPU run in order, so the network cannot start before its images have
# arrived. But the processor is free to ask for the next batch. To overlap the *copy* with the computation
# as well, the copy must run on a second stream. `hvdlab.torch.device_batches` does so in about ten lines.
# Two more differences matter on a GPU. The third term of the formula loses $t_\text{train}$, because the
# training does not use the cores. And decoding may move to the GPU too: [NVIDIA
# DALI](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/) decodes JPEG images and augments them
# there.
#
# ## Summary
#
# * The stages of the input pipeline are read, decode, augment, collate and copy. In a serial loop their
#   times add up with the time of the training. With workers the longest of three times decides: loading
#   divided by the workers, training, or all the work divided by the cores.
# * A loader that serves zeros gives the upper bound. The difference from it is the data stall.
# * Workers hide work and need cores. On two cores two workers gain at most a factor of two, and more
#   workers gain nothing.
# * Vectorised augmentation gives the same bytes as the augmentation of single images in a fraction of the
#   time.
# * Decoding was the longest stage. An array of decoded pixels removes it, for 30 % more bytes than PNG in
#   the case of CIFAR-10. Together with the vectorised augmentation it made your loader at least twice as
#   fast.
# * An `IterableDataset` is copied into every worker. Number the readers over all ranks and workers, so that
#   each shard is read exactly once.
# * Download on local rank 0 of each node, and let all ranks meet at a barrier before they load.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=80)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="c")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="b")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer=4)

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="d")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="a")

# %% [markdown]
# **Next:** lab 11 converts a training script for one GPU into one for many, with PyTorch's
# `DistributedDataParallel`.
