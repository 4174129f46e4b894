"""Checks of lab 4: a message round a ring without deadlock, a data-parallel gradient, and counted bytes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises import NotYet, compare, exercise, number, right
from hvdlab.exercises import call as call_here
from hvdlab.launch import LaunchError, TimeUp, call

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT_SECONDS = 20  # after which ranks that wait for each other are ended


# --- exercise 2 ------------------------------------------------------------------------------------


@exercise
def check_pass_right(pass_right: Callable, seconds: float = LIMIT_SECONDS) -> None:
    """Demand the left neighbour's array on each of 3 and 4 ranks, with sends that wait for their receiver.

    Args:
        pass_right: The learner's `pass_right(comm, values)`.
        seconds: How long the ranks may take.
    """
    for ranks in (3, 4):
        rows = on_ranks(try_pass_right, pass_right, ranks, seconds)
        for rank, row in enumerate(rows):
            left, to_right = (rank - 1) % ranks, (rank + 1) % ranks
            case = f"on {ranks} ranks, rank {rank}"
            if row["result"] is None:
                raise NotYet(f"{case} returns no array: `return` the array that you receive into.")
            mistakes = {
                "That is the array of the right neighbour: send to rank + 1, receive from rank - 1.":
                    _values_of(to_right),
                "That is the rank's own array: return the array that you receive into.":
                    _values_of(rank),
            }  # fmt: skip
            received = np.array(row["result"], dtype=float)
            compare(case, received, _values_of(left), mistakes, f"Rank {left} sent it.")
            if row["receivers"] != [to_right]:
                raise NotYet(f"{case} must send only to rank {to_right}, its right neighbour.")
    right(
        "every rank gets the array of its left neighbour, although each send waits for its receiver."
    )


def _values_of(rank: int) -> np.ndarray:
    return np.array([10.0 * rank, 10.0 * rank + 1])


def try_pass_right(comm: "MPI.Comm", name: str) -> dict:
    """Return, on a rank, what the learner's function returns and to which ranks it sent.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    from hvdlab.exercises.harness.counting_communicator import Counting

    counting = Counting(comm)
    values = np.array([10.0 * comm.rank, 10.0 * comm.rank + 1])
    result = globals()[name](counting, values)
    is_array = isinstance(result, np.ndarray)
    return {
        "result": result.tolist() if is_array else None,
        "receivers": sorted(counting.receivers),
    }


# --- exercise 3 ------------------------------------------------------------------------------------

EXAMPLES = [1.0, 2.0, 6.0, 3.0, 5.0, 13.0]  # their mean is 5; the pairs have the means 1.5, 4.5, 9


@exercise
def check_parallel_gradient(parallel_gradient: Callable, seconds: float = LIMIT_SECONDS) -> None:
    """Demand the mean gradient of a batch of 6 on each of 3 ranks, each of which computes a shard of 2.

    Args:
        parallel_gradient: The learner's `parallel_gradient(comm, gradient, batch)`.
        seconds: How long the ranks may take.
    """
    rows = on_ranks(try_parallel_gradient, parallel_gradient, 3, seconds)
    used = [sorted(sum(row["used"], [])) for row in rows]
    for rank, (row, indices) in enumerate(zip(rows, used, strict=True)):
        case = f"for a batch of 6 examples on 3 ranks, rank {rank}"
        if row["result"] is None:
            raise NotYet(f"{case} returns no array: `return` the averaged gradient.")
        if len(indices) == 6:
            raise NotYet(
                f"{case} computes the gradient of all 6 examples. Each rank computes only its shard of 2: "
                "np.split(batch, comm.size)[comm.rank]."
            )
        if not indices:
            raise NotYet(f"{case} never calls gradient(...): call it with the shard of this rank.")
    if len({tuple(indices) for indices in used}) == 1:
        raise NotYet(
            f"all ranks compute the gradient of the same examples, numbers {used[0]}: choose the shard by "
            "comm.rank."
        )
    if sorted(sum(used, [])) != list(range(6)):
        raise NotYet(
            f"the ranks compute the examples {used[0]}, {used[1]} and {used[2]}. Together they must compute "
            "each of the examples 0 to 5 once."
        )
    local = [np.mean([EXAMPLES[i] for i in indices]) for indices in used]
    for rank, row in enumerate(rows):
        case = (
            f"on 3 ranks with the local gradients {', '.join(f'{g:g}' for g in local)}, rank {rank}"
        )
        mistakes = {
            "That is the sum over the ranks: divide it by comm.size.": np.array([sum(local)]),
            "That is the gradient of this rank's own shard: combine it with comm.Allreduce.":
                np.array([local[rank]]),
            "It is divided twice by the number of ranks.": np.array([sum(local) / 9]),
        }  # fmt: skip
        answer = np.array(row["result"], dtype=float)
        compare(case, answer, np.array([5.0]), mistakes, "It is the mean of the local gradients.")
    right("each rank computes 2 of 6 examples, and all ranks hold the mean gradient of the 6.")


def try_parallel_gradient(comm: "MPI.Comm", name: str) -> dict:
    """Return, on a rank, the learner's gradient of six numbers, and which of them the rank used.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    examples, used = np.array([1.0, 2.0, 6.0, 3.0, 5.0, 13.0]), []

    def gradient(indices: np.ndarray) -> np.ndarray:
        used.append(np.asarray(indices).tolist())
        return examples[indices].mean(keepdims=True)

    result = globals()[name](comm, gradient, np.arange(6))
    is_array = isinstance(result, np.ndarray)
    return {"result": result.tolist() if is_array else None, "used": used}


def on_ranks(
    attempt: Callable,
    function: Callable,
    ranks: int,
    seconds: float,
    *arguments: object,
    advice: str = "If all ranks send before any rank receives, all wait: let the odd ranks receive first.",
) -> list:
    """Return what `attempt` returns on each rank.

    Args:
        attempt: Is called on each rank, with the communicator, the name of the function and `arguments`.
        function: The learner's function.
        ranks: The number of ranks.
        seconds: The time limit; four times as long if the ranks have not started by then.
        arguments: More arguments of `attempt`.
        advice: What to do if the ranks wait for each other.

    Raises:
        NotYet: The function does not end well on these ranks.
    """
    name = getattr(function, "__name__", "your function")
    for limit in (seconds, 4 * seconds):  # the longer one if ranks of a busy machine start slowly
        try:
            return call(attempt, name, *arguments, ranks=ranks, timeout=limit, uses=(function,))
        except TimeUp as error:
            where = str(error).partition(" s: ")[2]
            if "did not start" not in where:  # the learner's function has run on all ranks
                raise NotYet(
                    f"deadlock: on {ranks} ranks nothing moved for {limit:g} s. "
                    f"{where[:1].upper()}{where[1:]} {advice}"
                ) from None
        except LaunchError as error:
            raise NotYet(str(error).replace(attempt.__name__, name, 1)) from None
    raise NotYet(
        f"not all {ranks} ranks have started within {limit:g} s, so nothing was checked: this machine is "
        "too busy or too slow. Run the cell again."
    )


# --- exercise 6 ------------------------------------------------------------------------------------


@exercise
def check_busiest_bytes(busiest_bytes: Callable) -> None:
    """Demand the bytes in and out of the busiest rank for three all-reduces of a power of two of ranks.

    Args:
        busiest_bytes: The learner's `busiest_bytes(algorithm, ranks, size)`.
    """
    size, name = 1000, "busiest_bytes"
    for ranks in (2, 4, 8):
        arrays = {"naive": 2 * (ranks - 1), "tree": 2 * np.log2(ranks), "ring": 4 * (1 - 1 / ranks)}
        for algorithm, expected in arrays.items():
            case = f'{name}("{algorithm}", {ranks}, {size})'
            answer = number(call_here(busiest_bytes, algorithm, ranks, size, name=name), case)
            mistakes = {
                "That is what the rank sends. Add what it receives, which is as much.":
                    expected * size / 2,
                "That is the number of arrays: multiply it by the size of one.": expected,
            }  # fmt: skip
            why = {
                "naive": f"The root receives {ranks - 1} arrays and sends {ranks - 1}.",
                "tree": f"The root receives {np.log2(ranks):g} arrays on the way up and sends as many.",
                "ring": f"A rank sends {2 * (ranks - 1)} chunks of 1/{ranks} of the array, and receives "
                "as many.",
            }
            compare(case, answer, expected * size, mistakes, why[algorithm])
    right(
        "on 2 ranks all three move 2 arrays through the busiest rank; from 4 ranks on the ring moves fewest."
    )
