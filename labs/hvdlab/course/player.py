"""A small player that shows step by step what was recorded: what ranks sent, where they wait, or a chart.

    Player("My ring", steps)                    # the last line of a cell shows it; it needs no kernel
    Player("My ring", steps).write("ring.html")  # a page for a browser

`player.html` draws the steps. It needs no library and no network.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TEMPLATE = Path(__file__).with_name("player.html")


@dataclass(frozen=True)
class Message:
    """A message from one rank to another.

    Args:
        start: the position of its first value in the array of the sender. None if it is not known.
        into: the first position at which it changed the array of the receiver. None if it changed nothing.
        length: the number of its values.
        label: its values as a short text.
        wrong: whether it changed the array at another position than `start`.
    """

    sender: int
    receiver: int
    start: int | None
    into: int | None
    length: int
    label: str
    wrong: bool


@dataclass(frozen=True)
class Waiting:
    """Where a rank was when its run was ended.

    Args:
        state: for example "rank 0 waits in line 4".
        code: the lines of the function.
        line: the index of its line in `code`. None if it is not known.
    """

    state: str
    code: tuple[str, ...]
    line: int | None


@dataclass(frozen=True)
class Step:
    """A step: one sentence for each fact, and what is drawn.

    Args:
        title: for example "Step 3 of 6".
        sentences: what happened. A screen reader reads them.
        arrays: for each rank the values after the step, as texts.
        messages: of this step.
        wrong: for each rank the positions with a wrong value.
        waiting: where the ranks wait, if nothing moves any more.
        x: the horizontal axis of the chart in this step. None: that of the chart.
    """

    title: str
    sentences: tuple[str, ...]
    arrays: tuple[tuple[str, ...], ...] = ()
    messages: tuple[Message, ...] = ()
    wrong: tuple[tuple[int, ...], ...] = ()
    waiting: tuple[Waiting, ...] = ()
    x: "Axis | None" = None


@dataclass(frozen=True)
class Axis:
    """An axis of a chart, from its smallest to its largest value.

    Args:
        ticks: positions and their texts. For rows with names these are 0, 1, ... from above.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Series:
    """What has one entry in the legend of a chart.

    Args:
        shape: "bar", "line", "dashed" (a line), "path" (a line with a dot at each point), "dot" or "cross".
        colour: "blue", "orange", "green", "purple", "grey" or "ink".
    """

    name: str
    shape: str
    colour: str


@dataclass(frozen=True)
class Mark:
    """Something that a chart shows from one of the player's steps on.

    Args:
        series: its index in `Chart.series`.
        points: x and y of each of its points. A bar has two, and covers all rows between them.
        first: the step in which it appears, counted from 0.
        last: the last step in which it is shown. None: the last one.
        label: a text at its last point in the step in which it appears.
    """

    series: int
    points: tuple[tuple[float, float], ...]
    first: int
    last: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """Marks in a plane, or in rows over an axis."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...]


def axis(label: str, low: float, high: float) -> Axis:
    """Return an axis with about five round numbers as its ticks."""
    unit = 10.0 ** math.floor(math.log10((high - low) / 4))
    distance = next(
        unit * factor for factor in (1, 2, 5, 10) if unit * factor >= (high - low) / 4.9
    )
    ticks = range(math.ceil(low / distance), math.floor(high / distance) + 1)
    return Axis(label, low, high, tuple((n * distance, f"{n * distance:.6g}") for n in ticks))


def rows(label: str, names: Sequence[str]) -> Axis:
    """Return an axis with a row for each name, the first one above."""
    return Axis(label, len(names) - 0.5, -0.5, tuple(enumerate(names)))


@dataclass(frozen=True)
class Player:
    """Steps that a reader can move through with a slider, buttons and keys.

    Args:
        chunks: the first position of each chunk of the arrays, and their length at the end.
        note: a sentence below the drawing.
        chart: the drawing of all steps, if they have no arrays.
    """

    title: str
    steps: tuple[Step, ...]
    chunks: tuple[int, ...] = ()
    note: str = ""
    chart: Chart | None = None

    def page(self) -> str:
        """Return a page that needs no other file."""
        data = json.dumps(asdict(self)).replace("<", "\\u003c")  # code may contain </script>
        page = TEMPLATE.read_text(encoding="utf-8")
        return page.replace("TITLE", html.escape(self.title)).replace("null; // STEPS", f"{data};")

    def write(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.page(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return a frame whose script has no access to the notebook. It is higher where it is narrow."""
        low, high = (560, 800) if self.chunks else (520, 790) if self.chart else (460, 740)
        height = f"height:{high}px;height:clamp({low}px, (761px - 100cqw) * 999, {high}px)"
        return (
            f'<div style="container-type:inline-size"><iframe title="{html.escape(self.title)}" '
            f'sandbox="allow-scripts" style="width:100%;max-width:1000px;border:0;{height}" '
            f'srcdoc="{html.escape(self.page())}"></iframe></div>'
        )
