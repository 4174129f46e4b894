"""From what the ranks did to the mistakes that explain it: a pure function of events and source.

    judge({0: [event, ...], 1: [...]}, facts) -> [Finding, ...]

Events are those of `events.Watch`. What a run shows comes first; the source answers only for what a
run of a few steps on this machine cannot show (a GPU that is not there, a file saved in epoch 10).
"""

from hvdlab.check.catalogue import EXPLAINS, Finding, finding
from hvdlab.check.rules import devices, settings, training
from hvdlab.check.run_events import Run
from hvdlab.check.source_facts import Facts


def judge(events: dict[int, list[dict]], facts: Facts) -> list[Finding]:
    """Name the mistakes of a run, in the order of the script."""
    run = Run(events)
    if len(run.ranks) > 1 and not run.all("init"):
        if not run.all("end"):
            return []  # they were ended before they came to it: that says nothing of a script
        return [] if _failed_before(run, facts) else [_init_missing(run, facts)]
    rules = (*training.RULES, *settings.RULES, *devices.RULES)
    found = [one for rule in rules for one in rule(run, facts)]
    explained = set().union(*(EXPLAINS.get(one.id, set()) for one in found))
    kept = {one.id: one for one in reversed(found) if one.id not in explained}
    return sorted(kept.values(), key=lambda one: one.line or 0)


def _failed_before(run, facts) -> bool:
    """Whether it failed before it came to its hvd.init(), here or in a module of its own."""
    crash = run.crash()
    unmet = crash and "has not been initialized" not in crash[1]
    return bool(unmet and (facts.init or facts.horovod is None))


def _init_missing(run, facts):
    if facts.horovod is None:
        return finding(
            "init-missing",
            1,
            f"the script does not import Horovod: {len(run.ranks)} processes trained, each alone.",
        )
    errors = run.errors()
    said = f": rank {errors[0][0]} ended with {errors[0][1]}" if errors else ", and nobody met"
    return finding("init-missing", facts.horovod, f"no rank called hvd.init(){said}")
