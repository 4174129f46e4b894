"""Who handed in what, read from the downloads of learning platforms."""

import pytest
from platform_downloads import DOWNLOADS, QUICK

from hvdgrade.batch import submissions
from hvdgrade.batch.downloads import blackboard, brightspace, canvas, github_classroom, moodle
from hvdgrade.batch.downloads.claim import Download, Entry, entries_of
from hvdgrade.batch.downloads.problem import DownloadProblem
from hvdgrade.batch.downloads.recognise import PLATFORMS, recognise
from hvdgrade.batch.id_table import read_pairs
from hvdgrade.batch.tasks import with_problem

EVERY_DOWNLOAD = pytest.mark.parametrize("platform", DOWNLOADS)


def test_every_platform_has_a_download():
    assert set(DOWNLOADS) == set(PLATFORMS)


@EVERY_DOWNLOAD
def test_every_student_is_found_once(tmp_path, platform):
    download = DOWNLOADS[platform]
    ids = None
    if download.ids:
        (tmp_path / "ids.csv").write_text(download.ids)
        ids = read_pairs(tmp_path / "ids.csv", "name", "id")
    found = submissions.find(download.write(tmp_path), ids=ids)
    assert found.platform == download.title
    students = {one.id: with_problem(one) for one in found.submissions}
    assert len(students) == len(found.submissions)
    assert {id: one.student.name for id, one in students.items()} == download.names
    graded = {id: one.source.decode() for id, one in students.items() if not one.problem}
    assert graded == download.graded
    reasons = {id: one.problem for id, one in students.items() if one.problem}
    assert set(reasons) == set(download.reasons)
    assert all(words in reasons[id] for id, words in download.reasons.items()), reasons
    left_out = {id: list(one.student.left_out) for id, one in students.items()}
    assert {id: files for id, files in left_out.items() if files} == download.left_out
    assert {one.student.email for one in found.submissions} == (
        {"ada@uni.edu", "bob@uni.edu", "zoe.o'neil@uni.edu", ""}
        if platform in ("gradescope", "classroom50")
        else {""}
    )


@EVERY_DOWNLOAD
def test_a_platform_is_recognised_among_other_files_and_can_be_named(tmp_path, platform):
    folder = DOWNLOADS[platform].write(tmp_path)
    (folder / "my own notes.txt").touch()
    entries = entries_of(folder)
    assert recognise(folder, entries)[0] == platform
    assert recognise(folder, entries, "plain")[0] == "plain"
    (folder / "another").mkdir()
    _, claims = recognise(folder, entries_of(folder), platform)
    assert claims["another"][0].id == "another"


def claims_of(module, *names: str, folders: bool = False):
    """Return what a platform says about some names: (id, name, the student's name of the file, when)."""
    claims = module.read(Download(None, [Entry(name, None, folders) for name in names]))
    return [(c.id, c.name, c.file, c.sent) for name in names for c in claims.get(name, [])]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("a_1_2_x.py", ("1", "a", "x.py")),
        ("a_LATE_1_2_x.py", ("1", "a", "x.py")),
        ("a_b_1_2_x-3.py", ("1", "a_b", "x.py")),
        ("a_1_2_x-3.tar.gz", ("1", "a", "x-3.tar.gz")),
        ("a_1_text.html", ("1", "a", "_text.html")),
        ("anon_ab_2_x.py", ("anon_ab", "", "x.py")),
        ("anon_ab_text.html", ("anon_ab", "", "_text.html")),
        # Two numbers could be the id, so none is.
        ("a_1_2_3_x.py", ("a_1_2_3_x", "", "assessment.py")),
        ("a_4001_4003_text.html", ("a_4001_4003_text", "", "a_4001_4003_text.html")),
        ("a_1_2_text.html", ("a_1_2_text", "", "a_1_2_text.html")),
        ("a.py", None),
        ("a_1.py", None),
    ],
)
def test_names_of_canvas(name, expected):
    found = [claim[:3] for claim in claims_of(canvas, name)]
    assert found == [expected] * (expected is not None)


@pytest.mark.parametrize(
    "name, is_folder, expected",
    [
        ("A B_7_assignsubmission_file_", True, ("7", "A B", "")),
        ("A B_7_assignsubmission_file", True, ("7", "A B", "")),
        ("Participant_7_assignsubmission_file_a_b.py", False, ("7", "Participant", "a_b.py")),
        ("A_7_assignsubmission_onlinetext.html", False, ("7", "A", "onlinetext.html")),
        ("A_7_assignsubmission_onlinetext_onlinetext.html", False, ("7", "A", "onlinetext.html")),
        ("A_7_submission_file_a.py", False, None),
    ],
)
def test_names_of_moodle(name, is_folder, expected):
    found = [claim[:3] for claim in claims_of(moodle, name, folders=is_folder)]
    assert found == [expected] * (expected is not None)


@pytest.mark.parametrize(
    "when, moment",
    [
        ("2 May, 2026 1010 AM", "2026-05-02T10:10:00"),
        ("May 2, 2026 105 PM", "2026-05-02T13:05:00"),
        ("May 2, 2026 1205 AM", "2026-05-02T00:05:00"),
        ("12 December, 2026 1305", "2026-12-12T13:05:00"),
        ("2 mai, 2026 1010", ""),
    ],
)
def test_names_of_brightspace(when, moment):
    assert claims_of(brightspace, f"1-2 - A - B - {when} - a - b.py") == [
        ("1", "A - B", "a - b.py", moment)
    ]


def test_attempts_whose_time_is_unknown_are_not_chosen_between(tmp_path):
    for when in ("2 mai, 2026 1010", "3 mai, 2026 1010"):
        (tmp_path / f"1-2 - A - {when}").mkdir()
        (tmp_path / f"1-2 - A - {when}" / "assessment.py").write_text(QUICK)
    (one,) = submissions.find(tmp_path).submissions
    assert (
        "2 .py files could be the script (1-2 - A - 2 mai, 2026 1010/assessment.py" in one.problem
    )


def test_a_user_name_of_blackboard_may_contain_an_underscore_only_if_blackboard_says_so(tmp_path):
    name = "Assignment_1_ada_b_attempt_2026-05-01-10-00-00"
    (tmp_path / f"{name}_x.py").touch()
    entries = entries_of(tmp_path)
    assert blackboard.read(Download(tmp_path, entries))[f"{name}_x.py"][0].id == "b"
    for about, id in (("Name: A (ada_b)", "ada_b"), ("Name: A (eve)", "b"), ("", "b")):
        (tmp_path / f"{name}.txt").write_text(f"{about}\nName: Eve (1_ada_b)\n")
        claims = blackboard.read(Download(tmp_path, entries_of(tmp_path)))
        assert {claim.id for found in claims.values() for claim in found} == {id}


@pytest.mark.parametrize("folder, id", [("hw-submissions", "ada"), ("downloaded", "hw-ada")])
def test_a_login_of_github_is_known_from_the_name_of_the_folder(tmp_path, folder, id):
    (tmp_path / folder / "hw-ada" / ".git").mkdir(parents=True)
    place = tmp_path / folder
    assert github_classroom.read(Download(place, entries_of(place)))["hw-ada"][0].id == id


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "\0"])
def test_metadata_that_are_not_gradescopes_are_refused(tmp_path, text):
    (tmp_path / "submission_metadata.yml").write_text(text)
    with pytest.raises(
        DownloadProblem, match="submission_metadata.yml is not a file of Gradescope"
    ):
        submissions.find(tmp_path)


def test_metadata_create_no_objects(tmp_path):
    harmful = f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n"
    (tmp_path / "submission_metadata.yml").write_text(harmful)
    assert submissions.find(tmp_path).submissions == [] and not (tmp_path / "made").exists()


def test_members_of_a_group_without_an_id_are_not_lost(tmp_path):
    people = [":sid: '1'", ":email: b@uni.edu", ":name: Carl", ":sid: ''"]
    lines = ["submission_1:", "  :submitters:", *(f"  - {person}" for person in people)]
    (tmp_path / "submission_metadata.yml").write_text("\n".join(lines))
    for number in (1, 2):
        (tmp_path / f"submission_{number}").mkdir()
        (tmp_path / f"submission_{number}" / "assessment.py").write_text(QUICK)
    students = submissions.find(tmp_path).submissions
    assert [one.id for one in students] == ["1", "Carl", "b@uni.edu", "submission_2"]
    assert all(not one.problem for one in students)


def test_two_submissions_of_one_student_are_told_apart(tmp_path):
    person = "\n  :submitters:\n  - :sid: '1'\n"
    (tmp_path / "submission_metadata.yml").write_text(f"submission_1:{person}submission_2:{person}")
    for number in (1, 2):
        (tmp_path / f"submission_{number}").mkdir()
        (tmp_path / f"submission_{number}" / "assessment.py").write_text(QUICK)
    (one,) = submissions.find(tmp_path).submissions
    assert "(submission_1/assessment.py, submission_2/assessment.py)" in one.problem


@pytest.mark.parametrize(
    "folder, ids", [("hw-submissions", ["1", "2"]), ("other", ["1", "hw-x-ada"])]
)
def test_a_login_may_end_like_another(tmp_path, folder, ids):
    place = tmp_path / folder
    for name in ("hw-ada", "hw-x-ada"):
        (place / name / ".git").mkdir(parents=True)
    roster = "identifier,github_username\n1,ada\n2,x-ada\n"
    (place / "classroom_roster.csv").write_text(roster)
    claims = github_classroom.read(Download(place, entries_of(place)))
    assert [claims[name][0].id for name in ("hw-ada", "hw-x-ada")] == ids


def repositories(place, *names, **files):
    """Make a clone of each repository in `place`, with the files of the assignment, and return `place`."""
    for name in names:
        (place / name / ".git").mkdir(parents=True)
        for file, content in files.items():
            (place / name / file).write_text(content)
    return place


def logins(place, ids=None, platform=None):
    found = submissions.find(place, platform, ids)
    assert found.platform == "Classroom 50"
    return [one.id for one in found.submissions]


TIMED = "intro-ml-hw-1_submissions_2026_09_01_T_10_00_00"
HEAD = "username,first_name,last_name,email,section,score,submission_tag\n"
MARKED = {".classroom50.yaml": 'classroom: "intro-ml"\nassignment: "hw-1"\n'}


@pytest.mark.parametrize(
    "folder, files, scores, ids",
    [
        (TIMED, {}, "", {}),
        ("class", MARKED, "", {}),
        ("class", {}, f"{HEAD}a-eve\na-Bob\neve\n", {}),
        ("class", {}, "", {"a-eve": "1", "a-bob": "2", "eve": "3"}),
    ],
    ids=["name of the folder", "files of the repositories", "scores.csv", "ids of the instructor"],
)
def test_the_login_of_classroom50_begins_where_the_evidence_says(
    tmp_path, folder, files, scores, ids
):
    # What the two names have in common would also fit the logins "eve" and "bob".
    place = repositories(tmp_path / folder, "intro-ml-hw-1-a-eve", "intro-ml-hw-1-a-bob", **files)
    if scores:
        (place / "scores.csv").write_text(scores)
    known = {login: id for login, id in ids.items()}
    assert sorted(logins(place, known or None)) == sorted(
        ["1", "2"] if ids else ["a-eve", "a-Bob" if scores else "a-bob"]
    )


def test_the_login_of_classroom50_begins_after_what_all_names_have_in_common(tmp_path):
    place = repositories(tmp_path / "class", "intro-ml-hw-1-ada", "intro-ml-hw-1-bob-o")
    assert logins(place) == ["ada", "bob-o"]
    plain = tmp_path / "without clones"
    for name in ("cs-hw-ada", "cs-hw-bob"):
        (plain / name).mkdir(parents=True)
    assert logins(plain, platform="classroom50") == ["ada", "bob"]
    assert submissions.find(plain).platform == DOWNLOADS["plain"].title


def test_a_login_of_classroom50_that_cannot_be_known_is_refused(tmp_path):
    alone = repositories(tmp_path / "class", "intro-ml-hw-1-a-eve")
    with pytest.raises(DownloadProblem, match="does not say where the login begins in intro-ml"):
        submissions.find(alone, "classroom50")
    assert logins(alone, {"intro-ml-hw-1-a-eve": "7"}, "classroom50") == ["7"]
    (alone / "scores.csv").write_text(f"{HEAD}a-eve\neve\n")
    with pytest.raises(DownloadProblem, match="does not say where the login begins in intro-ml"):
        submissions.find(alone)


def test_repositories_of_two_assignments_are_refused(tmp_path):
    names = ("cs-hw1-ada", "cs-hw1-bob", "cs-hw2-ada")
    place = repositories(tmp_path / "cs-hw1_submissions_2026_09_01_T_10_00_00", *names)
    with pytest.raises(DownloadProblem, match="several assignments, for example cs-hw2-ada next"):
        submissions.find(place)


def test_one_student_does_not_change_how_a_class_is_read(tmp_path):
    place = repositories(tmp_path / "class", "intro-ml-hw-1-a-eve", "intro-ml-hw-1-a-bob", **MARKED)
    lie = 'classroom: "intro-ml"\nassignment: "hw-1-a"\n'
    repositories(place, "intro-ml-hw-1-a-dan", **{".classroom50.yaml": lie})
    assert logins(place) == ["a-bob", "a-dan", "a-eve"]
    plain = repositories(tmp_path / "plain", "a-b-eve", **MARKED)
    for name in ("ada", "bob"):
        (plain / name).mkdir()
    assert [one.id for one in submissions.find(plain).submissions] == ["a-b-eve", "ada", "bob"]


@pytest.mark.parametrize("text", ["", "- a", "a: [", "classroom: [1]\nassignment: b", "\0"])
def test_a_broken_file_of_classroom50_is_no_evidence(tmp_path, text):
    place = repositories(tmp_path / "c", "c-hw-ada", "c-hw-bob", **{".classroom50.yaml": text})
    assert logins(place) == ["ada", "bob"]
