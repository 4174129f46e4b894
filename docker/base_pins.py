"""Print pip's constraints for an environment on top of an image that ships packages of its own.

    python3 docker/base_pins.py docker/constraints.txt > pins.txt

What the image ships stays at the image's versions (its frameworks were built for them); everything else
gets ours. Run it with the Python of the image. Standard library only: nothing is installed yet.
"""

import importlib.metadata
import re
import sys
from pathlib import Path


def normal(name: str) -> str:
    """A package's name as pip compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def shipped() -> dict[str, str]:
    """name: version of what this Python can import; of two versions the one that it imports."""
    found = {}
    for package in importlib.metadata.distributions():  # in the order of sys.path
        found.setdefault(normal(package.metadata["Name"]), package.version)
    return found


def pins(ours: str, base: dict[str, str]) -> list[str]:
    """The lines of constraints: `base` (name: version) first, then those of `ours` that it leaves open."""
    rest = [
        line
        for line in ours.splitlines()
        if not line.startswith("#") and normal(line.split("==")[0]) not in base
    ]
    return [f"{name}=={version}" for name, version in sorted(base.items())] + rest


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("base_pins: name one file with our constraints, as docker/constraints.txt.")
    print("\n".join(pins(Path(sys.argv[1]).read_text(), shipped())))
