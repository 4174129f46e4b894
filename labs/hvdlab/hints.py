"""Hints at mistakes that a script shows without a run, and that make a run show nothing else.

    hints(source)      [Finding(id="init-missing", ...)]

`hvdlab check` finds all other mistakes in a run.
"""

from collections.abc import Iterator

from hvdlab.mistakes import Finding, finding
from hvdlab.script_analysis.legacy_keras import OLD_ARGUMENT, old_argument
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script, Unreadable


def hints(source: bytes) -> list[Finding]:
    """Return hints at likely mistakes in a script; none for a source that Python cannot read."""
    try:
        return list(read(Script(source)))
    except Unreadable:
        return []
    except Exception:  # a hint is not worth a fault of the grader
        return []


def read(script: Script) -> Iterator[Finding]:
    """Yield the hints of a script."""
    if not script.horovod and not script.other:
        seen = "No line imports Horovod, so N processes train N models independently of each other."
        yield finding("init-missing", None, seen)
    if script.silent_keras:
        seen = (
            "Horovod's own Keras module accepts an optimizer of Keras 3, averages nothing, and reports "
            "no error."
        )
        if line := old_argument(script):
            seen += f" Keras 3 does not accept {OLD_ARGUMENT} in line {line}: remove it."
        yield finding("gradients-not-averaged", script.silent_keras, seen, "keras")
    if line := _recorder_on_some_ranks(script):
        yield finding("recorder-on-some-ranks", line, "This call records on some ranks only.")


def _recorder_on_some_ranks(script: Script) -> int | None:
    """Return the line of a recorder that only some ranks call, or of the test of the rank around it."""
    calls = script.named("Recorder", "epoch_end")
    guards = Guards(script, by_name=False)
    everywhere = guards.everywhere(calls)
    for call in calls:
        if (test := guards.test(call, sites=any)) and call not in everywhere:
            return (call if script.inside[call] is script.inside[test] else test).lineno
    return None
