"""Checks of lab 16: seven scripts with one distributed mistake each, to diagnose and to fix.

A case is a script of `hvdlab.faults` in the learner's folder. `watch` runs it for a few steps
under `hvdlab check` and shows what the ranks did. Only `check_diagnosis` and `check_fixed` show the answer.
In a quick run (LAB_QUICK) some cases are not run.
"""

import ast
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hvdlab.check.command import CheckError, check
from hvdlab.check.run_events import Run
from hvdlab.course.experiment import QUICK, WORK
from hvdlab.course.figures import describe
from hvdlab.exercises import NotRun, NotYet, exercise, right
from hvdlab.exercises.lab16_evidence import (  # noqa: F401
    check_evidence,
    check_first_difference,
    check_missing_ranks,
)
from hvdlab.faults import correct, faults
from hvdlab.mistakes import CHECKED
from hvdlab.script_analysis.script import Script
from hvdlab.trace import records
from hvdlab.variants import edited

CASES = {
    1: "no_broadcast_torch",
    2: "identical_batches_torch",
    3: "optimizer_not_wrapped_torch",
    4: "unequal_steps_torch",
    5: "collective_on_some_ranks_torch",
    6: "rate_scaled_twice_torch",
    7: "own_stop_torch",
}
RUN_IN_QUICK = {1}
BATCHES_OF_ALL = 64  # per epoch, where a rank reads all images of case 2, or all but one of case 4
NAMES = {id: mistake.title for id, mistake in CHECKED.items()}

# Where to look in each case to rule out another diagnosis.
TELLING = {
    1: "Look at the weights after step 1: could one step have made them differ so much?",
    2: "Look at the column `batch`: it is a hash of what each rank read.",
    3: "Look at the weights after step 1: how much do they differ, compared with those of case 1?",
    4: "Look at `length`: how many batches has an epoch on each rank?",
    5: "Look at where each rank waits, and which lines the other one has reached.",
    6: "Look at the learning rate of step 1, and at RATE in the script: how many factors of 2 differ?",
    7: "Look at the losses at the end of an epoch, and at what `break` depends on.",
}
# What the evidence of each case means.
MEANING = {
    1: "A distance this large was there before the training began.",
    2: "Equal batches give equal gradients, and their average is the same gradient again.",
    3: "The ranks started equal, and one step with gradients of their own moved them apart a little.",
    4: "Rank 0 has one batch more than rank 1, so its last all-reduce has no partner.",
    5: "Only rank 0 can reach this line, and an all-reduce needs all ranks.",
    6: "2 ranks should double the learning rate. It was multiplied by the number of ranks twice.",
    7: "The test depends on the loss of each rank, so the ranks can leave the loop in different epochs.",
}


@dataclass
class Log:
    """What the ranks did in a few steps.

    Attributes:
        steps: A row per step and rank: loss, rate, batch (hash), norms (of each tensor), weights (their sum).
        ends: A row per rank: length of an epoch, steps, and how it ended.
        output: What the ranks printed.
    """

    steps: pd.DataFrame
    ends: pd.DataFrame
    output: str

    def side_by_side(self, column: str) -> pd.DataFrame:
        """Return one column of `steps` as a table with a column per rank.

        Args:
            column: The name of the column.
        """
        return self.steps.pivot(index="step", columns="rank", values=column)

    def distance(self) -> pd.Series:
        """Return |norm on rank 1 - on rank 0|, summed over all tensors, after each step.

        It is 0 where the weights are equal. The sums of all norms hardly differ, so this is per tensor.
        """
        norms = self.side_by_side("norms")
        apart = [abs(np.subtract(*pair)).sum() for pair in zip(norms[0], norms[1], strict=True)]
        return pd.Series(apart, norms.index)


def copy(case: int) -> Path:
    """Return the learner's copy of a case; make it if there is none. To start again, delete it.

    Args:
        case: The number of the case.
    """
    path = WORK / f"case_{case}.py"
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        path.write_text(original(case), encoding="utf-8")
    return path


def original(case: int) -> str:
    """Return the script of a case as it was before any repair, without its docstring."""
    fault = faults()[CASES[case]]
    return edited(correct(fault.framework), fault.diff)


def watch(case: int, ranks: int = 2) -> Log | None:
    """Run the original script of a case, and return what its ranks did; None for most cases of a quick run.

    The function also makes the learner's copy, if there is none, and prints its path.

    Args:
        case: The number of the case.
        ranks: The number of ranks.
    """
    print(f"the script of case {case}, to read and to fix: {copy(case)}")
    if QUICK and case not in RUN_IN_QUICK:
        print(f"quick run: case {case} is not run")
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case_{case}.py"
        path.write_text(original(case), encoding="utf-8")
        found = check(path, ranks=ranks, timeout=120)
    run = Run(found.events)
    steps = [
        {
            "rank": rank, "step": number, "weights": sum(event.weights), "norms": event.weights,
            **{name: getattr(event, name) for name in ("loss", "rate", "batch")},
        }
        for rank in run.ranks
        for number, event in enumerate(run.of(rank, records.Step), 1)
    ]  # fmt: skip
    lengths = next(iter(run.lengths().values()), {})
    ends = [
        {
            "rank": rank, "length": lengths.get(rank), "steps": len(run.of(rank, records.Step)),
            "end": _end(found.events[rank][-1]),
        }
        for rank in run.ranks
    ]  # fmt: skip
    columns = ["rank", "step", "loss", "rate", "batch", "norms", "weights"]
    return Log(
        pd.DataFrame(steps, columns=columns), pd.DataFrame(ends).set_index("rank"), found.output
    )


def _end(event: records.Record) -> str:
    match event:
        case records.Waiting():
            return f"waits in {event.op}, line {event.line}"
        case records.End(error=str(error)):
            return error + (f", line {event.line}" if event.line else "")
    return "finished" if isinstance(event, records.End) else "was ended"


def draw(log: Log) -> None:
    """Draw the loss of each rank, the distance of their weights, and the learning rate, per step."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 2.6), layout="constrained")
    for axis, column in zip((axes[0], axes[2]), ("loss", "rate"), strict=True):
        table = log.side_by_side(column)
        for rank, style in zip(table.columns, ("-", "--", ":", "-."), strict=False):
            axis.plot(table.index, table[rank], style, label=f"rank {rank}")
        axis.set(title=column, xlabel="step")
        axis.set_ylim(bottom=0)
        axis.legend()
    axes[1].plot(log.distance())
    axes[1].set(title="distance of the weights", xlabel="step")
    axes[1].set_ylim(bottom=0)
    describe(
        figure,
        "Three panels over the steps of the run: the loss of each rank, the distance between the weights of "
        "the two ranks, and the learning rate of each rank.",
    )


def replace(case: int, old: str, new: str) -> None:
    """Replace a text that occurs once in the learner's copy.

    Args:
        case: The number of the case.
        old: The text.
        new: The text that replaces it.

    Raises:
        NotYet: The copy does not have the old text exactly once.
    """
    path = copy(case)
    text = path.read_text(encoding="utf-8")
    if old in new and new in text:
        return  # done before
    if text.count(old) == 1:
        path.write_text(text.replace(old, new), encoding="utf-8")
    elif new not in text:
        raise NotYet(
            f"{path.name} has {text.count(old)} times {old!r}: delete the copy and start again."
        )


@exercise
def check_diagnosis(case: int, diagnosis: str, evidence: float | None = None) -> None:
    """Demand the evidence and the name of the mistake of a case.

    The evidence is checked first, so that trying out all names does not find the mistake.

    Args:
        case: The number of the case.
        diagnosis: One of NAMES.
        evidence: The number that `EVIDENCE` asks for.
    """
    check_evidence(case, evidence, original(case))
    if not isinstance(diagnosis, str) or diagnosis not in NAMES:
        raise NotYet(f"{diagnosis!r} is none of the names: {', '.join(NAMES)}.")
    wanted = faults()[CASES[case]].finding
    if diagnosis != wanted:
        raise NotYet(f"{NAMES[diagnosis]}? {TELLING[case]}")
    right(f"{NAMES[wanted]}. {MEANING[case]}")


def _lost(case: int, script: Script, run: Run) -> str:
    """Return what the script must do and does not do any more; empty where nothing is lost."""
    # The last part of a name, so that an import under another name is found too.
    read = (node for node in script.nodes if isinstance(node, ast.Attribute | ast.Name))
    names = {script.name(node).rpartition(".")[2].lower() for node in read}
    if case == 1 and not any(name.startswith(("broadcast", "bcast")) for name in names):
        return (
            "nothing is broadcast. Equal seeds make equal weights only as long as all ranks draw the same "
            "numbers, and no rank reads a checkpoint: broadcast the weights of rank 0"
        )
    if case in (2, 4) and (lengths := next(iter(run.lengths().values()), {})):
        if min(lengths.values()) >= BATCHES_OF_ALL:
            return (
                f"an epoch has {min(lengths.values())} batches on each rank, as on one: each must read its "
                "own shard of the images"
            )
        read = run.batches(0)  # of two epochs of equal length
        if all(read) and len(read) > 1 and read[: len(read) // 2] == read[len(read) // 2 :]:
            return (
                "both epochs read the images in one order, which was a new one each time: tell "
                "the sampler the epoch, sampler.set_epoch(epoch)"
            )
    averages = "allreduce", "grouped_allreduce", "allgather"
    if case == 5 and not any(name.startswith(averages) for name in names):
        return (
            "no loss is averaged any more: call the collective on every rank, and print on rank 0"
        )
    if case == 7 and not any(_leaves_a_loop(script, node) for node in script.nodes):
        return "it does not stop early any more: keep the rule, and let all ranks decide by the same number"
    return ""


def _leaves_a_loop(script: Script, node: ast.AST) -> bool:
    """Return whether a node may end a loop: a while, a break, or a return from within."""
    inside = (isinstance(each, ast.For) for each in script.ancestors(node))
    return isinstance(node, ast.Break | ast.While) or isinstance(node, ast.Return) and any(inside)


@exercise
def check_fixed(case: int) -> None:
    """Demand that `hvdlab check` finds nothing in the learner's copy, which still trains on all ranks.

    Args:
        case: The number of the case.
    """
    path = copy(case)
    if path.read_text(encoding="utf-8") == original(case):
        raise NotYet(f"{path.name} is unchanged: edit it and save it.")
    if QUICK and case not in RUN_IN_QUICK:
        raise NotRun(path.name)
    try:
        found = check(path, timeout=120)
    except CheckError as error:
        raise NotYet(str(error)) from None
    if found.findings:
        finding = found.findings[0]
        raise NotYet(f"{path.name}, line {finding.line}: {finding.title}: {finding.seen}")
    if found.error:
        raise NotYet(f"no mistake is found, but {found.error}.")
    if lost := _lost(case, Script(path.read_bytes()), Run(found.events)):
        raise NotYet(f"`hvdlab check` finds nothing, but {lost}.")
    right(f"two ranks, {found.steps} steps, and `hvdlab check` finds nothing.")
