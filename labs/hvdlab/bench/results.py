"""What the benchmarks have in common: rounds, steps, progress, and the files that hold the figures."""

import argparse
import json
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path

from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights


def add_rounds(parser: argparse.ArgumentParser, rounds: int) -> None:
    """`--repeats` and `--json`, which every benchmark has."""
    parser.add_argument("--repeats", type=count, default=rounds, help=f"rounds (default {rounds})")
    parser.add_argument("--json", type=result, metavar="FILE", help="write all figures to FILE")


def add_steps(parser: argparse.ArgumentParser, steps: int = 60) -> None:
    """`--steps` and `--batch-size`, of those that train."""
    parser.add_argument(
        "--steps", type=count, default=steps, help=f"timed steps a run (default {steps})"
    )
    parser.add_argument("--batch-size", type=count, default=64, help="per rank (default 64)")


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`, of those that can measure GPUs; see `ranks.chosen_device`."""
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), help="(default: gpu, if there is one for each rank)"
    )


def add_network(parser: argparse.ArgumentParser) -> None:
    """`--network`, of those that train a network of the assessment."""
    parser.add_argument(
        "--network", type=network, default=ASSESSMENT_NET,
        help=f"{ASSESSMENT_NET} (default), or wrn-DEPTH-WIDTH such as wrn-16-10",
    )  # fmt: skip


def add_plot(parser: argparse.ArgumentParser) -> None:
    """`--plot`, of those that draw."""
    parser.add_argument(
        "--plot", type=figure, metavar="FILE", help="draw them into FILE (.png, .svg, .pdf)"
    )


def count(text: str) -> int:
    """The type of an argument that is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def network(text: str) -> str:
    """The type of an argument that names a network of the assessment."""
    try:
        network_weights(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def result(text: str) -> Path:
    """The type of an argument that names a file to write: better to know before an hour of measuring."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text!r}")
    return path


def figure(text: str) -> Path:
    """The type of an argument that names a figure to draw."""
    path = result(text)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"expected a .png, .svg or .pdf, got {text!r}")
    if not find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("figures need matplotlib: run `make setup`")
    return path


def tell(text: str) -> None:
    """The progress of a benchmark, a line a run."""
    print(text, file=sys.stderr, flush=True)


def median_and_range(values, form: str) -> tuple[str, str]:
    """Two cells of a table: the median, and the least and the greatest value."""
    return f"{statistics.median(values):{form}}", f"{min(values):{form}} .. {max(values):{form}}"


def devices(found: dict[str, dict]) -> str:
    """A line for each device: its name, and what was measured on it. `found`: label -> {"device": name}."""
    by_name: dict[str, list[str]] = {}
    for label, measured in found.items():
        by_name.setdefault(measured["device"], []).append(label)
    return "\n".join(f"On {name}: {', '.join(labels)}" for name, labels in by_name.items())


def keep(args: argparse.Namespace, found, plot=None) -> None:
    """Write what was measured, with the arguments, to `args.json`, and draw it into `args.plot`."""
    if args.json:
        plain = (int, float, str, bool, list, tuple)
        settings = {name: value for name, value in vars(args).items() if isinstance(value, plain)}
        args.json.write_text(json.dumps({**settings, "measured": found}, indent=2))
    if plot and args.plot:
        plot(found, args.plot)
