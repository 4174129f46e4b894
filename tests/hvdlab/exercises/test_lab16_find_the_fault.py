"""The checks of lab 16 know the mistake of each case, and whether a copy is fixed."""

import re
from pathlib import Path

import pytest

from hvdlab.check.run_events import Run
from hvdlab.exercises import NotYet
from hvdlab.exercises import lab16_find_the_fault as fault
from hvdlab.faults import faults
from hvdlab.script_analysis.script import Script

LAB = Path(__file__).parents[3] / "labs" / "16_find_the_fault.py"


def solution(case):
    """Return the lab's code that fixes the copy of a case."""
    begin = rf"^# BEGIN SOLUTION: fix your copy, case_{case}.py\n(.*?)^# END SOLUTION"
    return re.search(begin, LAB.read_text(), re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(fault, "WORK", tmp_path / "work")
    monkeypatch.setattr(fault, "QUICK", False)  # as `make test` sets it, which leaves cases out


@pytest.mark.parametrize("case", fault.CASES)
def test_a_copy_does_not_tell_its_mistake(case):
    text = fault.copy(case).read_text()
    assert text.startswith("import horovod.torch as hvd")
    assert fault.CASES[case] not in text


# Case -> evidence that is right, as a run shows it or as the script says.
EVIDENCE = {1: 0.8, 2: 100, 3: 0.001, 4: 33, 6: 4.0}


def evidence(case):
    """Return the right evidence; for the cases that ask for a line, find it in the copy."""
    if case in EVIDENCE:
        return EVIDENCE[case]
    wanted = {5: "hvd.allreduce(", 7: "if stale == 2"}[case]
    lines = fault.copy(case).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if wanted in line)


@pytest.mark.parametrize("case", fault.CASES)
def test_one_diagnosis_is_right(case, capsys):
    for name in fault.NAMES:
        if name == faults()[fault.CASES[case]].finding:
            fault.check_diagnosis(case, name, evidence(case))
            assert "Right" in capsys.readouterr().out
        else:
            with pytest.raises(NotYet, match="[?] Look at"):
                fault.check_diagnosis(case, name, evidence(case))
    for none in ("bad luck", ["no-broadcast"], None):
        with pytest.raises(NotYet, match="none of the names"):
            fault.check_diagnosis(case, none, evidence(case))


@pytest.mark.parametrize("case", fault.CASES)
def test_a_diagnosis_without_evidence_is_not_accepted(case):
    name = faults()[fault.CASES[case]].finding
    with pytest.raises(NotYet, match="A diagnosis needs evidence"):
        fault.check_diagnosis(case, name)
    for wrong in (0, -1, 1000):
        with pytest.raises(NotYet, match=f"^{wrong} is not the ") as said:
            fault.check_diagnosis(case, name, wrong)
        assert name not in str(said.value)  # it does not tell the mistake
        assert fault.NAMES[name] not in str(said.value)
    with pytest.raises(NotYet, match="one number"):
        fault.check_diagnosis(case, name, "the weights")


def test_the_evidence_of_case_1_is_not_that_of_case_3():
    with pytest.raises(NotYet):
        fault.check_diagnosis(1, "no-broadcast", EVIDENCE[3])
    with pytest.raises(NotYet):
        fault.check_diagnosis(3, "optimizer-not-wrapped", EVIDENCE[1])


def first_difference(values0, values1, tolerance, start=1):
    for step, (one, two) in enumerate(zip(values0, values1, strict=True), start):
        if abs(one - two) > tolerance:
            return step


def missing_ranks(waiting, size):
    names = set(waiting.values())
    return {name: [r for r in range(size) if waiting.get(r) != name] for name in names}


def test_the_small_functions_are_right(capsys):
    fault.check_first_difference(first_difference)
    fault.check_missing_ranks(missing_ranks)
    assert capsys.readouterr().out.count("Right: ") == 2


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (fault.check_first_difference, lambda a, b, t: first_difference(a, b, t, 0), "counted from 1, not"),
        (fault.check_first_difference, lambda a, b, t: first_difference(a, b, 0),
         "larger than the tolerance"),
        (fault.check_first_difference, lambda a, b, t: first_difference(a, [x for x in b], t) or 0,
         "expected None"),
        (fault.check_first_difference,
         lambda a, b, t: next((i for i, p in enumerate(zip(a, b, strict=True), 1) if p[0] - p[1] > t), None),
         "smaller or larger|agree"),
        (fault.check_first_difference,
         lambda a, b, t: max((i for i, p in enumerate(zip(a, b, strict=True), 1) if abs(p[0] - p[1]) > t),
                             default=None), "the values of step 1 agree|The values of step 1 agree"),
        (fault.check_missing_ranks, lambda w, n: {v: [r for r in w if w[r] == v] for v in w.values()},
         "Name the others"),
        (fault.check_missing_ranks, lambda w, n: [1, 3], "must return a dict"),
        (fault.check_missing_ranks, lambda w, n: {v: [r for r in range(n) if r not in w] for v in w.values()},
         "waits in another collective"),
        (fault.check_missing_ranks, lambda w, n: {k: v for k, v in missing_ranks(w, n).items() if v},
         "then it is the network"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_small_function_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)


def test_watching_a_case_makes_a_copy_and_keeps_it(capsys, monkeypatch):
    monkeypatch.setattr(fault, "QUICK", True)
    assert fault.watch(3) is None
    (copy,) = fault.WORK.iterdir()
    assert copy.name == "case_3.py" and str(copy) in capsys.readouterr().out
    copy.write_text("mine")
    fault.watch(3)
    assert [path.read_text() for path in fault.WORK.iterdir()] == ["mine"]


def test_an_unchanged_copy_is_not_fixed():
    with pytest.raises(NotYet, match="is unchanged"):
        fault.check_fixed(1)


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
def test_a_case_half_fixed_and_fixed():
    fault.replace(5, "        if hvd.rank() == 0:\n            mean =", "        mean =")
    fault.replace(5, "            print(", "        if hvd.rank() == 0:\n            print(")
    fault.check_fixed(5)
    fault.replace(5, "lr=RATE * hvd.size()", "lr=RATE")
    with pytest.raises(NotYet, match="The learning rate does not grow"):
        fault.check_fixed(5)


# Case -> other ways to do what the script was to do, as (text, instead).
AS_GOOD = [
    (1, "EPOCHS, BATCH", "from horovod.torch import broadcast_parameters\nEPOCHS, BATCH",
     "    for epoch", "    broadcast_parameters(model.state_dict(), root_rank=0)\n    for epoch"),
    (1, "EPOCHS, BATCH", "from horovod.torch import broadcast_parameters as hand_out\nEPOCHS, BATCH",
     "    for epoch", "    hand_out(model.state_dict(), root_rank=0)\n    for epoch"),
    (1, "EPOCHS, BATCH", "from mpi4py.MPI import COMM_WORLD\nEPOCHS, BATCH",
     "    for epoch", "    model.load_state_dict(COMM_WORLD.bcast(model.state_dict()))\n    for epoch"),
    (5, "EPOCHS, BATCH", "from horovod.torch import allreduce as mean_of\nEPOCHS, BATCH",
     "hvd.allreduce(", "mean_of("),
    (7, "            break\n", "            return\n"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "changes"), [(case, changes) for case, *changes in AS_GOOD])
def test_nothing_is_lost_by_another_spelling(case, changes):
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        fault.replace(case, old, new)
    assert not fault._lost(case, Script(fault.copy(case).read_bytes()), Run({}))


def test_what_is_imported_alone_or_returned_after_the_loop_is_lost():
    fault.replace(1, "EPOCHS, B", "from horovod.torch import broadcast_parameters\nEPOCHS, B")
    assert "nothing is broadcast" in fault._lost(1, Script(fault.copy(1).read_bytes()), Run({}))
    fault.replace(7, "        if stale == 2:\n            break\n", "    return\n")
    assert "stop early" in fault._lost(7, Script(fault.copy(7).read_bytes()), Run({}))


# Case -> what its log shows; the lab asks for it, and its hints speak of it.
SYMPTOMS = {
    1: lambda log: [(log.distance() > 0.005).all(), _batches_differ(log)],
    2: lambda log: [(log.distance() == 0).all(), not _batches_differ(log)],
    3: lambda log: [0 < log.distance()[1] < 0.005, log.distance().iloc[-1] > 0, _batches_differ(log)],
    4: lambda log: [list(log.ends["length"]) == [33, 32]],
    5: lambda log: [log.ends["steps"].nunique() == 1, log.ends["end"].str.contains("waits").all(),
                    log.ends["end"].nunique() == 2],
    6: lambda log: [(log.side_by_side("rate").loc[1] == 0.08).all()],
    7: lambda log: [(log.distance() == 0).all(), log.side_by_side("loss").iloc[-1].nunique() == 2],
}  # fmt: skip


def _batches_differ(log):
    batches = log.side_by_side("batch")
    return (batches[0] != batches[1]).all()


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.thorough
@pytest.mark.parametrize("case", fault.CASES)
def test_each_case_shows_its_symptoms_and_is_fixed_by_the_labs_solution(case, capsys):
    found = SYMPTOMS[case](fault.watch(case))
    assert all(found), found
    exec(solution(case), {"fault": fault})
    fault.check_fixed(case)
    assert "Right: two ranks" in capsys.readouterr().out


# Case -> what is taken out or put in so that `hvdlab check` finds nothing, and what is lost by that.
LOST = {
    1: ("    model = nn.Seq", "    torch.manual_seed(1)\n    model = nn.Seq", "nothing is broadcast"),
    2: ("manual_seed(1)", "manual_seed(1 + hvd.rank())", "epoch has 64 batches on each rank"),
    4: ("slice(hvd.rank(), None, hvd.size())", "slice(None)", "epoch has 65 batches on each rank"),
    5: ('mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()',
        "mean = total / len(loader)", "no loss is averaged any more"),
    7: ("        if stale == 2:\n            break\n", "", "does not stop early any more"),
}  # fmt: skip


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.thorough
def test_a_sampler_that_is_not_told_the_epoch_is_named():
    without = "\n".join(line for line in solution(2).splitlines() if "set_epoch" not in line)
    assert without != solution(2).rstrip("\n")
    exec(without, {"fault": fault})
    with pytest.raises(NotYet, match="both epochs read the images in one order.*set_epoch"):
        fault.check_fixed(2)


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.thorough
@pytest.mark.parametrize("case", LOST)
def test_what_the_script_did_is_not_lost(case):
    *change, says = LOST[case]
    fault.replace(case, *change)
    with pytest.raises(NotYet, match=says):
        fault.check_fixed(case)
