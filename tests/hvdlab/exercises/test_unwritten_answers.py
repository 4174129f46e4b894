"""Every check passes on the message of a stub, and turns an error in an answer into a sentence."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("litgpt", reason="needs LitGPT: run `make setup`")

from hvdlab import exercises  # noqa: E402
from hvdlab.exercises import NotYet  # noqa: E402

# The first ones run the answer on ranks, and the last one reads a script.
NOT_HERE = set(
    "naive_all_reduce ring_all_reduce average_gradients accuracy zero1 shard clip f_and_g pipeline_step "
    "swap conversion".split()
)
OTHERS = {
    "lab05_horovod",
    "lab11_from_one_gpu_to_ddp",
    "lab16_find_the_fault",
}  # the answer is a script or a diagnosis


def checks() -> list:
    """Return all checks that call one function of the learner in this process."""
    found = []
    for path in sorted(Path(exercises.__file__).parent.glob("lab*.py")):
        if path.stem not in OTHERS:
            module = import_module(f"hvdlab.exercises.{path.stem}")
            found += [one for name, one in vars(module).items() if name.startswith("check_")]
    return [
        check
        for check in found
        if check.__module__ != "hvdlab.exercises" and len(inspect.signature(check).parameters) == 1
        if check.__name__.removeprefix("check_") not in NOT_HERE
    ]


def stub(*arguments):
    raise NotImplementedError("Lab 2, exercise 1: write it")


def broken(*arguments):
    return 1 / 0


def nothing(*arguments):
    pass


def test_there_are_checks():
    assert len(checks()) > 30


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.__name__)
def test_a_stub_keeps_its_message_and_all_else_becomes_a_sentence(check):
    with pytest.raises(NotImplementedError, match="^Lab 2, exercise 1: write it$"):
        check(stub)
    with pytest.raises(NotYet, match="raises ZeroDivisionError: division by zero, in `"):
        check(broken)
    with pytest.raises(NotYet):
        check(nothing)
