"""Elastic Horovod: training continues after a rank is killed, and includes a host that is added."""

import os
import re
import secrets
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from hvdlab.data import DataError, load_fashion_mnist

pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")

SCRIPT = Path(__file__).parents[2] / "labs" / "fashion_mnist_elastic.py"
COMMIT = 4
LINE = re.compile(r"step (\d+)  loss ([0-9.]+)  ranks (\d)  rate ([0-9.]+)")
SECONDS = 240
EQUAL = """\
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
assert (hvd.allgather(weights[None], name="weights") == weights).all(), "different weights"
"""


class Job:
    """A job under horovodrun. The host discovery script prints `hosts`.

    It runs a copy of the script that fails if the ranks have different weights at a commit.
    """

    def __init__(self, folder: Path, *arguments):
        self.script = folder / SCRIPT.name
        # Before the all-reduce whose result is printed, so that no line is printed if a rank dies in this
        # one.
        report = "                    mean = average("
        before, after = SCRIPT.read_text().split(report)
        self.script.write_text(before + textwrap.indent(EQUAL, 20 * " ") + report + after)
        self.hosts, self.log = folder / "hosts", folder / "log"
        self.mark = secrets.token_hex(8)
        discover = folder / "discover.sh"
        discover.write_text(f'#!/bin/sh\ncat "{self.hosts}"\n')
        discover.chmod(0o755)
        self.offer("localhost:1", "127.0.0.1:1")
        bin = Path(sys.executable).parent
        with self.log.open("wb") as log:
            self.process = psutil.Popen(
                [
                    bin / "horovodrun", "--gloo", "-np", "2", "--min-np", "1",
                    "--network-interface", "lo", "--host-discovery-script", discover,
                    # A new rank must first import torch and Horovod.
                    "--gloo-timeout-seconds", "120",
                    sys.executable, self.script, *map(str, arguments),
                ],
                env={
                    **os.environ,
                    "PATH": f"{bin}:{os.environ['PATH']}",
                    "OMP_NUM_THREADS": "1",
                    "HVDLAB_TEST": self.mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def offer(self, *hosts: str) -> None:
        part = self.hosts.with_suffix(".part")
        part.write_text("".join(f"{host}\n" for host in hosts))
        part.replace(self.hosts)

    def said(self) -> list[tuple[int, float, int, float]]:
        """Return (step, loss, ranks, learning rate) of each commit."""
        found = LINE.findall(self.log.read_text())
        return [(int(step), float(loss), int(n), float(rate)) for step, loss, n, rate in found]

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the running ranks by the rank number that they started with."""
        found = {}
        for process in self.processes():
            try:
                if process.cmdline()[:2] == [sys.executable, str(self.script)]:
                    found[int(process.environ()["HOROVOD_RANK"])] = process
            except psutil.Error:
                continue
        return found

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HVDLAB_TEST") == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def start(tmp_path):
    try:
        load_fashion_mnist()
    except DataError as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")
    jobs = []

    def start(*arguments):
        jobs.append(Job(tmp_path, *arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        for process in job.processes():
            process.kill()


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("real_fashion_mnist")
def test_continues_after_a_lost_rank_and_includes_a_new_one(start):
    job = start("--commit", COMMIT, "--epochs", 1000, "--images", 6000, "--heldout", 500)
    job.wait_for(lambda: len(job.said()) >= 5)
    ranks = job.ranks()
    stays = ranks[0].environ()["HOROVOD_HOSTNAME"]  # Horovod orders the hosts arbitrarily
    ranks[1].kill()
    job.wait_for(lambda: job.said()[-1][2] == 1)
    # Another name of the same address, because Horovod does not use a host again on which a rank has died.
    job.offer(f"{stays}:1", "127.1:1")
    job.wait_for(lambda: job.said()[-1][2] == 2)
    job.process.terminate()
    # The exit code of horovodrun depends on the order in which its workers end.
    job.process.wait(SECONDS)
    assert psutil.wait_procs(job.processes(), timeout=10)[1] == []

    steps, losses, ranks, rates = zip(*job.said(), strict=True)
    assert rates == tuple(0.02 * n for n in ranks)
    assert [n for i, n in enumerate(ranks) if i == 0 or n != ranks[i - 1]] == [2, 1, 2]
    # Each commit appears once, so no committed step is lost or repeated.
    assert list(steps) == [COMMIT * (i + 1) for i in range(len(steps))]
    # The loss continues to fall. With untrained weights, of a new rank or of all, it would be the first
    # loss again.
    for before in (ranks.index(1) - 1, len(ranks) - ranks[::-1].index(1) - 1):
        assert losses[before + 1] < (losses[0] + losses[before]) / 2


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("real_fashion_mnist")
@pytest.mark.thorough
def test_trains_on_a_single_rank_without_horovodrun(start, tmp_path):
    """It ends, with the loss curve that the elastic run must reach too."""
    small = ("--commit", COMMIT, "--epochs", "2", "--images", "2000", "--heldout", "50000")  # all
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, small)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert answer.returncode == 0, answer.stderr
    steps, losses, ranks, _ = zip(*LINE.findall(answer.stdout), strict=True)
    assert len(steps) == 2 * 32 // COMMIT and set(ranks) == {"1"}
    assert float(losses[-1]) < float(losses[0]) / 2
    held_out = re.findall(r"epoch (\d)  held-out ([0-9.]+)  ranks 1", answer.stdout)
    assert [epoch for epoch, _ in held_out] == ["0", "1"] and float(held_out[1][1]) > 0.5
