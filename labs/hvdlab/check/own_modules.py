"""The modules in the folder of a script, and the facts of a module as those of its script."""

from contextlib import suppress
from pathlib import Path

from hvdlab.script_analysis.script import Script, Unreadable

OURS = ("hvdlab", "hvdgrade")


def own_modules(path: Path) -> list[Path]:
    """Return the modules in the folder of a script that it imports, directly or not."""
    found, todo = {path: None}, [path]
    while todo:
        with suppress(Unreadable, OSError):
            for name in Script(todo.pop().read_bytes()).imports:
                parts = name.split(".")
                if parts[0] in OURS:
                    continue
                for depth in range(1, len(parts) + 1):
                    at = path.parent.joinpath(*parts[:depth])
                    for file in (at.with_suffix(".py"), at / "__init__.py"):
                        if file.is_file() and file not in found:
                            found[file] = None
                            todo.append(file)
    return [*found][1:]


def moved(value: object, block: int) -> object:
    """Return a fact of a module with the lines that `places` gives them."""
    if isinstance(value, bool) or not isinstance(value, int | list | tuple | set | dict):
        return value
    if isinstance(value, dict):
        return {moved(k, block): moved(v, block) for k, v in value.items()}
    return (
        value + block
        if isinstance(value, int)
        else type(value)(moved(each, block) for each in value)
    )


def merged(one: object, other: object) -> object:
    """Return a fact of two files: that of the first that has it, or all of both."""
    if isinstance(one, list):
        return one + other
    return one | other if isinstance(one, set | dict) else one or other
