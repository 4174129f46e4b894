"""The command hvdgrade export."""

import argparse
import io
import json
import sys
from pathlib import Path

from hvdgrade.batch import csv_table, handed_in
from hvdgrade.batch.layout import FOLDERS
from hvdgrade.batch.results import CannotExport, load, ungraded
from hvdgrade.export import canvas, gradescope, lti
from hvdgrade.output.console import for_lines
from hvdgrade.output.files import CannotWrite, write
from hvdgrade.output.text import printable
from hvdgrade.report.wording import mixed

EPILOG = """\
example:
  hvdgrade export graded/ --format csv
  hvdgrade export graded/ --format canvas --gradebook export.csv --column "Assignment 1 (1234)"

Nothing is sent anywhere and no file that you name is changed: each format writes files of its own into
OUT, or where --output says. A submission that is not gradable, or that the grader failed on, never
becomes a zero. gradescope: each file belongs into /autograder/results/ of the container in which
Gradescope grades that submission; let your run_autograder copy it there.
nbgrader: see hvdgrade/export/nbgrader.py.
"""
FORMATS = {
    "csv": "csv.csv",
    "canvas": "canvas.csv",
    "gradescope": "gradescope",
    "lti": "lti",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of `hvdgrade batch`")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="file (csv, canvas) or folder (gradescope, lti) to write (default: in OUT)",
    )
    canvas = parser.add_argument_group("canvas")
    canvas.add_argument(
        "--gradebook", type=Path, metavar="CSV", help="the gradebook as Canvas exported it"
    )
    canvas.add_argument("--column", metavar="NAME", help="the column to fill, as its head says")
    canvas.add_argument(
        "--overwrite", action="store_true", help="replace scores that the column has already"
    )
    lti = parser.add_argument_group("lti")
    lti.add_argument(
        "--users", type=Path, metavar="CSV", help="two columns: student, LTI user id (sub)"
    )


def main(args: argparse.Namespace) -> int:
    try:
        documents = load(args.out)
        if not documents:
            raise CannotExport(f"{args.out} has no results: name the --out of 'hvdgrade batch'.")
        say = for_lines()
        for line in [*export(documents, args), *doubts(documents, args.out)]:
            say.print(printable(line))
    except (CannotExport, CannotWrite) as error:
        print(f"hvdgrade export: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or args.output or args.out  # a full disk does not tell the file
        print(f"hvdgrade export: {where}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def export(documents: list[dict], args: argparse.Namespace) -> list[str]:
    """Write the files; return what to tell the instructor."""
    output = args.output or args.out / FORMATS[args.format]
    for name in FOLDERS:
        if output.resolve().is_relative_to((args.out / name).resolve()):
            raise CannotExport(f"--output lies where the batch writes, in {args.out / name}.")
    if args.format == "csv":
        text = io.StringIO(newline="")
        csv_table.write(documents, text)
        write(output, text.getvalue())
        return [f"{output}: {len(documents)} submissions"]
    students = set(handed_in.handed_in(args.out))
    if args.format == "canvas":
        if not args.gradebook or not args.column:
            raise CannotExport("canvas needs --gradebook EXPORT.csv and --column 'NAME (ID)'.")
        if output.resolve() == args.gradebook.resolve():
            raise CannotExport("--output names the gradebook itself: choose another file.")
        filled, report = canvas.fill(
            args.gradebook.read_bytes(), args.column, documents, args.overwrite, students
        )
        write(output, filled)
        return [f"{output}: upload this file to Canvas", *report]
    if args.format == "gradescope":
        made = {document["batch"]["name"]: gradescope.payload(document) for document in documents}
        return write_each(made, output, "*/results.json", ungraded(documents))
    made, report = lti.payloads(documents, args.users, students)
    return write_each(made, output, "*.json", [*ungraded(documents), *report])


def write_each(
    payloads: dict[str, dict | None], folder: Path, pattern: str, report: list[str]
) -> list[str]:
    """Write a file for each submission that has a payload; return what to tell the instructor.

    Args:
        payloads: the submission's name -> what its file shall hold, or None.
        folder: where the files go.
        pattern: their names, with "*" for the submission's.
        report: what else there is to tell.
    """
    written = {folder / pattern.replace("*", name): made for name, made in payloads.items() if made}
    for path, payload in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, json.dumps(payload, indent=2) + "\n")
    earlier = sorted(set(folder.glob(pattern)) - set(written))
    return [
        f"{folder}: {len(written)} files",
        *report,
        *(f"left by an earlier export, remove it: {path}" for path in earlier),
    ]


def doubts(documents: list[dict], out: Path) -> list[str]:
    """A line for each score that is missing, out of date, or of nobody who is still in DIR."""
    return [
        *handed_in.not_reached(documents, out),
        *handed_in.practice(documents),
        *mixed(documents),
        *handed_in.withdrawn(documents, out),
    ]
