"""Whether the run ended well and what its output shows: each rule on a small case."""

import dataclasses
import time
from types import SimpleNamespace

import pytest

from hvdgrade.evidence import observation
from hvdgrade.judge import check
from hvdgrade.judge.verdict import judge
from hvdgrade.record_limits import ASSESSMENT_LIMITS
from hvdgrade.run import captured_output, collect
from tests.helpers.judged_evidence import (
    RULES,
    epochs,
    evidence,
    probed,
    run_check,
    seen,
    states,
    verdict,
)


@pytest.mark.parametrize("pass_seconds, state", [(None, "pass"), (33, "pass"), (34, "fail")])
def test_an_epoch_must_take_a_minimum_time(pass_seconds, state):
    """The second epoch took 10 s, which is 30 % of 33.3 s."""
    given = evidence(probe=probed(), pass_seconds=pass_seconds)
    check = judge(given, RULES, 30.0).checks[6]
    assert (check.id, check.state) == ("steps", state)
    if state == "fail":
        assert check.rationale.startswith("epoch 1 took 10.0 s, and 2 processes that train on this")


@pytest.mark.parametrize(
    "recorded, state",
    [
        (({0, 1, 2}, {0, 1, 2}), "pass"),
        (({0, 1, 2}, {0, 1}), "pass"),  # the run ended between the records of two ranks
        (({1, 2}, {0, 1, 2}), "fail"),  # otherwise the start of the ranks would not be compared
        (({0, 2, 3}, {0, 1, 2, 3}), "fail"),
        (({0, 1, 2, 3}, {0, 1}), "fail"),
    ],
)
def test_ranks_must_record_the_same_epochs(recorded, state):
    run = seen()
    one = run.weights[0]
    run.weights = [
        dataclasses.replace(one, rank=rank, epoch=epoch)
        for rank, of_rank in enumerate(recorded)
        for epoch in of_rank
    ]
    result = run_check("ran", evidence(run))
    assert result.state == state
    if state == "fail":
        assert "the ranks recorded different epochs" in result.rationale


def test_a_copy_has_the_time_at_which_it_was_complete(tmp_path, monkeypatch):
    """A file that appears while others are copied has no earlier time."""
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "evidence").mkdir()
    for epoch in range(3):
        (tmp_path / "rank-0" / f"epoch-{epoch:03d}.npz").write_bytes(b"x")
    copy = collect.copy_file

    def slow(directory, name, *rest):
        time.sleep(0.2 if name.endswith("npz") else 0)
        return copy(directory, name, *rest)

    monkeypatch.setattr(collect, "copy_file", slow)
    jail = SimpleNamespace(
        ranks=1,
        records=tmp_path,
        network_bytes=lambda: 7,
        record_limits=ASSESSMENT_LIMITS,
        most_records=1 << 30,
    )
    run = observation.Observation(1, started=time.monotonic())
    assert collect.collect(jail, tmp_path / "evidence", run)
    times = sorted(one.seconds for one in run.weights)
    assert times[0] >= 0.2 and times[1] >= 0.4 and times[2] >= 0.6


def test_a_crash_after_the_target_still_fails():
    result = verdict(seen(stop_cause="crashed", exit_code=1))
    assert result.verdict == "fail" and states(result)["ran"] == "fail"


def test_being_ended_at_the_limit_after_the_target_passes():
    assert verdict(seen(stop_cause="timeout", exit_code=None)).verdict == "pass"


def test_a_single_rank_cannot_pass():
    alone = seen(ranks=1, weights=[w for w in seen().weights if w.rank == 0])
    result = verdict(alone, epochs(read=[50_000]))
    assert states(result)["replicas"] == "skipped" and result.verdict == "fail"


def test_separates_stacks_by_rank():
    output = "\n".join(
        [
            "[1,0]<stderr>: Fatal Python error: Aborted",
            "[1,1]<stderr>: Fatal Python error: Aborted",
            "[1,0]<stderr>: Thread 0x1 (most recent call first):",
            '[1,0]<stderr>:   File "/usr/lib/threading.py", line 5 in wait',
            "[1,0]<stderr>: Current thread 0x2 (most recent call first):",
            "[1,1]<stderr>: Current thread 0x2 (most recent call first):",
            '[1,0]<stderr>:   File "/x/mpi_ops.py", line 9 in synchronize',
            '[1,1]<stderr>:   File "/tmp/a b/assessment.py", line 7 in <module>',
            '[1,0]<stderr>:   File "/tmp/a b/assessment.py", line 3 in train',
            "[1,0]<stderr>: ",
            "[1,0]<stderr>: Extension modules: numpy",
        ]
    )
    assert captured_output.stacks(output) == {
        0: "mpi_ops.py, line 9, in synchronize\nassessment.py, line 3, in train",
        1: "assessment.py, line 7, in <module>",
    }


@pytest.mark.parametrize("tag", [">: ", ">:"], ids=["Open MPI 5", "Open MPI 4"])
def test_quotes_the_first_traceback_with_its_rank(tag):
    output = "\n".join(
        [
            "[1,1]<stderr>: Traceback (most recent call last):",
            "[1,0]<stderr>: a warning of another rank, in between",
            '[1,1]<stderr>:   File "assessment.py", line 3, in <module>',
            "[1,1]<stderr>: ValueError: 3 images, 4 labels",
            "[1,0]<stderr>: Traceback (most recent call last):",
            "[1,0]<stderr>: horovod.common.exceptions.HorovodInternalError: shut down",
        ]
    )
    output = output.replace(">: ", tag)
    assert check.last_error(output) == "rank 1 says: ValueError: 3 images, 4 labels"
    assert check.last_error("nothing of the kind") == ""


def test_output_is_limited_counted_and_sanitised(tmp_path):
    output = captured_output.CapturedOutput()
    with open(tmp_path / "printed", "wb") as file:
        file.write(b"begin \x1b[31mred\x07\n" + b"x" * 1_000_000 + b"\nend\n")
    with open(tmp_path / "printed", "rb") as file:
        while not output.closed:
            output.read(file)
    text = output.text()
    assert output.bytes == (tmp_path / "printed").stat().st_size
    assert len(text) < captured_output.KEEP_OUTPUT_BYTES + 100
    assert text.startswith("begin [31mred\n") and text.endswith("\nend\n")
    assert "bytes left out" in text and "\x1b" not in text


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_quotes_the_error_of_a_traceback_under_torch_distributed(prefix):
    """PyTorch begins each line of a traceback with its rank after `init_process_group`."""
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 41, in <module>']
    lines = [*traceback, "    step()", "ValueError: no batch"]
    output = "\n".join(f"[1,0]<stderr>: {prefix}{line}" for line in lines)
    assert check.last_error(output) == "rank 0 says: ValueError: no batch"
