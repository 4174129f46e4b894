"""Check docker/apptainer.def without Apptainer: its sections, scripts and paths."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
# The sections in use.
SECTIONS = set("arguments environment post runscript test labels help".split())


@pytest.fixture(scope="module")
def definition() -> dict[str, str]:
    """Return the sections of apptainer.def; "" is its header."""
    parts = re.split(r"^%(\w+)\n", (DOCKER / "apptainer.def").read_text(), flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def test_the_definition_has_known_sections_and_no_unknown_argument(definition):
    assert set(definition) - {""} == SECTIONS
    head = dict(re.findall(r"^(\w+): (.+)$", definition[""], re.M))
    assert head == {"Bootstrap": "docker-archive", "From": "{{ IMAGE }}"}
    used = set(re.findall(r"\{\{ (\w+) \}\}", "".join(definition.values())))
    assert used == set(re.findall(r"^\s+(\w+)=", definition["arguments"], re.M))


@pytest.mark.parametrize("section", ["environment", "post", "runscript", "test"])
def test_its_scripts_are_valid_shell(definition, section):
    answer = subprocess.run(
        ["sh", "-n"], input=definition[section], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.mpi
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, as a build of the image does")
def test_its_test_section_passes_as_root(definition):
    """Run %test in this environment; tests/docker/test_container.py runs it in the image."""
    pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
    variables = {name: text for name, text in os.environ.items() if not name.startswith("OMPI_")}
    answer = subprocess.run(
        ["sh", "-ec", definition["test"].replace("/opt/hvdlab", str(ROOT))],
        env={**variables, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("asked, heard", [({}, "127.0.0.1"), ({"IP": "0.0.0.0"}, "0.0.0.0")])
def test_jupyterlab_listens_on_localhost_only(definition, asked, heard, tmp_path):
    """Apptainer gives a container the network of its machine, which other users can reach."""
    (tmp_path / "notebooks/work").mkdir(parents=True)
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "start_lab.sh").write_text('#!/bin/sh\necho "$IP"\n')
    (tmp_path / "docker" / "start_lab.sh").chmod(0o755)
    script = definition["runscript"].replace("/opt/hvdlab", str(tmp_path))
    variables = {name: text for name, text in os.environ.items() if name != "IP"}
    answer = subprocess.run(
        ["sh", "-ec", script], env=variables | asked, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout == f"{heard}\n", answer.stderr


def test_the_definition_agrees_with_the_dockerfile(definition):
    """The definition repeats what Apptainer does not keep of the image, and names only files in the image."""
    exported = dict(re.findall(r"export (\w+)=(\S+)", definition["environment"]))
    steps = DockerfileParser(fileobj=(DOCKER / "Dockerfile").open("rb")).structure
    of_image = {step["instruction"]: step["value"] for step in steps}
    environment = of_image["ENV"]
    assert dict(word.split("=") for word in environment.split()) == {
        name: exported[name] for name in ("LANG", "PATH")
    }
    text = "".join(definition.values())
    inside = of_image["WORKDIR"]
    for path in re.findall(rf"{inside}/([\w./]+)", text):
        if not path.startswith(".venv") and path != "notebooks/work":  # the Dockerfile makes it
            assert (ROOT / path).exists(), path
