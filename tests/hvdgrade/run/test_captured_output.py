"""Each rank that hangs prints its stack, even if it is late."""

import signal
import time

import psutil
import pytest

from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import SandboxedRun

pytestmark = pytest.mark.mpi
WAITS = """\
import os, time
from mpi4py import MPI

def first(): tell(); time.sleep(1000)
def second(): tell(); time.sleep(1000)
def tell(): open(f"{os.environ['HVDLAB_RUN_DIR']}/waiting-{MPI.COMM_WORLD.rank}", "w").close()
[first, second][MPI.COMM_WORLD.rank]()
"""


def test_a_late_rank_prints_its_stack_before_it_is_ended(outer_tier, tmp_path, monkeypatch):
    """On a busy machine mpirun may end a late rank as soon as another rank has ended."""
    send, aborted = psutil.Process.send_signal, []

    def late(process, number):
        if number == signal.SIGABRT and process.pid not in aborted:
            if aborted:
                time.sleep(1)
            aborted.append(process.pid)
        send(process, number)

    start = SandboxedRun.start

    def started(jail):
        """Wait until both ranks wait, because a start may take longer than `stall` on a busy machine."""
        process, deadline = start(jail), time.monotonic() + 60
        while not all((jail.records / f"waiting-{rank}").exists() for rank in range(2)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        return process

    monkeypatch.setattr(SandboxedRun, "start", started)
    monkeypatch.setattr(psutil.Process, "send_signal", late)
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "evidence").mkdir()
    with SandboxedRun(WAITS.encode(), 2, tmp_path / "data", tier=outer_tier) as jail:
        seen = observe(jail, tmp_path / "evidence", limit=60, stall=3)
    assert (seen.stop_cause, len(aborted), seen.survivors) == ("hang", 2, 0)
    own = [seen.stacks[rank].splitlines()[0] for rank in range(2)]
    assert own == ["assessment.py, line 4, in first", "assessment.py, line 5, in second"]
