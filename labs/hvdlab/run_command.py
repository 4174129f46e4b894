"""`hvdlab run`: start a script on N ranks, and with --report show what each of them has trained."""

import argparse

from hvdlab.check import rank_report
from hvdlab.check.deadlock import read_events
from hvdlab.check.watched_run import WATCHED_RANK, environment
from hvdlab.launch import command
from hvdlab.system.held_folder import held_folder

EPILOG = command.EPILOG.replace(
    "\nexit codes",
    """\
  hvdlab run -np 2 --report train.py              show what each rank has trained, for any script

exit codes""",
    1,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab run` to its parser."""
    parser.add_argument(
        "--report",
        action="store_true",
        help="print a row per rank at the end: its weights, examples, steps, loss and accuracy "
        "(ranks on this machine)",
    )
    command.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run the command and return its exit code, see `hvdlab.launch.command`."""
    if not args.report:
        return command.main(args)
    if args.hosts or args.hostfile:
        return command.refused(
            "--report watches ranks on this machine only: leave out -H and --hostfile."
        )
    with held_folder("hvdlab-report-") as held:
        watch = environment(held.path) | rank_report.WHOLE
        code = command.main(args, str(WATCHED_RANK), watch)
        if code != command.REFUSED and not args.dry_run:
            rank_report.show(rank_report.rows(read_events(held.path, args.ranks)), args.ranks)
    return code
