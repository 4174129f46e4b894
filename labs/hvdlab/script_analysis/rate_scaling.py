"""With which power of the number of ranks a script scales its learning rate, read from its source.

    SGD(0.01 * hvd.size())                                   1
    rate = 0.01 * size ... Adam(rate * math.sqrt(size))      1.5
    SGD(0.01)                                                0

Only products count: `warmup / hvd.size()` is -1, what is divided by that stays what it was, and of a sum
the larger part.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from hvdlab.script_analysis.ast_helpers import last_name, strings
from hvdlab.script_analysis.script import Script

RATES = {
    "lr", "learning_rate", "initial_lr", "initial_learning_rate", "base_lr", "max_lr", "peak_lr",
    "warmup_target", "scaled_lr", "end_learning_rate",
}  # fmt: skip
BATCHES = {"batch_size", "local_batch_size", "per_rank_batch_size"}
PLACES = {"batch": 0, "DataLoader": 1, "fit": 2, "Batches": 2}  # of the batch size in a call
HOROVOD_SIZES = ("size", "local_size")
MPI_SIZES = ("Get_size", "get_world_size")


class Rates(NamedTuple):
    """What the source says of learning rates; powers of the number of ranks."""

    power: float  # of the rate, all factors together
    line: int | None  # where the rate is given to an optimizer; None: not in this file
    last: int | None  # where its last factor comes from
    batch_power: float  # of the batch size of one rank: -1 where the global batch stays


def rates(script: Script) -> Rates:
    reader = _Reader(script)
    # (power, line) of what an optimizer is made with, of a rate that it gets later, of what multiplies
    # the rate that it has, and of gradients that are summed, not averaged.
    given, later, factors, sums = [], [], [], []
    batch, optimizers = 0.0, _optimizers(script)
    for node in script.nodes:
        if isinstance(node, ast.Call):
            name = last_name(node)
            for value in _rates_given(node, name, optimizers):
                power = reader.power(value)
                if power > 0 or name[:1].isupper():  # a function may scale what it gets
                    given.append((power, value.lineno))
            if name.endswith("LambdaLR"):
                factors += [(reader.power(value), node.lineno) for value in node.args[1:2]]
            if name.startswith("Distributed"):
                sums += [(1.0, node.lineno) for k in node.keywords if _is_sum(k)]
            place = PLACES.get(name, len(node.args))
            sizes = [k.value for k in node.keywords if k.arg in BATCHES]
            batch = min(batch, *map(reader.power, sizes + node.args[place : place + 1]), 0.0)
        elif isinstance(node, ast.Dict):  # a group of weights with a rate of its own
            pairs = zip(node.keys, node.values, strict=True)
            own = [(reader.power(v), v.lineno) for k, v in pairs if getattr(k, "value", 0) in RATES]
            later += [one for one in own if one[0] > 0]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            power = reader.power(_assigned(node))
            if power > 0 and any(map(_is_rate_in_use, targets)):
                again = _multiplies_itself(node) and not any(map(_is_of_arguments, targets))
                (factors if again else later).append((power, node.lineno))
            if any(_name(target) in BATCHES for target in targets):
                batch = min(batch, power)
    given = [one for one in given if one[0]] or given  # not the weights, which come first in torch
    power, line = max(given + later, key=lambda one: one[0], default=(0.0, None))
    last = line
    for found in factors, [] if _divides_loss(script, reader) else sums:
        more, where = max(found, default=(0.0, None))  # one of several optimizers, or branches
        if more > 0:
            power, last = power + more, where
    return Rates(power, line, last, batch)


def _bindings(script) -> Iterator[tuple[str, ast.expr]]:
    """(name as it is written, value) of all assignments and arguments: a name stands for one thing."""
    yield from ((ast.unparse(target), value) for target, value in script.bindings())
    yield from ((name, value) for _, name, value in script.functions.arguments())


def _optimizers(script) -> set[str]:
    """Names imported from torch.optim, keras.optimizers and the like."""
    return {
        alias.asname or alias.name
        for node in script.nodes
        if isinstance(node, ast.ImportFrom) and "optim" in (node.module or "")
        for alias in node.names
    }


def _divides_loss(script, reader) -> bool:
    """Whether a loss is divided by the number of ranks, as it should be where gradients are summed."""
    divisions = list(_bindings(script))  # (what gets it, its value)
    for node in script.nodes:
        if isinstance(node, ast.BinOp):
            divisions.append((ast.unparse(node.left), node))
        elif isinstance(node, ast.AugAssign):
            divisions.append((ast.unparse(node.target), _assigned(node)))
    return any(
        "loss" in name and isinstance(getattr(value, "op", None), ast.Div)
        and reader.power(value.right) > 0
        for name, value in divisions
    )  # fmt: skip


def _rates_given(call, name, optimizers) -> list[ast.expr]:
    given = [keyword.value for keyword in call.keywords if keyword.arg in RATES]
    parts = ast.unparse(call.func).split(".")
    if name.endswith("LR"):  # a scheduler of torch
        return given + (call.args[1:2] if name == "OneCycleLR" else [])
    if {"optim", "optimizers", "schedules"} & set(parts) or name in optimizers:
        return given + call.args
    if name.endswith(("Schedule", "Scheduler", "Callback")):
        return given + call.args
    of = getattr(call.func, "value", None)
    if name == "assign" and of and _is_rate_in_use(of):
        return given + call.args
    if name == "set_value" and call.args and _is_rate_in_use(call.args[0]):  # legacy Keras
        return given + call.args[1:]
    return given


def _is_sum(keyword) -> bool:
    return keyword.arg == "op" and _name(keyword.value) == "Sum"


def _is_rate_in_use(target) -> bool:
    """`group["lr"]`, `optimizer.learning_rate`: the rate of an optimizer that is there."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and target.slice.value in RATES
    return isinstance(target, ast.Attribute) and target.attr in RATES


def _is_of_arguments(target) -> bool:
    """`args.lr`: on its way to an optimizer, where it is read."""
    of = _name(getattr(target, "value", None))
    return of in ("args", "arguments", "options", "opt", "config", "self", "FLAGS")


def _assigned(assign) -> ast.expr:
    """The value, or the factor: 1 // size of `x //= size`."""
    if isinstance(assign, ast.AugAssign):
        return ast.BinOp(ast.Constant(1), assign.op, assign.value)
    return assign.value


def _multiplies_itself(assign) -> bool:
    if isinstance(assign, ast.AugAssign):
        return isinstance(assign.op, ast.Mult)
    target = ast.unparse(assign.targets[0])
    return any(ast.unparse(node) == target for node in ast.walk(assign.value))


def _name(node) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _sizes(script) -> set[str]:
    """What Horovod's number of ranks is called by, as it is written: hvd.size."""
    modules, names = {"hvd", "self.hvd"}, set()
    for node in script.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if "horovod" in f"{getattr(node, 'module', '')}.{alias.name}":
                    found = names if alias.name in HOROVOD_SIZES else modules
                    found.add(alias.asname or alias.name)
    return names | {f"{module}.{size}" for module in modules for size in HOROVOD_SIZES}


class _Reader:
    """Powers of expressions; names stand for what is assigned to them, wherever."""

    def __init__(self, script):
        self.sizes = _sizes(script)
        self.known: dict[str, float] = {}  # powers of names and of what functions return
        self.values: dict[str, list[ast.expr]] = {}
        self.factors: dict[str, list[ast.expr]] = {}
        self.returns: dict[str, list[ast.expr]] = {}
        for name, value in _bindings(script):
            self.values.setdefault(name, []).append(value)
        for node in script.nodes:
            if isinstance(node, ast.AugAssign):
                self.factors.setdefault(ast.unparse(node.target), []).append(_assigned(node))
            elif isinstance(node, ast.FunctionDef):
                self.returns[node.name] = [
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Return) and part.value
                ]

    def power(self, node) -> float:
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
        if isinstance(node, ast.List | ast.Tuple):  # of a schedule in steps
            return self._largest(node.elts)
        return 0.0

    def _largest(self, nodes) -> float:
        return max(map(self.power, nodes), default=0.0)

    def _of_call(self, call) -> float:
        name = last_name(call)
        if name in MPI_SIZES or ast.unparse(call.func) in self.sizes:
            return 1.0
        if name == "len":  # of a rank's part of the data, say
            return 0.0
        if name == "sqrt":
            return 0.5 * self._largest(call.args)
        if any("WORLD_SIZE" in text for text in strings(call)):  # of the launcher's environment
            return 1.0
        named = [word.value for word in call.keywords if word.arg in RATES]  # of a schedule
        given = [*call.args, *(named or (word.value for word in call.keywords))]
        # But for the 1 of max(1, n // size).
        given = [value for value in given if not isinstance(value, ast.Constant)]
        powers = [self._of_result(name)] if name in self.returns else []
        return max([*powers, *map(self.power, given)], default=0.0)

    def _of_two(self, op, left, right) -> float:
        base, other = self.power(left), self.power(right)
        if isinstance(op, ast.Mult):
            return base + other
        if isinstance(op, ast.Div | ast.FloorDiv):
            # Steps an epoch fall with the ranks, and `step / steps` of a warm-up scales no rate.
            return base - max(0.0, other)
        if isinstance(op, ast.Pow):
            exponent = getattr(right, "value", 1)
            return base * (exponent if isinstance(exponent, int | float) else 1)
        return max(base, other)

    def _of_name(self, key) -> float:
        if key.lower().endswith("comm_world.size") or key == "comm.size":  # of mpi4py
            return 1.0
        if "WORLD_SIZE" in key:  # environ["OMPI_COMM_WORLD_SIZE"]
            return 1.0
        if key in self.returns:
            return self._of_result(key)
        if key not in self.known:
            self.known[key] = 0.0  # of what is made of itself
            of_values = self._largest(self.values.get(key, []))
            self.known[key] = of_values + sum(map(self.power, self.factors.get(key, [])))
        return self.known[key]

    def _of_result(self, function) -> float:
        key = f"{function}()"
        if key not in self.known:
            self.known[key] = 0.0
            self.known[key] = self._largest(self.returns.get(function, []))
        return self.known[key]
