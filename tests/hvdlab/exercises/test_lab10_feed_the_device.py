"""The checks of lab 10: what is not in the tests of every exercise."""

import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from torch.utils.data import get_worker_info  # noqa: E402

from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab10_feed_the_device as exercises  # noqa: E402


def test_the_throughput_must_double(capsys):
    exercises.check_throughput(3000, 12000, 24000)
    assert "The gain is 4.0, and 50% of the upper bound" in capsys.readouterr().out
    with pytest.raises(NotYet, match="the gain is 2.0, expected"):
        exercises.check_throughput(3000, 5900, 24000)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda *a: None, "write a generator"),
        (lambda *a: range(8), "yield the given paths, .* Received: 0"),
        (lambda shards, rank, size: (shards if get_worker_info() is None else 1 / 0)[rank::size],
         "^my_shards raises ZeroDivisionError: division by zero.*`.$"),  # in a worker only
    ],
)  # fmt: skip
def test_unusable_shards_get_a_reason(wrong, says):
    with pytest.raises(NotYet, match=says) as error:
        exercises.check_my_shards(wrong)
    assert "\n" not in str(error.value)


def test_a_batch_must_be_a_pair_of_tensors():
    with pytest.raises(NotYet, match=r"must yield pairs of tensors, .* Received: \["):
        exercises.check_array_batches(lambda images, labels, size, random: [[images, labels]])
