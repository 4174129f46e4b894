"""Which file of a submission is the script, by one rule for `hvdgrade run` and `hvdgrade batch`."""

import os
from pathlib import Path

import pytest

from hvdgrade.submission import find_script as module
from hvdgrade.submission.find_script import File, find_script, read_script
from hvdgrade.submission.script import NotGradable

SOURCE = "import torch\n"


def hand_in(folder: Path, *names: str) -> list[File]:
    """Write a file for each name and return the folder as a submission."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{SOURCE}# {name}\n")
    return [File(folder, "")]


@pytest.mark.parametrize(
    "names, chosen",
    [
        (["assessment.py", "notes.py"], "assessment.py"),
        (["Assessment.py"], "Assessment.py"),
        (["my solution (2).py", "data.csv"], "my solution (2).py"),
        (["ps1/assessment.py", "ps1/timestamp.txt"], "ps1/assessment.py"),  # nbgrader
        (["hw1/src/assessment.py", "hw1/README.md"], "hw1/src/assessment.py"),
        (["assessment.py", "old/assessment.py"], "assessment.py"),
        (["assessment.py", "Assessment.py"], "assessment.py"),
        (["main.py", "src/assessment.py"], "src/assessment.py"),
        (["assessment-1.py", "helpers.py"], "assessment-1.py"),
        (["assessment.py", ".git/assessment.py", "__MACOSX/assessment.py"], "assessment.py"),
        (
            ["a/assessment.py", "a/.venv/assessment.py", "__MACOSX/a/assessment.py"],
            "a/assessment.py",
        ),
    ],
)
def test_the_script_is_found(tmp_path, names, chosen):
    parts = hand_in(tmp_path / "ada", *names)
    script = find_script(parts)
    assert script.name == chosen and script.source.decode().endswith(f"# {chosen}\n")
    hidden = {name for name in names if "/." in f"/{name}" or "__MACOSX" in name}
    assert set(script.left_out) == {*names} - {chosen, "ps1/timestamp.txt"} - hidden
    assert read_script(tmp_path / "ada") == script.source


@pytest.mark.parametrize(
    "names, words",
    [
        ([], "its folder holds no .py file"),
        (["one.py", "two.py"], "2 .py files could be the script (one.py, two.py)"),
        (["a/assessment.py", "b/assessment.py"], "(a/assessment.py, b/assessment.py)"),
        (["assessment1.py", "assessment2.py"], "2 .py files"),
        (["utils.py", "src/train.py"], "2 .py files could be the script (utils.py, src/train.py)"),
        ([f"{number}.py" for number in range(9)], "9 .py files"),
        (["work.zip"], "it is a zip archive (work.zip)"),
        (["a/work.tar.gz"], "it is a tar archive (a/work.tar.gz)"),
        (["report.PDF"], "it is a PDF document (report.PDF)"),
        (["lab.ipynb"], "it is a notebook (lab.ipynb)"),
        (["assessment.py.txt"], "a script whose name ends in .txt instead of .py"),
        (["_text.html"], "it is text that was typed into the learning platform"),
        (["_link.html"], "it is a link to a web page"),
        (["model.xyz"], "it is a file that ends in .xyz"),
        (["Makefile"], "it is a file without an ending"),
        (["a.zip", "b.pdf"], "it holds no .py file but a.zip, b.pdf"),
        (["1/2/3/4/5/6/assessment.py"], "its folder holds no .py file"),
    ],
)
def test_what_is_no_script_is_named(tmp_path, names, words):
    parts = hand_in(tmp_path / "ada", *names)
    for find in (lambda: find_script(parts), lambda: read_script(tmp_path / "ada")):
        with pytest.raises(NotGradable) as error:
            find()
        assert words in str(error.value) and "hand in one file named assessment.py" in str(
            error.value
        )


def test_the_number_of_files_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILES", 20)
    parts = hand_in(tmp_path / "ada", *(f"venv/{number}.py" for number in range(30)))
    with pytest.raises(NotGradable, match="more than 20 files"):
        find_script(parts)
    hand_in(tmp_path / "ada", "assessment.py")
    assert find_script(parts).name == "assessment.py"


def test_links_are_not_followed(tmp_path):
    hand_in(tmp_path / "secret", "assessment.py", "helpers.py")
    parts = hand_in(tmp_path / "ada")
    (tmp_path / "ada" / "folder").symlink_to(tmp_path / "secret")
    with pytest.raises(NotGradable, match="a file without an ending"):
        find_script(parts)
    (tmp_path / "ada" / "assessment.py").symlink_to(tmp_path / "secret" / "assessment.py")
    with pytest.raises(NotGradable, match="assessment.py is a symbolic link"):
        find_script(parts)
    (tmp_path / "linked").symlink_to(tmp_path / "secret")
    with pytest.raises(NotGradable, match="it is a symbolic link"):
        find_script([File(tmp_path / "linked", "")])
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(NotGradable, match="not a plain file"):
        find_script([File(tmp_path / "pipe.py", "pipe.py")])


def test_an_archive_is_not_unpacked(tmp_path):
    import zipfile

    parts = hand_in(tmp_path / "ada")
    with zipfile.ZipFile(tmp_path / "ada" / "work.zip", "w") as archive:
        archive.writestr("assessment.py", SOURCE)
    with pytest.raises(NotGradable, match="zip archive"):
        find_script(parts)
    assert [path.name for path in (tmp_path / "ada").iterdir()] == ["work.zip"]


def test_run_knows_the_modules_next_to_a_script(tmp_path):
    hand_in(tmp_path / "ada", "assessment.py", "helpers.py")
    script = tmp_path / "ada" / "assessment.py"
    assert read_script(script) == script.read_bytes()
    script.write_text("import helpers\n")
    for path in (script, tmp_path / "ada"):
        with pytest.raises(NotGradable, match="imports helpers, which was handed in next to it"):
            read_script(path)


def test_a_script_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(NotGradable, match="none does not exist: hand in one file"):
        read_script(tmp_path / "none")
