"""Make kits by `hvdgrade platform`, and lay them out as the platforms do."""

import json
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

from submission_server import TOKEN

from hvdgrade import cli

GRADER = Path(sys.executable).parent / "hvdgrade"


def make(name: str, out: Path, server: str = "", *options: str, token: str = TOKEN) -> Path:
    """Write the kit of a platform to `out`; with a server, the kit uses it."""
    usual = []
    if server:
        usual += ["--server", server, "--assignment", "cifar"]
        if name in ("gradescope", "prairielearn"):
            file = out.with_name("token.txt")
            file.write_text(f"{token}\n")
            usual += ["--token-file", str(file)]
    elif name in ("classroom50", "gitlab"):
        usual += ["--image", "account/hvdgrade"]
    assert cli.main(["platform", name, "--out", str(out), *usual, *options]) == 0
    return out


def gradescope(
    place: Path, script: str, server: str = "", *options: str, token: str = TOKEN
) -> Path:
    """Lay out a folder like /autograder, with a submission of Ada and Bob; return it."""
    kit = make("gradescope", place.with_name(f"{place.name}-kit"), server, *options, token=token)
    source = place / "source"
    for folder in (source, place / "submission", place / "results"):
        folder.mkdir(parents=True)
    if server:
        zipfile.ZipFile(kit / "autograder.zip").extractall(source)
    else:
        for name in ("run_autograder", "door.py", "settings.json"):
            (source / name).write_bytes((kit / name).read_bytes())
    (place / "run_autograder").write_bytes((source / "run_autograder").read_bytes())
    (place / "submission" / "assessment.py").write_text(script)
    tell(place, [])
    return place


def prairielearn(place: Path, script: str, server: str, *options: str, token: str = TOKEN) -> Path:
    """Lay out a folder like /grade, with a submission; return it."""
    made = make("prairielearn", place.with_name(f"{place.name}-kit"), server, *options, token=token)
    for folder in ("data", "student"):
        (place / folder).mkdir(parents=True)
    (made / "tests").rename(place / "tests")
    data = {"params": {}}
    runpy.run_path(str(made / "server.py"))["generate"](data)
    (place / "data" / "data.json").write_text(json.dumps(data))
    (place / "student" / "assessment.py").write_text(script)
    return place


def tell(place: Path, previous: list[dict]) -> None:
    """Write submission_metadata.json as Gradescope does."""
    users = [
        {"email": "Ada@uni.edu", "id": 1, "name": "Ada Lovelace"},
        {"email": "bob@uni.edu", "id": 2, "name": "Bob"},
    ]
    metadata = {"id": 123456, "users": users, "previous_submissions": previous}
    (place / "submission_metadata.json").write_text(json.dumps(metadata))


def change(settings: Path, **changes: object) -> None:
    """Change settings.json of a kit."""
    before = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps(before | changes), encoding="utf-8")


def run(
    program: Path, *arguments: object, cwd: Path, seconds: float = 300, **variables: str
) -> subprocess.CompletedProcess:
    """Run a program of a kit for at most so many seconds."""
    environment = {key: value for key, value in os.environ.items() if "HVDGRADE" not in key}
    return subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
