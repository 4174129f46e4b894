"""The powers of the number of ranks in expressions: see `Powers`.

    0.01 * hvd.size()                  1
    rate * math.sqrt(hvd.size())       0.5, and that of `rate`
    warmup / hvd.size()                -1

Only products count. A division by an expression of negative power changes nothing, and a sum has the power
of its larger term.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from hvdlab.script_analysis.ast_helpers import last_name, strings
from hvdlab.script_analysis.script import Script

RATES = {
    "lr", "learning_rate", "initial_lr", "initial_learning_rate", "base_lr", "max_lr", "peak_lr",
    "warmup_target", "scaled_lr", "end_learning_rate",
}  # fmt: skip
HOROVOD_SIZES = ("size", "local_size")
MPI_SIZES = ("Get_size", "get_world_size")


def bindings(script: Script) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name as text, value) of all assignments and arguments, without regard to scopes."""
    yield from ((ast.unparse(target), value) for target, value in script.bindings())
    yield from ((name, value) for _, name, value in script.functions.arguments())


def factor_of(assign: ast.Assign | ast.AugAssign) -> ast.expr:
    """Return the value of an assignment, or its factor: 1 // size of `x //= size`."""
    if isinstance(assign, ast.AugAssign):
        return ast.BinOp(ast.Constant(1), assign.op, assign.value)
    return assign.value


def _is_product_with(target: ast.expr, value: ast.expr) -> bool:
    """Return whether a value is a product with the old value of its target: x * size."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return any(_is_product_with(target, side) for side in (value.left, value.right))
    return type(value) is type(target) and ast.unparse(value) == ast.unparse(target)


def size_calls(script: Script, named: Collection[str] = HOROVOD_SIZES) -> set[str]:
    """Return the names of the functions that return Horovod's number of ranks, as text: hvd.size.

    Args:
        named: last names of these functions. Default: also the number of ranks on a machine.
    """
    modules, names = {"hvd", "self.hvd"}, set()
    for node in script.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if "horovod" in f"{getattr(node, 'module', '')}.{alias.name}":
                    if alias.name not in HOROVOD_SIZES:
                        modules.add(alias.asname or alias.name)
                    elif alias.name in named:
                        names.add(alias.asname or alias.name)
    return names | {f"{module}.{size}" for module in modules for size in named}


class Powers:
    """The powers of the number of ranks in expressions.

    A name has the power of the values that are assigned to it anywhere in the script.

    Args:
        sizes: names of the functions that return the number of ranks, as text.
    """

    def __init__(self, script: Script, sizes: set[str]) -> None:
        self.sizes = sizes
        self.known: dict[str, float] = {}  # powers of names and of results of functions
        self.values: dict[str, list[ast.expr]] = {}
        self.factors: dict[str, list[ast.expr]] = {}
        self.returns: dict[str, list[ast.expr]] = {}
        again = set()  # values of x = x * size
        for node in script.nodes:
            if isinstance(node, ast.Assign) and _is_product_with(node.targets[0], node.value):
                again.add(node.value)
                self.factors.setdefault(ast.unparse(node.targets[0]), []).append(node.value)
        for name, value in bindings(script):
            if value not in again:
                self.values.setdefault(name, []).append(value)
        for node in script.nodes:
            if isinstance(node, ast.AugAssign):
                self.factors.setdefault(ast.unparse(node.target), []).append(factor_of(node))
            elif isinstance(node, ast.FunctionDef):
                self.returns[node.name] = [
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Return) and part.value
                ]

    def power(self, node: ast.expr) -> float:
        """Return the power of the number of ranks in an expression."""
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.BinOp):
            return self._of_two(node.op, node.left, node.right)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return self._of_name(ast.unparse(node))
        if isinstance(node, ast.IfExp):
            return self._largest([node.body, node.orelse])
        if isinstance(node, ast.BoolOp):
            return self._largest(node.values)
        if isinstance(node, ast.UnaryOp):
            return self.power(node.operand)
        if isinstance(node, ast.NamedExpr):
            return self.power(node.value)
        if isinstance(node, ast.Lambda):
            return self.power(node.body)
        if isinstance(node, ast.List | ast.Tuple):  # the values of a piecewise schedule
            return self._largest(node.elts)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self.power(node.elt)
        return 0.0

    def assigned(self, assign: ast.Assign | ast.AugAssign, targets: list[ast.expr]) -> float:
        """Return the power of the number of ranks that an assignment brings: 1 for x = x * size."""
        names = {ast.unparse(target) for target in targets}
        before = {name: self.known.pop(name) for name in names & self.known.keys()}
        self.known |= dict.fromkeys(names, 0.0)  # on the right side they have their old values
        power = self.power(factor_of(assign))
        for name in names:
            del self.known[name]
        self.known |= before
        return power

    def is_foreign(self, value: ast.expr) -> bool:
        """Return whether a value comes from a function that is not in the script, so that it is unknown."""
        values, names = [value], set()
        for each in values:  # which grows by the values of names
            if isinstance(each, ast.Name) and each.id in self.values:
                values += [] if each.id in names else self.values[each.id]
                names.add(each.id)
            elif not isinstance(each, ast.Call) or last_name(each) in self.returns:
                return False
        return True

    def _largest(self, nodes: Iterable[ast.expr]) -> float:
        return max(map(self.power, nodes), default=0.0)

    def _of_call(self, call: ast.Call) -> float:
        name = last_name(call)
        if name in MPI_SIZES or ast.unparse(call.func) in self.sizes:
            return 1.0
        if name == "len":  # for example of a rank's shard of the data
            return 0.0
        if name == "sqrt":
            return 0.5 * self._largest(call.args)
        if any("WORLD_SIZE" in text for text in strings(call)):  # a variable of the launcher
            return 1.0
        if name in self.returns:  # its arguments count where its result uses them
            return self._of_result(name)
        named = [word.value for word in call.keywords if word.arg in RATES]  # of a schedule
        given = [*call.args, *(named or (word.value for word in call.keywords))]
        # Without the 1 of max(1, n // size).
        given = [value for value in given if not isinstance(value, ast.Constant)]
        return max(map(self.power, given), default=0.0)

    def _of_two(self, op: ast.operator, left: ast.expr, right: ast.expr) -> float:
        base, other = self.power(left), self.power(right)
        if isinstance(op, ast.Mult):
            return base + other
        if isinstance(op, ast.Div | ast.FloorDiv):
            # The steps per epoch decrease with the ranks, and `step / steps` of a warmup scales no rate.
            return base - max(0.0, other)
        if isinstance(op, ast.Pow):
            exponent = getattr(right, "value", 1)
            return base * (exponent if isinstance(exponent, int | float) else 1)
        return max(base, other)

    def _of_name(self, key: str) -> float:
        if key.lower().endswith("comm_world.size") or key == "comm.size":  # of mpi4py
            return 1.0
        if "WORLD_SIZE" in key:  # environ["OMPI_COMM_WORLD_SIZE"]
            return 1.0
        if key in self.returns:
            return self._of_result(key)
        if key not in self.known:
            self.known[key] = 0.0  # for names whose values contain them
            of_values = self._largest(self.values.get(key, []))
            self.known[key] = of_values + sum(map(self.power, self.factors.get(key, [])))
        return self.known[key]

    def _of_result(self, function: str) -> float:
        key = f"{function}()"
        if key not in self.known:
            self.known[key] = 0.0
            self.known[key] = self._largest(self.returns.get(function, []))
        return self.known[key]
