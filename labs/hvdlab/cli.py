"""The command `hvdlab`."""

import argparse
import json
import sys
from pathlib import Path

from hvdlab.data import DataError, cache_folder, load_cifar10, load_fashion_mnist

DATA_EPILOG = """\
examples:
  hvdlab data cifar10                    find or download it
  hvdlab data cifar10 --or-synthetic     ... or make a synthetic twin where there is no network
"""
BENCH_EPILOG = """\
example:
  hvdlab bench throughput --repeats 5 --json throughput.json
"""


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="hvdlab",
        description="Commands of the course lab.",
        epilog=DATA_EPILOG + BENCH_EPILOG.removeprefix("example:\n"),
        formatter_class=raw,
    )
    commands = top.add_subparsers(dest="command", required=True)

    data = commands.add_parser(
        "data",
        help="find, download or synthesise a data set",
        description="Say where a data set is; download it if it is nowhere.",
        epilog=DATA_EPILOG,
        formatter_class=raw,
    )
    data.add_argument("name", choices=("cifar10", "fashion_mnist"))
    data.add_argument("--dir", type=Path, help="look and put it there (default: $HVDLAB_DATA, else "
                      "~/.cache/hvdlab)")  # fmt: skip
    how = data.add_mutually_exclusive_group()
    how.add_argument("--synthetic", action="store_true", help="make a synthetic twin instead")
    how.add_argument(
        "--or-synthetic", action="store_true", help="make a synthetic twin if it cannot be had"
    )

    bench = commands.add_parser(
        "bench",
        help="measure this machine",
        description="Images/s at 1 and 2 ranks: Horovod with torch and Keras beside torch DDP.",
        epilog=BENCH_EPILOG,
        formatter_class=raw,
    )
    bench.add_argument("what", choices=("throughput",))
    bench.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    bench.add_argument("--steps", type=int, default=60, help="timed steps a run (default 60)")
    bench.add_argument("--batch-size", type=int, default=64, help="per rank (default 64)")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    return top


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        return {"data": data, "bench": bench}[args.command](args)
    except DataError as error:
        print(f"hvdlab: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("hvdlab: interrupted", file=sys.stderr)
    return 1


def data(args: argparse.Namespace) -> int:
    from hvdlab import download, synthetic

    load, twin = {
        "cifar10": (load_cifar10, synthetic.synthetic_cifar10),
        "fashion_mnist": (load_fashion_mnist, synthetic.synthetic_fashion_mnist),
    }[args.name]
    try:
        if args.synthetic:
            raise DataError("asked for the synthetic twin")
        try:
            found = load(args.dir)
        except DataError:
            download.fetch(args.name, args.dir)
            found = load(args.dir)
    except DataError as error:
        if not (args.synthetic or args.or_synthetic):
            raise
        if args.or_synthetic:
            print(f"hvdlab: {error}", file=sys.stderr)
        print("Making a SYNTHETIC twin (about 5 s)", file=sys.stderr)
        found = load(twin(args.dir or cache_folder()))
    kind = "SYNTHETIC twin of " if found.synthetic else ""
    shape = "x".join(map(str, found.train_images.shape[1:]))
    print(
        f"{kind}{args.name}: {len(found.train_images):,} training and "
        f"{len(found.test_images):,} test images of {shape} in {found.folder}"
    )
    return 0


def bench(args: argparse.Namespace) -> int:
    from rich.console import Console

    from hvdlab import bench

    if min(args.repeats, args.steps, args.batch_size) < 1:
        print("hvdlab: --repeats, --steps and --batch-size must be at least 1", file=sys.stderr)
        return 2
    try:
        rates = bench.throughput(
            repeats=args.repeats,
            steps=args.steps,
            batch_size=args.batch_size,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except bench.BenchFailed as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1
    bench.show(rates, args.batch_size, Console())
    if args.json:
        args.json.write_text(json.dumps({"batch_size": args.batch_size, "rates": rates}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
