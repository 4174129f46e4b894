"""Which results a batch keeps, and which submissions it grades again."""

import argparse
import csv
import dataclasses
import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
from school import QUICK

from hvdgrade import profiles
from hvdgrade.batch import class_on_slurm, command, handed_in, layout, worker
from hvdgrade.sandbox import tiers
from hvdgrade.submission import find_script, script
from hvdlab.data import DataError

RESULT = Path(__file__).parents[2] / "fixtures" / "results" / "pass.json"


def test_a_result_is_kept_for_its_submission_and_its_rules_only(tmp_path, monkeypatch):
    text = profiles.PROFILES.read_text()
    stricter = tmp_path / "profiles.toml"
    stricter.write_text(text.replace("heldout_accuracy = 0.70", "heldout_accuracy = 0.71"))
    rules = [profiles.load("cpu", path).rules_sha256 for path in (profiles.PROFILES, stricter)]
    settings = layout.Settings(tmp_path, 2, "cpu", rules[0], 60.0)
    kept = layout.key(b"x", settings)
    for same in ({"out": Path("elsewhere")}, {"limit": 1.0}, {"call": "b"}, {"real_data": True}):
        assert layout.key(b"x", dataclasses.replace(settings, **same)) == kept
    others = ({"ranks": 4}, {"profile": "dli"}, {"rules_sha256": rules[1]})
    keys = {layout.key(b"x", dataclasses.replace(settings, **other)) for other in others}
    monkeypatch.setattr(layout, "__version__", "0")
    keys |= {kept, layout.key(b"x", settings), layout.key(b"y", settings)}
    assert len(keys) == 6


def test_a_threshold_or_the_version_of_the_rules_changes_the_rules_and_a_comment_does_not(tmp_path):
    text, rules = profiles.PROFILES.read_text(), []
    for old, new in (
        ("", ""),
        ("batch_size = 128 ", "batch_size = 128 # the same "),
        ("rules_version = ", "rules_version = 9"),
        ("heldout_accuracy = 0.70", "heldout_accuracy = 0.71"),
    ):
        assert old in text
        (tmp_path / "profiles.toml").write_text(text.replace(old, new, 1))
        rules.append(profiles.load("dli", tmp_path / "profiles.toml").rules_sha256)
    assert rules[0] == rules[1] == profiles.load("dli").rules_sha256
    assert len(set(rules)) == 3


@pytest.fixture
def pretend(school, monkeypatch):
    """`hvdgrade batch` on the class whose graders only pretend; returns whom they graded.

    `here` is the data of this machine, "" for none, and `there` those of the graders; after `most`
    gradings it is interrupted, the graders of `faults` fail, and those of `busy` find the machine busy.
    """

    def grade(
        here: str, there: str, *arguments: str, most: int = 99, faults=(), busy=()
    ) -> list[str]:
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
                    document, _ = worker.ungraded(task, settings, profiles.load("dli"), *fault)
                if task.id in busy:
                    document, _ = worker.ungraded(
                        task,
                        settings,
                        profiles.load("dli"),
                        "not_gradable",
                        "the machine was busy.",
                    )
                    document["grade_again"] = True
                yield worker.keep(document, "", task, settings, attempts=1)

        monkeypatch.setattr(command, "load_cifar10", load)
        for module in (command, class_on_slurm):
            monkeypatch.setattr(module, "grade_all", graders)
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        folders = [str(school.folder), "--out", str(school.out)]
        code = command.main(
            parser.parse_args([*folders, "-np", "1", "--profile", "dli", *arguments])
        )
        assert code == (command.FAULTS if len(graded) == most or faults else command.DONE)
        return graded

    return grade


SYNTHETIC, REAL = "synthetic CIFAR-10", "CIFAR-10"


@pytest.mark.parametrize("arguments", [(), ("--slurm",)])
def test_practice_runs_are_graded_again_once_the_data_are_here(school, pretend, capsys, arguments):
    for student in ("ada", "bob"):
        school.add(student)
    said = "2 were graded on synthetic data: practice runs\n"
    assert (
        pretend(SYNTHETIC, SYNTHETIC, *arguments) == ["ada", "bob"]
        and said in capsys.readouterr().out
    )
    assert pretend(SYNTHETIC, SYNTHETIC, *arguments) == [] and said in capsys.readouterr().out
    assert pretend(REAL, REAL, *arguments, most=1) == ["ada"]
    assert "1 of 2 are still to be graded" in " ".join(capsys.readouterr().err.split())
    assert pretend(REAL, REAL, *arguments) == ["bob"] and "graded on" not in capsys.readouterr().out
    assert pretend(REAL, REAL, *arguments) == []
    assert (
        pretend(SYNTHETIC, SYNTHETIC, *arguments) == []
    )  # no practice run takes the place of a score


def test_graders_find_data_that_are_named_from_here(school, pretend, monkeypatch, tmp_path):
    """Each of them works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVDLAB_DATA", "data")
    school.add("ada")
    assert pretend(REAL, REAL) == ["ada"]
    assert os.environ["HVDLAB_DATA"] == str(tmp_path / "data")


def test_a_cluster_may_have_data_that_this_machine_has_not(school, pretend, capsys):
    school.add("ada")
    assert pretend("", SYNTHETIC, "--slurm") == ["ada"]
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
    assert "2 pass, 0 fail, 1 not gradable, 1 grader faults" in printed.out
    assert "\n1 keep their earlier result, because they could not be graded again" in printed.out
    assert "grades: not gradable: it is a text file (grades.txt)" in printed.err
    after = school.results()
    assert before["ada"]["score"] == after["ada"]["score"] and after["ada"]["verdict"] == "pass"
    assert before["ada"]["batch"]["call"] == after["ada"]["batch"]["call"]
    # Without --regrade only the fault is graded again; with it ada, too, and bob has been graded already.
    assert pretend(REAL, REAL, faults=["carla"]) == ["carla"]
    assert pretend(REAL, REAL, "--regrade") == ["ada", "carla"]
    assert "failed_again" not in school.results()["ada"]["batch"]
    assert pretend(REAL, REAL, "--regrade") == ["ada", "bob", "carla"]
    # A result of another script is none, so the fault takes its place.
    (school.folder / "ada" / "assessment.py").write_text(QUICK + "# better\n")
    assert pretend(REAL, REAL, faults=["ada"]) == ["ada"]
    assert school.results()["ada"]["status"] == "infrastructure_error"


def test_what_came_too_late_on_a_busy_machine_is_graded_again(school, pretend, capsys):
    for student in ("ada", "bob"):
        school.add(student)
    pretend(REAL, REAL, busy=["ada"])  # its exit code is that of a batch in which all have a result
    printed = capsys.readouterr()
    assert "ada: not gradable: the machine was busy." in printed.err
    assert "1 pass, 0 fail, 1 not gradable, 0 grader faults" in printed.out
    assert "\n1 without a verdict: late while other programs used" in printed.out
    assert (
        "1 could not be judged, because the machine was busy"
        in (school.out / "index.html").read_text()
    )
    assert pretend(REAL, REAL) == ["ada"]
    assert school.results()["ada"]["verdict"] == "pass"
    assert "machine" not in capsys.readouterr().out
    # A regrade on a busy machine takes no score away.
    monday = school.results()["bob"]["score"]
    pretend(REAL, REAL, "--regrade", busy=["bob"], faults=["nobody"])
    assert "bob: not graded again, its result stays: the machine was busy." in (
        capsys.readouterr().err
    )
    assert school.results()["bob"]["score"] == monday
    assert pretend(REAL, REAL, "--regrade") == ["bob"]


def failing_for(*folders: Path):
    """Return an `os.scandir` for which the disk of some folders is broken."""
    scandir = os.scandir

    def fails(path="."):
        if path in folders:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(path)

    return fails


def test_a_regrade_that_could_not_read_one_grades_no_other_again(school, pretend, monkeypatch):
    for student in ("ada", "bob"):
        school.add(student)
    pretend(REAL, REAL)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing_for(school.folder / "ada"))
        assert pretend(REAL, REAL, "--regrade", faults=["ada"]) == ["bob"]
    assert pretend(REAL, REAL, "--regrade") == ["ada"]
    assert pretend(REAL, REAL, "--regrade") == ["ada", "bob"]


def test_what_cannot_be_read_now_loses_nothing(school, pretend, capsys, monkeypatch):
    """A network's file system that is gone for a moment is no fault of the student's."""
    for student in ("ada", "bob"):
        school.add(student)
    pretend(REAL, REAL)
    before = school.results()
    school.add("eve")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing_for(school.folder / "ada", school.folder / "eve"))
        assert pretend(REAL, REAL, faults=["ada", "eve"]) == []
    printed = capsys.readouterr()
    said = "its folder cannot be read (Input/output error)."
    assert f"ada: not graded again, its result stays: {said}" in printed.err
    assert f"eve: grader fault: {said}" in printed.err
    assert "2 pass, 0 fail, 0 not gradable, 1 grader faults" in printed.out
    assert "\n1 keep their earlier result, because they could not be graded again" in printed.out
    after = school.results()
    assert after["eve"]["status"] == "infrastructure_error"
    assert after["ada"]["batch"].pop("failed_again")["reason"] == said
    assert after["ada"] == before["ada"] and after["bob"] == before["bob"]
    assert (school.out / "submissions" / "ada.py").exists()
    assert pretend(REAL, REAL) == ["eve"]
    assert "keep their earlier result" not in capsys.readouterr().out


BEST = tiers.TIERS[0]  # those that pretend say "bubblewrap"


@pytest.mark.parametrize(
    "before, arguments", [(SYNTHETIC, ()), (REAL, ("--require-sandbox", BEST))]
)
def test_an_outdated_result_stays_if_its_submission_cannot_be_read_now(
    school, pretend, monkeypatch, before, arguments
):
    """A practice run, and a result that was graded with a weaker isolation level."""
    if not tiers.tier(BEST).works:
        pytest.skip(f"{BEST} does not work here")
    school.add("ada")
    pretend(before, before)
    kept = school.results()["ada"]
    with monkeypatch.context() as patch:
        patch.setattr(find_script, "read_file", unreadable)
        assert pretend(REAL, REAL, *arguments, faults=["ada"]) == []
    left = school.results()["ada"]
    assert left["batch"].pop("failed_again")["reason"] == "Stale file handle"
    assert left == kept
    assert pretend(REAL, REAL, *arguments) == ["ada"]


def unreadable(*arguments):
    raise find_script.Unreadable("Stale file handle")


def test_other_users_cannot_enter_what_a_batch_creates(school, pretend):
    """In a weak sandbox a submission is one of them."""
    school.add("ada")
    pretend(REAL, REAL)
    for folder in (school.out, *(school.out / name for name in layout.FOLDERS)):
        assert folder.stat().st_mode & 0o007 == 0


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
    for folder in layout.FOLDERS:
        (tmp_path / folder).mkdir()
    settings = layout.Settings(tmp_path, 2, "dli", "", 60.0)
    task = layout.Task("ada", "ada", "key")
    made = worker.ungraded(task, settings, profiles.load("dli"), status, "it is no Python.")
    script = tmp_path / "submissions" / "ada.py"
    script.write_text("no Python")
    document = worker.keep(*made, task, settings)
    assert document["submission"]["sha256"] == hashlib.sha256(b"no Python").hexdigest()
    assert handed_in.not_reached([document], tmp_path) == []
    script.write_text("1")
    assert handed_in.not_reached([document], tmp_path) == ["result of an earlier submission: ada"]


@pytest.mark.parametrize("tier, again", [("landlock", []), ("bubblewrap", ["bob"])])
def test_a_result_of_a_weaker_isolation_level_is_graded_again(school, pretend, tier, again):
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


def test_ids_that_an_instructor_adds_later_grade_nobody_again(school, pretend, tmp_path):
    for student in ("ada", "bob"):
        school.add(student)
    assert pretend(REAL, REAL) == ["ada", "bob"]
    (tmp_path / "ids.csv").write_text("ada,=1+1\nbob,o'neil@uni.edu\n")
    assert pretend(REAL, REAL, "--ids", str(tmp_path / "ids.csv")) == []
    with open(school.out / "summary.csv", newline="", encoding="utf-8-sig") as file:
        assert [row["student"] for row in csv.DictReader(file)] == ["'=1+1", "o'neil@uni.edu"]
    assert pretend(REAL, REAL) == []
    with open(school.out / "summary.csv", newline="", encoding="utf-8-sig") as file:
        assert [row["student"] for row in csv.DictReader(file)] == ["ada", "bob"]


def test_a_module_that_is_handed_in_later_changes_the_result(school, pretend):
    school.add("ada", "import helpers\n")
    assert pretend(REAL, REAL) == ["ada"]
    helpers = school.folder / "ada" / "helpers.py"
    helpers.write_text("x = 1\n")
    assert pretend(REAL, REAL) == []
    assert "imports helpers" in school.results()["ada"]["reason"]
    helpers.unlink()
    assert pretend(REAL, REAL) == ["ada"]


def test_a_script_that_this_machine_cannot_check_is_not_lost(school, pretend, monkeypatch):
    for student in ("ada", "bob"):
        school.add(student, f"{student} = 1\n")
    assert pretend(REAL, REAL) == ["ada", "bob"]
    inspect = script.inspect

    def busy(source):
        if source.startswith(b"ada"):
            raise OSError("this machine is too busy to compile the script")
        return inspect(source)

    with monkeypatch.context() as patch:
        patch.setattr(script, "inspect", busy)
        assert pretend(REAL, REAL, "--regrade", faults=["ada"]) == ["bob"]
    left = school.results()["ada"]
    assert left["verdict"] == "pass" and "too busy" in left["batch"]["failed_again"]["reason"]
    assert pretend(REAL, REAL, "--regrade") == ["ada"]  # the regrade continues
