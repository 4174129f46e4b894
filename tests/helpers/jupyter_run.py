"""Run Jupyter on a free port, with all its files in one folder.

with running("lab", state, served, HVDLAB_DATA=data) as jupyter:
    urllib.request.urlopen(f"{jupyter.address}/api/status?token={jupyter.token}")
"""

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class Jupyter:
    address: str
    token: str
    served: Path  # the folder that Jupyter serves, and its working directory
    process: psutil.Popen


@contextmanager
def running(command: str, state: Path, served: Path, **environment) -> Iterator[Jupyter]:
    """Run `jupyter COMMAND` on the folder `served`; at the end, end all processes that it started."""
    port = free_port()
    token = secrets.token_hex(16)
    places = {f"JUPYTER_{name}_DIR": state / name for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {f"JUPYTERLAB_{name}_DIR": state / name for name in ("SETTINGS", "WORKSPACES")}
    variables = {**os.environ, **places, "IPYTHONDIR": state / "ipython", **environment}
    with (state / "log").open("w") as log:
        process = psutil.Popen(
            [
                Path(sys.executable).parent / "jupyter", command, "--no-browser", "--allow-root",
                f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
                f"--ServerApp.root_dir={served}",
            ],
            cwd=served,
            env={name: str(value) for name, value in variables.items()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for_answer(address, token, process, state / "log")
        yield Jupyter(address, token, served, process)
    finally:
        end(process)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def end(process: psutil.Popen):
    """Interrupt a server, and assert that its processes end with it. Kill any that are left."""
    started = process.children(recursive=True) if process.is_running() else []
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
    left = psutil.wait_procs([process, *started], timeout=40)[1]
    for survivor in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    assert left == []


def wait_for_token(process: psutil.Popen, log: Path, seconds=180) -> str:
    """Return the token from the address that a server prints. The server listens only some time later."""
    deadline = time.monotonic() + seconds
    while not (found := re.search(r"http://\S+[?&]token=(\w+)", log.read_text(encoding="utf-8"))):
        assert process.poll() is None and time.monotonic() < deadline, (
            f"no address with a token within {seconds} s:\n{log.read_text(encoding='utf-8')[-3000:]}"
        )
        time.sleep(0.2)
    return found.group(1)


def wait_for_answer(address: str, token: str, process: psutil.Popen, log: Path, seconds=180):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=5).close()
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, (
                f"Jupyter did not start within {seconds} s:\n{log.read_text(encoding='utf-8')[-3000:]}"
            )
            time.sleep(0.2)
