"""The figures show the numbers that the tables hold."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from hvdlab.course import figures

SHIPPED = pd.DataFrame(
    {"batch_size": [8, 8, 8, 32, 32, 32], "speed": [1.0, 2.0, 6.0, 10.0, 10.0, 13.0], "net": "a"}
)
YOURS = pd.DataFrame({"batch_size": [8, 32], "speed": [4.0, 9.0], "net": "a"})


@pytest.fixture
def axes():
    plt.switch_backend("agg")
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_a_summary_is_mean_deviation_and_count():
    found = figures.summary(SHIPPED, ["batch_size"], "speed")
    assert list(found["mean"]) == [3.0, 11.0]
    np.testing.assert_allclose(found["std"], [np.std([1, 2, 6], ddof=1), np.sqrt(3)])
    assert list(found["count"]) == [3, 3]
    assert figures.summary(YOURS, ["batch_size"], "speed")["std"].isna().all()


def test_yours_are_points_on_the_line_of_the_reference(axes):
    figures.overlay(axes, YOURS, SHIPPED, x="batch_size", y="speed")
    line, points = axes.get_lines()[:2]
    np.testing.assert_array_equal(line.get_ydata(), [3.0, 11.0])
    np.testing.assert_array_equal(points.get_ydata(), [4.0, 9.0])
    assert line.get_color() == points.get_color()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["reference (n=3)", "yours (n=1)"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch size", "speed")


def test_times_are_medians_with_their_range(axes):
    figures.overlay(axes, None, SHIPPED, x="batch_size", y="speed", times=True)
    np.testing.assert_array_equal(axes.get_lines()[0].get_ydata(), [2.0, 10.0])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (1.0, 13.0)


def test_each_group_has_its_colour_and_name(axes):
    both = pd.concat([SHIPPED, SHIPPED.assign(net="b", speed=SHIPPED["speed"] + 1)])
    figures.overlay(
        axes, None, both, x="batch_size", y="speed", by="net", labels={"b": "Bee", "a": "Ay"}
    )
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == ["Bee, reference (n=3)", "Ay, reference (n=3)"]
    assert lines[0].get_color() != lines[1].get_color()
    np.testing.assert_array_equal(lines[0].get_ydata(), [4.0, 12.0])


def test_a_prediction_is_drawn_only_when_there_is_one(axes):
    figures.overlay(axes, None, SHIPPED, x="batch_size", y="speed")
    before = len(axes.get_lines())
    figures.predicted(axes, None)
    assert len(axes.get_lines()) == before
    figures.predicted(axes, 5.0, x=32)
    star = axes.get_lines()[-1]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([32], [5.0])


def test_a_comparison_holds_both():
    table = figures.compare(YOURS, SHIPPED, by=["batch_size"], value="speed")
    assert table.loc[8].to_dict() == {"yours": "4 (n=1)", "reference": "3 +- 2.6 (n=3)"}


def test_medians_stand_side_by_side():
    table = figures.medians(YOURS, SHIPPED, by=["batch_size"], columns=["speed"])
    assert table.loc[8].to_dict() == {("yours", "speed"): 4, ("reference", "speed"): 2}
    table = figures.medians(YOURS[:0], SHIPPED, by=["batch_size"], columns=["speed"])
    assert list(table) == [("reference", "speed")]


def test_outside_a_notebook_nothing_becomes_interactive(monkeypatch):
    monkeypatch.delitem(figures.sys.modules, "ipykernel", raising=False)
    assert figures.interactive() is False
