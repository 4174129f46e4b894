"""Check that a file is a training script, which can be graded: not empty, no other text, all in one file."""

import ast
import codecs
import importlib.util
import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hvdgrade import HvdgradeError

SCRIPT = "assessment.py"
MAX_SCRIPT_BYTES = 64_000
COMPILE_SECONDS, COMPILE_BYTES = 10, 1 << 30
INSPECT = Path(__file__).with_name("inspect_source.py")
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A comment in one of the first two lines by which a script declares its encoding (PEP 263).
DECLARED_ENCODING = re.compile(rb"\A(?:[ \t\f]*(?:#[^\r\n]*)?\r?\n)?[ \t\f]*#[^\r\n]*?coding[:=]")


class NotGradable(HvdgradeError):
    """The submission cannot be started, and no attempt is lost. The message says why in one sentence."""


@dataclass(frozen=True)
class Script:
    """The one file of a submission that is graded.

    Attributes:
        path: where the file lies.
        name: its path within the submission.
        source: its bytes, at most MAX_SCRIPT_BYTES + 1. The last byte shows that it is too large.
        left_out: the other files of the submission, which are not graded.
    """

    path: Path
    name: str
    source: bytes
    left_out: tuple[str, ...] = ()

    @property
    def modules(self) -> set[str]:
        """Modules and packages that a script could import from the files that are left out."""
        paths = [name.split("/") for name in self.left_out if name.lower().endswith(".py")]
        return {part.removesuffix(".py") for path in paths for part in path}


@dataclass(frozen=True)
class Inspection:
    """What Python found in a source text without running it.

    Attributes:
        mistake: Python's message if it cannot be compiled; otherwise "".
        line: the line of the mistake; None if it is unknown.
        acts: whether it has a statement that can do something.
        imports: the top-level modules that it imports.
    """

    mistake: str = ""
    line: int | None = None
    acts: bool = False
    imports: tuple[str, ...] = ()


def require_gradable(script: Script) -> None:
    """Check that a training script was handed in, and that it needs no other file of the submission.

    Raises:
        NotGradable: it cannot be graded.
        OSError: this machine is too busy, or has too little memory, to check that.
    """
    name, source = script.name, script.source
    if not source.strip():
        raise NotGradable(f"{name} is empty: hand in your training script.")
    if len(source) > MAX_SCRIPT_BYTES:
        raise NotGradable(
            f"{name} is larger than {MAX_SCRIPT_BYTES} bytes: hand in a script without data."
        )
    if encoding := wrong_encoding(source):
        raise NotGradable(f"{name} is saved as {encoding}: save it as UTF-8.")
    found = inspect(source)
    if found.mistake:
        where = f", line {found.line}" if found.line else ""
        raise NotGradable(
            f"{name} is not valid Python{where}: {found.mistake}. "
            f"Run 'python {name}' and fix the error."
        )
    if not found.acts:
        raise NotGradable(
            f"{name} is no training script, because it imports, calls, defines and assigns nothing: "
            "hand in your training script."
        )
    if missing := sorted(own_modules(script, found.imports)):
        raise NotGradable(
            f"{name} imports {', '.join(missing)}, which was handed in next to it, but only one file is "
            "graded: put everything into one file."
        )


def own_modules(script: Script, imports: tuple[str, ...]) -> list[str]:
    """Return the imported modules that exist only in the submission, and not in the grader's environment."""
    return [name for name in imports if name in script.modules and not installed(name, script.path)]


def installed(name: str, script: Path) -> bool:
    """Return whether the grader's environment has a module. The module is not imported."""
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # the program that runs now, "__main__"
        return True
    if found is None:
        return False
    places = [found.origin, *(found.submodule_search_locations or [])]
    folder = script.resolve().parent
    return not any(place and Path(place).resolve().is_relative_to(folder) for place in places)


def wrong_encoding(source: bytes) -> str:
    """Return the encoding of a text if it is not UTF-8 and declares no other encoding; otherwise "".

    Python refuses such a file when it runs it. `compile` accepts some of them.

    Args:
        source: the bytes of the script.
    """
    zeros = max(source[::2].count(0), source[1::2].count(0))
    if source.startswith(UTF_16) or zeros > len(source) // 5:
        return "UTF-16"
    try:
        source.decode("utf-8")
    except UnicodeDecodeError:
        return "" if DECLARED_ENCODING.match(source) else "Latin-1 or in another encoding"
    return ""


def inspect(source: bytes) -> Inspection:
    """Compile a script in a process with limits, and return what it contains.

    Args:
        source: the bytes of the script.

    Raises:
        OSError: this machine is too busy, or has too little memory, to compile it.
    """
    limits = [str(COMPILE_SECONDS), str(COMPILE_BYTES)]
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", str(INSPECT), *limits],
            input=source,
            capture_output=True,
            timeout=6 * COMPILE_SECONDS,  # on a busy machine, processor time passes more slowly
        )
    except subprocess.TimeoutExpired:
        raise OSError("this machine is too busy to compile the script") from None
    if answer.returncode == -signal.SIGKILL:
        # This is the kernel's response to a lack of memory, not to the limits.
        raise OSError("this machine has no memory left to compile the script")
    if answer.returncode:
        gigabytes = COMPILE_BYTES >> 30
        return Inspection(f"to compile it takes more than {COMPILE_SECONDS} s or {gigabytes} GB")
    found = json.loads(answer.stdout)
    return Inspection(**{**found, "imports": tuple(found.get("imports", ()))})


def imported_modules(source: bytes) -> frozenset[str]:
    """Return every module that a script imports by name.

    The names serve only as a hint, for example in explanations, and never as evidence.

    Args:
        source: the bytes of a valid script.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def is_from(node: ast.AST) -> bool:
    """Return whether a node imports from a module. `from __future__` sets an option of the compiler."""
    return isinstance(node, ast.ImportFrom) and node.module != "__future__"


def import_statements(source: bytes) -> dict[str, int]:
    """Return the import statements of a script, each in one line, with the line of its first occurrence.

    A call of `import_module` or `__import__` with the name of a module counts as an import statement.

    Args:
        source: the bytes of a valid script.
    """
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) or is_from(node):
            found.setdefault(ast.unparse(node), node.lineno)
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = getattr(node.args[0], "value", None)
            if called in ("import_module", "__import__") and isinstance(name, str):
                if all(part.isidentifier() for part in name.split(".")):
                    found.setdefault(f"import {name}", node.lineno)
    return found
