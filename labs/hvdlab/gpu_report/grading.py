"""Grade correct and wrong submissions with `hvdgrade run`, and compare the verdicts with the expected."""

import json
import os
import shutil
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch

from hvdlab.cli import end_when_told
from hvdlab.gpu_report import processes
from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import SECONDS, Findings, start
from hvdlab.gpu_report.machine import CHECKOUT
from hvdlab.system import open_mpi
from hvdlab.system.hardware import usable_cores

SUBMISSIONS = CHECKOUT / "tests" / "fixtures" / "submissions"
SOLUTION = CHECKOUT / "assessment" / "solutions" / "torch" / "assessment.py"
PROFILES = CHECKOUT / "assessment" / "profiles.toml"
CORES = 5  # cores for one grading: two ranks and the processes that evaluate them


@dataclass(frozen=True)
class Case:
    """A submission and its expected verdict.

    Attributes:
        title: for the reader of the report.
        path: the script, or its folder.
        verdict: the verdict that the grader must give; "" if every verdict is accepted.
        check: names of checks with "|" between them, of which one must fail; "" for a correct submission.
        ranks: number of ranks.
        profile: of the grader.
    """

    title: str
    path: Path
    verdict: str
    check: str = ""
    ranks: int = 2
    profile: str = "dli"


def cases(gpu: bool) -> list[Case]:
    """Return the submissions to grade.

    On the processor these are only submissions that end at once, because a training takes minutes there.

    Args:
        gpu: whether there is a GPU.
    """
    if not gpu:
        return [
            Case("is no Python", SUBMISSIONS / "not_python", "not gradable"),
            Case("crashes", SUBMISSIONS / "crashes", "fail", "ran"),
        ]
    found = [
        Case("solution", SOLUTION, "pass"),
        Case("does not broadcast the weights", SUBMISSIONS / "no_broadcast", "fail", "replicas"),
        Case("does not average gradients", SUBMISSIONS / "no_averaging", "fail",
             "exchange|replicas"),
        Case("gives all ranks the same batches", SUBMISSIONS / "identical_batches", "fail",
             "shards"),
        Case("crashes", SUBMISSIONS / "crashes", "fail", "ran"),
        Case("solution", SOLUTION, "pass", ranks=1),
    ]  # fmt: skip
    if "gpu" in tomllib.loads(PROFILES.read_text(encoding="utf-8")):
        # No verdict is expected of two ranks that share a GPU, because they need not be faster than one.
        expected = "pass" if torch.cuda.device_count() > 1 else ""
        found.append(Case("solution", SOLUTION, expected, profile="gpu"))
    return found


def batches(chosen: list[Case]) -> list[list[Case]]:
    """Return groups of submissions to grade at the same time.

    A submission with the profile `gpu` is alone in its group, because this profile measures speed.
    """
    at_once = max(1, usable_cores() // CORES)
    together = [case for case in chosen if case.profile != "gpu"]
    alone = [[case] for case in chosen if case.profile == "gpu"]
    return [together[first : first + at_once] for first in range(0, len(together), at_once)] + alone


def main(findings: Findings) -> None:
    """Grade all submissions, and report their verdicts."""
    end_when_told()
    gpu = torch.cuda.is_available()
    data, kind = load()
    findings.fact("images", kind)
    chosen = cases(gpu)
    if gpu and data.synthetic:
        chosen = [case for case in chosen if case.title != "solution"]
        findings.fact("solution", "not graded: the targets hold for CIFAR-10 only")
    limit = float(os.environ.get(SECONDS, 150)) - 8  # time to end late gradings, and to report
    until = time.monotonic() + limit
    for together in batches(chosen):
        with tempfile.TemporaryDirectory() as folder:
            results = [Path(folder, f"{number}.json") for number in range(len(together))]
            commands = [command(case, path) for case, path in zip(together, results, strict=True)]
            ended = processes.run_together(commands, max(5.0, until - time.monotonic()))
            for case, path, one in zip(together, results, ended, strict=True):
                report(findings, case, one, path)


def command(case: Case, result: Path) -> list[str]:
    """Return the command that grades a submission and writes its result document to `result`."""
    program = shutil.which("hvdgrade", path=open_mpi.search_path()) or "hvdgrade"
    options = ["-np", str(case.ranks), "--profile", case.profile, "--json", str(result)]
    return [program, "run", str(case.path), *options]


def report(findings: Findings, case: Case, ended: processes.Ended, result: Path) -> None:
    """Compare the result document of one grading with the expected verdict, and report it."""
    ranks = "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
    what = f"{case.title}, profile {case.profile}, {ranks}"
    try:
        document = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        findings.fact(what, f"no result: {ended.why}", case.verdict or "a verdict", False)
        return
    verdict = document["verdict"] or document["status"].replace("_", " ")
    states = {check["id"]: check["state"] for check in document["checks"]}
    failed = [id for id, state in states.items() if state == "fail"]
    right = verdict == case.verdict or not case.verdict
    if case.check:
        right = right and bool(set(case.check.split("|")) & set(failed))
    tier = (document["grader"].get("sandbox") or {}).get("tier")
    value = verdict + (f"; failed: {', '.join(failed)}" if failed else "")
    value += f"; sandbox {tier}" if tier else ""
    expected = case.verdict or "a verdict"
    if case.check:
        expected += f", with {case.check.replace('|', ' or ')} among the failed checks"
    findings.fact(what, value, expected, right)


if __name__ == "__main__":
    start(main)
