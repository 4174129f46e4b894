"""Copy the records of the ranks out of the sandbox."""

import hashlib
import json
import os
import re
import stat
import time
from pathlib import Path

from hvdgrade.evidence.observation import Observation, Weights
from hvdgrade.run.sandboxed_run import SandboxedRun

MAX_RECORD_BYTES = 1 << 20


def collect(jail: SandboxedRun, evidence: Path, seen: Observation) -> bool:
    """Copy weights that have appeared since the last call; True if there were any.

    Each copy has the time at which it was whole: what is replaced while others are copied is not early.
    """
    known = {(w.rank, w.epoch) for w in seen.weights}
    limits, found = jail.record_limits, False
    before, seen.bytes_on_wire = seen.bytes_on_wire or 0, jail.network_bytes()
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
                seen.weights.append(
                    Weights(rank, int(match[1]), seconds, copy, digest, wire, before)
                )
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
