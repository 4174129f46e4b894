"""Checks of lab 8, and a function that runs the grader from a notebook."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hvdlab.exercises import NotYet, call, compare, exercise, number, right, shown
from hvdlab.exercises.harness import script_facts
from hvdlab.hints import hints

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
COLUMNS = dict(epoch=int, loss=float, train_accuracy=float, heldout_accuracy=float, seconds=float)
OUTPUT = """\
WARNING: a library has something to say about epoch 7
epoch 0  loss 1.323  train 0.613  held-out 0.601  19.2 s
epoch 1  loss 0.853  train 0.751  held-out 0.705  37.7 s
epoch 12  loss nan  train 0.100  held-out 0.100  101.5 s
lars, seed 2: target reached after epoch 3, 74.6 s
"""
# fmt: off
ROWS = [
    (0, 1.323, 0.613, 0.601, 19.2), (1, 0.853, 0.751, 0.705, 37.7), (12, math.nan, 0.1, 0.1, 101.5),
]
EPOCH_SECONDS = 10.0
RUNS = [  # (training accuracy, held-out accuracy) of each epoch, the seconds to the target, and the reason
    ([(0.6, 0.6), (0.8, 0.75), (0.81, 0.76), (0.9, 0.8)], 30.0, "epochs 1 and 2 are good"),
    ([(0.75, 0.70), (0.75, 0.70)], 20.0, "exactly at the target counts: >=, not >"),
    ([(0.8, 0.75), (0.7, 0.69), (0.8, 0.75), (0.6, 0.6)], None, "two good ones, not in a row"),
    ([(0.8, 0.60), (0.85, 0.65)], None, "the held-out accuracy must be at its target too"),
    ([(0.6, 0.75), (0.7, 0.76)], None, "the training accuracy must be at its target too"),
    ([(0.6, 0.6), (0.8, 0.75)], None, "one good epoch is not enough"),
    ([(0.8, 0.6), (0.8, 0.75)], None, "held out is too low in the first of the two"),
    ([(0.6, 0.75), (0.8, 0.75)], None, "train is too low in the first of the two"),
    ([(0.8, 0.75), (0.8, 0.6)], None, "held out is too low in the second of the two"),
    ([(0.8, 0.75), (0.6, 0.75)], None, "train is too low in the second of the two"),
    ([(0.8, 0.75), (0.8, 0.6), (0.8, 0.75)], None, "between the good ones held out is too low"),
    ([(0.8, 0.75), (0.7, 0.75), (0.8, 0.75)], None, "between the good ones train is too low"),
    ([], None, "a run without epochs has not reached the target"),
]
# fmt: on


@exercise
def check_least_efficiency(least_efficiency: Callable) -> None:
    """Demand epochs / (ranks * budget): the efficiency that N ranks need to finish in the budget.

    Args:
        least_efficiency: The learner's `least_efficiency(ranks, epochs, budget)`.
    """
    for ranks, epochs, budget in ((2, 3, 2.6), (4, 3, 2.6), (1, 3, 2.6), (2, 5, 4)):
        case = (
            f"{ranks} ranks, {epochs} epochs, budget {budget} epochs of one process: the efficiency"
        )
        answer = number(_call(least_efficiency, ranks, epochs, budget), case)
        expected = epochs / (ranks * budget)
        mistakes = {
            "That is for one process: N ranks make N epochs in the time of one.": epochs / budget,
            "That is upside down: more ranks must need less efficiency.": ranks * budget / epochs,
            "The ranks share the work: divide by them, do not multiply.": epochs * ranks / budget,
            "The epochs to train and the epochs of the budget are swapped.": budget
            / (ranks * epochs),
            "Do not cap it: a value above 1 says that it cannot be done.": min(1, expected),
        }
        rounded = math.isclose(answer, expected, abs_tol=0.006)
        compare(case, answer, expected, mistakes, "Do not round it." if rounded else "See hint 1.")
    right("2 ranks need 58 % for three epochs in the time of 2.6, four need half of that.")


@exercise
def check_rows(rows: Callable) -> None:
    """Demand one dict for each line "epoch E  loss L  train T  held-out H  S s", and for no other line.

    Args:
        rows: The learner's `rows(output)`, a list of dicts.
    """
    answer = _call(rows, OUTPUT)
    if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
        raise NotYet(f"a list of dicts is expected. Received: {_short(answer)}")
    if len(answer) != len(ROWS):
        epochs = [row.get("epoch") for row in answer]
        why = {
            0: "does the pattern fit the two spaces between the fields, and the - of held-out?",
            1: "`return` stands inside the loop, or `re.search` finds the first line only.",
            2: "a loss may be `nan`, and an epoch may have two digits.",
        }.get(len(answer), "ignore the lines that do not begin with `epoch`.")
        raise NotYet(f"3 lines describe epochs, you return {len(answer)} (epochs {epochs}); {why}")
    for row, expected in zip(answer, ROWS, strict=True):
        if set(row) != set(COLUMNS):
            missing, more = sorted(set(COLUMNS) - set(row)), sorted(set(row) - set(COLUMNS))
            raise NotYet(f"the keys must be {', '.join(COLUMNS)}. Missing: {missing}, more: {more}")
        for (name, kind), value in zip(COLUMNS.items(), expected, strict=True):
            _check_field(name, kind, row[name], value, f"{name} of epoch {expected[0]}")
    empty = _call(rows, "mpirun: nothing happened\n")
    if empty != []:
        raise NotYet(f"an output without epochs has no rows, []. You return {_short(empty)}")
    right("three epochs found among five lines, all as numbers.")


def _check_field(name: str, kind: type, answer: object, expected: float, where: str) -> None:
    if isinstance(answer, str):
        raise NotYet(f"{name} is the text {answer!r}: turn it into a number, {kind.__name__}(...).")
    if not isinstance(answer, int | float | np.number):
        raise NotYet(
            f"{where} is {expected}, you return {_short(answer)}: return the number that the text has, "
            f"{kind.__name__}({str(expected)!r})."
        )
    if kind is int and not isinstance(answer, int):
        raise NotYet(
            f"{name} is {answer!r}, a {type(answer).__name__}: epochs are counted, int(...)."
        )
    if not (answer == expected or (math.isnan(expected) and math.isnan(answer))):
        raise NotYet(f"{where} is {expected}, you return {answer}.")


@exercise
def check_seconds_to_target(seconds_to_target: Callable) -> None:
    """Demand the time at the second of the first two consecutive epochs at the target.

    The target is a training accuracy of at least 0.75 and a held-out accuracy of at least 0.70.

    Args:
        seconds_to_target: The learner's `seconds_to_target(rows)`, in seconds, or None.
    """
    for accuracies, expected, why in RUNS:
        table = [
            dict(
                zip(COLUMNS, (epoch, 1.0, train, heldout, EPOCH_SECONDS * (epoch + 1)), strict=True)
            )
            for epoch, (train, heldout) in enumerate(accuracies)
        ]
        answer = _call(seconds_to_target, table)
        case = f"(train, held out) = {accuracies}, 10 s per epoch: the time"
        answer = answer if answer is None else number(answer, case, "of seconds")
        if answer is expected is None:
            continue
        if answer is None or expected is None or not math.isclose(answer, expected):
            if expected is not None and answer == expected - EPOCH_SECONDS:
                why += "; the time is taken at the second of the two"
            raise NotYet(f"{case} is {shown(answer)}, expected {shown(expected)}; {why}.")
    right(f"{len(RUNS)} runs judged like the grader does.")


@exercise
def check_conversion(path: str | Path) -> None:
    """Demand that the script of exercise 4 has all that turns a serial script into a Horovod script.

    The grader's hints must find nothing, and what the grader needs must still be there. Of a script without
    Horovod only that is reported.

    Args:
        path: The learner's script.
    """
    path = Path(path)
    script, found_hints = script_facts.read(path), hints(path.read_bytes())
    torch = script.imported("hvdlab.torch")  # Keras on PyTorch imports torch too
    if not script.horovod or script.silent_keras:
        found_hints = [hint for hint in found_hints if hint["topic"] == "Horovod"]
        found_hints = found_hints or [{"line": None, "text": NO_HOROVOD[not script.keras]}]
    missing = [(f"line {h['line']}: " if h["line"] else "") + h["text"] for h in found_hints]
    wanted = KEPT if torch else {name: KEPT[name] for name in ("Batches", "Recorder")}
    missing += [text for name, text in wanted.items() if script.horovod and not script.named(name)]
    if missing:
        count = "one thing" if len(missing) == 1 else f"{len(missing)} things"
        raise NotYet(f"{path.name} lacks {count}:\n" + "\n".join(f"  * {m}" for m in missing))
    right(
        f"{path.name} has all that a Horovod script needs. The practice run shows whether it works."
    )


def _call(function: Callable, *arguments: object) -> object:
    given = ", ".join(map(_short, arguments))
    return call(function, *arguments, name=f"{function.__name__}({given})")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def hand_in(
    path: str | Path, report: str | Path, ranks: int = 2, profile: str = "cpu", timeout: float = 900
) -> tuple[int, dict]:
    """Run `hvdgrade run PATH -np RANKS --profile PROFILE --json REPORT` and print its output as it comes.

    An interrupt and the time limit end the grader, and with it every process that it has started.

    Args:
        path: The learner's script.
        report: Where the grader writes its report; an old file there is deleted.
        ranks: The number of ranks.
        profile: The name of a profile of the grader.
        timeout: The limit, in seconds.

    Returns:
        The grader's exit code, and the report (empty if there is none).

    Raises:
        TimeoutError: The grading took longer than `timeout`.
    """
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
    try:
        for line in grader.stdout:
            print(line, end="", flush=True)
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
    return code, json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
