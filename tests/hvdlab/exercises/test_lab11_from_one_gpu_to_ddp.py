"""The checks of lab 11 know a right DDP script from a wrong one, and name the mistake.

Most runs here are written by hand, in the format of real ones. Those marked mpi are real runs of torchrun.
"""

import json
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab11_from_one_gpu_to_ddp as steps  # noqa: E402
from hvdlab.exercises import lab11_ranks_and_shards as functions  # noqa: E402
from hvdlab.exercises.harness import conversion_runs, script_run  # noqa: E402
from hvdlab.exercises.lab11_script_edits import EDITS  # noqa: E402
from hvdlab.record import RunRecord  # noqa: E402

ALL = np.arange(257)
HALVES = [[ALL[0::2], ALL[::-1][0::2]], [np.append(ALL[1::2], 0), np.append(ALL[::-1][1::2], 9)]]
RATE = conversion_runs.LEARNING_RATE


@pytest.fixture
def script(tmp_path):
    """A function: write the script as it is after a step, with changes; return its path."""

    def write(step, *changes):
        text = EDITS.after(step)
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "mine.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


class FakeRun:
    """Two ranks and two epochs of a run in which all is well, to be spoiled."""

    def __init__(self):
        self.read = HALVES  # [rank][epoch]
        self.weights = np.array([[1.0, 1.0], [2.0, 2.0]])  # [epoch][rank]
        self.values = {"loss": 1.0, "accuracy": 50 / 101}
        self.rate = 2 * RATE
        self.printed = ["epoch 0 held-out 0.495\nepoch 1 held-out 0.495\n", ""]
        self.groups = [{"rank": rank, "size": 2, "backend": "gloo"} for rank in range(2)]
        self.loads = [[{"began": 0.0, "ended": 1.0}], [{"began": 1.1, "ended": 2.1}]]
        self.checkpoint = {"model": {"0.weight": torch.zeros(1)}}
        self.writers = [0]
        self.failure = ""
        self.launchers = set()

    def __call__(self, script, *arguments, folder, disk=None, ranks=2, launcher=None, **options):
        self.launchers.add(launcher)
        disk = disk or folder
        for rank in range(ranks):
            record = RunRecord(folder, rank)
            for epoch in range(2):
                read, kernel = self.read[rank][epoch], np.array([self.weights[epoch][rank], 0.5])
                values = {"learning_rate": self.rate, "images_per_second": 9.0, **self.values}
                record.write(
                    epoch,
                    lambda file, k=kernel, r=read: np.savez(file, examples_read=r, kernel=k),
                    steps=-(-len(read) // 32),
                    **values,
                )
            own = disk / f"rank-{rank}"
            (own / "checkpoints").mkdir(parents=True, exist_ok=True)
            (own / "output.txt").write_text(self.printed[rank])
            for name, value in (("process_group", self.groups), ("loading", self.loads)):
                if value[rank]:
                    (own / f"{name}.json").write_text(json.dumps(value[rank]))
            if rank in self.writers:
                torch.save(self.checkpoint, own / "checkpoints" / "epoch-001.pt")
        return script_run.Watched(script, folder, disk, ranks, self.failure)


@pytest.fixture
def fake(monkeypatch):
    run = FakeRun()
    monkeypatch.setattr(conversion_runs, "watch", run)
    monkeypatch.setattr(conversion_runs, "QUICK", False)
    monkeypatch.setattr(conversion_runs, "REFERENCE", False)
    return run


def test_the_steps_together_make_a_script_that_python_reads():
    for step in EDITS.steps:
        compile(EDITS.after(step), step, "exec")
        assert 0 < EDITS.diff(step).count("\n+") < 15
    assert EDITS.after("resume").count("# DDP: ") >= 15


@pytest.mark.parametrize("step", [step for step in EDITS.steps if step != "resume"])
def test_a_right_step_is_right(step, script, fake, capsys):
    getattr(steps, f"check_{step}")(script(step))
    assert "Right: " in capsys.readouterr().out
    assert fake.launchers == {"torchrun"}


SAMPLER = "DistributedSampler(examples, seed=args.seed)"
PREFIXED = {"model": {"module.0.weight": torch.zeros(1)}, "optimizer": {"state": {}}}
DRIFTS = np.array([[1.0, 4.0], [2.0, 5.5]])
KEPT = np.array([[1.0, 4.0], [2.0, 5.0]])
SAME_ORDER = [[HALVES[0][0]] * 2, [HALVES[1][0]] * 2]


# The check, the step after which the script is as it is, changes of its text, and what differs in the run.
@pytest.mark.parametrize(
    ("check", "step", "changes", "run", "says"),
    [
        ("init", None, [], {}, "no line imports torch.distributed"),
        ("init", "init", [("dist.init_process_group(", "print(")], {}, "is not called"),
        ("init", "init", [], {"groups": [{"rank": 0, "size": 1, "backend": "gloo"}] * 2},
         "did not connect. Leave out rank= and world_size="),
        ("init", "init", [], {"groups": [None] * 2}, "a rank ends before it has called it"),
        ("init", "init", [], {"failure": "ValueError: ProcessGroupNCCL is only supported with GPUs"},
         'backend "nccl" needs a GPU for each rank'),
        ("init", "init", [], {"failure": "ValueError: Default process group has not been initialized."},
         "Nothing may ask torch.distributed before"),
        ("device", "init", [], {}, "no device is chosen by the local rank"),
        ("device", "device", [('int(os.environ["LOCAL_RANK"])', "dist.get_rank()"),
                              ("local_rank = ", "mine = "), ('"cuda", local_rank', '"cuda", mine')], {},
         "on the second machine of four GPUs, rank 4"),
        ("device", "device", [('"cuda", local_rank', '"cuda", local_rank % torch.cuda.device_count()')], {},
         "NCCL refuses two ranks on one GPU"),
        ("sampler", "device", [], {}, "there is no DistributedSampler"),
        ("sampler", "sampler", [("        sampler.set_epoch(epoch)", "        #")], {},
         "set_epoch.* is not called"),
        ("sampler", "sampler", [], {"read": SAME_ORDER}, "in the same order in both epochs"),
        ("sampler", "sampler", [], {"read": [[ALL] * 2, [ALL[::-1]] * 2]},
         "both ranks read all 257 images.* sampler=DistributedSampler"),
        ("sampler", "sampler", [], {"read": [HALVES[0], HALVES[0]]}, "no rank reads the others"),
        ("sampler", "sampler", [], {"read": [[ALL[::2]] * 2, [ALL[1::2]] * 2]},
         "rank 0 makes 5 steps an epoch and rank 1 makes 4"),
        ("sampler", "sampler",
         [(SAMPLER, "DistributedSampler(examples, 2, rank=local_rank, seed=args.seed)")], {},
         r"local_rank or local_size.*dist.get_rank\(\) and dist.get_world_size\(\) count over all"),
        ("sampler", "sampler", [],
         {"failure": "ValueError: sampler option is mutually exclusive with shuffle"}, "leave out shuffle"),
        ("ddp", "sampler", [], {"weights": DRIFTS}, "the model is not wrapped"),
        ("ddp", "ddp", [("parallel = Dist", "Dist")], {}, "discards the wrapper"),
        ("ddp", "ddp", [], {"weights": DRIFTS}, "models drift: .* 3.0000 .* 3.5000 .*Call the wrapper"),
        ("ddp", "ddp", [], {"weights": KEPT}, "wrap the model last"),
        ("ddp", "ddp", [], {"rate": RATE}, r"should be 0.1: --lr times dist.get_world_size\(\), once"),
        ("download", "ddp", [], {}, "barrier.. is not called"),
        ("download", "download", [("if local_rank != 0", "if dist.get_rank() != 0"),
                                  ("if local_rank == 0", "if dist.get_rank() == 0")], {},
         "counts over all machines"),
        ("download", "download", [], {"loads": [[{"began": 0.0, "ended": 1.0}]] * 2},
         "both ranks load at the same time"),
        ("download", "download", [],
         {"loads": [[{"began": 1.1, "ended": 2.0}], [{"began": 0.0, "ended": 1.0}]]},
         "local rank 1 loads before local rank 0"),
        ("download", "download", [], {"loads": [[{"began": 0.0, "ended": 1.0}], None]},
         "rank 1 never calls load_fashion_mnist"),
        ("output", "output", [], {"printed": ["epoch 0\n" * 2] * 2},
         r"both ranks print a line each epoch: print where dist.get_rank\(\) == 0"),
        ("output", "output", [("if dist.get_rank() == 0:  # DDP: one rank prints", "if local_rank == 0:")],
         {}, "0 once on every machine"),
        ("metrics", "metrics", [("mine = slice(dist.get_rank(), args.heldout, dist.get_world_size())",
                                 "mine = slice(args.heldout)")], {}, "each rank evaluates all held-out"),
        ("metrics", "metrics", [], {"values": {"loss": 1.0, "accuracy": (20 / 51 + 30 / 50) / 2}},
         "mean of two means"),
        ("checkpoint", "checkpoint", [], {"writers": [0, 1]}, "both ranks write"),
        ("checkpoint", "checkpoint", [], {"checkpoint": PREFIXED},
         'saved from the wrapper: a weight has the name "module.0.weight"'),
        ("resume", "checkpoint", [], {}, "no line sends its content to the other ranks"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, step, changes, run, says, script, fake):
    vars(fake).update(run)
    with pytest.raises(NotYet, match=says):
        getattr(steps, f"check_{check}")(script(step, *changes))


def test_the_device_of_the_helper_is_right_too(script, fake, capsys):
    path = script(
        "init", ('device = torch.device("cuda" if', 'device = group_device() or ("cuda" if')
    )
    steps.check_device(path)
    assert "the device that group_device chooses" in capsys.readouterr().out


def test_two_models_after_the_sampler_are_said_to_be_two(script, fake, capsys):
    fake.weights = DRIFTS
    steps.check_sampler(script("sampler"))
    assert "there are still two models" in capsys.readouterr().out
    fake.weights = np.ones((2, 2))
    steps.check_sampler(script("sampler"))
    assert "already has the wrapper of exercise 6" in capsys.readouterr().out


# --- functions ------------------------------------------------------------------------------------------


def variables(node, local_rank, per_node, nodes, **changes):
    right = {"RANK": node * per_node + local_rank, "WORLD_SIZE": nodes * per_node}
    return {**right, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": per_node, **changes}


def test_the_variables_of_a_rank(capsys):
    functions.check_torchrun_variables(variables)
    assert "Right: rank 6 of 8 is local rank 2 on node 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda node, local, per, nodes: variables(node, local, per, nodes, RANK=local),
         "RANK counts over all nodes"),
        (lambda node, local, per, nodes: variables(node, local, per, nodes, WORLD_SIZE=per),
         "WORLD_SIZE is the number of all ranks"),
        (lambda node, local, per, nodes: variables(node, local, per, nodes, LOCAL_RANK=node * per + local),
         "LOCAL_RANK counts on one node"),
        (lambda node, local, per, nodes: variables(node, local, per, nodes, LOCAL_WORLD_SIZE=per * nodes),
         "LOCAL_WORLD_SIZE is the number of ranks on one node"),
        (lambda node, local, per, nodes: node * per + local, "must return a dict with RANK"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        functions.check_torchrun_variables(wrong)


def shard(n, rank, size, epoch, seed, pad=True, contiguous=False):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    order += order[: -n % size] if pad else []
    per_rank = -(-n // size)
    return order[rank * per_rank : (rank + 1) * per_rank] if contiguous else order[rank::size]


def test_the_shard_of_a_rank(capsys):
    functions.check_shard_indices(shard)
    assert "Right: your indices are those of DistributedSampler" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda *five: shard(*five, pad=False), "so that all ranks get equally many"),
        (lambda *five: shard(*five, contiguous=True), r"not a contiguous part: order\[rank::size\]"),
        (lambda n, rank, size, epoch, seed: shard(n, rank, size, 0, seed), "must be part of the seed"),
        (lambda n, rank, size, epoch, seed: shard(n, rank, size, epoch, seed + rank),
         "must not contain the rank"),
        (lambda n, rank, size, epoch, seed: [*range(n), *range(n)][: -(-n // size) * size][rank::size],
         "order is not permuted"),
        (lambda *five: 3, "must return a list of indices"),
    ],
)  # fmt: skip
def test_a_wrong_shard_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        functions.check_shard_indices(wrong)


# --- real runs ------------------------------------------------------------------------------------------


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setattr(conversion_runs, "QUICK", False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    limit = float(os.environ.get("HVDLAB_TEST_LIMIT", 300))
    monkeypatch.setattr(conversion_runs, "LIMIT_SECONDS", limit)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "step",  # the solution notebook of lab 11 runs each of them; the last holds all the edits
    [pytest.param(s, marks=() if s == "resume" else pytest.mark.thorough) for s in EDITS.steps],
)
def test_a_real_script(step, script, real, capsys):
    getattr(steps, f"check_{step}")(script(step))
    assert "Right: " in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_real_mistakes(script, real):
    with pytest.raises(NotYet, match="Call the wrapper there"):
        steps.check_ddp(script("ddp", ("parallel(x.to(device))", "model(x.to(device))")))
    with pytest.raises(NotYet, match="both ranks load at the same time"):
        after = "    if local_rank == 0:\n        dist.barrier()\n", ""
        steps.check_download(script("download", ("    if local_rank != 0:\n    ", ""), after))
    with pytest.raises(NotYet, match="the weights of the ranks differ: every rank must load"):
        loaded = (
            "        optimizer.load_state_dict(state",
            "        dist.get_rank() or optimizer.load_state_dict(state",
        )
        steps.check_resume(script("resume", loaded))
