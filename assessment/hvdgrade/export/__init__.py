"""Turn the results of a batch into a table or into what a learning platform reads."""

import argparse
import io
import json
import sys
from pathlib import Path

from hvdgrade.document import mixed, part
from hvdgrade.export import roll
from hvdgrade.output.console import for_lines
from hvdgrade.output.files import CannotWrite, write
from hvdgrade.output.text import is_number, printable

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
VERDICTS = ("pass", "fail")
UNGRADED = {"not_gradable": "not gradable", "infrastructure_error": "grader fault"}


class CannotExport(Exception):
    """Why nothing was written: one sentence."""


def load(out: Path) -> list[dict]:
    """The results of a batch, sorted by student. Raises CannotExport.

    Where Ada is in DIR and then ada, too, their files get other names: what Ada had before does not count.
    """
    documents, handed_in = [], roll.handed_in(out)
    for path in (out / "results").glob("[!.]*.json"):
        try:
            document = json.loads(path.read_text())
            ours = is_result(document)
        except (OSError, ValueError):
            ours = False
        if not ours:
            raise CannotExport(
                f"{path} is no result of hvdgrade: remove it and run 'hvdgrade batch' again."
            )
        name = document.setdefault("batch", {}).setdefault("name", path.stem)
        if name in handed_in or document["submission"]["id"] not in handed_in.values():
            documents.append(document)
    return sorted(documents, key=lambda document: document["submission"]["id"])


def is_result(document) -> bool:
    """Whether it has what an export reads of each result, and of a graded one."""
    if not isinstance(document, dict) or not isinstance(document.get("batch", {}), dict):
        return False
    graded = document.get("status") == "graded"
    scores = [document.get("score"), document.get("max_score")]
    return (
        isinstance(part(document, "submission").get("id"), str)
        and (graded or document.get("status") in UNGRADED)
        and (not graded or (all(map(is_number, scores)) and document.get("verdict") in VERDICTS))
    )


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
    from hvdgrade.export import canvas, gradescope, lti, table
    from hvdgrade.worker import FOLDERS  # not above: it imports this package

    output = args.output or args.out / FORMATS[args.format]
    for name in FOLDERS:
        if output.resolve().is_relative_to((args.out / name).resolve()):
            raise CannotExport(f"--output lies where the batch writes, in {args.out / name}.")
    if args.format == "csv":
        text = io.StringIO(newline="")
        table.write(documents, text)
        write(output, text.getvalue())
        return [f"{output}: {len(documents)} submissions"]
    handed_in = set(roll.handed_in(args.out))
    if args.format == "canvas":
        if not args.gradebook or not args.column:
            raise CannotExport("canvas needs --gradebook EXPORT.csv and --column 'NAME (ID)'.")
        if output.resolve() == args.gradebook.resolve():
            raise CannotExport("--output names the gradebook itself: choose another file.")
        filled, report = canvas.fill(
            args.gradebook.read_bytes(), args.column, documents, args.overwrite, handed_in
        )
        write(output, filled)
        return [f"{output}: upload this file to Canvas", *report]
    if args.format == "gradescope":
        made = {document["batch"]["name"]: gradescope.payload(document) for document in documents}
        return write_each(made, output, "*/results.json", ungraded(documents))
    made, report = lti.payloads(documents, args.users, handed_in)
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


def ungraded(documents: list[dict]) -> list[str]:
    """A line for each submission without a score."""
    return [
        f"no score, {UNGRADED[document['status']]}: {document['submission']['id']}"
        for document in documents
        if document["status"] in UNGRADED
    ]


def doubts(documents: list[dict], out: Path) -> list[str]:
    """A line for each score that is missing, out of date, or of nobody who is still in DIR."""
    return [
        *roll.not_reached(documents, out),
        *roll.practice(documents),
        *mixed(documents),
        *roll.withdrawn(documents, out),
    ]


def nbgrader_score(path: Path | str, points: float = 100) -> float:
    """See `hvdgrade.export.nbgrader.nbgrader_score`."""
    from hvdgrade.export import nbgrader

    return nbgrader.nbgrader_score(path, points)
