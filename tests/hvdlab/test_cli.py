"""The command `hvdlab`: it finds or generates data, or says how to get them."""

import os
import subprocess
import sys

import pytest

from hvdlab import cli
from hvdlab.bench.command import COMMANDS as BENCHES
from hvdlab.data import load_cifar10, load_fashion_mnist


def hvdlab(*arguments, home, **environment) -> subprocess.CompletedProcess:
    """Run `hvdlab` without a network: downloads go to a closed port."""
    base = {k: v for k, v in os.environ.items() if k != "HVDLAB_DATA"}
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    return subprocess.run(
        [sys.executable, "-m", "hvdlab.cli", *map(str, arguments)],
        env={**base, **proxy, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_says_what_to_do_without_a_network(tmp_path):
    answer = hvdlab("data", "cifar10", home=tmp_path)
    assert answer.returncode == 1 and answer.stdout == ""
    assert "--synthetic" in answer.stderr and "Traceback" not in answer.stderr


@pytest.mark.slow
def test_or_synthetic_generates_data_and_says_so_each_time(tmp_path):
    for again in (False, True):
        answer = hvdlab("data", "cifar10", "--or-synthetic", home=tmp_path)
        assert answer.returncode == 0
        assert answer.stdout.startswith(
            "SYNTHETIC data in place of cifar10: 50,000 training and 10,000 test"
        )
        said = answer.stderr.splitlines()[-1]
        # Existing synthetic data are easily mistaken for the real data.
        assert ("rm -r" in said) == again
    synthetic = load_cifar10(tmp_path / ".cache" / "hvdlab")
    assert synthetic.synthetic
    assert said == (
        "hvdlab: this is a synthetic data set, made earlier; for the real data: "
        f"rm -r {synthetic.folder} and run this again."
    )


def test_reports_an_unwritable_folder(tmp_path):
    answer = hvdlab("data", "cifar10", "--or-synthetic", home=os.devnull)
    assert answer.returncode == 1 and answer.stdout == ""
    assert "Cannot write the synthetic cifar10 to /dev/null/" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("how", ["--synthetic", "--or-synthetic"])
def test_writes_synthetic_data_to_the_folder_that_the_labs_read(how, tmp_path, monkeypatch):
    place = tmp_path / "no folder yet"
    answer = hvdlab("data", "fashion_mnist", how, home=tmp_path, HVDLAB_DATA=str(place))
    assert answer.returncode == 0 and str(place) in answer.stdout, answer.stderr
    assert not (tmp_path / ".cache").exists()
    monkeypatch.setenv("HVDLAB_DATA", str(place))
    assert load_fashion_mnist().synthetic


def test_writes_synthetic_data_elsewhere_only_if_the_labs_find_them(tmp_path, monkeypatch):
    """No user can write to /proc, and /dev/null/x cannot be created."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HVDLAB_DATA", "/proc")
    answer = hvdlab("data", "fashion_mnist", "--synthetic", home=tmp_path, HVDLAB_DATA="/proc")
    assert answer.returncode == 0 and load_fashion_mnist().folder.is_relative_to(tmp_path)
    said = answer.stderr.splitlines()[-1]
    assert said.startswith("hvdlab: HVDLAB_DATA=/proc cannot be written to (")
    assert f"the data are written to {tmp_path}/.cache/hvdlab" in said

    answer = hvdlab("data", "fashion_mnist", "--synthetic", home="/", HVDLAB_DATA="/dev/null/x")
    assert answer.returncode == 1 and answer.stdout == ""
    assert "Cannot write the synthetic fashion_mnist to /dev/null/x/" in answer.stderr


def test_generates_no_synthetic_data_if_damaged_data_would_be_read_first(tmp_path):
    (broken := tmp_path / "data" / "fashion-mnist").mkdir(parents=True)
    (broken / "train-labels-idx1-ubyte").write_bytes(b"half a file")
    where = {"home": tmp_path, "HVDLAB_DATA": str(tmp_path / "data")}
    answer = hvdlab("data", "fashion_mnist", "--or-synthetic", **where)
    assert answer.returncode == 1 and answer.stdout == ""
    assert "holds fashion_mnist data that is not synthetic" in answer.stderr.splitlines()[-1]
    assert not (tmp_path / ".cache").exists()


def test_only_names_existing_data(cifar10_folder, tmp_path):
    answer = hvdlab("data", "cifar10", home=tmp_path, HVDLAB_DATA=str(cifar10_folder))
    assert answer.returncode == 0 and str(cifar10_folder) in answer.stdout
    synthetic = load_cifar10(cifar10_folder).synthetic  # if these tests have no real data
    assert ("made earlier" in answer.stderr) if synthetic else (answer.stderr == "")


@pytest.mark.parametrize(
    "words", [[], *([name] for name in cli.COMMANDS), *(["bench", name] for name in BENCHES)]
)
def test_each_command_has_help_with_an_example(words):
    answer = hvdlab(*words, "--help", home="/")
    assert answer.returncode == 0, answer.stderr
    assert " ".join(["\n  hvdlab", *words]) in answer.stdout.partition("example")[2]


def test_lists_the_commands_without_importing_a_library():
    program = "import sys; from hvdlab import cli; cli.parser(); print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert "hvdlab.cli" in modules
    assert not {"numpy", "rich", "psutil", "matplotlib"} & set(modules)


def test_refuses_a_bench_without_a_name(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "throughput", "--repeats", "0"])
    assert stop.value.code == 2
    assert "--repeats: expected 1 or more, got 0" in capsys.readouterr().err
