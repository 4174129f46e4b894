"""Hosts of a run: parse `-H` and hostfiles, find their network, and check that ssh reaches them."""

import ipaddress
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from hvdlab.launch.local import LaunchError

HOST = r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<slots>[1-9]\d*))?"
KEY = r"slots=[1-9]\d*|(?!slots=)[A-Za-z_-]+=\S+"  # of a line in a hostfile
REACH_SECONDS = 5


class Host(NamedTuple):
    """A host, and how many ranks may start on it."""

    name: str
    slots: int  # number of ranks that may start there


def parse_list(text: str) -> list[Host]:
    """Return the hosts of the argument `-H`.

    Args:
        text: such as "host1:2,host2:2". A host without a number has one slot. The slots of a host that is
            named several times add up.

    Raises:
        LaunchError: the text has another form.
    """
    found = []
    for part in text.split(","):
        if not (match := re.fullmatch(HOST, part.strip())):
            raise LaunchError(
                f"-H: expected HOST:SLOTS,HOST:SLOTS,... and got {part!r} in {text!r}."
            )
        found.append(Host(match["name"], int(match["slots"] or 1)))
    return _added_up(found)


def parse_file(path: str | Path) -> list[Host]:
    """Return the hosts of a hostfile, in the form of Open MPI, MPICH or PBS.

    A line names a host. `slots=2` or `:2` after the name is its number of slots, and a line without a number
    counts as one slot. Other keys, such as `max_slots=4`, have no effect. If several lines name a host, its
    slots add up, because PBS writes a line per slot. # begins a comment.

    Raises:
        LaunchError: the file cannot be read, has another form, or names no host.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(
            f"--hostfile {path} cannot be read: {getattr(error, 'strerror', None) or 'no text file'}."
        ) from None
    found = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        name, *keys = re.sub(r"\s*=\s*", "=", text).split()
        host = re.fullmatch(HOST, name)
        if not host or not all(re.fullmatch(KEY, key) for key in keys):
            raise LaunchError(
                f"{path}, line {number}: expected `HOST slots=N`, `HOST:N` or `HOST` and got {text!r}."
            )
        slots = next((key[6:] for key in keys if key.startswith("slots=")), host["slots"] or 1)
        found.append(Host(host["name"], int(slots)))
    if not found:
        raise LaunchError(
            f"{path} names no host: write a line such as `host1 slots=2` for each host."
        )
    return _added_up(found)


def _added_up(hosts: list[Host]) -> list[Host]:
    """Return each host once, with all its slots, in the order in which they are named first."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, number) for name, number in slots.items()]


def is_here(name: str) -> bool:
    """Return whether a host name or address belongs to this machine."""
    if name in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    return _address(name) in {interface.address for interface in _interfaces()}


class Network(NamedTuple):
    """A network of this machine."""

    address: str  # such as 10.0.0.0/24
    interfaces: list[str]  # names of this machine's interfaces in it, such as eth0


def network(hosts: list[Host]) -> Network | None:
    """Return a network of this machine that contains all these hosts; None if there is none.

    If the ranks chose the network themselves, they would also try networks that lead to no other host, such
    as the bridges of containers.

    Args:
        hosts: of a run. This machine itself does not count.
    """
    addresses = [_address(host.name) for host in hosts if not is_here(host.name)]
    if not addresses or None in addresses:
        return None
    for here in _interfaces():
        candidate = here.network()
        if all(ipaddress.ip_address(address) in candidate for address in addresses):
            names = [each.name for each in _interfaces() if each.network() == candidate]
            return Network(str(candidate), names)
    return None


def _address(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


class Interface(NamedTuple):
    """A network interface of this machine with its IPv4 address."""

    name: str
    address: str
    netmask: str

    def network(self) -> ipaddress.IPv4Network:
        """Return the network in which the interface is."""
        return ipaddress.IPv4Network(f"{self.address}/{self.netmask}", strict=False)


def _interfaces() -> list[Interface]:
    return [
        Interface(name, address.address, address.netmask)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and address.netmask
    ]


def ssh_agent() -> list[str]:
    """Return the command with which mpirun reaches other hosts: ssh, or that of $PRTE_MCA_plm_ssh_agent."""
    return shlex.split(os.environ.get("PRTE_MCA_plm_ssh_agent", "")) or ["ssh"]


def must_be_ready(hosts: list[Host], script: str) -> None:
    """Check that every other host has this Python and this script. All hosts are asked at the same time.

    Args:
        hosts: of the run.
        script: the Python file, as named by the user.

    Raises:
        LaunchError: a host cannot be reached within five seconds, or has no such Python or script.
    """
    away = [host.name for host in hosts if not is_here(host.name)]
    agent = ssh_agent()
    if away and not shutil.which(agent[0]):
        ssh = agent[0] == "ssh"
        remedy = "install openssh-client" if ssh else "correct or unset PRTE_MCA_plm_ssh_agent"
        raise LaunchError(
            f"other hosts are reached with {agent[0]}, and there is none here: {remedy}."
        )
    if Path(agent[0]).name == "ssh":  # because mpirun cannot type a password either
        agent += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={REACH_SECONDS}"]
    python, folder, name = map(shlex.quote, (sys.executable, os.getcwd(), script))
    question = f"test -x {python} || exit 3; cd {folder} && test -f {name} || exit 4"
    processes = {
        host: subprocess.Popen(
            [*agent, host, question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in away
    }
    try:
        for name, process in processes.items():
            _must_answer(name, process, f"{' '.join(agent)} {name} true", script)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def _must_answer(host: str, process: subprocess.Popen, command: str, script: str) -> None:
    """Raise LaunchError unless the process that asks a host ends with exit code 0."""
    try:
        _, error = process.communicate(timeout=2 * REACH_SECONDS)
    except subprocess.TimeoutExpired:
        error = f"no answer within {2 * REACH_SECONDS} s"
    if process.returncode == 3:
        raise LaunchError(
            f"{host} has no {sys.executable}: the environment must be in the same folder on every host."
        )
    if process.returncode == 4:
        raise LaunchError(
            f"{host} has no {script} in {os.getcwd()}: the script must be there on every host."
        )
    if process.returncode != 0:
        says = (error.strip().splitlines() or ["no answer"])[-1]
        raise LaunchError(
            f"{host} cannot be reached ({says}): fix it until `{command}` works without a password."
        )
