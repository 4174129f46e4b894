"""Hints and flags of a script that may be made to be slow to read: in a process that can be ended.

remarks(source)      {"hints": [...], "flags": [...]}
"""

import json
import resource
import subprocess
import sys

from hvdgrade.flags import flags
from hvdlab.hints import hints

READ_SECONDS, READ_BYTES = 10, 1 << 30


def remarks(source: bytes, seconds: int = READ_SECONDS) -> dict[str, list[dict]]:
    """What `hints` and `flags` say of a script; of one that takes longer a flag that says so.

    Args:
        seconds: of the processor.
    """
    command = [sys.executable, "-I", "-m", "hvdgrade.remarks", str(seconds)]
    try:
        # On a busy machine a second of the processor takes several.
        run = subprocess.run(command, input=source, capture_output=True, timeout=6 * seconds)
        said = run.stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    # A line that was not finished is not there.
    lines = [line for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
    found = {"hints": [], "flags": []} | dict(json.loads(line) for line in lines)
    if len(lines) < len(found):
        text = f"To look at its source takes more than {seconds} s or {READ_BYTES >> 30} GB."
        found["flags"].append({"kind": "unreadable", "line": None, "text": text})
    return found


if __name__ == "__main__":
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (READ_BYTES, READ_BYTES))
    script = sys.stdin.buffer.read()
    print(json.dumps(["flags", flags(script)]), flush=True)
    print(json.dumps(["hints", hints(script)]), flush=True)
