"""The checks of lab 11 know a right DDP script from a wrong one, and name the mistake.

Most runs here are written by hand, in the format of real ones. Those marked mpi are real runs of torchrun.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from fake_conversion_run import ALL, DRIFTS, HALVES, KEPT, RATE  # noqa: E402

from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab11_from_one_gpu_to_ddp as steps  # noqa: E402
from hvdlab.exercises import lab11_ranks_and_shards as functions  # noqa: E402
from hvdlab.exercises.lab11_script_edits import EDITS  # noqa: E402


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


PREFIXED = {"model": {"module.0.weight": torch.zeros(1)}, "optimizer": {"state": {}}}
SAME_ORDER = [[HALVES[0][0]] * 2, [HALVES[1][0]] * 2]
FIRST, SECOND = {"began": 0.0, "ended": 1.0}, {"began": 1.1, "ended": 2.0}


# The check, the step after which the script is as it is, and what differs in the run. What both labs judge
# alike is in test_lab05_horovod.py.
@pytest.mark.parametrize(
    ("check", "step", "run", "says"),
    [
        ("init", None, {"process_group": [None] * 2}, "no line imports torch.distributed"),
        ("init", "init", {"process_group": [None] * 2}, "is not called, or a rank ends before it"),
        ("init", "init", {"process_group": [{"rank": 0, "size": 1, "backend": "gloo"}] * 2},
         "did not connect. Leave out rank= and world_size="),
        ("init", "init", {"failure": "ValueError: ProcessGroupNCCL is only supported with GPUs"},
         'backend "nccl" needs a GPU for each rank'),
        ("init", "init", {"failure": "ValueError: Default process group has not been initialized."},
         "Nothing may ask torch.distributed before"),
        ("device", "init", {"gpu": {"model": 0, "current": None}},
         r"uses GPU 0, not GPU 1. .*LOCAL_RANK.*get_rank\(\) would be wrong, too"),
        ("device", "device", {"gpu": {"model": 1, "current": None}}, "call torch.cuda.set_device"),
        ("sampler", "sampler", {"read": SAME_ORDER}, "in the same order in both epochs"),
        ("sampler", "sampler", {"read": [[ALL] * 2, [ALL[::-1]] * 2]},
         "both ranks read all 257 images.* sampler=DistributedSampler"),
        ("sampler", "sampler", {"read": [HALVES[0], HALVES[0]]}, "no rank reads the others"),
        ("sampler", "sampler", {"trained": [[[258.0, 129]], [[129.0, 129]]]},
         r"rank 0 reports a loss of 1.000 .* is 2.000.* 129: len\(sampler\) on each rank"),
        ("sampler", "sampler", {"failure": "ValueError: sampler option is mutually exclusive with shuffle"},
         "leave out shuffle"),
        ("ddp", "sampler", {"weights": DRIFTS}, "the model is not wrapped"),
        ("ddp", "ddp", {"weights": DRIFTS}, "models drift: .* 3.0000 .* 3.5000 .*Call the wrapper"),
        ("ddp", "ddp", {"weights": DRIFTS, "rates": [RATE, 2 * RATE]},
         "learning rate is 0.05 on rank 0 and 0.1 on rank 1"),
        ("ddp", "ddp", {"weights": KEPT}, "wrap the model last"),
        ("ddp", "ddp", {"rates": [RATE] * 2}, r"should be 0.1: --lr times dist.get_world_size\(\), once"),
        ("ddp", "ddp", {"trained": [[[258.0, 129]], [[258.0, 129]]]}, "reports a loss of 1.000"),
        ("download", "download", {"loading": [[FIRST]] * 2}, "both ranks load at the same time"),
        ("download", "download", {"loading": [[SECOND], [FIRST]]}, "local rank 1 loads before local rank 0"),
        ("download", "download", {"loading": [[FIRST], None]}, "rank 1 never calls load_fashion_mnist"),
        ("output", "output", {"printed": ["epoch 0\n" * 2] * 2},
         r"both ranks print a line each epoch: print where dist.get_rank\(\) == 0"),
        ("metrics", "metrics", {"evaluated": [list(range(101))] * 2}, "both ranks evaluate the same 101"),
        ("metrics", "metrics", {"trained": [[[258.0, 129]]] * 2}, r"ranks is 2.000.* 258: len\(sampler\)"),
        ("checkpoint", "checkpoint", {"writers": [0, 1]}, "both ranks write"),
        ("checkpoint", "checkpoint", {"checkpoint": PREFIXED},
         'saved from the wrapper: a weight has the name "module.0.weight"'),
        ("resume", "checkpoint", {"begins": [2, 0]}, "it must tell the other ranks by a broadcast"),
        ("resume", "resume", {"begins": [2, 0], "broadcasts": [[9], []]},
         "restarted on two ranks: only rank 0 runs line 9 .*A broadcast is a collective"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, step, run, says, script, fake):
    vars(fake).update(run)
    with pytest.raises(NotYet, match=says):
        getattr(steps, f"check_{check}")(script(step))


def test_a_wrapper_that_is_discarded_is_named(script, fake):
    fake.weights = DRIFTS
    with pytest.raises(NotYet, match="discards the wrapper"):
        steps.check_ddp(script("ddp", ("parallel = Dist", "Dist")))


def test_the_remainder_of_the_local_rank_is_refused(script, fake):
    change = '"cuda", local_rank', '"cuda", local_rank % torch.cuda.device_count()'
    with pytest.raises(NotYet, match="NCCL refuses two ranks on one GPU"):
        steps.check_device(script("device", change))


def test_two_models_after_the_sampler_are_said_to_be_two(script, fake, capsys):
    fake.weights = DRIFTS
    steps.check_sampler(script("sampler"))
    assert "there are still two models" in capsys.readouterr().out
    fake.weights = np.ones((2, 2))
    steps.check_sampler(script("sampler"))
    assert "already has the wrapper of exercise 6" in capsys.readouterr().out


def test_variables_in_another_form_are_refused():
    right = functions.torchrun_variables
    with pytest.raises(NotYet, match="RANK is the text '0'.* return a whole number"):
        functions.check_torchrun_variables(
            lambda *four: {n: str(v) for n, v in right(*four).items()}
        )
    with pytest.raises(NotYet, match="must return a dict with RANK"):
        functions.check_torchrun_variables(lambda *four: list(right(*four).values()))


# --- real runs ------------------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "step",  # the solution notebook of lab 11 runs each of them; the last holds all the edits
    [pytest.param(s, marks=() if s == "resume" else pytest.mark.thorough) for s in EDITS.steps],
)
def test_a_real_script(step, script, real, capsys):
    getattr(steps, f"check_{step}")(script(step))
    assert "Right: " in capsys.readouterr().out


LOCAL = 'int(os.environ["LOCAL_RANK"])'
LOAD = EDITS.after("ddp").partition("    try:\n        data")[2].partition("    images, labels")[0]
LOAD = f"    try:\n        data{LOAD}"
WAIT, GO = (f"    if local_rank {sign} 0:\n        dist.barrier()\n" for sign in ("!=", "=="))
TURNS = (
    '    for turn in range(int(os.environ["LOCAL_WORLD_SIZE"])):\n        if turn == local_rank:\n'
    "            data = load_fashion_mnist()\n        dist.barrier()\n"
)
SEND = "    dist.broadcast_object_list(found, src=0)\n"
SAMPLER = "DistributedSampler(examples, seed=args.seed)"


# A check, the change of a script after its step, and what is said; "" if it is right.
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("check", "old", "new", "says"),
    [
        ("device", LOCAL, "dist.get_node_local_rank()", ""),
        ("device", LOCAL, 'os.environ["LOCAL_RANK"]', "The environment contains texts"),
        ("device", LOCAL, "dist.get_rank()", "uses GPU 0, not GPU 1"),
        ("device", "        torch.cuda.set_device(device)", "        pass", "call torch.cuda.set_device"),
        ("sampler", SAMPLER, "DistributedSampler(examples, 2, rank=local_rank)", "no rank reads the others"),
        ("sampler", "len(sampler)", "len(examples)", r"len\(sampler\) on each rank"),
        ("ddp", "parallel(x.to(device))", "model(x.to(device))", "Call the wrapper there"),
        ("ddp", "args.lr * dist.get_world_size()", "args.lr * (dist.get_rank() + 1)", "0.05 on rank 0"),
        ("ddp", "len(sampler)", "len(examples)", r"len\(sampler\) on each rank"),
        ("download", WAIT + LOAD + GO, TURNS, ""),
        ("download", WAIT + LOAD + GO, (WAIT + LOAD + GO).replace("local_rank", "dist.get_rank()"),
         "both ranks load at the same time"),
        ("download", WAIT + LOAD + GO, LOAD + "    dist.barrier()\n", "both ranks load at the same time"),
        ("output", "dist.get_rank() == 0:  # DDP: one rank prints", "local_rank == 0:", "both ranks print"),
        ("metrics", "mean(total, read", "mean(total, len(examples)", "the images of all ranks"),
        ("metrics", "slice(dist.get_rank(), args.heldout, dist.get_world_size())", "slice(args.heldout)",
         "both ranks evaluate the same 101"),
        ("resume", SEND, f"    if dist.get_rank() == 0:\n    {SEND}", "A broadcast is a collective"),
        ("resume", "        optimizer.load_state_dict(state",
         "        dist.get_rank() or optimizer.load_state_dict(state", "every rank must load"),
    ],
)  # fmt: skip
def test_a_real_change(check, old, new, says, script, real):
    path = script(check, (old, new))
    if not says:
        getattr(steps, f"check_{check}")(path)
        return
    with pytest.raises(NotYet, match=says):
        getattr(steps, f"check_{check}")(path)
