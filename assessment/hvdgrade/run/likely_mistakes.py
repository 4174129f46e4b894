"""Run `hvdlab check` on a submission in the sandbox, and read which mistakes it names.

The check runs inside the sandbox as a whole: it starts two ranks there, watches them for a few steps, and
prints its findings. The submission can change what it prints. So a finding is only shown, and of each one the
grader takes only what fits the catalogue of mistakes.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hvdgrade.run.job import Job
from hvdgrade.run.monitor import observe
from hvdgrade.submission.script import SCRIPT
from hvdlab.mistakes import CHECKED, Finding

# The program inside the sandbox. mpirun starts it as its only rank. So that it can start mpirun itself, it
# removes what tells a process that it is a rank.
PROGRAM = """
import json, os, pathlib, sys, tempfile
for name in [*os.environ]:
    if name.startswith(("PMIX_", "PRTE_", "OMPI_COMM_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_APP_", "OMPI_ARGV",
                        "OMPI_COMMAND", "OMPI_MCA_orte", "OMPI_MCA_ess", "OMPI_MCA_prte", "OMPI_UNIVERSE_")):
        del os.environ[name]
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
folder = pathlib.Path(tempfile.mkdtemp())
os.chdir(folder)
script = folder / {name!r}
script.write_bytes({source!r})
from hvdlab.check.command import CheckError, check
from hvdlab.launch import LaunchError
try:
    found = check(script, ranks={ranks}, timeout={seconds}, force=True).findings
except (CheckError, LaunchError) as error:
    print(error, file=sys.stderr)
else:
    print(json.dumps([finding._asdict() for finding in found]), flush=True)
"""
RANKS, SECONDS = 2, 60
MAX_FINDINGS, MAX_TEXT = 10, 1000
APIS = (None, "torch", "ddp", "keras", "tape")


def likely_mistakes(job: Job, shown: Path) -> list[Finding]:
    """Return the mistakes that `hvdlab check` names in the script of a job; empty if it cannot run here.

    Args:
        shown: folder with the data sets.
    """
    program = PROGRAM.format(name=SCRIPT, source=job.source, ranks=RANKS, seconds=SECONDS - 10)
    inside = replace(job, source=program.encode(), ranks=1).sandboxed(shown)
    job.tell("looking for likely mistakes with hvdlab check ...", stage="checking")
    with TemporaryDirectory() as copies, inside:
        seen = observe(inside, Path(copies), limit=SECONDS, stall=SECONDS)
    printed = re.findall(r"<stdout>: ?(\[.*\])$", seen.output, re.MULTILINE)
    return believable(printed[-1], job.source) if printed else []


def believable(text: str, source: bytes) -> list[Finding]:
    """Return the findings in a line that was printed in the sandbox, without those that cannot be ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    lines = source.count(b"\n") + 1
    findings = [_believed(each, lines) for each in found[:MAX_FINDINGS]]
    return [one for one in findings if one]


def _believed(found: object, lines: int) -> Finding | None:
    """Return the finding that a document describes, with title and advice of the catalogue, or None."""
    if not isinstance(found, dict):
        return None
    mistake, line, seen = (found.get(name) for name in ("id", "line", "seen"))
    known = CHECKED.get(mistake) if isinstance(mistake, str) else None
    in_script = line is None or type(line) is int and 1 <= line <= lines
    if (
        not known
        or found.get("file")
        or not in_script
        or not isinstance(seen, str)
        or not seen.isprintable()
    ):
        return None
    advices = [known.advice(api) for api in APIS]
    fix = found.get("fix") if found.get("fix") in advices else advices[0]
    return Finding(known.id, known.title, line, seen[:MAX_TEXT], fix)
