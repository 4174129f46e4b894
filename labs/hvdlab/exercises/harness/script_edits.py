"""The conversion of a serial script to a distributed one, step by step, as a diff: see `ScriptEdits`."""

import difflib
from pathlib import Path


class ScriptEdits:
    """What each step of a conversion changes in a serial script.

    The edits are written as a diff, with `@@ STEP` before each of them. The lines that an edit removes or
    keeps stand in the script exactly once. A step may have several edits.

    Args:
        steps: The names of the steps, in their order.
        diff: The edits of all steps.
    """

    def __init__(self, serial: Path, steps: tuple[str, ...], diff: str) -> None:
        self.serial, self.steps = serial, steps
        self._edits: dict[str, list[tuple[str, str]]] = {step: [] for step in steps}
        for part in diff.split("@@ ")[1:]:
            step, *lines = part.splitlines(keepends=True)
            old, new = (
                "".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +")
            )
            self._edits[step.strip()].append((old, new))

    def edited(self, text: str, step: str) -> str:
        """Return the text of a script after the edits of one step.

        Args:
            step: One of the steps.

        Raises:
            ValueError: The script does not have an old text exactly once: the step is done already, another
                step comes first, or the script was changed by hand in that place.
        """
        for old, new in self._edits[step]:
            if text.count(old) != 1:
                raise ValueError(
                    f"step {step!r} replaces a text that the script has {text.count(old)} times and "
                    f"should have once:\n{old}"
                )
            text = text.replace(old, new)
        return text

    def apply(self, path: str | Path, step: str) -> None:
        """Make the edits of one step in a file.

        Args:
            step: One of the steps.
        """
        path = Path(path)
        path.write_text(self.edited(path.read_text(encoding="utf-8"), step), encoding="utf-8")

    def after(self, step: str | None) -> str:
        """Return the script after all steps up to this one.

        Args:
            step: One of the steps, or None for the serial script.
        """
        text = self.serial.read_text(encoding="utf-8")
        for done in self.steps[: self.steps.index(step) + 1] if step else ():
            text = self.edited(text, done)
        return text

    def diff(self, step: str) -> str:
        """Return the edits of a step as a unified diff.

        Args:
            step: One of the steps.
        """
        number = self.steps.index(step)
        old = self.after(self.steps[number - 1] if number else None)
        return unified(old, self.edited(old, step), step)


def unified(old: str, new: str, name: str) -> str:
    """Return a unified diff: removed lines begin with -, added lines with +."""
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), "before", name, lineterm="", n=1
    )
    return "\n".join(lines)
