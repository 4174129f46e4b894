"""Start the ranks of a script under the watch, and return what they have written down."""

import os
from dataclasses import dataclass
from pathlib import Path

from hvdlab import launch
from hvdlab.check.deadlock import Deadlock, read_events
from hvdlab.system.held_folder import held_folder
from hvdlab.trace import records

WATCHED_RANK = Path(__file__).with_name("watched_rank.py")


@dataclass
class Watched:
    """What the ranks of a run have written down, and how the run ended.

    Attributes:
        events: rank -> its events, see `event_log`.
        output: what the ranks printed.
        late: whether the time limit ended the run.
        deadlock: whether the run was ended because its ranks waited for each other for ever.
    """

    events: records.Trace
    output: str
    late: bool
    deadlock: bool


def watched(
    script: Path,
    arguments: list[str],
    ranks: int,
    launcher: str,
    steps: int,
    timeout: float,
    show: bool = False,
    end: int = 0,
    **variables: str,
) -> Watched:
    """Run a script on some ranks under the watch.

    Args:
        launcher: "mpirun" or "torchrun".
        steps: training steps after which a loop ends.
        timeout: time limit in seconds.
        show: whether to print what the ranks print. Default False.
        end: training steps after which the processes end. Default 0: they end by themselves.
        variables: environment variables.
    """
    late = False
    with held_folder("hvdlab-check-") as held:
        folder = held.path
        options = {
            **environment(folder),
            "HVDLAB_CHECK_STEPS": str(steps),
            "HVDLAB_CHECK_END": str(end),
            "HVDLAB_RUN_DIR": str(folder / "run"),
            **variables,
        }
        guard = Deadlock(folder, ranks)
        try:
            with guard:
                output = launch.run(
                    WATCHED_RANK, script.absolute(), *arguments, ranks=ranks, timeout=timeout, show=show,
                    launcher=launcher, force=True, **options,
                )  # fmt: skip
        except launch.LaunchError as error:  # the errors of the ranks are in the events
            output, late = str(error), isinstance(error, launch.TimeUp)
        return Watched(read_events(folder, ranks), output, late, guard.found)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of ranks that write their events into a folder."""
    search = [str(WATCHED_RANK.parents[2]), os.environ.get("PYTHONPATH")]
    return {"HVDLAB_CHECK": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, search))}
