"""Recognise a run that stopped before its first epoch for a reason that says nothing about its training.

Such a submission is not gradable, and no attempt is lost, as with a script that is not valid Python:

* An import fails that the grader cannot do either. The grader tries the import statements of the source in
  a sandboxed process of their own. What the run printed only tells which of them ended it.
* The Recorder refused what it was given, see `hvdlab.recordable`. A script can print the same words, and
  gains nothing by it: it has recorded nothing, so it has no points to lose.
"""

import difflib
import json
import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from hvdgrade.evidence.observation import Observation
from hvdgrade.run.job import Job
from hvdgrade.run.monitor import observe
from hvdgrade.submission.script import SCRIPT, NotGradable, import_statements

# The program that tries import statements. An import may replace any name that does not begin with "_".
BEGIN = """
import json as _json
_print, _type, _str, _ImportError, _Exception = print, type, str, ImportError, Exception
_failures = {}
"""
TRY = """
try:
    %s
except _ImportError as _error:
    _failures[%r] = _type(_error).__name__, _str(_error).partition("\\n")[0]
except _Exception:
    pass  # the module was found, and something in it failed
"""
END = "_print(_json.dumps(_failures), flush=True)"
TRIAL_SECONDS, STALL_SECONDS = 120.0, 60.0
MAX_STATEMENTS = 200  # of a script that are tried
# Groups of packages in pyproject.toml that a training script may use. These have no group:
GROUPS, OTHERS = ("torch", "keras", "lab", "parallel"), {"horovod", "hvdlab", "numpy"}
REFUSED = re.compile(r"hvdlab\.recordable\.NotRecordable: (Recorder: .{1,600})$", re.MULTILINE)


def require_start(job: Job, seen: Observation, shown: Path) -> None:
    """Check that a run did not end before its first epoch for one of the reasons of this module.

    Args:
        seen: the run.
        shown: folder with the data sets that the run was shown.

    Raises:
        NotGradable: it did. The message says what to change.
    """
    if seen.stop_cause != "crashed" or seen.weights:
        return
    if refused := REFUSED.search(seen.output):
        raise NotGradable(f"{SCRIPT} stopped before its first epoch. It says: {refused[1]}")
    if "ImportError: " not in seen.output and "ModuleNotFoundError: " not in seen.output:
        return
    lines = import_statements(job.source)
    job.tell("trying the imports of the submission ...")
    for statement, (kind, message) in failures(list(lines), job, shown).items():
        if f"{kind}: {message}" in seen.output:
            raise NotGradable(f"{SCRIPT}, line {lines[statement]}, {explain(statement, message)}")


def failures(statements: list[str], job: Job, shown: Path) -> dict[str, tuple[str, str]]:
    """Return which import statements fail here: statement -> (name of the exception, message).

    They run in the sandbox, with the Python and the environment of a submission, but without its source. The
    result is empty if this cannot be found out, for example because an import takes too long.

    Args:
        statements: import statements of one line each. At most MAX_STATEMENTS are tried.
        shown: folder with the data sets.
    """
    tries = [TRY % (each, each) for each in statements[:MAX_STATEMENTS]]
    program = "".join([BEGIN, *tries, END]).encode()
    trial = replace(job, source=program, ranks=1).sandboxed(shown)
    with TemporaryDirectory() as copies, trial:
        seen = observe(trial, Path(copies), limit=TRIAL_SECONDS, stall=STALL_SECONDS)
    printed = re.findall(r"<stdout>: ?(\{.*\})$", seen.output, re.MULTILINE)
    return {key: tuple(value) for key, value in json.loads(printed[-1]).items()} if printed else {}


def explain(statement: str, message: str) -> str:
    """Return what a failed import means and what to do, as the end of a sentence."""
    if statement.startswith("from ."):
        return (
            f"imports another file of your own ({statement}), but only one file is graded: put everything "
            "into one file."
        )
    installed = installed_packages()
    missing = re.fullmatch(r"No module named '(\w+)'", message)
    if not missing:
        return (
            f'({statement}) fails on this machine for every script, with the message "{message}": use what '
            f"the installed packages offer ({', '.join(installed)})."
        )
    close = difflib.get_close_matches(missing[1], installed, 1, cutoff=0.8)
    return (
        f"imports {missing[1]}, and this machine has no module of that name"
        + (f" (do you mean {close[0]}?)" if close else "")
        + ": if it is a file of your own, put its code into the one file that is graded; if it is a package, "
        f"use only packages that are installed here: {', '.join(installed)}."
    )


def installed_packages() -> list[str]:
    """Return the names of the packages for training scripts that are installed, in alphabetical order."""
    required = [line.partition(";") for line in metadata.requires("hvdlab") or []]
    names = {
        re.match(r"[\w.-]+", name)[0]
        for name, _, marker in required
        if any(f'extra == "{group}"' in marker.replace("'", '"') for group in GROUPS)
    }
    installed = {distribution.name.lower() for distribution in metadata.distributions()}
    return sorted(name for name in names | OTHERS if name.lower() in installed)
