"""Run a Slurm cluster of two nodes, the hosts of two_hosts.py, with two tasks on each.

    with two_hosts.running(...) as network, slurm_two_nodes.running(network, folder) as environment:
        network.host1.run("sbatch", ..., **environment)

The daemons run on the hosts, and end with them.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from slurm_cluster import CONFIG
from two_hosts import ADDRESSES, SEARCH, Host, Network, wait_for

NODE = "NodeName={name} NodeAddr={address} CPUs=2 State=UNKNOWN\n"
PARTITION = "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


@contextmanager
def running(network: Network, folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons, wait until both nodes are idle, and yield the variables for Slurm's commands."""
    for name in ("state", "munge", "spool-host1", "spool-host2"):
        (folder / name).mkdir(mode=0o700)
    (folder / "slurm.conf").write_text(_config(folder))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(host: Host, *command: str) -> None:
        with open(folder / f"{command[0]}-{host.name}.log", "wb") as log:
            daemons.append(
                subprocess.Popen(
                    host.enter(*command),
                    env={**os.environ, "PATH": SEARCH, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    daemons = []
    try:
        # One munged is enough, because the hosts share their files and thus its socket.
        start(
            network.host1, "munged", "--foreground", "--force", "--num-threads=2",
            f"--socket={folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munge/log",
            f"--seed-file={folder}/munge/seed",
        )  # fmt: skip
        wait_for((folder / "munge.socket").exists, folder)
        start(network.host1, "slurmctld", "-D", "-c")
        for host in (network.host1, network.host2):
            start(host, "slurmd", "-D", "-N", host.name)
        nodes = ("sinfo", "--noheader", "--format=%T %D")
        wait_for(lambda: network.host1.run(*nodes, **environment).stdout == "idle 2\n", folder)
        yield environment
    finally:
        for host in (network.host1, network.host2):
            for process in host.processes():
                # It ended together with a process that was killed before.
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        for daemon in daemons:
            daemon.wait(10)


def _config(folder):
    """Return the configuration file of one node, which names both nodes."""
    text = CONFIG.format(
        folder=folder, host="host1", controller=6817, daemon=6818, first_job=1, cores=2
    )
    text = text[: text.index("NodeName=")].replace("127.0.0.1", ADDRESSES["host1"])
    for own in ("/spool", "/slurmd.pid", "/slurmd.log"):
        stem, dot, suffix = own.partition(".")
        text = text.replace(f"{folder}{own}\n", f"{folder}{stem}-%n{dot}{suffix}\n")
    text += "SlurmdTimeout=20\n"  # seconds after which a node that does not answer is down
    nodes = [NODE.format(name=name, address=address) for name, address in ADDRESSES.items()]
    return "".join([text, *nodes, PARTITION])
