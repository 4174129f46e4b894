"""Check docker/service with systemd's own reader of units, and its command line with that of the worker."""

import argparse
import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hvdgrade.worker import command

UNIT = Path(__file__).parents[2] / "docker" / "service" / "hvdgrade-worker@.service"


def service() -> dict[str, str]:
    reader = configparser.RawConfigParser(strict=True, delimiters="=")
    reader.optionxform = str
    reader.read(UNIT, encoding="utf-8")
    return dict(reader["Service"])


def test_systemd_accepts_the_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    program = tmp_path / "hvdgrade"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = UNIT.read_text().replace("/opt/hvdlab/.venv/bin/hvdgrade", str(program))
    for name, line, refused in (("right", "", False), ("wrong", "KillMod=mixed\n", True)):
        unit = tmp_path / name / "hvdgrade-worker@cpu.service"
        unit.parent.mkdir()
        unit.write_text(text.replace("KillMode=", line + "KillMode="))
        answer = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        )
        said = [line for line in answer.stderr.splitlines() if unit.name in line]
        assert bool(said) == refused, answer.stderr
        assert answer.returncode == 0 or refused, answer.stderr


def test_the_worker_knows_the_options_of_the_unit():
    program, name, *words = service()["ExecStart"].split()
    assert program.endswith("/bin/hvdgrade") and name == "worker"
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = "--workers 2 --drain".split()  # what $HVDGRADE_OPTIONS becomes
    assert words.pop() == "$HVDGRADE_OPTIONS"
    args = parser.parse_args([*words, *options])
    assert str(args.spool) == f"%S/{service()['StateDirectory']}"
    assert str(args.token_file) == f"%d/{service()['LoadCredential'].partition(':')[0]}"
    assert service()["RestartPreventExitStatus"] == str(command.REFUSED)
    # The worker closes its spool to other users.
    assert service()["StateDirectoryMode"] == "0700" and service()["User"] != "root"
