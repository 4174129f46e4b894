"""Print pip's constraints for an environment on top of an image that ships packages of its own.

    python3 docker/base_pins.py docker/constraints.txt > pins.txt

Packages of the image keep their versions, because the image's frameworks were built for them. All other
packages get our pinned versions. Run this with the Python of the image. It uses the standard library only,
because nothing is installed yet.
"""

import importlib.metadata
import re
import sys
from pathlib import Path


def normal(name: str) -> str:
    """Return a package name in the form in which pip compares names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def shipped() -> dict[str, str]:
    """Return {name: version} of the packages that this Python can import.

    If there are two versions of a package, the version that Python imports counts.
    """
    found = {}
    for package in importlib.metadata.distributions():  # in the order of sys.path
        name, version = package.metadata["Name"], package.version
        if name and version:  # an interrupted pip leaves folders without them
            found.setdefault(normal(name), version)
    return found


def pins(ours: str, base: dict[str, str]) -> list[str]:
    """Return the lines of a constraints file.

    Args:
        ours: the text of our constraints file.
        base: {name: version} of the packages of the image. They come first, and replace ours.
    """
    rest = [
        line
        for line in ours.splitlines()
        if not line.startswith("#") and normal(line.split("==")[0]) not in base
    ]
    return [f"{name}=={version}" for name, version in sorted(base.items())] + rest


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("base_pins: name one file with our constraints, such as docker/constraints.txt.")
    print("\n".join(pins(Path(sys.argv[1]).read_text(encoding="utf-8"), shipped())))
