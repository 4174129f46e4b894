"""A worker that runs each grading in a job of a real Slurm cluster."""

import os
import signal
from pathlib import Path

import pytest
from school import QUICK

from hvdgrade.batch import slurm

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.slow]
SOLUTION = Path(__file__).parents[3] / "assessment" / "solutions" / "torch" / "assessment.py"
SOON = """
from hvdgrade.batch import slurm
from hvdgrade.worker import loop
slurm.LOST_SECONDS, loop.BEAT_SECONDS, loop.CANNOT_SECONDS = 3, 0.5, 0.5"""


@pytest.fixture
def on_slurm(worker, pool, slurm_cluster):
    """A worker, a server, and a cluster whose jobs are ended after the test."""
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    yield worker, pool, slurm_cluster
    slurm_cluster.run("scancel", "--user=root")


def start(worker, cluster, *options: object) -> None:
    worker.start("--slurm", *options, before=SOON, **cluster.environment)


def jobs(cluster, *options: str) -> list[str]:
    return cluster.run("squeue", "--noheader", "--format=%i", *options).split()


def test_a_cancelled_job_is_graded_again(on_slurm):
    worker, pool, cluster = on_slurm
    first = pool.add(worker.sleeper(300))
    waits = [pool.add(QUICK, rank=2) for _ in range(2)]
    start(worker, cluster, "--workers", 2, "--slurm-option", "comment=course")
    worker.wait_for(lambda: worker.sleeps() and len(jobs(cluster)) == 2)
    shown = cluster.run("scontrol", "show", "jobs", "--oneliner").splitlines()
    shown = [job for job in shown if f"JobName={slurm.job_name(worker.spool)} " in job]
    assert len(shown) == 2 and all("Comment=course" in job for job in shown)
    assert all("OverSubscribe=NO" in job for job in shown)  # a grading measures time
    assert sorted(job.split("Nice=")[1].split()[0] for job in shown) == ["0", "200"]
    worker.wait_for(lambda: any("running the submission" in text for text in first.progress))
    first.script = QUICK.encode()
    cluster.run("scancel", *jobs(cluster, "--states=RUNNING"))
    worker.wait_for(lambda: all(one.state == "done" for one in (first, *waits)))
    assert (first.returned, first.worker_ended) == (1, 0) and len(set(first.tokens)) == 2
    assert all(len(one.results) == 1 for one in (first, *waits))
    assert {one.documents[0]["status"] for one in (first, *waits)} == {"graded"}
    assert "has left the queue without a result" in worker.said()
    assert worker.end() == 0
    assert jobs(cluster) == [] and worker.files() == []
    logs = [path.name for path in (worker.spool / "slurm").glob("*_log.out")]
    assert len(logs) == 4 and all(name.endswith("_0_log.out") for name in logs)  # each graded once


def test_no_job_outlives_its_lease_or_its_worker(on_slurm):
    worker, pool, cluster = on_slurm
    lost = pool.add(worker.sleeper(300))
    start(worker, cluster, "--workers", 1)
    worker.wait_for(worker.sleeps)
    pool.take_away(lost)
    worker.wait_for(lambda: jobs(cluster) == [] and "grading 1: lost" in worker.said())
    ended = pool.add(worker.sleeper(300))
    worker.wait_for(worker.sleeps)
    assert worker.end() == 0
    assert jobs(cluster) == [] and (ended.state, ended.returned) == ("queued", 1)
    # After a kill -9 the job runs on; the next worker ends it.
    start(worker, cluster, "--workers", 1)
    worker.wait_for(worker.sleeps)
    worker.end(signal.SIGKILL)
    assert jobs(cluster)
    ended.script = QUICK.encode()
    start(worker, cluster, "--workers", 1, "--once")
    assert worker.process.wait(300) == 0
    assert len(ended.results) == 1 and jobs(cluster) == []
    assert worker.files() == [] and worker.processes() == []


def test_a_job_sees_no_token(on_slurm):
    worker, pool, cluster = on_slurm
    pool.add(worker.sleeper(300))
    start(worker, cluster, "--workers", 1)
    worker.wait_for(worker.sleeps)
    tokens = {pool.token, *pool.gradings[1].tokens}
    others = [p for p in worker.processes() if p.pid != worker.process.pid]
    assert len(others) > 2
    for process in others:
        said = str(process.environ()) + str(process.cmdline())
        assert not any(token in said for token in tokens)
    assert worker.end() == 0


@pytest.mark.thorough
def test_two_cancelled_jobs_and_a_killed_worker_lose_nothing(on_slurm):
    """Twelve gradings: see section 12 of the design of the service."""
    worker, pool, cluster = on_slurm
    gradings = [pool.add(worker.sleeper(2)) for _ in range(12)]
    options = ("--workers", 2 * (os.cpu_count() or 1), "--oversubscribe")
    start(worker, cluster, *options)
    for done in (2, 4):
        worker.wait_for(lambda done=done: sum(g.state == "done" for g in gradings) >= done)
        worker.wait_for(lambda: jobs(cluster, "--states=RUNNING"))
        cluster.run("scancel", jobs(cluster, "--states=RUNNING")[0])
    worker.wait_for(lambda: sum(g.state == "done" for g in gradings) >= 6)
    worker.end(signal.SIGKILL)
    start(worker, cluster, *options)
    worker.wait_for(lambda: all(grading.state == "done" for grading in gradings), 900)
    assert all(len(grading.results) == 1 for grading in gradings)
    assert {grading.documents[0]["status"] for grading in gradings} == {"graded"}
    assert worker.end() == 0 and jobs(cluster) == [] and worker.files() == []


@pytest.mark.thorough
@pytest.mark.grading
@pytest.mark.data
@pytest.mark.timeout(1800)
def test_the_reference_solution_passes_in_a_job(on_slurm, real_cifar10_folder):
    worker, pool, cluster = on_slurm
    worker.data = real_cifar10_folder
    grading = pool.add(SOLUTION.read_text(encoding="utf-8"), profile="cpu", ranks=2)
    start(worker, cluster, "--workers", 1, "--once")
    assert worker.process.wait(1700) == 0
    (document,) = grading.documents
    assert (document["status"], document["verdict"]) == ("graded", "pass"), document["reason"]
    assert document["score"] == 100 and sum("epoch " in text for text in grading.progress) > 2
