"""Sweeps, and the results that the course ships."""

import importlib
import os

import pandas as pd
import pytest

from hvdlab.course import experiment


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Return a function that loads the module again in the environment of one of three lengths of a run."""

    def loaded(quick="", reference=""):
        monkeypatch.setenv("LAB_QUICK", quick)
        monkeypatch.setenv("LAB_REFERENCE", reference)
        module = importlib.reload(experiment)
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
        return module

    yield loaded
    monkeypatch.undo()
    importlib.reload(experiment)


def train(batch_size, seed):
    return [{"epoch": epoch, "loss": batch_size / seed + epoch} for epoch in range(2)]


@pytest.mark.parametrize(
    ("quick", "reference", "size", "seeds"),
    [("1", "", "small", [1]), ("", "", "middle", [1, 2]), ("", "1", "large", [1, 2, 3])],
)
def test_three_run_lengths(load, quick, reference, size, seeds):
    module = load(quick, reference)
    assert module.by_run_length(quick="small", learner="middle", reference="large") == size
    assert module.seeds(2) == seeds


def test_a_grid_is_every_combination(load):
    assert load().grid(a=[1, 2], b="x") == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]


def test_a_sweep_adds_the_settings_to_each_row(load):
    module = load()
    table = module.sweep("mine", train, module.grid(batch_size=[8], seed=[1, 2]))
    expected = pd.DataFrame(
        {"batch_size": 8, "seed": [1, 1, 2, 2], "epoch": [0, 1, 0, 1], "loss": [8.0, 9.0, 4.0, 5.0]}
    )
    pd.testing.assert_frame_equal(table, expected)
    assert not module.RESULTS.exists()  # only a reference run writes


def test_an_interrupt_keeps_the_runs_that_are_done(load, capsys):
    def interrupted(seed):
        if seed == 3:
            raise KeyboardInterrupt
        return {"loss": seed}

    table = load().sweep("mine", interrupted, [{"seed": seed} for seed in (1, 2, 3, 4)])
    assert list(table["seed"]) == [1, 2]
    assert "interrupted, 2 runs are kept" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):  # a table without columns would only fail further on
        load().sweep("mine", interrupted, [{"seed": 3}, {"seed": 4}])


def test_a_reference_run_writes_what_reference_reads(load, monkeypatch):
    module = load(reference="mine")
    monkeypatch.setattr("sys.argv", ["labs/06_scaling_the_batch.py"])
    table = module.sweep("mine", train, module.grid(batch_size=[8], seed=[1, 2]))
    pd.testing.assert_frame_equal(module.reference("mine"), table, check_dtype=False)  # 8.0 is 8
    head = (module.RESULTS / "mine.csv").read_text().splitlines()[:5]
    assert "# command: LAB_REFERENCE=mine python labs/06_scaling_the_batch.py" in head
    assert all(line.startswith("# ") for line in head)


def test_an_interrupted_reference_run_leaves_the_shipped_results_and_continues(load):
    started = []

    def train(seed):
        started.append(seed)
        if started == [1, 2]:
            raise KeyboardInterrupt
        return {"loss": seed / 2}

    module = load(reference="mine")
    module.RESULTS.mkdir()
    (module.RESULTS / "mine.csv").write_text("seed,loss\n1,2.5\n")
    settings = module.grid(seed=[1, 2, 3])
    with pytest.raises(KeyboardInterrupt):
        module.sweep("mine", train, settings)
    assert (module.RESULTS / "mine.csv").read_text() == "seed,loss\n1,2.5\n"
    table = module.sweep("mine", train, settings)
    assert started == [1, 2, 2, 3]
    assert table.to_dict("list") == {"seed": [1, 2, 3], "loss": [0.5, 1.0, 1.5]}
    pd.testing.assert_frame_equal(module.reference("mine"), table)
    assert [path.name for path in module.RESULTS.iterdir()] == ["mine.csv"]


@pytest.mark.parametrize("wanted", ["1", "mine", "theirs,mine"])
def test_a_reference_run_is_of_all_or_of_those_that_are_named(load, wanted):
    module = load(reference=wanted)
    module.sweep("mine", train, module.grid(batch_size=[8], seed=[1]))
    assert (module.RESULTS / "mine.csv").exists()


def test_a_reference_run_of_others_runs_nothing(load):
    module = load(reference="theirs")
    module.RESULTS.mkdir()
    (module.RESULTS / "mine.csv").write_text("# experiment: mine\nseed,loss\n1,2.5\n")
    table = module.sweep("mine", lambda seed: 1 / 0, [{"seed": 1}])
    assert table.to_dict("records") == [{"seed": 1, "loss": 2.5}]


def test_missing_results_say_how_they_are_made(load):
    with pytest.raises(FileNotFoundError, match="LAB_REFERENCE=mine"):
        load().reference("mine")


def test_a_document_is_written_by_its_reference_run_and_read_by_others(load):
    module = load(reference="mine")  # each call of `load` changes the same module
    assert module.shipped_document("mine") is None  # this run must measure it
    module.save_document("mine", {"points": 100})
    module = load(reference="shipped")
    kept = module.shipped_document("mine")
    assert kept["points"] == 100
    assert {"experiment", "command", "machine", "versions", "date"} <= kept.keys()
    module = load()  # a learner's run measures, and leaves the shipped result
    assert module.shipped_document("mine") is None
    module.save_document("mine", {"points": 0})
    assert load(reference="shipped").shipped_document("mine") == kept


SHIPPED = sorted(experiment.RESULTS.glob("*.csv"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_results_say_where_they_come_from(path):
    lines = path.read_text().splitlines()
    for word in ("experiment", "command", "machine", "versions", "date"):
        assert any(line.startswith(f"# {word}: ") for line in lines[:5]), word
    table = experiment.reference(path.stem)
    if path.stem.endswith("_search"):  # of a learning rate, with one seed by design
        return
    repeats = {"seed", "repeat"} & set(table)
    assert repeats and all(table[column].nunique() >= 3 for column in repeats)


@pytest.mark.parametrize(("given", "left"), [(None, "true"), ("false", "false")])
def test_a_notebook_that_uses_tensorflow_leaves_gpu_memory_to_its_ranks(
    load, monkeypatch, given, left
):
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    if given:
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", given)
    load()
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == left


def test_rows_of_the_course_stand_in_where_a_value_is_missing():
    yours = pd.DataFrame({"ranks": [1, 2, 2], "seconds": [9, 5, 6]})
    shipped = pd.DataFrame({"ranks": [1, 2, 4], "seconds": [8, 4, 2]})
    assert list(experiment.complete(yours, shipped, "ranks", 2)["seconds"]) == [5, 6]
    assert list(experiment.complete(yours, shipped, "ranks", 2, 4)["seconds"]) == [4, 2]
    assert list(experiment.complete(yours.iloc[:0], shipped, "ranks", 1)["seconds"]) == [8]
