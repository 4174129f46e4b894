"""Right answers of lab 8 in other styles."""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from hvdlab.course.training_runs import PARTS


def with_arrays(marks, ranks):
    names = np.array([name for name, _ in marks[:-1]])
    lasts = np.diff([begin for _, begin in marks])
    seconds = {part: lasts[names == part].sum() for part in PARTS}
    fractions = {part: value / marks[-1][1] for part, value in seconds.items()}
    rest = seconds["start-up"] + seconds["exchange"]
    one = seconds["start-up"] + ranks * (marks[-1][1] - rest)
    return [seconds, fractions, np.float32(one / rest)]


def by_amdahls_law(marks, ranks):
    seconds, last = defaultdict(int), None
    for name, begin in marks:
        if last:
            seconds[last[0]] += begin - last[1]
        last = name, begin
    one = seconds["start-up"] + sum(
        ranks * seconds[n] for n in PARTS if n not in ("start-up", "exchange")
    )
    serial = (seconds["start-up"] + seconds["exchange"]) / one
    return seconds, {n: s / sum(seconds.values()) for n, s in seconds.items()}, 1 / serial


def by_pairs(rows):
    def good(row):
        return row["train_accuracy"] >= 0.75 and row["heldout_accuracy"] >= 0.70

    pairs = zip(rows, rows[1:], strict=False)
    return next((after["seconds"] for row, after in pairs if good(row) and good(after)), None)


def by_counting(rows):
    in_a_row = 0
    for row in rows:
        bad = row["heldout_accuracy"] < 0.7 or row["train_accuracy"] < 0.75
        in_a_row = 0 if bad else in_a_row + 1
        if in_a_row == 2:
            return np.array([row["seconds"]])


def case(images=16, correct=(1, 0, 1, 1), batch=4, ranks=2, epochs=2):
    return {
        "images": images,
        "correct": [*correct],
        "batch": batch,
        "ranks": ranks,
        "epochs": epochs,
    }


def reviews(a, b, d, c="correct"):
    return lambda: {"a": a, "b": b, "c": c, "d": d}


def seconds_of(m, ranks, batch, epochs, exchanging=True):
    steps = math.ceil(m["images"] / (ranks * batch))
    exchange = steps * m["exchange"] * (exchanging and ranks > 1)
    divided = (m["images"] * m["image"] + m["evaluation"]) / ranks
    return m["start_up"] + epochs * (divided + exchange)


def with_min(measured, batches, max_ranks, budget):
    plans = []
    for ranks, batch in itertools.product(range(1, max_ranks + 1), batches):
        epochs = math.ceil(measured["e0"] * (1 + ranks * batch / measured["b_crit"]))
        seconds = seconds_of(measured, ranks, batch, epochs)
        plans.append({"ranks": ranks, "batch": batch, "epochs": epochs, "seconds": seconds})
    in_time = [plan for plan in plans if not plan["seconds"] > budget]
    return min(in_time, key=lambda plan: plan["seconds"] * plan["ranks"], default=None)


def with_a_grid(measured, batches, max_ranks, budget):
    ranks, batch = np.meshgrid(np.arange(1, max_ranks + 1), np.array(batches), indexing="ij")
    epochs = np.ceil(measured["e0"] * (1 + ranks * batch / measured["b_crit"]))
    exchange = np.where(
        ranks > 1, np.ceil(measured["images"] / (ranks * batch)) * measured["exchange"], 0
    )
    divided = (measured["images"] * measured["image"] + measured["evaluation"]) / ranks
    seconds = measured["start_up"] + epochs * (divided + exchange)
    cost = np.where(seconds <= budget, ranks * seconds, np.inf)
    best = np.unravel_index(cost.argmin(), cost.shape)
    if np.isinf(cost[best]):
        return None
    values = (table[best] for table in (ranks, batch, epochs, seconds))
    return dict(zip(("ranks", "batch", "epochs", "seconds"), values, strict=True))


@dataclass
class Plan:
    """A plan as an object, which is compared by its cost."""

    measured: dict
    ranks: int
    batch: int

    @property
    def epochs(self):
        return -int(
            -self.measured["e0"] * (1 + self.ranks * self.batch / self.measured["b_crit"]) // 1
        )

    @property
    def seconds(self):
        return seconds_of(self.measured, self.ranks, self.batch, self.epochs)

    def __lt__(self, other):
        return self.ranks * self.seconds < other.ranks * other.seconds


def with_objects(measured, batches, max_ranks, budget):
    every = [Plan(measured, ranks + 1, batch) for ranks in range(max_ranks) for batch in batches]
    for plan in sorted(every):
        if plan.seconds <= budget:
            return {name: getattr(plan, name) for name in ("ranks", "batch", "epochs", "seconds")}
    return None


def planned(
    choose, epochs=None, exchanging=True, in_time=lambda seconds, budget: seconds <= budget
):
    """A plan with one fault: how it is chosen, how epochs are counted, who exchanges, what is in time."""

    def plan_run(measured, batches, max_ranks, budget):
        plans = []
        for ranks, batch in itertools.product(range(1, max_ranks + 1), batches):
            count = measured["e0"] * (1 + ranks * batch / measured["b_crit"])
            count = epochs(measured, count, batch) if epochs else math.ceil(count)
            seconds = seconds_of(measured, ranks, batch, count, exchanging)
            if in_time(seconds, budget):
                plans.append({"ranks": ranks, "batch": batch, "epochs": count, "seconds": seconds})
        return choose(plans) if plans else None

    return plan_run


def cheapest(plans):
    return min(plans, key=lambda plan: plan["ranks"] * plan["seconds"])


def of_one_rank(measured, count, batch):
    return math.ceil(measured["e0"] * (1 + batch / measured["b_crit"]))


least_efficiency = [
    lambda ranks, epochs, budget: np.divide(epochs, budget) / ranks,
    lambda n, epochs, budget: 1 / (n * budget / epochs),
]
where_time_goes = [with_arrays, by_amdahls_law]
seconds_to_target = [by_pairs, by_counting]
review_conversion = [
    reviews(case(correct=[1, 0, 1]), case(images=9), case(images=10)),
    reviews(
        case(correct=[1, 1, 1, 0], ranks=3),
        case(images=50_001, batch=25_000),
        case(images=50, batch=7, epochs=3),
    ),
    reviews(
        case(correct=[0, 1], ranks=8),
        case(images=1, batch=1),
        case(images=5, batch=1, ranks=3, epochs=4),
    ),
]
EXAMPLE = case()
FORECAST = "and your forecast is"
plan_run = [with_min, with_a_grid, with_objects]
REFUSED = {
    "review_conversion": [
        (reviews("correct", case(images=9), case(images=10)), "Patch a is not correct"),
        (
            reviews(case(correct=[1, 0, 1]), case(images=10), case(images=10)),
            "Patch b holds in your case",
        ),
        (
            reviews(
                case(correct=[1, 0, 1]), case(images=9), case(images=10), case(correct=[1, 0, 1])
            ),
            "Patch c holds",
        ),
        (
            reviews(case(correct=[1, 0, 1]), case(images=9), case(images=10, epochs=1)),
            "Patch d holds in your case",
        ),
        (reviews(EXAMPLE, EXAMPLE, EXAMPLE), "Patch a holds in your case"),
        (reviews(case(correct=[]), EXAMPLE, EXAMPLE), "correct must be a list of 0 and 1"),
        (reviews(case(ranks=0), EXAMPLE, EXAMPLE), "ranks must be from 1 to 1000"),
    ],
    "plan_run": [
        (
            lambda *a: {"ranks": 2, "batch": 100, "epochs": 3, "seconds": 94.5},
            "“much time”: 2 ranks with 100",
        ),
        (planned(cheapest, epochs=lambda m, count, batch: count), FORECAST),
        (planned(cheapest, epochs=of_one_rank), FORECAST),
        (
            planned(lambda plans: min(plans, key=lambda plan: plan["seconds"])),
            "and another plan in time costs",
        ),
        (planned(lambda plans: plans[0]), "and another plan in time costs"),
        (planned(cheapest, exchanging=False), FORECAST),
        (planned(cheapest, in_time=lambda seconds, budget: True), "and the budget is 100 s"),
        (
            planned(cheapest, in_time=lambda seconds, budget: seconds < budget),
            "you found no plan, and the number of plans in time is 1",
        ),
        (
            lambda m, b, n, budget: with_min(m, b, n, budget) or with_min(m, b, n, 1e9),
            "so return None",
        ),
        (lambda *a: with_min(*a[:2], 64, a[3]), "are not possible: at most"),
        (
            lambda *a: (2, 200),
            "or a dict with the keys ranks, batch, epochs, seconds. Received: (2, 200)",
        ),
    ],
}
