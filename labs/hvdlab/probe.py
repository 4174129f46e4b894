"""The probe of the grader: a short run that shows whether N ranks train as one process would.

A script with the right exchange of gradients does the same whether each of its N ranks reads its own
batch of B examples, or every rank reads the N batches together. One that trains alone between rare
averages does not. The grader runs a script both ways and compares the weights. For this to say
something, the runs must not differ in anything else. So where the variable HVDLAB_PROBE is set,

* `Batches` deals all ranks the same images in the same order, STEPS small batches an epoch, not augmented,
  whatever its rank, size and seed. (The grader gives each rank other labels: so batch norm sees the same
  statistics everywhere, and yet each rank has something to tell the others.)
* HVDLAB_PROBE=DxCxTxB says that the data set has each image C times, one after another, with labels that may
  differ, and that a batch holds D of these copies of its images: first one copy of all, then the next; or,
  where T is 1, all copies of one image, then of the next. (Who normalises groups of 16 images does the same
  with the first order as apart, who halves each batch with the second.)
* the data set is as large in both runs: whoever counts an epoch's steps himself, images / (batch size *
  ranks), with the batch size of the run that counts, comes to STEPS.
* networks begin with the same weights and compute with B bits: in float64. In float32 the largest of nearly
  equal values, which max pooling passes its gradient to, depends on rounding, and within a few steps the
  weights depend on it too. (A script that goes wrong there is run again in float32: it may tell MPI that its
  gradients are MPI.FLOAT.)
* a rank that has recorded an epoch waits a moment: the grader then reads how much was sent, while nothing is.

Nothing of this happens in a run that counts: there the variable is not set.
"""

import os

DEALT, COPIES, IN_TURNS, BITS = map(int, os.environ.get("HVDLAB_PROBE", "0x0x0x64").split("x"))
# Few: rounding, as to float16 gradients, grows from step to step, and averaging too rarely shows at once.
STEPS = 4
# Images in a batch, each once: at most, at least, of all ranks.
LARGEST, LEAST, TOGETHER, MOST_PARTS = 128, 8, 512, 8
GROUP = 32  # of images that batch norm is often made over: of many ranks' copies a batch is whole groups
DTYPE = f"float{BITS}"
SEED = 1
PAUSE = 0.2  # seconds after an epoch: the grader looks every 0.05


def batch_size(asked: int, images: int) -> int:
    """Images in a batch of the probe, each counted once; `images` are all that there are."""
    # Where the copies are dealt each rank has those of all, in float64: of many ranks, smaller ones.
    largest = min(LARGEST, max(LEAST, TOGETHER // COPIES))
    # An even part, so that whoever divides a batch by a number of their own can do so here as well.
    parts = [asked // n for n in range(1, MOST_PARTS + 1) if asked % n == 0]
    parts = [part for part in parts if part <= largest] or [largest]
    if largest < LARGEST:
        parts = [part for part in parts if part % GROUP == 0] or parts
    return max(1, min(parts[0], images // STEPS))
