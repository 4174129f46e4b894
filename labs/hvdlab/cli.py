"""The command `hvdlab`. Each of its commands is a module that is imported only when it is used."""

from __future__ import annotations  # so that `hvdlab doctor` also starts with Python 3.8

import argparse
import signal
import sys
from importlib import import_module

from hvdlab.system.current_folder import why_gone

# Name -> module with add_arguments(parser), main(args) -> exit code and EPILOG; one line of help.
COMMANDS = {
    "doctor": ("hvdlab.doctor.command", "say what is wrong with this set-up, and how to fix it"),
    "run": (
        "hvdlab.run_command",
        "start a script on N ranks, here, on several hosts or under Slurm",
    ),
    "check": (
        "hvdlab.check.command",
        "run a script for a few steps and name its distributed mistakes",
    ),
    "fault": ("hvdlab.faults", "print or write a script that has one distributed mistake"),
    "data": ("hvdlab.data.command", "find, download or synthesise a data set"),
    "bench": ("hvdlab.bench.command", "measure this machine"),
    "progress": (
        "hvdlab.course.progress",
        "show what you have solved, predicted and answered in the labs",
    ),
    "notebooks": (
        "hvdlab.course.learner_notebooks",
        "copy the notebooks to notebooks/work, or update the copies",
    ),
    "gpu": (
        "hvdlab.gpu_report.command",
        "check and measure the GPUs of this machine, in one report",
    ),
}
EPILOG = """\
examples:
  hvdlab doctor
  hvdlab data cifar10
  hvdlab run -np 2 labs/cifar10_torch.py --epochs 1
  hvdlab check -np 2 train.py
  hvdlab fault no_broadcast_torch --write faults
  hvdlab bench throughput
  hvdlab progress
  hvdlab notebooks
  hvdlab gpu --out runs/gpu
"""


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that knows all commands, and the arguments of one of them.

    Args:
        chosen: the command whose module is imported. None: no command.
    """
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="hvdlab",
        description="Commands of the course lab.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=raw)
        if name == chosen:
            module = import_module(module)
            command.description, command.epilog = _sentence(text), module.EPILOG
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    return top


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def end_when_told() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that a command ends all processes that it started.

    A signal that `nohup` ignores stays ignored.
    """
    for name in {"SIGTERM", "SIGHUP"} & set(dir(signal)):  # Windows has no SIGHUP
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: the words after `hvdlab`. Default: those of this process.
    """
    if gone := why_gone():
        print(f"hvdlab: {gone}", file=sys.stderr)
        return 2
    end_when_told()
    arguments = sys.argv[1:] if arguments is None else arguments
    args = parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        return args.main(args)
    except KeyboardInterrupt:
        print("hvdlab: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
