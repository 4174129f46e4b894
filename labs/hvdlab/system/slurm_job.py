"""What Slurm has given to this job, read from its variables (stdlib only)."""

from __future__ import annotations  # the doctor reads this with an old Python, too

import os
import re


def tasks_on_nodes() -> list[int]:
    """The ranks that Slurm lets start on each node of this allocation; empty outside of one."""
    return _on_nodes("SLURM_TASKS_PER_NODE")


def cpus_on_nodes() -> list[int]:
    """The hardware threads that this job has on each node; empty outside of an allocation."""
    return _on_nodes("SLURM_JOB_CPUS_PER_NODE")


def _on_nodes(variable):
    if "SLURM_JOB_ID" not in os.environ:
        return []
    counts = []  # 2(x3),1 means 2,2,2,1
    for part in os.environ.get(variable, "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found:
            counts += [int(found[1])] * int(found[2] or 1)
    return counts
