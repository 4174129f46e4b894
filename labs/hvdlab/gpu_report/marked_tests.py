"""Run the tests marked `gpu`, and report their numbers and the tests that failed."""

import os
import re
import sys

import torch

from hvdlab.cli import end_when_told
from hvdlab.gpu_report import processes
from hvdlab.gpu_report.findings import SECONDS, Findings, start
from hvdlab.gpu_report.machine import CHECKOUT

MARKER = re.compile(r"mark\.gpu\b")
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped|deselected)\b")


def main(findings: Findings) -> None:
    """Run pytest on all files that have such tests."""
    end_when_told()
    tests = CHECKOUT / "tests"
    files = sorted(
        path for path in tests.rglob("test_*.py") if MARKER.search(path.read_text(encoding="utf-8"))
    )
    findings.fact("files with tests marked `gpu`", len(files))
    if not files:
        return
    # The options of pyproject.toml need plugins that a bare machine may lack.
    options = ["-q", "-m", "gpu", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
    limit = float(os.environ.get(SECONDS, 200)) - 5
    # Pytest cuts the reasons of its summary at the width of the terminal.
    ended = processes.run(command, limit, {"COLUMNS": "300"})
    counts = {name.rstrip("s"): int(number) for number, name in COUNTS.findall(ended.tail)}
    summary = ", ".join(f"{number} {name}" for name, number in counts.items()) or "no summary"
    bad = counts.get("failed", 0) + counts.get("error", 0)
    expected = "none failed" + (", some passed" if torch.cuda.is_available() else "")
    fine = ended.code in (0, 5) and not bad
    fine = fine and (counts.get("passed", 0) > 0 or not torch.cuda.is_available())
    outcome = summary if ended.code is not None else f"took over {limit:.0f} s"
    findings.fact("pytest -m gpu", outcome, expected, fine)
    print(ended.tail)  # for the report of a part that is not fine
    for line in ended.output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            findings.fact("failed", line.replace(str(CHECKOUT), "")[:300], "", False)


if __name__ == "__main__":
    start(main)
