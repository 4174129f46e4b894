"""With which power of the number of ranks a script scales its learning rate, read from its source.

    SGD(0.01 * hvd.size())                                   1
    rate = 0.01 * size ... Adam(rate * math.sqrt(size))      1.5
    SGD(0.01)                                                0

Only products count: `warmup / hvd.size()` is -1, and of a sum the larger part.
"""

import ast
from typing import NamedTuple

RATES = {
    "lr", "learning_rate", "initial_lr", "initial_learning_rate", "base_lr", "max_lr", "peak_lr",
    "warmup_target", "scaled_lr",
}  # fmt: skip
BATCHES = {"batch_size", "local_batch_size", "per_rank_batch_size"}


class Rates(NamedTuple):
    """What the source says of learning rates; powers of the number of ranks."""

    power: float  # of the rate, all factors together
    line: int | None  # where the rate is given to an optimizer
    last: int | None  # where its last factor comes from
    batch_power: float  # of the batch size of one rank: -1 where the global batch stays


def rates(tree: ast.Module) -> Rates:
    reader = _Reader(tree)
    first, second = (0.0, None), (0.0, None)  # (power, line): of a rate, of what multiplies it
    batch = 0.0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for value in _rates_given(node):
                if (power := reader.power(value)) > first[0] or first[1] is None:
                    first = power, node.lineno
            if _name(node.func).endswith("LambdaLR") and len(node.args) > 1:
                second = _added(second, reader.power(node.args[1]), node.lineno)
            for keyword in node.keywords:
                if keyword.arg == "op" and _name(keyword.value) == "Sum" and _wraps(node):
                    second = _added(second, 1.0, node.lineno)
                if keyword.arg in BATCHES:
                    batch = min(batch, reader.power(keyword.value))
            if _name(node.func) == "batch" and node.args:
                batch = min(batch, reader.power(node.args[0]))
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            power = reader.power(node.value)
            if any(_is_rate_in_use(target) for target in targets):
                if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
                    second = _added(second, power, node.lineno)
                elif isinstance(node, ast.Assign):
                    again = _multiplies_itself(node)
                    if again:
                        second = _added(second, power, node.lineno)
                    elif power > first[0]:
                        first = power, node.lineno
            if isinstance(node, ast.Assign) and any(_name(t) in BATCHES for t in targets):
                batch = min(batch, power)
    return Rates(first[0] + second[0], first[1], second[1] or first[1], batch)


def _added(found, power, line):
    return (found[0] + power, line) if power > 0 else found


def _rates_given(call) -> list[ast.expr]:
    given = [keyword.value for keyword in call.keywords if keyword.arg in RATES]
    parts = ast.unparse(call.func).split(".")
    if "optim" in parts or "optimizers" in parts or "schedules" in parts:
        given += call.args
    elif parts[-1].endswith(("Schedule", "Callback")):
        given += call.args
    return given


def _wraps(call) -> bool:
    return _name(call.func).startswith("Distributed")


def _is_rate_in_use(target) -> bool:
    """`group["lr"]`, `optimizer.learning_rate`: the rate of an optimizer that is there."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and target.slice.value in RATES
    return isinstance(target, ast.Attribute) and target.attr in RATES and not _is_args(target)


def _is_args(target) -> bool:
    return _name(target.value) in ("args", "arguments", "options", "opt", "config", "self", "FLAGS")


def _multiplies_itself(assign) -> bool:
    target = ast.unparse(assign.targets[0])
    return any(ast.unparse(node) == target for node in ast.walk(assign.value))


def _name(node) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


class _Reader:
    """Powers of expressions; names stand for what is assigned to them, wherever."""

    def __init__(self, tree):
        self.values: dict[str, list[ast.expr]] = {}
        self.factors: dict[str, list[ast.expr]] = {}
        self.returns: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.values.setdefault(ast.unparse(target), []).append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
                self.factors.setdefault(ast.unparse(node.target), []).append(node.value)
            elif isinstance(node, ast.FunctionDef):
                self.returns[node.name] = [
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Return) and part.value
                ]

    def power(self, node, seen=frozenset()) -> float:
        def largest(nodes):
            return max((self.power(part, seen) for part in nodes), default=0.0)

        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name in ("size", "local_size") and not node.args:
                return 1.0
            if name == "sqrt":
                return 0.5 * largest(node.args)
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if name in self.returns and name not in seen:
                inside = [self.power(r, seen | {name}) for r in self.returns[name]]
                return max([*inside, largest(given)], default=0.0)
            return largest(given)
        if isinstance(node, ast.BinOp):
            left, right = self.power(node.left, seen), self.power(node.right, seen)
            if isinstance(node.op, ast.Mult):
                return left + right
            if isinstance(node.op, ast.Div | ast.FloorDiv):
                return left - right
            if isinstance(node.op, ast.Pow):
                exponent = getattr(node.right, "value", 1)
                return left * (exponent if isinstance(exponent, int | float) else 1)
            return max(left, right)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            key = ast.unparse(node)
            if key in seen:
                return 0.0
            seen = seen | {key}
            if key in self.returns:
                return max((self.power(r, seen) for r in self.returns[key]), default=0.0)
            of_values = largest(self.values.get(key, []))
            return of_values + sum(self.power(f, seen) for f in self.factors.get(key, []))
        if isinstance(node, ast.IfExp):
            return largest([node.body, node.orelse])
        if isinstance(node, ast.BoolOp):
            return largest(node.values)
        if isinstance(node, ast.UnaryOp):
            return self.power(node.operand, seen)
        if isinstance(node, ast.Lambda):
            return self.power(node.body, seen)
        return 0.0
