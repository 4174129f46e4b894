"""Read a submitted script without following links, and compile it to check that it is valid Python."""

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import warnings
from pathlib import Path

from hvdgrade import HvdgradeError

SCRIPT = "assessment.py"
MAX_SCRIPT_BYTES = 64_000
COMPILE_SECONDS, COMPILE_BYTES = 10, 1 << 30
# The compile step is a separate process with limits, because nested `finally` clauses can make Python
# generate an unlimited amount of code.
COMPILE = f"""
import json, resource, sys, warnings
resource.setrlimit(resource.RLIMIT_CPU, ({COMPILE_SECONDS}, {COMPILE_SECONDS + 5}))
resource.setrlimit(resource.RLIMIT_AS, ({COMPILE_BYTES}, {COMPILE_BYTES}))
warnings.simplefilter("ignore")
try:
    compile(sys.stdin.buffer.read(), "{SCRIPT}", "exec", dont_inherit=True)
    print(json.dumps(None))
except (SyntaxError, ValueError, RecursionError) as error:
    print(json.dumps([getattr(error, "lineno", None), str(getattr(error, "msg", error))]))
"""


class NotGradable(HvdgradeError):
    """The submission cannot be started, and no attempt is lost. The message says why in one sentence."""


def read_script(path: Path) -> bytes:
    """Return the bytes of a submission. Links are not followed.

    Args:
        path: the script, or the folder that holds `assessment.py`.

    Raises:
        NotGradable: there is no such file, or it is not a valid script.
        OSError: this machine is too busy, or has too little memory, to check that.
    """
    if path.is_dir():
        path = path / SCRIPT
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotGradable(f"{path} does not exist: hand in one file named {SCRIPT}.") from None
    except OSError as error:
        raise NotGradable(
            f"{path} cannot be read ({error.strerror}): hand in a plain file."
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotGradable(f"{path} is not a plain file: hand in one file named {SCRIPT}.")
        with open(file, "rb", closefd=False) as opened:
            source = opened.read(MAX_SCRIPT_BYTES + 1)
    finally:
        os.close(file)
    if len(source) > MAX_SCRIPT_BYTES:
        raise NotGradable(
            f"{path.name} is larger than {MAX_SCRIPT_BYTES} bytes: hand in a script without data."
        )
    if mistake := mistake_in(source):
        line, message = mistake
        where = f", line {line}" if line else ""
        raise NotGradable(
            f"{path.name} is not valid Python{where}: {message}. Run 'python {path.name}' and fix the error."
        )
    return source


def mistake_in(source: bytes) -> tuple[int | None, str] | None:
    """Return the line and Python's message for a script that cannot be compiled within the limits.

    Args:
        source: the bytes of the script.

    Returns:
        The line (None if it is unknown) and the message; None if the script can be compiled.

    Raises:
        OSError: this machine is too busy, or has too little memory, to compile it.
    """
    deepest = sys.getrecursionlimit()
    try:
        # The script is parsed again later, from deeper calls. With half of the recursion limit here, a script
        # that is nested too deeply for that is refused now.
        sys.setrecursionlimit(deepest // 2)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # warnings quote the source, including control characters
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return getattr(error, "lineno", None), str(getattr(error, "msg", error))
    finally:
        sys.setrecursionlimit(deepest)
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", COMPILE],
            input=source,
            capture_output=True,
            timeout=6 * COMPILE_SECONDS,  # on a busy machine, processor time passes more slowly
        )
    except subprocess.TimeoutExpired:
        raise OSError("this machine is too busy to compile the script") from None
    if (
        answer.returncode == -signal.SIGKILL
    ):  # the kernel's response to a lack of memory, not to the limits
        raise OSError("this machine has no memory left to compile the script")
    if answer.returncode:
        gigabytes = COMPILE_BYTES >> 30
        return None, f"to compile it takes more than {COMPILE_SECONDS} s or {gigabytes} GB"
    mistake = json.loads(answer.stdout)
    return tuple(mistake) if mistake else None


def imported_modules(source: bytes) -> frozenset[str]:
    """Return every module that a script imports by name.

    The names serve only as a hint, for example in explanations, and never as evidence.

    Args:
        source: the bytes of a valid script.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)
