"""Is it one model or many? What the ranks of a run have in common, read from what they recorded.

    report = rank_report("runs/20260101-120000")    # a table, one row a rank
    summary(report)                                 # {"ranks": 2, "models": 1, "overlap": 0.0, ...}

In data-parallel training all ranks hold the same weights, each reads other examples, all make
equally many steps, and they agree on every metric.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd

from hvdlab.record import is_statistic

METRICS = ["loss", "accuracy"]


def rank_report(run_folder: str | Path, epoch: int | None = None) -> pd.DataFrame:
    """One row a rank: what it had at the end of an epoch.

    Args:
        run_folder: what was $HVDLAB_RUN_DIR.
        epoch: default: the latest that all ranks have recorded.

    Returns:
        A table with the index `rank` and the columns

            weights     8 hexadecimal digits of the SHA-256 of all trained weights
            examples    how many it read in the epoch
            overlap     the part of its examples that rank 0 read too
            steps       how many it made in the epoch
            loss        over the epoch, as the script reports it
            accuracy    held-out, or where there is none that of training

    Raises:
        FileNotFoundError: no rank has recorded anything there, or not this epoch.
    """
    folders = sorted(Path(run_folder).glob("rank-*"), key=lambda f: int(f.name.split("-")[1]))
    recorded = [{int(f.stem.split("-")[1]) for f in rank.glob("epoch-*.npz")} for rank in folders]
    common = set.intersection(*recorded) if recorded else set()
    if epoch is None and not common or epoch is not None and epoch not in common:
        what = "no epoch" if epoch is None else f"not epoch {epoch}"
        raise FileNotFoundError(f"{run_folder}: {what} of all ranks ({len(folders)} ranks in all)")
    epoch = max(common) if epoch is None else epoch

    rows, first = [], None
    for folder in folders:
        with np.load(folder / f"epoch-{epoch:03d}.npz") as file:
            arrays = {name: file[name] for name in file.files}
        read = arrays.pop("examples_read")
        first = read if first is None else first
        said = _said(folder, epoch)
        rows.append(
            {
                "rank": int(folder.name.split("-")[1]),
                "weights": digest(arrays),
                "examples": len(read),
                "overlap": float(np.isin(read, first).mean()) if len(read) else np.nan,
                "steps": said.get("steps", -1),
                "loss": said.get("loss", np.nan),
                "accuracy": said.get("val_accuracy", said.get("accuracy", np.nan)),
            }
        )
    return pd.DataFrame(rows).set_index("rank")


def summary(report: pd.DataFrame) -> dict:
    """The report in four numbers.

    `ranks`; `models`, how many of them are distinct; `overlap`, the largest with rank 0; `spread`,
    the largest difference between two ranks in a metric. Of one rank, overlap and spread are 0.
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
    """The report to print."""
    return report.to_string(
        formatters={
            "overlap": "{:.0%}".format,
            "loss": "{:.4f}".format,
            "accuracy": "{:.4f}".format,
        }
    )


def curve(run_folder: str | Path, rank: int = 0) -> pd.DataFrame:
    """The lines that a rank recorded, one row an epoch: epoch, seconds, steps, loss and so on."""
    path = Path(run_folder) / f"rank-{rank}" / "record.jsonl"
    return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])


def digest(arrays: dict[str, np.ndarray]) -> str:
    """8 hexadecimal digits that change with any trained weight, and with nothing else.

    The names do not count: Keras gives other ones to the variables of a loaded model.
    """
    sha = hashlib.sha256()
    for name, array in arrays.items():
        # Each rank keeps its own batch-norm statistics, also where all is well.
        if not (is_statistic(name) or name.endswith(("moving_mean", "moving_variance"))):
            sha.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:8]


def _said(folder, epoch) -> dict:
    lines = (folder / "record.jsonl").read_text().splitlines()
    return next((line for line in map(json.loads, reversed(lines)) if line["epoch"] == epoch), {})
