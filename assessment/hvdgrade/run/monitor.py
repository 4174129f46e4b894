"""Watch a running submission from outside: its time, its recorded files, its output and its end.

All measurements come from the kernel or from the grader's own clock. Weights are copied as soon as
they appear, through file descriptors that follow no link. The output of a submission is only displayed.
"""

import os
import re
import resource
import selectors
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from shutil import disk_usage

from hvdgrade.evidence.observation import Observation
from hvdgrade.run.captured_output import CapturedOutput, ask_for_stacks, stacks
from hvdgrade.run.collect import collect, reported
from hvdgrade.run.other_work import OtherWorkMeter
from hvdgrade.run.processes import Activity, has_torch, left_their_cores, memory_of_launcher
from hvdgrade.run.rank_devices import DeviceWatch
from hvdgrade.run.sandboxed_run import SandboxedRun

POLL_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
END_SECONDS = 10  # for the started process to end after all others have been ended
MAX_OUTPUT_BYTES = 20 << 20
MAX_LAUNCHER_BYTES = 200 << 20  # of memory; without output mpirun has 20 to 30 MB

Tell = Callable[..., None]


class Monitor:
    """A run that is being watched: a context manager. Call `poll` until `end_cause` returns a cause.

    Args:
        copies: empty folder that receives the copies of weights and records.
        limit: seconds from launch after which the run is ended ("timeout") ...
        stall: seconds without any work on any rank after which it is ended ("hang").
        tell: called with a line about the progress about once per second.
        until: end the run when every rank has recorded this epoch ("ended"). Default: no such end.
        least: ... if every rank has recorded so many epochs by then. Default: in any case.
        extended: seconds from launch after which it is ended even so. Default: `limit`.
    """

    def __init__(
        self,
        run: SandboxedRun,
        copies: Path,
        limit: float,
        stall: float,
        tell: Tell = lambda text, **facts: None,
        until: int | None = None,
        least: int = 0,
        extended: float | None = None,
    ) -> None:
        self.run, self.copies, self.limit, self.stall = run, copies, limit, stall
        self.tell, self.until = tell, until
        self.least, self.extended = least, limit if extended is None else extended
        self.seen, self.output = Observation(run.ranks), CapturedOutput()
        self.disk_bytes = self.launcher_bytes = 0
        self.strayed = False  # a process gave itself cores that the run was not given
        self.recorded_enough = False

    def __enter__(self) -> "Monitor":
        self.children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.other_work = OtherWorkMeter(self.run)
        self.started = self.sampled = self.now = self.seen.started = time.monotonic()
        self.process = self.run.start()
        self.activity = Activity(self.started)
        with ExitStack() as stack:
            self.selector = stack.enter_context(selectors.DefaultSelector())
            self.devices = stack.enter_context(DeviceWatch(self.run.ranks))
            os.set_blocking(self.process.stdout.fileno(), False)
            self.selector.register(self.process.stdout, selectors.EVENT_READ)
            self.resources = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.resources.close()

    def poll(self) -> None:
        """Wait a moment for output, copy new records, and sample the processes once per SAMPLE_SECONDS."""
        if self.selector.select(POLL_SECONDS):
            self.output.read(self.process.stdout)
            if self.output.closed:
                self.selector.unregister(self.process.stdout)
        self.now = time.monotonic()
        if collect(self.run, self.copies, self.seen):
            self.activity.note(self.now)
        if self.now - self.sampled >= SAMPLE_SECONDS:
            self.sample()
            self.sampled = self.now

    def sample(self) -> None:
        """Read from the kernel what the processes of the run do and use, and report the progress."""
        run, seen = self.run, self.seen
        ranks, processes = run.rank_processes(), run.processes()
        self.disk_bytes, self.launcher_bytes = run.disk_bytes(), memory_of_launcher(ranks)
        self.strayed = left_their_cores(processes)
        seen.free_bytes = min(seen.free_bytes, free_bytes(run))
        sent = run.network_bytes() or 0  # the last reading outlives the run
        self.activity.sample(self.now, ranks, self.output.bytes + self.disk_bytes, sent)
        self.devices.sample(ranks)
        seen.max_rss_bytes = max(seen.max_rss_bytes, self.activity.rss_bytes)
        seen.computed = self.activity.computed
        self.other_work.sample()
        # Look at all processes, because a rank can hide from the grader that it is a rank.
        seen.torch_seen = seen.torch_seen or any(map(has_torch, processes))
        seconds, epochs = self.seconds, max((w.epoch + 1 for w in seen.weights), default=0)
        self.tell(
            f"{seconds:3.0f} s of {self.limit:.0f} s, {epochs} epochs recorded",
            seconds=round(seconds, 1),
            limit=round(self.limit, 1),
            epochs=reported(self.copies, seen),
        )

    @property
    def seconds(self) -> float:
        """Return the seconds from launch to the last call of `poll`."""
        return self.now - self.started

    def end_cause(self) -> str | None:
        """Return why the run has ended or must be ended, one of STOP_CAUSES; None while it may continue."""
        seen = self.seen
        if self.until is not None and all(
            self.until in seen.of(rank) for rank in range(seen.ranks)
        ):
            self.recorded_enough = True
            return "ended"
        if cause := next(filter(None, (limit(self) for limit in LIMITS)), None):
            return cause
        return None if self.process.poll() is None else "ended"

    def finish(self, cause: str) -> Observation:
        """End what is left of the run, and return what was observed."""
        run, seen = self.run, self.seen
        seen.seconds = time.monotonic() - self.started
        seen.other_work = self.other_work.result()
        seen.devices = self.devices.found()
        seen.free_bytes = min(seen.free_bytes, free_bytes(run))
        if cause in ("timeout", "hang"):
            ask_for_stacks(run, self.process, self.output)
        collect(run, self.copies, seen)
        seen.bytes_on_wire, limit_hit = run.network_bytes(), run.limit_hit()
        seen.survivors = run.kill()
        self.process.wait(timeout=END_SECONDS)
        if cause == "ended" and run.disk_bytes() > run.most_records:
            cause = "disk_full"  # it wrote too much between two samples, and has ended already
        self.output.read(self.process.stdout)
        self.process.stdout.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        before = self.children
        seen.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if cause == "ended":
            seen.exit_code = 0 if self.recorded_enough else self.process.returncode
            if seen.exit_code:
                cause = limit_hit or ("killed" if seen.exit_code > 128 else "crashed")
        seen.stop_cause = cause
        seen.output, seen.output_bytes = self.output.text(), self.output.bytes
        if cause in ("timeout", "hang"):
            seen.stacks = stacks(seen.output)
            # The submission's own output ends where the stacks begin that the grader asked for.
            asked_for = r"\[\d+,\d+\]<stderr>: ?Fatal Python error: Aborted"
            seen.output = re.split(asked_for, seen.output)[0]
        return seen


def output_flood(monitor: Monitor) -> str | None:
    too_much = monitor.output.bytes > MAX_OUTPUT_BYTES
    return "output_flood" if too_much or monitor.launcher_bytes > MAX_LAUNCHER_BYTES else None


def kernel_limit(monitor: Monitor) -> str | None:
    return monitor.run.limit_hit()


def disk_full(monitor: Monitor) -> str | None:
    written = max(monitor.disk_bytes, monitor.seen.copied_bytes)
    return "disk_full" if written > monitor.run.most_records else None


def took_more_cores(monitor: Monitor) -> str | None:
    return "took_more_cores" if monitor.strayed else None


def timeout(monitor: Monitor) -> str | None:
    if monitor.seconds <= monitor.limit:
        return None
    seen = monitor.seen
    recorded = min(len(seen.of(rank)) for rank in range(seen.ranks))
    enough = recorded >= monitor.least or monitor.seconds > monitor.extended
    return "timeout" if enough else None


def hang(monitor: Monitor) -> str | None:
    return "hang" if monitor.now - monitor.activity.last > monitor.stall else None


# In this order: the first limit that is exceeded is the cause.
LIMITS = (output_flood, kernel_limit, disk_full, took_more_cores, timeout, hang)


def observe(
    run: SandboxedRun,
    copies: Path,
    limit: float,
    stall: float,
    tell: Tell = lambda text, **facts: None,
    until: int | None = None,
    least: int = 0,
    extended: float | None = None,
) -> Observation:
    """Run the submission in `run` and watch it until it ends or must be ended. Arguments: see `Monitor`."""
    with Monitor(run, copies, limit, stall, tell, until, least, extended) as monitor:
        while not (cause := monitor.end_cause()):
            monitor.poll()
        return monitor.finish(cause)


def free_bytes(run: SandboxedRun) -> float:
    """Return the free bytes of the disk that the run needs; inf if the submission removed its folder."""
    try:
        return disk_usage(run.box.folder).free
    except OSError:
        return inf
