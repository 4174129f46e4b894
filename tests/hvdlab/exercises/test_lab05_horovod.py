"""The checks of lab 5 know a right script from a wrong one, and say what is wrong with it.

Most runs here are written by hand, in the format of real ones. Those marked mpi are real.
"""

import json
import os
import shutil

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab05_horovod as steps
from hvdlab.exercises import lab05_script_edits as edits
from hvdlab.exercises.harness import conversion_runs as lab05_runs
from hvdlab.exercises.harness import script_run
from hvdlab.record import RunRecord

FRAMEWORKS = ["keras", "torch"]


@pytest.fixture(params=FRAMEWORKS)
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


class FakeRun:
    """Two ranks and two epochs of a run in which all is well, to be spoiled."""

    def __init__(self):
        halves = np.arange(257)[0::2], np.append(np.arange(257)[1::2], 0)
        self.read = list(halves)
        self.weights = np.array([[1.0, 1.0], [2.0, 2.0]])  # [epoch][rank]
        self.epochs = [0, 1]
        self.begins = [0, 0]
        self.values = [{"loss": 1.0, "accuracy": 50 / 101}, {"loss": 1.0, "accuracy": 50 / 101}]
        self.left_out = [set(), set()]  # what a rank does not record
        self.rate = 2 * lab05_runs.LEARNING_RATE
        self.printed = ["epoch 0 held-out 0.495\nepoch 1 held-out 0.495\n", ""]
        self.horovod = [{"rank": 0, "size": 2}, {"rank": 1, "size": 2}]
        self.checkpoints = [2, 0]
        self.failure = ""

    def __call__(self, script, *arguments, folder, disk=None, ranks=2, limit=0, **variables):
        disk = disk or folder
        for rank in range(ranks):
            record = RunRecord(folder, rank)
            read = self.read[rank]
            for epoch in self.epochs:
                kernel = np.array([self.weights[epoch][rank], 0.5])
                values = {"learning_rate": self.rate, "images_per_second": 9.0, **self.values[rank]}
                record.write(
                    epoch + self.begins[rank],
                    lambda file, k=kernel, r=read: np.savez(file, examples_read=r, kernel=k),
                    steps=-(-len(read) // 32),
                    **{n: v for n, v in values.items() if n not in self.left_out[rank]},
                )
            own = disk / f"rank-{rank}"
            (own / "checkpoints").mkdir(parents=True, exist_ok=True)
            (own / "output.txt").write_text(self.printed[rank])
            if self.horovod[rank]:
                (own / "horovod.json").write_text(json.dumps(self.horovod[rank]))
            for epoch in range(self.checkpoints[rank]):
                (own / "checkpoints" / f"epoch-{epoch:03d}.pt").touch()
        return script_run.Watched(script, folder, disk, ranks, self.failure)


@pytest.fixture
def fake(monkeypatch):
    run = FakeRun()
    monkeypatch.setattr(lab05_runs, "watch", run)
    monkeypatch.setattr(lab05_runs, "QUICK", False)
    monkeypatch.setattr(lab05_runs, "REFERENCE", False)
    return run


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

ALL = np.arange(257)
OTHERS = [np.random.default_rng(seed).permutation(257)[:129] for seed in range(2)]
DRIFTS = np.array([[1.0, 4.0], [2.0, 5.5]])
RATE = lab05_runs.LEARNING_RATE
MEANS = "the mean of two means, over 51 and over 50 images"
LAST = "no rank evaluates the last one. Give each rank every size-th"


def lines(*counts):
    return [f"epoch {0}\n" * n for n in counts]


def accuracy(first, last=None):
    return [{"loss": 1.0, "accuracy": each} for each in (first, first if last is None else last)]


# The check, the step after which the script is as it is, changes of its text, and what differs in the run.
@pytest.mark.parametrize(
    ("check", "step", "changes", "run", "says"),
    [
        ("init", None, [], {}, "no line imports Horovod"),
        ("init", "init", [("    hvd.init()", "    # hvd.init()")], {}, r"hvd.init\(\) is not called"),
        ("init", "init", [], {"horovod": [{"rank": 0, "size": 1}] * 2}, "they did not connect"),
        ("output", "output", [], {"printed": lines(2, 2)}, "both ranks print"),
        ("output", "output", [], {"printed": lines(0, 2)}, "rank 1 prints"),
        ("output", "output", [], {"printed": lines(0, 0)}, "not 2 and 0"),
        ("output", "output", [("if hvd.rank() == 0", "if hvd.local_rank() == 0")], {},
         "0 once on every machine"),
        ("output", "output", [], {"epochs": []}, "every rank needs its Recorder"),
        ("optimizer", "optimizer", [], {"weights": DRIFTS},
         r"drift.*3.0000 .* 3.5000 .*Train with the object"),
        ("optimizer", "output", [], {"weights": DRIFTS}, "Wrap the optimizer: hvd.DistributedOptimizer"),
        ("optimizer", "optimizer", [], {"rate": RATE}, "rate is 0.05 on rank 0, and should be 0.1"),
        ("optimizer", "optimizer", [], {"rate": 4 * RATE}, "rate is 0.2 on rank 0, and should be 0.1"),
        ("sharding", "sharding", [], {"read": [ALL, ALL[::-1]]}, "both ranks read all 257 images"),
        ("sharding", "sharding", [], {"read": [ALL[::2], ALL[::2]]},
         "the same 129 images, and no rank reads the others"),
        ("sharding", "sharding", [], {"read": OTHERS}, "from another permutation"),
        ("sharding", "sharding", [], {"read": [ALL[::2], ALL[1::2]]},
         "rank 0 makes 5 steps an epoch and rank 1 makes 4"),
        ("sharding", "sharding", [], {"read": [ALL[:100], ALL[100:200]]},
         "57 of 257 images are read by no rank"),
        ("metrics", "metrics", [], {"values": accuracy(50 / 101, 51 / 101)},
         "accuracy is 0.4950 on rank 0 and 0.5050 on rank 1"),
        ("metrics", "metrics", [], {"values": accuracy((20 / 51 + 30 / 50) / 2)}, MEANS),
        # At chance, too.
        ("metrics", "metrics", [], {"values": accuracy((0 / 51 + 1 / 50) / 2)}, MEANS),
        ("metrics", "metrics", [], {"values": accuracy((5 / 51 + 5 / 50) / 2)}, MEANS),
        ("metrics", "metrics", [], {"values": accuracy((46 / 51 + 45 / 50) / 2)}, MEANS),
        ("metrics", "metrics", [], {"values": accuracy((51 / 51 + 49 / 50) / 2)}, MEANS),
        # images[rank * n:][:n] with n = 101 // 2, and sums and counts added up: 100 images in all.
        ("metrics", "metrics", [], {"values": accuracy(37 / 100)}, LAST),
        ("metrics", "metrics", [], {"values": accuracy(80 / 100)}, LAST),
        ("metrics", "metrics", [], {"values": accuracy(87 / 100)}, LAST),
        ("metrics", "metrics", [], {"values": accuracy(0.6173)},
         "0.617300 is one of all 10000 images.* keep `args.heldout"),
        ("metrics", "metrics", [("mine = slice(hvd.rank(), args.heldout, hvd.size())",
                                 "mine = slice(args.heldout)")], {},
         "each rank evaluates all held-out images"),
        ("metrics", "metrics", [], {"printed": ["epoch 1 held-out 0.400\n" * 2, ""]},
         "the line says 0.400 held-out and the record 0.495"),
        ("checkpoint", "checkpoint", [], {"checkpoints": [2, 2]}, "both ranks write"),
        ("checkpoint", "checkpoint", [], {"checkpoints": [0, 2]}, "rank 1 writes"),
        ("checkpoint", "checkpoint", [], {"checkpoints": [0, 0]}, "no rank writes"),
        ("checkpoint", "checkpoint", [("if args.checkpoint and hvd.rank()",
                                       "if args.checkpoint and hvd.local_rank()")], {},
         "0 once on every machine"),
        ("resume", "resume", [], {"begins": [2, 0]},
         "rank 0 begins with epoch 2 and the last rank with epoch 0"),
        ("resume", "resume", [], {"checkpoints": [0, 0], "failure": "the run failed: no space"},
         "no checkpoint to resume from: the run failed: no space"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, step, changes, run, says, script, fake):
    vars(fake).update(run)
    with pytest.raises(NotYet, match=says):
        getattr(steps, f"check_{check}")(script(step, *changes))


# --- 1, 2: init and device ---------------------------------------------------------------------------


def test_init_knows_the_module_that_does_nothing(tmp_path, fake):
    path = tmp_path / "mine.py"
    path.write_text("import horovod.tensorflow.keras as hvd\nhvd.init()\n")
    with pytest.raises(NotYet, match="does nothing in Keras 3"):
        steps.check_init(path)


def test_who_leaves_horovod_at_the_end_has_met_too(script, fake):
    fake.horovod = [None, None]
    path = script("init")
    with pytest.raises(NotYet, match="ends before it has called it"):
        steps.check_init(path)
    path.write_text(path.read_text() + "    hvd.shutdown()\n")
    steps.check_init(path)


# How the solution chooses, and how it was done before there was a helper.
HELPER = {
    "torch": "    chosen = rank_device(hvd)  # Horovod: its own GPU, a shared one, or the processor\n"
    "    device = chosen.device\n",
    "keras": "    chosen = rank_device(hvd)  # Horovod: its own GPU, a shared one, or the processor\n",
}
CLASSIC = {
    "torch": '    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    "    if torch.cuda.is_available():\n        torch.cuda.set_device(hvd.local_rank())\n",
    "keras": '    import tensorflow as tf\n\n    gpus = tf.config.list_physical_devices("GPU")\n'
    '    if gpus:\n        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")\n',
}


@pytest.fixture
def classic(script, framework):
    """A function: the script that chooses by the local rank, with changes in these lines."""

    def write(*changes):
        text = CLASSIC[framework]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return script("device", (HELPER[framework], text))

    return write


def test_device_is_that_of_the_helper_or_of_the_local_rank(script, classic, fake, capsys):
    steps.check_device(script("device"))
    assert "the device that rank_device chooses for it" in capsys.readouterr().out
    steps.check_device(classic())
    assert "the GPU of its local rank" in capsys.readouterr().out
    with pytest.raises(NotYet, match="rank 4 would look for a fifth GPU"):
        steps.check_device(classic(("hvd.local_rank()", "hvd.rank()")))
    with pytest.raises(
        NotYet, match="rank_device.hvd. is not called, and neither is hvd.local_rank"
    ):
        steps.check_device(script("init"))
    for early in ("rank_device(hvd)", "hvd.local_rank()"):
        change = "args = parse_args()\n", f"args = parse_args()\n    {early}\n"
        with pytest.raises(NotYet, match="before hvd.init"):
            steps.check_device(script("device", change))


def test_two_ranks_on_one_gpu_by_the_remainder_are_refused_with_the_reason(
    framework, classic, fake
):
    count = {"torch": "torch.cuda.device_count()", "keras": "len(gpus)"}[framework]
    path = classic(("hvd.local_rank()", f"hvd.local_rank() % {count}"))
    line = next(
        n for n, text in enumerate(path.read_text().split("\n"), 1) if "%" in text and count in text
    )
    with pytest.raises(
        NotYet, match=f"line {line} .*NCCL refuses two ranks on one GPU.*rank_device"
    ):
        steps.check_device(path)


def test_the_optimizer_is_told_how_to_exchange(script, framework, fake):
    fake.weights = np.array([[1.0, 4.0], [2.0, 5.0]])
    steps.check_optimizer(script("optimizer"))
    name = {"torch": "compression", "keras": "device_dense"}[framework]
    end = {"torch": ",", "keras": ", "}[framework]
    old = f"{end.rstrip()} {name}=chosen.{name}"
    with pytest.raises(NotYet, match=f"Ranks that share a GPU need {name}=chosen.{name}, where"):
        steps.check_optimizer(script("optimizer", (old, "")))


@pytest.mark.parametrize("framework", ["torch"], indirect=True)
@pytest.mark.parametrize(
    "wrong", ["0", "hvd.rank() % torch.cuda.device_count()"], ids=["the first", "by rank"]
)
def test_the_local_rank_must_choose_the_device(wrong, classic, fake):
    old = "torch.cuda.set_device(hvd.local_rank())"
    new = f"local = hvd.local_rank()\n        torch.cuda.set_device({wrong})"
    with pytest.raises(NotYet, match="no device is chosen by it"):
        steps.check_device(classic((old, new)))


@pytest.mark.parametrize("framework", ["torch"], indirect=True)
@pytest.mark.parametrize(
    "new",
    [
        "local = hvd.local_rank()\n        torch.cuda.set_device(local)",
        'device = torch.device("cuda", hvd.local_rank())',
        'device = torch.device(f"cuda:{hvd.local_rank()}")',
        'os.environ["CUDA_VISIBLE_DEVICES"] = str(hvd.local_rank())',
        "mine = range(4)[hvd.local_rank()]\n        torch.cuda.set_device(mine)",
    ],
)
def test_other_ways_to_choose_the_device(new, classic, fake):
    steps.check_device(classic(("torch.cuda.set_device(hvd.local_rank())", new)))


@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_a_helper_above_main_chooses_the_device(classic, fake):
    path = classic(("torch.cuda.set_device(hvd.local_rank())", "choose()"))
    helper = "def choose():\n    torch.cuda.set_device(hvd.local_rank())\n\n\ndef main("
    path.write_text(path.read_text().replace("def main(", helper, 1))
    steps.check_device(path)


def test_other_ways_to_import_horovod(script, framework, fake):
    old, new = {
        "torch": ("import horovod.torch as hvd", "from horovod import torch as hvd"),
        "keras": ("import hvdlab.keras.horovod as hvd", "from hvdlab.keras import horovod as hvd"),
    }[framework]
    steps.check_init(script("init", (old, new)))


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
    fake.weights = np.array([[1.0, 4.0], [2.0, 5.0]])
    check(path)
    said = capsys.readouterr().out
    assert of_two in said and "identical weights" not in said


def test_a_check_that_only_reads_says_nothing_of_models(script, fake, monkeypatch, capsys):
    monkeypatch.setattr(lab05_runs, "QUICK", True)
    steps.check_init(script("init"))
    said = capsys.readouterr().out
    assert said == "Right: (read only, not run) two ranks that are connected.\n"


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


@pytest.mark.parametrize("framework", ["keras"], indirect=True)
@pytest.mark.parametrize(
    "new",
    ["[Broadcast(0)]", "[]\n    hvd.broadcast_variables(model.variables, 0)"],
    ids=["imported", "by a function"],
)
def test_other_ways_to_broadcast(new, script, fake):
    path = script("broadcast", ("[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]", new))
    imported = "from hvdlab.keras.callbacks import BroadcastGlobalVariablesCallback as Broadcast\n"
    path.write_text(imported + path.read_text())
    steps.check_broadcast(path)


@pytest.mark.parametrize("name", ["learning_rate", "images_per_second"])
@pytest.mark.parametrize("step", ["output", "optimizer", "resume"])
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
            fake.begins, fake.left_out[1] = [2, 2], {"learning_rate"}
        return fake(*arguments, folder=folder, **options)

    monkeypatch.setattr(lab05_runs, "watch", run)
    with pytest.raises(NotYet, match="rank 1 records no learning_rate"):
        steps.check_resume(script("resume"))


@pytest.mark.parametrize("framework", ["keras"], indirect=True)
def test_what_all_ranks_leave_out(script, fake):
    fake.left_out = [{"learning_rate"}] * 2
    with pytest.raises(NotYet, match="rank 0 records no learning_rate: .* before the Recorder"):
        steps.check_init(script("init"))


@pytest.mark.parametrize("framework", ["keras"], indirect=True)
def test_a_rank_without_validation(script, fake):
    fake.values[0] |= {"val_accuracy": 50 / 101}
    with pytest.raises(NotYet, match="rank 1 records no val_accuracy: fit needs the same"):
        steps.check_metrics(script("metrics"))


def test_models_that_keep_their_distance_share_their_gradients(script, fake, capsys):
    fake.weights = np.array([[1.0, 4.0], [2.0, 5.0]])
    steps.check_optimizer(script("optimizer"))
    assert "was 3.0000 after one epoch and is 3.0000 after two" in capsys.readouterr().out


def test_broadcast_makes_one_model(script, framework, fake):
    fake.weights = np.array([[1.0, 4.0], [2.0, 5.0]])
    call = {"keras": "BroadcastGlobalVariablesCallback", "torch": "broadcast_parameters"}[framework]
    with pytest.raises(NotYet, match=f"{call} is not called"):
        steps.check_broadcast(script("optimizer"))
    with pytest.raises(NotYet, match=f"weights of the ranks differ, though hvd.*{call} is called"):
        steps.check_broadcast(script("broadcast"))
    fake.weights = np.array([[1.0, 4.0], [2.0, 5.5]])
    with pytest.raises(NotYet, match="gradients are not averaged any more"):
        steps.check_broadcast(script("broadcast"))


@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_broadcast_takes_the_optimizer_too(script, fake):
    change = "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n", ""
    with pytest.raises(NotYet, match="optimizer's state is not broadcast"):
        steps.check_broadcast(script("broadcast", change))


# --- 6, 7: sharding, metrics ---------------------------------------------------------------------------


def test_a_number_of_images_that_only_one_half_is_added_up_of(script, fake):
    """Right of all, divided by twice or half of all, or by what shard() deals: 51 to each."""
    path = script("metrics")
    for right, of, says in (
        (61, 202, "is half of the true one"),
        (60, 202, "is half of the true one"),  # seen by the run of exercise 7 only
        (60, 50.5, "^120 of 101 held-out images right is too many: add up the right answers"),
        (40, 50.5, "^80 of 101 held-out images right is too many"),
        (61, 102, "one of 102 images: both ranks evaluate one of 101"),
    ):
        shutil.rmtree(steps.runs(path), ignore_errors=True)
        for accuracy, check in (
            (right / 101, steps.check_sharding),
            (right / of, steps.check_metrics),
        ):
            fake.values = [{"loss": 1.0, "accuracy": accuracy}] * 2
            fake.printed[0] = f"epoch 1 held-out {accuracy:.3f}\n" * 2
            if check is steps.check_sharding:
                check(path)
        with pytest.raises(NotYet, match=says):
            check(path)


def test_a_number_of_one_machine_divides_nothing(script, fake):
    """Only on two machines does it go wrong, so no run here shows it."""
    for check, step, count in (
        (steps.check_sharding, "sharding", "rank=hvd.rank()"),
        (steps.check_metrics, "metrics", "rank=hvd.rank()"),
        (steps.check_optimizer, "optimizer", "args.lr * hvd.size()"),
    ):
        path = script(step, (count, count.replace("hvd.", "hvd.local_")))
        with pytest.raises(NotYet, match=r"^line \d+ has local_rank or local_size in it"):
            check(path)
    path = script("sharding")
    path.write_text(path.read_text() + "\nmine = gpus[hvd.local_rank() : hvd.local_rank() + 1]\n")
    steps.check_sharding(path)


# --- 8, 9: checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["keras"], indirect=True)
def test_a_loaded_optimizer_that_does_not_average_is_named(script, fake, monkeypatch):
    def run(*arguments, folder, **options):
        killed = folder.name == "killed"
        fake.failure, fake.epochs = ("", [0, 1]) if killed else ("each waits in vain", [])
        return fake(*arguments, folder=folder, **options)

    monkeypatch.setattr(lab05_runs, "watch", run)
    with pytest.raises(NotYet, match="in vain$"):
        steps.check_resume(script("resume"))
    kept = script("resume", ("hvd.load_model(", "keras.models.load_model("))
    with pytest.raises(NotYet, match="in vain; keras.models.load_model returns an optimizer"):
        steps.check_resume(kept)


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


# --- real runs ------------------------------------------------------------------------------------------


@pytest.fixture
def real(monkeypatch):
    pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
    monkeypatch.setattr(lab05_runs, "QUICK", False)
    monkeypatch.setattr(
        lab05_runs, "LIMIT_SECONDS", float(os.environ.get("HVDLAB_TEST_LIMIT", 300))
    )


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
    if framework == "torch" and step in ("device", "output", "checkpoint"):
        pytest.skip("seen in Keras")
    # Decay moves weights without a gradient: Horovod's step for an optimizer without a state is seen.
    decay = ("args.momentum)\n", "args.momentum, weight_decay=0.01)\n")
    changes = [decay] if (framework, step) == ("torch", "resume") else []
    getattr(steps, f"check_{step}")(script(step, *changes))
    assert "Right: " in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_a_real_mistake(script, real):
    text = edits.after("optimizer", "torch")
    wrap = text[text.index("    optimizer = hvd.Dist") : text.index("\n    recorder = ")]
    with pytest.raises(NotYet, match="drift.*Wrap the optimizer"):
        steps.check_optimizer(script("optimizer", (wrap, "")))


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_real_mistakes_of_other_steps(script, real):
    text = edits.after("optimizer", "torch")
    wrap = text[text.index("    optimizer = hvd.Dist") : text.index("\n    recorder = ")]
    with pytest.raises(
        NotYet, match="the plain optimizer makes the steps: continue with the object that"
    ):
        unused = wrap.replace("    optimizer =", "    unused =")
        steps.check_optimizer(script("optimizer", (wrap, unused)))
    with pytest.raises(NotYet, match="rank 0 begins with epoch .* and the last rank with epoch 0"):
        steps.check_resume(script("checkpoint"))


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_a_number_of_ranks_that_is_written_down(script, real):
    with pytest.raises(NotYet, match="on one rank 129 of 257 images are read.* which is 1 there"):
        steps.check_resume(script("resume", ("        size=hvd.size(),", "        size=2,")))


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
