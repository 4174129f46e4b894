"""What an exchange of gradients costs a step, and where the time goes: two ranks, four kinds of step.

    alone       no Horovod in the process
    idle        Horovod's thread runs: it looks for gradients every cycle, and agrees with the other ranks
    numbers     one number of each gradient is sent: hooks, negotiation, waiting for cycles, and no bytes
    exchanged   the gradients are sent: copies into the fusion buffer and back, and the all-reduce

The difference of two of them is the cost of what the second one adds. "MPI" is the all-reduce of as many
bytes by MPI alone. The bindings are our Keras 3 binding, legacy Keras with Horovod's own, and horovod.torch;
the last also with all gradients in one buffer, which Horovod neither copies nor negotiates one by one.

Each starts by itself (`python -m hvdlab.bench.exchange BINDING KIND STEPS BATCH_SIZE`), one thread a rank,
in turns.
"""

import argparse
import os
import statistics
import sys
import time
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks, results

EPILOG = """\
examples:
  hvdlab bench exchange --repeats 5 --json exchange.json
  HOROVOD_CYCLE_TIME=0.1 hvdlab bench exchange --bindings PyTorch
"""
RANKS = 2
BINDINGS = {
    "Keras 3": "keras",
    "legacy Keras": "legacy",
    "PyTorch": "torch",
    "PyTorch, one buffer": "torch-buffer",
}
KINDS = ("alone", "idle", "numbers", "exchanged")
WARM_UP_STEPS = 10
MPI_CALLS = 50

# --- one rank ---------------------------------------------------------------------------------------


def noise(batch_size):
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.normal(size=(batch_size, 32, 32, 3)).astype("f4"), rng.integers(0, 10, batch_size)


def keras_steps(keras, hvd, kind, steps, batch_size):
    """Milliseconds of a step of the network of `labs` in Keras, of whatever version."""
    if kind != "alone":
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
    if kind == "numbers":
        optimizer = hvd.DistributedOptimizer(optimizer, compression=first_number())
    elif kind == "exchanged":
        optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    x, y = noise(batch_size)
    milliseconds = timed(lambda: model.train_on_batch(x, y), steps)
    return milliseconds, sum(weight.numpy().size for weight in model.trainable_variables)


def first_number():
    """A compression that sends one number of a gradient, and leaves the gradient as it was."""
    import tensorflow as tf

    class FirstNumber:
        @staticmethod
        def compress(tensor):
            return tf.reshape(tensor, [-1])[:1], tensor

        @staticmethod
        def decompress(tensor, context):
            with tf.control_dependencies([tensor]):  # else the graph sends nothing
                return tf.identity(context)

    return FirstNumber


def keras_3(*arguments):
    import keras

    import hvdlab.keras.horovod as hvd

    return keras_steps(keras, hvd, *arguments)


def legacy_keras(*arguments):
    import horovod.tensorflow.keras as hvd
    import tf_keras

    return keras_steps(tf_keras, hvd, *arguments)


def pytorch(kind, steps, batch_size):
    return torch_steps("one by one", kind, steps, batch_size)


def pytorch_one_buffer(kind, steps, batch_size):
    return torch_steps("one buffer", kind, steps, batch_size)


def torch_steps(exchange, kind, steps, batch_size):
    """Milliseconds of a step of the assessment network, and its number of weights."""
    import horovod.torch as hvd
    import torch

    from hvdlab.bench.gradient_exchanges import EXCHANGES
    from hvdlab.torch.device import InHorovodsLayout
    from hvdlab.torch.models import AssessmentNet

    torch.manual_seed(1)
    model = AssessmentNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if kind != "alone":
        hvd.init()
        sent = {"idle": "nothing", "numbers": "first numbers", "exchanged": exchange}[kind]
        optimizer = EXCHANGES[sent](hvd, model, optimizer, InHorovodsLayout)
    x, y = map(torch.from_numpy, noise(batch_size))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return timed(step, steps), sum(p.numel() for p in model.parameters() if p.requires_grad)


def timed(step, steps):
    """Median milliseconds of a step, after some that are not counted."""
    times = []
    for _ in range(WARM_UP_STEPS + steps):
        started = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[WARM_UP_STEPS:])


def mpi_milliseconds(comm, weights: int) -> float:
    """Median milliseconds of MPI's all-reduce of so many float32."""
    import numpy as np
    from mpi4py import MPI

    array, times = np.zeros(weights, np.float32), []
    for _ in range(MPI_CALLS):
        comm.Barrier()
        started = time.perf_counter()
        comm.Allreduce(MPI.IN_PLACE, array)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


# --- all ranks --------------------------------------------------------------------------------------


def exchange(
    repeats: int = 5, steps: int = 60, batch_size: int = 64, tell=print, bindings=tuple(BINDINGS)
) -> dict:
    """Binding -> {kind of step, and "MPI": [ms]}: the slowest rank's, a figure a round."""
    found: dict = {label: {name: [] for name in (*KINDS, "MPI")} for label in bindings}
    for repeat in range(repeats):
        for label, times in found.items():
            environment = {"TF_USE_LEGACY_KERAS": "1"} if BINDINGS[label] == "legacy" else {}
            for kind in KINDS:
                told = ranks.run(
                    __name__, RANKS, BINDINGS[label], kind, steps, batch_size, **environment
                )
                times[kind].append(max(rank["milliseconds"] for rank in told))
                tell(f"round {repeat + 1} of {repeats}: {label}, {kind}: {times[kind][-1]:.1f} ms")
            times["MPI"].append(max(rank["mpi_milliseconds"] for rank in told))
    return found


def show(found: dict, batch_size: int, console: Console) -> None:
    """Medians over the rounds; costs are differences, and ratios, of the same round."""
    median = statistics.median
    table = Table(box=None, header_style="dim", padding=(0, 1))
    titles = ("binding", "alone\nms", "exchanged\nms", "Horovod's\nthread", "negotiation",
              "fusion,\nall-reduce", "cost\nms", "min .. max", "of the\nstep", "MPI\nms")  # fmt: skip
    for title in titles:
        table.add_column(title, justify="left" if title == "binding" else "right")
    for label, times in found.items():
        added = [
            median(more - less for less, more in zip(times[before], times[after], strict=True))
            for before, after in pairwise(KINDS)
        ]
        pairs = list(zip(times["alone"], times["exchanged"], strict=True))
        costs = [exchanged - alone for alone, exchanged in pairs]
        table.add_row(
            label,
            f"{median(times['alone']):.1f}",
            f"{median(times['exchanged']):.1f}",
            *(f"{cost:+.1f}" for cost in added),
            f"{median(costs):.1f}",
            f"{min(costs):.1f} .. {max(costs):.1f}",
            f"{median(e / a - 1 for a, e in pairs):.0%}",
            f"{median(times['MPI']):.1f}",
        )
    console.print(
        f"Medians of {len(pairs)} rounds, {RANKS} ranks on {ranks.processor()}, {batch_size} images and "
        "one thread a rank"
    )
    console.print(table)


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results.add_rounds(parser, 5)
    results.add_steps(parser)
    parser.add_argument(
        "--bindings", choices=BINDINGS, nargs="+", default=list(BINDINGS), metavar="BINDING",
        help=f"of {', '.join(map(repr, BINDINGS))} (default: all)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    found = exchange(args.repeats, args.steps, args.batch_size, results.tell, args.bindings)
    results.keep(args, found)
    show(found, args.batch_size, Console())
    return 0


def one_run(binding: str, kind: str, steps: str, batch_size: str) -> None:
    """One rank: time the steps, and tell it."""
    measure = {
        "keras": keras_3,
        "legacy": legacy_keras,
        "torch": pytorch,
        "torch-buffer": pytorch_one_buffer,
    }[binding]
    comm = ranks.communicator()
    milliseconds, weights = measure(kind, int(steps), int(batch_size))
    ranks.tell(
        {
            "rank": comm.rank,
            "milliseconds": milliseconds,
            "mpi_milliseconds": mpi_milliseconds(comm, weights),
        }
    )


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    one_run(*sys.argv[1:])
