"""Write the results of `hvdgrade batch` in the format of a spreadsheet or of a learning platform.

The command sends nothing over the network. It changes neither the results nor a file that you name: it only
writes new files, by default into OUT. A submission that was not gradable, or on which the grader failed, has
no score. The command lists such a submission and never exports a zero for it.
"""

import argparse
import sys
from pathlib import Path

from hvdgrade.batch import handed_in
from hvdgrade.batch.id_table import BadTable
from hvdgrade.batch.layout import FOLDERS
from hvdgrade.batch.results import CannotExport, load
from hvdgrade.export import canvas, csv, gradescope, lti, moodle
from hvdgrade.output.console import for_lines
from hvdgrade.output.files import CannotWrite
from hvdgrade.output.text import printable
from hvdgrade.report.wording import mixed
from hvdgrade.result_document import ResultDocument

EPILOG = """\
example:
  hvdgrade export graded/ --format csv
  hvdgrade export graded/ --format canvas --gradebook export.csv --column "Assignment 1 (1234)"
  hvdgrade export graded/ --format moodle --worksheet grades.csv

nbgrader needs no export: its notebooks call hvdgrade.export.nbgrader_score, see hvdgrade/export/nbgrader.py.

exit codes: 0 the files were written, 2 wrong usage, or a file could not be read or written
"""
# Each format is a module with three names: OUTPUT, the default name of its file or folder in OUT;
# add_arguments(parser), which adds its options; and write(documents, args), which writes the files and
# returns lines for the instructor. To add a format, write such a module and add a line here.
FORMATS = {
    "csv": csv,
    "canvas": canvas,
    "gradescope": gradescope,
    "lti": lti,
    "moodle": moodle,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade export` and the options of each format."""
    parser.add_argument("out", type=Path, metavar="OUT", help="the --out folder of a batch")
    parser.add_argument("--format", required=True, choices=FORMATS, help="format to write")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="file or folder to write (default: in OUT, see each format below)",
    )
    for chosen_format in FORMATS.values():
        chosen_format.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Write the files of the chosen format and print a line for each score that needs attention.

    Returns:
        The exit code: 0, or 2 if nothing was exported.
    """
    try:
        documents = load(args.out)
        if not documents:
            raise CannotExport(f"{args.out} has no results: name the --out of 'hvdgrade batch'.")
        console = for_lines()
        for line in [*export(documents, args), *doubts(documents, args.out)]:
            console.print(printable(line))
    except (CannotExport, CannotWrite, BadTable) as error:
        print(f"hvdgrade export: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        path = error.filename or args.output or args.out  # the error of a full disk names no file
        print(f"hvdgrade export: {path}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def export(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write the files of the chosen format.

    Args:
        args: the parsed arguments; `output` is replaced by its default if it is None.

    Returns:
        Lines for the instructor.

    Raises:
        CannotExport: an argument or a file that it names cannot be used.
        CannotWrite: a file cannot be written.
    """
    chosen_format = FORMATS[args.format]
    args.output = args.output or args.out / chosen_format.OUTPUT
    for name in FOLDERS:
        if args.output.resolve().is_relative_to((args.out / name).resolve()):
            raise CannotExport(
                f"--output lies where the batch writes, in {args.out / name}: choose another path."
            )
    return chosen_format.write(documents, args)


def doubts(documents: list[ResultDocument], out: Path) -> list[str]:
    """Return a line for each problem with the scores as a whole.

    The lines name submissions without a current result, practice runs, scores that were graded under
    different conditions, and results of students who are no longer in DIR.
    """
    return [
        *handed_in.not_reached(documents, out),
        *handed_in.practice(documents),
        *mixed(documents),
        *handed_in.withdrawn(documents, out),
    ]
