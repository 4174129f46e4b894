"""The command `hvdlab`: data found, made, or asked for in words."""

import os
import subprocess
import sys

import pytest

from hvdlab import cli
from hvdlab.bench.command import COMMANDS as BENCHES
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
    for again in (False, True):
        answer = hvdlab("data", "cifar10", "--or-synthetic", home=tmp_path)
        assert answer.returncode == 0
        assert answer.stdout.startswith(
            "SYNTHETIC twin of cifar10: 50,000 training and 10,000 test"
        )
        said = answer.stderr.splitlines()[-1]
        assert ("rm -r" in said) == again  # a twin that was found is easily taken for the data
    twin = load_cifar10(tmp_path / ".cache" / "hvdlab")
    assert twin.synthetic
    assert said == (
        "hvdlab: this is a synthetic twin, made earlier; for the real data: "
        f"rm -r {twin.folder} and run this again."
    )


def test_where_nothing_can_be_written_it_says_so(tmp_path):
    answer = hvdlab("data", "cifar10", "--or-synthetic", home=os.devnull)
    assert answer.returncode == 1 and answer.stdout == ""
    assert "Cannot write the synthetic cifar10 to /dev/null/" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr


def test_data_that_is_there_is_only_named(cifar10_folder, tmp_path):
    answer = hvdlab("data", "cifar10", home=tmp_path, HVDLAB_DATA=str(cifar10_folder))
    assert answer.returncode == 0 and str(cifar10_folder) in answer.stdout
    assert answer.stderr == ""


@pytest.mark.parametrize(
    "words", [[], *([name] for name in cli.COMMANDS), *(["bench", name] for name in BENCHES)]
)
def test_each_command_has_help_with_an_example(words):
    answer = hvdlab(*words, "--help", home="/")
    assert answer.returncode == 0, answer.stderr
    assert " ".join(["\n  hvdlab", *words]) in answer.stdout.partition("example")[2]


def test_the_list_of_commands_waits_for_no_library():
    program = "import sys; from hvdlab import cli; cli.parser(); print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert "hvdlab.cli" in modules
    assert not {"numpy", "rich", "psutil", "matplotlib"} & set(modules)


def test_a_bench_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "throughput", "--repeats", "0"])
    assert stop.value.code == 2
    assert "--repeats: expected a whole number of at least 1, got '0'" in capsys.readouterr().err
