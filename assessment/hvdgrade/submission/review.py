"""Analyse the source of a script in a separate process with limits on time and memory.

The source is untrusted, and some sources take very long to analyse.
"""

import json
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field

from hvdgrade.submission.flags import flags
from hvdgrade.submission.script_facts import ScriptFacts
from hvdlab.hints import hints
from hvdlab.mistakes import Finding
from hvdlab.script_analysis.script import Script, Unreadable

READ_SECONDS, READ_BYTES = 10, 1 << 30  # processor time and address space of the process
OUT_OF_MEMORY = 3  # exit code of the process


@dataclass(frozen=True)
class Review:
    """What the source of a script shows.

    Attributes:
        hints: likely mistakes, see `hvdlab.hints`.
        flags: places for the instructor to look at, see `hvdgrade.submission.flags.flags`.
        facts: what explanations of failed checks refer to.
    """

    hints: list[Finding] = field(default_factory=list)
    flags: list[dict] = field(default_factory=list)
    facts: ScriptFacts = ScriptFacts()


def review(source: bytes, seconds: int = READ_SECONDS) -> Review:
    """Return what the source of a script shows.

    If the process ends early, the results until then are kept, and a flag of the kind "unreadable" gives the
    reason: the time limit, the memory limit, or a fault of the grader.

    Args:
        source: the bytes of the script, untrusted.
        seconds: limit on processor time. Default: 10.
    """
    command = [sys.executable, "-I", "-m", "hvdgrade.submission.review", str(seconds)]
    try:
        # On a busy machine a second of processor time takes several seconds.
        run = subprocess.run(command, input=source, capture_output=True, timeout=6 * seconds)
        output, code, errors = run.stdout, run.returncode, run.stderr
    except subprocess.TimeoutExpired as error:
        output, code, errors = error.stdout or b"", -signal.SIGXCPU, b""
    # An incomplete line is not a result.
    lines = [line for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    results = dict(json.loads(line) for line in lines)
    found = Review(
        [Finding(*hint) for hint in results.get("hints", [])],
        results.get("flags", []),
        ScriptFacts.from_json(results.get("facts", {})),
    )
    if len(results) < 3:
        text = cause(code, errors, seconds)
        found.flags.append({"kind": "unreadable", "line": None, "text": text})
    return found


def cause(code: int, errors: bytes, seconds: int) -> str:
    """Return one sentence that says why the process ended before it had analysed the whole source.

    Args:
        code: exit code, or minus the number of a signal.
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


def facts(source: bytes) -> ScriptFacts:
    """Return the facts of a script; none if it cannot be analysed."""
    try:
        return ScriptFacts.of(Script(source))
    except Unreadable:
        return ScriptFacts()


def main() -> None:
    """Analyse the script on stdin, with the limit in the first argument, and print a JSON line per result."""
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (READ_BYTES, READ_BYTES))
    script = sys.stdin.buffer.read()
    try:
        print(json.dumps(["flags", flags(script)]), flush=True)
        print(json.dumps(["facts", facts(script).to_json()]), flush=True)
        print(json.dumps(["hints", hints(script)]), flush=True)
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
