"""The probe of the grader: a short run that shows whether N ranks train as one process would.

A script with the right exchange of gradients does the same whether each of its N ranks reads its own
batch of B examples, or every rank reads the N batches together. One that trains alone between rare
averages does not. The grader runs a script both ways and compares the weights. For this to say
something, the runs must not differ in anything else. So where the variable HVDLAB_PROBE is set,

* `Batches` deals all ranks the same images in the same order, a few small batches
  an epoch, not augmented, whatever its rank, size and seed. (The grader gives each rank other labels:
  so batch norm sees the same statistics everywhere, and yet each rank has something to tell the
  others.)
* HVDLAB_PROBE=CxSxLxB says that an epoch has S steps of at most L images, and that the data set is C copies
  of the images, which differ in their labels; a batch then holds the same images from each copy, one
  after another.
* networks begin with the same weights and compute with B bits: in float64. In float32 the largest of nearly
  equal values, which max pooling passes its gradient to, depends on rounding, and within a few steps the
  weights depend on it too. (A script that goes wrong there is run again in float32: it may tell MPI that its
  gradients are MPI.FLOAT.)
* a rank that has recorded an epoch waits a moment: the grader then reads how much was sent, while nothing is.

Nothing of this happens in a run that counts: there the variable is not set.
"""

import os

COPIES, STEPS, LARGEST, BITS = map(int, os.environ.get("HVDLAB_PROBE", "0x0x0x64").split("x"))
DTYPE = f"float{BITS}"
SEED = 1
PAUSE = 0.2  # seconds after an epoch: the grader looks every 0.05
