"""Compare the training speed of the assessment network in bfloat16 and in float32 on this machine.

The labs choose the precision on a processor with `cpu_is_fast_at_bfloat16` (hvdlab.system.hardware), by its
name and flags. This benchmark measures one core. On a GPU it measures float32 with and without TF32. Each run
is its own process (`python -m hvdlab.bench.precision FRAMEWORK PRECISION STEPS BATCH_SIZE NETWORK`). The runs
take turns, and a ratio compares a run with float32 in the same round.
"""

import argparse
import sys
from contextlib import AbstractContextManager

from rich.console import Console

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
    """Add the arguments of `hvdlab bench precision`."""
    results.add_training(parser)


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench precision` and return its exit code."""
    args.device = ranks.chosen_device(args.device, 1)
    found = precision(ranks.Training.of(args))
    results.keep(args, found)
    show(found, args.batch_size, Console(), args.network)
    return 0


def precision(training: ranks.Training) -> dict:
    """Measure images/s of one process in each precision, in turns.

    Returns:
        Framework -> {"device": its name, "rates": {precision: [images/s], one number per round}}.

    Raises:
        ranks.BenchFailed: a run failed.
    """
    names = PRECISIONS[training.device]
    how = training.steps, training.batch_size, training.network
    measured = ranks.rates_in_turns(
        {(framework, name): f"{framework}, {name}" for framework in FRAMEWORKS for name in names},
        lambda run: ranks.run(__name__, 1, *run, *how, device=training.device),
        training,
    )
    return {
        framework: {
            "device": measured[framework, names[-1]]["device"],
            "rates": {name: measured[framework, name]["rates"] for name in names},
        }
        for framework in FRAMEWORKS
    }


def show(found: dict, batch_size: int, console: Console, network: str = ASSESSMENT_NET) -> None:
    """Print medians with their range, ratios to float32, and which precision the labs choose.

    Args:
        batch_size: images per step.
    """
    table = results.table(
        ["framework", "precision"], ["images/s", "min .. max", "ratio", "min .. max"]
    )
    for framework, measured in found.items():
        for name, rates in measured["rates"].items():
            ratios = results.ratios(rates, measured["rates"]["float32"])
            table.add_row(
                framework,
                name,
                *results.median_and_range(rates, ",.0f"),
                *results.median_and_range(ratios, ".2f"),
            )
    console.print(
        f"Medians of {len(rates)} rounds, {network}, one process, one thread, batch {batch_size}; "
        "ratio: to float32"
    )
    console.print(results.devices({label: found[label]["device"] for label in found}))
    console.print(table)
    chosen = "bfloat16" if cpu_is_fast_at_bfloat16() else "float32"
    console.print(f"On this processor the labs train in {chosen}.")


def one_run(
    framework: str, precision: str, steps: str, batch_size: str, network: str = ASSESSMENT_NET
) -> None:
    """Train in this process and report the speed; the arguments are those of the command line.

    Args:
        framework: "torch" or "keras".
        precision: "float32", "TF32" or "bfloat16".
        steps: timed steps.
        batch_size: images per step.
    """
    batches = random_batches(int(batch_size), 0, 1)
    training = {"steps": int(steps), "network": network}
    if framework == "torch":
        import torch

        from hvdlab.torch.measure_speed import measure
        from hvdlab.torch.precision import use_fast_kernels

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        use_fast_kernels(precision != "float32")

        def autocast(device: torch.device | str) -> AbstractContextManager:
            kind = torch.device(device).type
            return torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16")

        rate = measure(batches, lambda: None, device=device, autocast=autocast, **training)[1]
        name = ranks.device_of_torch(device)
    else:
        import tensorflow as tf

        from hvdlab.keras.measure_speed import measure

        tf.config.experimental.enable_tensor_float_32_execution(precision != "float32")
        policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
        rate = measure(batches, lambda: None, policy=policy, **training)[1]
        name = ranks.device_of_tensorflow()
    ranks.tell({"images_per_second": rate, "device": name})


if __name__ == "__main__":
    one_run(*sys.argv[1:])
