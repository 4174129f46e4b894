"""Run an experiment once for each setting, and compare its results with those that the course ships.

    runs = sweep("steps_to_goal", train, grid(batch_size=[32, 256], seed=seeds(1, 3)))
    shipped = reference("steps_to_goal")

`train(batch_size=..., seed=...)` returns a row (a dict) or a list of rows, and `sweep` adds the settings to
each row. Environment variables choose one of three lengths of a lab, and
`by_run_length(quick=..., learner=..., reference=...)` returns the value for that length:

    LAB_QUICK=1         a quick run, which executes every cell in about a minute
    neither             a learner's run, which takes about ten minutes at most
    LAB_REFERENCE=1     a reference run with every setting and three seeds or more, which writes
                        labs/results/NAME.csv
    LAB_REFERENCE=a,b   a reference run of the experiments a and b only

The first lines of a results file name the command that made it, the machine and the date. A result that is no
table, such as the report of a grading, is kept as `labs/results/NAME.json`.
"""

import json
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

from hvdlab.system.hardware import cpu_facts, usable_cores

Value = TypeVar("Value")
LABS = Path(__file__).resolve().parents[2]
RESULTS = LABS / "results"
# For files that a learner's run writes; git ignores it. The notebooks with solutions use another folder.
WORK = LABS.parent / os.environ.get("LAB_WORK", "notebooks/work")
QUICK = os.environ.get("LAB_QUICK", "") not in ("", "0")
_WANTED = os.environ.get("LAB_REFERENCE", "")
REFERENCE = _WANTED not in ("", "0")
NOTEBOOK = "ipykernel.kernelapp" in sys.modules
# Otherwise TensorFlow in a notebook's kernel would take nearly all memory of a GPU, and the ranks that the
# notebook starts would have too little.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def by_run_length(*, quick: Value, learner: Value, reference: Value) -> Value:
    """Return the value for the length of this run.

    Args:
        quick: value in a quick run (LAB_QUICK=1).
    """
    return quick if QUICK else reference if REFERENCE else learner


def seeds(default: int, reference: int = 3) -> list[int]:
    """Return the seeds 1, 2, ... of this run. A quick run has one seed.

    Args:
        default: number of seeds in a learner's run.
        reference: number of seeds in a reference run. Default 3.
    """
    return list(range(1, 1 + by_run_length(quick=1, learner=default, reference=reference)))


def grid(**choices: Iterable) -> list[dict]:
    """Return every combination of values.

    Example:
        >>> grid(a=[1, 2], b=[3])
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def sweep(name: str, run: Callable[..., dict | list[dict]], settings: list[dict]) -> pd.DataFrame:
    """Call `run(**setting)` for each setting and return all rows as a table.

    It shows a progress bar. An interrupt ends the sweep and keeps the runs that are done. A reference run
    of this experiment writes the table to `labs/results/NAME.csv`. If it was interrupted, it continues with
    the runs that are missing. A reference run of other experiments runs nothing here and returns the
    shipped table.

    Raises:
        KeyboardInterrupt: the user interrupted the first run, so there is nothing to keep.
        FileNotFoundError: a reference run of other experiments, but there is no shipped table.
    """
    if REFERENCE and not is_wanted(name):
        return reference(name)
    runs = FinishedRuns(name)
    columns = TextColumn("{task.description}"), BarColumn(16), MofNCompleteColumn()
    # In a notebook the output of a run stays plain text, below the bar.
    own = {"redirect_stdout": not NOTEBOOK, "redirect_stderr": not NOTEBOOK}
    with Progress(*columns, TimeElapsedColumn(), disable=not sys.stdout, **own) as progress:
        task = progress.add_task(name, total=len(settings))
        try:
            for setting in settings:
                described = " ".join(f"{key}={value}" for key, value in setting.items())
                progress.update(task, description=f"{name}: {described}")
                if setting not in runs:
                    result = run(**setting)
                    runs.add(setting, [result] if isinstance(result, dict) else result)
                progress.advance(task)
            progress.update(task, description=name)
        except KeyboardInterrupt:
            if REFERENCE or not runs.rows:  # nothing to plot, or a run that can continue
                raise
            print(f"{name}: interrupted, {int(progress.tasks[0].completed)} runs are kept")
            return runs.table([one for one in settings if one in runs])
    table = runs.table(settings)
    if REFERENCE:
        save(name, table)
        runs.path.unlink()
    return table


class FinishedRuns:
    """The runs of a sweep that are done. A reference run keeps them in `labs/results/NAME.jsonl.part`."""

    def __init__(self, name: str) -> None:
        self.path = RESULTS / f"{name}.jsonl.part"
        self.rows: dict[str, list[dict]] = {}
        if REFERENCE and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            self.rows = dict(map(json.loads, lines))

    def __contains__(self, setting: dict) -> bool:
        return json.dumps(setting, default=str) in self.rows

    def add(self, setting: dict, rows: list[dict]) -> None:
        """Keep the rows of a run."""
        key = json.dumps(setting, default=str)
        self.rows[key] = [{**setting, **row} for row in rows]
        if REFERENCE:
            RESULTS.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                print(json.dumps([key, self.rows[key]], default=lambda one: one.item()), file=file)

    def table(self, settings: list[dict]) -> pd.DataFrame:
        """Return the rows of the runs of these settings."""
        keys = [json.dumps(setting, default=str) for setting in settings]
        return pd.DataFrame([row for key in keys for row in self.rows[key]])


def reference(name: str) -> pd.DataFrame:
    """Return the results that the course ships, `labs/results/NAME.csv`.

    Raises:
        FileNotFoundError: the file does not exist; the message explains how to make it.
    """
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: run the lab that measures it with LAB_REFERENCE={name}"
        )
    return pd.read_csv(path, comment="#")


def complete(
    yours: pd.DataFrame, shipped: pd.DataFrame, column: str, *values: object
) -> pd.DataFrame:
    """Return your rows with some values in a column, or those of the course if you lack one of the values."""
    has_all = set(values) <= set(yours[column])
    table = yours if has_all else shipped
    return table[table[column].isin(values)]


def save(name: str, table: pd.DataFrame) -> None:
    """Write a table as the shipped results of an experiment, with a header about its origin."""
    lines = [f"# {key}: {value}" for key, value in _origin(name).items()]
    text = "\n".join(lines) + "\n" + table.to_csv(index=False, float_format="%.6g")
    _replace(RESULTS / f"{name}.csv", text)


def shipped_document(name: str) -> dict | None:
    """Return `labs/results/NAME.json` in a reference run of other experiments.

    Returns:
        The document, or None if this run must measure the experiment itself.
    """
    if not REFERENCE or is_wanted(name):
        return None
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def save_document(name: str, document: dict) -> None:
    """Write a result that is no table as `labs/results/NAME.json`, if this is a reference run of it."""
    if REFERENCE:
        text = json.dumps({**_origin(name), **document}, indent=1, ensure_ascii=False)
        _replace(RESULTS / f"{name}.json", text + "\n")


def _origin(name: str) -> dict[str, str]:
    """Return what a results file says about its origin."""
    processor = cpu_facts().get("model name", platform.machine())
    framework = os.environ.get("LAB_FRAMEWORK")
    chosen = f"LAB_FRAMEWORK={framework} " if framework else ""
    program = Path(sys.argv[0])
    if program.resolve().is_relative_to(LABS):
        program = program.resolve().relative_to(LABS)
    return {
        "experiment": name,
        "command": f"{chosen}LAB_REFERENCE={name} python labs/{program}",
        "machine": f"{processor}, {usable_cores()} cores, {platform.system()}",
        "versions": ", ".join(_versions()),
        "date": time.strftime("%Y-%m-%d"),
    }


def _replace(path: Path, text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def is_wanted(name: str) -> bool:
    """Return whether this is a reference run of an experiment."""
    return _WANTED == "1" or name in _WANTED.split(",")


def _versions() -> list[str]:
    """Return the versions of Python and of the installed packages that a lab or its ranks may have used."""
    versions = [f"Python {platform.python_version()}"]
    for package in ("numpy", "torch", "tensorflow", "keras", "horovod", "mpi4py"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            pass
    return versions
