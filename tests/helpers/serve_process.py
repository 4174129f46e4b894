"""Run `hvdgrade serve` as a process of its own.

with started(folder, "--no-worker") as process:
    site = address(process)
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def started(
    folder: Path,
    *arguments: str,
    listen: str = "127.0.0.1:0",
    before: str = "",
    host: Any = None,
    **environment: str,
) -> Iterator[subprocess.Popen]:
    """Yield the process, whose errors go into the file `errors` of the folder in which it runs.

    Args:
        before: Python statements that the process runs first.
        host: host of two_hosts.py on which it runs, in the folder of this process; None for this machine.
    """
    main = f"{before}\nfrom hvdgrade.cli import main\nraise SystemExit(main())"
    command = [sys.executable, "-P", "-c", main, "serve", "--listen", listen, *arguments]
    with open(folder / "errors", "wb") as errors:
        process = subprocess.Popen(
            host.enter(*command) if host else command,
            cwd=folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


def lines(process: subprocess.Popen, count: int) -> list[str]:
    """Return the next lines that it prints."""
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def address(process: subprocess.Popen) -> str:
    """Return where it serves, from its first line."""
    (found,) = re.findall(r"http://\S+(?=\. Stop)", lines(process, 1)[0])
    return found
