"""Let a script that trains run in a process that a fork server of `../with_fork_servers.py` makes.

Python imports this module at its start, because the folder is in PYTHONPATH. If the script imports a
framework, the server forks a process that has already imported it, and that process runs the script with
the arguments, the environment, the folder and the open files of this one. This process only passes on
signals, and ends as the other one has ended. All other programs start as usual.
"""

import os
import re
import sys
from pathlib import Path

FOLDER = "FORK_SERVERS"  # the variable with the folder of the servers' sockets
IMPORTS = re.compile(r"^\s*(?:import|from)\s+(.+)", re.MULTILINE)
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGABRT", "SIGUSR1", "SIGUSR2")


def server(words: list[str]) -> str | None:
    """Return the name of the server for a command, or None if the command shall start as usual.

    A script may be the argument of another one, as in `python measure.py train.py`.

    Args:
        words: of the command, as in `sys.orig_argv`.
    """
    scripts = [Path(word) for word in words[1:] if word.endswith(".py")]
    started = [word for word in words[1:] if word != "-u"]
    if not scripts or started[0] != str(scripts[0]) or scripts[0].name == "watched_rank.py":
        return None  # `python -c`, `-m`; or `hvdlab check`, which watches the imports
    text = "\n".join(path.read_text(encoding="utf-8") for path in scripts if path.is_file())
    modules = {word for line in IMPORTS.findall(text) for word in re.findall(r"[\w.]+", line)}

    def imports(*names: str) -> bool:
        return any(f"{module}.".startswith(f"{name}.") for module in modules for name in names)

    if imports("lightning", "litgpt"):
        return "language_model"
    if imports("keras", "tensorflow", "horovod.tensorflow", "hvdlab.keras"):
        if "TF_USE_LEGACY_KERAS" in os.environ:  # Keras reads it when it is imported
            return None
        return {"tensorflow": "tensorflow", "torch": "keras_on_torch"}.get(
            os.environ.get("KERAS_BACKEND", "tensorflow")
        )
    return "torch" if imports("torch", "horovod.torch", "hvdlab.torch") else None


def run_there(path: str) -> None:
    """Let the server with this socket run the command of this process, and end as its process ends."""
    import json
    import signal
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        request = {
            "prefix": sys.prefix,
            "words": [word for word in sys.orig_argv[1:] if word != "-u"],
            "unbuffered": "-u" in sys.orig_argv[1:2] or bool(os.environ.get("PYTHONUNBUFFERED")),
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "cores": list(os.sched_getaffinity(0)),
        }
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        answer = connection.recv(100)
        if not answer:  # the server serves another environment
            return
        process = int(answer)
        for name in SIGNALS:
            signal.signal(getattr(signal, name), lambda number, _: os.kill(process, number))
        code = int(connection.recv(100) or -signal.SIGKILL)  # nothing: the server was ended
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if FOLDER in os.environ and (name := server(sys.orig_argv)):
    run_there(os.path.join(os.environ[FOLDER], name))
