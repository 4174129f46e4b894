"""Fixtures that several test files share: data sets, a class of submissions, a Slurm cluster."""

import contextlib
import dataclasses
import faulthandler
import os
import shutil
import signal
from pathlib import Path

import exported
import psutil
import pytest
import slurm_cluster as slurm
from school import Class

from hvdgrade import profiles
from hvdgrade.batch import cleanup
from hvdgrade.evidence import hidden_data
from hvdlab.data import DataError, Dataset, load_cifar10, load_fashion_mnist
from hvdlab.data.synthetic import synthetic_cifar10

ROOT = Path(__file__).parents[1]

# A shell makes its background commands ignore SIGINT, and nohup makes them ignore SIGHUP. Child processes
# inherit this, so the tests set both signals back to their default.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def stacks_of_a_crash(tmp_path_factory):
    """Write the stacks of this process into a file if it crashes."""
    with open(tmp_path_factory.getbasetemp() / "stacks", "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        yield
        faulthandler.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report):
    """Add to the report of a pytest worker that crashed its exit code and its stacks."""
    gateway = report.node.gateway
    place = report.node.config._tmp_path_factory.getbasetemp() / f"popen-{gateway.id}" / "stacks"
    report.longrepr += f", exit code {gateway._io.popen.wait(60)}\n"
    report.longrepr += place.read_text(encoding="utf-8") if place.exists() else ""


@pytest.fixture(autouse=True)
def process_state():
    """Restore signal handlers and environment after each test, because a command may set them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    # `hvdgrade batch` sets these variables for what it starts.
    variables = {name: os.environ.get(name) for name in ("PYTHONSAFEPATH", "HVDLAB_DATA")}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session", autouse=True)
def mpirun_folder(tmp_path_factory):
    """Give each pytest worker its own folder for mpirun's session files.

    Two mpirun that share a folder remove each other's files (see `hvdlab.launch.local.started`).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRTE_MCA_prte_local_tmpdir_base", str(tmp_path_factory.mktemp("mpirun")))
        yield


@pytest.fixture(scope="session")
def cifar10_folder(tmp_path_factory) -> Path:
    """Return a folder with CIFAR-10: the real data if this machine has them, else synthetic data."""
    try:
        return load_cifar10().folder.resolve()
    except DataError:
        return load_cifar10(synthetic_cifar10(tmp_path_factory.mktemp("data"))).folder


@pytest.fixture(scope="session")
def real_cifar10_folder() -> Path:
    """Return the folder of the real CIFAR-10, or skip the test."""
    try:
        data = load_cifar10()
    except DataError as error:
        pytest.skip(f"needs the real CIFAR-10: {error}")
    if data.synthetic:
        pytest.skip(f"needs the real CIFAR-10, and {data.folder} holds synthetic data")
    return data.folder.resolve()


@pytest.fixture(scope="session")
def real_fashion_mnist() -> Dataset:
    """Return the real Fashion-MNIST, or skip the test: the synthetic data are not learned as fast."""
    try:
        data = load_fashion_mnist()
    except DataError as error:
        pytest.skip(f"needs the real Fashion-MNIST: {error}")
    if data.synthetic:
        pytest.skip(f"needs the real Fashion-MNIST, and {data.folder} holds synthetic data")
    return data


@pytest.fixture(scope="session")
def sample_folder(cifar10_folder, tmp_path_factory) -> Path:
    """Return a folder for $HVDLAB_DATA with a sample of CIFAR-10: 3,000 training and 1,000 test images."""
    data = load_cifar10(cifar10_folder)
    part = data._replace(
        train_images=data.train_images[:3000],
        train_labels=data.train_labels[:3000],
        test_images=data.test_images[:1000],
        test_labels=data.test_labels[:1000],
    )
    train, test = part[:2], part[2:4]
    return hidden_data.write(
        tmp_path_factory.mktemp("sample") / "data", part, train, test, sample=True
    )


@pytest.fixture
def quick_rules() -> profiles.Profile:
    """Return the rules of a profile for the sample, whose accuracies two short epochs reach."""
    return dataclasses.replace(
        profiles.load("dli"),
        train_accuracy=0.17,  # untrained networks have 0.06 to 0.14, trained ones 0.20 to 0.52
        heldout_accuracy=0.15,
        budget=60.0,
        train_sample=500,
        stall_seconds=10.0,
        max_other_work=1.0,  # other tests run at the same time, and a late script must fail even so
    )


@pytest.fixture
def school(tmp_path, sample_folder):
    """Return a class of students to grade; end all its processes after the test."""
    a_class = Class(tmp_path, sample_folder)
    yield a_class
    for process in a_class.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # the end of one process may end others
            process.kill()
    cleanup.end_left_over(a_class.out)  # a batch was killed, and no later batch has cleaned up


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """Return a running Slurm cluster with this machine as its only node, or skip the test."""
    if reason := slurm.why_not():
        pytest.skip(reason)
    with slurm.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def graded(tmp_path) -> Path:
    """Return the output folder of a batch with four results."""
    shutil.copytree(exported.FIXTURES / "results", tmp_path / "graded" / "results")
    return tmp_path / "graded"
