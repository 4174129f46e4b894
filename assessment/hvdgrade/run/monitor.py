"""Watch a running submission from outside: its time, its recorded files, its output and its end.

All measurements come from the kernel or from the grader's own clock. Weights are copied as soon as
they appear, through file descriptors that follow no link. The output of a submission is only displayed.
"""

import hashlib
import json
import os
import re
import resource
import selectors
import stat
import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from shutil import disk_usage

from hvdgrade.devices import DeviceWatch
from hvdgrade.jail import Jail
from hvdgrade.printed import Output, ask_for_stacks, stacks
from hvdgrade.processes import Activity, has_torch, left_their_cores, memory_of_launcher

POLL_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
MAX_RECORD_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 20 << 20
MAX_LAUNCHER_BYTES = 200 << 20  # of memory; without output mpirun has 20 to 30 MB

# Why a run ended. "ended" means that the run ended by itself with exit code 0.
STOP_CAUSES = (
    *("ended", "crashed", "killed", "timeout", "hang", "output_flood"),
    *("out_of_memory", "too_many_processes", "disk_full", "took_more_cores"),
)


@dataclass
class Weights:
    """One rank's weights after one epoch: where the copy lies and when the original appeared."""

    rank: int
    epoch: int
    seconds: float  # since launch, on the grader's clock
    path: Path
    sha256: str
    bytes_on_wire: int | None = None  # between the ranks, since launch; None where not known


@dataclass
class Observation:
    """All that was seen of one run."""

    ranks: int
    started: float = 0.0  # CLOCK_MONOTONIC at launch
    stop_cause: str = "ended"
    exit_code: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    computed: dict[int, float] = field(default_factory=dict)  # rank -> its processor seconds
    devices: list[str] = field(default_factory=list)  # of each rank, see `hvdgrade.devices`
    max_rss_bytes: int = 0
    weights: list[Weights] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # files that are not what they should be
    torch_seen: bool = False  # one of its processes had PyTorch loaded
    bytes_on_wire: int | None = None
    copied_bytes: int = 0  # of weights
    free_bytes: float = inf  # least seen on the disk that the run needs
    output: str = ""
    output_bytes: int = 0
    stacks: dict[int, str] = field(default_factory=dict)  # Python stacks of a hanging run
    survivors: int = 0

    def of(self, rank: int) -> dict[int, Weights]:
        """The weights of one rank: epoch -> weights."""
        return {w.epoch: w for w in self.weights if w.rank == rank}


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


def collect(jail: Jail, evidence: Path, seen: Observation) -> bool:
    """Copy weights that have appeared since the last call; True if there were any.

    Each copy has the time at which it was whole: what is replaced while others are copied is not early.
    """
    known = {(w.rank, w.epoch) for w in seen.weights}
    limits, found = jail.record_limits, False
    for rank in range(jail.ranks):
        folder = jail.records / f"rank-{rank}"
        try:
            directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            for name in os.listdir(directory):
                match = re.fullmatch(r"epoch-([0-9]{3})\.npz", name)
                if not match or (rank, int(match[1])) in known:
                    continue
                # Of sparse files and links, which cost it nothing.
                if seen.copied_bytes > jail.most_records:
                    return found
                if int(match[1]) >= limits.epochs:
                    last = limits.epochs - 1
                    note = f"rank {rank}: {name}: the grader looks at epochs 0 to {last}"
                    if not seen.refused:
                        seen.refused.append(note)
                    continue
                copy = evidence / f"rank-{rank}-{name}"
                if not copy_file(directory, name, copy, limits.file_bytes):
                    note = f"rank {rank}: {name} is not a plain file of at most {limits.file_bytes} bytes"
                    if note not in seen.refused:
                        seen.refused.append(note)
                    continue
                seconds = time.monotonic() - seen.started
                seen.copied_bytes += copy.stat().st_size
                digest = hashlib.sha256(copy.read_bytes()).hexdigest()
                wire = jail.network_bytes()
                seen.weights.append(Weights(rank, int(match[1]), seconds, copy, digest, wire))
                found = True
            copy_file(
                directory, "record.jsonl", evidence / f"rank-{rank}-record.jsonl", MAX_RECORD_BYTES
            )
        finally:
            os.close(directory)
    return found


def reported(evidence: Path, seen: Observation) -> list[dict]:
    """What rank 0's record says of each epoch that arrived: the script's own words, for display."""
    try:
        lines = (evidence / "rank-0-record.jsonl").read_text(errors="replace").splitlines()
    except OSError:
        return []
    arrived = {epoch: weights.seconds for epoch, weights in seen.of(0).items()}
    found = []
    for line in lines[-len(arrived) - 1 :]:
        try:
            values = json.loads(line)
            epoch = values.pop("epoch")
            numbers = {
                str(name)[:40]: value
                for name, value in values.items()
                if type(value) in (int, float)
            }
            if epoch in arrived:
                seconds = round(arrived[epoch], 1)
                found.append({"epoch": epoch, "seconds": seconds, "reported": numbers})
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            continue
    return found


def copy_file(directory: int, name: str, destination: Path, limit: int) -> bool:
    """Copy a plain file of at most `limit` bytes out of an open folder; never follow a link."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return False
        with open(file, "rb", closefd=False) as source:
            destination.write_bytes(source.read(limit))
    finally:
        os.close(file)
    return True
