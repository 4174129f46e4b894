"""Run a function on ranks that MPI connects, and tell a slow machine from a deadlock."""

import inspect
import re
from collections.abc import Callable

from hvdlab.exercises import NotYet
from hvdlab.launch import LaunchError, TimeUp, call

SECONDS = 20  # after which ranks that wait for each other are ended


def on_ranks(
    function: Callable,
    *arguments: object,
    ranks: int,
    uses: tuple[Callable, ...],
    what: str,
    remedy: str,
) -> list:
    """Return what `function(comm, *arguments)` returns on each rank.

    Args:
        function: calls the learner's function after all ranks have begun, see `comm.Barrier`.
        uses: the learner's function.
        what: what messages call it.
        remedy: what to do if the ranks wait for each other.

    Raises:
        NotYet: a rank failed, or ranks wait for each other.
        NotImplementedError: a rank raised it.
    """
    for limit in (SECONDS, 4 * SECONDS):  # the longer one if ranks of a busy machine start slowly
        try:
            return call(function, *arguments, ranks=ranks, timeout=limit, uses=uses)
        except TimeUp as error:
            places = str(error).partition(" s: ")[2].rstrip(".").split("; ")
            source = "".join(map(inspect.getsource, uses))
            waiting = [p for p in places if (line := re.search("`(.*)`", p)) and line[1] in source]
            if waiting:
                raise NotYet(
                    f"deadlock: nothing moved for {limit:g} s: {'; '.join(waiting)}. {remedy}"
                ) from None
        except LaunchError as error:
            raise NotYet(str(error).replace(function.__name__, what, 1)) from None
    raise NotYet(
        f"not all {ranks} ranks have started within {limit:g} s, so nothing was checked: this machine is "
        "too busy or too slow. Run the cell again."
    )
