"""Hints and flags of a script whose source may be slow to analyse, found by a process with limits.

remarks(source)      {"hints": [...], "flags": [...]}
"""

import json
import resource
import signal
import subprocess
import sys

from hvdgrade.submission.flags import flags
from hvdlab.hints import hints

READ_SECONDS, READ_BYTES = 10, 1 << 30
OUT_OF_MEMORY = 3  # exit code of the process


def remarks(source: bytes, seconds: int = READ_SECONDS) -> dict[str, list[dict]]:
    """Return what `hints` and `flags` find in a script.

    Where the process that analyses it ends early, what it found until then is kept, and a flag of the kind
    "unreadable" gives the reason: the time limit, the memory limit, or a fault of the grader.

    Args:
        source: of the script, untrusted.
        seconds: of processor time. Default 10.
    """
    command = [sys.executable, "-I", "-m", "hvdgrade.submission.review", str(seconds)]
    try:
        # On a busy machine a second of processor time takes several seconds.
        run = subprocess.run(command, input=source, capture_output=True, timeout=6 * seconds)
        output, code, errors = run.stdout, run.returncode, run.stderr
    except subprocess.TimeoutExpired as error:
        output, code, errors = error.stdout or b"", -signal.SIGXCPU, b""
    # An unfinished line is no result.
    lines = [line for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    found = {"hints": [], "flags": []} | dict(json.loads(line) for line in lines)
    if len(lines) < len(found):
        text = cause(code, errors, seconds)
        found["flags"].append({"kind": "unreadable", "line": None, "text": text})
    return found


def cause(code: int, errors: bytes, seconds: int) -> str:
    """Return one sentence: why the process ended before it had analysed the whole source.

    Args:
        code: exit code, or minus the number of a signal.
        errors: what the process wrote to stderr.
        seconds: its limit of processor time.
    """
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"The analysis of its source took more than {seconds} s of processor time."
    if code == OUT_OF_MEMORY:
        return f"The analysis of its source needed more than {READ_BYTES >> 30} GB of memory."
    last = errors.decode(errors="replace").strip().rpartition("\n")[2][:200] or f"exit code {code}"
    return (
        f"The grader could not analyse its source ({last}). This is a fault of the grader, not of the "
        "script, and it costs no points."
    )


def main() -> None:
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (READ_BYTES, READ_BYTES))
    script = sys.stdin.buffer.read()
    try:
        print(json.dumps(["flags", flags(script)]), flush=True)
        print(json.dumps(["hints", hints(script)]), flush=True)
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
