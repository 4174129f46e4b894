"""Build the site of the course: `make site` writes it to runs/site.

    python notebooks/site/make_site.py [--out FOLDER] [--run LAB ...]

It runs the notebooks with the solutions (executed.py), writes the pages (pages.py) and lets Sphinx turn them
into HTML (conf.py). It needs no network. The outputs of the notebooks are kept in runs/site-outputs until
something in labs/ or assessment/ changes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(HERE.parent)]

import build as notebooks_build  # noqa: E402  notebooks/build.py
import executed  # noqa: E402
import frames  # noqa: E402
import gallery  # noqa: E402
import pages  # noqa: E402
from print_slides import MissingPages, print_slides  # noqa: E402

from hvdlab.data import DataError  # noqa: E402

SPHINX_SECONDS = 600


def main(arguments: list[str] | None = None) -> int:
    """Build the site and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs/site", help="folder (default: runs/site)"
    )
    parser.add_argument(
        "--run",
        nargs="*",
        metavar="LAB",
        help="run only these notebooks, for example 02_gradient_descent; the pages of the others have no "
        "outputs (default: all)",
    )
    args = parser.parse_args(arguments)
    out = args.out.resolve()
    if out.exists() and not _may_be_replaced(out):
        parser.error(
            f"--out: {args.out} is not an empty folder and not a site of an earlier build, so it is not "
            "replaced. Name a new folder."
        )
    start = time.monotonic()
    learner, solved = {}, {}
    for path in notebooks_build.sources():
        if path.suffix == ".md":
            continue  # a page of its own
        notebook = notebooks_build.read(path)
        for number, cell in enumerate(notebook.cells):
            cell.metadata["number"] = number
        learner[path.stem], exercises = notebooks_build.learner(notebook, path)
        if exercises:
            solved[path.stem] = notebooks_build.solution(notebook)
    if unknown := set(args.run or []) - set(solved):
        parser.error(f"--run: there is no lab {', '.join(sorted(unknown))}")
    chosen = solved if args.run is None else {name: solved[name] for name in args.run}
    try:
        executed.run(chosen, ROOT / "runs/site-outputs", say=lambda name: print("running", name))
    except (executed.Failed, DataError) as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        source, html = Path(scratch, "source"), Path(scratch, "html")
        pages.write(source, solved, learner)
        if not (
            _sphinx("html", source, html, Path(scratch, "doctrees"), HERE)
            and _sphinx(
                "revealjs", ROOT / "labs/slides", html / "slides", Path(scratch, "slide_trees")
            )
        ):
            print("site: Sphinx reported the problems above", file=sys.stderr)
            return 1
        try:
            print_slides(html / "slides")
        except MissingPages as error:
            print(f"site: {error}", file=sys.stderr)
            return 1
        frames.finish(html)
        gallery.write_scripts(html / "results")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(html, out)
    megabytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    print(f"{out}/index.html: {megabytes:.0f} MB, {time.monotonic() - start:.0f} s")
    return 0


def _may_be_replaced(out: Path) -> bool:
    """Return whether a path is an empty folder, or a folder that an earlier build made."""
    return out.is_dir() and ((out / "searchindex.js").is_file() or not any(out.iterdir()))


def _sphinx(
    builder: str, source: Path, out: Path, doctrees: Path, configuration: Path | None = None
) -> bool:
    """Run Sphinx, whose warnings count as errors, and return whether it succeeded."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder]
    if builder == "html":
        command += ["-j", "2"]  # sphinx_revealjs reads one page after the other
    folders = ["-c", configuration or source, "-d", doctrees, source, out]
    return subprocess.run([*command, *folders], timeout=SPHINX_SECONDS).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
