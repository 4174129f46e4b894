"""Whether the ranks hold the same weights, and from which step on they do not."""

from typing import Any

from hvdlab.check.gradient_shares import averages
from hvdlab.check.run_events import EQUAL, Run
from hvdlab.trace import records

ADASUM_EQUAL = 1e-5  # relative difference of two norms that count as equal after Adasum


def states(run: Run, number: int | None) -> list[list[list[float]]]:
    """Return the norms of the weights that each step left behind.

    An optimizer without a wrapper may average nothing, while the script averages after the step. So its
    weights are those with which its next step begins.

    Returns:
        Step -> rank -> norms.
    """
    steps = run.steps(number)
    found = [[event.weights for event in events] for events in steps]
    for step, events in enumerate(steps[1:]):
        if all(event.start for event in events):
            found[step] = [event.start for event in events]
    if run.exchanges() and len(found) > 1 and not averages(run, number):
        found.pop()  # no step shows what the script did after the last one
    elif found and any(steps[-1][0].at < sent.at for sent in run.weights_broadcast()):
        found.pop()  # nor what a broadcast did after it
    return found


def divergence(run: Run, number: Any = ...) -> int | None:
    """Return the first step after which the weights of two ranks differ until the end.

    Weights that differ for some steps, and then are equal again, have been synchronized. TensorFlow's
    examples, for instance, broadcast after the first step. A script that synchronizes without a wrapper
    averages every few steps, and its next steps may differ again.

    Args:
        number: of the optimizer. Default: all optimizers.

    Returns:
        The step, from 1, or None if the weights are equal at the end.
    """
    found = []
    for each in run.optimizers() if number is ... else [number]:
        differ = [bool(apart(run, state)) for state in states(run, each)]
        equal = [step for step, differs in enumerate(differ, 1) if not differs]
        alone = run.exchanges() and not averages(run, each)
        synchronized = alone and equal and True in differ[: equal[-1]]
        if differ and differ[-1] and not synchronized:
            found.append(max(equal, default=0) + 1)
    return min(found, default=None)


def apart_before(run: Run, number: int | None) -> bool:
    """Return whether the weights of two ranks differ before the first step, so far as that is known."""
    first = [event.start for event in next(iter(run.steps(number)), ())]
    return bool(first) and all(first) and apart(run, first) is not None


def apart(run: Run, state: list[list[float]]) -> tuple[int, int] | None:
    """Return the indices of the first two ranks that train together and whose weights differ."""
    # Adasum adds in another order on each rank, and the weights are float32.
    adasum = any(event.reduces == "Adasum" for event in run.rank0(records.Wrap))
    equal = ADASUM_EQUAL if adasum else EQUAL
    for i, j in run.peers:
        if len(state[i]) != len(state[j]):
            return i, j
        if any(run.apart(a, b, equal) for a, b in zip(state[i], state[j], strict=True)):
            return i, j
    return None


def pair(run: Run, number: int | None, step: int) -> tuple[str, float]:
    """Return the first two ranks whose weights differ after a step.

    Args:
        step: from 1.

    Returns:
        The ranks as text, "0 and 1", and the largest relative difference between the norms of a weight.
    """
    state = states(run, number)[step - 1]
    i, j = apart(run, state)
    gaps = [
        abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(state[i], state[j], strict=False)
    ]
    return f"{run.ranks[i]} and {run.ranks[j]}", max(gaps, default=0.0)
