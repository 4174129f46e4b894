"""Find out whether something outside of this environment makes an import fail.

A module in the current folder, a folder of another Python in PYTHONPATH or a library in LD_LIBRARY_PATH can
break the import of an intact package. Then it does not help to install the package again. So an import that
fails is repeated without anything from outside. If it works, the imports are repeated without one source of
files at a time, and the source that matters is named.
"""

from __future__ import annotations

import os
import re
import site
import sys
from pathlib import Path
from typing import NamedTuple

from hvdlab.doctor.answers import FAILURE, Answer, ProgramOutput, quoted
from hvdlab.doctor.run_programs import ask, probe

IMPORTS = ("torch", "tensorflow", "mpi4py", "data")
# From these Python or the dynamic linker take files.
VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "MPI4PY_LIBMPI", "MPI4PY_MPIABI",
)  # fmt: skip


class Source(NamedTuple):
    """Something outside of this environment from which an import takes files.

    Attributes:
        name: for the user, such as PYTHONPATH.
        folders: in which its files are.
        removed: environment variables without which it has no effect.
        set: environment variables with which it has no effect.
        fix: a command for a shell after which it has no effect; "" if a file must be renamed.
    """

    name: str
    folders: list
    removed: tuple = ()
    set: dict = {}
    fix: str = ""


def find(outputs: dict[str, ProgramOutput], limit: float) -> dict[str, ProgramOutput]:
    """Repeat the imports that failed, and name what outside of this environment made them fail.

    Args:
        limit: time limit in seconds of each repetition.

    Returns:
        The outputs of the imports that work when they are isolated, with the cause in `outside`. It is {} if
        there is none.
    """
    failed = {name: outputs[name] for name in IMPORTS if _progress(outputs[name]) < 2}
    failed = {name: output for name, output in failed.items() if not output.late}
    if not failed:
        return {}
    isolated = ask({name: probe(name, isolated=True) for name in failed}, limit, VARIABLES)
    better = [name for name in failed if _progress(isolated[name]) > _progress(failed[name])]
    if not better:
        return {}
    name = better[0]
    cause = _explained(name, failed[name], _culprits(name, isolated[name], limit))
    return {name: isolated[name]._replace(outside=cause) for name in better}


def _progress(output: ProgramOutput) -> int:
    """Return how far an import came: 0 not at all, 1 without Horovod, 2 completely."""
    found = output.answer()
    return bool(found) + bool(found and "error" not in found.get("horovod", {}))


def _sources() -> list:
    """Return the sources that this process has."""
    here = os.getcwd()
    found = [Source("the current folder", [here], set={"PYTHONSAFEPATH": "1"})]
    if site.ENABLE_USER_SITE:
        variable = {"PYTHONNOUSERSITE": "1"}
        fix = "export PYTHONNOUSERSITE=1"
        found.append(Source("your user site", [site.getusersitepackages()], set=variable, fix=fix))
    for name in VARIABLES:
        if value := os.environ.get(name):
            folders = [folder for folder in value.split(os.pathsep) if folder.startswith("/")]
            found.append(Source(name, folders, (name,), fix=f"unset {name}"))
    return found


def _culprits(name: str, isolated: ProgramOutput, limit: float) -> list:
    """Return the sources without one of which the import works; all of them if several are to blame."""
    sources = _sources()
    for source in sources:
        without = ask({name: probe(name)}, limit, source.removed, **source.set)[name]
        if _progress(without) == _progress(isolated):
            return [source]
    return sources


def _explained(name: str, failed: ProgramOutput, culprits: list) -> Answer:
    """Return the answer that names the file and the source that make an import fail."""
    horovod = failed.answer().get("horovod", {})
    error = horovod.get("error") or failed.last_words()
    what = {"data": "NumPy"}.get(name, f"Horovod for {name}" if horovod else name)
    names = " or ".join(source.name for source in culprits)
    fix = " && ".join(source.fix for source in culprits if source.fix)
    file = _last_file(
        failed.err + horovod.get("trace", ""), [f for s in culprits for f in s.folders]
    )
    if not fix:
        renamed = file and quoted(Path(file).with_name(f"my_{Path(file).name}"))
        fix = f"mv {quoted(file)} {renamed}" if file else "cd .."
    seen = f"{file} ({names})" if file else names
    text = f"{seen} makes the import of {what} fail, which works without it: {' '.join(error.split())[:300]}"
    return Answer(FAILURE, text, fix)


def _last_file(text: str, folders: list) -> str:
    """Return the last file that an error message names in one of the folders; "" if there is none."""
    own = (sys.prefix, str(Path(__file__).parents[2]))
    places = {
        place for folder in folders for place in (folder.rstrip("/"), os.path.realpath(folder))
    }
    found = [
        (match.start(), match.group())
        for place in places
        for match in re.finditer(rf"{re.escape(place)}(/[^\s\"'():,]+)?", text)
        if os.path.isfile(match.group()) and not match.group().startswith(own)
    ]
    return max(found)[1] if found else ""
