"""Try two ranks on one GPU through NCCL: it works from NCCL 2.30 on, and older versions refuse it.

This part starts the ranks itself, because a refusal is a result of the part and not its failure.
"""

import os
import tempfile
from pathlib import Path

import torch

from hvdlab.cli import end_when_told
from hvdlab.gpu_report import findings as found
from hvdlab.gpu_report import processes
from hvdlab.gpu_report.facts import library_version, nccl_words
from hvdlab.gpu_report.findings import Findings, start

SECONDS = 40.0  # time limit of the ranks, because after a refusal they may wait for each other
SINCE = 23000  # NCCL 2.30, the first version with SWITCH
REFUSALS = (
    "Duplicate GPU detected",
    "Multiple Ranks are using the same GPU",
    "NCCL error",
    "Error",
)
SWITCH = "NCCL_MULTI_RANK_GPU_ENABLE"


def main(findings: Findings) -> None:
    """Start the ranks, and report whether NCCL connected them or refused."""
    end_when_told()
    import horovod.torch as hvd

    gpu = torch.cuda.is_available()
    nccl = library_version("libnccl.so.2", "ncclGetVersion") if gpu else 0
    findings.fact("NCCL", nccl_words(nccl) if nccl else "none is used here")
    if gpu and not hvd.nccl_built():
        findings.fact("two ranks on one GPU through NCCL", "not tried: this Horovod has no NCCL")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = processes.python_command(2, "-m", "hvdlab.gpu_report.operations", "nccl", "brief")
        variables = {
            **processes.rank_variables(2, gpu),
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
            SWITCH: "1",
            "NCCL_DEBUG": "WARN",
            found.FOLDER: folder,
            found.SECONDS: "0",
        }
        ended = processes.run(command, SECONDS, variables)
        results = found.read(Path(folder))
    for one in results:
        if one.ok:
            findings.add(one)
    works = ended.code == 0 and bool(results) and all(one.ok for one in results)
    must = not gpu or nccl >= SINCE
    findings.fact(
        f"two ranks on one {'GPU through NCCL' if gpu else 'processor'}, {SWITCH}=1",
        "works" if works else f"refused: {refusal(ended)}",
        "works" if must else f"a refusal, because NCCL is older than {nccl_words(SINCE)}",
        works or not must,
    )


def refusal(ended: processes.Ended) -> str:
    """Return the line of the output with which NCCL reports the error, or how the ranks ended."""
    lines = [line.strip() for line in ended.output.splitlines()]
    for message in REFUSALS:
        for line in lines:
            if message in line:
                return line[:300]
    return f"no answer within {SECONDS:.0f} s" if ended.code is None else f"exit code {ended.code}"


if __name__ == "__main__":
    start(main)
