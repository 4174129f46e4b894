"""Tables of labs 6 and 7, on a few rows that are computed by hand."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from hvdlab.course import large_batch_tables as tables


def test_rows_until_the_goal_end_before_its_first_time():
    noise = pd.DataFrame(
        {
            "seed": [1, 1, 1, 2, 2],
            "held_out_accuracy": [0.5, 0.9, 0.7, 0.6, 0.7],
            "step": [1, 2, 3, 1, 2],
        }
    )
    kept = tables.until_goal(noise, 0.85)
    assert list(zip(kept["seed"], kept["step"], strict=True)) == [(1, 1), (2, 1), (2, 2)]


def test_the_best_rate_has_the_fewest_steps_by_median():
    runs = pd.DataFrame(
        [
            (16, 0.5, 1, 100), (16, 0.5, 2, 110), (16, 0.5, 3, np.nan),
            (16, 1.0, 1, 10), (16, 1.0, 2, np.nan), (16, 1.0, 3, np.nan),
            (32, 1.0, 1, 50), (32, 1.0, 2, 60), (32, 1.0, 3, 70),
        ],
        columns=["batch_size", "factor", "seed", "steps"],
    )  # fmt: skip
    best = tables.best_rates(runs)
    assert set(zip(best["batch_size"], best["factor"], strict=True)) == {(16, 0.5), (32, 1.0)}
    assert len(best) == 6
    fits = tables.fit_each_seed(best, lambda batches, steps: (len(batches), steps.sum()))
    assert fits["seed"].tolist() == [1, 2, 3]
    assert fits["s_min"].tolist() == [2, 2, 1]  # seed 3 did not reach the goal at batch 16
    assert fits["b_crit"].tolist() == [150, 170, 70]


def test_gaps_are_percentage_points_of_each_seed():
    table = pd.DataFrame(
        {"seed": [1, 1, 2, 2, 3], "batch_size": [64, 500, 64, 500, 64],
         "held_out": [0.85, 0.84, 0.80, 0.82, 0.9]}
    )  # fmt: skip
    found = tables.gaps(table, 64, 500)
    assert found[1] == pytest.approx(1.0)
    assert found[2] == pytest.approx(-2.0)
    assert np.isnan(found[3])


def test_the_rate_is_chosen_on_seed_0_and_measured_on_others():
    table = pd.DataFrame(
        [
            ("plain", "SGD", 0.1, 0, 0.7), ("plain", "SGD", 0.1, 1, 0.5), ("plain", "SGD", 0.3, 0, 0.6),
            ("plain", "SGD", 0.3, 1, 0.9), ("plain", "LARS", 1.0, 0, 0.1), ("plain", "LARS", 1.0, 1, 0.2),
            ("other", "SGD", 0.3, 0, 0.99), ("other", "SGD", 0.3, 1, 0.98),
        ],
        columns=["network", "optimizer", "rate", "seed", "test_accuracy"],
    )  # fmt: skip
    rows = tables.tuned(table, ["LARS", "SGD"]).set_index("optimizer")
    assert rows.loc["SGD", "test_accuracy"] == 0.5
    assert rows["number"].to_dict() == {"LARS": 0, "SGD": 1}
    assert tables.tuned(table, ["SGD"], "other")["test_accuracy"].tolist() == [0.98]


def test_dots_and_logarithmic_axes():
    figure, axes = plt.subplots()
    table = pd.DataFrame({"number": [0, 0, 1], "test_accuracy": [0.5, 0.7, 0.8]})
    tables.dots(axes, table, table, ["first", "second"])
    tables.logarithmic(axes.yaxis)
    assert axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["first", "second"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "reference (n=1)",
        "yours (n=1)",
    ]
    plt.close(figure)
