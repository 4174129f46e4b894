"""The profile `gpu`: a larger network by the same rules. Here a small network of its family, on processors;
with a GPU also the real thing."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from hvdgrade import grade, profiles
from hvdgrade.evidence import accuracy, hidden_data
from hvdgrade.evidence.observation import ProbeForm
from hvdgrade.run import calibrate, job, probe
from hvdgrade.run.job import Job
from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.sandbox import tiers
from hvdlab.assessment_networks import network_weights
from hvdlab.data import load_cifar10
from hvdlab.record import is_statistic
from hvdlab.system.hardware import visible_gpus

torch = pytest.importorskip("torch")
models = pytest.importorskip("hvdlab.torch.models")
SOLUTIONS = Path(__file__).parents[2] / "assessment" / "solutions"
SMALL = "wrn-10-1"
FRAMEWORKS = ["torch", pytest.param("keras", marks=pytest.mark.thorough)]


@pytest.fixture
def small_rules(quick_rules) -> profiles.Profile:
    """The profile `gpu` with a small network, for a sample of the data, on any device."""
    return dataclasses.replace(
        profiles.load("gpu"),
        train_sample=quick_rules.train_sample,
        stall_seconds=quick_rules.stall_seconds,
        budget=240.0,
        devices="any",
        network=SMALL,
        calibration_seconds=2.0,
        train_accuracy=0.10,  # two epochs of 3,000 images: that it learns is what the probe shows
        heldout_accuracy=0.05,
    )


@pytest.mark.mpi
@pytest.mark.grading
@pytest.mark.thorough
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_solution_trains_the_network_of_the_profile(
    framework, small_rules, sample_folder, monkeypatch
):
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    document = grade.grade(SOLUTIONS / framework / "assessment.py", 2, small_rules)
    checks = {check["id"]: check for check in document["checks"]}
    states = {id: check["state"] for id, check in checks.items()}
    assert (document["verdict"], set(states.values())) == ("pass", {"pass"}), checks
    assert document["grader"]["network"] == SMALL
    if not visible_gpus():
        assert document["resources"]["devices"] == ["processor", "processor"]
    # One round of this network's gradients in each step, by the kernel's counter of bytes.
    evidence = checks["exchange"]["evidence"]
    if checks["exchange"]["max_points"]:
        rounds, steps = evidence["rounds"][-1], evidence["steps"][-1]
        assert 1 <= rounds / steps < 1.5, evidence


@pytest.mark.mpi
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_calibration_trains_the_network_of_the_profile(
    framework, small_rules, sample_folder, tmp_path
):
    """One that does not exist ends the calibration with the words of who would have built it."""
    data = load_cifar10(sample_folder)
    tmp_path.chmod(0o755)
    shown = hidden_data.for_run(data, hidden_data.HiddenData.draw(1, 3000, 1000), tmp_path / "data")

    def measure(network):
        rules = dataclasses.replace(small_rules, network=network, batch_size=8)
        return calibrate.calibrate(framework, Job(b"", 2, rules, tiers.choose()), shown)

    assert measure(SMALL).serial_rate > 0
    with pytest.raises(calibrate.CalibrationFailed, match=r"expected 6 n \+ 4.*got 11"):
        measure("wrn-11-1")


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has a GPU")
def test_without_a_gpu_the_profile_for_gpus_grades_nothing(tmp_path, sample_folder, monkeypatch):
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    document = grade.grade(SOLUTIONS / "torch", 2, profiles.load("gpu"))
    # So a batch on a machine with GPUs grades it, in place of keeping this result.
    assert document["status"] == "infrastructure_error" and document["verdict"] is None
    assert document["reason"].startswith("the profile gpu needs a GPU, and nvidia-smi lists none")


def test_a_table_says_what_differs_from_the_common_one():
    cpu, dli, gpu = map(profiles.load, ("cpu", "dli", "gpu"))
    assert [one.network for one in (cpu, dli, gpu)] == ["assessment-net"] * 2 + ["wrn-16-10"]
    assert [one.uses_gpus for one in (cpu, dli, gpu)] == [False, True, True]
    weights = 4 * sum(map(math.prod, network_weights("wrn-16-10").values()))
    assert weights < gpu.records.file_bytes < 1.2 * weights
    assert cpu.records.file_bytes == 8 << 20 and (cpu.max_epochs, gpu.max_epochs) == (100, 20)


def test_the_probe_forbids_tf32(monkeypatch, tmp_path, small_rules):
    """Its rounding of 1e-3 would be more than the 32-bit probe allows after some steps."""
    given = []

    class Started(Exception):
        pass

    def jail(*args, variables, **options):
        given.append(variables)
        raise Started

    def no_views(folder, steps):
        return [tmp_path] * 2, tmp_path

    monkeypatch.setattr(job, "SandboxedRun", jail)
    with pytest.raises(Started):
        rules = Job(b"", 2, small_rules, "rlimits")
        probe.probe(rules, no_views, tmp_path, 8, tmp_path, ProbeForm(bits=32))
    assert given[0]["NVIDIA_TF32_OVERRIDE"] == "0" and given[0]["HVDLAB_NETWORK"] == SMALL


# --- with a GPU ---------------------------------------------------------------------------------------


@pytest.fixture
def gpu_here():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")


LOOK = b"""
import json, torch
print(json.dumps([torch.cuda.is_available() and torch.ones(3, device="cuda").sum().item()]), flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("gpus", [True, False])
@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_here")
def test_torch_computes_on_the_gpu_in_each_sandbox(tier, gpus, tmp_path):
    tmp_path.chmod(0o755)
    for name in ("data", "evidence"):
        (tmp_path / name).mkdir()
    with SandboxedRun(LOOK, 1, tmp_path / "data", tier=tier, gpus=gpus) as jail:
        seen = observe(jail, tmp_path / "evidence", limit=120, stall=60)
    found = re.search(r"<stdout>: ?(\[.*\])", seen.output)
    assert found, seen.output
    assert json.loads(found[1]) == [3.0 if gpus else False]


@pytest.mark.mpi
@pytest.mark.grading
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_here")
def test_the_classic_rule_on_a_gpu(ranks, sample_folder, quick_rules, monkeypatch):
    """Two ranks share it where there is one."""
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    document = grade.grade(SOLUTIONS / "torch/assessment.py", ranks, quick_rules)
    states = {check["id"]: check["state"] for check in document["checks"]}
    if ranks == 2:
        assert document["verdict"] == "pass", document["checks"]
    else:
        assert (states["ran"], states["targets"]) == ("pass", "pass"), document["checks"]
    assert not {"processor", "unknown"} & set(document["resources"]["devices"])


@pytest.mark.mpi
@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_here")
def test_the_calibration_on_a_gpu(sample_folder, tmp_path):
    data = load_cifar10(sample_folder)
    tmp_path.chmod(0o755)
    shown = hidden_data.for_run(data, hidden_data.HiddenData.draw(1, 3000, 1000), tmp_path / "data")
    rules = dataclasses.replace(profiles.load("gpu"), calibration_seconds=3.0)
    found = calibrate.calibrate("torch", Job(b"", 1, rules, tiers.choose()), shown)
    assert found.serial_rate > 500  # a processor makes some ten images a second of this network


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_here")
def test_accuracies_of_the_gpu_are_those_of_the_processor(sample_folder, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in network_weights("wrn-16-2").items():
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.3
        arrays[name] = rng.normal(0, scale, shape).astype(np.float32)
        if is_statistic(name) and name.endswith("var"):
            arrays[name] = np.abs(arrays[name]) + 0.5
    data = load_cifar10(sample_folder)
    on_gpu = accuracy.logits(arrays, data.test_images, network="wrn-16-2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # In float32, also on a processor that computes fast in bfloat16.
    monkeypatch.setattr(models, "cpu_is_fast_at_bfloat16", lambda: False)
    on_processor = accuracy.logits(arrays, data.test_images, network="wrn-16-2")
    size = np.abs(on_processor).max()
    np.testing.assert_allclose(on_gpu, on_processor, atol=1e-3 * size)
    differing = (on_gpu.argmax(1) != on_processor.argmax(1)).mean()
    assert differing < profiles.load("gpu").accuracy_margin
