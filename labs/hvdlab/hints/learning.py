"""Hints about the optimizer's wrapper, and about equal weights at the start."""

import ast
import re
from collections.abc import Iterable, Iterator

from hvdlab.hints.catalogue import Finding, finding
from hvdlab.hints.frameworks import api
from hvdlab.script_analysis.ast_helpers import identifier, is_text, keyword, pairs
from hvdlab.script_analysis.bindings import Variable
from hvdlab.script_analysis.functions import FUNCTIONS
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
NOT_OPTIMIZERS = {"lr_scheduler", "schedules", "swa_utils"}  # modules below those
# Names of gradients. `register_hook` gets a function of the gradient. A script that clips gradients does
# not average them.
GRADIENT = re.compile(
    r"\A(?!zero_|no_|enable_|set_|requires_|inference|clip_)(\w*_)?(grads?|gradients?)(_(?!clip|norm)|\Z)"
    r"|register\w*_hook\Z"
)


def optimizers(script: Script) -> set[ast.Call]:
    """Return the calls that create an optimizer, compile(optimizer="sgd") among them."""
    created = {call for call in script.named("compile") if is_text(given_optimizer(call))}
    created -= {call for call in created if script.names[call] in ("compile", "re.compile")}
    for call, name in script.names.items():
        parts = name.split(".")
        if name.startswith(OPTIMIZERS) and parts[-1][:1].isupper():
            if not NOT_OPTIMIZERS & set(parts):
                created.add(call)
    return created


def first_line(calls: Iterable[ast.AST]) -> int:
    """Return the smallest line of some nodes.

    Args:
        calls: at least one node.
    """
    return min(call.lineno for call in calls)


def optimizer(script: Script) -> Iterator[Finding]:
    """Yield findings about an optimizer that is not wrapped, or wrapped too late."""
    created = optimizers(script)
    wraps = script.hvd("DistributedOptimizer")
    wraps = {call for call in wraps if call.args or call.keywords}
    if not wraps:
        if created and not script.other and not _exchanges_gradients(script):
            seen = "This optimizer is never wrapped."
            yield finding("optimizer-not-wrapped", first_line(created), seen, api(script))
        return
    for call in wraps:
        if isinstance(script.parents[call], ast.Expr):
            seen = "This wraps the optimizer and drops the result."
            yield finding("optimizer-not-wrapped", call.lineno, seen)
            return
    bound: dict[Variable, list[ast.AST]] = {}  # a variable -> all values that it gets
    for target, value in script.bindings():
        if isinstance(target, ast.Name | ast.Attribute):
            bound.setdefault(script.variable(target), []).append(value)
    for call, used in sorted(uses_of_optimizer(script), key=lambda use: use[0].lineno):
        if not isinstance(used, ast.Name | ast.Attribute):
            continue
        values = bound.get(script.variable(used), [])  # empty for a parameter
        wrapped = [value for value in values if wraps & set(ast.walk(value))]
        if not all(value in created or value in wrapped for value in values):
            continue
        later = [
            v for v in wrapped if v.lineno > call.lineno and script.inside[v] is script.inside[call]
        ]
        if values and later == wrapped:
            seen = (
                "This gets the plain optimizer and not the optimizer that line "
                f"{first_line(later or wraps)} wraps."
            )
            yield finding("wrapped-too-late", call.lineno, seen)
            return


def _exchanges_gradients(script: Script) -> bool:
    """Return whether a script without a wrapped optimizer averages its gradients in another way."""
    names = {identifier(node) for node in script.nodes}
    by_hand = script.hvd(*EXCHANGES) and any(GRADIENT.match(name) for name in names)
    passed_on = "DistributedOptimizer" in names | set(script.full)  # functools.partial(...)
    return bool(by_hand or passed_on or script.hvd("DistributedGradientTape"))


def uses_of_optimizer(script: Script) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Yield the calls that train with an optimizer, or that keep its state, each with the optimizer.

    A scheduler is left out, because the plain optimizer and the one that DistributedOptimizer returns
    share their learning rate. It is included where a state is loaded, because the momentum then belongs
    to the wrapped optimizer.

    Yields:
        (call, optimizer); None where the call does not name its optimizer.
    """
    loads = loads_of_optimizer(script)
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
            if wraps.isdisjoint(ast.walk(script.parents[function])):  # the class does not wrap it
                yield given, given  # Trainer(model, optimizer), which calls self.optimizer.step()


def loads_of_optimizer(script: Script) -> list[ast.Call]:
    """Return the calls that load the state of an optimizer."""
    loads = script.named("load_state_dict")
    return [call for call in loads if "optim" in script.names[call].lower()]


def fields_of(function: FUNCTIONS, parameter: str) -> set[str]:
    """Return the attributes in which an __init__ keeps a parameter."""
    assigns = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    kept = (
        pair for node in assigns for target in node.targets for pair in pairs(target, node.value)
    )
    return {
        target.attr
        for target, value in kept
        if isinstance(target, ast.Attribute) and getattr(value, "id", None) == parameter
    }


def given_optimizer(call: ast.Call) -> ast.expr | None:
    """Return the optimizer of `optimizer.step()`, or the optimizer that a call gets.

    Args:
        call: of step, of compile, or of a scheduler.

    Returns:
        The expression, or None.
    """
    if getattr(call.func, "attr", None) == "step":
        return call.func.value
    return keyword(call, "optimizer") or (call.args[0] if call.args else None)


def elastic(script: Script) -> list[ast.Call]:
    """Return the calls of elastic Horovod, which broadcasts the weights at the start and after a change."""
    names = script.names.items()
    return [call for call, name in names if name.startswith(HOROVOD) and ".elastic." in name]


def broadcast(script: Script) -> Iterator[Finding]:
    """Yield findings about weights and optimizer states that no call broadcasts."""
    if not script.horovod or not optimizers(script):
        return
    found = script.hvd(*BROADCASTS) or script.named("BroadcastGlobalVariablesCallback")
    found = found or elastic(script)
    if not found and not script.other:  # mpi4py sends weights as well
        seeds = script.named("manual_seed", "set_random_seed")
        equal = not any(script.uses_rank(argument) for call in seeds for argument in call.args)
        cause = "Only the seed gives" if seeds and equal else "Nothing gives"
        yield finding("no-broadcast", None, f"{cause} all ranks the same weights.", api(script))
    loaded_names = (
        node
        for node in script.nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    loaded = set(map(script.variable, loaded_names))
    for call in found:
        around = script.parents[call]
        dropped = isinstance(around, ast.Expr) or (
            isinstance(around, ast.Assign)
            and isinstance(around.targets[0], ast.Name)
            and script.variable(around.targets[0]) not in loaded
        )
        if script.names[call].endswith("Callback") and dropped:
            seen = "This creates the broadcast callback and drops it."
            yield finding("no-broadcast", call.lineno, seen, "keras")
    state = script.hvd("broadcast_optimizer_state") or any(
        script.named_in(call, "state_dict") for call in script.hvd("broadcast_object")
    )
    # An optimizer whose state is not loaded starts without one, on every rank.
    if found and loads_of_optimizer(script) and not state:
        if script.names[found[0]].endswith("broadcast_parameters"):
            seen = "The optimizer's state is not broadcast."
            yield finding("state-not-broadcast", found[0].lineno, seen)
