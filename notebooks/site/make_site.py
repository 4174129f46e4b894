"""Build the site of the course: `make site` writes it to runs/site.

    python notebooks/site/make_site.py [--out FOLDER]

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
import pages  # noqa: E402

SPHINX_SECONDS = 600


def main() -> int:
    """Build the site and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs/site", help="folder (default: runs/site)"
    )
    args = parser.parse_args()
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
    try:
        executed.run(solved, ROOT / "runs/site-outputs", say=lambda name: print("running", name))
    except executed.Failed as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        pages.write(source, solved, learner)
        html = Path(scratch) / "html"
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2"]
        done = subprocess.run(
            [*command, "-c", HERE, "-d", f"{scratch}/cache", source, html], timeout=SPHINX_SECONDS
        )
        if done.returncode:
            print("site: Sphinx reported the problems above", file=sys.stderr)
            return 1
        shutil.rmtree(args.out, ignore_errors=True)
        shutil.copytree(html, args.out)
    megabytes = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file()) / 1e6
    print(f"{args.out}/index.html: {megabytes:.0f} MB, {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
