"""Functions of a lab, without running the lab."""

import ast
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

from hvdlab.course.experiment import LABS


def lab_functions(lab: str, folder: Path, *names: str) -> ModuleType:
    """Return a module with these functions of a lab, whose source can be read.

    Args:
        lab: the name of the lab's file.
        folder: where the module is written.
    """
    body = ast.parse((LABS / lab).read_text()).body
    path = folder / "functions.py"
    path.write_text("\n\n".join(ast.unparse(n) for n in body if getattr(n, "name", "") in names))
    spec = importlib.util.spec_from_file_location("functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def solution(lab: int, name: str) -> Callable:
    """Return the function of an exercise as the lab solves it. It may use NumPy as `np`."""
    nodes = [
        node
        for path in LABS.glob(f"{lab:02d}_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    ]
    (found,) = (node for node in nodes if getattr(node, "name", "") == name)
    names = {"np": np}
    exec(compile(ast.Module([found], []), f"lab {lab}", "exec"), names)
    return names[name]
