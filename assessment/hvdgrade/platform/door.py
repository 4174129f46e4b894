"""Grade one submission inside a learning platform, here or on a server of hvdgrade.

A kit has a copy of this file, so it imports only the standard library, and client.py of the kit.
settings.json of the kit says how to grade.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

NOT_GRADABLE, FAULT = 2, 3  # exit codes of `hvdgrade run`
ENDING_SECONDS = 30  # for a grader to end its ranks


class Outcome(NamedTuple):
    """What a grading gave.

    Attributes:
        code: the exit code of `hvdgrade run`.
        text: what the platform's file must hold; "" if the platform must get no file.
        reason: why there is no verdict, for the author of the submission.
    """

    code: int
    text: str
    reason: str


def grade(kit: Path, submission: Path, learner: str, name: str, key: str) -> Outcome:
    """Grade a submission.

    Args:
        kit: folder of the kit.
        submission: folder that holds the script.
        learner: who hands in: e-mail address, or user id of the platform. Only a server needs it.
        name: the name of that person.
        key: identifies this submission, so that a repeated run is not counted again.
    """
    settings = json.loads((kit / "settings.json").read_text(encoding="utf-8"))
    if settings["server"]:
        return on_server(settings, kit, submission, key, (learner, name))
    return here(settings, submission)


def here(settings: dict, submission: Path) -> Outcome:
    """Grade on this machine, in a sandbox."""
    with tempfile.TemporaryDirectory(prefix="hvdgrade-door-") as private:  # only we can enter it
        result, output = Path(private, "result.json"), Path(private, "output")
        command = ["run", submission, "-np", settings["ranks"], "--profile", settings["profile"]]
        command += ["--require-sandbox", settings["require_sandbox"], "--json", result]
        code = run(settings, command)
        if not result.exists():
            return Outcome(FAULT, "", "the grader wrote no result")
        run(settings, ["export", result, "--format", settings["format"], "--output", output])
        text = output.read_text(encoding="utf-8") if output.exists() else ""
        return Outcome(code, text, json.loads(result.read_text(encoding="utf-8"))["reason"] or "")


def run(settings: dict, arguments: list) -> int:
    """Run `hvdgrade` for at most `limit_s` seconds, and end all that it started; return the exit code."""
    command = [settings["hvdgrade"], *map(str, arguments)]
    environment = os.environ | settings["environment"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        return process.wait(settings["limit_s"])
    except subprocess.TimeoutExpired:
        print(f"no result within the time limit of {settings['limit_s']} s", file=sys.stderr)
        process.send_signal(signal.SIGTERM)  # the grader ends its ranks, and then itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        return FAULT
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def on_server(
    settings: dict, kit: Path, submission: Path, key: str, who: tuple[str, str]
) -> Outcome:
    """Hand in the script to the server, and wait for the result."""
    import client

    token = kit / "token"
    about = dict(zip(("Hvdgrade-Learner", "Hvdgrade-Learner-Name"), who, strict=True))
    try:
        deadline = time.monotonic() + settings["limit_s"]
        server = client.Server(settings["server"], token if token.exists() else None, deadline)
        script = client.read_script(script_in(submission))
        status = server.wait(server.submit(settings["assignment"], script, key, about))
        text = server.content(status, settings["format"]).decode()
    except client.Refused as error:
        return Outcome(NOT_GRADABLE, "", error.args[0])
    except client.Stopped as error:
        return Outcome(FAULT, "", error.args[0])
    return Outcome(client.exit_code(status), text, status.get("message") or "")


def script_in(folder: Path) -> Path:
    """Return assessment.py of a folder, or else its only .py file."""
    scripts = [path for path in folder.glob("*.py") if path.is_file() and not path.is_symlink()]
    expected = folder / "assessment.py"
    return scripts[0] if len(scripts) == 1 else expected


def write(path: Path, text: str) -> None:
    """Write a file completely or not at all, and follow no link that a student may have made."""
    number, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".hvdgrade-")
    with open(number, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(unfinished, 0o644)
    os.replace(unfinished, path)
