"""Find the user's own settings of Open MPI, and the one with which ranks fail.

A cluster often sets variables for the MPI of its modules, or a user has a file of settings. Some of them do
not fit the MPI of this environment.
"""

from __future__ import annotations

import os
import site
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hvdlab.doctor.answers import quoted
from hvdlab.system.held_folder import held_folder

PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")  # of environment variables
FILES = (
    ".openmpi/mca-params.conf",
    ".prte/mca-params.conf",
    ".pmix/mca-params.conf",
)  # below the home


class Setting(NamedTuple):
    """A setting of Open MPI.

    Attributes:
        name: of the environment variable, or in the file.
        value: its value.
        file: path of the file, relative to the home folder; "" for an environment variable.
    """

    name: str
    value: str
    file: str = ""

    def seen(self) -> str:
        """Return the setting for a message."""
        return f"{self.name}={self.value}" + (f" in ~/{self.file}" if self.file else "")

    def fix(self) -> str:
        """Return a command for a shell that removes the setting."""
        if not self.file:
            return f"unset {self.name}"
        return f"sed -i 's/^ *{self.name} *=/# &/' {quoted(Path.home() / self.file)}"


def settings() -> list:
    """Return the settings of this user: environment variables, then those in files."""
    found = [
        Setting(name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES)
    ]
    for file in FILES:
        try:
            lines = (Path.home() / file).read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
        pairs = [line.partition("=") for line in lines if not line.lstrip().startswith("#")]
        found += [
            Setting(name.strip(), value.strip(), file) for name, equals, value in pairs if equals
        ]
    return found


@contextmanager
def only(kept: list) -> Iterator[dict]:
    """Yield environment variables with which Open MPI reads only some settings, while the block runs.

    The caller must remove all variables of `settings` from the environment first.
    """
    with held_folder("hvdlab-home-") as folder:
        home = str(folder.path)
        for file in FILES:
            lines = [f"{one.name} = {one.value}\n" for one in kept if one.file == file]
            Path(home, file).parent.mkdir(parents=True)
            Path(home, file).write_text("".join(lines), "utf-8")
        variables = {one.name: one.value for one in kept if not one.file}
        # Packages in the user's real home must still be found.
        yield {"HOME": home, "PYTHONUSERBASE": site.getuserbase(), **variables}


def guilty(suspects: list, works: Callable[[list], bool]) -> list:
    """Return the settings with which ranks fail: one if a single one is enough, else several.

    Args:
        works: starts ranks with some of the settings, and returns whether they work.
    """
    while len(suspects) > 1:
        half = len(suspects) // 2
        failing = next((p for p in (suspects[:half], suspects[half:]) if not works(p)), None)
        if failing is None:  # settings of both halves are needed to fail
            break
        suspects = failing
    return suspects
