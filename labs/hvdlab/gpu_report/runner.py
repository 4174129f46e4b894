"""Run the parts one after another, each with its time limit, and write the report after each part."""

import datetime
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdlab.gpu_report import against, findings, machine, markdown, processes, results
from hvdlab.gpu_report.data import DATA_SECONDS
from hvdlab.gpu_report.gpu_use import sampling
from hvdlab.gpu_report.machine import Machine
from hvdlab.gpu_report.parts import Part
from hvdlab.gpu_report.results import Check, Fact, PartResult, Report, State
from hvdlab.system import file_system
from hvdlab.system.hardware import visible_gpus
from hvdlab.system.held_folder import held_folder

LEAST_SECONDS = 10.0  # no part starts if less of the budget is left


def run(
    parts: Sequence[Part],
    here: Machine,
    out: Path,
    budget: float,
    tell: Callable[[str], None],
    old: Path | None = None,
) -> Report:
    """Run parts, write `out`/gpu.json and `out`/gpu.md, and return the report.

    Both files are replaced before and after each part. So a run that is killed leaves a report with all
    findings of the parts that had ended, and with the part that was running.

    Args:
        budget: seconds for all parts together.
        tell: is called with one line of progress per part.
    """
    report = Report(
        headline=here.headline,
        gpu=bool(here.names),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        budget_seconds=budget,
        parts=[
            PartResult(p.name, p.title, p.question, ranks=_ranks(p, here), limit_seconds=p.seconds)
            for p in parts
        ],
        against=str(old) if old else "",
    )
    before = results.read_parts(old) if old else []
    began = time.monotonic()

    def save() -> None:
        report.seconds = round(time.monotonic() - began, 1)
        report.comparisons = against.compare(report.parts, before)
        file_system.write_text(out / "gpu.json", results.to_json(report))
        file_system.write_text(out / "gpu.md", markdown.text(report))

    with held_folder("hvdlab-gpu-") as folder, sampling() as sampler:
        data = {"HVDLAB_DATA": _data(folder.path, report.gpu)}
        for part, result in zip(parts, report.parts, strict=True):
            left = budget - (time.monotonic() - began)
            result.reason = machine.missing(part.needs, here)
            if result.reason:
                result.state = State.SKIPPED
            elif left < LEAST_SECONDS:
                result.state = State.NO_TIME
                result.reason = f"the budget of {budget:g} s is used up"
            else:
                result.state, result.limit_seconds = State.RUNNING, min(part.seconds, left)
                save()
                started = time.monotonic()
                variables = {**processes.rank_variables(result.ranks, report.gpu), **data}
                _run_part(part, result, folder.path, variables)
                result.seconds = round(time.monotonic() - started, 1)
                result.gpu_use = sampler.since(started)
            tell(
                f"{result.title:64} {result.state:12} {result.seconds:6.1f} s  {result.reason}".rstrip()
            )
            save()
    save()
    return report


def _run_part(part: Part, result: PartResult, folder: Path, variables: dict[str, str]) -> None:
    """Run one part as its own process, or as ranks, and write the outcome into `result`.

    Args:
        result: of the part, with its number of ranks and its time limit.
    """
    found = folder / f"findings-{part.name}"
    found.mkdir()
    command = processes.python_command(result.ranks, "-m", part.module, *part.arguments)
    variables = {
        **variables,
        **_visible(part.gpus),
        findings.FOLDER: str(found),
        findings.SECONDS: str(result.limit_seconds),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    ended = processes.run(command, result.limit_seconds, variables)
    result.findings = findings.read(found)
    shutil.rmtree(found, ignore_errors=True)
    wrong = [one for one in result.findings if isinstance(one, Check | Fact) and not one.ok]
    if ended.code is None:
        result.state, result.reason = State.TIMED_OUT, f"it took over {result.limit_seconds:.0f} s"
    elif ended.code:
        result.state, result.reason = State.FAILED, ended.why
    elif not result.findings:
        result.state, result.reason = State.FAILED, "it ended without a result"
    elif wrong:
        result.state, result.reason = State.WRONG, f"{len(wrong)} results are not as expected"
    else:
        result.state = State.OK
    if result.state != State.OK:
        result.output = ended.tail


def _visible(which: str) -> dict[str, str]:
    """Return the environment variable that shows a part its GPUs: "all", "one" or "none"."""
    if which == "all":
        return {}
    return {"CUDA_VISIBLE_DEVICES": "-1" if which == "none" else (visible_gpus() or ["0"])[0]}


def _ranks(part: Part, here: Machine) -> int:
    return part.ranks or max(2, len(here.names))


def _data(folder: Path, gpu: bool) -> str:
    """Return the value of $HVDLAB_DATA for all parts.

    If the data could not be written, the parts that need them fail.
    """
    arguments = ["-m", "hvdlab.gpu_report.data", str(folder / "data"), "whole" if gpu else "sample"]
    ended = processes.run(processes.python_command(1, *arguments), DATA_SECONDS)
    return (ended.output.splitlines() or [""])[-1] if ended.code == 0 else str(folder / "data")


def _commit() -> str:
    """Return the commit of the checkout in which this file is; "" without a checkout."""
    if not (machine.CHECKOUT / ".git").exists():
        return os.environ.get("HVDLAB_COMMIT", "")
    try:
        command = ["git", "-C", str(machine.CHECKOUT), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
