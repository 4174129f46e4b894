"""Finding the students of a class in a folder that may contain any kind of file."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgrade.batch import submissions as roster
from hvdgrade.batch.downloads.problem import DownloadProblem
from hvdgrade.submission import find_script


def found(folder: Path, **options) -> dict[str, roster.Submission]:
    submissions = roster.find(folder, **options).submissions
    assert len({one.name.lower() for one in submissions}) == len(submissions)
    return {one.id: one for one in submissions}


def test_a_student_is_a_folder_or_a_file(tmp_path):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "assessment.py").write_text("1")
    (tmp_path / "ada" / "notes.py").write_text("2")
    (tmp_path / "bob.py").write_text("3")
    (tmp_path / "carl").mkdir()
    (tmp_path / "carl" / "my solution (2).py").write_text("4")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._bob.py", ".gitignore"):
        (tmp_path / name).write_text("6")
    for name in ("__pycache__", "__MACOSX", ".git"):
        (tmp_path / name).mkdir()
    class_folder = roster.find(tmp_path)
    assert class_folder.platform == "a folder or file per student"
    assert [
        (one.id, one.source, one.problem, one.student.left_out) for one in class_folder.submissions
    ] == [
        ("ada", b"1", "", ("notes.py",)),
        ("bob", b"3", "", ()),
        ("carl", b"4", "", ()),
    ]


def test_nobody_who_handed_in_is_missing(tmp_path):
    """Everything at the top of the folder is of somebody, except known clutter."""
    names = {
        "ada.zip": "it is a zip archive (ada.zip)",
        "bob.tar.gz": "it is a tar archive (bob.tar.gz)",
        "carl.pdf": "it is a PDF document (carl.pdf)",
        "dan.py.txt": "a script whose name ends in .txt instead of .py (dan.py.txt)",
        "eve": "it is a file without an ending (eve)",
        "fay.j2": "it is a file that ends in .j2 (fay.j2)",
        ".gus": "it is a file without an ending (.gus)",
        "hal.ipynb": "it is a notebook (hal.ipynb)",
    }
    for name in names:
        (tmp_path / name).write_text("import torch")
    (tmp_path / "ivy").mkdir()
    (tmp_path / "jo").symlink_to("ada.zip")
    students = found(tmp_path)
    assert {one.student.handed_in[0] for one in students.values()} == {*names, "ivy", "jo"}
    for one in students.values():
        words = names.get(one.student.handed_in[0], "")
        assert one.problem and words in one.problem and not one.source
    assert set(students) == {
        *("ada", "bob", "carl", "dan", "eve", "fay.j2", ".gus", "hal", "ivy", "jo"),
    }


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
        "several": "2 .py files could be the script (one.py, two.py)",
        "link_inside": "symbolic link",
        "a_folder_inside": "holds no .py file",
        "twice": "2 .py files could be the script (twice/assessment.py, twice.py)",
        "linked": "symbolic link",
        "linked_file": "symbolic link",
        "loop": "symbolic link",
        ".loop": "symbolic link",
        "round": "symbolic link",
        "pipe": "not a plain file",
        "carla": "it is a notebook",
        "f": "2 .py files could be the script (f.PY, f.py)",
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

    monkeypatch.setattr(find_script, "open", fails, raising=False)
    submissions = found(tmp_path)
    assert submissions["ada"].problem == ""
    assert submissions["bob"].problem == "assessment.py cannot be read (Input/output error)."


def test_no_two_names_differ_only_by_capitals(tmp_path):
    """Where OUT lies they may be one file, as on the disks of Windows and macOS."""
    for name in ("Ada", "ada", "bob"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "assessment.py").write_text(f"{name} = 1")
    submissions = found(tmp_path)
    assert len({one.name.lower() for one in submissions.values()}) == 3
    assert {id: one.source for id, one in submissions.items()} == {
        id: f"{id} = 1".encode() for id in ("Ada", "ada", "bob")
    }
    assert submissions["bob"].name == "bob"


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
    assert len({roster.safe_name(name) for name in ("a b", "a_b", "a\tb", "a b ")}) == 4


def test_a_name_may_be_none_in_the_users_locale():
    """Who is not in UTF-8 there is graded under the name of the files, and nobody else is lost."""
    show = "print(*(layout.folder_name(layout.Task(id, 'x~1', '')) for id in ('ada', '\\u738b')))"
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answer = subprocess.run(
        [sys.executable, "-c", f"from hvdgrade.batch import layout; {show}"],
        env=os.environ | ascii,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stdout == "ada x~1\n", answer.stderr


@pytest.mark.parametrize(
    "names, count",
    [
        ([f"{number}.py" for number in range(6)], 6),
        (["ada/assessment.py", "bob/main.py", "notes.txt"], 2),
        (["ada/ps1/assessment.py", "bob/ps1/assessment.py"], 2),  # nbgrader
        (["Ada_7_assignsubmission_file_/a.py"], 1),  # Moodle
        (["Ada_7_assignsubmission_file_/a.zip"], 0),
        # A single student.
        (["assessment.py", "helpers.py"], None),
        (["assessment (1).py", "a.py"], None),
        (["src/assessment.py", "README.md"], None),
        (["main.py"], None),
    ],
)
def test_a_folder_too_high_is_refused(tmp_path, names, count):
    for name in names:
        (tmp_path / "submissions" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "submissions" / name).write_text("import torch")
    (tmp_path / ".DS_Store").touch()
    if count is None:
        assert list(found(tmp_path)) == ["submissions"]
        return
    with pytest.raises(DownloadProblem) as error:
        roster.find(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds a single folder with {count} script{'s' * (count != 1)}: "
        f"did you mean {tmp_path / 'submissions'}?"
    )
    assert len(found(tmp_path / "submissions")) >= count
    # The instructor knows better.
    assert list(found(tmp_path, platform="plain")) == ["submissions"]
    assert list(found(tmp_path, ids={"submissions": "ada"})) == ["ada"]


def test_the_instructors_table_names_students(tmp_path):
    for name in ("hw1_a.py", "hw1_b/assessment.py", "c.zip", "d.py", "e.py", "f.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import torch")
    table = tmp_path / "ids.csv"
    table.touch()
    ids = {"hw1_a.py": "ada@uni.edu", "hw1_b": "O'Neil, Zoë", "c": "=1+1", "d": "same", "e": "same"}
    class_folder = roster.find(tmp_path, ids=ids, without=table)
    students = {one.id: one for one in class_folder.submissions}
    assert set(students) == {"ada@uni.edu", "O'Neil, Zoë", "=1+1", "same", "f"}
    assert students["ada@uni.edu"].name == "hw1_a"  # a later table does not lose the result
    assert "(d.py, e.py)" in students["same"].problem
    assert students["same"].student.handed_in == ("d.py", "e.py")
    assert class_folder.unlisted == ["f"]
