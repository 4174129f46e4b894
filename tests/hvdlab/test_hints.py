"""The three mistakes that are read from the source, and scripts that do not have them."""

from pathlib import Path

import pytest

from hvdlab.hints import hints
from tests.helpers.submissions import NAMES, source

SOLUTIONS = sorted(Path(__file__).parents[2].glob("assessment/solutions/*/assessment.py"))
HOROVOD = "import horovod.torch as hvd\nhvd.init()\n"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import torch\n", ("init-missing", None)),
        ("import horovod.keras as hvd\nimport keras\n", ("gradients-not-averaged", 1)),
        (
            f"{HOROVOD}if hvd.rank() == 0:\n    recorder = Recorder(model)\n",
            ("recorder-on-some-ranks", 4),
        ),
        (
            f"{HOROVOD}def end():\n    recorder.epoch_end(1)\nif hvd.rank() < 1:\n    end()\n",
            ("recorder-on-some-ranks", 5),
        ),
    ],
)
def test_each_mistake_is_found_at_its_line(script, found):
    (hint,) = hints(script.encode())
    assert (hint.id, hint.line) == found


@pytest.mark.parametrize(
    "script",
    [
        "def main(:\n",
        "import torch.distributed as dist\n",
        "from mpi4py import MPI\n",
        "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport horovod.tensorflow.keras as hvd\n",
        f"{HOROVOD}recorder = Recorder(model)\nif hvd.rank() == 0:\n    print(1)\n",
        f"{HOROVOD}r = Recorder(m)\nif hvd.rank() == 0:\n    r.epoch_end(0)\nelse:\n    r.epoch_end(0)\n",
    ],
)
def test_a_script_without_them_gets_no_hint(script):
    assert hints(script.encode()) == []


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.parent.name)
def test_the_solutions_get_no_hint(path):
    assert hints(path.read_bytes()) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("right", "style"))])
def test_right_submissions_get_no_hint(name):
    assert hints(source(name).encode()) == []
