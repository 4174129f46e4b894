"""`hvdlab data`: say where a data set is, download it, or make a synthetic data set in its place."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from hvdlab.data import download, synthetic
from hvdlab.data.files import DataError, Dataset, cache_folder, load_cifar10, load_fashion_mnist

Load = Callable[[Path | None], Dataset]
Make = Callable[[Path], Path]  # takes a folder and returns it
EPILOG = """\
examples:
  hvdlab data cifar10                    find or download it
  hvdlab data cifar10 --or-synthetic     ... or make a synthetic data set if there is no network
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab data` to its parser."""
    parser.add_argument("name", choices=("cifar10", "fashion_mnist"))
    parser.add_argument(
        "--dir",
        type=Path,
        help="folder to search and to write to (default: $HVDLAB_DATA, else ~/.cache/hvdlab)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--synthetic", action="store_true", help="make a synthetic data set instead")
    how.add_argument(
        "--or-synthetic",
        action="store_true",
        help="make a synthetic data set if the download fails",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 0, or 1 if the data set cannot be found or made.

    Args:
        args: of the parser of `add_arguments`.
    """
    load, make = {
        "cifar10": (load_cifar10, synthetic.synthetic_cifar10),
        "fashion_mnist": (load_fashion_mnist, synthetic.synthetic_fashion_mnist),
    }[args.name]
    made = args.synthetic
    try:
        try:
            found = _made(load, make, args.dir) if made else _found(load, args)
        except DataError as error:
            if not args.or_synthetic:
                raise
            print(f"hvdlab: {error}", file=sys.stderr)
            made = True
            found = _made(load, make, args.dir)
    except DataError as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1
    kind = "SYNTHETIC data in place of " if found.synthetic else ""
    shape = "x".join(map(str, found.train_images.shape[1:]))
    print(
        f"{kind}{args.name}: {len(found.train_images):,} training and "
        f"{len(found.test_images):,} test images of {shape} in {found.folder}"
    )
    if found.synthetic and not made:
        print(
            "hvdlab: this is a synthetic data set, made earlier; for the real data: "
            f"rm -r {shlex.quote(str(found.folder))} and run this again.",
            file=sys.stderr,
        )
    return 0


def _found(load: Load, args: argparse.Namespace) -> Dataset:
    try:
        return load(args.dir)
    except DataError:
        return load(where_one_may_write(lambda to: download.fetch(args.name, to), args.dir))


def _made(load: Load, make: Make, folder: Path | None) -> Dataset:
    print("Making a SYNTHETIC data set (about 5 s)", file=sys.stderr)
    return load(where_one_may_write(make, folder))


def where_one_may_write(make: Make, folder: Path | None = None) -> Path:
    """Make a data set in a folder where the labs search for it, and return that folder.

    It is `folder`, else $HVDLAB_DATA, else the cache. If $HVDLAB_DATA is a folder that cannot be written to,
    it is the cache, because the labs search there too.

    Args:
        make: takes a folder and writes the data set there.
        folder: default: $HVDLAB_DATA, else the cache.

    Raises:
        DataError: as `make`.
    """
    named = os.environ.get("HVDLAB_DATA")
    try:
        return make(folder or named or cache_folder())
    except DataError as error:
        unwritable = getattr(error.__cause__, "errno", None) in download.UNWRITABLE
        if folder or not named or not unwritable or not Path(named).expanduser().is_dir():
            raise
        print(
            f"hvdlab: HVDLAB_DATA={named} cannot be written to ({error.__cause__.strerror}): the data are "
            f"written to {cache_folder()}, where the labs search next.",
            file=sys.stderr,
        )
        return make(cache_folder())
