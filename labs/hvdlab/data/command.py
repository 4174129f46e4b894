"""`hvdlab data`: say where a data set is, download it, or make its synthetic twin."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from hvdlab.data import download, synthetic
from hvdlab.data.files import DataError, cache_folder, load_cifar10, load_fashion_mnist

EPILOG = """\
examples:
  hvdlab data cifar10                    find or download it
  hvdlab data cifar10 --or-synthetic     ... or make a synthetic twin where there is no network
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("cifar10", "fashion_mnist"))
    parser.add_argument("--dir", type=Path, help="look and put it there (default: $HVDLAB_DATA, else "
                        "~/.cache/hvdlab)")  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--synthetic", action="store_true", help="make a synthetic twin instead")
    how.add_argument(
        "--or-synthetic", action="store_true", help="make a synthetic twin if it cannot be had"
    )


def main(args: argparse.Namespace) -> int:
    load, twin = {
        "cifar10": (load_cifar10, synthetic.synthetic_cifar10),
        "fashion_mnist": (load_fashion_mnist, synthetic.synthetic_fashion_mnist),
    }[args.name]
    made = args.synthetic
    try:
        try:
            found = _made(load, twin, args.dir) if made else _found(load, args)
        except DataError as error:
            if not args.or_synthetic:
                raise
            print(f"hvdlab: {error}", file=sys.stderr)
            made = True
            found = _made(load, twin, args.dir)
    except DataError as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1
    kind = "SYNTHETIC twin of " if found.synthetic else ""
    shape = "x".join(map(str, found.train_images.shape[1:]))
    print(
        f"{kind}{args.name}: {len(found.train_images):,} training and "
        f"{len(found.test_images):,} test images of {shape} in {found.folder}"
    )
    if found.synthetic and not made:
        print(
            "hvdlab: this is a synthetic twin, made earlier; for the real data: "
            f"rm -r {shlex.quote(str(found.folder))} and run this again.",
            file=sys.stderr,
        )
    return 0


def _found(load, args):
    try:
        return load(args.dir)
    except DataError:
        return load(where_one_may_write(lambda to: download.fetch(args.name, to), args.dir))


def _made(load, twin, folder):
    print("Making a SYNTHETIC twin (about 5 s)", file=sys.stderr)
    return load(where_one_may_write(twin, folder))


def where_one_may_write(make, folder=None):
    """Make a data set where the labs will look: `folder`, else $HVDLAB_DATA, else the cache.

    Where a named folder is there, and has nothing of this data set, the labs look in the cache too.
    """
    named = os.environ.get("HVDLAB_DATA")
    try:
        return make(folder or named or cache_folder())
    except DataError as error:
        unwritable = getattr(error.__cause__, "errno", None) in download.UNWRITABLE
        if folder or not named or not unwritable or not Path(named).expanduser().is_dir():
            raise
        print(
            f"hvdlab: HVDLAB_DATA={named} cannot be written to ({error.__cause__.strerror}): the data go "
            f"to {cache_folder()}, where the labs look next.",
            file=sys.stderr,
        )
        return make(cache_folder())
