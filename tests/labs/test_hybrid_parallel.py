"""hybrid_parallel.py: every split has the losses of serial training, and sends the bytes of the formulas."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from hvdlab import launch  # noqa: E402
from hvdlab.torch.lab_networks import ResidualMLP  # noqa: E402
from hvdlab.torch.model_parallel.pipeline_stages import batch  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "labs" / "hybrid_parallel.py"
LAYERS, HIDDEN, IMAGE, BATCH, STEPS = 4, 32, 8, 32, 20
SMALL = f"--num-layers {LAYERS} --hidden-size {HIDDEN} --image-size {IMAGE} --batch-size {BATCH}".split()


def serial():
    """Train serially on the whole batch, in an independent loop."""
    torch.manual_seed(1)
    network = ResidualMLP(LAYERS, HIDDEN, IMAGE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        images, labels = batch(step, BATCH, IMAGE)
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def measured(tmp_path, ranks, *arguments):
    output = tmp_path / "measured.json"
    launch.run(SCRIPT, *arguments, *SMALL, "--output", output, ranks=ranks, timeout=240, show=False)
    return json.loads(output.read_text())


def assert_serial(found):
    """Assert that all losses are within 1e-5 of the serial losses, as sums are rounded in another order."""
    last = [rank["losses"] for rank in found["ranks"] if rank["losses"][0] is not None]
    difference = np.abs(np.mean(last, axis=0) - serial()).max()
    assert difference < 1e-5, f"{found['split']} {found['schedule']}: {difference:.1e}"


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "schedules"),
    [
        ("2x1x2 1x2x2", "1f1b"),
        pytest.param("2x2x1 1x1x4 4x1x1 1x4x1", "1f1b gpipe", marks=pytest.mark.thorough),
    ],
)
def test_every_split_of_four_ranks_equals_serial_training(tmp_path, names, schedules):
    for found in measured(tmp_path, 4, *names.split(), "--schedules", *schedules.split()):
        assert_serial(found)
        d, t, p = found["split"]
        ranks = found["ranks"]
        # Ranks with consecutive numbers are neighbours along tensor, or along data if tensor is 1.
        assert ranks[1]["at"] == ([0, 1, 0] if t > 1 else [1, 0, 0] if d > 1 else [0, 0, 1])
        # In a block that is split along `tensor`, each rank keeps the whole norm and the bias of `down`.
        block, rest = 8 * HIDDEN**2 + 4 * HIDDEN, 3 * HIDDEN
        ends = (IMAGE**2 + 1) * HIDDEN + (12 * HIDDEN + 10 if p == 1 else 0)
        largest = LAYERS // p * (block / t + rest) + ends
        # FSDP2 may pad the last rank's shard.
        assert max(rank["memory"] for rank in ranks) == pytest.approx(12 * largest / d, rel=0.01)
        foretold = 3 * (d - 1) / d * 4 * largest
        foretold += 4 * BATCH * HIDDEN / d * (4 * LAYERS / p * (t - 1) / t + min(p - 1, 2))
        # Gloo adds at most 300 bytes per message. An all-reduce of n ranks has 2 (n-1) messages per rank.
        in_blocks = 2 * LAYERS / p * 2 * (t - 1)
        messages = found["micro_batches"] * (in_blocks + 2 * (p > 1)) + 4 * (d - 1)
        assert 0 <= max(rank["sent"] for rank in ranks) - foretold < 300 * messages


@pytest.mark.mpi
@pytest.mark.thorough
def test_interleaved_stages_equal_serial_training_and_record_their_passes(tmp_path):
    options = ["1x1x2", "--schedules", "1f1b", "interleaved", "--steps", STEPS]
    plain, interleaved = measured(tmp_path, 2, *options)
    for found in (plain, interleaved):
        assert_serial(found)
        for rank in found["ranks"]:
            starts = [start for *_, start, _ in rank["events"]]
            ends = [end for *_, end in rank["events"]]
            # Passes do not overlap, and each micro-batch goes forward and backward once per stage.
            assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
            passes = [tuple(event[:3]) for event in rank["events"]]
            assert len(set(passes)) == len(passes)
    assert [len(rank["events"]) for rank in plain["ranks"]] == [8, 8]
    assert [len(rank["events"]) for rank in interleaved["ranks"]] == [16, 16]
    # 1F1B on stage 0 of two: two forward passes, then backward and forward in turns.
    kinds = [event[1][0] for event in plain["ranks"][0]["events"]]
    assert "".join(kinds) == "ffbfbfbb"


@pytest.mark.mpi
@pytest.mark.thorough
def test_a_2x2x2_split_equals_serial_training(tmp_path):
    (found,) = measured(tmp_path, 8, "2x2x2")
    assert len(found["ranks"]) == 8
    assert_serial(found)


@pytest.mark.thorough
def test_starts_under_torchrun_and_as_a_single_process(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    for start, split in ((torchrun, "2x1x1"), ([sys.executable], "1x1x1")):
        output = tmp_path / f"{split}.json"
        command = [*start, str(SCRIPT), split, *SMALL, "--output", str(output)]
        subprocess.run(command, env=environment, check=True, timeout=240, capture_output=True)
        assert_serial(json.loads(output.read_text())[0])


def test_refuses_an_impossible_split_in_one_sentence():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "2x1x1"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr == "splits: expected a product of 1, the number of ranks, got 2x1x1\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, None),
        ({"sizes": (2, 1, 2)}, "splits: expected a product of 2, the number of ranks, got 2x1x2"),
        ({"num_layers": 5}, "--num-layers: expected a multiple of the 2 stages, got 5"),
        ({"schedule": "interleaved", "num_layers": 6}, "a multiple of the 4 stages, got 6"),
        (
            {"batch_size": 30},
            "--batch-size: expected a multiple of data x micro-batches = 4, got 30",
        ),
        ({"batch_size": 30, "micro_batch_size": 8}, None),
        (
            {"schedule": "interleaved", "micro_batches": 5},
            "--micro-batches: expected a multiple of 2 to interleave, got 5",
        ),
        (
            {"sizes": (1, 2, 1), "hidden_size": 3},
            "--hidden-size: expected a multiple of tensor = 2",
        ),
    ],
)
def test_refuses_impossible_sizes(options, says):
    spec = importlib.util.spec_from_file_location("hybrid_parallel", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    split = {"sizes": (1, 1, 2), "schedule": "1f1b", "micro_batches": 4}
    split |= {name: options.pop(name) for name in split.keys() & options.keys()}
    plain = {"num_layers": 8, "hidden_size": 8, "batch_size": 64, "micro_batch_size": None}
    found = script.refusal(argparse.Namespace(**{**plain, **options}), 2, **split)
    assert found is None if says is None else says in found
