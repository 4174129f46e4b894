"""The events of a run, with the questions that the rules ask about them: see `Run`."""

import itertools
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeVar

from hvdlab.check.places import Places
from hvdlab.trace import records

SENDS = re.compile(r"barrier|broadcast")  # collectives that combine no values
R = TypeVar("R", bound=records.Record)
EQUAL = (
    1e-7  # relative difference of two numbers that count as equal; replicas agree to the last digit
)
# In the errors that Horovod and torch.distributed raise on a rank when another rank has ended.
FOLLOW_UP_ERRORS = (
    "HorovodInternalError", "Horovod has been shut down", "UnknownError", "gloo/transport/", "by peer",
    "DistNetworkError", "Broken pipe", "remote process exit",
)  # fmt: skip


def label(call: records.Collective | records.Waiting) -> str:
    """Return the name of a collective, with the name of its tensor where the script gives it one.

    Args:
        call: an event "collective" or "waiting".
    """
    return f'{call.op} "{call.name}"' if call.name else call.op


def _without_round(loops: list[list[int]]) -> list:
    """Return [line, iteration] of the loops that are running, without the iteration of the innermost one."""
    return [*loops[:-1], *(line for line, _ in loops[-1:])]


class Run:
    """The events of all ranks of a run.

    An optimizer is given by the number in its events: an int, or None if it was created before the watch.

    Args:
        events: rank -> its records, see `hvdlab.trace`.
        single: the first steps of the same script with one rank. Default None: not run.
    """

    def __init__(self, events: records.Trace, single: "Run | None" = None) -> None:
        self.events, self.single = events, single
        self.ranks = sorted(events)

    def compare(self, single: "Run") -> None:
        """Keep a run with one rank, unless it loaded what this run has saved."""
        if single.rank0(records.Step) and len(single.rank0(records.Load)) <= len(
            self.rank0(records.Load)
        ):
            self.single = single

    def of(self, rank: int, kind: type[R]) -> list[R]:
        """Return the records of one kind on one rank."""
        return [event for event in self.events[rank] if isinstance(event, kind)]

    def all(self, kind: type[R]) -> list[R]:
        """Return the events of one kind on all ranks, rank by rank."""
        return [event for rank in self.ranks for event in self.of(rank, kind)]

    def rank0(self, kind: type[R]) -> list[R]:
        """Return the events of one kind on the first rank."""
        return self.of(self.ranks[0], kind)

    def line(self, kind: type[records.Record]) -> int | None:
        """Return the line of the first event of one kind that has a line."""
        return next((event.line for event in self.all(kind) if event.line), None)

    def api(self) -> str | None:
        """Return what the script trains with: "torch", "keras" (fit), "tape", "ddp", or None if unknown.

        "ddp" is a script of torch.distributed, and "torch" one of Horovod.
        """
        if any(event.library for event in self.all(records.Init)):
            return "ddp"
        apis = {event.api for event in self.rank0(records.Optimizer)}
        if self.all(records.Fit):
            return "keras"
        return "tape" if "keras" in apis else "torch" if apis else None

    def exchanges(self) -> bool:
        """Return whether the script combines or repeatedly sends values, and so may need no wrapper."""
        calls = self.all(records.Collective) + self.all(records.Traced)
        if self.all(records.Group) or any(not SENDS.search(event.op) for event in calls):
            return True
        sent = {e.steps for e in self.all(records.Collective) if e.steps and "broadcast" in e.op}
        return len(sent) > 1

    @cached_property
    def places(self) -> Places:
        """Where the lines of the events are."""
        return Places({event.block: event.path for event in self.all(records.Module)})

    @property
    def size_call(self) -> str:
        """How the script asks for the number of ranks."""
        return "dist.get_world_size()" if self.api() == "ddp" else "hvd.size()"

    def split(self) -> bool:
        """Return whether the script divides the ranks into process sets."""
        return any(len(set(event.ranks)) < len(self.ranks) for event in self.all(records.Group))

    @cached_property
    def peers(self) -> list[tuple[int, int]]:
        """The pairs of indices of `ranks` that train together: all but those in different process sets."""
        sets = {
            rank: [{*event.ranks} for event in self.of(rank, records.Group)] for rank in self.ranks
        }
        return [
            (i, j)
            for (i, one), (j, other) in itertools.combinations(enumerate(self.ranks), 2)
            if all({one, other} <= members for members in sets[one] + sets[other])
        ]

    @staticmethod
    def apart(one: float, other: float, equal: float = EQUAL) -> bool:
        """Return whether two numbers differ; two NaNs are equal.

        Args:
            equal: relative difference of numbers that count as equal. Default EQUAL.
        """
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) != math.isnan(other)
        return abs(one - other) > equal * max(abs(one), abs(other))

    def weights_broadcast(self) -> list[records.Broadcast]:
        """Return the broadcasts on the first rank that send weights, or tensors of an unknown kind."""
        return [event for event in self.rank0(records.Broadcast) if event.weights != 0]

    def callbacks(self) -> dict[str, dict[int, int | None]]:
        """Return the callbacks of `fit` that stop, or set the learning rate: name -> rank -> line."""
        found: dict[str, dict[int, int | None]] = {}
        for rank in self.ranks:
            for event in self.of(rank, records.Callback):
                found.setdefault(event.name, {}).setdefault(rank, event.line)
        return found

    def plans_less(self) -> bool:
        """Return whether a rank plans fewer steps in total than a single process does."""
        if not self.single:
            return False
        plans = [
            next((e.planned for e in run.rank0(records.Step)), None) for run in (self.single, self)
        ]
        return None not in plans and plans[1] < 0.75 * plans[0]

    def joins_in_ddp(self) -> bool:
        """Return whether ranks join others: DDP sends the weights then, and not the optimizer's state."""
        return self.api() == "ddp" and bool(self.all(records.Join))

    # --- ends -----------------------------------------------------------------------------------

    def errors(self) -> list[tuple[int, str, int | None]]:
        """Return (rank, error, line) of the ranks that ended with an error."""
        return [
            (rank, event.error, event.line)
            for rank in self.ranks
            for event in self.of(rank, records.End)
            if event.error
        ]

    def crash(self) -> tuple[int, str, int | None] | None:
        """Return (rank, error, line) of the first error that is not caused by the end of another rank."""
        own = [e for e in self.errors() if not any(text in e[1] for text in FOLLOW_UP_ERRORS)]
        return own[0] if own else None

    def complete(self) -> bool:
        """Return whether each rank has reached its end, or waits for ever."""
        return all(
            self.of(rank, records.End) or self.last_state(rank, records.Waiting)
            for rank in self.ranks
        )

    def last_state(self, rank: int, kind: type[R]) -> R | None:
        """Return the last record about the state of a rank (waits, continues, ended) if it is of a kind."""
        states = [
            e
            for e in self.events[rank]
            if isinstance(e, records.Waiting | records.Continues | records.End)
        ]
        return states[-1] if states and isinstance(states[-1], kind) else None

    def waiting(self) -> str:
        """Return one sentence per rank that waited until the run ended, each after a space."""
        sentences = [
            f" Rank {rank} waited in {label(event)}, line {event.line}."
            for rank in self.ranks
            if (event := self.last_state(rank, records.Waiting))
        ]
        return "".join(sentences)

    # --- steps of optimizers ------------------------------------------------------------------------

    def optimizers(self) -> list[int | None]:
        """Return the optimizers that stepped on the first rank, in ascending order."""
        numbers = {event.optimizer for event in self.rank0(records.Step)}
        return sorted(numbers, key=lambda n: -1 if n is None else n)

    def steps(self, number: int | None) -> list[tuple[records.Step, ...]]:
        """Return the steps that all ranks made with an optimizer.

        Returns:
            Per step the events of all ranks, by rank.
        """
        by_rank = [
            [event for event in self.of(rank, records.Step) if event.optimizer == number]
            for rank in self.ranks
        ]
        if self.all(records.Join):  # a rank that has joined the others makes no steps
            rounds = [{str(event.loops): event for event in of_rank} for of_rank in by_rank]
            same = [place for place in rounds[0] if all(place in other for other in rounds)]
            by_rank = [[of_rank[place] for place in same] for of_rank in rounds]
        return list(zip(*by_rank, strict=False))

    def step(self, rank: int, number: int | None, step: int) -> records.Step:
        """Return the event of one step of an optimizer on one rank.

        Args:
            step: from 1.
        """
        return self.steps(number)[step - 1][self.ranks.index(rank)]

    def batches(self, rank: int) -> list[str | None]:
        """Return the hash of the batch of each step on one rank."""
        return [event.batch for event in self.of(rank, records.Step)]

    def rates(self, number: Any = ...) -> list[float]:
        """Return the learning rate of the first rank in each step of an optimizer.

        Args:
            number: of the optimizer. Default: the one that steps first.
        """
        steps = self.rank0(records.Step)
        if number is ... and steps:
            number = steps[0].optimizer
        return [e.rate for e in steps if e.optimizer == number and e.rate is not None]

    def orders(self) -> list[list[records.Order]]:
        """Return the events "order" with which the first rank trained, by the line that made the sampler.

        An order trains if steps follow it before the next one. A sampler for evaluation needs no new order.
        """
        found: dict[int | None, list[records.Order]] = {}
        order = None
        for event in self.events[self.ranks[0]]:
            if isinstance(event, records.Order):
                order = event
            elif isinstance(event, records.Step) and order:
                found.setdefault(order.made, []).append(order)
                order = None
        return list(found.values())

    def in_epochs(self) -> bool:
        """Return whether the training loop of the first rank is inside another loop."""
        return any(len(event.loops) > 1 for event in self.rank0(records.Step))

    def evaluations(self) -> Iterator[tuple[records.Evaluate, type]]:
        """Yield (evaluation, kind of the record that came first after it) of the first rank.

        What came first is a collective that combines values, a step, or the end. A call of the model
        before the first step may build it. One in a loop that also makes steps is no evaluation either: that
        of the teacher in a distillation, or the accuracy of a training batch.
        """
        events = self.events[self.ranks[0]]
        train = [_without_round(event.loops) for event in events if isinstance(event, records.Step)]
        for place, event in enumerate(events):
            if isinstance(event, records.Evaluate) and event.steps:
                ends = (
                    one
                    for one in events[place:]
                    if isinstance(one, records.Step | records.End)
                    or (isinstance(one, records.Collective) and not SENDS.search(one.op))
                )
                first = next(ends, None)
                if not event.loops or _without_round(event.loops) not in train:
                    yield event, type(first)

    # --- loops, collectives, decisions, files ---------------------------------------------------------

    def cut_at_end(self, rank: int) -> list[int]:
        """Return the lines of the loops and calls of `fit` that the check ended early after the last step.

        What a rank does after that may need the steps that the check has left out.
        """
        lengths = {event.line: event.length for event in self.of(rank, records.Loop)}
        inside = {event.line for event in self.of(rank, records.Fit)}  # in a callback, for example
        ended = [
            event
            for event in self.of(rank, records.Pass)
            if event.left == "cut" and lengths.get(event.line) != event.iterations
        ]
        ended = [event for event in ended if event.line not in inside]
        ended += [event for event in self.of(rank, records.Fitted) if event.cut]
        last = max((event.steps for event in self.of(rank, records.Step)), default=0)
        return sorted({event.line for event in ended if event.steps == last})

    def lengths(self, nested: bool = False) -> dict[int, dict[int, int]]:
        """Return the batches per epoch of the training loops, on the ranks that know them.

        Args:
            nested: whether to return the rounds of the loops around training loops instead. Default False.

        Returns:
            Line of the loop -> rank -> batches.
        """
        found: dict[int, dict[int, int]] = {}
        for rank in self.ranks:
            for event in reversed(self.of(rank, records.Loop) + self.of(rank, records.Fit)):
                if event.length is not None and getattr(event, "nested", False) == nested:
                    found.setdefault(event.line, {})[rank] = event.length
        return found

    def decisions(self) -> dict[tuple[int, str, tuple[int, ...]], list[list[float]]]:
        """Return the values on which the decisions in training loops depended, where all ranks have some.

        A function may decide about the training on one rank, while it evaluates on another one. So only
        decisions are compared that the same lines have led to, in the same round of the loops.

        Returns:
            (line, expression, lines that have led to it) -> values by rank.
        """
        train = {event.line for event in self.all(records.Loop) + self.all(records.Pass)}
        found: dict[tuple, dict[int, dict]] = {}  # key -> rank -> (rounds, count in them) -> value
        for rank in self.ranks:
            for event in self.of(rank, records.Decision):
                if not event.loops or event.loops[-1][0] not in train:
                    continue
                key = event.line, event.text, tuple(event.stack)
                values = found.setdefault(key, {}).setdefault(rank, {})
                rounds, count = str(event.loops), 0
                while (rounds, count) in values:
                    count += 1
                values[rounds, count] = event.value
        compared = {}
        for key, of in found.items():
            if len(of) == len(self.ranks):
                first, *others = of.values()
                same = [place for place in first if all(place in other for other in others)]
                compared[key] = [[of[rank][place] for place in same] for rank in self.ranks]
        return compared

    def traced(self) -> dict[tuple[str, int], dict[int, list[records.Traced]]]:
        """Return the collectives in graphs of TensorFlow.

        Returns:
            (traced function, number of the graph among its graphs) -> rank -> events "traced".
        """
        found: dict[tuple[str, int], dict[int, list[records.Traced]]] = {}
        for rank in self.ranks:
            for event in self.of(rank, records.Traced):
                key = event.function, event.graph
                found.setdefault(key, {}).setdefault(rank, []).append(event)
        return found

    def saves(self) -> dict[str, dict[int, int]]:
        """Return the files that ranks wrote, without lock files, because all ranks open those.

        Returns:
            Path -> rank that wrote it -> line.
        """
        locks = {event.path for event in self.all(records.Lock)}
        found: dict[str, dict[int, int]] = {}
        for rank in self.ranks:
            for event in self.of(rank, records.Save):
                if event.path not in locks:
                    found.setdefault(event.path, {}).setdefault(rank, event.line)
        return found
