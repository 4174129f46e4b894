"""Restrict a process's access to files with Landlock, permanently and for all its child processes.

Landlock needs no privileges and no namespaces. It exists since Linux 5.13; see landlock(7). This
module uses only the standard library because it runs inside a sandbox.
"""

import ctypes
import os
import stat

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
GET_VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
EVERYTHING = (1 << 16) - 1
ON_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the others are for folders
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

libc = ctypes.CDLL(None, use_errno=True)


class Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def syscall(number: int, *arguments: object) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


def version() -> int:
    """Return the Landlock version of this kernel, or 0 if the kernel has no Landlock."""
    try:
        return syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(GET_VERSION))
    except OSError:
        return 0


def known(rights: int, here: int) -> int:
    """Return the subset of `rights` that Landlock version `here` can restrict."""
    return rights & ((1 << (13 if here < 2 else 14 if here < 3 else 15 if here < 5 else 16)) - 1)


def restrict(taken: int, allowed: dict[str, int], scoped: bool = False) -> None:
    """Give up the rights `taken` to all files except those beneath the paths of `allowed`.

    Args:
        allowed: path -> bit mask of the rights that stay for this path. For a folder they stay for
            everything beneath it, too. A path that does not exist, or that this process cannot
            reach anyway, is skipped.
        scoped: also give up sending signals and connecting to abstract sockets, except to
            processes that are started after this call. This needs Landlock version 6 (Linux 6.12);
            older versions do not restrict signals and sockets.

    Raises:
        OSError: the kernel has no Landlock, or Landlock is disabled.
    """
    here = version()
    taken = known(taken | REFER, here)
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if scoped and here >= 6 else 0
    ruleset = Ruleset(taken, 0, scopes)
    rules = syscall(
        CREATE_RULESET,
        ctypes.byref(ruleset),
        ctypes.c_size_t(ctypes.sizeof(ruleset)),
        ctypes.c_uint(0),
    )
    for path, rights in allowed.items():
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue
        rights = known(rights, here) & taken
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= ON_A_FILE
        rule = Beneath(rights, parent)
        if rights:
            syscall(
                ADD_RULE, rules, ctypes.c_int(PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint(0)
            )
        os.close(parent)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    syscall(RESTRICT_SELF, rules, ctypes.c_uint(0))
    os.close(rules)
