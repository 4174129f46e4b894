"""Notices that a host of a run is gone. The run itself would wait for it for a long time.

A rank that waits for another on a host whose cable was pulled waits as long as TCP does, a quarter of an
hour: no packet says that nobody is there. So one ssh session to each host asks it every few seconds, and
ends when it has been silent for too long.

    with watched(["host2"]) as lost:
        while process.poll() is None:
            if sentence := lost():
                ...                        # end the process, say the sentence
            time.sleep(0.5)
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdlab.hosts import ssh_agent

ASKS = 3  # questions without an answer after which a host is lost
SSH_FAILED = 255  # ssh's exit code when the connection failed, not the command


@contextmanager
def watched(hosts: list[str], silence: float = 20.0) -> Iterator[Callable[[], str]]:
    """Watch hosts over ssh. Gives a function that says which of them is lost, and "" if none is.

    Only a host that has answered once can be lost: one that ssh cannot log in to without a password
    is not watched, and none is when mpirun starts its daemons with something else than ssh
    ($PRTE_MCA_plm_ssh_agent). The function returns at once. Nothing is left after the block.

    Args:
        hosts: names as in `mpirun -H`, without the one where this runs.
        silence: seconds without an answer, at least 4, after which a host is lost.
    """
    every = round(silence / (ASKS + 1))
    if every < 1:
        raise ValueError(f"silence must be at least 4 seconds. Received: silence={silence!r}")
    agent = ssh_agent()
    if Path(agent[0]).name != "ssh" or not shutil.which(agent[0]):
        hosts = []
    for option in (
        "BatchMode=yes",
        f"ServerAliveInterval={every}",
        f"ServerAliveCountMax={ASKS}",
        "ControlPath=none",  # a connection of its own, with these options
        "LogLevel=INFO",  # says why it ended
    ):
        agent += ["-o", option]
    with contextlib.ExitStack() as stack:
        sessions = {host: stack.enter_context(_session([*agent, host])) for host in hosts}

        def lost() -> str:
            gone = {host: why for host, ask in sessions.items() if (why := ask())}
            if not gone:
                return ""
            said = " and ".join(f"{host} cannot be reached ({why})" for host, why in gone.items())
            return (
                f"{said}: its ranks are lost, and all others were ended. Start again on the hosts that "
                "are left: a script that keeps checkpoints goes on from the last one"
            )

        yield lost


@contextmanager
def _session(ssh):
    """A session that lasts as long as the block: gives a function that says why it was lost."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*ssh, "echo here; exec cat"],
            stdin=subprocess.PIPE,  # closes with this process, however it ends, and ends `cat`
            stdout=answer,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is not for it
        )

        def why() -> str:
            if process.poll() != SSH_FAILED or not os.fstat(answer.fileno()).st_size:
                return ""
            errors.seek(0)
            lines = errors.read().decode(errors="replace").split("\n")
            return next((line.strip(" .\r") for line in lines[::-1] if line.strip()), "no answer")

        try:
            yield why
        finally:
            process.kill()
            process.communicate()
