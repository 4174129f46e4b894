"""Read from Slurm's environment variables what this job may use. Standard library only."""

from __future__ import annotations  # the doctor reads this with an old Python, too

import os
import re


def tasks_on_nodes() -> list[int]:
    """Return how many ranks may start on each node of the allocation; [] outside of an allocation."""
    return _on_nodes("SLURM_TASKS_PER_NODE")


def cpus_on_nodes() -> list[int]:
    """Return how many hardware threads this job has on each node; [] outside of an allocation."""
    return _on_nodes("SLURM_JOB_CPUS_PER_NODE")


def nodes() -> list[str]:
    """Return the names of the nodes of the allocation; [] outside of one.

    Slurm shortens them: "gpu[01-02,7],login" means gpu01, gpu02, gpu7 and login.
    """
    names = []
    text = os.environ.get("SLURM_JOB_NODELIST", "") if "SLURM_JOB_ID" in os.environ else ""
    for before, ranges, after in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?([^,\[]*)", text):
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last) + 1) if last else [first]
            names += [f"{before}{str(number).zfill(len(first))}{after}" for number in numbers]
    return names


def _on_nodes(variable: str) -> list[int]:
    if "SLURM_JOB_ID" not in os.environ:
        return []
    counts = []  # 2(x3),1 means 2,2,2,1
    for part in os.environ.get(variable, "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found:
            counts += [int(found[1])] * int(found[2] or 1)
    return counts
