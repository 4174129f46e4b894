"""Settings of the grader's probe: a short run that tests whether N ranks train like a single process.

A script that exchanges gradients correctly computes the same weights in two cases: each of its N ranks
reads its own batch of B examples, or every rank reads all N batches together. In contrast, ranks that share
only some of their gradients, or average weights now and then, compute different weights. The grader runs a
script in both cases and compares the weights. The comparison is only meaningful if the two runs differ in
nothing else. So where the environment variable HVDLAB_PROBE is set,

* the grader gives each rank a data folder of its own, $HVDLAB_DATA, with the same images on all ranks and
  different labels. `Batches` reads the training set of that folder, whatever arrays it is given. So it does
  not matter how the images reached the script: it may have shuffled them, left some of them out for
  validation, or received them from another rank. Only `Batches` of test images keep their arrays.
* `Batches` gives all ranks the same images in the same order, without augmentation. Its rank, size and seed
  have no effect on the order. So batch norm computes the same statistics on every rank, but the gradients
  of the ranks differ.
* the data set, the batches and the steps of an epoch have the sizes of the graded run. The grader ends the
  run when it has seen enough steps. So a script cannot tell from its sizes that it is probed.
* the recorder writes the weights whenever the script asks for the batch after a step of SNAPSHOTS. Ranks
  that average gradients have equal weights then. Ranks that average only in some steps, or only some
  gradients, differ in at least one snapshot, however small their learning rate is.
* all test images have the same label, which occurs in no training set. A network can learn this class only
  from the test images, and a script must not train on them.
* HVDLAB_PROBE=DxCxTxBxS means that the data set contains each image C times in a row, with labels that may
  differ, and that a batch holds D of these copies of its images. With T = 0 a batch holds the first copy of
  all its images, then the second copy of all, and so on. With T = 1 it holds all copies of one image, then
  all copies of the next. With the first order, a script that normalizes groups of 16 images computes the
  same result as with separate batches. With the second order, this holds for a script that splits each
  batch in half.
* networks start with the same weights and compute with B bits. In float32, rounding decides which of
  several nearly equal values a max pooling takes, and within a few steps the weights depend on it. So B is
  64 where float64 is fast enough. A script that fails in float64 runs again in float32, because it may
  declare its gradients to MPI as MPI.FLOAT.
* S > 0 is for scripts that write the record themselves, without a `Recorder`, as with legacy Keras: their
  weights are seen at the end of an epoch only, so an epoch has S steps, and the data set is smaller.
* a rank that has recorded weights waits a moment. The grader then reads how many bytes the rank has sent,
  while the rank is sending nothing.

In a graded run the variable is not set, so none of this applies.
"""

import os
import threading
import time
from collections.abc import Callable

COPIES_IN_BATCH, COPIES, IN_TURNS, BITS, STEPS = map(
    int, os.environ.get("HVDLAB_PROBE", "0x0x0x64x0").split("x")
)
SHORT_EPOCH = 4  # S, where it is not 0
# Steps after which the weights are recorded. Ranks that average every k steps, k >= 2, differ in one of the
# consecutive ones. The last is a prime: no k of 2 to 22 divides it. From step 4 to 8 a script that averages
# every second or fourth step makes whole rounds.
FIRST, SECOND, LAST = 4, 8, 23
SNAPSHOTS = (4, 5, 6, 7, 8, 23)
# If another thread reads ahead, the training must first catch up, so there are fewer of them.
SNAPSHOTS_OF_THREADS = (FIRST, SECOND, LAST)
# Distinct images in a batch: at least LEAST, on all ranks together TOGETHER. MOST_PARTS is the largest number
# by which `batch_size` divides the requested batch size.
LEAST, TOGETHER, MOST_PARTS = 8, 4096, 8
# Up to so many images in a batch of all ranks the probe computes in float64, which needs four times as long.
MOST_IN_FLOAT64 = 512
# Images over which batch norm is often computed. If a batch holds the copies of many ranks, it should
# consist of whole groups.
GROUP = 32
FOLDER = os.environ.get("HVDLAB_DATA", "")  # as the grader set it, before the script can change it
DTYPE = f"float{BITS}"
SEED = 1
PAUSE_SECONDS = 0.3  # seconds after a record; the grader reads the counters every 0.05 s
QUIET_SECONDS = 1.0  # without a change of the weights, at least, until training has caught up
CATCH_UP_SECONDS = 60.0  # at most, until training has begun


def batch_size(asked: int, images: int, copies: int | None = None) -> int:
    """Return the number of distinct images in a batch of the probe: `asked`, unless that is too many.

    Args:
        images: number of distinct images in the data set.
        copies: number of ranks, whose copies of an image a batch can hold. Default: of this run.
    """
    largest = max(LEAST, TOGETHER // (copies or COPIES))
    if asked > largest:
        # The requested size divided by a whole number, without a remainder. So a script that divides a batch
        # by a number of its own can often do so here as well.
        parts = [asked // n for n in range(1, MOST_PARTS + 1) if asked % n == 0]
        parts = [part for part in parts if part <= largest] or [largest]
        asked = next((part for part in parts if part % GROUP == 0), parts[0])
    return max(1, min(asked, images))


class Snapshots:
    """Records the weights in the middle of an epoch, after the steps of SNAPSHOTS.

    Args:
        write: called with the number of steps done; writes the weights.
        weights: returns a value that changes when the weights change; an empty one without a model.
    """

    def __init__(self, write: Callable[[int], object], weights: Callable[[], object]) -> None:
        self.write, self.weights = write, weights
        self.last: object = None

    def before_batch(self, step: int) -> None:
        """Record the weights if the batch that is being read is one after a snapshot.

        If the thread that trains reads the batch, all steps before it are done. Another thread may read ahead
        of the training, so it waits until the weights no longer change.

        Args:
            step: number of batches that have been read so far.
        """
        if threading.current_thread() is threading.main_thread():
            if step in SNAPSHOTS:
                self.write(step)
            return
        self.last = self.last or self.weights()  # before the first step
        if step in SNAPSHOTS_OF_THREADS:
            self._wait_until_caught_up()
            self.write(step)

    def _wait_until_caught_up(self) -> None:
        """Return when the weights have changed since the last snapshot and stay as they are."""
        now = began = changed = time.monotonic()
        longest, seen = 0.0, self.last
        while now - began < CATCH_UP_SECONDS:
            weights, now = self.weights(), time.monotonic()
            if weights != seen:
                # The first change ends a wait of unknown length, for example for a compilation.
                longest = max(longest, now - changed if seen != self.last else 0.0)
                seen, changed = weights, now
            elif seen != self.last and now - changed > max(QUIET_SECONDS, 3 * longest):
                break
            time.sleep(0.05)
        self.last = seen
