"""Samples of the GPU and facts of the machine, with scripts in place of nvidia-smi."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdlab.gpu_report import facts, gpu_use, machine, nccl_shared
from hvdlab.gpu_report.processes import Ended


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a shell script on PATH as nvidia-smi."""

    def make(script: str) -> None:
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return make


def test_samples_become_medians_and_maxima(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi(
        "printf '10, 1000, 100.5, 40, 500\\n50, 1980, 300.5, 60, 900\\n[N/A], 1980, 1, 1, 1\\n"
        "90, 1980, 200, 50, 700\\n'; exec sleep 60"
    )
    began = time.monotonic()
    with gpu_use.sampling() as sampler:
        until = time.monotonic() + 30
        while time.monotonic() < until and (use := sampler.since(began)) is None or use.samples < 3:
            time.sleep(0.02)
        assert use.samples == 3  # the line with [N/A] is no sample
        assert (use.utilisation_percent, use.clock_mhz) == (50, 1980)
        assert (use.power_watts_max, use.temperature_celsius_max, use.memory_mib_max) == (
            300.5,
            60,
            900,
        )
        assert sampler.since(time.monotonic()) is None


def test_without_nvidia_smi_there_are_no_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu_use.sampling() as sampler:
        assert sampler.since(0.0) is None


def test_a_gpu_that_pytorch_cannot_use_is_named(
    nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    nvidia_smi("echo 'GPU 0: Test (UUID: GPU-1)'")
    monkeypatch.setattr(machine, "ASK_TORCH", 'print(\'["2.13.0+cpu", "", []]\')')
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = machine.look()
    assert found.names == ()
    assert found.headline.startswith(
        "**No GPU: nvidia-smi lists 1, but PyTorch 2.13.0+cpu is a build without CUDA and can use none."
    )


def test_the_headline_names_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ASK_TORCH", 'print(\'["2.11", "13.0", ["H100", "H100"]]\')')
    assert machine.look().headline == "# GPU report: 2 x H100"


def test_a_pytorch_that_cannot_be_imported_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ASK_TORCH", "raise ImportError('libcudart.so.13: no such file')")
    assert "libcudart.so.13" in machine.look().headline


def test_values_that_nvidia_smi_does_not_know_are_not_reported(
    nvidia_smi: Callable[[str], None],
) -> None:
    nvidia_smi("echo '580.95.05'")
    assert facts.smi("driver_version", "1-2-3") == "580.95.05"
    nvidia_smi("echo 'Field is not a valid field'; exit 2")
    assert facts.smi("nothing", "1-2-3") == "not reported"


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),  # machine code of the same major version
        ((7, 0), ["sm_75", "sm_80"], False),  # V100 and CUDA 13
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for newer GPUs
        ((12, 0), ["sm_90"], False),
        ((10, 3), ["sm_100a", "sm_90a"], True),
    ],
)
def test_whether_pytorch_has_code_for_a_gpu(
    capability: tuple[int, int], built: list[str], runs: bool
) -> None:
    assert facts.supported(capability, built) == runs


def test_versions_of_nccl() -> None:
    assert facts.nccl_words(22907) == "2.29.7"


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (Ended(None, "x\nhost:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1\n"),
         "host:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1"),
        (Ended(None, ""), "no answer within 40 s"),
        (Ended(1, "bye"), "exit code 1"),
    ],
)  # fmt: skip
def test_a_refusal_of_nccl_is_quoted(ended: Ended, why: str) -> None:
    assert nccl_shared.refusal(ended) == why
