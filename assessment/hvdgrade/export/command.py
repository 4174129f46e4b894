"""Write results in the format of a spreadsheet or of a learning platform.

The results are those of `hvdgrade batch`, or a single one of `hvdgrade run --json`.

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
from hvdgrade.batch.results import UNGRADED, CannotExport, load
from hvdgrade.export import canvas, classroom50, csv, gradescope, junit, moodle, prairielearn
from hvdgrade.export.payload_files import text
from hvdgrade.output.console import for_lines
from hvdgrade.output.files import CannotWrite, write
from hvdgrade.output.text import printable
from hvdgrade.report.wording import mixed
from hvdgrade.result_document import NotAResult, ResultDocument, read

EPILOG = """\
example:
  hvdgrade export graded/ --format csv
  hvdgrade export graded/ --format canvas --gradebook export.csv --column "Assignment 1 (1234)"
  hvdgrade export graded/ --format moodle --worksheet grades.csv
  hvdgrade export result.json --format gradescope --output results.json     # of hvdgrade run --json

nbgrader needs no export: its notebooks call hvdgrade.export.nbgrader_score, see hvdgrade/export/nbgrader.py.

exit codes: 0 the files were written, 2 wrong usage, or a file could not be read or written
exit codes for a single result: 0 written, 1 the platform must get no file, because it would show a score,
2 as above, 3 written, and it says that the grader failed
"""
# Each format is a module with three names: OUTPUT, the default name of its file or folder in OUT;
# add_arguments(parser), which adds its options; and write(documents, args), which writes the files and
# returns lines for the instructor. A format that has a file per submission also has payload(document): the
# content of that file, or None if the platform must get none. To add a format, write such a module and add a
# line here.
FORMATS = {
    "csv": csv,
    "canvas": canvas,
    "classroom50": classroom50,
    "gradescope": gradescope,
    "junit": junit,
    "moodle": moodle,
    "prairielearn": prairielearn,
}
NOTHING_WRITTEN, GRADER_FAULT = 1, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade export` and the options of each format."""
    parser.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="the --out folder of a batch, or one result: a JSON file",
    )
    parser.add_argument("--format", required=True, choices=FORMATS, help="format to write")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="file or folder to write (default: in OUT, see each format below; for one result the terminal)",
    )
    for chosen_format in FORMATS.values():
        chosen_format.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Write the files of the chosen format and print a line for each score that needs attention.

    Returns:
        The exit code, see EPILOG.
    """
    try:
        if args.out.is_file():
            return export_one(args)
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


def export_one(args: argparse.Namespace) -> int:
    """Write what a platform gets for a single result, and return the exit code.

    Raises:
        CannotExport: the file is not a result, or the format has no file for a single result.
        CannotWrite: the output cannot be written.
    """
    chosen_format, output = FORMATS[args.format], args.output or Path("/dev/stdout")
    if not hasattr(chosen_format, "payload"):
        raise CannotExport(
            f"--format {args.format} needs the --out folder of a batch, not one result."
        )
    if output.exists() and output.samefile(args.out):
        raise CannotExport(f"--output {output} is also the result: choose another file.")
    try:
        document = read(args.out.read_bytes())
    except NotAResult:
        raise CannotExport(f"{args.out} is not a result of hvdgrade run --json.") from None
    payload = chosen_format.payload(document)
    for line in handed_in.practice([document]):
        print(f"hvdgrade export: {line}", file=sys.stderr)
    if document["status"] != "graded":
        said = f"{UNGRADED[document['status']]}: {document['reason']}"
        print(printable(f"hvdgrade export: {said}"), file=sys.stderr)
    if payload is None:
        return NOTHING_WRITTEN
    write(output, text(payload))
    return GRADER_FAULT if document["status"] == "infrastructure_error" else 0


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
