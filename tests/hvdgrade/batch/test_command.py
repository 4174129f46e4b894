"""Grading a class: every submission gets a result, and the instructor gets a message for each problem."""

import argparse
import contextlib
import csv
import json
import sys

import psutil
import pytest
from school import MOST_WORKERS, QUICK

from hvdgrade import cli, profiles
from hvdgrade.batch import command, layout, progress, worker
from hvdgrade.batch.arguments import Refused, checked
from hvdgrade.output.console import for_lines
from hvdgrade.report import pages
from hvdgrade.sandbox import tiers
from hvdlab.system import rank_limit


def test_a_page_that_fails_does_not_take_the_result_with_it(tmp_path, monkeypatch):
    def fails(document):
        raise KeyError("a template")

    monkeypatch.setattr(pages, "report_page", fails)
    settings = layout.Settings(tmp_path, 2, "dli", "", 60.0)
    task = layout.Task("<ada>", "ada", "key")
    document, html = worker.ungraded(
        task, settings, profiles.load("dli"), "not_gradable", "it is a link."
    )
    assert document["status"] == "not_gradable" and document["submission"]["id"] == "<ada>"
    assert "&lt;ada&gt;: it is a link." in html


@pytest.mark.mpi
@pytest.mark.slow
def test_each_submission_gets_its_result_and_keeps_it(school):
    school.add("ada")
    school.add("result.json")  # as files of the grader are called
    school.add("=cmd()", "#!/bin/sh\necho no Python\n")
    (school.folder / "Zoë K.py").write_text(QUICK)
    (school.folder / "linked").symlink_to(school.folder / "ada")
    # A grader that starts in the folder of a class does not import modules from it.
    for module in ("rich", "hvdgrade", "submitit"):
        (school.folder / f"{module}.py").write_text(
            f'open({str(school.folder.parent / "imported")!r}, "w").close()\n'
        )
    answer = school.grade(cwd=school.folder)
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "8 submissions: 0 pass, 6 fail, 2 not gradable, 0 grader faults" in answer.stdout
    assert "[5/6]" in answer.stderr and "left" in answer.stderr
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
        if student not in ("linked", "=cmd()"):  # what is no script is not started
            assert (school.out / "logs" / f"{name}.log").exists()
    with open(school.out / "summary.csv", newline="", encoding="utf-8-sig") as file:
        table = {row["student"]: row["status"] for row in csv.DictReader(file)}
    assert table == {
        "'" * id.startswith("=") + id: document["status"] for id, document in results.items()
    }
    page = (school.out / "index.html").read_text()
    assert "Zoë K" in page and f"reports/{results['ada']['batch']['name']}.html" in page

    # Again: only the changed submission is graded again.
    before = school.files()
    (school.folder / "Zoë K.py").write_text(QUICK + "# better\n")
    answer = school.grade()
    changed = {name for name, file in school.files().items() if file != before[name]}
    assert answer.returncode == 0 and "7 of 8 are graded already" in answer.stderr
    assert changed == {f"{results['Zoë K']['batch']['name']}.json"}
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
    stdout, stderr = batch.communicate(timeout=60)
    assert batch.returncode == 3 and "1 grader faults" in stdout, stderr
    document = school.results()["ada"]
    assert document["status"] == "infrastructure_error" and document["score"] is None
    assert document["batch"]["attempts"] == 2
    assert "the same command grades these submissions again" in stdout
    assert school.grade().returncode == 0
    assert school.results()["ada"]["status"] == "graded"


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--workers", 10_000), "at most"),
        (("--workers", 0), "--workers: expected 1 or more, got 0"),
        (("--profile", "none"), "there is no profile 'none'"),
        (("-np", 1000), "-np must be in"),
        (("-np", 0), "-np: expected 1 or more, got 0"),
        (("--slurm-option", "partition=x"), "--slurm-option has no meaning"),
        (("--require-sandbox", "vault"), "vault"),
        (("--slurm", "--require-sandbox", "vault"), "must be one of bubblewrap"),
        (("--slurm", "--workers", -1), "--workers: expected 1 or more, got -1"),
        (("--limit", 0), "--limit: expected a number above 0, got 0"),
        (("--limit", "nan"), "--limit: expected a number above 0, got nan"),
    ],
)
def test_wrong_usage_is_one_sentence(school, arguments, words):
    school.add("ada")
    answer = school.grade(*arguments)
    *usage, sentence = answer.stderr.splitlines()  # argparse prints the usage before its sentence
    assert answer.returncode == 2 and words in sentence
    assert not usage or usage[0].startswith("usage: hvdgrade batch ")
    assert not school.out.exists()


def test_an_empty_class_leaves_nothing(school):
    answer = school.grade()
    assert answer.returncode == 2 and answer.stdout == "" and not school.out.exists()
    assert answer.stderr == (
        f"hvdgrade batch: {school.folder} is empty: name the folder with the submissions.\n"
    )


def test_a_batch_without_slurm_leaves_nothing(school, tmp_path):
    school.add("ada")
    answer = school.grade("--slurm", PATH=str(tmp_path))
    assert answer.returncode == 2 and "there is no sbatch on PATH" in answer.stderr
    assert answer.stderr.count("\n") == 1 and not school.out.exists()


def test_more_ranks_than_this_machine_starts_are_refused(school, monkeypatch):
    monkeypatch.setattr(rank_limit, "most_ranks", lambda: 4)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for words, refused in (("-np 5", True), ("-np 5 --force", False), ("-np 4", False)):
        args = parser.parse_args([str(school.folder), "--out", str(school.out), *words.split()])
        if refused:
            with pytest.raises(Refused, match="-np 5: this machine has .* or add --force"):
                checked(args)
        else:
            assert checked(args)[1].ranks == args.np
    args.np, args.slurm = 5, True  # the nodes are other machines
    assert checked(args)[1].ranks == 5
    assert not school.out.exists()


def test_nothing_is_graded_where_a_submission_would_be_root(school, monkeypatch, capsys):
    def refuse(required):
        raise tiers.SandboxUnavailable(f"the submission would run as root, and {required} is named")

    school.add("ada")
    monkeypatch.setattr(tiers, "choose", refuse)
    code = cli.main(["batch", str(school.folder), "--out", str(school.out)])
    printed = capsys.readouterr().err
    assert code == 2 and printed.endswith("as root, and None is named\n")
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
    assert progress.seconds_left(elapsed, count, total, workers) == pytest.approx(seconds)


def test_without_data_nothing_is_graded(school, tmp_path):
    school.add("ada")
    answer = school.grade(HVDLAB_DATA=str(tmp_path / "nothing"), HOME=str(tmp_path))
    assert answer.returncode == 2 and "hvdlab data cifar10" in answer.stderr
    assert answer.stderr.count("\n") == 1 and not school.out.exists()


@pytest.mark.slow
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
    assert "results/package.json is not a result of hvdgrade: remove it" in answer.stderr


@pytest.mark.parametrize(
    "ends, cause",
    [("kill -SEGV $$", "exit code -11"), ("echo 'MemoryError' >&2; exit 1", "MemoryError")],
)
def test_a_class_page_whose_process_crashed_is_incomplete(
    ends, cause, tmp_path, monkeypatch, capsys
):
    """A submission may crash the parser, and then nothing is on stderr."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/bash\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert not progress.summarise(tmp_path, for_lines())
    assert f"the class page is incomplete ({cause})" in capsys.readouterr().out
