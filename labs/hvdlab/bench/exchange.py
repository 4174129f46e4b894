"""Measure how much time the exchange of gradients adds to a training step, and in which phase.

Two ranks train the same network with six kinds of steps. Each kind adds one source of cost:

    alone       Horovod does not run and the ranks do not communicate: the upper limit of the speed
    together    no Horovod; after each step the rank waits for the other rank in an MPI barrier
    MPI         no Horovod; after each step the rank calls only MPI's Allreduce, on an array as large as
                all gradients together. It calls no barrier: the all-reduce itself makes the ranks wait.
    thread      Horovod's background thread runs, but the optimizer is not wrapped. The thread looks for
                gradients every cycle and coordinates with the other rank.
    numbers     Horovod sends only one number of each gradient: this is the cost of hooks, negotiation and
                waiting for cycles, with almost no bytes to transfer
    exchanged   Horovod sends the gradients: adds the copies into and out of the fusion buffer, and the
                all-reduce of all bytes

The two ranks start once per binding. They run blocks of steps of each kind in turns, because a processor
that becomes slower during the measurement then slows down all kinds. Horovod starts before a block that
needs it and stops after the block. The bindings are our Keras 3 binding, Horovod's own binding with legacy
Keras, and horovod.torch. The benchmark runs horovod.torch a second time with all gradients in one buffer,
which Horovod does not copy and does not negotiate one by one.

The ranks run `python -m hvdlab.bench.exchange BINDING ROUNDS STEPS BATCH_SIZE`, with one thread each.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from hvdlab.bench import ranks, results
from hvdlab.system.hardware import cpu_is_fast_at_bfloat16

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

EPILOG = """\
examples:
  hvdlab bench exchange --repeats 20 --json exchange.json
  HOROVOD_CYCLE_TIME=0.1 hvdlab bench exchange --bindings PyTorch
"""
RANKS = 2
BINDINGS = {
    "Keras 3": "keras",
    "legacy Keras": "legacy",
    "PyTorch": "torch",
    "PyTorch, one buffer": "torch-buffer",
}
LIMIT = "alone"
WITHOUT_HOROVOD = (LIMIT, "together", "MPI")
KINDS = (*WITHOUT_HOROVOD, "thread", "numbers", "exchanged")
WARM_UP_STEPS = 5
Step = tuple[
    Callable[[], object], int
]  # a function that trains for one step, and the number of weights

# --- one rank ---------------------------------------------------------------------------------------


def noise(batch_size: int) -> "tuple[np.ndarray, np.ndarray]":
    """Return random images (batch_size, 32, 32, 3) in float32 and labels (batch_size,)."""
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.normal(size=(batch_size, 32, 32, 3)).astype("f4"), rng.integers(0, 10, batch_size)


def keras_step(keras: ModuleType, hvd: ModuleType, kind: str, batch_size: int) -> Step:
    """Return a step of the network of `labs`, and its number of weights.

    Args:
        keras: the module Keras 3 or legacy Keras (`tf_keras`).
        batch_size: images per step.
    """
    keras.mixed_precision.set_global_policy(
        "mixed_bfloat16" if cpu_is_fast_at_bfloat16() else "float32"
    )
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
            layers.Dense(10, dtype="float32"),
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
    weights = sum(weight.numpy().size for weight in model.trainable_variables)
    return lambda: model.train_on_batch(x, y), weights


def first_number() -> type:
    """Return a compression class that sends one number of a gradient and leaves the gradient unchanged."""
    import tensorflow as tf

    class FirstNumber:
        @staticmethod
        def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.reshape(tensor, [-1])[:1], tensor

        @staticmethod
        def decompress(tensor: tf.Tensor, context: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([tensor]):  # otherwise TensorFlow prunes the exchange
                return tf.identity(context)

    return FirstNumber


def torch_step(exchange: str, kind: str, batch_size: int) -> Step:
    """Return a step of the assessment network, and its number of weights.

    Args:
        batch_size: images per step.
    """
    import horovod.torch as hvd
    import torch

    from hvdlab.bench.gradient_exchanges import EXCHANGES
    from hvdlab.torch.device import InHorovodsLayout
    from hvdlab.torch.models import AssessmentNet, autocast

    torch.manual_seed(1)
    model = AssessmentNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    sent = {"numbers": "first numbers", "exchanged": exchange}.get(kind, "nothing")
    optimizer = EXCHANGES[sent](hvd, model, optimizer, InHorovodsLayout)
    x, y = map(torch.from_numpy, noise(batch_size))

    def step() -> None:
        optimizer.zero_grad()
        with autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step, sum(p.numel() for p in model.parameters() if p.requires_grad)


def milliseconds_of_each(
    step_of: Callable[[str, int], Step],
    horovod: ModuleType,
    comm: "MPI.Comm",
    rounds: int,
    steps: int,
    batch_size: int,
) -> dict[str, list[float]]:
    """Measure every kind of step on this rank.

    Args:
        step_of: kind of step and batch size -> the step.
        rounds: number of rounds; in each of them every kind has one block of steps.
        steps: timed steps per block.
        batch_size: images per rank.

    Returns:
        Kind -> milliseconds per step: one number per round, the mean over the steps of a block.
    """
    import numpy as np
    from mpi4py import MPI

    horovod.init()  # because wrapping an optimizer needs the number of ranks
    made = {kind: step_of(kind, batch_size) for kind in KINDS}
    horovod.shutdown()
    gradients = np.zeros(made[LIMIT][1], np.float32)
    after = {"together": comm.Barrier, "MPI": lambda: comm.Allreduce(MPI.IN_PLACE, gradients)}
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            step, wait = made[kind][0], after.get(kind, lambda: None)
            if kind not in WITHOUT_HOROVOD:
                horovod.init()
            for _ in range(WARM_UP_STEPS):
                step()
            comm.Barrier()
            started = time.perf_counter()
            for _ in range(steps):
                step()
                wait()
            found[kind].append(1000 * (time.perf_counter() - started) / steps)
            comm.Barrier()
            if kind not in WITHOUT_HOROVOD:
                horovod.shutdown()
    return found


# --- all ranks --------------------------------------------------------------------------------------


def exchange(
    repeats: int = 10,
    steps: int = 20,
    batch_size: int = 64,
    tell: Callable[[str], object] = print,
    bindings: Sequence[str] = tuple(BINDINGS),
) -> dict[str, dict[str, list[float]]]:
    """Measure all kinds of steps with some bindings.

    Args:
        repeats: number of rounds.
        steps: timed steps per block.
        batch_size: images per rank.
        tell: is called with one line of progress per binding.

    Returns:
        Binding -> {kind of step: [milliseconds per step]}: one number per round, the mean over the ranks.

    Raises:
        ranks.BenchFailed: the ranks of a binding failed.
    """
    found: dict = {}
    for label in bindings:
        tell(f"{label}: {repeats} rounds of {len(KINDS)} blocks of {steps} steps")
        binding = BINDINGS[label]
        environment = {"TF_USE_LEGACY_KERAS": "1"} if binding == "legacy" else {}
        reports = ranks.run(__name__, RANKS, binding, repeats, steps, batch_size, **environment)
        found[label] = {
            kind: [
                statistics.mean(of_ranks)
                for of_ranks in zip(*(one["milliseconds"][kind] for one in reports), strict=True)
            ]
            for kind in KINDS
        }
    return found


def show(found: dict, batch_size: int, console: Console) -> None:
    """Print medians over the rounds. Costs and ratios compare steps of the same round.

    Args:
        batch_size: images per rank.
    """
    table = results.table(
        ["binding", "step"], ["ms", "min .. max", "cost, ms", "of limit", "min .. max"]
    )
    for label, times in found.items():
        limit = times[LIMIT]
        for kind, values in times.items():
            costs = [value - least for least, value in zip(limit, values, strict=True)]
            table.add_row(
                label if kind == LIMIT else "",
                kind,
                *results.median_and_range(values, ".1f"),
                f"{statistics.median(costs):+.1f}",
                *results.median_and_range(results.ratios(limit, values), ".2f"),
            )
    console.print(
        f"Medians of {len(limit)} rounds, {RANKS} ranks on {ranks.processor()}, {batch_size} images and "
        f"one thread per rank; limit: steps of the kind {LIMIT}"
    )
    console.print(table)


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab bench exchange`."""
    results.add_rounds(parser, 10)
    results.add_steps(parser, 20)
    parser.add_argument(
        "--bindings", choices=BINDINGS, nargs="+", default=list(BINDINGS), metavar="BINDING",
        help=f"of {', '.join(map(repr, BINDINGS))} (default: all)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench exchange` and return its exit code."""
    found = exchange(args.repeats, args.steps, args.batch_size, results.tell, args.bindings)
    results.keep(args, found)
    show(found, args.batch_size, Console())
    return 0


def one_run(binding: str, rounds: str, steps: str, batch_size: str) -> None:
    """Measure the steps on one rank and report them; the arguments are those of the command line.

    Args:
        rounds: number of rounds.
        steps: timed steps per block.
        batch_size: images per rank.
    """
    comm = ranks.communicator()
    if binding.startswith("torch"):
        step_of = partial(torch_step, "one buffer" if binding == "torch-buffer" else "one by one")
        horovod = import_module("horovod.torch")
    else:
        horovod = import_module("horovod.tensorflow")
        modules = {
            "keras": ("keras", "hvdlab.keras.horovod"),
            "legacy": ("tf_keras", "horovod.tensorflow.keras"),
        }[binding]
        step_of = partial(keras_step, *map(import_module, modules))
    times = milliseconds_of_each(step_of, horovod, comm, int(rounds), int(steps), int(batch_size))
    ranks.tell({"rank": comm.rank, "milliseconds": times})


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    one_run(*sys.argv[1:])
