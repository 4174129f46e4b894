"""Run the notebooks with the solutions, and keep their outputs.

`LAB_REFERENCE=shipped` names no experiment, so every `sweep`, and the grading of lab 8, returns the results
that the course ships (hvdlab/course/experiment.py). The pages show those in place of a run of this machine.
What a notebook computes outside its experiments is computed here.
"""

import hashlib
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from hvdlab.data import load_cifar10, load_fashion_mnist

ROOT = Path(__file__).resolve().parents[2]
CELL_SECONDS = 900  # on a slow processor the longest cell needs 155 s
AT_ONCE = 2  # notebooks; the ranks of each share the processor's cores
# If all notebooks together have more threads than the processor has cores, they slow each other down.
THREADS = str(max(1, os.cpu_count() // AT_ONCE))
SETTINGS = {
    "LAB_REFERENCE": "shipped",
    "OMP_NUM_THREADS": THREADS,
    "TF_NUM_INTRAOP_THREADS": THREADS,
}


class Failed(Exception):
    """A notebook that does not run: its name and the error."""


def run(notebooks: dict[str, nbformat.NotebookNode], kept: Path, say) -> None:
    """Run notebooks in place, or take the outputs of an earlier run of the same course.

    Args:
        notebooks: name of the lab -> the notebook with its solutions.
        kept: folder of the outputs of earlier runs.
        say: function that tells the user which notebook is being run.

    Raises:
        Failed: a cell raised an error.
    """
    kept.mkdir(parents=True, exist_ok=True)
    course = _course()
    # An empty folder, so that a lab shows the scripts of its first page before anybody has edited them
    with tempfile.TemporaryDirectory(dir=ROOT / "runs") as folder:
        settings = SETTINGS | {"LAB_WORK": f"{folder}/notebooks/work"}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            run_one = partial(_run, kept=kept, course=course, settings=settings, say=say)
            list(pool.map(run_one, notebooks, notebooks.values()))


def _run(name, notebook, kept, course, settings, say):
    """Run a notebook in place, or take its kept outputs if nothing that it shows has changed."""
    path = kept / f"{name}.ipynb"
    # The sources, not the ids of the cells, which differ from build to build.
    sources = [cell.source for cell in notebook.cells]
    state = hashlib.sha256(f"{course}{sources}".encode()).hexdigest()
    if path.exists():
        earlier = nbformat.read(path, 4)
        if earlier.metadata.get("state") == state:
            for cell, old in zip(notebook.cells, earlier.cells, strict=True):
                cell.update({k: old[k] for k in ("outputs", "execution_count") if k in old})
            return
    say(name)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        coalesce_streams=True,  # one block for all lines that a cell prints
        kernel_name="hvdlab",
        resources={"metadata": {"path": str(ROOT / "notebooks/solutions")}},
    )
    try:
        # Without stderr, where libraries log when they start.
        client.execute(stderr=subprocess.DEVNULL, env={**os.environ, **settings})
    except (CellExecutionError, CellTimeoutError) as error:
        raise Failed(f"{name}: {error}") from None
    notebook.metadata["state"] = state
    part = path.with_suffix(".part")
    nbformat.write(notebook, part)
    part.replace(path)


def _course() -> str:
    """Return a hash of what a notebook runs or shows: packages, scripts, results, real or synthetic data."""
    synthetic = [load().synthetic for load in (load_fashion_mnist, load_cifar10)]
    digest = hashlib.sha256(repr(synthetic).encode())
    for folder in ("labs", "assessment"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".csv", ".json", ".toml", ".mplstyle"} and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()
