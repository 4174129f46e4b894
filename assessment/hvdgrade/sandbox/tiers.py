"""Find out which isolation levels (tiers) this host can provide for a submission.

    bubblewrap+cgroup   separate file system, network and processes; limits for all processes together
    bubblewrap          the same isolation, but the limits hold for each process
    landlock            the host's files cannot be read or written; network and processes are shared
    user                a user of its own, which only root can give: private files of others are closed to it
    rlimits             only limits for each process: for users whom you trust

The strongest tier comes first. If root grades, the submission is root only in a tier that the instructor has
asked for by name. `tier` finds out what a tier provides by running a test process on this host. Version
numbers are not enough, because containers and settings can disable kernel features.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from hvdgrade.sandbox import landlock
from hvdgrade.sandbox.gpu_access import device_files
from hvdgrade.sandbox.mounts import hidden
from hvdgrade.sandbox.sandbox import Sandbox, SandboxUnavailable, Tier

TIERS = ("bubblewrap+cgroup", "bubblewrap", "landlock", "user", "rlimits")
TRIAL_SECONDS = 20


def choose(required: str | None = None) -> str:
    """Return the name of the strongest tier that works on this host.

    Args:
        required: the weakest tier that is acceptable. Default: any tier in which the submission is not root.

    Raises:
        SandboxUnavailable: `required` is not a tier, or no acceptable tier works here.
    """
    if required is not None and required not in TIERS:
        raise SandboxUnavailable(
            f"{required!r} is no sandbox tier: choose one of {', '.join(TIERS)}"
        )
    good_enough = TIERS[: TIERS.index(required) + 1] if required else TIERS
    for name in good_enough:
        found = tier(name)
        if found.works and (not found.as_root or required in (name, TIERS[-1])):
            return name
    if required is None:
        named = next(name for name in TIERS if tier(name).as_root)
        raise SandboxUnavailable(
            "the submission would run as root, because it can have no user of its own here: "
            f"{tier('user').reason}. If you trust its author with root's rights, add --require-sandbox "
            f"{named}. `hvdgrade doctor` says why no stronger sandbox works"
        )
    raise SandboxUnavailable(
        f"the sandbox {required} does not work here: {tier(required).reason}. "
        "`hvdgrade doctor` says how to fix it"
    )


def describe(name: str) -> dict:
    """Return what a result document contains about the tier."""
    facts = asdict(tier(name))
    return {
        "tier": name,
        **{key: facts[key] for key in ("network_isolated", "uid_dropped", "missing")},
    }


@functools.cache
def tier(name: str) -> Tier:
    """Test a tier on this host and return what it provides. The result is cached in this process."""
    candidates = [Tier(name)]
    if os.geteuid() == 0 and name != "rlimits":
        # Root sets up the sandbox with its own rights and drops them inside. In most containers root
        # lacks the capabilities for that, but a user namespace may still work.
        own = Tier(name, own_user=True, user_namespace=False)
        candidates = [own] if name == "user" else [own, *candidates]
    elif name == "user":
        return replace(*candidates, reason="only root can give a submission a user of its own")
    tried = [attempt(candidate) for candidate in candidates]
    return next((t for t in tried if t.works), tried[-1])


# This program runs inside the sandbox and prints what it sees, as JSON.
LOOK = """
import json, os, sys
def opens(path):
    try:
        return bool(os.listdir(path))
    except OSError:
        return False
other, outside = sys.argv[1:]
print(json.dumps({"user": os.getuid(), "network": os.readlink("/proc/self/ns/net"),
    "own": opens(os.environ["HVDLAB_DATA"]), "other": opens(other), "outside": opens(outside)}))
"""


def attempt(candidate: Tier) -> Tier:
    """Start a test process in this sandbox and return the tier with what the process could see."""
    with tempfile.TemporaryDirectory(prefix="hvdgrade-") as place:
        os.chmod(place, 0o711)
        folders = [Path(place, name) for name in ("0", "1", "outside")]
        for folder in folders:
            folder.mkdir()
            (folder / "file").touch()
            (folder / "file").chmod(0o644)
            folder.chmod(0o755)
        if candidate.name == "user":
            folders[2].chmod(0o700)  # the files that every user can read are open to it, too
        try:
            with Sandbox(candidate, 2, folders[:2]) as box:
                look = [sys.executable, "-BESsc", LOOK, box.data[1], str(folders[2])]
                answer = subprocess.run(
                    box.command([*box.entry(), *look]),
                    env={**box.environment(), "OMPI_COMM_WORLD_RANK": "0"},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=TRIAL_SECONDS,
                )
        except (OSError, SandboxUnavailable) as error:
            return replace(candidate, reason=str(error))
        except subprocess.TimeoutExpired:
            return replace(candidate, reason=f"no answer within {TRIAL_SECONDS} s")
    try:
        seen = json.loads(answer.stdout)
    except ValueError:
        said = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        return replace(candidate, reason=said[-1][:300])
    if not seen["own"]:
        return replace(candidate, reason="the data are not visible inside")
    if candidate.own_user and seen["user"] == 0:
        return replace(candidate, reason="it still runs as root inside")
    if seen["outside"] and candidate.name != "rlimits":
        return replace(candidate, reason="files outside are visible inside")
    found = replace(
        candidate,
        works=True,
        uid_dropped=os.geteuid() != 0 or candidate.own_user,
        network_isolated=seen["network"] != os.readlink("/proc/self/ns/net"),
        views_enforced=not seen["other"],
    )
    return replace(found, missing=missing(found))


def missing(tier: Tier) -> list[str]:
    """Return the protections that the tier lacks, in sentences for an instructor."""
    said, own_user = [], tier.own_user and tier.uid_dropped
    if tier.name == "rlimits":
        said.append(
            "files of this host can be read and written with the rights of the user who runs the grader"
        )
    if tier.name == "user":
        said.append(
            "it can read every file that all users of this host can read, such as the solution and the "
            "grader, and write to folders that are open to all users, such as /tmp, until the disk is full"
        )
    if tier.name == "landlock" and hidden():
        said.append(f"it can read {hidden()}, which lies among what Python needs")
    if tier.name == "landlock" and not own_user:
        emptied = ", and empty them" if landlock.version() < 3 else ""  # Linux 6.2
        said.append(
            f"it can change modes, times and attributes of files of the user who runs the grader{emptied}"
        )
        if not tier.uid_dropped:
            said.append(
                "so it can make programs of root's run as root for every user: it has no user of its own, "
                "because of what `hvdgrade doctor` says about the sandbox user"
            )
    if tier.name == "landlock" and not own_user and tier.uid_dropped and device_files():
        said.append(
            "in a run that gets GPUs it can change what /proc sets for processes of its user, for example "
            "which of them the kernel ends first if memory runs out"
        )
    if tier.name == "rlimits" or (
        tier.name == "landlock" and not own_user and landlock.version() < 6  # Linux 6.12
    ):
        said.append("it can stop or end other processes of its user, those of other gradings too")
    if not tier.network_isolated:
        said.append("the network is not isolated: a submission can reach other machines")
    if not tier.name.startswith("bubblewrap"):
        said += [
            "services of this host that listen on a socket file (Docker, D-Bus) are in reach",
            "it sees the processes of this host, and shares /dev/shm with them"
            + ("" if own_user else ", where what it leaves stays"),
            "it can fill the disk of this host with files without a name, which nobody counts",
        ]
    if not tier.uid_dropped:
        said.append("it runs under root's user id, so the number of its processes is not limited")
    if tier.name != "bubblewrap+cgroup":
        unlimited = ", and not at all in a run that gets GPUs" if device_files() else ""
        said.append(f"memory is limited for each process, not for all of them together{unlimited}")
    if not tier.views_enforced:
        said.append("a rank can read the data that the probe gives to another rank")
    return said
