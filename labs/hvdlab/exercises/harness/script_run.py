"""Run a learner's script, and put a crash or a hang into a sentence.

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
from hvdlab.exercises.harness.pretended_gpus import GPU
from hvdlab.exercises.harness.rank_observations import (
    BROADCASTS,
    EVALUATED,
    HOROVOD,
    LOADING,
    PROCESS_GROUP,
    TRAINED,
)

RANK_SCRIPT = Path(__file__).with_name("rank_in_own_folder.py")
START = (
    30  # seconds that a launch may take on a busy machine, in addition to the limit of the ranks
)
MAX_ERROR_CHARACTERS = 400
COLLECTIVE = "A broadcast is a collective: every rank must call it, also a receiver. Move it out of the `if`."


@dataclass
class Watched:
    """A run that has ended.

    Attributes:
        script: The path of the script.
        folder: Where the ranks' records are.
        disk: Rank R's own folder is `disk/rank-R`.
        ranks: The number of ranks.
        failure: Why the run failed, in a sentence; empty when it did not.
    """

    script: Path
    folder: Path
    disk: Path
    ranks: int
    failure: str = ""

    def report(self) -> pd.DataFrame:
        """Return the rank report, one row per rank."""
        return rank_report(self.folder)

    def lines(self, rank: int) -> pd.DataFrame:
        """Return what a rank recorded, one row per epoch; no rows where it recorded nothing.

        Args:
            rank: The number of the rank.
        """
        try:
            return curve(self.folder, rank)
        except FileNotFoundError:
            return pd.DataFrame()

    def missing(self, *names: str) -> tuple[int, str] | None:
        """Return the first rank that does not record one of these numbers, and its name; None if all do."""
        lines = enumerate(map(self.lines, range(self.ranks)))
        return next(((rank, n) for rank, line in lines for n in names if n not in line), None)

    def distance(self, epoch: int) -> float:
        """Return the distance between the weights of ranks 0 and 1 after an epoch.

        Args:
            epoch: The number of the epoch.
        """
        return float(np.linalg.norm(self._difference(epoch)))

    def drifts(self) -> bool:
        """Return whether the models of ranks 0 and 1 make different steps in the second epoch.

        Equal steps do not change the difference of the weights, except for rounding.
        """
        step = self._weights(0, 1) - self._weights(0, 0)
        drift = self._difference(1) - self._difference(0)
        return bool(np.linalg.norm(drift) > 1e-3 * np.linalg.norm(step))

    def examples(self, rank: int, epoch: int = 0) -> np.ndarray:
        """Return the indices that a rank read in an epoch.

        Args:
            rank: The number of the rank.
            epoch: The number of the epoch.
        """
        path = self.folder / f"rank-{rank}" / f"epoch-{epoch:03d}.npz"
        return np.load(path)["examples_read"] if path.exists() else np.empty(0, int)

    def printed(self, rank: int) -> str:
        """Return what a rank printed.

        Args:
            rank: The number of the rank.
        """
        path = self.disk / f"rank-{rank}" / "output.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def epoch_lines(self, rank: int) -> list[str]:
        """Return the lines that a rank printed about epochs.

        Args:
            rank: The number of the rank.
        """
        return re.findall(r"^epoch \d.*", self.printed(rank), re.MULTILINE)

    def horovod(self, rank: int) -> dict | None:
        """Return what a rank wrote to horovod.json, see `rank_in_own_folder`; None if there is no such file.

        Args:
            rank: The number of the rank.
        """
        return self._left(rank, HOROVOD)

    def process_group(self, rank: int) -> dict | None:
        """Return rank, size and backend that torch.distributed reports, or None if it was not initialised.

        Args:
            rank: The number of the rank.
        """
        return self._left(rank, PROCESS_GROUP)

    def loading(self, rank: int) -> list[dict]:
        """Return "began" and "ended" of each time a rank loaded the data, in seconds of the machine's clock.

        Args:
            rank: The number of the rank.
        """
        return self._left(rank, LOADING) or []

    def trained(self, rank: int) -> list[tuple[float, int]]:
        """Return per epoch the sum of the losses of the images that a rank trained on, and their number.

        Returns:
            An empty list if they were not observed, as in Keras.
        """
        return self._left(rank, TRAINED) or []

    def evaluated(self, rank: int) -> set[int]:
        """Return checksums of the images that a rank evaluated; empty if they were not observed."""
        return set(self._left(rank, EVALUATED) or [])

    def chosen_gpu(self) -> dict | None:
        """Return which GPU rank 0 chose of those that were pretended, or None: see `pretended_gpus`."""
        return self._left(0, GPU)

    def lonely_broadcast(self) -> str:
        """Return a sentence about a broadcast of torch.distributed that not all ranks called, or ""."""
        lines = [self._left(rank, BROADCASTS) or [] for rank in range(self.ranks)]
        most, least = max(lines, key=len), min(lines, key=len)
        if len(most) == len(least):
            return ""
        line = next((one for one in most if one not in least), most[-1])
        who = " and rank ".join(str(rank) for rank in range(self.ranks) if line in lines[rank])
        return f"only rank {who} runs {_quote(self, line)}. {COLLECTIVE}"

    def checkpoints(self, rank: int) -> list[str]:
        """Return the names of a rank's checkpoints, the latest last.

        Args:
            rank: The number of the rank.
        """
        return sorted(f.name for f in self.disk.glob(f"rank-{rank}/checkpoints/epoch-*"))

    def next_epoch(self) -> int:
        """Return the number of the epoch with which a run continues after rank 0's latest checkpoint."""
        return int(re.findall(r"\d+", self.checkpoints(0)[-1])[0]) + 1

    def drop_last_checkpoint(self) -> None:
        """Remove the latest checkpoint of each rank if it has another one, so that an epoch is repeated."""
        for rank in range(self.ranks):
            if len(names := self.checkpoints(rank)) > 1:
                (self.disk / f"rank-{rank}" / "checkpoints" / names[-1]).unlink()

    def distance_of_repeated(self, other: "Watched", epoch: int) -> float:
        """Return how far rank 0's weights after an epoch are from those in another run of the same epoch.

        Returns:
            The distance in units of what the epoch changes in this run.
        """
        step = self._weights(0, epoch) - self._weights(0, epoch - 1)
        apart = other._weights(0, epoch) - self._weights(0, epoch)
        return float(np.linalg.norm(apart) / np.linalg.norm(step))

    def _left(self, rank: int, name: str) -> dict | list | None:
        path = self.disk / f"rank-{rank}" / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def _difference(self, epoch: int) -> np.ndarray:
        return self._weights(1, epoch) - self._weights(0, epoch)

    def _weights(self, rank: int, epoch: int) -> np.ndarray:
        with np.load(self.folder / f"rank-{rank}" / f"epoch-{epoch:03d}.npz") as file:
            return np.concatenate([file[n].ravel() for n in file.files if n != "examples_read"])


def watch(
    script: str | Path,
    *arguments: object,
    folder: Path,
    disk: Path | None = None,
    ranks: int = 2,
    limit: float = 120.0,
    launcher: str = "mpirun",
    **variables: str,
) -> Watched:
    """Run a script on some ranks, each in a folder of its own: see `rank_in_own_folder`.

    Args:
        disk: Where the ranks' own folders are. Default: `folder`.
        ranks: The number of ranks.
        limit: How long the run may take, in seconds.
        launcher: "mpirun", or "torchrun" for a script of torch.distributed.

    Returns:
        The run. Its `failure` says why it failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    run = Watched(Path(script), folder, disk or folder, ranks)
    for rank in range(ranks):
        for name in (HOROVOD, PROCESS_GROUP, BROADCASTS, EVALUATED, TRAINED, LOADING, GPU):
            (run.disk / f"rank-{rank}" / name).unlink(missing_ok=True)
    options = {
        "HVDLAB_RUN_DIR": str(folder.absolute()),
        "HVDLAB_LIMIT": f"{limit:g}",
        # So that the script imports the modules next to hvdlab from every folder.
        "PYTHONPATH": os.pathsep.join(
            [str(RANK_SCRIPT.parents[3]), os.environ.get("PYTHONPATH", "")]
        ),
        # Horovod then reports a rank that waits for another without end, and ends the run.
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
            launcher=launcher,
            **{**options, **variables},
        )
    except launch.LaunchError as error:
        run.failure = _why(run, "did not end" in str(error), limit, str(error))
    return run


def _why(run: Watched, late: bool, limit: float, error: str) -> str:
    """Return the sentence that says where ranks hang, or which error ended one of them."""
    errors = {}
    for rank in range(run.ranks):
        # PyTorch writes "[rank1]: " before the error of a rank that has a process group.
        ends = r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)"
        if messages := re.findall(ends, run.printed(rank), re.M):
            errors[rank] = messages[-1][:MAX_ERROR_CHARACTERS]
    # A rank that only reports that another rank has ended has no mistake. TensorFlow calls that unknown.
    follow_up = re.compile("Horovod|shut down|UnknownError|gloo/transport|DistNetworkError|by peer")
    if lonely := run.lonely_broadcast():
        if all(map(follow_up.search, errors.values())):
            return lonely
    if late:
        places = [f"rank {rank} {_stuck(run, rank)}" for rank in range(run.ranks)]
        return (
            f"the ranks do not end within {limit:g} s: {'; '.join(places)}. Does one of them wait for a "
            "message that the other never sends?"
        )
    if stalled := re.findall(r"^(\d+)!: \[([^,\]]+)", run.printed(0), re.M):  # Horovod's report
        sent = [(rank, tensor) for rank, tensor in stalled if "broadcast" in tensor.lower()]
        if sent:
            return f"rank {sent[0][0]} takes no part in {sent[0][1]}. {COLLECTIVE}"
        missing = " and ".join(f"rank {rank} takes no part in {tensor}" for rank, tensor in stalled)
        return (
            f"ranks wait for each other: {missing}. All must make the same calls in the same order."
        )
    if errors:
        first = min(errors, key=lambda rank: bool(follow_up.search(errors[rank])))
        return f"rank {first} ended with an error{_line(run, first)}: {errors[first]}"
    # The sentence of the launcher, without the last lines that it printed.
    sentence = error.partition("failed.\n")[2].partition("\n")[0] or error
    return f"the run failed: {sentence[:MAX_ERROR_CHARACTERS]}"


def _stuck(run: Watched, rank: int) -> str:
    stack = run.printed(rank).rpartition("Timeout (")[2]
    number = re.search(rf'"[^"]*{re.escape(run.script.name)}", line (\d+)', stack)
    return f"is in {_quote(run, number[1])}" if number else "is somewhere outside the script"


def _line(run: Watched, rank: int) -> str:
    numbers = re.findall(rf'"[^"]*{re.escape(run.script.name)}", line (\d+)', run.printed(rank))
    return f" in {_quote(run, numbers[-1])}" if numbers else ""


def _quote(run: Watched, number: str | int) -> str:
    source = run.script.read_text(encoding="utf-8").splitlines()[int(number) - 1].strip()
    return f"line {number} (`{source}`)"
