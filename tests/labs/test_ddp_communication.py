"""Collectives and bytes of a DDP step follow from the bucket size, no_sync and the hook."""

import json
from functools import cache
from pathlib import Path

import pytest

from hvdlab import launch

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "labs" / "ddp_communication.py"
GRADIENTS = 4 * (785 * 256 + 8 * (8 * 256**2 + 7 * 256) + 2 * 256 + 257 * 10)  # bytes

pytestmark = pytest.mark.mpi


@cache
def run(*arguments, script=SCRIPT):
    arguments = [*arguments, "--steps", "5", "--batch-size", "16"]
    output = launch.run(script, *arguments, ranks=2, show=False, timeout=200)
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def test_smaller_buckets_make_more_all_reduces_that_start_earlier():
    found = run("--bucket-mb", "1")
    # An all-reduce sends 2 (N-1)/N of it per rank, and N is 2.
    assert found["bytes"] == pytest.approx(GRADIENTS, rel=0.01)
    # A gradient of 2^20 bytes or more fills a bucket of 2^20 bytes, so the 16 matrices make 16 buckets or
    # more.
    assert 16 <= found["collectives"] <= 30
    starts = [start for what, start, _ in found["events"] if what == "all-reduce"]
    last = max(start for what, start, _ in found["events"] if what == "backward")
    assert min(starts) < last


def test_by_default_the_first_bucket_is_small():
    # 1 MiB for the first bucket, and 25 MiB for the second, which has room for the other 16 MiB.
    assert run()["collectives"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "collectives", "part"),
    [
        (("--bucket-mb", "25"), 1, 1),
        (("--passes", "3"), 6, 3),
        (("--passes", "3", "--no-sync"), 2, 1),
        (("--hook", "fp16"), 2, 0.5),
    ],
)
def test_bytes_and_collectives_by_setting(arguments, collectives, part):
    found = run(*arguments)
    assert found["collectives"] == collectives
    assert found["bytes"] == pytest.approx(part * GRADIENTS, rel=0.01)


@pytest.mark.thorough
def test_no_sync_takes_the_same_steps(tmp_path):
    loss = run("--passes", "3")["loss"]
    assert run("--passes", "3", "--no-sync")["loss"] == pytest.approx(loss, abs=1e-5)
    # If the gradients of the passes without exchange were lost, the loss would differ, as each pass has its
    # own images.
    backward = " " * 16 + "(loss / args.passes).backward()\n"
    lost = tmp_path / "lost.py"
    lost.write_text(
        SCRIPT.read_text().replace(
            backward, backward + " " * 16 + "optimizer.zero_grad() if quiet else None\n"
        )
    )
    assert abs(run("--passes", "3", "--no-sync", script=lost)["loss"] - loss) > 1e-3


@pytest.mark.thorough
def test_powersgd_sends_little_in_one_bucket():
    found = run("--hook", "powersgd")
    assert found["bytes"] < 0.05 * GRADIENTS
    assert found["collectives"] == 1  # the profile sees the first of three


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--passes", "0"), "--passes: expected 1 or more, got 0"),
        # Two ranks mix up several buckets: Gloo ends them with "op.preamble.length <= op.nbytes".
        (("--hook", "powersgd", "--bucket-mb", "4"), "--bucket-mb: expected 25 or more .*, got 4"),
    ],
)
def test_reports_a_bad_argument_in_one_sentence(arguments, sentence):
    with pytest.raises(launch.LaunchError, match=sentence):
        launch.run(SCRIPT, *arguments, ranks=1, show=False, timeout=100)
