"""Watch a running submission from outside: its time, its recorded files, its output and its end.

All measurements come from the kernel or from the grader's own clock. Weights are copied as soon as
they appear, through file descriptors that follow no link. The output of a submission is only displayed.
"""

import os
import re
import resource
import selectors
import time
from math import inf
from pathlib import Path
from shutil import disk_usage

from hvdgrade.evidence.observation import Observation
from hvdgrade.run.captured_output import Output, ask_for_stacks, stacks
from hvdgrade.run.collect import collect, reported
from hvdgrade.run.processes import Activity, has_torch, left_their_cores, memory_of_launcher
from hvdgrade.run.rank_devices import DeviceWatch
from hvdgrade.run.sandboxed_run import Jail

POLL_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
MAX_OUTPUT_BYTES = 20 << 20
MAX_LAUNCHER_BYTES = 200 << 20  # of memory; without output mpirun has 20 to 30 MB


def observe(
    jail: Jail,
    evidence: Path,
    limit: float,
    stall: float,
    tell=lambda text, **facts: None,
    until: int | None = None,
) -> Observation:
    """Run the submission in `jail` and watch it until it ends or must be ended.

    Args:
        jail: an entered `Jail`.
        evidence: empty folder that receives the copies of weights and records.
        limit: seconds from launch after which the run is ended ("timeout").
        stall: seconds without any work on any rank after which it is ended ("hang").
        tell: called with a line about the progress, now and then.
        until: end the run when every rank has recorded so many epochs ("ended").
    """
    seen = Observation(jail.ranks)
    output = Output()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = seen.started = time.monotonic()
    process = jail.start()
    activity, disk_bytes, launcher_bytes, strayed = Activity(started), 0, 0, False
    with selectors.DefaultSelector() as selector, DeviceWatch(jail.ranks) as devices:
        os.set_blocking(process.stdout.fileno(), False)
        selector.register(process.stdout, selectors.EVENT_READ)
        sampled = started
        while process.poll() is None:
            if selector.select(POLL_SECONDS):
                output.read(process.stdout)
                if output.closed:
                    selector.unregister(process.stdout)
            now = time.monotonic()
            if collect(jail, evidence, seen):
                activity.note(now)
                if until and min(len(seen.of(rank)) for rank in range(seen.ranks)) >= until:
                    seen.exit_code = 0
                    break
            if now - sampled >= SAMPLE_SECONDS:
                ranks, disk_bytes = jail.rank_processes(), jail.disk_bytes()
                launcher_bytes = memory_of_launcher(ranks)
                strayed = left_their_cores(jail.processes())
                seen.free_bytes = min(seen.free_bytes, free_bytes(jail))
                sent = jail.network_bytes() or 0  # the last reading outlives the run
                activity.sample(now, ranks, output.bytes + disk_bytes, sent)
                devices.sample(ranks)
                seen.max_rss_bytes = max(seen.max_rss_bytes, activity.rss_bytes)
                seen.computed = activity.computed
                # Of all its processes: a rank can hide from us that it is one.
                seen.torch_seen = seen.torch_seen or any(map(has_torch, jail.processes()))
                epochs = max((w.epoch + 1 for w in seen.weights), default=0)
                tell(
                    f"{now - started:3.0f} s of {limit:.0f} s, {epochs} epochs recorded",
                    seconds=round(now - started, 1),
                    limit=round(limit, 1),
                    epochs=reported(evidence, seen),
                )
                sampled = now
            if output.bytes > MAX_OUTPUT_BYTES or launcher_bytes > MAX_LAUNCHER_BYTES:
                seen.stop_cause = "output_flood"
            elif hit := jail.limit_hit():
                seen.stop_cause = hit
            elif max(disk_bytes, seen.copied_bytes) > jail.most_records:
                seen.stop_cause = "disk_full"
            elif strayed:
                seen.stop_cause = "took_more_cores"
            elif now - started > limit:
                seen.stop_cause = "timeout"
            elif now - activity.last > stall:
                seen.stop_cause = "hang"
            if seen.stop_cause != "ended":
                break
        seen.seconds = time.monotonic() - started
        seen.devices = devices.found()
        seen.free_bytes = min(seen.free_bytes, free_bytes(jail))
        if seen.stop_cause in ("timeout", "hang"):
            ask_for_stacks(jail, process, output)
        collect(jail, evidence, seen)
        seen.bytes_on_wire = jail.network_bytes()
        hit = jail.limit_hit()
        seen.survivors = jail.kill()
        process.wait(timeout=10)
        if seen.stop_cause == "ended" and jail.disk_bytes() > jail.most_records:
            seen.stop_cause = "disk_full"  # between two looks at it, and it is over already
        output.read(process.stdout)
        process.stdout.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if seen.stop_cause == "ended" and seen.exit_code is None:
        seen.exit_code = process.returncode
        if process.returncode:
            seen.stop_cause = hit or ("killed" if process.returncode > 128 else "crashed")
    seen.output, seen.output_bytes = output.text(), output.bytes
    if seen.stop_cause in ("timeout", "hang"):
        seen.stacks = stacks(seen.output)
        # The submission's own words end where the stacks that we asked for begin.
        seen.output = re.split(r"\[\d+,\d+\]<stderr>: ?Fatal Python error: Aborted", seen.output)[0]
    return seen


def free_bytes(jail: Jail) -> float:
    """On the disk that the run needs; inf where a submission has taken its folder away."""
    try:
        return disk_usage(jail.box.folder).free
    except OSError:
        return inf
