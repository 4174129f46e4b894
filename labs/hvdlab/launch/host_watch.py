"""Detect that a host of a run can no longer be reached, which the run itself would notice only very late.

If the network cable of a host is pulled, no packet tells the other hosts. A rank that waits for a rank on
that host waits until TCP gives up, which takes a quarter of an hour. So this module keeps one ssh session
open to each host. The session sends a question every few seconds and ends when the host has not answered
for too long.

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

from hvdlab.launch.hosts import ssh_agent

ASKS = 3  # unanswered questions after which a host counts as lost
SSH_FAILED = 255  # ssh's exit code when the connection failed, in contrast to the remote command


@contextmanager
def watched(hosts: list[str], silence: float = 20.0) -> Iterator[Callable[[], str]]:
    """Watch hosts over ssh while the block runs.

    Only a host that has answered once can count as lost. So a host that ssh cannot log in to without a
    password is not watched. No host is watched if mpirun starts its daemons with another program than ssh
    ($PRTE_MCA_plm_ssh_agent). All ssh sessions end with the block.

    Args:
        hosts: names as in `mpirun -H`, without the host where this runs.
        silence: seconds without an answer after which a host is lost, at least 4. Default 20.

    Yields:
        A function that returns a sentence about the lost hosts, or "" if no host is lost. It returns at once.

    Raises:
        ValueError: `silence` is too short.
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
        "LogLevel=INFO",  # so that ssh prints why the connection ended
    ):
        agent += ["-o", option]
    with contextlib.ExitStack() as stack:
        sessions = {host: stack.enter_context(_session([*agent, host])) for host in hosts}

        def lost() -> str:
            gone = {host: why for host, ask in sessions.items() if (why := ask())}
            if not gone:
                return ""
            problem = " and ".join(
                f"{host} cannot be reached ({why})" for host, why in gone.items()
            )
            return (
                f"{problem}: its ranks are lost, and all others were ended. Start again on the hosts that "
                "are left: a script that writes checkpoints continues from the last one"
            )

        yield lost


@contextmanager
def _session(ssh: list[str]) -> Iterator[Callable[[], str]]:
    """Keep an ssh session open during the block; yield a function that returns why it was lost, or ""."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*ssh, "echo here; exec cat"],
            stdin=subprocess.PIPE,  # closes when this process ends in any way, which ends `cat`
            stdout=answer,
            stderr=errors,
            start_new_session=True,  # so that Ctrl-C does not end it
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
