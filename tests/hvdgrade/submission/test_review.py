"""A report gives the reason why the source of a script was not analysed completely."""

import sys

import pytest

from hvdgrade.submission.review import review


@pytest.mark.parametrize(
    "ends, text",
    [
        ("kill -XCPU $$", "took more than 10 s of processor time"),
        ("exit 3", "needed more than 1 GB of memory"),
        ("echo 'OSError: no space' >&2; exit 1", "(OSError: no space). This is a fault"),
        ("exit 7", "(exit code 7). This is a fault of the grader"),
    ],
)  # fmt: skip
def test_the_reason_is_that_of_the_process_which_analyses(ends, text, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/bash\necho '[\"flags\", []]'\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    found = review(b"import torch\n")
    assert found.hints == []
    (flag,) = found.flags
    assert flag["kind"] == "unreadable" and text in flag["text"]


def test_the_hints_of_a_script_come_out_of_the_process():
    source = b"import keras\nimport horovod.keras as hvd\nhvd.init()\n"
    (hint,) = review(source).hints
    assert (hint.id, hint.line) == ("gradients-not-averaged", 2)


def test_a_handler_of_signals_is_no_flag():
    source = b"import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
    assert review(source).flags == []
    assert [flag["kind"] for flag in review(b"import psutil\n").flags] == ["other processes"]
