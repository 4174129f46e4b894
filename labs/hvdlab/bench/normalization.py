"""Forward and backward time of ghost batch norm and of the framework's own batch norm.

Each variant is a process of its own (`python -m hvdlab.bench.normalization VARIANT REPEATS`) with one
thread; in it the two layers take turns.
"""

import argparse
import os
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks, results

VARIANTS = {
    "torch, contiguous": "contiguous_format",
    "torch, channels last": "channels_last",
    "Keras on TensorFlow": "keras",
}
SHAPE, GHOST_SIZE = (256, 64, 32, 32), 32  # batch, channels, height, width


def torch_steps(memory_format: str) -> tuple[dict, str]:
    """Name -> a function that runs the layer forward and backward; and the name of the device."""
    import torch

    from hvdlab.torch.normalization import GhostBatchNorm2d

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(SHAPE).to(device, memory_format=getattr(torch, memory_format)).requires_grad_()
    dy = torch.randn_like(x)

    def step(layer):
        layer(x).backward(dy)
        x.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize()

    plain = torch.nn.BatchNorm2d(SHAPE[1]).to(device)
    ghost = GhostBatchNorm2d(SHAPE[1], GHOST_SIZE).to(device)
    steps = {"plain": lambda: step(plain), "ghost": lambda: step(ghost)}
    return steps, ranks.device_of_torch(device)


def keras_steps() -> tuple[dict, str]:
    import keras
    import tensorflow as tf

    from hvdlab.keras.normalization import GhostBatchNorm

    batch, channels, height, width = SHAPE
    x = tf.Variable(tf.random.normal((batch, height, width, channels)))
    dy = tf.random.normal(x.shape)

    def steps(layer):
        layer.build(x.shape)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                y = layer(x, training=True)
            return tape.gradient(y, [x, *(v.value for v in layer.trainable_variables)], dy)

        return lambda: step()[-1].numpy()  # a GPU has computed it then

    plain, ghost = steps(keras.layers.BatchNormalization()), steps(GhostBatchNorm(GHOST_SIZE))
    return {"plain": plain, "ghost": ghost}, ranks.device_of_tensorflow()


def measure(variant: str, repeats: int) -> dict:
    """Milliseconds of `repeats` steps of "plain" and "ghost", and the name of the "device"."""
    steps, device = keras_steps() if variant == "keras" else torch_steps(variant)
    times = {name: [] for name in steps}
    for round in range(repeats + 3):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if round >= 3:  # after those that warm up
                times[name].append(1000 * (time.perf_counter() - started))
    return times | {"device": device}


def normalization(repeats: int = 20, tell=print, device: str = "cpu") -> dict:
    """Label -> {"plain": [ms], "ghost": [ms], "device": its name}."""
    found = {}
    for label, variant in VARIANTS.items():
        tell(f"{label}: {repeats} rounds ...")
        (found[label],) = ranks.run(__name__, 1, variant, repeats, device=device)
    return found


def show(found: dict, console: Console) -> None:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for title in ("layer", "plain", "ghost", "ratio", "min .. max"):
        table.add_column(title, justify="left" if title == "layer" else "right")
    for label, times in found.items():
        ratios = [g / p for p, g in zip(times["plain"], times["ghost"], strict=True)]
        table.add_row(
            label,
            f"{statistics.median(times['plain']):.1f} ms",
            f"{statistics.median(times['ghost']):.1f} ms",
            *results.median_and_range(ratios, ".2f"),
        )
    console.print(results.devices(found))
    console.print(
        f"{'x'.join(map(str, SHAPE))}, ghosts of {GHOST_SIZE}, forward and backward, "
        f"one thread, medians of {len(ratios)} rounds"
    )
    console.print(table)


def main(args: argparse.Namespace) -> int:
    args.device = ranks.chosen_device(args.device, 1)
    found = normalization(args.repeats, results.tell, args.device)
    results.keep(args, found)
    show(found, Console())
    return 0


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    ranks.tell(measure(sys.argv[1], int(sys.argv[2])))
