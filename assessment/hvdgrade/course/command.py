"""Make courses and assignments of the service, and regrade, release and export their results.

A time has a time zone: "2026-12-01 23:59 Europe/Berlin" or "2026-12-01T23:59+01:00". The roster is a CSV file
with the column email, and if you like name, role (learner, ta, instructor) and a column per issuer of names,
such as hub or github:OWNER_ID.
"""

import argparse

from hvdgrade.course.arguments import add_arguments
from hvdgrade.db.command import guarded, opened
from hvdgrade.output.text import printable

__all__ = ["EPILOG", "add_arguments", "main"]
EPILOG = """\
example:
  hvdgrade course new deep-learning
  hvdgrade course roster deep-learning people.csv
  hvdgrade course open cifar --course deep-learning --profile cpu --due "2026-12-01 23:59 Europe/Berlin"
  hvdgrade course extend cifar ada@example.edu --due "2026-12-03 23:59 Europe/Berlin" --reason illness
  hvdgrade course open exam --course deep-learning --exam --due "2027-02-01 11:00 Europe/Berlin"
  hvdgrade course regrade cifar --rules --reason "new points"     # then --table N, --apply N or --undo N
  hvdgrade course export cifar --out graded/

exit codes: 0 done, 2 nothing was changed
"""


def main(args: argparse.Namespace) -> int:
    """Do what was asked, and return the exit code: 0 done, 2 nothing was changed."""

    def act() -> None:
        from hvdgrade.course.actions import DO
        from hvdgrade.service import database

        with database.transaction(opened(args)) as session:
            said = DO[args.action](session, args)
        print("\n".join(map(printable, said.splitlines())))

    return guarded(f"course {args.action}", act)
