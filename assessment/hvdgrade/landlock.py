"""Landlock: a process gives up rights to files, for itself and for all that it starts, for good.

Works without privileges and without namespaces, from Linux 5.13 on; see landlock(7). Standard
library only, as it runs inside a jail.
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
ON_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the others are about folders
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

libc = ctypes.CDLL(None, use_errno=True)


class Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def syscall(number: int, *arguments) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


def version() -> int:
    """The version of Landlock that this kernel has; 0 without one."""
    try:
        return syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(GET_VERSION))
    except OSError:
        return 0


def known(rights: int, here: int) -> int:
    """Those of `rights` that version `here` can take away."""
    return rights & ((1 << (13 if here < 2 else 14 if here < 3 else 15 if here < 5 else 16)) - 1)


def restrict(taken: int, allowed: dict[str, int], scoped: bool = False) -> None:
    """Give up the rights `taken` to all files but those beneath the paths of `allowed`.

    Args:
        taken: rights, such as `READ`. To rename between folders is always among them.
        allowed: path -> those of the rights that are kept for it and, a folder, all beneath it.
            A path that does not exist, or cannot be reached anyway, is left out.
        scoped: also give up signals to processes, and abstract sockets of processes, that are not
            started from here on (version 6, Linux 6.12; an older one leaves them).

    Raises:
        OSError: the kernel has no Landlock, or it is switched off.
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
