"""Every benchmark runs and tells all its variants. No test asserts a time."""

import io
import math

import pytest
from rich.console import Console

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")

import hvdlab.keras.models  # noqa: E402
import hvdlab.torch.models  # noqa: E402
from hvdlab import open_mpi  # noqa: E402
from hvdlab.bench import (  # noqa: E402
    exchange,
    keras_optimizers,
    launch,
    normalization,
    optimizers,
    precision,
    ranks,
    throughput,
)


def shown(show, *arguments) -> str:
    console = Console(file=io.StringIO(), width=150)
    show(*arguments, console)
    return console.file.getvalue()


def silent(text):
    pass


@pytest.mark.parametrize(("batch_size", "size"), [(64, 1), (64, 2), (64, 48), (4096, 8)])
def test_every_batch_of_a_benchmark_is_as_large_as_it_counts(batch_size, size):
    batches = throughput.random_batches(batch_size, size - 1, size)
    assert {len(batches.get(0, step)[1]) for step in range(len(batches))} == {batch_size}


@pytest.mark.mpi
@pytest.mark.slow
def test_throughput(monkeypatch):
    found = throughput.throughput((2,), repeats=1, steps=2, batch_size=8, tell=silent)
    assert all(found[variant][2][0] > 0 for variant in throughput.VARIANTS)
    assert "ddp-torch" in shown(throughput.show, found, 8)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_exchange():
    found = exchange.exchange(repeats=1, steps=2, batch_size=8, tell=silent)
    for label in exchange.VARIANTS:
        assert found[label]["alone"][0] > 0 and found[label]["exchanged"][0] > 0
        assert label in shown(exchange.show, found, 8)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_launch(monkeypatch):
    few = {label: launch.WITHOUT[label] for label in (launch.FULL, "plain mpirun")}
    monkeypatch.setattr(launch, "WITHOUT", few)
    found = launch.launch_settings(repeats=1, steps=2, batch_size=8, tell=silent)
    assert all(rates[0] > 0 for rates in found.values())
    assert "plain mpirun" in shown(launch.show, found, "torch", 8)


@pytest.mark.parametrize(
    "is_version_4, name",
    [
        (False, "PRTE_MCA_hwloc_default_binding_policy"),
        (True, "OMPI_MCA_hwloc_base_binding_policy"),
    ],
)
def test_launch_takes_one_setting_away_at_a_time(is_version_4, name, monkeypatch):
    monkeypatch.setattr(open_mpi, "is_version_4", lambda: is_version_4)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of the user: not what is measured
    given = []

    def start(module, count, variables, *arguments):
        given.append(variables)
        return [{"images_per_second": 1.0}] * count

    monkeypatch.setattr(ranks, "start", start)
    assert launch.launch_settings(repeats=1, tell=silent)["plain mpirun"] == [2.0]
    missing = [set(given[0]) - set(variables) for variables in given]
    threads = {"OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"}
    binding = {name}
    yielding = {"OMPI_MCA_mpi_yield_when_idle"}
    assert missing == [set(), threads, binding, yielding, threads | binding | yielding]
    assert given[0]["OMP_NUM_THREADS"] != "7"


WHICH = [(framework, name) for framework in precision.FRAMEWORKS for name in precision.PRECISIONS]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_precision():
    found = precision.precision(repeats=1, steps=2, batch_size=8, tell=silent)
    assert all(found[framework][name][0] > 0 for framework, name in WHICH)
    assert "bfloat16" in shown(precision.show, found, 8)


@pytest.mark.slow
@pytest.mark.parametrize("framework, name", WHICH)
def test_precision_is_that_of_the_convolutions(framework, name, monkeypatch):
    import hvdlab.keras.throughput as of_keras
    import hvdlab.torch.throughput as of_torch

    taken = []

    def torch_network(name):
        network = hvdlab.torch.models.AssessmentNet()
        network.conv2.register_forward_hook(lambda layer, into, out: taken.append(out.dtype))
        return network

    def keras_network(dtype, name):
        network = hvdlab.keras.models.AssessmentNet(dtype)
        taken.extend(one.compute_dtype for one in network.layers if "conv" in one.name)
        return network

    monkeypatch.setattr(of_torch, "assessment_network", torch_network)
    monkeypatch.setattr(of_keras, "assessment_network", keras_network)
    monkeypatch.setattr(ranks, "tell", lambda measured: None)
    precision.one_run(framework, name, "1", "8")
    assert {str(dtype).removeprefix("torch.") for dtype in taken} == {name}


@pytest.mark.mpi
@pytest.mark.slow
def test_normalization():
    found = normalization.normalization(repeats=1, tell=silent)
    assert len(found) == 3
    assert "Keras on TensorFlow" in shown(normalization.show, found)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_optimizers():
    found = optimizers.optimizer_steps(["resnet50"], [1], repeats=1, tell=silent)
    table = shown(optimizers.show, found)
    for label in optimizers.optimizers() | keras_optimizers.KERAS_OPTIMIZERS:
        assert label in table


def test_the_networks_are_those_of_the_papers():
    """Weights as torchvision's resnet50 and BERT-base (without its pooler) have them."""
    assert len(optimizers.resnet50()) == 161
    assert sum(map(math.prod, optimizers.resnet50())) == 25_557_032
    assert sum(map(math.prod, optimizers.transformer())) == 108_891_648


def test_a_variant_that_fails_is_named():
    with pytest.raises(ranks.BenchFailed, match="no-such on 1 ranks failed: KeyError"):
        ranks.run("hvdlab.bench.throughput", 1, "no-such", 1, 1)
