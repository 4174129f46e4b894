"""A hostile submission that tries to reach what belongs to the grader in the container of an autograder.

Seven attacks: list earlier results, read one, read a token, write a result, change the program that starts
the grader, change the exporter, and signal process 1.
"""

from dataclasses import dataclass
from pathlib import Path

EACH = {
    "list", "read result", "read token", "write result", "change script", "change exporter", "signal"
}  # fmt: skip


@dataclass(frozen=True)
class Targets:
    """Where the targets lie in the folder of the autograder."""

    result: str = "results/ada.json"
    token: str = "token"
    script: str = "run_autograder"
    exporter: str = "export"

    def submission(self, inside: Path) -> str:
        """Return the script. Its last line of output says which attacks raised no error.

        Args:
            inside: the folder of the autograder, as the container sees it.
        """
        return f"""
import os, pathlib, signal

place = pathlib.Path({str(inside)!r})
attacks = {{
    "list": lambda: os.listdir((place / "{self.result}").parent),
    "read result": lambda: (place / "{self.result}").read_text(),
    "read token": lambda: (place / "{self.token}").read_text(),
    "write result": lambda: (place / "{self.result}").write_text('{{"score": 100}}'),
    "change script": lambda: (place / "{self.script}").write_text("exit 1\\n"),
    "change exporter": lambda: (place / "{self.exporter}").write_text("exit 1\\n"),
    "signal": lambda: os.kill(1, signal.SIGUSR1),
}}
reached = []
for name, attack in attacks.items():
    try:
        print(name, attack(), flush=True)
        reached.append(name)
    except OSError as error:
        print(error, flush=True)
raise SystemExit(f"reached: {{reached}}")
"""
