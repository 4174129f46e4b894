"""The tables that the benchmarks print for given rounds, compared with figures computed by hand.

No rank is started. The rounds are chosen so that a ratio of medians, a mean, and an inverted ratio all give
another figure.
"""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab.bench import (  # noqa: E402
    exchange,
    launch,
    normalization,
    optimizers,
    precision,
    throughput,
)


def shown(show: Callable, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=150)
    show(*arguments, console)
    return console.file.getvalue()


def row(table: str, label: str) -> str:
    """Return the figures of the line that starts with `label`, with one space between them."""
    lines = [" ".join(line.split()) for line in table.splitlines()]
    (line,) = [line for line in lines if line.startswith(f"{label} ")]
    return line.removeprefix(f"{label} ")


def test_throughput() -> None:
    found = {
        "alone-torch": {"device": "A", "rates": {1: [100, 100, 400], 2: [250, 150, 500]}},
        "horovod-torch": {"device": "A", "rates": {1: [100, 100, 400], 2: [200, 120, 440]}},
        "ddp-torch": {"device": "A", "rates": {1: [100, 200, 400], 2: [150, 300, 500]}},
        "horovod-keras": {"device": "B", "rates": {1: [100, 100, 100], 2: [150, 150, 150]}},
    }
    table = shown(throughput.show, found, 64)
    assert "Medians of 3 rounds, assessment-net, batch 64 per rank" in table
    assert "On A: alone-torch, horovod-torch, ddp-torch\nOn B: horovod-keras" in table
    # Efficiency: 200/100/2 = 1, 120/100/2 = 0.6, 440/400/2 = 0.55. Of limit: 0.8, 0.8, 0.88. To DDP: 1.33,
    # 0.4, 0.88.
    assert row(table, "horovod-torch 2") == "200 120 .. 440 0.60 0.80 0.88"
    assert row(table, "horovod-torch 1") == "100 100 .. 400 1.00 1.00 1.00"  # to DDP: 1, 0.5, 1
    # Efficiency: 0.75, 0.75, 0.625. Of limit: 0.6, 2, 1.
    assert row(table, "ddp-torch 2") == "300 150 .. 500 0.75 1.00 1.00"
    assert (
        row(table, "alone-torch 2") == "250 150 .. 500 0.75 1.00"
    )  # no limit; to DDP: 1.67, 0.5, 1
    assert (
        row(table, "horovod-keras 2") == "150 150 .. 150 0.75 0.50"
    )  # alone-keras was not measured


def test_launch() -> None:
    found = {
        launch.LIMIT: [200, 200, 400],
        launch.FULL: [100, 200, 300],
        "plain mpirun": [50, 180, 90],
    }
    table = shown(launch.show, found, "torch", 64)
    assert (
        "Medians of 3 rounds, torch, 2 ranks, 64 images per rank; ratio: to all settings" in table
    )
    # To the full set: 0.5, 0.9, 0.3. To the limit: 0.25, 0.9, 0.225.
    assert row(table, "plain mpirun") == "90 50 .. 180 0.50 0.30 .. 0.90 0.25"
    assert row(table, launch.FULL) == "200 100 .. 300 1.00 1.00 .. 1.00 0.75"  # 0.5, 1, 0.75


def test_exchange() -> None:
    times = {
        "alone": [10, 20, 40],
        "together": [11, 22, 40],
        "exchanged": [20, 25, 44],
    }
    table = shown(exchange.show, {"PyTorch": times}, 8)
    assert (
        "Medians of 3 rounds, 2 ranks on " in table and "8 images and one thread per rank" in table
    )
    assert row(table, "PyTorch alone") == "20.0 10.0 .. 40.0 +0.0 1.00 1.00 .. 1.00"
    # Costs: 1, 2, 0 ms; of the limit: 0.909, 0.909, 1.
    assert row(table, "together") == "22.0 11.0 .. 40.0 +1.0 0.91 0.91 .. 1.00"
    # Costs: 10, 5, 4 ms; of the limit: 0.5, 0.8, 0.909.
    assert row(table, "exchanged") == "25.0 20.0 .. 44.0 +5.0 0.80 0.50 .. 0.91"


@pytest.mark.parametrize("fast, taken", [(True, "bfloat16"), (False, "float32")])
def test_precision(fast: bool, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_is_fast_at_bfloat16", lambda: fast)
    rates = {
        "torch": {"float32": [100, 200, 400], "bfloat16": [150, 180, 100]},
        "keras": {"float32": [100, 100, 100], "bfloat16": [90, 80, 20]},
    }
    found = {name: {"device": f"a {name} device", "rates": of} for name, of in rates.items()}
    table = shown(precision.show, found, 64)
    assert "Medians of 3 rounds, assessment-net, one process, one thread, batch 64" in table
    assert "On a torch device: torch\nOn a keras device: keras" in table
    assert row(table, "torch bfloat16") == "150 100 .. 180 0.90 0.25 .. 1.50"  # 1.5, 0.9, 0.25
    assert row(table, "torch float32") == "200 100 .. 400 1.00 1.00 .. 1.00"
    assert row(table, "keras bfloat16") == "80 20 .. 90 0.80 0.20 .. 0.90"
    assert f"On this processor the labs train in {taken}." in table


def test_normalization() -> None:
    times = {"plain": [20, 10, 40], "ghost": [30, 24, 20], "device": "a device"}
    table = shown(normalization.show, {"torch": times})
    assert "On a device: torch" in table
    assert "256x64x32x32, ghosts of 32 images" in table and "medians of 3 rounds" in table
    assert row(table, "torch") == "20.0 ms 24.0 ms 1.50 0.50 .. 2.40"  # 1.5, 2.4, 0.5


def test_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "hvdlab LARS": "LARS",
        "timm Lars": "LARS",
        "other LARS": "LARS",
        "hvdlab LAMB": "LAMB",
        "torch SGD, fused": "SGD",
        "torch AdamW, fused": "AdamW",
    }
    # The table gets these peers, whether or not they are installed here.
    known = {label: (algorithm, None) for label, algorithm in names.items()}
    monkeypatch.setattr(optimizers, "optimizers", lambda: known)
    times = {
        "hvdlab LARS": [10, 20, 40],
        "timm Lars": [20, 80, 50],  # the best peer, with a median of 50 ms
        "other LARS": [60, 60, 10],
        "hvdlab LAMB": [30, 20, 10],
        "torch SGD, fused": [4, 25, 10],
        "torch AdamW, fused": [10, 40, 4],
        "hvdlab Keras LAMB": [30, 20, 50],
        "Keras Lamb": [10, 40, 20],
    }
    part = {"network": "resnet50", "threads": 1, "milliseconds": times, "waited": 0.0549}
    table = shown(optimizers.show, [part | {"device": "a GPU", "keras_device": "a processor"}])
    assert "On a GPU: PyTorch\nOn a processor: Keras" in table
    assert "resnet50: 25.6 M weights, 1 threads, medians of 3 rounds" in table
    assert "PyTorch's threads waited for a core 0.05 s per second" in table
    assert "thr." not in table
    # To timm: 0.5, 0.25, 0.8. To SGD: 2.5, 0.8, 4.
    assert row(table, "hvdlab LARS") == "20.0 10.0 .. 40.0 0.50 2.50"
    # To AdamW: 3, 0.5, 2.5. Keras optimizers are compared only with Keras optimizers.
    assert row(table, "hvdlab LAMB") == "20.0 10.0 .. 30.0 2.50"
    assert row(table, "hvdlab Keras LAMB") == "30.0 20.0 .. 50.0 2.50"  # 3, 0.5, 2.5
    assert row(table, "timm Lars") == "50.0 20.0 .. 80.0 5.00"  # a peer has no best peer: 5, 3.2, 5
    assert row(table, "Keras Lamb") == "20.0 10.0 .. 40.0"


def test_optimizers_compares_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"hvdlab LARS": "LARS", "torch SGD, fused": "SGD"}
    monkeypatch.setattr(
        optimizers, "optimizers", lambda: {label: (name, None) for label, name in names.items()}
    )
    rounds = {  # (network, threads) -> rounds of LARS
        ("transformer", 1): [1, 1, 1],
        ("resnet50", 1): [10, 40, 40],
        ("resnet50", 2): [20, 20, 30],
        ("resnet50", 4): [10, 25, 15],
    }
    found = [
        {
            "network": network,
            "threads": threads,
            "device": "a processor",
            "keras_device": "",
            "waited": 0.0,
            "milliseconds": {"hvdlab LARS": times, "torch SGD, fused": [10, 10, 10]},
        }
        for (network, threads), times in rounds.items()
    ]
    _, _, two, four = shown(optimizers.show, found).split("M weights, ")[1:]
    assert "to 1 thr." in two and "to 2 thr." in four
    # To one thread: 2, 0.5, 0.75. To two: 0.5, 1.25, 0.5.
    assert row(two, "hvdlab LARS") == "20.0 20.0 .. 30.0 2.00 0.75"
    assert row(four, "hvdlab LARS") == "15.0 10.0 .. 25.0 1.50 0.50"
