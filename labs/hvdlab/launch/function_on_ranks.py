"""Run a function of a notebook on every rank and return its results, or say why and where it failed.

sums = call(add_up, [1, 2, 3], ranks=4)
"""

import contextlib
import faulthandler
import gc
import inspect
import json
import re
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hvdlab.launch.local import LaunchError, Place, TimeUp
from hvdlab.launch.script_on_ranks import run

if TYPE_CHECKING:
    from mpi4py import MPI

SCRIPT = """\
import numpy as np
from mpi4py import MPI

from hvdlab.launch import function_on_ranks as _calls

_calls._watch(MPI.COMM_WORLD, {until})

{sources}

_calls._answer(MPI.COMM_WORLD, {name})
"""


def call(
    function: Callable,
    *arguments: object,
    ranks: int = 2,
    timeout: float = 60,
    uses: tuple[Callable, ...] = (),
    force: bool = False,
) -> list:
    """Run `function(comm, *arguments)` on every rank and return the list of results, in order of rank.

    The ranks receive the source code of the function. So the function can only use names that it
    defines itself, `np` (NumPy), `MPI` (of mpi4py) and the functions of `uses`. `comm` is
    `MPI.COMM_WORLD`. Arguments and results are transferred as JSON, so an array arrives as a list.
    The output of the ranks is printed at the end.

    Args:
        function: takes `comm` and the arguments. It must be written with `def`.
        arguments: values that JSON supports, and NumPy arrays.
        ranks: number of ranks. Default 2.
        timeout: time limit in seconds. Default 60.
        uses: other functions whose source the ranks need.
        force: start the ranks even if this machine has too few cores or too little memory for so many.
            Default False.

    Raises:
        LaunchError: a rank failed (the message contains its error and the line), a rank ended without a
            result, or the time limit was reached (`TimeUp`: the message contains the line that each rank
            was executing).
        NotImplementedError: a rank raised it.
    """
    name = function.__name__
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"{name}.py")
        sources = "\n\n".join(_source(part) for part in (*uses, function))
        script.write_text(
            SCRIPT.format(until=time.time() + 0.8 * timeout, sources=sources, name=name),
            encoding="utf-8",
        )
        answers = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        Path(folder, "arguments.json").write_text(
            json.dumps(arguments, default=_as_list), encoding="utf-8"
        )
        try:
            # PYTHONSAFEPATH keeps the script's folder out of the import path. Without it, a function named
            # `random` would make `import random` load this script.
            output = run(
                script, ranks=ranks, timeout=timeout, show=False, force=force, PYTHONSAFEPATH="1"
            )
        except LaunchError as error:
            # On a busy machine, ranks that have written their result may take long to end.
            if not isinstance(error, TimeUp) or not all(answer.exists() for answer in answers):
                raise _explained(error, script, ranks, timeout) from None
            output = ""
        print(output, end="")
        if left := [rank for rank, answer in enumerate(answers) if not answer.exists()]:
            raise LaunchError(f"{name} ended rank {left[0]} instead of returning (sys.exit?).")
        return [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]


def _source(function: Callable) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        source = ""
    if not source or function.__name__ == "<lambda>":
        raise LaunchError(
            f"{function!r} has no source code that could be sent to the ranks: write it with `def` in a "
            "cell or a file."
        )
    return source


def _as_list(value: object) -> object:
    """Convert NumPy arrays and numbers, which JSON does not support."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"a {type(value).__name__} cannot be sent between the notebook and the ranks. Use numbers, "
        "texts, lists, dicts or arrays"
    )


def _watch(comm: "MPI.Comm", until: float) -> None:
    """Make this rank write the error that ends it, and its stack shortly before the time limit, to files."""
    script = Path(sys.argv[0])

    def report(kind: type, error: BaseException, trace: TracebackType | None) -> None:
        lines = [frame.line for frame in traceback.extract_tb(trace) if _is(frame, script)]
        found = {
            "kind": kind.__name__,
            "text": str(error),
            "line": lines[-1] if lines and "_calls." not in lines[-1] else "",
            "unknown": error.name if kind is NameError else None,
            "notes": getattr(error, "__notes__", []),
        }
        part = script.with_name(f"{comm.rank}.part")
        part.write_text(json.dumps(found), encoding="utf-8")
        part.rename(script.with_name(f"{comm.rank}.error"))
        comm.Abort(1)  # otherwise the other ranks wait for this one

    sys.excepthook = report
    stacks = script.with_name(f"{comm.rank}.stack").open("w", encoding="utf-8")
    faulthandler.dump_traceback_later(max(0.1, until - time.time()), file=stacks)


def _is(frame: traceback.FrameSummary, script: Path) -> bool:
    return Path(frame.filename).name == script.name


def _answer(comm: "MPI.Comm", function: Callable) -> None:
    """Call the function on this rank and write its result to a file."""
    script = Path(sys.argv[0])
    result = function(
        comm, *json.loads(script.with_name("arguments.json").read_text(encoding="utf-8"))
    )
    part = script.with_name(f"{comm.rank}.answer")
    part.write_text(json.dumps(result, default=_as_list), encoding="utf-8")
    part.rename(script.with_name(f"{comm.rank}.json"))
    _leave_group()
    faulthandler.cancel_dump_traceback_later()


def _leave_group() -> None:
    """Destroy the torch.distributed process group that the function may have joined, on all ranks together.

    If a thread of Gloo still holds a tensor when Python ends, the thread aborts the rank.
    """
    dist = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        gc.collect()  # because modules wrapped by DDP and FSDP keep the group alive
        with contextlib.suppress(RuntimeError):  # the connection may be broken already
            dist.barrier()
        dist.destroy_process_group()


def _explained(error: LaunchError, script: Path, ranks: int, timeout: float) -> Exception:
    """Return an error about the function in place of the error of `run`, from what the ranks wrote."""
    name = script.stem
    for rank in range(ranks):
        path = script.with_name(f"{rank}.error")
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] == "NotImplementedError":
            return NotImplementedError(found["text"])
        if found["unknown"]:
            return LaunchError(
                f"{name} on rank {rank}: the name {found['unknown']!r} is not defined. A function that "
                "runs on the ranks can only use np, MPI, and what it imports or defines inside itself: a "
                "decorator or an annotation is outside. launch.call passes other functions with uses=."
            )
        says = "; ".join([f"{found['kind']}: {found['text']}", *found["notes"]])
        where = f", in `{found['line']}`" if found["line"] else ""
        return LaunchError(f"{name} failed on rank {rank} of {ranks}{where}: {says}")
    if isinstance(error, TimeUp):
        places = tuple(_place(script, rank) for rank in range(ranks))
        where = "; ".join(f"rank {place.rank} {place.state}" for place in places)
        return TimeUp(f"{name} on {ranks} ranks did not end within {timeout:g} s: {where}.", places)
    return error


def _place(script: Path, rank: int) -> Place:
    """Return where a rank was shortly before the time limit, read from the stack that it wrote."""
    if script.with_name(f"{rank}.json").exists():
        return Place(rank, "is done")
    try:
        stack = script.with_name(f"{rank}.stack").read_text(encoding="utf-8")
    except OSError:
        return Place(rank, "did not start")
    at = re.search(rf'{re.escape(script.name)}", line (\d+)', stack)
    if not at:
        return Place(rank, "runs")
    lines, number = script.read_text(encoding="utf-8").splitlines(), int(at[1]) - 1
    line = lines[number].strip()
    if line.startswith(("import ", "from ")):  # it has not called the function's own code yet
        return Place(rank, f"did not start: it is still in `{line}`")
    first = next((n for n in range(number, -1, -1) if lines[n].startswith("def ")), number)
    end = next((n for n in range(number + 1, len(lines)) if re.match(r"\S", lines[n])), len(lines))
    code = "\n".join(lines[first:end]).rstrip().splitlines()
    return Place(rank, f"is in `{line}`", tuple(code), number - first)
