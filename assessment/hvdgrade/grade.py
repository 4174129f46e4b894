"""Grade one submission, from its file to a result document.

A round consists of six stages: calibrate, run, compare, probe, recompute, judge. If the verdict is closer to
a threshold than the margins of the profile, or if the script crashed after all epochs were done, the majority
of three rounds decides. After a fault of the grader itself, the round is repeated once.
"""

import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from hvdgrade.evidence import evaluator, hidden_data
from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.judge import parallel_checks, verdict
from hvdgrade.profiles import Profile
from hvdgrade.report import result
from hvdgrade.run import calibrate
from hvdgrade.run.monitor import observe
from hvdgrade.run.probe import probe
from hvdgrade.run.sandboxed_run import Jail
from hvdgrade.sandbox import mounts, tiers
from hvdgrade.submission.script import NotGradable, read_script
from hvdlab.assessment_networks import VARIABLE
from hvdlab.data import DataError, Dataset, load_cifar10
from hvdlab.system.hardware import visible_gpus

# With less free disk space, a crash may be caused by another process that filled the disk.
LEAST_FREE_BYTES = 64 << 20
FAULTS = (
    *(DataError, calibrate.CalibrationFailed, evaluator.GraderFault, OSError),
    *(psutil.Error, subprocess.TimeoutExpired),
)


class NoGpu(Exception):
    """The profile needs a GPU, but this machine shows none; the submission is not at fault."""


@dataclass
class Round:
    """The results of one calibration, run and probe."""

    judgement: verdict.Judgement
    seen: Observation
    probe: Probe | None
    budget: float
    calibration: calibrate.Calibration | None

    @property
    def ratio(self) -> float:
        """Return the seconds to the target divided by the budget; infinity if it was not reached."""
        reached = self.judgement.seconds_to_target
        return float("inf") if reached is None else reached / self.budget


class StageClock:
    """A progress callback that forwards every call to `tell` and adds up the seconds of each stage."""

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
        tell: progress callback. It is called with one line of text and with facts as keyword arguments. The
            line ends in "..." at the start of a stage. Default: does nothing.
        required_tier: the weakest sandbox tier that is accepted. By default, the strongest tier that works
            on this host is used, whichever it is.

    Returns:
        The result document. It also describes a submission that is not gradable and a fault of the grader.
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
        tier = tiers.choose(required_tier)
        data = load_cifar10()
        # The tier rlimits exposes all files in any case, and its description says so.
        if tier != "rlimits" and mounts.exposed(data.folder, tier):
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
                # Only the first round decides whether there are more rounds. Otherwise the result of a
                # later round could change which rounds count.
                first = rounds[0]
                if verdict.near_a_threshold(first.judgement, rules, first.budget):
                    wanted, why = 1 + rules.repeats, "close to a threshold"
                elif verdict.died_at_its_end(first.seen, rules) and first.ratio <= 1:
                    wanted, why = 1 + rules.repeats, "it died when all was done"
    except NotGradable as error:
        facts |= {"status": "not_gradable", "reason": str(error)}
    except (*FAULTS, tiers.SandboxUnavailable, NoGpu) as error:
        facts |= {"status": "infrastructure_error", "reason": str(error)}
    finally:
        tell("")
    return result.result(
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
    """Measure this machine, run the submission and the probe, and judge the results."""
    seed = secrets.randbits(64)
    hidden = hidden_data.Secrets.draw(seed, len(data.train_labels), len(data.test_labels))
    kind = verdict.framework(source)
    with tempfile.TemporaryDirectory(prefix="hvdgrade-evidence-") as folder:
        folder = Path(folder)
        folder.chmod(0o711)  # a submission that runs as another user can reach the data in it
        shown = hidden_data.for_run(data, hidden, folder / "data")
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
            # One second more, so that an epoch just after the budget is observed and reported as late.
            limit = budget + 1
            seen = observe(jail, evidence, limit, rules.stall_seconds, tell)
        if seen.stop_cause == "crashed" and seen.free_bytes < LEAST_FREE_BYTES:
            raise OSError("the grader's disk was full while the submission ran")
        tell("comparing the ranks ...", stage="comparing")
        evaluation, probed = evaluator.compare(seen, rules, len(data.train_labels)), None
        if verdict.worth_probing(source, seen, evaluation, rules):
            each = verdict.batch_size(evaluation["epochs"])
            given = hidden_data.for_probe(data, hidden, ranks, each, folder / "probe")
            probed = probe(source, ranks, given, each, evidence, rules, tier, tell)
        tell("recomputing accuracies ...", stage="evaluating")
        source_data = data.folder.resolve()
        evaluation, found = evaluator.recompute(evaluation, probed, rules, source_data, seed)
        for how in parallel_checks.other_probes(probed, found, rules) if probed else ():
            again = probe(source, ranks, given, each, evidence, rules, tier, tell, **how)
            said = evaluator.examine(again, rules, source_data, seed)
            if said.get("distance", parallel_checks.UNMOVED) <= rules.equivalence_tolerance:
                probed, found = again, said
                break
        if calibration and kind == "keras" and seen.torch_seen:
            # The script imports Keras but also runs PyTorch, which is faster. The smaller budget applies.
            calibration = measure("torch")
            budget = min(
                budget, calibration.budget(len(data.train_labels), rules.budget_serial_epochs)
            )
    # The time of one pass if each rank trained at the speed that the calibration measured per process.
    seconds = calibration and len(data.train_labels) / (ranks * calibration.serial_rate)
    judgement = verdict.judge(source, seen, evaluation, probed, found, rules, budget, seconds)
    return Round(judgement, seen, probed, budget, calibration)


def decisive(rounds: list[Round]) -> Round:
    """Return the round that decides the verdict: of three rounds, the median one.

    The rounds are ordered by verdict, "pass" first, and then by the time to the target divided by the budget.
    """
    return sorted(rounds, key=lambda one: (one.judgement.verdict != "pass", one.ratio))[
        len(rounds) // 2
    ]
