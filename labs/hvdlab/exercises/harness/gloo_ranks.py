"""Run a function on ranks that Gloo connects, and tell a slow machine from a deadlock.

    rows = on_ranks(try_swap, swap.__name__, ranks=2, uses=(swap,))

A rank gives up a send, a receive or a collective that no rank answers within `SECONDS`. That alone does not
show a deadlock: the machine may be busy, so that the other rank had no core. But then some rank has waited
for a core nearly all the time, and the kernel counts that time. In a deadlock no rank waits for a core (only
a thread of Gloo wakes up now and then). So on a busy machine a deadlock is reported as one of two
possibilities.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdlab.exercises import NotYet
from hvdlab.launch import LaunchError, TimeUp, call

if TYPE_CHECKING:
    from mpi4py import MPI

SECONDS = 30  # how long a rank waits for an answer


def on_ranks(
    function: Callable,
    *arguments: object,
    ranks: int,
    uses: tuple[Callable, ...],
    what: str = "",
    remedy: str = "All ranks must call the same collectives in the same order.",
) -> list:
    """Return what `function(comm, *arguments)` returns on each rank.

    Args:
        ranks: The number of ranks.
        what: What messages call the learner's function. Default: the name of the first of `uses`.

    Raises:
        NotYet: A rank failed, or ranks wait for each other; the message has the line.
        NotImplementedError: A rank raised it.
    """
    what = what or uses[0].__name__
    for seconds in (SECONDS, 4 * SECONDS):
        try:
            results = attempts(function, *arguments, ranks=ranks, uses=uses, seconds=seconds)
        except TimeUp as error:
            raise NotYet(f"{what} does not end: {str(error).partition(' s: ')[2]}") from None
        except LaunchError as error:
            raise NotYet(str(error).replace(attempt.__name__, what, 1)) from None
        if not any("waits" in result for result in results):
            return [result["returned"] for result in results]
        lines = " and ".join(
            f"rank {rank} in `{result['waits']}`"
            for rank, result in enumerate(results)
            if "waits" in result
        )
        if sum(result["queued"] for result in results) < seconds / 2:
            raise NotYet(f"{what}: deadlock: after {seconds:g} s {lines}. {remedy}")
    raise NotYet(
        f"{what}: after {seconds:g} s {lines}. {remedy} Or other programs keep this machine so busy that a "
        "rank had no core for so long: then run the cell again."
    )


def attempts(
    function: Callable, *arguments: object, ranks: int, uses: tuple[Callable, ...], seconds: float
) -> list[dict]:
    """Return a dict per rank: what the function "returned", or the line in which the rank "waits".

    Args:
        ranks: The number of ranks.
    """
    return call(
        attempt, function.__name__, arguments, seconds,
        ranks=ranks, timeout=120 + 4 * seconds, uses=(*uses, function),
    )  # fmt: skip


def attempt(comm: "MPI.Comm", function: str, arguments: tuple, seconds: float) -> dict:
    """Return, on a rank, the result of the function of that name, after connecting by Gloo."""
    import re
    import sys
    import traceback
    from datetime import timedelta

    import torch.distributed as dist

    from hvdlab.system.hardware import seconds_without_core
    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    comm.Barrier()  # the ranks need different times to import torch
    result, before = {}, seconds_without_core()
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
        dist.barrier()  # a rank that fails at once must not exit while another connects to it
        result["returned"] = globals()[function](comm, *arguments)
    except RuntimeError as error:
        if not re.search("timed? ?out|connection", str(error), re.IGNORECASE):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        result["waits"] = [f.line for f in frames if f.filename == sys.argv[0]][-1]
    return result | {"queued": seconds_without_core() - before}
