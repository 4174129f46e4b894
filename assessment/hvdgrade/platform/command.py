"""Write a kit for a platform where people hand in: its files, and a README with the steps for an instructor.

Without --server the platform's own machine grades. With --server it only hands in the script to a server of
`hvdgrade serve`, and shows the result.
"""

import argparse
import sys
from pathlib import Path
from urllib.parse import urlsplit

from hvdgrade import HvdgradeError
from hvdgrade.output.files import CannotWrite, write
from hvdgrade.platform import kit
from hvdgrade.sandbox.tiers import TIERS
from hvdlab.arguments import positive

EPILOG = """\
example:
  hvdgrade platform gradescope --out kit
  hvdgrade platform gradescope --out kit --server https://grade.example.edu --assignment cifar --token-file T
  hvdgrade platform classroom50 --out kit --image account/hvdgrade
  hvdgrade platform gitlab --out kit --server https://grade.example.edu --assignment cifar

exit codes: 0 the kit was written, 2 wrong usage, or a file could not be read or written
"""


class CannotMake(HvdgradeError):
    """The arguments do not make a kit. The message says why in one sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade platform`."""
    add = parser.add_argument
    add("place", choices=kit.PLACES, metavar="NAME", help=", ".join(kit.PLACES))
    add("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the kit")
    add("--minutes", type=positive, metavar="N", help="time limit of the platform")
    add("--image", default="", help="container image that the platform starts")
    add("--runs-on", default="", metavar="LABELS", help="labels of your own runners, with commas")
    server = parser.add_argument_group("a server grades")
    server.add_argument("--server", default="", metavar="URL", help="address of `hvdgrade serve`")
    server.add_argument(
        "--assignment", default="", metavar="SLUG", help="name of the assignment there"
    )
    server.add_argument("--token-file", type=Path, metavar="FILE", help="token of this platform")
    here = parser.add_argument_group("the platform's machine grades")
    here.add_argument("-np", type=positive, default=2, metavar="N", help="ranks (default 2)")
    here.add_argument("--profile", default="cpu", help="cpu, dli or gpu (default cpu)")
    here.add_argument(
        "--framework", choices=("torch", "keras"), default="torch", help="keras: both"
    )
    here.add_argument(
        "--require-sandbox",
        choices=TIERS[:-1],
        default="user",
        metavar="TIER",
        help=f"weakest sandbox: {', '.join(TIERS[:-1])} (default user)",
    )


def main(args: argparse.Namespace) -> int:
    """Write the kit, and return the exit code: 0, or 2 if nothing was written."""
    try:
        made = kit.files(choices(args))
        args.out.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(args.out.iterdir()):
            raise CannotMake(f"{args.out} is not empty: name a new folder.")
        for name, content in made.items():
            path = args.out / name
            path.parent.mkdir(exist_ok=True)
            write(path, content)
            path.chmod(kit.mode(name))
    except (CannotMake, CannotWrite) as error:
        print(f"hvdgrade platform: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"hvdgrade platform: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{args.out}: {len(made)} files; the steps are in {args.out / 'README.md'}")
    return 0


def choices(args: argparse.Namespace) -> kit.Choices:
    """Return what the arguments choose.

    Raises:
        CannotMake: an argument is missing, or does not fit the platform.
    """
    place, name, server = kit.PLACES[args.place], args.place, args.server.rstrip("/")
    if args.server and urlsplit(server).scheme not in ("https", "http"):
        raise CannotMake(
            f"--server must be like https://grade.example.edu. Received: {args.server}"
        )
    if bool(server) != bool(args.assignment):
        raise CannotMake("--server and --assignment belong together: name both or none.")
    if not server and not place.grades_here:
        raise CannotMake(f"{name} gives too little processor time to grade: name a --server.")
    if args.token_file and not (server and place.secret):
        raise CannotMake(f"a kit for {name} holds no token here: leave --token-file out.")
    if server and place.secret and not args.token_file:
        raise CannotMake("name the file of the server's token for this platform: --token-file.")
    if not server and name in ("classroom50", "gitlab") and not (args.image or args.runs_on):
        raise CannotMake("name the --image that has the grader, or the labels of your --runs-on.")
    minutes = args.minutes or place.minutes
    if place.most_minutes and minutes > place.most_minutes:
        raise CannotMake(f"{name} allows at most --minutes {place.most_minutes}.")
    if 60 * minutes <= place.reserve:
        raise CannotMake(f"--minutes {minutes} is too short to grade anything.")
    return kit.Choices(
        place=name,
        server=server,
        assignment=args.assignment,
        token=args.token_file.read_text(encoding="utf-8").strip() if args.token_file else "",
        profile=args.profile,
        ranks=args.np,
        require_sandbox=args.require_sandbox,
        framework=args.framework,
        minutes=minutes,
        image=args.image,
        runs_on=tuple(label.strip() for label in args.runs_on.split(",") if label.strip()),
    )
