"""A script from an empty file: three styles are accepted, and what is missing is named by the measurement.

The default run takes one script that is right and one that is wrong; `-m thorough` all of them.
"""

import pytest

from hvdlab.check.rank_report import Row
from hvdlab.exercises import NotYet
from hvdlab.exercises.lab05_own_script import SCRIPT, check_own_script

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

KERAS_FIT = """\
import keras
import numpy as np

import hvdlab.keras.horovod as hvd

hvd.init()
points = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
labels = (points**2).sum(1) > 15.5
mine = slice(hvd.rank(), None, hvd.size())
model = keras.Sequential(
    [keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid")]
)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9))
model.compile(optimizer, "binary_crossentropy")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
verbose = 2 if hvd.rank() == 0 else 0
model.fit(points[mine], labels[mine], 32, 8, callbacks=callbacks, verbose=verbose)
"""
GRADIENT_TAPE = """\
import numpy as np
import tensorflow as tf

import hvdlab.keras.horovod as hvd

hvd.init()
points = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
labels = ((points**2).sum(1) > 15.5).astype("int64")
train = tf.data.Dataset.from_tensor_slices((points, labels)).shard(hvd.size(), hvd.rank())
train = train.shuffle(1024).batch(32)
model = tf.keras.Sequential(
    [tf.keras.Input((16,)), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(2)]
)
hvd.broadcast_variables(model.variables, root_rank=0)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9))
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(8):
    for batch, wanted in train:
        with tf.GradientTape() as tape:
            loss = loss_of(wanted, model(batch, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
CLASS_WITH_ALLREDUCE = """\
import horovod.torch as hvd
import numpy as np
import torch


class Training:
    def __init__(self):
        points = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
        labels = ((points**2).sum(1) > 15.5).astype("int64")
        self.data = [torch.from_numpy(each[hvd.rank() :: hvd.size()]) for each in (points, labels)]
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        )
        for weight in self.model.parameters():
            hvd.broadcast_(weight.data, root_rank=0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.005 * hvd.size())

    def epoch(self, number):
        order = torch.from_numpy(np.random.default_rng([hvd.rank(), number]).permutation(1024))
        for part in order.split(32):
            self.step(*(each[part] for each in self.data))

    def step(self, points, labels):
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(points), labels).backward()
        for weight in self.model.parameters():
            weight.grad = hvd.allreduce(weight.grad)
        self.optimizer.step()


def main():
    hvd.init()
    training = Training()
    for number in range(8):
        training.epoch(number)


if __name__ == "__main__":
    main()
"""
RIGHT = {"loop": SCRIPT, "fit": KERAS_FIT, "tape": GRADIENT_TAPE, "class": CLASS_WITH_ALLREDUCE}
AVERAGED = "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n"
WRONG = {  # name -> words of the message, and edits of the right script
    "ranks that train apart": ("is never", AVERAGED, ""),
    "whole set on each rank": (
        "own_script.py, line", ", num_replicas=hvd.size(), rank=hvd.rank()", ", num_replicas=1, rank=0",
    ),
    "half of the set": (
        "in the last epoch the ranks read 512 and 512 examples",
        "train = TensorDataset(points, labels.long())",
        "train = TensorDataset(points[:1024], labels[:1024].long())",
    ),
    "an epoch that ends early": (
        "in the last epoch the ranks read 640 and 640 examples",
        "        loss.backward()\n        optimizer.step()\n",
        "        loss.backward()\n        optimizer.step()\n"
        "        done += 1\n        if done == 20:\n            break\n",
        "    sampler.set_epoch(epoch)\n", "    sampler.set_epoch(epoch)\n    done = 0\n",
    ),
    "too few epochs": ("and must be below 0.3", "range(6)", "range(1)"),
    "an unscaled learning rate": ("The learning rate", "0.05 * hvd.size()", "0.05"),
    "the same order in each epoch": ("own_script.py, line", "    sampler.set_epoch(epoch)\n", ""),
    "only printed": ("did not train one network", SCRIPT, "print('epoch 5: loss 0.1')\n"),
}  # fmt: skip


def some(names, *quick):
    return [pytest.param(n, marks=() if n in quick else pytest.mark.thorough) for n in names]


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Return a function that checks the text of a script."""
    monkeypatch.setattr("hvdlab.exercises.lab05_own_script.QUICK", False)

    def check(text):
        path = tmp_path / "own_script.py"
        path.write_text(text, encoding="utf-8")
        check_own_script(path)

    return check


@pytest.mark.parametrize("style", some(RIGHT, "loop"))
def test_each_style_is_accepted(style, checked, capsys):
    checked(RIGHT[style])
    assert "Right: one network on two ranks" in capsys.readouterr().out


@pytest.mark.parametrize("name", some(WRONG, "an epoch that ends early"))
def test_a_wrong_script_is_refused_by_what_was_measured(name, checked):
    words, *edits = WRONG[name]
    text = SCRIPT
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(NotYet) as error:
        checked(text)
    assert words in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotYet, match="there is no file own_script.py"):
        check_own_script(tmp_path / "own_script.py")


ROW = Row(0, "a1", 1024, 0.0, 32, 0.2, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Right"),
        ({"examples": 1008}, "1,024 and 1,008 examples"),
        ({"examples": None}, "1,024 and an unknown number of examples"),
        ({"overlap": 0.01}, "rank 1 reads 1.0% of its examples"),
        ({"weights": "b2"}, "did not train one network"),
        ({"steps": 31}, "different numbers of steps"),
    ],
)
def test_each_point_of_the_rubric(changes, words, checked, monkeypatch, capsys):
    rows = [ROW, ROW._replace(rank=1, **changes)]
    monkeypatch.setattr("hvdlab.exercises.lab05_own_script.reports_of", lambda *_: [rows])
    try:
        checked("")
        said = capsys.readouterr().out
    except NotYet as error:
        said = str(error)
    assert words in said
