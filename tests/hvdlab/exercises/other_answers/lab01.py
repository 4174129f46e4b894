"""Right answers of lab 1 in other styles."""

import math

import numpy as np
import pandas as pd


def by_bisection(factor, years):
    low, high = 0.0, 64.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if 2**middle < factor else (low, middle)
    return 12 * years / low


def with_log10(n, error):
    slope, intercept = np.polyfit(np.log10(n), np.log10(error), 1)
    return [10**intercept, -slope]


def least_squares(n, error):
    x, y = np.log(n), np.log(error)
    b = -np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2)
    return np.array([math.exp(y.mean() + b * x.mean()), b])


def tokens_first(operations, ratio):
    tokens = (operations * ratio / 6) ** 0.5
    return tokens / ratio, tokens


def one_run_after_the_other(hours, gpu_hours, gpus, efficiency):
    runs, used = 0, 0
    while (used := used + gpu_hours / gpus / efficiency) <= hours:
        runs += 1
    return runs


def with_sorted(load, compute, exchange, prefetch):
    training = compute + exchange
    return sorted([load, training])[-1] if prefetch else sum([load, training])


def message_by_message(size, links):
    return sum(size / len(links) / np.min(links) for _ in range(2 * (len(links) - 1)))


doubling_months = [by_bisection, lambda f, y: 12 * y * math.log(2) / math.log(f)]
fit_power_law = [with_log10, least_squares]
examples_for_error = [
    lambda error, a, b: np.exp(np.log(a / error) / b),
    lambda error, a, b: (error / a) ** (-1 / b),
]
gpu_days = [
    lambda n, d, peak, used: 6 * n * d / peak / used / 24 / 60 / 60,
    lambda n, d, peak, used: np.prod([6, n, d]) / np.prod([peak, used, 3600, 24]),
]
compute_optimal = [tokens_first, lambda c, r: np.sqrt(c / 6 / r) * np.array([1, r])]
experiments = [one_run_after_the_other, lambda h, each, n, e: math.floor(h * n * e / each)]
step_seconds = [with_sorted, lambda a, b, c, p: np.maximum(a, b + c) if p else a + b + c]
ring_seconds = [message_by_message, lambda s, k: max(2 * s * (1 - 1 / len(k)) / one for one in k)]


def review(**changes):
    """Return an answer of the review: the default with some verdicts changed."""
    answer = {
        "a": {"links": [1e9, 2e9, 3e9]},
        "b": {"links": [1.0, 2.0]},
        "c": "correct",
        "d": {"links": [2e9, 2e9, 1e9]},
    }
    return lambda: {**answer, **changes}


review_ring = [
    review(),
    review(a={"links": [450e9] * 16}, d={"links": [5e9]}),
    review(b={"links": [450e9] * 7 + [1]}, d={"links": list(range(9, 0, -1))}),
]


def hours_of(links, run):
    ranks = len(links)
    exchange = max(2 * (ranks - 1) * run["size"] / ranks / link for link in links)
    return (run["seconds"] / ranks + exchange) * run["steps"] / 60 / 60


def with_a_loop(offers, run, hours):
    best, lowest = None, math.inf
    for offer in offers:
        needed = hours_of(offer["links"], run)
        cost = needed * len(offer["links"]) * offer["price"]
        if needed <= hours and cost < lowest:
            best, lowest = offer["name"], cost
    return best


def with_pandas(offers, run, hours):
    table = pd.DataFrame(offers)
    table["hours"] = [hours_of(links, run) for links in table["links"]]
    table["cost"] = table["hours"] * table["links"].map(len) * table["price"]
    in_time = table[table["hours"] <= hours]
    return None if in_time.empty else str(in_time.sort_values("cost")["name"].iloc[0])


class Plan:
    def __init__(self, offer, run):
        self.name = offer["name"]
        self.hours = hours_of(offer["links"], run)
        self.cost = self.hours * len(offer["links"]) * offer["price"]

    def __lt__(self, other):
        return self.cost < other.cost


def with_a_class(offers, run, hours):
    plans = sorted(plan for offer in offers if (plan := Plan(offer, run)).hours <= hours)
    return plans[0].name if plans else None


def with_numpy(offers, run, hours):
    ranks = np.array([len(offer["links"]) for offer in offers])
    needed = np.array([hours_of(offer["links"], run) for offer in offers])
    cost = np.where(needed <= hours, needed * ranks * [offer["price"] for offer in offers], np.inf)
    return offers[int(cost.argmin())]["name"] if np.isfinite(cost).any() else None


def first_in_time(offers, run, hours):
    return next((o["name"] for o in offers if hours_of(o["links"], run) <= hours), None)


def without_an_empty_case(offers, run, hours):
    in_time = [Plan(offer, run) for offer in offers if hours_of(offer["links"], run) <= hours]
    return min(in_time).name


choose_offer = [with_a_loop, with_pandas, with_a_class, with_numpy]
REFUSED = {
    "review_ring": [
        (review(a="correct"), "Patch a is not correct: there is a case in which it fails."),
        (review(a={"links": [1e9] * 8}), "Patch a holds in your case"),
        (review(b={"links": [1e9] * 3}), "There is another case in which it fails."),
        (review(c={"links": [1e9] * 2}), "It holds in every case that the check tried, too."),
        (review(d="correct"), "Patch d is not correct"),
        (review(d={"links": [1e9, 2e9]}), "Patch d holds in your case"),
        (review(d={"links": [1e9, 0]}), "must be a list of 1 to 1000 positive numbers"),
        (review(d={"size": 1}), "a dict with the keys links"),
        (review(e="correct"), "must return a dict with the keys a, b, c, d"),
    ],
    "choose_offer": [
        # The answers of the two calls that the lab shows.
        (lambda offers, run, hours: "one GPU" if hours > 8 else "node", "a slower node"),
        (first_in_time, "price (a slower node at 1.5 per GPU-hour, 24 hours) is slow node"),
        (without_an_empty_case, "raises ValueError"),
        (
            lambda offers, run, hours: offers[0]["name"],
            "expected node. The node ends after 1.08 hours",
        ),
        (lambda offers, run, hours: 17.2, "must return the name of an offer, or None"),
    ],
}
