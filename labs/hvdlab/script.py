"""Reads a training script's syntax tree without running it: for the grader's hints and flags, and labs.

Names are followed through imports and simple assignments (`import horovod.torch as h`, `rank =
h.rank()`), not through values. So what is read here is a hint, never evidence.
"""

import ast
import builtins
import re
import warnings
from functools import cached_property

HOROVOD = ("hvdlab.keras.horovod.", "horovod.")
OFFICIAL_KERAS = ("horovod.tensorflow.keras", "horovod.keras")
EXCHANGES = (
    "allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce grouped_allreduce_ "
    "grouped_allreduce_async grouped_allreduce_async_ allgather allgather_object reducescatter "
    "alltoall broadcast broadcast_ broadcast_object"
).split()
BROADCASTS = (
    "broadcast_parameters broadcast_variables broadcast_global_variables broadcast_model_weights "
    "BroadcastGlobalVariablesCallback broadcast broadcast_ broadcast_object broadcast_async_"
).split()
# Where else a process learns its place: mpi4py, torch.distributed, the launcher's environment.
RANK_CALLS = {"rank", "local_rank", "cross_rank", "Get_rank", "get_rank", "launched_rank"}
RANK_VARIABLE = re.compile(r"\A\w*(RANK|PROCID)\Z")
SIZE_CALLS = {"size", "local_size", "Get_size", "get_world_size"}
TRANSPARENT = {"int", "bool", "str", "float", "min", "max"}  # functions that only pass it on


class Unreadable(Exception):
    """The source is not valid Python, or nested deeper than Python itself can read."""


class Script:
    """A syntax tree with conveniences: full names, parents, calls in the order of their lines.

    Args:
        source: bytes of a Python file. Raises Unreadable.
    """

    def __init__(self, source: bytes):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # the submission's own, about escapes in its strings
                self.tree = ast.parse(source)
        except SyntaxError as error:
            where = f"line {error.lineno}: " if error.lineno else ""
            raise Unreadable(f"{where}{error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(str(error)) from None
        self.nodes = list(ast.walk(self.tree))
        self.parents = {c: node for node in self.nodes for c in ast.iter_child_nodes(node)}
        self.imports: dict[str, int] = {}  # full name -> line
        self.full: dict[str, str] = {}  # local name -> full name
        self._follow_imports()
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        self.calls = sorted(calls, key=lambda call: (call.lineno, call.col_offset))
        self.names = {call: self.name(call) for call in self.calls}
        self.by_name: dict[str, list[ast.Call]] = {}  # last part of the name -> calls
        for call, name in self.names.items():
            self.by_name.setdefault(name.rpartition(".")[2], []).append(call)
        self._sites: dict[tuple, bool] = {}

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
        self.starred = "horovod.torch.*" in self.imports
        for node in self.nodes:  # hvd = horovod.torch, wrap = hvd.DistributedOptimizer
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                name = self.name(node.value)
                if name.startswith(HOROVOD):
                    names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                    self.full |= dict.fromkeys(names, name)

    @property
    def torch(self) -> bool:
        return bool(self.imported("torch", "horovod.torch", "hvdlab.torch"))

    @property
    def keras(self) -> bool:
        return bool(self.imported("keras", "tf_keras", "tensorflow", "hvdlab.keras"))

    @property
    def silent_keras(self) -> int | None:
        """The line that imports Horovod's own Keras module, in a script that has no legacy Keras:
        it accepts an optimizer of Keras 3 and averages nothing."""
        legacy = any(
            isinstance(node, ast.Constant) and node.value == "TF_USE_LEGACY_KERAS"
            for node in self.nodes
        )
        return None if legacy or self.imported("tf_keras") else self.imported(*OFFICIAL_KERAS)

    @property
    def horovod(self) -> bool:
        return bool(self.imported("horovod", "hvdlab.keras.horovod"))

    @property
    def other(self) -> bool:
        """Whether it may exchange gradients without Horovod."""
        return bool(self.imported("mpi4py", "torch.distributed", "tensorflow.distribute"))

    def imported(self, *prefixes: str) -> int | None:
        """The line of the first import of one of these modules or of something in them."""
        wanted = tuple(f"{prefix}." for prefix in prefixes)
        lines = [line for name, line in self.imports.items() if f"{name}.".startswith(wanted)]
        return min(lines, default=None)

    def name(self, node: ast.AST) -> str:
        """The full name of what is read or called: `hvd.init` is "horovod.torch.init"."""
        parts = []
        while isinstance(node, ast.Attribute | ast.Call):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            else:
                node = node.func
        if isinstance(node, ast.Name):
            name = self.full.get(node.id, node.id)
            # from horovod.torch import *: what is nobody else's may be from there
            if name == node.id and self.starred and not hasattr(builtins, name):
                name = f"horovod.torch.{name}"
            parts.append(name)
        else:
            parts.append("?")
        return ".".join(reversed(parts))

    def hvd(self, *names: str) -> list[ast.Call]:
        """The calls of Horovod functions with these last names."""
        return [call for call in self.named(*names) if self.names[call].startswith(HOROVOD)]

    def named(self, *last: str) -> list[ast.Call]:
        """The calls whose name ends so: `named("Batches")`."""
        return [call for name in last for call in self.by_name.get(name, [])]

    def ancestors(self, node: ast.AST):
        while node := self.parents.get(node):
            yield node

    def function(self, node: ast.AST) -> ast.AST:
        """The function that holds `node`, or the module."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
        return next(above for above in self.ancestors(node) if isinstance(above, kinds))

    def assignments(self):
        """(variable, expression) of every assignment to a name or an attribute."""
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from pairs(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                yield from pairs(node.target, node.value)

    def variables(self, calls: set[str]) -> set[str]:
        """The variables made from one of these calls: `main = hvd.rank() == 0`."""
        found: set[str] = set()
        for _ in range(3):  # quiet = not main
            found |= {name for name, value in self.assignments() if self.holds(value, calls, found)}
        return found

    def holds(self, value: ast.AST, calls: set[str], variables: set[str]) -> bool:
        """Whether an expression is made from one of these calls or variables, and of little else.

        `2 * hvd.size()` and `rank == 0` are; `Batches(rank=hvd.rank())` is not.
        """
        todo = [value]
        while todo:
            node = todo.pop()
            if self.is_one(node, calls, variables):
                return True
            if isinstance(node, ast.Call):
                todo += node.args if self.names[node].rpartition(".")[2] in TRANSPARENT else []
            elif isinstance(node, ast.Subscript):
                todo.append(node.value)
            elif isinstance(
                node, ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Compare | ast.IfExp | ast.Tuple
            ):
                todo += ast.iter_child_nodes(node)
        return False

    def is_one(self, node: ast.AST, calls: set[str], variables: set[str]) -> bool:
        """Whether a single node is one of these variables, or one of these calls."""
        if isinstance(node, ast.Name | ast.Attribute):
            return key(node) in variables
        if isinstance(node, ast.Subscript | ast.Call) and calls is RANK_CALLS:
            if any(RANK_VARIABLE.match(text) for text in strings(node)):
                return True
        # tensor.size(0) is something else
        called = isinstance(node, ast.Call) and not node.args
        return called and self.names[node].rpartition(".")[2] in calls

    def uses(self, node: ast.AST, calls: set[str], variables: set[str]) -> bool:
        """Whether one of these calls or variables occurs anywhere in `node`."""
        return any(self.is_one(n, calls, variables) for n in ast.walk(node))

    def uses_rank(self, node: ast.AST) -> bool:
        return self.uses(node, RANK_CALLS, self.ranks)

    def uses_size(self, node: ast.AST) -> bool:
        return self.uses(node, SIZE_CALLS, self.sizes)

    @cached_property
    def ranks(self) -> set[str]:
        """The variables that hold this process's rank, or what follows from it."""
        return self.variables(RANK_CALLS)

    @cached_property
    def sizes(self) -> set[str]:
        """The variables that hold the number of processes, or a multiple of it."""
        return self.variables(SIZE_CALLS)

    @cached_property
    def guarded(self) -> set[ast.AST]:
        """The statements and expressions that stand behind a test of the rank."""
        found: set[ast.AST] = set()
        for node in self.nodes:
            if isinstance(node, ast.If | ast.IfExp) and self.uses_rank(node.test):
                branches = (node.body, node.orelse)
                for branch in branches:
                    found.update(branch if isinstance(branch, list) else [branch])
            elif isinstance(node, ast.BoolOp) and self.uses_rank(node.values[0]):
                found.update(node.values[1:])
            for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
                if isinstance(block, list):  # if hvd.rank() != 0: return
                    left = False
                    for statement in block:
                        if left:
                            found.add(statement)
                        elif isinstance(statement, ast.If):
                            leaves = isinstance(statement.body[-1], ast.Return | ast.Continue)
                            left = leaves and self.uses_rank(statement.test)
        return found

    def some_only(self, node: ast.AST) -> bool:
        """Whether a test of the rank stands before `node`: only some ranks get there."""
        return node in self.guarded or any(above in self.guarded for above in self.ancestors(node))

    def called_by_some(self, node: ast.AST, sites=any) -> bool:
        """The same, or any call (`sites=all`: each call) of the function around it stands so."""
        if self.some_only(node):
            return True
        name = getattr(self.function(node), "name", None)
        if (name, sites) not in self._sites:
            calls = [c for c in self.by_name.get(name, []) if isinstance(c.func, ast.Name)]
            self._sites[name, sites] = bool(calls) and sites(map(self.some_only, calls))
        return self._sites[name, sites]


def pairs(target: ast.AST, value: ast.AST):
    """What is assigned to what: (variable, expression), also for `rank, size = hvd.rank(), ...`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from pairs(one, other)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield key(target), value


def key(node: ast.AST) -> str:
    """A variable or an attribute of one, as text: "rank", "self.rank"."""
    if isinstance(node, ast.Name):
        return node.id
    owner = node.value.id if isinstance(node.value, ast.Name) else "?"
    return f"{owner}.{node.attr}"


def keyword(call: ast.Call, name: str) -> ast.AST | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def strings(node: ast.AST):
    """The strings among the direct arguments or the index of a call or subscript."""
    parts = [node.slice] if isinstance(node, ast.Subscript) else node.args
    return [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
