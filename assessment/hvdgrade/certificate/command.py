"""Make a certificate (PDF) for a result that passed, and verify certificates.

A certificate is signed with a private key that the school keeps. Whoever receives one can verify it with the
public key, which the school publishes. Only certify results of submissions that you graded yourself.
"""

import argparse
import datetime
import sys
from pathlib import Path

from hvdgrade.certificate import facts, signature
from hvdgrade.output import files
from hvdgrade.output.text import printable

COURSE = "Training neural networks on many GPUs"  # the title of the start page of the labs
EPILOG = """\
example:
  hvdgrade certificate key ~/course.key            # once; publish course.key.pub
  hvdgrade certificate make graded/results/ada.json --key ~/course.key --name "Ada Lovelace"
  hvdgrade certificate verify ada.pdf --public-key course.key.pub

exit codes: 0 made or valid; 1 not valid; 2 no certificate, or wrong usage; 3 unchanged, but nobody compared
the key with that of the school
"""
MADE, NOT_VALID, USAGE, NOT_COMPARED = range(4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade certificate`."""
    actions = parser.add_subparsers(dest="action", required=True)
    key = actions.add_parser("key", help="make the school's keys")
    key.add_argument("key", type=Path, metavar="FILE", help="the private key; FILE.pub is public")

    make = actions.add_parser("make", help="make a certificate")
    make.add_argument("result", type=Path, metavar="RESULT", help="the result, a JSON file")
    make.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="the private key of the school"
    )
    make.add_argument(
        "--out", type=Path, metavar="PDF", help="file to write (default: NAME.pdf for NAME.json)"
    )
    make.add_argument("--name", help="the learner (default: as in the class page)")
    make.add_argument("--course", default=COURSE, help=f"title of the course (default: {COURSE})")
    make.add_argument(
        "--date",
        type=datetime.date.fromisoformat,
        default=datetime.date.today(),
        metavar="YYYY-MM-DD",
        help="date of the certificate (default: today)",
    )

    verify = actions.add_parser("verify", help="say whether a certificate is genuine")
    verify.add_argument("pdf", type=Path, metavar="PDF")
    known = verify.add_mutually_exclusive_group()
    known.add_argument("--public-key", type=Path, metavar="FILE", help="the school's public key")
    known.add_argument(
        "--key", type=Path, metavar="FILE", help="the secret key of a certificate before version 2"
    )
    verify.add_argument(
        "--result", type=Path, help="also say whether the certificate belongs to this result"
    )


def main(args: argparse.Namespace) -> int:
    """Make keys or a certificate, or verify a certificate, and return the exit code."""
    try:
        return {"key": new_key, "make": make, "verify": verify}[args.action](args)
    except (facts.NoCertificate, signature.BadKey, files.CannotWrite) as error:
        print(f"hvdgrade certificate: {error}", file=sys.stderr)
        return USAGE


def new_key(args: argparse.Namespace) -> int:
    """Write new keys, and print what to do with them."""
    public = signature.write_keys(args.key)
    print(f"{args.key}: the private key. Keep it secret, and keep a copy of it.")
    print(f"{public}: the public key. Publish it where others look for it, with its fingerprint:")
    print(signature.fingerprint(signature.read_public_key(public)))
    return MADE


def make(args: argparse.Namespace) -> int:
    """Write the certificate.

    Raises:
        NoCertificate: the result is not a pass, the font lacks a letter, or the certificate would replace the
            key or the result.
        BadKey: the key cannot be used.
        CannotWrite: the file cannot be written.
    """
    try:
        from hvdgrade.certificate.page import draw
    except ModuleNotFoundError as error:  # a machine that only grades may lack matplotlib
        raise facts.NoCertificate(
            f"the package {error.name} is missing. Run `make setup`, which installs the packages of the labs."
        ) from None
    document, key = facts.read_result(args.result), signature.read_private_key(args.key)
    issued = f"{args.date.day} {args.date:%B %Y}"
    name = args.name or facts.listed_name(args.result)
    stated = facts.of_pass(document, name, args.course, issued)
    out = args.out or Path(f"{args.result.stem}.pdf")
    for read in (args.key, args.result):
        if out.resolve() == read.resolve():
            raise facts.NoCertificate(
                f"--out must be a new file. Received {out}, which is the same file as {read}."
            )
    page = draw(stated, signature.fingerprint(key.public_key()))
    files.write(out, signature.sign(page, stated.result_sha256, key))
    print(f"{out}: certificate for {stated.name}")
    if flags := document.get("flags"):
        text = f"Before you send it, read the flags in the report of this result: {len(flags)}."
        print(printable(text))
    return MADE


def verify(args: argparse.Namespace) -> int:
    """Print whether a certificate is genuine.

    Raises:
        NoCertificate: the certificate or the result cannot be read.
        BadKey: the key cannot be used, or an old certificate needs another kind of key.
    """
    try:
        certificate = args.pdf.read_bytes()
    except OSError as error:
        raise facts.NoCertificate(f"{args.pdf} cannot be read: {error.strerror}.") from None
    old = signature.is_old(certificate)
    if old != bool(args.key) and (old or args.key):
        raise signature.BadKey(
            f"{args.pdf} was made by an earlier version: it needs --key, the secret key of that time."
            if old
            else f"{args.pdf} does not need --key, but the school's public key: --public-key."
        )
    expected = facts.result_sha256(facts.read_result(args.result)) if args.result else None
    try:
        if old:
            signed = signature.verify_old(certificate, signature.read_old_key(args.key))
        else:
            signed = signature.verify(certificate)
        if args.public_key and signed.public_key != signature.read_public_key(args.public_key):
            raise signature.NotValid("it was signed with another key.")
        if expected and signed.result_sha256 != expected:
            raise signature.NotValid("it belongs to another result.")
    except signature.NotValid as error:
        print(f"{args.pdf}: not valid: {error}")
        return NOT_VALID
    if not old and not args.public_key:
        print(
            f"{args.pdf}: no byte has changed since it was signed with the key that has the fingerprint"
        )
        print(signature.fingerprint(signed.public_key))
        print(
            "Any person can make a key. Compare the fingerprint with the one that the school publishes."
        )
        return NOT_COMPARED
    result = " It belongs to this result." if expected else ""
    print(f"{args.pdf}: valid. It was made with this key, and no byte has changed since.{result}")
    return MADE
