"""Ranks on two hosts with a network between them: they train, and a host that is lost is named."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import two_hosts

from hvdlab.course.rank_report import rank_report, summary
from hvdlab.data import DataError, load_fashion_mnist
from hvdlab.exercises import lab05_script_edits as edits

pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
pytestmark = [pytest.mark.multihost, pytest.mark.mpi, pytest.mark.slow]

ON_BOTH = ("-np", "4", "-H", "host1:2,host2:2", "--map-by", "ppr:2:node")
ON_ONE = ("-np", "2", "-H", "host1:2")
ALL_ON_ONE = ("-np", "4", "-H", "host1:4")
VARIABLES = {
    "PATH": f"{Path(sys.executable).parent}:{two_hosts.SEARCH}",
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
WHO = """\
import json, socket
import horovod.torch as hvd
hvd.init()
print(json.dumps([hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.cross_size(), socket.gethostname()]))
"""
EXCHANGE = """\
import torch
import horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name="first")
if hvd.rank() == 0:
    print("all are there", flush=True)
while True:
    hvd.allreduce(torch.ones(1), name="next")
"""
SUM = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"{dist.get_rank()} {total.item()}\\n", end="")
dist.destroy_process_group()
"""
ASK_OFTEN = {
    "PRTE_MCA_oob_tcp_keepalive_time": "3",
    "PRTE_MCA_oob_tcp_keepalive_intvl": "1",
    "PRTE_MCA_oob_tcp_keepalive_probes": "3",
}
SMALL = ("--images", "1280", "--heldout", "200", "--batch-size", "32", "--lr", "0.005")


@pytest.fixture
def network(tmp_path):
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    (tmp_path / "network").mkdir()
    with two_hosts.running(tmp_path / "network") as both:
        yield both


@pytest.fixture
def train(tmp_path):
    """A function: the command that trains with the script that lab 5 ends with."""
    try:
        load_fashion_mnist()
    except DataError as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")
    script = tmp_path / "train.py"
    script.write_text(edits.after("resume", "torch"))

    def command(where, epochs, record, *arguments):
        record = {"HVDLAB_RUN_DIR": tmp_path / record}
        return mpirun(where, script, *SMALL, "--epochs", epochs, *arguments, **record)

    return command


def mpirun(where, script, *arguments, **variables) -> list[str]:
    """What a rank needs to know is written out: ssh takes no variables to another host."""
    known = {name: os.environ.get(name, "") for name in ("PYTHONPATH", "HVDLAB_DATA")}
    known |= {"OMP_NUM_THREADS": 1, **variables}
    given = [word for name, value in known.items() for word in ("-x", f"{name}={value}")]
    return [str(w) for w in ("mpirun", *where, *given, sys.executable, script, *arguments)]


def losses(folder) -> dict[int, float]:
    """Epoch -> training loss, as rank 0 recorded it."""
    lines = (folder / "rank-0" / "record.jsonl").read_text().splitlines()
    return {line["epoch"]: line["loss"] for line in map(json.loads, lines)}


def test_ranks_sit_two_and_two(network, tmp_path):
    script = tmp_path / "who.py"
    script.write_text(WHO)
    answer = network.host1.run(*mpirun(ON_BOTH, script), timeout=240, **VARIABLES)
    assert answer.returncode == 0, answer.stderr
    assert sorted(map(json.loads, answer.stdout.splitlines())) == [
        [0, 0, 0, 2, "host1"],
        [1, 1, 0, 2, "host1"],
        [2, 0, 1, 2, "host2"],
        [3, 1, 1, 2, "host2"],
    ]
    for host in (network.host1, network.host2):
        two_hosts.wait_for(lambda h=host: h.processes() == [], tmp_path, 10)


@pytest.mark.thorough
def test_a_lost_host_is_named_and_the_run_goes_on_without_it(network, train, tmp_path):
    kept = ("--checkpoint", tmp_path / "checkpoints")
    run = (sys.executable, "-m", "hvdlab.launch.command", "-np", 4, "-H", "host1:2,host2:2")
    process = subprocess.Popen(
        network.host1.enter(
            *map(str, (*run, tmp_path / "train.py", *SMALL, "--epochs", 1000, *kept))
        ),
        env={**os.environ, **VARIABLES, "HVDLAB_RUN_DIR": str(tmp_path / "cut")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        saved = kept[1] / "epoch-001.pt"
        two_hosts.wait_for(lambda: saved.exists() or process.poll() is not None, tmp_path, 240)
        network.cut("host2")
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "host2 cannot be reached (Timeout, server host2 not responding)" in said
    two_hosts.wait_for(lambda: network.host1.processes() == [], tmp_path, 10)

    # The uninterrupted run is on one host: two hosts train the same model as one.
    done = len(list(kept[1].glob("epoch-*.pt")))
    answer = network.host1.run(*train(ALL_ON_ONE, done + 1, "whole"), timeout=240, **VARIABLES)
    assert answer.returncode == 0, answer.stderr
    before, whole = losses(tmp_path / "cut"), losses(tmp_path / "whole")
    assert {epoch: before[epoch] for epoch in range(done)} == pytest.approx(
        {epoch: whole[epoch] for epoch in range(done)}, rel=1e-3
    )
    assert summary(rank_report(tmp_path / "cut", done - 1))["models"] == 1

    answer = network.host1.run(*train(ON_ONE, done + 1, "rest", *kept), timeout=240, **VARIABLES)
    assert answer.returncode == 0, answer.stderr
    rest = losses(tmp_path / "rest")
    assert list(rest) == [done]
    # It is where the uninterrupted run is, and not where that one began.
    assert abs(rest[done] - whole[done]) < (whole[0] - whole[done]) / 2
    assert summary(rank_report(tmp_path / "rest"))["models"] == 1


@pytest.mark.thorough
def test_the_line_that_torchrun_needs_on_each_host_works(network, tmp_path):
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    run = (sys.executable, "-m", "hvdlab.launch.command", "-np", 4, "-H", "host1:2,host2:2")
    refused = network.host1.run(*run, "--launcher", "torchrun", script, timeout=120, **VARIABLES)
    assert refused.returncode == 2 and "on each of host1 and host2 type" in refused.stderr
    line = refused.stderr.splitlines()[1].strip()
    both = [
        subprocess.Popen(
            host.enter("bash", "-c", line),
            env={**os.environ, **VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in (network.host1, network.host2)
    ]
    try:
        said = [process.communicate(timeout=240) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    printed = "".join(out for out, _ in said)
    assert sorted(printed.splitlines()) == ["0 10.0", "1 10.0", "2 10.0", "3 10.0"]


@pytest.mark.thorough
def test_open_mpi_itself_names_a_lost_host_when_it_asks_often(network, tmp_path):
    """Its own default is to ask after 300 s, and nine times more, 20 s apart."""
    script = tmp_path / "exchange.py"
    script.write_text(EXCHANGE)
    process = subprocess.Popen(
        network.host1.enter(*mpirun(ON_BOTH, script)),
        env={**os.environ, **VARIABLES, **ASK_OFTEN},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert "all are there\n" in iter(process.stdout.readline, "")
        # Only a connection on which all has been acknowledged is asked: let mpirun's fall silent.
        time.sleep(3)
        network.cut("host2")
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "lost communication with a remote daemon" in said and "on node host2" in said
    two_hosts.wait_for(lambda: network.host1.processes() == [], tmp_path, 10)
    assert process.returncode == 0  # all the same: who starts mpirun must read what it says
    # The other side asks too, and ends its ranks. Its sshd does not, and still waits for ssh.
    left = {"python", "prted"}
    two_hosts.wait_for(
        lambda: not left & {p.name() for p in network.host2.processes()}, tmp_path, 60
    )
