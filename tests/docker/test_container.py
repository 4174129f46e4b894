"""Build the image with the plain base, and run the grader and JupyterLab in it.

Needs root, buildah, debootstrap, 25 GB of disk and a quarter of an hour or more, so it is `thorough`:

    pytest -m container tests/docker
"""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import container_image
import jupyter_run
import psutil
import pytest

ROOT = Path(__file__).parents[2]
# Must not be in the image.
SECRETS = (".env", "id_rsa", "labs/.ipynb_checkpoints/token", ".git/config")
pytestmark = [pytest.mark.container, pytest.mark.thorough, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("container")
    if reason := container_image.why_not(folder):
        pytest.skip(reason)
    context = tmp_path_factory.mktemp("context")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    for name in tracked:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, context / name, follow_symlinks=False)
    for name in SECRETS:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text("a secret")
    # torch comes from pip's index of this machine, because PyTorch's index may be out of reach.
    with container_image.built(folder, context, TORCH_INDEX="") as image:
        print(f"\nbuilt in {image.seconds:.0f} s, {image.size}")
        yield image


def test_horovod_was_built_and_checked_in_the_image(image):
    assert "Horovod works: torch and tensorflow all-reduce on two ranks (MPI, Gloo" in image.log
    again = image.run("make", "setup")  # everything is already done
    assert (again.returncode, again.stdout) == (0, ""), again.stderr


def test_runs_as_a_user_and_contains_no_secret(image):
    assert image.config["User"] == "1000"
    assert image.run("id", "-u").stdout == "1000\n"
    listing = image.run("ls", "-A", "/opt/hvdlab", "/opt/hvdlab/labs", "/etc/ssh").stdout.split()
    assert "Makefile" in listing and "hvdlab" in listing and "sshd_config" in listing
    for name in SECRETS:
        assert name.split("/")[-2 if "/" in name else -1] not in listing
    assert not [name for name in listing if name.startswith("ssh_host_")]
    terminal = image.run("bash", "-lc", "command -v hvdlab")  # like a terminal of JupyterLab
    assert terminal.stdout == "/opt/hvdlab/.venv/bin/hvdlab\n"
    kept = json.dumps(image.config) + image.history
    config, needed = container_image.pip_configuration()
    for line in config.splitlines()[1:]:
        value = line.split(" = ")[1]
        assert len(value) < 8 or value not in kept
    assert image.run("sh", "-c", "cat /etc/pip.conf || true").stdout == ""


def test_make_assess_passes_in_the_container(image, cifar10_folder):
    answer = image.run(
        "make", "assess", timeout=1800, mounts={cifar10_folder: "/data"}, HVDLAB_DATA="/data"
    )
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert re.search(r"^PASS  \d+ of \d+ points", answer.stdout, re.M)


def test_jupyterlab_in_the_container_requires_the_token(image, tmp_path):
    port, token = jupyter_run.free_port(), "0123456789abcdef" * 2
    command = image.command(PORT=str(port), JUPYTER_TOKEN=token)
    check = image.config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    assert image.run(*check[1:], PORT=str(port)).returncode != 0  # the server does not run yet
    with (tmp_path / "log").open("w") as log:
        process = psutil.Popen(
            command, env=container_image.ENVIRONMENT,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        jupyter_run.wait_for_answer(address, token, process, tmp_path / "log", seconds=120)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{address}/api/status", timeout=10)
        page = f"{address}/api/contents?token={token}"
        served = json.load(urllib.request.urlopen(page, timeout=10))["content"]
        assert "00_start_here.ipynb" in {each["name"] for each in served}
        assert image.run(*check[1:], PORT=str(port)).returncode == 0
        # Like `docker stop`: process 1 gets SIGTERM, and all other processes end with it.
        (tini,) = [each for each in process.children(recursive=True) if each.name() == "tini"]
        jupyter_run.end(tini)
        process.wait(30)
    finally:
        for each in [*process.children(recursive=True), process] if process.is_running() else []:
            each.kill()
        print((tmp_path / "log").read_text())
    refused = image.run(JUPYTER_TOKEN="")
    assert refused.returncode == 2 and "JUPYTER_TOKEN is empty" in refused.stderr


def test_the_test_section_of_apptainer_passes_in_the_image(image):
    """No Debian release has Apptainer, so its %test section runs in the container of buildah."""
    definition = (ROOT / "docker" / "apptainer.def").read_text()
    script = definition.split("%test\n")[1].split("\n%")[0]
    answer = image.run("sh", "-ec", script)
    assert answer.returncode == 0, answer.stderr
