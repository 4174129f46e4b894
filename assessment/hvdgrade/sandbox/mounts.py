"""What of this host a submission may see: the system, Python with its packages, Open MPI, hvdlab.

The rest of the repository, with its solutions and this grader, is not among it.
"""

import functools
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

import hvdlab
from hvdlab.system import open_mpi

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys"),
    "/opt/hpcx",  # NVIDIA's images: Open MPI and what it loads
)
SYSTEM_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin")
# Where the driver is in containers of Google's Kubernetes and in WSL 2.
DRIVER_PROGRAMS = ("/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
DRIVER_LIBRARIES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
SETTINGS = (  # in /etc
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime", "alternatives"),
    *("protocols", "services", "fonts", "ssl/openssl.cnf", "openmpi"),
)


def search_path() -> str:
    """Where programs are: those of the environment in which the grader runs, then the system's."""
    places = [str(Path(sys.executable).parent)]
    mpirun = os.path.dirname(open_mpi.mpirun() or "")
    if any(Path(mpirun).is_relative_to(place) for place in SYSTEM):  # /usr/local/mpi/bin
        places.append(mpirun)
    places += [*SYSTEM_PROGRAMS, *filter(os.path.isdir, DRIVER_PROGRAMS)]
    return ":".join(dict.fromkeys(places))


def libraries() -> dict[str, str]:
    """Where an image or a cluster has told programs to look for their libraries."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f.startswith("/")]
    folders += filter(os.path.isdir, DRIVER_LIBRARIES)
    found = {
        "LD_LIBRARY_PATH": ":".join(dict.fromkeys(folders)),
        "OPAL_PREFIX": os.environ.get("OPAL_PREFIX", ""),  # an Open MPI that was moved
    }
    return {name: value for name, value in found.items() if value}


def library_folders() -> list[str]:
    """Folders outside of the system with libraries that a run needs, such as those of `module load nccl`."""
    named = libraries().get("LD_LIBRARY_PATH", "").split(":")
    folders = dict.fromkeys(os.path.normpath(folder) for folder in [*named, *linked_folders()])
    return [f for f in folders if shareable(f) and any(Path(f).glob("*.so*"))]


@functools.cache
def linked_folders() -> list[str]:
    """Where the loader finds what Horovod and torch are linked to, under the names of links and of files."""
    found = []
    for package, pattern in (("horovod", "*/mpi_lib*.so"), ("torch", "lib/libtorch_*.so")):
        spec = importlib.util.find_spec(package)
        for library in (
            sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else ()
        ):
            try:
                said = subprocess.run(["ldd", library], capture_output=True, text=True, timeout=60)
            except (OSError, subprocess.SubprocessError):
                continue  # what is missing then, the run itself reports
            for path in map(Path, re.findall(r"=> (/\S+)", said.stdout)):
                found += [str(path.parent), str(path.resolve().parent)]
    return list(dict.fromkeys(found))


def shareable(folder: str) -> bool:
    """Whether a submission may see a folder that a variable names.

    It may not where the folder holds, or lies in, our own code, or holds a home or temporary files: a
    variable must not open to a submission what the rest of this module keeps from it.
    """
    try:
        if not os.path.isabs(folder) or not os.path.isdir(folder):
            return False
        place = Path(folder).resolve()
        kept = [Path(__file__).parents[1], Path.home(), Path.cwd(), Path(tempfile.gettempdir())]
        around = any(one.resolve().is_relative_to(place) for one in kept)
        return not around and not place.is_relative_to(own_place().resolve())
    except (OSError, RuntimeError):
        return False


def packages() -> list[str]:
    """Python, its packages, Open MPI and hvdlab."""
    places = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
    if mpirun := shutil.which("mpirun", path=search_path()):
        places.append(str(Path(mpirun).resolve().parents[1]))
    return [*places, *added_packages(), str(Path(hvdlab.__file__).parent)]


def added_packages() -> list[str]:
    """Folders of packages outside of the environment, such as those that a .pth file of it adds.

    Ranks read the same .pth files. The user's own packages stay hidden, because ranks have another home.
    """
    folders = [
        place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")
    ]
    return [place for place in folders if place != site.getusersitepackages() and shareable(place)]


def readable() -> list[str]:
    """What of the host a submission may read."""
    kept: list[str] = []
    settings = [f"/etc/{name}" for name in SETTINGS]
    for place in [*SYSTEM, *settings, *packages(), *library_folders()]:
        if os.path.exists(place) and not any(Path(place).is_relative_to(other) for other in kept):
            kept.append(place)
    return kept


def own_place() -> Path:
    """The repository with the solutions, or our own package where there is none around it."""
    package = Path(__file__).parents[1]
    return package.parents[1] if (package.parents[1] / "pyproject.toml").exists() else package


def hidden() -> str | None:
    """The repository, or our own package, if it lies in what a submission may read."""
    place = own_place()
    return str(place) if any(place.is_relative_to(other) for other in readable()) else None


def why_exposed(folder: Path, tier: str) -> str:
    """Return why a submission could read a folder in this tier, and what to do; "" if it could not.

    It could if the folder lies where the system or Python does. In the tier user it could if every user can.
    In the tier rlimits it always can, and the description of that tier says so.
    """
    place, places = folder.resolve(), readable()
    if tier == "rlimits":
        return ""
    if tier == "user":
        above = (place, *place.parents)
        return all(path.stat().st_mode & 0o001 for path in above) * (
            f"every user can read {folder}. Close it (`chmod 700 {folder}`), or copy the data to a folder "
            "that only root can read, and name that folder in $HVDLAB_DATA"
        )
    covered = hidden() if tier.startswith("bubblewrap") else None
    if covered and place.is_relative_to(Path(covered).resolve()):
        places = [path for path in packages() if Path(path).is_relative_to(covered)]
    return any(place.is_relative_to(Path(path).resolve()) for path in places) * (
        f"{folder} lies among the files of the system or of Python, which it needs. Move the data, and name "
        "their folder in $HVDLAB_DATA"
    )
