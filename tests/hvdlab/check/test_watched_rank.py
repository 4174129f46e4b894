"""What `hvdlab check` notes of a rank: its loops, the length of a fit, the steps of an optimizer."""

import fcntl
import json
import os
import pickle
import subprocess
import sys
import time
import types
from functools import partial

import numpy as np
import pandas as pd
import pytest

from hvdlab.check import instrument
from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import digest, items
from hvdlab.check.hooks import sklearn
from hvdlab.check.hooks.horovod import _broadcast, _wrapper
from hvdlab.check.hooks.keras_fit import _steps
from hvdlab.check.hooks.tensorflow import of_shard
from hvdlab.check.hooks.torch import _norms
from hvdlab.check.hooks.torch_data import _read_by
from hvdlab.check.watched_rank import _lines, files_and_locks
from hvdlab.trace import records


def watched(folder, source, **names):
    """Run a source under a watch; return the names that it leaves, the steps, and its events."""
    watch = Watch(folder, "script", rank=0, size=1, limit=8)
    facts = {"optimizer": 0, "wrapped": True, "rate": 0.1, "weights": []}
    names |= {instrument.WATCH: watch, "step": partial(watch.step, **facts)}
    code = compile(instrument.instrument(source, "script"), "script", "exec")
    types.FunctionType(code, names)()
    return names, watch.steps, noted(folder)


def noted(folder):
    return [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "inner",
    [
        "for i in range(20):\n        step()",
        "i = 0\n    while i < 20:\n        step()\n        i += 1",
        "while True:\n        step()",
        "for i in data:\n        step()",
        "for i in range(20):\n        next(data), step()",
        "for loss in training():\n        pass",
    ],
)
@pytest.mark.parametrize("outer", ["for epoch in range(50):", "while len(rounds) < 50:"])
def test_loops_that_train_are_cut_and_those_around_them_after_two_rounds(tmp_path, inner, outer):
    source = f"""\
def endless():
    while True:
        yield 1
def training():
    for i in range(20):
        step()
        yield i
data, rounds = endless(), []
{outer}
    rounds.append(1)
    {inner}
"""
    names, steps, _ = watched(tmp_path, source)
    assert (len(names["rounds"]), steps) == (2, 16)


def test_a_loop_that_is_left_is_not_the_one_that_begins_next(tmp_path):
    source = "rounds = []\nfor epoch in range(50):\n    rounds.append(1)\n    while True:\n"
    source += "        step()\n        if len(rounds):\n            break\n"
    names, steps, events = watched(tmp_path, source)
    assert (len(names["rounds"]), steps) == (2, 2)
    ended = [e for e in events if e["kind"] == "pass"]
    assert [e["left"] for e in ended] == ["early", "early", "cut"]


@pytest.mark.parametrize("leave", ["break", "return"])
@pytest.mark.parametrize("around", ["{}", "enumerate({})", "list({})"])
def test_a_for_loop_notes_the_line_that_leaves_it(tmp_path, leave, around):
    source = f"def train():\n    for x in {around.format('range(50)')}:\n        step()\n"
    source += f"        if x:\n            {leave}\n    return 1\ntrain()\n"
    _, _, events = watched(tmp_path, source)
    (ended,) = [e for e in events if e["kind"] == "pass"]
    assert (ended["left"], ended["leaves"]) == ("early", 5)


@pytest.mark.parametrize(
    "loop", ["i = 0\nfor i in range(5):\n    step()", "i = 0\nwhile i < 5:\n    i += 1\n    step()"]
)
def test_a_while_loop_is_noted_as_a_for_loop_is(tmp_path, loop):
    _, _, events = watched(tmp_path, loop)
    (began,) = [e for e in events if e["kind"] == "loop"]
    (ended,) = [e for e in events if e["kind"] == "pass"]
    assert began["line"] == ended["line"] == 2
    assert (ended["iterations"], ended["left"]) == (5, "at its end")
    steps = [e["loops"] for e in events if e["kind"] == "step"]
    assert steps == [[[began["line"], i]] for i in range(1, 6)]


def test_a_collective_keeps_the_lines_of_all_functions_around_it(tmp_path):
    source = """\
def mean():
    with __hvdlab__.inside("hvd.allreduce"):
        pass
if True:
    mean()
"""
    _, _, events = watched(tmp_path, source)
    (call,) = [event for event in events if event["kind"] == "collective"]
    assert (call["line"], call["stack"]) == (2, [5, 2])


def test_the_line_that_created_a_failing_object_is_noted():
    library = {}
    exec(compile("def fail(self):\n    return 1.0.dtype\n", "library.py", "exec"), library)
    callback = types.SimpleNamespace(_hvdlab_line=7)
    script = compile("\n\nfail(callback)", "script.py", "exec")
    with pytest.raises(AttributeError) as error:
        exec(script, {**library, "callback": callback})
    watch = types.SimpleNamespace(blocks={"script.py": 0})
    assert _lines(error.value, watch) == (3, 7)


def test_a_lock_is_noted_once_however_often_it_is_asked_for(tmp_path):
    watch = Watch(tmp_path, __file__, rank=0, size=1, limit=8)
    hook = files_and_locks(watch)
    with open(tmp_path / "lock", "w", encoding="utf-8") as file:
        for _ in range(3):
            hook("fcntl.flock", (file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB))
        hook("urllib.Request", ("http://a", None, {}, "GET"))
        hook("fcntl.flock", (file.fileno(), fcntl.LOCK_UN))
        hook("urllib.Request", ("http://a", None, {}, "GET"))
    events = noted(tmp_path)
    assert [e["path"] for e in events if e["kind"] == "lock"] == [str(tmp_path / "lock")]
    assert [e["locked"] for e in events if e["kind"] == "download"] == [True, False]


@pytest.mark.parametrize(
    "sent, weights, tensors",
    [
        ({"weight": 1, "bias": 2}, 2, 2),  # a state_dict
        ([], 0, 0),
        (zip(), 0, 0),
        (iter("ab"), 2, 2),
        ([types.SimpleNamespace(trainable=False)], 0, 1),  # of an optimizer of Keras
    ],
)
def test_the_weights_of_a_broadcast_are_counted_and_all_are_sent(tmp_path, sent, weights, tensors):
    watch = Watch(tmp_path, __file__, rank=0, size=1, limit=8)
    got = []
    broadcast = _broadcast(lambda sent, root_rank: got.append(sent), "broadcast_variables", watch)
    broadcast(sent, root_rank=0)
    (event,) = [event for event in noted(tmp_path) if event["kind"] == "broadcast"]
    assert event["weights"] == weights
    assert len(list(got[0])) == tensors


def test_a_rank_may_wait_in_the_gradient_of_a_wrapped_tape(tmp_path):
    watch = Watch(tmp_path, __file__, rank=0, size=1, limit=8)

    class Tape:
        def gradient(self, loss):
            return watch.waits[-1].operation, loss

    tape = _wrapper(lambda tape: Tape(), "DistributedGradientTape", types, watch)(None)
    assert tape.gradient(3) == ("Tape.gradient", 3)
    assert watch.waits == []


def test_what_cannot_be_hashed_is_no_batch():
    assert digest({"x": np.arange(3), "y": [np.ones(2)]}) == digest([np.arange(3), np.ones(2)])
    assert digest(pd.Series([1, 2])) is None
    assert digest("text") is None


@pytest.mark.parametrize(
    "x, held_out, batches",
    [
        (np.zeros((70, 3)), 0.0, 3),
        ([np.zeros((70, 3)), np.zeros((70, 1))], 0.0, 3),
        ({"image": np.zeros((70, 3)), "age": np.zeros((70, 1))}, 0.0, 3),
        (np.zeros((70, 3)), 0.1, 2),
        ((part for part in "ab"), 0.0, None),
    ],
)
def test_the_batches_of_a_fit_are_those_of_its_first_input(x, held_out, batches):
    given = {"steps_per_epoch": None, "x": x, "batch_size": 32, "validation_split": held_out}
    assert _steps(given) == batches


PLAIN = """\
import sys
from pathlib import Path
import torch
from hvdlab.check.hooks import torch as hooks
from hvdlab.check.event_log import Watch

torch.cuda.is_available = None  # who asks starts CUDA, and the script cannot choose its GPU any more
hooks.watch(torch, Watch(Path(sys.argv[1]), __file__, rank=0, size=1, limit=8))

class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": None})

    def step(self):
        pass

norm = torch.nn.BatchNorm1d(1, momentum=None)  # keeps the mean of all batches
optimizer = Plain(norm.parameters())
for mean in range(1, 5):
    norm(mean + torch.tensor([[-1.0], [1.0]]))
    optimizer.step()
"""


@pytest.mark.slow
def test_an_optimizer_without_a_rate_and_a_cumulative_mean_are_noted(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(PLAIN)
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    steps = [event for event in noted(tmp_path) if event["kind"] == "step"]
    assert [step["rate"] for step in steps] == [None] * 4
    (norm,) = steps[-1]["statistics"]
    assert norm["mean"] == [2.5] and norm["filled"] == 1


ADASUM = """\
import sys
from pathlib import Path
import torch
from hvdlab.check.hooks import torch as hooks
from hvdlab.check.event_log import Watch

hooks.watch(torch, Watch(Path(sys.argv[1]), __file__, rank=0, size=1, limit=8))
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], 0.1)
optimizer._hvdlab_wrapped = True
weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
weight.sum().backward()
optimizer.step()
"""


@pytest.mark.slow
def test_a_wrapped_optimizer_that_steps_during_backward_makes_no_step_of_the_script(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(ADASUM)
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    assert [event["line"] for event in noted(tmp_path) if event["kind"] == "step"] == [13]


def test_weights_may_lie_on_several_gpus():
    """Fake tensors know devices that are not there; what fails is only to copy them to the host."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        _norms(torch, [torch.ones(3, device=f"cuda:{gpu}") for gpu in range(2)])
    assert _norms(torch, [torch.ones(4), torch.ones(9).bfloat16()]) == [2, 3]


KERAS = """\
import sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.pyct import inspect_utils, transpiler
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager import backprop
from tensorflow.python.eager.polymorphic_function import concrete_function
from hvdlab.check.hooks import keras as hooks, tensorflow, tensorflow_gradients
from hvdlab.check.event_log import Watch
from hvdlab.trace import records

watch = Watch(Path(sys.argv[1]), __file__, rank=0, size=1, limit=8)
hooks.watch(keras, watch)
tensorflow.data(dataset_ops, watch)
tensorflow_gradients.tapes(backprop, watch)
tensorflow.translations(transpiler, watch)
tensorflow.sources(inspect_utils, watch)
tensorflow.graphs(concrete_function, watch)
__hvdlab__ = watch

one, other = keras.Variable([3.0, 4.0]), keras.Variable([12.0])
grads = [tf.zeros(2), tf.zeros(1)]
optimizer = keras.optimizers.SGD(0.1)
optimizer.apply(grads, [one, other])
optimizer.apply(grads, trainable_variables=[one, other])
optimizer.apply(grads)
optimizer.apply_gradients(grads_and_vars=zip(grads, [one, other]))
tf.function(lambda: optimizer.apply(grads=grads, trainable_variables=[one, other]))()

def batches():
    for value in (1, 1, 2, 3, 3):
        yield np.full((2, 3), value, "float32"), np.ones((2, 1), "float32")

model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), verbose=0, callbacks=keras.callbacks.TerminateOnNaN())

images, labels = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
data = tf.data.Dataset.from_tensor_slices((images, labels))
test = tf.function(lambda x: model(x, training=False))
for x, y in data.shard(2, 0).batch(4):
    with tf.GradientTape() as tape:  # this round trains
        loss = tf.reduce_sum(model(x))
for x, y in data.shard(2, 1).batch(2):
    test(x)
model.evaluate(images, labels, verbose=0)
model.evaluate(images[:4], labels[:4], verbose=0)
model.evaluate(data.shard(2, 0).batch(2), verbose=0)

data.shuffle(8).map(lambda x, y: (x, y)).shard(2, 1)
data.shuffle(8, seed=3).batch(2).shard(2, 1)
average = type("MetricAverageCallback", (keras.callbacks.Callback,), {})()
for callbacks in [], [average]:
    own = data.shard(2, 1).batch(2)
    model.fit(images, labels, validation_data=own, callbacks=callbacks, verbose=0)
model.fit(data.filter(lambda x, y: True).batch(2), verbose=0)
model(images)  # the batches that were counted after fit are no evaluation
for x, y in watch.each(99, data.filter(lambda x, y: True).batch(1)):
    optimizer.apply(grads, [one, other])
model(images)  # nor is this one of what the loop reads, which trains

@tf.function
def train(loss):
    if loss > 3:
        optimizer.apply(grads, [one, other])
        watch.note(records.Destroy)

for loss in 1.0, 5.0:
    train(tf.constant(loss))

for factor in 1.0, 0.5:
    with tf.GradientTape() as tape:
        loss = one * one
    watch.steps = 0  # the first steps are sketched
    optimizer.apply([factor * tape.gradient(loss, [one])[0]], [one])
"""


@pytest.mark.slow
def test_steps_of_keras_are_noted_however_they_are_written(tmp_path):
    pytest.importorskip("keras")
    script = tmp_path / "script.py"
    script.write_text(KERAS)
    subprocess.run(
        [sys.executable, script, tmp_path],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        timeout=200,
    )
    events = noted(tmp_path)
    steps = [event for event in events if event["kind"] == "step"]
    assert [step["weights"] for step in steps[:5]] == [[5, 12]] * 5
    assert len(steps) == 5 + 5 + 1 + 1 + 4 + 8 + 1 + 2
    first = KERAS.splitlines().index("def train(loss):") + 1
    decided = [(e["line"], e["value"]) for e in events if e["kind"] == "decision"]
    assert decided == [(first + 1, 1.0), (first + 1, 5.0)]
    assert [e["line"] for e in events if e["kind"] == "destroy"] == [first + 3]
    assert steps[-3]["line"] == first + 2
    loops = [event for event in events if event["kind"] == "loop"]
    assert [event["length"] for event in loops if event["line"] == 99] == [None, 8]
    assert [event["length"] for event in loops if event["line"] != 99][-1] == 4
    for step, factor in zip(steps[-2:], (1.0, 0.5), strict=True):
        used, local = step["gradient"]["used"], step["gradient"]["local"]
        np.testing.assert_allclose(used, factor * np.array(local))
        assert any(used) and step["start"] and step["taped_at"]
    first, again, second, third, last = [step["batch"] for step in steps[5:10]]
    assert first == again != second != third == last
    tested = [event for event in events if event["kind"] == "evaluate"]
    assert [event["sharded"] for event in tested] == [True, False, False, True, True]
    contents = [event["content"] for event in tested]
    assert contents[1] != contents[2] and [contents[i] for i in (0, 3, 4)] == [None] * 3
    orders = [event["order"] for event in events if event["kind"] == "part"]
    assert "shuffled by rank 0" in orders and any(str(each).endswith(", 3.0]") for each in orders)
    # A generator does not say its length: it came to its end before it was cut.
    ended = next(event for event in events if event["kind"] == "pass")
    assert (ended["iterations"], ended["left"]) == (5, "at its end")


def test_an_event_may_hold_a_number_of_any_library(tmp_path):
    watch = Watch(tmp_path, "script", rank=0, size=1, limit=8)
    watch.note(records.Split, order=np.int64(3), of=tmp_path)
    (event,) = [event for event in noted(tmp_path) if event["kind"] == "split"]
    assert (event["order"], event["of"]) == (3, None)


def test_a_split_of_scikit_learn_is_noted_with_what_it_divides(tmp_path):
    module = types.SimpleNamespace(
        train_test_split=lambda *data, take: [each[:take] for each in data]
    )
    sklearn.watch(module, Watch(tmp_path, "script", rank=0, size=1, limit=8))
    for data, take in (([1, 2], 1), ([1, 2], 2), (np.arange(4), 1), (["a", "b"], 1), ("ab", 1)):
        module.train_test_split(data, take=take)
    events = [event for event in noted(tmp_path) if event["kind"] == "split"]
    of, order = [e["of"] for e in events], [e["order"] for e in events]
    assert of[0] == of[1] and order[0] != order[1]
    assert len({*of[1:4]}) == 3 and of[4] is order[4] is None


def test_items_are_equal_in_any_order_and_differ_in_another_one():
    import torch

    order = np.array([3, 1, 2, 0])
    rows = np.arange(4)[:, None] * np.ones(5000)
    names = ["a.png", "b.png", "c.png", "d.png"]
    table = pd.DataFrame({"x": range(4)})
    for value, shuffled in [
        (np.arange(4), order),
        (torch.arange(4), torch.from_numpy(order)),
        (rows, rows[order]),
        (names, [names[i] for i in order]),
        (np.array(names, object), np.array(names, object)[order]),
        ([(name, 1) for name in names], [(names[i], 1) for i in order]),
        (table, table.iloc[order]),
        (table.iloc, table.iloc[order].iloc),
        ([np.arange(2), np.arange(2, 4)], [order[:2], order[2:]]),
    ]:
        one, other = items(value, parts=2), items(shuffled, parts=2)
        assert one == items(value, parts=2)
        assert one.count == other.count == 4 and one.content == other.content
        assert one.order != other.order
    assert items(rows, 2).content != items(rows + 1, 2).content
    for value in ["text", {"a": 1}, 3, None, [object(), object()], [1], torch.nn.Linear(1, 1)]:
        assert items(value, parts=2) is None


def test_keras_evaluates_a_shard_or_all_images(tmp_path):
    import tensorflow as tf

    data = tf.data.Dataset.range(8)
    assert of_shard(data.shard(2, 1).batch(2).prefetch(1))
    assert not of_shard(data.batch(2))
    assert not of_shard(data.shard(1, 0).batch(2))
    assert not of_shard(np.zeros(3))


def test_a_loader_reads_all_data_unless_a_sampler_leaves_some_out():
    import torch
    from torch.utils import data

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(8))

    images = torch.arange(8.0)
    whole, other = data.TensorDataset(images), data.TensorDataset(images + 1)

    def content(of, **options):
        return _read_by(data.DataLoader(of, 2, **options), torch)["content"]

    assert content(whole) == content(whole, shuffle=True) != content(other)
    assert content(data.Subset(whole, [1, 0])) == content(data.Subset(whole, [0, 1]))
    assert content(data.Subset(whole, [0, 1])) != content(data.Subset(other, [0, 1]))
    assert content(data.Subset(whole, [0, 1])) != content(data.Subset(whole, [2, 3]))
    assert content(whole, sampler=data.RandomSampler(whole, num_samples=4)) is None
    assert content(whole, sampler=data.SubsetRandomSampler([1, 2])) is None
    assert content(Stream()) is None


def test_a_function_of_the_script_can_be_sent_to_another_process(tmp_path):
    """Horovod pickles objects by value, and the function calls the watch, which cannot be pickled."""
    cloudpickle = pytest.importorskip("cloudpickle")
    source = """
def total(numbers, hvd):
    found = 1 if hvd.size() > 2 else 0
    for number in numbers[hvd.rank() :]:
        if number > 3:
            break
        found += number
    while found < 9:
        found += [0, 1][hvd.rank()]
    return found
"""
    names, _, _ = watched(tmp_path, source)
    sent = cloudpickle.dumps(names["total"])
    here = pickle.loads(sent)
    assert here.__globals__[instrument.WATCH] is names[instrument.WATCH]
    code = f"""
import pickle, types
hvd = types.SimpleNamespace(rank=lambda: 1, size=lambda: 2)
print(pickle.loads({sent!r})([9, 2, 3, 4], hvd))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "9", run.stderr


def test_a_wait_in_a_function_of_horovod_that_no_hook_knows_is_noted(tmp_path):
    def until(kind):
        for _ in range(600):
            if kind in [event["kind"] for event in noted(tmp_path)]:
                return
            time.sleep(0.05)

    library = {"__name__": "horovod.torch.optimizer", "until": until}
    exec(compile("def synchronize(kind): until(kind)", "library.py", "exec"), library)
    Watch(tmp_path, "script.py", rank=0, size=1, limit=8)
    exec(compile("\nsynchronize('waiting')\n", "script.py", "exec"), library)
    until("continues")
    found = [event for event in noted(tmp_path) if event["kind"] in ("waiting", "continues")]
    assert [event["kind"] for event in found] == ["waiting", "continues"]
    assert (found[0]["op"], found[0]["line"]) == ("synchronize", 2)


def test_collectives_of_mpi4py_are_noted(tmp_path):
    pytest.importorskip("mpi4py")
    source = """
from mpi4py import MPI
comm = MPI.COMM_SELF
comm.Barrier()
total = comm.allreduce(3)
text = communicate.split(" ")
"""
    names, _, events = watched(tmp_path, source, communicate="a b")
    found = [(e["op"], e["line"]) for e in events if e["kind"] == "collective"]
    assert found == [("MPI.Barrier", 4), ("MPI.allreduce", 5)] and names["total"] == 3
