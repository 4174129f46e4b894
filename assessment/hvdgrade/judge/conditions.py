"""What a report has measured, as conditions that rule out causes of a failed check."""

from statistics import median

from hvdgrade.evidence.evidence import LARGEST_BATCH
from hvdgrade.judge.check import Case
from hvdgrade.judge.traffic import (
    FEWEST_ROUNDS,
    USUAL_BATCH,
    credible_steps,
    exchanges,
    sends_16_bits,
)
from hvdlab.assessment_networks import network_weights
from hvdlab.record import is_statistic

NO_ROUND = 0.25  # rounds in an epoch; a broadcast of all weights is half a round
SAME_BATCHES = 0.5  # fraction of positions at which two ranks read the same example
# Times the limit. SGD, Adam, RMSprop and LAMB were measured in both formats: rounding gives at most 0.4 of
# it, and weights that are averaged after their steps at least 4 times.
ROUNDING = 2.0
SLOW_START = 0.25  # of the budget


def rounds(case: Case) -> list[float] | None:
    """Return the rounds of all gradients in each epoch after the first; None if bytes are not counted."""
    epochs = case.evidence.epochs
    if not epochs:
        return None
    found = exchanges(case.evidence.observation, [epoch.epoch for epoch in epochs], case.rules)
    return None if None in found else found[1:] or found


def rounds_per_step(case: Case) -> float | None:
    """Return the rounds of all gradients per step, in the epoch with most of them; None if unknown."""
    found, epochs = rounds(case), case.evidence.epochs
    steps = [credible_steps(epoch, LARGEST_BATCH) for epoch in epochs[1:] or epochs]
    if found is None or not all(steps):
        return None
    return max(each / number for each, number in zip(found, steps, strict=True))


def exchanges_little(case: Case) -> bool:
    """Return whether the bytes were counted, and are fewer than gradients need."""
    found = rounds_per_step(case)
    return found is not None and found < FEWEST_ROUNDS


def exchanges_enough(case: Case) -> bool:
    """Return whether the bytes were counted, and are as many as gradients need."""
    found = rounds_per_step(case)
    return found is not None and found >= FEWEST_ROUNDS


def sends_narrow_numbers(case: Case) -> bool:
    """Return whether the ranks may send 16-bit numbers."""
    return case.evidence.probe is not None and sends_16_bits(case.evidence.probe, case.rules)


def may_be_rounding(case: Case) -> bool:
    """Return whether rounding to 16 bits may explain the distance, with an optimizer nobody measured here."""
    return case.evidence.probe.distance < ROUNDING * case.rules.rounding_tolerance


def has_equal_layers(case: Case) -> bool:
    """Return whether the ranks of the probe have equal weights in some layers, in all of its steps."""
    weights = {name for name in network_weights(case.rules.network) if not is_statistic(name)}
    return not weights <= set(case.evidence.probe.differing)


def begins_equal(case: Case) -> bool:
    """Return whether all ranks had the same weights after the first epoch."""
    return case.evidence.epochs[0].difference <= case.rules.replica_tolerance


def divides_the_work(case: Case) -> bool:
    """Return whether the ranks read different examples, so that each makes 1/N of the steps."""
    epochs = case.evidence.epochs
    return case.evidence.read_batches and all(
        epoch.shared <= case.rules.max_shared_examples and epoch.same_order <= SAME_BATCHES
        for epoch in epochs
    )


def is_equal_without_messages(case: Case) -> bool:
    """Return whether ranks that read different data have equal weights, although they sent almost nothing."""
    found, epochs = rounds(case), case.evidence.epochs
    equal = all(epoch.difference <= case.rules.replica_tolerance for epoch in epochs)
    return found is not None and max(found) < NO_ROUND and equal and divides_the_work(case)


def has_small_batches(case: Case) -> bool:
    """Return whether a rank's batch may be so small that the exchange takes much of a step."""
    claimed = case.evidence.epochs[0].batch_size
    return claimed is None or claimed < USUAL_BATCH


def seconds_of_later_epochs(case: Case) -> float | None:
    """Return the median seconds of an epoch after the first; None if there is only one epoch."""
    times = [entry.seconds for entry in case.timeline]
    return median(b - a for a, b in zip(times, times[1:], strict=False)) if times[1:] else None


def starts_slowly(case: Case) -> bool:
    """Return whether the first epoch takes much longer than a later one, or may do so if there is none."""
    later = seconds_of_later_epochs(case)  # 0.0 if both arrived between two looks
    later = case.evidence.pass_seconds if later is None else later
    if not case.timeline or later is None:
        return case.evidence.observation.stop_cause == "timeout"
    first = case.timeline[0].seconds
    return first > 2 * later and first - later > SLOW_START * case.budget


def trains_at_full_speed(case: Case) -> bool:
    """Return whether later epochs take no longer than at the speed of the calibration."""
    later, needed = seconds_of_later_epochs(case), case.evidence.pass_seconds
    return later is not None and needed is not None and later <= 1.1 * needed


def still_rises(case: Case) -> bool:
    """Return whether the last epoch has the best accuracy so far."""
    found = [min(entry.train_accuracy, entry.heldout_accuracy) for entry in case.timeline]
    return len(found) < 2 or found[-1] > max(found[:-1])


def has_time_left(case: Case) -> bool:
    """Return whether the script ended by itself, with time for one more epoch."""
    if case.evidence.observation.stop_cause != "ended":
        return False
    last = case.timeline[-1].seconds
    return case.budget - last > last / len(case.timeline)


def reads_equally(case: Case) -> bool:
    """Return whether all ranks read equally many examples in each epoch that all of them recorded."""
    epochs = case.evidence.epochs
    return bool(epochs) and all(max(epoch.read) == min(epoch.read) > 0 for epoch in epochs)


def recorded(case: Case) -> list[set[int]]:
    """Return the numbers of the epochs that each rank recorded."""
    seen = case.evidence.observation
    return [set(seen.of(rank)) for rank in range(seen.ranks)]


def recorded_equally_many(case: Case) -> bool:
    """Return whether all ranks recorded the same number of epochs."""
    return len({len(epochs) for epochs in recorded(case)}) == 1
