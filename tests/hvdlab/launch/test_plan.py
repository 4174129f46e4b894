"""The line that starts the ranks: golden lines, hosts, and what the user has set."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.launch import LaunchError, hosts, local
from hvdlab.launch import plan as plan_module
from hvdlab.launch.hosts import Host
from hvdlab.launch.plan import plan
from hvdlab.system import slurm_job

BIN = str(Path(sys.executable).parent)
LOCAL = (
    "OMP_NUM_THREADS=2 TF_NUM_INTRAOP_THREADS=2 TF_NUM_INTEROP_THREADS=1 "
    "TF_CPP_MIN_LOG_LEVEL=3 OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_hwloc_default_binding_policy=none "
    "PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 "
    "HOROVOD_STALL_CHECK_TIME_SECONDS=30 HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=120 "
)
KEEPALIVE = (
    "PRTE_MCA_oob_tcp_keepalive_time=10 PRTE_MCA_oob_tcp_keepalive_intvl=5 "
    "PRTE_MCA_oob_tcp_keepalive_probes=4 "
)
OURS = (
    "-x HOROVOD_STALL_CHECK_TIME_SECONDS -x HOROVOD_STALL_SHUTDOWN_TIME_SECONDS -x OMP_NUM_THREADS "
    "-x PATH -x PYTHONFAULTHANDLER -x PYTHONUNBUFFERED -x TF_CPP_MIN_LOG_LEVEL "
    "-x TF_NUM_INTEROP_THREADS -x TF_NUM_INTRAOP_THREADS "
)


@pytest.fixture
def four_cores(monkeypatch):
    """A user on a machine of four cores, without a GPU, in this environment; nothing else is set."""
    monkeypatch.setattr(local, "usable_cores", lambda: 4)
    monkeypatch.setattr(local, "physical_cores", lambda: [[0], [1], [2], [3]])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(plan_module, "gpus", lambda: 0)
    monkeypatch.setattr(local.tensorflow_log, "level", lambda: "3")
    monkeypatch.setattr(plan_module.time, "strftime", lambda form: "runs/now")
    monkeypatch.setattr(hosts, "_address", lambda name: name if name[0].isdigit() else None)
    for name in os.environ:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{BIN}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/learner")
    return monkeypatch


def test_the_line_on_this_machine(four_cores):
    assert (
        plan(2, "train.py", "--name", "a b").line()
        == LOCAL + "mpirun -np 2 --output tag python train.py --name 'a b'"
    )


def test_more_ranks_than_cores_share_them(four_cores):
    line = plan(8, "train.py").line()
    assert line.startswith("OMP_NUM_THREADS=1 ")
    assert " PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe " in line


def test_ranks_that_need_hardware_threads_are_allowed_them(four_cores):
    """mpirun counts cores: see test_launch.py, where it is asked."""
    four_cores.setattr(local, "physical_cores", lambda: [[0, 2], [1, 3]])
    assert "oversubscribe" not in plan(2, "train.py").line()
    line = plan(3, "train.py").line()
    assert line.startswith("OMP_NUM_THREADS=1 ") and "=:oversubscribe " in line


def test_the_line_on_two_hosts(four_cores):
    four_cores.setenv("HVDLAB_DATA", "/data")
    four_cores.setenv("EDITOR", "vi")
    line = plan(4, "train.py", hosts="host1.invalid:2,host2.invalid:2").line()
    exported = "-x HOROVOD_STALL_CHECK_TIME_SECONDS -x HOROVOD_STALL_SHUTDOWN_TIME_SECONDS "
    exported += "-x HVDLAB_DATA -x HVDLAB_RUN_DIR " + OURS.removeprefix(exported)
    assert line == (
        LOCAL
        + "HVDLAB_RUN_DIR=runs/now "
        + KEEPALIVE
        + "mpirun -np 4 -H host1.invalid:2,host2.invalid:2 --map-by ppr:2:node "
        f"{exported}--output tag {sys.executable} train.py"
    )


def test_hosts_never_share_cores_by_oversubscription(four_cores):
    """It would put all ranks on the first host."""
    planned = plan(16, "train.py", hosts="host1.invalid:8,host2.invalid:8")
    assert "oversubscribe" not in planned.line() and "ppr:8:node" in planned.line()
    assert planned.variables["OMP_NUM_THREADS"] == "1"  # eight on four cores


def test_hosts_of_different_size_are_filled_in_turn(four_cores):
    command = plan(4, "train.py", hosts="host1.invalid:1,host2.invalid:3").command
    assert command[command.index("--map-by") + 1] == "slot"


def test_the_network_of_the_hosts_is_the_one_that_has_them_all(four_cores):
    # Addresses that are set aside for documentation, on a network made up here.
    interfaces = [
        hosts.Interface("virbr0", "198.51.100.1", "255.255.255.0"),
        hosts.Interface("eth0", "192.0.2.9", "255.255.255.0"),
        hosts.Interface("eth1", "192.0.2.10", "255.255.255.0"),
    ]
    four_cores.setattr(hosts, "_interfaces", lambda: interfaces)
    line = plan(4, "train.py", hosts="192.0.2.1:2,192.0.2.2:2").line()
    assert " OMPI_MCA_btl_tcp_if_include=192.0.2.0/24 " in line
    assert " PRTE_MCA_prte_if_include=192.0.2.0/24 " in line
    # NCCL takes names, and a bridge of virtual machines is not among them.
    assert " NCCL_SOCKET_IFNAME==eth0,eth1 " in line and " -x NCCL_SOCKET_IFNAME " in line
    # Beyond a router Open MPI and NCCL choose themselves.
    beyond = plan(4, "train.py", hosts="192.0.2.1:2,203.0.113.1:2").line()
    assert "if_include" not in beyond and "NCCL" not in beyond
    # Open MPI refuses to start when both are there.
    four_cores.setenv("OMPI_MCA_btl_tcp_if_exclude", "docker0")
    assert "btl_tcp_if_include" not in plan(4, "t.py", hosts="192.0.2.1:2,192.0.2.2:2").line()
    four_cores.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert "eth0" not in plan(4, "t.py", hosts="192.0.2.1:2,192.0.2.2:2").line()


def test_this_machine_by_another_name_is_this_machine(four_cores):
    assert plan(2, "train.py", hosts="localhost:2").line() == plan(2, "train.py").line()


def test_what_the_user_has_set_stays(four_cores):
    four_cores.setenv("OMP_NUM_THREADS", "7")
    four_cores.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "9")
    planned = plan(2, "train.py")
    assert not {"OMP_NUM_THREADS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"} & set(planned.variables)
    assert "OMPI_MCA_mpi_yield_when_idle" in planned.variables


def test_gpus_are_numbered_as_nvidia_smi_does(four_cores):
    four_cores.setattr(plan_module, "gpus", lambda: 2)
    assert plan(2, "train.py").variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_in_an_allocation_mpirun_takes_its_nodes(four_cores):
    four_cores.setenv("SLURM_JOB_ID", "1")
    four_cores.setenv("SLURM_TASKS_PER_NODE", "2(x2),1")
    assert slurm_job.tasks_on_nodes() == [2, 2, 1]
    line = plan(5, "train.py").line()
    before, after = OURS.split("-x OMP_")  # ranks of several nodes share no parent to name a folder
    exported = f"{before}-x HVDLAB_RUN_DIR -x OMP_{after}"
    assert line == (
        LOCAL + f"HVDLAB_RUN_DIR=runs/now mpirun -np 5 {exported}--output tag python train.py"
    )
    with pytest.raises(LaunchError, match="^6 ranks, but the Slurm allocation has room for 5: "):
        plan(6, "train.py")
    four_cores.setenv("SLURM_TASKS_PER_NODE", "8")  # one node: nothing has to travel
    assert "-x" not in plan(8, "train.py").command
    assert "oversubscribe" not in plan(8, "train.py").line()


@pytest.mark.parametrize(
    "cpus, threads", [("4", "2"), ("32(x3)", "16"), ("8(x2),2", "1"), ("", "2")]
)
def test_in_an_allocation_the_cores_of_its_nodes_are_dealt_out(cpus, threads, four_cores):
    """Those of this machine are not the ranks' where the shell of salloc stays behind."""
    four_cores.setenv("SLURM_JOB_ID", "1")
    four_cores.setenv("SLURM_TASKS_PER_NODE", "2")
    four_cores.setenv("SLURM_JOB_CPUS_PER_NODE", cpus)
    variables = plan(2, "train.py").variables
    assert variables["OMP_NUM_THREADS"] == variables["TF_NUM_INTRAOP_THREADS"] == threads
    named = plan(2, "train.py", hosts="away:2").variables
    assert named["OMP_NUM_THREADS"] == "2"


def test_torchrun_takes_no_slots_of_an_allocation(four_cores):
    """A task for each node, and all of its cores for it, is usual there."""
    for name, value in {"JOB_ID": "1", "JOB_NODELIST": "localhost", "TASKS_PER_NODE": "1"}.items():
        four_cores.setenv(f"SLURM_{name}", value)
    planned = plan(4, "train.py", launcher="torchrun")
    assert "--nproc-per-node 4" in planned.line() and planned.variables["OMP_NUM_THREADS"] == "1"
    with pytest.raises(LaunchError, match="^4 ranks, but the Slurm allocation has room for 1: "):
        plan(4, "train.py")
    four_cores.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    with pytest.raises(LaunchError, match="only on the machine where it runs"):
        plan(4, "train.py", launcher="torchrun")


@pytest.mark.mpi
def test_the_line_works_when_it_is_pasted(tmp_path, monkeypatch):
    """Into a shell that has not activated the environment."""
    script = tmp_path / "it's.py"
    script.write_text("import os, sys\nprint(os.environ['OMPI_COMM_WORLD_SIZE'], sys.argv[1])")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    line = plan(2, script, "a b").line()
    assert line.startswith("PATH=") and line.count("/usr/bin") == 0
    answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert sorted(answer.stdout.splitlines()) == [f"[1,{rank}]<stdout>: 2 a b" for rank in (0, 1)]


# --- hosts -----------------------------------------------------------------------------------------


def test_hosts_are_read():
    assert hosts.parse_list("host1:2, host-2.example.org") == [
        Host("host1", 2),
        Host("host-2.example.org", 1),
    ]


@pytest.mark.parametrize("text", ["host1:0", "host1:two", "host1:2,", ":2", "a b:2", "-oProxy=x:2"])
def test_malformed_hosts_are_one_sentence(text):
    with pytest.raises(LaunchError) as caught:
        hosts.parse_list(text)
    assert str(caught.value).startswith("-H: expected HOST:SLOTS,HOST:SLOTS,... and got ")
    assert str(caught.value).endswith(f" in {text!r}.")


def test_the_slots_of_a_host_add_up():
    assert hosts.parse_list("host1:2,host2:2,host1") == [Host("host1", 3), Host("host2", 2)]


@pytest.mark.parametrize(
    "text",
    [
        "# the cluster\nhost1 slots=2\n\nhost2  slots = 4  # the big one\n",  # Open MPI
        "host1 slots=2 max_slots=4\nhost2 max-slots=8 slots=4 a_key_of_tomorrow=yes\n",
        "host1:2\nhost2:4 ifhn=host2-ib\n",  # MPICH
        "host1\nhost1\nhost2\nhost2\nhost2\nhost2\n",  # PBS, in $PBS_NODEFILE
        "host1\r\nhost2:4\r\nhost1 slots=1\r\n",
    ],
)
def test_hostfiles_of_all_kinds_are_read(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_bytes(text.encode())
    assert hosts.parse_file(path) == [Host("host1", 2), Host("host2", 4)]


EXPECTED = "expected `HOST slots=N`, `HOST:N` or `HOST` and got"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host1 slots=2\nhost2 4\n", f"line 2: {EXPECTED} 'host2 4'"),
        ("host1 slots=x\n", f"line 1: {EXPECTED} 'host1 slots=x'"),
        ("host1:0\n", f"line 1: {EXPECTED} 'host1:0'"),
        ("-oProxy=x\n", f"line 1: {EXPECTED} '-oProxy=x'"),
        ("# none\n", "names no host"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_malformed_hostfile_is_one_sentence_with_the_line(tmp_path, text, says):
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LaunchError, match=re.escape(says)) as caught:
        hosts.parse_file(path)
    assert str(path) in str(caught.value)


AGENT = """\
#!/bin/sh
# What ssh is to mpirun. host1 is well, host2 has no train.py, and host3 is no more.
host=$1; shift
case $host in
  host1) exec sh -c "$*" ;;
  host2) exec sh -c "$(echo "$*" | sed s/train.py/other.py/)" ;;
  *) echo "connect to host $host: No route to host" >&2; exit 255 ;;
esac
"""


@pytest.fixture
def agent(tmp_path, monkeypatch):
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o755)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(path))
    return path


def test_hosts_are_asked_whether_they_are_ready(agent, tmp_path, monkeypatch):
    def answer(*names):
        with pytest.raises(LaunchError) as caught:
            hosts.must_be_ready([Host(name, 1) for name in names], "train.py")
        return str(caught.value)

    hosts.must_be_ready([Host("host1", 1), Host("localhost", 1)], "train.py")
    assert answer("host1", "host3") == (
        "host3 cannot be reached (connect to host host3: No route to host): fix it until "
        f"`{agent} host3 true` works without a password."
    )
    assert answer("host2").startswith(f"host2 has no train.py in {tmp_path}")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert answer("host1").startswith("host1 has no /nowhere/python: the environment must be")


def test_a_host_that_ssh_cannot_enter_is_named(monkeypatch):
    if not shutil.which("ssh"):
        pytest.skip("needs ssh")
    monkeypatch.delenv("PRTE_MCA_plm_ssh_agent", raising=False)
    with pytest.raises(LaunchError) as caught:
        # This machine too, and not by one of its names: nobody listens, or nobody may enter.
        hosts.must_be_ready([Host("127.0.0.2", 1)], "train.py")
    assert re.fullmatch(
        r"127\.0\.0\.2 cannot be reached \(.+\): fix it until `ssh -o BatchMode=yes -o "
        r"ConnectTimeout=5 127\.0\.0\.2 true` works without a password\.",
        str(caught.value),
    )


@pytest.mark.parametrize("named", [None, "", " "])
def test_a_machine_without_ssh_is_told_so(named, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PRTE_MCA_plm_ssh_agent", raising=False)
    if named is not None:
        monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", named)
    with pytest.raises(
        LaunchError, match=r"reached with ssh, and .* here: install openssh-client\.$"
    ):
        hosts.must_be_ready([Host("localhost", 1), Host("host2", 1)], "train.py")
    hosts.must_be_ready([Host("localhost", 1)], "train.py")  # needs none
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", "/nowhere/agent -q")
    with pytest.raises(LaunchError, match="/nowhere/agent, .* unset PRTE_MCA_plm_ssh_agent"):
        hosts.must_be_ready([Host("host2", 1)], "train.py")
