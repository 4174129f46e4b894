"""The files of the kits: each platform can read them, and secrets lie only where students cannot read."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import platform_kits
import pytest
import yaml

from hvdgrade import cli
from hvdgrade.platform import kit

SERVER = "https://grade.example.edu"
TOKEN = platform_kits.TOKEN
# Platform, whether a server grades -> files of the kit.
FILES = {
    ("gradescope", False): "Dockerfile README.md door.py run_autograder settings.json",
    ("gradescope", True): "README.md autograder.zip",
    ("classroom50", False): "Dockerfile README.md autograder.py door.py runtime.json settings.json",
    ("classroom50", True): (
        "README.md autograder.py client.py door.py hvdgrade.yaml runtime.json settings.json"
    ),
    ("gitlab", False): ".gitlab-ci.yml Dockerfile README.md",
    ("gitlab", True): ".gitlab-ci.yml README.md client.py",
    ("prairielearn", True): (
        "README.md info.json question.html server.py tests/client.py tests/door.py tests/grade.py "
        "tests/settings.json tests/token"
    ),
}


@pytest.mark.parametrize("name, pool", FILES)
def test_a_kit_has_these_files_and_no_secret_that_students_can_read(name, pool, tmp_path):
    made = platform_kits.make(name, tmp_path / "kit", SERVER if pool else "")
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert files == set(FILES[name, pool].split())
    for path in made.rglob("*"):
        if path.is_file() and TOKEN in path.read_bytes().decode(errors="replace"):
            assert path.name in ("token", "autograder.zip") and path.stat().st_mode & 0o777 == 0o600
    readme = (made / "README.md").read_text()
    assert "{" not in readme and "\n\n\n" not in readme and "* Not run: " in readme
    assert ("Dockerfile" in readme) == ("Dockerfile" in files)
    for settings in made.rglob("settings.json"):
        chosen = json.loads(settings.read_text())
        place = kit.PLACES[name]
        assert chosen["format"] == place.format
        assert 60 * place.minutes - chosen["limit_s"] == place.reserve >= 60


def test_the_archive_for_gradescope_can_be_started_and_has_the_token(tmp_path):
    made = platform_kits.make("gradescope", tmp_path / "kit", SERVER, "--minutes", "40")
    assert (made / "autograder.zip").stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(made / "autograder.zip") as file:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in file.infolist()}
        assert file.read("token").decode() == TOKEN
        assert json.loads(file.read("settings.json"))["limit_s"] == 2340
        setup = file.read("setup.sh")
    programs = {"setup.sh": 0o755, "run_autograder": 0o755, "token": 0o600}
    others = dict.fromkeys(("client.py", "door.py", "settings.json"), 0o644)
    assert modes == programs | others
    answer = subprocess.run(["bash"], input=setup, capture_output=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["gradescope", "classroom50"])
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_hadolint_reports_nothing(name, framework, tmp_path):
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("hadolint is not installed: make setup brings it")
    made = platform_kits.make(name, tmp_path / "kit", "", "--framework", framework)
    answer = subprocess.run(
        [hadolint, "--no-color", made / "Dockerfile"], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (0, "")
    text = (made / "Dockerfile").read_text()
    assert ("keras" in text) == (framework == "keras") and "solutions" not in text
    assert ("gradescope/autograder-base" in text) == (name == "gradescope")


def test_the_job_of_gitlab_ends_itself_and_needs_no_secret(tmp_path):
    here = platform_kits.make("gitlab", tmp_path / "here", "", "--runs-on", "course, big")
    job = yaml.safe_load((here / ".gitlab-ci.yml").read_text())["grade"]
    assert (job["image"], job["tags"]) == ("account/hvdgrade", ["course", "big"])
    assert job["timeout"] == "60 minutes" and job["artifacts"]["reports"] == {"junit": "junit.xml"}
    script = "\n".join(job["script"])
    assert (
        "timeout --kill-after=30 3480 hvdgrade run" in script and "--require-sandbox user" in script
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60).returncode == 0
    pool = platform_kits.make("gitlab", tmp_path / "pool", SERVER)
    job = yaml.safe_load((pool / ".gitlab-ci.yml").read_text())["grade"]
    assert job["id_tokens"] == {"HVDGRADE_ID_TOKEN": {"aud": SERVER}}
    assert "--limit 3480 --format junit --output junit.xml" in job["script"][0]


def test_classroom50_gets_a_container_or_own_runners(tmp_path):
    for number, (options, expected) in enumerate(
        (
            ((), {"container": {"image": "account/hvdgrade", "user": "root"}}),
            (
                ("--runs-on", "self-hosted,gpu"),
                {
                    "runs-on": ["self-hosted", "gpu"],
                    "container": {"image": "account/hvdgrade", "user": "root"},
                },
            ),
        )
    ):
        made = platform_kits.make("classroom50", tmp_path / str(number), "", *options)
        assert json.loads((made / "runtime.json").read_text()) == expected
    words = ["platform", "classroom50", "--out", str(tmp_path / "own"), "--runs-on", "self-hosted"]
    assert cli.main(words) == 0
    assert json.loads((tmp_path / "own" / "runtime.json").read_text()) == {
        "runs-on": ["self-hosted"]
    }
    assert json.loads((tmp_path / "own" / "settings.json").read_text())["hvdgrade"] == "hvdgrade"
    made = platform_kits.make("classroom50", tmp_path / "pool", SERVER)
    caller = yaml.safe_load((made / "hvdgrade.yaml").read_text())["jobs"]["grade"]
    assert caller["permissions"]["id-token"] == "write"


def test_the_question_of_prairielearn_uses_the_network_and_all_of_its_time(tmp_path):
    made = platform_kits.make("prairielearn", tmp_path / "kit", SERVER)
    question = json.loads((made / "info.json").read_text())
    options = question["externalGradingOptions"]
    assert (options["timeout"], options["enableNetworking"], options["enabled"]) == (
        600,
        True,
        True,
    )
    assert (made / "tests" / Path(options["entrypoint"]).name).stat().st_mode & 0o111
    assert question["gradingMethod"] == "External" and question["singleVariant"]
    other = platform_kits.make("prairielearn", tmp_path / "other", SERVER)
    assert json.loads((other / "info.json").read_text())["uuid"] != question["uuid"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["prairielearn"], "name a --server"),
        (["gradescope", "--server", SERVER], "belong together"),
        (["gradescope", "--server", SERVER, "--assignment", "a"], "--token-file"),
        (["gradescope", "--server", "grade", "--assignment", "a"], "must be like https://"),
        (
            ["gitlab", "--server", SERVER, "--assignment", "a", "--token-file", "t"],
            "holds no token",
        ),
        (["gitlab"], "name the --image"),
        (["gradescope", "--minutes", "41"], "at most --minutes 40"),
        (["gradescope", "--minutes", "1"], "too short"),
        (["gradescope", "--token-file", "t"], "holds no token"),
        (
            ["prairielearn", "--server", SERVER, "--assignment", "a", "--token-file", "none"],
            "none: No such",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, said, tmp_path, capsys):
    assert cli.main(["platform", *arguments, "--out", str(tmp_path / "kit")]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and not (tmp_path / "kit").exists()


def test_a_folder_with_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").touch()
    assert cli.main(["platform", "gradescope", "--out", str(tmp_path)]) == 2
    assert "is not empty: name a new folder." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
