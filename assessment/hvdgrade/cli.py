"""The command `hvdgrade`."""

import argparse
import importlib
import signal
import sys
import traceback

from hvdgrade.output import files
from hvdgrade.run_command import GRADER_FAULT, NOT_GRADABLE, add_arguments, run
from hvdlab.system.current_folder import why_gone

EPILOG = """\
example:
  hvdgrade run assessment/solutions/torch/assessment.py -np 2 --json result.json --html report.html

exit codes: 0 pass, 1 fail, 2 not gradable or wrong usage, 3 grader fault
"""
# The other commands. NAME/command.py has add_arguments(parser), main(args) and EPILOG, and its docstring is
# the description in the help text.
COMMANDS = {
    "batch": "grade a whole class, one folder or file per student",
    "export": "convert results for a spreadsheet or a learning platform",
    "platform": "write a kit for Gradescope, Classroom 50, GitLab or PrairieLearn",
    "submit": "hand in a script to a server, and wait for the result",
    "serve": "run the server of the service, to which learners hand in over a term",
    "worker": "grade what the server of the service has in its queue",
    "certificate": "make and verify a certificate for a result that passed",
    "quiz": "write the questions of the labs for a learning platform",
    "labs": "write a hand-out of the course, and collect what a class did in the labs",
    "course": "make courses and assignments of the service, regrade, release, export",
    "token": "make and revoke the secrets of workers, doors and people",
    "db": "make, upgrade and back up the database of the service",
    "doctor": "show and test how well this host isolates submissions",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command `hvdgrade`.

    Args:
        arguments: the command-line arguments. Default: those of this process.

    Returns:
        The exit code.
    """
    if gone := why_gone():
        print(f"hvdgrade: {gone}", file=sys.stderr)
        return NOT_GRADABLE
    # Untrusted text may contain any character, but the terminal's locale may support only a few.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="hvdgrade",
        description="Grade distributed CIFAR-10 training scripts by measuring what they do, in a sandbox.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    description = (
        "Run `mpirun -np N python assessment.py` in a sandbox, grade it, and print the report."
    )
    run_parser = commands.add_parser(
        "run",
        help="grade one submission",
        description=description,
        epilog=EPILOG,
        formatter_class=raw,
    )
    add_arguments(run_parser)
    run_parser.set_defaults(main=run)
    for name, help in COMMANDS.items():
        module = importlib.import_module(f"hvdgrade.{name}.command")
        command = commands.add_parser(
            name, help=help, description=module.__doc__, epilog=module.EPILOG, formatter_class=raw
        )
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    args = parser.parse_args(arguments)
    try:
        files.check_options(args)
    except files.CannotWrite as error:
        print(f"hvdgrade: {error}", file=sys.stderr)
        return NOT_GRADABLE
    # On these signals, end as on Ctrl-C, so that no process that the command started continues to run.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup sets SIGHUP to be ignored
            signal.signal(number, signal.default_int_handler)
    try:
        return args.main(args)
    except KeyboardInterrupt:
        print("hvdgrade: interrupted; everything it started has been ended", file=sys.stderr)
        return GRADER_FAULT
    except Exception:  # a fault of the grader must not end with exit code 1, which means "fail"
        traceback.print_exc()
        print(
            "hvdgrade: this is a fault of the grader; please report the lines above",
            file=sys.stderr,
        )
        return GRADER_FAULT


if __name__ == "__main__":
    sys.exit(main())
