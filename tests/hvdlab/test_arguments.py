"""Numbers and files on the command lines of the labs: which values are accepted, and the error messages."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.arguments import (
    above_zero,
    file_to_write,
    folder_to_write,
    from_0_to_1,
    non_negative,
    positive,
    whole_number,
)

LABS = Path(__file__).parents[2] / "labs"


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [(positive, "1", 1), (whole_number(0), "0", 0), (whole_number(8, 8), "24", 24),
     (above_zero, "3e-4", 3e-4), (non_negative, "0", 0), (non_negative, "0.9", 0.9),
     (from_0_to_1, "0", 0), (from_0_to_1, "1", 1)],
)  # fmt: skip
def test_accepts_valid_numbers(type, text, value):
    assert type(text) == value


@pytest.mark.parametrize(
    ("type", "text", "expected"),
    [(positive, "0", "1 or more"), (positive, "-3", "1 or more"), (positive, "2.5", "1 or more"),
     (positive, "many", "1 or more"), (whole_number(257), "256", "257 or more"),
     (whole_number(8, 8), "12", "8, 16, ..."), (above_zero, "0", "a number above 0"),
     (above_zero, "inf", "a number above 0"), (above_zero, "nan", "a number above 0"),
     (above_zero, "fast", "a number above 0"), (non_negative, "-0.1", "0 or a number above it"),
     (non_negative, "inf", "0 or a number above it"), (non_negative, "nan", "0 or a number above it"),
     (from_0_to_1, "1.5", "0 to 1"), (from_0_to_1, "-0.1", "0 to 1"), (from_0_to_1, "nan", "0 to 1")],
)  # fmt: skip
def test_refuses_invalid_numbers_in_one_sentence(type, text, expected):
    with pytest.raises(
        argparse.ArgumentTypeError, match=re.escape(f"expected {expected}, got {text}")
    ):
        type(text)


def test_refuses_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "old.json").write_text("[]")
    for name in ("new.json", "old.json"):
        assert file_to_write(str(tmp_path / name)) == tmp_path / name
    monkeypatch.chdir(tmp_path)
    assert file_to_write("new.json") == Path("new.json")
    for bad in (tmp_path, tmp_path / "nowhere" / "new.json", tmp_path / "old.json" / "new.json"):
        with pytest.raises(
            argparse.ArgumentTypeError, match=f"a file in a folder that exists, got {bad}$"
        ):
            file_to_write(str(bad))


def test_refuses_a_folder_that_cannot_be_made_and_makes_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("a/b", str(tmp_path / "a"), "."):
        assert folder_to_write(text) == text
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for text, place in (("file", "file"), ("file/a/b", "file"), ("loop/a", "loop")):
        words = f"expected a folder, got {text}: {tmp_path / place} is no folder, or is read-only$"
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            folder_to_write(text)
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    with pytest.raises(argparse.ArgumentTypeError, match=f": {tmp_path} is no folder, or is read"):
        folder_to_write("new")


@pytest.mark.parametrize(
    "script",
    [
        "fashion_mnist_torch.py",
        pytest.param("fashion_mnist_keras.py", marks=pytest.mark.thorough),
    ],
)
def test_a_script_with_an_unwritable_checkpoint_folder_ends_before_it_trains(script):
    command = [sys.executable, script, "--checkpoint", "/dev/null/kept"]
    done = subprocess.run(command, cwd=LABS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    sentence = "expected a folder, got /dev/null/kept: /dev/null is no folder, or is read-only\n"
    assert done.stderr.endswith(sentence)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("tensor_parallel.py --save", marks=pytest.mark.thorough),
        "hybrid_parallel.py 1x1x1 --output",
    ],
)
def test_a_script_with_an_unwritable_output_file_ends_before_it_trains(arguments):
    command = [sys.executable, *arguments.split(), "/nowhere/found.json"]
    done = subprocess.run(command, cwd=LABS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "expected a file in a folder that exists, got /nowhere/found.json\n"
    )


@pytest.mark.parametrize(
    "script",
    [
        "fashion_mnist_torch.py",
        pytest.param("tensor_parallel.py", marks=pytest.mark.thorough),
        pytest.param("hybrid_parallel.py 1x1x1", marks=pytest.mark.thorough),
    ],
)
def test_a_script_with_an_invalid_number_ends_at_once(script):
    command = [sys.executable, *script.split(), "--batch-size", "0"]
    done = subprocess.run(command, cwd=LABS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.endswith("argument --batch-size: expected 1 or more, got 0\n")
