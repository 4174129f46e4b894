"""Show one training step of Horovod's timeline of lab 5: announcements, fused messages, all-reduces.

    show_negotiation(recorded[recorded["step"] == 12])

The timeline does not record which gradients share a message: `horovod_timeline.message_numbers` says how this
follows. Two things are not recorded and not drawn: the moment at which the backward pass has computed a
gradient (the recorded one is that at which rank 0 learns of it), and its place in the fusion buffer. The
timeline has an event for each gradient of a message. They begin and end within a few microseconds, and are
drawn as one bar from the first begin to the last end.

Source: horovod/common/controller.cc, timeline.cc and ops/mpi_operations.cc of Horovod 0.28.1.
"""

import pandas as pd

from hvdlab.course.horovod_timeline import message_numbers
from hvdlab.course.player import Axis, Chart, Mark, Player, Series, Step, axis, rows

CYCLE = 1  # milliseconds between the moments at which Horovod looks for ready gradients
TITLE = "Negotiation and fusion in one training step"
NOTE = (
    "Rank 0 has recorded these times. An announcement is the moment at which rank 0 learns that a rank has "
    "the gradient. A bar over several rows is one message. Look at the numbers below the axis, because each "
    "event is shown at its own scale."
)
COLUMNS = ("tensor", "step", "phase", "start", "milliseconds", "shape", "bytes")
PHASES = {  # what one message does, with its colour
    "negotiate": ("negotiation", "blue"),
    "copy in": ("copy into the fusion buffer", "orange"),
    "all-reduce": ("all-reduce", "green"),
    "copy out": ("copy out of it", "purple"),
}
MESSAGE = ("copy in", "all-reduce", "copy out")


def show_negotiation(table: pd.DataFrame) -> Player:
    """Return a player with the events of a training step in the order of their times.

    Args:
        table: the rows of one step, as `horovod_timeline.read` returns them.
    """
    missing = _missing(table)
    if missing:
        return Player(TITLE, (Step("Nothing to show", (missing,)),))
    found = _prepared(table)
    events = _events(found)
    ranks = sorted({row.phase for row in found if row.phase not in PHASES}, key=_rank)
    names = [name for _, name in sorted({(row.row, row.name) for row in found})]
    series = [Series(name, "bar", colour) for name, colour in PHASES.values()]
    for number, phase in enumerate(ranks):
        series.append(Series(f"rank {_rank(phase)} announces", ("dot", "cross")[number % 2], "ink"))
    order = [*PHASES, *ranks]
    marks = [
        Mark(order.index(phase), points, number)
        for number, event in enumerate(events)
        for phase, points in _drawn(event)
    ]
    marks.sort(key=lambda mark: mark.series)  # announcements lie on the bars
    steps = [
        Step(
            f"Event {number} of {len(events)}, at {_ms(event[0].start)}",
            _said(event),
            x=_time(event, found),
        )
        for number, event in enumerate(events, 1)
    ]
    chart = Chart(steps[0].x, rows("gradient, by its shape", names), tuple(series), tuple(marks))
    return Player(TITLE, tuple(steps), note=NOTE, chart=chart)


def _missing(table: object) -> str:
    """Return a sentence about what a table lacks; "" if nothing."""
    if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table):
        return (
            "show_negotiation needs a table as horovod_timeline.read returns it, with the columns "
            f"{', '.join(COLUMNS)}."
        )
    if not len(table):
        return (
            "The table has no rows, so the timeline has no all-reduce of a gradient in this step."
        )
    if table["step"].nunique() > 1:
        return f"The table has {table['step'].nunique()} training steps: choose the rows of one of them."
    if not table["phase"].str.startswith("ready ").any():
        return (
            "The timeline has no announcements in this step. Record it with HOROVOD_CACHE_CAPACITY=0, "
            "because otherwise Horovod negotiates only in the first steps."
        )
    phases = table.groupby("tensor")["phase"].agg(set)
    incomplete = [name for name, own in phases.items() if not {"negotiate", "all-reduce"} <= own]
    if incomplete:
        return (
            f"The negotiation or the all-reduce of {incomplete[0]} is missing: choose another step."
        )
    return ""


def _prepared(table: pd.DataFrame) -> list:
    """Return the rows in the order of time, with the fields message, row (of the chart), name, end and last.

    `last` says whether an announcement is the last one of its gradient.
    """
    table = table[list(COLUMNS)]  # a learner may have added columns
    reduces = table[table["phase"] == "all-reduce"]
    messages = dict(zip(reduces["tensor"], message_numbers(reduces) + 1, strict=True))
    table = table.assign(
        start=table["start"] - table["start"].min(), message=table["tensor"].map(messages)
    )
    first = table.sort_values(["message", "start"], kind="stable").drop_duplicates("tensor")
    first = first.assign(row=range(len(first)), name=first["shape"])
    if not first["shape"].is_unique:
        first["name"] = first["tensor"].str[-16:]
    table = table.merge(first[["tensor", "row", "name"]], on="tensor")
    announced = table["start"].where(~table["phase"].isin(PHASES))
    table = table.assign(
        end=table["start"] + table["milliseconds"],
        last=announced == announced.groupby(table["tensor"]).transform("max"),
    )
    return list(table.sort_values("start", kind="stable").itertuples(index=False))


def _events(found: list) -> list[list]:
    """Return the rows of each event: successive announcements of a rank, or a phase of a message.

    A negotiation belongs to the last announcement of its gradient.
    """
    negotiations = {row.tensor: row for row in found if row.phase == "negotiate"}
    events, last = {}, None
    for row in found:
        if row.phase == "negotiate":
            continue
        key = (row.phase, row.message)
        if row.phase not in PHASES:
            key = last if last and last[0] == row.phase else (row.phase, row.start)
        events.setdefault(key, []).append(row)
        if row.last:
            events[key].append(negotiations[row.tensor])
        last = key
    return list(events.values())


def _drawn(event: list) -> list[tuple]:
    """Return (phase, points) of each mark of an event: one bar for all gradients of a message."""
    if event[0].phase in PHASES:
        rows_of = sorted(row.row for row in event)
        ends = (
            (min(row.start for row in event), rows_of[0]),
            (max(row.end for row in event), rows_of[-1]),
        )
        return [(event[0].phase, ends)]
    return [
        (row.phase, ((row.start, row.row), (row.end, row.row))[: 1 + (row.phase == "negotiate")])
        for row in event
    ]


def _time(event: list, found: list) -> Axis:
    """Return the axis that shows the whole message of an event, or the negotiation up to it."""
    names = {row.tensor for row in event}
    own = [
        row
        for row in found
        if row.tensor in names and (row.phase in MESSAGE) == (event[0].phase in MESSAGE)
    ]
    if event[0].phase in MESSAGE:
        low, high = min(row.start for row in own), max(row.end for row in own)
    else:
        low = min(row.start for row in own)
        high = max(low + CYCLE, *(row.end for row in event))
    edge = (high - low) / 20
    return axis("milliseconds since the first announcement", low - edge, high + edge)


def _said(event: list) -> tuple[str, ...]:
    """Return the sentences about an event."""
    one, count = event[0], len(event)
    took = _ms(max(row.end for row in event) - one.start)
    size = f"{sum(row.bytes for row in event) / 1000:.3g} kB"
    if one.phase == "copy in":
        return (
            f"Message {one.message} has {size} and consists of {_counted(event)}.",
            f"They are copied next to each other into the fusion buffer, in {took}.",
        )
    if one.phase == "all-reduce":
        sums = f"One all-reduce adds the {count} gradients of message {one.message} over all ranks"
        if count == 1:
            alone = f"Message {one.message} is the gradient {one.name} alone."
            sums = f"{alone} Its all-reduce needs no fusion buffer"
        return (f"{sums}: {size} in {took}.",)
    if one.phase == "copy out":
        return (f"Message {one.message} is copied back into the {count} gradients, in {took}.",
                f"At {_ms(max(row.end for row in event))} message {one.message} has ended.")  # fmt: skip
    announced = [row for row in event if row.phase != "negotiate"]
    sentences = [f"Rank {_rank(one.phase)} announces {_counted(announced)}."]
    ended = [row for row in event if row.phase == "negotiate"]
    if not ended:
        return (*sentences, "Another rank has not announced them yet, so they must wait.")
    longest = _ms(max(row.milliseconds for row in ended))
    return (
        *sentences,
        f"Now all ranks have announced {_counted(ended)}. The negotiation took up to {longest}.",
    )


def _counted(found: list) -> str:
    *others, last = [row.name for row in found]
    return (
        f"{len(found)} gradients ({', '.join(others)} and {last})"
        if others
        else f"the gradient {last}"
    )


def _rank(phase: str) -> int:
    return int(phase.removeprefix("ready "))


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms"
