"""Functions of a lab, without running the lab."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

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
