"""The command `hvdgrade`: exit codes, JSON, and messages for wrong usage."""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from graded_ranks import wait_for_ranks

from hvdgrade import cli, profiles, run_command
from hvdgrade.output import files
from hvdlab.system import rank_limit

SUBMISSIONS = Path(__file__).parents[1] / "fixtures" / "submissions"


def hvdgrade(*arguments, data, timeout=400, cwd=None, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "hvdgrade.cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "HVDLAB_DATA": str(data), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.mpi
def test_a_failing_submission_exits_with_1_and_leaves_its_json(tmp_path, cifar10_folder):
    answer = hvdgrade(
        "run", SUBMISSIONS / "crashes", "-np", 2, "--profile", "dli", "--json", tmp_path / "r.json",
        data=cifar10_folder,
    )  # fmt: skip
    assert answer.returncode == run_command.FAIL, answer.stderr
    document = json.loads((tmp_path / "r.json").read_text())
    assert set(document) >= {
        "schema", "submission", "grader", "status", "verdict", "score", "max_score", "checks",
        "timeline", "resources",
    }  # fmt: skip
    assert (document["status"], document["verdict"]) == ("graded", "fail")
    assert document["grader"]["ranks"] == 2
    assert document["grader"]["rules_sha256"] == profiles.load("dli").rules_sha256
    assert document["resources"]["exit"] not in (0, None)
    for check in document["checks"]:
        assert set(check) == {
            "id", "title", "state", "points", "max_points", "evidence", "rationale", "help",
            "depends_on",
        }  # fmt: skip
    assert "FAIL" in answer.stdout and "rank 1 says" in answer.stdout
    assert "Traceback" not in answer.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_grader_ends_the_submission(ending, cifar10_folder):
    grader = psutil.Popen(
        [sys.executable, "-m", "hvdgrade.cli", "run", SUBMISSIONS / "too_slow", "--profile", "dli"],
        env={**os.environ, "HVDLAB_DATA": str(cifar10_folder)},
        stderr=subprocess.PIPE,
        text=True,
        # As from a terminal, however these tests themselves were started.
        preexec_fn=lambda: signal.signal(ending, signal.SIG_DFL),
    )
    try:
        wait_for_ranks(grader)
        started = grader.children(recursive=True)
        assert len(started) >= 3  # mpirun, too
        grader.send_signal(ending)
        _, said = grader.communicate(timeout=60)
        assert (
            "interrupted; everything it started has been ended" in said and "Traceback" not in said
        )
    finally:
        if grader.poll() is None:
            grader.kill()
    assert grader.returncode == run_command.GRADER_FAULT
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["run", "no/such/file.py"], "does not exist"),
        (["run", SUBMISSIONS / "not_python"], "not valid Python, line 2"),
        (["run", SUBMISSIONS], ".py files could be the script"),
        (["run", SUBMISSIONS / "crashes", "-np", "0"], "-np: expected 1 or more, got 0"),
        (["run", SUBMISSIONS / "crashes", "-np", "65"], "-np must be in 1..64. Received: 65"),
        (["run", SUBMISSIONS / "crashes", "--profile", "hard"], "it has: cpu, dli"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence_and_exit_code_2(arguments, said, cifar10_folder):
    answer = hvdgrade(*arguments, data=cifar10_folder, COLUMNS="300")
    assert answer.returncode == run_command.NOT_GRADABLE
    text = answer.stdout + answer.stderr
    assert said.replace("it has", "has") in text and "Traceback" not in text


def test_more_ranks_than_this_machine_starts_are_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(rank_limit, "most_ranks", lambda: 4)
    refused = ["run", str(tmp_path), "-np", "5", "--progress", str(tmp_path / "p")]
    assert cli.main(refused) == run_command.NOT_GRADABLE
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and not (tmp_path / "p").exists()
    assert told.err.startswith("hvdgrade: -np 5: this machine has ") and "--force" in told.err
    for more in (["--force"], ["-np", "4"]):  # then the folder without a script is the problem
        assert cli.main([*refused, *more]) == run_command.NOT_GRADABLE
        assert "NOT GRADABLE" in capsys.readouterr().out


@pytest.mark.parametrize("path", [".", "./", "../handed in", "inner/.."])
def test_the_report_names_the_folder_that_was_graded(path, tmp_path, monkeypatch, capsys):
    (tmp_path / "handed in" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "handed in")
    assert cli.main(["run", path]) == run_command.NOT_GRADABLE
    assert capsys.readouterr().out.startswith("handed in, 2 ranks, ")


@pytest.mark.parametrize("option", ["--json", "--html", "--progress"])
def test_a_file_that_cannot_be_written_is_refused_before_the_grading(tmp_path, option):
    commands = [["run", SUBMISSIONS / "crashes"]] + [["doctor"]] * (option == "--json")
    for command in commands:
        for path, why in ((tmp_path / "none" / "x", "check the folder"), (tmp_path, "a folder")):
            answer = hvdgrade(*command, option, path, data=tmp_path)
            assert answer.returncode == run_command.NOT_GRADABLE and answer.stdout == ""
            assert why in answer.stderr and answer.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_file_is_lost_to_a_result(tmp_path):
    """Neither the submission, nor one of two results, nor a device or a link."""
    script = tmp_path / "assessment.py"
    script.write_text("no Python")
    for options in (["--html", script], ["--json", "r", "--html", "./r"], ["--progress", script]):
        for path in (tmp_path, script):
            answer = hvdgrade("run", path, *options, data=tmp_path, cwd=tmp_path)
            assert answer.returncode == run_command.NOT_GRADABLE and answer.stderr.count("\n") == 1
            assert " is also the " in answer.stderr and ": choose another file" in answer.stderr
    assert script.read_text() == "no Python" and [*tmp_path.iterdir()] == [script]
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "link").symlink_to(tmp_path / "place")
    answer = hvdgrade(
        *("run", tmp_path, "--json", tmp_path / "pipe", "--html", tmp_path / "link"), data=tmp_path
    )
    assert answer.returncode == run_command.NOT_GRADABLE and "NOT GRADABLE" in answer.stdout
    assert json.loads(os.read(reader, 1 << 16))["status"] == "not_gradable"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    assert (tmp_path / "place").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_a_result_for_standard_output_is_added_to_what_is_there(tmp_path):
    """`--json /dev/stdout >> results`: the name is that of a plain file then."""
    (tmp_path / "assessment.py").write_text("no Python")
    command = [sys.executable, "-m", "hvdgrade.cli", "run", str(tmp_path), "--json", "/dev/stdout"]
    for mode in ("a", "r+"):  # >> and >, where the shell has opened it once for two commands
        (tmp_path / "all").write_text("before\n")
        with open(tmp_path / "all", mode) as file:
            file.seek(0, os.SEEK_END)
            for _ in range(2):
                answer = subprocess.run(command, stdout=file, timeout=60)
                assert answer.returncode == run_command.NOT_GRADABLE
        text = (tmp_path / "all").read_text()
        assert text.startswith("before\n{") and text.count("NOT GRADABLE") == 2
        assert text.count('"schema"') == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "assessment.py"]


def test_progress_that_cannot_be_told_ends_no_grading(tmp_path):
    (tmp_path / "assessment.py").write_text("no Python")
    with open("/dev/full", "w", encoding="utf-8") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "hvdgrade.cli", "run", tmp_path, "--progress", "/dev/full"],
            stdout=subprocess.PIPE, stderr=full, text=True, timeout=60,
        )  # fmt: skip
    assert answer.returncode == run_command.NOT_GRADABLE and "NOT GRADABLE" in answer.stdout


def test_a_file_in_a_folder_that_is_closed_is_refused_before_the_grading():
    """A file that may be written cannot be replaced where its folder may not be; asked as no root."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "closed" / "r.json"
        file.parent.mkdir()
        file.touch()
        file.chmod(0o666)
        file.parent.chmod(0o555)
        Path(name).chmod(0o755)
        refused = {}
        for option in ("json", "progress"):  # the progress is appended
            pid = os.fork()
            if not pid:
                try:
                    if not os.getuid():
                        os.setuid(65534)
                    files.check_options(argparse.Namespace(**{option: file}))
                    os._exit(7)
                except files.CannotWrite as error:
                    os._exit(9 if "check the folder" in str(error) else 8)
                finally:
                    os._exit(6)  # any other error
            refused[option] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        file.parent.chmod(0o755)
    assert refused == {"json": 9, "progress": 7}


def test_the_exit_code_does_not_depend_on_who_reads(tmp_path):
    """As in `hvdgrade run ... | head -1`, for what is printed on either stream."""
    (tmp_path / "assessment.py").write_text("no Python")
    command = [sys.executable, "-m", "hvdgrade.cli", "run", str(tmp_path)]
    for gone, other in (("stdout", "stderr"), ("stderr", "stdout")):
        reader, writer = os.pipe()
        os.close(reader)
        streams = {gone: writer, other: subprocess.PIPE}
        answer = subprocess.run(command, **streams, text=True, timeout=60)
        os.close(writer)
        assert answer.returncode == run_command.NOT_GRADABLE
        assert "Traceback" not in (answer.stdout or "") + (answer.stderr or "")


def test_a_report_needs_no_locale(tmp_path):
    code = "import sys, pathlib, hvdgrade.output.files as f; f.write(pathlib.Path(sys.argv[1]), '\\u25cb')"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "r"], env=os.environ | plain, check=True, timeout=60
    )
    assert (tmp_path / "r").read_text(encoding="utf-8") == "\u25cb"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_a_terminal_does_not_know_are_no_fault(tmp_path, encoding):
    answer = hvdgrade("run", tmp_path / "李雷", data=tmp_path, PYTHONIOENCODING=encoding)
    assert answer.returncode == run_command.NOT_GRADABLE
    assert "\\u674e\\u96f7" in answer.stdout and "Traceback" not in answer.stderr


def test_a_name_that_no_system_takes_is_a_mistake_of_the_user(tmp_path):
    answer = hvdgrade("run", tmp_path / ("x" * 300), "--html", tmp_path / "r.html", data=tmp_path)
    assert answer.returncode == run_command.NOT_GRADABLE and answer.stderr.count("\n") == 1
    assert "cannot be read" in answer.stderr


@pytest.mark.parametrize("name", ["x[@a=(]", "[bold]", os.fsdecode(b"caf\xe9"), "\x1b[2J"])
def test_a_name_is_only_text(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "assessment.py").write_text("no Python")
    files = tmp_path / "r.json", tmp_path / "r.html"
    answer = hvdgrade(
        "run", tmp_path / name, "--json", files[0], "--html", files[1], data=tmp_path, COLUMNS="300"
    )
    assert answer.returncode == run_command.NOT_GRADABLE, answer.stderr
    shown = "".join(c if c.isprintable() else "?" for c in name)
    assert answer.stdout.startswith(f"{shown}, 2 ranks") and "NOT GRADABLE" in answer.stdout
    assert json.loads(files[0].read_text())["submission"]["id"] == name and files[1].exists()


def test_a_script_that_is_too_large_is_named_without_its_folder(tmp_path):
    (tmp_path / "assessment.py").write_text("#" * 64_001)
    answer = hvdgrade("run", tmp_path, data=tmp_path, COLUMNS="300")
    assert answer.returncode == run_command.NOT_GRADABLE
    assert ") assessment.py is larger than 64000 bytes" in answer.stdout


def test_a_report_that_cannot_be_shown_is_written_all_the_same(tmp_path):
    (tmp_path / "assessment.py").write_text("no Python")
    files = tmp_path / "r.json", tmp_path / "r.html"
    command = ["run", tmp_path, "--json", files[0], "--html", files[1]]
    with open("/dev/full", "w", encoding="utf-8") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "hvdgrade.cli", *command], stdout=full, timeout=60
        )
    assert answer.returncode != run_command.NOT_GRADABLE  # it was not told
    assert all(file.stat().st_size > 500 for file in files)


def test_lines_are_shown_only_of_the_script_that_was_graded(tmp_path):
    """If the script is edited during the grading, the report must not show lines of the new version."""
    (tmp_path / "assessment.py").write_text("first = 1")
    document = {"submission": {"sha256": hashlib.sha256(b"first = 1").hexdigest()}}
    assert run_command.source_of(tmp_path, document) == b"first = 1"
    (tmp_path / "assessment.py").write_text("second = 2")
    assert run_command.source_of(tmp_path, document) is None


def test_a_submission_that_is_a_link_is_not_followed(tmp_path, cifar10_folder):
    (tmp_path / "assessment.py").symlink_to("/etc/passwd")
    answer = hvdgrade("run", tmp_path, data=cifar10_folder, COLUMNS="300")
    assert answer.returncode == run_command.NOT_GRADABLE and "is a symbolic link" in answer.stdout


def test_a_machine_without_data_is_the_graders_fault(tmp_path):
    answer = hvdgrade(
        "run", SUBMISSIONS / "crashes", data=tmp_path, HOME=str(tmp_path), COLUMNS="300"
    )
    assert answer.returncode == run_command.GRADER_FAULT
    assert "GRADER FAULT" in answer.stdout and "hvdlab data cifar10" in answer.stdout


def test_help_has_an_example():
    answer = hvdgrade("run", "--help", data="")
    assert answer.returncode == 0 and "hvdgrade run assessment/" in answer.stdout
