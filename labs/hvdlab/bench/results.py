"""What the benchmarks share: arguments, ratios of rounds, tables, figures and result files."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.table import Table

from hvdlab.arguments import file_to_write, positive
from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights
from hvdlab.system import file_system

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Name = TypeVar("Name")

# --- arguments of several benchmarks ----------------------------------------------------------------


def add_rounds(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add `--repeats` (default: `rounds`) and `--json`, which every benchmark has."""
    parser.add_argument(
        "--repeats", type=positive, default=rounds, help=f"number of rounds (default {rounds})"
    )
    parser.add_argument(
        "--json", type=file_to_write, metavar="FILE", help="write all figures to FILE"
    )


def add_ranks(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--ranks` and `--force`, for benchmarks whose number of ranks can be chosen."""
    parser.add_argument("--ranks", type=positive, help=what)
    parser.add_argument(
        "--force", action="store_true", help="start more ranks than this machine has room for"
    )


def add_steps(
    parser: argparse.ArgumentParser, steps: int = 60, batch_help: str = "images per rank"
) -> None:
    """Add `--steps` and `--batch-size`, for benchmarks that train.

    Args:
        steps: default of `--steps`.
    """
    parser.add_argument(
        "--steps", type=positive, default=steps, help=f"timed steps per run (default {steps})"
    )
    parser.add_argument(
        "--batch-size", type=positive, default=64, help=f"{batch_help} (default 64)"
    )


def add_training(parser: argparse.ArgumentParser, batch_help: str = "images per rank") -> None:
    """Add the arguments of benchmarks that measure images/s; see `ranks.Training`."""
    add_rounds(parser, 5)
    add_steps(parser, batch_help=batch_help)
    add_network(parser)
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device`, for benchmarks that can measure GPUs; see `ranks.chosen_device`."""
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), help="(default: gpu, if there is one for each rank)"
    )


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add `--network`, for benchmarks that train a network of the assessment."""
    parser.add_argument(
        "--network", type=network, default=ASSESSMENT_NET,
        help=f"{ASSESSMENT_NET} (default), or wrn-DEPTH-WIDTH such as wrn-16-10",
    )  # fmt: skip


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add `--plot`, for benchmarks that draw a figure."""
    parser.add_argument(
        "--plot", type=figure, metavar="FILE", help="draw the figures into FILE (.png, .svg, .pdf)"
    )


def network(text: str) -> str:
    """Return `text` if it names a network of the assessment; an argparse type."""
    try:
        network_weights(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def figure(text: str) -> Path:
    """Return the path of a figure that can be drawn; an argparse type."""
    path = file_to_write(text)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"expected a .png, .svg or .pdf, got {text!r}")
    if not find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("figures need matplotlib: run `make setup`")
    return path


# --- figures of the rounds --------------------------------------------------------------------------


def tell(text: str) -> None:
    """Print one line of progress to stderr, so that stdout holds only the results."""
    print(text, file=sys.stderr, flush=True)


def milliseconds_in_turns(
    steps: Mapping[Name, Callable[[], object]],
    repeats: int,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, list[float]]:
    """Time steps that take turns, so that a machine that becomes slower slows down all of them.

    Args:
        steps: name -> the step, which returns when the device has completed it.
        repeats: number of timed steps of each name.
        warm_up: number of steps of each name before that.
        clock: returns the seconds since some moment. Default: the time that passes.

    Returns:
        Name -> [milliseconds per step].
    """
    times: dict[Name, list[float]] = {name: [] for name in steps}
    for number in range(warm_up + repeats):
        for name, step in steps.items():
            started = clock()
            step()
            if number >= warm_up:
                times[name].append(1000 * (clock() - started))
    return times


def ratios(values: Iterable[float], peers: Iterable[float]) -> list[float]:
    """Return `values` divided by `peers`, round by round: both were measured in the same rounds."""
    return [value / peer for value, peer in zip(values, peers, strict=True)]


def median_ratio(values: Iterable[float], peers: Iterable[float]) -> str:
    """Return one cell of a table: the median of the ratios of the rounds."""
    return f"{statistics.median(ratios(values, peers)):.2f}"


def median_and_range(values: Sequence[float], form: str) -> tuple[str, str]:
    """Return two cells of a table: the median, and the smallest and the largest value.

    Args:
        values: one number per round.
        form: format of each number, such as ".1f".
    """
    return f"{statistics.median(values):{form}}", f"{min(values):{form}} .. {max(values):{form}}"


def table(left: Sequence[str], right: Sequence[str], narrow: bool = False) -> Table:
    """Return an empty table.

    Args:
        narrow: put one space between columns in place of two, so that many columns fit into 80
            characters.
    """
    empty = Table(box=None, header_style="dim", padding=(0, 1, 0, 0) if narrow else (0, 1))
    for title in left:
        empty.add_column(title)
    for title in right:
        empty.add_column(title, justify="right", no_wrap=True)
    return empty


def devices(names: dict[str, str]) -> str:
    """Return one line per device: its name, and what was measured on it.

    Args:
        names: label of a measurement -> name of its device.
    """
    labels: dict[str, list[str]] = {}
    for label, name in names.items():
        labels.setdefault(name, []).append(label)
    return "\n".join(f"On {name}: {', '.join(measured)}" for name, measured in labels.items())


@contextmanager
def drawing(path: Path) -> "Iterator[Axes]":
    """Yield the axes of a figure in the style of the course; write the figure to `path` at the end."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.style.use("hvdlab.lab")
    drawn, axes = plt.subplots()
    yield axes
    axes.legend()
    drawn.savefig(path)
    plt.close(drawn)


def keep(
    args: argparse.Namespace,
    measured: dict | list,
    plot: Callable[[dict, Path], None] | None = None,
) -> None:
    """Write the figures and the arguments to `args.json`, and draw the figures into `args.plot`.

    Args:
        plot: draws `measured` into a file. Default: there is no figure.
    """
    if args.json:
        plain = (int, float, str, bool, list, tuple)
        settings = {name: value for name, value in vars(args).items() if isinstance(value, plain)}
        text = json.dumps({**settings, "measured": measured}, indent=2)
        file_system.write_text(args.json, text)
    if plot and args.plot:
        plot(measured, args.plot)
