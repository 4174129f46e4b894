"""The checks of lab 12 know the mistake of each case, and whether a copy is mended."""

import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import find_the_fault as fault


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(fault, "WORK", tmp_path / "work")
    monkeypatch.setattr(fault, "QUICK", False)  # as `make test` sets it, which leaves cases out


@pytest.mark.parametrize("case", fault.CASES)
def test_a_copy_does_not_tell_its_mistake(case):
    text = fault.copy(case).read_text()
    assert text.startswith("import horovod.torch as hvd")
    assert fault.CASES[case] not in text


@pytest.mark.parametrize("case", fault.CASES)
def test_one_diagnosis_is_right(case, capsys):
    for name in fault.NAMES:
        if name == fault.EXPECTED[fault.CASES[case]]["finding"]:
            fault.check_diagnosis(case, name)
            assert "Right" in capsys.readouterr().out
        else:
            with pytest.raises(NotYet, match="[?] Look at"):
                fault.check_diagnosis(case, name)
    for none in ("bad luck", ["no-broadcast"], None):
        with pytest.raises(NotYet, match="none of the names"):
            fault.check_diagnosis(case, none)


def test_a_copy_as_it_came_is_not_mended():
    with pytest.raises(NotYet, match="as it came"):
        fault.check_mended(1)


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
def test_a_case_half_mended_and_mended():
    fault.replace(5, "        if hvd.rank() == 0:\n            mean =", "        mean =")
    fault.replace(5, "            print(", "        if hvd.rank() == 0:\n            print(")
    fault.check_mended(5)
    fault.replace(5, "lr=RATE * hvd.size()", "lr=RATE")
    with pytest.raises(NotYet, match="The learning rate does not grow"):
        fault.check_mended(5)


# Case -> what is taken out or put in so that `hvdlab check` finds nothing, and what is lost by that.
LOST = {
    1: [
        ("    model = nn.Seq", "    torch.manual_seed(1)\n    model = nn.Seq"),
        "nothing is broadcast",
    ],
    2: [("manual_seed(1)", "manual_seed(1 + hvd.rank())"), "still has 64 batches on each rank"],
    5: [
        (
            'mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()',
            "mean = total / len(loader)",
        ),
        "no loss is averaged any more",
    ],
    7: [("        if stale == 2:\n            break\n", ""), "does not stop early any more"],
}


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c == 2 else pytest.mark.thorough) for c in LOST]
)
def test_what_the_script_did_is_not_lost(case):
    change, says = LOST[case]
    fault.replace(case, *change)
    with pytest.raises(NotYet, match=says):
        fault.check_mended(case)
