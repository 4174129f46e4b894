"""The syntax tree of a training script, analysed without running it, for checks, flags and labs.

Names are followed through imports, simple assignments, arguments and results of the script's own functions
(`import horovod.torch as h`, `main(h.rank())`). So an analysis gives a hint and never evidence.
"""

import ast
import builtins
import warnings
from collections.abc import Iterator
from functools import cached_property

from hvdlab import HvdlabError
from hvdlab.script_analysis.assigned_variables import (
    Variable,
    bound,
    constants,
    counters,
    of_item,
    tests_around,
)
from hvdlab.script_analysis.ast_helpers import key, pairs, strings
from hvdlab.script_analysis.functions import FUNCTIONS, OwnFunctions
from hvdlab.script_analysis.origins import RANK, SIZE, Origin

HOROVOD = ("hvdlab.keras.horovod.", "horovod.")
OFFICIAL_KERAS = ("horovod.tensorflow.keras", "horovod.keras")
# Functions whose result depends on all of their arguments and on nothing else.
TRANSPARENT = {"int", "bool", "str", "float", "min", "max", "Path", "join", "format"}
# Expressions whose value is computed from their parts.
PARTS = ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Compare | ast.IfExp | ast.Tuple | ast.JoinedStr


class Unreadable(HvdlabError):
    """The source is not valid Python, or nested deeper than Python can parse."""


class Script:
    """A syntax tree with full names, parents, and calls in the order of their lines.

    Args:
        source: bytes of a Python file, or its tree.

    Raises:
        Unreadable: Python cannot parse the bytes.

    Attributes:
        tree: the module.
        nodes: all nodes, outer nodes first.
        parents: node -> the node that contains it.
        inside: node -> the function that contains it, or the module.
        imports: full name of an imported module or object -> line of its first import.
        full: local name -> full name, of imports.
        calls: all calls, in the order of their lines.
        names: call -> full name of the called function.
        by_name: last part of a name -> calls.
        starred: whether the script has `from horovod.torch import *`.
    """

    def __init__(self, source: bytes | ast.Module) -> None:
        self.tree = source if isinstance(source, ast.Module) else parse(source)
        self.nodes = list(ast.walk(self.tree))
        self.parents: dict[ast.AST, ast.AST] = {}
        self.inside: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # outer ones first
            own = isinstance(node, FUNCTIONS) or node is self.tree
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.inside[child] = node if own else self.inside[node]
        self.imports: dict[str, int] = {}
        self.full: dict[str, str] = {}
        self._follow_imports()
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        self.calls = sorted(calls, key=lambda call: (call.lineno, call.col_offset))
        self.names = {call: self.name(call) for call in self.calls}
        self.by_name: dict[str, list[ast.Call]] = {}
        for call, name in self.names.items():
            self.by_name.setdefault(name.rpartition(".")[2], []).append(call)
        self._made_of: dict[Origin, set] = {}

    def _follow_imports(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports.setdefault(alias.name, node.lineno)
                    root = alias.name.split(".")[0]
                    self.full[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    self.imports.setdefault(name, node.lineno)
                    self.full[alias.asname or alias.name] = name
        if not self.full.get("hvd", "horovod").startswith(("horovod", "hvdlab")):
            self.full["hvd"] = "horovod.hvd"  # from a module that imports one of Horovod's
        self.starred = "horovod.torch.*" in self.imports
        for node in self.nodes:  # hvd = horovod.torch, wrap = hvd.DistributedOptimizer
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                name = self.name(node.value)
                if name.startswith(HOROVOD):
                    names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                    self.full |= dict.fromkeys(names, name)

    @property
    def torch(self) -> bool:
        """Whether the script imports PyTorch."""
        return bool(self.imported("torch", "horovod.torch", "hvdlab.torch"))

    @property
    def keras(self) -> bool:
        """Whether the script imports Keras or TensorFlow."""
        return bool(self.imported("keras", "tf_keras", "tensorflow", "hvdlab.keras"))

    @property
    def silent_keras(self) -> int | None:
        """The line that imports Horovod's own Keras module without legacy Keras, or None.

        The module accepts an optimizer of Keras 3, averages nothing, and raises no error. So does
        horovod.tensorflow.
        """
        legacy = any(getattr(node, "value", None) == "TF_USE_LEGACY_KERAS" for node in self.nodes)
        if legacy or self.imported("tf_keras"):
            return None
        wraps = (self.names[call] for call in self.named("DistributedOptimizer"))
        if "horovod.tensorflow.DistributedOptimizer" in wraps:
            return self.imported("horovod.tensorflow")
        return self.imported(*OFFICIAL_KERAS)

    @property
    def horovod(self) -> bool:
        """Whether the script imports Horovod."""
        return bool(self.imported("horovod", "hvdlab.keras.horovod"))

    @property
    def other(self) -> bool:
        """Whether the script imports another library that can exchange gradients."""
        return bool(self.imported("mpi4py", "torch.distributed", "tensorflow.distribute"))

    def imported(self, *prefixes: str) -> int | None:
        """Return the line of the first import of some modules or of an object in them.

        Returns:
            The line, or None.
        """
        wanted = tuple(f"{prefix}." for prefix in prefixes)
        lines = [line for name, line in self.imports.items() if f"{name}.".startswith(wanted)]
        return min(lines, default=None)

    def name(self, node: ast.AST) -> str:
        """Return the full name of an expression: `hvd.init` has the name "horovod.torch.init".

        Returns:
            The name; it starts with "?" where the expression does not start with a name.
        """
        parts = []
        while isinstance(node, ast.Attribute | ast.Call):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            else:
                node = node.func
        if isinstance(node, ast.Name):
            name = self.full.get(node.id, node.id)
            # from horovod.torch import *: a name without another definition may come from there
            if name == node.id and self.starred and not hasattr(builtins, name):
                name = f"horovod.torch.{name}"
            parts.append(name)
        else:
            parts.append("?")
        return ".".join(reversed(parts))

    def hvd(self, *names: str) -> list[ast.Call]:
        """Return the calls of Horovod functions."""
        return [call for call in self.named(*names) if self.names[call].startswith(HOROVOD)]

    def named(self, *last: str) -> list[ast.Call]:
        """Return the calls of functions with some names: `named("Batches")`."""
        return [call for name in last for call in self.by_name.get(name, [])]

    def named_in(self, node: ast.AST, last: str) -> bool:
        """Return whether an expression contains a call of a function with a given name."""
        return any(call in self.named(last) for call in ast.walk(node))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the innermost first."""
        while node := self.parents.get(node):
            yield node

    def bindings(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yield (target, expression) of every assignment."""
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                found = (pair for target in node.targets for pair in pairs(target, node.value))
                for one, value in found:
                    yield one, value
                    if isinstance(one, ast.Tuple | ast.List):  # rank, size = start()
                        for result in self.functions.returned(value):
                            yield from pairs(one, result)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                yield node.target, node.value

    def assignments(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield (variable as text, expression) of every assignment to a name or an attribute."""
        for target, value in self.bindings():
            if isinstance(target, ast.Name | ast.Attribute):
                yield key(target), value

    @cached_property
    def functions(self) -> OwnFunctions:
        """The functions and classes that the script defines."""
        return OwnFunctions(self)

    @cached_property
    def local(self) -> set[Variable]:
        """The variables that functions bind, their parameters included."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.arg):
                found.add((self.inside[node], node.arg))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add((self.inside[node], node.id))
        for node in self.nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                found -= {(self.inside[node], name) for name in node.names}
        return found

    def variable(self, node: ast.Name | ast.Attribute) -> Variable:
        """Return the variable of a name: (function that binds it, or the module; name)."""
        name, scope = key(node), self.inside[node]
        if isinstance(node, ast.Attribute):
            return self.tree, name
        while scope is not self.tree and (scope, name) not in self.local:
            scope = self.inside[scope]
        return scope, name

    @cached_property
    def bound(self) -> list[tuple[Variable, ast.expr]]:
        """(variable, expression) of all assignments, except for variables that count the rounds of a loop."""
        counting = counters(self)
        return [(variable, value) for variable, value in bound(self) if variable not in counting]

    @cached_property
    def constants(self) -> dict[Variable, list[ast.expr]]:
        """Variable that only ever gets constants -> the tests under which it gets them."""
        return {
            variable: [test for value in values for test in tests_around(self, value)]
            for variable, values in constants(self).items()
        }

    def made_of(self, origin: Origin) -> set[Variable]:
        """Return the variables that hold an origin, and the functions that return it."""
        if origin not in self._made_of:
            made = self._made_of[origin] = set()
            for _ in range(3):  # quiet = not main
                made |= {v for v, value in self.bound if self.holds(value, origin)}
                # if main: verbose = True
                tests = {test for tests in self.constants.values() for test in tests}
                tests = {test for test in tests if self.depends(test, origin)}
                made |= {v for v, around in self.constants.items() if not tests.isdisjoint(around)}
        return self._made_of[origin]

    def holds(self, value: ast.AST, origin: Origin) -> bool:
        """Return whether the value of an expression is an origin, or is computed from it.

        True for `2 * hvd.size()` and `rank == 0`, False for `Batches(rank=hvd.rank())`.
        """
        todo = [value]
        while todo:
            node = todo.pop()
            if self.is_one(node, origin):
                return True
            if isinstance(node, ast.Call):
                todo.append(node.func)
                todo += node.args if self.names[node].rpartition(".")[2] in TRANSPARENT else []
            elif isinstance(node, ast.Subscript | ast.FormattedValue):
                todo.append(node.value)
            elif isinstance(node, ast.Lambda):  # is_root = lambda: hvd.rank() == 0
                todo.append(node.body)
            elif isinstance(node, PARTS):
                todo += ast.iter_child_nodes(node)
        return False

    def is_one(self, node: ast.AST, origin: Origin, also: set[str] = frozenset()) -> bool:
        """Return whether a single node is an origin, or a variable that holds it.

        Args:
            also: more variables that hold it. Default: none.
        """
        if isinstance(node, ast.Name | ast.Attribute):
            if self.variable(node) in self.made_of(origin) or key(node) in also:
                return True
            name = key(node).rpartition(".")[2]
            if name in origin.calls and getattr(self.parents[node], "func", None) is node:
                return False  # the call itself is tested below
            kind = bool(origin.names and origin.names.search(name))
            # is_main = True is the same on all ranks.
            return kind and self.variable(node) not in self.constants
        if isinstance(node, ast.Subscript) and of_item(self, node) in self.made_of(origin):
            return True
        if isinstance(node, ast.Subscript | ast.Call) and origin.environment:
            if any(origin.environment.search(text) for text in strings(node)):
                return True
        if isinstance(node, ast.Subscript):  # world["size"]
            return any(origin.names and origin.names.search(text) for text in strings(node))
        if not isinstance(node, ast.Call):
            return False
        if self.names[node].rpartition(".")[2] not in origin.calls:
            return False
        around = self.parents[node]
        indexed = isinstance(around, ast.Subscript) and around.value is node
        return not node.args and not indexed  # tensor.size(0), tensor.size()[0]

    def depends(self, node: ast.AST, origin: Origin, also: set[str] = frozenset()) -> bool:
        """Return whether an expression contains an origin, or a variable that holds it.

        Args:
            also: more variables that hold it. Default: none.
        """
        return any(self.is_one(n, origin, also) for n in ast.walk(node))

    def uses_rank(self, node: ast.AST) -> bool:
        """Return whether an expression contains the rank."""
        return self.depends(node, RANK)

    def uses_size(self, node: ast.AST) -> bool:
        """Return whether an expression contains the number of ranks."""
        return self.depends(node, SIZE)


def parse(source: bytes) -> ast.Module:
    """Return the syntax tree of a Python file.

    Raises:
        Unreadable: Python cannot parse it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the script's strings
            return ast.parse(source)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise Unreadable(f"{where}{error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(str(error)) from None
