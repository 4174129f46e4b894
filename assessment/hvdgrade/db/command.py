"""Make, change and copy the database of the service.

The database is the file runs/service/service.db unless --database or $HVDGRADE_DATABASE names another one.
A backup of SQLite is a database: give its path to --database. A backup of PostgreSQL goes into an empty
database by `pg_restore --dbname NAME FILE`. What was being graded is graded again after that.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hvdgrade import HvdgradeError

if TYPE_CHECKING:
    from sqlalchemy import Engine

DONE, REFUSED = 0, 2
DEFAULT = "sqlite:///runs/service/service.db"
EPILOG = """\
example:
  hvdgrade db upgrade --database postgresql+psycopg:///hvdgrade
  hvdgrade db backup /srv/backup/monday.dump --database postgresql+psycopg:///hvdgrade
  hvdgrade db purge deep-learning-2026 --scripts
  hvdgrade db purge deep-learning --person ada@example.edu --scripts

exit codes: 0 done, 2 nothing was changed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade db`."""
    actions = parser.add_subparsers(dest="action", required=True)
    add_database(
        actions.add_parser("upgrade", help="make the tables, or change those of an older version")
    )
    copy = actions.add_parser("backup", help="write a copy, also while the service runs")
    copy.add_argument("file", type=Path, metavar="FILE", help="the copy")
    add_database(copy)
    end = actions.add_parser(
        "purge",
        help="remove the personal data of a course, or of one person, for good, and keep the scores",
    )
    end.add_argument("course", metavar="COURSE", help="slug of the course")
    end.add_argument("--scripts", action="store_true", help="remove the scripts as well")
    end.add_argument(
        "--person",
        metavar="NAME",
        help="only of this member: an e-mail address or another name (default: of all)",
    )
    add_database(end)


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the database."""
    default = os.environ.get("HVDGRADE_DATABASE") or DEFAULT
    parser.add_argument(
        "--database",
        metavar="URL",
        default=default,
        help=f"address of the database (default {DEFAULT})",
    )


def opened(args: argparse.Namespace) -> "Engine":
    """Return the engine of the database, whose tables are those of this version.

    Raises:
        DatabaseProblem: they are not, or it cannot be reached.
    """
    from hvdgrade.service import database

    engine = database.connect(args.database)
    database.must_be_current(engine)
    return engine


def guarded(name: str, action: Callable[[], None]) -> int:
    """Run an action of a command that uses the database, and return the exit code: DONE or REFUSED."""
    try:
        from sqlalchemy.exc import DBAPIError
    except ModuleNotFoundError as error:
        return _refused(name, f"{error.name} is missing: pip install 'hvdlab[service]'.")
    try:
        action()
    except HvdgradeError as error:
        return _refused(name, str(error))
    except DBAPIError as error:
        return _refused(name, f"the database refused it: {' '.join(str(error.orig).split())}")
    except OSError as error:
        return _refused(name, f"{error.filename}: {error.strerror}.")
    return DONE


def _refused(name: str, why: str) -> int:
    print(f"hvdgrade {name}: {why}", file=sys.stderr)
    return REFUSED


def main(args: argparse.Namespace) -> int:
    """Do what was asked, and return the exit code: DONE or REFUSED."""
    return guarded(f"db {args.action}", lambda: ACTIONS[args.action](args))


def upgrade(args: argparse.Namespace) -> None:
    """Upgrade the tables. The folder of the usual database is made."""
    from hvdgrade.service import database

    if args.database == DEFAULT:
        Path(DEFAULT.removeprefix("sqlite:///")).parent.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )
    database.upgrade(database.connect(args.database))
    print("The tables are those of this version.")


def backup(args: argparse.Namespace) -> None:
    """Write a copy."""
    from hvdgrade.service import upkeep

    upkeep.backup(opened(args), args.file)
    print(f"{args.file}: {args.file.stat().st_size:,} bytes")


def purge(args: argparse.Namespace) -> None:
    """Remove personal data."""
    import datetime

    from hvdgrade.service import database, roster, upkeep

    engine = opened(args)
    with database.transaction(engine) as session:
        course, now = roster.course_of(session, args.course), datetime.datetime.now(datetime.UTC)
        person = roster.person_of(session, course, args.person) if args.person else None
        gone, kept = upkeep.purge(session, course, args.scripts, now, person)
    upkeep.compact(engine)
    print(
        f"{gone} people have no name any more; {kept} keep theirs, because they are in another course."
    )


ACTIONS = {"upgrade": upgrade, "backup": backup, "purge": purge}
