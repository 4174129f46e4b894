"""Hints about learning: the rate, the optimizer's wrapping, and weights that are equal at the start."""

import ast
import re
from collections.abc import Iterator

from hvdlab.bound import Variable
from hvdlab.own_functions import FUNCTIONS
from hvdlab.rates import Rates, rates
from hvdlab.script import BROADCASTS, EXCHANGES, Script
from hvdlab.syntax import key, keyword, strings

SCHEDULES = (
    "LambdaLR LinearLR ConstantLR OneCycleLR SequentialLR CyclicLR CosineAnnealingWarmRestarts Schedule "
    "LearningRateScheduler ScheduleCallback LearningRateScheduleCallback"
).split()
# `register_hook` gets a function of the gradient.
GRADIENT = re.compile(r"\A(?!zero_|no_|enable_|set_|requires_|inference)\w*grad|register\w*_hook\Z")
RATES = ("lr", "learning_rate")
RATE = re.compile(r"((\A|[\W_])(lr|learning[_-]rate|peak|warmup_target)|(\A|[.])rate)\Z")
OWN_SCHEDULES = ("LearningRateSchedule", "LRScheduler")  # bases of a script's own
LAYERS = ("Dropout", "SpatialDropout2D", "GaussianDropout", "AlphaDropout")  # they have a rate too
SERIAL_RATE = 0.25  # the default of --lr in the scripts that are handed out


def optimizers(script: Script) -> set[ast.Call]:
    """The calls that make an optimizer."""
    kinds = ("torch.optim.", "keras.optimizers.", "tensorflow.keras.optimizers.", "tf_keras.optim")
    kinds += ("tf.keras.optimizers.", "hvdlab.torch.optimizers.", "hvdlab.keras.optimizers.")
    made = set()
    for call, name in script.names.items():
        parts = name.split(".")
        if name.startswith(kinds) and parts[-1][:1].isupper():
            if not {"lr_scheduler", "schedules", "swa_utils"} & set(parts):
                made.add(call)
    return made


def first_line(calls) -> int:
    return min(call.lineno for call in calls)


def rate(script: Script):
    made = optimizers(script)
    adasum = any("Adasum" in (alias, name) for alias, name in script.full.items()) or any(
        isinstance(node, ast.Attribute) and node.attr == "Adasum" for node in script.nodes
    )
    if not made or adasum or divides_batch(script):  # these need no other rate
        return
    try:
        scaled = rates(script)
    except RecursionError:  # nobody's training script is nested so deep
        scaled = Rates(0.0, None, None, 0.0)
    if scaled.power <= 0 and not may_be_scaled(script):
        if has_serial_rate(script, made):  # another rate has been tuned
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
    names |= {text for call in script.named("add_argument") for text in strings(call)}
    rising = any("warm" in str(name).lower() for name in names)
    bases = [base for node in script.nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    rising = rising or any(ast.unparse(base).endswith(OWN_SCHEDULES) for base in bases)
    if scaled.power > 0 and not rising and not set_by_hand(script) and not script.named(*SCHEDULES):
        text = (
            "The rate is scaled and used in full from the first step. Let it rise over the first "
            "part of an epoch or more: a large batch often diverges without such a warm-up."
        )
        yield scaled.last, text


def has_serial_rate(script: Script, made: set[ast.Call]) -> bool:
    """Whether some rate is that of the scripts that are handed out."""
    places = [value for target, value in script.assignments() if RATE.search(target)]
    places += [argument for call in made for argument in call.args]
    for call in script.calls:
        if call in script.named("add_argument") and any(map(RATE.search, strings(call))):
            places += call.keywords
        elif script.names[call].rpartition(".")[2] not in LAYERS:
            places += [word for word in call.keywords if word.arg and RATE.search(word.arg)]
    for function in (node for node in script.nodes if isinstance(node, FUNCTIONS)):
        arguments = [*function.args.posonlyargs, *function.args.args][::-1]
        pairs = [*zip(arguments, function.args.defaults[::-1], strict=False)]
        pairs += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        places += [value for argument, value in pairs if value and RATE.search(argument.arg)]
    parts = (part for place in places for part in ast.walk(place))
    return any(isinstance(part, ast.Constant) and part.value == SERIAL_RATE for part in parts)


def set_by_hand(script: Script) -> bool:
    """Whether the rate is set again and again, as in `group["lr"] = ...`."""

    def again(node: ast.AST) -> bool:
        return any(
            isinstance(around, ast.For | ast.While) or getattr(around, "name", "").startswith("on_")
            for around in script.ancestors(node)
        )

    for node in script.nodes:
        if isinstance(node, ast.Subscript) and set(strings(node)) & set(RATES):
            return True
        named = isinstance(node, ast.Attribute) and node.attr in RATES
        stored = named and isinstance(node.ctx, ast.Store)
        assigned = named and getattr(script.parents[node], "attr", "") == "assign"
        if (stored or assigned) and again(node):
            return True
    calls = script.named("update")
    return any(word.arg in RATES for call in calls for word in call.keywords)


def divided_by_size(script: Script) -> Iterator[ast.expr]:
    """What is divided by the number of processes."""
    for node in script.nodes:
        if isinstance(getattr(node, "op", None), ast.Div | ast.FloorDiv):
            if isinstance(node, ast.BinOp) and script.uses_size(node.right):
                yield node.left
            elif isinstance(node, ast.AugAssign) and script.uses_size(node.value):
                yield node.target


def divides_batch(script: Script) -> bool:
    """Whether the batch of a process becomes smaller with their number."""
    return any(
        isinstance(what, ast.Name | ast.Attribute) and "batch" in key(what)
        for what in divided_by_size(script)
    )


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


def optimizer(script: Script):
    made = optimizers(script)
    wraps = script.hvd("DistributedOptimizer")
    wraps = {call for call in wraps if call.args or call.keywords}
    if not wraps:
        words = {getattr(node, "id", None) or getattr(node, "attr", "") for node in script.nodes}
        by_hand = script.hvd(*EXCHANGES) and any(GRADIENT.match(word) for word in words)
        passed_on = "DistributedOptimizer" in words | set(script.full)  # functools.partial(...)
        exchanged = by_hand or passed_on or script.hvd("DistributedGradientTape")
        if made and not exchanged and not script.other:
            text = (
                "This optimizer is never wrapped: `optimizer = hvd.DistributedOptimizer(optimizer)` "
                "averages the gradients of all processes before each step."
            )
            yield first_line(made), text
        return
    for call in wraps:
        if isinstance(script.parents[call], ast.Expr):
            text = (
                "This wraps the optimizer and drops the result: write "
                "`optimizer = hvd.DistributedOptimizer(optimizer, ...)`."
            )
            yield call.lineno, text
            return
    bound: dict[Variable, list[ast.AST]] = {}  # a variable -> all that it stands for
    for target, value in script.bindings():
        if isinstance(target, ast.Name | ast.Attribute):
            bound.setdefault(script.variable(target), []).append(value)
    for call in sorted(uses_of_optimizer(script), key=lambda call: call.lineno):
        used = given_optimizer(call)
        if not isinstance(used, ast.Name | ast.Attribute):
            continue
        values = bound.get(script.variable(used), [])  # none of a parameter
        wrapped = [value for value in values if wraps & set(ast.walk(value))]
        if not all(value in made or value in wrapped for value in values):
            continue
        later = [
            v for v in wrapped if v.lineno > call.lineno and script.inside[v] is script.inside[call]
        ]
        if values and later == wrapped:
            text = (
                f"This gets the plain optimizer, not what line {first_line(later or wraps)} wraps. Wrap it "
                "first, and use only what DistributedOptimizer returned."
            )
            yield call.lineno, text
            return


def uses_of_optimizer(script: Script) -> list[ast.Call]:
    """The calls that train with an optimizer, or hold on to its state.

    A scheduler does not, as what it is made of and what DistributedOptimizer returns have one rate. That
    ends where a state is loaded, and its velocities are the wrapped one's.
    """
    loads = [
        call for call in script.named("load_state_dict") if "optim" in script.names[call].lower()
    ]
    schedulers = [
        call
        for call, name in script.names.items()
        if ("lr_scheduler." in name or name == "hvdlab.torch.schedules.Schedule")
        and (loads or keyword(call, "momentum_correction"))
    ]
    steps = [call for call in script.named("step") if isinstance(call.func, ast.Attribute)]
    return schedulers + steps + script.named("compile")


def given_optimizer(call: ast.Call) -> ast.AST | None:
    if getattr(call.func, "attr", None) == "step":
        return call.func.value
    return keyword(call, "optimizer") or (call.args[0] if call.args else None)


def broadcast(script: Script):
    made = optimizers(script)
    if not script.horovod or not made:
        return
    found = script.hvd(*BROADCASTS) or script.named("BroadcastGlobalVariablesCallback")
    callback = "hvd.callbacks.BroadcastGlobalVariablesCallback(0)"
    if not found and not script.other:  # mpi4py sends weights as well
        how = (
            "call `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` before the first epoch"
            if script.torch
            else f"put `{callback}` into fit's callbacks"
        )
        seeds = script.named("manual_seed", "set_random_seed")
        alike = not any(script.uses_rank(argument) for call in seeds for argument in call.args)
        what = "Only the seed makes" if seeds and alike else "Nothing makes"
        yield None, f"{what} all ranks begin with the same weights: {how}."
    read = {
        script.variable(n)
        for n in script.nodes
        if isinstance(getattr(n, "ctx", 0), ast.Load) and isinstance(n, ast.Name)
    }
    for call in found:
        around = script.parents[call]
        dropped = isinstance(around, ast.Expr) or (
            isinstance(around, ast.Assign)
            and isinstance(around.targets[0], ast.Name)
            and script.variable(around.targets[0]) not in read
        )
        if script.names[call].endswith("Callback") and dropped:
            yield call.lineno, "This makes the broadcast callback and drops it: fit must get it."
    state = script.hvd("broadcast_optimizer_state") or any(
        script.named_in(call, "state_dict") for call in script.hvd("broadcast_object")
    )
    if found and script.torch and not state:
        if script.names[found[0]].endswith("broadcast_parameters"):
            text = (
                "The optimizer's state is not broadcast: "
                "`hvd.broadcast_optimizer_state(optimizer, root_rank=0)`. It matters when a run "
                "resumes from a checkpoint."
            )
            yield found[0].lineno, text
