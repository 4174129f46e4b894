"""Measure forward and backward pass of ghost batch norm, compared with the framework's own batch norm.

Each variant is its own process (`python -m hvdlab.bench.normalization VARIANT REPEATS`) with one thread. In
the process the two layers take turns.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from hvdlab.bench import ranks, results

if TYPE_CHECKING:
    import keras
    import torch

VARIANTS = {
    "torch, contiguous": "contiguous_format",
    "torch, channels last": "channels_last",
    "Keras on TensorFlow": "keras",
}
SHAPE = (256, 64, 32, 32)  # batch, channels, height, width
GHOST_SIZE = 32  # images
WARM_UP_STEPS = 3
Steps = dict[str, Callable[[], object]]  # "plain" and "ghost" -> forward and backward pass


def torch_steps(memory_format: str) -> tuple[Steps, str]:
    """Return the steps of PyTorch's layers, and the name of the device."""
    import torch

    from hvdlab.torch.normalization import GhostBatchNorm2d

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(SHAPE).to(device, memory_format=getattr(torch, memory_format)).requires_grad_()
    dy = torch.randn_like(x)

    def step(layer: "torch.nn.Module") -> None:
        layer(x).backward(dy)
        x.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize()

    plain = torch.nn.BatchNorm2d(SHAPE[1]).to(device)
    ghost = GhostBatchNorm2d(SHAPE[1], GHOST_SIZE).to(device)
    steps = {"plain": lambda: step(plain), "ghost": lambda: step(ghost)}
    return steps, ranks.device_of_torch(device)


def keras_steps() -> tuple[Steps, str]:
    """Return the steps of Keras' layers, and the name of the device."""
    import keras
    import tensorflow as tf

    from hvdlab.keras.normalization import GhostBatchNorm

    batch, channels, height, width = SHAPE
    x = tf.Variable(tf.random.normal((batch, height, width, channels)))
    dy = tf.random.normal(x.shape)

    def step_of(layer: "keras.Layer") -> Callable[[], object]:
        layer.build(x.shape)

        @tf.function
        def step() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                y = layer(x, training=True)
            return tape.gradient(y, [x, *(v.value for v in layer.trainable_variables)], dy)

        return lambda: step()[-1].numpy()  # the copy waits until a GPU has computed the gradients

    plain, ghost = step_of(keras.layers.BatchNormalization()), step_of(GhostBatchNorm(GHOST_SIZE))
    return {"plain": plain, "ghost": ghost}, ranks.device_of_tensorflow()


def measure(variant: str, repeats: int) -> dict:
    """Measure both layers of a variant in this process.

    Args:
        repeats: number of timed steps.

    Returns:
        "plain" and "ghost" -> [milliseconds per step], and "device" -> its name.
    """
    steps, device = keras_steps() if variant == "keras" else torch_steps(variant)
    return results.milliseconds_in_turns(steps, repeats, WARM_UP_STEPS) | {"device": device}


def normalization(
    repeats: int = 20, tell: Callable[[str], object] = print, device: str = "cpu"
) -> dict[str, dict]:
    """Measure all variants.

    Args:
        repeats: number of timed steps.
        tell: is called with one line of progress per variant.
        device: "cpu" or "gpu".

    Returns:
        Label -> {"plain": [milliseconds], "ghost": [milliseconds], "device": its name}.

    Raises:
        ranks.BenchFailed: a variant did not run.
    """
    found = {}
    for label, variant in VARIANTS.items():
        tell(f"{label}: {repeats} rounds ...")
        (found[label],) = ranks.run(__name__, 1, variant, repeats, device=device)
    return found


def show(found: dict, console: Console) -> None:
    """Print medians, and ratios of ghost batch norm to plain batch norm in the same round."""
    table = results.table(["layer"], ["plain", "ghost", "ratio", "min .. max"])
    for label, times in found.items():
        table.add_row(
            label,
            *(f"{statistics.median(times[name]):.1f} ms" for name in ("plain", "ghost")),
            *results.median_and_range(results.ratios(times["ghost"], times["plain"]), ".2f"),
        )
    console.print(results.devices({label: found[label]["device"] for label in found}))
    console.print(
        f"{'x'.join(map(str, SHAPE))}, ghosts of {GHOST_SIZE} images, forward and backward pass, "
        f"one thread, medians of {len(times['plain'])} rounds"
    )
    console.print(table)


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench normalization` and return its exit code."""
    args.device = ranks.chosen_device(args.device, 1)
    found = normalization(args.repeats, results.tell, args.device)
    results.keep(args, found)
    show(found, Console())
    return 0


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    ranks.tell(measure(sys.argv[1], int(sys.argv[2])))
