"""What an exchange of gradients costs a step: our Keras 3 binding, legacy Keras and horovod.torch.

The same network on two ranks, with and without `hvd.DistributedOptimizer`, one thread a rank. Each
variant is started anew (`python -m hvdlab.bench.exchange VARIANT STEPS BATCH_SIZE`), in turns; the
cost is the difference of two step times of one round.
"""

import os
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks

VARIANTS = {
    "Keras 3": "keras",
    "legacy Keras": "legacy",
    "PyTorch": "torch",
}
WARM_UP_STEPS = 10


# --- one rank ---------------------------------------------------------------------------------------


def noise(batch_size):
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.normal(size=(batch_size, 32, 32, 3)).astype("f4"), rng.integers(0, 10, batch_size)


def keras_steps(keras, hvd, exchanged, steps, batch_size):
    """Milliseconds of each step of the network of `labs` in Keras, of whatever version."""
    hvd.init()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.MaxPooling2D(),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(128, 3, padding="same", use_bias=False),
            layers.MaxPooling2D(),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(256, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalMaxPooling2D(),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
    if exchanged:
        optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    x, y = noise(batch_size)
    return hvd.rank(), timed(lambda: model.train_on_batch(x, y), steps)


def keras_3(*arguments):
    import keras

    import hvdlab.keras.horovod as hvd

    return keras_steps(keras, hvd, *arguments)


def legacy_keras(*arguments):
    import horovod.tensorflow.keras as hvd
    import tf_keras

    return keras_steps(tf_keras, hvd, *arguments)


def pytorch(exchanged, steps, batch_size):
    import horovod.torch as hvd
    import torch

    from hvdlab.torch.models import AssessmentNet

    hvd.init()
    model = AssessmentNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if exchanged:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    x, y = map(torch.from_numpy, noise(batch_size))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return hvd.rank(), timed(step, steps)


def timed(step, steps):
    """Median milliseconds of a step, after some that are not counted."""
    times = []
    for _ in range(WARM_UP_STEPS + steps):
        started = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[WARM_UP_STEPS:])


# --- all ranks --------------------------------------------------------------------------------------


def exchange(repeats: int = 5, steps: int = 60, batch_size: int = 64, tell=print) -> dict:
    """Variant -> {"alone": [ms], "exchanged": [ms]}: the slowest rank's step, a figure a round."""
    found = {label: {"alone": [], "exchanged": []} for label in VARIANTS}
    for repeat in range(repeats):
        for label, variant in VARIANTS.items():
            environment = {"TF_USE_LEGACY_KERAS": "1"} if variant == "legacy" else {}
            for how in ("alone", "exchanged"):
                told = ranks.run(__name__, 2, variant, how, steps, batch_size, **environment)
                found[label][how].append(max(rank["milliseconds"] for rank in told))
                tell(
                    f"round {repeat + 1} of {repeats}: {label}, {how}: {found[label][how][-1]:.1f} ms"
                )
    return found


def show(found: dict, batch_size: int, console: Console) -> None:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for title in (
        "binding",
        "step alone",
        "step exchanged",
        "cost",
        "cost min .. max",
        "of the step",
    ):
        table.add_column(title, justify="left" if title == "network in" else "right")
    for label, times in found.items():
        pairs = list(zip(times["alone"], times["exchanged"], strict=True))
        costs = [exchanged - alone for alone, exchanged in pairs]
        table.add_row(
            label,
            f"{statistics.median(times['alone']):.1f} ms",
            f"{statistics.median(times['exchanged']):.1f} ms",
            f"{statistics.median(costs):.1f} ms",
            f"{min(costs):.1f} .. {max(costs):.1f}",
            f"{statistics.median(e / a - 1 for a, e in pairs):.0%}",
        )
    console.print(
        f"Medians of {len(pairs)} rounds, 2 ranks, {batch_size} images and one thread a rank"
    )
    console.print(table)


def main(variant: str, how: str, steps: str, batch_size: str) -> None:
    measure = {"keras": keras_3, "legacy": legacy_keras, "torch": pytorch}[variant]
    rank, milliseconds = measure(how == "exchanged", int(steps), int(batch_size))
    ranks.tell({"rank": rank, "milliseconds": milliseconds})


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    main(*sys.argv[1:])
