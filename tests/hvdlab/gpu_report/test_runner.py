"""The runner of `hvdlab gpu`: it reports a bad part, runs the other parts, and leaves no process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hvdlab.gpu_report import results, runner
from hvdlab.gpu_report.machine import Machine
from hvdlab.gpu_report.parts import Part
from hvdlab.gpu_report.results import State

MakePart = Callable[..., Part]
NO_GPU = Machine(no_gpu="this is a test")
MODULES = {
    "fine": "start(lambda f: f.fact('answer', 42))",
    "crashes": "start(lambda f: [f.fact('before', 1), 1 / 0])",
    "hangs": """
import subprocess, sys, time
def main(f):
    f.fact('child', subprocess.Popen(['sleep', '987']).pid)
    time.sleep(600)
start(main)
""",
    "silent": "start(lambda f: None)",
    "wrong": "start(lambda f: f.check('', 'sum', 'here', 'float64', [0.0, 0.5], 1e-12, 'NumPy'))",
    "shows_gpus": "import os\nstart(lambda f: f.fact('gpus', os.environ.get('CUDA_VISIBLE_DEVICES')))",
}


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePart:
    """Return a function (module, ...) -> Part, for modules in a temporary folder."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, source in MODULES.items():
        head = "from hvdlab.gpu_report.findings import start\n"
        (folder / f"{name}_part.py").write_text(head + source)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    def make(module: str, seconds: float = 60.0, **options: object) -> Part:
        return Part(
            module, f"Title of {module}", "Why?", f"{module}_part", seconds, needs=(), **options
        )

    return make


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run(
    parts: list[Part], tmp_path: Path, budget: float = 300.0, here: Machine = NO_GPU
) -> tuple[results.Report, dict[str, results.PartResult], str]:
    lines = []
    report = runner.run(parts, here, tmp_path, budget, lines.append)
    assert len(lines) == len(parts)
    return report, {one.name: one for one in report.parts}, (tmp_path / "gpu.md").read_text()


def test_a_part_that_crashes_or_reports_nothing_is_reported_and_the_rest_goes_on(
    part: MakePart, tmp_path: Path
) -> None:
    parts = [part(name) for name in ("crashes", "silent", "wrong", "fine")]
    _, found, text = run(parts, tmp_path)
    assert [found[p.name].state for p in parts] == [
        State.FAILED,
        State.FAILED,
        State.WRONG,
        State.OK,
    ]
    assert "ZeroDivisionError" in found["crashes"].reason and "ZeroDivisionError" in text
    assert [one.name for one in found["crashes"].findings] == [
        "before"
    ]  # the finding before the crash
    assert found["silent"].reason == "it ended without a result"
    assert "| sum | here | float64 | NumPy | 2 | 2.5e-01 | 5.0e-01 | 1e-12 | **wrong** |" in text
    assert "| answer | 42 |" in text


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_its_children_and_says_where_it_was(
    part: MakePart, tmp_path: Path
) -> None:
    _, found, text = run([part("hangs", seconds=6.0), part("fine")], tmp_path)
    assert (found["hangs"].state, found["fine"].state) == (State.TIMED_OUT, State.OK)
    (child,) = found["hangs"].findings
    assert not alive(int(child.value))
    assert "hangs_part.py" in found["hangs"].output  # the stack, printed before the end
    assert "**timed out**" in text


def test_what_has_no_time_left_or_lacks_something_does_not_run(
    part: MakePart, tmp_path: Path
) -> None:
    missing = Part("two", "Two GPUs", "Why?", "fine_part", 60.0, needs=("several GPUs",))
    _, found, text = run([missing, part("fine")], tmp_path, budget=5.0)
    assert (found["two"].state, found["fine"].state) == (State.SKIPPED, State.NO_TIME)
    assert found["two"].reason == "needs at least two GPUs" and "**no time left**" in text


@pytest.mark.parametrize(("gpus", "shown"), [("none", "-1"), ("one", "0"), ("all", "0,1")])
def test_a_part_sees_the_gpus_that_it_shall_use(
    gpus: str, shown: str, part: MakePart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(runner, "visible_gpus", list)
    _, found, _ = run([part("shows_gpus", gpus=gpus)], tmp_path)
    assert found["shows_gpus"].findings[0].value == shown


def test_a_killed_run_leaves_a_readable_report_of_what_had_ended(
    part: MakePart, tmp_path: Path
) -> None:
    script = f"""
from pathlib import Path
from hvdlab.gpu_report import runner
from hvdlab.gpu_report.machine import Machine
from hvdlab.gpu_report.parts import Part
parts = [Part(name, name, "Why?", f"{{name}}_part", 60.0, needs=()) for name in ("fine", "hangs", "wrong")]
tell = lambda line: print(line, flush=True)
runner.run(parts, Machine(no_gpu="test"), Path({str(tmp_path)!r}), 300.0, tell)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert "ok" in process.stdout.readline()
        while "`hangs` (running)" not in (tmp_path / "gpu.md").read_text():
            assert process.poll() is None
            time.sleep(0.05)
        started = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    states = {one.name: one.state for one in results.read_parts(tmp_path / "gpu.json")}
    assert states == {"fine": State.OK, "hangs": State.RUNNING, "wrong": State.WAITING}
    text = (tmp_path / "gpu.md").read_text()
    assert "| answer | 42 |" in text and "`hangs` (running)" in text and "`wrong` (not run)" in text
    for one in started:  # a killed process cannot end its children, so the test ends them
        for child in [*one.children(recursive=True), one]:
            child.kill()


def test_the_end_of_the_command_ends_the_part(part: MakePart, tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from hvdlab.cli import end_when_told
from hvdlab.gpu_report import runner
from hvdlab.gpu_report.machine import Machine
from hvdlab.gpu_report.parts import Part
end_when_told()
parts = [Part("hangs", "hangs", "Why?", "hangs_part", 60.0, needs=())]
runner.run(parts, Machine(no_gpu="test"), Path({str(tmp_path)!r}), 300.0, print)
"""
    process = psutil.Popen([sys.executable, "-c", script])
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            below = process.children(recursive=True)
            if any(one.name() == "sleep" for one in below):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        if process.poll() is None:
            process.kill()
    assert len(below) >= 2
    until = time.monotonic() + 5
    while any(alive(one.pid) for one in below) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(one.pid) for one in below)


def test_ranks_are_merged_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    from hvdlab.gpu_report import findings

    one = findings.Findings(tmp_path)
    one.check("", "sum", "2 ranks", "int32", [0.0, 0.0], 0.0, "NumPy")
    (tmp_path / "rank-1.jsonl").write_text((tmp_path / "rank-0.jsonl").read_text())
    with open(tmp_path / "rank-1.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "fact", "na')
    (merged,) = findings.read(tmp_path)
    assert (merged.n, merged.ok) == (4, True)
    document = json.loads((tmp_path / "rank-1.jsonl").read_text().splitlines()[0])
    bad = json.dumps({**document, "largest": 3.0, "ok": False})
    (tmp_path / "rank-1.jsonl").write_text(bad + "\n")
    (merged,) = findings.read(tmp_path)
    assert (merged.n, merged.largest, merged.ok) == (4, 3.0, False)


@pytest.mark.parametrize("values", [[], [float("nan")], [0.0, float("inf")]])
def test_no_value_and_values_that_are_not_finite_are_wrong(
    values: list[float], tmp_path: Path
) -> None:
    from hvdlab.gpu_report import findings

    findings.Findings(tmp_path).check("", "sum", "here", "float32", values, 1.0, "NumPy")
    (found,) = findings.read(tmp_path)
    assert not found.ok and found.largest is None
    assert "NaN" not in (tmp_path / "rank-0.jsonl").read_text()  # NaN is not valid JSON
