"""Settings of the grader's probe: a short run that tests whether N ranks train like a single process.

A script that exchanges gradients correctly computes the same weights in two cases: each of its N ranks
reads its own batch of B examples, or every rank reads all N batches together. In contrast, a script whose
ranks train separately and average their weights only rarely computes different weights. The grader runs a
script in both cases and compares the weights. The comparison is only meaningful if the two runs differ in
nothing else. So where the environment variable HVDLAB_PROBE is set,

* the grader gives each rank a data folder of its own, $HVDLAB_DATA, with the same images on all ranks and
  different labels. `Batches` reads the training set of that folder, whatever arrays it is given. So it does
  not matter how the images reached the script: it may have shuffled them, left some of them out for
  validation, or received them from another rank. Only `Batches` of test images keep their arrays.
* `Batches` gives all ranks the same images in the same order, in STEPS small batches per epoch, without
  augmentation. Its rank, size and seed have no effect. So batch norm computes the same statistics on every
  rank, but the gradients of the ranks differ.
* all test images have the same label, which occurs in no training set. A network can learn this class only
  from the test images, and a script must not train on them.
* HVDLAB_PROBE=DxCxTxB means that the data set contains each image C times in a row, with labels that may
  differ, and that a batch holds D of these copies of its images. With T = 0 a batch holds the first copy of
  all its images, then the second copy of all, and so on. With T = 1 it holds all copies of one image, then
  all copies of the next. With the first order, a script that normalizes groups of 16 images computes the
  same result as with separate batches. With the second order, this holds for a script that splits each
  batch in half.
* the data set has the same size in both runs. So a script that computes the steps per epoch itself, as
  images / (batch size * ranks) with the batch size of the graded run, gets STEPS.
* networks start with the same weights and compute with B bits, normally in float64. Max pooling passes its
  gradient to the largest value. In float32, rounding decides which of several nearly equal values is the
  largest, and within a few steps the weights depend on it. A script that fails in float64 runs again in
  float32, because it may declare its gradients to MPI as MPI.FLOAT.
* a rank that has recorded an epoch waits a moment. The grader then reads how many bytes the rank has sent,
  while the rank is sending nothing.

In a graded run the variable is not set, so none of this applies.
"""

import os

COPIES_IN_BATCH, COPIES, IN_TURNS, BITS = map(
    int, os.environ.get("HVDLAB_PROBE", "0x0x0x64").split("x")
)
# Few steps are enough, because averaging too rarely changes the weights at once. With more steps, rounding
# errors (for example from float16 gradients) would grow from step to step.
STEPS = 4
# Distinct images in a batch: at most LARGEST; at least LEAST; on all ranks together TOGETHER.
# MOST_PARTS is the largest number by which `batch_size` divides the requested batch size.
LARGEST, LEAST, TOGETHER, MOST_PARTS = 128, 8, 512, 8
# Images over which batch norm is often computed. If a batch holds the copies of many ranks, it should
# consist of whole groups.
GROUP = 32
FOLDER = os.environ.get("HVDLAB_DATA", "")  # as the grader set it, before the script can change it
DTYPE = f"float{BITS}"
SEED = 1
PAUSE_SECONDS = 0.2  # seconds after an epoch; the grader reads the counters every 0.05 s


def batch_size(asked: int, images: int) -> int:
    """Return the number of distinct images in a batch of the probe.

    Args:
        asked: batch size that the script requested.
        images: number of distinct images in the data set.
    """
    # In the run with copies, each rank holds the images of all ranks in float64. So with many ranks the
    # batches must be smaller.
    largest = min(LARGEST, max(LEAST, TOGETHER // COPIES))
    # The requested size divided by a whole number, without a remainder. So a script that divides a batch by
    # a number of its own can often do so here as well.
    parts = [asked // n for n in range(1, MOST_PARTS + 1) if asked % n == 0]
    parts = [part for part in parts if part <= largest] or [largest]
    if largest < LARGEST:
        parts = [part for part in parts if part % GROUP == 0] or parts
    return max(1, min(parts[0], images // STEPS))
