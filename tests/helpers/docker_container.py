"""Run a command as root in a container like Docker's, without Docker.

    run(place, command, landlock=False)

The container's file system is that of this machine, read-only. The command gets the namespaces, the
capabilities, the hidden paths and the filter of system calls (seccomp) that Docker gives to root by default.
Docker's filter lists the calls that it allows. Here it is written as the list of the calls that it refuses,
see https://docs.docker.com/engine/security/seccomp/.

Nothing is left on the machine, because the mounts and processes lie in namespaces that end with the command.
Needs root and the packages `runc` and `util-linux`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNC = shutil.which("runc", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
INSIDE = Path("/mnt/place")  # where the container sees the folder of the caller

CAPABILITIES = """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP
    SETUID SYS_CHROOT
""".split()
REFUSED = """
    acct add_key bpf clock_settime create_module delete_module fanotify_init finit_module fsconfig fsmount
    fsopen fspick get_kernel_syms get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup
    ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind mount mount_setattr move_mount
    move_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise
    query_module quotactl reboot request_key set_mempolicy setdomainname sethostname setns settimeofday
    swapoff swapon syslog umount umount2 unshare uselib userfaultfd ustat vhangup vm86 vm86old
""".split()
LANDLOCK = ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
NEW_NAMESPACES = [1 << bit for bit in (17, 25, 26, 27, 28, 29, 30)]  # flags of clone
EPERM, ENOSYS = 1, 38
MASKED = """
    /proc/acpi /proc/asound /proc/kcore /proc/keys /proc/latency_stats /proc/sched_debug /proc/scsi
    /proc/timer_list /sys/firmware
""".split()
READ_ONLY = "/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger".split()


def why_not() -> str:
    """Return why no container can be started here; "" if one can."""
    if os.geteuid():
        return "only root can start a container without Docker"
    if not RUNC:
        return "runc is not installed (apt install runc)"
    with tempfile.TemporaryDirectory(prefix="hvdlab-tests-") as place:
        answer = run(Path(place), ["true"], seconds=30)
    return f"runc starts no container here: {answer.stderr[-300:]}" if answer.returncode else ""


def run(
    place: Path,
    command: list[str],
    *,
    landlock: bool = True,
    python_for_all: bool = True,
    seconds: float = 300,
) -> subprocess.CompletedProcess:
    """Run a command as process 1 of a container.

    Args:
        place: a folder of the caller, which the container sees at INSIDE and may write to.
        command: the command and its arguments.
        landlock: whether the filter allows Landlock. Otherwise it refuses it like Docker before 20.10.
        python_for_all: whether all users can read this checkout and its Python. Otherwise only root can.
        seconds: the container is killed after this time.

    Raises:
        subprocess.TimeoutExpired: the command took longer.
    """
    with tempfile.TemporaryDirectory(prefix="hvdlab-tests-") as name:
        bundle = Path(name)
        (bundle / "root").mkdir()
        settings = config(command, landlock, mounts(place, bundle, python_for_all))
        (bundle / "config.json").write_text(json.dumps(settings))
        # runc changes the root of the file system, which must be a mount of its own.
        start = 'mount --bind / "$1/root" && cd "$1" && exec "$2" --root "$1/state" run "$3"'
        own_world = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return subprocess.run(
            [*own_world, "sh", "-c", start, "sh", bundle, RUNC, bundle.name],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip


def config(command: list[str], landlock: bool, mounted: list[dict]) -> dict:
    """Return the settings of the container, as the OCI's specification of runtimes defines them."""
    variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(INSIDE)}
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    sets = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "args": list(map(str, command)),
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "capabilities": sets,
        },
        "root": {"path": "root", "readonly": True},
        "mounts": mounted,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": refused(landlock)},
        },
    }


def refused(landlock: bool) -> list[dict]:
    """Return the rules of the filter of system calls."""

    def rule(names: list[str], error: int, **more: list) -> dict:
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error, **more}

    rules = [rule(REFUSED, EPERM), rule(["clone3"], ENOSYS)]
    for flag in NEW_NAMESPACES:
        set_in = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(rule(["clone"], EPERM, args=[set_in]))
    return rules if landlock else [*rules, rule(LANDLOCK, EPERM)]


def mounts(place: Path, bundle: Path, python_for_all: bool) -> list[dict]:
    """Return the file systems of the container, in the order in which they are mounted."""

    def mount(where: str | Path, kind: str, *options: str) -> dict:
        return {"destination": str(where), "type": kind, "source": kind, "options": list(options)}

    def bind(source: Path, where: Path, *options: str) -> dict:
        return {"destination": str(where), "source": str(source), "options": ["bind", *options]}

    # What Python needs: this checkout, and the installation from which its environment was made.
    needed = [ROOT, Path(sys.base_prefix)]
    above = [folder for path in needed for folder in reversed(path.parents)]
    covered = {folder: 0o755 for folder in above if not folder.stat().st_mode & 0o001}
    covered |= {} if python_for_all else {ROOT.parent: 0o700}
    covers = []
    for folder, mode in covered.items():  # an empty folder with this mode takes its place
        empty = bundle / f"empty-{len(covers)}"
        empty.mkdir()
        empty.chmod(mode)
        covers.append(bind(empty, folder))
    return [
        mount("/proc", "proc"),
        mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount(
            "/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"
        ),
        mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        mount("/tmp", "tmpfs", "mode=1777"),
        mount(INSIDE.parent, "tmpfs", "mode=755"),
        *covers,
        *(bind(path, path, "ro") for path in needed),
        bind(place, INSIDE),
    ]
