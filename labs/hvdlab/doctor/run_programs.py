"""Ask other programs, all at once: each in a session of its own, with one time limit, and then gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

from hvdlab.doctor.answers import Said

PATIENCE = 5.0  # seconds


def ask(commands, limit: float, **variables: str) -> dict:
    """Run commands at the same time and return what each said, by name.

    Nothing that they start outlives the call, whatever ends it.

    Args:
        commands: name -> list of words.
        limit: seconds for all of them together.
        variables: of the environment, beside the user's.
    """
    running, said = {}, {}
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", **variables}
    until = time.monotonic() + limit
    try:
        with _undisturbed():
            for name, command in commands.items():
                # Files without a file system: there may be no folder that can be written to.
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
                    said[name] = Said(None, "", "", why)
        for name, (process, out, err) in running.items():
            why = ""
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                why = f"did not end within {limit:g} s"
                end([process])
            code = None if why else process.returncode
            said[name] = Said(code, _read(out), _read(err), why, late=bool(why))
    finally:
        with _undisturbed():  # by a second interrupt
            end([process for process, _, _ in running.values()])
        for _, out, err in running.values():
            os.close(out)
            os.close(err)
    return said


def probe(name: str) -> list:
    """The command of a probe: a child that imports what the doctor itself must not import."""
    return [sys.executable, "-m", "hvdlab.doctor.import_probe", name]


@contextmanager
def _undisturbed():
    """Put an interrupt off: a process that is being started must be known, to be ended."""
    came, before = [], {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        os.kill(os.getpid(), number)


def end(processes: list) -> None:
    """End processes and all of their sessions: politely, and after PATIENCE for certain."""
    for process in processes:
        if process.poll() is None:
            process.terminate()  # mpirun passes it on to its ranks
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.01)
    until = time.monotonic() + PATIENCE  # one that waits for a dead disk cannot be ended
    # Again until the last has died: one may be born meanwhile.
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
    """The processes of some sessions; those that have ended and wait for a parent do not count."""
    found = []
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            if int(fields[3]) in sessions and fields[0] not in "ZX":
                found.append(int(number))
        except OSError:  # ended by itself
            pass
    return found


def _read(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as stream:
        return stream.read().decode(errors="replace")
