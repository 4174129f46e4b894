"""What of this host a submission may see: the system, Python with its packages, Open MPI, hvdlab.

The rest of the repository, with its solutions and this grader, is not among it.
"""

import os
import shutil
import sys
from pathlib import Path

import hvdlab
from hvdlab import open_mpi

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys"),
    "/opt/hpcx",  # NVIDIA's images: Open MPI and what it loads
)
SYSTEM_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin")
SETTINGS = (  # in /etc
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime", "alternatives"),
    *("protocols", "services", "fonts", "ssl/openssl.cnf", "openmpi"),
)


def gpus() -> list[str]:
    """The device files of NVIDIA GPUs."""
    return sorted(str(path) for path in Path("/dev").glob("nvidia*"))


def search_path() -> str:
    """Where programs are: those of the environment in which the grader runs, then the system's."""
    places = [str(Path(sys.executable).parent)]
    mpirun = os.path.dirname(open_mpi.mpirun() or "")
    if any(Path(mpirun).is_relative_to(place) for place in SYSTEM):  # /usr/local/mpi/bin
        places.append(mpirun)
    return ":".join(dict.fromkeys([*places, *SYSTEM_PROGRAMS]))


def libraries() -> dict[str, str]:
    """Where an image or a cluster has told programs to look for their libraries."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    found = {
        "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder.startswith("/")),
        "OPAL_PREFIX": os.environ.get("OPAL_PREFIX", ""),  # an Open MPI that was moved
    }
    return {name: value for name, value in found.items() if value}


def packages() -> list[str]:
    """Python, its packages, Open MPI and hvdlab."""
    places = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
    if mpirun := shutil.which("mpirun", path=search_path()):
        places.append(str(Path(mpirun).resolve().parents[1]))
    return [*places, str(Path(hvdlab.__file__).parent)]


def readable() -> list[str]:
    """What of the host a submission may read."""
    kept: list[str] = []
    for place in [*SYSTEM, *(f"/etc/{name}" for name in SETTINGS), *packages()]:
        if os.path.exists(place) and not any(Path(place).is_relative_to(other) for other in kept):
            kept.append(place)
    return kept


def hidden() -> str | None:
    """The repository, or our own package, if it lies in what a submission may read."""
    package = Path(__file__).parent
    place = package.parents[1] if (package.parents[1] / "pyproject.toml").exists() else package
    return str(place) if any(place.is_relative_to(other) for other in readable()) else None


def exposed(path: Path, tier: str) -> bool:
    """Whether a submission could read `path` in this tier, as it lies where the system or Python does."""
    path, places = path.resolve(), readable()
    covered = hidden() if tier.startswith("bubblewrap") else None
    if covered and path.is_relative_to(Path(covered).resolve()):
        places = [place for place in packages() if Path(place).is_relative_to(covered)]
    return any(path.is_relative_to(Path(place).resolve()) for place in places)
