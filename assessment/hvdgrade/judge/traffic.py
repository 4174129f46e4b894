"""How many bytes the ranks of a run must exchange, and how many they exchanged."""

from math import prod
from statistics import fmean

from hvdgrade.evidence.evidence import LARGEST_BATCH, EpochEvidence
from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.profiles import Profile
from hvdlab.assessment_networks import network_weights
from hvdlab.probe_mode import STEPS
from hvdlab.record import is_statistic

FEWEST_ROUNDS = 0.2  # per step: a fourth, less what the start and end of an epoch may hide
# The number of steps is only a claim of the script. When a small number of steps excuses few exchanges,
# the grader does not believe fewer steps than result from batches of this many images per rank.
USUAL_BATCH = 512


def exchanges(seen: Observation, epochs: list[int], rules: Profile) -> list[float | None]:
    """Return how many all-reduces of all gradients the bytes sent in each epoch allow.

    An all-reduce of S bytes among N ranks sends at least 2 (N - 1) S bytes in total, with any algorithm
    (P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms, 2009).
    """
    once = 2 * (seen.ranks - 1) * gradient_bytes(rules.network)
    found, before = [], 0
    for epoch in epochs:
        bytes_then = [seen.of(rank)[epoch].bytes_on_wire for rank in range(seen.ranks)]
        if None in bytes_then:
            return [None] * len(epochs)
        found.append((max(bytes_then) - before) / once)
        before = max(bytes_then)
    return found


def credible_steps(epoch: EpochEvidence, largest: int) -> float:
    """Return the steps of an epoch: the script's claim, or those with the `largest` batch if more."""
    return max(epoch.steps or 0, min(epoch.read) / largest)


def probed_exchanges(probe: Probe, name: str, rules: Profile) -> list[float]:
    """Return the all-reduces of all gradients per step, for each epoch of a run of the probe.

    The first epoch is left out because it includes the start-up traffic. The list is empty if the
    traffic is unknown.
    """
    if not (seen := probe.seen.get(name)):
        return []
    common = set.intersection(*(set(seen.of(rank)) for rank in range(seen.ranks)))
    rounds = exchanges(seen, sorted(common), rules)[1:]
    return [] if None in rounds else [each / STEPS for each in rounds]


def exchange_drop(
    seen: Observation, epochs: list[EpochEvidence], probe: Probe, rules: Profile
) -> float | None:
    """Return the bytes exchanged per step in the probe, divided by those in the graded run.

    The result is 2 for a script that averages gradients in each step, because the probe uses float64.
    It is None if the traffic is unknown.
    """
    probed = probed_exchanges(probe, "apart", rules)
    counted = exchanges(seen, [epoch.epoch for epoch in epochs], rules)
    steps = [credible_steps(epoch, LARGEST_BATCH) for epoch in epochs]
    if not probed or None in counted or not all(steps):
        return None
    each = [rounds / number for rounds, number in zip(counted, steps, strict=True)]
    # A script may exchange less from epoch to epoch, so the epoch with most traffic counts.
    most = max(each[1:] or each)
    return fmean(probed) / most if most > 0 else None


def exchange_growth(probe: Probe, rules: Profile) -> float | None:
    """Return a lower bound of how much traffic per step grows if each rank gets the batches of all ranks.

    The number of gradients does not depend on the batch size, so data-parallel ranks give about 1. Ranks
    wait a moment after each epoch so that the counter can be read. On a crowded machine it may be read
    later, so that one epoch seems to have more traffic and another less. The bound therefore divides the
    minimum by the maximum.
    """
    apart, together = (probed_exchanges(probe, name, rules) for name in ("apart", "together"))
    return min(together) / max(apart) if together and apart and max(apart) > 0 else None


def gradient_bytes(network: str) -> int:
    """Return the number of bytes of all gradients of a network in float32."""
    shapes = network_weights(network).items()
    return 4 * sum(prod(shape) for name, shape in shapes if not is_statistic(name))
