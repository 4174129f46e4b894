"""Run a Slurm cluster with this machine as its only node: munged, slurmctld, slurmd, all state in one folder.

    with running(folder) as cluster:
        subprocess.run(["sbatch", ...], env={**os.environ, **cluster.environment})

Needs root and the packages `slurm-wlm` and `munge`. The daemons listen on free ports of 127.0.0.1. They and
all jobs are ended at the end.
"""

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
START_SECONDS = 60
END_SECONDS = 30
SEARCH = f"/usr/sbin:/sbin:{os.environ.get('PATH', os.defpath)}"
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
FirstJobId={first_job}
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Slurm's commands use it with the variables in `environment`."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands, and return its output."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout


def why_not() -> str:
    """Return why no cluster can run on this machine; empty if one can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]
    return f"needs the packages slurm-wlm and munge (no {', '.join(missing)})" if missing else ""


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start the daemons, wait until the node is idle, and end daemons and jobs on exit."""
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    host = socket.gethostname().split(".")[0]
    controller, daemon = free_ports(2)
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(
            folder=folder,
            host=host,
            controller=controller,
            daemon=daemon,
            # The labs compute ports from job numbers, so two clusters on one machine need different job
            # numbers.
            first_job=random.randrange(1000, 60000),
            cores=os.cpu_count(),
        )
    )
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {"SLURM_CONF": str(config), "PATH": SEARCH}
    daemons = []

    def start(*command: str) -> None:
        # The output goes to a file, so that a failure can be read.
        with open(folder / f"{command[0]}.out", "wb") as log:
            daemons.append(
                psutil.Popen(
                    [shutil.which(command[0], path=SEARCH), *command[1:]],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    cluster = Cluster(folder, environment)
    try:
        start(
            "munged", "--foreground", "--force", "--num-threads=2",
            f"--socket={folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munge/log",
            f"--seed-file={folder}/munge/seed",
        )  # fmt: skip
        wait_for(lambda: (folder / "munge.socket").exists(), daemons, folder)
        start("slurmctld", "-D", "-c")
        start("slurmd", "-D", "-N", host)
        wait_for(lambda: "idle" in idle(cluster), daemons, folder)
        yield cluster
    finally:
        end(cluster, daemons)


def idle(cluster: Cluster) -> str:
    try:
        return cluster.run("sinfo", "--noheader", "--format=%T")
    except subprocess.SubprocessError:
        return ""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_for(condition, daemons: list[psutil.Popen], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        ended = [daemon for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            said = "\n".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.out"))
            said += "\n".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.log"))
            raise RuntimeError(f"the Slurm cluster did not start:\n{said}")
        time.sleep(0.2)


def end(cluster: Cluster, daemons: list[psutil.Popen]) -> None:
    """End all jobs, then the daemons, then their remaining processes."""
    try:
        cluster.run("scancel", f"--user={os.geteuid()}")
        deadline = time.monotonic() + END_SECONDS
        while cluster.run("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.2)
    except subprocess.SubprocessError:
        pass  # the cluster did not start, or hangs
    for daemon in reversed(daemons):
        if daemon.poll() is None:
            daemon.terminate()
    psutil.wait_procs(daemons, timeout=10)
    for process in psutil.process_iter():
        try:
            # The daemon of a job step overwrites its environment, so it is found by the cluster's log,
            # which it has open.
            ours = process.environ().get("SLURM_CONF") == cluster.environment["SLURM_CONF"]
            ours = ours or any(Path(f.path).parent == cluster.folder for f in process.open_files())
            if ours and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue
