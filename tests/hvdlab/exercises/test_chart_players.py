"""The charts of steps show what was recorded, and say in one sentence what is missing."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lab_functions import solution

from hvdlab.course.player import axis
from hvdlab.exercises import lab03_noise_ball_player, lab07_growth_player
from hvdlab.exercises.lab03_noise_ball_player import show_noise_ball
from hvdlab.exercises.lab05_negotiation_player import show_negotiation
from hvdlab.exercises.lab07_growth_player import show_growth

SLIDES = Path(__file__).parents[3] / "labs/slides"


def rows_of(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def only_sentence(player) -> str:
    (step,) = player.steps
    assert player.chart is None and step.title == "Nothing to show"
    (sentence,) = step.sentences
    return sentence


# --- negotiation: events of Horovod's timeline ---


def recorded() -> pd.DataFrame:
    return pd.read_csv(SLIDES / "negotiation.csv", comment="#")


def test_the_events_are_the_recorded_ones_in_the_order_of_time():
    player = show_negotiation(recorded())
    names = [name for _, name in player.chart.y.ticks]
    drawn, shapes = (
        [],
        {(row["tensor"], row["shape"]) for row in rows_of(SLIDES / "negotiation.csv")},
    )
    assert sorted(names) == sorted(shape for _, shape in shapes)
    for mark in player.chart.marks:
        name, (x, y) = player.chart.series[mark.series].name, mark.points[0]
        if name.endswith("announces"):
            drawn.append((x, name.split()[1], names[y]))
        if name == "negotiation":
            assert player.steps[mark.first].sentences[-1].startswith("Now all ranks have announced")
    wanted = [
        (float(row["start"]), row["phase"].split()[1], row["shape"])
        for row in rows_of(SLIDES / "negotiation.csv")
        if row["phase"].startswith("ready")
    ]
    assert sorted(drawn) == sorted(wanted)
    begins = [
        min(mark.points[-1 if "negot" in player.chart.series[mark.series].name else 0][0]
            for mark in player.chart.marks if mark.first == number)
        for number in range(len(player.steps))
    ]  # fmt: skip
    assert begins == sorted(begins)


def event(tensor, phase, start, milliseconds=0.0):
    return {"tensor": tensor, "step": 3, "phase": phase, "start": start, "milliseconds": milliseconds,
            "shape": tensor, "bytes": 500}  # fmt: skip


def two_messages() -> pd.DataFrame:
    """c is a message by itself; a and b, which rank 1 announces last, share one."""
    rows = [event(name, "ready 0", start) for name, start in (("a", 10), ("c", 10.5), ("b", 11))]
    rows += [event(name, "ready 1", start) for name, start in (("c", 12), ("a", 20), ("b", 21))]
    rows += [event("a", "negotiate", 10, 10), event("b", "negotiate", 11, 10)]
    rows += [event("c", "negotiate", 10.5, 1.5), event("c", "all-reduce", 13, 4)]
    for name, shift in (("a", 0), ("b", 0.5)):
        phases = (("copy in", 22), ("all-reduce", 23), ("copy out", 24))
        rows += [event(name, phase, start + shift, 0.75) for phase, start in phases]
    return pd.DataFrame(rows)


def test_gradients_whose_all_reduces_overlap_are_drawn_as_one_message():
    player = show_negotiation(two_messages().assign(row=0, name="of the learner", end=0))
    assert [step.sentences[0] for step in player.steps] == [
        "Rank 0 announces 3 gradients (a, c and b).",
        "Rank 1 announces the gradient c.",
        "Message 1 is the gradient c alone. Its all-reduce needs no fusion buffer: 0.5 kB in 4 ms.",
        "Rank 1 announces 2 gradients (a and b).",
        "Message 2 has 1 kB and consists of 2 gradients (a and b).",
        "One all-reduce adds the 2 gradients of message 2 over all ranks: 1 kB in 1.25 ms.",
        "Message 2 is copied back into the 2 gradients, in 1.25 ms.",
    ]
    assert player.steps[3].sentences[1] == (
        "Now all ranks have announced 2 gradients (a and b). The negotiation took up to 10 ms."
    )
    assert player.chart.y.ticks == ((0, "c"), (1, "a"), (2, "b"))
    bars = [mark.points for mark in player.chart.marks if mark.first == 5]
    assert bars == [((13, 1), (14.25, 2))]  # one bar over both rows


def test_a_timeline_without_what_is_needed_gives_one_sentence():
    table = recorded()
    no_ranks = table[~table["phase"].str.startswith("ready")]
    two = pd.concat([table, table.assign(step=99)])
    for wrong, words in (
        (None, "needs a table as horovod_timeline.read returns it"),
        (table.drop(columns="shape"), "tensor, step, phase, start, milliseconds, shape, bytes"),
        (table[:0], "The table has no rows"),
        (two, "The table has 2 training steps"),
        (no_ranks, "HOROVOD_CACHE_CAPACITY=0"),
        (table[table["phase"] != "all-reduce"], "is missing: choose another step"),
    ):
        assert words in only_sentence(show_negotiation(wrong))


# --- noise ball: the rows of the learner's path ---


def ball():
    x, y = lab03_noise_ball_player.examples()
    module = lab03_noise_ball_player.solution
    return module.descend, module.noise_variance, x, y


def test_the_examples_of_the_slides_are_those_of_the_lab():
    for mine, of_lab in zip(
        lab03_noise_ball_player.examples(), solution(3, "make_data")(1), strict=True
    ):
        assert (mine == of_lab).all()


def test_the_path_is_drawn_in_order_and_a_quarter_of_the_rate_or_four_times_the_batch_halves_the_ball():
    descend, noise_variance, x, y = ball()
    player = show_noise_ball(descend, noise_variance, x, y)
    paths = [
        mark for mark in player.chart.marks if player.chart.series[mark.series].shape == "path"
    ]
    assert [mark.first for mark in paths] == list(range(15))
    for first, (batch_size, rate, epochs) in zip(
        (0, 5, 10), ((1, 0.01, 15), (1, 0.0025, 15), (4, 0.01, 60)), strict=True
    ):
        drawn = [point for mark in paths[first : first + 5] for point in mark.points[1:]]
        assert np.allclose(drawn, descend(x, y, batch_size, rate, epochs)[1001:1501], atol=6e-4)
    balls = [np.ptp(mark.points, axis=0) for mark in player.chart.marks if mark.series == 1]
    variance = noise_variance(x, y, 0.01, 1)
    assert balls[0][0] == pytest.approx(4 * variance**0.5, rel=0.01)
    for smaller in balls[1:]:
        assert smaller / balls[0] == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_path_or_a_variance_that_cannot_be_drawn_gives_one_sentence():
    descend, noise_variance, x, y = ball()
    for functions, words in (
        (
            (lambda *_: None, noise_variance),
            "descend must return 1,501 rows (w, b) or more. It returned None.",
        ),
        (
            (lambda *_: np.zeros((9, 2)), noise_variance),
            "It returned an array of the shape (9, 2).",
        ),
        ((lambda *a: descend(*a) * np.nan, noise_variance), "is not finite after update 0"),
        ((descend, lambda *_: None), "noise_variance must return a number above 0"),
        ((descend, lambda *_: -1.0), "It returned -1.0."),
    ):
        assert words in only_sentence(show_noise_ball(*functions, x, y))


# --- growing batch: the rows of the experiment ---

PHASES = {"keep": [(10, 0.1), (10, 0.02)], "grow": [(10, 0.1), (50, 0.1)]}


def runs() -> pd.DataFrame:
    rows = []
    for plan, per_epoch in (("keep", (10, 20)), ("grow", (10, 12))):
        for seed in (1, 2):
            for epoch, updates in enumerate(per_epoch, 1):
                accuracy = 0.5 + 0.1 * epoch + 0.02 * seed
                rows.append((plan, seed, epoch, accuracy, updates))
    return pd.DataFrame(rows, columns=lab07_growth_player.COLUMNS)


def test_each_epoch_adds_a_point_for_each_plan():
    player = show_growth(runs(), PHASES)
    assert player.steps[1].sentences == (
        "Keep: batch 10 and learning rate 0.02, 20 updates so far, accuracy 0.730.",
        "Grow: batch 50 and learning rate 0.1, 12 updates so far, accuracy 0.730.",
    )
    assert [mark.points for mark in player.chart.marks if mark.first == 1] == [
        ((10, 0.63), (20, 0.73)), ((10, 0.63), (12, 0.73))
    ]  # fmt: skip
    assert "means of 2 runs" in player.note


def test_runs_that_are_not_complete_give_one_sentence():
    diverged = runs().assign(test_accuracy=np.nan)
    for wrong, words in (
        (None, "needs the table of the experiment"),
        (runs()[:0], 'needs the epochs 1 to 2 of "keep", and has no epoch.'),
        (runs().query("plan == 'keep' or epoch == 1"), 'of "grow", and has epochs 1 to 1.'),
        (diverged, "is not a number"),
    ):
        assert words in only_sentence(show_growth(wrong, PHASES))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.81, 0.87), (-3.2, 3), (16.33, 16.41), (0, 1648)]
)
def test_an_axis_has_a_few_round_numbers(low, high):
    ticks = axis("x", low, high).ticks
    assert 2 <= len(ticks) <= 6 and all(low <= at <= high for at, _ in ticks)
    assert all(float(text) == pytest.approx(at) and len(text) <= 6 for at, text in ticks)
