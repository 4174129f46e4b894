"""Draw the figures of the labs: your results, the results of the course, and your predictions.

    figure, axes = plt.subplots()
    overlay(axes, runs, reference("throughput"), x="batch_size", y="images_per_second")
    predicted(axes, prediction, "your prediction at 256", x=256)

Importing this module sets the look of all figures (`lab.mplstyle`).
"""

import sys

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

plt.style.use("hvdlab.lab")


def interactive() -> bool:
    """Make the following figures of a notebook rotatable; return whether this is a notebook.

    Outside a notebook nothing changes.
    """
    if "ipykernel" not in sys.modules:
        return False
    matplotlib.use("module://ipympl.backend_nbagg")
    return True


def summary(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Return mean, standard deviation and number of runs of a column, for each group.

    Args:
        table: rows as `sweep` returns them.
        by: the columns that form the groups.
        value: the column to summarise.

    Returns:
        a table with the columns `by`, mean, std (nan for a single run) and count.
    """
    return table.groupby(by, sort=True, as_index=False)[value].agg(["mean", "std", "count"])


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
    same in both tables.

    Args:
        axes: matplotlib axes.
        yours: a table as `sweep` returns it. None or an empty table draws nothing.
        shipped: a table as `reference` returns it. None or an empty table draws nothing.
        x: name of the column on the horizontal axis.
        y: name of the column on the vertical axis.
        by: name of a column with one line per value. Default: a single line.
        labels: names for the values of `by`, in the order of the legend. Default: in order of appearance.
        times: whether to draw median and range instead of mean and deviation. Use it for times and
            speeds, because one run may be far off if another program ran on the machine. Default False.
    """
    tables = [t for t in (shipped, yours) if t is not None and len(t)]
    if labels is None:
        values = [None] if by is None else list(dict.fromkeys(v for t in tables for v in t[by]))
        labels = {
            value: "" if value is None else f"{by.replace('_', ' ')} {value}" for value in values
        }
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for number, (value, label) in enumerate(labels.items()):
        colour = colours[number % len(colours)]
        for table in tables:
            chosen = table if value is None else table[table[by] == value]
            if not len(chosen):
                continue
            groups = chosen.groupby(x)[y]
            if times:
                middle, low, high = groups.median(), groups.min(), groups.max()
            else:
                middle, deviation = groups.mean(), groups.std()
                low, high = middle - deviation, middle + deviation
            runs = f"n={groups.count().min()}"
            if table is shipped:
                name = f"{label}, reference ({runs})" if label else f"reference ({runs})"
                axes.plot(middle.index, middle, color=colour, alpha=0.7, label=name)
                axes.fill_between(middle.index, low, high, color=colour, alpha=0.15, linewidth=0)
            else:
                name = f"{label}, yours ({runs})" if label else f"yours ({runs})"
                bars = [middle - low, high - middle]
                style = dict(fmt="o", color=colour, markeredgecolor="black", capsize=3)
                axes.errorbar(middle.index, middle, bars, label=name, **style)
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    axes.legend()


def predicted(
    axes: Axes, value: float | None, label: str = "your prediction", *, x: float | None = None
) -> None:
    """Draw a learner's prediction, as a star or as a dashed line.

    Args:
        axes: matplotlib axes.
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
    axes.legend()


def medians(
    yours: pd.DataFrame | None, shipped: pd.DataFrame | None, *, by: list[str], columns: list[str]
) -> pd.DataFrame:
    """Return the median of some columns for each group, yours and the reference.

    Args:
        yours: a table as `sweep` returns it, or None.
        shipped: a table as `reference` returns it, or None.
        by: the columns that form the groups.
        columns: the columns whose medians are computed.
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

    Args:
        yours: a table as `sweep` returns it, or None.
        shipped: a table as `reference` returns it, or None.
        by: the columns that form the groups.
        value: the column to summarise.
    """

    def cells(table: pd.DataFrame) -> pd.Series:
        groups = summary(table, by, value)
        texts = [
            f"{mean:.4g}{f' +- {std:.2g}' if count > 1 else ''} (n={count})"
            for mean, std, count in zip(groups["mean"], groups["std"], groups["count"], strict=True)
        ]
        return pd.Series(texts, index=groups.set_index(by).index)

    columns = {"yours": yours, "reference": shipped}
    return pd.DataFrame({k: cells(t) for k, t in columns.items() if t is not None and len(t)})


def describe(figure: Figure, text: str) -> None:
    """Show a figure with a description for readers who cannot see it.

    Args:
        figure: a figure of matplotlib. It is closed, so that a notebook does not show it twice.
        text: what the figure shows and what that means, in at least 15 words.
    """
    if "ipykernel" in sys.modules:
        from IPython.display import display

        display(figure, metadata={"image/png": {"alt": text}})
        plt.close(figure)
    else:
        plt.show()
