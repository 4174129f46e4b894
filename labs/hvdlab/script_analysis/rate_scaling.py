"""The power of the number of ranks with which a script scales its learning rate: see `rates`.

    SGD(0.01 * hvd.size())                                   1
    rate = 0.01 * size ... Adam(rate * math.sqrt(size))      1.5
    SGD(0.01)                                                0

Only products count. `warmup / hvd.size()` has the power -1. A division by an expression of negative power
changes nothing, and a sum has the power of its larger term.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hvdlab.script_analysis.ast_helpers import identifier, last_name, strings
from hvdlab.script_analysis.bindings import tests_around
from hvdlab.script_analysis.script import Script

RATES = {
    "lr", "learning_rate", "initial_lr", "initial_learning_rate", "base_lr", "max_lr", "peak_lr",
    "warmup_target", "scaled_lr", "end_learning_rate",
}  # fmt: skip
BATCHES = {"batch_size", "local_batch_size", "per_rank_batch_size"}
PLACES = {"batch": 0, "DataLoader": 1, "fit": 2, "Batches": 2}  # of the batch size in a call
CYCLES = {"OneCycleLR": 1, "CyclicLR": 2}  # places of their largest rate
# Schedules that replace the rate of the optimizer. Horovod warms up from initial_lr / size to initial_lr.
REPLACING = {*CYCLES, "LearningRateWarmupCallback", "LearningRateScheduleCallback"}
ARGUMENTS = {"args", "arguments", "options", "config", "configs", "cfg", "hparams", "FLAGS"}
GPU_COUNTS = {"torch.cuda.device_count", "cuda.device_count"}
HOROVOD_SIZES = ("size", "local_size")
MPI_SIZES = ("Get_size", "get_world_size")


class Rates(NamedTuple):
    """How a learning rate depends on the number of ranks.

    Attributes:
        power: of the number of ranks in the learning rate, all factors together.
        line: where an optimizer gets the learning rate; None: not in this file.
        last: line of the last factor.
        batch_power: of the number of ranks in the batch size of one rank; -1 keeps the global batch size.
        lines: line of a call that creates an optimizer -> line of the learning rate that it gets.
        powers: line of such a call -> power of the number of ranks in its learning rate; empty where a rate
            is scaled later, so that the call does not show it.
        loss_divided: whether a loss is divided by the number of ranks, which is correct for summed gradients.
        replaced: whether a scheduler replaces the learning rate of the optimizer by its own, at `line`.
    """

    power: float
    line: int | None
    last: int | None
    batch_power: float
    lines: dict[int, int]
    powers: dict[int, float]
    loss_divided: bool
    replaced: bool


def rates(script: Script) -> Rates:
    """Return how the learning rate of a script depends on the number of ranks.

    Args:
        script: the script.

    Raises:
        RecursionError: an expression is nested too deep.
    """
    reader = _Reader(script, _sizes(script))
    # A batch that is divided by the GPUs of a machine stays as large in total, too.
    batches = _Reader(script, _sizes(script) | GPU_COUNTS)
    # (power, line) of the rates with which optimizers are created, of rates that they get later, and of
    # factors that multiply their rates.
    given, later, factors = [], [], []
    replaced = []  # (power, line) of the rates of schedulers that replace the rate of the optimizer
    lines: dict[int, int] = {}
    powers: dict[int, float] = {}
    batch, optimizers = 0.0, _optimizers(script)
    for node in script.nodes:
        if isinstance(node, ast.Call):
            name = last_name(node)
            values = _rates_given(node, name, optimizers)
            for value in values:
                power = reader.power(value)
                if power > 0 or name[:1].isupper():  # a function may scale what it gets
                    given.append((power, value.lineno))
            if _is_optimizer(node, name, optimizers):
                lines[node.lineno] = values[0].lineno if values else node.lineno
                known = [value for value in values if not reader.is_foreign(value)]
                if known or not values:
                    powers[node.lineno] = max(map(reader.power, known), default=0.0)
                given += [] if values else [(0.0, node.lineno)]  # the default of the optimizer
            if name in REPLACING and not any(tests_around(script, node)):
                own = [v for v in values if not any(map(_is_of_optimizer, ast.walk(v)))]
                replaced += [(reader.power(value), value.lineno) for value in own]
            if name.endswith("LambdaLR"):
                known = [value for value in node.args[1:2] if not reader.is_foreign(value)]
                factors += [(reader.power(value), node.lineno) for value in known]
            place = PLACES.get(name, len(node.args))
            sizes = [k.value for k in node.keywords if k.arg in BATCHES]
            batch = min(batch, *map(batches.power, sizes + node.args[place : place + 1]), 0.0)
        elif isinstance(node, ast.Dict):  # a group of weights with a rate of its own
            pairs = zip(node.keys, node.values, strict=True)
            own = [(reader.power(v), v.lineno) for k, v in pairs if getattr(k, "value", 0) in RATES]
            later += [rate for rate in own if rate[0] > 0]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            power = reader.assigned(node, targets)
            if power > 0 and any(map(_is_rate_in_use, targets)):
                again = _multiplies_itself(node) and not any(map(_is_of_arguments, targets))
                (factors if again else later).append((power, node.lineno))
            if any(identifier(target) in BATCHES for target in targets):
                batch = min(batch, batches.power(_assigned(node)))
    if replaced:
        given, lines, powers = replaced, {}, {}
    given = [rate for rate in given if rate[0]] or given  # not the weights, argument 0 in torch
    power, line = max(given + later, key=lambda rate: rate[0], default=(0.0, None))
    last = line
    more, where = max(factors, default=(0.0, None))  # one of several optimizers, or branches
    if more > 0:
        power, last = power + more, where
    scaled = {line for power, line in given + later + factors if power > 0}
    if not scaled <= {lines[each] for each in powers}:
        powers = {}
    divides = _divides_loss(script, reader)
    return Rates(power, line, last, batch, lines, powers, divides, bool(replaced))


def _bindings(script: Script) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name as text, value) of all assignments and arguments, without regard to scopes."""
    yield from ((ast.unparse(target), value) for target, value in script.bindings())
    yield from ((name, value) for _, name, value in script.functions.arguments())


def _optimizers(script: Script) -> set[str]:
    """Return the names imported from torch.optim, keras.optimizers and the like."""
    return {
        alias.asname or alias.name
        for node in script.nodes
        if isinstance(node, ast.ImportFrom) and "optim" in (node.module or "")
        for alias in node.names
    }


def _divides_loss(script: Script, reader: "_Reader") -> bool:
    """Return whether a loss is divided by the number of ranks, which is correct for summed gradients."""
    divisions = list(_bindings(script))  # (name, value)
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


def _rates_given(call: ast.Call, name: str, optimizers: set[str]) -> list[ast.expr]:
    """Return the arguments of a call that may be learning rates.

    Args:
        call: the call.
        name: last part of its name.
        optimizers: names imported from a module of optimizers.
    """
    given = [keyword.value for keyword in call.keywords if keyword.arg in RATES]
    parts = ast.unparse(call.func).split(".")
    if name.endswith("LR"):  # a scheduler of torch
        place = CYCLES.get(name, len(call.args))
        return given + call.args[place : place + 1]
    if {"optim", "optimizers", "schedules"} & set(parts) or name in optimizers:
        return given + call.args
    if name.endswith(("Schedule", "Scheduler")) or re.match("LearningRate.*Callback", name):
        return given + call.args
    owner = getattr(call.func, "value", None)
    variable = (
        getattr(owner, "id", None) in RATES
    )  # a variable of TensorFlow that the optimizer got
    if name in ("assign", "assign_add") and owner and (variable or _is_rate_in_use(owner)):
        return given + call.args
    if name == "set_value" and call.args and _is_rate_in_use(call.args[0]):  # legacy Keras
        return given + call.args[1:]
    return given


def _is_optimizer(call: ast.Call, name: str, optimizers: set[str]) -> bool:
    """Return whether a call may create an optimizer: see `_rates_given`."""
    parts = set(ast.unparse(call.func).split("."))
    from_module = {"optim", "optimizers"} & parts and "schedules" not in parts
    return bool(from_module or name in optimizers) and name[:1].isupper()


def _is_rate_in_use(target: ast.AST) -> bool:
    """Return whether a target is the rate of an optimizer: `group["lr"]`, `optimizer.learning_rate`."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and target.slice.value in RATES
    return isinstance(target, ast.Attribute) and target.attr in RATES


def _is_of_optimizer(target: ast.AST) -> bool:
    """Return whether a target is the rate of an optimizer, and no argument such as `args.lr`."""
    return _is_rate_in_use(target) and not _is_of_arguments(target)


def _is_of_arguments(target: ast.AST) -> bool:
    """Return whether a target is an argument such as `args.lr`, which an optimizer gets later."""
    owner = getattr(target, "value", None)
    if identifier(owner) in ("opt", "self"):
        return True
    while isinstance(owner, ast.Attribute):  # config.train.optimizer.lr
        owner = owner.value
    return identifier(owner) in ARGUMENTS


def _assigned(assign: ast.Assign | ast.AugAssign) -> ast.expr:
    """Return the value of an assignment, or its factor: 1 // size of `x //= size`."""
    if isinstance(assign, ast.AugAssign):
        return ast.BinOp(ast.Constant(1), assign.op, assign.value)
    return assign.value


def _multiplies_itself(assign: ast.Assign | ast.AugAssign) -> bool:
    """Return whether an assignment changes the old value of its target."""
    if isinstance(assign, ast.AugAssign):
        return isinstance(assign.op, ast.Mult)
    target = ast.unparse(assign.targets[0])
    return any(ast.unparse(node) == target for node in ast.walk(assign.value))


def _is_product_with(target: ast.expr, value: ast.expr) -> bool:
    """Return whether a value is a product with the old value of its target: x * size."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return any(_is_product_with(target, side) for side in (value.left, value.right))
    return type(value) is type(target) and ast.unparse(value) == ast.unparse(target)


def _sizes(script: Script) -> set[str]:
    """Return the names of the functions that return Horovod's number of ranks, as text: hvd.size."""
    modules, names = {"hvd", "self.hvd"}, set()
    for node in script.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if "horovod" in f"{getattr(node, 'module', '')}.{alias.name}":
                    found = names if alias.name in HOROVOD_SIZES else modules
                    found.add(alias.asname or alias.name)
    return names | {f"{module}.{size}" for module in modules for size in HOROVOD_SIZES}


class _Reader:
    """The powers of the number of ranks in expressions.

    A name has the power of the values that are assigned to it anywhere in the script.

    Args:
        script: the script.
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
        for name, value in _bindings(script):
            if value not in again:
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

    def power(self, node: ast.expr) -> float:
        """Return the power of the number of ranks in an expression.

        Args:
            node: the expression.
        """
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
        """Return the power of the number of ranks that an assignment brings: 1 for x = x * size.

        Args:
            assign: the assignment.
            targets: its targets.
        """
        names = {ast.unparse(target) for target in targets}
        before = {name: self.known.pop(name) for name in names & self.known.keys()}
        self.known |= dict.fromkeys(names, 0.0)  # on the right side they have their old values
        power = self.power(_assigned(assign))
        for name in names:
            del self.known[name]
        self.known |= before
        return power

    def is_foreign(self, value: ast.expr) -> bool:
        """Return whether a value comes from a function that is not in the script, so that it is unknown.

        Args:
            value: an expression.
        """
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
