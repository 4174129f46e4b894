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
examples:
  hvdlab bench throughput --repeats 5 --json throughput.json
  hvdlab bench optimizers --network resnet50 --threads 1 2
"""


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="hvdlab",
        description="Commands of the course lab.",
        epilog=DATA_EPILOG + BENCH_EPILOG.removeprefix("examples:\n"),
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
        description="Measure this machine, side by side with a peer in the same run.",
        epilog=BENCH_EPILOG,
        formatter_class=raw,
    )
    what = bench.add_subparsers(dest="what", required=True)
    throughput = what.add_parser(
        "throughput", help="images/s at 1 and 2 ranks: Horovod with torch and Keras, torch DDP"
    )
    optimizers = what.add_parser(
        "optimizers", help="step time of LARS, LAMB and NovoGrad beside other packages'"
    )
    normalization = what.add_parser(
        "normalization", help="ghost batch norm beside the framework's batch norm"
    )
    exchange = what.add_parser(
        "exchange", help="what an exchange of gradients costs: Keras 3, legacy Keras, torch"
    )
    for one, rounds in (throughput, 5), (optimizers, 20), (normalization, 20), (exchange, 5):
        one.add_argument(
            "--repeats", type=_count, default=rounds, help=f"rounds (default {rounds})"
        )
        one.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    for one in throughput, exchange:
        one.add_argument("--steps", type=_count, default=60, help="timed steps a run (default 60)")
        one.add_argument("--batch-size", type=_count, default=64, help="per rank (default 64)")
    networks = ("resnet50", "transformer")
    optimizers.add_argument(
        "--network", choices=networks, nargs="+", default=networks, help="(default: both)"
    )
    optimizers.add_argument(
        "--threads", type=_count, nargs="+", default=[1, 2], help="(default: 1 2)"
    )
    return top


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


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

    from hvdlab.bench.ranks import BenchFailed

    def tell(text):
        print(text, file=sys.stderr, flush=True)

    console = Console()
    try:
        if args.what == "throughput":
            from hvdlab.bench.throughput import show, throughput

            found = throughput(
                repeats=args.repeats, steps=args.steps, batch_size=args.batch_size, tell=tell
            )
            show(found, args.batch_size, console)
        elif args.what == "optimizers":
            from hvdlab.bench.optimizers import optimizer_steps, show

            found = optimizer_steps(args.network, args.threads, args.repeats, tell)
            show(found, console)
        elif args.what == "normalization":
            from hvdlab.bench.normalization import normalization, show

            found = normalization(args.repeats, tell)
            show(found, console)
        else:
            from hvdlab.bench.exchange import exchange, show

            found = exchange(args.repeats, args.steps, args.batch_size, tell)
            show(found, args.batch_size, console)
    except BenchFailed as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        args.json.write_text(json.dumps({**settings, "measured": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
