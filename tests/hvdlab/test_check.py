"""`hvdlab check` names each planted mistake and no other, and is silent about correct scripts.

The default run takes some of both; `-m thorough` all of them. The judge alone is asked about events
written by hand.
"""

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from hvdlab.check import check, instrument
from hvdlab.check.command import CheckError
from hvdlab.check.findings import CATALOGUE, EXPLAINS
from hvdlab.check.judge import judge
from hvdlab.check.rates import rates
from hvdlab.check.source import read

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "labs" / "faults"
EXPECTED = tomllib.loads((FAULTS / "faults.toml").read_text())
CORRECT = {path.stem: path for path in (ROOT / "tests/fixtures/correct_scripts").glob("*.py")}
CORRECT |= {
    "cifar10_torch": ROOT / "labs/cifar10_torch.py",
    "cifar10_keras": ROOT / "labs/cifar10_keras.py",
    "solution_torch": ROOT / "assessment/solutions/torch/assessment.py",
    "solution_keras": ROOT / "assessment/solutions/keras/assessment.py",
}
ARGUMENTS = {"cifar10_torch": ["--images", "2000"], "cifar10_keras": ["--images", "2000"]}
QUICK = {
    "unequal_steps_generator_torch",  # a deadlock, noticed while it lasts
    "own_stop_torch",
    "wrapped_too_late_torch",  # the script crashes
    "identical_batches_torch",
    "gradients_not_averaged_keras",
    *("legacy_tape_style", "keras_fit_arrays", "torch_by_hand"),
}


def cases(names):
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
        for name in sorted(names)
    ]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", cases(EXPECTED))
def test_a_planted_mistake_is_named_and_no_other(name):
    found = check(FAULTS / f"{name}.py", timeout=200)
    named = [(one.id, one.line) for one in found.findings]
    assert named == [(EXPECTED[name]["finding"], EXPECTED[name]["line"])], found.findings
    assert found.ended in ("itself", "deadlock")
    assert not [p for p in psutil.process_iter() if _belongs_to(p, FAULTS / f"{name}.py")]


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", cases(CORRECT))
def test_a_correct_script_gives_no_finding(name):
    found = check(CORRECT[name], *ARGUMENTS.get(name, []), timeout=300)
    assert found.findings == []
    assert (found.error, found.ended) == (None, "itself")
    assert found.steps >= 8


def _belongs_to(process, script):
    try:
        return str(script) in process.cmdline()
    except psutil.Error:
        return False


def test_every_mistake_has_a_script():
    assert {one["finding"] for one in EXPECTED.values()} == set(CATALOGUE)
    assert {path.stem for path in FAULTS.glob("*.py")} == set(EXPECTED)
    assert len(CORRECT) >= 10
    assert QUICK <= set(EXPECTED) | set(CORRECT)
    assert set(EXPLAINS) | set().union(*EXPLAINS.values()) <= set(CATALOGUE)


def test_a_docstring_tells_the_symptom_and_not_the_mistake():
    for path in FAULTS.glob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text())).split("\n\n")[0]
        assert len(text) > 40, path
        title = CATALOGUE[EXPECTED[path.stem]["finding"]][0]
        assert title.lower() not in text.lower(), path


# --- the command ------------------------------------------------------------------------------------


def hvdlab_check(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "hvdlab.check", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "labs"), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.mpi
def test_the_command_shows_a_table_writes_json_and_says_by_its_exit_code_what_came():
    script = FAULTS / "init_missing_torch.py"
    done = hvdlab_check("-np", 2, "--json", "found.json", script)
    assert done.returncode == 1
    assert "init_missing_torch.py:6" in done.stdout and "hvd.init()" in done.stdout
    found = json.loads(Path("found.json").read_text())
    assert [(one["id"], one["line"]) for one in found["findings"]] == [("init-missing", 6)]


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, "is not a file"),
        ("def f(:\n", "line 1: Python cannot read it"),
    ],
)
def test_a_script_that_cannot_be_read_gets_one_sentence(text, sentence):
    script = Path("mine.py")
    if text is not None:
        script.write_text(text)
    done = hvdlab_check("-np", 2, script)
    assert done.returncode == 2
    assert sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text, library",
    [
        ("import torch.distributed as dist", "torch.distributed"),
        ("from torch import distributed", "torch.distributed"),
        ("from mpi4py import MPI", "mpi4py"),
    ],
)
def test_a_script_whose_ranks_meet_without_horovod_is_not_said_to_be_alone(text, library):
    Path("mine.py").write_text(text)
    with pytest.raises(CheckError, match=f"mine.py trains by {library}, and the mistakes that are"):
        check("mine.py", timeout=60)


@pytest.mark.mpi
def test_a_script_that_fails_before_it_trains_is_told_as_that():
    Path("mine.py").write_text("import horovod.torch as hvd\nhvd.init()\nopen('not there')\n")
    with pytest.raises(CheckError, match="made no step of training: .*FileNotFoundError.*line 3"):
        check("mine.py", timeout=60)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "end, sentence",
    [
        ("raise SystemExit('no data')", r"rank 0 ended with exit code 1 \(no data\), line 4"),
        ("os._exit(7)", "the ranks ended early: Exit code: 7"),
    ],
)
def test_how_a_script_ended_early_is_told(end, sentence):
    Path("mine.py").write_text(f"import os\nimport horovod.torch as hvd\nhvd.init()\n{end}\n")
    with pytest.raises(CheckError, match=f"mine.py made no step of training: {sentence}$"):
        check("mine.py", timeout=60)


@pytest.mark.mpi
def test_findings_that_cannot_be_written_are_shown_all_the_same():
    done = hvdlab_check("-np", 2, "--json", "not/there.json", FAULTS / "init_missing_torch.py")
    assert done.returncode == 2 and "hvd.init()" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "hvdlab: --json not/there.json cannot be written: No such file or directory."
    )


# --- the judge, on events written by hand --------------------------------------------------------------

SCRIPT = """\
import horovod.torch as hvd
hvd.init()
optimizer = SGD(model.parameters(), lr=0.1 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for batch in loader:
    optimizer.step()
"""


def run(steps=5, ranks=2, **changes):
    """The events of a run in which all is well. A change is a function (rank, step) -> value."""
    events = {}
    for rank in range(ranks):
        kinds = [
            {"kind": "start", "line": 0},
            {"kind": "init", "line": 2, "size": ranks},
            {"kind": "optimizer", "line": 3, "optimizer": 0, "name": "SGD"},
            {"kind": "wrap", "line": 4, "optimizer": 0, "averages": True, "reduces": "Average"},
            {"kind": "broadcast", "line": 5, "what": "hvd.broadcast_parameters"},
        ]
        for step in range(steps):
            facts = {
                "kind": "step", "line": 7, "optimizer": 0, "wrapped": True, "rate": 0.2,
                "momentum": 0.0, "weights": [1.0 + step, 2.0], "loss": 1.0,
                "batch": f"{rank}-{step}", "loops": [[6, step + 1]], "statistics": None,
            }  # fmt: skip
            facts |= {name: change(rank, step) for name, change in changes.items()}
            kinds.append(facts)
        kinds.append({"kind": "loop", "line": 6, "length": steps, "made": None, "nested": False})
        kinds.append({"kind": "pass", "line": 6, "iterations": steps, "left": "at its end"})
        kinds.append({"kind": "end", "line": None, "error": None, "loops": []})
        events[rank] = [{"at": i, "steps": 0, **event} for i, event in enumerate(kinds)]
    return events


@pytest.fixture
def facts(tmp_path):
    def of(*changes):
        text = SCRIPT
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "script.py").write_text(text)
        return read(tmp_path / "script.py")

    return of


def named(events, facts):
    return [(one.id, one.line) for one in judge(events, facts)]


def without(events, kind):
    return {rank: [e for e in of if e["kind"] != kind] for rank, of in events.items()}


def plus(events, rank, **event):
    events[rank].insert(-1, {"at": 99, "steps": 0, **event})
    return events


def test_a_good_run_has_no_finding(facts):
    assert named(run(), facts()) == []
    assert named(run(ranks=4), facts()) == []


def test_replicas_that_part_are_told_from_those_that_begin_apart(facts):
    apart = run(weights=lambda rank, step: [1.0 + rank, 2.0])
    later = run(weights=lambda rank, step: [1.0 + (rank if step >= 3 else 0), 2.0])
    assert named(without(apart, "broadcast"), facts()) == [("no-broadcast", 4)]
    assert named(apart, facts()) == [("replicas-diverged", 7)]
    found = judge(later, facts())
    assert found[0].id == "replicas-diverged" and "differ after step 4" in found[0].seen
    # Broadcast after the first step, as TensorFlow's examples do.
    assert named(run(weights=lambda r, s: [1.0 + (r if s == 0 else 0)]), facts()) == []


def test_rounding_in_the_norm_is_no_difference(facts):
    assert named(run(weights=lambda rank, step: [1.0 + 1e-12 * rank]), facts()) == []


def test_a_plain_optimizer_is_not_wrapped_or_wrapped_too_late(facts):
    plain = run(wrapped=lambda r, s: False, weights=lambda rank, step: [1.0 + rank * step])
    assert named(without(plain, "wrap"), facts()) == [("optimizer-not-wrapped", 3)]
    assert named(plain, facts()) == [("wrapped-too-late", 4)]
    # Equal weights and collectives: the script averages by itself.
    by_hand = without(run(wrapped=lambda r, s: False), "wrap")
    for rank in by_hand:
        plus(by_hand, rank, kind="collective", op="hvd.allreduce_", line=6)
    assert named(by_hand, facts()) == []


def test_equal_batches_are_a_mistake_only_if_all_are(facts):
    assert named(run(batch=lambda r, s: f"{s}"), facts()) == [("identical-batches", 6)]
    assert named(run(batch=lambda r, s: f"{s}" if s else f"{r}"), facts()) == []
    assert named(run(steps=2, batch=lambda r, s: f"{s}"), facts()) == []
    four = run(ranks=4, batch=lambda r, s: f"{min(r, 2)}{s}")
    assert "ranks 2 and 3" in judge(four, facts())[0].seen


def test_unequal_lengths_are_named_unless_the_script_joins(facts):
    events = run()
    next(e for e in events[1] if e["kind"] == "loop")["length"] = 4
    assert named(events, facts()) == [("unequal-steps", 6)]
    assert named(events, facts(("    optimizer.step()", "    optimizer.step()\nhvd.join()"))) == []


def test_a_stop_by_an_own_number_explains_the_unequal_steps(facts):
    events = run()
    next(e for e in events[1] if e["kind"] == "pass")["iterations"] = 9
    assert named(events, facts()) == [("unequal-steps", 6)]
    for rank in events:
        plus(events, rank, kind="decision", line=6, text="loss", value=0.5 + rank / 10)
    assert named(events, facts()) == [("own-stop", 6)]


def test_a_collective_of_one_rank_is_named_where_it_is(facts):
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=7)
    assert named(events, facts()) == [("collective-on-some-ranks", 7)]
    # One rank in each branch of an `if`: both call it.
    assert named(plus(events, 1, kind="collective", op="hvd.allreduce", line=9), facts()) == []


def test_a_crash_is_not_taken_for_a_missing_call(facts):
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=7)
    events[1][-1]["error"] = "ValueError: mine"
    assert named(events, facts()) == []
    events[1][-1]["error"] = "HorovodInternalError: Horovod has been shut down"
    assert named(events, facts()) == [("collective-on-some-ranks", 7)]


@pytest.mark.parametrize(
    "rate, more, power",
    [
        ("0.1 * hvd.size()", "", 1),
        ("0.1", "", 0),
        ("rate", "rate = 0.1 * size\nsize = hvd.size()", 1),
        ("args.lr * math.sqrt(hvd.size())", "", 0.5),
        ("args.lr", "args.lr *= hvd.size()", 1),
        ("0.1 * hvd.size() if big else 0.1", "", 1),
        ("0.1 * hvd.size()", "for group in optimizer.param_groups: group['lr'] *= hvd.size()", 2),
        ("0.1 * hvd.size()", "hvd.DistributedOptimizer(o, op=hvd.Sum)", 2),
        ("0.1 * hvd.size()", "LambdaLR(o, lambda t: min(1, t / 100) / hvd.size())", 1),
        ("0.1 * hvd.size()", "LambdaLR(o, lambda t: hvd.size() * t)", 2),
        ("rate()", "def rate(): return 0.1 * hvd.size()", 1),
        ("0.1 * hvd.size() / 8", "", 1),
    ],
)
def test_the_power_of_the_number_of_ranks_in_the_rate(rate, more, power):
    found = rates(ast.parse(f"{more}\noptimizer = torch.optim.SGD(ps, lr={rate})"))
    assert found.power == power


def test_an_unscaled_rate_is_right_where_the_global_batch_stays(facts):
    plain = facts(("lr=0.1 * hvd.size()", "lr=0.1"))
    assert named(run(), plain) == [("rate-unscaled", 3)]
    halved = facts(
        ("lr=0.1 * hvd.size()", "lr=0.1"), ("in loader", "in Loader(batch_size=64 // hvd.size())")
    )
    assert named(run(), halved) == []


def test_a_rate_with_two_factors_is_scaled_twice(facts):
    twice = facts(("0.1 * hvd.size()", "0.1 * hvd.size() * hvd.size()"))
    assert named(run(), twice) == [("rate-scaled-twice", 3)]


def test_a_wrapper_that_never_averages_explains_replicas_that_part(facts):
    events = run(weights=lambda rank, step: [1.0 + rank * step])
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "wrap")["averages"] = False
    assert named(events, facts()) == [("gradients-not-averaged", 4)]


def test_nothing_else_is_said_where_the_ranks_never_met(facts):
    alone = without(run(weights=lambda rank, step: [1.0 + rank]), "init")
    assert named(alone, facts(("hvd.init()", "pass"))) == [("init-missing", 1)]
    # It failed before it came to its hvd.init(): the error says it.
    alone[0][-1]["error"] = "FileNotFoundError: data"
    assert named(alone, facts()) == []


def test_a_file_of_all_ranks_is_a_mistake_and_one_of_each_is_none(facts):
    for names, wanted in ((["a", "a"], [("all-write-one-file", 7)]), (["a", "b"], [])):
        events = run()
        for rank, name in enumerate(names):
            plus(events, rank, kind="save", line=7, path=f"/{name}.pt")
        assert named(events, facts()) == wanted


def test_a_download_under_a_lock_is_no_race(facts):
    for locked, wanted in ((False, [("download-race", 2)]), (True, [])):
        events = run()
        for rank in events:
            plus(events, rank, kind="download", line=2, url="http://a/b", locked=locked)
        assert named(events, facts()) == wanted


def test_a_large_rate_wants_a_warmup(facts):
    large = run(rate=lambda r, s: 4.0)
    assert named(large, facts()) == [("no-warmup", 3)]
    assert named(run(rate=lambda r, s: 4.0 * (s + 1)), facts()) == []
    assert named(run(rate=lambda r, s: 0.4, momentum=lambda r, s: 0.9), facts()) == [
        ("no-warmup", 3)
    ]
    assert named(run(rate=lambda r, s: 0.2, momentum=lambda r, s: 0.9), facts()) == []


def test_statistics_may_differ_by_chance_and_not_by_more(facts):
    def statistics(difference):
        return lambda rank, step: [
            {"mean": [difference * rank * 0.5] * 4, "variance": [1.0] * 4, "filled": 0.5}
        ]

    assert named(run(statistics=statistics(0.1)), facts()) == []
    assert named(run(statistics=statistics(0.5)), facts()) == [("batch-norm-drift", 4)]


def test_a_gpu_is_chosen_by_the_rank_on_the_machine(facts):
    use = ("hvd.init()\n", "hvd.init()\nmodel.cuda()\n")
    assert named(run(), facts(use)) == [("device-not-pinned", 3)]
    pin = ("model.cuda()\n", "model.cuda(); torch.cuda.set_device(hvd.local_rank())\n")
    assert named(run(), facts(use, pin)) == []
    by_rank = ("model.cuda()\n", "model.cuda(); torch.cuda.set_device(hvd.rank())\n")
    assert named(run(), facts(use, by_rank)) == [("device-not-pinned", 3)]
    # The launcher shows each rank one GPU of its own.
    events = run()
    for rank in events:
        plus(events, rank, kind="devices", line=0, count=1, visible=str(rank))
    assert named(events, facts(use)) == []


# --- the source -------------------------------------------------------------------------------------------


def test_what_only_some_ranks_reach_is_guarded(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        """\
first = hvd.rank() == 0
if first:
    torch.save(a, "a.pt")
def save():
    torch.save(b, "b.pt")
if first and epoch == 3:
    save()
def log():
    if not first:
        return
    torch.save(c, "c.pt")
log()
torch.save(d, f"{hvd.rank()}.pt")
torch.save(e, "e.pt")
with FileLock("lock"):
    data = MNIST(".", download=True)
data = MNIST(".", download=True)
if first:
    handle = hvd.allreduce_async(a)
"""
    )
    found = read(path)
    assert found.saves == [14]
    assert found.downloads == [17]
    assert found.guarded == {19: 18}


def test_instrumenting_changes_no_result_and_no_line():
    source = """\
best, out = 9, []
for i in range(5):
    value = abs(i - 3)
    best = value if value < best else best
    if best == 0 and i > 2:
        break
    out.append((i, best))
else:
    out.append("else")
while len(out) < 9:
    out.append(0)
"""

    class Watch:
        seen = []

        def each(self, line, items):
            self.seen.append(("each", line))
            return items

        def again(self, line, test):
            return test

        def decide(self, line, text, value):
            self.seen.append((line, text))
            return value

    plain, watched = {}, {instrument.WATCH: Watch()}
    _run(compile(source, "script", "exec"), plain)
    _run(compile(instrument.instrument(source, "script"), "script", "exec"), watched)
    assert watched["out"] == plain["out"]
    assert ("each", 2) in Watch.seen
    assert {(5, "best"), (5, "value"), (5, "i")} <= set(Watch.seen)


def test_a_stop_that_rank_0_tells_the_others_is_not_its_own():
    """What is decided under a test of the rank, and then broadcast, is no rank's own decision."""
    source = """\
for epoch in range(9):
    stop = False
    if hvd.rank() == 0:
        stop = loss < 0.1
    stop = hvd.broadcast_object(stop)
    if stop:
        break
    if patience(loss) and best > 1:
        break
"""
    found = instrument.operands(ast.parse(source))
    assert sorted(ast.unparse(part) for part, line in found) == ["best", "loss", "stop"]
    assert dict((ast.unparse(part), line) for part, line in found)["loss"] == 8


def _run(code, names):
    import types

    types.FunctionType(code, names)()
