"""Checks of Python, its packages, the import path, the compiler and the Jupyter kernel."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import site
import sys
from pathlib import Path

from hvdlab.doctor.answers import (
    BIN,
    CHECKOUT,
    FAILURE,
    OK,
    PYTHON,
    WARNING,
    Answer,
    ProgramOutput,
    install,
    quoted,
    system_package,
    version,
)

PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest that the pinned packages support
IMPORTED = ("torch", "tensorflow", "keras", "horovod", "mpi4py", "numpy")


def python(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check the operating system, the version of Python and its environment."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}: "
    text += sys.executable
    if platform.system() == "Windows":
        return Answer(FAILURE, f"{text}; the labs run on Linux, here in WSL 2", "wsl --install")
    if platform.system() != "Linux":
        top = quoted(CHECKOUT or ".")
        build = f"docker build -f {top}/docker/Dockerfile -t hvdlab {top}"
        run = f"{build} && docker run --rm -p 127.0.0.1:8888:8888 hvdlab"
        return Answer(FAILURE, f"{text}; the labs run on Linux, here in the container", run)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        wanted = " to ".join(".".join(map(str, pair)) for pair in PYTHONS)
        make = "make setup" if CHECKOUT is None else f"make -C {quoted(CHECKOUT)} setup"
        return Answer(FAILURE, f"{text}; the labs need {wanted}", f"{make} PYTHON=python3.11")
    ours = None if CHECKOUT is None else CHECKOUT / ".venv"
    if ours and ours.is_dir() and Path(sys.prefix).resolve() != ours.resolve():
        return Answer(WARNING, f"{text}, which is not the Python of {ours}", environment())
    return Answer(OK, text)


def environment() -> str:
    """Return the command that activates the environment of this checkout, and makes it first if needed."""
    activate = CHECKOUT / ".venv" / "bin" / "activate"
    make = "" if activate.is_file() else f"make -C {quoted(CHECKOUT)} setup && "
    return f"{make}source {quoted(activate)}"


def packages(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that the other packages of the labs are installed."""
    needed = ("numpy", "psutil", "rich", "mpi4py")
    wanted = ("pandas", "matplotlib", "jupyterlab", "ipykernel")
    missing = [name for name in needed + wanted if importlib.util.find_spec(name) is None]
    if not missing:
        return Answer(OK, ", ".join(needed + wanted))
    state = FAILURE if set(missing) & set(needed) else WARNING
    text = f"not installed for this Python: {', '.join(missing)}"
    if CHECKOUT and state == FAILURE and sys.prefix == sys.base_prefix:
        text = f"this Python does not belong to the environment of the labs and lacks {', '.join(missing)}"
        return Answer(state, text, environment())
    return Answer(state, text, install(*missing))


def shadowing(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that nothing outside of this environment hides an installed package or breaks its import."""
    for output in outputs.values():
        if output.outside:
            return output.outside
    where = {Path.cwd().resolve(): "this folder"}
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    where.update({Path(path).resolve(): "PYTHONPATH" for path in named if path})
    if site.ENABLE_USER_SITE:
        where[Path(site.getusersitepackages()).resolve()] = "your user site"
    path = list(dict.fromkeys(Path(place).resolve() for place in (os.curdir, *sys.path)))
    for name in IMPORTED:
        files = [place / f"{name}.py" for place in path] + [place / name for place in path]
        files = [file for file in files if file.is_file() or (file / "__init__.py").is_file()]
        files.sort(key=lambda file: path.index(file.parent))
        if len(files) < 2 or files[0].parent not in where:
            continue
        what = where[files[0].parent]
        fix = {"PYTHONPATH": "unset PYTHONPATH", "your user site": "export PYTHONNOUSERSITE=1"}
        rename = f"mv {quoted(files[0])} {quoted(files[0].with_name(f'my_{name}.py'))}"
        other = rename if files[0].is_file() else "cd .."
        text = f"{files[0]} ({what}) hides the installed {name}, {files[1]}"
        return Answer(WARNING, text, fix.get(what, other))
    return Answer(OK, f"nothing hides the installed {', '.join(IMPORTED)}")


def compiler(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check the compiler and CMake, which are needed only to build Horovod."""
    seen = []
    for key, name, fix in (
        ("c++", os.environ.get("CXX", "g++"), system_package("g++")),
        ("cmake", "cmake", install("cmake")),
    ):
        if outputs[key].code != 0:
            text = (
                f"{name} does not run ({outputs[key].last_words()}): needed only to build Horovod"
            )
            return Answer(WARNING, text, fix)
        seen.append(f"{name} {version(outputs[key].out)}")
    return Answer(OK, ", ".join(seen))


def kernel(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that the kernel of the notebooks is registered and runs this Python."""
    command = f"{PYTHON} -m ipykernel install --sys-prefix --name hvdlab"
    command += " --display-name 'Course lab (hvdlab)'"
    home = Path(os.environ.get("JUPYTER_DATA_DIR") or Path.home() / ".local" / "share" / "jupyter")
    places = [Path(p) for p in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if p]
    places += [Path(sys.prefix, "share", "jupyter"), home]
    places += [Path("/usr/local/share/jupyter"), Path("/usr/share/jupyter")]
    for place in places:
        file = place / "kernels" / "hvdlab" / "kernel.json"
        if not file.is_file():
            continue
        program = json.loads(file.read_text("utf-8"))["argv"][0]
        if shutil.which(program) is None:
            return Answer(WARNING, f"{file} names {program}, which does not exist", command)
        if Path(program).is_absolute() and Path(program).parent.resolve() != BIN.resolve():
            return Answer(WARNING, f"{file} runs another Python, {program}", command)
        return Answer(OK, f"hvdlab, in {file.parent}")
    return Answer(
        WARNING, "there is no Jupyter kernel named hvdlab, which the notebooks need", command
    )
