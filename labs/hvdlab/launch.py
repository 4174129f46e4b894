"""How N ranks are started on this machine: the command, the environment it needs, and their end.

`mpirun -np N python script.py` typed by hand works too; what the environment below adds is speed on
a CPU (and permission, for root and for more ranks than cores).

    run("train.py", "--epochs", 3, ranks=2)      # a script: prints what the ranks print
    sums = call(add_up, [1, 2, 3], ranks=4)      # a function: what it returns on each rank
"""

import faulthandler
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from hvdlab.hardware import usable_cores


class LaunchError(Exception):
    """Ranks that failed or did not end: one sentence, then what they printed last."""

    def _render_traceback_(self):  # what IPython shows instead of a traceback
        return [str(self)]


class TimeUp(LaunchError):
    """Ranks that did not end in time."""


def command(ranks: int, script: str | Path, *arguments: str) -> list[str]:
    """`mpirun -np RANKS python SCRIPT ARGUMENTS` as a list."""
    return ["mpirun", "-np", str(ranks), "python", str(script), *arguments]


def environment(ranks: int) -> dict[str, str]:
    """The variables under which `ranks` local processes share this machine well.

    Each is the environment's spelling of an mpirun option, so the command line stays the plain one.
    """
    threads = max(1, usable_cores() // ranks)
    variables = {
        # The mpirun and the python of this environment, whether it is activated or not.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # A rank that uses its neighbour's core makes both slower.
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        # A rank that waits must not spin: it would steal its neighbour's core.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # --bind-to none: Horovod's own thread may run wherever a core is free.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if ranks > usable_cores():
        variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    if os.geteuid() == 0:
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return variables


def run(
    script: str | Path,
    *arguments,
    ranks: int = 2,
    timeout: float = 600,
    show: bool = True,
    **variables: str,
) -> str:
    """Run `mpirun -np RANKS python SCRIPT ARGUMENTS`, and return what its ranks print.

    Nothing that it starts outlives the call: an interrupt (the stop button of a notebook), an error
    and the time limit all end every rank.

    Args:
        arguments: of the script, turned into text.
        timeout: seconds.
        show: print each line as it comes.
        variables: of the environment, beside those of `environment(ranks)`.

    Raises:
        LaunchError: the script is not there, a rank failed, or the time was up.
    """
    if not Path(script).is_file():
        raise LaunchError(f"{script} is not a file: name the script that the ranks shall run.")
    process = subprocess.Popen(
        command(ranks, script, *map(str, arguments)),
        # Lines shall arrive when they are printed, not when the script ends.
        env={**os.environ, **environment(ranks), "PYTHONUNBUFFERED": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # by which `_end` finds everything that this starts
    )
    late = threading.Event()
    alarm = threading.Timer(timeout, lambda: (late.set(), _end(process)))
    output = []
    try:
        alarm.start()
        for line in process.stdout:
            output.append(line)
            if show:
                print(line, end="", flush=True)
        process.wait()
    finally:
        alarm.cancel()
        _end(process)
        process.stdout.close()
    if late.is_set() or process.returncode:
        what = f"did not end within {timeout:g} s" if late.is_set() else "failed"
        end = ", see above." if show else f":\n{''.join(output[-60:])}"
        kind = TimeUp if late.is_set() else LaunchError
        raise kind(f"{Path(script).name} on {ranks} ranks {what}{end}")
    return "".join(output)


def _end(process: subprocess.Popen) -> None:
    """End a launcher and all processes of its session: politely, and after five seconds for certain.

    The session holds the ranks and what they started, with or without a living launcher above them.
    """
    try:
        process.terminate()  # mpirun passes it on to its ranks
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after a second interrupt
        for number in psutil.pids():
            try:
                if os.getsid(number) == process.pid:
                    os.kill(number, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        process.wait()


# --- a function on every rank ----------------------------------------------------------------------

SCRIPT = """\
import numpy as np
from mpi4py import MPI

from hvdlab import launch as _launch

_launch._watch(MPI.COMM_WORLD, {until})

{sources}

_launch._answer(MPI.COMM_WORLD, {name})
"""


def call(
    function: Callable,
    *arguments,
    ranks: int = 2,
    timeout: float = 60,
    uses: tuple[Callable, ...] = (),
) -> list:
    """Run `function(comm, *arguments)` on every rank, and return what each returns, by rank.

    The ranks get the source of the function, so it can only use what is inside it, `np` (NumPy),
    `MPI` (mpi4py's), and the functions of `uses`. `comm` is `MPI.COMM_WORLD`. Arguments and results
    travel as JSON: an array arrives as a list. What the ranks print is printed at the end.

    Raises:
        LaunchError: a rank failed (the message has its error and the line), or the time was up
            (`TimeUp`: the message has the line in which each rank was).
        NotImplementedError: a rank raised it.
    """
    name = function.__name__
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"{name}.py")
        sources = "\n\n".join(_source(part) for part in (*uses, function))
        script.write_text(
            SCRIPT.format(until=time.time() + 0.8 * timeout, sources=sources, name=name)
        )
        Path(folder, "arguments.json").write_text(json.dumps(arguments, default=_as_list))
        try:
            output = run(script, ranks=ranks, timeout=timeout, show=False)
        except LaunchError as error:
            raise _explained(error, script, ranks, timeout) from None
        print(output, end="")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


def _source(function):
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        source = ""
    if not source or function.__name__ == "<lambda>":
        raise LaunchError(
            f"{function!r} has no source that could go to the ranks: write it with `def` in a cell "
            "or a file."
        )
    return source


def _as_list(value):
    """What JSON does not know: arrays and numbers of NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"a {type(value).__name__} cannot travel between the notebook and the ranks: numbers, "
        "texts, lists, dicts and arrays can"
    )


def _watch(comm, until):
    """On a rank: write down the error that ends it, or, when the time is nearly up, where it is."""
    script = Path(sys.argv[0])

    def report(kind, error, trace):
        lines = [frame.line for frame in traceback.extract_tb(trace) if _is(frame, script)]
        found = {
            "kind": kind.__name__,
            "text": str(error),
            "line": lines[-1] if lines and "_launch." not in lines[-1] else "",
            "unknown": error.name if kind is NameError else None,
            "notes": getattr(error, "__notes__", []),
        }
        part = script.with_name(f"{comm.rank}.part")
        part.write_text(json.dumps(found))
        part.rename(script.with_name(f"{comm.rank}.error"))
        comm.Abort(1)  # else the others wait for this one

    sys.excepthook = report
    stacks = script.with_name(f"{comm.rank}.stack").open("w")
    faulthandler.dump_traceback_later(max(0.1, until - time.time()), file=stacks)


def _is(frame, script):
    return Path(frame.filename).name == script.name


def _answer(comm, function):
    """On a rank: call the function, and write down what it returns."""
    script = Path(sys.argv[0])
    result = function(comm, *json.loads(script.with_name("arguments.json").read_text()))
    script.with_name(f"{comm.rank}.json").write_text(json.dumps(result, default=_as_list))
    faulthandler.cancel_dump_traceback_later()


def _explained(error, script, ranks, timeout):
    """The error of `run` in terms of the function: what the ranks themselves wrote down about it."""
    name = script.stem
    for rank in range(ranks):
        path = script.with_name(f"{rank}.error")
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        if found["kind"] == "NotImplementedError":
            return NotImplementedError(found["text"])
        if found["unknown"]:
            return LaunchError(
                f"{name} on rank {rank}: there is no {found['unknown']!r} there. A function that "
                "runs on the ranks can only use what is inside it, np and MPI."
            )
        says = "; ".join([f"{found['kind']}: {found['text']}", *found["notes"]])
        where = f", in `{found['line']}`" if found["line"] else ""
        return LaunchError(f"{name} failed on rank {rank} of {ranks}{where}: {says}")
    if isinstance(error, TimeUp):
        where = "; ".join(f"rank {rank} {_state(script, rank)}" for rank in range(ranks))
        return TimeUp(f"{name} on {ranks} ranks did not end within {timeout:g} s: {where}.")
    return error


def _state(script, rank):
    """What a rank was doing when the time was nearly up, from the stack that it wrote."""
    if script.with_name(f"{rank}.json").exists():
        return "is done"
    try:
        stack = script.with_name(f"{rank}.stack").read_text()
    except OSError:
        return "did not start"
    at = re.search(rf'{re.escape(script.name)}", line (\d+)', stack)
    return f"is in `{script.read_text().splitlines()[int(at[1]) - 1].strip()}`" if at else "runs"
