"""The processor time that other programs took: from recorded counters, and from programs that run."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hvdgrade.evidence.observation import Calibration, OtherWork
from hvdgrade.run import other_work
from hvdgrade.run.monitor import Monitor
from hvdgrade.run.other_work import CannotMeasure, sample, summary
from hvdgrade.run.sandboxed_run import SandboxedRun

# From a virtual machine with two processors, 100 ticks per second. The numbers: user, nice, system, idle,
# iowait, irq, softirq, steal, guest, guest_nice. Guest time is contained in user.
BEFORE = """\
cpu  69131 0 7797 43120 705 0 220 139 0 0
cpu0 37018 0 4363 18612 417 0 59 67 0 0
cpu1 32112 0 3434 24508 287 0 161 71 0 0
intr 489047 0 0
ctxt 489753
"""
BOTH = {0, 1}


def after(cpu0: dict[int, int], cpu1: dict[int, int]) -> str:
    """Return BEFORE with ticks added to some counters: number of the counter -> ticks."""
    lines = BEFORE.splitlines()
    for line, added in ((1, cpu0), (2, cpu1)):
        name, *counts = lines[line].split()
        counts = [int(count) + added.get(place, 0) for place, count in enumerate(counts)]
        lines[line] = " ".join([name, *map(str, counts)])
    return "\n".join(lines)


def taken(stat: str, own: float, seconds: float = 10.0, cpus=BOTH, most=None) -> OtherWork:
    """Return what others took in `seconds` in which the run used `own` processor seconds."""
    samples = [sample(BEFORE, cpus, 100.0, 7.0), sample(stat, cpus, 100.0 + seconds, 7.0 + own)]
    return summary(samples, most)


USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, GUEST = range(9)


@pytest.mark.parametrize(
    "cpu0, cpu1, own, seconds",
    [
        ({USER: 1000}, {USER: 900, SYSTEM: 100}, 20.0, 0.0),  # all of it is the run's own
        ({USER: 1000}, {USER: 1000}, 12.0, 8.0),  # another program has nearly one of two processors
        ({USER: 1000}, {NICE: 1000}, 10.0, 10.0),
        ({USER: 1000}, {USER: 600, STEAL: 400}, 16.0, 4.0),  # another virtual machine
        (
            {USER: 1000},
            {IDLE: 1000},
            0.0,
            0.0,
        ),  # it found an idle processor, so it disturbed nothing
        (
            {USER: 1000},
            {USER: 700, IDLE: 200, IOWAIT: 100},
            10.0,
            4.0,
        ),  # 7 s, 3 s of them from idle time
        ({USER: 1000}, {USER: 500, IRQ: 200, SOFTIRQ: 300}, 15.0, 0.0),  # messages of the run
        ({USER: 1000, GUEST: 1000}, {USER: 1000}, 20.0, 0.0),
        ({USER: 1000}, {USER: 1000}, 20.4, 0.0),  # counters are not read at exactly the same time
    ],
)
def test_other_work_is_what_is_neither_idle_nor_own_nor_an_interrupt(cpu0, cpu1, own, seconds):
    found = taken(after(cpu0, cpu1), own)
    assert found.seconds == pytest.approx(seconds)
    assert found.fraction == pytest.approx(seconds / 20) and not found.unknown


def test_only_the_processors_of_this_process_count():
    stat = after({USER: 1000}, {IDLE: 400, USER: 600})
    assert taken(stat, own=4.0, cpus={0}).fraction == pytest.approx(0.6)
    assert taken(stat, own=4.0, cpus={1}).seconds == pytest.approx(
        0.0
    )  # 2 s, and it was idle for 4 s


def test_each_second_counts_by_itself():
    """Others took a processor for five seconds. That it was idle later does not give the time back."""
    stats = [BEFORE, after({USER: 500}, {USER: 500}), after({USER: 1000}, {USER: 500, IDLE: 500})]
    own = 0.0, 5.0, 10.0
    samples = [sample(stats[i], BOTH, 5.0 * i, own[i]) for i in range(3)]
    assert summary(samples).seconds == pytest.approx(5.0)


def test_others_take_no_more_than_the_processes_outside_have_used():
    stat = after({USER: 1000}, {USER: 1000})
    assert taken(stat, own=0.0, most=3.0).fraction == pytest.approx(0.15)
    assert taken(stat, own=0.0, most=-3.0).fraction == 0.0  # a process outside has ended


@pytest.mark.parametrize(
    "stat, own, why",
    [
        (BEFORE, 0.0, "do not add up"),  # the counters of some containers stand still
        (after({IDLE: 1000}, {IDLE: 1000}), 15.0, "does not show the work of the run"),
    ],
)
def test_says_why_nothing_was_measured(stat, own, why):
    found = taken(stat, own)
    assert found.fraction is None and found.seconds == 0.0 and why in found.unknown


@pytest.mark.parametrize("stat", ["", "cpu  1 2 3", BEFORE.replace("cpu1 ", "cpu7 "), "cpu1 1 2 3"])
def test_a_processor_that_is_not_listed_cannot_be_measured(stat):
    with pytest.raises(CannotMeasure, match=r"/proc/stat does not list processor [01]"):
        sample(stat, BOTH, 0.0, 0.0)


def test_the_budget_follows_from_the_speed_without_other_programs():
    quiet = Calibration("torch", 4.0, [1000.0, 1000.0], OtherWork(0.0, 0.0))
    busy = Calibration("torch", 8.0, [500.0, 500.0], OtherWork(10.0, 0.5))
    assert busy.budget(50_000, 2.6) == quiet.budget(50_000, 2.6) == pytest.approx(134.0)
    unknown = Calibration("torch", 8.0, [500.0, 500.0], OtherWork(unknown="there is no /proc/stat"))
    assert unknown.budget(50_000, 2.6) == pytest.approx(268.0)


# --- programs that run ------------------------------------------------------------------------------

# It prints the id of a process that works, which then is no descendant of this process. It ends after a
# minute in any case.
START_BURNER = """
import os, resource
if (pid := os.fork()) == 0:
    os.setsid()
    os.closerange(0, 3)
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    while True: pass
print(pid)
"""
SPIN = """
import time
while time.process_time() < 2: pass
print({"worked": time.process_time()}, flush=True)
"""
# Works in a daemon of low priority, and in short processes whose end their parent ignores. Each of them
# writes its processor time into a pipe, which is at its end when all have ended.
HIDE_WORK = """
import os, signal, time

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
output, input = os.pipe()

def work(seconds):
    begin = time.process_time()
    while time.process_time() < begin + seconds: pass
    os.write(input, f"{time.process_time() - begin}\\n".encode())
    os._exit(0)

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.nice(5)
        work(1)
    os._exit(0)
for _ in range(20):
    if os.fork() == 0:
        work(0.1)
    try:
        os.wait()
    except ChildProcessError:
        pass
os.close(input)
with open(output) as pipe:
    print({"worked": sum(map(float, pipe))}, flush=True)
"""


@pytest.fixture
def one_processor():
    """Let this process and its children use only one processor, so that none is idle while two want it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def burner(one_processor):
    """A process outside of the tree below this one, which works all the time."""
    started = subprocess.run(
        [sys.executable, "-c", START_BURNER], capture_output=True, text=True, timeout=60, check=True
    )
    process = psutil.Process(int(started.stdout))
    assert process not in psutil.Process().children(recursive=True)
    yield process
    process.kill()
    process.wait(timeout=10)


def watched(source: str, folder: Path, tier: str, ranks: int, tell=lambda *a, **f: None):
    """Run a script; return what was observed, the processor seconds that its ranks report, and the meter."""
    with SandboxedRun(source.encode(), ranks, folder, tier=tier) as run:
        with Monitor(run, folder, limit=150, stall=60, tell=tell) as monitor:
            while not (cause := monitor.end_cause()):
                monitor.poll()
            seen = monitor.finish(cause)
    found = re.findall(r"<stdout>: ?(\{.*\})$", seen.output, re.MULTILINE)
    assert len(found) == ranks, seen.output
    worked = sum(ast.literal_eval(line)["worked"] for line in found)
    return seen, worked, monitor.other_work


@pytest.mark.mpi
def test_counts_a_program_that_runs_outside(burner, outer_tier, tmp_path):
    tmp_path.chmod(0o755)
    worked = []

    def note(*text, **facts):
        worked.append(sum(burner.cpu_times()[:2]))

    seen, own, _ = watched(SPIN, tmp_path, outer_tier, 1, note)
    assert own > 0 and len(worked) > 2 and not seen.other_work.unknown
    by_burner = worked[-1] - worked[0]
    assert seen.other_work.seconds > 0.9 * by_burner > 0
    assert 0.0 < seen.other_work.fraction <= 1.0


@pytest.mark.mpi
@pytest.mark.parametrize("source", [SPIN, HIDE_WORK], ids=["spins", "hides its work"])
def test_does_not_count_what_a_submission_starts(source, outer_tier, tmp_path):
    """What others took and what the run worked fit into the time that passed, on this machine as it is."""
    tmp_path.chmod(0o755)
    seen, own, meter = watched(source, tmp_path, outer_tier, 2)
    whole = meter.samples[-1] - meter.samples[0]
    assert own >= 4 and not seen.other_work.unknown
    assert seen.other_work.seconds < whole.passed - 0.75 * own


@pytest.mark.mpi
def test_a_machine_that_does_not_show_it_changes_nothing_else(outer_tier, tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(other_work, "STAT", tmp_path / "stat")
    seen, _, _ = watched("print({'worked': 0.0})", tmp_path, outer_tier, 1)
    assert seen.stop_cause == "ended" and seen.other_work.fraction is None
    assert "No such file" in seen.other_work.unknown
