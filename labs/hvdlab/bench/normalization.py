"""Forward and backward time of ghost batch norm beside the framework's own batch norm.

Each variant is a process of its own (`python -m hvdlab.bench.normalization VARIANT REPEATS`) with one
thread; in it the two layers take turns.
"""

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


def torch_steps(memory_format: str) -> dict:
    """Name -> a function that runs the layer forward and backward."""
    import torch

    from hvdlab.torch.normalization import GhostBatchNorm2d

    x = torch.randn(SHAPE).to(memory_format=getattr(torch, memory_format)).requires_grad_()
    dy = torch.randn_like(x)

    def step(layer):
        layer(x).backward(dy)
        x.grad = None

    plain, ghost = torch.nn.BatchNorm2d(SHAPE[1]), GhostBatchNorm2d(SHAPE[1], GHOST_SIZE)
    return {"plain": lambda: step(plain), "ghost": lambda: step(ghost)}


def keras_steps() -> dict:
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

        return step

    plain, ghost = steps(keras.layers.BatchNormalization()), steps(GhostBatchNorm(GHOST_SIZE))
    return {"plain": plain, "ghost": ghost}


def measure(variant: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of `repeats` steps of "plain" and "ghost"."""
    steps = keras_steps() if variant == "keras" else torch_steps(variant)
    times = {name: [] for name in steps}
    for round in range(repeats + 3):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if round >= 3:  # after those that warm up
                times[name].append(1000 * (time.perf_counter() - started))
    return times


def normalization(repeats: int = 20, tell=print) -> dict:
    """Label -> {"plain": [ms], "ghost": [ms]}."""
    found = {}
    for label, variant in VARIANTS.items():
        tell(f"{label}: {repeats} rounds ...")
        (found[label],) = ranks.run(__name__, 1, variant, repeats)
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
    console.print(
        f"{'x'.join(map(str, SHAPE))}, ghosts of {GHOST_SIZE}, forward and backward, "
        f"one thread, medians of {len(ratios)} rounds"
    )
    console.print(table)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    ranks.tell(measure(sys.argv[1], int(sys.argv[2])))
