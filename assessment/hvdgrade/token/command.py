"""Make and revoke the secrets by which programs use the service. Each is printed once and stored nowhere.

A worker's token takes gradings of one pool. A door's token hands in for others to one assignment. A person's
token hands in and reads as that person, for `hvdgrade submit` and at /login.
"""

import argparse
import csv
import datetime
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdgrade import HvdgradeError
from hvdgrade.db.command import add_database, guarded, opened
from hvdlab.arguments import positive

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EPILOG = """\
example:
  hvdgrade token new --worker default > worker.token
  hvdgrade token new --door gradescope --assignment cifar
  hvdgrade token new --person ada@example.edu --assignment cifar --days 120
  hvdgrade token links people.csv --assignment cifar --server https://grade.example.edu > links.csv
  hvdgrade token revoke 7

exit codes: 0 done, 2 nothing was changed
"""


class NoToken(HvdgradeError):
    """There is no such token. The message says why in one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade token`."""
    actions = parser.add_subparsers(dest="action", required=True)
    new = actions.add_parser("new", help="make a token, and print it")
    kind = new.add_mutually_exclusive_group(required=True)
    kind.add_argument("--worker", metavar="POOL", help="for a worker of this pool")
    kind.add_argument("--door", metavar="NAME", help="for a door, such as gradescope")
    kind.add_argument(
        "--person", metavar="NAME", help="for one person: an e-mail address or another name"
    )
    new.add_argument(
        "--assignment", metavar="ASSIGNMENT", help="for a door or a person: the assignment"
    )
    new.add_argument(
        "--days", type=positive, metavar="N", help="days after which it ends (default: never)"
    )
    add_database(new)
    many = actions.add_parser(
        "links", help="make a token for each person of a list, and print CSV lines with their links"
    )
    many.add_argument(
        "roster", type=Path, metavar="FILE", help="the CSV file of `hvdgrade course roster`"
    )
    many.add_argument("--assignment", metavar="ASSIGNMENT", required=True, help="the assignment")
    many.add_argument("--server", metavar="URL", required=True, help="address of the server")
    many.add_argument(
        "--days", type=positive, metavar="N", help="days after which they end (default: never)"
    )
    add_database(many)
    revoke = actions.add_parser("revoke", help="end a token now")
    revoke.add_argument(
        "id", type=positive, metavar="ID", help="the number printed when it was made"
    )
    add_database(revoke)


def main(args: argparse.Namespace) -> int:
    """Do what was asked, and return the exit code: 0 done, 2 nothing was changed.

    Standard output has only the secret, or the links.
    """

    def act() -> None:
        from hvdgrade.service import database

        if args.action == "new" and not args.worker and not args.assignment:
            raise NoToken("a door and a person need --assignment.")
        with database.transaction(opened(args)) as session:
            said = {"new": new, "links": links, "revoke": revoke}[args.action](session, args)
        print(said)

    return guarded(f"token {args.action}", act)


def new(session: "Session", args: argparse.Namespace) -> str:
    """Make a token, and return its secret."""
    from hvdgrade.service import roster

    kind, person_id, columns = "worker", None, {}
    if args.worker:
        columns = {"pool": args.worker}
    else:
        assignment = roster.assignment_of(session, args.assignment)
        if args.door:
            kind, columns = "door", {"door": args.door, "assignment_id": assignment.id}
        else:
            person = roster.person_of(session, assignment.course, args.person)
            kind, person_id = "person", person.id
    secret, id = _token(session, kind, person_id, args.days, **columns)
    print(f"token {id}, which `hvdgrade token revoke {id}` ends:", file=sys.stderr)
    return secret


def links(session: "Session", args: argparse.Namespace) -> str:
    """Make a token for each person of a list, and return CSV lines: address, link, number of the token."""
    from hvdgrade.service import roster

    course = roster.assignment_of(session, args.assignment).course
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["email", "link", "token"])
    for row in roster.read(args.roster):
        person = roster.person_of(session, course, row["email"].strip())
        secret, id = _token(session, "person", person.id, args.days)
        writer.writerow([person.email, f"{args.server.rstrip('/')}/login?token={secret}", id])
    return text.getvalue().rstrip("\n")


def _token(
    session: "Session", kind: str, person_id: int | None, days: int | None, **columns: Any
) -> tuple[str, int]:
    """Make a token that ends after some days, or never; return its secret and its number."""
    from sqlalchemy import select

    from hvdgrade.service import access
    from hvdgrade.service.models import Token

    now = datetime.datetime.now(datetime.UTC)
    try:
        expires = now + datetime.timedelta(days=days) if days else None
    except OverflowError:
        raise NoToken(f"--days {days} ends after the year 9999: leave it out.") from None
    secret = access.new_token(session, kind, person_id, now, expires, **columns)
    return secret, session.scalar(select(Token.id).filter_by(sha256=access.digest(secret)))


def revoke(session: "Session", args: argparse.Namespace) -> str:
    """End a token."""
    from hvdgrade.service.models import Token

    token = session.get(Token, args.id)
    if token is None:
        raise NoToken(f"there is no token {args.id}.")
    token.revoked = token.revoked or datetime.datetime.now(datetime.UTC)
    return f"token {token.id} of kind {token.kind} is revoked"
