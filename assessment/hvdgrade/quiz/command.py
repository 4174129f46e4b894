"""Write the self-check questions of the labs, with the feedback on every answer, for a learning platform.

Canvas imports the format qti: course settings, "Import Course Content", "QTI .zip file". Moodle imports the
format moodle: "Question bank", "Import", "Moodle XML format". Moodle does not import QTI. Learners have the
questions and their answers in the labs, so use the quiz for practice and votes, and not for a grade.
"""

import argparse
import sys
from pathlib import Path

from hvdgrade.output import files
from hvdlab.arguments import positive

EPILOG = """\
example:
  hvdgrade quiz questions.zip --format qti
  hvdgrade quiz first_day.xml --format moodle --lab 1 4 5 8
  hvdgrade quiz group_a.xml --format moodle --lab 5 --variant 1

exit codes: 0 the file was written, 2 wrong usage, or a file could not be read or written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade quiz`."""
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument(
        "--format",
        required=True,
        choices=("qti", "moodle"),
        help="qti: IMS QTI 1.2, a ZIP file for Canvas; moodle: Moodle XML",
    )
    parser.add_argument(
        "--lab", type=positive, nargs="+", default=[], metavar="N", help="only these labs"
    )
    parser.add_argument(
        "--variant",
        type=positive,
        metavar="N",
        help="with the choices in the order of variant N, and drawn numbers of their own",
    )


def main(args: argparse.Namespace) -> int:
    """Write the file and print how many questions it has.

    Returns:
        The exit code: 0, or 2 if nothing was written.
    """
    try:
        # Only here: the labs need pandas, which a machine that only grades may lack.
        from hvdgrade.quiz import bank, moodle_xml, qti
        from hvdlab.course.answers_file import WorkbookError
    except ModuleNotFoundError as error:
        print(
            f"hvdgrade quiz: the package {error.name} is missing. Run `make setup`, which installs the "
            "packages of the labs.",
            file=sys.stderr,
        )
        return 2
    try:
        quizzes = bank.read(args.lab, args.variant)
        write = {"qti": qti.content, "moodle": moodle_xml.content}[args.format]
        files.write(args.out, write(quizzes))
    except (bank.NoSuchLab, WorkbookError, files.CannotWrite) as error:
        print(f"hvdgrade quiz: {error}", file=sys.stderr)
        return 2
    count = sum(len(quiz.questions) for quiz in quizzes)
    print(f"{args.out}: {count} questions of {len(quizzes)} labs")
    return 0
