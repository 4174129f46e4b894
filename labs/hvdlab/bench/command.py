"""`hvdlab bench`: measure this machine, side by side with a peer in the same run."""

import argparse
import sys
from importlib import import_module

from rich.console import Console

from hvdlab.bench.ranks import BenchFailed
from hvdlab.bench.results import add_rounds, add_steps, count, keep, tell

EPILOG = """\
examples:
  hvdlab bench throughput --repeats 5 --json throughput.json
  hvdlab bench optimizers --network resnet50 --threads 1 2
  hvdlab bench launch --repeats 5
"""

# Name -> module with add_arguments(parser) and main(args) -> exit code; one line of help.
COMMANDS = {
    "launch": (
        "hvdlab.bench.launch",
        "the effect of each setting of `hvdlab run` on a training step",
    ),
    "allreduce": (
        "hvdlab.bench.allreduce",
        "seconds and bandwidth of an all-reduce: Horovod, MPI, gloo, and its settings",
    ),
    "scaling": ("hvdlab.bench.scaling", "images/s of 1 to N ranks, strong and weak, and foretold"),
    "precision": ("hvdlab.bench.precision", "images/s in float32 and in bfloat16"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", required=True)
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
        add_rounds(one, rounds)
        one.set_defaults(measure=_measure)
    for one in throughput, exchange:
        add_steps(one)
    networks = ("resnet50", "transformer")
    optimizers.add_argument(
        "--network", choices=networks, nargs="+", default=networks, help="(default: both)"
    )
    optimizers.add_argument(
        "--threads", type=count, nargs="+", default=[1, 2], help="(default: 1 2)"
    )
    for name, (module, text) in COMMANDS.items():
        module = import_module(module)
        one = what.add_parser(
            name,
            help=text,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(one)
        one.set_defaults(measure=module.main)


def main(args: argparse.Namespace) -> int:
    try:
        return args.measure(args)
    except BenchFailed as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1


def _measure(args):
    if args.what == "throughput":
        from hvdlab.bench.throughput import show, throughput

        found = throughput(
            repeats=args.repeats, steps=args.steps, batch_size=args.batch_size, tell=tell
        )
    elif args.what == "optimizers":
        from hvdlab.bench.optimizers import optimizer_steps, show

        found = optimizer_steps(args.network, args.threads, args.repeats, tell)
    elif args.what == "normalization":
        from hvdlab.bench.normalization import normalization, show

        found = normalization(args.repeats, tell)
    else:
        from hvdlab.bench.exchange import exchange, show

        found = exchange(args.repeats, args.steps, args.batch_size, tell)
    keep(args, found)
    batch_size = [args.batch_size] if "batch_size" in args else []
    show(found, *batch_size, Console())
    return 0
