"""Show step by step what a learner's ring all-reduce of lab 4 did, also if it is wrong or waits for ever.

    show_ring(ring_all_reduce)

Rank r begins with 1, 2, 3, 4 times 10**r. So each digit of a value tells which rank's values it contains.
"""

import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.course.player import Message, Player, Step, Waiting
from hvdlab.exercises.harness.recording_communicator import read_calls
from hvdlab.launch import LaunchError, TimeUp, call

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = 4
TITLE = "Ring all-reduce on four ranks"
SECONDS = 20  # after which ranks that wait for each other are ended
NOTE = (
    "Rank 0 begins with 1, 2, 3, 4 and rank 1 with 10, 20, 30, 40. So the digits of a value tell whose "
    "values were added. A dashed frame marks a value that is sent, a filled cell one that has changed."
)


def show_ring(function: Callable) -> Player:
    """Return a player with the steps of a ring all-reduce on four ranks, one value per chunk.

    Args:
        function: `ring_all_reduce` of exercise 5. It may be wrong, and its ranks may wait for each other.
    """
    for limit in (SECONDS, 4 * SECONDS):  # the longer one if ranks of a busy machine start slowly
        calls, ended = _run(function, limit)
        if all(calls) or not isinstance(ended, TimeUp):
            break
    if ended and not all(calls):
        raise ended
    return Player(TITLE, tuple(steps_of(calls, ended)), tuple(range(RANKS + 1)), NOTE)


def _run(function: Callable, limit: float) -> tuple[list[list[dict]], LaunchError | None]:
    """Return what the ranks have recorded, see `read_calls`, and the error that ended them."""
    with tempfile.TemporaryDirectory() as folder:
        ended, name = None, function.__name__
        try:
            call(on_rank, name, folder, ranks=RANKS, timeout=limit, uses=(function,))
        except TimeUp as error:
            ended = error
        except LaunchError as error:
            ended = LaunchError(str(error).replace(on_rank.__name__, name, 1))
        return read_calls(Path(folder), RANKS), ended


def on_rank(comm: "MPI.Comm", name: str, folder: str) -> None:
    """Record, on a rank, the learner's function of this name."""
    from hvdlab.exercises.harness.recording_communicator import record
    from hvdlab.exercises.lab04_ring_player import values_of

    comm.Barrier()  # a rank that is late is no deadlock
    record(comm, globals()[name], values_of(comm.rank), folder)


def values_of(rank: int) -> np.ndarray:
    """Return the values with which a rank begins."""
    return 10.0**rank * np.arange(1, RANKS + 1)


def show_deadlock(ended: TimeUp) -> Player:
    """Return a player with the line in which each rank waited when it was ended."""
    return Player("The lines in which the ranks wait", (_stop(ended, [{}] * len(ended.places)),))


@dataclass(frozen=True)
class Sent:
    """A message as its sender recorded it.

    Args:
        round: the number of its step, from 1.
        start: its position in the array of the sender; None if it is not known.
    """

    round: int
    sender: int
    receiver: int
    start: int | None
    values: list[float]


def rounds_of(calls: list[list[dict]]) -> tuple[list[Sent], list[list[int]]]:
    """Return the messages, and for each rank the round of each of its calls.

    A message belongs to the round after the last one in which its sender took part before. The last line of a
    rank is its end, or a call that did not end. Such a call may have sent its message all the same.
    """
    sent, rounds, under_way = [], [[] for _ in calls], defaultdict(deque)

    def walk(rank: int) -> Iterator[None]:
        now = 0
        for line in calls[rank]:
            ended = line is not calls[rank][-1]
            if line.get("to") is not None:
                now += 1
                one = Sent(now, rank, line["to"], line["start"], line["values"])
                under_way[rank, one.receiver].append(one)
                sent.extend([one] * ended)
            if ended and line["source"] is not None:
                while not (arrived := _arrived(under_way, rank, line["source"])):
                    yield  # until its sender has sent
                one = arrived.popleft()
                now = max(now, one.round)
                sent.extend([one] * (one not in sent))
            rounds[rank].extend([now] * ended)

    walks = [walk(rank) for rank in range(len(calls))]
    for _ in range(1 + sum(map(len, calls))):
        for one in walks:
            next(one, None)
    return sorted(sent, key=lambda one: (one.round, one.sender)), rounds


def _arrived(under_way, rank, source):
    """Return the messages that a rank can receive from a source; -1 is any source."""
    queues = (q for (of, to), q in under_way.items() if q and to == rank and source in (of, -1))
    return next(queues, None)


def steps_of(calls: list[list[dict]], ended: LaunchError | None = None) -> list[Step]:
    """Return the steps of what ranks have recorded, see `read_calls`.

    Args:
        ended: the error that ended the ranks. None if all have returned.
    """
    sent, rounds = rounds_of(calls)
    count = max((one.round for one in sent), default=0)
    before = [values_of(rank).tolist() for rank in range(len(calls))]
    holds = tuple(f"Rank {rank} holds {_text(values)}." for rank, values in enumerate(before))
    steps = [Step("Start", holds, _texts(before))]
    for number in range(1, count + 1):
        now = [one for one in sent if one.round == number]
        after = [_array_after(number, *each) for each in zip(calls, rounds, before, strict=True)]
        seen = [_message(one, now, before[one.receiver], after[one.receiver]) for one in now]
        messages, sentences = zip(*seen, strict=True)
        steps.append(Step(f"Step {number} of {count}", sentences, _texts(after), messages))
        before = after
    return [*steps, _stop(ended, [of[-1] for of in calls]) if ended else _end(calls)]


def _array_after(number, of_rank, rounds, before):
    """Return the array of a rank after a round: before its first call of a later one."""
    later = (line for line, at in zip(of_rank, rounds, strict=False) if at > number)
    return next(later, of_rank[-1])["array"] or before


def _message(one: Sent, now: list[Sent], old: list[float], new: list[float]) -> tuple[Message, str]:
    """Return a message of a round and a sentence about it, from what the receiver held and holds."""
    length, start = len(one.values), one.start
    changed = [k for k, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    at_its_place = start is not None and set(changed) & set(range(start, start + length))
    into = start if at_its_place else changed[0] if changed else None
    wrong = None not in (start, into) and start != into
    same = [o.values for o in now if (o.receiver, o.start) == (one.receiver, start)]
    effect = "leaves its array as it was"
    if into is not None:
        held, holds = (each[into : into + length] for each in (old, new))
        where = f"its {_chunk(into, length, len(old))}"
        effect = f"then holds {_text(holds)} in {where}"
        if holds == one.values:
            effect = f"replaces {where if wrong else 'its own'}"
        elif holds == [sum(each) for each in zip(held, *same, strict=False)]:
            effect = f"adds it to {where}" if wrong else "adds it"
    values = f"value{'s'[: length - 1]} {_text(one.values)}"
    what = ("its " if length == len(old) else "") + _chunk(start, length, len(old))
    message = Message(one.sender, one.receiver, start, into, length, _text(one.values), wrong)
    return message, (
        f"Rank {one.sender} sends {what} ({values}) to rank {one.receiver}, which {effect}"
        f"{': the wrong chunk.' if wrong else '.'}"
    )


def _chunk(start, length, whole):
    """Return the name of a part of an array with one value per chunk."""
    if length == whole:
        return "whole array"
    if start is None:
        return "a chunk that is not in its array"
    return f"chunk {start}" if length == 1 else f"chunks {start} to {start + length - 1}"


def _end(calls: list[list[dict]]) -> Step:
    """Return the step in which the ranks return their arrays."""
    right = sum(map(values_of, range(len(calls)))).tolist()
    arrays = [of_rank[-1]["returned"] or [] for of_rank in calls]
    wrong = tuple(
        tuple(k for k, value in enumerate(a) if right[k : k + 1] != [value]) for a in arrays
    )
    sentences = [
        f"Rank {rank} returns {_text(a) or 'no array'}: {'right' if a == right else 'wrong'}."
        for rank, a in enumerate(arrays)
    ]
    sentences.append(f"The sums are {_text(right)}.")
    return Step("Result", tuple(sentences), _texts(arrays), wrong=wrong)


def _stop(ended: LaunchError, last: list[dict]) -> Step:
    """Return the step in which the ranks were ended, from the last line that each has recorded."""
    if not isinstance(ended, TimeUp):
        return Step("Error", (str(ended),))
    waiting = []
    for place, line in zip(ended.places, last, strict=True):
        state = f"Rank {place.rank} {place.state}"
        if place.line is not None:
            state = f"Rank {place.rank} waits in line {place.line + 1}"
        ways = [f"{way} rank {line[key]}" for way, key in (("to", "to"), ("from", "source"))
                if line.get(key) is not None]  # fmt: skip
        state += f" in {line['call']} {' and '.join(ways)}" if ways else ""
        waiting.append(Waiting(state, place.code, place.line))
    sentences = [
        f"{each.state}" + (f": {each.code[each.line].strip()}" if each.code else ".")
        for each in waiting
    ]
    sentences.append("No rank reaches its next line.")
    return Step("Deadlock", tuple(sentences), waiting=tuple(waiting))


def _text(values):
    return ", ".join(f"{value:.6g}" for value in values)


def _texts(arrays):
    return tuple(tuple(f"{value:.6g}" for value in array) for array in arrays)
