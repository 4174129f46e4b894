"""The job scripts of docker/slurm on a real Slurm: they train, continue after a requeue, grade, and end."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import slurm_cluster
import slurm_two_nodes
import two_hosts

from hvdlab.course.rank_report import rank_report, summary
from hvdlab.data import DataError, load_fashion_mnist
from hvdlab.exercises import lab05_script_edits as edits

pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two ranks"),
]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "docker" / "slurm"
QUICK = ROOT / "tests/fixtures/submissions/exits_at_once/assessment.py"
WHERE = """\
import socket, sys, time
import horovod.torch as hvd
hvd.init()
print(hvd.rank(), hvd.local_rank(), hvd.cross_size(), hvd.size(), socket.gethostname())
time.sleep(float(sys.argv[1]))
"""
SUM = """\
import os, socket, sys, time
import torch
import torch.distributed as dist
from hvdlab.torch.process_group import rendezvous
rendezvous()
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(dist.get_rank(), os.environ["LOCAL_RANK"], total.item(), socket.gethostname(), flush=True)
if sys.argv[1:] == ["fail"]:
    if dist.get_rank() == 1:
        os._exit(3)
    time.sleep(1000)  # in which nothing tells it of the other's end
dist.destroy_process_group()
"""
EPOCH = re.compile(r"^epoch (\d+)  loss ([0-9.]+)", re.MULTILINE)
WHO = "import horovod.torch as hvd\nhvd.init()\nprint('one of', hvd.size())\n"


class Account:
    """Submits jobs from a folder, like a learner."""

    def __init__(self, cluster, folder: Path):
        self.cluster, self.folder = cluster, folder
        self.variables = {
            **os.environ,
            **cluster.environment,
            "PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}",
            "HVDLAB_ENV": sys.prefix,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def run(self, *command, **variables) -> subprocess.CompletedProcess:
        return subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env={**self.variables, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )

    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("hvdlab-*.out"))

    def job(self, number: str) -> dict[str, str]:
        shown = self.cluster.run("scontrol", "show", "job", number, "--oneliner")
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def processes(self, number: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except psutil.Error:
                continue
            ours = environment.get("SLURM_CONF") == self.cluster.environment["SLURM_CONF"]
            if ours and environment.get("SLURM_JOB_ID") == number:
                found.append(process)
        return found

    def wait_for(self, condition, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen: {self.log()}"
            time.sleep(0.1)


@pytest.fixture
def account(slurm_cluster, tmp_path):
    (tmp_path / "home").mkdir()
    yield Account(slurm_cluster, tmp_path / "home")
    slurm_cluster.run("scancel", "--user=root")


def test_training_continues_after_a_requeue_and_ends_with_scancel(account):
    try:
        load_fashion_mnist()
    except DataError as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")
    script, kept = account.folder / "train.py", account.folder / "checkpoints"
    script.write_text(edits.after("resume", "torch"))
    small = "--images 2000 --heldout 500 --batch-size 32 --epochs 1000 --checkpoint checkpoints"
    submit = ("sbatch", "--parsable", "--ntasks-per-node=2", SCRIPTS / "train.sbatch")
    answer = account.run(*submit, "train.py", *small.split(), HVDLAB_RUN_DIR="record")
    assert answer.returncode == 0, answer.stderr
    job = answer.stdout.strip()
    account.wait_for(lambda: (kept / "epoch-001.pt").exists())
    shared = summary(rank_report(account.folder / "record", 0))
    assert (shared["ranks"], shared["models"]) == (2, 1)

    # Like Slurm 90 s before the time limit.
    account.cluster.run("scancel", "--batch", "--signal=USR1", job)
    account.wait_for(lambda: account.job(job)["Restarts"] == "1" and not account.processes(job))
    done = len(list(kept.glob("epoch-*.pt")))
    before = EPOCH.findall(account.log())
    # Otherwise Slurm waits two minutes.
    account.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    account.wait_for(lambda: len(EPOCH.findall(account.log())) > len(before))
    epoch, loss = EPOCH.findall(account.log())[len(before)]
    assert int(epoch) == done
    assert float(loss) < (float(before[0][1]) + float(before[-1][1])) / 2

    assert len(account.processes(job)) > 2
    account.cluster.run("scancel", job)
    account.wait_for(lambda: account.job(job)["JobState"] == "CANCELLED")
    account.wait_for(lambda: account.processes(job) == [], 60)


def test_grades_a_submission(account, sample_folder):
    account.folder.joinpath("mine.py").write_text(QUICK.read_text())
    submit = ("sbatch", "--wait", SCRIPTS / "assess.sbatch", "mine.py", "--profile", "dli")
    answer = account.run(*submit, HVDLAB_DATA=sample_folder)
    assert answer.returncode == 1, account.log()  # the submission was graded and failed
    (report,) = account.folder.glob("hvdlab-assess-*.json")
    assert json.loads(report.read_text())["status"] == "graded"
    assert report.with_suffix(".html").exists()


def test_ranks_of_torch_distributed_connect_and_a_failed_rank_ends_the_job(account):
    host = socket.gethostname()
    account.folder.joinpath("sum.py").write_text(SUM)
    submit = ("sbatch", "--wait", "--ntasks-per-node=2", SCRIPTS / "torch.sbatch", "sum.py")
    answer = account.run(*submit)
    assert answer.returncode == 0, account.log()
    assert sorted(account.log().splitlines()) == [f"0: 0 0 3.0 {host}", f"1: 1 1 3.0 {host}"]
    answer = account.run(*submit, "fail")
    assert answer.returncode != 0 and "task 1: Exited with exit code 3" in account.log()


@pytest.mark.thorough
def test_srun_starts_the_ranks_of_a_language_model(account):
    pytest.importorskip("litgpt", reason="needs LitGPT: run `make setup`")
    (account.folder / "labs").symlink_to(ROOT / "labs")
    (account.folder / "text").write_text("The quick brown fox jumps over the lazy dog. " * 200)
    submit = (
        "sbatch",
        "--wait",
        "--ntasks-per-node=2",
        SCRIPTS / "torch.sbatch",
        "labs/language_model.py",
    )
    small = "--layers 1 --width 32 --length 32 --vocabulary 320 --batch-size 4 --steps 4 --every 2"
    settings = ("--text", "text", "--out", "model", "--strategy", "ddp", *small.split())
    answer = account.run(*submit, "pretrain", *settings)
    assert answer.returncode == 0, account.log()
    # Both ranks are in one process group: only rank 0 reports, and there is one model file.
    assert re.findall(r"^\d: step +(\d+) ", account.log(), re.MULTILINE) == ["0", "2", "4"]
    assert (account.folder / "model" / "lit_model.pth").exists()


@pytest.mark.thorough
def test_srun_without_mpirun_starts_separate_ranks(account):
    """train.sbatch calls mpirun, because Slurm without PMIx silently starts separate runs."""
    account.folder.joinpath("who.py").write_text(WHO)
    answer = account.run("srun", "--ntasks=2", "python", "who.py")
    assert answer.stdout.splitlines() == ["one of 1"] * 2, answer.stderr
    answer = account.run("salloc", "--quiet", "--ntasks=2", "mpirun", "python", "who.py")
    assert answer.stdout.splitlines() == ["one of 2"] * 2, answer.stderr


@pytest.mark.thorough
@pytest.mark.multihost
def test_a_job_on_two_nodes(tmp_path):
    if reason := two_hosts.why_not() or slurm_cluster.why_not():
        pytest.skip(reason)
    for name in ("network", "slurm"):
        (tmp_path / name).mkdir()
    script, meeting, log = tmp_path / "where.py", tmp_path / "sum.py", tmp_path / "log"
    script.write_text(WHERE)
    meeting.write_text(SUM)
    options = ("--nodes=2", "--ntasks-per-node=2", f"--output={log}")
    train, torch = SCRIPTS / "train.sbatch", SCRIPTS / "torch.sbatch"
    with (
        two_hosts.running(tmp_path / "network") as network,
        slurm_two_nodes.running(network, tmp_path / "slurm") as variables,
    ):
        variables = variables | {
            "PATH": f"{Path(sys.executable).parent}:{two_hosts.SEARCH}",
            "HVDLAB_ENV": sys.prefix,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        daemons = {p.pid for host in (network.host1, network.host2) for p in host.processes()}

        def submit(*job):
            answer = network.host1.run("sbatch", "--parsable", *options, *job, **variables)
            return answer.stdout.strip()

        def lines():
            return sorted(log.read_text().splitlines()) if log.exists() else []

        def left():
            both = network.host1.processes() + network.host2.processes()
            return {process.pid for process in both} - daemons

        submit(train, script, 0)
        four = ["0 0 2 4 host1", "1 1 2 4 host1", "2 0 2 4 host2", "3 1 2 4 host2"]
        two_hosts.wait_for(lambda: lines() == four, tmp_path, 240)
        two_hosts.wait_for(lambda: not left(), tmp_path, 60)

        job = submit(train, script, 1000)
        two_hosts.wait_for(lambda: lines() == sorted(four + four), tmp_path, 240)
        assert len(left()) > 4
        network.host1.run("scancel", job, **variables)
        two_hosts.wait_for(lambda: not left(), tmp_path, 60)

        log.unlink()
        submit(torch, meeting)
        four = ["0: 0 0 10.0 host1", "1: 1 1 10.0 host1", "2: 2 0 10.0 host2", "3: 3 1 10.0 host2"]
        # torch's store warns that these hosts have no DNS name.
        two_hosts.wait_for(lambda: set(four) <= set(lines()), tmp_path, 240)
        two_hosts.wait_for(lambda: not left(), tmp_path, 60)

        run = (
            sys.executable,
            "-m",
            "hvdlab.launch.command",
            "-np",
            4,
            "--launcher",
            "srun",
            meeting,
        )
        answer = network.host1.run(
            *("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *run),
            timeout=240,
            **variables,
        )
        assert answer.returncode == 0, answer.stderr
        assert sorted(answer.stdout.splitlines()) == [f"[{line[0]}]{line[2:]}" for line in four]
        two_hosts.wait_for(lambda: not left(), tmp_path, 60)
