"""Add programs of the base's packages to an environment on top of the base: jupyter, pytest, mpirun.

    .venv/bin/python docker/base_programs.py /path/to/the/base's/python

pip writes no program for a package that the base already has, and the base's own `jupyter` would run with the
base's Python, which cannot import the course. Therefore this script writes a program for each entry point,
which runs with this environment's Python. Compiled programs get a link if PATH has no program of that name.
Existing programs of this environment are not changed. Standard library only.
"""

import shutil
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

COMPILED = ("mpirun", "mpiexec", "mpicc", "mpicxx", "ompi_info", "ninja", "ruff")


def main(base_python: str) -> None:
    here, base = Path(sysconfig.get_path("scripts")), Path(base_python).parent
    for point in entry_points(group="console_scripts"):
        if not (here / point.name).exists():
            function = point.attr.partition(".")[0]
            (here / point.name).write_text(
                f"#!{sys.executable}\nimport sys\nfrom {point.module} import {function}\n"
                f"sys.exit({point.attr}())\n",
                encoding="utf-8",
            )
            (here / point.name).chmod(0o755)
    for name in COMPILED:
        if (base / name).is_file() and not shutil.which(name) and not (here / name).exists():
            (here / name).symlink_to(base / name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("base_programs: name the base's Python, such as /path/to/bin/python3.")
    main(sys.argv[1])
