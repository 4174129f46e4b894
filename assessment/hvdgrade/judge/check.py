"""One check of a judgement."""

from dataclasses import dataclass, field

from hvdgrade.evidence.observation import Observation


@dataclass
class Check:
    """One check of the report.

    `state` is pass, partial, fail, skipped or error. A check that does not apply is skipped and has
    `max_points` 0. A check that depends on a failed check is skipped too, but keeps its `max_points`, and
    these points count as lost. `part` is the fraction of `max_points` that a partial check earns.
    """

    id: str
    title: str
    state: str
    max_points: int
    rationale: str
    help: str = ""
    evidence: dict = field(default_factory=dict)
    depends_on: list[str] = field(default_factory=list)
    part: float = 0.0  # of max_points

    @property
    def points(self) -> int:
        return {"pass": self.max_points, "partial": int(self.part * self.max_points)}.get(
            self.state, 0
        )


def last_error(output: str) -> str:
    """Return the last line of the first complete Python traceback with its rank; "" if there is none.

    The lines of the ranks are interleaved. `mpirun` begins each line with [job,rank] and the stream.
    """
    in_traceback = set()
    for line in output.splitlines():
        tag, _, text = line.partition(">:")  # Open MPI 4 puts no space after the tag
        text = text.removeprefix(" ")
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
