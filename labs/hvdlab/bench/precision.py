"""Does the assessment network train faster in bfloat16 or in float32 on this machine?

For a processor `cpu_is_fast_at_bfloat16` (hvdlab.system.hardware) decides by its name and flags. Here one
core is measured. On a GPU float32 is measured with and without TF32. Each run is a process of its own
(`python -m hvdlab.bench.precision FRAMEWORK PRECISION STEPS BATCH_SIZE NETWORK`). The runs take turns, and a
ratio is to float32 in the same round.
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from hvdlab.assessment_networks import ASSESSMENT_NET
from hvdlab.bench import ranks, results
from hvdlab.bench.throughput import random_batches
from hvdlab.system.hardware import cpu_is_fast_at_bfloat16

EPILOG = """\
examples:
  hvdlab bench precision --repeats 5 --json precision.json
  hvdlab bench precision --device gpu --network wrn-16-10 --batch-size 256
"""
FRAMEWORKS = ("torch", "keras")
PRECISIONS = {"cpu": ("float32", "bfloat16"), "gpu": ("float32", "TF32", "bfloat16")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results.add_rounds(parser, 5)
    results.add_steps(parser)
    results.add_network(parser)
    results.add_device(parser)


def main(args: argparse.Namespace) -> int:
    args.device = ranks.chosen_device(args.device, 1)
    found = precision(
        args.repeats, args.steps, args.batch_size, results.tell, args.network, args.device
    )
    results.keep(args, found)
    show(found, args.batch_size, Console(), args.network)
    return 0


def precision(
    repeats: int = 5,
    steps: int = 60,
    batch_size: int = 64,
    tell=print,
    network: str = ASSESSMENT_NET,
    device: str = "cpu",
) -> dict:
    """Framework -> {"device": its name, "rates": precision -> images/s, a figure a round}."""
    found: dict = {
        framework: {"device": "", "rates": {name: [] for name in PRECISIONS[device]}}
        for framework in FRAMEWORKS
    }
    for repeat in range(repeats):
        for framework, measured in found.items():
            for name, rates in measured["rates"].items():
                [told] = ranks.run(
                    __name__, 1, framework, name, steps, batch_size, network, device=device
                )
                rate, measured["device"] = told["images_per_second"], told["device"]
                rates.append(rate)
                tell(f"round {repeat + 1} of {repeats}: {framework}, {name}: {rate:,.0f} images/s")
    return found


def show(found: dict, batch_size: int, console: Console, network: str = ASSESSMENT_NET) -> None:
    """Medians with their range, the ratio to float32 of the same round, and what the labs take."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("framework", "precision", "images/s", "min .. max", "ratio", "min .. max"):
        table.add_column(title, justify="left" if title in ("framework", "precision") else "right")
    for framework, measured in found.items():
        for name, rates in measured["rates"].items():
            ratios = [
                rate / float32
                for rate, float32 in zip(rates, measured["rates"]["float32"], strict=True)
            ]
            table.add_row(
                framework,
                name,
                *results.median_and_range(rates, ",.0f"),
                *results.median_and_range(ratios, ".2f"),
            )
    rounds = len(found["torch"]["rates"]["float32"])
    console.print(
        f"Medians of {rounds} rounds, {network}, one process, one thread, batch {batch_size}; "
        "ratio: to float32"
    )
    console.print(results.devices(found))
    console.print(table)
    taken = "bfloat16" if cpu_is_fast_at_bfloat16() else "float32"
    console.print(f"On this processor the labs take {taken}.")


def one_run(
    framework: str, precision: str, steps: str, batch_size: str, network: str = ASSESSMENT_NET
) -> None:
    """One process: train for some steps and tell the speed."""
    batches = random_batches(int(batch_size), 0, 1)
    how = {"steps": int(steps), "network": network}
    if framework == "torch":
        import torch

        from hvdlab.torch.precision import use_fast_kernels
        from hvdlab.torch.throughput import measure

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        use_fast_kernels(precision != "float32")

        def autocast(device):
            kind = torch.device(device).type
            return torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16")

        rate = measure(batches, lambda: None, device=device, autocast=autocast, **how)[1]
        name = ranks.device_of_torch(device)
    else:
        import tensorflow as tf

        from hvdlab.keras.throughput import measure

        tf.config.experimental.enable_tensor_float_32_execution(precision != "float32")
        policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
        rate = measure(batches, lambda: None, policy=policy, **how)[1]
        name = ranks.device_of_tensorflow()
    ranks.tell({"images_per_second": rate, "device": name})


if __name__ == "__main__":
    one_run(*sys.argv[1:])
