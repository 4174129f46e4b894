"""From the events of a run and the source of its script to the mistakes: see `judge`."""

from hvdlab.check.rules import data, devices, errors, gradients, replicas, settings, training
from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import CATALOGUE, Finding, finding
from hvdlab.trace import records

RULES = (
    *errors.RULES,
    *gradients.RULES,
    *training.RULES,
    *replicas.RULES,
    *data.RULES,
    *settings.RULES,
    *devices.RULES,
)


def judge(run: Run, facts: Facts) -> list[Finding]:
    """Return the mistakes of a run, in the order of their lines, at most one of each kind.

    The events of the run are evidence. The source only adds what a run of a few steps on this machine
    cannot show: a GPU that is not there, a file that is saved in epoch 10.

    Returns:
        Findings, without those that another finding explains.
    """
    if len(run.ranks) > 1 and not run.all(records.Init):
        if not run.all(records.End):
            return []  # the ranks were ended before they reached it: that is no mistake of the script
        if not run.all(records.Step) and not run.errors():
            return []  # nothing was trained, so nothing is wrong with how it was trained
        return [] if _failed_before_init(run, facts) else [_init_missing(run, facts)]
    found = [one for rule in RULES for one in rule(run, facts)]
    explained = {id for one in found for id in CATALOGUE[one.id].explains}
    found = [one._replace(fix=CATALOGUE[one.id].advice(run.api())) for one in found]
    kept = {one.id: one for one in reversed(found) if one.id not in explained}
    return [_placed(one, run) for one in sorted(kept.values(), key=lambda one: one.line or 0)]


def _placed(found: Finding, run: Run) -> Finding:
    """Return a finding whose lines are those of their files."""
    places, line = run.places, found.line
    place = {"line": places.number(line), "file": places.file(line)}
    return found._replace(seen=places.text(found.seen), **place)


def _failed_before_init(run: Run, facts: Facts) -> bool:
    """Return whether a rank failed before it reached hvd.init(), here or in a module of the script.

    It may still have reached it if it made no step, because a module of the script may call it.
    """
    crash = run.crash()
    unrelated = crash and "has not been initialized" not in crash[1]
    later = facts.init or facts.horovod is None or not run.all(records.Step)
    return bool(unrelated and later)


def _init_missing(run: Run, facts: Facts) -> Finding:
    """Return the finding of a run in which no rank called hvd.init() or init_process_group."""
    errors = run.errors()
    ended = f" Rank {errors[0][0]} ended with {errors[0][1]}" if errors else ""
    if facts.process_group:
        line = errors[0][2] if errors else facts.process_group
        seen = f"No rank has called dist.init_process_group before this line.{ended}"
        return finding("process-group-missing", line, seen, "ddp")
    if facts.horovod is None:
        seen = (
            f"The script does not import Horovod: {len(run.ranks)} processes trained independently."
        )
        return finding("init-missing", 1, seen)
    seen = f"No rank called hvd.init(), so the ranks do not know each other.{ended}"
    return finding("init-missing", facts.horovod, seen)
