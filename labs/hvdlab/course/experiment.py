"""Run an experiment once for each setting, and lay its results beside those the course ships.

    runs = sweep("steps_to_goal", train, grid(batch_size=[32, 256], seed=seeds(1, 3)))
    shipped = reference("steps_to_goal")

`train(batch_size=..., seed=...)` returns a row (a dict) or a list of rows; the settings are added to
each. A run of a lab has one of three lengths, and
`by_run_length(quick=..., learner=..., reference=...)` returns the value for it:

    LAB_QUICK=1         the least that goes through every cell: under a minute
    neither             a learner's run: about ten minutes at most
    LAB_REFERENCE=1     every setting, three seeds or more; writes labs/results/NAME.csv
    LAB_REFERENCE=a,b   the same for these experiments only

The first lines of a results file say which command made it, where and when.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import TypeVar

import pandas as pd
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hvdlab.system.hardware import usable_cores

Value = TypeVar("Value")
LABS = Path(__file__).resolve().parents[2]
RESULTS = LABS / "results"
# What a learner writes; git leaves it alone. The versions with the solutions have a folder of their own.
WORK = LABS.parent / os.environ.get("LAB_WORK", "notebooks/work")
QUICK = os.environ.get("LAB_QUICK", "") not in ("", "0")
_WANTED = os.environ.get("LAB_REFERENCE", "")
REFERENCE = _WANTED not in ("", "0")
NOTEBOOK = "ipykernel" in sys.modules
# TensorFlow in a notebook's kernel would take nearly all memory of a GPU, and ranks that it starts need some.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def by_run_length(*, quick: Value, learner: Value, reference: Value) -> Value:
    """Return the value for the length of this run.

    Args:
        quick: for a quick run (LAB_QUICK=1).
        learner: for a learner's run.
        reference: for a reference run (LAB_REFERENCE is set).
    """
    return quick if QUICK else reference if REFERENCE else learner


def seeds(default: int, reference: int = 3) -> list[int]:
    """1, 2, ...: one seed in a quick run, `default` in a learner's, `reference` in a reference run."""
    return list(range(1, 1 + by_run_length(quick=1, learner=default, reference=reference)))


def grid(**choices: Iterable) -> list[dict]:
    """Every combination: `grid(a=[1, 2], b=[3])` is `[{"a": 1, "b": 3}, {"a": 2, "b": 3}]`."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def sweep(name: str, run: Callable[..., dict | list[dict]], settings: list[dict]) -> pd.DataFrame:
    """Call `run(**setting)` for each setting and return all rows as a table.

    Shows progress. An interrupt ends the sweep and keeps the runs that are done, if there are any. In a
    reference run of this experiment the table is written to `labs/results/NAME.csv`; in a reference run of
    other experiments only, nothing is run and the shipped table is returned.
    """
    if REFERENCE and not _is_wanted(name):
        return reference(name)
    rows = []
    columns = TextColumn("{task.description}"), BarColumn(16), MofNCompleteColumn()
    # In a notebook what a run prints shall stay plain text, below the bar.
    own = {"redirect_stdout": not NOTEBOOK, "redirect_stderr": not NOTEBOOK}
    with Progress(*columns, TimeElapsedColumn(), disable=not sys.stdout, **own) as progress:
        task = progress.add_task(name, total=len(settings))
        try:
            for setting in settings:
                says = " ".join(f"{key}={value}" for key, value in setting.items())
                progress.update(task, description=f"{name}: {says}")
                result = run(**setting)
                for row in [result] if isinstance(result, dict) else result:
                    rows.append({**setting, **row})
                progress.advance(task)
            progress.update(task, description=name)
        except KeyboardInterrupt:
            if not rows:  # nothing to plot: the cell ends here
                raise
            print(f"{name}: interrupted, {int(progress.tasks[0].completed)} runs are kept")
            return pd.DataFrame(rows)
    table = pd.DataFrame(rows)
    if REFERENCE:
        save(name, table)
    return table


def reference(name: str) -> pd.DataFrame:
    """The results that the course ships: `labs/results/NAME.csv`.

    Raises:
        FileNotFoundError: there are none; the message says how they are made.
    """
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: run the lab that measures it with LAB_REFERENCE={name}"
        )
    return pd.read_csv(path, comment="#")


def save(name: str, table: pd.DataFrame) -> None:
    """Write a table as the shipped results of an experiment, with where they come from."""
    RESULTS.mkdir(exist_ok=True)
    lines = [
        f"# experiment: {name}",
        f"# command: LAB_REFERENCE={name} python labs/{Path(sys.argv[0]).name}",
        f"# machine: {_processor()}, {usable_cores()} cores, {platform.system()}",
        f"# versions: {', '.join(_versions())}",
        f"# date: {time.strftime('%Y-%m-%d')}",
    ]
    text = "\n".join(lines) + "\n" + table.to_csv(index=False, float_format="%.6g")
    part = RESULTS / f"{name}.csv.part"
    part.write_text(text)
    os.replace(part, RESULTS / f"{name}.csv")


def _is_wanted(name):
    return _WANTED == "1" or name in _WANTED.split(",")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _versions() -> list[str]:
    """Python, and what is installed of what a lab or its ranks may have used."""
    found = [f"Python {platform.python_version()}"]
    for package in ("numpy", "torch", "tensorflow", "keras", "horovod", "mpi4py"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            pass
    return found
