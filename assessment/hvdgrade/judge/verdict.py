"""Turn the evidence of a run into a verdict, by the registered checks in the order of profiles.toml.

The verdict is "pass" if every check that applies passes. A check that depends on a failed check is skipped,
and its rationale names the failed check, so that the report states one mistake only once.
"""

import pkgutil
from dataclasses import dataclass, replace
from importlib import import_module

from hvdgrade import judge as folder
from hvdgrade.evidence.evidence import Evidence
from hvdgrade.evidence.observation import Calibration, Observation
from hvdgrade.judge import timeline
from hvdgrade.judge.check import CHECKS, Case, Check, run_check
from hvdgrade.profiles import Profile

for module in pkgutil.iter_modules(folder.__path__):
    if module.name.endswith("_checks"):
        import_module(f"{folder.__name__}.{module.name}")  # registers its checks


@dataclass
class Judgement:
    """The checks of a run, the verdict and score that follow from them, and the timeline of the run."""

    checks: list[Check]
    timeline: list[timeline.Entry]
    seconds_to_target: float | None

    @property
    def verdict(self) -> str:
        applies = [check for check in self.checks if check.max_points]
        return "pass" if all(check.state == "pass" for check in applies) else "fail"

    @property
    def score(self) -> int:
        return sum(check.points for check in self.checks)

    @property
    def max_score(self) -> int:
        return sum(check.max_points for check in self.checks)


@dataclass
class Round:
    """The results of one calibration, run and probe."""

    judgement: Judgement
    evidence: Evidence
    budget: float
    calibration: Calibration | None = None

    @property
    def ratio(self) -> float:
        """Return the seconds to the target divided by the budget; infinity if it was not reached."""
        reached = self.judgement.seconds_to_target
        return float("inf") if reached is None else reached / self.budget


def before_probing(evidence: Evidence, rules: Profile, budget: float) -> dict[str, Check]:
    """Return the checks on which the probe's checks depend: id -> check."""
    case, done = Case(evidence, rules, budget), {}
    for id in CHECKS["flow"].depends_on:
        done[id] = run_check(id, case, done)
    return done


def worth_probing(done: dict[str, Check], evidence: Evidence) -> bool:
    """Return whether a probe is needed to find out how the ranks work together.

    Args:
        done: the result of `before_probing`. The probe is not needed if one of these checks failed, or if
            there is a single rank.
    """
    states = {check.state for check in done.values() if check.max_points}
    return states == {"pass"} and evidence.read_batches


def judge(
    evidence: Evidence, rules: Profile, budget: float, done: dict[str, Check] | None = None
) -> Judgement:
    """Evaluate every check and return the judgement.

    Args:
        budget: the time budget in seconds.
        done: the result of `before_probing`, whose checks are not evaluated again. Default: none.
    """
    case, done = Case(evidence, rules, budget), dict(done or {})
    for id in rules.points:
        if id not in done:
            done[id] = run_check(id, case, done)
    return Judgement([done[id] for id in rules.points], case.timeline, case.seconds_to_target)


def died_at_its_end(seen: Observation, rules: Profile) -> bool:
    """Return whether a signal ended the run after every rank had recorded its epochs.

    About once in some hundred runs, a correct script aborts while Python exits, for example because of the
    threads of PyTorch's Gloo. Such a run is repeated.
    """
    recorded = {len(seen.of(rank)) for rank in range(seen.ranks)}
    enough = len(recorded) == 1 and min(recorded) >= rules.consecutive_epochs
    return seen.stop_cause == "killed" and enough


def near_a_threshold(judgement: Judgement, rules: Profile, budget: float) -> bool:
    """Return whether the verdict is closer to a threshold than the margins of the profile.

    This is so if all other checks pass, and slightly stricter and slightly looser thresholds lead to
    different verdicts. The run is then repeated.
    """
    if any(c.state != "pass" for c in judgement.checks if c.max_points and c.id != "targets"):
        return False

    def passes(sign: int) -> bool:
        moved = replace(
            rules,
            train_accuracy=rules.train_accuracy + sign * rules.accuracy_margin,
            heldout_accuracy=rules.heldout_accuracy + sign * rules.accuracy_margin,
        )
        reached = timeline.seconds_to_target(judgement.timeline, moved)
        return reached is not None and reached <= budget * (1 - sign * rules.time_margin)

    return passes(+1) != passes(-1)


def decisive(rounds: list[Round]) -> Round:
    """Return the round that decides the verdict: of three rounds, the median one.

    The rounds are ordered by verdict, "pass" first, and then by the time to the target divided by the budget.
    """
    ordered = sorted(rounds, key=lambda each: (each.judgement.verdict != "pass", each.ratio))
    return ordered[len(rounds) // 2]
