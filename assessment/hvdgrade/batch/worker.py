"""Grade one submission of a class in a separate process, and store its result.

The folder OUT of a batch contains:

    results/NAME.json      the result; written last, so if it exists, the other files exist, too
    reports/NAME.html      the result as a page for readers
    logs/NAME.log          the output of the grader
    submissions/NAME.py    the script as it was graded
    running/NAME.json      where the script is being graded now, so that a later batch can end that
    .handed-in             the submissions that the last batch found in DIR
    .regrade               the calls of a regrade that is not finished
"""

import datetime
import html
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from hvdgrade.batch import cleanup
from hvdgrade.batch.handed_in import is_practice, script_sha256
from hvdgrade.batch.layout import Settings, Task, folder_name, read_result, write, write_result
from hvdgrade.profiles import Profile
from hvdgrade.report.result import Graded, result
from hvdgrade.report.wording import part
from hvdgrade.run import orphans
from hvdgrade.sandbox import tiers
from hvdgrade.submission.script import SCRIPT

ATTEMPTS = 2


def is_kept(task: Task, settings: Settings) -> bool:
    """Return whether OUT has a valid result of exactly this task, other than a fault of the grader.

    A practice run on synthetic data does not count once CIFAR-10 is available. A result that was graded
    with a weaker isolation level than this batch requires does not count either.
    """
    document = read_result(settings.out, task.name)
    if not document or document.get("status") == "infrastructure_error":
        return False
    if settings.real_data and is_practice(document):
        return False
    if document.get("status") == "graded" and settings.require_sandbox:
        strong_enough = tiers.TIERS[: tiers.TIERS.index(settings.require_sandbox) + 1]
        if part(document, "grader").get("sandbox_tier") not in strong_enough:
            return False
    return document["batch"].get("key") == task.key


def keep(
    document: dict,
    page: str,
    task: Task,
    settings: Settings,
    attempts: int = 0,
    unread: bool = False,
) -> dict:
    """Write the report and the result of a submission, the result last, and return the stored result.

    A fault of the grader, for example during a regrade on a full disk, does not replace a result that is
    still valid. The old result stays, and `batch.failed_again` records the fault.

    Args:
        document: the new result.
        page: the report as HTML.
        task: the submission.
        settings: the settings of the batch.
        attempts: number of gradings that were started.
        unread: True if the submission itself could not be read. Any earlier result then stays.
    """
    before = read_result(settings.out, task.name)
    judged = before.get("status") not in (None, "infrastructure_error")
    stays = judged if unread else is_kept(task, settings)
    if document["status"] == "infrastructure_error" and stays:
        failed = {"call": settings.call, "reason": document["reason"]}
        before["batch"]["failed_again"] = failed
        write_result(before, task, settings)
        return before
    document["submission"] |= {"id": task.id, "student": task.id}
    # A result without a judgement does not contain the hash of its script.
    document["submission"]["sha256"] = document["submission"]["sha256"] or script_sha256(
        settings.out, task.name
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    document["batch"] = {
        "key": task.key,
        "name": task.name,
        "finished": now.replace("+00:00", "Z"),
        "attempts": attempts,
        "call": settings.call,
    }
    write(settings.out / "reports" / f"{task.name}.html", page.encode())
    write_result(document, task, settings)
    return document


def ungraded(
    task: Task, settings: Settings, rules: Profile, status: str, reason: str
) -> tuple[dict, str]:
    """Return result and report of a submission that was not judged.

    `status` is "not_gradable" or "infrastructure_error", and `reason` explains it in one sentence.
    """
    from hvdgrade.report.pages import report_page

    document = result(Graded(Path(task.name), rules, settings.ranks, status=status, reason=reason))
    document["submission"]["id"] = task.id
    try:
        return document, report_page(document)
    except Exception as error:  # whatever it is, one page must not end the whole batch
        return document, plain_page(f"{task.id}: {reason} (The report failed: {error})")


def plain_page(text: str) -> str:
    """A page for when there is no better one."""
    return f'<!DOCTYPE html><meta charset="utf-8"><title>Report</title><p>{html.escape(text)}\n'


class Grader:
    """`hvdgrade run` on one submission, in a process of its own; tried again once if it fails.

    Args:
        task: the submission; its script is in OUT/submissions.
        settings: of the batch.
        rules: the profile, for a result that no grader wrote.
        cores: that it may use; the default is those of this process.
        gpus: that it may see, as CUDA_VISIBLE_DEVICES has them; None leaves the variable alone.
    """

    alive: set[int] = set()  # process ids of the running graders that this process started

    def __init__(self, task: Task, settings: Settings, rules: Profile, cores=(), gpus=None):
        orphans.adopt_orphans()
        self.task, self.settings, self.rules = task, settings, rules
        self.cores = ",".join(map(str, sorted(cores))) or "-"
        self.gpus = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        self.record = settings.out / "running" / f"{task.name}.json"
        self.attempts, self.folder, self.process = 0, None, None

    def start(self) -> None:
        self.attempts += 1
        self.began = time.monotonic()
        self.folder = cleanup.work_folder()
        # Written before anything starts: after a kill -9 a later batch finds folder and processes by it.
        where = {"host": socket.gethostname(), "folder": str(self.folder)}
        write(self.record, json.dumps(where).encode())
        handed_in = self.folder / "grader" / "submission" / folder_name(self.task)
        handed_in.mkdir(parents=True)
        script = self.settings.out / "submissions" / f"{self.task.name}.py"
        shutil.copyfile(script, handed_in / SCRIPT)
        python = [sys.executable, "-m"]
        command = [
            *python, "hvdgrade.batch.die_with_parent", str(os.getpid()), self.cores,
            *python, "hvdgrade.cli", "run", str(handed_in),
            "-np", str(self.settings.ranks),
            "--profile", self.settings.profile,
            "--json", str(self.folder / "grader" / "result.json"),
            "--html", str(self.folder / "grader" / "report.html"),
        ]  # fmt: skip
        if self.settings.require_sandbox:
            command += ["--require-sandbox", self.settings.require_sandbox]
        # SAFEPATH: Python must not import modules from the folder in which it is started.
        environment = {"PYTHONSAFEPATH": "1", "TMPDIR": str(self.folder / "tmp"), "COLUMNS": "120"}
        log = self.settings.out / "logs" / f"{self.task.name}.log"
        with open(log, "wb" if self.attempts == 1 else "ab") as printed:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder / "grader",
                env=os.environ | environment | self.gpus,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.alive.add(self.process.pid)

    def poll(self) -> dict | None:
        """Return None while the grading runs, then the result, which is also stored in OUT."""
        code = self.process.poll()
        late = code is None and time.monotonic() - self.began > self.settings.limit
        if code is None and not late:
            return None
        document, page = self.outcome(code)
        self.end()
        fault = document["status"] == "infrastructure_error"
        if fault and not late and self.attempts < ATTEMPTS:
            self.start()
            return None
        return keep(document, page, self.task, self.settings, self.attempts)

    def outcome(self, code: int | None) -> tuple[dict, str]:
        """Return the grader's result and report, or a fault if it was ended or wrote no result.

        `code` is the exit code of the grader, or None if it exceeded its time limit.
        """
        if code is None:
            limit = f"{self.settings.limit:.0f} s"
            said = f"took over {limit} and was ended (if it needs them, give --limit more seconds)"
        elif code < 0:
            said = f"was ended by signal {-code}"
        else:
            said = f"ended with exit code {code} and left no result"
            try:
                document = json.loads((self.folder / "grader" / "result.json").read_text())
                return document, self.report_page()
            except (OSError, ValueError):
                pass
        reason = f"the grader {said}; what it printed is in logs/{self.task.name}.log"
        return ungraded(self.task, self.settings, self.rules, "infrastructure_error", reason)

    def report_page(self) -> str:
        try:
            return (self.folder / "grader" / "report.html").read_text(encoding="utf-8")
        except OSError:
            log = f"logs/{self.task.name}.log"
            return plain_page(f"The report could not be made; what the grader said is in {log}.")

    def end(self) -> None:
        """End the grader and all processes that it started, and remove its temporary files."""
        if self.folder:
            cleanup.end_and_clear([self.folder])
        if self.process:
            self.process.wait()
            self.alive.discard(self.process.pid)
        orphans.end_orphans(self.alive)
        self.record.unlink(missing_ok=True)
