"""Real gradings through each front door: the service with its worker, and kits as platforms start them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import junitparser
import jwt
import platform_kits
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from local_server import serving
from school import QUICK
from serve_process import address, started

from tests.hvdgrade.export.test_one_result import fits
from tests.hvdgrade.platform.test_doors import VARIABLES

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.grading,
    pytest.mark.data,
    pytest.mark.mpi,
    pytest.mark.timeout(1800),
]
SOLUTION = Path(__file__).parents[3] / "assessment" / "solutions" / "torch" / "assessment.py"
SECONDS = 1500  # for a door
CLAIMS = {
    "github": {"repository": "octo/hw1-grace", "repository_id": "74", "repository_owner_id": "65"},
    "gitlab": {"user_login": "alan", "namespace_path": "course/alan"},
}
CONFIG = """\
[[ci]]
kind = "github"
issuer = "{ci}/github"
owner = "65"
[[ci]]
kind = "gitlab"
issuer = "{ci}/gitlab"
owner = "course"
"""
ROSTER = """\
email,name,github:65,gitlab:{host}
ada@uni.edu,Ada,,
grace@uni.edu,Grace,octo/hw1-grace,
alan@uni.edu,Alan,,alan
"""


@pytest.fixture(scope="module")
def ci() -> Iterator[str]:
    """Return the address of a server that gives jobs tokens as GitHub and GitLab do, and shows its key."""
    key = rsa.generate_private_key(65537, 2048)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "k"}

    def answer(request, _):
        url = urlsplit(request.path)
        _, platform, what = url.path.split("/", 2)
        said = {"keys": [public]}
        if what == "token":
            now, issuer = int(time.time()), f"http://{request.headers['Host']}/{platform}"
            claims = {"iss": issuer, "sub": "job", "iat": now, "exp": now + 3600}
            claims |= {"aud": parse_qs(url.query)["audience"][0]} | CLAIMS[platform]
            said = {"value": jwt.encode(claims, key, "RS256", {"kid": "k"})}
        return 200, {"Content-Type": "application/json"}, json.dumps(said).encode()

    with serving(answer) as url:
        yield url


@dataclass(frozen=True)
class Service:
    """The running service, what is handed in there, and the options of a kit for it."""

    url: str
    folder: Path
    script: str
    passes: bool
    options: tuple[str, ...] = ("--assignment", "assessment")

    def command(self, *words: object) -> str:
        """Run a command on the database, and return what it prints."""
        database = f"sqlite:///{self.folder}/runs/service/service.db"
        done = subprocess.run(
            [platform_kits.GRADER, *map(str, words), "--database", database],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def token(self, door: str) -> str:
        return self.command("token", "new", "--door", door, *self.options)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("dli", QUICK, False), id="fails at once"),
        pytest.param(("cpu", SOLUTION.read_text(encoding="utf-8"), True), id="reference solution"),
    ],
)
def service(request, ci, tmp_path_factory, real_cifar10_folder) -> Iterator[Service]:
    """Return what `make service` starts, with the tokens of GitHub and GitLab and a class."""
    profile, script, passes = request.param
    folder = tmp_path_factory.mktemp("service")
    (folder / "serve.toml").write_text(CONFIG.format(ci=ci))
    (folder / "people.csv").write_text(ROSTER.format(host=urlsplit(ci).netloc))
    with started(folder, "--config", "serve.toml", HVDLAB_DATA=str(real_cifar10_folder)) as process:
        made = Service(address(process), folder, script, passes)
        made.command("course", "roster", "lab", folder / "people.csv")
        made.command("course", "open", "assessment", "--profile", profile)
        yield made


def test_gradescope(service, tmp_path):
    place = platform_kits.gradescope(
        tmp_path / "autograder", service.script, service.url, *service.options,
        *("--minutes", "40"), token=service.token("gradescope"),
    )  # fmt: skip
    answer = platform_kits.run(place / "run_autograder", place, cwd=place, seconds=SECONDS)
    assert answer.returncode == 0, answer.stderr
    found = fits(json.loads((place / "results" / "results.json").read_text()), "gradescope")
    assert found["output"].startswith("PASS: " if service.passes else "FAIL: ")
    assert found["score"] == (100 if service.passes else 0)
    assert ("failed" in {test.get("status") for test in found["tests"]}) != service.passes
    assert ("epoch 2," in answer.stderr) == service.passes  # the live log


def test_prairielearn(service, tmp_path):
    place = platform_kits.prairielearn(
        tmp_path / "grade", service.script, service.url, *service.options,
        token=service.token("prairielearn"),
    )  # fmt: skip
    answer = platform_kits.run(place / "tests" / "grade.py", place, cwd=place, seconds=SECONDS)
    assert answer.returncode == 0, answer.stderr
    found = fits(json.loads((place / "results" / "results.json").read_text()), "prairielearn")
    assert found["gradable"] and found["score"] == service.passes


def test_classroom50(service, ci, tmp_path):
    kit = platform_kits.make("classroom50", tmp_path / "kit", service.url, *service.options)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "assessment.py").write_text(service.script)
    request = {"URL": f"{ci}/github/token?version=2", "TOKEN": "of this job"}
    variables = VARIABLES | {f"ACTIONS_ID_TOKEN_REQUEST_{n}": text for n, text in request.items()}
    del variables["HVDGRADE_ID_TOKEN"]
    answer = platform_kits.run(kit / "autograder.py", cwd=checkout, seconds=SECONDS, **variables)
    assert answer.returncode == 0, answer.stderr
    found = fits(json.loads((checkout / "result.json").read_text()), "classroom50")
    assert found["max-score"] > 0 and found["owner"] == "ada"
    assert found["score"] == (found["max-score"] if service.passes else 0)


def test_gitlab(service, ci, tmp_path):
    project = platform_kits.make("gitlab", tmp_path / "project", service.url, *service.options)
    (project / "assessment.py").write_text(service.script)
    job = yaml.safe_load((project / ".gitlab-ci.yml").read_text())["grade"]
    audience = job["id_tokens"]["HVDGRADE_ID_TOKEN"]["aud"]
    asked = httpx.get(f"{ci}/gitlab/token", params={"audience": audience}).json()
    variables = {"CI_PROJECT_ID": "7", "CI_COMMIT_SHA": "a1b2", "HVDGRADE_ID_TOKEN": asked["value"]}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-e", "-c", "\n".join(job["script"])],
        cwd=project, env=os.environ | variables, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert answer.returncode == (0 if service.passes else 1), answer.stderr
    report = junitparser.JUnitXml.fromfile(str(project / "junit.xml"))
    assert report.errors == 0 and report.tests > 5
    assert (report.failures == 0) == service.passes
