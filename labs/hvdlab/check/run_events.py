"""Questions to the events of a run that `judge` asks."""

import itertools
import math

EQUAL = 1e-7  # relative; replicas agree to the last digit
HOROVODS = ("HorovodInternalError", "Horovod has been shut down", "UnknownError")


class Run:
    """The events of all ranks of a run: {rank: [event, ...]}."""

    def __init__(self, events: dict[int, list[dict]]):
        self.events = events
        self.ranks = sorted(events)

    def of(self, rank: int, kind: str) -> list[dict]:
        return [event for event in self.events[rank] if event["kind"] == kind]

    def all(self, kind: str) -> list[dict]:
        return [event for rank in self.ranks for event in self.of(rank, kind)]

    def rank0(self, kind: str) -> list[dict]:
        return self.of(self.ranks[0], kind)

    def line(self, kind: str) -> int | None:
        return next((event["line"] for event in self.all(kind) if event["line"]), None)

    def pairs(self):
        return itertools.combinations(self.ranks, 2)

    @staticmethod
    def apart(one: float, other: float) -> bool:
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) != math.isnan(other)
        return abs(one - other) > EQUAL * max(abs(one), abs(other))

    # --- ends -----------------------------------------------------------------------------------

    def errors(self) -> list[tuple[int, str, int | None]]:
        """(rank, error, line) of the ranks that ended with one."""
        return [
            (rank, event["error"], event["line"])
            for rank in self.ranks
            for event in self.of(rank, "end")
            if event["error"]
        ]

    def crash(self) -> tuple[int, str, int | None] | None:
        """The first error that is not Horovod's word for the end of another rank."""
        own = [e for e in self.errors() if not any(word in e[1] for word in HOROVODS)]
        return own[0] if own else None

    def complete(self) -> bool:
        """Whether each rank came to its end, or is known to wait for ever."""
        return all(self.of(rank, "end") or self._last(rank, "waiting") for rank in self.ranks)

    def _last(self, rank, kind) -> dict | None:
        states = [e for e in self.events[rank] if e["kind"] in ("waiting", "goes on", "end")]
        return states[-1] if states and states[-1]["kind"] == kind else None

    def waiting(self) -> str:
        """A sentence about the ranks that waited to the end."""
        said = [
            f" Rank {rank} waited in {event['op']}, line {event['line']}."
            for rank in self.ranks
            if (event := self._last(rank, "waiting"))
        ]
        return "".join(said)

    # --- steps of optimizers ------------------------------------------------------------------------

    def optimizers(self) -> list:
        numbers = {event["optimizer"] for event in self.rank0("step")}
        return sorted(numbers, key=lambda n: -1 if n is None else n)

    def steps(self, number) -> list[list[dict]]:
        """The steps that all ranks made with an optimizer: one list of events, by rank, a step."""
        each = [
            [event for event in self.of(rank, "step") if event["optimizer"] == number]
            for rank in self.ranks
        ]
        return list(zip(*each, strict=False))

    def step(self, rank: int, number, step: int) -> dict:
        return self.steps(number)[step - 1][self.ranks.index(rank)]

    def values(self, number, step: int, name: str) -> list:
        return [event[name] for event in self.steps(number)[step - 1]]

    def first_difference(self, number=..., after: int = 0) -> int | None:
        """The first step, from 1, after which the weights of two ranks differ."""
        numbers = self.optimizers() if number is ... else [number]
        found = []
        for number in numbers:
            for step, events in enumerate(self.steps(number), 1):
                first, *others = [event["weights"] for event in events]
                if step > after and any(self._differ(first, other) for other in others):
                    found.append(step)
                    break
        return min(found, default=None)

    def _differ(self, one, other) -> bool:
        return len(one) != len(other) or any(map(self.apart, one, other))

    def pair(self, number, step: int) -> str:
        """The first two ranks whose weights differ, to print."""
        weights = self.values(number, step, "weights")
        for i, j in itertools.combinations(range(len(weights)), 2):
            if self._differ(weights[i], weights[j]):
                return f"{self.ranks[i]} and {self.ranks[j]}"
        return "0 and 1"

    def difference(self, number, step: int) -> float:
        """The largest relative difference of a norm between two ranks."""
        first, *others = self.values(number, step, "weights")
        return max(
            abs(a - b) / max(abs(a), abs(b), 1e-12)
            for other in others
            for a, b in zip(first, other, strict=False)
        )

    def batches(self, rank: int) -> list:
        return [event["batch"] for event in self.of(rank, "step")]

    def rates(self) -> list[float]:
        """The learning rate of rank 0 at each step of its first optimizer."""
        steps = self.rank0("step")
        return [
            e["rate"]
            for e in steps
            if e["optimizer"] == steps[0]["optimizer"] and e["rate"] is not None
        ]

    def drift(self) -> tuple[int, int, float]:
        """(step, layer from 1, standard deviations) of the largest distance of running means.

        The last ones that were noted: those of a few batches may be apart by chance.
        """
        worst = 0, 0, 0.0
        for number in self.optimizers():
            noted = [
                (step, statistics)
                for step, events in enumerate(self.steps(number), 1)
                if all(statistics := [event.get("statistics") for event in events])
            ]
            for step, statistics in noted[-1:]:
                for one, other in itertools.combinations(statistics, 2):
                    for layer, (a, b) in enumerate(zip(one, other, strict=False), 1):
                        worst = max(worst, (step, layer, _distance(a, b)), key=lambda w: w[2])
        return worst

    # --- loops, collectives, decisions, files ---------------------------------------------------------

    def lengths(self) -> dict[int, dict[int, int]]:
        """{line of a loop that trains: {rank: batches in an epoch}}, where a rank knows them."""
        found: dict[int, dict[int, int]] = {}
        for rank in self.ranks:
            for event in reversed(self.of(rank, "loop") + self.of(rank, "fit")):
                if event["length"] is not None and not event.get("nested"):
                    found.setdefault(event["line"], {})[rank] = event["length"]
        return found

    def left_early(self) -> dict[int, tuple[int, int, int, int]]:
        """{line: (rank, its rounds, other rank, its rounds)} of loops that ended on one rank only."""
        rounds: dict[int, dict[int, list]] = {}  # line -> rank -> [(rounds, how it was left)]
        for rank in self.ranks:
            for event in self.of(rank, "pass"):
                of_line = rounds.setdefault(event["line"], {}).setdefault(rank, [])
                of_line.append((event["iterations"], event["left"]))
            for line, iteration in (self._last(rank, "waiting") or {"loops": []})["loops"]:
                rounds.setdefault(line, {}).setdefault(rank, []).append((iteration, "inside"))
        found = {}
        for line, of_rank in rounds.items():
            for one, other in itertools.permutations(of_rank, 2):
                for (mine, left), (its, _) in zip(of_rank[one], of_rank[other], strict=False):
                    if left == "at its end" and its > mine:
                        found.setdefault(line, (one, mine, other, its))
        return found

    def calls(self) -> dict[str, dict[int, int]]:
        """{collective: {rank: how often}}, in the order of their first calls."""
        events = sorted(self.all("collective"), key=lambda event: event["at"])
        return {
            op: {
                rank: sum(e["op"] == op for e in self.of(rank, "collective")) for rank in self.ranks
            }
            for op in dict.fromkeys(event["op"] for event in events)
        }

    def call_line(self, op: str, rank: int, counts: dict[int, int]) -> int | None:
        """The line of the first call that a rank makes more often than another."""
        fewest = min(counts, key=counts.get)
        theirs = [e["line"] for e in self.of(fewest, "collective") if e["op"] == op]
        for event in self.of(rank, "collective"):
            if event["op"] == op:
                if event["line"] not in theirs:
                    return event["line"]
                theirs.remove(event["line"])
        return self.line("collective")

    def decisions(self) -> dict[tuple[int, str], list[list[float]]]:
        """{(line, expression): its values by rank}, where all ranks have some, in loops that train."""
        train = {event["line"] for event in self.all("loop") + self.all("pass")}
        found: dict[tuple[int, str], dict[int, list[float]]] = {}
        for rank in self.ranks:
            for event in self.of(rank, "decision"):
                if event["loop"] not in train:
                    continue
                place = found.setdefault((event["line"], event["text"]), {})
                place.setdefault(rank, []).append(event["value"])
        return {
            key: [of[r] for r in self.ranks]
            for key, of in found.items()
            if len(of) == len(self.ranks)
        }

    def saves(self) -> dict[str, dict[int, int]]:
        """{path: {rank that wrote it: line}}; a file that is locked is there to be opened by all."""
        locks = {event["path"] for event in self.all("lock")}
        found: dict[str, dict[int, int]] = {}
        for rank in self.ranks:
            for event in self.of(rank, "save"):
                if event["path"] not in locks:
                    found.setdefault(event["path"], {}).setdefault(rank, event["line"])
        return found


def _distance(one: dict, other: dict) -> float:
    """Root mean square over channels of the distance of two running means, in deviations."""
    squares = []
    for a, b, v, w in zip(
        one["mean"], other["mean"], one["variance"], other["variance"], strict=False
    ):
        # They began as mean 0 and variance 1; `filled` is the part that is not that beginning. A network
        # that was trained before began with others, of which its variance tells as well.
        first, second = a / one["filled"], b / other["filled"]
        variances = [
            own if (own := (x - 1 + part) / part) > 1e-6 else max(1e-6, x)
            for x, part in ((v, one["filled"]), (w, other["filled"]))
        ]
        squares.append((first - second) ** 2 / (sum(variances) / 2))
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0
