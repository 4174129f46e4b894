"""The power of the number of ranks with which a script scales its learning rate: see `rates`.

    SGD(0.01 * hvd.size())                                   1
    rate = 0.01 * size ... Adam(rate * math.sqrt(size))      1.5
    SGD(0.01)                                                0

A rate that a script sets later, without the number of ranks, replaces that of the optimizer: see `Rates`.
"""

import ast
import re
from collections.abc import Collection
from typing import NamedTuple

from hvdlab.script_analysis.ast_helpers import identifier, last_name
from hvdlab.script_analysis.bindings import tests_around
from hvdlab.script_analysis.script import Script
from hvdlab.script_analysis.size_powers import (
    HOROVOD_SIZES,
    RATES,
    Powers,
    bindings,
    factor_of,
    size_calls,
)

BATCHES = {"batch_size", "local_batch_size", "per_rank_batch_size"}
PLACES = {"batch": 0, "DataLoader": 1, "fit": 2, "Batches": 2}  # of the batch size in a call
CYCLES = {"OneCycleLR": 1, "CyclicLR": 2}  # places of their largest rate
# Schedules that replace the rate of the optimizer. Horovod warms up from initial_lr / size to initial_lr.
REPLACING = {*CYCLES, "LearningRateWarmupCallback", "LearningRateScheduleCallback"}
ARGUMENTS = {"args", "arguments", "options", "config", "configs", "cfg", "hparams", "FLAGS"}
OF_RATE = re.compile(r"(\A|_)lr(\Z|_)|learning_rate|\Arate\Z", re.IGNORECASE)
GPU_COUNTS = {"torch.cuda.device_count", "cuda.device_count"}


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
        replaced: whether a scheduler or an assignment replaces the learning rate of the optimizer by another
            one, at `line`.
    """

    power: float
    line: int | None
    last: int | None
    batch_power: float
    lines: dict[int, int]
    powers: dict[int, float]
    loss_divided: bool
    replaced: bool


def rates(script: Script, named: Collection[str] = HOROVOD_SIZES) -> Rates:
    """Return how the learning rate of a script depends on the number of ranks.

    Args:
        named: functions of Horovod that return a number of ranks. Default: also that of one machine.

    Raises:
        RecursionError: an expression is nested too deep.
    """
    reader = Powers(script, size_calls(script, named))
    # A batch that is divided by the GPUs of a machine stays as large in total, too.
    batches = Powers(script, size_calls(script) | GPU_COUNTS)
    # (power, line) of the rates with which optimizers are created, of rates that they get later, and of
    # factors that multiply their rates.
    given, later, factors = [], [], []
    replaced = []  # (power, line) of the rates of schedulers that replace the rate of the optimizer
    plain = []  # lines that replace it by a rate without the number of ranks
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
                own = [v for v in values if not any(map(is_of_optimizer, ast.walk(v)))]
                replaced += [(reader.power(value), value.lineno) for value in own]
            if name in ("assign", "set_value") and values and _is_run(node, script):
                power = max(map(reader.power, values))
                plain += [node.lineno] if power <= 0 and _is_plain(values[0], reader) else []
            if name == "LearningRateScheduler" and not any(tests_around(script, node)):
                unscaled = _of_epoch(node, script) and reader.power(node.args[0]) <= 0
                plain += [node.lineno] if unscaled else []
            if name.endswith("LambdaLR"):
                functions = node.args[1:2] + [
                    w.value for w in node.keywords if w.arg == "lr_lambda"
                ]
                known = [value for value in functions if not reader.is_foreign(value)]
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
                again = again or _reads_rate(factor_of(node), reader)
                (factors if again else later).append((power, node.lineno))
            elif power <= 0 and any(map(is_of_optimizer, targets)) and _is_run(node, script):
                plain += [node.lineno] if _is_plain(node.value, reader) else []
            if any(identifier(target) in BATCHES for target in targets):
                batch = min(batch, batches.power(factor_of(node)))
    if plain and not (replaced or later or any(power for power, _ in factors)):
        replaced = [(0.0, plain[-1])]
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


def _optimizers(script: Script) -> set[str]:
    """Return the names imported from torch.optim, keras.optimizers and the like."""
    return {
        alias.asname or alias.name
        for node in script.nodes
        if isinstance(node, ast.ImportFrom) and "optim" in (node.module or "")
        for alias in node.names
    }


def _divides_loss(script: Script, reader: "Powers") -> bool:
    """Return whether a loss is divided by the number of ranks, which is correct for summed gradients."""
    divisions = list(bindings(script))  # (name, value)
    for node in script.nodes:
        if isinstance(node, ast.BinOp):
            divisions.append((ast.unparse(node.left), node))
        elif isinstance(node, ast.AugAssign):
            divisions.append((ast.unparse(node.target), factor_of(node)))
    return any(
        "loss" in name and isinstance(getattr(value, "op", None), ast.Div)
        and reader.power(value.right) > 0
        for name, value in divisions
    )  # fmt: skip


def _rates_given(call: ast.Call, name: str, optimizers: set[str]) -> list[ast.expr]:
    """Return the arguments of a call that may be learning rates."""
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


def _of_epoch(call: ast.Call, script: Script) -> ast.FunctionDef | ast.Lambda | None:
    """Return the function that a LearningRateScheduler gets if it knows the epoch only, and not the rate."""
    given = call.args[0] if call.args else None
    found = [given]
    if isinstance(given, ast.Name):
        found = script.functions.defined.get((given.id, False), [])
    known = [f for f in found if isinstance(f, ast.FunctionDef | ast.Lambda)]
    return known[0] if len(known) == 1 and len(known[0].args.args) == 1 else None


def _is_run(assign: ast.AST, script: Script) -> bool:
    """Return whether a run makes an assignment: no test decides, and the script calls the function around."""
    function = script.inside[assign]
    called = function is script.tree or script.functions.calls.get(script.functions.name(function))
    # A test of the rate itself may ask whether it changes: if group["lr"] != new.
    tests = [t for t in tests_around(script, assign) if not any(map(is_of_optimizer, ast.walk(t)))]
    return bool(called) and not tests


def _is_plain(value: ast.expr, reader: Powers, inside: frozenset[str] = frozenset()) -> bool:
    """Return whether a rate is one of the command line, or a number, or such a rate times a factor.

    Args:
        inside: names whose values contain the expression. Default: none.
    """
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        sides = [value.left, value.right] if isinstance(value.op, ast.Mult) else [value.left]
        rates = [side for side in sides if not _is_number(side)]  # 0.1 is a factor
        return not rates or any(_is_plain(side, reader, inside) for side in rates)
    if isinstance(value, ast.Name | ast.Attribute) and OF_RATE.search(identifier(value)):
        name = ast.unparse(value)
        if name in inside:
            return True
        values = reader.values.get(name, [])
        given = isinstance(value, ast.Attribute) and not values and _is_of_arguments(value)
        return given or bool(values) and all(_is_plain(v, reader, inside | {name}) for v in values)
    return isinstance(value, ast.Constant) and isinstance(value.value, float)


def _is_number(factor: ast.expr) -> bool:
    """Return whether a factor is a number, or a power of a number: 0.5 ** epoch."""
    if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Pow):
        return isinstance(factor.left, ast.Constant)
    return isinstance(factor, ast.Constant)


def _is_rate_in_use(target: ast.AST) -> bool:
    """Return whether a target is the rate of an optimizer: `group["lr"]`, `optimizer.learning_rate`."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and target.slice.value in RATES
    return isinstance(target, ast.Attribute) and target.attr in RATES


def is_of_optimizer(target: ast.AST) -> bool:
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


def _reads_rate(value: ast.expr, reader: Powers) -> bool:
    """Return whether a value is made of the rate that an optimizer has: group["initial_lr"] * factor."""
    values, names = [value], set()
    for each in values:  # which grows by the values of names
        for node in ast.walk(each):
            if is_of_optimizer(node) and "param_groups" in ast.unparse(node) or _is_of_group(node):
                return True
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            values += [] if name in names else reader.values.get(name, [])
            names.add(name)
    return False


def _is_of_group(node: ast.AST) -> bool:
    """Return whether a node is group["initial_lr"], which PyTorch's schedules keep."""
    return isinstance(node, ast.Subscript) and getattr(node.slice, "value", 0) == "initial_lr"


def _multiplies_itself(assign: ast.Assign | ast.AugAssign) -> bool:
    """Return whether an assignment changes the old value of its target."""
    if isinstance(assign, ast.AugAssign):
        return isinstance(assign.op, ast.Mult)
    target = ast.unparse(assign.targets[0])
    return any(ast.unparse(node) == target for node in ast.walk(assign.value))
