"""Checks of lab 8, and a function that runs the grader from a notebook."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hvdlab.course.experiment import save_document, shipped_document
from hvdlab.course.training_runs import COLUMNS
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
EXPERIMENT = "cifar10_grading"  # the grading of the solution, for the site
# fmt: off
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


PART_MARKS = [  # the run of the worked example: 22 s on 2 ranks
    ("start-up", 0.0), ("reading", 6.0), ("compute", 6.5), ("exchange", 11.5), ("compute", 13.0),
    ("reading", 13.5), ("compute", 14.0), ("exchange", 18.0), ("compute", 19.5), ("evaluation", 20.0),
    ("end", 22.0),
]  # fmt: skip
PART_SECONDS = {
    "start-up": 6.0,
    "reading": 1.0,
    "compute": 10.0,
    "exchange": 3.0,
    "evaluation": 2.0,
}


@exercise
def check_where_time_goes(where_time_goes: Callable) -> None:
    """Demand seconds and fractions of each part, and the bound of the speed-up by Amdahl's law.

    Args:
        where_time_goes: The learner's `where_time_goes(marks, ranks)`: seconds, fractions, bound.
    """
    answer = call(where_time_goes, list(PART_MARKS), 2, name="where_time_goes")
    if not (isinstance(answer, tuple) and len(answer) == 3):
        raise NotYet(
            f"where_time_goes must return three things, seconds, fractions, bound. Received: {_short(answer)}"
        )
    seconds, fractions, bound = answer
    total = sum(PART_SECONDS.values())
    for what, found in (("seconds", seconds), ("fractions", fractions)):
        if not isinstance(found, dict) or set(found) != set(PART_SECONDS):
            raise NotYet(
                f"{what} must be a dict with the keys {', '.join(PART_SECONDS)}. Received: {_short(found)}"
            )
    for part, expected in PART_SECONDS.items():
        each = [
            later - begin
            for (name, begin), (_, later) in zip(PART_MARKS, PART_MARKS[1:], strict=False)
            if name == part
        ]
        mistakes = {"A part occurs several times: add up all its times.": [each[0], each[-1]]}
        given = number(seconds[part], f"the seconds of {part}")
        says = "A part lasts from its own mark to the next mark."
        compare(f"the seconds of {part}", given, expected, mistakes if len(each) > 1 else {}, says)
    for part, expected in PART_SECONDS.items():
        mistakes = {
            "That is a percentage: a fraction of the whole time is between 0 and 1.": 100 * expected / total,
            "Divide by the time of the whole run.": expected,
        }  # fmt: skip
        given = number(fractions[part], f"the fraction of {part}")
        compare(f"the fraction of {part}", given, expected / total, mistakes, "The run takes 22 s.")
    _check_bound(where_time_goes, bound)
    right(
        "22 s with 45 % compute; with any number of ranks such a run is at most 3.6 times as fast."
    )


def _check_bound(where_time_goes: Callable, bound: object) -> None:
    divided = sum(PART_SECONDS[part] for part in ("reading", "compute", "evaluation"))
    start, exchange = PART_SECONDS["start-up"], PART_SECONDS["exchange"]
    total = divided + start + exchange
    four = call(where_time_goes, list(PART_MARKS), 4, name="where_time_goes")[2]
    for ranks, answer in ((2, bound), (4, four)):
        case = f"the bound of the speed-up, from a run on {ranks} ranks,"
        one = start + ranks * divided
        mistakes = {
            "One process would need `ranks` times the seconds of reading, compute and evaluation.":
                [total / (start + exchange), (start + divided) / (start + exchange)],
            "The exchange remains with any number of ranks: start-up and exchange limit the speed-up.":
                one / start,
            "The start-up remains with any number of ranks: start-up and exchange limit the speed-up.":
                one / exchange,
            "That is upside down: a speed-up is the time of one process divided by the time of many.":
                (start + exchange) / one,
            "One process has nothing to exchange: its time is start-up + ranks * (the divided parts).":
                [ranks * total / (start + exchange), (one + exchange) / (start + exchange)],
            "One process starts once: the start-up is not multiplied by the ranks.":
                ranks * (start + divided) / (start + exchange),
            "That is the speed-up of this run. The bound is for so many ranks that the divided parts vanish.":
                one / total,
        }  # fmt: skip
        compare(case, number(answer, case), one / (start + exchange), mistakes, "See hint 2.")


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
    right(f"{len(RUNS)} runs, judged with the rule of the grader.")


@exercise
def check_conversion(path: str | Path) -> None:
    """Demand that the script of exercise 4 has all that turns a serial script into a Horovod script.

    The grader's hints must find nothing, and what the grader needs must still be there. Of a script without
    Horovod only that is reported.
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
