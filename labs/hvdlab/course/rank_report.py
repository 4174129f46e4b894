"""Report whether the ranks of a run hold identical weights, from the files that they recorded.

    report = rank_report("runs/20260101-120000")    # a table with a row per rank
    summary(report)                                 # {"ranks": 2, "models": 1, "overlap": 0.0, ...}

In data-parallel training all ranks hold the same weights, each rank reads other examples, all ranks make
the same number of steps, and they agree on every metric.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd

from hvdlab.record import is_statistic

METRICS = ["loss", "accuracy"]


def rank_report(run_folder: str | Path, epoch: int | None = None) -> pd.DataFrame:
    """Return a table with a row per rank: its weights, examples and metrics at the end of an epoch.

    Args:
        epoch: number of the epoch, from 0. Default: the last epoch that all ranks recorded.

    Returns:
        a table with the index `rank` and the columns

            weights     8 hexadecimal digits of the SHA-256 of all trained weights
            examples    number of examples that the rank read in the epoch
            overlap     fraction of these examples that rank 0 also read
            steps       number of steps that the rank made in the epoch
            loss        loss over the epoch, as the script reported it
            accuracy    accuracy on held-out data, or if there is none, on training data

    Raises:
        FileNotFoundError: not all ranks have recorded an epoch, or the given epoch, in the folder.
    """
    folders = sorted(Path(run_folder).glob("rank-*"), key=lambda f: int(f.name.split("-")[1]))
    recorded = [{int(f.stem.split("-")[1]) for f in rank.glob("epoch-*.npz")} for rank in folders]
    common = set.intersection(*recorded) if recorded else set()
    if epoch is None and not common or epoch is not None and epoch not in common:
        missing = "no epoch was" if epoch is None else f"epoch {epoch} was not"
        raise FileNotFoundError(
            f"{run_folder}: {missing} recorded by all of its {len(folders)} ranks. Every rank needs a "
            "Recorder that writes at the end of each epoch."
        )
    epoch = max(common) if epoch is None else epoch

    rows, first = [], None
    for folder in folders:
        with np.load(folder / f"epoch-{epoch:03d}.npz") as file:
            arrays = {name: file[name] for name in file.files}
        read = arrays.pop("examples_read")
        first = read if first is None else first
        metrics = _recorded_metrics(folder, epoch)
        rows.append(
            {
                "rank": int(folder.name.split("-")[1]),
                "weights": digest(arrays),
                "examples": len(read),
                "overlap": float(np.isin(read, first).mean()) if len(read) else np.nan,
                "steps": metrics.get("steps", -1),
                "loss": metrics.get("loss", np.nan),
                "accuracy": metrics.get("val_accuracy", metrics.get("accuracy", np.nan)),
            }
        )
    return pd.DataFrame(rows).set_index("rank")


def summary(report: pd.DataFrame) -> dict:
    """Return four numbers that summarise a report.

    Returns:
        "ranks": number of ranks; "models": number of different weights; "overlap": largest overlap of a
        rank with rank 0; "spread": largest difference of a metric between two ranks. For a single rank
        overlap and spread are 0.
    """
    metrics, others = report[METRICS].dropna(axis=1), report["overlap"].iloc[1:]
    spread = (metrics.max() - metrics.min()).max() if len(metrics.columns) else np.nan
    return {
        "ranks": len(report),
        "models": report["weights"].nunique(),
        "overlap": float(others.max()) if len(others) else 0.0,
        "spread": float(spread),
    }


def text(report: pd.DataFrame) -> str:
    """Return a report as text to print."""
    return report.to_string(
        formatters={
            "overlap": "{:.0%}".format,
            "loss": "{:.4f}".format,
            "accuracy": "{:.4f}".format,
        }
    )


def curve(run_folder: str | Path, rank: int = 0) -> pd.DataFrame:
    """Return the metrics that a rank recorded, with a row per epoch.

    Args:
        rank: number of the rank. Default 0.

    Returns:
        a table with the columns epoch, seconds, steps, loss and so on.
    """
    path = Path(run_folder) / f"rank-{rank}" / "record.jsonl"
    return pd.DataFrame(
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    )


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Return 8 hexadecimal digits that change if and only if a trained weight changes.

    The names do not count, because Keras gives other names to the variables of a loaded model.
    """
    sha = hashlib.sha256()
    for name, array in arrays.items():
        # Each rank has its own batch-norm statistics, even if training is correct.
        if not (is_statistic(name) or name.endswith(("moving_mean", "moving_variance"))):
            sha.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:8]


def _recorded_metrics(folder: Path, epoch: int) -> dict:
    lines = (folder / "record.jsonl").read_text(encoding="utf-8").splitlines()
    return next((line for line in map(json.loads, reversed(lines)) if line["epoch"] == epoch), {})
