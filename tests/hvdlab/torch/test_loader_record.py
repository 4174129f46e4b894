"""A Recorder records what a DataLoader reads, with any sampler."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

from hvdlab.torch.loader_record import LoaderRecord  # noqa: E402
from hvdlab.torch.recorder import Recorder  # noqa: E402

DATA = TensorDataset(torch.arange(10))


def read(loader):
    return torch.cat([batch for (batch,) in loader]).tolist()


def test_the_record_is_what_the_loop_has_got():
    sampler = DistributedSampler(DATA, num_replicas=3, rank=1)
    loader = DataLoader(DATA, 3, sampler=sampler)
    record = LoaderRecord(loader)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        got = read(loader)
        assert record.examples_read(epoch).tolist() == got == list(sampler)
    assert len(loader) == 2 and len(record) == 4 and record.batch_size == 3


def test_a_shuffling_loader_is_recorded_without_another_draw():
    orders = []
    for watched in (False, True):
        torch.manual_seed(7)
        loader = DataLoader(DATA, 4, shuffle=True)
        record = LoaderRecord(loader) if watched else None
        orders += [read(loader), read(loader)]
    assert orders[:2] == orders[2:] and record.examples_read(1).tolist() == orders[3]


def test_a_loader_that_forms_no_batches_is_refused():
    with pytest.raises(ValueError, match="must form batches itself"):
        LoaderRecord(DataLoader(DATA, batch_size=None))


def test_a_recorder_takes_a_loader(tmp_path):
    loader = DataLoader(DATA, 4)
    recorder = Recorder(nn.Linear(1, 1), loader, tmp_path)
    read(loader)
    recorder.epoch_end(0, loss=1.0)
    with np.load(tmp_path / "rank-0" / "epoch-000.npz") as file:
        assert file["examples_read"].tolist() == list(range(10))
    assert '"steps": 3' in (tmp_path / "rank-0" / "record.jsonl").read_text()
