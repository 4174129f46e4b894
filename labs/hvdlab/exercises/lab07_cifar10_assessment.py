"""Checks of lab 7, and the way to the grader from a notebook."""

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from hvdlab.exercises import NotYet, call, right
from hvdlab.exercises.harness import script_facts
from hvdlab.hints import hints

KEPT = {  # what a script must not lose on the way
    "Batches": "`Batches` is gone: the recorder needs it to know what a rank has read.",
    "Recorder": "The `Recorder` is gone: the grader judges the weights that it writes.",
    "epoch_end": "`recorder.epoch_end(epoch)` is gone: call it after each epoch, on every rank.",
}
NO_HOROVOD = [
    f"No line imports Horovod as this course uses it: begin with `import {module} as hvd` and "
    "`hvd.init()`. How ranks meet without it this check cannot see; the grader can."
    for module in ("hvdlab.keras.horovod", "horovod.torch")
]
COLUMNS = {
    "epoch": int,
    "loss": float,
    "train_accuracy": float,
    "heldout_accuracy": float,
    "seconds": float,
}
OUTPUT = """\
WARNING: a library has something to say about epoch 7
epoch 0  loss 1.323  train 0.613  held-out 0.601  19.2 s
epoch 1  loss 0.853  train 0.751  held-out 0.705  37.7 s
epoch 12  loss nan  train 0.100  held-out 0.100  101.5 s
lars, seed 2: target reached after epoch 3, 74.6 s
"""
ROWS = [
    (0, 1.323, 0.613, 0.601, 19.2),
    (1, 0.853, 0.751, 0.705, 37.7),
    (12, math.nan, 0.1, 0.1, 101.5),
]


def check_least_efficiency(least_efficiency) -> None:
    """epochs / (ranks * budget): the part of N times one process' speed that the ranks must keep."""
    for ranks, epochs, budget in ((2, 3, 2.6), (4, 3, 2.6), (1, 3, 2.6), (2, 5, 4)):
        found = _number(least_efficiency, ranks, epochs, budget)
        right_one = epochs / (ranks * budget)
        if math.isclose(found, right_one, rel_tol=1e-6):
            continue
        what = f"{ranks} ranks, {epochs} epochs, budget {budget} epochs of one process"
        likely = {
            epochs / budget: "that is for one process: N ranks make N epochs in the time of one",
            ranks * budget / epochs: "that is upside down: more ranks must need less efficiency",
            epochs * ranks / budget: "the ranks share the work: divide by them, do not multiply",
            budget / (ranks * epochs): "epochs to train and epochs of the budget are exchanged",
            min(1, right_one): "do not cut it off: above 1 says that it cannot be done",
        }
        rounded = math.isclose(found, right_one, abs_tol=0.006)
        why = "do not round it" if rounded else "see hint 1"
        why = next((w for value, w in likely.items() if math.isclose(found, value)), why)
        raise NotYet(f"{what}: expected {right_one:.4f}, you return {found:.4f}; {why}.")
    right("2 ranks need 58 % for three epochs in the time of 2.6, four need half of that.")


def check_rows(rows) -> None:
    """One dict for each line "epoch E  loss L  train T  held-out H  S s", and for no other line."""
    found = _call(rows, OUTPUT)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise NotYet(f"a list of dicts is expected. Received: {_short(found)}")
    if len(found) != len(ROWS):
        epochs = [row.get("epoch") for row in found]
        why = {
            0: "does the pattern fit the two spaces between the fields, and the - of held-out?",
            1: "`return` stands inside the loop, or `re.search` finds the first line only.",
            2: "a loss may be `nan`, and an epoch may have two digits.",
        }.get(len(found), "lines that do not begin with `epoch` are none of yours.")
        raise NotYet(f"3 lines are an epoch's, you return {len(found)} (epochs {epochs}); {why}")
    for row, expected in zip(found, ROWS, strict=True):
        if set(row) != set(COLUMNS):
            missing, more = sorted(set(COLUMNS) - set(row)), sorted(set(row) - set(COLUMNS))
            raise NotYet(f"the keys must be {', '.join(COLUMNS)}. Missing: {missing}, more: {more}")
        for (name, kind), value in zip(COLUMNS.items(), expected, strict=True):
            came = row[name]
            if isinstance(came, str):
                raise NotYet(
                    f"{name} is the text {came!r}: turn it into a number, {kind.__name__}(...)."
                )
            if not isinstance(came, int | float | np.number):
                raise NotYet(
                    f"{name} of epoch {expected[0]} is {value}, you return {_short(came)}: give the number "
                    f"that the text says, {kind.__name__}({str(value)!r})."
                )
            if kind is int and not isinstance(came, int):
                raise NotYet(
                    f"{name} is {came!r}, a {type(came).__name__}: epochs are counted, int(...)."
                )
            if not (came == value or (math.isnan(value) and math.isnan(came))):
                raise NotYet(f"{name} of epoch {expected[0]} is {value}, you return {came}.")
    empty = _call(rows, "mpirun: nothing happened\n")
    if empty != []:
        raise NotYet(f"an output without epochs has no rows, []. You return {_short(empty)}")
    right("three epochs found among five lines, all as numbers.")


def check_seconds_to_target(seconds_to_target) -> None:
    """The seconds of the second of the first two consecutive epochs with train >= 0.75, held out >= 0.70."""
    cases = [  # (train, held out) of each epoch, what is right, and what an answer that is not tells
        ([(0.6, 0.6), (0.8, 0.75), (0.81, 0.76), (0.9, 0.8)], 30.0, "epochs 1 and 2 are good"),
        ([(0.75, 0.70), (0.75, 0.70)], 20.0, "exactly at the target counts: >=, not >"),
        ([(0.8, 0.75), (0.7, 0.69), (0.8, 0.75), (0.6, 0.6)], None, "two good ones, not in a row"),
        ([(0.8, 0.60), (0.85, 0.65)], None, "the held-out accuracy must be there too"),
        ([(0.6, 0.75), (0.7, 0.76)], None, "the training accuracy must be there too"),
        ([(0.6, 0.6), (0.8, 0.75)], None, "one good epoch is not enough"),
        ([(0.8, 0.6), (0.8, 0.75)], None, "held out is too low in the first of the two"),
        ([(0.6, 0.75), (0.8, 0.75)], None, "train is too low in the first of the two"),
        ([(0.8, 0.75), (0.8, 0.6)], None, "held out is too low in the second of the two"),
        ([(0.8, 0.75), (0.6, 0.75)], None, "train is too low in the second of the two"),
        ([(0.8, 0.75), (0.8, 0.6), (0.8, 0.75)], None, "between the good ones held out is too low"),
        ([(0.8, 0.75), (0.7, 0.75), (0.8, 0.75)], None, "between the good ones train is too low"),
        ([], None, "a run without epochs has reached nothing"),
    ]  # fmt: skip
    for accuracies, expected, why in cases:
        table = [
            {"epoch": e, "loss": 1.0, "train_accuracy": t, "heldout_accuracy": h, "seconds": 10.0 * (e + 1)}
            for e, (t, h) in enumerate(accuracies)
        ]  # fmt: skip
        found = _call(seconds_to_target, table)
        if found is None and expected is None:
            continue
        if found is None or expected is None or not math.isclose(_as_number(found), expected):
            raise NotYet(
                f"(train, held out) = {accuracies}, 10 s an epoch: expected {expected}, you return "
                f"{found}; {why}{_which(found, expected)}."
            )
    right(f"{len(cases)} runs judged as the grader would.")


def check_conversion(path: str | Path) -> None:
    """The script of exercise 4 has what makes a serial script a Horovod script.

    The grader's hints find nothing (no Horovod yet: only that is said), and what the grader needs is
    still there.
    """
    path = Path(path)
    script, found = script_facts.read(path), hints(path.read_bytes())
    torch = script.imported("hvdlab.torch")  # Keras on PyTorch imports torch too
    if not script.horovod or script.silent_keras:
        found = [hint for hint in found if hint["topic"] == "Horovod"]
        found = found or [{"line": None, "text": NO_HOROVOD[not script.keras]}]
    missing = [(f"line {h['line']}: " if h["line"] else "") + h["text"] for h in found]
    wanted = KEPT if torch else {name: KEPT[name] for name in ("Batches", "Recorder")}
    missing += [text for name, text in wanted.items() if script.horovod and not script.named(name)]
    if missing:
        count = "one thing" if len(missing) == 1 else f"{len(missing)} things"
        raise NotYet(f"{path.name} lacks {count}:\n" + "\n".join(f"  * {m}" for m in missing))
    right(
        f"{path.name} has all that a Horovod script needs. The practice run shows whether it works."
    )


def _which(found, expected):
    if expected is not None and found == expected - 10:
        return "; the clock stops at the second of the two"
    return ""


def _call(function, *arguments):
    given = ", ".join(_short(a) for a in arguments)
    return call(function, *arguments, name=f"{function.__name__}({given})")


def _number(function, *arguments) -> float:
    return _as_number(_call(function, *arguments))


def _as_number(found) -> float:
    if found is None:
        raise NotYet("your function returns None: is there a `return` on every way through it?")
    try:
        return float(found)
    except (TypeError, ValueError):
        raise NotYet(f"a number is expected. Received: {_short(found)}") from None


def _short(value) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def hand_in(
    path: str | Path, report: str | Path, ranks: int = 2, profile: str = "cpu", timeout: float = 900
) -> tuple[int, dict]:
    """Run `hvdgrade run PATH -np RANKS --profile PROFILE --json REPORT`, its words printed as they come.

    Returns the exit code and the report. An interrupt and the time limit end the grading, and with
    it everything that the grader has started.
    """
    report = Path(report)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hvdgrade.cli", "run", str(path), "-np", str(ranks)]
    environment = {**os.environ, "COLUMNS": "90", "PYTHONUNBUFFERED": "1"}
    environment.pop("FORCE_COLOR", None)  # a kernel sets it: a line of progress each second
    grader = subprocess.Popen(
        [*command, "--profile", profile, "--json", str(report)],
        env=environment | {"TTY_COMPATIBLE": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    late = threading.Event()
    alarm = threading.Timer(timeout, lambda: (late.set(), grader.terminate()))
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
    if late.is_set():
        raise TimeoutError(f"the grading did not end within {timeout:g} s and was ended")
    return code, json.loads(report.read_text()) if report.exists() else {}
