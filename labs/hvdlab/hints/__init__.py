"""Hints at likely mistakes in a training script, found in its syntax tree without running it.

    hints(source)      [{"line": 12, "topic": "data", "text": "..."}]

A hint is no evidence, and it costs no points. There is one rule per topic: a function that takes the
script and yields findings of `hvdlab.hints.catalogue`. A rule that is in doubt yields nothing, because a
correct script in an unusual style must not be criticised.
"""

from hvdlab.hints.learning import broadcast, optimizer
from hvdlab.hints.scaling import rate
from hvdlab.hints.sharing import data, hang, metrics, recorder
from hvdlab.hints.starting import device, horovod, init
from hvdlab.hints.writing import files, output
from hvdlab.script_analysis.script import Script, Unreadable

MAX_HINTS = 20


def hints(source: bytes) -> list[dict]:
    """Return hints at likely mistakes in a script.

    Returns:
        At most MAX_HINTS hints as {"line": int or None, "topic": str, "text": str, "mistake": id of the
        mistake in `hvdlab.hints.catalogue`}, in the order of their lines; hints
        about the whole script (line None) come first. Empty for a source that Python cannot
        read, because the run reports what is wrong with it.
    """
    try:
        found = read(Script(source))
    except Unreadable:
        return []
    except Exception:  # a hint is not worth a fault of the grader
        return []
    return sorted(found, key=lambda hint: hint["line"] or 0)[:MAX_HINTS]


def read(script: Script) -> list[dict]:
    """Return the hints of all topics, in the order of TOPICS.

    Returns:
        Hints as `hints` returns them, without a limit of their number.
    """
    return [
        {
            "line": found.line,
            "topic": topic,
            "text": f"{found.seen} {found.fix}",
            "mistake": found.id,
        }
        for topic, rule in TOPICS.items()
        for found in rule(script)
    ]


TOPICS = {
    "Horovod": horovod,
    "init": init,
    "device": device,
    "data": data,
    "learning rate": rate,
    "optimizer": optimizer,
    "broadcast": broadcast,
    "recorder": recorder,
    "files": files,
    "metrics": metrics,
    "output": output,
    "hang": hang,
}
