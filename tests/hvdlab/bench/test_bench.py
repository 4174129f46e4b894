"""Every benchmark runs and reports all its variants. No test asserts a time."""

import argparse
import io
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")

import hvdlab.torch.models  # noqa: E402
from hvdlab.bench import (  # noqa: E402
    allreduce,
    command,
    exchange,
    gradient_exchanges,
    keras_optimizers,
    launch,
    normalization,
    optimizers,
    precision,
    ranks,
    throughput,
    weight_shapes,
)
from hvdlab.system import open_mpi  # noqa: E402
from hvdlab.torch.device import InHorovodsLayout  # noqa: E402


def shown(show: Callable, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=150)
    show(*arguments, console)
    return console.file.getvalue()


def silent(text: str) -> None:
    pass


SMALL = ranks.Training(repeats=1, steps=2, batch_size=8, tell=silent)


def path_of_ranks() -> str:
    """Return a PYTHONPATH with the folder `ranks`, which is next to this file."""
    return os.pathsep.join([str(Path(__file__).parent / "ranks"), *sys.path])


@pytest.mark.parametrize(("batch_size", "size"), [(64, 1), (64, 2), (64, 48), (4096, 8)])
def test_every_batch_of_a_benchmark_is_as_large_as_it_counts(batch_size: int, size: int) -> None:
    batches = throughput.random_batches(batch_size, size - 1, size)
    assert {len(batches.get(0, step)[1]) for step in range(len(batches))} == {batch_size}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ranks.Training(repeats=1, steps=2, batch_size=8, tell=silent, network="wrn-10-1")
    found = throughput.throughput(small, (2,))
    assert list(found) == list(throughput.VARIANTS)
    for measured in found.values():
        assert measured["rates"][2][0] > 0 and measured["device"] == ranks.processor()
    assert "ddp-torch" in shown(throughput.show, found, 8)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_exchange() -> None:
    found = exchange.exchange(repeats=2, steps=2, batch_size=8, tell=silent)
    for label in exchange.BINDINGS:
        assert found[label].keys() == set(exchange.KINDS)
        for of_rounds in found[label].values():
            assert len(of_rounds) == 2 and min(of_rounds) > 0
        assert label in shown(exchange.show, found, 8)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_launch() -> None:
    some = (launch.FULL, "plain mpirun", "cycle 0.1 ms + one buffer, polled")
    found = launch.launch_settings(SMALL, settings=some)
    assert list(found) == [launch.LIMIT, *some] and all(rates[0] > 0 for rates in found.values())
    assert "plain mpirun" in shown(launch.show, found, "torch", 8)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, str], tuple]]:
    """Return the list of launches that would be started: their variables and the arguments of the ranks."""
    given = []

    def start(
        module: str, count: int, variables: dict[str, str], *arguments: object, device: str
    ) -> list[dict]:
        given.append((variables, arguments))
        return [{"images_per_second": 1.0}] * count

    monkeypatch.setattr(ranks, "start", start)
    return given


@pytest.mark.parametrize(
    "is_version_4, name",
    [
        (False, "PRTE_MCA_hwloc_default_binding_policy"),
        (True, "OMPI_MCA_hwloc_base_binding_policy"),
    ],
)
def test_launch_takes_one_setting_away_at_a_time(
    is_version_4: bool,
    name: str,
    launches: list[tuple[dict[str, str], tuple]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_mpi, "is_version_4", lambda: is_version_4)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # the user's own value, which is left out
    assert launch.launch_settings(SMALL)["plain mpirun"] == [2.0]
    given = [variables for variables, _ in launches]
    missing = [set(given[0]) - set(variables) for variables in given]
    threads = {"OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"}
    binding = {name}
    yielding = {"OMPI_MCA_mpi_yield_when_idle"}
    # The limit and the full set come first.
    assert missing == [set(), set(), threads, binding, yielding, threads | binding | yielding]
    assert given[0]["OMP_NUM_THREADS"] != "7"
    assert [words[0] for _, words in launches] == ["alone-torch", *["horovod-torch"] * 5]


def test_launch_adds_a_setting_or_several(
    launches: list[tuple[dict[str, str], tuple]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")  # the user's own value, which is left out
    both = "cycle 0.1 ms + no cache + one group"
    launch.launch_settings(SMALL, settings=("cycle 5 ms", both))
    names = ("HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY")
    found = [[given.get(name) for name in names] + [words[-1]] for given, words in launches]
    assert found == [
        [None, None, "one by one"],  # the limit
        [None, None, "one by one"],  # the full set
        ["5", None, "one by one"],
        ["0.1", "0", "one group"],
    ]


def test_launch_refuses_settings_that_there_are_not(
    launches: list[tuple[dict[str, str], tuple]],
) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match="'no fusion'.*; got 'no cache \\+ cycle 7 ms'"
    ):
        launch.setting_name("no cache + cycle 7 ms")
    with pytest.raises(ranks.BenchFailed, match="'one buffer' is for --framework torch"):
        launch.launch_settings(SMALL, "keras", settings=("one buffer",))
    assert not launches


@pytest.mark.parametrize("name", gradient_exchanges.EXCHANGES)
def test_one_rank_steps_as_without_horovod(name: str) -> None:
    """The optimizer receives the gradient of the backward pass with every method of sending."""
    import horovod.torch as hvd

    hvd.init()

    def trained(wrap: Callable) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 3)).square().sum().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    send = gradient_exchanges.EXCHANGES[name]
    found = trained(lambda *both: send(hvd, *both, InHorovodsLayout))
    assert torch.equal(found, trained(lambda model, optimizer: optimizer))


@pytest.mark.mpi
def test_two_ranks_average_however_gradients_are_sent() -> None:
    found = ranks.run("exchanged_gradients", 2, "all", PYTHONPATH=path_of_ranks())
    alike = {
        name for name in gradient_exchanges.EXCHANGES if name not in ("first numbers", "nothing")
    }
    for rank in found:
        for name, gap in rank[
            "gaps"
        ].items():  # difference to the average of the gradients of both ranks
            assert (gap < 1e-6) == (name in alike), (name, gap)
    assert found[0]["gaps"].keys() == gradient_exchanges.EXCHANGES.keys()


WHICH = [
    (framework, name) for framework in precision.FRAMEWORKS for name in precision.PRECISIONS["gpu"]
]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_precision() -> None:
    found = precision.precision(SMALL)
    for measured in found.values():
        assert list(measured["rates"]) == ["float32", "bfloat16"]
        assert all(rates[0] > 0 for rates in measured["rates"].values())
    assert "bfloat16" in shown(precision.show, found, 8)


@pytest.mark.slow
@pytest.mark.parametrize("framework, name", WHICH)
def test_precision_is_that_of_the_convolutions(
    framework: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
    import hvdlab.keras.measure_speed as of_keras
    import hvdlab.keras.models
    import hvdlab.torch.measure_speed as of_torch

    taken = []

    def torch_network(name: str) -> torch.nn.Module:
        network = hvdlab.torch.models.AssessmentNet()
        network.conv2.register_forward_hook(lambda layer, into, out: taken.append(out.dtype))
        return network

    def keras_network(dtype: str, name: str) -> "hvdlab.keras.models.keras.Model":
        network = hvdlab.keras.models.AssessmentNet(dtype)
        taken.extend(one.compute_dtype for one in network.layers if "conv" in one.name)
        return network

    monkeypatch.setattr(of_torch, "assessment_network", torch_network)
    monkeypatch.setattr(of_keras, "assessment_network", keras_network)
    monkeypatch.setattr(ranks, "tell", lambda measured: None)
    precision.one_run(framework, name, "1", "8")
    expected = "float32" if name == "TF32" else name  # TF32 is in the kernels of a GPU
    assert {str(dtype).removeprefix("torch.") for dtype in taken} == {expected}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_normalization() -> None:
    found = normalization.normalization(repeats=1, tell=silent)
    assert len(found) == 3
    assert "Keras on TensorFlow" in shown(normalization.show, found)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_optimizers() -> None:
    found = optimizers.optimizer_steps(["resnet50"], [1], repeats=1, tell=silent)
    table = shown(optimizers.show, found)
    for label in optimizers.optimizers() | keras_optimizers.KERAS_OPTIMIZERS:
        assert label in table


def test_optimizers_take_turns_with_each_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each round has a step with each number of threads, so that no number has the quieter minutes."""
    used = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            used.append(torch.get_num_threads())

    monkeypatch.setattr(optimizers, "optimizers", lambda: {"spy": ("SGD", Spy)})
    before = torch.get_num_threads()
    try:
        times = optimizers.measure([(2, 2)], repeats=2, threads=[1, 2, 3])
    finally:
        torch.set_num_threads(before)
    assert used == 4 * [1, 2, 3]  # two rounds to warm up, two that are timed
    assert {count: len(of["spy"]) for count, of in times.items()} == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(
    ("given", "cores", "taken"),
    [([], 1, [1]), ([], 3, [1, 2]), ([], 64, [1, 2, 4]), (["--threads", "8", "2", "8"], 1, [2, 8])],
)
def test_numbers_of_threads_of_the_optimizers(
    given: list[str], cores: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    monkeypatch.setattr(optimizers, "usable_cores", lambda: cores)
    monkeypatch.setattr(
        optimizers, "optimizer_steps", lambda networks, threads, *_: measured.extend(threads) or []
    )
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["optimizers", "--device", "cpu", *given])
    assert command.main(args) == 0 and measured == taken


def test_the_networks_are_those_of_the_papers() -> None:
    """The numbers of weights are those of torchvision's resnet50 and of BERT-base without its pooler."""
    assert len(weight_shapes.resnet50()) == 161
    assert sum(map(math.prod, weight_shapes.resnet50())) == 25_557_032
    assert sum(map(math.prod, weight_shapes.transformer())) == 108_891_648


def test_a_variant_that_fails_is_named() -> None:
    with pytest.raises(ranks.BenchFailed, match="no-such on 1 ranks failed: KeyError"):
        ranks.run("hvdlab.bench.throughput", 1, "no-such", 1, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("variant", ["alone-torch", "horovod-torch", "ddp-torch"])
def test_a_rank_trains_on_the_gpu_and_names_it(variant: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    (told,) = ranks.run(
        "hvdlab.bench.throughput", 1, variant, 5, 64, "wrn-10-1", device="gpu",
        HVDLAB_BENCH_STORE=store,
    )  # fmt: skip
    assert told["device"] == torch.cuda.get_device_name() and told["images_per_second"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_ranks_on_gpus_all_reduce() -> None:
    """Two ranks exchange through host memory on one GPU, and through NCCL on two GPUs."""
    found = allreduce.allreduce(2, 1, (1024, 2**20), {"default": {}}, silent, device="gpu")
    assert found["device"] == torch.cuda.get_device_name()
    assert {"horovod", "memcpy"} <= found["ways"].keys()
    for times in found["ways"].values():
        assert all(seconds[0] > 0 for seconds in times.values()) and len(times) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_optimizers_step_on_a_gpu() -> None:
    times = optimizers.measure([(64, 64), (64,)], 2, [1], torch.device("cuda"))
    assert times[1].keys() == optimizers.optimizers().keys()
