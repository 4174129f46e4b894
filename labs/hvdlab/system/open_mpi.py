"""Find mpirun, and name its options and variables as its version does: NVIDIA's images have Open MPI 4."""

from __future__ import annotations  # the doctor reads this with an old Python, too

import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

# Names of variables in Open MPI 5 -> in Open MPI 4.
NAMES = {
    "PRTE_MCA_hwloc_default_binding_policy": "OMPI_MCA_hwloc_base_binding_policy",
    "PRTE_MCA_prte_local_tmpdir_base": "OMPI_MCA_orte_local_tmpdir_base",
    "PRTE_MCA_prte_if_include": "OMPI_MCA_oob_tcp_if_include",
    "PRTE_MCA_oob_tcp_keepalive_time": "OMPI_MCA_oob_tcp_keepalive_time",
    "PRTE_MCA_oob_tcp_keepalive_intvl": "OMPI_MCA_oob_tcp_keepalive_intvl",
    "PRTE_MCA_oob_tcp_keepalive_probes": "OMPI_MCA_oob_tcp_keepalive_probes",
}
OVERSUBSCRIBE = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def search_path() -> str:
    """Return a value for PATH: the programs of this environment, activated or not, then those of the user."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def mpirun() -> str | None:
    """Return the mpirun that the labs start: of this environment, else the first on PATH, else None."""
    return shutil.which("mpirun", path=search_path())


def says(mpirun: str) -> str:
    """Return the version text of an mpirun; "" if it cannot be run.

    Args:
        mpirun: its path.
    """
    try:
        return _version(mpirun)
    except (OSError, subprocess.SubprocessError):
        return ""


@lru_cache
def _version(mpirun: str) -> str:
    command = [mpirun, "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def is_version_4() -> bool:
    """Return whether the mpirun that the labs start is of Open MPI 4 or older."""
    found = mpirun()
    return bool(found and re.search(r"\((Open MPI|OpenRTE)\) [1-4]\.", says(found)))


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
