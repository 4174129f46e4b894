"""Exercise of lab 8: plan a run from measured times, so that it keeps a budget."""

import math
from collections.abc import Callable, Iterator

from hvdlab.exercises import NotYet, call_unchanged, number, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

KEYS = ("ranks", "batch", "epochs", "seconds")
EXAMPLE = {
    "start_up": 6.0, "image": 0.0008, "evaluation": 4.0, "exchange": 0.03, "images": 50_000,
    "e0": 2.6, "b_crit": 2000,
}  # fmt: skip


def plan_run(measured, batches, max_ranks, budget):
    best = None
    for ranks in range(1, max_ranks + 1):
        for batch in batches:
            epochs = math.ceil(measured["e0"] * (1 + ranks * batch / measured["b_crit"]))
            an_epoch = (measured["images"] * measured["image"] + measured["evaluation"]) / ranks
            if ranks > 1:
                an_epoch += math.ceil(measured["images"] / (ranks * batch)) * measured["exchange"]
            seconds = measured["start_up"] + epochs * an_epoch
            if seconds <= budget and (
                best is None or ranks * seconds < best["ranks"] * best["seconds"]
            ):
                best = {"ranks": ranks, "batch": batch, "epochs": epochs, "seconds": seconds}
    return best


# fmt: off
SITUATIONS = {  # name -> what plan_run is called with
    "the example": (EXAMPLE, [50, 100, 200, 400], 4, 100),
    "much time": (EXAMPLE, [50, 100, 200, 400], 4, 1000),
    "little time": (EXAMPLE, [50, 100, 200, 400], 8, 41),
    "too little time": (EXAMPLE, [50, 100, 200, 400], 8, 20),
    "a slow network": (EXAMPLE | {"exchange": 0.4}, [400, 50, 800, 200], 8, 120),
    "a small critical batch": (EXAMPLE | {"b_crit": 150, "exchange": 0.001}, [32, 64, 128], 8, 110),
    "a budget that is met exactly": (
        {"start_up": 8.0, "image": 0.5, "evaluation": 4.0, "exchange": 0.25, "images": 64, "e0": 1.5,
         "b_crit": 64}, [8, 16], 2, 46.0),
}
# fmt: on


def options(
    measured: dict, batches: list[int], max_ranks: int
) -> Iterator[tuple[int, int, int, float]]:
    """Yield (ranks, batch, epochs, seconds) of every possible plan."""
    one_epoch = measured["images"] * measured["image"] + measured["evaluation"]
    for ranks in range(1, max_ranks + 1):
        for batch in batches:
            epochs = math.ceil(measured["e0"] * (1 + ranks * batch / measured["b_crit"]))
            steps = math.ceil(measured["images"] / (ranks * batch))
            exchange = steps * measured["exchange"] if ranks > 1 else 0
            yield (
                ranks,
                batch,
                epochs,
                measured["start_up"] + epochs * (one_epoch / ranks + exchange),
            )


def rubric(plan_run: Callable) -> dict[str, bool]:
    """Measure the points of the rubric, and return them.

    Raises:
        NotYet: a point does not hold. The message has what was measured.
    """
    for situation, arguments in SITUATIONS.items():
        plan = call_unchanged(plan_run, *arguments, name="plan_run")
        if fault := fault_of(plan, *arguments):
            raise NotYet(f"In the situation “{situation}”: {fault}")
    return dict.fromkeys(["no plan", "possible", "forecast", "in time", "cheapest"], True)


def fault_of(
    plan: object, measured: dict, batches: list[int], max_ranks: int, budget: float
) -> str:
    """Return what is wrong with a plan as a sentence; "" if nothing is."""
    every = list(options(measured, batches, max_ranks))
    costs = [ranks * seconds for ranks, _, _, seconds in every if seconds <= budget]
    if plan is None:
        return (
            f"you found no plan, and the number of plans in time is {len(costs)}." if costs else ""
        )
    if not isinstance(plan, dict) or set(plan) != set(KEYS):
        return f"return None, or a dict with the keys {', '.join(KEYS)}. Received: {received(plan)}"
    ranks, batch, epochs, seconds = (number(plan[key], f"{key} of your plan") for key in KEYS)
    chosen = f"{ranks:g} ranks with {batch:g} images each"
    found = [option for option in every if option[:2] == (ranks, batch)]
    if not found:
        return f"{chosen} are not possible: at most {max_ranks} ranks, and a batch of {batches}."
    _, _, true_epochs, true_seconds = found[0]
    if not math.isclose(epochs, true_epochs) or not math.isclose(
        seconds, true_seconds, rel_tol=1e-3
    ):
        return (
            f"{chosen} take {true_epochs} epochs and {true_seconds:.1f} s, and your forecast is "
            f"{epochs:g} epochs and {seconds:.1f} s."
        )
    if seconds > budget:
        none = "" if costs else " No plan is in time, so return None."
        return f"{chosen} take {seconds:.1f} s, and the budget is {budget:g} s.{none}"
    cost, least = ranks * seconds, min(costs)
    if cost > least * (1 + 1e-6):
        return f"{chosen} cost {cost:.1f} rank-seconds, and another plan in time costs {least:.1f}."
    return ""


check_plan_run = FunctionExercise(
    plan_run,
    [Case(())],
    observe=rubric,
    passed=f"the cheapest plan in {len(SITUATIONS) - 1} situations, and no plan where none is in time.",
    shape=bool,
)
