"""The command `hvdlab`: data found, made, or asked for in words."""

import os
import subprocess
import sys

import pytest

from hvdlab import cli
from hvdlab.data import load_cifar10


def hvdlab(*arguments, home, **environment) -> subprocess.CompletedProcess:
    """Run it without a network: whatever it wants to download goes to a closed port."""
    base = {k: v for k, v in os.environ.items() if k != "HVDLAB_DATA"}
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    return subprocess.run(
        [sys.executable, "-m", "hvdlab.cli", *map(str, arguments)],
        env={**base, **proxy, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_network_it_says_what_to_do(tmp_path):
    answer = hvdlab("data", "cifar10", home=tmp_path)
    assert answer.returncode == 1 and answer.stdout == ""
    assert "--synthetic" in answer.stderr and "Traceback" not in answer.stderr


def test_or_synthetic_makes_a_twin_and_says_so_each_time(tmp_path):
    for _ in range(2):
        answer = hvdlab("data", "cifar10", "--or-synthetic", home=tmp_path)
        assert answer.returncode == 0
        assert answer.stdout.startswith(
            "SYNTHETIC twin of cifar10: 50,000 training and 10,000 test"
        )
    assert load_cifar10(tmp_path / ".cache" / "hvdlab").synthetic


def test_data_that_is_there_is_only_named(cifar10_folder, tmp_path):
    answer = hvdlab("data", "cifar10", home=tmp_path, HVDLAB_DATA=str(cifar10_folder))
    assert answer.returncode == 0 and str(cifar10_folder) in answer.stdout
    assert answer.stderr == ""


def test_each_command_has_help_with_an_example():
    for command in [], ["data"], ["bench"]:
        answer = hvdlab(*command, "--help", home="/")
        assert (
            answer.returncode == 0
            and f"hvdlab {command[0] if command else 'data'} " in answer.stdout
        )


def test_a_bench_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "throughput", "--repeats", "0"])
    assert stop.value.code == 2
    assert "--repeats: expected a whole number of at least 1, got '0'" in capsys.readouterr().err
