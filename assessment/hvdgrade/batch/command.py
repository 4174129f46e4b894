"""Grade a whole class: one folder or one .py file per student, several at once.

You can stop the command at any moment, also by kill -9 or a power failure. Run the same command again to
continue. It keeps a result as long as the submission, the number of ranks, the profile and the rules (the
thresholds and the version of the judging code) stay the same. It keeps a result on the synthetic data set
until CIFAR-10 is available.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from hvdgrade import HvdgradeError, profiles
from hvdgrade.batch import cleanup, submissions
from hvdgrade.batch.core_allocation import worker_slots
from hvdgrade.batch.handed_in import HANDED_IN
from hvdgrade.batch.layout import FOLDERS, Settings, Task, write
from hvdgrade.batch.progress import conclude, follow, summarise
from hvdgrade.batch.results import CannotExport
from hvdgrade.batch.tasks import REGRADE, calls_of_regrade, is_done, prepare
from hvdgrade.batch.worker import Grader
from hvdgrade.output.console import for_lines
from hvdgrade.run.orphans import end_and_clear
from hvdgrade.sandbox import tiers
from hvdlab.data import DataError, load_cifar10
from hvdlab.system import file_system

DONE, REFUSED, FAULTS = 0, 2, 3
POLL_SECONDS = 0.1
EPILOG = """\
example:
  hvdgrade batch handed-in/ --out graded/ -np 2 --workers 4
  hvdgrade batch handed-in/ --out graded/ -np 2 --slurm --slurm-option partition=course

OUT receives index.html (the class), summary.csv, and for each student results/*.json, reports/*.html and
logs/*.log.

exit codes: 0 every submission has a result, which may be "not gradable",
            2 nothing was graded, for example because of wrong usage,
            3 grader faults, an interrupt or a full disk: run the same command to continue
"""


class Refused(HvdgradeError):
    """The batch cannot be started; the message is one sentence that says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade batch`.

    Args:
        parser: the parser of the command.
    """
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="folder with one folder or .py file per student")
    add("--out", type=Path, required=True, metavar="OUT", help="folder for all output")
    add("-np", type=int, default=2, metavar="N", help="ranks of each submission (default 2)")
    add("--profile", default="cpu", help="cpu, dli or gpu, a table of profiles.toml (default cpu)")
    add(
        "--workers",
        type=int,
        metavar="K",
        help="gradings at the same time, each on its own cores (default: cores / ranks; Slurm: no limit)",
    )
    add("--oversubscribe", action="store_true", help="allow more workers than cores / ranks")
    add(
        "--limit",
        type=float,
        default=2400.0,
        metavar="SECONDS",
        help="end a grading that takes longer; it counts as a grader fault, not as zero (default 2400)",
    )
    add(
        "--require-sandbox",
        metavar="TIER",
        help=f"refuse to grade in a weaker sandbox: {', '.join(tiers.TIERS)}",
    )
    add(
        "--regrade",
        action="store_true",
        help="grade everything again, or continue with that if it was interrupted",
    )
    add(
        "--slurm",
        action="store_true",
        help="grade each submission in a Slurm job, through submitit",
    )
    add(
        "--slurm-option",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="option of sbatch, such as partition=gpu or exclusive; may be repeated",
    )


def main(args: argparse.Namespace) -> int:
    """Grade a class and print the summary.

    Args:
        args: the parsed arguments.

    Returns:
        The exit code: DONE, REFUSED or FAULTS.
    """
    try:
        return grade_class(args)
    except (Refused, CannotExport) as error:
        print(f"hvdgrade batch: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:  # for example a full disk or a removed folder
        print(
            f"hvdgrade batch: {error.filename or args.out}: {error.strerror}; "
            "fix this, and run the same command to continue.",
            file=sys.stderr,
        )
        return FAULTS


def grade_class(args: argparse.Namespace) -> int:
    """Grade every submission that has no result yet.

    Args:
        args: the parsed arguments.

    Returns:
        The exit code: DONE or FAULTS.

    Raises:
        Refused: the batch cannot be started.
        CannotExport: a file in OUT/results is not a result.
        OSError: a file in OUT cannot be read or written.
    """
    # The processes that this batch starts import modules only from where they are installed, not from the
    # folder in which the batch was started.
    os.environ["PYTHONSAFEPATH"] = "1"
    # Each grader has its own working folder, so a relative path would not work there.
    if data := os.environ.get("HVDLAB_DATA"):
        os.environ["HVDLAB_DATA"] = os.path.abspath(os.path.expanduser(data))
    rules, settings = checked(args)
    try:
        if args.slurm:
            slots = None
        else:
            slots = worker_slots(args.np, args.workers, args.oversubscribe, rules.uses_gpus)
    except ValueError as error:
        raise Refused(str(error)) from None
    handed_in, ignored = submissions.find(args.folder)
    if not handed_in:
        raise Refused(f"{args.folder} holds no submission: neither a folder nor a .py file.")
    settings = dataclasses.replace(settings, real_data=real_data(args.slurm))
    for name in FOLDERS:
        (settings.out / name).mkdir(parents=True, exist_ok=True)
    names = {submission.name: submission.id for submission in handed_in}
    console = for_lines(stderr=True)
    with locked(settings.out):
        cancel_jobs(settings.out)
        cleanup.end_left_over(settings.out)
        write(settings.out / HANDED_IN, json.dumps(names).encode())
        calls = calls_of_regrade(settings, console) if args.regrade else set()
        tasks, kept = prepare(handed_in, settings, rules, calls, console)
        if kept:
            console.print(f"{kept} of {len(handed_in)} are graded already and kept")
        try:
            if slots is None:
                gradings = submitted(tasks, settings, rules, args, console)
            else:
                gradings = grade_all(tasks, settings, rules, slots)
            with contextlib.closing(gradings):
                follow(gradings, len(tasks), len(slots) if slots else args.workers, console)
        except KeyboardInterrupt:
            if args.slurm:
                cancel_jobs(settings.out)
            left = sum(not is_done(task, settings, calls) for task in tasks)
            console.print(
                f"interrupted; all that was started has been ended. {left} of {len(handed_in)} "
                "are still to be graded: run the same command to continue."
            )
            summarise(settings.out, console)
            return FAULTS
        unreadable = any(submission.unreadable for submission in handed_in)
        done = not unreadable and all(is_done(task, settings, calls) for task in tasks)
        if args.regrade and done:
            (settings.out / REGRADE).unlink(missing_ok=True)
        complete = summarise(settings.out, console)
    faults = conclude(names, settings, args.regrade, ignored)
    return DONE if complete and not faults else FAULTS


def checked(args: argparse.Namespace) -> tuple[profiles.Profile, Settings]:
    """Return the rules and settings that the arguments name.

    Args:
        args: the parsed arguments.

    Raises:
        Refused: an argument is not acceptable.
    """
    try:
        folder, out = args.folder.resolve(), args.out.resolve()
    except RuntimeError as error:  # Python 3.11 and 3.12 raise it for a symlink loop
        raise Refused(f"{error}: choose another folder.") from None
    if not folder.is_dir():
        raise Refused(f"{args.folder} is not a folder: name the folder with the submissions.")
    if out == folder or folder in out.parents:
        raise Refused(f"--out {args.out} lies in {args.folder}: choose a folder outside of it.")
    for name in (*FOLDERS, "slurm"):
        if folder.is_relative_to((out / name).resolve()):
            raise Refused(
                f"{args.folder} lies where the batch writes, in {args.out / name}: choose another --out."
            )
    try:
        rules = profiles.load(args.profile)
        out.mkdir(parents=True, exist_ok=True)
    except profiles.UnknownProfile as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"{args.out} cannot be created: {error.strerror}.") from None
    if not 1 <= args.np <= rules.max_ranks:
        raise Refused(f"-np must be in 1..{rules.max_ranks}. Received: {args.np}")
    if not 0 < args.limit < math.inf:
        raise Refused(f"--limit must be a number of seconds above 0. Received: {args.limit}")
    if args.workers is not None and args.workers < 1:
        raise Refused(f"--workers must be at least 1. Received: {args.workers}")
    if args.require_sandbox not in (None, *tiers.TIERS):
        known = ", ".join(tiers.TIERS)
        raise Refused(f"--require-sandbox must be one of {known}. Received: {args.require_sandbox}")
    if args.slurm_option and not args.slurm:
        raise Refused("--slurm-option has no meaning without --slurm: add --slurm or remove it.")
    # With Slurm, each node checks its own sandbox instead.
    if args.require_sandbox and not args.slurm:
        try:
            tiers.choose(args.require_sandbox)
        except tiers.SandboxUnavailable as error:
            raise Refused(str(error)) from None
    settings = Settings(
        out,
        args.np,
        rules.name,
        rules.rules_sha256,
        args.limit,
        args.require_sandbox,
        call=secrets.token_hex(8),
    )
    return rules, settings


def real_data(slurm: bool) -> bool:
    """Return whether CIFAR-10 itself is installed, instead of the synthetic data set.

    Args:
        slurm: whether the batch runs on a cluster. A missing data set is then not an error here.

    Raises:
        Refused: neither data set is installed, and the batch does not run on a cluster.
    """
    try:
        return not load_cifar10().synthetic
    except DataError as error:
        if slurm:  # each node of the cluster looks for its own data
            return False
        raise Refused(str(error)) from None


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a lock so that only one batch at a time works in OUT.

    The kernel releases the lock when the process that holds it ends, even by kill -9.

    Args:
        out: the folder of the batch.

    Raises:
        Refused: another batch holds the lock.
    """

    def busy() -> None:
        raise Refused(f"another batch works in {out}: wait for it or choose another --out.")

    with file_system.locked(out / ".lock", busy):
        yield


def grade_all(
    tasks: list[Task],
    settings: Settings,
    rules: profiles.Profile,
    slots: list[tuple[list[int], list[str] | None]],
) -> Iterator[dict]:
    """Grade on this machine, one submission per slot; yield each result once it is in OUT.

    Args:
        tasks: the submissions.
        settings: the settings of the batch.
        rules: the profile.
        slots: cores and GPUs of each worker.
    """
    waiting, free, running = list(reversed(tasks)), list(slots), []
    try:
        while waiting or running:
            while waiting and free:
                slot = free.pop()
                grader = Grader(waiting.pop(), settings, rules, *slot)
                running.append((grader, slot))
                grader.start()
            for grader, slot in list(running):
                if document := grader.poll():
                    running.remove((grader, slot))
                    free.append(slot)
                    yield document
            time.sleep(POLL_SECONDS)
    finally:
        end_and_clear([grader.folder for grader, _ in running if grader.folder])
        for grader, _ in running:
            grader.end()


def submitted(
    tasks: list[Task],
    settings: Settings,
    rules: profiles.Profile,
    args: argparse.Namespace,
    console: Console,
) -> Iterator[dict]:
    """Grade the submissions as Slurm jobs; return an iterator that yields each result once it is in OUT.

    Args:
        tasks: the submissions.
        settings: the settings of the batch.
        rules: the profile.
        args: the parsed arguments.
        console: the console to print to.

    Raises:
        Refused: Slurm is not available.
    """
    from hvdgrade.batch import slurm

    try:
        return slurm.grade_all(
            tasks, settings, rules, args.workers, args.slurm_option, console.print
        )
    except slurm.Unavailable as error:
        raise Refused(str(error)) from None


def cancel_jobs(out: Path) -> None:
    """End the jobs of this batch in Slurm's queue, for example those that a killed batch left there.

    Args:
        out: the folder of the batch.

    Raises:
        Refused: Slurm does not confirm that the jobs have ended.
    """
    if (out / "slurm").exists():
        from hvdgrade.batch import slurm

        if not slurm.cancel(out):
            raise Refused(
                "Slurm does not confirm that the jobs of this batch have ended. Look at `squeue --name "
                f"{slurm.job_name(out)}`, and run this command again when it lists no job."
            )
