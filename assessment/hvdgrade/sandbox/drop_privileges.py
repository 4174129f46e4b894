"""The last program of ours before a submission: it gives up rights, and becomes COMMAND.

    python -BEsS drop_privileges.py '{"limits": {"CORE": 0}, "user": 61184}' COMMAND ARGUMENTS

A jail runs it outside, to join a cgroup; inside, before mpirun; before each rank; and after a run, to
read a counter of its network. The keys, each optional, are applied in this order:

    namespaces  file descriptors of namespaces to join
    cgroups   files named cgroup.procs of the groups to join
    limits    resource limits: name after RLIMIT_ -> number
    files     {"read": paths, "write": paths}: nothing else can be opened from here on (Landlock)
    view      {"read": paths, "data": one path a rank}: nothing else can be read (Landlock, where the
              kernel has it), and HVDLAB_DATA is this rank's path; "read" is null to leave files alone.
              The variables that torchrun gives a rank are set too
    user      number of the user and group to become; null: stay, without any capability
    follow    true: be killed when the process that started us ends
    ready     file descriptor to which a byte is written when all this is done

Standard library only: it runs where the grader's packages are not visible.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import sys

import landlock

# What torchrun calls a rank's numbers, and what mpirun calls them.
TORCHRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
PDEATHSIG, CAPBSET_DROP, NO_NEW_PRIVS = 1, 24, 38
CAPABILITY_VERSION = 0x20080522

KEYCTL = {"x86_64": 250, "aarch64": 219}  # the number of the system call
KEYCTL_JOIN_SESSION_KEYRING, KEYCTL_CLEAR, KEYCTL_GET_PERSISTENT = 1, 7, 22
OF_PROCESS, OF_USER, OF_USER_SESSION = -2, -4, -5  # keyrings

libc = ctypes.CDLL(None, use_errno=True)


def limit(name: str, number: int) -> None:
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    number = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(kind, (number, number))


def restrict_files(read: list[str], write: list[str]) -> None:
    allowed = dict.fromkeys(read, landlock.READ) | dict.fromkeys(write, landlock.EVERYTHING)
    landlock.restrict(landlock.EVERYTHING, allowed, scoped=True)


def restrict_view(read: list[str] | None, data: list[str]) -> None:
    own = data[int(os.environ["OMPI_COMM_WORLD_RANK"])]
    os.environ["HVDLAB_DATA"] = own
    given = {name: os.environ.get(of_mpirun) for name, of_mpirun in TORCHRUN.items()}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    if read is None or not landlock.version():
        return
    rights = landlock.READ_FILE | landlock.READ_DIR
    landlock.restrict(rights, dict.fromkeys([*read, own], rights | landlock.REFER))


def become(user: int | None) -> None:
    """Another user, or the same one; in both cases without any capability, now and later."""
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        clear_keyrings()
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


def keyctl(*arguments: int) -> int:
    """keyctl(2); -1 where it is not known or refuses."""
    call = KEYCTL.get(platform.machine())
    return libc.syscall(call, *map(ctypes.c_long, arguments)) if call else -1


def leave_session_keyring() -> None:
    """Leave the keyring of the login session, which all processes of the session share, of any user."""
    keyctl(KEYCTL_JOIN_SESSION_KEYRING, 0)


def clear_keyrings() -> None:
    """Remove what a submission that had this user before has left in the kernel's keyrings."""
    persistent = keyctl(KEYCTL_GET_PERSISTENT, -1, OF_PROCESS)
    for keyring in (OF_USER, OF_USER_SESSION, persistent, OF_PROCESS):
        if keyring != -1:
            keyctl(KEYCTL_CLEAR, keyring)


def join(namespace: int) -> None:
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def apply(spec: dict) -> None:
    for namespace in spec.get("namespaces", ()):
        join(namespace)
    for group in spec.get("cgroups", ()):
        with open(group, "w", encoding="ascii") as file:
            file.write("0")  # the writer itself
    for name, number in spec.get("limits", {}).items():
        limit(name, number)
    if "files" in spec:
        restrict_files(**spec["files"])
    if "view" in spec:
        restrict_view(**spec["view"])
    if "user" in spec:
        become(spec["user"])
    leave_session_keyring()
    if spec.get("follow"):
        libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if "ready" in spec:
        os.write(spec["ready"], b"1")
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    try:
        apply(json.loads(sys.argv[1]))
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"the sandbox cannot be entered: {error}")
