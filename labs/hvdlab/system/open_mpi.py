"""Find mpirun, and name its options and variables as its version does: NVIDIA's images have Open MPI 4."""

from __future__ import annotations  # the doctor reads this with an old Python, too

import os
import pwd
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# Names of variables in Open MPI 5 -> in Open MPI 4.
NAMES = {
    "PRTE_MCA_hwloc_default_binding_policy": "OMPI_MCA_hwloc_base_binding_policy",
    "PRTE_MCA_prte_local_tmpdir_base": "OMPI_MCA_orte_local_tmpdir_base",
    "PRTE_MCA_prte_if_include": "OMPI_MCA_oob_tcp_if_include",
    "PRTE_MCA_oob_tcp_keepalive_time": "OMPI_MCA_oob_tcp_keepalive_time",
    "PRTE_MCA_oob_tcp_keepalive_intvl": "OMPI_MCA_oob_tcp_keepalive_intvl",
    "PRTE_MCA_oob_tcp_keepalive_probes": "OMPI_MCA_oob_tcp_keepalive_probes",
}
VERSION_SECONDS = 20  # time limit of `mpirun --version`
RULE = re.compile(
    r"^-{20,}\s*$", re.MULTILINE
)  # the line before and after a message of Open MPI itself
OVERSUBSCRIBE = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def search_path() -> str:
    """Return a value for PATH: the programs of this environment, activated or not, then those of the user."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def mpirun() -> str | None:
    """Return the mpirun that the labs start: of this environment, else the first on PATH, else None."""
    return shutil.which("mpirun", path=search_path())


def home() -> dict[str, str]:
    """Return the variable without which no program of Open MPI starts; {} if the user has it.

    A job of cron or of a service often has no $HOME.
    """
    if os.environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}
    except KeyError:  # a user without an entry, as in some containers
        return {"HOME": "/"}


class Version(NamedTuple):
    """What an mpirun says of its version.

    Attributes:
        text: what it printed; "" if it cannot be run.
        error: why it cannot be run, in one line; "" if it can.
    """

    text: str
    error: str = ""


@lru_cache
def version(mpirun: str) -> Version:
    """Return the version of an mpirun, or why it cannot be run."""
    command = [mpirun, "--version"]
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, **home()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
        )
    except OSError as error:
        return Version("", error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return Version("", f"no answer within {VERSION_SECONDS} s")
    if ended.returncode:
        lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        return Version("", lines[0] if lines else f"exit code {ended.returncode}")
    return Version(ended.stdout)


def first_message(output: str) -> str:
    """Return the first message of Open MPI itself in an output; "" if there is none."""
    return "".join(RULE.split(output, maxsplit=2)[1:2])


def first_sentence(message: str) -> str:
    """Return the first sentence of a message of Open MPI, which says what is wrong.

    The last line would be general advice, such as "try again."
    """
    paragraph = " ".join(message.strip().split("\n\n")[0].split())
    return re.split(r"(?<=\w[\w'\")])[.!](?: |$)|[.:]$", paragraph)[0]


def is_version_4() -> bool:
    """Return whether the mpirun that the labs start is of Open MPI 4 or older."""
    found = mpirun()
    return bool(found and re.search(r"\((Open MPI|OpenRTE)\) [1-4]\.", version(found).text))


def tag_output() -> list[str]:
    """Return the option that puts rank and channel before each line, such as "[1,0]<stdout>: "."""
    return ["--tag-output"] if is_version_4() else ["--output", "tag"]


def spelled(variables: dict[str, str]) -> dict[str, str]:
    """Return environment variables with the names that the mpirun of this machine uses.

    Args:
        variables: with the names of Open MPI 5.
    """
    if not is_version_4():
        return variables
    four = {}
    for name, value in variables.items():
        if OVERSUBSCRIBE.get(name) == value:
            four["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        else:
            four[NAMES.get(name, name)] = value
    return four
