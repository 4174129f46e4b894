"""Check the arguments of `hvdgrade batch` before anything is graded."""

import argparse
import secrets

from hvdgrade import HvdgradeError, profiles
from hvdgrade.batch.layout import FOLDERS, Settings
from hvdgrade.sandbox import tiers
from hvdlab.arguments import obstacle
from hvdlab.system.rank_limit import too_many_ranks


class Refused(HvdgradeError):
    """The batch cannot be started; the message is one sentence that says why."""


def checked(args: argparse.Namespace) -> tuple[profiles.Profile, Settings]:
    """Return the rules and settings that the arguments name.

    Raises:
        Refused: an argument is not acceptable.
        UnknownProfile: there is no such profile.
        SandboxUnavailable: no acceptable isolation level works here.
    """
    try:
        folder, out = args.folder.resolve(), args.out.resolve()
    except RuntimeError as error:  # Python 3.11 and 3.12 raise it for a symlink loop
        raise Refused(f"{error}: choose another folder.") from None
    if not folder.is_dir():
        raise Refused(f"{args.folder} is not a folder: name the folder with the submissions.")
    if out == folder or folder in out.parents:
        raise Refused(f"--out {args.out} lies in {args.folder}: choose a folder outside of it.")
    for name in (*FOLDERS, "slurm"):
        if folder.is_relative_to((out / name).resolve()):
            raise Refused(
                f"{args.folder} lies where the batch writes, in {args.out / name}: choose another --out."
            )
    rules = profiles.load(args.profile)
    if place := obstacle(out):
        raise Refused(f"--out {args.out} cannot be created or written: check {place}.")
    if args.np > rules.max_ranks:
        raise Refused(f"-np must be in 1..{rules.max_ranks}. Received: {args.np}")
    # With Slurm, the ranks run on other machines.
    if not args.force and not args.slurm and (sentence := too_many_ranks(args.np)):
        raise Refused(sentence)
    if args.require_sandbox not in (None, *tiers.TIERS):
        known = ", ".join(tiers.TIERS)
        raise Refused(f"--require-sandbox must be one of {known}. Received: {args.require_sandbox}")
    if args.slurm_option and not args.slurm:
        raise Refused("--slurm-option has no meaning without --slurm: add --slurm or remove it.")
    # With Slurm, each node checks its own sandbox instead.
    if not args.slurm:
        tiers.choose(args.require_sandbox)
    settings = Settings(
        out,
        args.np,
        rules.name,
        rules.rules_sha256,
        args.limit,
        args.require_sandbox,
        call=secrets.token_hex(8),
        hints=args.hints,
    )
    return rules, settings
