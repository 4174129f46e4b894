"""Strong and weak scaling of the assessment network with Horovod, on 1 to all cores, or all GPUs.

One thread a rank, also for one rank: two would fake its speed. Each number of ranks also runs without
an exchange: what that many lonely trainings reach at once is the bound of this machine (its cores
share memory and clock), and the ratio to it is what the exchange costs. The ranks are those of
`hvdlab.bench.throughput`, started for each figure, in turns.

    weak      each rank has the same batch, whatever their number
    strong    all ranks together have the same batch
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

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
    """1, 2, 4, ... and the largest."""
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def scaling(
    most: int,
    repeats: int = 5,
    steps: int = 60,
    batch_size: int = 64,
    tell=print,
    network: str = ASSESSMENT_NET,
    device: str = "cpu",
) -> dict[str, dict[int, dict]]:
    """kind -> ranks -> {"batch_size": of a rank, "exchanged": [images/s], "alone": [images/s]}.

    `batch_size` is that of a rank in weak scaling, and in strong scaling that of a rank of `most`.
    """
    counts = rank_counts(most)
    batches = {"weak": {n: batch_size for n in counts}}
    batches["strong"] = {n: batch_size * most // n for n in counts}
    runs = {(n, size): {how: [] for how in HOWS} for b in batches.values() for n, size in b.items()}
    for repeat in range(repeats):
        for (n, size), rates in runs.items():
            for how in rates:
                told = launched.run(
                    throughput.__name__, n, HOWS[how], steps, size, network, device=device
                )
                rates[how].append(sum(rank["images_per_second"] for rank in told))
                tell(
                    f"round {repeat + 1} of {repeats}: {n} ranks x {size} images, {how}: "
                    f"{rates[how][-1]:,.0f} images/s"
                )
    return {
        kind: {n: {"batch_size": size, **runs[n, size]} for n, size in of_kind.items()}
        for kind, of_kind in batches.items()
    }


def link_of(measured: dict) -> Link:
    """The link between ranks as `hvdlab bench allreduce` measured it.

    Horovod's cycle is inside the latency, for it was Horovod's all-reduce that was timed.
    """
    times = measured["ways"]["horovod"]
    sizes = [int(nbytes) for nbytes in times for _ in times[nbytes]]
    return calibrate(sizes, [s for of_size in times.values() for s in of_size], measured["ranks"])


def predict(
    found: dict, link: Link, network: str = ASSESSMENT_NET
) -> dict[str, dict[int, Forecast]]:
    """What the cost model says, from a link and from lonely ranks.

    The same cores compute and exchange here, so nothing overlaps.
    """
    shapes = network_weights(network).items()
    parameters = sum(math.prod(shape) for name, shape in shapes if not is_statistic(name))
    told: dict = {}
    for kind, by_ranks in found.items():
        for n, rates in by_ranks.items():
            lonely = statistics.median(rates["alone"]) / int(n)
            layers = Network(((parameters, 1),), lonely, rates["batch_size"])
            told.setdefault(kind, {})[n] = forecast(
                layers, Cluster(link), int(n), overlap=False, cycle=0
            )
    return told


def show(found: dict, console: Console, told: dict | None = None) -> None:
    """Medians of the rounds; speed-up, efficiency and ratios are medians of those of the rounds."""
    median = statistics.median
    for kind, by_ranks in found.items():
        table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))  # fits into 80 columns
        more = ("predicted", "off by") if told else ()
        for title in ("ranks", "batch", "images/s", "min .. max", "speed-up", "eff.",
                      "alone", "ratio", *more):  # fmt: skip
            table.add_column(title, justify="right", no_wrap=True)
        one = by_ranks[min(by_ranks)]["exchanged"]
        for n, rates in by_ranks.items():
            together = rates["exchanged"]
            faster = median(t / o for t, o in zip(together, one, strict=True))
            ratio = median(t / a for t, a in zip(together, rates["alone"], strict=True))
            row = [
                str(n),
                str(rates["batch_size"]),
                *results.median_and_range(together, ",.0f"),
                f"{faster:.2f}",
                f"{faster / int(n):.2f}",
                f"{median(rates['alone']):,.0f}",
                f"{ratio:.2f}",
            ]
            if told:
                predicted = told[kind][n].images_per_second
                row += [f"{predicted:,.0f}", f"{predicted / median(together) - 1:+.1%}"]
            table.add_row(*row)
        console.print(
            f"{kind.capitalize()} scaling, one thread a rank, medians of {len(one)} rounds; "
            "eff.: speed-up / ranks; alone: images/s without an exchange"
        )
        console.print(table)


def plot(found: dict, path: Path) -> None:
    """Speed-up over one rank, with and without an exchange."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.style.use("hvdlab.lab")
    figure, axes = plt.subplots()
    for kind, by_ranks in found.items():
        counts = [int(n) for n in by_ranks]
        one = by_ranks[min(by_ranks)]["exchanged"]
        for how, style in ("exchanged", "o-"), ("alone", ":"):
            ups = [
                [rate / first for rate, first in zip(rates[how], one, strict=True)]
                for rates in by_ranks.values()
            ]
            middle = [statistics.median(up) for up in ups]
            low = [m - min(up) for m, up in zip(middle, ups, strict=True)]
            high = [max(up) - m for m, up in zip(middle, ups, strict=True)]
            axes.errorbar(counts, middle, [low, high], fmt=style, capsize=3, label=f"{kind}, {how}")
    axes.plot(counts, counts, "k--", linewidth=1, label="perfect")
    axes.set(xlabel="ranks", ylabel="speed-up", xticks=counts)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=results.count, help="largest number (default: all GPUs, or all cores)"
    )
    for name, default, says in (
        ("--steps", 60, "timed steps a run"),
        ("--batch-size", 64, "images a rank (strong: of the most ranks)"),
    ):
        parser.add_argument(
            name, type=results.count, default=default, help=f"{says} (default {default})"
        )
    parser.add_argument(
        "--allreduce", type=Path, metavar="FILE", help="predict from what bench allreduce wrote"
    )
    results.add_network(parser)
    results.add_device(parser)
    results.add_rounds(parser, 5)
    results.add_plot(parser)


def main(args: argparse.Namespace) -> int:
    try:
        link = None
        if args.allreduce:  # now, and not after minutes of measuring
            link = link_of(json.loads(args.allreduce.read_text())["measured"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(
            f"hvdlab: --allreduce: expected a file that `hvdlab bench allreduce --json` wrote, got "
            f"{args.allreduce} ({error})",
            file=sys.stderr,
        )
        return 2
    args.ranks = args.ranks or launched.ranks_of_all(args.device)
    args.device = launched.chosen_device(args.device, args.ranks)
    found = scaling(
        args.ranks, args.repeats, args.steps, args.batch_size, results.tell, args.network,
        args.device,
    )  # fmt: skip
    results.keep(args, found, plot)
    show(found, Console(), predict(found, link, args.network) if link else None)
    return 0
