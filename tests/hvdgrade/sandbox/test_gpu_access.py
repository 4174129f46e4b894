"""What of GPUs a run reaches in each sandbox, and that the grader sees who uses which: devices that any
process may open stand for them."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import fake_gpus
import psutil
import pytest

from hvdgrade.report import wording
from hvdgrade.run import rank_devices
from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import Jail
from hvdgrade.sandbox import gpu_access, mounts, tiers

ROOT = Path(__file__).parents[3]

# What each rank tries: to open its GPU and the other files, and to use the folder of CUDA's daemon.
SUBMISSION = """
import json, os, resource, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
opened, files = [], []
for name in ("nvidia%d" % rank, "nvidiactl", "nvidia-uvm", "dxg", "nvidia-caps/nvidia-cap1"):
    try:
        files.append(os.open("/dev/" + name, os.O_RDWR))
        opened.append(name)
    except OSError:
        pass
for file in files[1:]:  # what stays open is the rank's GPU
    os.close(file)
pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
try:
    open(os.path.join(pipes, "rank-%d" % rank), "w").close()
    writes = True
except OSError:
    writes = False
print(json.dumps({"rank": rank, "opened": opened, "writes": writes,
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "order": os.environ.get("CUDA_DEVICE_ORDER"),
    "addresses": resource.getrlimit(resource.RLIMIT_AS)[0]}), flush=True)
time.sleep(3 if opened else 1.2)
"""
GRADER = """
import json, re, sys
from pathlib import Path
from hvdgrade.run.sandboxed_run import Jail
from hvdgrade.run.monitor import observe
from hvdgrade.run.monitor import observe
tier, gpus, data, source, evidence = sys.argv[1:]
try:
    with Jail(Path(source).read_bytes(), 2, Path(data), tier=tier, gpus=gpus == "True") as jail:
        seen = observe(jail, Path(evidence), limit=60, stall=30)
        ranks = [json.loads(line) for line in re.findall(r"<stdout>: ?(\\{.*\\})$", seen.output, re.M)]
        told = {"ranks": sorted(ranks, key=lambda one: one["rank"]), "devices": seen.devices,
                "cgroup": bool(jail.box.cgroup), "output": seen.output}
except OSError as error:
    told = {"fault": str(error)}
print(json.dumps(told))
"""


@pytest.fixture
def two_gpus():
    if reason := fake_gpus.why_not():
        pytest.skip(reason)


def graded(tmp_path, tier: str, gpus: bool, mode="666", **variables) -> dict:
    """What a run of SUBMISSION reaches, and what the grader sees, on a machine with two GPUs."""
    tmp_path.chmod(0o755)
    for name in ("data", "evidence", "machine"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "submission.py").write_text(SUBMISSION)
    places = [tmp_path / name for name in ("data", "submission.py", "evidence")]
    command = ["-c", GRADER, tier, str(gpus), *map(str, places)]
    answer = fake_gpus.run(tmp_path / "machine", *command, mode=mode, **variables)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_a_run_that_gets_gpus_reaches_them(tier, tmp_path):
    pipes = tmp_path / "mps"
    pipes.mkdir()
    pipes.chmod(0o777)
    given = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    seen = graded(tmp_path, tier, gpus=True, **given)
    for rank, one in enumerate(seen["ranks"]):
        others = ["nvidiactl", "nvidia-uvm", "dxg", "nvidia-caps/nvidia-cap1"]
        assert one["opened"] == [f"nvidia{rank}", *others]
        assert one["writes"] and one["visible"] is None and one["order"] == "PCI_BUS_ID"
        assert one["addresses"] == -1  # CUDA reserves more than there is memory
    assert seen["devices"] == ["GPU-aa", "GPU-bb"]  # as the driver says


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_a_run_without_gpus_reaches_none(tier, tmp_path):
    seen = graded(tmp_path, tier, gpus=False)
    assert len(seen["ranks"]) == 2, seen
    for one in seen["ranks"]:
        assert one["visible"] == "-1"
        if tier != "rlimits":  # which hides no file
            assert one["opened"] == []
        if not seen["cgroup"]:
            assert one["addresses"] >= 8 << 30  # memory is limited, although the machine has GPUs
    if tier != "rlimits":
        assert seen["devices"] == ["processor", "processor"]


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_without_the_drivers_answer_the_open_files_name_the_gpu(tmp_path):
    """As in a container, where nvidia-smi does not know the numbers of its processes."""
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "silent").touch()
    seen = graded(tmp_path, tiers.choose(), gpus=True)
    assert seen["devices"] == ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_gpus_for_a_group_only_are_named_in_place_of_a_silent_run_on_the_processor(tmp_path):
    tier = tiers.tier(tiers.choose())
    seen = graded(tmp_path, tier.name, gpus=True, mode="660")
    if not tier.own_user:  # it runs as root
        assert "fault" not in seen
    else:
        assert "cannot open /dev/dxg, /dev/nvidia-uvm, /dev/nvidia0" in seen["fault"]
    assert "fault" not in graded(tmp_path, tier.name, gpus=False, mode="660")


@pytest.mark.usefixtures("two_gpus")
def test_the_doctor_names_gpus_that_a_submission_cannot_open(tmp_path):
    (tmp_path / "machine").mkdir()
    doctor = ["-m", "hvdgrade.cli", "doctor"]
    said = {}
    for mode in ("660", "666"):
        said[mode] = " ".join(
            fake_gpus.run(tmp_path / "machine", *doctor, mode=mode).stdout.split()
        )
    assert "GPUs: 2" in said["660"] and "GPUs: 2" in said["666"]
    if tiers.tier(tiers.choose()).own_user:
        assert "cannot open /dev/dxg" in said["660"]
    assert "cannot open" not in said["666"]


def test_a_rank_that_was_never_seen_is_unknown_and_no_processor(monkeypatch):
    watch = rank_devices.DeviceWatch(3)
    watch.numbers = {os.stat("/dev/full").st_rdev: "/dev/nvidia0"}
    with open("/dev/full") as gpu:
        holder = subprocess.Popen(["sleep", "30"], stdin=gpu)
    try:
        sleeps = {0: psutil.Process(holder.pid), 1: psutil.Process()}
        monkeypatch.setattr(watch, "ask", lambda: None)
        watch.sample(sleeps)
    finally:
        holder.kill()
        holder.wait()
    assert watch.found() == ["/dev/nvidia0", "processor", "unknown"]


def test_names_are_those_of_the_drivers_files(tmp_path, monkeypatch):
    """As the driver's README has them (chapter "PROC interface")."""
    (tmp_path / "0000:04:00.0").mkdir()
    (tmp_path / "0000:04:00.0" / "information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 200\nGPU UUID: \t GPU-aa\nDevice Minor: \t 3\n"
    )
    monkeypatch.setattr(rank_devices, "DRIVER", tmp_path)
    name = "NVIDIA H100 80GB HBM3 (GPU-aa)"
    assert rank_devices.names() == {"GPU-aa": name, "/dev/nvidia3": name}


def test_the_report_names_the_devices():
    found = wording.run({"devices": ["processor", "processor"]})
    assert ("Devices, as the kernel saw them", "processor (ranks 0, 1)") in found
    assert wording.run({}) == wording.run({"devices": "other"}) == []  # of another version


def test_devices_in_words():
    assert wording.in_words(["processor"] * 4) == "processor (ranks 0 to 3)"
    said = wording.in_words(["H100 (GPU-a)", "processor", "H100 (GPU-a)"])
    assert said == "H100 (GPU-a) (ranks 0, 2); processor (rank 1)"


# --- libraries ----------------------------------------------------------------------------------------

READS = """
import json, os
def reads(path):
    try:
        return open(path).read()
    except OSError:
        return None
print(json.dumps([reads(path) for path in PATHS]), flush=True)
"""


@pytest.mark.mpi
def test_a_library_of_a_module_is_there_and_our_code_is_not(tier, tmp_path, monkeypatch):
    """LD_LIBRARY_PATH names folders of a cluster's modules; it must not open what is the grader's."""
    tmp_path.chmod(0o755)
    libraries, real, other = (tmp_path / name for name in ("nccl", "nccl-2.27", "other"))
    for folder in (real, other, tmp_path / "data", tmp_path / "evidence"):
        folder.mkdir()
    (real / "libnccl.so.2").write_text("a library")
    libraries.symlink_to(real)
    (other / "gradebook.csv").write_text("secret")
    solution = ROOT / "assessment/solutions/torch/assessment.py"
    judge = ROOT / "assessment/hvdgrade/judge/verdict.py"
    named = [
        libraries,
        other,
        solution.parent,
        judge.parent,
        ROOT,
        ROOT.parent,
        Path("/"),
        "relative",
    ]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(str, named)))
    paths = [libraries / "libnccl.so.2", other / "gradebook.csv", solution, judge]
    source = READS.replace("PATHS", repr(list(map(str, paths))))
    with Jail(source.encode(), 1, tmp_path / "data", tier=tier) as jail:
        seen = observe(jail, tmp_path / "evidence", limit=60, stall=30)
    library, *rest = json.loads(re.search(r"<stdout>: ?(\[.*\])", seen.output)[1])
    assert library == "a library"
    if tier != "rlimits":  # which hides nothing
        assert rest == [None] * 3


def test_folders_around_our_code_a_home_or_temporary_files_are_not_shown(tmp_path):
    for folder in (
        "/",
        str(ROOT),
        str(ROOT.parent),
        str(ROOT / "assessment"),
        str(Path.home()),
        "",
    ):
        assert not mounts.shareable(folder), folder
    assert not mounts.shareable(str(tmp_path / "missing"))
    assert not mounts.shareable(os.path.dirname(os.environ.get("TMPDIR", "/tmp/x")))
    assert mounts.shareable(str(tmp_path))


def test_what_horovod_and_torch_are_linked_to_can_be_read():
    """By the loader's own list, here without any of our code."""
    found = []
    for package, pattern in (("horovod", "*/mpi_lib*.so"), ("torch", "lib/libtorch_*.so")):
        spec = importlib.util.find_spec(package)
        if spec is None:
            pytest.skip(f"{package} is not installed")
        for library in Path(spec.origin).parent.glob(pattern):
            listed = subprocess.run(["ldd", library], capture_output=True, text=True, timeout=60)
            found += re.findall(r"=> (/\S+)", listed.stdout)
    assert any("libmpi" in path for path in found)
    for path in found:
        for one in (Path(path), Path(path).resolve()):
            assert any(one.is_relative_to(Path(place)) for place in mounts.readable()), one


def test_the_grader_names_what_it_hands_on():
    given = {"CUDA_VISIBLE_DEVICES": "GPU-aa", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HOME": "/root"}
    assert gpu_access.variables(True, given) == {
        "CUDA_VISIBLE_DEVICES": "GPU-aa",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert gpu_access.variables(False, given) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert gpu_access.variables(True, {}) == {}  # all GPUs
