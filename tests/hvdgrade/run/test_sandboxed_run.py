"""What a submission can see and do, and what the grader measures of it, at every isolation level."""

import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hvdgrade.evidence import observation
from hvdgrade.judge.measured_flags import unequal_work
from hvdgrade.run import collect
from hvdgrade.run import sandboxed_run as jail_module
from hvdgrade.run.captured_output import is_there
from hvdgrade.run.monitor import observe
from hvdgrade.run.processes import Activity, has_torch, launchers
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.sandbox import landlock, tiers, untrusted_files
from hvdgrade.sandbox.sandbox import WITH_HOST_FILES, Sandbox
from hvdgrade.sandbox.untrusted_files import bytes_in, remove_tree
from hvdgrade.submission.find_script import read_script
from hvdgrade.submission.script import NotGradable, imported_modules

pytestmark = pytest.mark.mpi


@pytest.fixture
def walled(tier) -> str:
    if not tier.startswith("bubblewrap"):
        pytest.skip("only bubblewrap gives a submission a world of its own")
    return tier


def rank_data(folder: Path, ranks: int = 2) -> list[Path]:
    """Make a folder for each rank, with a file that contains the rank's number."""
    folder.chmod(0o755)
    for rank in range(ranks):
        (folder / f"view-{rank}").mkdir()
        (folder / f"view-{rank}" / "number").write_text(str(rank))
        # Only the sandbox prevents a submission from writing there.
        (folder / f"view-{rank}").chmod(0o777)
    return [folder / f"view-{rank}" for rank in range(ranks)]


def answers(source: str, data, tmp_path, tier: str, ranks: int = 2, **options) -> list[dict]:
    """Run `source`, whose ranks each print one dictionary; return {rank: dictionary}."""
    evidence = tmp_path / "evidence"
    evidence.mkdir(exist_ok=True)
    with SandboxedRun(source.encode(), ranks, data, tier=tier, **options) as running:
        seen = observe(running, evidence, limit=60, stall=30)
    found = {}
    for line in seen.output.splitlines():
        head, _, text = line.partition("<stdout>: ")
        if text.startswith("{"):
            found[int(head.strip("[]").split(",")[1])] = ast.literal_eval(text)
    assert sorted(found) == list(range(ranks)), seen.output
    return [found[rank] for rank in range(ranks)]


LOOK = """
import importlib.util, os, socket, sys

def text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return type(error).__name__

def writes(path):
    path += str(os.getpid())  # the other rank tries the same
    try:
        open(path, "w").close()
        os.remove(path)
        return True
    except OSError:
        return False

mine = os.environ["HVDLAB_DATA"]
status = dict(line.split(":", 1) for line in text("/proc/self/status").splitlines())
print({
    "argv": sys.argv, "work": os.listdir(), "python": sys.executable,
    "own": text(mine + "/number"),
    "variables": {k: v for k, v in os.environ.items()},
    "caller": text(f"/proc/{os.getppid()}/cmdline"),
    "user": os.getuid(), "can_do": int(status["CapEff"], 16), "locked": status["NoNewPrivs"].strip(),
    "links": [name for _, name in socket.if_nameindex()],
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "hvdlab": importlib.util.find_spec("hvdlab.record") is not None,
    "grader": importlib.util.find_spec("hvdgrade") is not None,
    "writable": [p for p in ("/usr", "/etc", "/", "/dev", sys.prefix, "/run", mine) if writes(p + "/x")],
    "own_places": [writes(os.path.join(os.environ.get(p, p), "x")) for p in
                   ("TMPDIR", "HOME", "HVDLAB_RUN_DIR", ".", "/dev/shm")],
}, flush=True)
"""


def test_a_submission_sees_no_other_processes_and_files(walled, tmp_path):
    data = rank_data(tmp_path)
    for rank, seen in enumerate(answers(LOOK, data, tmp_path, walled)):
        assert seen["argv"] == ["assessment.py"] and seen["work"] == ["assessment.py"]
        assert seen["own"] == str(rank)
        assert seen["links"] == ["lo"]
        # Bubblewrap, mpirun and two ranks, but no process of the host.
        assert seen["processes"] < 15
        assert seen["hvdlab"] and not seen["grader"]
        assert seen["writable"] == [] and seen["own_places"] == [True] * 5
        assert (seen["can_do"], seen["locked"]) == (0, "1") and seen["user"] != 0
        assert "grade" not in str(seen["variables"]).lower() + seen["caller"].lower()


def test_a_submission_cannot_distinguish_its_own_view_from_shared_data(walled, tmp_path):
    data = rank_data(tmp_path)
    alone = answers(LOOK, data, tmp_path, walled)
    together = answers(LOOK, data[0], tmp_path, walled)
    assert [seen["own"] for seen in together] == ["0", "0"]
    own_to_a_run = (
        *("PMIX", "OMPI_MCA_orte", "PRTE", "OMPI_MCA_ess", "HYDRA", "TMPDIR"),
        "MASTER_PORT",
    )
    for one, other in zip(alone, together, strict=True):
        for key in ("argv", "work", "python", "caller", "links", "can_do"):
            assert one[key] == other[key]
        for seen in (one, other):
            for name in [n for n in seen["variables"] if n.startswith(own_to_a_run)]:
                del seen["variables"][name]
        assert one["variables"] == other["variables"]


SPY = """
import glob, os
mine = os.environ["HVDLAB_DATA"]
found = {}
for path in PATHS + glob.glob(os.path.dirname(mine) + "/*/number"):
    try:
        found[path] = open(path).read()
    except OSError:
        pass
print({"own": open(mine + "/number").read(), "others": sorted(set(found.values()))}, flush=True)
"""


def test_a_rank_can_read_only_its_own_data(tier, tmp_path):
    data = rank_data(tmp_path)
    inside = [f"/run/hvdlab/data/{rank}/number" for rank in range(2)]
    spy = SPY.replace("PATHS", repr([*(f"{folder}/number" for folder in data), *inside]))
    seen = answers(spy, data, tmp_path, tier)
    assert [rank["own"] for rank in seen] == ["0", "1"]
    enforced = tier not in WITH_HOST_FILES and landlock.version() > 0
    assert tiers.tier(tier).views_enforced == enforced
    if enforced:
        assert [rank["others"] for rank in seen] == [["0"], ["1"]]
    else:
        # A check of the test: without a sandbox the ranks can read these files.
        assert seen[0]["others"] == ["0", "1"]


EXCHANGE = """
from mpi4py import MPI
import numpy as np
world = MPI.COMM_WORLD
message = np.zeros(%d, np.uint8)
for _ in range(5):
    if world.rank == 0:
        world.Send(message, 1)
    else:
        world.Recv(message, 0)
world.Barrier()
if world.rank == 0:
    names, values = (line.split() for line in open("/proc/net/snmp") if line.startswith("Tcp:"))
    print({"sent again": int(dict(zip(names, values))["RetransSegs"])})
"""


def test_counts_the_bytes_between_ranks(tier, tmp_path):
    (tmp_path / "evidence").mkdir()
    counts, sent_again = [], 0
    for size in (0, 10_000_000):
        source = (EXCHANGE % max(size, 1)).encode()
        with SandboxedRun(
            source, 2, rank_data(tmp_path)[0] if not counts else tmp_path / "view-0", tier=tier
        ) as running:
            seen = observe(running, tmp_path / "evidence", limit=60, stall=30)
            assert seen.stop_cause == "ended", seen.output
            counts.append(running.network_bytes())
        sent_again = int(re.search("'sent again': ([0-9]+)", seen.output).group(1))
    if not tiers.tier(tier).network_isolated:
        assert counts == [None, None]
    else:
        # Five times ten million bytes, with less than two per cent of headers. A busy machine delivers out of
        # order, and TCP then sends segments (at most 65,549 bytes) again. They count too.
        assert 50_000_000 <= counts[1] - counts[0] <= 51_000_000 + 65_549 * sent_again


def test_gpu_gradients_pass_through_the_counted_network(tier, tmp_path):
    """Otherwise NCCL would copy them from GPU to GPU. Not tried on GPUs."""
    with SandboxedRun(b"", 2, rank_data(tmp_path), tier=tier) as running:
        given = running.environment()
    ways = {f"NCCL_{name}" for name in ("P2P_DISABLE", "SHM_DISABLE", "IB_DISABLE")}
    if tier == "rlimits":
        assert not [name for name in given if name.startswith("NCCL_")]
    else:
        assert {given[name] for name in ways} == {"1"} and given["NCCL_SOCKET_IFNAME"] == "lo"
        # NCCL sends four bytes for four, through a socket, with any plugin.
        assert (given["NCCL_PROTO"], given["NCCL_NET"]) == ("Simple", "Socket")
        assert (given["NCCL_NET_PLUGIN"], given["NCCL_MNNVL_ENABLE"]) == ("none", "0")


WAIT = """
import time
def waits_here():
    print("waiting", flush=True)
    time.sleep(60)
waits_here()
"""


def read_until_both_wait(process) -> bytes:
    output = b""
    while output.count(b"waiting") < 2:
        assert (chunk := os.read(process.stdout.fileno(), 1 << 16)), output
        output += chunk
    return output


def test_finds_the_ranks_and_prints_their_stacks(outer_tier, tmp_path):
    with SandboxedRun(WAIT.encode(), 2, rank_data(tmp_path), tier=outer_tier) as running:
        process = running.start()
        output = read_until_both_wait(process)
        ranks = running.rank_processes()
        assert sorted(ranks) == [0, 1]
        assert all("assessment.py" in process.cmdline() for process in ranks.values())
        mpirun = launchers(ranks)
        for one in mpirun:  # stop mpirun, because it would end the other rank when one has ended
            one.suspend()
        for rank in ranks.values():
            rank.send_signal(signal.SIGABRT)
        deadline = time.monotonic() + 60
        while any(map(is_there, ranks.values())):
            assert time.monotonic() < deadline, ranks
            time.sleep(0.05)
        for one in mpirun:
            one.resume()
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            output += chunk
        assert output.count(b"in waits_here") == 2
        everything = running.processes()
        assert running.kill() == 0
    assert not any(process.is_running() for process in everything)


def test_a_sandbox_that_is_left_early_leaves_nothing(outer_tier, tmp_path):
    before = set(psutil.Process().children(recursive=True))
    with SandboxedRun(WAIT.encode(), 2, rank_data(tmp_path), tier=outer_tier) as running:
        running.start()
        folder = running.box.folder
        groups = list(running.box.cgroup.folders.values()) if running.box.cgroup else []
        assert folder.exists() and all(group.exists() for group in groups)
    assert not folder.exists() and not any(group.exists() for group in groups)
    assert set(psutil.Process().children(recursive=True)) <= before
    # Afterwards the grader is no longer a subreaper, so it neither adopts nor reaps orphans.
    orphan = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        timeout=10,
    )
    orphan = psutil.Process(int(orphan.stdout))
    try:
        assert orphan.ppid() != os.getpid()
    finally:
        orphan.kill()


def test_the_submission_dies_with_the_grader(outer_tier, tmp_path):
    """After kill -9 no code of the grader can run any more."""
    script = f"""
import os, sys, time
from pathlib import Path
from hvdgrade.run.sandboxed_run import SandboxedRun
with SandboxedRun({WAIT!r}.encode(), 2, Path(sys.argv[1]), tier={outer_tier!r}) as running:
    process = running.start()
    output = b""
    while output.count(b"waiting") < 2:
        assert (chunk := os.read(process.stdout.fileno(), 1 << 16)), output
        output += chunk
    print("ready", flush=True)
    time.sleep(60)
"""
    tmp_path.chmod(0o755)
    temporary = tmp_path / "temporary"
    for folder in (temporary, tmp_path / "data"):
        folder.mkdir()
    grader = psutil.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert grader.stdout.readline() == b"ready\n"
        started = grader.children(recursive=True)
        assert len(started) >= 3  # mpirun and two ranks
    finally:
        grader.kill()
        grader.wait()
        grader.stdout.close()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []


NO_NUMBER = """
import os, subprocess, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    others = [
        subprocess.Popen(["sleep", "20"], env={**os.environ, "OMPI_COMM_WORLD_RANK": number})
        for number in ("\u00b2", "9" * 5000, "-1", "2", "")
    ]
    print("waiting", flush=True)
    time.sleep(20)
else:
    print("waiting", flush=True)
    time.sleep(20)
"""


def test_ignores_processes_with_an_impossible_rank_number(outer_tier, tmp_path):
    with SandboxedRun(NO_NUMBER.encode(), 2, rank_data(tmp_path), tier=outer_tier) as running:
        read_until_both_wait(running.start())
        assert len(running.processes()) >= 7 and sorted(running.rank_processes()) == [0, 1]


def test_a_sandbox_that_cannot_be_prepared_leaves_nothing(outer_tier, tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    groups = []
    monkeypatch.setattr(
        jail_module,
        "Sandbox",
        lambda *args, **options: groups.append(Sandbox(*args, **options)) or groups[0],
    )
    monkeypatch.setattr(jail_module, "SCRIPT", "no/such/folder.py")
    with pytest.raises(FileNotFoundError):
        with SandboxedRun(b"", 1, rank_data(tmp_path, 1), tier=outer_tier):
            pass
    (box,) = groups
    assert list(place.iterdir()) == []
    assert not box.cgroup or not any(folder.exists() for folder in box.cgroup.folders.values())
    assert not box.slot or box.slot.fileno() == -1


RECORDS_AND_ENDS = """
import os
os.chdir(os.environ["HVDLAB_RUN_DIR"])
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    os.mkdir("rank-0")
    with open("rank-0/epoch-000.npz", "wb") as file:
        file.write(b"weights")
else:
    os.symlink("rank-0", "rank-1")
"""


def test_keeps_the_record_and_ignores_a_folder_that_is_a_link(outer_tier, tmp_path):
    (tmp_path / "evidence").mkdir()
    with SandboxedRun(
        RECORDS_AND_ENDS.encode(), 2, rank_data(tmp_path), tier=outer_tier
    ) as running:
        process = running.start()
        process.communicate(timeout=60)
        seen = observation.Observation(2)
        assert collect.collect(running, tmp_path / "evidence", seen)
        assert running.disk_bytes() > 0
    assert [(w.rank, w.epoch) for w in seen.weights] == [(0, 0)]
    assert (tmp_path / "evidence" / "rank-0-epoch-000.npz").read_bytes() == b"weights"


def test_parallel_sandboxes_have_different_users(tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a submission a user id of its own")
    data = rank_data(tmp_path)
    with SandboxedRun(b"", 1, data[0]) as one, SandboxedRun(b"", 1, data[0]) as other:
        if not tiers.tier(one.tier).own_user:
            pytest.skip(f"{one.tier} gives no user id of its own here")
        users = {running.box.records.stat().st_uid for running in (one, other)}
        assert len(users) == 2 and 0 not in users


def test_unreadable_data_are_a_grader_fault(tier, tmp_path):
    if not tiers.tier(tier).own_user:
        pytest.skip(f"{tier} gives no user id of its own here")
    data = rank_data(tmp_path)[0]
    (data / "number").chmod(0o600)
    with pytest.raises(OSError, match="must be readable for every user"):
        with SandboxedRun(b"", 1, data, tier=tier):
            pass


def test_a_sandbox_that_does_not_start_is_a_grader_fault(walled, tmp_path):
    data = rank_data(tmp_path)[0]
    with SandboxedRun(b"print('started')", 1, data, tier=walled) as running:
        remove_tree(data)  # so bubblewrap cannot mount it
        with pytest.raises(OSError, match="did not start: .*view-0"):
            running.start()


def test_a_list_of_data_needs_a_folder_for_each_rank(tmp_path):
    with pytest.raises(ValueError, match="one folder or 2. Received: 1"):
        SandboxedRun(b"", 2, [tmp_path], tier="rlimits")


def test_counts_the_disk_use_of_a_submission(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(os.urandom(1 << 20))
    (tmp_path / "link").symlink_to("/usr")
    du = ["du", "-s", "-B1", tmp_path / "folder" / "file"]
    counted = int(subprocess.check_output(du, timeout=60).split()[0])
    assert counted <= bytes_in(tmp_path) <= counted + 20_000
    monkeypatch.setattr(untrusted_files, "MAX_ENTRIES", 2)
    assert bytes_in(tmp_path) > 1 << 60


def test_counts_files_while_others_vanish(tmp_path):
    """A process makes and removes files all the time, in the folder that also has a file of one megabyte."""
    (tmp_path / "large").write_bytes(os.urandom(1 << 20))
    churn = "import os\nwhile True:\n for n in map(str, range(50)):\n  open(n, 'w').close(); os.remove(n)"
    with subprocess.Popen([sys.executable, "-c", churn], cwd=tmp_path) as process:
        try:
            assert min(bytes_in(tmp_path) for _ in range(20_000)) >= 1 << 20
        finally:
            process.kill()


def test_removes_a_very_deep_folder_tree_and_counts_it_as_too_much(tmp_path):
    home = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(1500):
            os.mkdir("d" * 10)
            os.chdir("d" * 10)
    finally:
        os.chdir(home)
    assert bytes_in(tmp_path) > 1 << 60
    remove_tree(tmp_path)
    assert not tmp_path.exists()


WIDEN = """\
import os, time
{}
time.sleep(4)
"""


@pytest.mark.parametrize(
    "line, cause",
    [
        ("", "ended"),
        ("os.sched_setaffinity(0, range(os.cpu_count()))", "took_more_cores"),
        (
            "import threading; threading.Thread(target=lambda: (os.sched_setaffinity("
            "0, range(os.cpu_count())), time.sleep(4))).start()",
            "took_more_cores",
        ),
    ],
)
def test_a_submission_uses_only_the_cores_of_its_grader(outer_tier, line, cause, tmp_path):
    if os.cpu_count() < 2:
        pytest.skip("one core is all of them")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with SandboxedRun(
            WIDEN.format(line).encode(), 2, rank_data(tmp_path), tier=outer_tier
        ) as running:
            seen = observe(running, tmp_path, limit=60, stall=30)
    finally:
        os.sched_setaffinity(0, before)
    assert seen.stop_cause == cause, seen.output


HIDES = """\
import os, sys, time
if "OMPI_COMM_WORLD_RANK" in os.environ:
    os.environ.pop("OMPI_COMM_WORLD_RANK")
    os.execve(sys.executable, [sys.executable, sys.argv[0]], os.environ)
import torch
time.sleep(2)
"""


def test_finds_torch_in_a_rank_that_hides_its_number(outer_tier, tmp_path):
    for source, expected in ((HIDES, True), (HIDES.replace("import torch", ""), False)):
        with SandboxedRun(source.encode(), 1, rank_data(tmp_path, 1), tier=outer_tier) as running:
            assert observe(running, tmp_path, limit=60, stall=30).torch_seen == expected
        remove_tree(tmp_path / "view-0")


SPARSE = """\
import os, time
folder = os.path.join(os.environ["HVDLAB_RUN_DIR"], "rank-" + os.environ["OMPI_COMM_WORLD_RANK"])
os.makedirs(folder)
for name in {}:
    with open(os.path.join(folder, "epoch-" + name + ".npz"), "wb") as file:
        file.truncate(8 << 20)
time.sleep(3)
"""


def test_the_copy_of_a_sparse_file_ends(outer_tier, tmp_path):
    names = [f"{number:03d}" for number in range(30)]
    (tmp_path / "evidence").mkdir()
    with SandboxedRun(
        SPARSE.format(names).encode(), 2, rank_data(tmp_path), tier=outer_tier
    ) as running:
        running.most_records = 40 << 20
        seen = observe(running, tmp_path / "evidence", limit=60, stall=30)
    assert seen.stop_cause == "disk_full"
    assert bytes_in(tmp_path / "evidence") <= 64 << 20


RESERVES = """
import os, sys
with open(os.path.join(os.environ["HVDLAB_RUN_DIR"], "all"), "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 50 << 20)
sys.exit(1)
"""


def test_stops_a_submission_that_reserves_the_disk_at_once(outer_tier, tmp_path):
    with SandboxedRun(RESERVES.encode(), 1, rank_data(tmp_path, 1), tier=outer_tier) as running:
        running.most_records = 40 << 20
        seen = observe(running, tmp_path, limit=60, stall=30)
    assert seen.stop_cause == "disk_full"


def test_accepts_only_plain_epoch_numbers(outer_tier, tmp_path):
    (tmp_path / "evidence").mkdir()
    names = ["001", "\u0660\u0660\u0661", "01", "0001", "-01"]
    with SandboxedRun(
        SPARSE.format(ascii(names)).encode(), 1, rank_data(tmp_path, 1), tier=outer_tier
    ) as running:
        seen = observe(running, tmp_path / "evidence", limit=60, stall=30)
    assert [(w.rank, w.epoch) for w in seen.weights] == [(0, 1)]


def test_a_script_that_can_be_read_can_be_parsed_deeper_in_the_stack(tmp_path):
    def deeper(calls, source):
        return deeper(calls - 1, source) if calls else imported_modules(source)

    script = tmp_path / "assessment.py"
    for terms in range(500, 6000, 50):
        source = b"import torch\nx = 1" + b" + 1" * terms
        script.write_bytes(source)
        try:
            assert read_script(script) == source
        except NotGradable as error:
            assert "is not valid Python" in str(error)
            return
        assert deeper(50, source) == {"torch"}


def test_does_not_print_pythons_warnings_about_a_script(tmp_path, capsys, recwarn):
    script = tmp_path / "assessment.py"
    script.write_text("x = 1\nx is 1  # \x1b]0;title\x07\n")
    read_script(script)
    assert not recwarn.list and capsys.readouterr() == ("", "")


def test_the_grader_is_not_the_launcher_of_an_adopted_worker():
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["cat"], bufsize=0, env=environment, **pipes) as worker:
        # The kernel shows the environment only after the program has started.
        worker.stdin.write(b"begun\n")
        assert worker.stdout.readline() == b"begun\n"
        assert launchers({0: psutil.Process(worker.pid)}) == []


MAPS = """
import mmap, os, sys
with open(os.fsencode(sys.argv[1]) + b"/\\xff", "w+b") as file:
    file.truncate(4096)
    kept = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_a_process_with_unreadable_memory_maps_may_have_torch(tmp_path, monkeypatch):
    """In addition, unusual names of mapped files do not stop the reader."""

    def closed(path, **options):
        raise PermissionError

    command = [sys.executable, "-c", MAPS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"mapped\n"
        assert not has_torch(psutil.Process(process.pid))
        monkeypatch.setattr(Path, "read_bytes", closed)
        assert has_torch(psutil.Process(process.pid))
        # Root without its capabilities cannot read the memory maps of other users.
        monkeypatch.setattr(os, "geteuid", lambda: 61184)
        assert not has_torch(psutil.Process(process.pid))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")
def test_removes_files_of_a_user_in_a_shared_folder(tmp_path):
    for number in range(2000):
        (tmp_path / f"file {number}").touch()
        os.chown(tmp_path / f"file {number}", 61184, 61184)
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    os.chown(tmp_path / "folder", 61184, 61184)
    (tmp_path / "of another").touch()
    untrusted_files.remove_files_of(61184, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["of another"]
    untrusted_files.remove_files_of(61184, tmp_path / "no such folder")


def test_sending_gradients_counts_as_work_and_polling_does_not():
    idle = SimpleNamespace(
        pid=1,
        cpu_times=lambda: SimpleNamespace(user=0.0, system=0.0),
        memory_info=lambda: SimpleNamespace(rss=2 << 20),
    )
    ranks = dict.fromkeys(range(2), idle)
    activity = Activity(0.0)
    activity.sample(1, ranks, written=0, sent=100_000)  # new memory counts as work
    activity.last = 0
    for second, written, sent, last in (
        (2, 0, 100_000, 0),
        (3, 0, 3_200_000, 3),  # a step on both ranks
        (4, 0, 3_600_000, 3),  # one second of Horovod's negotiation
        (5, 1_500_000, 3_600_000, 5),
    ):
        activity.sample(second, ranks, written, sent)
        assert activity.last == last


# Rank 0 computes for all. The other rank waits and often wakes up.
ONE_COMPUTES = """
import os, time
until = time.monotonic() + 4
while time.monotonic() < until or (os.environ["OMPI_COMM_WORLD_RANK"] == "0" and os.times().user < 3):
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        time.sleep(0.01)
print("computed", os.environ["OMPI_COMM_WORLD_RANK"], os.times().user)
time.sleep(4)  # the grader looks about once a second, and sees all of it
"""


def test_reports_a_rank_that_computes_for_the_others(outer_tier, tmp_path):
    with SandboxedRun(ONE_COMPUTES.encode(), 2, rank_data(tmp_path), tier=outer_tier) as running:
        seen = observe(running, tmp_path, limit=60, stall=30)
    own = {int(rank): float(user) for rank, user in re.findall(r"computed (\d) (\S+)", seen.output)}
    assert len(own) == 2 and own[0] > 2 > 1 > own[1], seen.output
    for rank, user in own.items():
        assert user - 0.5 < seen.computed[rank] < user + 0.5
    assert unequal_work(seen.computed, 2).startswith("Rank 1 computed for 0 s and rank 0")


# A rank with much memory, and its worker, which computes more than the rank.
WITH_A_WORKER = """
import os, time
kept = bytearray(400 << 20)
if os.fork() == 0:
    until = time.monotonic() + 4
    while time.monotonic() < until:
        pass
    os._exit(0)
os.wait()
"""


def test_a_data_loader_does_not_make_its_rank_a_launcher(outer_tier, tmp_path):
    with SandboxedRun(WITH_A_WORKER.encode(), 2, rank_data(tmp_path), tier=outer_tier) as running:
        seen = observe(running, tmp_path, limit=60, stall=30)
    assert seen.stop_cause == "ended", seen.output


SLOW_EPOCHS = """
import os, time
from pathlib import Path
folder = Path(os.environ["HVDLAB_RUN_DIR"], f"rank-{os.environ['OMPI_COMM_WORLD_RANK']}")
folder.mkdir()
for epoch in range(EPOCHS):
    end = time.monotonic() + 2
    while time.monotonic() < end:
        pass
    (folder / f"epoch-{epoch:03d}.npz").write_bytes(b"x")
while True:
    pass
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("epochs, extended", [(2, 120), (0, 3)])
def test_a_run_that_recorded_too_little_goes_on_after_its_limit(
    outer_tier, tmp_path, epochs, extended
):
    """Two epochs arrive after the limit, or none before the extended one. The script never ends."""
    tmp_path.chmod(0o755)
    (tmp_path / "evidence").mkdir()
    script = SLOW_EPOCHS.replace("EPOCHS", str(epochs))
    with SandboxedRun(script.encode(), 2, tmp_path, tier=outer_tier) as running:
        limits = {"limit": 1, "least": 2, "extended": extended}
        seen = observe(running, tmp_path / "evidence", stall=60, **limits)
    assert seen.stop_cause == "timeout"
    assert [len(seen.of(rank)) for rank in range(2)] == [epochs] * 2
