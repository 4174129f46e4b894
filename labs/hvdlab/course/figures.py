"""Draw the figures of the labs: your results, the results of the course, and your predictions.

    figure, axes = plt.subplots()
    overlay(axes, runs, reference("throughput"), x="batch_size", y="images_per_second")
    predicted(axes, prediction, "your prediction at 256", x=256)

Importing this module sets the look of all figures (`lab.mplstyle`).
"""

import contextlib
import html
import math
import sys
from collections.abc import Iterator

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.typing import SeriesGroupBy

plt.style.use("hvdlab.lab")
DESCRIPTION = "figure-description"  # the class of the text that describes a rotatable figure


@contextlib.contextmanager
def interactive(text: str) -> Iterator[None]:
    """Make the figure that a block of a notebook draws rotatable; later figures are pictures again.

    Outside a notebook nothing changes. The block must end with `plt.show()`.

    Args:
        text: what the figure shows and what that means, in at least 15 words, for readers who cannot see it.

    Example:
        >>> with interactive("A loss surface, which is ..."):
        ...     axes = plt.figure().add_subplot(projection="3d")
        ...     plt.show()
    """
    if "ipykernel.kernelapp" not in sys.modules:
        yield
        return
    before = matplotlib.get_backend()
    plt.switch_backend(before)  # load it: it sets itself up only if it is the current one by then
    plt.switch_backend("module://ipympl.backend_nbagg")
    try:
        with (
            plt.ioff()
        ):  # so that pyplot forgets a figure that is shown, and does not show it again
            yield
    finally:
        plt.switch_backend(before)
    from IPython.display import display

    # Screen readers read this text, and nobody sees it, because a widget has no alternative text.
    hidden = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
    words = f'<p class="{DESCRIPTION}" style="{hidden}">{html.escape(text)}</p>'
    display({"text/html": words, "text/plain": text}, raw=True)


def summary(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Return mean, standard deviation and number of runs of a column, for each group.

    Returns:
        a table with the columns `by`, mean, std (nan for a single run) and count.
    """
    return table.groupby(by, sort=True, as_index=False)[value].agg(["mean", "std", "count"])


def clear_best(runs: SeriesGroupBy, *, lowest: bool = False) -> object:
    """Return the name of the group whose runs are all above those of the others; "equal" if they overlap.

    Args:
        runs: the values of some groups, for example `table.groupby("scaling")["speed_up"]`.
        lowest: the runs must be below the others. Default False.
    """
    ends = -runs.max() if lowest else runs.min()
    others = -runs.min() if lowest else runs.max()
    best = ends.idxmax()
    return best if ends[best] > others.drop(best).max() else "equal"


def overlay(
    axes: Axes,
    yours: pd.DataFrame | None,
    shipped: pd.DataFrame | None,
    *,
    x: str,
    y: str,
    by: str | None = None,
    labels: dict | None = None,
    times: bool = False,
) -> None:
    """Draw column `y` over column `x`: the shipped results as a line, yours as points.

    The shipped line is the mean over its seeds, with a band of one standard deviation. Your points are
    means, with error bars if there are several runs. Each value of the column `by` has one colour, the
    same in both tables, and one entry in the legend. The title of the legend says what lines and points are.

    Args:
        yours: a table as `sweep` returns it. None or an empty table draws nothing.
        shipped: a table as `reference` returns it. None or an empty table draws nothing.
        by: name of a column with one line per value. Default: a single line.
        labels: names for the values of `by`, in the order of the legend. Default: in order of appearance.
        times: whether to draw median and range instead of mean and deviation. Use it for times and
            speeds, because one run may be far off if another program ran on the machine. Default False.
    """
    tables = {
        kind: table
        for kind, table in (("reference", shipped), ("yours", yours))
        if table is not None and len(table)
    }
    if labels is None:
        values = [None] if by is None else dict.fromkeys(v for t in tables.values() for v in t[by])
        labels = {v: "" if v is None else f"{by.replace('_', ' ')} {v}" for v in values}
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    counts = {}  # kind of table -> the least number of runs behind one of its points
    for number, (value, label) in enumerate(labels.items()):
        colour, named = colours[number % len(colours)], False
        for kind, table in tables.items():
            chosen = table if value is None else table[table[by] == value]
            if not len(chosen):
                continue
            groups = chosen.groupby(x)[y]
            count = int(groups.count().min())
            counts[kind] = min(count, counts.get(kind, count))
            # The legend of a single curve says instead what lines and points are.
            name = f"{kind} (n={count})" if not label else None if named else label
            _draw_curve(axes, groups, kind, colour, name, times)
            named = True
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    marks = {"reference": "line: reference", "yours": "points: yours"}
    note = ", ".join(f"{marks[kind]} (n={count})" for kind, count in counts.items())
    axes.legend(title=note if any(labels.values()) else None)


def _draw_curve(
    axes: Axes, groups: SeriesGroupBy, kind: str, colour: str, label: str | None, times: bool
) -> None:
    if times:
        middle, low, high = groups.median(), groups.min(), groups.max()
    else:
        middle, deviation = groups.mean(), groups.std()
        low, high = middle - deviation, middle + deviation
    if kind == "reference":
        axes.plot(middle.index, middle, color=colour, alpha=0.7, label=label)
        axes.fill_between(middle.index, low, high, color=colour, alpha=0.15, linewidth=0)
    else:
        bars = [middle - low, high - middle]
        style = dict(fmt="o", color=colour, markeredgecolor="black", capsize=3)
        axes.errorbar(middle.index, middle, bars, label=label, **style)


def predicted(
    axes: Axes, value: float | None, label: str = "your prediction", *, x: float | None = None
) -> None:
    """Draw a learner's prediction, as a star or as a dashed line.

    Args:
        value: the predicted value. None draws nothing.
        label: its name in the legend. Default "your prediction".
        x: position of the star. Default None: a dashed line at `value`.
    """
    if value is None:
        return
    if x is None:
        axes.axhline(value, color="black", linestyle="--", linewidth=1.5, label=label)
    else:
        axes.plot([x], [value], "*", color="black", markersize=15, label=label, zorder=5)
    before = axes.get_legend()
    axes.legend(title=before.get_title().get_text() if before else None)


def medians(
    yours: pd.DataFrame | None, shipped: pd.DataFrame | None, *, by: list[str], columns: list[str]
) -> pd.DataFrame:
    """Return the median of some columns for each group, yours and the reference.

    Args:
        yours: a table as `sweep` returns it, or None.
        shipped: a table as `reference` returns it, or None.
    """
    tables = {"yours": yours, "reference": shipped}
    computed = {
        name: table.groupby(by, sort=False)[columns].median()
        for name, table in tables.items()
        if table is not None and len(table)
    }
    return pd.concat(computed, axis=1)


def compare(
    yours: pd.DataFrame | None, shipped: pd.DataFrame | None, *, by: list[str], value: str
) -> pd.DataFrame:
    """Return "mean +- standard deviation (n)" of a column for each group, yours and the reference.

    The deviation has two significant digits, and the mean ends at the same decimal place. Without a deviation
    the mean has three significant digits.

    Args:
        yours: a table as `sweep` returns it, or None.
        shipped: a table as `reference` returns it, or None.
    """

    def cells(table: pd.DataFrame) -> pd.Series:
        groups = summary(table, by, value)
        texts = [
            f"{rounded(mean, std)} (n={count})"
            for mean, std, count in zip(groups["mean"], groups["std"], groups["count"], strict=True)
        ]
        return pd.Series(texts, index=groups.set_index(by).index)

    columns = {"yours": yours, "reference": shipped}
    return pd.DataFrame({k: cells(t) for k, t in columns.items() if t is not None and len(t)})


def rounded(mean: float, deviation: float) -> str:
    """Return "mean +- deviation" with two significant digits of the deviation.

    Args:
        deviation: 0 or nan: the mean alone, with three significant digits.
    """
    has_deviation = math.isfinite(deviation) and deviation > 0
    scale = deviation if has_deviation else mean
    if not math.isfinite(mean) or scale == 0:
        return f"{mean:g}"
    digits = 2 if has_deviation else 3
    places = digits - 1 - int(f"{scale:.{digits - 1}e}".partition("e")[2])
    shown = [f"{round(number, places):.{max(places, 0)}f}" for number in (mean, deviation)]
    return " +- ".join(shown) if has_deviation else shown[0]


def describe(figure: Figure, text: str) -> None:
    """Show a figure with a description for readers who cannot see it.

    The figure is shown as HTML, because JupyterLab and the HTML of nbconvert ignore the alternative text of
    other pictures.

    Args:
        text: what the figure shows and what that means, in at least 15 words.
    """
    if "ipykernel.kernelapp" not in sys.modules:
        plt.show()
        return
    from IPython.core.pylabtools import print_figure
    from IPython.display import display

    picture = print_figure(figure, "png", base64=True)
    plt.close(figure)
    image = f'<img alt="{html.escape(text)}" src="data:image/png;base64,{picture}">'
    display({"text/html": image, "text/plain": text}, raw=True)
