"""Show the runs of lab 7 with a growing batch and with a decaying learning rate, epoch by epoch.

show_growth(growth, phases)
"""

import pandas as pd

from hvdlab.course.player import Chart, Mark, Player, Series, Step, axis

TITLE = "Growing batch and decaying learning rate"
COLUMNS = ("plan", "seed", "epoch", "test_accuracy", "updates")
LOOKS = (("path", "blue"), ("path", "orange"))


def show_growth(table: pd.DataFrame, phases: dict[str, list[tuple[int, float]]]) -> Player:
    """Return a player with the accuracy of each plan against its updates, one epoch in each step.

    Args:
        table: a row for each plan, seed and epoch, with the columns plan, seed, epoch (from 1),
            test_accuracy and updates (of the run so far).
        phases: for each plan batch size and learning rate of each epoch.
    """
    missing = _missing(table, phases)
    if missing:
        return Player(TITLE, (Step("Nothing to show", (missing,)),))
    means = table.groupby(["plan", "epoch"])[["updates", "test_accuracy"]].mean()
    epochs = sorted(table["epoch"].unique())
    marks, steps = [], []
    for number, epoch in enumerate(epochs):
        sentences = []
        for series, (plan, phase) in enumerate(phases.items()):
            batch_size, rate = phase[epoch - 1]
            ends = [means.loc[plan, each] for each in epochs[max(0, number - 1) : number + 1]]
            points = tuple(
                (float(end["updates"]), round(float(end["test_accuracy"]), 5)) for end in ends
            )
            marks.append(Mark(series, points, number, label=f"batch {batch_size:,}, η = {rate:g}"))
            sentences.append(
                f"{plan.capitalize()}: batch {batch_size:,} and learning rate {rate:g}, {points[-1][0]:,.0f} "
                f"updates so far, accuracy {points[-1][1]:.3f}."
            )
        steps.append(Step(f"Epoch {epoch} of {epochs[-1]}", tuple(sentences)))
    accuracies = means["test_accuracy"]
    space = 0.2 * (accuracies.max() - accuracies.min()) or 0.01
    y = axis("accuracy on test images", accuracies.min() - space, accuracies.max() + space)
    x = axis("updates so far", 0, 1.05 * means["updates"].max())
    series = tuple(Series(plan, *look) for plan, look in zip(phases, LOOKS, strict=True))
    seeds = table["seed"].nunique()
    runs = "one run for each plan" if seeds == 1 else f"means of {seeds} runs for each plan"
    note = f"A point is the end of an epoch: {runs}. η is the learning rate."
    return Player(TITLE, tuple(steps), note=note, chart=Chart(x, y, series, tuple(marks)))


def _missing(table: object, phases: dict) -> str:
    """Return a sentence about what is missing; "" if nothing."""
    if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table):
        return (
            f"show_growth needs the table of the experiment, with the columns {', '.join(COLUMNS)}."
        )
    if len(phases) != len(LOOKS):
        return f"show_growth compares two plans, and the phases name {len(phases)}."
    for plan, phase in phases.items():
        epochs = set(table.loc[table["plan"] == plan, "epoch"])
        if epochs != set(range(1, len(phase) + 1)):
            found = f"epochs {min(epochs)} to {max(epochs)}" if epochs else "no epoch"
            return f'The table needs the epochs 1 to {len(phase)} of "{plan}", and has {found}.'
    if not table["test_accuracy"].notna().all():
        return "A test accuracy in the table is not a number, so its run has diverged."
    return ""
