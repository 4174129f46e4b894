"""Make a certificate (PDF) for a result that passed, or say whether a certificate belongs to a result.

The file has a seal, which only the holder of the key can make. If another person asks whether a certificate
is genuine, let them send you the file, and verify it with the result and the key that you keep. No other
person can verify it. Only certify results of submissions that you graded yourself.
"""

import argparse
import datetime
import sys
from pathlib import Path

from hvdgrade.certificate import facts, seal
from hvdgrade.output import files
from hvdgrade.output.text import printable

COURSE = "Training neural networks on many GPUs"  # the title of the start page of the labs
EPILOG = """\
example:
  (umask 077; set -C; head -c 32 /dev/urandom > ~/course.key)      # once
  hvdgrade certificate graded/results/ada.json --key ~/course.key --name "Ada Lovelace"
  hvdgrade certificate graded/results/ada.json --key ~/course.key --verify ada.pdf

exit codes: 0 the certificate was made or is valid, 1 it is not valid, 2 no certificate, or wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade certificate`."""
    parser.add_argument("result", type=Path, metavar="RESULT", help="the result, a JSON file")
    parser.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="the secret key of the instructor"
    )
    parser.add_argument(
        "--verify", type=Path, metavar="PDF", help="verify this certificate instead of making one"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PDF", help="file to write (default: NAME.pdf for NAME.json)"
    )
    parser.add_argument("--name", help="the learner (default: as in the class page)")
    parser.add_argument("--course", default=COURSE, help=f"title of the course (default: {COURSE})")
    parser.add_argument(
        "--date",
        type=datetime.date.fromisoformat,
        default=datetime.date.today(),
        metavar="YYYY-MM-DD",
        help="date of the certificate (default: today)",
    )


def main(args: argparse.Namespace) -> int:
    """Make or verify a certificate.

    Returns:
        The exit code: 0 made or valid, 1 not valid, 2 no certificate.
    """
    try:
        document, key = facts.read_result(args.result), seal.read_key(args.key)
        return verify(args, document, key) if args.verify else make(args, document, key)
    except (facts.NoCertificate, seal.BadKey, files.CannotWrite) as error:
        print(f"hvdgrade certificate: {error}", file=sys.stderr)
        return 2


def verify(args: argparse.Namespace, document: dict, key: bytes) -> int:
    """Print whether the certificate belongs to the result and is unchanged, and return the exit code.

    Raises:
        NoCertificate: the certificate cannot be read.
    """
    try:
        certificate = args.verify.read_bytes()
    except OSError as error:
        raise facts.NoCertificate(f"{args.verify} cannot be read: {error.strerror}.") from None
    answer = seal.verify(certificate, facts.result_sha256(document), key)
    print(f"{args.verify}: {answer.value}")
    return 0 if answer is seal.Answer.VALID else 1


def make(args: argparse.Namespace, document: dict, key: bytes) -> int:
    """Write the certificate and return the exit code.

    Raises:
        NoCertificate: the result is not a pass, the font lacks a letter, or the certificate would replace the
            key or the result.
        CannotWrite: the file cannot be written.
    """
    issued = f"{args.date.day} {args.date:%B %Y}"
    name = args.name or facts.listed_name(args.result)
    stated = facts.of_pass(document, name, args.course, issued)
    try:
        from hvdgrade.certificate.page import draw
    except ModuleNotFoundError as error:  # a machine that only grades may lack matplotlib
        raise facts.NoCertificate(
            f"the package {error.name} is missing. Run `make setup`, which installs the packages of the labs."
        ) from None
    out = args.out or Path(f"{args.result.stem}.pdf")
    for read in (args.key, args.result):
        if out.resolve() == read.resolve():
            raise facts.NoCertificate(
                f"--out must be a new file. Received {out}, which is the same file as {read}."
            )
    files.write(out, seal.seal(draw(stated), stated.result_sha256, key))
    print(f"{out}: certificate for {stated.name}")
    if flags := document.get("flags"):
        print(
            printable(
                f"Before you sign it, read the flags in the report of this result: {len(flags)}."
            )
        )
    return 0
