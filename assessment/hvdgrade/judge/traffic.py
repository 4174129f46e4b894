"""How many bytes the ranks of a run must exchange, and how many they exchanged."""

from dataclasses import dataclass
from math import floor, inf, prod

from hvdgrade.evidence.evidence import LARGEST_BATCH, EpochEvidence, Evidence, ProbeEvidence
from hvdgrade.evidence.observation import Observation, Probe, Weights
from hvdgrade.profiles import Profile
from hvdlab.assessment_networks import network_weights
from hvdlab.probe_mode import FIRST, SECOND
from hvdlab.record import is_statistic

FEWEST_UPDATES = 0.25  # per step: gradients may be accumulated over four steps
COUNTED = 0.9  # of the bytes: a counter may be read a moment too early or too late
# The same in rounds of float32 gradients where it is not known whether gradients are sent as 16-bit numbers.
FEWEST_ROUNDS = FEWEST_UPDATES / 2 * COUNTED
ROUNDS_OF_FEW_STEPS = (
    0.2  # per step, where an epoch has few: a fourth, less what its start and end may hide
)
# The number of steps is only a claim of the script. When a small number of steps excuses few exchanges,
# the grader does not believe fewer steps than result from batches of this many images per rank.
USUAL_BATCH = 512


def exchanges(seen: Observation, epochs: list[int], rules: Profile) -> list[float | None]:
    """Return how many all-reduces of all gradients the bytes sent in each epoch allow.

    An all-reduce of S bytes among N ranks sends at least 2 (N - 1) S bytes in total, with any algorithm
    (P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms, 2009).

    An epoch begins when the grader last looked and did not find the weights of the epoch before. What is sent
    until it finds them counts for both epochs: on a busy machine it may find them seconds late.
    """
    found, begin = [], 0
    for epoch in epochs:
        records = [seen.of(rank)[epoch] for rank in range(seen.ranks)]
        if (end := sent_until(records)) is None:
            return [None] * len(epochs)
        found.append((end - begin) / bytes_of_a_round(seen.ranks, rules))
        begin = max(record.bytes_before for record in records)
    return found


def sent_until(records: list[Weights]) -> int | None:
    """Return the bytes that all ranks had sent when the grader found the last of these weights."""
    sent = [record.bytes_on_wire for record in records]
    return None if None in sent else max(sent)


def bytes_of_a_round(ranks: int, rules: Profile) -> int:
    """Return the bytes that `ranks` ranks send in total in an all-reduce of all gradients in float32."""
    return 2 * (ranks - 1) * gradient_bytes(rules.network)


def credible_steps(epoch: EpochEvidence, largest: int) -> float:
    """Return the steps of an epoch: the script's claim, or those with the `largest` batch if more."""
    return max(epoch.steps or 0, min(epoch.read) / largest)


def probed_exchange(probe: Probe, name: str, rules: Profile) -> float | None:
    """Return the all-reduces of all gradients per step in a run of the probe; None if they are not known.

    Each run has the same steps before it: the start is not counted.
    """
    if not (seen := probe.seen.get(name)):
        return None
    common = sorted(set.intersection(*(set(seen.of(rank)) for rank in range(seen.ranks))))
    if not probe.steps:
        common = [step for step in common if step in (FIRST, SECOND)]
    if len(common) < 2:
        return None
    first, last = common[0], common[-1]
    begin, end = (sent_until([seen.of(r)[at] for r in range(seen.ranks)]) for at in (first, last))
    if None in (begin, end) or begin == end:
        return None
    steps = (last - first) * (probe.steps or 1)
    return (end - begin) / bytes_of_a_round(seen.ranks, rules) / steps


@dataclass(frozen=True)
class Averaging:
    """How a script averages gradients in the probe.

    Attributes:
        updates: changes of the weights per step: 1, or less if gradients are accumulated.
        number_bytes: bytes of a number that is sent in the graded run, where networks compute in float32.
    """

    updates: float
    number_bytes: float

    def rounds(self, steps: float, least_updates: float = inf) -> float:
        """Return the rounds of float32 gradients in so many steps, with at most `least_updates` per step."""
        return floor(steps * min(self.updates, least_updates)) * self.number_bytes / 4


def averaging(found: ProbeEvidence, rules: Profile) -> Averaging | None:
    """Return how the script averages gradients; None if the traffic of the probe is not known.

    A script may send numbers as they are, or convert them. Where the updates cannot be seen in the probe, the
    function assumes numbers as they are. For a script that converts them, this means fewer updates.
    """
    rounds = probed_exchange(found.probe, "apart", rules)
    if rounds is None:
        return None
    whole = found.probe.bits / 8
    updates = found.updates or min(1.0, rounds * 4 / whole)
    return Averaging(updates, min(4.0, rounds * 4 / updates))


def sends_16_bits(found: ProbeEvidence, rules: Profile) -> bool:
    """Return whether the ranks may send 16-bit numbers, by the bytes of a round in the probe."""
    rounds = probed_exchange(found.probe, "apart", rules)
    return rounds is not None and rounds * 4 / (found.updates or 1.0) < 3.0


@dataclass(frozen=True)
class Shortage:
    """An epoch of the graded run with fewer bytes than the averaging of the probe needs, in rounds."""

    epoch: int
    rounds: float
    needed: float
    steps: float


def shortage(evidence: Evidence, rules: Profile) -> Shortage | None:
    """Return the epoch in which the graded run averaged gradients less often than it may, or than the probe.

    In each epoch, averages are needed at least in every fourth step (FEWEST_UPDATES), and in one epoch as
    often as in the probe: a script may accumulate over more steps from epoch to epoch.
    """
    found, epochs = evidence.probe, evidence.epochs
    how = averaging(found, rules) if found else None
    counted = exchanges(evidence.observation, [epoch.epoch for epoch in epochs], rules)
    if how is None or None in counted:
        return None
    later = slice(1, None) if len(epochs) > 1 else slice(None)  # the first includes the start
    each = [
        (epoch.epoch, rounds, credible_steps(epoch, LARGEST_BATCH))
        for epoch, rounds in zip(epochs, counted, strict=True)
    ][later]
    for epoch, rounds, steps in each:
        needed = COUNTED * how.rounds(steps, FEWEST_UPDATES)
        if rounds < needed:
            return Shortage(epoch, rounds, needed, steps)
    epoch, rounds, steps = max(each, key=lambda one: one[1] / one[2])
    needed = COUNTED * how.rounds(steps)
    return Shortage(epoch, rounds, needed, steps) if rounds < needed else None


def exchange_growth(probe: Probe, rules: Profile) -> float | None:
    """Return how much the traffic per step grows if each rank gets the batches of all ranks; None if unknown.

    The number of gradients does not depend on the batch size, so data-parallel ranks give about 1.
    """
    apart, together = (probed_exchange(probe, name, rules) for name in ("apart", "together"))
    return together / apart if together and apart else None


def gradient_bytes(network: str) -> int:
    """Return the number of bytes of all gradients of a network in float32."""
    shapes = network_weights(network).items()
    return 4 * sum(prod(shape) for name, shape in shapes if not is_statistic(name))
