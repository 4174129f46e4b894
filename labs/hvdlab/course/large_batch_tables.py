"""Tables and axes of labs 6 and 7: the best learning rate of each batch, gaps between batches, and so on.

The tables have the columns of the results files in `labs/results/`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator

from hvdlab.course.figures import summary


def logarithmic(axis: Axis, base: int = 10, subs: Sequence[float] = (1, 2, 5)) -> None:
    """Make an axis logarithmic, with plain numbers on it.

    Args:
        base: of the logarithm. Default 10.
    """
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(base, subs))
    axis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def until_goal(noise: pd.DataFrame, goal: float) -> pd.DataFrame:
    """Return, for each seed, the rows before the goal is reached for the first time.

    Args:
        noise: rows with the columns seed and held_out_accuracy, in the order of the steps.
    """
    reached = noise["held_out_accuracy"].ge(goal).groupby(noise["seed"]).cummax()
    return noise[~reached]


def best_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs at the best learning rate of each batch: that with the fewest steps.

    The median over the seeds decides, and then the mean. A run that did not reach the goal counts as more
    steps than any number.

    Args:
        runs: rows with the columns batch_size, factor, seed and steps (nan if the goal was not reached).
    """
    counted = runs.assign(steps=runs["steps"].fillna(np.inf))
    over_seeds = counted.groupby(["batch_size", "factor"])["steps"].agg(["median", "mean"])
    in_order = over_seeds.sort_values(["median", "mean"]).reset_index()
    return runs.merge(in_order.drop_duplicates("batch_size")[["batch_size", "factor"]])


def fit_each_seed(best: pd.DataFrame, fit_steps: Callable) -> pd.DataFrame:
    """Return one fit of the law of steps per seed.

    Args:
        fit_steps: function of batches and steps that returns (s_min, b_crit).
    """
    rows = []
    for seed, of_seed in best.dropna(subset="steps").groupby("seed"):
        s_min, b_crit = fit_steps(of_seed["batch_size"].values, of_seed["steps"].values)
        rows.append({"seed": seed, "s_min": s_min, "b_crit": b_crit})
    return pd.DataFrame(rows, columns=["seed", "s_min", "b_crit"])


def gaps(table: pd.DataFrame, small: int, large: int) -> pd.Series:
    """Return, for each seed, the held-out accuracy of the small batch minus that of the large one.

    Returns:
        percentage points by seed; nan where one of the runs is missing.
    """
    wide = table.pivot(index="seed", columns="batch_size", values="held_out")
    wide = wide.reindex(columns=[small, large])
    return 100 * (wide[small] - wide[large])


def dots(axes: Axes, yours: pd.DataFrame, shipped: pd.DataFrame, names: Sequence[str]) -> None:
    """Draw the test accuracy of numbered variants with error bars, yours next to the reference."""
    for table, label, shift in ((shipped, "reference", -0.06), (yours, "yours", 0.06)):
        points = summary(table, ["number"], "test_accuracy")
        at = points["number"] + shift
        label = f"{label} (n={points['count'].min()})"
        axes.errorbar(at, points["mean"], points["std"], fmt="o", capsize=3, label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="accuracy on test images")
    axes.legend()


def tuned(table: pd.DataFrame, optimizers: Sequence[str], network: str = "plain") -> pd.DataFrame:
    """Return the rows of the seeds 1, 2, ... at the learning rate that was best on seed 0.

    Args:
        optimizers: only rows of these; the number of an optimizer is its place here.
        network: only rows of this network. Default "plain".
    """
    table = table[(table["network"] == network) & table["optimizer"].isin(optimizers)]
    first = table[table["seed"] == 0]
    best = first.loc[first.groupby("optimizer")["test_accuracy"].idxmax(), ["optimizer", "rate"]]
    rows = table[table["seed"] > 0].merge(best)
    return rows.assign(number=rows["optimizer"].map(list(optimizers).index))
