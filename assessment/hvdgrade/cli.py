"""The command `hvdgrade`."""

import argparse
import importlib
import signal
import sys
import traceback

from hvdgrade.output import files
from hvdgrade.run_command import GRADER_FAULT, NOT_GRADABLE, add_arguments, run

EPILOG = """\
example:
  hvdgrade run assessment/solutions/torch/assessment.py -np 2 --json result.json --html report.html

exit codes: 0 pass, 1 fail, 2 not gradable or wrong usage, 3 grader fault
"""
# The other commands: NAME/command.py has add_arguments(parser), main(args) and EPILOG.
COMMANDS = {
    "batch": "grade a whole class, a folder or file a student",
    "export": "turn a batch's results into CSV, Canvas, Gradescope or LTI files",
    "doctor": "say how well this host isolates submissions, and prove it",
}


def main(arguments: list[str] | None = None) -> int:
    # A student's text may hold any character, but the terminal's locale may support only a few.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="hvdgrade",
        description="Judge a distributed CIFAR-10 training script from outside its process.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    description = "Run `mpirun -np N python assessment.py`, judge it, and print the report."
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
        files.ask(args)
    except files.CannotWrite as error:
        print(f"hvdgrade: {error}", file=sys.stderr)
        return NOT_GRADABLE
    # End as on Ctrl-C when somebody ends us: what we started must not outlive us.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup wants it ignored
            signal.signal(ending, signal.default_int_handler)
    try:
        return args.main(args)
    except KeyboardInterrupt:
        print("hvdgrade: interrupted; everything it started has been ended", file=sys.stderr)
        return GRADER_FAULT
    except Exception:  # a mistake of ours must not look like exit code 1, a fail
        traceback.print_exc()
        print(
            "hvdgrade: this is a fault of the grader; please report the lines above",
            file=sys.stderr,
        )
        return GRADER_FAULT


if __name__ == "__main__":
    sys.exit(main())
