"""A run of a learner's script that ends in a sentence, whatever it does: it crashes, hangs, or is fine.

run = watch("fashion_mnist.py", "--epochs", 2, folder="steps/init")
run.failure or run.report()
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hvdlab import launch
from hvdlab.course.rank_report import curve, rank_report

RANK_SCRIPT = Path(__file__).with_name("rank_in_own_folder.py")
START = 30  # seconds that a launch may take on a busy machine, before the ranks' own limit begins


@dataclass
class Watched:
    """What is left of a run: records in `folder`, and what rank R did in `disk/rank-R`."""

    script: Path
    folder: Path
    disk: Path
    ranks: int
    failure: str = ""  # why it failed, in a sentence; empty when it did not

    def report(self) -> pd.DataFrame:
        return rank_report(self.folder)

    def lines(self, rank: int) -> pd.DataFrame:
        """What a rank recorded, one row an epoch; no rows where it recorded nothing."""
        try:
            return curve(self.folder, rank)
        except FileNotFoundError:
            return pd.DataFrame()

    def missing(self, *names: str) -> tuple[int, str] | None:
        """The first rank that does not record one of these numbers, and which; None if all do."""
        lines = enumerate(map(self.lines, range(self.ranks)))
        return next(((rank, n) for rank, line in lines for n in names if n not in line), None)

    def distance(self, epoch: int) -> float:
        """Between the weights of ranks 0 and 1 after an epoch."""
        return float(np.linalg.norm(self._difference(epoch)))

    def drifts(self) -> bool:
        """True if the models of ranks 0 and 1 do not make the same steps in the second epoch.

        Same steps leave their difference as it is, but for rounding.
        """
        step = self._weights(0, 1) - self._weights(0, 0)
        drift = self._difference(1) - self._difference(0)
        return bool(np.linalg.norm(drift) > 1e-3 * np.linalg.norm(step))

    def examples(self, rank: int, epoch: int = 0) -> np.ndarray:
        """The indices that a rank read in an epoch."""
        path = self.folder / f"rank-{rank}" / f"epoch-{epoch:03d}.npz"
        return np.load(path)["examples_read"] if path.exists() else np.empty(0, int)

    def printed(self, rank: int) -> str:
        path = self.disk / f"rank-{rank}" / "output.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def epoch_lines(self, rank: int) -> list[str]:
        return re.findall(r"^epoch \d.*", self.printed(rank), re.MULTILINE)

    def horovod(self, rank: int) -> dict | None:
        """Rank and size that Horovod told a rank, or None if it was not initialised."""
        path = self.disk / f"rank-{rank}" / "horovod.json"
        return json.loads(path.read_text()) if path.exists() else None

    def checkpoints(self, rank: int) -> list[str]:
        """The names of a rank's checkpoints, the latest last."""
        return sorted(f.name for f in self.disk.glob(f"rank-{rank}/checkpoints/epoch-*"))

    def _difference(self, epoch):
        return self._weights(1, epoch) - self._weights(0, epoch)

    def _weights(self, rank, epoch):
        with np.load(self.folder / f"rank-{rank}" / f"epoch-{epoch:03d}.npz") as file:
            return np.concatenate([file[n].ravel() for n in file.files if n != "examples_read"])


def watch(
    script: str | Path,
    *arguments,
    folder: Path,
    disk: Path | None = None,
    ranks: int = 2,
    limit: float = 120.0,
    **variables: str,
) -> Watched:
    """Run a script on some ranks, each in a folder of its own: see `rank_in_own_folder`.

    Args:
        folder: where the run is recorded; what was there is deleted.
        disk: the ranks' own folders lie in it. Default: `folder`.
        limit: seconds that the run may take.
        variables: of the environment.
    """
    shutil.rmtree(folder, ignore_errors=True)
    run = Watched(Path(script), folder, disk or folder, ranks)
    for rank in range(ranks):
        (run.disk / f"rank-{rank}" / "horovod.json").unlink(missing_ok=True)
    options = {
        "HVDLAB_RUN_DIR": str(folder.absolute()),
        "HVDLAB_LIMIT": f"{limit:g}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # The script imports what is beside hvdlab, wherever it lies.
        "PYTHONPATH": os.pathsep.join(
            [str(RANK_SCRIPT.parents[3]), os.environ.get("PYTHONPATH", "")]
        ),
        # One rank that waits in vain for another ends the run, and says so.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": f"{limit / 6:.0f}",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": f"{limit / 3:.0f}",
    }
    arguments = (run.disk.absolute(), Path(script).absolute(), *arguments)
    try:
        launch.run(
            RANK_SCRIPT,
            *arguments,
            ranks=ranks,
            timeout=limit + START,
            show=False,
            **{**options, **variables},
        )
    except launch.LaunchError as error:
        run.failure = _why(run, "did not end" in str(error), limit, str(error))
    return run


def _why(run: Watched, late: bool, limit: float, error: str) -> str:
    """The sentence that says where ranks hang, or which error ended one of them."""
    if late:
        places = [f"rank {rank} {_stuck(run, rank)}" for rank in range(run.ranks)]
        return (
            f"the ranks do not end within {limit:g} s: {'; '.join(places)}. Does one of them wait for a "
            "message that the other never sends?"
        )
    if stalled := re.findall(r"^(\d+)!: \[([^,\]]+)", run.printed(0), re.M):  # Horovod's report
        missing = " and ".join(f"rank {rank} takes no part in {tensor}" for rank, tensor in stalled)
        return (
            f"ranks wait for each other in vain: {missing}. All must make the same calls, in order."
        )
    errors = {}
    for rank in range(run.ranks):
        found = re.findall(
            r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", run.printed(rank), re.M
        )
        if found:
            errors[rank] = found[-1][:400]
    # A rank that hears of another's end is not the one to blame. TensorFlow calls that unknown.
    heard = re.compile("Horovod|shut down|UnknownError")
    blamed = sorted(errors, key=lambda rank: bool(heard.search(errors[rank])))
    if blamed:
        return f"rank {blamed[0]} ended with an error{_line(run, blamed[0])}: {errors[blamed[0]]}"
    return f"the run failed: {error[-400:]}"


def _stuck(run, rank) -> str:
    stack = run.printed(rank).rpartition("Timeout (")[2]
    number = re.search(rf'"[^"]*{re.escape(run.script.name)}", line (\d+)', stack)
    return f"is in {_quote(run, number[1])}" if number else "is somewhere outside the script"


def _line(run, rank) -> str:
    numbers = re.findall(rf'"[^"]*{re.escape(run.script.name)}", line (\d+)', run.printed(rank))
    return f" in {_quote(run, numbers[-1])}" if numbers else ""


def _quote(run, number) -> str:
    source = run.script.read_text().splitlines()[int(number) - 1].strip()
    return f"line {number} (`{source}`)"
