"""The command `hvdgrade run`: grade one submission."""

import argparse
import contextlib
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Self

from hvdgrade import profiles
from hvdgrade.grade import grade
from hvdgrade.output import files
from hvdgrade.output.console import Terminal
from hvdgrade.report import terminal
from hvdgrade.result_document import ResultDocument
from hvdgrade.sandbox import tiers
from hvdlab.arguments import positive
from hvdlab.system.rank_limit import too_many_ranks

PASS, FAIL, NOT_GRADABLE, GRADER_FAULT = range(4)
SHOWN_EPOCHS, SHOWN_NUMBERS = (
    200,
    20,
)  # the progress holds this many last epochs and numbers of each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade run`."""
    parser.add_argument("path", type=Path, help="the script, or a folder that holds assessment.py")
    parser.add_argument(
        "-np", type=positive, default=2, metavar="N", help="number of ranks (default 2)"
    )
    parser.add_argument(
        "--profile", default="cpu", help="cpu, dli or gpu, a table of profiles.toml (default cpu)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report to FILE")
    parser.add_argument(
        "--progress", type=Path, metavar="FILE", help="append a JSON line per event to FILE"
    )
    parser.add_argument(
        "--no-hints",
        dest="hints",
        action="store_false",
        help="do not look for likely mistakes with hvdlab check in a script that does not pass",
    )
    parser.add_argument(
        "--force", action="store_true", help="start more ranks than this machine has room for"
    )
    parser.add_argument(
        "--require-sandbox",
        choices=tiers.TIERS,
        metavar="TIER",
        help=f"refuse to grade in a weaker sandbox: {', '.join(tiers.TIERS)}",
    )


def run(args: argparse.Namespace) -> int:
    """Grade one submission, print the report, and write the files that the options name.

    Returns:
        The exit code: PASS, FAIL, NOT_GRADABLE or GRADER_FAULT.
    """
    try:
        args.path.stat()
    except FileNotFoundError:
        pass  # the result reports it
    except OSError as error:  # for example missing permissions
        print(f"hvdgrade: {args.path} cannot be read: {error.strerror}.", file=sys.stderr)
        return NOT_GRADABLE
    try:
        rules = profiles.load(args.profile)
        if args.np <= rules.max_ranks and not args.force and (sentence := too_many_ranks(args.np)):
            print(f"hvdgrade: {sentence}", file=sys.stderr)
            return NOT_GRADABLE
        with Progress(args.progress) as tell:
            document = grade(
                args.path, args.np, rules, tell, args.require_sandbox, hints=args.hints
            )
            code = exit_code(document)
            try:
                if args.json:
                    files.write(args.json, json.dumps(document, indent=2) + "\n")
                if args.html:
                    from hvdgrade.report.pages import report_page

                    files.write(args.html, report_page(document, source_of(args.path, document)))
            finally:  # print the report even if a file cannot be written
                terminal.show(document, Terminal())
            tell("", stage="done", code=code)
        return code
    except profiles.UnknownProfile as error:
        print(f"hvdgrade: {error}", file=sys.stderr)
        return NOT_GRADABLE
    except files.CannotWrite as error:
        print(f"hvdgrade: {error}", file=sys.stderr)
        return GRADER_FAULT


def exit_code(document: ResultDocument) -> int:
    """Return the exit code for a result."""
    if document["status"] == "graded":
        return PASS if document["verdict"] == "pass" else FAIL
    return NOT_GRADABLE if document["status"] == "not_gradable" else GRADER_FAULT


def source_of(path: Path, document: ResultDocument) -> bytes | None:
    """Return the script that was graded, to show lines of it; None if it has been edited since."""
    from hvdgrade.submission.find_script import read_script
    from hvdgrade.submission.script import NotGradable

    try:
        source = read_script(path)
    except (NotGradable, OSError):
        return None
    graded = document["submission"]["sha256"]
    return source if hashlib.sha256(source).hexdigest() == graded else None


def shortened(epoch: dict) -> dict:
    """Return an epoch with at most SHOWN_NUMBERS of the numbers that the submission reported."""
    reported = dict(list(epoch["reported"].items())[:SHOWN_NUMBERS])
    return {**epoch, "reported": reported}


class Progress:
    """Show the progress on stderr, and append it to a file.

    In a terminal, each event replaces the line of the last event. Otherwise, a line is printed only when a
    new stage begins. Use it in a `with` statement, which opens and closes the file.

    Args:
        path: the file. It receives a JSON line per event. Default: None, no file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.terminal, self.path, self.file = sys.stderr.isatty(), path, None
        self.began, self.stage = time.monotonic(), "calibrating"

    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            CannotWrite: the file cannot be opened.
        """
        if self.path:
            try:
                self.file = open(self.path, "a", encoding="utf-8")
            except OSError as error:
                raise files.CannotWrite(
                    f"{self.path} cannot be written: {error.strerror}"
                ) from None
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file."""
        if self.file:
            with contextlib.suppress(
                OSError
            ):  # closing tries again to write what could not be written
                self.file.close()

    def __call__(self, text: str, **facts: Any) -> None:
        """Show and write an event. A failure to do so does not end the grading."""
        self.stage = facts.get("stage", self.stage)
        if self.file:
            if "epochs" in facts:  # a submission may record any number of epochs and values
                facts["epochs"] = [shortened(epoch) for epoch in facts["epochs"][-SHOWN_EPOCHS:]]
            event = {"t": round(time.monotonic() - self.began, 1), "text": text, **facts}
            with contextlib.suppress(OSError):  # for example a full disk, or a closed pipe
                self.file.write(json.dumps({**event, "stage": self.stage}) + "\n")
                self.file.flush()
        with contextlib.suppress(OSError):
            if self.terminal:
                print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
            elif text.endswith("..."):
                print(text, file=sys.stderr, flush=True)
