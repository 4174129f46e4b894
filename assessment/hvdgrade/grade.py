"""Grade one submission, from its file to a result document.

A round consists of six stages: calibrate, run, compare, probe, recompute, judge. If the verdict is closer
to a threshold than the margins of the profile, or if the script crashed after all epochs were done, the
majority of three rounds decides. After a fault of the grader itself, the round is repeated once. A round
that is late while other programs used the machine is not judged, but repeated.
"""

import secrets
import subprocess
import time
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path

import psutil

from hvdgrade import HvdgradeError
from hvdgrade.evidence import evaluator, hidden_data
from hvdgrade.evidence.evidence import LARGEST_BATCH, Evidence, batch_size
from hvdgrade.evidence.observation import Calibration, Observation, ProbeForm
from hvdgrade.judge import parallel_checks, verdict
from hvdgrade.judge.busy import MachineBusy, machine_was_busy
from hvdgrade.judge.verdict import Round
from hvdgrade.profiles import Profile
from hvdgrade.report.result import Graded, result
from hvdgrade.result_document import ResultDocument
from hvdgrade.run import calibrate, orphans, start_failures
from hvdgrade.run.job import Job, Tell
from hvdgrade.run.likely_mistakes import likely_mistakes
from hvdgrade.run.monitor import observe
from hvdgrade.run.probe import probe
from hvdgrade.sandbox import cuda_trial, mounts, tiers
from hvdgrade.submission.find_script import read_script
from hvdgrade.submission.review import review
from hvdgrade.submission.script import NotGradable, imported_modules
from hvdlab.data import DataError, load_cifar10
from hvdlab.mistakes import Finding
from hvdlab.probe_mode import SHORT_EPOCH
from hvdlab.system.hardware import visible_gpus
from hvdlab.system.held_folder import held_folder

# With less free disk space, a crash may be caused by another process that filled the disk.
LEAST_FREE_BYTES = 64 << 20
FAULTS = (
    *(DataError, calibrate.CalibrationFailed, evaluator.GraderFault, OSError),
    *(psutil.Error, subprocess.TimeoutExpired),
)


class NoGpu(HvdgradeError):
    """There is no GPU that the profile needs, or CUDA does not start; the submission is not at fault."""


class StageClock:
    """A progress callback that forwards every call to `tell` and adds up the seconds of each stage."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.stage, self.since = tell, "preparing", time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, text: str, **facts: object) -> None:
        now = time.monotonic()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self.since
        self.stage, self.since = str(facts.get("stage", self.stage)), now
        self.tell(text, **facts)


def grade(
    path: Path,
    ranks: int,
    rules: Profile,
    tell: Tell = lambda text, **facts: None,
    required_tier: str | None = None,
    *,
    hints: bool = True,
) -> ResultDocument:
    """Grade one submission and return the result document.

    Args:
        ranks: number of processes.
        tell: progress callback. It is called with one line of text and with facts as keyword arguments. The
            line ends in "..." at the start of a stage. Default: does nothing.
        required_tier: the weakest sandbox tier that is accepted. By default, the strongest tier that works
            on this host is used, but none in which the submission would be root.
        hints: whether to look for likely mistakes with `hvdlab check` if the submission does not pass.

    Returns:
        The result document. It also describes a submission that is not gradable and a fault of the grader.
    """
    orphans.clear_left_over()
    clock = StageClock(tell)
    graded = Graded(path, rules, ranks, stages=clock.seconds)
    try:
        if not 1 <= ranks <= rules.max_ranks:
            raise NotGradable(f"-np must be in 1..{rules.max_ranks}. Received: {ranks}")
        if rules.devices == "gpu" and not visible_gpus():
            raise NoGpu(
                f"the profile {rules.name} needs a GPU, and nvidia-smi lists none here. Grade on another "
                "machine, or with another --profile"
            )
        graded = replace(graded, source=read_script(path))
        tier = tiers.choose(required_tier)
        data = load_cifar10()
        if obstacle := mounts.why_exposed(data.folder, tier):
            raise DataError(f"a submission could read the hidden test images: {obstacle}.")
        if rules.uses_gpus and (obstacle := cuda_trial.why_no_cuda(tier)):
            raise NoGpu(obstacle)
        graded = replace(graded, synthetic=data.synthetic, tier=tier)
        graded = replace(graded, review=review(graded.source))
        job = Job(graded.source, ranks, rules, tier, clock, data, graded.review.facts)
        rounds = grade_in_rounds(job)
        graded = replace(graded, rounds=rounds, decisive=verdict.decisive(rounds))
        if hints and graded.decisive.judgement.verdict != "pass":
            graded = replace(graded, mistakes=mistakes_in(job))
    except NotGradable as error:
        graded = replace(graded, status="not_gradable", reason=str(error))
    except MachineBusy as error:
        graded = replace(graded, status="not_gradable", reason=str(error), grade_again=True)
    except (*FAULTS, tiers.SandboxUnavailable, NoGpu) as error:
        graded = replace(graded, status="infrastructure_error", reason=str(error))
    finally:
        clock("")
    return result(graded)


def mistakes_in(job: Job) -> list[Finding]:
    """Return what `hvdlab check` finds in a submission; nothing if the check cannot be run."""
    data = job.data
    try:
        with held_folder(f"{orphans.PREFIX}check-") as held:
            held.path.chmod(0o711)
            seed, sizes = secrets.randbits(64), (len(data.train_labels), len(data.test_labels))
            hidden = hidden_data.HiddenData.draw(seed, *sizes)
            return likely_mistakes(job, hidden_data.for_run(data, hidden, held.path / "data"))
    except (*FAULTS, tiers.SandboxUnavailable):
        return []


def grade_in_rounds(job: Job) -> list[Round]:
    """Return one round, or 1 + `rules.repeats` rounds if the first one is too close to a threshold.

    Only the first round decides whether there are more rounds. Otherwise the result of a later round could
    change which rounds count.

    Raises:
        MachineBusy: a round was late while other programs used the machine, and so were its repetitions.
    """
    rounds, wanted, why, again = [], 1, "", False
    busy: list[Round] = []
    rules, tell = job.rules, job.tell
    while len(rounds) < wanted:
        if rounds:
            tell(f"{why}: round {len(rounds) + 1} of {wanted} ...")
        try:
            done = one_round(job)
        except FAULTS:
            if again:
                raise
            again = True
            tell("something went wrong on the grader's side: once more ...")
            continue
        again = False
        if machine_was_busy(done, rules):
            busy.append(done)
            if len(busy) > rules.repeats:
                raise MachineBusy(busy)
            tell("it was late, and other programs used the machine: once more ...")
            continue
        rounds.append(done)
        first = rounds[0]
        if verdict.near_a_threshold(first.judgement, rules, first.budget):
            wanted, why = 1 + rules.repeats, "close to a threshold"
        elif verdict.died_at_its_end(first.evidence.observation, rules) and first.ratio <= 1:
            wanted, why = 1 + rules.repeats, "it died when all was done"
    return rounds


def graded_run(job: Job, shown: Path, copies: Path, budget: float) -> Observation:
    """Run the submission once, with the data in `shown`, and copy its records to the folder `copies`.

    Raises:
        OSError: the disk was full, so a crash may not be the fault of the submission.
    """
    rules = job.rules
    with job.sandboxed(shown) as run:
        # One second more, so that an epoch just after the budget is observed and reported as late. A run that
        # has recorded too little to be judged continues: it is too slow, and the other checks need epochs.
        limits = {"limit": budget + 1, "least": rules.consecutive_epochs}
        limits["extended"] = max(budget + 1, rules.evidence_budgets * budget)
        seen = observe(run, copies, stall=rules.stall_seconds, tell=job.tell, **limits)
    if seen.stop_cause == "crashed" and seen.free_bytes < LEAST_FREE_BYTES:
        raise OSError("the grader's disk was full while the submission ran")
    return seen


def one_round(job: Job) -> Round:
    """Measure this machine, run the submission and the probe, and judge the results."""
    rules, ranks, data, tell = job.rules, job.ranks, job.data, job.tell
    seed, examples = secrets.randbits(64), len(data.train_labels)
    hidden = hidden_data.HiddenData.draw(seed, examples, len(data.test_labels))
    kind = calibrate.framework(imported_modules(job.source))
    with held_folder(f"{orphans.PREFIX}evidence-") as held:
        folder = held.path
        folder.chmod(0o711)  # a submission that runs as another user can reach the data in it
        shown = hidden_data.for_run(data, hidden, folder / "data")
        copies = folder / "evidence"
        copies.mkdir(mode=0o700)

        def measure(framework: str) -> Calibration:
            tell(
                f"measuring what one process can do here with {framework} ...", stage="calibrating"
            )
            return calibrate.calibrate(framework, job, shown)

        calibration, budget = None, rules.budget
        if rules.budget == "calibrated":
            calibration = measure(kind)
            budget = calibration.budget(examples, rules.budget_serial_epochs)
        tell("running the submission ...", stage="running")
        seen = graded_run(job, shown, copies, budget)
        start_failures.require_start(job, seen, shown)
        tell("comparing the ranks ...", stage="comparing")
        epochs, refused = evaluator.compare(seen, rules, examples)
        evidence = Evidence(seen, epochs, refused, job.facts)
        done, probed = verdict.before_probing(evidence, rules, budget), None
        if verdict.worth_probing(done, evidence):
            each = batch_size(epochs, min(LARGEST_BATCH, ceil(examples / ranks)))
            views = partial(hidden_data.for_probe, data, hidden, ranks, each)
            probe_as = partial(probe, job, views, folder, each, copies, graded_seconds=seen.seconds)
            steps = 0 if epochs[0].steps_can_be_seen else SHORT_EPOCH
            probed = probe_as(form=ProbeForm(steps))
        tell("recomputing accuracies ...", stage="evaluating")
        whole = data.folder.resolve()
        evidence = evaluator.recompute(evidence, probed, rules, whole, seed)
        for form in parallel_checks.other_probes(evidence, rules) if evidence.probe else ():
            again = probe_as(form=form)
            found = evaluator.compare_probe(again, rules, whole, seed)
            tried = replace(evidence, probe=found)
            if found.compared and not parallel_checks.other_probes(tried, rules):
                evidence = tried
                break
        if calibration and kind == "keras" and seen.torch_seen:
            # The script imports Keras but also runs PyTorch, which is faster. The smaller budget applies.
            calibration = measure("torch")
            budget = min(budget, calibration.budget(examples, rules.budget_serial_epochs))
    if calibration:
        evidence = replace(evidence, pass_seconds=examples / (ranks * calibration.serial_rate))
    judgement = verdict.judge(evidence, rules, budget, done)
    return Round(judgement, evidence, budget, calibration)
