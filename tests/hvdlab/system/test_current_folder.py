"""A command that starts in a deleted folder prints one sentence, whatever it is."""

import os
import subprocess
import sys

import pytest

from hvdgrade.cli import COMMANDS as GRADERS
from hvdlab.cli import COMMANDS

ENTRIES = [
    *(("hvdlab", name) for name in COMMANDS),
    *(("hvdgrade", name) for name in ("run", *GRADERS)),
]
SHELL = 'mkdir "$0" && cd "$0" && rmdir "$0" && {between} exec "$@"'


def in_a_deleted_folder(folder, entry, name, between=""):
    command = f"import sys; from {entry}.cli import main; sys.exit(main([{name!r}, 'x']))"
    return subprocess.run(
        ["sh", "-c", SHELL.format(between=between), folder, sys.executable, "-c", command],
        env={name: value for name, value in os.environ.items() if name != "PWD"},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize(("entry", "name"), ENTRIES)
def test_every_command_says_that_its_folder_was_deleted(entry, name, tmp_path):
    answer = in_a_deleted_folder(tmp_path / "gone", entry, name)
    assert answer.returncode == 2 and answer.stdout == ""
    assert answer.stderr == (
        f"{entry}: this folder ({tmp_path}/gone) was deleted: enter one that exists, such as with `cd`.\n"
    )


def test_a_folder_that_was_replaced_is_entered_again(tmp_path):
    answer = in_a_deleted_folder(tmp_path / "gone", "hvdlab", "doctor", 'mkdir "$0" &&')
    assert answer.returncode == 2
    assert (
        f"replaced by a new one of the same name: enter that with `cd {tmp_path}/gone`."
        in answer.stderr
    )
