"""Read what a training run reports: the line of each epoch, and when each part of a step began.

rows = epoch_rows(launch.run("labs/cifar10_torch.py"))

launched = time.time()
launch.run("labs/cifar10_torch.py", "--times", "times.json")
marks = read_marks("times.json", launched)
"""

import json
import re
import time
from pathlib import Path

EPOCH_LINE = re.compile(
    r"^epoch (\d+)  loss (\S+)  train (\S+)  held-out (\S+)  (\S+) s$", re.MULTILINE
)
COLUMNS = ("epoch", "loss", "train_accuracy", "heldout_accuracy", "seconds")
PARTS = ("start-up", "reading", "compute", "exchange", "evaluation")
Mark = tuple[str, float]  # what begins, and when


def epoch_rows(output: str) -> list[dict[str, float]]:
    """Return a row for each line "epoch E  loss L  train T  held-out H  S s" of a run, and for no other line.

    Returns:
        Rows with the numbers of COLUMNS.
    """
    rows = []
    for found in EPOCH_LINE.finditer(output):
        epoch, *others = found.groups()
        rows.append(dict(zip(COLUMNS, (int(epoch), *map(float, others)), strict=True)))
    return rows


class PartTimes:
    """Record when each part of a run begins. A part ends when the next one begins."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def begin(self, part: str) -> None:
        """Record that a part begins now.

        Args:
            part: one of PARTS, or "end" after the last part.
        """
        self.marks.append((part, time.time()))

    def save(self, path: str | Path) -> None:
        """Write all marks to a JSON file."""
        Path(path).write_text(json.dumps(self.marks), encoding="utf-8")


def read_marks(path: str | Path, launched: float) -> list[Mark]:
    """Return the marks of a run, in seconds since its launch. The first part is the start-up, from 0 on."""
    marks = json.loads(Path(path).read_text(encoding="utf-8"))
    return [("start-up", 0.0), *((part, begins - launched) for part, begins in marks)]
