"""What the grader knows of one run when it judges it, as data types.

`Observation` says what was measured while the run lasted. The types here add what the weights show.
"""

from dataclasses import dataclass, field
from math import ceil

from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.submission.script_facts import ScriptFacts

UNKNOWN_BATCH = 128
LARGEST_BATCH = 4096  # images per rank and step; the grader believes no larger batches
UNMOVED = 1e9  # the distance of two runs if the weights of the first one do not move


@dataclass(frozen=True)
class EpochEvidence:
    """One epoch that every rank recorded.

    Attributes:
        epoch: number of the epoch, from 0.
        weights: path of the weight file of rank 0.
        difference: largest relative difference between the weights of two ranks.
        differs_at: name of the array with that difference; "" if all weights are equal.
        differing_rank: the rank that differs most from rank 0.
        read: number of examples that each rank read.
        outside: number of examples of all ranks that are not in the training set.
        coverage: fraction of the training set that the ranks read together.
        shared: largest fraction of one rank's examples that another rank also read.
        same_order: largest fraction of positions at which two ranks read the same example.
        steps: number of steps that rank 0's record claims; None if it claims none.
        batch_size: images per step that rank 0's record claims; None if it claims none.
        steps_can_be_seen: whether a `Recorder` wrote the record, which in the probe also records weights in
            the middle of an epoch.
        train_accuracy: recomputed accuracy on training images, 0..1; None before it is computed.
        heldout_accuracy: recomputed accuracy on the hidden images, 0..1; None before it is computed.
    """

    epoch: int
    weights: str
    difference: float
    differs_at: str
    differing_rank: int
    read: list[int]
    outside: int
    coverage: float
    shared: float
    same_order: float
    steps: int | None
    batch_size: int | None
    steps_can_be_seen: bool = False
    train_accuracy: float | None = None
    heldout_accuracy: float | None = None


@dataclass(frozen=True)
class LearnedClasses:
    """What one rank learned in the probe about classes: see `hvdgrade.evidence.accuracy.flow`.

    Attributes:
        learned: growth of the probability of the rank's own classes, relative to the class that no
            training image has, as a difference of logarithms without its sign.
        others: probability of the classes of other ranks, relative to an even share: 0 if the rank learned
            nothing about them, 1 if it learned as much as about its own. It counts where the network has
            learned much.
        others_change: the same from the growth of the probabilities, where the network has learned little.
        test_class: probability of the test images' class, relative to an even share. Training makes it
            small, and training on test images large.
    """

    learned: float
    others: float
    others_change: float = 1.0
    test_class: float = 1.0


@dataclass(frozen=True)
class ProbeEvidence:
    """The comparison of the two runs of a probe.

    Attributes:
        probe: the files and observations of the two runs.
        refused: sentences about weight files that could not be read.
        flow: what each rank learned.
        replicas: largest relative difference between the weights of two ranks, in any snapshot of "apart".
        differing_step: the first step with a difference above `hvdgrade.evidence.compare_ranks.EXACT`.
        differing: names of the arrays that differ in any snapshot.
        updates: changes of the weights per step, from snapshots after consecutive steps; None if there
            are no such snapshots.
        distance: distance between the two runs, relative to the movement of the first one.
        first_distance: the same after the first snapshot only.
    """

    probe: Probe
    refused: list[str] = field(default_factory=list)
    flow: list[LearnedClasses] = field(default_factory=list)
    replicas: float = 0.0
    differing_step: int | None = None
    differing: list[str] = field(default_factory=list)
    updates: float | None = None
    distance: float = UNMOVED
    first_distance: float = UNMOVED

    @property
    def compared(self) -> bool:
        """Return whether both runs finished and all of their weights could be read."""
        return self.probe.failed is None and not self.refused


@dataclass(frozen=True)
class Evidence:
    """Everything from which one run is judged.

    Attributes:
        observation: what was measured while the run lasted.
        epochs: the epochs that every rank recorded, in order.
        refused: sentences about weight files that could not be read.
        script: what the source contains. It serves explanations only.
        probe: the comparison of the two short runs; None if there was no probe.
        pass_seconds: seconds that all ranks together need for one pass over the training set if each
            trains at the speed that the calibration measured per process; None without a calibration.
    """

    observation: Observation
    epochs: list[EpochEvidence] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    script: ScriptFacts = ScriptFacts()
    probe: ProbeEvidence | None = None
    pass_seconds: float | None = None

    @property
    def ranks(self) -> int:
        return self.observation.ranks

    @property
    def read_batches(self) -> bool:
        """Return whether the records name any example that a rank read from `Batches`."""
        return any(max(epoch.read) for epoch in self.epochs)

    def arrival(self, epoch: int) -> float:
        """Return the seconds from launch until the weights after `epoch` had arrived from all ranks."""
        seen = self.observation
        return max(seen.of(rank)[epoch].seconds for rank in range(seen.ranks))


def batch_size(epochs: list[EpochEvidence], largest: int = LARGEST_BATCH) -> int:
    """Return how many images a batch of rank 0 has, as far as its record shows it, and at most `largest`.

    The last batch of an epoch may have fewer images. Therefore the function uses the recorded batch size if
    it agrees with the number of steps, and otherwise divides the images read by the steps. If the record has
    no number of steps, it returns UNKNOWN_BATCH.
    """
    read, steps, claimed = epochs[0].read[0], epochs[0].steps, epochs[0].batch_size
    if claimed and ceil(read / claimed) == steps:
        batch = min(claimed, read)
    else:
        batch = ceil(read / steps) if steps else UNKNOWN_BATCH
    # What a record claims must not decide how much disk the probe needs.
    return max(1, min(batch, largest))
