"""Find a port on which the ranks of a run can meet."""

import contextlib
import random
import socket


def free_port() -> int:
    """Return a port from 20,000 to 29,999 that no process uses.

    The system assigns higher ports to connections (Linux: from 32,768 on), so another process could take
    one of those before rank 0 listens on it.

    Raises:
        RuntimeError: a hundred ports were tried, and none is free.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            return port
    raise RuntimeError(
        "all of a hundred ports from 20,000 to 29,999 are in use: set MASTER_PORT to a free port."
    )
