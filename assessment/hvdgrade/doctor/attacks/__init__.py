"""Attacks of a submission on the host that grades it, and whether they succeed.

The scripts in this folder run like submissions. Wherever possible, success is measured from outside the
sandbox: by a file that appeared, a connection that was accepted, or a process that still runs.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvdgrade.doctor.attacks.host import SECRET_MODE, Host
from hvdgrade.evidence.observation import Observation
from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.sandbox import landlock
from hvdgrade.sandbox.mounts import hidden
from hvdgrade.sandbox.sandbox import LEAST_ADDRESS_SPACE, WITH_HOST_FILES, Tier

SCRIPTS = Path(__file__).parent
GIB = 1 << 30
LIMIT_SECONDS, STALL_SECONDS = 40, 8
MEMORY_BYTES = GIB  # memory limit of the sandbox of a memory bomb
STOPPED = ("out_of_memory", "too_many_processes", "disk_full")


@dataclass(frozen=True)
class Attack:
    """One script with its arguments, and the test whether it succeeded.

    Attributes:
        text: what the attack tries, for readers.
        script: name of the script in this folder.
        arguments: returns the arguments of the script.
        succeeded: from the host, the output of the script and the folder with its records, returns whether
            the attack succeeded.
        memory: memory limit of the sandbox in bytes. Default: that of a submission.
    """

    text: str
    script: str
    arguments: Callable[[Host], list]
    succeeded: Callable[[Host, str, Path], bool]
    memory: int | None = None


def has_read(path: Path, output: str) -> bool:
    """Return whether the output contains the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() in output


def killed(host: Host) -> bool:
    """Return whether the process to attack has ended."""
    time.sleep(0.2)  # the process needs some time to end after a signal
    return host.victim.poll() is not None


def in_evidence(host: Host, evidence: Path) -> bool:
    """Return whether the secret was copied along with the records of the submission."""
    files = (path for path in evidence.rglob("*") if path.is_file())
    return any(host.token in path.read_text(encoding="utf-8", errors="replace") for path in files)


ATTACKS = {
    "read": Attack(
        "read a file of the grader",
        "read.py",
        lambda host: [host.secret],
        lambda host, output, evidence: has_read(host.secret, output),
    ),
    "solution": Attack(
        "read the solution",
        "read.py",
        lambda host: [host.solution],
        lambda host, output, evidence: has_read(host.solution, output),
    ),
    "private": Attack(
        "read a file that only the grader's user may read",
        "read.py",
        lambda host: [host.private],
        lambda host, output, evidence: has_read(host.private, output),
    ),
    "write": Attack(
        "write outside its folder",
        "write.py",
        lambda host: [host.open_file],
        lambda host, output, evidence: host.open_file.exists(),
    ),
    "code": Attack(
        "write to the grader's code or its private folder",
        "write.py",
        lambda host: host.closed_files,
        lambda host, output, evidence: any(path.exists() for path in host.closed_files),
    ),
    "mode": Attack(
        "change the mode of a file of the grader",
        "mode.py",
        lambda host: [host.secret],
        lambda host, output, evidence: host.secret.stat().st_mode & 0o777 != SECRET_MODE,
    ),
    "kernel": Attack(
        "change a setting of the kernel",
        "kernel_settings.py",
        lambda host: [],
        lambda host, output, evidence: "opened" in output,
    ),
    "connect": Attack(
        "connect to this host",
        "connect.py",
        Host.addresses,
        lambda host, output, evidence: host.connected(host.listener),
    ),
    "service": Attack(
        "connect to a service's socket file",
        "connect.py",
        lambda host: [host.service.getsockname()],
        lambda host, output, evidence: host.connected(host.service),
    ),
    "processes": Attack(
        "start very many processes",
        "fork_bomb.py",
        lambda host: [host.processes, host.token],
        lambda host, output, evidence: f"started {host.processes}" in output,
    ),
    "memory": Attack(
        "take all memory",
        "memory_bomb.py",
        lambda host: [1, MEMORY_BYTES * 3 // 2, LEAST_ADDRESS_SPACE + GIB],
        lambda host, output, evidence: "took" in output,
        MEMORY_BYTES,
    ),
    "memory_shared": Attack(
        "take all memory, in 3 processes",
        "memory_bomb.py",
        lambda host: [3, MEMORY_BYTES * 2 // 3, MEMORY_BYTES * 2 // 3],
        lambda host, output, evidence: output.count("took") == 3,
        MEMORY_BYTES,
    ),
    "disk": Attack(
        "fill the disk",
        "disk_fill.py",
        lambda host: [host.token, 2 * GIB, "HOME", "TMPDIR", "."],
        lambda host, output, evidence: "filled" in output,
    ),
    "shm": Attack(
        "fill /dev/shm",
        "disk_fill.py",
        lambda host: [host.token, GIB + GIB // 4, "/dev/shm"],
        lambda host, output, evidence: "filled" in output,
    ),
    "records": Attack(
        "fill the disk with records",
        "disk_fill.py",
        lambda host: [host.token, 3 * GIB, "HVDLAB_RUN_DIR"],
        lambda host, output, evidence: "filled" in output,
    ),
    "nameless": Attack(
        "fill the disk with files without a name",
        "nameless_files.py",
        lambda host: ["HVDLAB_RUN_DIR", 3 * GIB],
        lambda host, output, evidence: "filled" in output,
    ),
    "daemon": Attack(
        "leave a process behind",
        "daemon.py",
        lambda host: [host.token],
        lambda host, output, evidence: bool(host.survivors()),
    ),
    "signal": Attack(
        "end a process of the grader",
        "signal_others.py",
        lambda host: [host.victim.pid],
        lambda host, output, evidence: killed(host),
    ),
    "trace": Attack(
        "look into a process of the grader",
        "trace.py",
        lambda host: [host.victim.pid],
        lambda host, output, evidence: host.token in output or "attached" in output,
    ),
    "links": Attack(
        "record a link to a secret",
        "links.py",
        lambda host: [host.secret],
        lambda host, output, evidence: in_evidence(host, evidence),
    ),
}


def promised(tier: Tier) -> set[str]:
    """Return the names of the attacks that must not succeed."""
    names = {"disk", "records", "daemon", "links", "memory"}
    cgroup, landlocked = tier.name.endswith("+cgroup"), tier.name == "landlock"
    own_user = tier.own_user and tier.uid_dropped
    if cgroup or tier.uid_dropped:
        names.add("processes")
    if cgroup:
        names.add("memory_shared")
    if tier.name != "rlimits":
        names |= {"private", "code", "kernel", "trace"}
    if tier.name not in WITH_HOST_FILES:
        names |= {"read", "write"}
    if tier.name.startswith("bubblewrap"):
        names |= {"solution", "mode", "connect", "service", "shm", "nameless", "signal"}
    if landlocked and not hidden():
        names.add("solution")
    if own_user:
        names |= {"mode", "signal"}  # Landlock does not restrict chmod
    if landlocked and landlock.version() >= 6:
        names.add("signal")
    return names


def attempt(name: str, tier: Tier, host: Host) -> str:
    """Run one attack in a sandbox.

    Returns:
        "blocked", "reported" (the grader stopped the submission, and its result says why) or "NOT BLOCKED".
    """
    attack = ATTACKS[name]
    source = (SCRIPTS / attack.script).read_bytes()
    arguments = tuple(map(str, attack.arguments(host)))
    jail = SandboxedRun(
        source, 1, host.folder / "data", arguments, tier=tier.name, memory_bytes=attack.memory
    )
    with tempfile.TemporaryDirectory(prefix="hvdgrade-") as evidence:
        with jail:
            observation = observe(jail, Path(evidence), LIMIT_SECONDS, STALL_SECONDS)
        return verdict(attack, host, observation, Path(evidence))


def verdict(attack: Attack, host: Host, observation: Observation, evidence: Path) -> str:
    """Return the result of an attack, and remove what it left on the host.

    Returns:
        "blocked", "reported" or "NOT BLOCKED", see `attempt`.
    """
    try:
        if attack.succeeded(host, observation.output, evidence) or observation.survivors:
            return "NOT BLOCKED"
        return "reported" if observation.stop_cause in STOPPED else "blocked"
    finally:
        host.clean()
