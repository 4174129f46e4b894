"""Hints about learning together: the optimizer's wrapping, and weights that are equal at the start."""

import ast
import re
from collections.abc import Iterator

from hvdlab.script_analysis.ast_helpers import keyword, pairs
from hvdlab.script_analysis.bindings import Variable
from hvdlab.script_analysis.script import BROADCASTS, EXCHANGES, HOROVOD, Script

OPTIMIZERS = (
    "torch.optim.",
    "keras.optimizers.",
    "tensorflow.keras.optimizers.",
    "tf.keras.optimizers.",
    "tensorflow.optimizers.",
    "tf.optimizers.",
    "tf_keras.optim",
    "hvdlab.torch.optimizers.",
    "hvdlab.keras.optimizers.",
)
# `register_hook` gets a function of the gradient; who clips gradients averages none.
GRADIENT = re.compile(
    r"\A(?!zero_|no_|enable_|set_|requires_|inference|clip_)(\w*_)?(grads?|gradients?)(_(?!clip|norm)|\Z)"
    r"|register\w*_hook\Z"
)


def optimizers(script: Script) -> set[ast.Call]:
    """The calls that make an optimizer, compile(optimizer="sgd") among them."""
    made = {call for call in script.named("compile") if is_text(given_optimizer(call))}
    made -= {call for call in made if script.names[call] in ("compile", "re.compile")}
    for call, name in script.names.items():
        parts = name.split(".")
        if name.startswith(OPTIMIZERS) and parts[-1][:1].isupper():
            if not {"lr_scheduler", "schedules", "swa_utils"} & set(parts):
                made.add(call)
    return made


def is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def first_line(calls) -> int:
    return min(call.lineno for call in calls)


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
    for call, used in sorted(uses_of_optimizer(script), key=lambda use: use[0].lineno):
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


def uses_of_optimizer(script: Script) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """(call, optimizer) of the calls that train with an optimizer, or hold on to its state.

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
    for call in schedulers + steps + script.named("compile"):
        yield call, given_optimizer(call)
    stepped = {call.func.value.attr for call in steps if isinstance(call.func.value, ast.Attribute)}
    wraps = set(script.hvd("DistributedOptimizer"))
    for function, parameter, given in script.functions.arguments():
        if function.name == "__init__" and stepped & fields_of(function, parameter):
            if wraps.isdisjoint(ast.walk(script.parents[function])):  # else it wraps by itself
                yield given, given  # Trainer(model, optimizer), which calls self.optimizer.step()


def fields_of(function: ast.AST, parameter: str) -> set[str]:
    """The attributes in which an __init__ keeps what it is given as `parameter`."""
    assigns = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    kept = (
        pair for node in assigns for target in node.targets for pair in pairs(target, node.value)
    )
    return {
        target.attr
        for target, value in kept
        if isinstance(target, ast.Attribute) and getattr(value, "id", None) == parameter
    }


def given_optimizer(call: ast.Call) -> ast.AST | None:
    if getattr(call.func, "attr", None) == "step":
        return call.func.value
    return keyword(call, "optimizer") or (call.args[0] if call.args else None)


def elastic(script: Script) -> list[ast.Call]:
    """What makes the ranks' weights equal in elastic Horovod, at the start and whenever they change."""
    names = script.names.items()
    return [call for call, name in names if name.startswith(HOROVOD) and ".elastic." in name]


def broadcast(script: Script):
    made = optimizers(script)
    if not script.horovod or not made:
        return
    found = script.hvd(*BROADCASTS) or script.named("BroadcastGlobalVariablesCallback")
    found = found or elastic(script)
    callback = "hvd.callbacks.BroadcastGlobalVariablesCallback(0)"
    if not found and not script.other:  # mpi4py sends weights as well
        how = (
            "call `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` before the first epoch"
            if script.torch and not script.keras  # Keras may compute with torch
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
    # Without, all begin with the same: nothing.
    loads = [c for c in script.named("load_state_dict") if "optim" in script.names[c].lower()]
    if found and loads and not state:
        if script.names[found[0]].endswith("broadcast_parameters"):
            text = (
                "The optimizer's state is not broadcast: "
                "`hvd.broadcast_optimizer_state(optimizer, root_rank=0)`. A run that goes on from a "
                "checkpoint needs it."
            )
            yield found[0].lineno, text
