"""The figures of the labs: what you measured, over what the course measured, beside what you foretold.

    figure, axes = plt.subplots()
    overlay(axes, runs, reference("throughput"), x="batch_size", y="images_per_second")
    predicted(axes, prediction, "your prediction at 256", x=256)

Importing this module sets the look of all figures (`lab.mplstyle`).
"""

import sys

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd

plt.style.use("hvdlab.lab")


def interactive() -> bool:
    """Make the figures that follow rotatable in a notebook; return whether they are.

    In a plain Python run nothing changes.
    """
    if "ipykernel" not in sys.modules:
        return False
    matplotlib.use("module://ipympl.backend_nbagg")
    return True


def summary(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Mean, standard deviation (nan of a single run) and number of runs of a column, for each group."""
    return table.groupby(by, sort=True, as_index=False)[value].agg(["mean", "std", "count"])


def overlay(
    axes,
    yours: pd.DataFrame | None,
    shipped: pd.DataFrame | None,
    *,
    x: str,
    y: str,
    by: str | None = None,
    labels: dict | None = None,
    times: bool = False,
) -> None:
    """Draw column `y` over column `x`: the shipped results as a line, yours as points on it.

    The shipped line is the mean over its seeds with a band of one standard deviation; your points
    are means, with error bars where there are several runs. One colour for each value of the column
    `by`, the same in both.

    Args:
        axes: matplotlib axes.
        yours, shipped: tables as `sweep` and `reference` return them; None or empty draws nothing.
        labels: names for the values of `by`, in the order of the legend. Default: as they come.
        times: median and range instead of mean and deviation, for times and rates, of which one may
            be far off because something else ran on the machine.
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


def predicted(axes, value: float | None, label: str = "your prediction", *, x: float | None = None):
    """Mark what the learner foretold: a star at (x, value), or a dashed line; None draws nothing."""
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
    """A table: for each group the median of some columns, yours and the reference."""
    tables = {"yours": yours, "reference": shipped}
    found = {
        name: table.groupby(by, sort=False)[columns].median()
        for name, table in tables.items()
        if table is not None and len(table)
    }
    return pd.concat(found, axis=1)


def compare(
    yours: pd.DataFrame | None, shipped: pd.DataFrame | None, *, by: list[str], value: str
) -> pd.DataFrame:
    """A table: for each group "mean +- standard deviation (n)" of `value`, yours and the reference."""

    def cells(table):
        found = summary(table, by, value)
        texts = [
            f"{mean:.4g}{f' +- {std:.2g}' if count > 1 else ''} (n={count})"
            for mean, std, count in zip(found["mean"], found["std"], found["count"], strict=True)
        ]
        return pd.Series(texts, index=found.set_index(by).index)

    columns = {"yours": yours, "reference": shipped}
    return pd.DataFrame({k: cells(t) for k, t in columns.items() if t is not None and len(t)})
