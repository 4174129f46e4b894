"""The scripts of other styles: each conversion is accepted, and what is left out is named.

The default run takes one script; `-m thorough` all of them.
"""

import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab01_script_edits import EDITS as FIRST
from hvdlab.exercises.lab01_script_edits import check_first_script
from hvdlab.exercises.lab05_transfer import EDITS, SCRIPTS, SERIAL, check_transfer

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

# Another right answer: each rank cuts its own part out of the data, and averages the gradients itself.
BY_HAND = {
    "DataLoader(train, BATCH_SIZE, sampler=sampler)": "DataLoader(mine, BATCH_SIZE, shuffle=True)",
    "    sampler.set_epoch(epoch)\n": "",
    "sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())": (
        "mine = TensorDataset(*(each[hvd.rank() : 2000 : hvd.size()] for each in train.tensors))"
    ),
    "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n": "",
    "        loss.backward()\n": (
        "        loss.backward()\n        for weight in model.parameters():\n"
        "            weight.grad = hvd.allreduce(weight.grad)\n"
    ),
}
# Without the broadcast torch_loop is right too: its seed gives all ranks the same weights.
LEFT_OUT = {  # a part of the conversion -> what stands in its place
    "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())\n": "",
    ", num_replicas=hvd.size(), rank=hvd.rank()": ", num_replicas=1, rank=0",
    " * hvd.size()": "",
    "    sampler.set_epoch(epoch)\n": "",
}
FIRST_CHANGES = [  # of the first script: old and new text, and words of the message
    (
        "0.05 * hvd.size()",
        "0.05",
        "learning rate of rank 0 is 0.05, and with two ranks it should be 0.1",
    ),
    ("hvd.rank(), 8192, hvd.size()", "8192", "Give each rank its own shard of the data.$"),
]


@pytest.fixture(autouse=True)
def whole_runs(monkeypatch):
    monkeypatch.setattr("hvdlab.exercises.lab05_transfer.QUICK", False)


def converted(tmp_path, name, changes):
    """Return the path of a converted script, after changes of its text."""
    text = EDITS[name].after("horovod")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def cases(*quick):
    names = enumerate(SCRIPTS, 1)
    return [
        pytest.param(*each, marks=() if each[1] in quick else pytest.mark.thorough)
        for each in names
    ]


@pytest.mark.parametrize("case, name", cases("torch_loop"))
def test_the_conversion_of_the_course_is_accepted(case, name, tmp_path, capsys):
    check_transfer(case, converted(tmp_path, name, {}))
    assert f"Right: {name}: one network on two ranks" in capsys.readouterr().out


@pytest.mark.parametrize("case, name", cases("checkpoints"))
def test_the_serial_script_is_refused(case, name):
    with pytest.raises(NotYet, match=r"Horovod is never initialised|hvd.init"):
        check_transfer(case, SERIAL[name])


@pytest.mark.thorough
def test_a_mistake_is_named_also_where_the_script_fails_after_its_few_steps(tmp_path):
    script = tmp_path / "torch_loop.py"
    failing = "\nraise OSError('two ranks have written one file')\n"
    script.write_text(SERIAL["torch_loop"].read_text(encoding="utf-8") + failing, encoding="utf-8")
    with pytest.raises(NotYet, match=r"Horovod is never initialised"):
        check_transfer(1, script)


@pytest.mark.thorough
def test_gradients_that_are_averaged_by_hand_are_accepted(tmp_path):
    check_transfer(1, converted(tmp_path, "torch_loop", BY_HAND))


@pytest.mark.thorough
@pytest.mark.parametrize("line", LEFT_OUT)
def test_a_part_of_the_conversion_that_is_left_out_is_named(line, tmp_path):
    with pytest.raises(NotYet, match=r"torch_loop, line \d+: "):
        check_transfer(1, converted(tmp_path, "torch_loop", {line: LEFT_OUT[line]}))


@pytest.mark.thorough
@pytest.mark.data
@pytest.mark.parametrize("framework", FIRST)
def test_the_first_script_of_the_course_becomes_one_training(framework, tmp_path, capsys):
    path = tmp_path / "first.py"
    path.write_text(FIRST[framework].after(None), encoding="utf-8")
    with pytest.raises(NotYet, match="Horovod is never initialised"):
        check_first_script(path)
    path.write_text(FIRST[framework].after("horovod"), encoding="utf-8")
    check_first_script(path)
    assert "4,096 and 4,096 images" in capsys.readouterr().out
    for old, new, words in FIRST_CHANGES:
        text = FIRST[framework].after("horovod")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(NotYet, match=words):
            check_first_script(path)
