"""The secret with which a worker shows the server who it is. No submission may see it."""

import ctypes
import os
from pathlib import Path

from hvdgrade import HvdgradeError

VARIABLE = "HVDGRADE_TOKEN"
PR_SET_DUMPABLE = 4


class NoToken(HvdgradeError):
    """There is no usable token. The message says in one sentence what to do."""


def take(file: Path | None) -> str:
    """Return the token from a file or from $HVDGRADE_TOKEN, and keep it from all processes started later.

    Raises:
        NoToken: there is none, or every user can read its file.
    """
    value = os.environ.pop(VARIABLE, "")
    # /proc/PID/environ shows the variable as long as this process lives. From now on only root can read it,
    # or a submission that runs as this user could, where nothing else keeps it away from other processes.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    place = f"${VARIABLE}"
    if file:
        place = str(file)
        try:
            if file.stat().st_mode & 0o007:
                raise NoToken(f"every user can read the token in {file}: run `chmod 600 {file}`.")
            value = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise NoToken(
                f"--token-file {file} cannot be read: {reason}; name the file that holds the token."
            ) from None
    value = value.strip()
    if not value:
        raise NoToken(
            f"there is no token in {place}: make one on the server with `hvdgrade token new --worker POOL`, "
            f"and pass it in a file with --token-file, or in ${VARIABLE}."
        )
    if not value.isascii() or not value.isprintable() or " " in value:
        raise NoToken(f"{place} holds more than a token: it must be one word.")
    return value
