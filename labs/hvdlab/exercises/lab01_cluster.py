"""Open exercises of lab 1: review patches of the time of a ring, and choose a cluster for a run."""

from numbers import Real

from hvdlab.exercises import NotYet, call_unchanged, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview

NVLINK, INFINIBAND, ETHERNET = 450e9, 50e9, 1.25e9  # bytes per second, the table of the lab
SIZE = 8e9  # bytes of the array in the review
MOST_LINKS = 1000


def ring_seconds(size, links):
    ranks = len(links)
    sent = 2 * (ranks - 1) / ranks * size
    return sent / min(links)


def message_by_message(size, links):
    """Return the time of a ring all-reduce as the sum of the messages on its slowest link."""
    piece, messages = size / len(links), 2 * (len(links) - 1)
    return max(sum(piece / link for _ in range(messages)) for link in links)


def fault(patched, links):
    """Return in which time a patched function is wrong, or ""."""
    found, right = patched(SIZE, links), message_by_message(SIZE, links)
    if abs(found - right) <= 1e-6 * right:
        return ""
    return f"It gives {found:.4g} s in place of {right:.4g} s for {len(links)} links."


def unusable_links(links):
    """Return what is wrong with the links of a learner's case, or ""."""
    numbers = all(isinstance(link, Real) and link > 0 for link in links)
    if numbers and 1 <= len(links) <= MOST_LINKS:
        return ""
    return (
        f"links must be a list of 1 to {MOST_LINKS} positive numbers. Received: {received(links)}"
    )


RING_REVIEW = PatchReview(
    ring_seconds,
    {
        "a": ("2 * (ranks - 1) / ranks * size", "1.75 * size  # 2 * 7 / 8: a node has 8 GPUs"),
        "b": (
            "return sent / min(links)",
            "times = [sent / link for link in links]  # of each link\n    return sum(times) / ranks",
        ),
        "c": (
            "sent = ",
            "if ranks == 2:\n        return size / min(links)  # two ranks swap halves, twice\n    sent = ",
        ),
        "d": (
            "return sent / min(links)",
            "used = links[:-1]  # the last rank has the sum and sends nothing\n    return sent / min(used)",
        ),
    },
    fault,
    example={"links": [NVLINK] * 8},
    tried=[
        {"links": [NVLINK] * 8},
        {"links": [NVLINK]},
        {"links": [ETHERNET] * 2},
        {"links": [NVLINK, ETHERNET]},
        {"links": [ETHERNET, *[NVLINK] * 7]},
        {"links": [*[NVLINK] * 7, INFINIBAND]},
    ],
    check_case=unusable_links,
)


def review_ring():
    return {
        "a": {"links": [NVLINK] * 4},
        "b": {"links": [ETHERNET, *[NVLINK] * 7]},
        "c": "correct",
        "d": {"links": [*[NVLINK] * 7, ETHERNET]},
    }


check_review_ring = FunctionExercise(
    review_ring,
    [Case((), "Decide for each patch whether it holds for every number of ranks and all links.")],
    passed="patch c is a special case of the formula, and each of your cases shows the fault of a patch.",
    observe=RING_REVIEW.verdicts,
)

RUN = {"steps": 36_000, "seconds": 0.8, "size": 2e9}
OFFERS = [
    {"name": "one GPU", "links": [NVLINK], "price": 2.0},
    {"name": "node", "links": [NVLINK] * 8, "price": 2.0},
    {"name": "two nodes", "links": [*[NVLINK] * 14, *[INFINIBAND] * 2], "price": 2.0},
    {"name": "office", "links": [ETHERNET] * 8, "price": 0.5},
]
LARGE = {
    "steps": 9_000,
    "seconds": 8.0,
    "size": 80e9,
}  # the same hours on one GPU, larger gradients


def choose_offer(offers, run, hours):
    costs = {}
    for offer in offers:
        gpus = len(offer["links"])
        step = run["seconds"] / gpus + ring_seconds(run["size"], offer["links"])
        needed = run["steps"] * step / 3600
        if needed <= hours:
            costs[offer["name"]] = needed * gpus * offer["price"]
    return min(costs, key=costs.get, default=None)


def chosen(function, point, offers, run, hours):
    """Return the offer that a function chooses in a market, by the point of the rubric that it measures."""
    choice = call_unchanged(function, offers, run, hours)
    if not isinstance(choice, str | None):
        raise NotYet(
            f"choose_offer must return the name of an offer, or None. Received: {received(choice)}"
        )
    return {point: choice}


CHEAP = {**OFFERS[2], "price": 0.5}
PAIR = {"name": "pair", "links": [20e9] * 2, "price": 1.0}
SLOW = {"name": "slow node", "links": [INFINIBAND] * 8, "price": 1.5}
EXCHANGE = 'ring_seconds(run["size"], offer["links"])'
COST = 'needed * gpus * offer["price"]'

# fmt: off
check_choose_offer = FunctionExercise(
    choose_offer,
    [
        Case(("deadline", OFFERS, RUN, 2.0),
             "The node ends after 1.08 hours and costs 17.2. One GPU would cost 16, but needs 8 hours.",
             "(offers of the lab, 2 hours)", {"deadline": "node"}),
        Case(("price", OFFERS, RUN, 24.0),
             "One GPU needs 8 hours at 2 per hour, which is 16. The node costs 1.08 x 8 x 2 = 17.2.",
             "(offers of the lab, 24 hours)", {"price": "one GPU"}),
        Case(("price", [SLOW, OFFERS[1]], RUN, 24.0),
             "The slow node costs 1.7 x 8 x 1.5 = 20.4, and the node 1.08 x 8 x 2 = 17.2.",
             "(a slower node at 1.5 per GPU-hour, 24 hours)", {"price": "node"}),
        Case(("slowest link", [CHEAP, OFFERS[1]], LARGE, 24.0),
             "In the two nodes all links wait for the two between the nodes, so a step takes 3.5 s.",
             "(gradients of 80 GB, 24 hours)", {"slowest link": "node"}),
        Case(("no offer in time", OFFERS, RUN, 0.9),
             "The fastest offer needs 1.08 hours.", "(offers of the lab, 0.9 hours)"),
        Case(("order of the offers", OFFERS[::-1], RUN, 24.0),
             "These are the offers of the lab in another order.", "(the same offers, 24 hours)",
             {"order of the offers": "one GPU"}),
        Case(("all-reduce", [PAIR, {**OFFERS[0], "price": 3.0}], LARGE, 24.0),
             "Each link of the pair carries 2 x 1/2 x 80 GB, which takes 4 s. So a step takes 8 s, and the "
             "run 20 hours. It costs 40 there, and 60 on one GPU.",
             "(two GPUs with links of 20 GB/s, 24 hours)",
             {"all-reduce": "pair"}),
        Case(("all-reduce", [{**PAIR, "links": [20e9] * 8}], LARGE, 15.0),
             "Each link carries 2 x 7/8 x 80 GB, which takes 7 s. So a step takes 8 s, and the run 20 hours.",
             "(eight GPUs with links of 20 GB/s, 15 hours)"),
    ],
    {
        "The step has no exchange. It includes the all-reduce.":
            (f" + {EXCHANGE}", ""),
        "The exchange has the average bandwidth of the links. The slowest link decides.":
            (EXCHANGE, 'ring_seconds(run["size"], [sum(offer["links"]) / gpus] * gpus)'),
        "The price is per GPU-hour: multiply it by the number of GPUs.": (COST, 'needed * offer["price"]'),
        "That is the fastest offer. The cheapest one in time is asked for.": (COST, "needed"),
        "That is the lowest price per GPU-hour. Compare the cost of the whole run.":
            (COST, 'offer["price"]'),
        "The chosen offer may end after the deadline.": ("if needed <= hours:", "if True:"),
        "The ranks divide the batch: each computes for seconds / R in a step.":
            ('run["seconds"] / gpus', 'run["seconds"]'),
        "The steps give seconds, and the deadline is in hours: divide by 3,600.": (" / 3600", ""),
    },
    passed="it keeps the deadline, compares the costs of the whole run, and knows when no offer is in time.",
    observe=chosen, telling=False,
)
# fmt: on
