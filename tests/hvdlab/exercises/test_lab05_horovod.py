"""The checks of lab 5 know a right script from a wrong one, and say what is wrong with it.

Most runs here are written by hand, in the format of real ones. Those marked mpi are real.
"""

import shutil

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from fake_conversion_run import ALL, DRIFTS, HALVES, KEPT, RATE  # noqa: E402

from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab05_horovod as steps  # noqa: E402
from hvdlab.exercises import lab05_script_edits as edits  # noqa: E402
from hvdlab.exercises.harness import conversion_runs, script_run  # noqa: E402


@pytest.fixture(params=["keras", "torch"])
def framework(request):
    return request.param


@pytest.fixture
def script(tmp_path, framework):
    """A function: write the script as it is after a step, with changes; return its path."""

    def write(step, *changes):
        text = edits.after(step, framework)
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "mine.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("step", [step for step in edits.STEPS if step != "resume"])
def test_a_right_step_is_right(step, script, fake, capsys):
    getattr(steps, f"check_{step}")(script(step))
    assert "Right: " in capsys.readouterr().out


def test_edits_are_made_once(script, framework):
    path = script("init")
    with pytest.raises(
        ValueError, match="step 'init': an edit replaces lines that the script has 0 times"
    ):
        edits.apply(path, "broadcast", framework), edits.apply(path, "sharding", framework)
        path.write_text(path.read_text().replace("parse_args()\n", "parse_args(None)\n"))
        edits.apply(path, "init", framework)


def test_the_steps_together_make_a_script_that_python_reads(framework):
    for step in edits.STEPS:
        compile(edits.after(step, framework), step, "exec")
        assert edits.diff(step, framework).count("\n+") < 15
    compressed = edits.with_float16(edits.after("resume", framework))
    compile(compressed, "fp16", "exec")
    assert "+" in edits.unified(edits.after("resume", framework), compressed, "float16")


def test_a_script_that_python_cannot_read(script, fake):
    with pytest.raises(NotYet, match="Python cannot read mine.py: line 1: "):
        steps.check_output(script("output", ('"""Train a small', 'def ("""Train a small')))
    with pytest.raises(NotYet, match="is not there: run the cell that copies it"):
        steps.check_output("nowhere.py")


# --- one mistake in a script or in what its run left ---------------------------------------------------

LOST = np.array([[1.0, 1.0], [2.5, 2.5]])  # without its momentum a run ends elsewhere
OTHERS = [[np.random.default_rng(seed).permutation(257)[:129]] * 2 for seed in range(2)]


def lines(*counts):
    return [f"epoch {0}\n" * n for n in counts]


def accuracy(first, last=None):
    return [{"loss": 1.0, "accuracy": each} for each in (first, first if last is None else last)]


def images(*ranges):
    return [list(range(*one)) for one in ranges]


# The check, the step after which the script is as it is, and what differs in the run.
@pytest.mark.parametrize(
    ("check", "step", "run", "says"),
    [
        ("init", None, {"horovod": [None] * 2}, "no line imports Horovod"),
        ("init", "init", {"horovod": [None] * 2}, r"hvd.init\(\) is not called, or a rank ends before it"),
        ("init", "init", {"horovod": [{"rank": 0, "size": 1, "in_time": True}] * 2}, "they did not connect"),
        ("init", "init", {"horovod": [{"rank": rank, "size": 2, "in_time": False} for rank in range(2)]},
         r"when the script .*, Horovod was not initialized"),
        ("device", "init", {"gpu": {"model": 0, "current": None}}, "local rank 1 uses GPU 0, not GPU 1"),
        ("device", "init", {"gpu": {"model": None, "current": 1}}, "local rank 1 uses the processor"),
        ("device", "init", {"gpu": None}, "the script ends before it uses a GPU"),
        ("device", "init", {"failure": "ValueError: Horovod has not been initialized"},
         "initialized. Call it after hvd.init"),
        ("output", "output", {"printed": lines(2, 2)}, "both ranks print .* with local rank 0"),
        ("output", "output", {"printed": lines(0, 2)}, "rank 1 prints"),
        ("output", "output", {"printed": lines(0, 0)}, "not 2 and 0"),
        ("output", "output", {"epochs": []}, "every rank needs its Recorder"),
        ("optimizer", "optimizer", {"weights": DRIFTS}, r"drift.*3.0000 .* 3.5000 .*Train with the object"),
        ("optimizer", "output", {"weights": DRIFTS}, "Wrap the optimizer: hvd.DistributedOptimizer"),
        ("optimizer", "optimizer", {"weights": DRIFTS, "rates": [RATE, 2 * RATE]},
         "learning rate is 0.05 on rank 0 and 0.1 on rank 1"),
        ("optimizer", "optimizer", {"rates": [RATE] * 2}, "rate is 0.05 on rank 0, and should be 0.1"),
        ("optimizer", "optimizer", {"rates": [4 * RATE] * 2}, "rate is 0.2 on rank 0, and should be 0.1"),
        ("broadcast", "optimizer", {"weights": KEPT}, "Broadcast|broadcast_parameters is not called"),
        ("broadcast", "broadcast", {"weights": KEPT}, "the weights of the ranks differ, though the script"),
        ("broadcast", "broadcast", {"weights": DRIFTS}, "gradients are not averaged any more"),
        ("broadcast", "broadcast", {"weights": DRIFTS, "rates": [2 * RATE, 4 * RATE]},
         "learning rate is 0.1 on rank 0 and 0.2 on rank 1"),
        ("broadcast", "broadcast", {"resumed": DRIFTS}, "optimizer's state is not broadcast"),
        ("broadcast", "broadcast", {"resumed": LOST}, "distance is 50% .*returns an optimizer without a"),
        ("sharding", "sharding", {"read": [[ALL] * 2, [ALL[::-1]] * 2]}, "both ranks read all 257 images"),
        ("sharding", "sharding", {"read": [HALVES[0]] * 2},
         "the same 129 images, and no rank reads the others.* with local rank 0"),
        ("sharding", "sharding", {"read": OTHERS}, "from another permutation"),
        ("sharding", "sharding", {"read": [[ALL[::2]] * 2, [ALL[1::2]] * 2]},
         "rank 0 makes 5 steps an epoch and rank 1 makes 4"),
        ("sharding", "sharding", {"read": [[ALL[:100]] * 2, [ALL[100:200]] * 2]},
         "57 of 257 images are read by no rank"),
        ("sharding", "sharding", {"trained": [[[258.0, 129]], [[129.0, 129]]]},
         "rank 0 reports a loss of 1.000 .* images of rank 0 is 2.000"),
        ("metrics", "metrics", {"trained": [[[300.0, 129]], [[216.0, 129]]]},
         "the images of all ranks is 2.000.* 258: len"),
        ("metrics", "metrics", {"values": accuracy(45 / 101, 51 / 101)},
         "accuracy is 0.4455 on rank 0 and 0.5050 on rank 1"),
        ("metrics", "metrics", {"values": accuracy(40 / 51, 40 / 50)}, "both ranks have the same sum"),
        ("metrics", "metrics", {"values": accuracy((20 / 51 + 30 / 50) / 2)}, "mean of two means"),
        ("metrics", "metrics", {"values": accuracy((0 / 51 + 1 / 50) / 2)}, "mean of two means"),  # at chance
        ("metrics", "metrics", {"evaluated": images([101], [101])},
         "both ranks evaluate the same 101 held-out images"),
        ("metrics", "metrics", {"evaluated": images([50], [50, 100])}, "1 of 101 held-out .* by no rank"),
        ("metrics", "metrics", {"evaluated": images([51], [50, 101])}, "51 and 51 of 101 .* count twice"),
        ("metrics", "metrics", {"evaluated": images([0, 10_000, 2], [1, 10_000, 2])},
         "evaluate 10000 images.* keep `args.heldout"),
        ("metrics", "metrics", {"printed": ["epoch 1 held-out 0.400\n" * 2, ""]},
         "the line says 0.400 held-out and the record 0.495"),
        ("checkpoint", "checkpoint", {"writers": [0, 1]}, "both ranks write .* with local rank 0"),
        ("checkpoint", "checkpoint", {"writers": [1]}, "rank 1 writes"),
        ("checkpoint", "checkpoint", {"writers": []}, "no rank writes"),
        ("resume", "resume", {"begins": [2, 0]}, "rank 0 begins with epoch 2 and the last rank with epoch 0"),
        ("resume", "resume", {"begins": [1, 1], "rates": [RATE, 2 * RATE], "weights": DRIFTS},
         "learning rate is 0.05 on rank 0 and 0.1 on rank 1"),
        ("resume", "resume", {"writers": [], "failure": "the run failed: no space"},
         "no checkpoint to resume from: the run failed: no space"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, step, run, says, script, fake):
    vars(fake).update(run)
    with pytest.raises(NotYet, match=says):
        getattr(steps, f"check_{check}")(script(step))


def test_init_knows_the_module_that_does_nothing(tmp_path, fake):
    path = tmp_path / "mine.py"
    path.write_text("import horovod.tensorflow.keras as hvd\nhvd.init()\n")
    with pytest.raises(NotYet, match="does nothing in Keras 3"):
        steps.check_init(path)


def test_two_ranks_on_one_gpu_by_the_remainder_are_refused_with_the_reason(script, fake, framework):
    count = {"torch": "torch.cuda.device_count()", "keras": "len(gpus)"}[framework]
    path = script("init")
    path.write_text(path.read_text() + f"    use(gpus[hvd.local_rank() % {count}])\n")
    with pytest.raises(NotYet, match=r"line \d+ .*NCCL refuses two ranks on one GPU.*rank_device"):
        steps.check_device(path)


def test_the_optimizer_is_told_how_to_exchange(script, framework, fake):
    name = {"torch": "compression", "keras": "device_dense"}[framework]
    old = f"{dict(torch=',', keras=',')[framework]} {name}=chosen.{name}"
    with pytest.raises(NotYet, match=f"Ranks that share a GPU need {name}=chosen.{name}, where"):
        steps.check_optimizer(script("optimizer", (old, "")))


# --- 3, 4, 5: output, optimizer, broadcast -------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "of_two"),
    [
        ("init", "their weights still differ"),
        ("output", "its own model only"),
        ("optimizer", "was 3.0000 after one epoch and is 3.0000 after two: it does not shrink"),
    ],
)
def test_what_is_said_of_two_models_is_not_said_of_one(step, of_two, script, fake, capsys):
    check, path = getattr(steps, f"check_{step}"), script(step)
    check(path)
    said = capsys.readouterr().out
    assert of_two[-8:] not in said and "They hold identical weights" in said
    fake.weights = KEPT
    check(path)
    said = capsys.readouterr().out
    assert of_two in said and "identical weights" not in said


@pytest.mark.parametrize("step", [step for step in edits.STEPS if step != "metrics"])
def test_a_quick_run_calls_no_answer_right(step, script, fake, monkeypatch, capsys):
    monkeypatch.setattr(conversion_runs, "QUICK", True)
    getattr(steps, f"check_{step}")(script(step))
    said = capsys.readouterr().out
    assert said.startswith("Not checked: ") and "Right" not in said


def test_a_wrapper_whose_result_is_dropped_is_named(script, fake):
    fake.failure = (
        "rank 0 ended with an error: AssertionError: ... Increase backward_passes_per_step ..."
    )
    with pytest.raises(
        NotYet, match=r"^the gradients are averaged, but the plain .* continue with the object that"
    ):
        steps.check_optimizer(script("optimizer"))
    with pytest.raises(NotYet, match="^rank 0 ended"):
        steps.check_optimizer(script("output"))


@pytest.mark.parametrize("op", ["Sum", "Adasum"])
def test_gradients_are_averaged_and_not_summed(op, script, fake):
    path = script("optimizer")
    text = path.read_text()
    for name in ("chosen.compression", "chosen.device_dense"):
        text = text.replace(f"={name}", f"={name}, op=hvd.{op}")
    path.write_text(text)
    with pytest.raises(NotYet, match=f"op=hvd.{op}. does not average"):
        steps.check_optimizer(path)


@pytest.mark.parametrize("name", ["learning_rate", "images_per_second"])
@pytest.mark.parametrize("step", ["output", "resume"])
def test_a_rank_that_records_less_than_the_others(step, name, script, framework, fake):
    fake.left_out[1] = {name}
    way = {
        "keras": "EpochLine must run on every rank, only its print is rank 0's.",
        "torch": rf"recorder.epoch_end\(..., {name}=...\) must get it on every rank.",
    }[framework]
    with pytest.raises(NotYet, match=f"^rank 1 records no {name}: {way}$"):
        getattr(steps, f"check_{step}")(script(step))


def test_a_restarted_rank_that_records_less(script, fake, monkeypatch):
    def run(*arguments, folder, **options):
        if folder.name != "killed":
            fake.begins, fake.left_out[1] = [1, 1], {"learning_rate"}
        return fake(*arguments, folder=folder, **options)

    monkeypatch.setattr(conversion_runs, "watch", run)
    with pytest.raises(NotYet, match="rank 1 records no learning_rate"):
        steps.check_resume(script("resume"))


def test_a_script_that_keeps_its_last_checkpoint_only_repeats_no_epoch(script, fake, monkeypatch):
    def run(*arguments, folder, **options):
        fake.begins = [0, 0] if folder.name == "killed" else [2, 2]
        found = fake(*arguments, folder=folder, **options)
        (found.disk / "rank-0" / "checkpoints" / "epoch-000.pt").unlink()
        return found

    monkeypatch.setattr(conversion_runs, "watch", run)
    with pytest.raises(NotYet, match="restarted on one rank 129 of 257 images"):
        steps.check_resume(script("resume"))


@pytest.mark.parametrize("framework", ["keras"], indirect=True)
def test_what_keras_leaves_out(script, fake):
    fake.left_out = [{"learning_rate"}] * 2
    with pytest.raises(NotYet, match="rank 0 records no learning_rate: .* before the Recorder"):
        steps.check_init(script("init"))
    fake.left_out = [set(), set()]
    fake.values = [fake.values[0] | {"val_accuracy": 50 / 101}, fake.values[1]]
    with pytest.raises(NotYet, match="rank 1 records no val_accuracy: fit needs the same"):
        steps.check_metrics(script("metrics"))


# --- 8, 10: metrics, resume ------------------------------------------------------------------------------


def test_a_number_of_images_that_only_one_half_is_added_up_of(script, fake):
    """Right of all, divided by twice or half of all."""
    path = script("metrics")
    for right, of, says in (
        (61, 202, "is half of the true one"),
        (60, 202, "is half of the true one"),  # seen by the run of exercise 7 only
        (60, 50.5, "^120 of 101 held-out images right is too many: add up the right answers"),
        (40, 50.5, "^80 of 101 held-out images right is too many"),
    ):
        shutil.rmtree(steps.runs(path), ignore_errors=True)
        for share, check in (
            (right / 101, steps.check_sharding),
            (right / of, steps.check_metrics),
        ):
            fake.values = [{"loss": 1.0, "accuracy": share}] * 2
            fake.printed[0] = f"epoch 1 held-out {share:.3f}\n" * 2
            if check is steps.check_sharding:
                check(path)
        with pytest.raises(NotYet, match=says):
            check(path)


@pytest.mark.parametrize("framework", ["keras"], indirect=True)
def test_a_loaded_optimizer_that_does_not_average_is_named(script, fake, monkeypatch):
    def run(*arguments, folder, **options):
        killed = folder.name == "killed"
        fake.failure, fake.epochs = ("", [0, 1]) if killed else ("each waits in vain", [])
        return fake(*arguments, folder=folder, **options)

    monkeypatch.setattr(conversion_runs, "watch", run)
    with pytest.raises(NotYet, match="in vain$"):
        steps.check_resume(script("resume"))
    kept = script("resume", ("hvd.load_model(", "keras.models.load_model("))
    with pytest.raises(NotYet, match="in vain; keras.models.load_model returns an optimizer"):
        steps.check_resume(kept)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("framework", ["keras"], indirect=True)
def test_a_killed_run_of_the_solution_resumes(script):
    """The quick solutions, which run with PyTorch, do not run these files of Keras."""
    steps.check_resume(script("resume"))


# --- runs that fail ------------------------------------------------------------------------------------

CRASH = """\
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    print(1 / 0)
time.sleep(100)
"""
HANG = """\
import time
time.sleep(100)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("source", "limit", "says"),
    [
        (CRASH, 60, r"rank 1 ended with an error in line 3 \(`print\(1 / 0\)`\): ZeroDivisionError"),
        (HANG, 4, r"do not end within 4 s: rank 0 is in line 2 \(`time.sleep\(100\)`\); rank 1 is in"),
    ],
)  # fmt: skip
def test_a_run_that_fails_ends_in_a_sentence(source, limit, says, tmp_path, monkeypatch):
    monkeypatch.setattr(script_run, "START", 6)
    script = tmp_path / "mine.py"
    script.write_text(source)
    run = script_run.watch(script, folder=tmp_path / "run", limit=limit)
    with pytest.raises(NotYet, match=says):
        raise NotYet(run.failure)


def test_a_rank_that_hears_of_the_end_is_not_blamed(tmp_path):
    """As TensorFlow words what Horovod says in a graph."""
    heard = "tensorflow.python.framework.errors_impl.UnknownError: Graph execution error:\n\nHorovod has"
    said = {0: heard, 1: "FileNotFoundError: [Errno 2] part.keras"}
    (tmp_path / "mine.py").write_text("")
    for rank, text in said.items():
        (tmp_path / f"rank-{rank}").mkdir()
        (tmp_path / f"rank-{rank}" / "output.txt").write_text(text)
    run = script_run.Watched(tmp_path / "mine.py", tmp_path, tmp_path, 2)
    assert script_run._why(run, False, 9.0, "").startswith("rank 1 ended with an error: FileNot")


@pytest.mark.parametrize(
    ("said", "broadcasts", "why"),
    [
        (["1: [broadcast.0.bias, x]\n0: [allreduce.0.bias, x]", ""], ([], []),
         "^rank 1 takes no part in broadcast.0.bias. A broadcast"),
        (["1: [allreduce.0.bias, x]", ""], ([], []), "^ranks wait for each other: rank 1 takes no part"),
        (["", "[rank1]: RuntimeError: gloo/transport: closed by peer"], ([2], []),
         r"^only rank 0 runs line 2 \(`broadcast\(found\)`\). A broadcast is a collective"),
        (["", "[rank1]: TypeError: it is a text"], ([2], []), "rank 1 ended with an error: TypeError: it"),
    ],
)  # fmt: skip
def test_a_broadcast_that_only_some_ranks_call_is_named(said, broadcasts, why, tmp_path):
    (tmp_path / "mine.py").write_text("if rank == 0:\n    broadcast(found)\n")
    for rank in range(2):
        (tmp_path / f"rank-{rank}").mkdir()
        text = said[rank].replace("1: [", "1!: [").replace("0: [", "0!: [")
        (tmp_path / f"rank-{rank}" / "output.txt").write_text(text)
        (tmp_path / f"rank-{rank}" / "broadcasts.json").write_text(str(broadcasts[rank]))
    run = script_run.Watched(tmp_path / "mine.py", tmp_path, tmp_path, 2)
    with pytest.raises(NotYet, match=why):
        raise NotYet(script_run._why(run, False, 9.0, ""))


# --- real runs ------------------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "step",  # the solution notebook of lab 5 runs each of them; the last holds all the edits
    [pytest.param(s, marks=() if s == "resume" else pytest.mark.thorough) for s in edits.STEPS],
)
@pytest.mark.parametrize(
    "framework", ["torch", pytest.param("keras", marks=pytest.mark.thorough)], indirect=True
)
def test_a_real_script(step, script, framework, real, capsys):
    # Decay moves weights without a gradient: Horovod's step for an optimizer without a state is seen.
    decay = ("args.momentum)\n", "args.momentum, weight_decay=0.01)\n")
    changes = [decay] if (framework, step) == ("torch", "resume") else []
    getattr(steps, f"check_{step}")(script(step, *changes))
    assert "Right: " in capsys.readouterr().out


STATE = "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
STATE_LOADED = (
    "    optimizer.load_state_dict(state)  # its momentum follows the weights to the device\n"
)
WEIGHTS = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
LOOP = (
    "    for weight in model.parameters():\n        hvd.broadcast_(weight.data, 0)\n"
    "    optimizer.load_state_dict(hvd.broadcast_object(optimizer.state_dict(), 0))\n"
)
CHOSEN = "    chosen = rank_device(hvd)  # Horovod: its own GPU, a shared one, or the processor\n"
BY_HAND = "    torch.cuda.is_available() and torch.cuda.set_device(N)\n"
GPU = "    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
OLD_GPU = CHOSEN + "    device = chosen.device\n"
GPUS = "    import tensorflow as tf\n\n    gpus = tf.config.list_physical_devices('GPU')\n"
VISIBLE = GPUS + "    gpus and tf.config.set_visible_devices(gpus[N], 'GPU')\n"
WRAPPED = "optimizer = hvd.DistributedOptimizer(\n"
INIT = "    hvd.init()  # Horovod: find the other ranks\n"
MAIN = 'if __name__ == "__main__":\n    main()\n'
IMAGES = "    images, labels = data.train_images[: args.images], data.train_labels[: args.images]\n"
BY_RANK = (
    "        rank=hvd.rank(),  # Horovod: each rank reads its own shard, in equally many steps\n"
    "        size=hvd.size(),\n"
)
CUT = IMAGES + (
    "    each = len(images) // hvd.size()\n"
    "    images = images[hvd.rank() :: hvd.size()][:each]\n"
    "    labels = labels[hvd.rank() :: hvd.size()][:each]\n"
)


# A check, the change of a script after its step, and what is said; "" if it is right.
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("framework", "check", "old", "new", "says"),
    [
        ("torch", "init", "import horovod.torch as hvd", "from horovod import torch as hvd", ""),
        ("torch", "init", INIT + "|" + MAIN, "|" + MAIN + INIT, "script made its optimizer, Horovod was not"),
        ("keras", "init", INIT + "|" + MAIN, "|" + MAIN + INIT, "script compiled its model, Horovod was not"),
        ("torch", "init", MAIN, MAIN + "    hvd.shutdown()\n", ""),
        ("torch", "init", INIT, "    if launched_rank()[0] == 0:\n    " + INIT,
         "rank 1 trained, and Horovod was never initialized on it"),
        ("torch", "device", OLD_GPU, (BY_HAND + GPU).replace("N", "hvd.local_rank()"), ""),
        ("torch", "device", OLD_GPU, (BY_HAND + GPU).replace("N", "hvd.rank()"), "uses GPU 0, not"),
        ("torch", "device", OLD_GPU, GPU, "uses GPU 0, not"),
        ("keras", "device", CHOSEN, VISIBLE.replace("N", "hvd.local_rank()"), ""),
        ("keras", "device", CHOSEN, VISIBLE.replace("N", "hvd.rank()"), "uses GPU 0, not"),
        ("torch", "output", "if hvd.rank() == 0", "if hvd.local_rank() == 0", "both ranks print"),
        ("torch", "optimizer", "args.lr * hvd.size()", "args.lr * hvd.local_size()", "rate is 0.05 on rank"),
        ("torch", "optimizer", "args.lr * hvd.size()", "args.lr * (hvd.rank() + 1)", "0.05 on rank 0 and"),
        ("torch", "optimizer", WRAPPED, WRAPPED.replace("optimizer", "unused", 1), "the plain optimizer"),
        ("torch", "broadcast", STATE + WEIGHTS, LOOP, ""),
        ("torch", "broadcast", STATE, "", "optimizer's state is not broadcast"),
        ("torch", "broadcast", WEIGHTS, f"    if hvd.rank() == 0:\n    {WEIGHTS}", "A broadcast is a"),
        ("torch", "sharding", "rank=hvd.rank()", "rank=hvd.local_rank()", "no rank reads the others"),
        ("torch", "sharding", IMAGES + "|" + BY_RANK, CUT + "|", ""),
        ("torch", "sharding", IMAGES + "|" + BY_RANK, IMAGES + "|", "both ranks read all 257 images"),
        ("torch", "metrics", "slice(hvd.rank(), args.heldout, hvd.size())", "slice(args.heldout)",
         "both ranks evaluate the same 101"),
        ("keras", "metrics", "slice(hvd.rank(), args.heldout, hvd.size())", "slice(args.heldout)",
         "both ranks evaluate the same 101"),
        ("torch", "resume", STATE_LOADED, "", "epoch . reads the same images .* without a state"),
        ("torch", "resume", "        size=hvd.size(),", "        size=2,",
         "on one rank 129 of 257 images are read.* which is 1 there"),
    ],
    indirect=["framework"],
)  # fmt: skip
def test_a_real_change(check, old, new, says, script, real, capsys):
    path = script(check, *zip(old.split("|"), new.split("|"), strict=True))  # several changes
    if not says:
        getattr(steps, f"check_{check}")(path)
        return
    with pytest.raises(NotYet, match=says):
        getattr(steps, f"check_{check}")(path)


# --- float16 ----------------------------------------------------------------------------------------------

FP16 = "compression=hvd.Compression.fp16"


@pytest.mark.parametrize(
    ("call", "compressed"),
    [
        ("hvd.DistributedOptimizer(optimizer)", f"hvd.DistributedOptimizer(optimizer, {FP16})"),
        (
            "hvd.DistributedOptimizer(\n    optimizer, named_parameters=model.named_parameters(),\n)",
            "hvd.DistributedOptimizer(\n    optimizer, named_parameters=model.named_parameters(), "
            f"{FP16},\n)",
        ),
        ('hvd.DistributedOptimizer(SGD("\u00e4\u00f6", lr=0.1))',
         f'hvd.DistributedOptimizer(SGD("\u00e4\u00f6", lr=0.1), {FP16})'),
        ("hvd.DistributedOptimizer((SGD(0.1)))", f"hvd.DistributedOptimizer((SGD(0.1)), {FP16})"),
        (
            'hvd.DistributedOptimizer(("\u00e4", SGD(0.1)),  # (mine), yours\n)',
            f'hvd.DistributedOptimizer(("\u00e4", SGD(0.1)), {FP16},  # (mine), yours\n)',
        ),
        ("hvd.DistributedOptimizer()", f"hvd.DistributedOptimizer({FP16})"),
        ("hvd.DistributedOptimizer(o, compression=hvd.Compression.none)",
         "hvd.DistributedOptimizer(o, compression=hvd.Compression.none)"),
        ('hvd.DistributedOptimizer("\u00e4", compression=chosen.compression)',
         f'hvd.DistributedOptimizer("\u00e4", {FP16})'),
        ("hvd.DistributedOptimizer(\n    o, compression=chosen\n    .compression)",
         f"hvd.DistributedOptimizer(\n    o, {FP16})"),
    ],
)  # fmt: skip
def test_gradients_as_float16_however_the_optimizer_is_wrapped(call, compressed):
    assert (
        edits.with_float16(f"a = 1\nb = {call}  # Horovod\n")
        == f"a = 1\nb = {compressed}  # Horovod\n"
    )
    compile(edits.with_float16(f"b = {call}"), "float16", "exec")


def test_a_script_without_the_wrapped_optimizer_is_told():
    with pytest.raises(ValueError, match="has no hvd.DistributedOptimizer"):
        edits.with_float16("optimizer = SGD()")
