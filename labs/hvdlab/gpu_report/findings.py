"""Report what a part finds: its process writes each finding as one line of a file, at once.

So the report also has the findings of a part that crashes or reaches its time limit.
"""

import contextlib
import faulthandler
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from hvdlab.gpu_report import results
from hvdlab.gpu_report.results import Check, Fact, Finding, Measurement
from hvdlab.record import launched_rank

FOLDER = "HVDLAB_GPU_FINDINGS"  # environment variable: where the ranks of a part write
SECONDS = "HVDLAB_GPU_SECONDS"  # environment variable: the time limit of the part


class Measure(Protocol):
    """A function that reports one row of a table of measurements."""

    def __call__(self, what: str, values: Sequence[float], dtype: str = "") -> Measurement:
        """Report samples; `dtype` replaces the type that the table has by default."""


class Findings:
    """Writes the findings of this rank to `folder`/rank-R.jsonl."""

    def __init__(self, folder: Path | None = None) -> None:
        """Choose the file.

        Args:
            folder: default: $HVDLAB_GPU_FINDINGS. Without it the findings are printed, so that a user can
                run a part by hand.
        """
        self.rank = launched_rank()[0]
        folder = folder or (Path(os.environ[FOLDER]) if FOLDER in os.environ else None)
        self._path = folder / f"rank-{self.rank}.jsonl" if folder else None

    def add(self, one: Finding) -> Finding:
        """Write a finding, and return it."""
        line = results.encode(one)
        if self._path is None:
            print(line, flush=True)
        else:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        return one

    def fact(
        self, name: str, value: object, expected: object = "", ok: bool = True, table: str = ""
    ) -> None:
        """Report a property; the arguments are the attributes of a `Fact`."""
        self.add(Fact(name, str(value), str(expected), bool(ok), table))

    def check(
        self,
        table: str,
        what: str,
        device: str,
        dtype: str,
        differences: Sequence[float] | np.ndarray,
        limit: float,
        expected: str,
        note: str = "",
    ) -> None:
        """Report a comparison. It is wrong if a difference is not finite, or if there is no difference.

        Args:
            differences: absolute differences.
        """
        values = np.asarray(differences, dtype=np.float64)
        median = largest = None
        if values.size and np.isfinite(values).all():
            median, largest = float(np.median(values)), float(values.max())
        ok = largest is not None and largest <= limit
        count = int(values.size)
        self.add(
            Check(table, what, device, dtype, expected, count, median, largest, limit, ok, note)
        )

    def wrong(self, table: str, what: str, device: str, dtype: str, error: Exception) -> None:
        """Report an operation that raised `error`; the other arguments are those of `check`."""
        lines = [line for line in str(error).splitlines() if line.strip()]
        note = f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
        self.add(Check(table, what, device, dtype, "no error", 0, None, None, 0.0, False, note))

    def measure(
        self,
        table: str,
        what: str,
        device: str,
        dtype: str,
        unit: str,
        values: Sequence[float],
        peer: Measurement | None = None,
        more_is_better: bool = False,
    ) -> Measurement:
        """Report samples, and the ratio of their median to the median of a peer.

        Args:
            peer: a measurement of the same table. Default: there is no ratio.
            more_is_better: whether a larger number is the better one.
        """
        median = statistics.median(values)
        other = f"{peer.what}, {peer.dtype}" if peer else ""
        ratio = median / peer.median if peer and peer.median else None
        return self.add(
            Measurement(
                table, what, device, dtype, unit, len(values), median, min(values), max(values),
                more_is_better, other, ratio,
            )
        )  # fmt: skip

    def rows(
        self, table: str, device: str, dtype: str, unit: str, more_is_better: bool = False
    ) -> Measure:
        """Return a function that reports rows of one table; the first row is the peer of all others.

        Args:
            more_is_better: whether a larger number is the better one.
        """
        peer = None

        def measure(what: str, values: Sequence[float], dtype: str = dtype) -> Measurement:
            nonlocal peer
            row = self.measure(table, what, device, dtype, unit, values, peer, more_is_better)
            peer = peer or row
            return row

        return measure


def start(part: Callable[[Findings], object]) -> None:
    """Run a part in this process: `if __name__ == "__main__": start(main)`.

    Shortly before the time limit all threads print their stacks, which show what a part waits for.
    """
    if limit := float(os.environ.get(SECONDS, 0)):
        faulthandler.dump_traceback_later(max(1.0, limit - 3), file=sys.stderr)
    part(Findings())
    faulthandler.cancel_dump_traceback_later()


def read(folder: Path) -> list[Finding]:
    """Return all findings that the ranks wrote to `folder`, in their order.

    A check that several ranks made becomes one check.
    """
    found: list[Finding] = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut off
                found.append(results.finding(json.loads(line)))
    # Each check of all ranks is at the place of its first rank, because a dict keeps its order.
    merged: dict[object, list[Finding]] = defaultdict(list)
    for one in found:
        is_check = isinstance(one, Check)
        key = (one.table, one.what, one.device, one.dtype) if is_check else len(merged)
        merged[key].append(one)
    return [_of_all_ranks(same) if isinstance(same[0], Check) else same[0]
            for same in merged.values()]  # fmt: skip


def _of_all_ranks(checks: list[Check]) -> Check:
    worst = max(checks, key=lambda one: (not one.ok, one.largest is None, one.largest or 0.0))
    return replace(worst, n=sum(one.n for one in checks), ok=all(one.ok for one in checks))
