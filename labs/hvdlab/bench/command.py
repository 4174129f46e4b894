"""`hvdlab bench`: measure this machine, side by side with a peer in the same run."""

import argparse
import sys
from importlib import import_module

from hvdlab.arguments import positive
from hvdlab.bench.ranks import BenchFailed
from hvdlab.bench.results import add_device, add_rounds
from hvdlab.system.rank_limit import too_many_ranks

EPILOG = """\
examples:
  hvdlab bench throughput --repeats 5 --json throughput.json
  hvdlab bench optimizers --network resnet50 --threads 1 2
  hvdlab bench launch --repeats 5
"""

# Name -> (module with EPILOG, add_arguments(parser) and main(args) -> exit code, one line of help).
COMMANDS = {
    "throughput": (
        "hvdlab.bench.throughput",
        "images/s at 1 and 2 ranks: Horovod with torch and Keras, torch DDP, and the limit",
    ),
    "launch": (
        "hvdlab.bench.launch",
        "the effect of each setting of `hvdlab run`, Open MPI and Horovod on a training step",
    ),
    "exchange": (
        "hvdlab.bench.exchange",
        "what an exchange of gradients costs, and where: Keras 3, legacy Keras, torch",
    ),
    "allreduce": (
        "hvdlab.bench.allreduce",
        "seconds and bandwidth of an all-reduce: Horovod, MPI, gloo or NCCL, and its settings",
    ),
    "scaling": ("hvdlab.bench.scaling", "images/s of 1 to N ranks, strong and weak, and predicted"),
    "precision": ("hvdlab.bench.precision", "images/s in float32, TF32 (GPUs) and bfloat16"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark, with its arguments."""
    what = parser.add_subparsers(dest="what", required=True)
    # These two have their arguments here, because the module of the optimizers imports a framework.
    optimizers = what.add_parser(
        "optimizers", help="step time of LARS, LAMB and NovoGrad, and of other packages'"
    )
    normalization = what.add_parser(
        "normalization", help="ghost batch norm compared with the framework's batch norm"
    )
    for one in optimizers, normalization:
        add_rounds(one, 20)
        add_device(one)
        one.set_defaults(measure=_measure)
    networks = ("resnet50", "transformer")
    optimizers.add_argument(
        "--network", choices=networks, nargs="+", default=networks, help="(default: both)"
    )
    optimizers.add_argument(
        "--threads",
        type=positive,
        nargs="+",
        help="on a processor (default: 1, 2 and 4, if there are as many cores)",
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
    """Run the benchmark that the user chose, and return its exit code; 1 if a variant failed."""
    ranks = getattr(args, "ranks", None)
    if ranks and not args.force and (sentence := too_many_ranks(ranks, "--ranks")):
        print(f"hvdlab: {sentence}", file=sys.stderr)
        return 2
    try:
        return args.measure(args)
    except BenchFailed as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1


def _measure(args: argparse.Namespace) -> int:
    return import_module(f"hvdlab.bench.{args.what}").main(args)
