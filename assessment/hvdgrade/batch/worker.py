"""Grade one submission of a class in a separate process, and store its result (see layout.py)."""

import datetime
import html
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from hvdgrade.batch import cleanup
from hvdgrade.batch.handed_in import is_practice, script_sha256
from hvdgrade.batch.layout import Settings, Task, folder_name, read_result, write, write_result
from hvdgrade.profiles import Profile
from hvdgrade.report.result import Graded, result
from hvdgrade.report.wording import part
from hvdgrade.result_document import ResultDocument
from hvdgrade.run.orphans import adopt_orphans, end_and_clear, end_orphans
from hvdgrade.sandbox import tiers
from hvdgrade.submission.script import SCRIPT

ATTEMPTS = 2  # gradings of one submission if the first one fails


def set_environment() -> None:
    """Set the variables that the processes of this one inherit."""
    # They import modules only from where these are installed, not from the folder in which this one started.
    os.environ["PYTHONSAFEPATH"] = "1"
    # Each grader has its own working folder, so a relative path would not work there.
    if data := os.environ.get("HVDLAB_DATA"):
        os.environ["HVDLAB_DATA"] = os.path.abspath(os.path.expanduser(data))


def is_kept(task: Task, settings: Settings) -> bool:
    """Return whether OUT has a valid result of exactly this task, unless only this machine was at fault.

    A practice run on synthetic data does not count once CIFAR-10 is available. A result that was graded
    with a weaker isolation level than this batch requires does not count either.
    """
    document = read_result(settings.out, task.name)
    if not document or is_machine_fault(document):
        return False
    if settings.real_data and is_practice(document):
        return False
    if document.get("status") == "graded" and settings.require_sandbox:
        strong_enough = tiers.TIERS[: tiers.TIERS.index(settings.require_sandbox) + 1]
        if part(document, "grader").get("sandbox_tier") not in strong_enough:
            return False
    return document["batch"].get("key") == task.key


def is_machine_fault(document: ResultDocument) -> bool:
    """Return whether there is no verdict because of the grader or its machine, not because of the script."""
    return document.get("status") == "infrastructure_error" or document.get("grade_again") is True


def keep(
    document: ResultDocument,
    page: str,
    task: Task,
    settings: Settings,
    attempts: int = 0,
    unread: bool = False,
) -> ResultDocument:
    """Write the report and the result of a submission, the result last, and return the stored result.

    A fault of the grader or its machine, for example during a regrade on a full disk, does not replace a
    result that is still valid. The old result stays, and `batch.failed_again` records the fault.

    Args:
        attempts: number of gradings that were started.
        unread: True if the submission itself could not be read. Any earlier result then stays.

    Returns:
        The result that OUT has now.

    Raises:
        OSError: a file cannot be written.
    """
    before = read_result(settings.out, task.name)
    judged = before.get("status") is not None and not is_machine_fault(before)
    stays = judged if unread else is_kept(task, settings)
    if is_machine_fault(document) and stays:
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
    """Return the result and the report (HTML) of a submission that was not judged.

    Args:
        status: "not_gradable" or "infrastructure_error".
    """
    from hvdgrade.report.pages import report_page

    document = result(Graded(Path(task.name), rules, settings.ranks, status=status, reason=reason))
    document["submission"]["id"] = task.id
    try:
        return document, report_page(document)
    except Exception as error:  # no error in one page may end the whole batch
        return document, plain_page(f"{task.id}: {reason} (The report failed: {error})")


def plain_page(text: str) -> str:
    """Return a minimal HTML page, for when the report cannot be made."""
    return f'<!DOCTYPE html><meta charset="utf-8"><title>Report</title><p>{html.escape(text)}\n'


class Grader:
    """Run `hvdgrade run` on one submission in a separate process, and once more if that fails.

    Args:
        rules: the profile, needed for a result if the grader writes none.
        cores: the cores that the grading may use. Default: those of this process.
        gpus: the GPUs that the grading may see, as in CUDA_VISIBLE_DEVICES. Default: None, which leaves
            the variable as it is.
    """

    alive: set[int] = set()  # process ids of the running graders that this process started

    def __init__(
        self,
        task: Task,
        settings: Settings,
        rules: Profile,
        cores: Collection[int] = (),
        gpus: Collection[str] | None = None,
    ) -> None:
        adopt_orphans()
        self.task, self.settings, self.rules = task, settings, rules
        self.cores = ",".join(map(str, sorted(cores))) or "-"
        self.gpus = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        self.record = settings.out / "running" / f"{task.name}.json"
        self.attempts, self.held, self.folder, self.process = 0, None, None, None

    def start(self) -> None:
        """Start the grader.

        Raises:
            OSError: a file cannot be written, or the process cannot be started.
        """
        self.attempts += 1
        self.began = time.monotonic()
        self.held = cleanup.work_folder()
        self.folder = self.held.path
        # Written before anything starts, because after a kill -9 a later batch needs this record to find the
        # folder and the processes.
        location = {"host": socket.gethostname(), "folder": str(self.folder)}
        write(self.record, json.dumps(location).encode())
        handed_in = self.folder / "grader" / "submission" / folder_name(self.task)
        handed_in.mkdir(parents=True)
        script = self.settings.out / "submissions" / f"{self.task.name}.py"
        shutil.copyfile(script, handed_in / SCRIPT)
        python = [sys.executable, "-m"]
        command = [
            *python, "hvdgrade.batch.die_with_parent", str(os.getpid()), self.cores,
            *python, "hvdgrade.cli", "run", str(handed_in),
            "-np", str(self.settings.ranks), "--force",  # `batch.arguments` has checked the number
            "--profile", self.settings.profile,
            "--json", str(self.folder / "grader" / "result.json"),
            "--html", str(self.folder / "grader" / "report.html"),
        ]  # fmt: skip
        if not self.settings.hints:
            command += ["--no-hints"]
        if self.settings.progress:
            command += ["--progress", str(progress_file(self.task, self.settings))]
        if self.settings.require_sandbox:
            command += ["--require-sandbox", self.settings.require_sandbox]
        # SAFEPATH: Python must not import modules from the folder in which it is started.
        environment = {"PYTHONSAFEPATH": "1", "TMPDIR": str(self.folder / "tmp"), "COLUMNS": "120"}
        log = self.settings.out / "logs" / f"{self.task.name}.log"
        with open(log, "wb" if self.attempts == 1 else "ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder / "grader",
                env=os.environ | environment | self.gpus,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.alive.add(self.process.pid)

    def poll(self) -> ResultDocument | None:
        """Return None while the grading runs, then the result, which is also stored in OUT.

        Raises:
            OSError: a file cannot be written, or the second attempt cannot be started.
        """
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

        Args:
            code: exit code of the grader, or None if it exceeded its time limit.
        """
        if code is None:
            limit = f"{self.settings.limit:.0f} s"
            failure = (
                f"took over {limit} and was ended (give --limit more seconds if it needs them)"
            )
        elif code < 0:
            failure = f"was ended by signal {-code}"
        else:
            failure = f"ended with exit code {code} and left no result"
            try:
                file = self.folder / "grader" / "result.json"
                return json.loads(file.read_text(encoding="utf-8")), self.report_page()
            except (OSError, ValueError):
                pass
        reason = f"the grader {failure}; its output is in logs/{self.task.name}.log"
        return ungraded(self.task, self.settings, self.rules, "infrastructure_error", reason)

    def report_page(self) -> str:
        """Return the report of the grader (HTML), or a plain page if it wrote none."""
        try:
            return (self.folder / "grader" / "report.html").read_text(encoding="utf-8")
        except OSError:
            log = f"logs/{self.task.name}.log"
            return plain_page(
                f"The report could not be made. The output of the grader is in {log}."
            )

    def end(self) -> None:
        """End the grader and all processes that it started, and remove its temporary files."""
        if self.folder:
            end_and_clear([self.folder])
            self.held.release()
        if self.process:
            self.process.wait()
            self.alive.discard(self.process.pid)
        end_orphans(self.alive)
        self.record.unlink(missing_ok=True)
        progress_file(self.task, self.settings).unlink(missing_ok=True)


def progress_file(task: Task, settings: Settings) -> Path:
    """Return the file that receives what the grader reports while it runs, if the settings want it."""
    return settings.out / "running" / f"{task.name}.progress"


def end_all(graders: Collection[Grader]) -> None:
    """End graders at the same time, because each may take some seconds to clean up."""
    end_and_clear([grader.folder for grader in graders if grader.folder])
    for grader in graders:
        grader.end()
