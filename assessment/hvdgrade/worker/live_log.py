"""The last lines of what a grader reports while it runs, as text for the learner who waits for it."""

import json
from pathlib import Path

from hvdgrade.output.text import printable

MOST_BYTES = 4000  # of the text
TAIL_BYTES = 1 << 20  # of the file, whose lines may hold hundreds of epochs
SHOWN_STAGES, SHOWN_EPOCHS, SHOWN_NUMBERS = 8, 20, 6


def end_of(path: Path, most: int) -> str:
    """Return the last `most` bytes of a file as text, in whole characters; "" if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most).decode("utf-8", errors="replace")
    except OSError:
        return ""


def lines(path: Path) -> str:
    """Return the stages so far, the last epochs of the submission, and what is happening now.

    Args:
        path: the file that `hvdgrade run --progress` writes. It may end with half a line.
    """
    stages, epochs, now = [], [], ""
    for line in end_of(path, TAIL_BYTES).splitlines():
        try:
            event = json.loads(line)
            text, stage = event["text"], event["stage"]
        except (ValueError, TypeError, KeyError):
            continue  # the first line of the tail may lack its beginning, and the last one its end
        now = text or now
        if text.endswith("..."):
            stages.append(text)
            epochs = [] if stage == "running" else epochs
        elif stage == "running":  # not the epochs of a measurement, or of the probe
            epochs = event.get("epochs", epochs)
    shown = [*stages[-SHOWN_STAGES:], *map(epoch_line, epochs[-SHOWN_EPOCHS:])]
    text = "\n".join(map(printable, [*shown, *([now] if now not in stages else [])]))
    return text.encode()[-MOST_BYTES:].decode(errors="ignore")


def epoch_line(epoch: dict) -> str:
    reported = list(epoch["reported"].items())[:SHOWN_NUMBERS]
    numbers = [f"{name} {number(value)}" for name, value in reported]
    return f"epoch {epoch['epoch'] + 1}, {epoch['seconds']} s: {', '.join(numbers)}"


def number(value: int | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:20]
