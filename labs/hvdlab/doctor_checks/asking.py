"""Ask other programs, all at once: each in a session of its own, with one time limit, and then gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from hvdlab.doctor_checks import Said


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
            except OSError as error:
                said[name] = Said(None, "", "", f"{command[0]}: {(error.strerror or '').lower()}")
                continue
            running[name] = process, out, err
        for name, (process, out, err) in running.items():
            why = ""
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                why = f"did not end within {limit:g} s"
                end(process)
            code = None if why else process.returncode
            said[name] = Said(code, _read(out), _read(err), why, late=bool(why))
    finally:
        for process, out, err in running.values():
            end(process)
            os.close(out)
            os.close(err)
    return said


def probe(name: str) -> list:
    """The command of a probe: a child that imports what the doctor itself must not import."""
    return [sys.executable, "-m", "hvdlab.doctor_checks.probe", name]


def end(process: subprocess.Popen) -> None:
    """End a process and all of its session: politely, and after five seconds for certain."""
    try:
        if process.poll() is None:
            process.terminate()  # mpirun passes it on to its ranks
            process.wait(5)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after an interrupt
        for number in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if os.getsid(int(number)) == process.pid:
                    os.kill(int(number), signal.SIGKILL)
            except OSError:  # ended by itself
                pass
        process.wait()


def _read(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as stream:
        return stream.read().decode(errors="replace")
