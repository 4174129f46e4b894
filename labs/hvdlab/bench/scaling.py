"""Measure strong and weak scaling of the assessment network with Horovod, from 1 rank to all cores or GPUs.

Each rank has one thread, and so has a single rank: with two threads it would look faster than it is. For each
number of ranks the benchmark also trains as many ranks without an exchange. Their speed is the limit of this
machine, because its cores share memory and clock. The ratio to the limit shows the cost of the exchange. The
ranks are those of `hvdlab.bench.throughput`. The runs take turns.

    weak      each rank has the same batch, so the batch of all ranks grows with their number
    strong    all ranks together have the same batch
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from rich.console import Console

from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights
from hvdlab.bench import ranks as launched
from hvdlab.bench import results, throughput
from hvdlab.record import is_statistic
from hvdlab.scaling import Cluster, Forecast, Link, Network, calibrate, forecast

EPILOG = """\
examples:
  hvdlab bench scaling                              1 to all cores, five rounds
  hvdlab bench scaling --json scaling.json --plot scaling.png
  hvdlab bench allreduce --json allreduce.json && hvdlab bench scaling --allreduce allreduce.json
"""

# How the ranks train -> the variant of `throughput`.
HOWS = {"exchanged": "horovod-torch", "alone": "alone-torch"}


def rank_counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most`."""
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def scaling(most: int, training: launched.Training) -> dict[str, dict[int, dict]]:
    """Measure images/s of 1 to `most` ranks, with and without an exchange, in turns.

    Args:
        most: largest number of ranks.

    Returns:
        "weak" and "strong" -> {ranks: {"batch_size": images per rank, "exchanged": [images/s], "alone":
        [images/s]}}, one number per round.

    Raises:
        ranks.BenchFailed: a run failed.
    """
    counts = rank_counts(most)
    batches = {"weak": {n: training.batch_size for n in counts}}
    batches["strong"] = {n: training.batch_size * most // n for n in counts}
    measured = launched.rates_in_turns(
        {
            (n, size, how): f"{n} ranks x {size} images, {how}"
            for by_ranks in batches.values() for n, size in by_ranks.items() for how in HOWS
        },
        lambda run: launched.run(
            throughput.__name__, run[0], HOWS[run[2]], training.steps, run[1], training.network,
            device=training.device,
        ),
        training,
    )  # fmt: skip
    return {
        kind: {
            n: {"batch_size": size, **{how: measured[n, size, how]["rates"] for how in HOWS}}
            for n, size in by_ranks.items()
        }
        for kind, by_ranks in batches.items()
    }


def link_of(measured: dict) -> Link:
    """Return the link between ranks as `hvdlab bench allreduce` measured it.

    Its latency includes Horovod's cycle, because the benchmark measured Horovod's all-reduce.
    """
    times = measured["ways"]["horovod"]
    sizes = [int(nbytes) for nbytes in times for _ in times[nbytes]]
    return calibrate(sizes, [s for of_size in times.values() for s in of_size], measured["ranks"])


def predict(
    found: dict, link: Link, network: str = ASSESSMENT_NET
) -> dict[str, dict[int, Forecast]]:
    """Return what the cost model predicts from a link and from ranks without an exchange.

    The model assumes that computation and exchange do not overlap, because the same cores do both here.

    Returns:
        "weak" and "strong" -> {ranks: prediction}.
    """
    shapes = network_weights(network).items()
    parameters = sum(math.prod(shape) for name, shape in shapes if not is_statistic(name))
    predicted: dict = {}
    for kind, by_ranks in found.items():
        for n, rates in by_ranks.items():
            without_exchange = statistics.median(rates["alone"]) / int(n)
            layers = Network(((parameters, 1),), without_exchange, rates["batch_size"])
            predicted.setdefault(kind, {})[n] = forecast(
                layers, Cluster(link), int(n), overlap=False, cycle=0
            )
    return predicted


def show(found: dict, console: Console, predicted: dict | None = None) -> None:
    """Print medians of the rounds. Speed-up, efficiency and ratio are medians of those of the rounds."""
    median = statistics.median
    more = ["predicted", "off by"] if predicted else []
    titles = ["ranks", "batch", "images/s", "min .. max", "speed-up", "eff.", "alone", "ratio"]
    for kind, by_ranks in found.items():
        table = results.table([], [*titles, *more], narrow=True)
        one = by_ranks[min(by_ranks)]["exchanged"]
        for n, rates in by_ranks.items():
            together = rates["exchanged"]
            speed_up = median(results.ratios(together, one))
            row = [
                str(n),
                str(rates["batch_size"]),
                *results.median_and_range(together, ",.0f"),
                f"{speed_up:.2f}",
                f"{speed_up / int(n):.2f}",
                f"{median(rates['alone']):,.0f}",
                results.median_ratio(together, rates["alone"]),
            ]
            if predicted:
                speed = predicted[kind][n].images_per_second
                row += [f"{speed:,.0f}", f"{speed / median(together) - 1:+.1%}"]
            table.add_row(*row)
        console.print(
            f"{kind.capitalize()} scaling, one thread per rank, medians of {len(one)} rounds; "
            "eff.: speed-up / ranks; alone: images/s without an exchange"
        )
        console.print(table)


def plot(found: dict, path: Path) -> None:
    """Draw the speed-up over one rank, with and without an exchange, into a file."""
    with results.drawing(path) as axes:
        for kind, by_ranks in found.items():
            counts = [int(n) for n in by_ranks]
            one = by_ranks[min(by_ranks)]["exchanged"]
            for how, style in ("exchanged", "o-"), ("alone", ":"):
                ups = [results.ratios(rates[how], one) for rates in by_ranks.values()]
                middle = [statistics.median(up) for up in ups]
                low = [m - min(up) for m, up in zip(middle, ups, strict=True)]
                high = [max(up) - m for m, up in zip(middle, ups, strict=True)]
                label = f"{kind}, {how}"
                axes.errorbar(counts, middle, [low, high], fmt=style, capsize=3, label=label)
        axes.plot(counts, counts, "k--", linewidth=1, label="perfect")
        axes.set(xlabel="ranks", ylabel="speed-up", xticks=counts)


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab bench scaling`."""
    results.add_ranks(parser, "largest number (default: all GPUs, or all cores)")
    parser.add_argument(
        "--allreduce", type=Path, metavar="FILE",
        help="predict the speed from the file that `hvdlab bench allreduce --json` wrote",
    )  # fmt: skip
    results.add_training(parser, "images per rank; strong: of the largest run")
    results.add_plot(parser)


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench scaling` and return its exit code."""
    try:
        link = None
        if args.allreduce:  # read now, because the measurement takes minutes
            text = args.allreduce.read_text(encoding="utf-8")
            link = link_of(json.loads(text)["measured"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(
            f"hvdlab: --allreduce: expected a file that `hvdlab bench allreduce --json` wrote, got "
            f"{args.allreduce} ({error})",
            file=sys.stderr,
        )
        return 2
    args.ranks = args.ranks or launched.ranks_of_all(args.device)
    args.device = launched.chosen_device(args.device, args.ranks)
    found = scaling(args.ranks, launched.Training.of(args))
    results.keep(args, found, plot)
    show(found, Console(), predict(found, link, args.network) if link else None)
    return 0
