"""What each setting of `hvdlab run` does for a training step on two ranks.

The assessment network trains under Horovod with the full set of settings, with one of them taken away
at a time, and with none of them, as a plain `mpirun -np 2 python` does. The launches take turns; a
ratio is to the full set of its round.
"""

import argparse
import os

from rich.console import Console
from rich.table import Table

from hvdlab import launch, open_mpi
from hvdlab.bench import ranks, results

EPILOG = """\
examples:
  hvdlab bench launch --repeats 5 --json launch.json
  hvdlab bench launch --framework keras
"""
RANKS = 2
FULL = "all settings"
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
BINDING = ("PRTE_MCA_hwloc_default_binding_policy",)
YIELDING = ("OMPI_MCA_mpi_yield_when_idle",)
# Label -> the variables of `launch.environment` that are not set.
WITHOUT = {
    FULL: (),
    "default threads": THREADS,
    "default binding": BINDING,
    "no idle yielding": YIELDING,
    "plain mpirun": THREADS + BINDING + YIELDING,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results.add_rounds(parser, 5)
    results.add_steps(parser)
    parser.add_argument("--framework", choices=("torch", "keras"), default="torch")


def main(args: argparse.Namespace) -> int:
    found = launch_settings(
        args.framework, args.repeats, args.steps, args.batch_size, tell=results.tell
    )
    results.keep(args, found)
    show(found, args.framework, args.batch_size, Console())
    return 0


def launch_settings(
    framework: str = "torch", repeats: int = 5, steps: int = 60, batch_size: int = 64, tell=print
) -> dict:
    """Label -> images/s of both ranks together, a figure a round."""
    found = {label: [] for label in WITHOUT}
    settings = launch.environment(RANKS)
    for repeat in range(repeats):
        for label, without in WITHOUT.items():
            without = open_mpi.spelled(dict.fromkeys(without, ""))
            variables = {
                # What the user has set is not measured here.
                **{name: value for name, value in os.environ.items() if name not in settings},
                **{name: value for name, value in settings.items() if name not in without},
            }
            told = ranks.start(
                "hvdlab.bench.throughput",
                RANKS,
                variables,
                f"horovod-{framework}",
                steps,
                batch_size,
            )
            found[label].append(sum(rank["images_per_second"] for rank in told))
            tell(f"round {repeat + 1} of {repeats}: {label}: {found[label][-1]:,.0f} images/s")
    return found


def show(found: dict, framework: str, batch_size: int, console: Console) -> None:
    """Medians with their range, and the ratio to the full set of the same round."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("launch", "images/s", "min .. max", "ratio", "min .. max"):
        table.add_column(title, justify="left" if title == "launch" else "right")
    for label, rates in found.items():
        ratios = [rate / full for rate, full in zip(rates, found[FULL], strict=True)]
        table.add_row(
            label,
            *results.median_and_range(rates, ",.0f"),
            *results.median_and_range(ratios, ".2f"),
        )
    console.print(
        f"Medians of {len(found[FULL])} rounds, {framework}, {RANKS} ranks, {batch_size} images a rank; "
        f"ratio: to {FULL}"
    )
    console.print(table)
