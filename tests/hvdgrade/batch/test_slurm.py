"""Grading a class on a real Slurm cluster, with one job per submission, also if the batch is killed."""

import os
import signal

import pytest

from hvdgrade import profiles
from hvdgrade.batch import class_on_slurm, layout, slurm, worker

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.slow]


@pytest.fixture
def on_slurm(school, slurm_cluster):
    """The class, and the arguments and environment with which it is graded on the cluster."""
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    yield school, slurm_cluster
    slurm_cluster.run("scancel", "--user=root")


def test_a_class_is_graded_by_jobs(on_slurm):
    school, cluster = on_slurm
    ranks = min(2, os.cpu_count())
    school.add("ada", "import os\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'])\n")
    school.add("=cmd()", "#!/bin/sh\necho no Python\n")
    school.add_sleeper("Zoë K", 1)
    school.add("none")
    (school.folder / "none" / "assessment.py").unlink()
    options = ("-np", ranks, "--slurm", "--slurm-option", "comment=course")
    options += ("--slurm-option", "exclusive", "--slurm-option", "cpus-per-task=1")
    # Neither the batch nor a job imports what lies in the folder where it was started.
    elsewhere = school.folder.parent / "elsewhere"
    elsewhere.mkdir()
    for module in ("submitit", "hvdgrade", "rich"):
        (elsewhere / f"{module}.py").write_text("raise SystemExit('imported')")
    answer = school.grade(*options, cwd=elsewhere, **cluster.environment)
    assert answer.returncode == 0, answer.stderr
    results = school.results()
    assert {id: document["status"] for id, document in results.items()} == {
        "ada": "graded",
        "Zoë K": "graded",
        "=cmd()": "not_gradable",
        "none": "not_gradable",
    }
    assert all(f"rank {rank}" in results["ada"]["output"] for rank in range(ranks))
    jobs = cluster.run("scontrol", "show", "jobs", "--oneliner").splitlines()
    jobs = [job for job in jobs if f"JobName={slurm.job_name(school.out)}" in job]
    wanted = {"Comment=course", "OverSubscribe=NO", "CPUs/Task=1"}
    # A job grades once, also if it has a whole node: submitit numbers the logs of its tasks.
    logs = [path.name for path in (school.out / "slurm").glob("*_log.out")]
    assert len(logs) == 2 and all(name.endswith("_0_log.out") for name in logs)
    # What is no script gets no job.
    assert len(jobs) == 2 and all(wanted <= set(job.split()) for job in jobs)
    assert cluster.run("squeue", "--noheader") == ""
    assert (school.out / "index.html").exists() and school.processes() == []

    before = school.files()
    assert school.grade(*options, "--regrade", **cluster.environment).returncode == 0
    assert not set(before.items()) & set(school.files().items())


def test_kill_9_and_an_interrupt_lose_nothing(on_slurm):
    school, cluster = on_slurm
    students = {f"student{number}" for number in range(5)}
    for number, student in enumerate(sorted(students)):
        school.add_sleeper(student, 3) if number % 2 else school.add(student)
    arguments = ("--slurm", "--workers", 1)
    batch = school.start(*arguments, **cluster.environment)
    school.wait_for(lambda: school.files())
    batch.kill()
    batch.communicate(timeout=60)
    # The jobs do not depend on the process that waits for them, so they continue.
    kept = school.files()
    school.wait_for(lambda: len(school.files()) > len(kept))
    kept = school.files()

    # The next batch ends the old jobs before it submits new ones for what is left.
    jobs = ("squeue", "--noheader", "--format=%F")
    old = set(cluster.run(*jobs).split())
    batch = school.start(*arguments, **cluster.environment)
    school.wait_for(lambda: set(cluster.run(*jobs, "--states=RUNNING").split()) - old)
    assert not set(cluster.run(*jobs).split()) & old
    batch.send_signal(signal.SIGINT)
    _, stderr = batch.communicate(timeout=200)
    assert batch.returncode == 3 and "run the same command to continue" in stderr
    assert cluster.run("squeue", "--noheader") == ""
    assert school.processes() == []

    kept |= school.files()
    answer = school.grade(*arguments, **cluster.environment)
    assert answer.returncode == 0, answer.stderr
    assert set(school.results()) == students
    assert {document["status"] for document in school.results().values()} == {"graded"}
    assert {name: school.files()[name] for name in kept} == kept
    assert school.processes() == []


LINGERS = """\
import atexit, sys, time
if "submitit.core._submit" in sys.orig_argv:  # what a job runs
    atexit.register(time.sleep, 4)
"""


def test_a_batch_ends_after_its_jobs(on_slurm, tmp_path):
    """Which have their results a moment before they end: here a long one."""
    school, cluster = on_slurm
    school.add("ada")
    (tmp_path / "sitecustomize.py").write_text(LINGERS)
    answer = school.grade("--slurm", PYTHONPATH=str(tmp_path), **cluster.environment)
    assert answer.returncode == 0, answer.stderr
    assert cluster.run("squeue", "--noheader") == "" and school.processes() == []


INTERRUPTS = {
    "when sbatch has taken the jobs": """\
import submitit
submit = submitit.SlurmExecutor.map_array
def interrupted(self, *arguments):
    submit(self, *arguments)
    raise KeyboardInterrupt
submitit.SlurmExecutor.map_array = interrupted""",
    "while sbatch still asks": """\
import os, pathlib, signal, submitit
asks = pathlib.Path("bin", "sbatch").absolute()
asks.parent.mkdir()
asks.write_text(f"#!/bin/sh\\nsleep 3\\nPATH={os.environ['PATH']} exec sbatch \\"$@\\"\\n")
asks.chmod(0o755)
os.environ["PATH"] = f"{asks.parent}:{os.environ['PATH']}"
submit = submitit.SlurmExecutor.map_array
def interrupted(self, *arguments):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(1)
    submit(self, *arguments)
submitit.SlurmExecutor.map_array = interrupted""",
    "before it waits for them": """\
from hvdgrade.batch import command
def interrupted(*arguments):
    raise KeyboardInterrupt
command.follow = interrupted""",
}


@pytest.mark.parametrize("moment", INTERRUPTS)
def test_an_interrupt_leaves_no_job_at_any_moment(on_slurm, moment, tmp_path):
    school, cluster = on_slurm
    school.add_sleeper("ada", 300)
    answer = school.grade("--slurm", before=INTERRUPTS[moment], cwd=tmp_path, **cluster.environment)
    assert answer.returncode == 3 and "1 of 1 are still to be graded" in answer.stderr
    assert list((school.out / "slurm").iterdir())  # it was submitted
    assert cluster.run("squeue", "--noheader") == "" and school.processes() == []


def test_what_slurm_refuses_is_one_sentence(on_slurm):
    school, cluster = on_slurm
    school.add("ada")
    answer = school.grade("--slurm", "--slurm-option", "partition=none", **cluster.environment)
    assert answer.returncode == 2 and "sbatch refused the jobs" in answer.stderr
    assert "Traceback" not in answer.stderr
    for option, words in (
        ("=none", "must be KEY=VALUE"),
        ("job-name=x", "the batch sets this option itself"),
    ):
        answer = school.grade("--slurm", "--slurm-option", option, **cluster.environment)
        assert answer.returncode == 2 and words in answer.stderr


def test_a_job_that_vanishes_is_a_fault_not_a_zero(on_slurm):
    school, cluster = on_slurm
    school.add_sleeper("ada", 300)
    soon = "from hvdgrade.batch import slurm; slurm.LOST_SECONDS = 5"
    batch = school.start("--slurm", before=soon, **cluster.environment)
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    cluster.run("scancel", "--user=root")
    stdout, stderr = batch.communicate(timeout=200)
    assert batch.returncode == 3 and "1 grader faults" in stdout, stderr
    assert "ended without a result" in school.results()["ada"]["reason"]
    assert list((school.out / "running").iterdir()) == []  # the job has cleared up after itself


@pytest.mark.thorough
def test_a_job_at_the_end_of_its_time_is_not_queued_again_for_ever(on_slurm):
    """An option gives it less than two attempts may take, so submitit takes the end for another's turn."""
    school, cluster = on_slurm
    school.add_sleeper("ada", 300)
    soon = "from hvdgrade.batch import slurm; slurm.LOST_SECONDS = 5"
    options = ("--slurm", "--slurm-option", "time=1")  # its signal comes 90 s before that: at once
    answer = school.grade(*options, before=soon, **cluster.environment)
    assert answer.returncode == 3 and "1 grader faults" in answer.stdout, answer.stderr
    assert "ended without a result" in school.results()["ada"]["reason"]


def test_why_jobs_wait_is_told(on_slurm):
    school, cluster = on_slurm
    school.add("ada")
    batch = school.start("--slurm", "--slurm-option", "hold", **cluster.environment)
    name = slurm.job_name(school.out)
    said = ""
    while "JobHeldUser" not in said:
        line = batch.stderr.readline()
        assert line, said
        said += line
    assert f"Jobs wait in Slurm's queue: JobHeldUser. `squeue --name {name}` lists them" in said
    cluster.run("scontrol", "release", f"jobname={name}")
    assert batch.wait(timeout=200) == 0


def test_a_result_that_comes_late_is_not_replaced_by_a_fault(tmp_path):
    for folder in layout.FOLDERS:
        (tmp_path / folder).mkdir()
    rules = profiles.load("dli")
    settings = [layout.Settings(tmp_path, 2, "dli", "", 60.0, call=call) for call in ("old", "new")]
    task = layout.Task("ada", "ada", "key")
    result = worker.ungraded(task, settings[1], rules, "not_gradable", "it is no Python.")

    worker.keep(*result, task, settings[1])
    assert class_on_slurm.lost("7", task, settings[1], rules)["reason"] == "it is no Python."
    assert layout.read_result(tmp_path, "ada")["reason"] == "it is no Python."
    # What an earlier call made is not the job's; it stays, as the fault is no better.
    worker.keep(*result, task, settings[0])
    for _ in range(2):
        document = class_on_slurm.lost("7", task, settings[1], rules)
        assert document == layout.read_result(tmp_path, "ada")
        assert document["reason"] == "it is no Python."
        assert "job 7 ended without" in document["batch"]["failed_again"]["reason"]
        assert slurm.made(task, settings[1]) == document
    # Neither is nothing the job's.
    (tmp_path / "results" / "ada.json").unlink()
    for _ in range(2):
        assert (
            "job 7 ended without a result"
            in class_on_slurm.lost("7", task, settings[1], rules)["reason"]
        )
        assert layout.read_result(tmp_path, "ada")["status"] == "infrastructure_error"


def test_without_slurm_it_says_so(school, tmp_path):
    school.add("ada")
    answer = school.grade("--slurm", PATH=str(tmp_path))
    assert answer.returncode == 2 and "no sbatch on PATH" in answer.stderr
