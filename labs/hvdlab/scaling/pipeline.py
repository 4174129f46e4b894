"""Predict when each stage of a pipeline works, which part of the time it is idle, and what it holds.

    passes = simulate("1F1B", stages=4, micro_batches=8)
    bubble(passes, 4)                      # 3/11 of the time
    most_held(passes, stage=0)             # activations of 4 micro-batches

Messages take no time in this simulation. Lab 14 measures the same schedules.

Source: GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B: Narayanan et al. 2019, PipeDream,
doi:10.1145/3341301.3359646; with one update per batch: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SCHEDULES = "GPipe", "1F1B"


@dataclass(frozen=True)
class Pass:
    """One pass of a micro-batch through a stage.

    Attributes:
        stage: number of the stage, from 0.
        kind: "forward" or "backward".
        micro_batch: number of the micro-batch, from 0.
        start: time at which it begins.
        end: time at which it is over.
    """

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float


def order(schedule: str, stages: int, micro_batches: int, stage: int) -> list[tuple[str, int]]:
    """Return the passes of a stage in order, each as (kind, micro-batch).

    Args:
        schedule: "GPipe" (all forward passes first) or "1F1B" (backward passes as early as possible).
        stages: number of stages.
        micro_batches: number of micro-batches.
        stage: number of the stage, from 0.
    """
    early = micro_batches if schedule == "GPipe" else min(micro_batches, stages - stage)
    passes = [("forward", m) for m in range(early)]
    for m in range(micro_batches):
        passes.append(("backward", m))
        if early + m < micro_batches:
            passes.append(("forward", early + m))
    return passes


def simulate(
    schedule: str, stages: int, micro_batches: int, forward: float = 1.0, backward: float = 2.0
) -> list[Pass]:
    """Return all passes of a step. A stage does its passes in order and waits for what each of them needs.

    A forward pass needs the activations of the stage before. A backward pass needs the gradients of the next
    stage.

    Args:
        schedule: "GPipe" or "1F1B".
        stages: number of stages, at least 1.
        micro_batches: number of micro-batches, at least 1.
        forward: time of a forward pass of a micro-batch through a stage. Default 1.
        backward: time of a backward pass. Default 2, because it computes two gradients.

    Raises:
        ValueError: an argument is out of range.
    """
    if schedule not in SCHEDULES or min(stages, micro_batches) < 1 or min(forward, backward) <= 0:
        raise ValueError(
            f"simulate needs the schedule {' or '.join(SCHEDULES)}, at least one stage and one micro-batch, "
            f"and times above 0. Received: {schedule!r}, stages={stages}, micro_batches={micro_batches}, "
            f"forward={forward}, backward={backward}"
        )
    waiting = [order(schedule, stages, micro_batches, stage) for stage in range(stages)]
    free, done = [0.0] * stages, {}
    while any(waiting):
        for stage, mine in enumerate(waiting):
            if not mine:
                continue
            kind, m = mine[0]
            source = stage - 1 if kind == "forward" else stage + 1
            if 0 <= source < stages and (source, kind, m) not in done:
                continue
            ready = done[source, kind, m].end if 0 <= source < stages else 0.0
            start = max(free[stage], ready)
            free[stage] = start + (forward if kind == "forward" else backward)
            done[stage, kind, m] = Pass(stage, kind, m, start, free[stage])
            del mine[0]
    return list(done.values())


def bubble(passes: Iterable[Pass], stages: int) -> float:
    """Return the idle fraction of the time of all stages: (p-1)/(m+p-1) for p stages and m micro-batches."""
    passes = list(passes)
    busy = sum(each.end - each.start for each in passes)
    span = max(each.end for each in passes) - min(each.start for each in passes)
    return 1 - busy / (stages * span)


def held(passes: Iterable[Pass], stage: int) -> list[tuple[float, int]]:
    """Return how many micro-batches' activations a stage holds: (time, number from then on), in order.

    A stage holds the activations of a micro-batch from the end of its forward pass to the end of its backward
    pass.

    Args:
        passes: of a step.
        stage: number of the stage, from 0.
    """
    changes = sorted(
        (each.end, 1 if each.kind == "forward" else -1) for each in passes if each.stage == stage
    )
    numbers, now = [(0.0, 0)], 0
    for time, change in changes:
        now += change
        numbers.append((time, now))
    return numbers


def most_held(passes: Iterable[Pass], stage: int) -> int:
    """Return the largest number of micro-batches whose activations a stage holds at the same time.

    It is m with GPipe and min(m, p - s) on stage s with 1F1B.

    Args:
        passes: of a step.
        stage: number of the stage, from 0.
    """
    return max(number for _, number in held(passes, stage))
