"""Print the output of a batch: a line per result, the remaining time, and the summary."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hvdgrade.batch import handed_in
from hvdgrade.batch.layout import Settings
from hvdgrade.batch.results import UNGRADED, load
from hvdgrade.output.console import for_lines
from hvdgrade.output.text import printable
from hvdgrade.report.wording import mixed
from hvdgrade.result_document import ResultDocument

SUMMARY_SECONDS = 600.0


def follow(
    gradings: Iterator[ResultDocument], total: int, workers: int | None, console: Console
) -> None:
    """Print a line for each result and, in a terminal, a progress bar.

    Args:
        total: number of gradings.
        workers: how many gradings run at the same time; None if a cluster decides.
    """
    began = time.monotonic()
    columns = (TextColumn("graded"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns,
        TextColumn("{task.fields[left]}"),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        shown = bar.add_task("", total=total, left="")
        for count, document in enumerate(gradings, 1):
            seconds = seconds_left(time.monotonic() - began, count, total, workers)
            left = f"about {duration(seconds)} left" if count < total else ""
            bar.update(shown, completed=count, left=left)
            who = printable(document["submission"]["id"])
            line = f"[{count}/{total}] {who}: {outcome(document)}"
            console.print(line if console.is_terminal or not left else f"{line}; {left}")


def seconds_left(elapsed: float, count: int, total: int, workers: int | None) -> float:
    """Return the estimated seconds for the remaining gradings.

    Args:
        elapsed: seconds since the start.
        count: number of finished gradings.
        total: number of all gradings.
        workers: how many gradings run at the same time; None if a cluster decides.
    """
    if workers is None:
        return elapsed / count * (total - count)
    # Count whole rounds of `workers` gradings, because a last round with few gradings takes as long as
    # a full one.
    rounds = (total - count + workers - 1) // workers
    return rounds * elapsed / max(1, count / workers)


def duration(seconds: float) -> str:
    """Return a duration in a readable unit: "40 s", "12 min", "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def outcome(document: ResultDocument) -> str:
    """Return a result in a few words, for example "pass, 100 of 100 points"."""
    if failed := document["batch"].get("failed_again"):
        return f"not graded again, its result stays: {printable(failed['reason'])}"
    if document["status"] == "graded":
        return f"{document['verdict']}, {document['score']} of {document['max_score']} points"
    return f"{UNGRADED[document['status']]}: {printable(document['reason'])}"


def conclude(names: Collection[str], settings: Settings, regrade: bool) -> int:
    """Print the summary of the batch.

    Args:
        regrade: whether the batch is a regrade.

    Returns:
        The number of grader faults, including faults in gradings that left an earlier result unchanged.
    """
    console, out = for_lines(), settings.out
    results = load(out)
    documents = [document for document in results if document["batch"]["name"] in names]
    counts = Counter(document["verdict"] or document["status"] for document in documents)
    console.print(
        f"{len(documents)} submissions: {counts['pass']} pass, {counts['fail']} fail, "
        f"{counts['not_gradable']} not gradable, {counts['infrastructure_error']} grader faults"
    )
    if counts["infrastructure_error"]:
        console.print(
            "A grader fault is not a score of zero: the same command grades these submissions again."
        )
    if busy := sum(document.get("grade_again") is True for document in documents):
        console.print(
            f"{busy} without a verdict: late while other programs used the machine. "
            "The same command grades these again."
        )
    failed = filter(None, (document["batch"].get("failed_again") for document in documents))
    if left := sum(regrade or failure["call"] == settings.call for failure in failed):
        console.print(
            f"{left} keep their earlier result, because they could not be graded again: the same command "
            "tries these once more."
        )
    for line in [
        *handed_in.practice(documents),
        *mixed(documents),
        *handed_in.withdrawn(results, out),
    ]:
        console.print(printable(line))
    console.print(f"The class: {out / 'index.html'}   as a table: {out / 'summary.csv'}")
    return counts["infrastructure_error"] + left


def summarise(out: Path, console: Console) -> bool:
    """Create summary.csv and index.html in a separate process (see summary.py).

    Returns:
        Whether that succeeded.
    """
    command = [sys.executable, "-P", "-m", "hvdgrade.batch.summary", str(out)]
    try:
        summary = subprocess.run(command, capture_output=True, text=True, timeout=SUMMARY_SECONDS)
    except subprocess.TimeoutExpired:
        failure = f"it took over {SUMMARY_SECONDS:.0f} s"
    else:
        if not summary.returncode:
            return True
        failure = (summary.stderr.strip().splitlines() or [f"exit code {summary.returncode}"])[-1]
    console.print(
        f"the class page is incomplete ({printable(failure)}): run the same command to make it again"
    )
    return False
