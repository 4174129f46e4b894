"""Does the assessment network train faster in bfloat16 or in float32 on one core of this machine?

`hvdlab.hardware.cpu_is_fast_at_bfloat16` decides by the processor's name and flags; here it is measured.
Each run is a process of its own (`python -m hvdlab.bench.precision FRAMEWORK PRECISION STEPS BATCH_SIZE`)
with one thread; they take turns, and a ratio is to float32 in the same round.
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks, results
from hvdlab.bench.throughput import random_batches
from hvdlab.hardware import cpu_is_fast_at_bfloat16

EPILOG = """\
examples:
  hvdlab bench precision --repeats 5 --json precision.json
"""
FRAMEWORKS = ("torch", "keras")
PRECISIONS = ("float32", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results.add_rounds(parser, 5)
    results.add_steps(parser)


def main(args: argparse.Namespace) -> int:
    found = precision(args.repeats, args.steps, args.batch_size, tell=results.tell)
    results.keep(args, found)
    show(found, args.batch_size, Console())
    return 0


def precision(repeats: int = 5, steps: int = 60, batch_size: int = 64, tell=print) -> dict:
    """Framework -> precision -> images/s, a figure a round."""
    found = {framework: {name: [] for name in PRECISIONS} for framework in FRAMEWORKS}
    for repeat in range(repeats):
        for framework in FRAMEWORKS:
            for name in PRECISIONS:
                [told] = ranks.run(__name__, 1, framework, name, steps, batch_size)
                rate = told["images_per_second"]
                found[framework][name].append(rate)
                tell(f"round {repeat + 1} of {repeats}: {framework}, {name}: {rate:,.0f} images/s")
    return found


def show(found: dict, batch_size: int, console: Console) -> None:
    """Medians with their range, the ratio to float32 of the same round, and what the labs take."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("framework", "precision", "images/s", "min .. max", "ratio", "min .. max"):
        table.add_column(title, justify="left" if title in ("framework", "precision") else "right")
    for framework, by_precision in found.items():
        for name, rates in by_precision.items():
            ratios = [
                rate / float32 for rate, float32 in zip(rates, by_precision["float32"], strict=True)
            ]
            table.add_row(
                framework,
                name,
                *results.median_and_range(rates, ",.0f"),
                *results.median_and_range(ratios, ".2f"),
            )
    rounds = len(found["torch"]["float32"])
    console.print(
        f"Medians of {rounds} rounds, one process, one thread, batch {batch_size}; ratio: to float32"
    )
    console.print(table)
    taken = "bfloat16" if cpu_is_fast_at_bfloat16() else "float32"
    console.print(f"On this processor the labs take {taken}.")


def one_run(framework: str, precision: str, steps: str, batch_size: str) -> None:
    """One process: train for some steps and tell the speed."""
    batches = random_batches(int(batch_size), 0, 1)
    if framework == "torch":
        import torch

        from hvdlab.torch.throughput import measure

        def autocast(device):
            return torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")

        rate = measure(batches, lambda: None, steps=int(steps), autocast=autocast)[1]
    else:
        from hvdlab.keras.throughput import measure

        policy = {"float32": "float32", "bfloat16": "mixed_bfloat16"}[precision]
        rate = measure(batches, lambda: None, steps=int(steps), policy=policy)[1]
    ranks.tell({"images_per_second": rate})


if __name__ == "__main__":
    one_run(*sys.argv[1:])
