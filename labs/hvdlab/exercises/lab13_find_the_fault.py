"""Checks of lab 13: seven scripts with one distributed mistake each, to diagnose and to mend.

A case is a copy of a script of labs/faults in the learner's folder. `watch` runs it for a few steps
under `hvdlab check` and shows what the ranks did; only the two checks know the answer. In a quick run
(LAB_QUICK) some cases are not run.
"""

import ast
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hvdlab.check.command import CheckError, check
from hvdlab.check.run_events import Run
from hvdlab.course.experiment import LABS, QUICK, WORK
from hvdlab.exercises import NotYet, right
from hvdlab.hints.catalogue import CHECKED
from hvdlab.script_analysis.script import Script

CASES = {
    1: "no_broadcast_torch",
    2: "identical_batches_torch",
    3: "optimizer_not_wrapped_torch",
    4: "unequal_steps_torch",
    5: "collective_on_some_ranks_torch",
    6: "rate_scaled_twice_torch",
    7: "own_stop_torch",
}
RUN_IN_QUICK = {1, 5}
BATCHES_OF_ALL = 64  # of an epoch that reads all images of case 2, or all but one of case 4
EXPECTED = tomllib.loads((LABS / "faults" / "faults.toml").read_text())
NAMES = {id: mistake.title for id, mistake in CHECKED.items()}

# What each case shows that another diagnosis would not.
TELLING = {
    1: "Look at the weights after step 1: could one step have parted them so far?",
    2: "Look at the column `batch`: it is a hash of what each rank read.",
    3: "Look at the weights after step 1: how far are they apart, beside those of case 1?",
    4: "Look at `length`: how many batches has an epoch on each rank?",
    5: "Look at where each rank waits, and which lines the other one has come to.",
    6: "Look at the rate of step 1, and at RATE in the script: how many factors of 2 are between?",
    7: "Look at the losses at the end of an epoch, and at what `break` depends on.",
}


@dataclass
class Log:
    """What the ranks did in a few steps."""

    # A row a step and rank: loss, rate, batch (hash), norms (of each tensor), weights (their sum)
    steps: pd.DataFrame
    ends: pd.DataFrame  # a row a rank: length of an epoch, steps, and how it ended
    output: str

    def side_by_side(self, column: str) -> pd.DataFrame:
        """One column of `steps`, the ranks beside each other."""
        return self.steps.pivot(index="step", columns="rank", values=column)

    def distance(self) -> pd.Series:
        """|norm on rank 1 - on rank 0| of each tensor, summed, after each step: 0 where they are equal.

        Tensor by tensor, as the sums of unequal models hardly differ.
        """
        norms = self.side_by_side("norms")
        apart = [abs(np.subtract(*pair)).sum() for pair in zip(norms[0], norms[1], strict=True)]
        return pd.Series(apart, norms.index)


def copy(case: int):
    """The learner's copy of a case; made if there is none. To begin anew, delete it."""
    path = WORK / f"case_{case}.py"
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        path.write_text(_original(case))
    return path


def _original(case):
    """The script without its docstring: the command in it has the name of the mistake."""
    text = (LABS / "faults" / f"{CASES[case]}.py").read_text()
    docstring = ast.parse(text).body[0]
    return "".join(text.splitlines(keepends=True)[docstring.end_lineno :]).lstrip("\n")


def watch(case: int, ranks: int = 2) -> Log | None:
    """Run a case as it came, and show what its ranks did. None in a quick run, for most cases.

    Makes the learner's copy of it too, if there is none, and says where that is.
    """
    print(f"the script of case {case}, to read and to mend: {copy(case)}")
    if QUICK and case not in RUN_IN_QUICK:
        print(f"quick run: case {case} is not run")
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case_{case}.py"
        path.write_text(_original(case))
        found = check(path, ranks=ranks, timeout=120)
    run = Run(found.events)
    steps = [
        {
            "rank": rank,
            "step": number,
            "loss": event["loss"],
            "rate": event["rate"],
            "batch": event["batch"],
            "norms": event["weights"],
            "weights": sum(event["weights"]),
        }
        for rank in run.ranks
        for number, event in enumerate(run.of(rank, "step"), 1)
    ]
    lengths = next(iter(run.lengths().values()), {})
    ends = [
        {
            "rank": rank,
            "length": lengths.get(rank),
            "steps": len(run.of(rank, "step")),
            "end": _end(found.events[rank][-1]),
        }
        for rank in run.ranks
    ]
    return Log(pd.DataFrame(steps), pd.DataFrame(ends).set_index("rank"), found.output)


def _end(event) -> str:
    if event["kind"] == "waiting":
        return f"waits in {event['op']}, line {event['line']}"
    if event["kind"] == "end" and event["error"]:
        return event["error"] + (f", line {event['line']}" if event["line"] else "")
    return "came to its end" if event["kind"] == "end" else "was ended"


def draw(log: Log) -> None:
    """The loss of each rank, the distance of their weights, and the rate, step by step."""
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
    axes[1].set(title="norms: |rank 1 - rank 0|, summed", xlabel="step")
    axes[1].set_ylim(bottom=0)
    plt.show()


def replace(case: int, old: str, new: str) -> None:
    """Replace a text that occurs once in the learner's copy."""
    path = copy(case)
    text = path.read_text()
    if old in new and new in text:
        return  # done before
    if text.count(old) == 1:
        path.write_text(text.replace(old, new))
    elif new not in text:
        raise NotYet(
            f"{path.name} has {text.count(old)} times {old!r}: delete the copy, begin anew."
        )


def check_diagnosis(case: int, diagnosis: str) -> None:
    """The diagnosis is the name of the mistake: one of NAMES."""
    if not isinstance(diagnosis, str) or diagnosis not in NAMES:
        raise NotYet(f"{diagnosis!r} is none of the names: {', '.join(NAMES)}.")
    wanted = EXPECTED[CASES[case]]["finding"]
    if diagnosis != wanted:
        raise NotYet(f"{NAMES[diagnosis]}? {TELLING[case]}")
    right(f"{NAMES[wanted]}.")


def _lost(case, script, run) -> str:
    """What the script was to do and does not do any more; empty where nothing is lost."""
    # By their own names, also of what is imported from a module or under another name.
    read = (node for node in script.nodes if isinstance(node, ast.Attribute | ast.Name))
    names = {script.name(node).rpartition(".")[2].lower() for node in read}
    if case == 1 and not any(name.startswith(("broadcast", "bcast")) for name in names):
        return (
            "nothing is broadcast. Equal seeds make equal weights only as long as all ranks draw the same "
            "numbers, and none of a checkpoint: hand out the weights of rank 0"
        )
    if case in (2, 4) and (lengths := next(iter(run.lengths().values()), {})):
        if min(lengths.values()) >= BATCHES_OF_ALL:
            return (
                f"an epoch has {min(lengths.values())} batches on each rank, as on one: each must read its "
                "own part of the images"
            )
        read = run.batches(0)  # in two epochs, cut equally short
        if all(read) and len(read) > 1 and read[: len(read) // 2] == read[len(read) // 2 :]:
            return (
                "both epochs read the images in one order, which was a new one each time: a sampler must "
                "be told the epoch, sampler.set_epoch(epoch)"
            )
    averages = "allreduce", "grouped_allreduce", "allgather"
    if case == 5 and not any(name.startswith(averages) for name in names):
        return "no loss is averaged any more: let every rank take part, and rank 0 print"
    if case == 7 and not any(_leaves_a_loop(script, node) for node in script.nodes):
        return (
            "it does not stop early any more: keep the rule, and let all ranks decide by one number"
        )
    return ""


def _leaves_a_loop(script, node) -> bool:
    """Whether it may end a loop: a while, a break, or a return from within."""
    inside = (isinstance(each, ast.For) for each in script.ancestors(node))
    return isinstance(node, ast.Break | ast.While) or isinstance(node, ast.Return) and any(inside)


def check_mended(case: int) -> None:
    """The learner's copy gives no finding any more, and still trains on all ranks."""
    path = copy(case)
    if path.read_text() == _original(case):
        raise NotYet(f"{path.name} is as it came: edit it and save it.")
    if QUICK and case not in RUN_IN_QUICK:
        return right("the script is another one. (In a quick run it is not run.)")
    try:
        found = check(path, timeout=120)
    except CheckError as error:
        raise NotYet(str(error)) from None
    if found.findings:
        one = found.findings[0]
        raise NotYet(f"{path.name}, line {one.line}: {one.title}: {one.seen}")
    if found.error:
        raise NotYet(f"no mistake is found, but {found.error}.")
    if lost := _lost(case, Script(path.read_bytes()), Run(found.events)):
        raise NotYet(f"`hvdlab check` finds nothing, but {lost}.")
    right(f"two ranks, {found.steps} steps, and `hvdlab check` finds nothing.")
