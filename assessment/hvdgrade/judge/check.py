"""The registry of checks: what a check is, and how its result becomes part of the report.

A check is a function with the decorator `check`. Every module of this folder whose name ends in
`_checks` is imported by `hvdgrade.judge.verdict`, so a new check needs one such module and a line under
[points] in profiles.toml. The order there is the order in the report, and a check comes after the checks
on which it depends.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hvdgrade.evidence.evidence import Evidence
from hvdgrade.evidence.observation import Observation
from hvdgrade.judge import timeline
from hvdgrade.profiles import Profile


@dataclass
class Check:
    """One check of the report.

    `state` is pass, partial, fail, skipped or error. A check that this machine cannot make is skipped and has
    `max_points` 0. A check that cannot be made because of the script is skipped too, but keeps its
    `max_points`, and these points count as lost: for example a check that depends on a failed check. `part`
    is the fraction of `max_points` that a partial check earns.
    """

    id: str
    title: str
    state: str
    max_points: int
    rationale: str
    help: str = ""
    evidence: dict = field(default_factory=dict)
    depends_on: list[str] = field(default_factory=list)
    part: float = 0.0

    @property
    def points(self) -> int:
        return {"pass": self.max_points, "partial": int(self.part * self.max_points)}.get(
            self.state, 0
        )


@dataclass(frozen=True)
class Finding:
    """The result of a check function: the state, what was measured, and what to do about it.

    `evidence` holds the numbers for the report. `applies` is False if the check cannot be made on this
    machine: it then has no points. `part` is the fraction of the points that a partial check earns.
    """

    state: str
    rationale: str
    help: str = ""
    evidence: dict = field(default_factory=dict)
    part: float = 0.0
    applies: bool = True


@dataclass(frozen=True)
class Case:
    """The argument of a check function: evidence of a run, thresholds, and time budget in seconds."""

    evidence: Evidence
    rules: Profile
    budget: float

    @cached_property
    def timeline(self) -> list[timeline.Entry]:
        return timeline.of(self.evidence)

    @cached_property
    def seconds_to_target(self) -> float | None:
        return timeline.seconds_to_target(self.timeline, self.rules)


@dataclass(frozen=True)
class Definition:
    """A registered check."""

    title: str
    depends_on: tuple[str | tuple[str, ...], ...]
    function: Callable[[Case], Finding]


CHECKS: dict[str, Definition] = {}


def check(
    id: str, *, title: str, depends_on: tuple[str | tuple[str, ...], ...] = ("ran",)
) -> Callable[[Callable[[Case], Finding]], Callable[[Case], Finding]]:
    """Register the decorated function as the check `id`.

    Args:
        depends_on: ids of the checks that must not fail. If one of them failed, the function is not called.
            Of several ids in a tuple, the first one that this machine can check counts.
    """

    def register(function: Callable[[Case], Finding]) -> Callable[[Case], Finding]:
        CHECKS[id] = Definition(title, depends_on, function)
        return function

    return register


def run_check(id: str, case: Case, done: dict[str, Check]) -> Check:
    """Return the result of one check; `done` has the results of the checks on which it depends."""
    definition, points = CHECKS[id], case.rules.points[id]
    bases = [[base] if isinstance(base, str) else base for base in definition.depends_on]
    # A check that this machine cannot make (0 points) cannot make another check be skipped.
    counting = [
        base for several in bases for base in [b for b in several if done[b].max_points][:1]
    ]
    for base in counting:
        if done[base].state in ("fail", "skipped"):
            reason = f"skipped: it builds on '{done[base].title}', see above"
            return Check(*(id, definition.title, "skipped", points, reason), depends_on=counting)
    found = definition.function(case)
    help = found.help and f"{found.help.rstrip('.')}. {where_explained(definition.title)}"
    return Check(
        *(id, definition.title, found.state, points if found.applies else 0),
        *(found.rationale, help, found.evidence, counting, found.part),
    )


def where_explained(title: str) -> str:
    """Return a sentence that names the page and the section about a failed check."""
    return f'More: assessment/failed_checks.md, section "{title[:1].upper()}{title[1:]}".'


def last_error(output: str) -> str:
    """Return the last line of the first complete Python traceback with its rank; "" if there is none.

    The lines of the ranks are interleaved. `mpirun` begins each line with [job,rank] and the stream, and
    PyTorch begins a line after `torch.distributed` has started with [rankN].
    """
    in_traceback = set()
    for line in output.splitlines():
        tag, _, text = line.partition(">:")  # Open MPI 4 puts no space after the tag
        text = re.sub(r"^\[rank\d+\]: ?", "", text.removeprefix(" "))
        if "Traceback (most recent call last)" in text:
            in_traceback.add(tag)
        elif tag in in_traceback and text and not text[0].isspace():
            rank = tag.partition(",")[2].partition("]")[0]
            return f"rank {rank} says: {text[:300]}"
    return ""


def where_they_wait(seen: Observation) -> str:
    """Return, for each rank, the innermost line of the submission's own code and the call it waits in."""
    places = []
    for rank, stack in seen.stacks.items():
        frames = stack.splitlines()
        own = next((frame for frame in frames if frame.startswith("assessment.py")), frames[0])
        places.append(f"rank {rank}: {own}" + (f" (in {frames[0]})" if own != frames[0] else ""))
    return "Ranks were at " + "; ".join(places) if places else ""
