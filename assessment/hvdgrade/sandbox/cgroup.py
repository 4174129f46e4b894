"""Control groups (cgroups), with which the kernel limits and counts the memory and processes of a submission.

The module supports both generations, because a machine has one or the other: v2 has a single tree, and v1 has
one tree per controller. The new group is created inside the grader's own group or, if that is not allowed, as
its sibling.
"""

import contextlib
import os
import secrets
import time
from pathlib import Path

import psutil

PREFIX = "hvdgrade"
# Controller -> the files that a usable group has, for cgroup v1 (ONE) and v2 (TWO).
ONE = {"memory": ("memory.limit_in_bytes",), "pids": ("pids.max",)}
TWO = {"": ("memory.max", "pids.max")}
# Controller -> the file with the processor time of a group and its groups below, and seconds per unit. In
# v2 every group has it. In v1 it needs a group of its own, without which a run is only measured less well.
PROCESSOR_TIME = {"cpuacct": ("cpuacct.usage", 1e-9), "": ("cpu.stat", 1e-6)}


def groups() -> dict[str, Path]:
    """Return controller -> folder of the group that this process belongs to; the key "" means cgroup v2."""
    paths, found = {}, {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mount, _, file_system = line.partition(" - ")
        root, point = mount.split()[3:5]
        kind, _, options = file_system.split()[:3]
        controllers = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, ())
        for controller in controllers:
            if controller in paths:
                # A container may see only a subtree of the cgroups. Its own group is then the root of it.
                inside = Path(point, os.path.relpath(paths[controller], root))
                found.setdefault(controller, inside if inside.is_dir() else Path(point))
    return found


def read(folder: Path, name: str, key: str = "") -> int | None:
    """Return the number in a file of a group, or None if there is none.

    Args:
        key: beginning of the line that holds the number. Default: the first line with a number.
    """
    try:
        for line in (folder / name).read_text(encoding="ascii").splitlines():
            if line.startswith(key) and line.split()[-1].isdigit():
                return int(line.split()[-1])
    except OSError:
        pass
    return None


def processor_seconds(folders: dict[str, Path]) -> float | None:
    """Return the processor time that the processes of a group have used so far, or None if it is not counted.

    Args:
        folders: controller -> folder of the group, as in the result of `groups`.
    """
    for controller, (name, unit) in PROCESSOR_TIME.items():
        if controller in folders and (used := read(folders[controller], name)) is not None:
            return used * unit
    return None


def is_root(folders: dict[str, Path]) -> bool:
    """Return whether the group that `processor_seconds` reads contains all processes of the machine."""
    if "cpuacct" in folders:
        return (folders["cpuacct"] / "release_agent").exists()
    return not (folders[""] / "cgroup.type").exists()


def machine_memory() -> int:
    """Return how many bytes of memory this process and its children can use together."""
    limits = [psutil.virtual_memory().total]
    for controller, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        if folder := groups().get(controller):
            # The limit of every enclosing group, for example that of a batch job, applies as well.
            limits += [read(group, name) or limits[0] for group in (folder, *folder.parents)]
    return min(limits)


def make(parent: Path, name: str, files: tuple[str, ...]) -> Path:
    """Create a new group with `files` inside `parent` or, if that fails, inside the parent of `parent`.

    The function also removes groups there that a grader left behind which is no longer running.

    Args:
        files: the control files that the new group must have.

    Returns:
        The folder of the new group.

    Raises:
        OSError: neither place allows a new group with these files.
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
                # In v2, the controllers of a group are enabled in its parent.
                (place / "cgroup.subtree_control").write_text("+memory +pids")
            if all((place / name / file).exists() for file in files):
                return place / name
        except OSError as error:
            refused = error
        (place / name).rmdir()
    raise refused


def remove(folder: Path, seconds: float = 5) -> None:
    """Remove a group as soon as its last process has ended; give up after `seconds`."""
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
    """A new control group with limits. `close` removes it.

    Args:
        memory_bytes: memory limit in bytes for all its processes together, including files that they write
            to tmpfs.
        processes: largest number of processes and threads.

    Raises:
        OSError: such a group cannot be created on this host.
    """

    def __init__(self, memory_bytes: int, processes: int) -> None:
        here = groups()
        two = not set(ONE) <= set(here)
        # The process id is not sufficient as a name, because an earlier grader, or one in another container,
        # may have had the same id.
        name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folders: dict[str, Path] = {}
        try:
            for controller, files in (TWO if two else ONE).items():
                if controller not in here:
                    raise OSError("no cgroups for memory and processes are mounted here")
                self.folders[controller] = make(here[controller], name, files)
            if not two and "cpuacct" in here:
                with contextlib.suppress(OSError):
                    usage, _ = PROCESSOR_TIME["cpuacct"]
                    self.folders["cpuacct"] = make(here["cpuacct"], name, (usage,))
            self.memory = self.folders["" if two else "memory"]
            self.pids = self.folders["" if two else "pids"]
            (self.pids / "pids.max").write_text(str(processes))
            if two:
                (self.memory / "memory.max").write_text(str(memory_bytes))
                (self.memory / "memory.oom.group").write_text("1")
            else:
                (self.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            swap = "memory.swap.max" if two else "memory.memsw.limit_in_bytes"
            if (self.memory / swap).exists():  # not every kernel accounts for swap
                (self.memory / swap).write_text("0" if two else str(memory_bytes))
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> list[str]:
        """Return the files to which a process writes "0" in order to join the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    def out_of_memory(self) -> bool:
        """Return whether the kernel killed a process because the group reached its memory limit."""
        names = ("memory.events", "memory.oom_control")
        return any(read(self.memory, name, "oom_kill ") for name in names)

    def too_many_processes(self) -> bool:
        """Return whether the kernel refused to create a process or thread because of the limit."""
        return bool(read(self.pids, "pids.events", "max "))

    def close(self) -> None:
        for folder in self.folders.values():
            remove(folder)
