"""The figures show the numbers that the tables hold."""

import base64
import io

import bs4  # nbconvert needs it
import matplotlib.image
import matplotlib.pyplot as plt
import nbformat
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


@pytest.mark.parametrize(
    ("values", "lowest", "best"),
    [
        ([3, 4, 1, 2], False, "a"),
        ([1, 2, 3, 4], False, "b"),
        ([1, 2, 3, 4], True, "a"),
        ([1, 3, 2, 4], False, "equal"),
        ([1, 2, 2, 4], True, "equal"),
        ([1, 2, 2, 4], False, "equal"),
    ],
)
def test_the_best_group_has_no_run_among_those_of_the_others(values, lowest, best):
    runs = pd.Series(values).groupby(["a", "a", "b", "b"])
    assert figures.clear_best(runs, lowest=lowest) == best


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
    assert [line.get_label() for line in lines] == ["Bee", "Ay"]
    assert lines[0].get_color() != lines[1].get_color()
    np.testing.assert_array_equal(lines[0].get_ydata(), [4.0, 12.0])


def test_the_legend_has_one_entry_per_curve_and_says_once_what_lines_and_points_are(axes):
    both = pd.concat([SHIPPED, SHIPPED.assign(net="b")])
    mine = pd.concat([YOURS, YOURS.assign(net="c")])
    figures.overlay(axes, mine, both, x="batch_size", y="speed", by="net")
    figures.predicted(axes, 5.0, x=32)
    legend = axes.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert sorted(labels) == ["net a", "net b", "net c", "your prediction"]
    assert legend.get_title().get_text() == "line: reference (n=3), points: yours (n=1)"


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
    assert table.loc[8].to_dict() == {"yours": "4.00 (n=1)", "reference": "3.0 +- 2.6 (n=3)"}


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (-0.2436, 0.025, "-0.244 +- 0.025"),
        (0.8312, 0.09951, "0.83 +- 0.10"),
        (1234, 120, "1230 +- 120"),
        (463.7, 9.2, "463.7 +- 9.2"),
        (463.7, np.nan, "464"),
        (12345.6, np.nan, "12300"),
        (1, 0, "1.00"),
        (0, np.nan, "0"),
        (np.nan, np.nan, "nan"),
    ],
)
def test_a_deviation_has_two_digits_and_its_mean_ends_where_it_ends(mean, deviation, text):
    assert figures.rounded(mean, deviation) == text


def test_medians_stand_side_by_side():
    table = figures.medians(YOURS, SHIPPED, by=["batch_size"], columns=["speed"])
    assert table.loc[8].to_dict() == {("yours", "speed"): 4, ("reference", "speed"): 2}
    table = figures.medians(YOURS[:0], SHIPPED, by=["batch_size"], columns=["speed"])
    assert list(table) == [("reference", "speed")]


def test_outside_a_notebook_nothing_becomes_interactive(axes, monkeypatch):
    monkeypatch.delitem(figures.sys.modules, "ipykernel.kernelapp", raising=False)
    with figures.interactive("What it shows."):
        assert plt.get_backend().lower() == "agg"


DESCRIPTION = 'A line <rises> from "1" to 2.'
NOTEBOOK = """\
import matplotlib.pyplot as plt
from hvdlab.course.figures import describe, interactive
with interactive("What it shows."):
    plt.figure().add_subplot(projection="3d")
    plt.show()
---
figure, axes = plt.subplots()
axes.plot([1, 2])
describe(figure, DESCRIPTION)
---
figure, axes = plt.subplots()
axes.plot([1, 2])
plt.show()
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return a notebook that ran a rotatable figure, a described figure and a plain one."""
    nbclient = pytest.importorskip("nbclient")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)  # a kernel chooses its own
        sources = NOTEBOOK.replace("DESCRIPTION", repr(DESCRIPTION)).split("---\n")
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        notebook = nbformat.v4.new_notebook(cells=cells)
        nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    return notebook


def outputs(cell) -> list:
    return [output for output in cell.outputs if output.output_type == "display_data"]


@pytest.mark.slow
def test_only_the_figure_in_the_block_is_rotatable(executed):
    rotatable, described, plain = (outputs(cell) for cell in executed.cells)
    # Each figure is shown once; below the rotatable one is the text that describes it.
    assert [len(rotatable), len(described), len(plain)] == [2, 1, 1]
    assert rotatable[1].data["text/plain"] == "What it shows."
    assert "What it shows.</p>" in rotatable[1].data["text/html"]
    widget = "application/vnd.jupyter.widget-view+json"
    assert widget in rotatable[0].data
    assert "image/png" in plain[0].data and widget not in plain[0].data
    assert set(described[0].data) == {"text/html", "text/plain"}


@pytest.mark.slow
def test_a_description_is_kept_in_the_notebook_and_in_its_html(executed):
    (described,) = outputs(executed.cells[1])
    assert described.data["text/plain"] == DESCRIPTION
    exporters = pytest.importorskip("nbconvert.exporters")
    page, _ = exporters.HTMLExporter().from_notebook_node(executed)
    image = bs4.BeautifulSoup(page, "html.parser").find("img", alt=DESCRIPTION)
    picture = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
    assert matplotlib.image.imread(io.BytesIO(picture)).std() > 0.01
