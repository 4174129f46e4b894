"""Write a hand-out of the course, and collect what the learners of a class did in the labs.

The notebooks keep exercises, predictions, answers and hints of a learner in notebooks/work/answers.json.
`collect` reads these files from a folder that has a folder or a file per learner: the home folders of a
JupyterHub, or the download of a learning platform. They are the learners' own files, so they show where a
class is, and are no basis for a grade.
"""

import argparse
import sys
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.batch.downloads.recognise import PLATFORMS
from hvdgrade.output import files
from hvdgrade.output.text import printable
from hvdlab.arguments import positive

EPILOG = """\
example:
  hvdgrade labs handout course.zip
  hvdgrade labs collect /home --out class.html --csv class.csv
  hvdgrade labs collect download --out class.html --lab 4 5 \\
      --canvas gradebook.csv --column "Labs (17)" --scores new.csv

exit codes: 0 the files were written, 2 wrong usage, or a file could not be read or written
"""


class Wrong(HvdgradeError):
    """The arguments do not fit together. The message says why in one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade labs`."""
    actions = parser.add_subparsers(dest="action", required=True)
    handout = actions.add_parser("handout", help="write the course without solutions")
    handout.add_argument("out", type=Path, metavar="OUT", help="new folder, .zip or .tar.gz")
    collect = actions.add_parser("collect", help="show what a class did in the labs")
    add = collect.add_argument
    add("folder", type=Path, metavar="FOLDER", help="a folder or file per learner, or a download")
    add("--out", type=Path, required=True, metavar="HTML", help="the page to write")
    add("--csv", type=Path, metavar="CSV", help="also write a table with a row per learner")
    add("--lab", type=positive, nargs="+", default=[], metavar="N", help="only these labs")
    add("--title", default="The class in the labs", help="title of the page")
    add("--platform", choices=PLATFORMS, help="platform of a download (default: recognised)")
    known = collect.add_mutually_exclusive_group()
    known.add_argument("--canvas", type=Path, metavar="CSV", help="gradebook that Canvas exported")
    known.add_argument("--moodle", type=Path, metavar="CSV", help="grading worksheet of Moodle")
    add("--column", metavar="NAME", help="column to fill with the percentage of solved exercises")
    add("--scores", type=Path, metavar="CSV", help="the filled copy of the gradebook or worksheet")
    add("--overwrite", action="store_true", help="also replace scores that the column already has")


def main(args: argparse.Namespace) -> int:
    """Write the hand-out or the page, and return the exit code: 0, or 2 if something was not written."""
    try:
        # Only here: the labs need pandas, which a machine that only grades may lack.
        import hvdlab.course.experiment  # noqa: F401
    except ModuleNotFoundError as error:
        print(
            f"hvdgrade labs: the package {error.name} is missing. Run `make setup`, which installs the "
            "packages of the labs.",
            file=sys.stderr,
        )
        return 2
    try:
        lines = {"handout": write_handout, "collect": write_collection}[args.action](args)
    except HvdgradeError as error:
        print(printable(f"hvdgrade labs: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(printable(f"hvdgrade labs: {where}{error.strerror}"), file=sys.stderr)
        return 2
    print("\n".join(map(printable, lines)))
    return 0


def write_handout(args: argparse.Namespace) -> list[str]:
    """Write the hand-out, and return lines for the instructor."""
    from hvdgrade.labs import handout

    count = handout.write(args.out)
    return [f"{args.out}: {count} files, without solutions"]


def write_collection(args: argparse.Namespace) -> list[str]:
    """Write the page of a class and what else was asked for, and return lines for the instructor."""
    from hvdgrade.labs import answer_files, class_progress, gradebook, page

    exported = args.canvas or args.moodle
    if bool(exported) != bool(args.scores):
        raise Wrong(
            "--canvas or --moodle needs --scores, the file to write, and --scores needs one of them."
        )
    if args.canvas and not args.column:
        raise Wrong(
            "--canvas needs --column, the assignment to fill, as in the first row: 'Title (17)'."
        )
    if exported and args.scores.resolve() == exported.resolve():
        raise Wrong("--scores names the exported file itself: choose another file.")
    labs = class_progress.course()
    if unknown := sorted(set(args.lab) - {lab.number for lab in labs}):
        raise Wrong(f"there is no lab {unknown[0]}: the labs are 1 to {labs[-1].number}.")
    labs = [lab for lab in labs if not args.lab or lab.number in args.lab]
    learners = answer_files.find(args.folder, args.platform)
    if not learners:
        raise Wrong(f"{args.folder} is empty: expected a folder or a file for each learner.")
    class_ = [class_progress.of_learner(one, labs) for one in learners]
    files.write(args.out, page.page(class_, labs, args.title))
    read = sum(not one.problem for one in learners)
    lines = [f"{args.out}: {read} of {len(learners)} learners"]
    lines += [f"not read, {one.student.shown}: {one.problem}" for one in learners if one.problem]
    if args.csv:
        files.write(args.csv, page.table(class_, labs))
        lines.append(f"{args.csv}: a row per learner")
    if exported:
        platform = "canvas" if args.canvas else "moodle"
        content, said = gradebook.filled(
            platform, exported.read_bytes(), args.column, class_, args.overwrite
        )
        files.write(args.scores, content)
        lines += [f"{args.scores}: upload this file", *said]
    return lines
