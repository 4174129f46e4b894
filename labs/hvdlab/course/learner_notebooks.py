"""`hvdlab notebooks`: copy the notebooks of the course to `notebooks/work`, and update the learner's copies.

Learners work in `notebooks/work`, which git ignores, so that `git pull` never conflicts with their work. The
folder `notebooks/work/.course` keeps every notebook as it was copied. If the course has a newer version,
`git merge-file` merges three versions: as copied, the learner's, and the new one. If the learner and the
course have changed the same lines, the learner's file stays, and the new version is written next to it.

Git merges the files as text. nbdime, which merges notebooks by their cells, would add a server extension,
buttons in JupyterLab and GitPython. The text has no ids of cells, because a new cell changes the ids of all
cells after it.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdlab.course import experiment

EPILOG = """\
`make lab` runs this command. To start again with a notebook, delete it in notebooks/work and run the command.

examples:
  hvdlab notebooks
  hvdlab notebooks --solution 5
"""
COURSE = experiment.LABS.parent / "notebooks"
COPIED = ".course"  # the folder in the learner's folder that keeps what was copied
KERNEL = {"name": "hvdlab", "display_name": "Course lab (hvdlab)", "language": "python"}
GIT_SECONDS = 60


class NoMerge(Exception):
    """Two versions cannot be merged; the message says why."""


def update(course: Path, work: Path) -> list[str]:
    """Copy new notebooks to the learner's folder, and update those that were copied before.

    A notebook of the course that the learner has changed in place is moved to the learner's folder first.

    Args:
        course: the folder with the notebooks of the course.
        work: the learner's folder, which may not exist yet.

    Returns:
        A sentence about each notebook that was moved, merged, or could not be merged.

    Raises:
        OSError: a file cannot be read or written.
    """
    (work / COPIED).mkdir(parents=True, exist_ok=True)
    notebooks = sorted(course.glob("*.ipynb"))
    new = [path for path in notebooks if not (work / COPIED / path.name).exists()]
    said = [
        _move(path, work)
        for path in (_changed(course) if new else [])
        if path in new and not (work / path.name).exists()
    ]
    language = _language_info()
    for path in notebooks:
        text = _as_jupyterlab_saves(path.read_text(encoding="utf-8"), language)
        said += _update(text, work / path.name, work / COPIED / path.name)
    return said


def copy_solution(course: Path, work: Path, lab: int) -> list[str]:
    """Copy the notebooks with the solutions of a lab to the folder `solutions` of the learner's folder.

    Returns:
        A sentence about each copy. A file that is there already stays as it is.

    Raises:
        ValueError: the lab has no solutions; the message says so.
        OSError: a file cannot be read or written.
    """
    paths = sorted((course / "solutions").glob(f"{lab:02d}_*.ipynb"))
    if not paths:
        there = sorted({path.name[:2] for path in (course / "solutions").glob("[0-9]*.ipynb")})
        what = (
            f"name a lab from {int(there[0])} to {int(there[-1])}"
            if there
            else "this copy of the course has none at all"
        )
        raise ValueError(f"lab {lab} has no notebook with solutions: {what}")
    folder, language, said = work / "solutions", _language_info(), []
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        copy = folder / path.name
        if not copy.exists():
            _write(copy, _as_jupyterlab_saves(path.read_text(encoding="utf-8"), language))
        said.append(f"The solution is {_shown(copy)}.")
    return said


def _update(new: str, mine: Path, copied: Path) -> list[str]:
    """Update one notebook of the learner, and return what to say about it."""
    before = copied.read_text(encoding="utf-8") if copied.exists() else None
    said = []
    if not mine.exists():
        _write(mine, new)
    elif before != new:
        text = mine.read_text(encoding="utf-8", errors="replace")
        try:
            if text not in (before, new):
                new_text = _merged(before, text, new)
                said = [f"{_shown(mine)} has the changes of the course, and yours."]
            else:
                new_text = new
            _write(mine, new_text)
        except NoMerge as error:
            other = _free_name(mine)
            _write(other, new)
            said = [
                f"{_shown(mine)} stays as it is, because {error}. The new version is {_shown(other)}."
            ]
    if before != new:
        _write(copied, new)  # last: an interrupted update is done again
    return said


def _merged(before: str | None, mine: str, new: str) -> str:
    """Return the notebook with the changes of both sides since `before`, or raise NoMerge."""
    import nbformat  # `hvdlab progress` works without it

    if before is None:
        raise NoMerge("it was not copied from the course")
    if not shutil.which("git"):
        raise NoMerge("there is no git on this machine to merge it with the new version")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("mine", "before", "new")]
        for path, text in zip(paths, (mine, before, new), strict=True):
            path.write_text(_comparable(text), encoding="utf-8")
        merged = _git(Path(folder), "merge-file", "-p", "-q", *map(str, paths))
    if merged.returncode:
        raise NoMerge("you and the course have changed the same lines")
    try:
        notebook = json.loads(merged.stdout)
        for number, cell in enumerate(notebook["cells"]):
            cell["id"] = f"cell-{number:03d}"
        notebook["metadata"] |= json.loads(new)["metadata"]
        nbformat.validate(nbformat.from_dict(notebook))
    except (ValueError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise NoMerge("the changes of the course do not fit to yours") from error
    return _text(notebook)


def _comparable(text: str) -> str:
    """Return a notebook as text without the ids of its cells and the metadata of its kernel."""
    try:
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            cell.pop("id", None)
        for key in ("kernelspec", "language_info"):
            notebook["metadata"].pop(key, None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoMerge("it is not a notebook") from error
    return _text(notebook)


def _as_jupyterlab_saves(text: str, language: dict) -> str:
    """Return a notebook with the metadata that JupyterLab would write when it opens the notebook.

    Otherwise JupyterLab would ask whether to save a notebook that was only opened. The metadata name
    the version of Python, so the files of the course cannot contain them.
    """
    notebook = json.loads(text)
    notebook["metadata"] |= {"kernelspec": KERNEL, "language_info": language}
    return _text(notebook)


def _language_info() -> dict:
    """Return what the kernel of this Python says about its language."""
    from ipykernel.ipkernel import IPythonKernel  # takes half a second

    return IPythonKernel.language_info


def _text(notebook: dict) -> str:
    """Return a notebook as JupyterLab writes it."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _changed(course: Path) -> list[Path]:
    """Return the notebooks of the course that differ from those in git. Outside a clone there are none."""
    found = _git(course, "diff", "--name-only", "--relative", "HEAD", "--", ".")
    names = found.stdout.splitlines() if found.returncode == 0 else []
    return [course / name for name in names if Path(name).match("*.ipynb") and "/" not in name]


def _move(path: Path, work: Path) -> str:
    """Move a notebook that the learner has changed in place to the learner's folder."""
    committed = _git(path.parent, "show", f"HEAD:./{path.name}")
    if committed.returncode:
        raise OSError(f"git cannot show {_shown(path)} ({committed.stderr.strip()})")
    _write(work / path.name, path.read_text(encoding="utf-8"))
    _write(work / COPIED / path.name, _as_jupyterlab_saves(committed.stdout, _language_info()))
    restored = _git(path.parent, "checkout", "HEAD", "--", path.name)
    if restored.returncode:
        raise OSError(f"git cannot restore {_shown(path)} ({restored.stderr.strip()})")
    return f"Your work in {_shown(path)} is now in {_shown(work / path.name)}."


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run git in a folder. Without git the result is that of a command that failed."""
    command = ["git", *arguments]
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 255, "", str(error))


def _free_name(path: Path) -> Path:
    """Return a name for the new version next to the learner's file that no file has yet."""
    names = (f"{path.stem}_new{number or ''}{path.suffix}" for number in itertools.count())
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


def _write(path: Path, text: str) -> None:
    """Write a file so that an interruption leaves the old one."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _shown(path: Path) -> str:
    """Return a path from the top of the course, which is short."""
    top = COURSE.parent
    return str(path.relative_to(top) if path.is_relative_to(top) else path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab notebooks` to its parser."""
    parser.add_argument(
        "--solution",
        type=int,
        metavar="LAB",
        help="copy the notebooks with the solutions of a lab to notebooks/work/solutions",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 0, or 1 if a file cannot be read or written."""
    try:
        if args.solution is None:
            said = update(COURSE, experiment.WORK)
        else:
            said = copy_solution(COURSE, experiment.WORK, args.solution)
    except ModuleNotFoundError as error:
        print(f"hvdlab: there is no package {error.name}: run `make setup`.", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"hvdlab: the notebooks were not copied: {error}.", file=sys.stderr)
        return 1
    print(*said, sep="\n", end="\n" if said else "")
    return 0
