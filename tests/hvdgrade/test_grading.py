"""How often a submission is run, and which run decides: rounds whose results are given."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hvdgrade import grade, profiles, run_command
from hvdgrade.evidence import evaluator
from hvdgrade.evidence.evidence import Evidence
from hvdgrade.evidence.observation import Calibration, Observation, OtherWork, ProbeForm, Weights
from hvdgrade.judge import timeline
from hvdgrade.judge.check import Check
from hvdgrade.judge.verdict import Judgement, Round
from hvdgrade.record_limits import RecordLimits
from hvdgrade.report.result import Graded, result
from hvdgrade.run import calibrate, monitor
from hvdgrade.run import job as job_module
from hvdgrade.run import probe as probe_module
from hvdgrade.run.job import Job
from hvdgrade.sandbox import mounts, tiers
from hvdlab.assessment_networks import network_weights
from hvdlab.data import DataError

RULES = dataclasses.replace(profiles.load("dli"), budget=100.0)  # margin: 5 seconds


def a_round(seconds: float | None, replicas="pass", exchange="pass") -> Round:
    """All is well but the time: the target was reached after `seconds`. Or two other checks."""
    good = seconds is not None and seconds <= 100
    # What cannot be measured on a machine is of no points there.
    checks = [
        Check("replicas", "", replicas, 15, ""),
        Check("exchange", "", exchange, 0 if exchange == "skipped" else 10, ""),
        Check("targets", "", "pass" if good else "fail", 30, ""),
    ]
    entries = [timeline.Entry(seconds, epoch, 1.0, 1.0) for epoch in range(2)] if seconds else []
    return Round(Judgement(checks, entries, seconds), Evidence(Observation(2)), 100.0)


@pytest.mark.parametrize(
    "given, used, verdict",
    [
        ([50], 1, "pass"),
        ([None], 1, "fail"),
        ([120], 1, "fail"),
        ([97, 98, 99], 3, "pass"),
        ([97, 120, 98], 3, "pass"),
        ([103, 80, 99], 3, "pass"),  # the second is clear, and yet it is two of three
        ([103, 80, 120], 3, "fail"),
        ([97, None, 120], 3, "fail"),
        ([97, OSError(), 120, None], 3, "fail"),  # each round has a second try
        ([OSError(), 97, OSError(), 98, OSError(), 99], 3, "pass"),
        ([97, OSError(), OSError()], 0, None),
        ([evaluator.GraderFault("the evaluation failed"), 97, 98, 99], 3, "pass"),
        ([calibrate.CalibrationFailed("did not finish")] * 2, 0, None),
        ([evaluator.GraderFault("the evaluation failed")] * 2, 0, None),
        ([DataError("not there")] * 2, 0, None),
        # The one that passes has the time in the middle, and is one of three.
        ([97, (50, "fail"), (98, "fail")], 3, "fail"),
        ([(97, "pass", "skipped"), 98, 120], 3, "pass"),
        ([(97, "fail")], 1, "fail"),
    ],
)
def test_the_majority_of_three_decides_near_a_threshold(
    given, used, verdict, monkeypatch, tmp_path
):
    results = iter(given)

    def next_round(*args):
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return a_round(*result) if isinstance(result, tuple) else a_round(result)

    found = graded(next_round, monkeypatch, tmp_path)
    if verdict is None:
        assert (found.status, found.reason) == ("infrastructure_error", str(given[-1]))
    else:
        assert len(found.rounds) == used
        assert found.decisive.judgement.verdict == verdict
    assert next(results, "none left") == "none left"


def graded(next_round, monkeypatch, tmp_path) -> Graded:
    """What the report is made from, with rounds that are given."""
    script, found = tmp_path / "assessment.py", []
    script.write_text("import torch")
    monkeypatch.setattr(grade, "one_round", next_round)
    monkeypatch.setattr(
        grade, "load_cifar10", lambda: type("Data", (), {"synthetic": False, "folder": Path()})
    )
    monkeypatch.setattr(tiers, "choose", lambda tier: "rlimits")
    monkeypatch.setattr(grade, "result", found.append)
    grade.grade(script, 2, RULES, hints=False)
    return found[0]


def busy_round(seconds: float | None) -> Round:
    """Return a round in which others took half of the processor time; None: it was ended at the budget."""
    given = a_round(seconds)
    seen = Observation(2, stop_cause="timeout", other_work=OtherWork(100.0, 0.5))
    return dataclasses.replace(given, evidence=Evidence(seen))


@pytest.mark.parametrize(
    "given, used, verdict",
    [
        ([(50, "busy")], 1, "pass"),
        ([(120, "busy"), (50, "busy")], 1, "pass"),  # in time, although the machine was busy
        ([(None, "busy"), (120, "busy"), (50, "quiet")], 1, "pass"),
        ([(None, "busy"), (120, "quiet")], 1, "fail"),
        ([(None, "busy"), (120, "busy"), (120, "busy")], 0, None),
        ([(97, "busy"), (120, "busy"), (98, "busy"), (99, "quiet")], 3, "pass"),
        ([(97, "quiet"), (120, "busy"), (120, "busy"), (98, "quiet"), (120, "busy")], 0, None),
    ],
)
def test_a_late_round_on_a_busy_machine_is_repeated_twice_and_then_not_judged(
    given, used, verdict, monkeypatch, tmp_path
):
    results = iter(given)

    def next_round(*args):
        seconds, machine = next(results)
        return busy_round(seconds) if machine == "busy" else a_round(seconds)

    found = graded(next_round, monkeypatch, tmp_path)
    if verdict is None:
        assert (found.status, found.grade_again) == ("not_gradable", True)
        assert "the machine was busy" in found.reason and "50%, 50%, 50%" in found.reason
        document = result(dataclasses.replace(found, tier=None))
        assert run_command.exit_code(document) == run_command.NOT_GRADABLE == 2
        assert document["score"] is None and document["grade_again"] is True
    else:
        assert (found.status, found.grade_again) == ("graded", False)
        assert len(found.rounds) == used
        assert found.decisive.judgement.verdict == verdict
    assert next(results, "none left") == "none left"


@pytest.mark.parametrize(
    "ends, used, verdict",
    [
        (["killed", "ended", "ended"], 3, "pass"),
        (["killed", "killed", "ended"], 3, "fail"),
        (["ended"], 1, "pass"),
        (["crashed"], 1, "fail"),  # an exception of its own is no accident
        (["killed early"], 1, "fail"),
        (["killed too late"], 1, "fail"),  # or who has failed would try again
    ],
)
def test_a_run_that_aborts_when_all_has_arrived_is_repeated(
    ends, used, verdict, monkeypatch, tmp_path
):
    given = iter(ends)

    def next_round(*args):
        end = next(given)
        epochs = 3 if end != "killed early" else 1
        weights = [Weights(r, e, 1.0, tmp_path, "") for r in (0, 1) for e in range(epochs)]
        seen = Observation(2, stop_cause=end.split()[0], weights=weights)
        judged = a_round(50 if end == "ended" else None).judgement
        if end.startswith("killed"):
            judged.seconds_to_target = 101.0 if end == "killed too late" else 50.0
        return Round(judged, Evidence(seen), 100.0)

    found = graded(next_round, monkeypatch, tmp_path)
    assert len(found.rounds) == used
    assert found.decisive.judgement.verdict == verdict


def test_an_evaluation_that_fails_or_takes_too_long_is_a_fault_of_the_grader():
    """In its own process, as it is: a request that it does not understand, and a limit it cannot keep."""
    with pytest.raises(evaluator.GraderFault, match=r"the evaluation failed: (?s:.*)IndexError"):
        evaluator.ask({"epochs": {"0": []}}, RULES, 0)
    with pytest.raises(evaluator.GraderFault, match="the evaluation took over 0 s"):
        evaluator.ask({}, dataclasses.replace(RULES, evaluation_seconds=0.001), 0)


RATE = '{"ready": %s, "images_per_second": %s}'
TAGS = ["[1,%d]<stdout>: ", "[1,%d]<stdout>:"]  # of Open MPI 5, and of Open MPI 4


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize(
    "printed, startup, rates",
    [
        ([RATE % (103, 50), RATE % (105, 70)], 5.0, [50, 70]),  # the last one to be ready counts
        ([RATE % (103, 50)], None, None),  # one rank's rate is not there
        ([RATE % (103, 50), RATE % (105, 0)], None, None),
        ([RATE % (103, 50), RATE % (105, '"fast"')], None, None),
        ([RATE % (103, 50), '{"ready": 105}'], None, None),
    ],
)
def test_a_calibration_that_did_not_finish_is_a_fault_of_the_grader(
    printed, startup, rates, tag, monkeypatch, tmp_path
):
    output = "".join(f"{tag % rank}{line}\n" for rank, line in enumerate(printed))
    seen = Observation(2, stop_cause="ended", exit_code=0, started=100.0, output=output)
    monkeypatch.setattr(job_module, "SandboxedRun", lambda *args, **options: nullcontext())
    monkeypatch.setattr(calibrate, "observe", lambda *args, **options: seen)

    def measure():
        return calibrate.calibrate("torch", Job(b"", 2, RULES, "rlimits"), tmp_path)

    if rates is None:
        with pytest.raises(calibrate.CalibrationFailed, match="torch on 2 ranks did not finish"):
            measure()
    else:
        assert measure() == Calibration("torch", startup, rates)


@pytest.mark.parametrize(
    "ranks, cores, graded, limit",
    [(2, 2, 60, 90), (2, 1, 60, 180), (8, 16, 60, 90), (8, 2, 60, 360), (2, 2, 530, 530)],
)
def test_ranks_that_share_cores_or_a_slow_machine_have_more_time_in_the_probe(
    ranks, cores, graded, limit, monkeypatch, tmp_path
):
    def stopped(jail, folder, seconds, *rest, **options):
        limits.append(seconds)
        return Observation(ranks, stop_cause="timeout")

    limits = []
    monkeypatch.setattr(probe_module, "usable_cores", lambda: cores)
    monkeypatch.setattr(probe_module, "observe", stopped)
    jail = SimpleNamespace(views_enforced=True)
    monkeypatch.setattr(job_module, "SandboxedRun", lambda *args, **options: nullcontext(jail))

    def views(folder, steps):
        return [tmp_path] * ranks, tmp_path

    job = Job(b"", ranks, RULES, "rlimits")
    given = (job, views, tmp_path, 8, tmp_path, ProbeForm())
    assert probe_module.probe(*given, graded_seconds=graded).failed
    assert limits == [limit]


@pytest.mark.parametrize("network, epochs", [("assessment-net", 100), ("wrn-16-10", 20)])
@pytest.mark.parametrize("ranks", [1, 2, 5, 16, 64])
def test_a_right_script_of_many_ranks_may_record_every_epoch(ranks, network, epochs, tmp_path):
    """As np.savez writes them: the weights, and the indices of each rank's part of 50,000 images."""
    part = -(-50_000 // ranks)
    arrays = {n: np.zeros(shape, np.float32) for n, shape in network_weights(network).items()}
    np.savez(tmp_path / "epoch.npz", examples_read=np.zeros(part, np.int32), **arrays)
    size = (tmp_path / "epoch.npz").stat().st_size
    limits, whole = RecordLimits.of(network, epochs), ranks * epochs * size
    assert whole < limits.all_bytes(ranks) <= max(1 << 30, 1.4 * whole)
    assert size < limits.file_bytes <= size + (8 << 20)


def test_a_calibrated_budget_is_the_time_of_one_process():
    """By hand: images/s of 100 and 200, so 150 on average, and 3 s until the first step."""
    assert Calibration("torch", 3.0, [100, 200]).budget(300, 2.5) == 3 + 5


@pytest.mark.parametrize(
    "source, ran_torch, measured, budget, seconds",
    [
        (b"import torch", True, ["torch"], 20.5, 3.75),
        (b"import keras", False, ["keras"], 55.0, 10.0),
        (
            b"import keras",
            True,
            ["keras", "torch"],
            20.5,
            3.75,
        ),  # who bought the slower one's budget
    ],
)
def test_the_budget_is_of_what_the_ranks_run(
    source, ran_torch, measured, budget, seconds, monkeypatch, tmp_path
):
    found = {
        "keras": Calibration("keras", 3.0, [100, 200]),
        "torch": Calibration("torch", 1.0, [400, 400]),
    }
    asked, judged = [], {}

    def measure(framework, *rest):
        asked.append(framework)
        return found[framework]

    def run(jail, evidence, **limits):
        judged["limit"] = limits["limit"]
        return Observation(2, torch_seen=ran_torch, free_bytes=1 << 40)

    def remember(evidence, rules, budget, done):
        judged.update(budget=budget, seconds=evidence.pass_seconds)

    monkeypatch.setattr(grade.hidden_data, "for_run", lambda *_: tmp_path)
    monkeypatch.setattr(grade.calibrate, "calibrate", measure)
    monkeypatch.setattr(job_module, "SandboxedRun", lambda *_, **__: nullcontext())
    monkeypatch.setattr(grade, "observe", run)
    monkeypatch.setattr(grade.evaluator, "compare", lambda *_: ([], []))
    monkeypatch.setattr(grade.verdict, "judge", remember)
    data = SimpleNamespace(train_labels=[0] * 3000, test_labels=[0] * 10, folder=tmp_path)
    rules = dataclasses.replace(profiles.load("cpu"), budget_serial_epochs=2.6)
    grade.one_round(Job(source, 2, rules, "rlimits", data=data))
    assert asked == measured
    assert judged["budget"] == pytest.approx(budget)  # such as 1 + 2.6 x 3000 / 400
    assert judged["seconds"] == pytest.approx(seconds)  # 3000 images, two ranks of 400 a second
    before = found[measured[0]].budget(3000, 2.6)
    assert judged["limit"] == pytest.approx(before + 1)


def test_the_seconds_of_each_stage_are_added_up(monkeypatch):
    now, told = [10.0], []
    monkeypatch.setattr(grade.time, "monotonic", lambda: now[0])
    clock = grade.StageClock(lambda text, **facts: told.append((text, facts)))

    def after(seconds, text, **facts):
        now[0] += seconds
        clock(text, **facts)

    after(2, "measuring ...", stage="calibrating")
    after(3, "3 s")
    after(4, "running ...", stage="running")
    after(5, "close to a threshold")
    after(1, "measuring ...", stage="calibrating")  # of the second round
    after(6, "")
    assert clock.seconds == {"preparing": 2, "calibrating": 3 + 4 + 6, "running": 5 + 1}
    assert told[1:3] == [("3 s", {}), ("running ...", {"stage": "running"})]


@pytest.mark.mpi
def test_who_crashes_on_a_full_disk_has_not_failed(monkeypatch, cifar10_folder):
    """Somebody else may have filled it; who crashes elsewhere has."""
    monkeypatch.setenv("HVDLAB_DATA", str(cifar10_folder))
    crashes = Path(__file__).parents[1] / "fixtures" / "submissions" / "crashes"
    assert grade.grade(crashes, 2, RULES, hints=False)["verdict"] == "fail"
    full = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(monitor, "disk_usage", lambda folder: full)
    document = grade.grade(crashes, 2, RULES, hints=False)
    assert document["status"] == "infrastructure_error"
    assert document["reason"] == "the grader's disk was full while the submission ran"


@pytest.mark.parametrize("tier", [name for name in tiers.TIERS if name != "user"])
def test_data_that_every_submission_can_read_are_refused(
    tier, monkeypatch, tmp_path, sample_folder
):
    """As in /usr/share, or in the home of a Python that was built with --prefix=$HOME."""
    monkeypatch.setattr(tiers, "choose", lambda required: tier)
    monkeypatch.setattr(grade, "one_round", lambda *args: a_round(50))
    script = tmp_path / "assessment.py"
    script.write_text("import torch")
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    assert grade.grade(script, 2, RULES, hints=False)["verdict"] == "pass"

    link = tmp_path / "system"
    link.symlink_to(sample_folder.parent)
    monkeypatch.setattr(mounts, "SYSTEM", (*mounts.SYSTEM, str(link)))
    result = grade.grade(script, 2, RULES, hints=False)
    if tier == "rlimits":  # which says that it hides nothing
        assert result["verdict"] == "pass"
    else:
        assert (result["status"], result["verdict"]) == ("infrastructure_error", None)
        assert str(sample_folder.resolve()) in result["reason"]


def test_data_that_every_user_can_read_are_refused_in_the_tier_user(open_folder):
    data = open_folder / "data"
    data.mkdir(mode=0o700)
    assert mounts.why_exposed(data, "user") == ""
    data.chmod(0o755)
    assert f"`chmod 700 {data}`" in mounts.why_exposed(data, "user")
    open_folder.chmod(0o700)  # as root's home is
    assert mounts.why_exposed(data, "user") == ""


def test_in_the_repository_data_are_covered_where_it_is(monkeypatch, tmp_path):
    """By bubblewrap, which puts an empty folder over it, and the environment back into that."""
    for folder in ("data", "venv/data"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(mounts, "readable", lambda: [str(tmp_path.parent)])
    monkeypatch.setattr(mounts, "hidden", lambda: str(tmp_path))
    monkeypatch.setattr(mounts, "packages", lambda: [str(tmp_path / "venv")])
    assert not mounts.why_exposed(tmp_path / "data", "bubblewrap")
    assert mounts.why_exposed(tmp_path / "data", "landlock")
    assert mounts.why_exposed(tmp_path / "venv" / "data", "bubblewrap")
    assert mounts.why_exposed(tmp_path.parent / "data", "bubblewrap+cgroup")
