"""The result of `hvdlab check` as a table and as JSON."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hvdlab.mistakes import Finding
from hvdlab.trace import records

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = "hvdlab-check/1"  # of `--json`


@dataclass
class Checked:
    """The result of a check.

    Attributes:
        findings: the mistakes.
        error: one sentence if the script failed by itself, so that findings may be missing; else None.
        left_out: one sentence if the script failed after the check had ended its training early; else None.
        ended: what ended the run: "itself", "deadlock" or "time".
        steps: training steps of the rank that made most of them.
        seconds: duration of the check.
        output: what the ranks printed.
        events: events by rank, see `event_log`.
        note: one sentence about something that is no mistake; else None. Default None.
    """

    findings: list[Finding]
    error: str | None
    left_out: str | None
    ended: str
    steps: int
    seconds: float
    output: str = field(repr=False)
    events: records.Trace = field(repr=False)
    note: str | None = None


def as_dict(checked: Checked, script: Path, ranks: int) -> dict:
    """Return what `--json` writes.

    Args:
        ranks: number of ranks.

    Returns:
        A dictionary for json.dumps.
    """
    return {
        "format": FORMAT,
        "script": str(script),
        "ranks": ranks,
        "steps": checked.steps,
        "ended": checked.ended,
        "error": checked.error,
        "left_out": checked.left_out,
        "note": checked.note,
        "seconds": round(checked.seconds, 1),
        "findings": [finding._asdict() for finding in checked.findings],
    }


def show(checked: Checked, script: Path, ranks: int, console: "Console | None" = None) -> None:
    """Print the findings as a table.

    Args:
        ranks: number of ranks.
        console: where to print. Default None: the standard output.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    ran = f"{ranks} ranks, {checked.steps} steps, {checked.seconds:.0f} s"
    for sentence in filter(None, (checked.error, checked.left_out)):
        console.print(f"{script.name}: {sentence.rstrip('.')}.", markup=False, highlight=False)
    if checked.note:
        console.print(f"{script.name}: note: {checked.note}.", markup=False, highlight=False)
    if not checked.findings:
        if not checked.error:
            console.print(f"{script.name}: nothing found ({ran})", markup=False, highlight=False)
        return
    table = Table(title=f"{script.name}: {ran}", show_lines=True, title_justify="left")
    table.add_column("where", no_wrap=True)
    table.add_column("mistake, what was observed, how to fix it")
    for finding in checked.findings:
        text = Text.assemble(
            (finding.title, "bold"),
            f"  [{finding.id}]\n{finding.seen}\n",
            (finding.fix, "green"),
        )
        name = finding.file or script.name
        table.add_row(f"{name}:{finding.line}" if finding.line else name, text)
    console.print(table)
