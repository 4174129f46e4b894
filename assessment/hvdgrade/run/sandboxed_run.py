"""Start a submission in a sandbox, observe it from outside, and remove everything it leaves.

`sandbox/tiers.py` chooses the sandbox and `sandbox/sandbox.py` builds it. All facts about a run that this
module reports come from the kernel: the processes, the bytes on the loopback interface of the submission's
network, and the limits that it reached.
"""

import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import psutil

from hvdgrade.record_limits import ASSESSMENT_LIMITS, RecordLimits
from hvdgrade.run import orphans
from hvdgrade.run.owner_rights import variables
from hvdgrade.sandbox import gpu_access, mounts, tiers
from hvdgrade.sandbox.sandbox import Sandbox
from hvdgrade.sandbox.untrusted_files import SHARED, bytes_in, remove_files_of, remove_tree
from hvdgrade.submission.script import SCRIPT
from hvdlab import launch
from hvdlab.system import open_mpi
from hvdlab.system.free_port import free_port
from hvdlab.system.held_folder import HeldFolder

START_SECONDS = 30
NS_GET_USERNS = 0xB701


class SandboxedRun:
    """A context manager that runs one submission; on exit it ends its processes and removes its files.

    In the tiers without bubblewrap, a process can hold only one jail at a time, because every other process
    that it starts in the meantime is counted as part of the submission.

    Args:
        source: the bytes of the submission, as `read_script` returns them.
        ranks: number of processes to start.
        data: folder with the data sets, which the submission receives as `HVDLAB_DATA`; or a list with one
            folder per rank, where each rank sees only its own folder.
        arguments: command-line arguments for the script. A submission gets none.
        variables: additional environment variables for the script. Default: none.
        tier: one of `sandbox.TIERS`. Default: the strongest tier that works on this host.
        gpus: whether the script gets the GPUs that this process sees. Default: False.
        records: how much the script may record. Default: the limits for the assessment network.
        memory_bytes: memory limit in bytes for all processes together. Without cgroups the limit applies
            to each rank, and it is then never below what a framework needs. Default: 80 % of the
            machine's memory.

    Raises (on entering):
        SandboxUnavailable: the tier does not work on this host.
        OSError: the submission may not read the data, or the disk is full. Both are faults of the grader.
    """

    def __init__(
        self,
        source: bytes,
        ranks: int,
        data: Path | list[Path],
        arguments: tuple[str, ...] = (),
        *,
        variables: dict[str, str] | None = None,
        tier: str | None = None,
        memory_bytes: int | None = None,
        gpus: bool = False,
        records: RecordLimits = ASSESSMENT_LIMITS,
    ) -> None:
        self.source, self.ranks, self.arguments = source, ranks, arguments
        self.data = data if isinstance(data, list) else [data] * ranks
        if len(self.data) != ranks:
            raise ValueError(f"data must be one folder or {ranks}. Received: {len(self.data)}")
        self.variables = variables or {}
        self.tier = tier or tiers.choose()
        self.memory_bytes, self.gpus, self.record_limits = memory_bytes, gpus, records

    def __enter__(self) -> "SandboxedRun":
        here = tiers.tier(self.tier)
        if not here.works:
            raise tiers.SandboxUnavailable(f"{self.tier} does not work here: {here.reason}")
        self.views_enforced, self.network_isolated = here.views_enforced, here.network_isolated
        self.bystanders = set(psutil.Process().children(recursive=True))
        self.process = self.first = self.shared_memory = None
        self.network: list[int] = []  # file descriptors of the submission's network namespace
        self.records_folder: int | None = None  # file descriptor
        self.bytes_seen: int | None = None
        self.most_records = self.record_limits.all_bytes(self.ranks)
        self.box = Sandbox(
            here,
            self.ranks,
            self.data,
            self.memory_bytes,
            gpus=self.gpus,
            records_bytes=self.most_records,
        )
        # Orphaned processes of the submission become children of this process instead of init, so that
        # it finds and ends every one of them.
        self.adopted_before = orphans.adopt_orphans()
        try:
            self.box.__enter__()
            self.records = self.box.records
            if self.tier == "rlimits":
                # The folder for Open MPI's shared memory. It lies in memory where /dev/shm is
                # writable, and this class removes it.
                there = orphans.SHARED_MEMORY
                memory = there if os.access(there, os.W_OK) else None
                self.shared_memory = HeldFolder(orphans.PREFIX, memory)
            script = self.box.folder / "work" / SCRIPT
            script.write_bytes(self.source)
            script.chmod(0o644)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> subprocess.Popen:
        """Start `mpirun -np N python assessment.py` in the sandbox.

        Returns:
            The process. Its standard output carries stdout and stderr of all ranks, tagged by rank.

        Raises:
            OSError: the sandbox could not be set up; the submission has not been started.
        """
        mpirun, np, number, *script = launch.mpirun_command(self.ranks, SCRIPT, *self.arguments)
        if not shutil.which(mpirun, path=mounts.search_path()):
            raise OSError(
                f"no mpirun in {mounts.search_path()}: `hvdlab doctor` says what is missing"
            )
        program = [mpirun, *open_mpi.tag_output(), np, number, *self.box.entry(), *script]
        ready, tell_ready = os.pipe()
        info, tell_info = os.pipe()
        try:
            self.process = subprocess.Popen(
                self.box.command(program, tell_ready, tell_info),
                cwd=self.box.folder / "work",
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(tell_ready, tell_info),
            )
        except BaseException:
            os.close(ready)
            os.close(info)
            raise
        finally:
            os.close(tell_ready)
            os.close(tell_info)
        with os.fdopen(ready, "rb") as ready, os.fdopen(info, "rb") as info:
            if not select.select([ready], [], [], START_SECONDS)[0] or not ready.read(1):
                self.kill()
                said = os.read(self.process.stdout.fileno(), 2000).decode(errors="replace")
                raise OSError(f"the sandbox {self.tier} did not start: {said.strip() or 'silence'}")
            if self.box.bubblewrap:
                self.first = psutil.Process(json.load(info)["child-pid"])
                self.hold_the_network()
                self.hold_the_records()
        return self.process

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the submission.

        From the grader's own environment they keep only where Python and MPI are and which GPUs to use.
        """
        variables = {
            **launch.environment(self.ranks),
            **mounts.libraries(),
            **self.box.environment(),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # SIGABRT prints each rank's Python stack
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Where ranks of torch.distributed meet, as with torchrun; `drop_privileges` adds RANK and so on.
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        variables |= gpu_access.variables(self.gpus)
        if self.shared_memory:
            variables["OMPI_MCA_btl_sm_backing_directory"] = str(self.shared_memory.path)
        else:
            # Send all messages over the loopback interface, because the kernel counts bytes there.
            # In addition, Landlock forbids the ranks to read each other's memory, and Open MPI's
            # shared-memory transport does that.
            variables |= {
                "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl": "tcp,self",
                "OMPI_MCA_btl_tcp_if_include": "lo",
                # Send gradients on GPUs over the loopback too: neither directly from one GPU's memory
                # to another's nor over a faster network.
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
                "NCCL_NVLS_ENABLE": "0",
                "NCCL_MNNVL_ENABLE": "0",
                "NCCL_IB_DISABLE": "1",
                "NCCL_NET": "Socket",  # no plugin for the network of a cluster or a cloud
                "NCCL_NET_PLUGIN": "none",
                "NCCL_SOCKET_IFNAME": "lo",
                # NCCL's other protocols send up to 8 bytes for 4 bytes of data, and NCCL would choose
                # the protocol by message size and time. The byte count would then not be comparable.
                "NCCL_PROTO": "Simple",
            }
        return {**variables, **self.variables}

    def processes(self) -> list[psutil.Process]:
        """Return every process that the submission started and that is still running."""
        if not self.box.bubblewrap:
            return [
                p for p in psutil.Process().children(recursive=True) if p not in self.bystanders
            ]
        # No process can leave a PID namespace, and all processes in it end with its first process.
        found = [self.first] if self.first and self.first.is_running() else []
        try:
            top = psutil.Process(self.process.pid)
            found += [top, *(p for p in top.children(recursive=True) if p not in found)]
        except (psutil.Error, AttributeError):
            pass  # the process has not started yet or has already ended
        return found

    def rank_processes(self) -> dict[int, psutil.Process]:
        """Return the process of each rank that is running: rank -> process.

        A daemon that a rank has started inherits the rank's environment variables. Therefore, among all
        processes with the same rank number, the one with the most CPU time counts as the rank.
        """
        ranks: dict[int, tuple[float, psutil.Process]] = {}
        for process in self.processes():
            try:
                rank = variables(process).get("OMPI_COMM_WORLD_RANK", "")
                worked = sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
            if not re.fullmatch("[0-9]{1,4}", rank) or int(rank) >= self.ranks:
                continue
            # A parent is listed before its children, so if both have used no CPU time the parent wins.
            if worked > ranks.get(int(rank), (-1.0,))[0]:
                ranks[int(rank)] = worked, process
        return {rank: process for rank, (_, process) in ranks.items()}

    def network_bytes(self) -> int | None:
        """Return how many bytes the submission has sent over the loopback of its own network so far.

        After the submission has ended, this is the number at its end. Returns None if the submission shares
        the network with other processes.
        """
        if not self.network:
            return self.bytes_seen
        try:
            text = Path(f"/proc/{self.first.pid}/net/dev").read_text(encoding="ascii")
            over = not self.first.is_running()
        except OSError:
            over = True
        if over:  # the network namespace exists as long as this process holds its descriptor
            join = self.box.enter(self.box.folder, namespaces=self.network)
            command = [*join, "cat", "/proc/net/dev"]
            text = subprocess.run(
                command, pass_fds=self.network, capture_output=True, text=True, timeout=10
            ).stdout
        for line in text.splitlines():
            if line.strip().startswith("lo:"):
                self.bytes_seen = int(line.split(":")[1].split()[0])
        if over:
            self.let_go_of_the_network()
        return self.bytes_seen

    def hold_the_network(self) -> None:
        """Keep the submission's network namespace open until its counters have been read a last time."""
        self.network.append(os.open(f"/proc/{self.first.pid}/ns/net", os.O_RDONLY))
        owner = fcntl.ioctl(self.network[0], NS_GET_USERNS)
        if os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):
            os.close(owner)
        else:  # without root rights, first join the user namespace in which we have them
            self.network.insert(0, owner)

    def hold_the_records(self) -> None:
        """Keep the folder in memory to which the submission records open.

        Without an open descriptor, the kernel would remove it together with the submission's processes.
        """
        place = f"/proc/{self.first.pid}/root{self.box.root}/records"
        self.records_folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        self.records = Path(f"/proc/self/fd/{self.records_folder}")

    def let_go_of_the_network(self) -> None:
        while self.network:
            os.close(self.network.pop())

    def limit_hit(self) -> str | None:
        """Return "out_of_memory" or "too_many_processes" if the kernel counted that event, else None."""
        cgroup = self.box.cgroup
        if cgroup and cgroup.out_of_memory():
            return "out_of_memory"
        return "too_many_processes" if cgroup and cgroup.too_many_processes() else None

    def disk_bytes(self) -> int:
        """Return how many bytes the submission has written; a very large number if they cannot be counted."""
        names = () if self.box.bubblewrap else ("work", "home", "tmp")
        return sum(bytes_in(path) for path in (self.records, *map(self.box.folder.joinpath, names)))

    def kill(self) -> int:
        """End every process of the submission; return how many could not be ended (normally 0)."""
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                try:
                    process.kill()
                except psutil.Error:
                    pass
            psutil.wait_procs(left, timeout=1)
        return len(left)

    def __exit__(self, *exception: object) -> None:
        try:
            self.kill()
        finally:
            if self.process and self.process.stdout:
                self.process.stdout.close()
            self.let_go_of_the_network()
            if self.records_folder is not None:
                os.close(self.records_folder)
                self.records_folder = None
            if self.box.user is not None and not self.box.bubblewrap:
                remove_files_of(self.box.user, *SHARED)
            self.box.__exit__()
            if self.shared_memory:
                remove_tree(self.shared_memory.path)
                self.shared_memory.release()
            psutil.wait_procs(
                [p for p in psutil.Process().children() if p not in self.bystanders], timeout=1
            )
            orphans.adopt_orphans(self.adopted_before)
