"""The stacks of ranks that hang: each prints its own, however late it is."""

import signal
import time

import psutil
import pytest

from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import Jail

pytestmark = pytest.mark.mpi
WAITS = """\
import os, time
from mpi4py import MPI

def first(): tell(); time.sleep(1000)
def second(): tell(); time.sleep(1000)
def tell(): open(f"{os.environ['HVDLAB_RUN_DIR']}/waiting-{MPI.COMM_WORLD.rank}", "w").close()
[first, second][MPI.COMM_WORLD.rank]()
"""


def test_a_rank_that_is_late_is_not_ended_before_it_has_printed(tier, tmp_path, monkeypatch):
    """As on a busy machine: mpirun ends the others when one has ended."""
    send, aborted = psutil.Process.send_signal, []

    def late(process, number):
        if number == signal.SIGABRT and process.pid not in aborted:
            if aborted:
                time.sleep(1)
            aborted.append(process.pid)
        send(process, number)

    start = Jail.start

    def started(jail):
        """The grader may look when both wait: on a busy machine a start may be longer than `stall`."""
        process, deadline = start(jail), time.monotonic() + 60
        while not all((jail.records / f"waiting-{rank}").exists() for rank in range(2)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        return process

    monkeypatch.setattr(Jail, "start", started)
    monkeypatch.setattr(psutil.Process, "send_signal", late)
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "evidence").mkdir()
    with Jail(WAITS.encode(), 2, tmp_path / "data", tier=tier) as jail:
        seen = observe(jail, tmp_path / "evidence", limit=60, stall=3)
    assert (seen.stop_cause, len(aborted), seen.survivors) == ("hang", 2, 0)
    own = [seen.stacks[rank].splitlines()[0] for rank in range(2)]
    assert own == ["assessment.py, line 4, in first", "assessment.py, line 5, in second"]
