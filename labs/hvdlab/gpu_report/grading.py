"""Grade correct and wrong submissions with `hvdgrade run`, and compare their verdicts with those expected."""

import json
import shutil
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from hvdlab import open_mpi
from hvdlab.cli import end_when_told
from hvdlab.gpu_report import processes
from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.machine import CHECKOUT
from hvdlab.hardware import usable_cores

SUBMISSIONS = CHECKOUT / "tests" / "fixtures" / "submissions"
SOLUTION = CHECKOUT / "assessment" / "solutions" / "torch" / "assessment.py"
PROFILES = CHECKOUT / "assessment" / "profiles.toml"
SECONDS = 110.0  # of one grading


@dataclass(frozen=True)
class Case:
    """A submission and its expected verdict; `check` is a check that must not pass, "" for a right one."""

    title: str
    path: Path
    verdict: str
    check: str = ""
    ranks: int = 2
    profile: str = "dli"


def cases(gpu: bool) -> list[Case]:
    """On the processor only submissions that end at once are graded: a training takes minutes there."""
    if not gpu:
        return [
            Case("is no Python", SUBMISSIONS / "not_python", "not gradable"),
            Case("crashes", SUBMISSIONS / "crashes", "fail", "ran"),
        ]
    found = [
        Case("solution", SOLUTION, "pass"),
        Case("does not broadcast the weights", SUBMISSIONS / "no_broadcast", "fail", "replicas"),
        Case(
            "does not average gradients", SUBMISSIONS / "no_averaging", "fail", "exchange|replicas"
        ),
        Case(
            "gives all ranks the same batches", SUBMISSIONS / "identical_batches", "fail", "shards"
        ),
        Case("crashes", SUBMISSIONS / "crashes", "fail", "ran"),
        Case("solution", SOLUTION, "pass", ranks=1),
    ]
    if "gpu" in tomllib.loads(PROFILES.read_text()):
        found.insert(1, Case("solution", SOLUTION, "pass", profile="gpu"))
    return found


def main(findings: Findings) -> None:
    end_when_told()
    gpu = torch.cuda.is_available()
    data, kind = load()
    findings.fact("images", kind)
    chosen = cases(gpu)
    if gpu and data.synthetic:
        chosen = [case for case in chosen if case.verdict != "pass"]
        findings.fact("solution", "not graded: the targets hold for CIFAR-10 only")
    with ThreadPoolExecutor(max(1, usable_cores() // 5)) as together:
        for case, (ended, document) in zip(chosen, together.map(grade, chosen), strict=False):
            report(findings, case, ended, document)


def grade(case: Case) -> tuple[processes.Ended, dict]:
    """Run the grader; return how it ended, and its result document, {} without one."""
    program = shutil.which("hvdgrade", path=open_mpi.search_path()) or "hvdgrade"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        command = [
            program,
            "run",
            str(case.path),
            "-np",
            str(case.ranks),
            "--profile",
            case.profile,
        ]
        ended = processes.run([*command, "--json", str(path)], SECONDS)
        try:
            return ended, json.loads(path.read_text())
        except (OSError, ValueError):
            return ended, {}


def report(findings: Findings, case: Case, ended: processes.Ended, document: dict) -> None:
    ranks = "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
    what = f"{case.title}, profile {case.profile}, {ranks}"
    if not document:
        findings.fact(what, f"no result: {ended.why}", case.verdict, False)
        return
    verdict = document["verdict"] or document["status"].replace("_", " ")
    states = {check["id"]: check["state"] for check in document["checks"]}
    failed = [id for id, state in states.items() if state == "fail"]
    right = verdict == case.verdict
    if case.check:
        right = right and bool(set(case.check.split("|")) & set(failed))
    tier = (document["grader"].get("sandbox") or {}).get("tier")
    value = [
        verdict,
        f"failed: {', '.join(failed)}" if failed else "",
        f"sandbox {tier}" if tier else "",
    ]
    value = "; ".join(text for text in value if text)
    expected = case.verdict
    if case.check:
        expected += f", with {case.check.replace('|', ' or ')} among the failed"
    findings.fact(what, value, expected, right)


if __name__ == "__main__":
    start(main)
