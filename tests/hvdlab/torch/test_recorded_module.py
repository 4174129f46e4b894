"""Which module the Recorder records, and what it refuses before the first epoch."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hvdlab.assessment_networks import VARIABLE
from hvdlab.data import Batches
from hvdlab.record import WEIGHTS
from hvdlab.recordable import NotRecordable
from hvdlab.torch.models import AssessmentNet, assessment_network
from hvdlab.torch.recorder import Recorder

WRAPS = {"ddp": DistributedDataParallel, "data parallel": DataParallel, "compiled": torch.compile}


@pytest.fixture
def group(tmp_path):
    """A process group of one rank, which DistributedDataParallel needs."""
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def graded(monkeypatch):
    monkeypatch.setenv(VARIABLE, "assessment-net")


def batches(n=10):
    return Batches(np.zeros((n, 32, 32, 3), np.uint8), np.arange(n), 4)


def recorded(model, folder) -> dict:
    given = batches()
    recorder = Recorder(model, given, folder)
    list(given.epoch(0))
    recorder.epoch_end(0)
    arrays = dict(np.load(folder / "rank-0" / "epoch-000.npz"))
    del arrays["examples_read"]
    return arrays


@pytest.mark.parametrize("grading", [True, False])
@pytest.mark.parametrize(
    "names",
    [names for n in (1, 2, 3) for names in itertools.permutations(WRAPS, n)],
    ids="-".join,
)
def test_wrappers_in_any_order_do_not_change_the_names(
    names, grading, group, tmp_path, monkeypatch
):
    if grading:
        monkeypatch.setenv(VARIABLE, "assessment-net")
    network = wrapped = AssessmentNet()
    for name in names:
        wrapped = WRAPS[name](wrapped)
    arrays = recorded(wrapped, tmp_path)
    assert {name: array.shape for name, array in arrays.items()} == WEIGHTS
    np.testing.assert_array_equal(arrays["conv1.bias"], network.conv1.bias.detach().numpy())


class Holder(nn.Module):
    """A module of a learner's own that holds the network, as a LightningModule does."""

    def __init__(self, network):
        super().__init__()
        self.network = network


def compiled_part(network):
    network.conv2 = torch.compile(network.conv2)
    return network


@pytest.mark.parametrize(
    "wrap",
    [
        Holder,
        lambda network: Holder(torch.compile(network)),
        torch.optim.swa_utils.AveragedModel,  # has a copy of the network, and a counter
        compiled_part,
    ],
    ids=["holder", "compiled in a holder", "averaged", "a compiled layer"],
)
def test_a_graded_run_records_the_network_inside_any_module(wrap, graded, tmp_path):
    arrays = recorded(wrap(AssessmentNet()), tmp_path)
    assert {name: array.shape for name, array in arrays.items()} == WEIGHTS


def larger():
    network = AssessmentNet()
    network.linear = nn.Linear(256, 20)
    return network


def with_one_more():
    network = AssessmentNet()
    network.head = nn.Linear(10, 10)
    return network


def sharded():
    """What fully_shard makes of a module: its class gets the base class FSDPModule."""
    network = AssessmentNet()
    network.__class__ = type("FSDPAssessmentNet", (type("FSDPModule", (), {}), AssessmentNet), {})
    return network


@pytest.mark.parametrize(
    "model, words",
    [
        (lambda: nn.Sequential(nn.Linear(3, 3)), "Sequential with no weight conv1.weight and 18 "),
        (lambda: nn.ReLU(), "ReLU with no weights"),
        (lambda: nn.LazyLinear(3), "LazyLinear with no weight conv1.weight"),
        (lambda: assessment_network("wrn-10-1"), "WideResNet with no weight conv1.bias"),
        (larger, "a weight linear.weight of shape (20, 256) in place of (10, 256)"),
        (with_one_more, "an additional weight head.weight"),
        (lambda: Holder(nn.ModuleList([AssessmentNet(), AssessmentNet()])), "with 2 of them"),
        (sharded, "FSDP shards"),
        (lambda: AssessmentNet().state_dict(), "Received: OrderedDict"),
        (lambda: AssessmentNet, "Received: type"),
    ],
)
def test_a_graded_run_refuses_another_network_before_its_first_epoch(
    model, words, graded, tmp_path
):
    with pytest.raises(NotRecordable) as refusal:
        Recorder(model(), batches(), tmp_path)
    assert words in str(refusal.value) and str(refusal.value).startswith("Recorder: ")
    assert not list(tmp_path.iterdir())  # no record begins


def test_a_lab_records_any_module(tmp_path):
    assert set(recorded(nn.Sequential(nn.Linear(3, 3)), tmp_path)) == {"0.weight", "0.bias"}
    assert recorded(nn.ReLU(), tmp_path / "none") == {}


@pytest.mark.parametrize(
    "given", [[1, 2], np.zeros((4, 32, 32, 3)), None, iter(batches().epoch(0))]
)
def test_refuses_what_is_no_batches(given, tmp_path):
    with pytest.raises(
        NotRecordable, match="must be the hvdlab.data.Batches that this rank trains"
    ):
        Recorder(AssessmentNet(), given, tmp_path)


def test_a_graded_rank_has_one_recorder_at_a_time(graded, tmp_path):
    network, given = AssessmentNet(), batches()
    first = Recorder(network, given, tmp_path)
    with pytest.raises(NotRecordable, match="each rank needs one Recorder"):
        Recorder(copy.deepcopy(network), given, tmp_path)
    list(given.epoch(0))
    first.epoch_end(0)
    Recorder(network, given, tmp_path)  # the next one of two phases of a training


def test_labs_may_create_several_recorders(tmp_path):
    kept = [Recorder(AssessmentNet(), batches(), tmp_path) for _ in range(2)]
    assert len(kept) == 2
