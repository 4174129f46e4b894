"""Points at likely mistakes, with line numbers: read from the syntax tree, never evidence, no points.

    hints(source)      [{"line": 12, "topic": "data", "text": "..."}]

One function a topic; each yields (line or None, text). When in doubt they say nothing: a script that
is right in its own way should not be talked out of it.
"""

from hvdlab.hints.learning import broadcast, optimizer
from hvdlab.hints.scaling import rate
from hvdlab.hints.sharing import data, hang, metrics, recorder
from hvdlab.hints.starting import device, horovod, init
from hvdlab.hints.writing import files, output
from hvdlab.script_analysis.script import Script, Unreadable

MOST_HINTS = 20


def hints(source: bytes) -> list[dict]:
    """Likely mistakes in a script, in the order of its lines; those about the whole script first."""
    try:
        found = read(Script(source))
    except Unreadable:  # the run itself will say what is wrong with it
        return []
    except Exception:  # a hint is worth no grader fault
        return []
    return sorted(found, key=lambda hint: hint["line"] or 0)[:MOST_HINTS]


def read(script: Script) -> list[dict]:
    """What each topic has to say."""
    return [
        {"line": line, "topic": topic, "text": text}
        for topic, look in TOPICS.items()
        for line, text in look(script)
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
