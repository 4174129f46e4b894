"""The result of a grading: one JSON document, and the same for a reader in a terminal."""

import re

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvdgrade.output.text import printable
from hvdgrade.report.budget import delay, other_work, without_others
from hvdgrade.report.wording import in_words
from hvdgrade.result_document import CheckPart, EpochPart, ResultDocument

FACES = {
    "pass": "[green]:)[/]",
    "partial": "[yellow]:/[/]",
    "fail": "[red]:([/]",
    "skipped": "[yellow]:|[/]",
    "error": "[red]??[/]",
}
OUTPUT_LINES = 12
OF_A_RANK = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")  # how mpirun begins a line of a rank


def show(document: ResultDocument, console: Console) -> None:
    """Print a result: the verdict, one line per check with advice, and the accuracies of the run."""
    grader = document["grader"]
    if "synthetic" in (grader["data"] or ""):
        console.print("[yellow]Graded on SYNTHETIC data, not on CIFAR-10: a practice run.[/]")
    ranks = "1 rank" if grader["ranks"] == 1 else f"{grader['ranks']} ranks"
    about = f"{document['submission']['id']}, {ranks}, profile {grader['profile']}"
    if grader["sandbox_tier"]:  # else nothing was run
        about += f", {grader['data']}, {grader['hardware']}, sandbox {grader['sandbox_tier']}"
    console.print(f"[dim]{escape(printable(about))}[/]", highlight=False)
    if document["status"] != "graded":
        title = {
            "not_gradable": "NOT GRADABLE (no attempt lost)",
            "infrastructure_error": "GRADER FAULT (not the submission's)",
        }[document["status"]]
        reason = escape(printable(document["reason"]))
        console.print(f"[bold yellow]{title}[/] {reason}", highlight=False)
        return

    passed = document["verdict"] == "pass"
    colour = "green" if passed else "red"
    console.print(
        f"[bold {colour}]{document['verdict'].upper()}[/]  "
        f"{document['score']} of {document['max_score']} points",
        highlight=False,
    )
    if late := delay(document).text:
        console.print(f"[yellow]{escape(printable(late))}[/]", highlight=False)
    console.print(checks_table(document["checks"]), highlight=False)
    if document["timeline"]:
        console.print(timeline_table(document["timeline"]), highlight=False)
    if devices := document["resources"].get("devices"):
        console.print(f"[dim]Devices: {escape(printable(in_words(devices)))}[/]", highlight=False)
    show_rounds_and_budget(document, console)
    if not passed:
        show_hints_and_output(document, console)


def checks_table(checks: list[CheckPart]) -> Table:
    """Return a table with one row per check, and a second row for its advice."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        points = f"{check['points']}/{check['max_points']}"
        table.add_row(FACES[check["state"]], points, check["title"], escape(check["rationale"]))
        if check["help"]:
            table.add_row("", "", "", f"[yellow]-> {escape(check['help'])}[/]")
    return table


def timeline_table(timeline: list[EpochPart]) -> Table:
    """Return a table with the seconds and accuracies of each epoch."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for title in ("epoch", "seconds", "train", "held out"):
        table.add_column(title, justify="right")
    for entry in timeline:
        table.add_row(
            str(entry["epoch"]),
            f"{entry['seconds']:.1f}",
            f"{entry['train_accuracy']:.3f}",
            f"{entry['heldout_accuracy']:.3f}",
        )
    return table


def show_rounds_and_budget(document: ResultDocument, console: Console) -> None:
    """Print the verdicts of several rounds, and how the time budget was measured."""
    budget = document["budget"]
    if len(document["runs"]) > 1:
        each = ", ".join(
            f"{run['verdict']} ({run['seconds_to_target'] or '-'} of {run['budget']} s)"
            for run in document["runs"]
        )
        console.print(f"It was run again, to be sure: {each}. The majority decides.")
    if "framework" in budget:
        rates = " ".join(f"{rate:,.0f}" for rate in budget["serial_images_per_second"])
        console.print(
            f"[dim]Budget {budget['seconds']:.1f} s: {budget['serial_epochs']} epochs of one process "
            f"with {budget['framework']} ({rates} images/s measured just before the run) "
            f"+ {budget['startup_seconds']:.1f} s start-up{without_others(budget)}[/]",
            highlight=False,
        )
    if others := other_work(document):
        console.print(f"[dim]Other programs took: {escape(printable(others))}[/]", highlight=False)


def show_hints_and_output(document: ResultDocument, console: Console) -> None:
    """Print the likely mistakes, and the last lines that the script printed."""
    if document["hints"]:
        console.print(
            "[dim]Likely mistakes, seen in a run of a few steps or in the source (they change no points):[/]"
        )
        for hint in document["hints"][:6]:
            line = f"line {hint['line']}: " if hint["line"] else ""
            console.print(f"  {line}{escape(hint['text'])}", highlight=False)
    if document["output"].strip():
        lines = document["output"].strip().splitlines()
        # When a rank fails, the last ten lines are a notice of mpirun, which says nothing about the script.
        lines = [line for line in lines if OF_A_RANK.match(line)] or lines
        console.print("[dim]The end of its output:[/]")
        for line in lines[-OUTPUT_LINES:]:
            console.print(f"  [dim]{escape(line[:300])}[/]", highlight=False)
