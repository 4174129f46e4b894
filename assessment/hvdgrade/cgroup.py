"""A control group: the kernel limits the memory and the number of all processes in it, and counts.

Both generations, as a machine has one or the other: v2 (one tree) and v1 (a tree a controller). The
new group is made beside or beneath the one in which the grader runs, wherever that is allowed.
"""

import os
import secrets
import time
from pathlib import Path

import psutil

PREFIX = "hvdgrade"
# Controller -> what a group that can be used has: of cgroup v1, and of v2.
ONE = {"memory": ("memory.limit_in_bytes",), "pids": ("pids.max",)}
TWO = {"": ("memory.max", "pids.max")}


def groups() -> dict[str, Path]:
    """Controller -> folder of the group in which this process is; "" is that of cgroup v2."""
    paths, found = {}, {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, file_system = line.partition(" - ")
        root, point = mount.split()[3:5]
        kind, _, options = file_system.split()[:3]
        controllers = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, ())
        for controller in controllers:
            if controller in paths:
                # A container may see only a part of the tree, and then its own group is the root.
                inside = Path(point, os.path.relpath(paths[controller], root))
                found.setdefault(controller, inside if inside.is_dir() else Path(point))
    return found


def read(folder: Path, name: str, key: str = "") -> int | None:
    """The number in a file of a group, or beside `key` in it; None if there is none."""
    try:
        for line in (folder / name).read_text().splitlines():
            if line.startswith(key) and line.split()[-1].isdigit():
                return int(line.split()[-1])
    except OSError:
        pass
    return None


def machine_memory() -> int:
    """Bytes of memory that this process and its children can have together."""
    limits = [psutil.virtual_memory().total]
    for controller, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        if folder := groups().get(controller):
            # Whatever a group around it may have at most, as that of a job, it may not have more.
            limits += [read(group, name) or limits[0] for group in (folder, *folder.parents)]
    return min(limits)


def make(parent: Path, name: str, files: tuple[str, ...]) -> Path:
    """A new group that has `files`, in `parent` or in the group around it.

    Groups that a dead grader left there are removed.
    """
    refused = OSError(f"a new group in {parent} has no {files[0]}")
    for place in (parent, parent.parent):
        try:
            for old in place.glob(f"{PREFIX}-*-*"):
                pid = old.name.split("-")[1]
                if pid.isdigit() and not psutil.pid_exists(int(pid)):
                    remove(old, seconds=0)
            (place / name).mkdir()
        except OSError as error:
            refused = error
            continue
        try:
            if not all((place / name / file).exists() for file in files):
                # v2: what a group can limit is switched on in its parent.
                (place / "cgroup.subtree_control").write_text("+memory +pids")
            if all((place / name / file).exists() for file in files):
                return place / name
        except OSError as error:
            refused = error
        (place / name).rmdir()
    raise refused


def remove(folder: Path, seconds: float = 5) -> None:
    """Remove a group as soon as its last process is gone; give up after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() >= deadline:
                return
        time.sleep(0.02)


class Cgroup:
    """A new group; a context that removes it.

    Args:
        memory_bytes: of all its processes together, with what they write to tmpfs.
        processes: largest number of processes and threads.

    Raises:
        OSError: such a group cannot be made here.
    """

    def __init__(self, memory_bytes: int, processes: int):
        here = groups()
        two = not set(ONE) <= set(here)
        # Not by the number alone: a grader before this one, or in another container, may have had the same.
        name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folders: dict[str, Path] = {}
        try:
            for controller, files in (TWO if two else ONE).items():
                if controller not in here:
                    raise OSError("no cgroups for memory and processes are mounted here")
                self.folders[controller] = make(here[controller], name, files)
            self.memory = self.folders["" if two else "memory"]
            self.pids = self.folders["" if two else "pids"]
            (self.pids / "pids.max").write_text(str(processes))
            if two:
                (self.memory / "memory.max").write_text(str(memory_bytes))
                (self.memory / "memory.oom.group").write_text("1")
            else:
                (self.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            swap = "memory.swap.max" if two else "memory.memsw.limit_in_bytes"
            if (self.memory / swap).exists():  # not every kernel counts swap
                (self.memory / swap).write_text("0" if two else str(memory_bytes))
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> list[str]:
        """What a process writes "0" to, to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    def out_of_memory(self) -> bool:
        """Whether the kernel ended a process because the memory was used up."""
        names = ("memory.events", "memory.oom_control")
        return any(read(self.memory, name, "oom_kill ") for name in names)

    def too_many_processes(self) -> bool:
        """Whether the kernel refused a process or a thread."""
        return bool(read(self.pids, "pids.events", "max "))

    def close(self) -> None:
        for folder in self.folders.values():
            remove(folder)
