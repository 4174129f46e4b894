"""Hints about the learning rate: scaled with the ranks, and risen to."""

import ast
import re

from hvdlab.hints.learning import first_line, optimizers
from hvdlab.script_analysis.ast_helpers import key, keyword, strings
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
OWN_SCHEDULES = ("LearningRateSchedule", "LRScheduler")  # bases of a script's own
LAYERS = ("Dropout", "SpatialDropout2D", "GaussianDropout", "AlphaDropout")  # they have a rate too
BATCH = re.compile(r"(\A|[\W_])batch([_-]size)?\Z", re.IGNORECASE)
SERIAL_RATE, SERIAL_BATCH = 0.25, 128  # of the scripts that are handed out


def rate(script: Script):
    made = optimizers(script)
    adasum = any("Adasum" in (alias, name) for alias, name in script.full.items()) or any(
        isinstance(node, ast.Attribute) and node.attr == "Adasum" for node in script.nodes
    )
    try:
        scaled = rates(script)
    except RecursionError:  # nobody's training script is nested so deep
        scaled = Rates(0.0, None, None, 0.0)
    if not made or adasum or scaled.batch_power < 0:  # these need no other rate
        return
    if scaled.power <= 0 and not may_be_scaled(script):
        batches = numbers_given(script, set(script.named("Batches")), BATCH)
        kept = (
            min(batches, default=SERIAL_BATCH) <= SERIAL_BATCH / 2
        )  # all together have that of one
        # Another rate than the serial one has been tuned.
        if not kept and SERIAL_RATE in numbers_given(script, made, RATE):
            text = (
                "The learning rate does not depend on hvd.size(). N processes take a batch N times "
                "as large: begin with N times the rate of one and a warm-up."
            )
            yield first_line(made), text
        return
    for call in script.hvd("DistributedOptimizer"):
        if getattr(keyword(call, "op"), "attr", "") == "Sum" and scaled.power > 1:
            text = (
                "The gradients are added here and the rate is scaled as well, so a step is N times too "
                "large: leave `op` out, and they are averaged."
            )
            yield call.lineno, text
            return
    names = {getattr(node, "id", None) or getattr(node, "attr", None) for node in script.nodes}
    names |= {word.arg for call in script.calls for word in call.keywords}
    names |= {getattr(node, "name", None) for node in script.nodes} | set(script.full)
    rising = any("warm" in str(name).lower() for name in names)
    bases = [base for node in script.nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    rising = rising or any(ast.unparse(base).endswith(OWN_SCHEDULES) for base in bases)
    if scaled.power > 0 and not rising and not set_by_hand(script) and not script.named(*SCHEDULES):
        text = (
            "The rate is scaled and used in full from the first step. Let it rise over the first "
            "part of an epoch or more: a large batch often diverges without such a warm-up."
        )
        yield scaled.last, text


def numbers_given(script: Script, made: set[ast.Call], names: re.Pattern) -> set[float]:
    """The numbers that are given to what is called by one of `names`, or to one of the calls `made`."""
    places = [value for target, value in script.assignments() if names.search(target)]
    places += [argument for call in made for argument in call.args]
    for table in (node for node in script.nodes if isinstance(node, ast.Dict)):
        pairs = zip(table.keys, table.values, strict=True)
        places += [value for name, value in pairs if names.search(str(getattr(name, "value", "")))]
    for call in script.calls:
        if call in script.named("add_argument") and any(map(names.search, strings(call))):
            places += call.keywords
        elif script.names[call].rpartition(".")[2] not in LAYERS:
            places += [word for word in call.keywords if word.arg and names.search(word.arg)]
    for function in (node for node in script.nodes if isinstance(node, FUNCTIONS)):
        arguments = [*function.args.posonlyargs, *function.args.args][::-1]
        pairs = [*zip(arguments, function.args.defaults[::-1], strict=False)]
        pairs += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        places += [value for argument, value in pairs if value and names.search(argument.arg)]
    parts = (part for place in places for part in ast.walk(place))
    values = {part.value for part in parts if isinstance(part, ast.Constant)}
    return {value for value in values if type(value) in (int, float)}


def set_by_hand(script: Script) -> bool:
    """Whether the rate is set again and again, as in `group["lr"] = ...`."""
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
        tables = [part for part in call.args if isinstance(part, ast.Dict)]
        given = [name for table in tables for name in table.keys]
        names = {getattr(name, "value", None) for name in given} | {w.arg for w in call.keywords}
        if names & set(RATES):
            return True
    return False


def is_repeated(script: Script, node: ast.AST, asked: set[ast.AST] | None = None) -> bool:
    """Whether it stands in a loop, in a callback, or in a function that is called there.

    Args:
        asked: the functions of which that has been asked.
    """
    asked = set() if asked is None else asked
    for around in script.ancestors(node):
        # LambdaCallback(lambda batch, logs: ...)
        if isinstance(around, ast.For | ast.While | ast.Lambda):
            return True
        if isinstance(around, FUNCTIONS):
            passed_on = script.functions.name(around) in script.functions.passed_on
            if around.name.startswith("on_") or passed_on:
                return True
            if around in asked:
                return False
            asked.add(around)
            calls = script.functions.calls.get(script.functions.name(around), [])
            return any(is_repeated(script, call, asked) for call in calls)
    return False


def may_be_scaled(script: Script) -> bool:
    """Whether something may be made larger with the number of processes."""
    own = {node.name for node in script.nodes if isinstance(node, ast.FunctionDef)}
    batches = set(script.named("Batches"))
    without: set[ast.AST] = set()  # parts of expressions that have been searched as a whole
    for node in script.nodes:
        value = None
        if node in without:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            value = node
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            value = node.value
        elif isinstance(node, ast.IfExp):
            value = node.test
        elif isinstance(node, ast.If):  # if hvd.size() > 1: lr = 0.35
            value = node.test if any(map(sets_rate, node.body)) else None
        elif isinstance(node, ast.Call):
            name = script.names[node]
            if name in own or "scaling" in name or name.startswith("hvdlab.schedules."):
                value = node
        elif isinstance(node, ast.Subscript):
            # {1: 0.25, 2: 0.5}[hvd.size()], but not images[::size]
            if not any(isinstance(part, ast.Slice) for part in ast.walk(node.slice)):
                value = node.slice
        if value is None:
            continue
        if script.uses_size(value) and batches.isdisjoint(script.ancestors(node)):
            if not isinstance(node, ast.BinOp) or not is_of_images(script, node):
                return True
        without.update(ast.walk(value))
    return False


def sets_rate(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = (key(target) for target in targets if isinstance(target, ast.Name | ast.Attribute))
    return any(map(RATE.search, names))


def is_of_images(script: Script, product: ast.BinOp) -> bool:
    """Whether a product counts images or batches, or is divided, as images by seconds."""
    names = {getattr(node, "id", None) or getattr(node, "attr", "") for node in ast.walk(product)}
    if any(name == "len" or "batch" in name or "steps" in name for name in names):
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
    above = script.parents[node]
    divides = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div)
    return divides and above.left is node and not script.uses_size(above.right)
