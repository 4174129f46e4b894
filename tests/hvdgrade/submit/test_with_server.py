"""`hvdgrade submit` and the real server: what a person and a platform hand in, and what they get."""

import json
import os
import subprocess
import sys
import threading

import junitparser
import pytest
import service_site
from sqlalchemy import select

from hvdgrade.service import database
from hvdgrade.service.models import Person

SCRIPT = "import horovod.torch as hvd\n"


@pytest.fixture
def site(tmp_path):
    engine = database.connect(f"sqlite:///{tmp_path}/service.db")
    database.upgrade(engine)
    with service_site.running(engine) as site:
        yield site


def submit(site, who, folder, *arguments, **result):
    """Hand in and wait; a worker of this test claims it, and gives the result `name`, if there is one."""
    (folder / "mine.py").write_text(SCRIPT)

    def grade():
        lease = site.claim()
        while lease.status_code == 204:
            lease = site.claim()
        assert site.result(lease.json(), **result).status_code == 200

    worker = threading.Thread(target=grade, daemon=True)
    if result:
        worker.start()
    done = subprocess.run(
        [sys.executable, "-m", "hvdgrade.cli", "submit", "mine.py", "--server", site.url]
        + ["--assignment", "cifar", *arguments],
        cwd=folder,
        env=os.environ | {"HVDGRADE_TOKEN": site.tokens.get(who, who)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if result:
        worker.join(60)
        assert not worker.is_alive()
    return done


@pytest.mark.parametrize(("name", "code"), [("pass", 0), ("fail", 1), ("not_gradable", 2)])
def test_the_exit_code_is_that_of_a_grading(site, tmp_path, name, code):
    done = submit(site, "ada", tmp_path, "--wait", name=name)
    assert done.returncode == code, done.stderr


def test_a_platform_hands_in_for_somebody_and_gets_its_own_format(site, tmp_path):
    about = ["--learner", "Zoë@Example.edu", "--learner-name", "Zoë Müller", "--key", "once"]
    output = ["--format", "gradescope", "--output", "results.json"]
    done = submit(site, "gradescope", tmp_path, *about, *output, name="pass")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results.json").read_text())["score"] == 100
    assert site.scalar(select(Person.name).filter_by(email="zoë@example.edu")) == "Zoë Müller"
    # The same key again gets the same submission, in another format.
    again = submit(
        site, "gradescope", tmp_path, *about, "--format", "junit", "--output", "report.xml"
    )
    assert again.returncode == 0, again.stderr
    assert "number 1" in done.stderr + done.stdout and "number 1" in again.stderr + again.stdout
    assert junitparser.JUnitXml.fromfile(str(tmp_path / "report.xml")).failures == 0


def test_a_token_of_another_course_is_refused_in_one_sentence(site, tmp_path):
    done = submit(site, "oscar", tmp_path)
    assert done.returncode == 2 and "You are not a member of this course." in done.stderr
