"""Checks of lab 10: a pipeline by hand, and two faults of pipelines; each on real ranks."""

import importlib.util
import inspect
import tempfile
from pathlib import Path

import numpy as np

from hvdlab.calls import call
from hvdlab.exercises import NotYet, right
from hvdlab.launch import LaunchError, TimeUp

SECONDS = 30  # after which a rank gives up a send or a receive that nobody answers


# --- exercises 5 and 7: a step of a pipeline --------------------------------------------------------


def check_pipeline_step(pipeline_step) -> None:
    """Demand the loss and the gradients of serial training, on three stages, with 1 and 4 micro-batches."""
    _demand_serial(pipeline_step, "pipeline_step")
    right(
        "three stages have the loss and the gradients of one process, with 1 and 4 micro-batches."
    )


def check_mended(function, line: str, instead: str) -> None:
    """Demand that with one line replaced the function has the gradients of serial training."""
    for name, text in (("line", line), ("instead", instead)):
        if not isinstance(text, str):
            raise NotYet(f"`{name}` shall be a line of Python, as a text. Received: {text!r}")
    source = inspect.getsource(function)
    if source.count(line.strip()) != 1 or not line.strip():
        raise NotYet(
            f"`{line}` is {source.count(line.strip()) if line.strip() else 0} times in "
            f"{function.__name__}: copy the whole line from there."
        )
    mended = source.replace(line.strip(), instead.strip())
    with tempfile.TemporaryDirectory() as folder:
        try:
            compile(mended, "mended", "exec")
        except SyntaxError as error:
            raise NotYet(f"`{instead}` is no line of Python there: {error.msg}.") from None
        path = Path(folder, "mended.py")
        path.write_text(mended)
        spec = importlib.util.spec_from_file_location("mended", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _demand_serial(getattr(module, function.__name__), f"with `{instead.strip()}` it", ranks=2)
    right("with that line the gradients are those of serial training, with 1 and 4 micro-batches.")


def try_step(comm, name, counts, seconds):
    """On a rank: a step of that name beside serial training, for each number of micro-batches."""
    import copy
    import traceback
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    from hvdlab.torch.networks import ResidualMLP
    from hvdlab.torch.process_group import rendezvous
    from hvdlab.torch.stages import batch, stage

    rendezvous()
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
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
        except RuntimeError as error:
            if "imed out" not in str(error) and "onnection" not in str(error):
                error.add_note(f"with {count} micro-batches")
                raise
            lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.name == name]
            return [*rows, row | {"waits": lines[-1]}]
        row["loss"] = loss if loss is None else float(loss)
        row["missing"] = sum(parameter.grad is None for parameter in mine.parameters())
        if not row["missing"]:
            got, expected = (
                torch.cat([parameter.grad.flatten() for parameter in each.parameters()])
                for each in (mine, wanted)
            )
            row["difference"] = ((got - expected).abs().max() / expected.abs().max()).item()
            row["factor"] = ((got @ expected) / (expected @ expected)).item()
            row["scaled"] = ((got - row["factor"] * expected).abs().max() / got.abs().max()).item()
        rows.append(row)
    return rows


def _demand_serial(function, what, ranks=3):
    name = function.__name__
    try:
        found = call(try_step, name, [1, 4], SECONDS, ranks=ranks, timeout=240, uses=(function,))
    except TimeUp as error:
        raise NotYet(f"{what} does not end: {str(error).partition(' s: ')[2]}") from None
    except LaunchError as error:
        raise NotYet(_why(str(error).replace("try_step", what, 1))) from None
    _demand_no_deadlock(found, what)
    for rows in zip(*found, strict=True):  # of one number of micro-batches, rank by rank
        case = f"with {rows[0]['count']} micro-batch{'es' if rows[0]['count'] > 1 else ''}"
        for rank, row in enumerate(rows):
            if row["missing"]:
                raise NotYet(
                    f"{case} {row['missing']} parameters of rank {rank} get no gradient: it must call "
                    "`.backward` on the output of each micro-batch, with the gradient that it received."
                )
        _demand_loss(rows, case, what)
        for rank, row in enumerate(rows):
            if row["difference"] > 1e-4:
                raise NotYet(_gradient(rank, row, case))


def _demand_no_deadlock(found, what):
    if any("waits" in rows[-1] for rows in found):
        waiting = [
            f"rank {rank} in `{rows[-1]['waits']}`"
            for rank, rows in enumerate(found)
            if "waits" in rows[-1]
        ]
        raise NotYet(
            f"{what} waits for ever: after {SECONDS} s {', '.join(waiting)}. Every send needs a receive "
            "on the other side, and in the same order."
        )


def _why(text):
    """An error of a rank, and the mistake that usually makes it."""
    if "NoneType" in text:
        text += (
            " A received activation is a leaf of this rank's graph: without `x.requires_grad_()` "
            "before the forward pass, backward leaves nothing in `x.grad`."
        )
    elif "does not require grad" in text:
        text += " What arrives has no graph: only outputs of a stage can go backward."
    elif "scalar outputs" in text:
        text += (
            " Only the last stage has a loss; the others start from the gradient that they receive."
        )
    return text


def _demand_loss(rows, case, what):
    last, serial, count = rows[-1]["loss"], rows[-1]["serial"], rows[-1]["count"]
    if last is None:
        raise NotYet(
            f"{case} {what} returns None on the last rank: return the loss of the batch there."
        )
    if np.isclose(last, serial, rtol=1e-4):
        return
    if np.isclose(last, count * serial, rtol=1e-4):
        raise NotYet(
            f"{case} the loss is {last:.4f}, {count} times the serial {serial:.4f}: a sum of means. Divide "
            "each micro-batch's loss by their number."
        )
    if np.isclose(last, serial / count, rtol=1e-4):
        raise NotYet(
            f"{case} the loss is divided by {count} twice: {last:.4f}, serial {serial:.4f}."
        )
    raise NotYet(f"{case} the loss is {last:.4f}; serial training has {serial:.4f}.")


def _gradient(rank, row, case):
    """What is wrong with the gradients of a rank: a sentence."""
    if row["scaled"] < 1e-4:
        return (
            f"{case} the loss is right, but rank {rank}'s gradients are {row['factor']:.3g} times the "
            "serial ones: what goes backward must be the loss that you divided by the number of "
            "micro-batches."
        )
    if row["count"] > 1:
        return (
            f"{case} rank {rank}'s gradients are wrong by {100 * row['difference']:.0f} %, and with 1 they "
            "are right. Either a gradient of one micro-batch meets the activations of another, because "
            "the ranks go through them in different orders, or something resets the sum."
        )
    return f"{case} rank {rank}'s gradients are wrong by {100 * row['difference']:.0f} %, the loss is right."


# --- exercise 2: both send first --------------------------------------------------------------------


def check_swap(swap) -> None:
    """Demand that two ranks exchange tensors, small and large, without waiting for each other."""
    try:
        found = call(try_swap, swap.__name__, SECONDS, ranks=2, timeout=240, uses=(swap,))
    except TimeUp as error:
        raise NotYet(f"swap does not end: {str(error).partition(' s: ')[2]}") from None
    except LaunchError as error:
        raise NotYet(str(error).replace("try_swap", "swap", 1)) from None
    for row in (row for rows in found for row in rows):
        if "waits" in row:
            lines = " and ".join(
                f"rank {r} in `{rows[-1].get('waits')}`" for r, rows in enumerate(found)
            )
            raise NotYet(
                f"deadlock: after {SECONDS} s {lines}. One of the two must receive first, or neither may "
                "wait until both have begun: dist.isend."
            )
        if row["changed"]:
            raise NotYet("swap changes `mine`: it shall only be sent.")
        if not row["arrived"]:
            raise NotYet(
                f"with {row['size']} numbers, `yours` does not hold what the other rank sent: wait for "
                "the receive before you return."
            )
    right("two ranks exchange 16 and 1,000,000 numbers, and neither waits for ever.")


def show_swap(swap, seconds: float = 5) -> None:
    """Print in which line each of two ranks is, when it gives up after so many seconds."""
    for rank, rows in enumerate(
        call(try_swap, swap.__name__, seconds, ranks=2, timeout=120, uses=(swap,))
    ):
        waits = rows[-1].get("waits")
        says = f"after {seconds:g} s still in `{waits}`" if waits else "is through"
        print(f"rank {rank}: {says}")


def try_swap(comm, name, seconds):
    """On a rank: exchange tensors of two sizes with the other rank."""
    import traceback
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    rows = []
    for size in (16, 1_000_000):
        mine, yours = torch.full((size,), comm.rank + 1.0), torch.zeros(size)
        try:
            globals()[name](mine, yours, 1 - comm.rank)
        except RuntimeError as error:
            if "imed out" not in str(error) and "onnection" not in str(error):
                raise
            lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.name == name]
            return [*rows, {"waits": lines[-1]}]
        arrived = bool((yours == 2.0 - comm.rank).all())
        changed = bool((mine != comm.rank + 1.0).any())
        rows.append({"size": size, "arrived": arrived, "changed": changed})
    return rows
