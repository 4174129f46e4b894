"""A worker loses no result, keeps no process, and shows its tokens to no submission, however it ends."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from school import MOST_WORKERS, QUICK

from hvdgrade import profiles
from hvdlab.data import load_cifar10
from hvdlab.system.hardware import visible_gpus

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


def test_gradings_are_claimed_graded_and_sent(worker, pool):
    first, second = pool.add(QUICK), pool.add("#!/bin/sh\necho no Python\n")
    worker.start("--pool", "fast", "--name", "w1", "--workers", min(2, MOST_WORKERS))
    worker.wait_for(lambda: first.state == second.state == "done")
    worker.wait_for(lambda: worker.files() == [])
    assert worker.end() == 0
    (graded,), (refused,) = first.documents, second.documents
    assert (graded["status"], graded["verdict"]) == ("graded", "fail")
    assert graded["submission"]["id"] == "sub-1" and graded["grader"]["ranks"] == 1
    assert "not valid Python" in refused["reason"] and refused["score"] is None
    assert "recorded nothing" in first.results[0]["log"]  # the end of what `hvdgrade run` prints
    claim = pool.claims[0]
    assert (
        claim["rules"]["dli"]
        == profiles.load("dli").rules_sha256
        == graded["grader"]["rules_sha256"]
    )
    assert ("gpu" in claim["rules"]) == bool(visible_gpus())
    assert claim["tier"] == graded["grader"]["sandbox_tier"]
    assert (claim["pool"], claim["name"], claim["slots_free"]) == (
        "fast",
        "w1",
        min(2, MOST_WORKERS),
    )
    assert all(claim["slots_free"] > 0 for claim in pool.claims)
    assert stat.S_IMODE(worker.spool.stat().st_mode) == 0o700
    assert "grading 1: fail, 0 of 100 points" in worker.said() and "Traceback" not in worker.said()


EPOCHS = """\
import time
import numpy as np
from hvdlab.record import WEIGHTS, RunRecord
record = RunRecord()
arrays = {name: np.zeros(shape, np.float32) for name, shape in WEIGHTS.items()}
for epoch in range(300):
    write = lambda file: np.savez(file, examples_read=np.zeros(1, np.int64), **arrays)
    record.write(epoch, write, steps=1, accuracy=0.5)
    time.sleep(0.5)
"""
SOON = "from hvdgrade.worker import loop; loop.BEAT_SECONDS = 0.5"


def test_a_beat_shows_the_epochs_and_a_lost_lease_ends_the_run(worker, pool):
    grading = pool.add(EPOCHS)
    worker.start(before=SOON)
    worker.wait_for(lambda: any("epoch 2," in text for text in grading.progress))
    text = grading.progress[-1]
    assert (
        "running the submission ..." in text
        and "accuracy 0.5" in text
        and "epochs recorded" in text
    )
    assert len(text.encode()) <= 4000
    pool.take_away(grading)
    worker.wait_for(lambda: "grading 1: lost" in worker.said())
    assert [p.pid for p in worker.processes()] == [worker.process.pid] and worker.files() == []
    # Its slot is free again.
    after = pool.add(QUICK)
    worker.wait_for(lambda: after.state == "done")
    assert worker.end() == 0 and grading.results == []


def test_a_result_arrives_once_when_the_server_is_back(worker, pool):
    grading = pool.add(QUICK)
    worker.start()
    worker.wait_for(lambda: grading.state == "leased" and "grading 1: started" in worker.said())
    pool.down()
    worker.wait_for(
        lambda: "is not reachable" in worker.said() and "grading 1: fail" in worker.said()
    )
    assert "results/grading-1.json" in worker.files()
    pool.up()
    worker.wait_for(lambda: grading.state == "done" and worker.files() == [])
    assert worker.end() == 0
    assert len(grading.results) == 1 and "is reachable again" in worker.said()


def test_a_result_that_was_not_sent_is_sent_by_the_next_worker(worker, pool):
    """Also if the answer of the server was lost: the server knows the token of the lease."""
    grading = pool.add(QUICK)
    worker.start()
    worker.wait_for(lambda: "grading 1: started" in worker.said())
    pool.down()
    worker.wait_for(lambda: "grading 1: fail" in worker.said())
    assert worker.end() == 0 and "1 results are kept" in worker.said()
    kept = {name: (worker.spool / name).read_bytes() for name in worker.files()}
    pool.up()
    worker.start("--once")
    assert worker.process.wait(100) == 0
    assert len(grading.results) == 1 and worker.files() == []
    for name, content in kept.items():  # as if its answer had not arrived
        (worker.spool / name).write_bytes(content)
    worker.start("--once")
    assert worker.process.wait(100) == 0
    assert len(grading.results) == 1 and worker.files() == []
    assert pool.answered.count(("result", 200)) == 2


def test_kill_9_leaves_no_process_and_the_next_worker_clears_up(worker, pool):
    grading = pool.add(worker.sleeper(300))
    worker.start()
    worker.wait_for(worker.sleeps)
    worker.end(signal.SIGKILL)
    worker.wait_for(lambda: worker.processes() == [])
    assert any(name.startswith("running/") for name in worker.files())
    grading.script = QUICK.encode()
    worker.start("--once")
    assert worker.process.wait(200) == 0
    assert (grading.returned, grading.worker_ended) == (1, 0)  # the script may be why it died
    assert len(grading.results) == 1  # by another lease
    assert len(set(grading.tokens)) == 2 and worker.files() == []


def test_the_next_worker_ends_what_still_runs(worker, pool):
    """A grader that does not hear that its parent is gone: here it is stopped, else it may hang."""
    grading = pool.add(worker.sleeper(300))
    worker.start()
    worker.wait_for(worker.sleeps)
    stopped = [process for process in worker.processes() if "hvdgrade.cli" in process.cmdline()]
    assert stopped
    for process in stopped:
        process.suspend()
    worker.end(signal.SIGKILL)
    assert worker.sleeps()
    grading.script = QUICK.encode()
    worker.start("--once")
    assert worker.process.wait(200) == 0
    assert worker.processes() == [] and len(grading.results) == 1 and worker.files() == []


def test_sigterm_gives_back_what_runs(worker, pool):
    grading = pool.add(worker.sleeper(300))
    worker.start()
    worker.wait_for(worker.sleeps)
    second = worker.spool  # which no other worker may use
    before = worker.process
    worker.start()
    assert worker.process.wait(100) == 2 and f"another worker uses {second}" in worker.said()
    worker.process = before
    assert worker.end() == 0
    given_back = (grading.returned, grading.worker_ended)
    assert (grading.state, given_back, grading.results) == ("queued", (1, 1), [])
    assert worker.processes() == [] and worker.files() == []


def test_drain_finishes_what_runs_and_a_second_signal_does_not(worker, pool):
    grading = pool.add(worker.sleeper(3))
    waits = pool.add(QUICK)
    worker.start("--drain", "--workers", 1)
    worker.wait_for(worker.sleeps)
    assert worker.end() == 0
    assert grading.state == "done" and waits.state == "queued"
    waits.script = worker.sleeper(300).encode()
    worker.start("--drain")
    worker.wait_for(worker.sleeps)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for(lambda: worker.said().count("another signal ends it") == 2)
    assert worker.end() == 0
    assert (waits.state, waits.returned, waits.worker_ended) == ("queued", 1, 1)
    assert worker.processes() == []


LOOKS = """\
import glob, os
for path in [*glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline")]:
    try:
        words = open(path, "rb").read()
    except OSError:
        continue
    print("read", path, "SECRET" if b"{token}" in words else "nothing")
for folder, folders, files in os.walk("{spool}"):
    print("entered", folder, files)
print("environment", "SECRET" if "{token}" in str(dict(os.environ)) else "nothing")
"""


def test_no_submission_sees_a_token(worker, pool):
    grading = pool.add(LOOKS.format(token=pool.token, spool=worker.spool))
    worker.start("--once")
    assert worker.process.wait(200) == 0
    output = grading.documents[0]["output"]
    assert "read /proc/" in output and "environment nothing" in output
    assert "SECRET" not in output and "entered" not in output
    assert pool.token not in json.dumps(grading.results) + worker.said()
    assert not any(token in json.dumps(grading.results[0]["document"]) for token in grading.tokens)


WITHOUT_RIGHTS = """\
import ctypes, os, subprocess, sys
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
"""
LOOK = f"{WITHOUT_RIGHTS}print('SECRET' in open(f'/proc/{{os.getppid()}}/environ').read())"
TAKES = f"""{WITHOUT_RIGHTS}
from hvdgrade.worker import credential
def seen():
    look = [sys.executable, "-c", {LOOK!r}]
    return subprocess.run(look, capture_output=True, text=True, timeout=60).stdout.strip()
print(seen(), credential.take(None), seen() or "closed", os.environ.get("HVDGRADE_TOKEN"))
"""


def test_no_process_of_the_same_user_can_read_the_token_in_proc():
    """There it is as long as the worker lives. In the weakest sandbox nothing else hides it."""
    answer = subprocess.run(
        [sys.executable, "-c", TAKES],
        env={**os.environ, "HVDGRADE_TOKEN": "SECRET"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert answer.stdout.split() == ["True", "SECRET", "closed", "None"], answer.stderr


def test_no_process_inherits_a_token(worker, pool):
    grading = pool.add(worker.sleeper(300))
    worker.start()
    worker.wait_for(worker.sleeps)
    children = psutil.Process(worker.process.pid).children(recursive=True)
    assert len(children) > 2
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            said = str(child.environ()) + str(child.cmdline())
            assert not any(token in said for token in (pool.token, *grading.tokens))
    assert worker.end() == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--server", "grade.example.edu"), "--server must be an address such as https://"),
        (("--token-file", "/nowhere"), "--token-file /nowhere cannot be read: No such file"),
        (("--workers", 10_000), "choose at most"),
        (("--slurm", "--workers", 2, "--slurm-option", "array=7"), "--slurm"),
        (("--slurm",), "--slurm needs --workers"),
        (("--slurm-option", "partition=x"), "--slurm-option has no meaning without --slurm"),
        (("--spool", "/proc/1/spool"), "/proc/1/spool"),
    ],
)
def test_wrong_usage_is_one_sentence(worker, arguments, words):
    worker.start(*arguments)
    assert worker.process.wait(100) in (2, 3)
    assert words in worker.said() and worker.said().count("\n") == 1
    assert worker.server.claims == []


def test_without_data_or_token_it_says_what_to_do(worker, tmp_path, pool):
    worker.start(HVDGRADE_TOKEN="")
    assert worker.process.wait(100) == 2 and "there is no token in $HVDGRADE_TOKEN" in worker.said()
    file = tmp_path / "token"
    file.write_text(pool.token)
    file.chmod(0o604)
    worker.start("--token-file", file)
    assert worker.process.wait(100) == 2 and f"run `chmod 600 {file}`" in worker.said()
    worker.data = tmp_path / "nothing"
    worker.start(HOME=str(tmp_path))
    assert worker.process.wait(100) == 2 and "hvdlab data cifar10" in worker.said()


def test_a_refused_token_or_worker_is_told_once(worker, tmp_path, pool):
    file = tmp_path / "token"
    file.write_text("wrong\n")
    file.chmod(0o600)
    worker.start("--token-file", file)
    assert worker.process.wait(100) == 2
    assert "refuses the token (unknown token)" in worker.said() and "Traceback" not in worker.said()
    pool.refuses = "cpu was opened with other rules"
    worker.start(before="from hvdgrade.worker import loop; loop.CANNOT_SECONDS = 0.1")
    worker.wait_for(lambda: len(pool.claims) > 3)
    pool.refuses = ""
    grading = pool.add(QUICK)
    worker.wait_for(lambda: grading.state == "done")
    assert worker.end() == 0
    assert worker.said().count("no gradings for this worker: cpu was opened with other rules") == 1


def test_what_this_machine_cannot_grade_is_given_back(worker, pool):
    pool.add(QUICK, ranks=2)
    pool.add(QUICK, profile="none")
    pool.add(QUICK, require_sandbox="vault")
    worker.start(before="from hvdgrade.worker import loop; loop.CANNOT_SECONDS = 0.1")
    worker.wait_for(lambda: "start this worker with -np 2" in worker.said())
    pool.gradings[1].state = "done"
    worker.wait_for(lambda: "there is no profile 'none'" in worker.said())
    pool.gradings[2].state = "done"
    worker.wait_for(lambda: "grading 3 has values that this version does not know" in worker.said())
    assert worker.end() == 0
    assert pool.gradings[1].returned and pool.gradings[2].returned
    assert worker.files() == [] and "Traceback" not in worker.said()


@pytest.mark.grading
@pytest.mark.timeout(1800)
def test_the_reference_solution_passes(worker, pool):
    solution = Path(__file__).parents[3] / "assessment" / "solutions" / "torch" / "assessment.py"
    worker.data = load_cifar10().folder
    grading = pool.add(solution.read_text(encoding="utf-8"), ranks=2)
    worker.start("--once", "-np", 2, before=SOON)
    assert worker.process.wait(1700) == 0
    (document,) = grading.documents
    assert (document["status"], document["verdict"]) == ("graded", "pass"), document["reason"]
    assert sum("epoch " in text for text in grading.progress) > 2
