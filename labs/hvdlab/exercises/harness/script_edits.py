"""The conversion of a serial script to a distributed one, step by step, as a diff: see `ScriptEdits`."""

from pathlib import Path

from hvdlab import variants


class ScriptEdits:
    """What each step of a conversion changes in a serial script.

    The edits are written as in `hvdlab.variants`, with `@@ STEP` before each part.

    Args:
        steps: The names of the steps, in their order.
        diff: The edits of all steps.
    """

    def __init__(self, serial: Path, steps: tuple[str, ...], diff: str) -> None:
        self.serial, self.steps = serial, steps
        self._edits = dict.fromkeys(steps, "")
        for part in diff.split("@@ ")[1:]:
            step, _, lines = part.partition("\n")
            self._edits[step.strip()] += f"@@\n{lines}"

    def edited(self, text: str, step: str) -> str:
        """Return the text of a script after the edits of one step.

        Args:
            step: One of the steps.

        Raises:
            ValueError: The script does not have an old text exactly once: the step is done already, another
                step comes first, or the script was changed by hand in that place.
        """
        try:
            return variants.edited(text, self._edits[step])
        except ValueError as error:
            raise ValueError(f"step {step!r}: {error}") from None

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
        return variants.unified(old, self.edited(old, step), step)
