"""Grades one submission, from its file to a result document.

Calibrate, run, compare, probe, recompute, judge. A verdict that hangs on less than the margins of
the profile, or on a crash when all was done, is made by the majority of three such rounds; a fault of
the grader's own is tried again once.
"""

import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from hvdgrade import calibrate, judge, parallel, report, sandbox, views, visible
from hvdgrade.jail import Jail
from hvdgrade.observe import Observation, observe
from hvdgrade.probe import Probe, probe
from hvdgrade.profile import Profile
from hvdgrade.submission import NotGradable, read_script
from hvdlab.assessment_networks import VARIABLE
from hvdlab.data import DataError, Dataset, load_cifar10
from hvdlab.system.hardware import visible_gpus

LEAST_FREE_BYTES = 64 << 20  # with less, a crash may be the fault of whoever filled the disk
FAULTS = (
    *(DataError, calibrate.CalibrationFailed, judge.GraderFault, OSError),
    *(psutil.Error, subprocess.TimeoutExpired),
)


class NoGpu(Exception):
    """The profile needs a GPU, and this machine shows none: never the submission's fault."""


@dataclass
class Round:
    """What one calibration, run and probe gave."""

    judgement: judge.Judgement
    seen: Observation
    probe: Probe | None
    budget: float
    calibration: calibrate.Calibration | None

    @property
    def ratio(self) -> float:
        """Seconds to the target / budget; infinite where it was not reached."""
        reached = self.judgement.seconds_to_target
        return float("inf") if reached is None else reached / self.budget


class StageClock:
    """A `tell` that passes everything on, and adds up the seconds of each stage."""

    def __init__(self, tell):
        self.tell, self.stage, self.since = tell, "preparing", time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, text: str, **facts) -> None:
        now = time.monotonic()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self.since
        self.stage, self.since = facts.get("stage", self.stage), now
        self.tell(text, **facts)


def grade(
    path: Path,
    ranks: int,
    rules: Profile,
    tell=lambda text, **facts: None,
    required_tier: str | None = None,
) -> dict:
    """Grade one submission and return the result document.

    Args:
        path: the script, or a folder that holds assessment.py.
        ranks: number of processes.
        rules: the thresholds, from `profile.load`.
        tell: called with a line about what is going on, and facts about it; a stage ends in "...".
        required_tier: the weakest sandbox that will do; the default takes the best there is.
    """
    tell = clock = StageClock(tell)
    source, facts, rounds = b"", {}, []
    wanted, why, again = 1, "", False
    try:
        if not 1 <= ranks <= rules.max_ranks:
            raise NotGradable(f"-np must be in 1..{rules.max_ranks}. Received: {ranks}")
        if rules.devices == "gpu" and not visible_gpus():
            raise NoGpu(
                f"the profile {rules.name} needs a GPU, and nvidia-smi lists none here. Grade on another "
                "machine, or with another --profile"
            )
        source = read_script(path)
        tier = sandbox.choose(required_tier)
        data = load_cifar10()
        if tier != "rlimits" and visible.exposed(data.folder, tier):  # there all is, and it says so
            raise DataError(
                f"a submission could read the hidden test images: {data.folder} lies among the files of the "
                "system or of Python, which it needs. Move the data, and name their folder in $HVDLAB_DATA."
            )
        facts |= {"synthetic": data.synthetic, "tier": tier}
        while len(rounds) < wanted:
            if rounds:
                tell(f"{why}: round {len(rounds) + 1} of {wanted} ...")
            try:
                rounds.append(one_round(source, ranks, rules, data, tier, tell))
            except FAULTS:
                if again:
                    raise
                again = True
                tell("something went wrong on the grader's side: once more ...")
            else:
                again = False
                # The first round alone decides whether there are more, so that all of them count.
                first = rounds[0]
                if judge.near_a_threshold(first.judgement, rules, first.budget):
                    wanted, why = 1 + rules.repeats, "close to a threshold"
                elif judge.died_at_its_end(first.seen, rules) and first.ratio <= 1:
                    wanted, why = 1 + rules.repeats, "it died when all was done"
    except NotGradable as error:
        facts |= {"status": "not_gradable", "reason": str(error)}
    except (*FAULTS, sandbox.SandboxUnavailable, NoGpu) as error:
        facts |= {"status": "infrastructure_error", "reason": str(error)}
    finally:
        tell("")
    return report.result(
        path,
        source,
        rules,
        ranks,
        rounds=rounds,
        decisive=decisive(rounds) if rounds else None,
        stages=clock.seconds,
        **facts,
    )


def one_round(source: bytes, ranks: int, rules: Profile, data: Dataset, tier: str, tell) -> Round:
    """Measure this machine, run the submission and the probe, and judge what was seen."""
    seed = secrets.randbits(64)
    hidden = views.Secrets.draw(seed, len(data.train_labels), len(data.test_labels))
    kind = judge.framework(source)
    with tempfile.TemporaryDirectory(prefix="hvdgrade-evidence-") as folder:
        folder = Path(folder)
        folder.chmod(0o711)  # a submission that runs as another user reaches the data in it
        shown = views.for_run(data, hidden, folder / "data")
        evidence = folder / "evidence"
        evidence.mkdir(mode=0o700)

        def measure(framework):
            tell(
                f"measuring what one process can do here with {framework} ...", stage="calibrating"
            )
            return calibrate.calibrate(framework, ranks, shown, rules, tier, tell)

        calibration, budget = None, rules.budget
        if rules.budget == "calibrated":
            calibration = measure(kind)
            budget = calibration.budget(len(data.train_labels), rules.budget_serial_epochs)
        tell("running the submission ...", stage="running")
        given = {"gpus": rules.uses_gpus, "records": rules.records}
        variables = {VARIABLE: rules.network}
        with Jail(source, ranks, shown, variables=variables, tier=tier, **given) as jail:
            limit = budget + 1  # so that what comes just too late is seen as that
            seen = observe(jail, evidence, limit, rules.stall_seconds, tell)
        if seen.stop_cause == "crashed" and seen.free_bytes < LEAST_FREE_BYTES:
            raise OSError("the grader's disk was full while the submission ran")
        tell("comparing the ranks ...", stage="comparing")
        evaluation, probed = judge.compare(seen, rules, len(data.train_labels)), None
        if judge.worth_probing(source, seen, evaluation, rules):
            each = judge.batch_size(evaluation["epochs"])
            given = views.for_probe(data, hidden, ranks, each, folder / "probe")
            probed = probe(source, ranks, given, each, evidence, rules, tier, tell)
        tell("recomputing accuracies ...", stage="evaluating")
        source_data = data.folder.resolve()
        evaluation, found = judge.recompute(evaluation, probed, rules, source_data, seed)
        for how in parallel.other_probes(probed, found, rules) if probed else ():
            again = probe(source, ranks, given, each, evidence, rules, tier, tell, **how)
            said = judge.examine(again, rules, source_data, seed)
            if said.get("distance", parallel.UNMOVED) <= rules.equivalence_tolerance:
                probed, found = again, said
                break
        if calibration and kind == "keras" and seen.torch_seen:
            # It imports Keras and also runs PyTorch, which is faster: the smaller budget holds.
            calibration = measure("torch")
            budget = min(
                budget, calibration.budget(len(data.train_labels), rules.budget_serial_epochs)
            )
    # Each of the ranks at the speed of a lonely process.
    seconds = calibration and len(data.train_labels) / (ranks * calibration.serial_rate)
    judgement = judge.judge(source, seen, evaluation, probed, found, rules, budget, seconds)
    return Round(judgement, seen, probed, budget, calibration)


def decisive(rounds: list[Round]) -> Round:
    """The round that stands for all: of three the one whose time to the target is the median."""
    return sorted(rounds, key=lambda one: (one.judgement.verdict != "pass", one.ratio))[
        len(rounds) // 2
    ]
