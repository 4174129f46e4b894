"""Ending a batch in any way loses no result, duplicates no result, and leaves no process running."""

import contextlib
import csv
import json
import os
import random
import signal
import socket
import time

import psutil
import pytest
from school import MOST_WORKERS, QUICK

from hvdgrade.batch import cleanup, command, layout, slurm


@pytest.mark.mpi
@pytest.mark.slow
def test_kill_9_loses_nothing_and_doubles_nothing(school):
    students = [f"student{number}" for number in range(5)]  # more than one round ever finishes
    for number, student in enumerate(students):
        school.add_sleeper(student, 1) if number % 2 else school.add(student)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    moments = random.Random(seed)
    finished: dict[str, tuple] = {}
    for round in range(2):
        batch = school.start("--workers", min(2, MOST_WORKERS))
        # Each round finishes something, and is killed in the middle of something else.
        school.wait_for(lambda: set(school.files()) - set(finished))
        time.sleep(moments.uniform(0, 1))
        if round == 1:  # the graders too, and what they started
            for process in school.processes():
                if process.pid != batch.pid:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
                        process.kill()
        batch.kill()
        batch.communicate(timeout=60)
        # A process that is killed by kill -9 cannot end its children, so the kernel must signal them.
        school.wait_for(lambda: school.processes() == [])
        for name, file in school.files().items():
            assert finished.setdefault(name, file) == file
    answer = school.grade("--workers", min(2, MOST_WORKERS))
    assert answer.returncode == 0, answer.stderr
    assert set(school.results()) == set(students)
    assert {document["status"] for document in school.results().values()} == {"graded"}
    for name, file in finished.items():
        assert school.files()[name] == file
    assert school.processes() == []
    assert list((school.out / "running").iterdir()) == []
    assert not any(part for part in school.out.rglob("*.part"))
    with open(school.out / "summary.csv", newline="", encoding="utf-8-sig") as file:
        assert sorted(row["student"] for row in csv.DictReader(file)) == students


@pytest.mark.mpi
@pytest.mark.slow
def test_graders_end_when_their_batch_is_killed(school):
    school.add_sleeper("ada", 300)
    batch = school.start()
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    batch.kill()
    batch.communicate(timeout=60)
    school.wait_for(lambda: school.processes() == [], seconds=20)  # by itself it takes 25 s


@pytest.mark.mpi
@pytest.mark.slow
def test_the_next_batch_ends_what_still_runs(school):
    """A grader that does not hear that its parent is gone: here it is stopped, else it may hang."""
    school.add_sleeper("ada", 300)
    batch = school.start()
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    stopped = [
        p for p in school.processes() if "hvdgrade.cli" in p.cmdline() and p.pid != batch.pid
    ]
    assert stopped
    for process in stopped:
        process.suspend()
    batch.kill()
    batch.communicate(timeout=60)
    (school.folder / "ada" / "assessment.py").write_text(QUICK)
    answer = school.grade()
    assert answer.returncode == 0, answer.stderr
    assert school.results()["ada"]["resources"]["stop_cause"] == "ended"
    assert school.processes() == []


@pytest.mark.mpi
@pytest.mark.slow
def test_a_killed_grader_is_started_once_more(school):
    school.add_sleeper("ada", 8)
    batch = school.start()
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    for process in school.graders():
        with contextlib.suppress(psutil.NoSuchProcess):  # the end of one may end another
            process.kill()
    _, stderr = batch.communicate(timeout=200)
    assert batch.returncode == 0, stderr
    document = school.results()["ada"]
    assert document["status"] == "graded" and document["batch"]["attempts"] == 2
    assert school.processes() == []


@pytest.mark.mpi
@pytest.mark.slow
def test_a_grader_that_takes_too_long_is_ended(school):
    school.add_sleeper("ada", 300)
    answer = school.grade("--limit", 8)
    assert answer.returncode == 3
    document = school.results()["ada"]
    assert "took over 8 s" in document["reason"] and document["batch"]["attempts"] == 1
    assert school.processes() == []


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_and_says_how_to_go_on(school, ending):
    school.add_sleeper("ada", 300)
    school.add_sleeper("bob", 300)
    (school.folder / "none").mkdir()
    batch = school.start()
    school.wait_for(lambda: list((school.out / "running").glob("*.json")))
    second = school.grade()
    assert second.returncode == 2 and "another batch works in" in second.stderr
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    batch.send_signal(ending)
    _, stderr = batch.communicate(timeout=60)
    assert batch.returncode == 3
    assert "2 of 3 are still to be graded: run the same command to continue" in stderr
    assert "none: not gradable: its folder holds no .py file" in stderr
    assert "Traceback" not in stderr
    assert "1 submission" in (school.out / "index.html").read_text()
    assert len((school.out / "summary.csv").read_text().splitlines()) == 2
    assert school.processes() == [] and list((school.out / "running").iterdir()) == []


def changed(before: dict, after: dict) -> set[str]:
    """Return the names of the results that were written again."""
    return {name for name, file in after.items() if before.get(name) != file}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_an_interrupted_regrade_goes_on_and_keeps_what_it_has(school):
    for student in ("ada", "bob", "carla"):
        school.add_sleeper(student, 1)
    assert school.grade().returncode == 0
    first = school.files()
    kept = dict(first)
    for number, ending in enumerate((signal.SIGKILL, signal.SIGINT), 1):
        batch = school.start("--regrade", "--workers", 1)
        school.wait_for(lambda number=number: len(changed(first, school.files())) == number)
        batch.send_signal(ending)
        _, stderr = batch.communicate(timeout=60)
        assert ("an interrupted regrade" in stderr) == (number == 2)
        assert not changed(first, kept) & changed(kept, school.files())
        kept = school.files()
    assert "1 of 3 are graded already and kept" in stderr
    assert "1 of 3 are still to be graded: run the same command to continue" in stderr
    answer = school.grade("--regrade")
    assert answer.returncode == 0 and "2 of 3 are graded already and kept" in answer.stderr
    assert len(changed(first, school.files())) == 3 and len(changed(kept, school.files())) == 1
    # It is finished, so the next regrade starts from the beginning.
    before = school.files()
    assert school.grade("--regrade").returncode == 0
    assert len(changed(before, school.files())) == 3


def test_only_the_batchs_own_half_files_are_removed(tmp_path):
    for name in (*layout.FOLDERS, "handed-in"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".ada.py.part").touch()
    cleanup.end_left_over(tmp_path)
    assert list(tmp_path.rglob("*.part")) == [tmp_path / "handed-in" / ".ada.py.part"]


def test_what_a_killed_grader_left_is_removed_wherever_and_however_deep_it_is(tmp_path):
    """Also where another place is the one for temporary files now, and of what others wrote nothing."""
    (tmp_path / "running").mkdir()
    place = tmp_path / "elsewhere"
    folders = {name: place / f"{cleanup.WORK}{name}" for name in ("deep", "closed", "link")}
    folders |= {"other": place / "other-work", "kept": place / f"{cleanup.WORK}kept"}
    for name, folder in folders.items():
        if name != "link":
            folder.mkdir(parents=True)
        record = {"folder": str(folder), "host": "x" if name == "kept" else socket.gethostname()}
        (tmp_path / "running" / f"{name}.json").write_text(json.dumps(record))
    folders["link"].symlink_to(folders["other"])
    here = os.open(folders["deep"], os.O_RDONLY)
    for _ in range(1500):  # deeper than Python recurses, and than a path may be long
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (folders["closed"] / "a").mkdir(mode=0)
    cleanup.end_left_over(tmp_path)
    assert {name for name, folder in folders.items() if folder.exists()} == {
        "link",
        "other",
        "kept",
    }
    assert list((tmp_path / "running").iterdir()) == []


@pytest.mark.slow
def test_jobs_of_which_slurm_says_nothing_may_still_run(tmp_path, monkeypatch):
    """While Slurm's controller restarts, an old job must not grade the script that a new call writes."""
    (tmp_path / "slurm").mkdir()
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in (("scancel", "sleep 60"), ("squeue", "exit 1")):
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "COMMAND_SECONDS", 1)
    monkeypatch.setattr(slurm, "CANCEL_SECONDS", 2)
    with pytest.raises(command.Refused, match="Slurm does not confirm that the jobs"):
        command.cancel_jobs(tmp_path)
    (commands / "squeue").write_text("#!/bin/sh\n")
    command.cancel_jobs(tmp_path)


def test_a_full_disk_is_one_sentence(school):
    (school.folder / "ada").mkdir()
    # No file may grow, as on a full disk.
    answer = school.grade(
        before="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    )
    assert answer.returncode == 3 and answer.stderr.count("\n") == 1
    assert "No usable temporary directory" in answer.stderr
    assert "run the same command to continue" in answer.stderr
    assert school.grade().returncode == 0
