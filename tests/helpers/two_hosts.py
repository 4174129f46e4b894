"""Simulate two hosts on this machine, host1 and host2, and a switch, for tests of runs on several hosts.

    with running(folder) as network:
        network.host1.run("mpirun", "-np", "4", "-H", "host1:2,host2:2", ...)
        network.cut("host2")

A host is a set of Linux namespaces: it has its own name, address, processes, /run, /dev/shm and sshd. It
shares all other files and the cores with the machine. The switch is a namespace with a bridge. One process
holds each of the three namespaces, which end with it. This process dies with its parent, so no interface,
mount, name or process is left on the machine, also after `kill -9`.

Needs root and the packages `openssh-server` and `iproute2`.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ADDRESSES = {"host1": "10.99.0.1", "host2": "10.99.0.2"}
PROGRAMS = ("setpriv", "unshare", "nsenter", "ip", "sshd", "ssh", "ssh-keygen")
SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
START_SECONDS = 30
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")  # ends with the process that started it
HOST = ("--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# The first commands of a host. It needs its own /run, because Open MPI names folders there by process
# numbers, and two hosts have the same process numbers.
INIT = """\
set -e
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
hostname {name}
ip link set dev lo up
exec {sshd} -D -e -f {folder}/sshd_config
"""
SSHD = """\
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
SetEnv TMPDIR=/run
"""
SSH = """\
Host *
  BatchMode yes
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
"""


@dataclass(frozen=True)
class Host:
    """A host. `number` is the number of its first process on the machine."""

    name: str
    number: int

    def enter(self, *command: str) -> list[str]:
        """Return the command that runs `command` on this host, in the folder of the caller."""
        here = ["nsenter", f"--target={self.number}", "--all", f"--wd={os.getcwd()}"]
        return [*here, "env", "TMPDIR=/run", *map(str, command)]

    def run(self, *command: str, timeout: float = 60, **variables) -> subprocess.CompletedProcess:
        """Run a command on the host to its end. After `timeout` seconds, end all processes of the host."""
        try:
            return subprocess.run(
                self.enter(*command),
                env={**os.environ, "PATH": SEARCH, **variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            for process in self.processes():
                process.kill()
            raise

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the host except its sshd."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self.number and _namespace(process.pid) == _namespace(self.number)
        ]


@dataclass(frozen=True)
class Network:
    host1: Host
    host2: Host
    switch: int

    def cut(self, name: str) -> None:
        """Disconnect a host from the switch. The other host stays connected and gets no message."""
        _ip(self.switch, "link", "set", "dev", name, "down")

    def connect(self, name: str) -> None:
        """Connect a host again that was cut off."""
        _ip(self.switch, "link", "set", "dev", name, "up")


def why_not() -> str:
    """Return why this machine cannot simulate two hosts; empty if it can."""
    if os.geteuid() != 0:
        return "two hosts need root, for their namespaces"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]
    if missing:
        return f"needs the packages openssh-server and iproute2 (no {', '.join(missing)})"
    trial = ("unshare", "--net", *HOST, "true")
    answer = subprocess.run(trial, capture_output=True, text=True, timeout=START_SECONDS)
    return f"namespaces are not allowed here: {answer.stderr.strip()}" if answer.returncode else ""


@contextmanager
def running(folder: Path) -> Iterator[Network]:
    """Start both hosts, wait until each reaches the other over ssh, and end all on exit."""
    _write_files(folder)
    holders = []
    try:
        switch = _hold(folder / "switch.log", holders, "unshare", "--net", "sleep", "infinity").pid
        wait_for(lambda: _namespace(switch, "net") != _namespace(os.getpid(), "net"), folder)
        _ip(switch, "link", "add", "name", "switch", "type", "bridge")
        _ip(switch, "link", "set", "dev", "switch", "up")
        hosts = []
        for name, address in ADDRESSES.items():
            init = INIT.format(folder=folder, name=name, sshd=shutil.which("sshd", path=SEARCH))
            command = ("unshare", "--net", *HOST, "sh", "-c", init)
            holder = _hold(folder / f"{name}.log", holders, *command)
            wait_for(lambda log=folder / f"{name}.log": "listening" in log.read_text(), folder)
            (first,) = holder.children()
            _ip(switch, *f"link add {name} type veth peer name eth0 netns {first.pid}".split())
            _ip(switch, "link", "set", "dev", name, "master", "switch", "up")
            _ip(first.pid, "address", "add", f"{address}/24", "dev", "eth0")
            _ip(first.pid, "link", "set", "dev", "eth0", "up")
            hosts.append(Host(name, first.pid))
        for one, other in (hosts, hosts[::-1]):
            ask = ("ssh", "-o", "ConnectTimeout=2", other.name, "hostname")
            wait_for(lambda o=one, n=other, a=ask: o.run(*a).stdout == f"{n.name}\n", folder)
        yield Network(*hosts, switch)
    finally:
        for holder in holders:
            with contextlib.suppress(psutil.NoSuchProcess):
                # With the first process of a host all its other processes end, then the process that holds
                # the host.
                for process in holder.children() or [holder]:
                    process.kill()
        for holder in psutil.wait_procs(holders, timeout=10)[1]:
            holder.kill()


def _write_files(folder):
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"]
    subprocess.run(key, check=True, timeout=30)
    kind, public, *_ = (folder / "key.pub").read_text().split()
    known = [f"{name} {kind} {public}\n" for name in ADDRESSES]
    (folder / "known_hosts").write_text("".join(known))
    named = [f"{address} {name}\n" for name, address in ADDRESSES.items()]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *named]))
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    (folder / "ssh_config").write_text(SSH.format(folder=folder))


def _hold(log: Path, holders: list, *command) -> psutil.Popen:
    with log.open("wb") as file:
        holders.append(
            psutil.Popen(
                [*DIE_WITH_PARENT, *command],
                env={**os.environ, "PATH": SEARCH},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    return holders[-1]


def _ip(number: int, *arguments: str) -> None:
    """Run `ip` in the network of a process."""
    command = ["nsenter", f"--target={number}", "--net", "ip", *arguments]
    environment = {**os.environ, "PATH": SEARCH}
    subprocess.run(command, env=environment, check=True, timeout=30)


def _namespace(number: int, kind: str = "pid") -> str:
    try:
        return os.readlink(f"/proc/{number}/ns/{kind}")
    except OSError:
        return ""  # the process has ended


def wait_for(condition, folder: Path, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            said = "\n".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
            raise RuntimeError(f"it did not happen within {seconds:g} s:\n{said}")
        time.sleep(0.05)
