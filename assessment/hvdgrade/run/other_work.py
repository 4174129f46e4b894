"""Measure the processor time that other programs took from a run.

The kernel counts for how long each processor was idle. In the rest of the time that passed, the processor
worked for the run, for another program, or (stolen time) for another virtual machine. So without the run's
own processor time, what is left is the work of others. Only the processors that this process may use are
counted.

Three rules keep the measurement from blaming others:

* Other work disturbs a run only if no processor is idle. So what counts in each second is the other work
  minus the idle time.
* The time of interrupts counts neither as own nor as other work. The kernel does not say for whom it
  handles an interrupt, and the messages of the run cause most of them.
* A submission cannot pass its own work off as other work. Its processes cannot leave its control group, nor
  the tree of processes below the grader. The kernel measures idle time and used time continuously; the
  other counters are estimated at each tick of the clock, and a process can hide from the ticks.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from hvdgrade.evidence.observation import OtherWork
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.sandbox.cgroup import groups, is_root, processor_seconds

STAT = Path("/proc/stat")
KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Some containers show counters that stand still, or those of other processors. Their sum differs from the
# time that passed, or the run seems to have used more than all programs together.
LEAST_COUNTED = 0.5  # counted time / time that passed
MOST_TOO_MUCH = 0.1  # own time that the processors do not show / time that passed


class CannotMeasure(Exception):
    """The kernel does not show what others used. The message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Sample:
    """What the kernel had counted at one moment: seconds, added up over `processors` processors.

    Attributes:
        processors: number of processors.
        passed: time since an arbitrary moment.
        idle: time without work.
        interrupts: time for interrupts.
        stolen: time that the hypervisor gave to others.
        counted: time of all kinds.
        own: processor time of the run and the grader.
    """

    processors: int
    passed: float
    idle: float
    interrupts: float
    stolen: float
    counted: float
    own: float

    def __sub__(self, before: "Sample") -> "Sample":
        """Return what was counted since an earlier sample."""
        names = ("passed", "idle", "interrupts", "stolen", "counted", "own")
        return Sample(
            self.processors, *(getattr(self, name) - getattr(before, name) for name in names)
        )

    @property
    def others(self) -> float:
        """Return the processor time of all other programs; negative if the counters do not fit together."""
        return self.passed - self.idle - self.interrupts - self.own

    @property
    def taken(self) -> float:
        """Return the processor time that others used while no processor was idle."""
        return min(max(self.others - self.idle, 0.0), self.passed)


def sample(stat: str, processors: set[int], seconds: float, own: float) -> Sample:
    """Return the sample for the content of /proc/stat.

    Args:
        own: processor time of the run and the grader so far, in seconds.

    Raises:
        CannotMeasure: a processor is missing.
    """
    found: dict[int, dict[str, float]] = {}
    for line in stat.splitlines():
        name, *counters = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and len(counters) >= len(KINDS):
            ticks = map(int, counters)
            found[int(name[3:])] = {
                kind: count / TICKS_PER_SECOND for kind, count in zip(KINDS, ticks, strict=False)
            }
    if missing := processors - set(found):
        raise CannotMeasure(f"{STAT} does not list processor {min(missing)}")

    def total(*kinds: str) -> float:
        return sum(found[number][kind] for number in processors for kind in kinds)

    return Sample(
        len(processors),
        len(processors) * seconds,
        total("idle", "iowait"),
        total("irq", "softirq"),
        total("steal"),
        total(*KINDS),
        own,
    )


def summary(samples: list[Sample], most: float | None = None) -> OtherWork:
    """Return what others took between the first and the last sample.

    Args:
        samples: in order of time.
        most: upper limit, in seconds of processor time. Default: none.
    """
    whole = samples[-1] - samples[0]
    if whole.counted < LEAST_COUNTED * whole.passed or whole.passed <= 0:
        return OtherWork(unknown=f"the counters in {STAT} do not add up to the time that passed")
    if whole.others < -MOST_TOO_MUCH * whole.passed:
        return OtherWork(unknown=f"{STAT} does not show the work of the run itself")
    pairs = zip(samples, samples[1:], strict=False)
    seconds = sum((later - earlier).taken for earlier, later in pairs)
    seconds = seconds if most is None else max(0.0, min(seconds, most))
    return OtherWork(seconds, seconds / whole.passed)


class OtherWorkMeter:
    """Measure what others take from a run, from the creation of this object until `result` is called.

    Args:
        run: the run, entered and not yet started. Call `sample` about once per second while it runs.
    """

    def __init__(self, run: SandboxedRun) -> None:
        self.processors = os.sched_getaffinity(0)
        self.own, self.outside = own_work(run)
        self.samples: list[Sample] = []
        self.unknown = ""
        self.outside_before = self.outside()
        self.sample()

    def sample(self) -> None:
        """Read the counters of the kernel."""
        try:
            stat, now = STAT.read_text(encoding="ascii"), time.monotonic()
            self.samples.append(sample(stat, self.processors, now, self.own()))
        except (CannotMeasure, OSError, ValueError, psutil.Error) as error:
            self.unknown = self.unknown or str(error)

    def result(self) -> OtherWork:
        """Read the counters a last time, and return what others took."""
        self.sample()
        if self.unknown:
            return OtherWork(unknown=self.unknown)
        after = self.outside()
        if after is None:
            return summary(self.samples)
        stolen = self.samples[-1].stolen - self.samples[0].stolen
        return summary(self.samples, most=after - self.outside_before + stolen)


def own_work(run: SandboxedRun) -> tuple[Callable[[], float], Callable[[], float | None]]:
    """Return a function for the processor seconds of the run and the grader, and one for those of others.

    The first function reads a control group if it can: the one of the run, or the one in which the grader
    itself runs. The latter may hold other programs too, which then do not count as others.

    Without a control group, the tree of processes below the grader is added up. A process in it can hide
    work: if it ignores the end of its children, the kernel forgets their processor time. So in this case,
    others are held to have taken at most what the processes outside the tree have used. The second function
    returns that; otherwise it returns None.
    """
    cgroup, here = run.box.cgroup, groups()
    if cgroup and processor_seconds(cgroup.folders) is not None:
        return lambda: processor_seconds(cgroup.folders) + time.process_time(), lambda: None
    if processor_seconds(here) is not None and not is_root(here):
        return lambda: processor_seconds(here), lambda: None
    return lambda: sum(map(work_of, tree())), outside_the_tree


def tree() -> list[psutil.Process]:
    """Return this process and all processes below it, with those that have ended and still count."""
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def work_of(process: psutil.Process) -> float:
    """Return the processor seconds of a process and of its children that have ended; 0 if it is gone."""
    try:
        used = process.cpu_times()
    except psutil.Error:
        return 0.0
    return used.user + used.system + used.children_user + used.children_system


def outside_the_tree() -> float:
    """Return the processor seconds of all processes that are not below this one."""
    inside = set(tree())
    return sum(work_of(process) for process in psutil.process_iter() if process not in inside)
