"""Hints about the learning rate: whether it grows with the number of ranks, and whether it warms up."""

import ast
import re
from collections.abc import Iterator

from hvdlab.hints.catalogue import Finding, finding
from hvdlab.hints.learning import first_line, optimizers
from hvdlab.script_analysis.ast_helpers import (
    identifier,
    identifiers,
    key,
    keyword,
    positional_defaults,
    strings,
)
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.rate_scaling import Rates, rates
from hvdlab.script_analysis.script import Script

SCHEDULES = (
    "LambdaLR LinearLR ConstantLR OneCycleLR SequentialLR CyclicLR CosineAnnealingWarmRestarts Schedule "
    "LearningRateScheduler ScheduleCallback LearningRateScheduleCallback"
).split()
RATES = ("lr", "learning_rate")
RATE = re.compile(
    r"((\A|[\W_])(lr|learning[_-]rate|peak|warmup_target)|(\A|[.])rate)\Z", re.IGNORECASE
)
OWN_SCHEDULES = ("LearningRateSchedule", "LRScheduler")  # base classes of a script's own schedule
LAYERS = (
    "Dropout",
    "SpatialDropout2D",
    "GaussianDropout",
    "AlphaDropout",
)  # their `rate` is another
BATCH = re.compile(r"(\A|[\W_])batch([_-]size)?\Z", re.IGNORECASE)
SERIAL_RATE, SERIAL_BATCH_SIZE = 0.25, 128  # of the scripts that learners start from


def rate(script: Script) -> Iterator[Finding]:
    """Yield a finding about a learning rate that is unscaled, scaled twice, or without a warmup."""
    created = optimizers(script)
    adasum = "Adasum" in {*script.full, *script.full.values()} or any(
        isinstance(node, ast.Attribute) and node.attr == "Adasum" for node in script.nodes
    )
    try:
        scaled = rates(script)
    except RecursionError:  # no real training script is nested that deep
        scaled = Rates(0.0, None, None, 0.0, {}, {}, False, False)
    if not created or adasum or scaled.batch_power < 0:  # these keep the rate of a single process
        return
    if scaled.power <= 0 and not may_be_scaled(script):
        batches = numbers_given(script, set(script.named("Batches")), BATCH)
        # All ranks together then read a batch of the size that a single process reads.
        global_batch_kept = min(batches, default=SERIAL_BATCH_SIZE) <= SERIAL_BATCH_SIZE / 2
        # A rate that differs from the serial one has been tuned.
        if not global_batch_kept and SERIAL_RATE in numbers_given(script, created, RATE):
            seen = "The learning rate does not depend on hvd.size()."
            yield finding("rate-unscaled", first_line(created), seen)
        return
    for call in script.hvd("DistributedOptimizer"):
        adds = getattr(keyword(call, "op"), "attr", "") == "Sum"
        if adds and scaled.power > 0 and not scaled.loss_divided:
            seen = (
                "Here the gradients are added, and the learning rate is scaled too, so each step is N "
                "times too large."
            )
            yield finding("rate-scaled-twice", call.lineno, seen)
            return
    if scaled.power > 0 and not _warms_up(script):
        seen = "The learning rate is scaled, and has its full value from the first step on."
        yield finding("no-warmup", scaled.last, seen)


def _warms_up(script: Script) -> bool:
    """Return whether something in a script may be a warmup, or a schedule that contains one."""
    names = {identifier(node) for node in script.nodes} | set(script.full)
    names |= {word.arg for call in script.calls for word in call.keywords}
    names |= {getattr(node, "name", None) for node in script.nodes}
    if any("warm" in str(name).lower() for name in names):
        return True
    bases = [base for node in script.nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    if any(ast.unparse(base).endswith(OWN_SCHEDULES) for base in bases):
        return True
    return set_by_hand(script) or bool(script.named(*SCHEDULES))


def numbers_given(script: Script, calls: set[ast.Call], names: re.Pattern) -> set[float]:
    """Return the numbers that something with a given name gets, or that one of some calls gets.

    Returns:
        The number literals.
    """
    places = [value for target, value in script.assignments() if names.search(target)]
    places += [argument for call in calls for argument in call.args]
    for table in (node for node in script.nodes if isinstance(node, ast.Dict)):
        items = zip(table.keys, table.values, strict=True)
        places += [value for name, value in items if names.search(str(getattr(name, "value", "")))]
    for call in script.calls:
        if call in script.named("add_argument") and any(map(names.search, strings(call))):
            places += call.keywords
        elif script.names[call].rpartition(".")[2] not in LAYERS:
            places += [word for word in call.keywords if word.arg and names.search(word.arg)]
    for function in (node for node in script.nodes if isinstance(node, FUNCTIONS)):
        defaults = positional_defaults(function)
        defaults += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        places += [value for argument, value in defaults if value and names.search(argument.arg)]
    parts = (part for place in places for part in ast.walk(place))
    values = {part.value for part in parts if isinstance(part, ast.Constant)}
    return {value for value in values if type(value) in (int, float)}


def set_by_hand(script: Script) -> bool:
    """Return whether the learning rate is set repeatedly, as in `group["lr"] = ...`."""
    for node in script.nodes:
        if isinstance(node, ast.Subscript) and set(strings(node)) & set(RATES):
            if isinstance(node.ctx, ast.Store):
                return True
        if not isinstance(node, ast.Attribute) or node.attr not in RATES:
            continue
        above = script.parents[node]
        assigned = getattr(above, "attr", "") == "assign" or (
            isinstance(above, ast.Call) and above in script.named("set_value")  # legacy Keras
        )
        if (isinstance(node.ctx, ast.Store) or assigned) and is_repeated(script, node):
            return True
    for call in script.named("update"):  # update(lr=...), update({"lr": ...})
        keys = [name for part in call.args if isinstance(part, ast.Dict) for name in part.keys]
        names = {getattr(name, "value", None) for name in keys}
        if (names | {word.arg for word in call.keywords}) & set(RATES):
            return True
    return False


def is_repeated(script: Script, node: ast.AST, visited: set[ast.AST] | None = None) -> bool:
    """Return whether a node is in a loop, in a callback, or in a function that is called there.

    Args:
        visited: functions whose calls have been followed already. Default None: no function.
    """
    visited = set() if visited is None else visited
    for around in script.ancestors(node):
        # LambdaCallback(lambda batch, logs: ...)
        if isinstance(around, ast.For | ast.While | ast.Lambda):
            return True
        if isinstance(around, FUNCTIONS):
            name = script.functions.name(around)
            if around.name.startswith("on_") or name in script.functions.passed_on:
                return True
            if around in visited:
                return False
            visited.add(around)
            calls = script.functions.calls.get(name, [])
            return any(is_repeated(script, call, visited) for call in calls)
    return False


def may_be_scaled(script: Script) -> bool:
    """Return whether something in a script may grow with the number of ranks."""
    own = {node.name for node in script.nodes if isinstance(node, ast.FunctionDef)}
    batches = set(script.named("Batches"))
    searched: set[ast.AST] = set()  # parts of expressions that were searched as a whole
    for node in script.nodes:
        if node in searched:
            continue
        value = _factor(script, node, own)
        if value is None:
            continue
        if script.uses_size(value) and batches.isdisjoint(script.ancestors(node)):
            if not isinstance(node, ast.BinOp) or not is_of_images(script, node):
                return True
        searched.update(ast.walk(value))
    return False


def _factor(script: Script, node: ast.AST, own: set[str]) -> ast.AST | None:
    """Return the expression by which a node may make something depend on the number of ranks.

    Returns:
        The expression; None for a node that multiplies and chooses nothing.
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return node
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
        return node.value
    if isinstance(node, ast.IfExp):
        return node.test
    if isinstance(node, ast.If):  # if hvd.size() > 1: lr = 0.35
        return node.test if any(map(sets_rate, node.body)) else None
    if isinstance(node, ast.Call):
        name = script.names[node]
        scales = name in own or "scaling" in name or name.startswith("hvdlab.schedules.")
        return node if scales else None
    if isinstance(node, ast.Subscript):  # {1: 0.25, 2: 0.5}[hvd.size()], but not images[::size]
        sliced = any(isinstance(part, ast.Slice) for part in ast.walk(node.slice))
        return None if sliced else node.slice
    return None


def sets_rate(statement: ast.stmt) -> bool:
    """Return whether a statement assigns to a learning rate."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = (key(target) for target in targets if isinstance(target, ast.Name | ast.Attribute))
    return any(map(RATE.search, names))


def is_of_images(script: Script, product: ast.BinOp) -> bool:
    """Return whether a product counts images or batches, or is divided, as images are by seconds."""
    if any(name == "len" or "batch" in name or "steps" in name for name in identifiers(product)):
        return True
    node = product
    while isinstance(above := script.parents[node], ast.BinOp):
        if is_divided(script, node):
            return True
        node = above
    if not isinstance(above, ast.Assign) or not isinstance(above.targets[0], ast.Name):
        return False
    variable = script.variable(above.targets[0])
    return any(
        isinstance(node, ast.Name)
        and script.variable(node) == variable
        and is_divided(script, node)
        for node in script.nodes
    )


def is_divided(script: Script, node: ast.AST) -> bool:
    """Return whether a node is divided by something else than the number of ranks."""
    above = script.parents[node]
    divides = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div)
    return divides and above.left is node and not script.uses_size(above.right)
