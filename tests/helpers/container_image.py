"""Build the container image with buildah, which needs no Docker engine, on a base made by debootstrap.

    with built(folder, context) as image:
        image.run("make", "assess", mounts={data: "/data"}, HVDLAB_DATA="/data")

pip's configuration on this machine (index, folders of wheels, a certificate) goes into the build as a secret
and as mounts, so that no layer keeps it. All files are in `folder` and are removed at the end: about 12 GB,
and twice as much if the kernel has no overlay file system.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("buildah", "debootstrap")
FREE_GB = 25
SUITE = "bookworm"  # Debian 12, as the Dockerfile's default base
BUILD_SECONDS = 3600
ENVIRONMENT = {
    **os.environ,
    "BUILDAH_ISOLATION": "chroot",
    "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
}


def why_not(folder: Path) -> str:
    """Return why no image can be built on this machine; empty if one can."""
    if os.geteuid() != 0:
        return "a container image is built as root here"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=ENVIRONMENT["PATH"])]
    if missing:
        return f"needs {' and '.join(missing)}: apt-get install {' '.join(missing)}"
    free = shutil.disk_usage(folder).free / 1e9
    return f"needs {FREE_GB} GB of free disk in {folder}" if free < FREE_GB else ""


@dataclass
class Image:
    folder: Path
    log: str  # of the build
    seconds: float  # for the build, without the base
    size: str  # such as 4.9 GB
    config: dict  # User, Env, Entrypoint, Cmd, Healthcheck, ... as Docker writes them
    history: str

    def command(self, *words: str, mounts: dict | None = None, **variables: str) -> list[str]:
        """Return the command of `docker run IMAGE words`: the entrypoint and `words`, by default the CMD."""
        options = [f"--volume={source}:{target}:ro" for source, target in (mounts or {}).items()]
        # There is no PID namespace here, so tini is not process 1, and must be told to be the subreaper.
        variables |= {"TINI_SUBREAPER": "1"}
        options += [f"--env={name}={value}" for name, value in variables.items()]
        line = [*self.config["Entrypoint"], *(words or self.config["Cmd"])]
        return [*buildah(self.folder), "run", *options, "hvdlab", "--", *line]

    def run(self, *words: str, timeout=600, **options) -> subprocess.CompletedProcess:
        """Run a command in the container, and end all its processes."""
        process = psutil.Popen(
            self.command(*words, **options),
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            if process.is_running():
                for each in [*process.children(recursive=True), process]:
                    each.kill()
                process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, output, errors)


def buildah(folder: Path) -> list[str]:
    return ["buildah", f"--root={folder}/storage", f"--runroot={folder}/run"]


@contextmanager
def built(folder: Path, context: Path, **arguments: str) -> Iterator[Image]:
    """Build `context`/docker/Dockerfile, and make a container named hvdlab from the image."""

    def call(*command: str, timeout=600) -> str:
        answer = subprocess.run(
            command,
            env={**ENVIRONMENT, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert answer.returncode == 0, f"{command}:\n{answer.stdout[-5000:]}{answer.stderr[-5000:]}"
        return answer.stdout

    run = buildah(folder)
    try:
        call(
            "debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, f"{folder}/base"
        )
        scratch = call(*run, "from", "scratch").strip()
        call(*run, "add", "--quiet", scratch, f"{folder}/base", "/")
        call(*run, "commit", "--quiet", "--rm", scratch, "localhost/base:1")
        shutil.rmtree(folder / "base")
        config, needed = pip_configuration()
        (folder / "pip.conf").write_text(config)
        started = time.monotonic()
        log = call(
            *run, "bud", "--format=docker", f"--file={context}/docker/Dockerfile", "--tag=hvdlab:test",
            "--build-arg=BASE=localhost/base:1", f"--secret=id=pip,src={folder}/pip.conf",
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *(f"--volume={path}:{path}:ro" for path in needed), str(context),
            timeout=BUILD_SECONDS,
        )  # fmt: skip
        seconds = time.monotonic() - started
        about = json.loads(call(*run, "inspect", "--type=image", "hvdlab:test"))["Docker"]
        (listed,) = json.loads(call(*run, "images", "--json", "hvdlab:test"))
        call(*run, "from", "--name=hvdlab", "hvdlab:test")
        history = json.dumps(about["history"])
        yield Image(folder, log, seconds, listed["size"], about["config"], history)
    finally:
        mounted = [
            line.split()[1]
            for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        ]
        inside = [path for path in mounted if path.startswith(str(folder))]
        # First, because otherwise files of the machine would be removed through the mounts.
        for path in reversed(inside):
            subprocess.run(["umount", "--lazy", path], timeout=60, check=True)
        shutil.rmtree(folder)


def pip_configuration() -> tuple[str, list[str]]:
    """Return a pip.conf with this machine's settings, and the paths on this machine that they name."""
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    settings = {}
    # Such as global.timeout='60'; settings of the environment come first, as :env:.
    for line in answer.stdout.splitlines():
        key, value = line.split("=", 1)
        if key.startswith((":env:.", "global.")):
            settings.setdefault(key.split(".", 1)[1], ast.literal_eval(value))
    words = [urllib.parse.urlparse(word) for value in settings.values() for word in value.split()]
    local = [word.path for word in words if word.scheme in ("", "file") and word.path[:1] == "/"]
    roots = [
        str(Path(path).parent) if path.rstrip("/").endswith("/simple") else path for path in local
    ]
    lines = [f"{name} = {value}" for name, value in settings.items()]
    return "\n".join(["[global]", *lines, ""]), sorted(
        {path for path in roots if Path(path).exists()}
    )
