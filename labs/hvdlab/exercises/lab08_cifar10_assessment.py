"""Exercises of lab 8, and a function that runs the grader from a notebook."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hvdlab.check.command import CheckError, check
from hvdlab.course.experiment import QUICK, save_document, shipped_document
from hvdlab.course.training_runs import COLUMNS, PARTS
from hvdlab.exercises import NotRun, NotYet, call_unchanged, exercise, number, received, right
from hvdlab.exercises.harness import script_facts
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.hints import hints
from hvdlab.mistakes import Finding

KEPT = {  # what the converted script must still have
    "Batches": "`Batches` is gone: the recorder needs it to know what a rank has read.",
    "Recorder": "The `Recorder` is gone: the grader judges the weights that it writes.",
    "epoch_end": "`recorder.epoch_end(epoch)` is gone: call it after each epoch, on every rank.",
}
NO_HOROVOD = [
    f"No line imports Horovod as this course uses it: begin with `import {module} as hvd` and "
    "`hvd.init()`. This check cannot see whether ranks meet in another way; the grader can."
    for module in ("hvdlab.keras.horovod", "horovod.torch")
]
EXPERIMENT = "cifar10_grading"  # the grading of the solution, for the site


def least_efficiency(ranks, epochs, budget):
    return epochs / (ranks * budget)


# fmt: off
check_least_efficiency = FunctionExercise(
    least_efficiency,
    [
        Case((2, 3, 2.6), "2 ranks with efficiency E finish 2 * E * 2.6 epochs: see hint 2.",
             expected=3 / 5.2),
        Case((4, 3, 2.6), "4 ranks need half of the efficiency that 2 ranks need."),
        Case((1, 3, 2.6), "One process would need more than its own speed.", expected=3 / 2.6),
        Case((2, 5, 4), "2 ranks with efficiency E finish 2 * E * 4 epochs.", expected=0.625),
    ],
    {
        "That is for one process: N ranks make N epochs in the time of one.": ("(ranks * budget)", "budget"),
        "That is upside down: more ranks must need less efficiency.":
            ("epochs / (ranks * budget)", "ranks * budget / epochs"),
        "The ranks share the work: divide by them, do not multiply.":
            ("epochs / (ranks * budget)", "epochs * ranks / budget"),
        "The epochs to train and the epochs of the budget are swapped.":
            ("epochs / (ranks * budget)", "budget / (ranks * epochs)"),
        "Do not cap it: a value above 1 says that it cannot be done.":
            ("epochs / (ranks * budget)", "min(1, epochs / (ranks * budget))"),
        "Do not round it.": ("epochs / (ranks * budget)", "round(epochs / (ranks * budget), 2)"),
    },
    passed="2 ranks need 58 % for three epochs in the time of 2.6, four need half of that.",
)
# fmt: on


def where_time_goes(marks, ranks):
    seconds = dict.fromkeys(PARTS, 0.0)
    for (part, begin), (_, end) in zip(marks, marks[1:], strict=False):
        seconds[part] += end - begin
    total = sum(seconds.values())
    fractions = {part: value / total for part, value in seconds.items()}
    divided = seconds["reading"] + seconds["compute"] + seconds["evaluation"]
    undivided = seconds["start-up"] + seconds["exchange"]
    return seconds, fractions, (seconds["start-up"] + ranks * divided) / undivided


def parts_and_bound(where_time_goes: Callable, marks: list, ranks: int) -> dict[str, float]:
    """Return the seconds and the fraction of each part, and the bound of the speed-up."""
    answer = call_unchanged(where_time_goes, marks, ranks, name="where_time_goes")
    if not (isinstance(answer, tuple | list) and len(answer) == 3):
        raise NotYet(
            "where_time_goes must return three things, seconds, fractions, bound. Received: "
            f"{received(answer)}"
        )
    found = {}
    for what, values in zip(("seconds", "fraction"), answer, strict=False):
        if not isinstance(values, dict) or set(values) != set(PARTS):
            raise NotYet(
                f"where_time_goes must return two dicts with the keys {', '.join(PARTS)}, and the bound. "
                f"Received: {received(values)}"
            )
        for part in PARTS:
            found[f"the {what} of {part},"] = number(values[part], f"the {what} of {part}")
    return found | {"the bound of the speed-up,": number(answer[2], "the bound")}


# fmt: off
EXAMPLE = [  # the worked example: 22 s
    ("start-up", 0.0), ("reading", 6.0), ("compute", 6.5), ("exchange", 11.5), ("compute", 13.0),
    ("reading", 13.5), ("compute", 14.0), ("exchange", 18.0), ("compute", 19.5), ("evaluation", 20.0),
    ("end", 22.0),
]
check_where_time_goes = FunctionExercise(
    where_time_goes,
    [Case((EXAMPLE, ranks), call=f"from the worked example on {ranks} ranks,",
          reason="A part lasts from its own mark to the next mark. The whole run takes 22 s. Start-up and "
          "exchange are not divided among the ranks: see hint 2.")
     for ranks in (2, 4)],
    {
        "A part occurs several times: add up all its times.":
            [("] += end", "] = end"), ("seconds[part] +=", "seconds[part] = seconds[part] or")],
        "A part lasts from its own mark to the next mark: subtract the time of its own mark.":
            ("+= end - begin", "+= end"),
        "You added up when the parts begin. A part lasts until the next mark.":
            ("+= end - begin", "+= begin"),
        "That is a percentage: a fraction of the whole time is between 0 and 1.":
            ("value /", "100 * value /"),
        "Divide by the time of the whole run.": ("value / total", "value"),
        "One process would need `ranks` times the seconds of reading, compute and evaluation.":
            [("ranks * divided", "divided"), ("(seconds[\"start-up\"] + ranks * divided)", "total")],
        "The exchange remains with any number of ranks: start-up and exchange limit the speed-up.":
            (' + seconds["exchange"]', ""),
        "The start-up remains with any number of ranks: start-up and exchange limit the speed-up.":
            ('seconds["start-up"] + seconds["exchange"]', 'seconds["exchange"]'),
        "That is upside down: a speed-up is the time of one process divided by the time of many.":
            ('(seconds["start-up"] + ranks * divided) / undivided',
             'undivided / (seconds["start-up"] + ranks * divided)'),
        "One process has nothing to exchange: its time is start-up + ranks * (the divided parts).":
            [('(seconds["start-up"] + ranks * divided)', "ranks * total"),
             ('(seconds["start-up"] +', "(undivided +")],
        "One process starts once: the start-up is not multiplied by the ranks.":
            ('(seconds["start-up"] + ranks * divided)', 'ranks * (seconds["start-up"] + divided)'),
        "That is the speed-up of this run. The bound is for so many ranks that the divided parts vanish.":
            ("divided) / undivided", "divided) / total"),
    },
    passed="22 s with 45 % compute; with any number of ranks such a run is at most 3.6 times as fast.",
    observe=parts_and_bound,
)
# fmt: on


def seconds_to_target(rows):
    before = False
    for row in rows:
        good = row["train_accuracy"] >= 0.75 and row["heldout_accuracy"] >= 0.70
        if good and before:
            return row["seconds"]
        before = good
    return None


def seconds_or_none(seconds_to_target: Callable, rows: list[dict]) -> dict[str, float | None]:
    """Return the time of the target, which may be None."""
    answer = call_unchanged(seconds_to_target, rows, name="seconds_to_target")
    return {"": None if answer is None else number(answer, "seconds_to_target", "of seconds")}


# fmt: off
check_seconds_to_target = FunctionExercise(
    seconds_to_target,
    [
        Case(([dict(zip(COLUMNS, (epoch, 1.0, *both, 10.0 * (epoch + 1)), strict=True))
               for epoch, both in enumerate(accuracies)],),
             f"{reason}.", call=f"(train, held out) = {accuracies}, 10 s per epoch: the time",
             expected=seconds)
        for accuracies, seconds, reason in [
            ([(0.6, 0.6), (0.8, 0.75), (0.81, 0.76), (0.9, 0.8)], 30.0,
             "Epochs 1 and 2 are good; the time is taken at the second of the two"),
            ([(0.75, 0.70), (0.75, 0.70)], 20.0, "Exactly at the target counts: >=, not >"),
            ([(0.8, 0.75), (0.7, 0.69), (0.8, 0.75), (0.6, 0.6)], None,
             "Two epochs are good, but not in a row"),
            ([(0.8, 0.60), (0.85, 0.65)], None, "The held-out accuracy must be at its target too"),
            ([(0.6, 0.75), (0.7, 0.76)], None, "The training accuracy must be at its target too"),
            ([(0.6, 0.6), (0.8, 0.75)], None, "One good epoch is not enough"),
            ([(0.8, 0.6), (0.8, 0.75)], None, "The held-out accuracy is too low in the first of the two"),
            ([(0.6, 0.75), (0.8, 0.75)], None, "The training accuracy is too low in the first of the two"),
            ([(0.8, 0.75), (0.8, 0.6)], None, "The held-out accuracy is too low in the second of the two"),
            ([(0.8, 0.75), (0.6, 0.75)], None, "The training accuracy is too low in the second of the two"),
            ([(0.8, 0.75), (0.8, 0.6), (0.8, 0.75)], None,
             "Between the good epochs is one whose held-out accuracy is too low"),
            ([(0.8, 0.75), (0.7, 0.75), (0.8, 0.75)], None,
             "Between the good epochs is one whose training accuracy is too low"),
            ([], None, "A run without epochs has not reached the target"),
        ]
    ],
    {
        "One good epoch is not enough: the one before it must be good, too.":
            ("if good and before", "if good"),
        "The time is taken at the second of the two epochs, and not at the first.":
            ('row["seconds"]', "rows[row['epoch'] - 1]['seconds']"),
        "That is the time of the whole run: return as soon as two good epochs were in a row.":
            ('row["seconds"]', "rows[-1]['seconds']"),
        "The good epochs must be in a row: forget the first one when an epoch is not good.":
            ("before = good", "before = before or good"),
        "An epoch is not good if one of its accuracies is too low, also if the other one is not.":
            ("before = good", "before = good or before and (row['train_accuracy'] >= 0.75 or "
             "row['heldout_accuracy'] >= 0.70)"),
        "Exactly at the target counts: >=, not >.": (">=", ">"),
        "The held-out accuracy must be at its target, too.": (' and row["heldout_accuracy"] >= 0.70', ""),
        "The training accuracy must be at its target, too.": ('row["train_accuracy"] >= 0.75 and ', ""),
        "An epoch is good if both accuracies are at their targets, and not only one: `and`, not `or`.":
            ("0.75 and", "0.75 or"),
        "In the first of the two epochs you do not test the held-out accuracy.":
            ("before = good", 'before = row["train_accuracy"] >= 0.75'),
        "In the first of the two epochs you do not test the training accuracy.":
            ("before = good", 'before = row["heldout_accuracy"] >= 0.70'),
        "In the second of the two epochs you do not test the held-out accuracy.":
            ("if good and before", 'if before and row["train_accuracy"] >= 0.75'),
        "In the second of the two epochs you do not test the training accuracy.":
            ("if good and before", 'if before and row["heldout_accuracy"] >= 0.70'),
    },
    passed="13 runs, judged with the rule of the grader.",
    observe=seconds_or_none,
)
# fmt: on


@exercise
def check_conversion(path: str | Path) -> None:
    """Demand that the script of exercise 4 has all that turns a serial script into a Horovod script.

    What the grader needs must still be there, and `hvdlab check` must find nothing. Of a script without
    Horovod only that is reported. In a quick run the script is only read.
    """
    path = Path(path)
    script = script_facts.read(path)
    torch = script.imported("hvdlab.torch")  # Keras on PyTorch imports torch too
    wanted = KEPT if torch else {name: KEPT[name] for name in ("Batches", "Recorder")}
    if not script.horovod:
        missing = [NO_HOROVOD[not script.keras]]
    else:
        missing = [text for name, text in wanted.items() if not script.named(name)]
        missing += [_said(hint) for hint in hints(path.read_bytes())]
    if not missing:
        if QUICK:
            raise NotRun(path.name)
        try:
            checked = check(path)
        except CheckError as error:
            raise NotYet(str(error)) from None
        missing = [_said(finding) for finding in checked.findings]
        if checked.error and not missing:
            raise NotYet(f"{path.name}: {checked.error}")
    if missing:
        count = "one thing" if len(missing) == 1 else f"{len(missing)} things"
        raise NotYet(f"{path.name} lacks {count}:\n" + "\n".join(f"  * {m}" for m in missing))
    right(
        f"hvdlab check finds nothing, and {path.name} has all that the grader needs. The practice run trains "
        "with it."
    )


def _said(finding: Finding) -> str:
    return (f"line {finding.line}: " if finding.line else "") + f"{finding.seen} {finding.fix}"


def hand_in(
    path: str | Path,
    report: str | Path,
    ranks: int = 2,
    profile: str = "cpu",
    timeout: float = 3600,
) -> tuple[int, dict]:
    """Run `hvdgrade run PATH -np RANKS --profile PROFILE --json REPORT` and print its output as it comes.

    An interrupt and the time limit end the grader, and with it every process that it has started. The site of
    the course shows a grading that the course ships (`labs/results/cifar10_grading.json`) and runs none.

    Args:
        path: The learner's script.
        report: Where the grader writes its report; an old file there is deleted.
        ranks: The number of ranks.
        profile: The name of a profile of the grader.
        timeout: The limit, in seconds. Default 3600: the grader itself limits each part of a grading.

    Returns:
        The grader's exit code, and the report (empty if there is none).

    Raises:
        TimeoutError: The grading took longer than `timeout`.
    """
    if kept := shipped_document(EXPERIMENT):
        print(
            f"A grading of the solution that the course ships: {kept['machine']}, {kept['date']}."
        )
        print(kept["printed"])
        return kept["exit_code"], kept["report"]
    report = Path(report)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hvdgrade.cli", "run", str(path), "-np", str(ranks)]
    environment = {**os.environ, "COLUMNS": "90", "PYTHONUNBUFFERED": "1"}
    environment.pop(
        "FORCE_COLOR", None
    )  # a Jupyter kernel sets it, and the grader would print a line of progress each second
    grader = subprocess.Popen(
        [*command, "--profile", profile, "--json", str(report)],
        env=environment | {"TTY_COMPATIBLE": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    is_late = threading.Event()
    alarm = threading.Timer(timeout, lambda: (is_late.set(), grader.terminate()))
    alarm.start()
    printed = []
    try:
        for line in grader.stdout:
            print(line, end="", flush=True)
            printed.append(line)
        code = grader.wait()
    finally:
        alarm.cancel()
        grader.terminate()  # it ends its ranks before it ends itself
        try:
            grader.wait(20)
        except subprocess.TimeoutExpired:
            grader.kill()
    if is_late.is_set():
        raise TimeoutError(f"the grading did not end within {timeout:g} s and was ended")
    document = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    # Without the output of the ranks, which names folders of this machine.
    kept = {key: value for key, value in document.items() if key != "output"}
    save_document(EXPERIMENT, {"exit_code": code, "printed": "".join(printed), "report": kept})
    return code, document
