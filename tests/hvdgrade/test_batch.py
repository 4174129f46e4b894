"""A class is graded whole: whatever is handed in, however the batch is ended, and nothing twice."""

import argparse
import contextlib
import csv
import dataclasses
import errno
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from school import QUICK

from hvdgrade import batch, batch_output, cleanup, page, profile, roster, slots, slurm, worker
from hvdgrade.export import roll
from hvdlab import hardware
from hvdlab.data import DataError

MOST_WORKERS = len(slots.worker_slots(1, None, oversubscribe=False))  # on this machine
RESULT = Path(__file__).parents[1] / "fixtures" / "results" / "pass.json"

# --- what was handed in ------------------------------------------------------------------------------


def found(folder: Path) -> dict[str, roster.Submission]:
    submissions, _ = roster.find(folder)
    assert len({one.name for one in submissions}) == len(submissions)
    return {one.id: one for one in submissions}


def test_a_student_is_a_folder_or_a_file(tmp_path):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "assessment.py").write_text("1")
    (tmp_path / "ada" / "notes.py").write_text("2")
    (tmp_path / "bob.py").write_text("3")
    (tmp_path / "carl").mkdir()
    (tmp_path / "carl" / "my solution (2).py").write_text("4")
    (tmp_path / "grades.txt").write_text("5")
    (tmp_path / ".DS_Store").write_text("6")
    for name in ("__pycache__", "__MACOSX"):
        (tmp_path / name).mkdir()
    submissions, ignored = roster.find(tmp_path)
    assert [(one.id, one.source, one.problem) for one in submissions] == [
        ("ada", b"1", ""),
        ("bob", b"3", ""),
        ("carl", b"4", ""),
    ]
    assert ignored == ["grades.txt"]


def test_what_cannot_be_graded_says_why(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("not for graders")
    folder = tmp_path / "class"
    for name in ("none", "several", "link_inside", "a_folder_inside", "twice", "large"):
        (folder / name).mkdir(parents=True)
    (folder / "several" / "one.py").touch()
    (folder / "several" / "two.py").touch()
    (folder / "link_inside" / "assessment.py").symlink_to(secret)
    (folder / "a_folder_inside" / "assessment.py").mkdir()
    (folder / "twice" / "assessment.py").write_text("1")
    (folder / "twice.py").write_text("2")
    (folder / "linked").symlink_to(folder / "twice")
    (folder / "linked_file.py").symlink_to(secret)
    for name in ("loop", "round.py", ".loop"):
        (folder / name).symlink_to(name)
    os.mkfifo(folder / "pipe.py")
    for name in ("carla.ipynb", "dave.IPYNB", "dave.py", "Eve.PY", "f.py", "f.PY"):
        (folder / name).write_text("1")
    (folder / "g.ipynb").mkdir()
    (folder / "g.ipynb" / "G.Py").write_text("1")
    (folder / "large" / "assessment.py").write_bytes(b"#" * 10_000_000)
    submissions = found(folder)
    problems = {id: one.problem for id, one in submissions.items() if one.problem}
    assert {id: one.source for id, one in submissions.items() if one.problem} == dict.fromkeys(
        problems, b""
    )
    for id, words in {
        "none": "holds no .py file",
        "several": "2 .py files (one.py, two.py)",
        "link_inside": "symbolic link",
        "a_folder_inside": "not a plain file",
        "twice": "as a folder and as a .py file",
        "linked": "symbolic link",
        "linked_file": "symbolic link",
        "loop": "symbolic link",
        "round": "symbolic link",
        "pipe": "not a plain file",
        "carla": "it is a notebook",
        "f": "or twice",
    }.items():
        assert words in problems.pop(id)
    assert problems == {}
    assert {id for id, one in submissions.items() if one.source == b"1"} == {
        "dave",
        "Eve",
        "g.ipynb",
    }
    assert len(submissions["large"].source) < 1_000_000  # the grader says that it is too large


def test_a_broken_disk_stops_nobody_else(tmp_path, monkeypatch):
    for student in ("ada", "bob"):
        (tmp_path / student).mkdir()
        (tmp_path / student / "assessment.py").write_text("1")
    broken = (tmp_path / "bob" / "assessment.py").stat().st_ino
    opened = open

    def fails(file, *arguments, **more):
        if isinstance(file, int) and os.fstat(file).st_ino == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(file, *arguments, **more)

    monkeypatch.setattr(roster, "open", fails, raising=False)
    submissions = found(tmp_path)
    assert submissions["ada"].problem == ""
    assert submissions["bob"].problem == "assessment.py cannot be read (Input/output error)."


def test_names_are_data(tmp_path):
    names = ["Zoë K", "=cmd|' C calc'!A0", "-rf", "a\nb", "..", "~", "x" * 250, "ok-1.2_3", "日本"]
    for name in names[:4] + names[5:]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "assessment.py").write_text("1")
    (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    submissions = found(tmp_path)
    assert set(submissions) == {*names, "caf\\xe9"} - {".."}
    for one in submissions.values():
        assert len(one.name) <= 101 and one.name[0] not in ".-/"
        assert all(c.isascii() and (c.isalnum() or c in "._-~") for c in one.name)
    assert submissions["ok-1.2_3"].name == "ok-1.2_3"
    assert roster.safe_name("a b") != roster.safe_name("a_b") != roster.safe_name("a\tb")


# --- cores and GPUs ------------------------------------------------------------------------------------


def machine(monkeypatch, threads, cores, quota=0.0):
    """Let this machine have so many threads and no GPUs, whatever it has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(threads)))
    monkeypatch.setattr(slots, "physical_cores", lambda: cores(range(threads)))
    monkeypatch.setattr(hardware, "cpu_quota", lambda: quota)


def test_no_two_workers_share_a_core_or_gpu(monkeypatch):
    machine(monkeypatch, 9, lambda all: [[core] for core in all])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    for ranks, workers in ((2, 4), (1, 3), (4, 2), (2, None)):
        parts = slots.worker_slots(ranks, workers, oversubscribe=False)
        assert len(parts) == (workers or 2)  # 4 GPUs for 2 ranks each
        for kind in (0, 1):
            used = [thing for part in parts for thing in part[kind]]
            assert len(used) == len(set(used))
        assert all(len(cores) >= ranks and gpus for cores, gpus in parts)
    with pytest.raises(ValueError, match="at most 4"):
        slots.worker_slots(2, 5, oversubscribe=False)
    assert len(slots.worker_slots(2, 5, oversubscribe=True)) == 5
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert {gpus for _, gpus in slots.worker_slots(1, None, oversubscribe=False)} == {None}


@pytest.mark.parametrize("threads", (12, 10, 6, 20, 16))
def test_workers_of_any_size_share_no_physical_core(monkeypatch, threads):
    half = threads // 2
    machine(monkeypatch, threads, lambda all: [[core, core + half] for core in range(half)])
    for ranks in range(1, threads + 1):
        most = len(slots.worker_slots(ranks, None, oversubscribe=False))
        assert most == max(1, threads // 2 // -(-ranks // 2))
        for workers in range(1, most + 1):
            parts = slots.worker_slots(ranks, workers, oversubscribe=False)
            used = [
                core for part, _ in parts for core in {thread % (threads // 2) for thread in part}
            ]
            assert len(used) == len(set(used)) and all(len(part) >= ranks for part, _ in parts)


def test_a_quota_of_a_container_counts_as_its_cores_do(monkeypatch):
    machine(monkeypatch, 64, lambda all: [[core] for core in all], quota=4.0)
    assert len(slots.worker_slots(2, None, oversubscribe=False)) == 2
    with pytest.raises(ValueError, match="usable are 4 cores: at most 2"):
        slots.worker_slots(2, 3, oversubscribe=False)


def test_a_result_is_kept_for_its_submission_and_its_rules_only(tmp_path, monkeypatch):
    text = profile.PROFILES.read_text()
    stricter = tmp_path / "profiles.toml"
    stricter.write_text(text.replace("heldout_accuracy = 0.70", "heldout_accuracy = 0.71"))
    rules = [profile.load("cpu", path).rules_sha256 for path in (profile.PROFILES, stricter)]
    settings = worker.Settings(tmp_path, 2, "cpu", rules[0], 60.0)
    kept = worker.key(b"x", settings)
    for same in ({"out": Path("elsewhere")}, {"limit": 1.0}, {"call": "b"}, {"real_data": True}):
        assert worker.key(b"x", dataclasses.replace(settings, **same)) == kept
    others = ({"ranks": 4}, {"profile": "dli"}, {"rules_sha256": rules[1]})
    keys = {worker.key(b"x", dataclasses.replace(settings, **other)) for other in others}
    monkeypatch.setattr(worker, "__version__", "0")
    keys |= {kept, worker.key(b"x", settings), worker.key(b"y", settings)}
    assert len(keys) == 6


def test_whoever_changes_a_judge_changes_the_rules(tmp_path):
    judges, text = list(profile.JUDGES), profile.PROFILES.read_bytes()
    rules = {profile.load("dli").rules_sha256, profile.rules_sha256(text)}
    assert len(rules) == 1
    for place, path in enumerate(judges):
        changed = tmp_path / path.name
        changed.write_bytes(path.read_bytes() + b"\n")
        rules.add(profile.rules_sha256(text, (*judges[:place], changed, *judges[place + 1 :])))
    assert len(rules) == 1 + len(judges) > 10


def test_a_page_that_fails_does_not_take_the_result_with_it(tmp_path, monkeypatch):
    def fails(document):
        raise KeyError("a template")

    monkeypatch.setattr(page, "report_page", fails)
    settings = worker.Settings(tmp_path, 2, "dli", "", 60.0)
    task = worker.Task("<ada>", "ada", "key")
    document, html = worker.ungraded(
        task, settings, profile.load("dli"), "not_gradable", "it is a link."
    )
    assert document["status"] == "not_gradable" and document["submission"]["id"] == "<ada>"
    assert "&lt;ada&gt;: it is a link." in html


# --- batches -------------------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.slow
def test_each_submission_gets_its_result_and_keeps_it(school):
    school.add("ada")
    school.add("result.json")  # as files of the grader are called
    school.add("=cmd()", "#!/bin/sh\necho no Python\n")
    (school.folder / "Zoë K.py").write_text(QUICK)
    (school.folder / "linked").symlink_to(school.folder / "ada")
    # Nobody who grades in the folder of a class imports what lies there.
    for module in ("rich", "hvdgrade", "submitit"):
        (school.folder / f"{module}.py").write_text(
            f'open({str(school.folder.parent / "imported")!r}, "w").close()\n'
        )
    answer = school.grade(cwd=school.folder)
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "8 submissions: 0 pass, 6 fail, 2 not gradable, 0 grader faults" in answer.stdout
    assert "[6/7]" in answer.stderr and "left" in answer.stderr
    assert not (school.folder.parent / "imported").exists()

    results = school.results()
    names = {"ada", "result.json", "=cmd()", "Zoë K", "linked", "rich", "hvdgrade", "submitit"}
    assert set(results) == names
    assert results["ada"]["verdict"] == results["Zoë K"]["verdict"] == "fail"
    assert results["=cmd()"]["status"] == results["linked"]["status"] == "not_gradable"
    assert "line 2" in results["=cmd()"]["reason"]
    assert "symbolic link" in results["linked"]["reason"]
    for student, document in results.items():
        name = document["batch"]["name"]
        assert (school.out / "reports" / f"{name}.html").stat().st_size > 500
        if student != "linked":
            assert (school.out / "logs" / f"{name}.log").exists()
    with open(school.out / "summary.csv", newline="", encoding="utf-8-sig") as file:
        table = {row["student"]: row["status"] for row in csv.DictReader(file)}
    assert table == {
        "'" * id.startswith("=") + id: document["status"] for id, document in results.items()
    }
    page = (school.out / "index.html").read_text()
    assert "Zoë K" in page and f"reports/{results['ada']['batch']['name']}.html" in page

    # Again: nothing is graded anew but what has changed.
    before = school.files()
    (school.folder / "Zoë K.py").write_text(QUICK + "# better\n")
    answer = school.grade()
    changed = {name for name, file in school.files().items() if file != before[name]}
    assert answer.returncode == 0 and "7 of 8 are graded already" in answer.stderr
    assert changed == {f"{results['Zoë K']['batch']['name']}.json"}
    assert school.processes() == []


@pytest.mark.mpi
@pytest.mark.slow
def test_kill_9_loses_nothing_and_doubles_nothing(school):
    students = [f"student{number}" for number in range(8)]  # more than two rounds ever finish
    for number, student in enumerate(students):
        school.add_sleeper(student, 1) if number % 2 else school.add(student)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    moments = random.Random(seed)
    finished: dict[str, tuple] = {}
    for round in range(3):
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
        batch.communicate()
        # Whoever is killed by kill -9 cannot end its children: the kernel has to tell them.
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
    batch.communicate()
    school.wait_for(lambda: school.processes() == [], seconds=12)  # by itself it takes 25 s


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
    batch.communicate()
    (school.folder / "ada" / "assessment.py").write_text(QUICK)
    answer = school.grade()
    assert answer.returncode == 0, answer.stderr
    assert school.results()["ada"]["resources"]["stop_cause"] == "ended"
    assert school.processes() == []


@pytest.mark.mpi
@pytest.mark.slow
def test_a_killed_grader_is_started_once_more(school):
    school.add_sleeper("ada", 2)
    batch = school.start()
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    for process in school.graders():
        process.kill()
    _, stderr = batch.communicate(timeout=200)
    assert batch.returncode == 0, stderr
    document = school.results()["ada"]
    assert document["status"] == "graded" and document["batch"]["attempts"] == 2
    assert school.processes() == []


@pytest.mark.mpi
@pytest.mark.slow
def test_a_fault_is_nobodys_zero_and_is_graded_again(school):
    school.add("ada")
    batch = school.start()

    def ended_without_a_grader() -> bool:
        for process in school.graders():
            with contextlib.suppress(psutil.Error):  # it has ended
                process.kill()
        return batch.poll() is not None

    school.wait_for(ended_without_a_grader)
    stdout, stderr = batch.communicate()
    assert batch.returncode == 3 and "1 grader faults" in stdout, stderr
    document = school.results()["ada"]
    assert document["status"] == "infrastructure_error" and document["score"] is None
    assert document["batch"]["attempts"] == 2
    assert "the same command grades these again" in stdout
    assert school.grade().returncode == 0
    assert school.results()["ada"]["status"] == "graded"


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
    school.wait_for(lambda: any("sleep" in p.name() for p in school.processes()))
    second = school.grade()
    assert second.returncode == 2 and "another batch works in" in second.stderr
    batch.send_signal(ending)
    _, stderr = batch.communicate(timeout=60)
    assert batch.returncode == 3
    assert "2 of 3 are still to be graded: the same command goes on" in stderr
    assert "none: not gradable: its folder holds no .py file" in stderr
    assert "Traceback" not in stderr
    assert "1 submission" in (school.out / "index.html").read_text()
    assert len((school.out / "summary.csv").read_text().splitlines()) == 2
    assert school.processes() == [] and list((school.out / "running").iterdir()) == []


@pytest.mark.mpi
@pytest.mark.slow
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
    assert "1 of 3 are still to be graded: the same command goes on" in stderr
    answer = school.grade("--regrade")
    assert answer.returncode == 0 and "2 of 3 are graded already and kept" in answer.stderr
    assert len(changed(first, school.files())) == 3 and len(changed(kept, school.files())) == 1
    # It is finished: the next one begins anew.
    before = school.files()
    assert school.grade("--regrade").returncode == 0
    assert len(changed(before, school.files())) == 3


def changed(before: dict, after: dict) -> set[str]:
    """The names of the results that were written anew."""
    return {name for name, file in after.items() if before.get(name) != file}


@pytest.mark.mpi
@pytest.mark.slow
def test_workers_run_on_cores_of_their_own(school):
    if MOST_WORKERS < 2:
        pytest.skip("needs two cores")
    look = "import os, time\nprint('cores', sorted(os.sched_getaffinity(0)))\ntime.sleep(5)\n"
    school.add("ada", look)
    school.add("bob", look)
    answer = school.grade("--workers", 2)
    assert answer.returncode == 0, answer.stderr
    used = []
    for document in school.results().values():
        (line,) = [line for line in document["output"].splitlines() if "cores [" in line]
        used.append(set(json.loads(line.partition("cores ")[2])))
    assert used[0] and used[1] and not used[0] & used[1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--workers", 10_000), "at most"),
        (("--workers", 0), "at least 1"),
        (("--profile", "none"), "there is no profile 'none'"),
        (("-np", 1000), "-np must be in"),
        (("--slurm-option", "partition=x"), "--slurm-option has no meaning"),
        (("--require-sandbox", "vault"), "vault"),
        (("--slurm", "--require-sandbox", "vault"), "must be one of bubblewrap"),
        (("--slurm", "--workers", -1), "at least 1"),
        (("--limit", 0), "--limit must be a number of seconds above 0. Received: 0"),
        (("--limit", "nan"), "--limit must be"),
    ],
)
def test_wrong_usage_is_one_sentence(school, arguments, words):
    school.add("ada")
    answer = school.grade(*arguments)
    assert answer.returncode == 2 and words in answer.stderr
    assert "Traceback" not in answer.stderr and answer.stderr.count("\n") == 1
    assert not (school.out / "results").exists()


def test_out_must_lie_outside_the_class(school):
    school.add("ada")
    school.out = school.folder / "out"
    answer = school.grade()
    assert answer.returncode == 2 and "outside" in answer.stderr
    assert not school.out.exists()


def test_a_loop_of_links_is_no_folder(school):
    school.add("ada")
    school.out.symlink_to(school.out)
    answer = school.grade()
    assert answer.returncode == 2 and "Traceback" not in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("place", ["submissions", "results/2026", "slurm"])
def test_the_class_must_lie_outside_of_what_the_batch_writes(school, place):
    school.out, school.folder = school.folder.parent, school.folder.parent / place
    school.folder.mkdir(parents=True)
    school.add("ada")
    (school.folder / "ada.py").touch()
    before = sorted(school.out.rglob("*"))
    answer = school.grade()
    assert answer.returncode == 2 and "lies where the batch writes" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert sorted(school.out.rglob("*")) == before


def test_only_the_batchs_own_half_files_are_removed(tmp_path):
    for name in (*worker.FOLDERS, "handed-in"):
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


@pytest.mark.parametrize(
    "elapsed, count, total, workers, seconds",
    [
        (60, 1, 7, 2, 3 * 60),  # three rounds of two
        (120, 4, 7, 2, 2 * 60),  # the last one does not end sooner for being alone
        (3000, 99, 100, None, 3000 / 99),  # as many at once as the cluster likes
        (30, 1, 100, None, 99 * 30),
    ],
)
def test_the_time_that_is_left(elapsed, count, total, workers, seconds):
    assert batch_output.seconds_left(elapsed, count, total, workers) == pytest.approx(seconds)


def test_jobs_of_which_slurm_says_nothing_may_still_run(tmp_path, monkeypatch):
    """Slurm's server starts anew: an old job must not grade the script that a new call puts in place."""
    (tmp_path / "slurm").mkdir()
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in (("scancel", "sleep 60"), ("squeue", "exit 1")):
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "COMMAND_SECONDS", 0.2)
    monkeypatch.setattr(slurm, "CANCEL_SECONDS", 0.5)
    with pytest.raises(batch.Refused, match="Slurm does not say that the jobs"):
        batch.cancel_jobs(tmp_path)
    (commands / "squeue").write_text("#!/bin/sh\n")
    batch.cancel_jobs(tmp_path)


def test_without_data_nothing_is_graded(school, tmp_path):
    school.add("ada")
    answer = school.grade(HVDLAB_DATA=str(tmp_path / "nothing"), HOME=str(tmp_path))
    assert answer.returncode == 2 and "hvdlab data cifar10" in answer.stderr
    assert answer.stderr.count("\n") == 1 and not (school.out / "results").exists()


# --- what is kept ---------------------------------------------------------------------------------------


@pytest.fixture
def pretend(school, monkeypatch):
    """`hvdgrade batch` on the class whose graders only pretend; returns whom they graded.

    `here` is the data of this machine, "" for none, and `there` those of the graders; after `most`
    gradings it is interrupted, and the graders of `faults` fail.
    """
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the batch sets it, here for all later tests

    def grade(here: str, there: str, *arguments: str, most: int = 99, faults=()) -> list[str]:
        graded = []

        def load():
            if not here:
                raise DataError("there are no data")
            return argparse.Namespace(synthetic="synthetic" in here)

        def graders(tasks, settings, *rest):
            for task in tasks:
                if len(graded) == most:
                    raise KeyboardInterrupt
                document = json.loads(RESULT.read_text())
                document["grader"]["data"] = there
                source = (school.folder / task.id / "assessment.py").read_bytes()
                document["submission"]["sha256"] = hashlib.sha256(source).hexdigest()
                graded.append(task.id)
                if task.id in faults:
                    fault = "infrastructure_error", "the disk is full."
                    document, _ = worker.ungraded(task, settings, profile.load("dli"), *fault)
                yield worker.keep(document, "", task, settings, attempts=1)

        monkeypatch.setattr(batch, "load_cifar10", load)
        for module in (batch, slurm):
            monkeypatch.setattr(module, "grade_all", graders)
        parser = argparse.ArgumentParser()
        batch.add_arguments(parser)
        folders = [str(school.folder), "--out", str(school.out)]
        code = batch.main(parser.parse_args([*folders, "-np", "1", "--profile", "dli", *arguments]))
        assert code == (batch.FAULTS if len(graded) == most or faults else batch.DONE)
        return graded

    return grade


TWIN, REAL = "synthetic CIFAR-10 twin", "CIFAR-10"


@pytest.mark.parametrize("arguments", [(), ("--slurm",)])
def test_practice_runs_are_graded_again_once_the_data_are_here(school, pretend, capsys, arguments):
    for student in ("ada", "bob"):
        school.add(student)
    said = "2 were graded on synthetic data: practice runs\n"
    assert pretend(TWIN, TWIN, *arguments) == ["ada", "bob"] and said in capsys.readouterr().out
    assert pretend(TWIN, TWIN, *arguments) == [] and said in capsys.readouterr().out
    assert pretend(REAL, REAL, *arguments, most=1) == ["ada"]
    assert "1 of 2 are still to be graded" in " ".join(capsys.readouterr().err.split())
    assert pretend(REAL, REAL, *arguments) == ["bob"] and "graded on" not in capsys.readouterr().out
    assert pretend(REAL, REAL, *arguments) == []
    assert pretend(TWIN, TWIN, *arguments) == []  # no practice run takes the place of a score


def test_a_cluster_may_have_data_that_this_machine_has_not(school, pretend, capsys):
    school.add("ada")
    assert pretend("", TWIN, "--slurm") == ["ada"]
    assert pretend("", REAL, "--slurm") == []
    assert "1 were graded on synthetic data: practice runs\n" in capsys.readouterr().out
    assert pretend("", REAL, "--slurm", "--regrade") == ["ada"]


def test_a_fault_does_not_take_the_place_of_a_result(school, pretend, capsys):
    for student in ("ada", "bob"):
        school.add(student)
    pretend(REAL, REAL)
    before = school.results()
    (school.folder / "grades.txt").touch()
    school.add("carla")
    assert pretend(REAL, REAL, "--regrade", faults=["ada", "carla"]) == ["ada", "bob", "carla"]
    printed = capsys.readouterr()
    assert "ada: not graded again, its result stays: the disk is full." in printed.err
    assert "2 pass, 0 fail, 0 not gradable, 1 grader faults" in printed.out
    assert "\n1 keep the result that they had" in printed.out
    assert "and so not graded: grades.txt\n" in printed.out
    after = school.results()
    assert before["ada"]["score"] == after["ada"]["score"] and after["ada"]["verdict"] == "pass"
    assert before["ada"]["batch"]["call"] == after["ada"]["batch"]["call"]
    # Without --regrade the fault alone is graded, with it both, and bob has been.
    assert pretend(REAL, REAL, faults=["carla"]) == ["carla"]
    assert pretend(REAL, REAL, "--regrade") == ["ada", "carla"]
    assert "failed_again" not in school.results()["ada"]["batch"]
    assert pretend(REAL, REAL, "--regrade") == ["ada", "bob", "carla"]
    # A result of another script is none, so the fault takes its place.
    (school.folder / "ada" / "assessment.py").write_text(QUICK + "# better\n")
    assert pretend(REAL, REAL, faults=["ada"]) == ["ada"]
    assert school.results()["ada"]["status"] == "infrastructure_error"


def test_whom_an_interrupted_batch_did_not_reach_is_named(school, pretend):
    for student in ("ada", "bob", "carla"):
        school.add(student)
    pretend(REAL, REAL)
    for student in ("bob", "carla"):
        (school.folder / student / "assessment.py").write_text(QUICK + "# better\n")
    school.add("eve")
    school.add("dave")
    pretend(REAL, REAL, most=1)
    left = ["not graded yet: dave, eve", "result of an earlier submission: carla"]
    page = (school.out / "index.html").read_text()
    assert [line for line in page.splitlines() if " yet: " in line or " earlier " in line] == [
        f"<p>{line}</p>" for line in left
    ]
    # Carla takes it back: what was graded counts again.
    (school.folder / "carla" / "assessment.py").write_text(QUICK)
    assert pretend(REAL, REAL) == ["dave", "eve"]
    page = (school.out / "index.html").read_text()
    assert "dave" in page and " yet: " not in page and " earlier " not in page


@pytest.mark.parametrize("status", ["not_gradable", "infrastructure_error"])
def test_a_result_without_a_judgement_knows_its_script(tmp_path, status):
    for folder in worker.FOLDERS:
        (tmp_path / folder).mkdir()
    settings = worker.Settings(tmp_path, 2, "dli", "", 60.0)
    task = worker.Task("ada", "ada", "key")
    made = worker.ungraded(task, settings, profile.load("dli"), status, "it is no Python.")
    script = tmp_path / "submissions" / "ada.py"
    script.write_text("no Python")
    document = worker.keep(*made, task, settings)
    assert document["submission"]["sha256"] == hashlib.sha256(b"no Python").hexdigest()
    assert roll.not_reached([document], tmp_path) == []
    script.write_text("1")
    assert roll.not_reached([document], tmp_path) == ["result of an earlier submission: ada"]


@pytest.mark.parametrize("tier, again", [("landlock", []), ("bubblewrap", ["bob"])])
def test_what_was_graded_behind_weaker_walls_is_graded_again(school, pretend, tier, again):
    for student in ("ada", "bob"):
        school.add(student)
    pretend(REAL, REAL)
    for student, had in (("ada", "bubblewrap+cgroup"), ("bob", "landlock")):
        file = school.out / "results" / f"{student}.json"
        document = json.loads(file.read_text())
        document["grader"]["sandbox_tier"] = had
        file.write_text(json.dumps(document))
    assert pretend(REAL, REAL) == []
    assert pretend(REAL, REAL, "--slurm", "--require-sandbox", tier) == again


def test_a_name_may_be_none_in_the_users_locale():
    """Who is not in UTF-8 there is graded under the name of the files, and nobody else is lost."""
    show = "print(*(worker.folder_name(worker.Task(id, 'x~1', '')) for id in ('ada', '\\u738b')))"
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answer = subprocess.run(
        [sys.executable, "-c", f"from hvdgrade import worker; {show}"],
        env=os.environ | ascii,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stdout == "ada x~1\n", answer.stderr


# --- what the instructor is told -----------------------------------------------------------------------


def test_students_who_are_gone_are_named(school):
    for student in ("ada", "bob"):
        (school.folder / student).mkdir()
    answer = school.grade()
    assert answer.returncode == 0 and "no longer" not in answer.stdout
    assert "bob: not gradable: its folder holds no .py file" in answer.stderr
    (school.folder / "bob").rmdir()
    answer = school.grade()
    assert "1 submissions: 0 pass" in answer.stdout
    file = school.out / "results" / "bob.json"
    page = (school.out / "index.html").read_text()
    assert "1 submission" in page and "no longer in DIR: bob" in page
    assert "reports/ada.html" in page and "reports/bob.html" not in page
    assert f"no longer in DIR: bob; its result stays until you remove {file}\n" in answer.stdout
    assert "not gradable: its" not in answer.stderr  # ada's result is kept
    file.unlink()
    assert "no longer" not in school.grade().stdout


def test_a_foreign_result_is_named(school):
    (school.folder / "ada").mkdir()
    assert school.grade().returncode == 0
    (school.out / "results" / "package.json").write_text('{"name": "x"}')
    answer = school.grade()
    assert answer.returncode == 2 and "Traceback" not in answer.stderr
    assert "results/package.json is no result of hvdgrade: remove it" in answer.stderr


def test_a_full_disk_is_one_sentence(school):
    (school.folder / "ada").mkdir()
    # No file may grow: as on a full disk, the error does not tell which.
    answer = school.grade(
        before="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    )
    assert answer.returncode == 3 and answer.stderr.count("\n") == 1
    assert f"{school.out}: File too large; " in answer.stderr
    assert "the same command goes on" in answer.stderr
    assert school.grade().returncode == 0
