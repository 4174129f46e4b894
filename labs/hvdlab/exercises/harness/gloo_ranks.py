"""What a function does on ranks that Gloo connects; and whether they are slow, or wait for ever.

    rows = on_ranks(try_swap, swap.__name__, ranks=2, uses=(swap,))

A rank gives up a send, a receive or a collective that nobody answers for `SECONDS`. That alone is no
deadlock: perhaps the machine is busy, and the other rank had no core. But then some rank has waited for a
core nearly all the time, and the kernel counts that. In a deadlock nobody wants one, but for a thread of
Gloo's that looks up now and then: on a busy machine a deadlock is told only as one of two possibilities.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

from hvdlab.exercises import NotYet
from hvdlab.launch import LaunchError, TimeUp, call

SECONDS = 30


def on_ranks(
    function: Callable,
    *arguments,
    ranks: int,
    uses: tuple[Callable, ...],
    what: str = "",
    remedy: str = "All ranks must call the same collectives in the same order.",
) -> list:
    """What `function(comm, *arguments)` returns on each rank.

    Args:
        uses: what the learner wrote, and all else that `function` finds among its globals.
        what: what messages call it. Default: the name of the first of `uses`.
        remedy: a sentence for ranks that wait for each other.

    Raises:
        NotYet: a rank failed, or they wait for each other: in which line.
        NotImplementedError: a rank raised it.
    """
    what = what or uses[0].__name__
    for seconds in (SECONDS, 4 * SECONDS):
        try:
            found = attempts(function, *arguments, ranks=ranks, uses=uses, seconds=seconds)
        except TimeUp as error:
            raise NotYet(f"{what} does not end: {str(error).partition(' s: ')[2]}") from None
        except LaunchError as error:
            raise NotYet(str(error).replace(attempt.__name__, what, 1)) from None
        if not any("waits" in one for one in found):
            return [one["returned"] for one in found]
        lines = " and ".join(
            f"rank {rank} in `{one['waits']}`" for rank, one in enumerate(found) if "waits" in one
        )
        if sum(one["queued"] for one in found) < seconds / 2:
            raise NotYet(f"{what}: deadlock: after {seconds:g} s {lines}. {remedy}")
    raise NotYet(
        f"{what}: after {seconds:g} s {lines}. {remedy} Or something else keeps this machine so busy that a "
        "rank had no core for so long: then run the cell once more."
    )


def attempts(function, *arguments, ranks, uses, seconds) -> list[dict]:
    """Of each rank a dict: what the function "returned", or the line in which the rank "waits"."""
    return call(
        attempt, function.__name__, arguments, seconds,
        ranks=ranks, timeout=120 + 4 * seconds, uses=(*uses, function),
    )  # fmt: skip


def attempt(comm, function, arguments, seconds):
    """On a rank: connect, and call the function of that name."""
    import re
    import sys
    import traceback
    from datetime import timedelta

    import torch.distributed as dist

    from hvdlab.exercises.harness.gloo_ranks import queued
    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    comm.Barrier()  # importing torch takes its time
    found, before = {}, queued()
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
        dist.barrier()  # one that fails at once would leave while another still connects to it
        found["returned"] = globals()[function](comm, *arguments)
    except RuntimeError as error:
        if not re.search("timed? ?out|connection", str(error), re.IGNORECASE):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        found["waits"] = [f.line for f in frames if f.filename == sys.argv[0]][-1]
    return found | {"queued": queued() - before}


def queued() -> float:
    """Seconds that threads of this process were ready and had no core; 0 if the kernel does not say."""
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            nanoseconds += int(path.read_text().split()[1])
    return nanoseconds / 1e9
