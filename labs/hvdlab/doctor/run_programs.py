"""Run other programs at the same time, with one time limit, and leave none of their processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdlab.doctor.answers import ProgramOutput

PROBE = Path(__file__).with_name("import_probe.py")
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL, and again until SIGKILL is given up


def ask(
    commands: dict[str, list[str]],
    limit: float,
    removed: Collection[str] = (),
    **variables: str,
) -> dict[str, ProgramOutput]:
    """Run commands at the same time and return the output of each, by name.

    No process that they start is left after the call, also after an error or an interrupt.

    Args:
        commands: name -> the words of a command.
        limit: time limit in seconds for all of them together.

    Returns:
        name -> output of the command.
    """
    running, outputs = {}, {}
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    environment = {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", **variables}
    until = time.monotonic() + limit
    try:
        with _undisturbed():
            for name, command in commands.items():
                # Files in memory, because there may be no folder that can be written to.
                out, err = os.memfd_create("out"), os.memfd_create("err")
                try:
                    process = subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                    )
                    running[name] = process, out, err
                except OSError as error:
                    why = f"{command[0]}: {(error.strerror or '').lower()}"
                    outputs[name] = ProgramOutput(None, "", "", why)
        for name, (process, out, err) in running.items():
            why = ""
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                why = f"did not end within {limit:g} s"
                end([process])
            code = None if why else process.returncode
            outputs[name] = ProgramOutput(code, _read(out), _read(err), why, late=bool(why))
    finally:
        with _undisturbed():  # by a second interrupt
            end([process for process, _, _ in running.values()])
        for _, out, err in running.values():
            os.close(out)
            os.close(err)
    return outputs


def probe(name: str, isolated: bool = False) -> list:
    """Return the command of a probe, a child process that imports what the doctor itself must not import.

    Args:
        isolated: import from this environment alone: not from the current folder, nor from what PYTHON*
            variables name, nor from the packages in the user's home. Default False.
    """
    return [sys.executable, *["-I"] * isolated, str(PROBE), name]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals until the end of the block, so that a process that is being started will be ended."""
    received, before = [], {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received:
        os.kill(os.getpid(), number)


def end(processes: list) -> None:
    """End processes and all other processes of their sessions: with SIGTERM, then with SIGKILL."""
    # launch/process_tree.py does the same with psutil. The doctor cannot use it, because the doctor must also
    # start in an environment that has no packages.
    for process in processes:
        if process.poll() is None:
            process.terminate()  # mpirun forwards it to its ranks
    until = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.01)
    until = (
        time.monotonic() + GRACE_SECONDS
    )  # a process that waits for a failed disk cannot be ended
    # Repeat until no process is left, because a process may start in the meantime.
    while time.monotonic() < until and (members := _alive({p.pid for p in processes})):
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in processes:
            process.poll()
        time.sleep(0.01)


def _alive(sessions: set) -> list:
    """Return the processes of some sessions, without those that have ended (zombies)."""
    found = []
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            if int(fields[3]) in sessions and fields[0] not in "ZX":
                found.append(int(number))
        except OSError:  # it has ended
            pass
    return found


def _read(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as stream:
        return stream.read().decode(errors="replace")
