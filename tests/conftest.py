"""What several test files need: data to grade on, and the environment of the labs."""

import dataclasses
from pathlib import Path

import pytest

from hvdgrade import profile
from hvdlab.data import DataError, load_cifar10
from hvdlab.synthetic import synthetic_cifar10

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def cifar10_folder(tmp_path_factory) -> Path:
    """A folder with CIFAR-10: the real one if this machine has it, else a synthetic twin."""
    try:
        return load_cifar10().folder.resolve()
    except DataError:
        return synthetic_cifar10(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def real_cifar10_folder() -> Path:
    """The folder of the real CIFAR-10, or the test is skipped."""
    try:
        data = load_cifar10()
    except DataError as error:
        pytest.skip(f"needs the real CIFAR-10: {error}")
    if data.synthetic:
        pytest.skip(f"needs the real CIFAR-10, and {data.folder} holds its synthetic twin")
    return data.folder.resolve()


@pytest.fixture
def quick_rules() -> profile.Profile:
    """The classic profile with less to evaluate and less patience: for submissions that go wrong."""
    rules = profile.load("dli")
    return dataclasses.replace(rules, budget=25.0, train_sample=500, stall_seconds=5.0)
