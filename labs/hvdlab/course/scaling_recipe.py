"""Measure when linear scaling with warmup reaches the accuracy of a small batch, and when it does not.

    LAB_REFERENCE=recipe_cnn_search,recipe_cnn python labs/hvdlab/course/scaling_recipe.py

or with recipe_f1 or recipe_cifar10 in place of recipe_cnn.

The learning rate of SGD is searched once, at the small batch. Three rows per batch use this learning rate
without further search: unscaled, linear, and linear with warmup. More rows, SGD with warmup and for "cnn"
also LARS and LAMB, use the best of ten learning rates that were tried at this batch with seed 0. The seeds
1 to 5 measure the rows. Each run makes eight epochs over 10,000 images, and its learning rate falls linearly
to 0.

The program writes `labs/results/recipe_NETWORK_search.csv` (all trials), `recipe_NETWORK.csv` (the rows) and
`recipe_NETWORK_noise.csv` (the gradient noise scale of lab 6 after each epoch at the small batch). It
continues after an interruption. On a crowded machine it took 25 to 45 minutes of processor time per network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hvdlab import schedules
from hvdlab.course.experiment import grid, is_wanted, sweep
from hvdlab.data import load_cifar10, load_fashion_mnist
from hvdlab.noise_scale import estimate

if TYPE_CHECKING:
    from hvdlab.course.f1_training_torch import F1Training

IMAGES, EPOCHS, SMALL = 10_000, 8, 16
WARMUP = 0.25  # fraction of the updates
# The learning rates that are tried, a factor of 2 apart.
RATES = {
    "SGD": 0.001 * 2.0 ** np.arange(10),
    "LARS": 2.0 ** np.arange(-4, 6),
    "LAMB": 0.0005 * 2.0 ** np.arange(10),
}
# name: the rule that gives the learning rate at k times the small batch, and whether it is warmed up
RULES: dict[str, tuple[Callable[[float], float], bool]] = {
    "unscaled": (lambda k: 1, False),
    "square root": (lambda k: k**0.5, False),
    "linear": (lambda k: k, False),
    "linear with warmup": (lambda k: k, True),
}


@dataclass(frozen=True)
class Comparison:
    """What is compared for a network.

    Args:
        options: the network, as arguments of F1Training.
        batches: the batch sizes next to the small one.
        optimizers: whose learning rates are searched at each of these batches.
    """

    options: dict
    batches: tuple[int, ...]
    optimizers: tuple[str, ...]


NETWORKS = {
    "cnn": Comparison({"network": "CNN"}, (64, 256, 512, 1024), ("SGD", "LARS", "LAMB")),
    "f1": Comparison({"network": "F1"}, (64, 256, 1024), ("SGD",)),
    "cifar10": Comparison({"network": "CNN", "image": (32, 32, 3)}, (64, 256, 1024), ("SGD",)),
}
Data = tuple[np.ndarray, np.ndarray]


def data(network: str) -> tuple[Data, Data]:
    """Return the training and the test images of a network, flat and with mean 0, and their labels.

    Args:
        network: "cnn" or "f1" for Fashion-MNIST, "cifar10" for CIFAR-10.
    """
    cifar10 = network == "cifar10"
    every = load_cifar10() if cifar10 else load_fashion_mnist()
    mean, std = (0.473, 0.251) if cifar10 else (0.286, 0.353)

    def flat(images: np.ndarray) -> np.ndarray:
        return ((images.reshape(len(images), -1) / 255 - mean) / std).astype("float32")

    train = flat(every.train_images[:IMAGES]), every.train_labels[:IMAGES].astype("int32")
    return train, (flat(every.test_images), every.test_labels.astype("int32"))


def schedule(rate: float, steps: int, warmup: bool) -> schedules.Schedule:
    """Return a learning rate that falls linearly to 0, with or without a gradual warmup from 0."""
    fall = schedules.polynomial_decay(rate, steps, power=1)
    return schedules.gradual_warmup(fall, int(WARMUP * steps), start=0) if warmup else fall


def trials(compared: Comparison) -> list[dict]:
    """Return the settings of the search: ten learning rates per optimizer and batch, with seed 0."""
    found = grid(optimizer=["SGD"], batch_size=[SMALL], warmup=[False], rate=RATES["SGD"].tolist())
    for optimizer in compared.optimizers:
        rates = RATES[optimizer].tolist()
        batches = compared.batches
        found += grid(optimizer=[optimizer], batch_size=batches, warmup=[True], rate=rates)
    return found


def best(search: pd.DataFrame, optimizer: str, batch_size: int) -> float:
    """Return the best learning rate that was tried."""
    tried = search.query("optimizer == @optimizer and batch_size == @batch_size")
    return float(tried.loc[tried["test_accuracy"].idxmax(), "rate"])


def rows(search: pd.DataFrame, compared: Comparison) -> list[dict]:
    """Return the settings of each row of the comparison, without the seed."""
    base = best(search, "SGD", SMALL)
    small = {"optimizer": "SGD", "batch_size": SMALL, "warmup": False, "rate": base}
    found = [{"row": "small batch", **small}]
    for batch in compared.batches:
        for name, (rule, warmup) in RULES.items():
            rate = base * rule(batch / SMALL)
            found.append(
                {**small, "row": name, "batch_size": batch, "warmup": warmup, "rate": rate}
            )
        for optimizer in compared.optimizers:
            rate = best(search, optimizer, batch)
            tuned = {"optimizer": optimizer, "batch_size": batch, "warmup": True, "rate": rate}
            found.append({"row": f"tuned {optimizer}", **tuned})
    return found


def measure(network: str) -> None:
    """Search the learning rates of a network, and measure the rows of the comparison, with PyTorch."""
    from hvdlab.course.f1_training_torch import F1Training

    (train, test), compared = data(network), NETWORKS[network]

    def run(
        optimizer: str, batch_size: int, warmup: bool, rate: float, seed: int = 0, row: str = ""
    ) -> dict:
        steps = schedules.updates(IMAGES, [batch_size] * EPOCHS)
        made = schedule(rate, steps, warmup)
        options = {"optimizer": optimizer, "norm": "none", **compared.options}
        training = F1Training(seed, made, steps, **options)
        (last,) = training.fit(train, test, batch_size, EPOCHS, EPOCHS)
        return {"test_accuracy": last["test_accuracy"]}

    name = f"recipe_{network}"
    search = sweep(f"{name}_search", run, trials(compared))
    sweep(
        name, run, [{**row, "seed": seed} for row in rows(search, compared) for seed in range(1, 6)]
    )

    def noise(seed: int) -> list[dict]:
        steps = schedules.updates(IMAGES, [SMALL] * EPOCHS)
        falling = schedule(best(search, "SGD", SMALL), steps, warmup=False)
        training = F1Training(seed, falling, steps, norm="none", **compared.options)
        found = []
        for epoch in range(1, EPOCHS + 1):
            training.fit(train, test, SMALL, 1)
            found.append({"epoch": epoch, "noise_scale": noise_scale_of(training, train)})
        return found

    sweep(f"{name}_noise", noise, grid(seed=[1, 2, 3]))


def noise_scale_of(training: "F1Training", train: Data, small: int = 50) -> float:
    """Return tr Sigma / |G|^2 of the weight matrices, from all images and from batches of 50."""

    def norm2(batch: slice) -> float:
        norms = training.matrix_norms(train[0][batch], train[1][batch])
        return sum(g_norm**2 for _, g_norm in norms)

    small_norm2 = np.mean([norm2(slice(i, i + small)) for i in range(0, IMAGES, small)])
    squared, trace = estimate(small_norm2, norm2(slice(IMAGES)), small, IMAGES)
    return trace / squared


if __name__ == "__main__":
    for wanted in NETWORKS:
        if any(is_wanted(f"recipe_{wanted}{part}") for part in ("", "_search", "_noise")):
            measure(wanted)
