"""Scripts with one distributed mistake each, and the command `hvdlab fault`, which prints or writes one.

labs/faults holds a correct script for each framework. Each mistake is an edit of one of them, in faults.toml.
"""

import argparse
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hvdlab.variants import edited

FOLDER = Path(__file__).resolve().parents[1] / "faults"
EPILOG = """\
examples:
  hvdlab fault                                      list the scripts and their symptoms
  hvdlab fault no_broadcast_torch                   print a script
  hvdlab fault no_broadcast_torch --write faults    write it to faults/no_broadcast_torch.py
"""


@dataclass(frozen=True)
class Fault:
    """A script with one mistake.

    Attributes:
        framework: "torch" or "keras" with Horovod, or "ddp": torch.distributed, started by torchrun.
        symptom: what a learner sees.
        finding: id of the mistake, see `hvdlab.mistakes`.
        line: line of the script that `hvdlab check` names, from 1; None for a mistake without a line.
        diff: the edit of the correct script, see `hvdlab.variants`.
        needs: what a machine must have to run it, where not every machine has it. Default "": nothing.
    """

    framework: str
    symptom: str
    finding: str
    line: int | None
    diff: str
    needs: str = ""

    @property
    def text(self) -> str:
        """Return the script. Its docstring is the symptom."""
        symptom = self.symptom + "\n" * ("\n" in self.symptom)
        return f'"""{symptom}"""\n\n{edited(correct(self.framework), self.diff)}'


@cache
def faults() -> dict[str, Fault]:
    """Return all scripts with a mistake, by name: "no_broadcast_torch" and so on."""
    tables = tomllib.loads((FOLDER / "faults.toml").read_text(encoding="utf-8"))
    return {
        f"{name}_{framework}": Fault(framework, **facts)
        for framework, edits in tables.items()
        for name, facts in edits.items()
    }


def correct(framework: str) -> str:
    """Return the correct script of a framework, without its docstring."""
    text = (FOLDER / f"correct_{framework}.py").read_text(encoding="utf-8")
    return text.partition('"""\n\n')[2]


def write(name: str, folder: Path) -> Path:
    """Write a script with a mistake into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(faults()[name].text, encoding="utf-8")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab fault`."""
    parser.add_argument("name", nargs="?", help="of the script. Default: list all")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write it there as NAME.py")


def main(args: argparse.Namespace) -> int:
    """Print or write a script, or list all of them."""
    if not FOLDER.is_dir():
        return refuse(
            f"the scripts are part of a checkout of the course: there is no folder {FOLDER}"
        )
    if args.name and args.name not in faults():
        return refuse(f"no script is called '{args.name}'. `hvdlab fault` lists all of them.")
    if not args.name:
        for name, fault in faults().items():
            print(name, *fault.symptom.splitlines(), sep="\n    ")
    elif args.write:
        try:
            print(write(args.name, args.write))
        except OSError as error:
            return refuse(f"cannot write to {args.write}: {error.strerror}")
    else:
        print(faults()[args.name].text, end="")
    return 0


def refuse(reason: str) -> int:
    """Print why the command does nothing, and return its exit code."""
    print(f"hvdlab fault: {reason}", file=sys.stderr)
    return 2
