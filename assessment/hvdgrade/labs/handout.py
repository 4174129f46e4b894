"""Write a copy of the course for learners: without the solutions, the tests and the pages for instructors.

It has the files that git knows, as they are in the working tree. The sources of the labs get stubs in place
of their solutions. The checks of the exercises are packed, because most of them compute the answer. Hints
stay, because `hint()` opens them, and so do the answers to the self-check questions.
"""

import posixpath
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from hvdgrade import HvdgradeError
from hvdlab.course.packed import packed
from hvdlab.course.stubs import BadSource, without_solutions

ROOT = Path(__file__).resolve().parents[3]
GIT_SECONDS = 60
# Files, and folders that end in a slash.
LEFT_OUT = (
    *("assessment/solutions/", "assessment/instructor/", "notebooks/solutions/", "tests/"),
    *(
        "labs/slides/",
        "notebooks/site/",
        "notebooks/build.py",
        ".ci/",
        ".github/",
        "CONTRIBUTING.md",
    ),
)
PICTURES = "notebooks/site/_static/"  # README.md shows them
LAB = re.compile(r"labs/\d\d_[a-z0-9_]+\.py")
CHECKS = re.compile(r"labs/hvdlab/exercises/lab\w+\.py")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
ARCHIVES = {
    ".zip": "zip",
    ".tar.gz": "gztar",
}  # ending of the name -> format of shutil.make_archive
# `make assess` grades the script that learners edit.
IN_MAKEFILE = {
    "SUBMISSION ?= assessment/solutions/": "SUBMISSION ?= assessment/",
    "(default: the reference solution)": "(default: assessment/torch/assessment.py)",
}


class CannotHandOut(HvdgradeError):
    """The hand-out cannot be written. The message says why in one sentence."""


def write(out: Path, root: Path = ROOT) -> int:
    """Write the hand-out as a folder or an archive, and return the number of its files.

    Args:
        out: a new folder, or a new file that ends in .zip or .tar.gz.
        root: the checkout of the course. Default: the one that this package lies in.

    Raises:
        CannotHandOut: the course is no checkout, or `out` exists or cannot be written.
    """
    if out.exists():
        raise CannotHandOut(f"{out} exists already: name a new folder or file.")
    ending = next((end for end in ARCHIVES if out.name.endswith(end)), "")
    try:
        with TemporaryDirectory(dir=out.parent, prefix=".handout-") as made:
            folder = Path(made) / out.name.removesuffix(ending)
            count = _write_folder(folder, root)
            if ending:
                place = Path(made) / "archive"
                done = shutil.make_archive(str(place), ARCHIVES[ending], made, folder.name)
                Path(done).replace(out)
            else:
                folder.replace(out)
    except OSError as error:
        raise CannotHandOut(f"{out} cannot be written: {error.strerror or error}.") from None
    except BadSource as error:
        raise CannotHandOut(str(error).partition("\n")[0]) from None
    return count


def _write_folder(folder: Path, root: Path) -> int:
    """Write the files, and return their number."""
    names = _files(root)
    kept = [name for name in names if name.startswith(PICTURES) or not name.startswith(LEFT_OUT)]
    gone = _with_folders(set(names) - set(kept)) - _with_folders(set(kept))
    for name in kept:
        source, target = root / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        if source.is_symlink():
            continue
        if LAB.fullmatch(name):
            target.write_text(without_solutions(source), encoding="utf-8")
        elif CHECKS.fullmatch(name):
            target.write_text(packed(source.read_text("utf-8")), encoding="utf-8")
        elif source.suffix in (".md", ".ipynb"):
            text = _without_links(source.read_text("utf-8"), posixpath.dirname(name), gone)
            target.write_text(text, encoding="utf-8")
        elif name == "Makefile":
            target.write_text(_makefile(source.read_text("utf-8")), encoding="utf-8")
    return len(kept)


def _files(root: Path) -> list[str]:
    """Return the paths of the files that git knows and that exist, relative to the checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"],
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise CannotHandOut(
            f"{root} is not a git checkout of the course: make one with git clone, and run the command there."
        ) from None
    names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return [name for name in names if name and (root / name).is_file()]


def _with_folders(names: set[str]) -> set[str]:
    """Return the names with all folders that contain them."""
    return names | {str(folder) for name in names for folder in PurePosixPath(name).parents}


def _without_links(text: str, folder: str, gone: set[str]) -> str:
    """Return a text in which only the words are left of links to files that are left out."""

    def shown(link: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2].partition("#")[0]))
        return link[1] if path in gone else link[0]

    return LINK.sub(shown, text)


def _makefile(text: str) -> str:
    """Return the Makefile, whose `make assess` needs no solution."""
    for old, new in IN_MAKEFILE.items():
        if old not in text:
            raise CannotHandOut(f"the Makefile does not contain '{old}': correct labs/handout.py.")
        text = text.replace(old, new)
    return text
