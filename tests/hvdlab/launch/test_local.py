"""The launch line and its environment, and that mpirun does what they say."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from hvdlab.launch import local, script_on_ranks
from hvdlab.system import hardware

TELL = """\
import json, os
print(json.dumps([os.environ["OMPI_COMM_WORLD_RANK"], len(os.sched_getaffinity(0)),
                  os.environ["OMP_NUM_THREADS"]]))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, hardware.usable_cores() + 1])
def test_ranks_start_and_may_run_on_every_core(ranks, tmp_path):
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    answer = subprocess.run(
        local.mpirun_command(ranks, script),
        env={**os.environ, **local.environment(ranks)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    told = sorted(json.loads(line) for line in answer.stdout.splitlines())
    assert [rank for rank, _, _ in told] == sorted(str(rank) for rank in range(ranks))
    assert {cores for _, cores, _ in told} == {len(os.sched_getaffinity(0))}
    assert {threads for _, _, threads in told} == {str(max(1, hardware.usable_cores() // ranks))}


@pytest.mark.mpi
def test_ranks_may_share_a_core_of_two_hardware_threads(tmp_path, monkeypatch):
    """By itself mpirun starts no more ranks than it sees cores; here it sees one, of two threads."""
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    monkeypatch.setenv("HWLOC_SYNTHETIC", "pack:1 core:1 pu:2")
    monkeypatch.setattr(local, "physical_cores", lambda: [[0], [1]])
    with pytest.raises(local.LaunchError, match="not enough slots"):
        script_on_ranks.run(script, ranks=2, show=False, timeout=60)
    monkeypatch.setattr(local, "physical_cores", lambda: [[0, 1]])
    assert len(script_on_ranks.run(script, ranks=2, show=False, timeout=60).splitlines()) == 2


@pytest.mark.mpi
def test_each_mpirun_has_a_folder_of_its_own(tmp_path):
    """Two mpirun remove files of a shared folder: 2 of 450 starts failed while two others ran."""
    script = tmp_path / "tell.py"
    script.write_text("import os\nprint(os.environ['PMIX_SERVER_TMPDIR'])\n")
    folders = set()
    for _ in range(2):
        (folder,) = set(script_on_ranks.run(script, ranks=2, show=False, timeout=60).splitlines())
        base = next(part for part in Path(folder).parents if part.name.startswith("hvdlab-mpirun-"))
        assert not base.exists()
        folders.add(base)
    assert len(folders) == 2


def test_arguments_follow_the_script():
    assert local.mpirun_command(4, "train.py", "--lr", "0.1") == [
        "mpirun", "-np", "4", "python", "train.py", "--lr", "0.1",
    ]  # fmt: skip


def test_siblings_are_one_core():
    """As `lscpu` counts them."""
    said = subprocess.run(
        ["lscpu", "--parse=CORE,SOCKET"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    lines = [line for line in said.splitlines() if not line.startswith("#")]
    cores = hardware.physical_cores(range(len(lines)))
    assert len(cores) == len(set(lines)) and sum(map(len, cores)) == len(lines)


def test_processor_facts_are_those_of_the_kernel():
    lscpu = subprocess.run(["lscpu", "--json"], capture_output=True, text=True, timeout=20).stdout
    told = {}

    def read(entries):
        for entry in entries:
            told[entry["field"].rstrip(":")] = entry["data"]
            read(entry.get("children", []))

    read(json.loads(lscpu)["lscpu"])
    facts = hardware.cpu_facts()
    assert facts["vendor_id"] == told["Vendor ID"]
    assert facts["flags"].split() == told["Flags"].split()


@pytest.mark.parametrize(
    "vendor, flags, fast",
    [
        ("GenuineIntel", "avx2 avx512f amx_bf16 avx512_bf16", True),
        ("GenuineIntel", "avx2 avx512f avx512_bf16", False),  # measured: 0.67 of float32's speed
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", True),  # measured: 1.3 to 1.8
        ("AuthenticAMD", "avx2 avx512f", False),
        (None, "", False),
    ],
)
def test_bfloat16_where_it_is_faster(vendor, flags, fast, monkeypatch):
    facts = {"vendor_id": vendor, "flags": flags} if vendor else {}
    monkeypatch.setattr(hardware, "cpu_facts", lambda: facts)
    assert hardware.cpu_is_fast_at_bfloat16() == fast


@pytest.mark.parametrize(
    "files, quota",
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 0),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0,
        ),
        ({}, 0),
    ],
)
def test_a_container_has_the_cores_of_its_quota(files, quota, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(hardware, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert hardware.cpu_quota() == quota
    assert hardware.usable_cores() == (max(1, int(quota)) if quota else 64)
    if quota:
        assert local.environment(2)["OMP_NUM_THREADS"] == "1"


def test_gpus_stay_visible_to_more_ranks_than_there_are(fake_nvidia_smi, monkeypatch):
    """The ranks share them: see hvdlab.system.gpu_assignment."""
    fake_nvidia_smi("GPU 0: A (UUID: GPU-a)")
    assert "CUDA_VISIBLE_DEVICES" not in local.environment(2)
