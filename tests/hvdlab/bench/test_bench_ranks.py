"""The benchmarks that start ranks run, and report what they measured. No test asserts a time."""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from rich.console import Console

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")

from hvdlab.bench import allreduce, command, ranks, results, scaling  # noqa: E402
from hvdlab.scaling import Link, ring  # noqa: E402


def shown(show: Callable, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=180)
    show(*arguments, console=console)
    return console.file.getvalue()


def silent(text: str) -> None:
    pass


def arguments(bench: ModuleType, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.mpi
@pytest.mark.thorough
def test_allreduce(tmp_path: Path) -> None:
    options = dict(list(allreduce.OPTIONS.items())[:2]) | {"fp16 compression": {}}
    found = allreduce.allreduce(2, 1, (1024, 65536), options, silent)
    assert list(found["ways"]) == ["horovod", "mpi", "gloo", "memcpy"]
    assert found["device"] == ranks.processor()
    for times in found["ways"].values():
        assert list(times) == ["1024", "65536"] and all(t[0] > 0 for t in times.values())
    assert all(len(times) == 1 and times[0] > 0 for times in found["options"].values())
    table = shown(allreduce.show, found)
    assert "65,536" in table and "fp16 compression" in table
    allreduce.plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_scaling(tmp_path: Path) -> None:
    found = scaling.scaling(2, ranks.Training(repeats=1, steps=2, batch_size=8, tell=silent))
    assert {kind: list(by_ranks) for kind, by_ranks in found.items()} == {
        "weak": [1, 2],
        "strong": [1, 2],
    }
    assert [found["strong"][n]["batch_size"] for n in (1, 2)] == [16, 8]
    assert found["weak"][2] == found["strong"][2]  # measured once
    assert all(r[how][0] > 0 for r in found["weak"].values() for how in ("exchanged", "alone"))
    table = shown(scaling.show, found)
    assert "Weak scaling" in table and "Strong scaling" in table
    scaling.plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.mpi
def test_ranks_that_take_too_long_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LIMIT_SECONDS", 4)
    with pytest.raises(ranks.BenchFailed, match="-n on 2 ranks took over 4 s"):
        ranks.run("timeit", 2, "-n", 10**15, "'no end to this'")
    deadline = time.monotonic() + 20
    while any(
        "no end to this" in " ".join(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline"])
    ):  # a killed process needs a moment to disappear
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_counts_of_ranks() -> None:
    assert [scaling.rank_counts(most) for most in (1, 2, 6, 8)] == [
        [1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]
    ]  # fmt: skip


def test_bus_bandwidth_is_that_of_the_wire_of_a_perfect_ring() -> None:
    for count in (2, 3, 8):
        assert allreduce.busbw(1e8, ring(1e8, count, Link(0, 3e9)), count) == pytest.approx(3)


@pytest.mark.parametrize("count, factor", [(2, "1"), (4, "1.5")])
def test_the_table_says_what_its_bandwidths_are(count: int, factor: str) -> None:
    times = dict.fromkeys(("horovod", "mpi", "gloo", "memcpy"), {"2048": [2.048e-6]})  # 1 GB/s
    found = {"ranks": count, "device": "a CPU", "ways": times, "options": {"default": [1.0]}}
    table = shown(allreduce.show, found)
    assert f"busbw = {factor} algbw on {count} ranks" in table
    assert f"All-reduce on {count} ranks, a CPU" in table
    row = next(line.split() for line in table.splitlines() if "2 .. 2" in line)
    assert row[-7:-3] == [f"{float(factor):.3f}"] * 3 + ["1.000"]


def made_up() -> tuple[dict, dict]:
    """Return two rounds of simple figures: 1 ms + 1 ns per byte; alone 100 images/s per rank."""
    times = {str(n): [1e-3 + n * 1e-9] * 2 for n in (10**4, 10**6)}
    rates = {1: {"batch_size": 10, "exchanged": [100.0, 100.0], "alone": [100.0, 100.0]},
             2: {"batch_size": 10, "exchanged": [150.0, 170.0], "alone": [200.0, 200.0]}}  # fmt: skip
    return {"ranks": 2, "ways": {"horovod": times}}, {"weak": rates}


def test_the_scaling_is_predicted_from_an_all_reduce() -> None:
    measured, found = made_up()
    predicted = scaling.predict(found, scaling.link_of(measured))["weak"]
    # 392,170 parameters of 4 bytes: 1 ms and 1.57 ms after a step of 100 ms. One rank has no cost.
    assert predicted[1].images_per_second == pytest.approx(100)
    assert predicted[2].images_per_second == pytest.approx(20 / (0.1 + 1e-3 + 1.57e-3), rel=1e-3)
    table = shown(lambda console: scaling.show(found, console, {"weak": predicted}))
    assert "1.60" in table and "0.80" in table and "195" in table


def test_what_is_kept_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured, found = made_up()
    file = tmp_path / "allreduce.json"
    results.keep(arguments(allreduce, "--json", str(file)), measured, None)
    assert json.loads(file.read_text())["measured"] == measured
    assert json.loads(file.read_text())["repeats"] == 5


def one_size() -> str:
    """Return a shortened version of what `hvdlab bench allreduce --largest 1024 --json FILE` writes."""
    return json.dumps({"measured": {"ranks": 2, "ways": {"horovod": {"1024": [1e-4, 2e-4]}}}})


@pytest.mark.parametrize("text", ["{}", "[]", "no json", None, one_size()])
def test_a_file_that_is_no_bench_is_refused_before_anything_is_measured(
    text: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "scaling", None)  # a call would be a TypeError
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    assert scaling.main(arguments(scaling, "--allreduce", str(file))) == 2
    assert "--allreduce: expected a file that `hvdlab bench allreduce" in capsys.readouterr().err


def test_one_rank_reduces_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert allreduce.main(arguments(allreduce, "--ranks", "1")) == 2
    assert "expected at least 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--repeats", "0"), "--repeats: expected 1 or more, got 0"),
        (("--json", "/no/such/folder/a.json"), "--json: expected a file in a folder that exists"),
        (("--json", "/"), "--json: expected a file in a folder that exists"),
        (("--plot", "a.txt"), "--plot: expected a .png, .svg or .pdf, got 'a.txt'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        arguments(scaling, *words)
    assert stop.value.code == 2 and says in capsys.readouterr().err


def test_what_was_measured_is_kept_even_if_it_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = made_up()
    monkeypatch.setattr(scaling, "scaling", lambda *arguments: found)
    monkeypatch.setattr(scaling, "show", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scaling.main(arguments(scaling, "--json", str(tmp_path / "kept.json")))
    kept = json.loads((tmp_path / "kept.json").read_text())["measured"]
    assert kept["weak"]["2"]["exchanged"] == [150.0, 170.0]


BENCH = """
import argparse, os, sys
from hvdlab import cli
from hvdlab.bench import command, ranks
cli.end_when_told()
measure = lambda args: ranks.start("a.module", 2, dict(os.environ), "a variant")
sys.exit(command.main(argparse.Namespace(measure=measure)))
"""


CHECK = """
import sys
from pathlib import Path
from hvdlab import cli, launch
Path("train.py").write_text("import horovod.torch as hvd")
launch.local.mpirun_command = lambda *words: ["./mpirun"]
sys.exit(cli.main(["check", "-np", "2", "train.py"]))
"""


@pytest.mark.parametrize("program", [BENCH, CHECK], ids=["bench", "check"])
@pytest.mark.parametrize(
    "sent, code, before",
    [
        ([signal.SIGTERM], 128 + signal.SIGTERM, None),
        ([signal.SIGHUP], 128 + signal.SIGHUP, None),  # its terminal closed
        ([signal.SIGHUP, signal.SIGTERM], 128 + signal.SIGTERM, "nohup"),
    ],
)
def test_a_command_that_gets_a_signal_leaves_no_rank(
    program: str, sent: list[signal.Signals], code: int, before: str | None, tmp_path: Path
) -> None:
    (mpirun := tmp_path / "mpirun").write_text(
        "#!/bin/sh\nsleep 300 & sleep 300 &\n: > started\nwait\n"
    )
    mpirun.chmod(0o755)
    mark = uuid.uuid4().hex
    bench = subprocess.Popen(
        [*filter(None, [before]), sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MARK": mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def left() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("MARK") == mark:
                    found.append(process)
        return found

    try:
        deadline = time.monotonic() + 60
        # The benchmark, mpirun and two ranks. A process that has just started shows no environment yet.
        while not (tmp_path / "started").exists() or len(left()) != 4:
            assert time.monotonic() < deadline and bench.poll() is None, left()
            time.sleep(0.05)
        for number in sent:
            bench.send_signal(number)
        assert bench.wait(30) == code
        deadline = time.monotonic() + 20
        while left():  # a killed process needs a moment to disappear
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for process in left():
            process.kill()


@pytest.mark.parametrize("device, visible", [("cpu", "-1"), ("gpu", "0")])
def test_ranks_are_shown_gpus_where_these_are_measured(
    device: str, visible: str, tmp_path: Path
) -> None:
    (mpirun := tmp_path / "mpirun").write_text(
        '#!/bin/sh\necho "{\\"visible\\": \\"$CUDA_VISIBLE_DEVICES\\"}"\n'
    )
    mpirun.chmod(0o755)
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "0"}
    found = ranks.start("a.module", 1, given, "a variant", device=device)
    assert found == [{"visible": visible}]


@pytest.mark.parametrize(
    "asked, gpus, count, device",
    [
        (None, 0, 1, "cpu"),
        (None, 1, 1, "gpu"),
        (None, 1, 2, "cpu"),  # two ranks would share the GPU
        (None, 2, 2, "gpu"),
        ("gpu", 1, 2, "gpu"),
        ("cpu", 2, 1, "cpu"),
    ],
)
def test_the_device_is_a_gpu_if_there_is_one_for_each_rank(
    asked: str | None, gpus: int, count: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "gpus", lambda: gpus)
    assert ranks.chosen_device(asked, count) == device


def test_a_gpu_that_is_not_there_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "gpus", lambda: 0)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for what in (
        "throughput",
        "allreduce",
        "scaling",
        "precision",
        "optimizers",
        "normalization",
        "launch",
    ):
        assert command.main(parser.parse_args([what, "--device", "gpu"])) == 1
        assert "hvdlab: --device gpu: nvidia-smi shows no GPU" in capsys.readouterr().err


def test_there_are_as_many_ranks_as_gpus_or_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: 6)
    for gpus, asked, expected in (
        (4, None, 4),
        (4, "gpu", 4),
        (4, "cpu", 6),
        (1, None, 6),
        (0, None, 6),
    ):
        monkeypatch.setattr(ranks, "gpus", lambda gpus=gpus: gpus)
        assert ranks.ranks_of_all(asked) == expected


@pytest.mark.mpi
def test_each_rank_is_shown_a_gpu_of_its_own(fake_nvidia_smi: Callable[..., None]) -> None:
    fake_nvidia_smi("GPU 0: A (UUID: GPU-a)", "GPU 1: A (UUID: GPU-b)")
    path = os.pathsep.join([str(Path(__file__).parent / "ranks"), *sys.path])
    found = ranks.run("visible_gpu", 2, "a rank", device="gpu", PYTHONPATH=path)
    assert sorted(rank["visible"] for rank in found) == ["GPU-a", "GPU-b"]


def test_a_network_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(scaling, "--network", "wrn-17-1")
    assert "argument --network: depth: expected 6 n + 4" in capsys.readouterr().err


def test_a_machine_without_mpirun_gets_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.local, "environment", lambda count: {"PATH": "/nowhere"})
    with pytest.raises(
        ranks.BenchFailed, match="needs mpirun, which is not installed: try `hvdlab doctor`"
    ):
        ranks.run("timeit", 2, "pass")
