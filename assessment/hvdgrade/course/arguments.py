"""The arguments of `hvdgrade course`, a table per action."""

import argparse
import datetime
import re
from pathlib import Path

from hvdgrade.db.command import add_database
from hvdgrade.sandbox.tiers import TIERS
from hvdgrade.service.moment import NoMoment, moment
from hvdlab.arguments import above_zero, non_negative, positive

SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def when(text: str) -> datetime.datetime:
    """Return the moment that an argument names."""
    try:
        return moment(text)
    except NoMoment as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def slug(text: str) -> str:
    """Return a name that can stand in an address."""
    if not SLUG.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected small letters, digits and hyphens, got {text}")
    return text


# Action -> its help text, and its arguments besides --database: names, and options of add_argument.
ASSIGNMENT = (("assignment",), {"metavar": "ASSIGNMENT", "help": "slug of the assignment"})
COURSE = (("course",), {"metavar": "COURSE", "help": "slug of the course"})
REASON = (("--reason",), {"default": "", "help": "why, for the log"})
DEADLINES = [
    (("--due",), {"type": when, "metavar": "TIME", "help": "after it a submission is late"}),
    (("--closes",), {"type": when, "metavar": "TIME", "help": "after it a submission is refused"}),
    (("--attempts",), {"type": positive, "metavar": "N", "help": "largest number of attempts"}),
]
ACTIONS: dict[str, tuple[str, list[tuple[tuple[str, ...], dict]]]] = {
    "new": (
        "make a course",
        [(("course",), {"type": slug, "metavar": "COURSE", "help": "its name in addresses"}),
         (("--title",), {"default": "", "help": "its name on pages"})],
    ),
    "roster": (
        "add people to a course, or change them",
        [COURSE, (("file",), {"type": Path, "metavar": "CSV", "help": "the list, see above"})],
    ),
    "open": (
        "make an assignment, or change its settings; its rules are those of this version",
        [(("assignment",), {"type": slug, "metavar": "ASSIGNMENT", "help": "its name in addresses"}),
         (("--course",), {"metavar": "COURSE", "help": "slug of the course, for a new one"}),
         (("--title",), {"help": "its name on pages"}),
         (("--profile",), {"help": "cpu, dli or gpu, a table of profiles.toml (default cpu)"}),
         (("-np",), {"dest": "ranks", "type": positive, "metavar": "N", "help": "ranks (default 2)"}),
         (("--pool",), {"help": "name of the machines that grade it (default default)"}),
         (("--require-sandbox",), {"choices": TIERS, "metavar": "TIER", "help": "weakest isolation level"}),
         (("--opens",), {"type": when, "metavar": "TIME", "help": "before it a submission is refused"}),
         *DEADLINES,
         (("--cooldown",), {"dest": "cooldown_s", "type": non_negative, "metavar": "SECONDS",
                            "help": "between two submissions of a person"}),
         (("--counts",), {"choices": ("best", "last"), "help": "which result counts (default best)"}),
         (("--feedback",), {"choices": ("full", "verdict", "none"), "help": "what learners see"}),
         (("--board",), {"action": argparse.BooleanOptionalAction, "help": "have a leaderboard"}),
         (("--exam",), {"action": "store_true", "help": "--attempts 1 --feedback none --hold"}),
         (("--hold",), {"action": "store_const", "const": False, "dest": "released",
                        "help": "learners see no results before `course release`"}),
         (("--limit",), {"dest": "limit_s", "type": above_zero, "metavar": "SECONDS",
                         "help": "time limit of a grading (default 2400)"})],
    ),
    "extend": (
        "give one person another deadline or more attempts",
        [ASSIGNMENT, (("person",), {"metavar": "PERSON", "help": "e-mail address or another name"}),
         *DEADLINES, REASON],
    ),
    "status": ("show the assignments of a course, and their queues", [COURSE]),
    "regrade": (
        "grade what counts again; nothing changes before --apply",
        [ASSIGNMENT,
         (("--all",), {"action": "store_true", "help": "every submission, not only those that count"}),
         (("--rules",), {"action": "store_true", "help": "by the rules of this version of hvdgrade"}),
         (("--table",), {"type": positive, "metavar": "N", "help": "show what regrade N changes"}),
         (("--apply",), {"type": positive, "metavar": "N", "help": "let the results of regrade N count"}),
         (("--undo",), {"type": positive, "metavar": "N", "help": "take that back"}), REASON],
    ),
    "release": (
        "show the results to learners, and post them to the LMS",
        [ASSIGNMENT, (("--feedback",), {"choices": ("full", "verdict"), "help": "what they see then"})],
    ),
    "post": (
        "show which scores the LMS got and which it refused; hold one, or send it again",
        [ASSIGNMENT, (("--again",), {"action": "store_true", "help": "send all refused ones again"}),
         (("--hold",), {"metavar": "PERSON", "help": "send nothing of this person"}),
         (("--send",), {"metavar": "PERSON", "help": "send the newest score of this person again"})],
    ),
    "export": (
        "write a folder as `hvdgrade batch --out` does",
        [ASSIGNMENT, (("--out",), {"type": Path, "required": True, "metavar": "OUT", "help": "the folder"})],
    ),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade course`."""
    actions = parser.add_subparsers(dest="action", required=True)
    for name, (help, arguments) in ACTIONS.items():
        action = actions.add_parser(name, help=help, description=help)
        for names, options in arguments:
            action.add_argument(*names, **options)
        add_database(action)
