"""Grade a whole class, several submissions at once.

DIR holds a folder or a .py file per student, or what a learning platform's download contains.

You can stop the command at any moment, also by kill -9 or a power failure. Run the same command again to
continue. It keeps a result as long as the submission, the number of ranks, the profile and the rules (the
thresholds and the version of the judging code) stay the same. It keeps a result on the synthetic data set
until CIFAR-10 is available.
"""

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from hvdgrade import HvdgradeError, profiles
from hvdgrade.batch import class_on_slurm, cleanup, slurm, submissions
from hvdgrade.batch.arguments import Refused, checked
from hvdgrade.batch.core_allocation import worker_slots
from hvdgrade.batch.downloads.recognise import PLATFORMS
from hvdgrade.batch.id_table import STUDENTS, read_pairs, write_students
from hvdgrade.batch.layout import FOLDERS, OUT_MODE, Settings, Task, write
from hvdgrade.batch.progress import conclude, follow, summarise
from hvdgrade.batch.tasks import REGRADE, calls_of_regrade, is_done, prepare
from hvdgrade.batch.worker import Grader, end_all, set_environment
from hvdgrade.output.console import for_lines
from hvdgrade.output.text import printable
from hvdgrade.result_document import ResultDocument
from hvdgrade.sandbox import tiers
from hvdlab.arguments import above_zero, positive
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade batch`."""
    add = parser.add_argument
    add(
        "folder",
        type=Path,
        metavar="DIR",
        help="folder with a folder or .py file per student, or an unpacked download of a platform",
    )
    add("--out", type=Path, required=True, metavar="OUT", help="folder for all output")
    add(
        "--platform",
        choices=PLATFORMS,
        metavar="NAME",
        help=f"platform from which DIR comes, if it is not recognised: {', '.join(PLATFORMS)}",
    )
    add(
        "--ids",
        type=Path,
        metavar="CSV",
        help="file with two columns: name of a folder or file in DIR, student id",
    )
    add_grading_arguments(parser)


def add_grading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how to grade."""
    add = parser.add_argument
    add("-np", type=positive, default=2, metavar="N", help="ranks of each submission (default 2)")
    add("--profile", default="cpu", help="cpu, dli or gpu, a table of profiles.toml (default cpu)")
    add(
        "--workers",
        type=positive,
        metavar="K",
        help="gradings at the same time, each on its own cores (default: cores / ranks; Slurm: no limit)",
    )
    add(
        "--hints",
        action="store_true",
        help="look for likely mistakes with hvdlab check in each script that does not pass (up to 60 s each)",
    )
    add("--force", action="store_true", help="start more ranks than this machine has room for")
    add("--oversubscribe", action="store_true", help="allow more workers than cores / ranks")
    add(
        "--limit",
        type=above_zero,
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

    Returns:
        The exit code: DONE, REFUSED or FAULTS.
    """
    try:
        return grade_class(args)
    except HvdgradeError as error:
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

    Returns:
        The exit code: DONE or FAULTS.

    Raises:
        HvdgradeError: the batch cannot be started, or a file in OUT/results is not a result.
        OSError: a file in OUT cannot be read or written.
    """
    set_environment()
    rules, settings = checked(args)
    slots = None  # Slurm assigns cores and GPUs
    if args.slurm:
        slurm.must_work(args.slurm_option)
    else:
        slots = worker_slots(args.np, args.workers, args.oversubscribe, rules.uses_gpus)
    console = for_lines(stderr=True)
    settings = dataclasses.replace(settings, real_data=real_data(args.slurm))
    handed_in = class_in(args, console)
    for folder in (settings.out, *(settings.out / name for name in FOLDERS)):
        folder.mkdir(mode=OUT_MODE, parents=True, exist_ok=True)
    students = {submission.name: submission.student for submission in handed_in}
    with locked(settings.out):
        cancel_jobs(settings.out)
        cleanup.end_left_over(settings.out)
        write(settings.out / STUDENTS, write_students(students))
        calls = calls_of_regrade(settings, console) if args.regrade else set()
        prepared = prepare(handed_in, settings, rules, calls, console)
        tasks = prepared.tasks
        if prepared.kept:
            console.print(f"{prepared.kept} of {len(handed_in)} are graded already and kept")
        try:
            if slots is None:
                gradings = class_on_slurm.grade_all(
                    tasks, settings, rules, args.workers, args.slurm_option, console.print
                )
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
        done = not prepared.unreadable and all(is_done(task, settings, calls) for task in tasks)
        if args.regrade and done:
            (settings.out / REGRADE).unlink(missing_ok=True)
        complete = summarise(settings.out, console)
    faults = conclude(students, settings, args.regrade)
    return DONE if complete and not faults else FAULTS


def class_in(args: argparse.Namespace, console: Console) -> list[submissions.Submission]:
    """Return the submissions in DIR, and print how DIR was understood.

    Raises:
        Refused: DIR is empty.
        DownloadProblem: DIR, or a file of the platform in it, cannot be understood.
        BadTable: the file of `--ids` is not a table of ids.
        OSError: DIR cannot be read.
    """
    ids = read_pairs(args.ids, "name in DIR", "student id") if args.ids else None
    found = submissions.find(args.folder, args.platform, ids, without=args.ids)
    if not found.submissions:
        raise Refused(f"{args.folder} is empty: name the folder with the submissions.")
    how = "as --platform says" if args.platform else "if this is wrong, name it with --platform"
    console.print(f"students: {len(found.submissions)}; DIR comes from: {found.platform} ({how})")
    if found.unlisted:
        names = printable(", ".join(found.unlisted))
        console.print(f"not in {args.ids}, so the platform's id counts: {names}")
    return found.submissions


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
) -> Iterator[ResultDocument]:
    """Grade on this machine, one submission per slot; yield each result once it is in OUT."""
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
        end_all([grader for grader, _ in running])


def cancel_jobs(out: Path) -> None:
    """End the jobs of this batch in Slurm's queue, for example those that a killed batch left there.

    Raises:
        Refused: Slurm does not confirm that the jobs have ended.
    """
    if (out / "slurm").exists():
        if not slurm.cancel(out):
            raise Refused(
                "Slurm does not confirm that the jobs of this batch have ended. Look at `squeue --name "
                f"{slurm.job_name(out)}`, and run this command again when it lists no job."
            )
