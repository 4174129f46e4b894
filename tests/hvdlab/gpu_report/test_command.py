"""The command `hvdlab gpu` itself, on the processor: its parts, one report, exit code 2."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.gpu_report import results
from hvdlab.gpu_report.parts import PARTS
from hvdlab.gpu_report.results import Check, Fact, Measurement, PartResult, State

pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
pytestmark = [pytest.mark.mpi, pytest.mark.slow]
# One part of each kind: facts, checks on two ranks, and measurements on one rank.
SOME = ("facts", "same-answer-shared", "ghost-batch-norm")
SEVERAL_GPUS = {"operations-every-gpu", "same-answer-every-gpu"}
FIRST_LINE = (
    "No GPU: nvidia-smi lists none that a program started here may use. The parts below ran on"
)


def hvdlab_gpu(out: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "hvdlab.cli",
            "gpu",
            "--yes",
            "--out",
            str(out),
            *map(str, arguments),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=550,
    )


@pytest.mark.parametrize(
    "names",
    [SOME, pytest.param(tuple(part.name for part in PARTS), marks=pytest.mark.thorough)],
    ids=["some parts", "all parts"],
)
def test_the_command_on_the_processor(names: tuple[str, ...], tmp_path: Path) -> None:
    """One test, because all parts take two minutes together."""
    ended = hvdlab_gpu(tmp_path / "first", "--budget", 1000, "--only", *names)
    text = (tmp_path / "first" / "gpu.md").read_text()
    parts = {part.name: part for part in results.read_parts(tmp_path / "first" / "gpu.json")}
    says_first_that_there_is_no_gpu_and_exits_with_2(ended, text)
    every_part_ran(parts, names)
    every_row_states_what_it_is(parts)
    measurements_have_peers_in_their_table(parts)
    markdown_has_a_section_and_a_table_for_each_part(text, names)
    exchange_was_compared_in_both_memory_formats_and_three_types(parts)
    a_second_run_is_compared_with_the_first(tmp_path)


def says_first_that_there_is_no_gpu_and_exits_with_2(
    ended: subprocess.CompletedProcess, text: str
) -> None:
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stdout.startswith(FIRST_LINE)
    assert text.startswith(f"**{FIRST_LINE}")
    assert "Traceback" not in ended.stderr


def every_part_ran(parts: dict[str, PartResult], names: tuple[str, ...]) -> None:
    assert list(parts) == list(names)
    for name, part in parts.items():
        wanted = State.SKIPPED if name in SEVERAL_GPUS else State.OK
        assert part.state == wanted, f"{name}: {part.state}, {part.reason}\n{part.output}"


def every_row_states_what_it_is(parts: dict[str, PartResult]) -> None:
    for name, part in parts.items():
        assert bool(part.findings) == (part.state == State.OK), name
        for one in part.findings:
            if isinstance(one, Fact):
                assert one.name and one.value, name
            elif isinstance(one, Check):
                assert one.what and one.device and one.dtype and one.expected and one.n > 0, (
                    name,
                    one,
                )
                assert 0 <= one.median <= one.largest <= one.limit, (name, one)
            else:
                assert isinstance(one, Measurement) and one.device and one.dtype and one.unit, (
                    name,
                    one,
                )
                assert one.n > 0 and one.low <= one.median <= one.high, (name, one)


def measurements_have_peers_in_their_table(parts: dict[str, PartResult]) -> None:
    for part in parts.values():
        for table in {one.table for one in part.measurements}:
            rows = [one for one in part.measurements if one.table == table]
            known = {f"{one.what}, {one.dtype}" for one in rows}
            assert {one.peer for one in rows} - {""} <= known
            assert len({one.key for one in rows}) == len(rows), (
                "a measurement cannot be told from another"
            )


def markdown_has_a_section_and_a_table_for_each_part(text: str, names: tuple[str, ...]) -> None:
    for part in (part for part in PARTS if part.name in names):
        section = text.partition(f"\n## {part.name}\n")[2].partition("\n## ")[0]
        assert f"**{part.title}.** {part.question}" in section, part.name
        assert "|---|" in section or part.name in SEVERAL_GPUS, part.name
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def exchange_was_compared_in_both_memory_formats_and_three_types(
    parts: dict[str, PartResult],
) -> None:
    rows = [one for one in parts["same-answer-shared"].findings if isinstance(one, Check)]
    for kind in ("float64", "float32", "bfloat16"):
        for form in ("contiguous", "channels-last"):
            assert [
                one for one in rows if one.dtype == kind and one.what.endswith(f"steps, {form}")
            ]


def a_second_run_is_compared_with_the_first(tmp_path: Path) -> None:
    old = json.loads((tmp_path / "first" / "gpu.json").read_text())
    for part in old["parts"]:
        for one in part["findings"]:
            if one["kind"] == "measurement":  # the older machine was a thousand times as fast
                factor = 1000 if one["more_is_better"] else 0.001
                one.update({name: factor * one[name] for name in ("median", "low", "high")})
    (tmp_path / "old.json").write_text(json.dumps(old))
    arguments = ["--only", "ghost-batch-norm", "--against", tmp_path / "old.json"]
    ended = hvdlab_gpu(tmp_path / "second", *arguments)
    new = json.loads((tmp_path / "second" / "gpu.json").read_text())
    assert [part["name"] for part in new["parts"]] == ["ghost-batch-norm"]
    assert len(new["comparisons"]) == 4 and all(one["lost"] for one in new["comparisons"])
    assert "4 measurements lost against" in ended.stdout
