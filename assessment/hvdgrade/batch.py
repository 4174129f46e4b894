"""Grade a whole class: one folder or one .py file a student, several at once, each in its own process.

It can be stopped in any way and at any moment, also by kill -9 or a power failure: the same command
goes on. Results are kept as long as submission, ranks, profile and rules stay the same (thresholds, and the
code that judges by them); those on synthetic data until CIFAR-10 is there.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from hvdgrade import cleanup, profile, roster, sandbox
from hvdgrade.batch_output import conclude, follow, outcome, summarise
from hvdgrade.export import CannotExport, printable
from hvdgrade.export.roll import HANDED_IN
from hvdgrade.slots import worker_slots
from hvdgrade.terminal import for_lines
from hvdgrade.worker import (
    FOLDERS,
    Grader,
    Settings,
    Task,
    is_kept,
    keep,
    key,
    read_result,
    ungraded,
    write,
)
from hvdlab.data import DataError, load_cifar10

DONE, REFUSED, FAULTS = 0, 2, 3
POLL_SECONDS = 0.1
REGRADE = ".regrade"  # in OUT while a regrade is not finished: the calls that it took, one a line
EPILOG = """\
example:
  hvdgrade batch handed-in/ --out graded/ -np 2 --workers 4
  hvdgrade batch handed-in/ --out graded/ -np 2 --slurm --slurm-option partition=course

OUT receives index.html (the class), summary.csv, and per student results/*.json, reports/*.html and
logs/*.log. exit codes: 0 each has a result, which may be "not gradable", 2 refused, as for wrong usage,
3 grader faults, an interrupt or a full disk (the same command goes on)
"""


class Refused(Exception):
    """Why a batch cannot be started: one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="holds one folder or one .py file a student")
    add("--out", type=Path, required=True, metavar="OUT", help="folder for all that is written")
    add("-np", type=int, default=2, metavar="N", help="ranks of each submission (default 2)")
    add("--profile", default="cpu", help="cpu or dli, a table of profiles.toml (default cpu)")
    add(
        "--workers",
        type=int,
        metavar="K",
        help="how many at once, each on cores of its own (default: cores / ranks; Slurm: its limits)",
    )
    add("--oversubscribe", action="store_true", help="allow more workers than cores / ranks")
    add(
        "--limit",
        type=float,
        default=2400.0,
        metavar="SECONDS",
        help="end a grader that takes longer: a fault, nobody's zero (default 2400)",
    )
    add(
        "--require-sandbox",
        metavar="TIER",
        help=f"refuse to grade in a weaker sandbox: {', '.join(sandbox.TIERS)}",
    )
    add(
        "--regrade",
        action="store_true",
        help="grade again what has a result already, or go on with that if it was interrupted",
    )
    add("--slurm", action="store_true", help="one Slurm job a submission, through submitit")
    add(
        "--slurm-option",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="an option of sbatch, such as partition=gpu or exclusive; may be repeated",
    )


def main(args: argparse.Namespace) -> int:
    try:
        return grade_class(args)
    except (Refused, CannotExport) as error:
        print(f"hvdgrade batch: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:  # a full disk, a folder that is taken away
        print(
            f"hvdgrade batch: {error.filename or args.out}: {error.strerror}; "
            "once that is mended, the same command goes on.",
            file=sys.stderr,
        )
        return FAULTS


def grade_class(args: argparse.Namespace) -> int:
    """Grade whatever has no result yet; return the exit code."""
    # What we start looks for modules where they are installed, not in the folder we were started in.
    os.environ["PYTHONSAFEPATH"] = "1"
    if data := os.environ.get("HVDLAB_DATA"):  # and each grader works in a folder of its own
        os.environ["HVDLAB_DATA"] = os.path.abspath(os.path.expanduser(data))
    rules, settings = checked(args)
    try:
        if args.slurm:
            slots = None
        else:
            slots = worker_slots(args.np, args.workers, args.oversubscribe, rules.uses_gpus)
    except ValueError as error:
        raise Refused(str(error)) from None
    submissions, ignored = roster.find(args.folder)
    if not submissions:
        raise Refused(f"{args.folder} holds no submission: neither a folder nor a .py file.")
    settings = dataclasses.replace(settings, real_data=real_data(args.slurm))
    for name in FOLDERS:
        (settings.out / name).mkdir(parents=True, exist_ok=True)
    with locked(settings.out):
        cancel_jobs(settings.out)
        cleanup.end_left_over(settings.out)
        say = for_lines(stderr=True)
        names = {one.name: one.id for one in submissions}
        write(settings.out / HANDED_IN, json.dumps(names).encode())
        calls = calls_of_regrade(settings, say) if args.regrade else set()
        tasks, kept = prepare(submissions, settings, rules, calls, say)
        if kept:
            say.print(f"{kept} of {len(submissions)} are graded already and kept")
        try:
            if args.slurm:
                gradings = submitted(tasks, settings, rules, args, say)
            else:
                gradings = grade_all(tasks, settings, rules, slots)
            with contextlib.closing(gradings):
                follow(gradings, len(tasks), len(slots) if slots else args.workers, say)
        except KeyboardInterrupt:
            if args.slurm:
                cancel_jobs(settings.out)
            left = sum(not is_done(task, settings, calls) for task in tasks)
            say.print(
                f"interrupted; all that was started has been ended. {left} of {len(submissions)} "
                "are still to be graded: the same command goes on."
            )
            summarise(settings.out, say)
            return FAULTS
        unread = any(one.unreadable for one in submissions)
        if args.regrade and not unread and all(is_done(task, settings, calls) for task in tasks):
            (settings.out / REGRADE).unlink(missing_ok=True)
        complete = summarise(settings.out, say)
    faults = conclude(set(names), settings, args.regrade, ignored)
    return DONE if complete and not faults else FAULTS


def checked(args: argparse.Namespace) -> tuple[profile.Profile, Settings]:
    """The rules and settings that the arguments name, or Refused."""
    try:
        folder, out = args.folder.resolve(), args.out.resolve()
    except RuntimeError as error:  # Python 3.11 and 3.12 say so of a loop of links
        raise Refused(f"{error}: name a folder.") from None
    if not folder.is_dir():
        raise Refused(f"{args.folder} is not a folder: name the one with the submissions.")
    if out == folder or folder in out.parents:
        raise Refused(f"--out {args.out} lies in {args.folder}: choose a folder outside of it.")
    for name in (*FOLDERS, "slurm"):
        if folder.is_relative_to((out / name).resolve()):
            raise Refused(
                f"{args.folder} lies where the batch writes, in {args.out / name}: choose another --out."
            )
    try:
        rules = profile.load(args.profile)
        out.mkdir(parents=True, exist_ok=True)
    except profile.UnknownProfile as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"{args.out} cannot be made: {error.strerror}.") from None
    if not 1 <= args.np <= rules.max_ranks:
        raise Refused(f"-np must be in 1..{rules.max_ranks}. Received: {args.np}")
    if not 0 < args.limit < math.inf:
        raise Refused(f"--limit must be a number of seconds above 0. Received: {args.limit}")
    if args.workers is not None and args.workers < 1:
        raise Refused(f"--workers must be at least 1. Received: {args.workers}")
    if args.require_sandbox not in (None, *sandbox.TIERS):
        tiers = ", ".join(sandbox.TIERS)
        raise Refused(f"--require-sandbox must be one of {tiers}. Received: {args.require_sandbox}")
    if args.slurm_option and not args.slurm:
        raise Refused("--slurm-option has no meaning without --slurm.")
    if args.require_sandbox and not args.slurm:  # on a cluster its nodes decide, each for itself
        try:
            sandbox.choose(args.require_sandbox)
        except sandbox.SandboxUnavailable as error:
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
    """Whether CIFAR-10 is here, and not its synthetic twin. Raises Refused if neither is."""
    try:
        return not load_cifar10().synthetic
    except DataError as error:
        if slurm:  # a cluster's nodes look for themselves
            return False
        raise Refused(str(error)) from None


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """One batch at a time works in OUT. The kernel frees the lock when its holder ends."""
    with open(out / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"another batch works in {out}: wait for it or choose another --out."
            ) from None
        yield


def calls_of_regrade(settings: Settings, say: Console) -> set[str]:
    """The calls whose results a regrade keeps: its own, this one and those that were interrupted."""
    file = settings.out / REGRADE
    calls = file.read_text().split() if file.exists() else []
    if calls:
        say.print(f"going on with an interrupted regrade; to begin it anew, remove {file}")
    write(file, "\n".join([*calls, settings.call]).encode())
    return {*calls, settings.call}


def is_done(task: Task, settings: Settings, calls: set[str]) -> bool:
    """Whether OUT has the result; in a regrade only if one of its `calls` made it."""
    made_by = read_result(settings.out, task.name).get("batch", {}).get("call")
    return is_kept(task, settings) and (not calls or made_by in calls)


def prepare(
    submissions, settings: Settings, rules, calls: set[str], say: Console
) -> tuple[list[Task], int]:
    """What has to be graded, and how many results are kept.

    Each script is written to OUT/submissions: the bytes that are hashed are those that are graded.
    Results of submissions that cannot even be started are written at once. One that cannot be read now
    loses nothing: the result that it has stays.
    """
    tasks, kept = [], 0
    for one in submissions:
        task = Task(one.id, one.name, key(one.source + one.problem.encode(), settings))
        if one.unreadable:
            made = ungraded(task, settings, rules, "infrastructure_error", one.problem)
            say.print(f"{printable(one.id)}: {outcome(keep(*made, task, settings, unread=True))}")
            continue
        script = settings.out / "submissions" / f"{one.name}.py"
        if one.problem:
            script.unlink(missing_ok=True)
        elif not script.exists() or script.read_bytes() != one.source:
            write(script, one.source)
        if is_done(task, settings, calls):
            kept += 1
        elif one.problem:
            made = ungraded(task, settings, rules, "not_gradable", one.problem)
            say.print(f"{printable(one.id)}: {outcome(keep(*made, task, settings))}")
        else:
            tasks.append(task)
    return tasks, kept


def grade_all(tasks: list[Task], settings: Settings, rules, slots: list[tuple]) -> Iterator[dict]:
    """Grade on this machine, one submission a slot; yields each result when it is in OUT."""
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
        cleanup.end_and_clear([grader.folder for grader, _ in running if grader.folder])
        for grader, _ in running:
            grader.end()


def submitted(tasks: list[Task], settings: Settings, rules, args, say: Console) -> Iterator[dict]:
    """Grade as jobs of Slurm; yields each result when it is in OUT. Raises Refused."""
    from hvdgrade import slurm

    try:
        return slurm.grade_all(tasks, settings, rules, args.workers, args.slurm_option, say.print)
    except slurm.Unavailable as error:
        raise Refused(str(error)) from None


def cancel_jobs(out: Path) -> None:
    """End the jobs of this batch that are in Slurm's queue, as a killed one leaves them. Raises Refused."""
    if (out / "slurm").exists():
        from hvdgrade import slurm

        if not slurm.cancel(out):
            raise Refused(
                "Slurm does not say that the jobs of this batch have ended: see `squeue --name "
                f"{slurm.job_name(out)}`, and start this again when there are none."
            )
