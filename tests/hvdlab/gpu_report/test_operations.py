"""The comparison of Horovod's operations with NumPy finds wrong results."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
from hvdlab.gpu_report import findings, operations  # noqa: E402

WORLD = SimpleNamespace(rank=0, size=1, label="here")


@pytest.mark.parametrize(
    ("got", "ok"),
    [
        (torch.ones(3), True),
        (torch.tensor([1.0, 1.0, 1.001]), False),
        (torch.tensor([1.0, 1.0, float("nan")]), False),
        (torch.ones(2), False),  # another shape
        (torch.ones(3, 1), False),
    ],
)
def test_a_wrong_result_is_found(got: torch.Tensor, ok: bool, tmp_path: Path) -> None:
    def operation(world: SimpleNamespace, dtype: str, size: int) -> operations.Pairs:
        return [(torch.ones(size), np.ones(size)), (got, np.ones(3))]

    found = findings.Findings(tmp_path)
    operations.compare(found, WORLD, "sum", operation, "float32", (1, 7))
    (check,) = findings.read(tmp_path)
    assert check.ok == ok


def test_ranks_contribute_different_values() -> None:
    """If all ranks had the same values, the comparison could not find a missing exchange."""
    world = SimpleNamespace(rank=0, size=3)
    columns = operations.everyone(world, "int64", 100)
    assert all(len(set(column)) == 3 for column in columns.T)
    assert not np.array_equal(columns.sum(0), 3 * columns[0])
