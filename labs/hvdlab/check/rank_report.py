"""`hvdlab run --report`: a row per rank of what a whole run of any script has trained, seen from outside.

The script imports nothing of the course. Its rank is watched as by `hvdlab check`, but no loop ends early.
"""

from pathlib import Path
from typing import NamedTuple

from hvdlab import launch
from hvdlab.check.deadlock import read_events
from hvdlab.check.watched_run import WATCHED_RANK, environment
from hvdlab.system.held_folder import held_folder
from hvdlab.trace import records

WHOLE = {"HVDLAB_CHECK_WHOLE": "1"}  # environment: see `watched_rank`
MEANING = """\
weights: hash of the trained weights at the end   examples, steps, loss, accuracy: of the last epoch
overlap: fraction of the rank's inputs, as the network gets them, that rank 0 has read, too"""


class Row(NamedTuple):
    """What a rank has trained.

    Attributes:
        rank: its number.
        weights: hash of its weights at the end.
        examples: inputs that it read in its last epoch.
        overlap: fraction of these that rank 0 read in its last epoch.
        steps: of that epoch.
        loss: of training.
        accuracy: of evaluation, otherwise of training.
    """

    rank: int
    weights: str | None
    examples: int | None
    overlap: float | None
    steps: int | None
    loss: float | None
    accuracy: float | None


def report_of(
    script: str | Path, *arguments: object, ranks: int = 2, timeout: float = 600, **variables: str
) -> list[Row]:
    """Run a script on some ranks of this machine to its end, and return what each of them has trained.

    Args:
        ranks: number of ranks. Default 2.
        timeout: time limit in seconds. Default 600.
        variables: environment variables of the ranks.

    Raises:
        LaunchError: see `hvdlab.launch.run`.
    """
    return rows(trace_of(script, *arguments, ranks=ranks, timeout=timeout, **variables))


def trace_of(
    script: str | Path, *arguments: object, ranks: int = 2, timeout: float = 600, **variables: str
) -> records.Trace:
    """Run a script like `report_of`, and return what each rank did."""
    with held_folder("hvdlab-report-") as held:
        watch = environment(held.path) | WHOLE | variables
        path = Path(script).absolute()
        launch.run(WATCHED_RANK, path, *arguments, ranks=ranks, timeout=timeout, **watch)
        return read_events(held.path, ranks)


def rows(trace: records.Trace) -> list[Row]:
    """Return the rows of the ranks that came to their end. A number is None where it is not known.

    Inputs that are changed at random never come twice. Then the overlap is not known.
    """
    reports = {
        rank: event
        for rank, events in trace.items()
        for event in events
        if isinstance(event, records.Report) and event.epochs
    }
    first = next(iter(reports.values()), None)
    known = any(each.again or each.epochs == 1 for each in reports.values())
    # Ranks that do not evaluate would show another kind of accuracy.
    evaluated = all(each.held_out is not None for each in reports.values())
    return [
        Row(
            rank,
            each.weights,
            each.examples,
            _overlap(each, first) if known else None,
            each.steps_of_epoch,
            each.loss,
            each.held_out if evaluated else each.accuracy,
        )
        for rank, each in reports.items()
    ]


def _overlap(one: records.Report, first: records.Report) -> float | None:
    """Return the fraction of a rank's inputs that the first rank has read, too."""
    if not one.inputs or first.inputs is None:
        return None
    return len({*one.inputs} & {*first.inputs}) / len(one.inputs)


def show(found: list[Row], ranks: int) -> None:
    """Print the rows as a table, and in a sentence what they say about the weights.

    Args:
        ranks: number of ranks that were started.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not found:
        console.print("no rank report, because no rank came to its end with a training step.")
        return
    table = Table()
    for name in Row._fields:
        table.add_column(name, justify="right")
    for row in found:
        texts = (row.overlap, "{:.0%}"), (row.loss, "{:.4f}"), (row.accuracy, "{:.4f}")
        overlap, loss, accuracy = ("-" if v is None else f.format(v) for v, f in texts)
        plain = ("-" if v is None else str(v) for v in row[:3])
        table.add_row(*plain, overlap, "-" if row.steps is None else str(row.steps), loss, accuracy)
    console.print(table)
    console.print(MEANING, soft_wrap=True)
    if missing := ranks - len(found):
        console.print(f"{missing} of {ranks} ranks did not come to their end, and have no row.")
    models = {row.weights for row in found}
    if None not in models and len(found) > 1:
        same = "The weights are equal: the ranks trained one network."
        other = f"The weights differ: the ranks trained {len(models)} networks."
        console.print(same if len(models) == 1 else other)
