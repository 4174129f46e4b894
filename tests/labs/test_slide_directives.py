"""Slides show charts and code of the labs as they are there."""

import csv
import io
import statistics
from collections import defaultdict
from pathlib import Path

import lab_charts
import lab_code
import pytest

LABS = Path(__file__).parents[2] / "labs"
THROUGHPUT = LABS / "results/throughput_batch_size.csv"


def test_a_chart_has_the_shipped_results():
    figure, description = lab_charts.draw(LABS / "03_stochastic_gradient_descent.py", "Throughput")
    measured = defaultdict(list)
    text = [line for line in THROUGHPUT.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(io.StringIO("\n".join(text))):
        measured[float(row["batch_size"])].append(float(row["images_per_second"]))
    (line,) = figure.axes[0].get_lines()
    drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert drawn == {size: statistics.median(speeds) for size, speeds in measured.items()}
    assert description.startswith("Throughput against the batch size.")


def test_a_chart_that_the_lab_does_not_have():
    with pytest.raises(lab_charts.ChartError, match="has 0 charts whose description begins with"):
        lab_charts.draw(LABS / "03_stochastic_gradient_descent.py", "No such chart")


def test_a_chart_that_needs_a_run(tmp_path):
    lab = tmp_path / "01_lab.py"
    lab.write_text(
        "# %%\ntrained = 1 / 0\n# %%\nprint(trained)\ndescribe(None, 'A chart of a run.')\n"
    )
    message = (
        "the chart 'A chart' cannot be drawn from the shipped results alone: ZeroDivisionError"
    )
    with pytest.raises(lab_charts.ChartError, match=message):
        lab_charts.draw(lab, "A chart")


CODE = "def step():\n    gradient = backward()\n    average(gradient)\n    update(gradient)"


def test_steps_highlight_lines_by_their_words():
    assert lab_code.line_numbers(CODE, "backward | average ... update | gradient") == "|2|3-4|2,3,4"


@pytest.mark.parametrize("steps", ["broadcast", "update ... average"])
def test_a_step_whose_words_the_code_does_not_have(steps):
    with pytest.raises(lab_code.CodeError, match="Correct the words in the deck"):
        lab_code.line_numbers(CODE, steps)


def test_a_slide_does_not_show_a_solution():
    with pytest.raises(lab_code.CodeError, match="must not show the solution"):
        lab_code.excerpt(LABS / "02_gradient_descent.py", {"function": "descend"})


def test_an_excerpt_begins_and_ends_with_its_words():
    lines = {"from": "def both_send_first", "to": "comm.Recv"}
    code = lab_code.excerpt(LABS / "04_data_parallelism.py", lines).splitlines()
    assert code[0] == "def both_send_first(comm, length):"
    assert [line.strip() for line in code[-2:]] == [
        "comm.Send(np.zeros(length), dest=other)",
        "comm.Recv(received, source=other)",
    ]
