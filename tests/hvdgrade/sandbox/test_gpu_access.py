"""The GPU files that a run can open in each sandbox, and the devices that the grader reports.

Device files that any process may open stand for GPUs.
"""

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
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.sandbox import gpu_access, mounts, tiers
from hvdgrade.sandbox.sandbox import WITH_HOST_FILES

ROOT = Path(__file__).parents[3]

# Each rank tries to open its GPU and the other files, and to use the folder of CUDA's daemon.
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
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.run.monitor import observe
from hvdgrade.run.monitor import observe
tier, gpus, data, source, evidence = sys.argv[1:]
try:
    with SandboxedRun(Path(source).read_bytes(), 2, Path(data), tier=tier, gpus=gpus == "True") as jail:
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


def graded(open_folder, tier: str, gpus: bool, mode="666", **variables) -> dict:
    """Run SUBMISSION on a machine with two GPUs; return what it could open, and what the grader reports."""
    for name in ("data", "evidence", "machine"):
        (open_folder / name).mkdir(exist_ok=True)
    (open_folder / "submission.py").write_text(SUBMISSION)
    places = [open_folder / name for name in ("data", "submission.py", "evidence")]
    command = ["-c", GRADER, tier, str(gpus), *map(str, places)]
    answer = fake_gpus.run(open_folder / "machine", *command, mode=mode, **variables)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_a_run_with_gpus_can_open_them(tier, open_folder):
    pipes = open_folder / "mps"
    pipes.mkdir()
    pipes.chmod(0o777)
    given = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    seen = graded(open_folder, tier, gpus=True, **given)
    for rank, one in enumerate(seen["ranks"]):
        others = ["nvidiactl", "nvidia-uvm", "dxg", "nvidia-caps/nvidia-cap1"]
        assert one["opened"] == [f"nvidia{rank}", *others]
        assert one["writes"] and one["visible"] is None and one["order"] == "PCI_BUS_ID"
        # No address limit, because CUDA reserves more addresses than there is memory.
        assert one["addresses"] == -1
    assert seen["devices"] == ["GPU-aa", "GPU-bb"]  # as reported by the driver


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_a_run_without_gpus_can_open_none(tier, open_folder):
    seen = graded(open_folder, tier, gpus=False)
    assert len(seen["ranks"]) == 2, seen
    for one in seen["ranks"]:
        assert one["visible"] == "-1"
        if tier not in WITH_HOST_FILES:
            assert one["opened"] == []
        if not seen["cgroup"]:
            assert one["addresses"] >= 8 << 30  # memory is limited, although the machine has GPUs
    if tier not in WITH_HOST_FILES:
        assert seen["devices"] == ["processor", "processor"]


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_open_device_files_identify_the_gpu_if_the_driver_does_not(open_folder):
    """This happens in a container, where nvidia-smi does not know the process numbers of the container."""
    (open_folder / "machine").mkdir()
    (open_folder / "machine" / "silent").touch()
    seen = graded(open_folder, tiers.choose(), gpus=True)
    assert seen["devices"] == ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.mark.mpi
@pytest.mark.usefixtures("two_gpus")
def test_reports_gpus_that_only_a_group_may_open(open_folder):
    tier = tiers.tier(tiers.choose())
    seen = graded(open_folder, tier.name, gpus=True, mode="660")
    if not tier.own_user:  # the submission runs as root
        assert "fault" not in seen
    else:
        assert "cannot open /dev/dxg, /dev/nvidia-uvm, /dev/nvidia0" in seen["fault"]
    assert "fault" not in graded(open_folder, tier.name, gpus=False, mode="660")


STARTS = """
import sys
from hvdgrade.sandbox.cuda_trial import why_no_cuda
print(why_no_cuda(sys.argv[1]))
"""


@pytest.mark.usefixtures("two_gpus")
def test_cuda_starts_in_each_sandbox(tier, open_folder):
    """The start of CUDA names threads in /proc: https://github.com/NVIDIA/OpenShell/issues/1486."""
    said = fake_gpus.run(open_folder, "-c", STARTS, tier)
    assert said.returncode == 0, said.stderr
    if tier != "landlock" or tiers.tier(tier).uid_dropped:
        assert said.stdout.strip() == ""
    else:
        assert f"in the sandbox {tier} (error 304: OS call failed). " in said.stdout
        assert "where a submission that runs as root may not write" in said.stdout


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_cuda_starts_for_a_submission_that_is_not_root(
    tier, user, environment_for_all, open_folder
):
    """Root gives it a user of its own. Another user shares its own user id with it."""
    become = (
        f"import os, pwd, sys; number = pwd.getpwnam({user!r}).pw_uid\n"
        "if number: os.setgroups([]); os.setgid(number); os.setuid(number)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    python = str(environment_for_all / "python")
    facts = "from hvdgrade.sandbox import tiers; print(tiers.tier(sys.argv[1]).uid_dropped)"
    command = ["-c", become, python, "-c", STARTS + facts, tier]
    said = fake_gpus.run(open_folder, *command, TMPDIR="/tmp")
    assert (said.returncode, said.stdout.split()) == (0, ["True"]), said.stdout + said.stderr


@pytest.mark.usefixtures("two_gpus")
def test_a_machine_on_which_cuda_does_not_start_grades_nothing(open_folder, sample_folder):
    """On the processor a correct script would miss its target."""
    solution = str(ROOT / "assessment/solutions/torch/assessment.py")
    program = (
        "import json, sys; from hvdgrade import grade, profiles; from pathlib import Path\n"
        "document = grade.grade(Path(sys.argv[1]), 2, profiles.load('dli'))\n"
        "print(json.dumps([document[key] for key in ('status', 'verdict', 'reason')]))"
    )
    data = str(sample_folder)
    given = ["-c", program, solution]
    said = fake_gpus.run(open_folder, *given, cuda_error=999, HVDLAB_DATA=data)
    assert said.returncode == 0, said.stderr
    status, verdict, reason = json.loads(said.stdout)
    assert (status, verdict) == ("infrastructure_error", None)
    assert "(error 999: unknown error). Without GPUs grade the profile cpu, or" in reason


@pytest.mark.slow
@pytest.mark.usefixtures("two_gpus")
def test_the_doctor_reports_gpus_that_a_submission_cannot_open(open_folder):
    (open_folder / "machine").mkdir()
    doctor = ["-m", "hvdgrade.cli", "doctor"]
    said = {}
    for mode in ("660", "666"):
        said[mode] = " ".join(
            fake_gpus.run(open_folder / "machine", *doctor, mode=mode).stdout.split()
        )
    assert "GPUs: 2" in said["660"] and "GPUs: 2" in said["666"]
    if tiers.tier(tiers.choose()).own_user:
        assert "cannot open /dev/dxg" in said["660"]
    assert "cannot open" not in said["666"]


def test_the_device_of_a_rank_that_was_never_observed_is_unknown(monkeypatch):
    watch = rank_devices.DeviceWatch(3)
    watch.numbers = {os.stat("/dev/full").st_rdev: "/dev/nvidia0"}
    with open("/dev/full", encoding="utf-8") as gpu:
        holder = subprocess.Popen(["sleep", "30"], stdin=gpu)
    try:
        sleeps = {0: psutil.Process(holder.pid), 1: psutil.Process()}
        monkeypatch.setattr(watch, "ask", lambda: None)
        watch.sample(sleeps)
    finally:
        holder.kill()
        holder.wait()
    assert watch.found() == ["/dev/nvidia0", "processor", "unknown"]


def test_gpu_names_come_from_the_drivers_files(open_folder, monkeypatch):
    """Source: the driver's README, chapter "PROC interface"."""
    (open_folder / "0000:04:00.0").mkdir()
    (open_folder / "0000:04:00.0" / "information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 200\nGPU UUID: \t GPU-aa\nDevice Minor: \t 3\n"
    )
    monkeypatch.setattr(rank_devices, "DRIVER", open_folder)
    name = "NVIDIA H100 80GB HBM3 (GPU-aa)"
    assert rank_devices.names() == {"GPU-aa": name, "/dev/nvidia3": name}


def test_the_report_names_the_devices():
    found = wording.run({"devices": ["processor", "processor"]})
    assert ("Devices, as the kernel saw them", "processor (ranks 0, 1)") in found
    assert wording.run({}) == wording.run({"devices": "other"}) == []  # a result of another version


def test_wording_of_devices():
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
def test_shows_libraries_of_modules_and_hides_our_code(tier, open_folder, monkeypatch):
    """LD_LIBRARY_PATH names folders of a cluster's modules. It must not make files of the grader readable."""
    libraries, real, other = (open_folder / name for name in ("nccl", "nccl-2.27", "other"))
    for folder in (real, other, open_folder / "data", open_folder / "evidence"):
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
    with SandboxedRun(source.encode(), 1, open_folder / "data", tier=tier) as jail:
        seen = observe(jail, open_folder / "evidence", limit=60, stall=30)
    library, *rest = json.loads(re.search(r"<stdout>: ?(\[.*\])", seen.output)[1])
    assert library == "a library"
    if tier not in WITH_HOST_FILES:
        assert rest == [None] * 3


def test_hides_library_folders_that_contain_our_code_a_home_or_temporary_files(open_folder):
    for folder in (
        "/",
        str(ROOT),
        str(ROOT.parent),
        str(ROOT / "assessment"),
        str(Path.home()),
        "",
    ):
        assert not mounts.shareable(folder), folder
    assert not mounts.shareable(str(open_folder / "missing"))
    assert not mounts.shareable(os.path.dirname(os.environ.get("TMPDIR", "/tmp/x")))
    assert mounts.shareable(str(open_folder))


def test_libraries_of_horovod_and_torch_are_readable():
    """The list comes from the dynamic loader, without any of our code."""
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


def test_passes_gpu_variables_to_the_submission():
    given = {"CUDA_VISIBLE_DEVICES": "GPU-aa", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HOME": "/root"}
    assert gpu_access.variables(True, given) == {
        "CUDA_VISIBLE_DEVICES": "GPU-aa",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert gpu_access.variables(False, given) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert gpu_access.variables(True, {}) == {}  # all GPUs
