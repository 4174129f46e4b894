"""Check the container files without a build: lint, completeness, secrets, user.

See also test_container.py.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jupyter_run
import psutil
import pytest
from dockerfile_parse import DockerfileParser
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


@pytest.fixture(scope="module")
def steps() -> list[dict]:
    """Return the instructions of the Dockerfile in order: `instruction` and `value`."""
    parser = DockerfileParser(fileobj=(DOCKER / "Dockerfile").open("rb"))
    return [step for step in parser.structure if step["instruction"] != "COMMENT"]


def values(steps, instruction: str) -> list[str]:
    return [step["value"] for step in steps if step["instruction"] == instruction]


def copied(step: dict) -> list[str]:
    """Return the files that a COPY names."""
    return [word for word in step["value"].split() if not word.startswith("--")][:-1]


# --- the Dockerfile --------------------------------------------------------------------------------


def test_hadolint_reports_nothing():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("hadolint is not installed: make setup brings it")
    answer = subprocess.run(
        [hadolint, "--no-color", DOCKER / "Dockerfile"], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (0, "")


def test_every_copied_file_exists_and_is_in_the_build_context(steps):
    named = [name for step in steps if step["instruction"] == "COPY" for name in copied(step)]
    assert len(named) > 5
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    for name in named:
        assert (ROOT / name).exists(), name
        assert name == "." or name.split("/")[0] in allowed, f"{name} is kept out by .dockerignore"


def test_the_environment_layer_copies_all_files_that_setup_hashes(steps):
    """setup.sh hashes these files, so the build would fail if one is copied only after its first run."""
    line = re.search(
        r"^wanted=\$\(cat (.*?) \$extension_files", (DOCKER / "setup.sh").read_text(), re.M
    )
    extensions = {"assessment/hvdgrade/jupyter", "labs/hvdlab/jupyter"}
    decide = set(line.group(1).split()) | extensions
    assert "docker/constraints.txt" in decide
    before = set()
    for step in steps:
        if step["instruction"] == "COPY":
            before |= set(copied(step))
        elif step["instruction"] == "RUN" and "docker/setup.sh" in step["value"]:
            break
    # And no other file, because a changed lab must not rebuild the environment.
    assert before == decide


def test_the_build_context_contains_only_the_sources():
    """The build context contains all sources, and no other files (keys, data, .venv)."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    allowed = {line[1:] for line in patterns if line.startswith("!")}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout.split("\n")
    top = {name.split("/")[0] for name in tracked if name}
    assert allowed == {name for name in top if not name.startswith(".")}


def test_the_image_does_not_run_as_root(steps):
    users = values(steps, "USER")
    assert users[-1].isdigit() and int(users[-1]) == 1000  # by number, as runAsNonRoot requires
    root_runs = []
    user = None
    for step in steps:
        user = step["value"] if step["instruction"] == "USER" else user
        if step["instruction"] == "RUN" and user == "0":
            root_runs.append(step["value"])
    assert len(root_runs) == 2 and not any(
        "pip" in line or "setup.sh" in line for line in root_runs
    )


def test_versions_are_pinned_once(steps):
    base = values(steps, "ARG")[0]
    assert re.fullmatch(r"BASE=debian:\d+\.\d+-slim", base), base
    assert values(steps, "FROM") == ["${BASE}"]
    text = (DOCKER / "Dockerfile").read_text()
    assert (
        "==" not in text and "pip install" not in text
    )  # all other versions are in constraints.txt and build_horovod.sh
    tags = set(re.findall(r"nvcr\.io/nvidia/\w+:\S+", text))
    assert {"nvcr.io/nvidia/tensorflow:25.02-tf2-py3", "nvcr.io/nvidia/pytorch:25.02-py3"} == tags
    assert tags <= set(
        re.findall(r"nvcr\.io/nvidia/\w+:[\w.-]+", (DOCKER / "README.md").read_text())
    )


def test_no_host_key_stays_in_a_layer(steps):
    """openssh-server makes host keys when it is installed, so the same RUN must remove them."""
    (install,) = [line for line in values(steps, "RUN") if "openssh-server" in line]
    assert "rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*" in install
    secret = [line for line in values(steps, "RUN") if "--mount" in line]
    assert secret and all("type=secret" in line for line in secret)


def test_documented_commands_keep_the_data_in_a_volume():
    """A script downloads no data, and `docker run --rm` starts without data, so a volume must have them."""
    text = (DOCKER / "README.md").read_text().replace("\\\n", " ")
    runs = [line.split() for line in text.splitlines() if line.startswith("    docker run ")]
    filled = set()
    for words in runs:
        volumes = {words[i + 1] for i, word in enumerate(words) if word == "-v"}
        if "data" in words and "hvdlab" in words:
            filled |= volumes
        if "mpirun" in words:
            assert volumes & filled, " ".join(words)
            assert (ROOT / words[-1]).is_file()
    (home,) = re.findall(
        r"useradd --create-home .* (\w+) \\$", (DOCKER / "Dockerfile").read_text(), re.M
    )
    assert filled == {f"hvdlab-data:/home/{home}/.cache/hvdlab"}  # where hvdlab looks by default


# --- JupyterLab, as the container starts it ----------------------------------------------------------


def start_lab(**environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [DOCKER / "start_lab.sh"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_refuses_an_empty_token():
    answer = start_lab(JUPYTER_TOKEN="")
    assert answer.returncode == 2 and answer.stdout == ""
    assert answer.stderr.startswith("start_lab: JUPYTER_TOKEN is empty: give it a value")
    assert len(answer.stderr.splitlines()) == 1


def test_start_health_check_and_token(steps, tmp_path):
    """Run the CMD and the HEALTHCHECK of the image with the Python of these tests."""
    bash, script = json.loads(values(steps, "CMD")[0])
    check = json.loads(values(steps, "HEALTHCHECK")[0].split("CMD", 1)[1])
    port = jupyter_run.free_port()
    # start_lab.sh looks for the data first, and starts without data too, for labs that need none.
    asked = tmp_path / "asked"
    (tmp_path / "hvdlab").write_text(
        f'#!/bin/sh\necho "$*" >> {asked}\n[ "$1" = notebooks ] && mkdir -p notebooks/work\n'
    )
    (tmp_path / "hvdlab").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PORT": str(port),
        "IP": "127.0.0.1",
        **{f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")},
    }
    environment.pop("JUPYTER_TOKEN", None)
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("w") as log:
        process = psutil.Popen(
            [bash, ROOT / script, "--allow-root"],  # if these tests run as root
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        token = jupyter_run.wait_for_token(process, tmp_path / "log")
        jupyter_run.wait_for_answer(address, token, process, tmp_path / "log")
        assert asked.read_text().splitlines() == [
            "data fashion_mnist --or-synthetic",
            "data cifar10 --or-synthetic",
            "notebooks",
        ]
        assert len(token) >= 32
        sockets = [each for each in process.net_connections("inet") if each.status == "LISTEN"]
        assert ("127.0.0.1", port) in {tuple(each.laddr) for each in sockets}
        status = f"{address}/api/status"
        for wrong in (status, f"{status}?token=", f"{status}?token={token[:-1]}"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(wrong, timeout=10)
        healthy = subprocess.run(check, env=environment, capture_output=True, timeout=30)
        assert healthy.returncode == 0, healthy.stderr
    finally:
        jupyter_run.end(process)
    assert subprocess.run(check, env=environment, capture_output=True, timeout=30).returncode != 0


# --- images that ship packages ------------------------------------------------------------------------


def test_packages_of_an_image_keep_their_versions_and_others_get_our_pins(tmp_path):
    """Run in a fresh environment with two packages, one of them spelled differently from our list."""
    environment = tmp_path / "base"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=120
    )
    (site,) = environment.glob("lib/python*/site-packages")
    shipped = {"NumPy": "1.26.4", "Typing.Extensions": "4.0.0", "torch": "2.7.0a0+nv25.2"}
    for name, version in shipped.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    interrupted = site / "broken-1.0.dist-info"  # what an interrupted pip leaves
    interrupted.mkdir()
    (interrupted / "METADATA").touch()
    answer = subprocess.run(
        [environment / "bin" / "python", DOCKER / "base_pins.py", DOCKER / "constraints.txt"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    pins = [line.split("==") for line in answer.stdout.splitlines()]
    found = {canonicalize_name(name): version for name, version in pins}
    assert len(found) == len(pins)  # one pin per package, because pip refuses two
    for name, version in shipped.items():
        assert found.pop(canonicalize_name(name)) == version
    lines = (DOCKER / "constraints.txt").read_text().splitlines()
    ours = dict(line.split("==") for line in lines if not line.startswith("#"))
    ours = {canonicalize_name(name): version for name, version in ours.items()}
    for name in shipped:
        ours.pop(canonicalize_name(name))
    assert found == ours
