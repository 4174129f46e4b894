"""What a part's process does to report: each finding is a line of a file, written at once.

So the findings of a part that crashes or is ended later are in the report too.
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

import numpy as np

from hvdlab.gpu_report import results
from hvdlab.gpu_report.results import Check, Fact, Finding, Measurement
from hvdlab.record import launched_rank

FOLDER = "HVDLAB_GPU_FINDINGS"  # where the ranks of a part write
SECONDS = "HVDLAB_GPU_SECONDS"  # the part's time limit


class Findings:
    """Writes what this rank finds to `folder`/rank-R.jsonl."""

    def __init__(self, folder: Path | None = None):
        self.rank = launched_rank()[0]
        folder = folder or (Path(os.environ[FOLDER]) if FOLDER in os.environ else None)
        self._path = folder / f"rank-{self.rank}.jsonl" if folder else None

    def add(self, one: Finding) -> Finding:
        line = json.dumps(results._plain(one))
        if self._path is None:  # started by hand
            print(line, flush=True)
        else:
            with open(self._path, "a") as file:
                file.write(line + "\n")
        return one

    def fact(self, name: str, value, expected="", ok: bool = True, table: str = "") -> None:
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
        """Report absolute differences; one that is not finite, or no difference at all, is wrong."""
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
        """Report an operation that raised."""
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
        """Report samples, and the ratio of their median to that of `peer`."""
        median = statistics.median(values)
        other = f"{peer.what}, {peer.dtype}" if peer else ""
        ratio = median / peer.median if peer and peer.median else None
        return self.add(
            Measurement(
                table,
                what,
                device,
                dtype,
                unit,
                len(values),
                median,
                min(values),
                max(values),
                more_is_better,
                other,
                ratio,
            )
        )


def start(part: Callable[[Findings], None]) -> None:
    """Run a part in this process: `if __name__ == "__main__": start(main)`.

    Shortly before the time limit all threads print where they are, which shows what a part waits for.
    """
    if limit := float(os.environ.get(SECONDS, 0)):
        faulthandler.dump_traceback_later(max(1.0, limit - 3), file=sys.stderr)
    part(Findings())
    faulthandler.cancel_dump_traceback_later()


def read(folder: Path) -> list[Finding]:
    """All that the ranks have written, in their order; checks that all ranks made are merged into one."""
    found: list[Finding] = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(
                ValueError, KeyError, TypeError
            ):  # cut off while it was written
                found.append(results.finding(json.loads(line)))
    by_name = defaultdict(list)
    for one in found:
        if isinstance(one, Check):
            by_name[one.table, one.what, one.device, one.dtype].append(one)
    merged, done = [], set()
    for one in found:
        if not isinstance(one, Check):
            merged.append(one)
        elif (key := (one.table, one.what, one.device, one.dtype)) not in done:
            done.add(key)
            merged.append(_of_all_ranks(by_name[key]))
    return merged


def _of_all_ranks(checks: list[Check]) -> Check:
    worst = max(checks, key=lambda one: (not one.ok, one.largest is None, one.largest or 0.0))
    return replace(worst, n=sum(one.n for one in checks), ok=all(one.ok for one in checks))
