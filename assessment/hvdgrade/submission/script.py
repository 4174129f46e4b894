"""The script that is handed in: read without following links, and compiled to see that it is Python."""

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import warnings
from pathlib import Path

SCRIPT = "assessment.py"
MAX_SCRIPT_BYTES = 64_000
COMPILE_SECONDS, COMPILE_BYTES = 10, 1 << 30
# Compiled in a process of its own, which can be ended: of nested `finally` Python makes any amount of code.
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


class NotGradable(Exception):
    """The submission cannot even be started: one sentence says why. No attempt is lost."""


def read_script(path: Path) -> bytes:
    """The bytes of a submission: `path`, or `assessment.py` in the folder `path`. No links.

    Raises:
        NotGradable: there is no such file, or it is no script.
        OSError: this machine is too busy, or has too little memory, to find that out.
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
            f"{path.name} is larger than {MAX_SCRIPT_BYTES} bytes: a script is expected, no data."
        )
    if mistake := mistake_in(source):
        line, said = mistake
        where = f", line {line}" if line else ""
        raise NotGradable(
            f"{path.name} is not valid Python{where}: {said}. Run 'python {path.name}' and mend what it says."
        )
    return source


def mistake_in(source: bytes) -> tuple[int | None, str] | None:
    """(line, what Python says) of a script that Python cannot compile, or not within our limits."""
    deepest = sys.getrecursionlimit()
    try:
        # What is read again later, further down in calls, must not be nested too deeply for that.
        sys.setrecursionlimit(deepest // 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they quote the source, control characters and all
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
            timeout=6 * COMPILE_SECONDS,  # on a busy machine
        )
    except subprocess.TimeoutExpired:
        raise OSError("this machine is too busy to compile the script") from None
    if answer.returncode == -signal.SIGKILL:  # not by its limits
        raise OSError("this machine has no memory left to compile the script")
    if answer.returncode:
        gigabytes = COMPILE_BYTES >> 30
        return None, f"to compile it takes more than {COMPILE_SECONDS} s or {gigabytes} GB"
    found = json.loads(answer.stdout)
    return tuple(found) if found else None


def imported_modules(source: bytes) -> frozenset[str]:
    """Return every module that a script imports by name.

    The names serve only as a hint, for example in explanations, and never as evidence.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)
