"""Single cells of labs 9 to 15: they use the right device, call a learner's function like the check, and
quote the shipped results correctly."""

import ast
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab import data  # noqa: E402
from hvdlab.course import experiment  # noqa: E402

LABS = Path(__file__).parents[2] / "labs"
LAB_8, LAB_9 = LABS / "09_one_device.py", LABS / "12_ddp_and_sharding.py"


def code_cells(path):
    """Return the code cells of a lab, from 1, each with the text after it."""
    return re.split(r"^# %%(?! \[markdown\]).*\n", path.read_text(), flags=re.MULTILINE)


def number_of_cell(path, text):
    """Return the number of the first code cell that begins with this text."""
    return next(n for n, cell in enumerate(code_cells(path)) if cell.startswith(text))


def run_cell(path, number, names):
    """Run a code cell of a lab."""
    exec(code_cells(path)[number].partition("# %% [markdown]")[0], names)


def run_what_makes(path, wanted, names):
    """Run only the statements of a lab that assign these names."""
    for node in ast.parse(path.read_text()).body:
        made = {getattr(node, "name", "")}
        for target in getattr(node, "targets", []):
            made |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
        if made & wanted:
            exec(compile(ast.Module([node], []), path.name, "exec"), names)
            yield names


@pytest.fixture
def on_a_machine_with_a_gpu(monkeypatch):
    """Make PyTorch report a GPU unless it is hidden; return its answers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "one_device", raising=False)
    answers = []

    def is_available():
        answers.append(os.environ["CUDA_VISIBLE_DEVICES"] != "-1")
        return answers[-1]

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    return answers


def test_lab_8_trains_on_a_gpu_if_there_is_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "one_device", raising=False)
    random = np.random.default_rng(0)
    images = random.integers(256, size=(130, 28, 28, 1)).astype(np.uint8)
    labels = random.integers(10, size=130).astype(np.uint8)
    few = data.Dataset(images, labels, images, labels, (), Path(), True)
    monkeypatch.setattr(data, "load_fashion_mnist", lambda: few)
    names = {}
    run_cell(LAB_8, 1, names)  # it trains twenty steps
    assert len(names["took"]["losses"]) == 20
    gpu = torch.cuda.is_available()
    assert names["DEVICE"].type == ("cuda" if gpu else "cpu") and names["GPU"] == gpu
    name = torch.cuda.get_device_name() if gpu else "the processor"
    assert f"These cells use {name}" in capsys.readouterr().out


def test_lab_9_hides_gpus_from_its_ranks(on_a_machine_with_a_gpu, monkeypatch):
    names, environments = {}, []

    def run(script, *arguments, **variables):
        """Record the environment that a rank would have."""
        environments.append({**os.environ, **variables})
        report = dict.fromkeys(
            ["mode", "peak_bytes", "seconds", "file_bytes", "anonymous_bytes"], 0
        )
        return json.dumps(report | {"losses": [1]})

    run_cell(LAB_9, 1, names)  # the imports
    run_cell(LAB_9, number_of_cell(LAB_9, 'os.environ["CUDA_VISIBLE_DEVICES"] ='), names)
    names["run"] = run
    list(run_what_makes(LAB_9, {"SCRIPT", "SAME", "train", "out_of_core"}, names))
    names["train"]("serial", 1, 1)
    names["out_of_core"](1, state="file")
    assert [found["CUDA_VISIBLE_DEVICES"] for found in environments] == ["-1", "-1"]


MEASURE_THE_PROCESSOR = """
13_splitting_layers 14_splitting_networks 15_fine_tuning
""".split()


@pytest.mark.parametrize("name", MEASURE_THE_PROCESSOR)
def test_labs_that_measure_cpus_hide_the_gpus_first(name, monkeypatch):
    """Its formulas are for Gloo, for CPU memory, and for ranks on the same kind of device."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    names = {}
    for node in ast.parse((LABS / f"{name}.py").read_text()).body:
        # the imports and the statement after them; all measurements come later
        if not isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), name, "exec"), names)
            break
        if [alias.name for alias in node.names] == ["os"]:
            names["os"] = os
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_lab_8_passes_numbers_to_activation_bytes():
    """`check_activation_bytes` passes numbers, so a correct answer may use int(...), which takes no array."""
    sizes = [32, 64]
    memory = pd.DataFrame({"parameters": [1, 1], "optimizer": [2, 2]}, index=sizes)
    names = {
        "pd": pd, "np": np, "memory": memory, "micro_batches": sizes, "LAYERS": 3, "HIDDEN": 8,
        "activation_bytes": lambda batch, layers, hidden: int(batch * layers * 10 * hidden * 4),
    }  # fmt: skip
    bars, line = [dict(names)["counted"] for names in run_what_makes(LAB_8, {"counted"}, names)]
    assert bars["activations (counted by you)"].tolist() == list(line) == [0.03072, 0.06144]


def test_lab_8_quotes_the_measured_times_of_micro_batches():
    found = experiment.reference("gradient_accumulation")
    seconds = found.groupby("micro_batch")["seconds"].median()
    said = re.search(
        r"those of ([^a-z]+ and \d+) take ([^a-z]+ and \S+) times as long as one of 500 \(medians of (\d)",
        LAB_8.read_text(),
    )
    sizes, times = ([float(n) for n in re.split(", | and ", said[part])] for part in (1, 2))
    assert times == [round(seconds[size] / seconds[500], 1) for size in sizes]
    assert (found["micro_batch"].value_counts() == int(said[3])).all()
