"""A script whose import fails on this machine, or whose Recorder refuses its model, is not gradable."""

import dataclasses
import json
import sys
import tomllib
from pathlib import Path

import pytest

from hvdgrade import profiles
from hvdgrade.evidence.observation import Observation, Weights
from hvdgrade.grade import grade
from hvdgrade.run import start_failures
from hvdgrade.run.job import Job
from hvdgrade.run.start_failures import explain, failures, installed_packages, require_start
from hvdgrade.sandbox import tiers
from hvdgrade.submission.script import NotGradable, import_statements

ROOT = Path(__file__).parents[3]
# On a busy machine a rank may get no processor time for a while.
RULES = dataclasses.replace(profiles.load("dli"), budget=600.0, stall_seconds=300.0)
SOURCE = b"""from __future__ import annotations; import json
import torchh
def train():
    from .layers import Block
try:
    import wandb_that_is_missing
except ImportError:
    pass
from json import dumps, nothing_of_that_name
import importlib
importlib.import_module("my_layers")
"""


def crashed(*errors: str, **changes) -> Observation:
    lines = [
        f"[1,0]<stderr>: {error}\n" for error in ("Traceback (most recent call last):", *errors)
    ]
    return Observation(1, stop_cause="crashed", exit_code=1, output="".join(lines), **changes)


@pytest.fixture
def trial(monkeypatch):
    """Replace the trial of imports by one in which the given statements fail."""

    def set(**found):
        monkeypatch.setattr(start_failures, "failures", lambda *_: found)

    return set


def reason(seen: Observation, source=SOURCE) -> str:
    """The reason why a run is not gradable; "" if it is."""
    try:
        require_start(Job(source, 1, RULES, "none"), seen, Path("."))
    except NotGradable as error:
        return str(error)
    return ""


def test_lists_each_import_statement_with_its_line():
    assert import_statements(SOURCE) == {
        "import json": 1,
        "import torchh": 2,
        "from .layers import Block": 4,
        "import wandb_that_is_missing": 6,
        "from json import dumps, nothing_of_that_name": 9,
        "import importlib": 10,
        "import my_layers": 11,
    }


@pytest.mark.mpi
def test_the_grader_tries_imports_in_the_sandbox_with_the_same_python(sample_folder):
    job = Job(SOURCE, 1, RULES, tiers.choose(None))
    found = failures(list(import_statements(SOURCE)), job, sample_folder)
    assert "my_layers" not in sys.modules and "torchh" not in sys.modules
    absent = "ModuleNotFoundError"
    assert found == {
        "import torchh": (absent, "No module named 'torchh'"),
        "from .layers import Block": (
            "ImportError",
            "attempted relative import with no known parent package",
        ),
        "import wandb_that_is_missing": (absent, "No module named 'wandb_that_is_missing'"),
        "import my_layers": (absent, "No module named 'my_layers'"),
        "from json import dumps, nothing_of_that_name": (
            "ImportError",
            f"cannot import name 'nothing_of_that_name' from 'json' ({json.__file__})",
        ),
    }


MISSING = ("ModuleNotFoundError", "No module named 'torchh'")


@pytest.mark.parametrize(
    "seen, expected",
    [
        (crashed("ModuleNotFoundError: No module named 'torchh'"), True),
        # Another module ended the run: the failing import is inside a try statement.
        (crashed("ModuleNotFoundError: No module named 'torchhh'"), False),
        (crashed("ValueError: no batch"), False),
        (crashed("ImportError: No module named 'torchh'"), False),
        (Observation(1, output=crashed("ModuleNotFoundError: No module named 'torchh'").output), False),
        (
            crashed(
                "ModuleNotFoundError: No module named 'torchh'",
                weights=[Weights(0, 0, 1.0, Path("x"), "")],
            ),
            False,
        ),
    ],
)  # fmt: skip
def test_an_import_that_fails_here_is_not_gradable_before_the_first_epoch(seen, expected, trial):
    trial(**{"import torchh": MISSING})
    assert bool(reason(seen)) == expected


def test_a_printed_traceback_is_not_believed(trial):
    """The grader can import the module, or the source does not import it."""
    trial()
    assert reason(crashed("ModuleNotFoundError: No module named 'torchh'")) == ""


def test_a_refusal_of_the_recorder_is_quoted():
    refusal = "hvdlab.recordable.NotRecordable: Recorder: 'batches' must be the Batches."
    assert reason(crashed(refusal)) == (
        "assessment.py stopped before its first epoch. It says: Recorder: 'batches' must be the Batches."
    )
    ended = Observation(1, output=crashed(refusal).output)
    assert reason(ended) == ""


@pytest.mark.parametrize(
    "statement, message, words",
    [
        ("import torchh", "No module named 'torchh'", "do you mean torch?"),
        ("import my_layers", "No module named 'my_layers'", "if it is a file of your own, put its code"),
        ("import accelerate", "No module named 'accelerate'", "use only packages that are installed here"),
        ("from .layers import Block", "attempted relative import", "another file of your own"),
        ("from json import x", "cannot import name 'x' from 'json'", "fails on this machine for every"),
    ],
)  # fmt: skip
def test_the_reason_says_what_is_missing_and_what_to_do(statement, message, words):
    assert words in explain(statement, message)


def test_the_task_page_lists_what_is_installed():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        requirement.split("<")[0]
        for group in ("torch", "keras", "lab", "parallel")
        for requirement in groups[group]
    }
    assert set(installed_packages()) <= named | {"horovod", "hvdlab", "numpy"}
    assert {"numpy", "torch", "hvdlab"} <= set(installed_packages())
    page = (ROOT / "assessment/README.md").read_text()
    rule = page[page.index("**Packages.**") :].partition("\n*")[0]
    assert [
        name for name in named | {"horovod", "hvdlab", "numpy"} if f"`{name}`" not in rule
    ] == []


@pytest.mark.mpi
@pytest.mark.grading
@pytest.mark.parametrize(
    "source, words",
    [
        ("import accelerate_of_another_machine", "line 1, imports accelerate_of_another_machine, and"),
        (
            "from hvdlab.torch.recorder import Recorder\nRecorder(None, None)",
            "It says: Recorder: 'model' must be a torch.nn.Module. Received: NoneType.",
        ),
    ],
)  # fmt: skip
def test_no_attempt_is_lost(source, words, tmp_path, sample_folder, monkeypatch):
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    (tmp_path / "assessment.py").write_text(source)
    document = grade(tmp_path, 2, RULES)
    assert document["status"] == "not_gradable" and document["score"] is None
    assert words in document["reason"]
