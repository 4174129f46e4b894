"""Checks of lab 14: a pipeline by hand, and two mistakes in pipelines; each runs on real ranks."""

import importlib.util
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness.gloo_ranks import attempts, on_ranks

if TYPE_CHECKING:
    import torch.distributed as dist
    from mpi4py import MPI

TOLERANCE = 1e-4  # relative, of losses and gradients in float32

# --- exercises 1 and 3: a step of a pipeline --------------------------------------------------------


@exercise
def check_pipeline_step(pipeline_step: Callable) -> None:
    """Demand the loss and the gradients of serial training, on three stages, with 1 and 4 micro-batches.

    Args:
        pipeline_step: The learner's `pipeline_step(stage, images, labels, hidden_size)`, where images and
            labels are lists of micro-batches.
    """
    _demand_serial(pipeline_step, "pipeline_step")
    right(
        "three stages have the loss and the gradients of one process, with 1 and 4 micro-batches."
    )


@exercise
def check_fixed_line(function: Callable, line: str, instead: str) -> None:
    """Demand that with one line replaced the function has the gradients of serial training.

    Args:
        function: A step of a pipeline with a mistake in one line.
        line: The line, as it is in the function.
        instead: The learner's line.
    """
    for name, text in (("line", line), ("instead", instead)):
        if not isinstance(text, str):
            raise NotYet(f"`{name}` must be a line of Python, as a string. Received: {text!r}")
    source = inspect.getsource(function)
    if source.count(line.strip()) != 1 or not line.strip():
        raise NotYet(
            f"`{line}` is {source.count(line.strip()) if line.strip() else 0} times in "
            f"{function.__name__}: copy the whole line from there."
        )
    fixed_source = source.replace(line.strip(), instead.strip())
    with tempfile.TemporaryDirectory() as folder:
        try:
            compile(fixed_source, "fixed", "exec")
        except SyntaxError as error:
            raise NotYet(f"`{instead}` is not valid Python there: {error.msg}.") from None
        path = Path(folder, "fixed.py")
        path.write_text(fixed_source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("fixed", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _demand_serial(getattr(module, function.__name__), f"with `{instead.strip()}` it", ranks=2)
    right("with that line the gradients are those of serial training, with 1 and 4 micro-batches.")


def try_step(comm: "MPI.Comm", name: str, counts: list[int]) -> list[dict[str, object]]:
    """Return, on a rank, how a step compares with serial training, for each number of micro-batches.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
        counts: The numbers of micro-batches.
    """
    import copy

    import torch
    from torch.nn import functional as F

    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.model_parallel.pipeline_stages import batch, stage

    rows = []
    for count in counts:
        torch.manual_seed(count)
        network = ResidualMLP(comm.size, 8, 4)
        serial = copy.deepcopy(network)
        images, labels = batch(count, 8, 4)
        serial_loss = F.cross_entropy(serial(images), labels)
        serial_loss.backward()
        mine, wanted = (stage(each, comm.rank, comm.size) for each in (network, serial))
        row = {"count": count, "serial": serial_loss.item()}
        try:
            loss = globals()[name](mine, [*images.chunk(count)], [*labels.chunk(count)], 8)
        except Exception as error:
            error.add_note(f"with {count} micro-batch{'es' if count > 1 else ''}")
            raise
        row["loss"] = loss if loss is None else float(loss)
        row["missing"] = sum(parameter.grad is None for parameter in mine.parameters())
        if not row["missing"]:
            gradient, expected = (
                torch.cat([parameter.grad.flatten() for parameter in each.parameters()])
                for each in (mine, wanted)
            )
            row["difference"] = ((gradient - expected).abs().max() / expected.abs().max()).item()
            row["factor"] = ((gradient @ expected) / (expected @ expected)).item()
            apart = (gradient - row["factor"] * expected).abs().max()
            row["scaled"] = (apart / gradient.abs().max()).item()
        rows.append(row)
    return rows


def _demand_serial(function: Callable, name: str, ranks: int = 3) -> None:
    remedy = "Every send needs a receive on the other side, and in the same order."
    options = dict(ranks=ranks, uses=(function,), what=name, remedy=remedy)
    try:
        results = on_ranks(try_step, function.__name__, [1, 4], **options)
    except NotYet as error:
        raise NotYet(_why(str(error))) from None
    for rows in zip(*results, strict=True):  # a row per rank, for one number of micro-batches
        case = f"with {rows[0]['count']} micro-batch{'es' if rows[0]['count'] > 1 else ''}"
        for rank, row in enumerate(rows):
            if row["missing"]:
                raise NotYet(
                    f"{case} {row['missing']} parameters of rank {rank} get no gradient: it must call "
                    "`.backward` on the output of each micro-batch, with the gradient that it received."
                )
        _demand_loss(rows, case, name)
        for rank, row in enumerate(rows):
            if row["difference"] > TOLERANCE:
                raise NotYet(_gradient(rank, row, case))


def _why(text: str) -> str:
    """Return an error of a rank, with the mistake that usually causes it."""
    if "NoneType" in text:
        text += (
            " A received activation is a leaf of this rank's graph: without `x.requires_grad_()` "
            "before the forward pass, backward leaves nothing in `x.grad`."
        )
    elif "does not require grad" in text:
        text += " A received tensor has no graph: call backward on the outputs of the stage only."
    elif "scalar outputs" in text:
        text += (
            " Only the last stage has a loss; the others start from the gradient that they receive."
        )
    return text


def _demand_loss(rows: tuple[dict, ...], case: str, name: str) -> None:
    *others, last = (row["loss"] for row in rows)
    serial, count = rows[-1]["serial"], rows[-1]["count"]
    if last is None:
        raise NotYet(
            f"{case} {name} returns None on the last rank: return the loss of the batch there."
        )
    for rank, loss in enumerate(others):
        if loss is not None:
            raise NotYet(
                f"{case} {name} returns {loss:g} on rank {rank}: return None, it has no loss."
            )
    if np.isclose(last, serial, rtol=TOLERANCE):
        return
    if np.isclose(last, count * serial, rtol=TOLERANCE):
        raise NotYet(
            f"{case} the loss is {last:.4f}, {count} times the serial {serial:.4f}: a sum of means. Divide "
            "each micro-batch's loss by their number."
        )
    if np.isclose(last, serial / count, rtol=TOLERANCE):
        raise NotYet(
            f"{case} the loss is divided by {count} twice: {last:.4f}, serial {serial:.4f}."
        )
    raise NotYet(f"{case} the loss is {last:.4f}; serial training has {serial:.4f}.")


def _gradient(rank: int, row: dict, case: str) -> str:
    """Return a sentence about what is wrong with the gradients of a rank."""
    if row["scaled"] < TOLERANCE:
        return (
            f"{case} the loss is right, but rank {rank}'s gradients are {row['factor']:.3g} times the "
            "serial ones: call backward on the loss that you divided by the number of micro-batches."
        )
    if row["count"] > 1:
        return (
            f"{case} rank {rank}'s gradients are wrong by {100 * row['difference']:.0f} %, and with 1 they "
            "are right. Either the gradient of one micro-batch is combined with the activations of another, "
            "because the ranks use different orders, or something resets the sum."
        )
    return f"{case} rank {rank}'s gradients are wrong by {100 * row['difference']:.0f} %, the loss is right."


# --- exercise 2: deadlock in blocking sends --------------------------------------------------------


@exercise
def check_swap(swap: Callable) -> None:
    """Demand that two ranks exchange tensors, small and large, without a deadlock.

    Args:
        swap: The learner's `swap(mine, yours, other)`.
    """
    remedy = (
        "One of the two must receive first, or neither may wait until both have begun: dist.isend."
    )
    results = on_ranks(try_swap, swap.__name__, ranks=2, uses=(swap,), remedy=remedy)
    for row in (row for rows in results for row in rows):
        if row["changed"]:
            raise NotYet("swap changes `mine`: it must only be sent.")
        if not row["arrived"]:
            raise NotYet(
                f"with {row['size']} numbers, `yours` does not hold what the other rank sent: wait for "
                "the receive before you return."
            )
        if row["left"]:
            raise NotYet(
                "each object that dist.isend and dist.irecv return has a wait(): call it on each before you "
                "return. Until then `mine` must not change, because it may not have been sent."
            )
    right("two ranks exchange 16 and 1,000,000 numbers, without a deadlock.")


def show_swap(swap: Callable, seconds: float = 5) -> None:
    """Print in which line each of two ranks is when the time is over.

    Args:
        swap: A function `swap(mine, yours, other)`.
        seconds: How long a rank waits.
    """
    results = attempts(try_swap, swap.__name__, ranks=2, uses=(swap,), seconds=seconds)
    for rank, result in enumerate(results):
        waits = "waits" in result
        state = f"after {seconds:g} s still in `{result['waits']}`" if waits else "has finished"
        print(f"rank {rank}: {state}")


class _Message:
    """What dist.isend returns, and whether the learner has waited for it."""

    def __init__(self, work: "dist.Work") -> None:
        self.work, self.waited = work, False

    def wait(self, *timeout: object) -> object:
        """Wait, like dist.Work.wait."""
        self.waited = True
        return self.work.wait(*timeout)

    def is_completed(self) -> bool:
        """Return whether the message has been sent or received."""
        self.waited = self.waited or self.work.is_completed()
        return self.work.is_completed()


def messages_on_their_way() -> list[_Message]:
    """Return a list that will hold what dist.isend and dist.irecv return from now on, on this rank."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    begun = []

    def kept(begin: Callable) -> Callable:
        def begin_and_keep(*arguments: object, **more: object) -> _Message:
            begun.append(_Message(begin(*arguments, **more)))
            return begun[-1]

        return begin_and_keep

    begins = kept(dist.isend), kept(dist.irecv)
    for module in (dist, distributed_c10d):  # batch_isend_irecv compares them
        module.isend, module.irecv = begins
    return begun


def try_swap(comm: "MPI.Comm", name: str) -> list[dict[str, object]]:
    """Return the results of exchanging tensors of two sizes with the other rank.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import torch

    from hvdlab.exercises.lab14_pipeline_parallelism import messages_on_their_way

    begun, rows = messages_on_their_way(), []
    for size in (16, 1_000_000):
        mine, yours = torch.full((size,), comm.rank + 1.0), torch.zeros(size)
        globals()[name](mine, yours, 1 - comm.rank)
        arrived = bool((yours == 2.0 - comm.rank).all())
        changed = bool((mine != comm.rank + 1.0).any())
        left = sum(not message.waited for message in begun)
        rows.append({"size": size, "arrived": arrived, "changed": changed, "left": left})
    return rows
