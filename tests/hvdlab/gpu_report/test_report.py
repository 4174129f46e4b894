"""The report of `hvdlab gpu`: JSON written and read, tables, and the comparison with an older report."""

import dataclasses
import io
import json
from pathlib import Path

import pytest

from hvdlab.gpu_report import against, command, markdown, results
from hvdlab.gpu_report.parts import PARTS
from hvdlab.gpu_report.results import (
    Check,
    Fact,
    Finding,
    GpuUse,
    Measurement,
    PartResult,
    Report,
    State,
)

SPEED = Measurement(
    "Speed", "net, batch 8", "GPU", "float32", "images/s", 7, 100.0, 95.0, 105.0, True
)
TIME = Measurement("Time", "step", "GPU", "float32", "ms", 7, 10.0, 9.5, 10.5, False)
CHECK = Check("", "sum", "GPU", "float32", "NumPy", 10, 0.0, 0.0, 0.0, True)


def part(*findings: Finding, state: State = State.OK, **options: object) -> PartResult:
    return PartResult("speed", "Speed", "How fast?", state, findings=list(findings), **options)


def report(*parts: PartResult, gpu: bool = True, **options: object) -> Report:
    headline = "# GPU report: 1 x Test" if gpu else "**No GPU: a test.**"
    return Report(headline, gpu, "2026-01-01T00:00:00+00:00", "abc", 540.0, list(parts), **options)


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    use = GpuUse(3, 90.0, 1980.0, 300.0, 60.0, 1000.0)
    parts = [part(SPEED, CHECK, Fact("a", "1"), gpu_use=use, output="x"), part(state=State.NO_TIME)]
    (tmp_path / "gpu.json").write_text(results.to_json(report(*parts)))
    assert results.read_parts(tmp_path / "gpu.json") == parts


def changed(one: Measurement, factor: float) -> Measurement:
    return dataclasses.replace(
        one, median=factor * one.median, low=factor * one.low, high=factor * one.high
    )


@pytest.mark.parametrize(
    ("before", "factor", "lost"),
    [
        (SPEED, 0.85, True),
        (SPEED, 0.95, False),  # the ranges overlap
        (SPEED, 1.2, False),  # faster
        (TIME, 1.2, True),
        (TIME, 1.05, False),
        (TIME, 0.5, False),
    ],
)
def test_a_measurement_has_lost_if_it_is_worse_by_more_than_both_ranges(
    before: Measurement, factor: float, lost: bool
) -> None:
    (found,) = against.compare([part(changed(before, factor))], [part(before)])
    assert found.lost == lost
    assert found.ratio == pytest.approx(factor)


def test_a_loss_is_marked_and_comes_first() -> None:
    now = [part(changed(TIME, 1.02), changed(SPEED, 0.5))]
    text = markdown.text(
        report(*now, against="old.json", comparisons=against.compare(now, [part(TIME, SPEED)]))
    )
    lines = [line for line in text.splitlines() if line.startswith("| speed |")]
    assert lines[0].endswith("| 0.50 | **lost** |") and "net, batch 8" in lines[0]
    assert lines[1].endswith("| 1.02 |  |")
    assert "1 lost more than both ranges explain" in text


def test_only_the_same_measurement_is_compared() -> None:
    other = dataclasses.replace(SPEED, dtype="bfloat16")
    assert against.compare([part(SPEED)], [part(other)]) == []


def test_tables_name_the_row_that_a_ratio_refers_to() -> None:
    slower = dataclasses.replace(SPEED, what="other", peer="net, batch 8, float32", ratio=0.5)
    text = markdown.text(report(part(SPEED, slower)))
    assert "| 2 | other | GPU | float32 | images/s | 7 | 100 | 95.0 .. 105 | row 1 | 0.50 |" in text


def test_checks_that_are_fine_share_a_row_and_wrong_ones_have_their_own() -> None:
    twice = dataclasses.replace(CHECK, dtype="float64")
    wrong = dataclasses.replace(CHECK, dtype="int32", largest=1.0, ok=False)
    text = markdown.text(report(part(CHECK, twice, wrong)))
    assert "| sum | GPU | float32, float64 | NumPy | 20 | 0 | 0 | 0 | ok |" in text
    assert "| sum | GPU | int32 | NumPy | 10 | 0 | 1.0e+00 | 0 | **wrong** |" in text


def test_a_cell_cannot_break_its_table() -> None:
    text = markdown.text(report(part(Fact("name", "a | b\nc"))))
    assert "| name | a / b c |  |" in text


@pytest.mark.parametrize(
    ("gpu", "states", "code"),
    [
        (True, [State.OK, State.SKIPPED], 0),
        (True, [State.OK, State.WRONG], 1),
        (True, [State.TIMED_OUT], 1),
        (True, [State.NO_TIME], 1),
        (False, [State.OK], 2),
        (False, [State.FAILED], 2),
    ],
)
def test_the_exit_code(gpu: bool, states: list[State], code: int) -> None:
    assert command.exit_code(report(*(part(state=state) for state in states), gpu=gpu)) == code


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": 99, "parts": []}', None]
)
def test_a_file_that_is_no_report_is_refused_in_one_sentence(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hvdlab import cli

    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as ended:
        cli.main(["gpu", "--against", str(path)])
    assert ended.value.code == 2
    assert f"{path} is no report of `hvdlab gpu`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--budget", "0"], ["--budget", "soon"], ["--only", "nothing"], ["--only"]]
)
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from hvdlab import cli

    with pytest.raises(SystemExit) as ended:
        cli.main(["gpu", *arguments])
    assert ended.value.code == 2


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hvdlab import cli

    (tmp_path / "file").write_text("")
    assert cli.main(["gpu", "--yes", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "terminal, answer, starts",
    [(False, "y", False), (True, "", False), (True, "no", False), (True, "Yes", True)],
)
def test_nothing_starts_before_the_user_has_seen_what_it_is(
    terminal: bool,
    answer: str,
    starts: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hvdlab import cli
    from hvdlab.gpu_report import command

    class Started(Exception):
        """The parts would start."""

    def look() -> None:
        raise Started

    monkeypatch.setattr(command.machine, "look", look)
    monkeypatch.setattr(command.sys, "stdin", io.StringIO(f"{answer}\n"))
    monkeypatch.setattr(command.sys.stdin, "isatty", lambda: terminal, raising=False)
    out = tmp_path / "out"
    try:
        code = cli.main(["gpu", "--only", "facts", "bounds", "--out", str(out)])
    except Started:
        code = None
    told = capsys.readouterr()
    assert (code, out.exists()) == ((None, True) if starts else (2, False))
    assert "Parts (2): facts, bounds." in told.out and str(out / "gpu.md") in told.out
    seconds = sum(part.seconds for part in PARTS if part.name in ("facts", "bounds"))
    assert f"at most {seconds:.0f} s" in told.out
    assert ("nothing was started" in told.err) != starts and ("--yes" in told.err) != terminal


def test_every_part_names_a_module_and_needs_that_exist() -> None:
    from importlib.util import find_spec

    from hvdlab.gpu_report.machine import NEEDS

    assert len({one.name for one in PARTS}) == len(PARTS)
    for one in PARTS:
        assert find_spec(one.module), one
        assert set(one.needs) <= set(NEEDS) and one.gpus in ("all", "one", "none"), one


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"),
     (0.001234, "1.2e-03")],
)  # fmt: skip
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert markdown.number(value) == text


def test_json_is_strict() -> None:
    assert "NaN" not in results.to_json(
        report(part(dataclasses.replace(CHECK, largest=None, ok=False)))
    )
    json.loads(results.to_json(report(part(SPEED))))


def test_parts_without_a_result_share_one_sentence_and_have_no_section() -> None:
    late = dataclasses.replace(part(state=State.NO_TIME), name="late", reason="it was late")
    again = dataclasses.replace(late, name="again")
    text = markdown.text(report(part(SPEED), late, again))
    assert "Without a result: `late`, `again` (**no time left**: it was late).\n" in text
    assert "## speed" in text and "## late" not in text and "| late" not in text
    assert "Without a result" not in markdown.text(report(part(SPEED)))


def test_the_shipped_page_shows_what_its_json_holds() -> None:
    folder = Path(__file__).parents[3] / "labs/results/gpu"
    document = json.loads((folder / "h100_measurements.json").read_text(encoding="utf-8"))
    parts = results.read_parts(folder / "h100_measurements.json")
    shipped = Report(**(document | {"parts": parts}))
    page = (folder / "h100_measurements.md").read_text(encoding="utf-8")
    assert page == markdown.text(shipped)
