"""Hints about learning: the rate, the optimizer's wrapping, and weights that are equal at the start."""

import ast
import re

from hvdlab.script import BROADCASTS, EXCHANGES, Script, keyword, strings

SCHEDULES = (
    "LambdaLR LinearLR OneCycleLR SequentialLR CyclicLR CosineAnnealingWarmRestarts Schedule "
    "LearningRateScheduler ScheduleCallback LearningRateScheduleCallback"
).split()
GRADIENT = re.compile(r"\A(?!zero_|no_|enable_|set_|requires_|inference)\w*grad")
SERIAL_RATE = 0.25  # the default of --lr in the scripts that are handed out


def optimizers(script: Script) -> set[ast.Call]:
    """The calls that make an optimizer."""
    kinds = ("torch.optim.", "keras.optimizers.", "tensorflow.keras.optimizers.", "tf_keras.optim")
    kinds += ("tf.keras.optimizers.", "hvdlab.torch.optimizers.", "hvdlab.keras.optimizers.")
    made = set()
    for call, name in script.names.items():
        parts = name.split(".")
        if name.startswith(kinds) and parts[-1][:1].isupper():
            if not {"lr_scheduler", "schedules"} & set(parts):
                made.add(call)
    return made


def first_line(calls) -> int:
    return min(call.lineno for call in calls)


def rate(script: Script):
    made = optimizers(script)
    adasum = any("Adasum" in (alias, name) for alias, name in script.full.items()) or any(
        isinstance(node, ast.Attribute) and node.attr == "Adasum" for node in script.nodes
    )
    if not made or adasum:  # Adasum needs no other rate
        return
    scaled = scaling_line(script)
    if scaled is None:
        values = {node.value for node in script.nodes if isinstance(node, ast.Constant)}
        if SERIAL_RATE in values:  # another rate has been tuned
            text = (
                "The learning rate does not depend on hvd.size(). N processes take a batch N times "
                "as large: begin with N times the rate of one and a warm-up."
            )
            yield first_line(made), text
        return
    names = {getattr(node, "id", None) or getattr(node, "attr", None) for node in script.nodes}
    names |= {word.arg for call in script.calls for word in call.keywords}
    names |= {getattr(node, "name", None) for node in script.nodes} | set(script.full)
    names |= {text for call in script.named("add_argument") for text in strings(call)}
    rising = any("warm" in str(name).lower() for name in names)
    by_hand = any(
        isinstance(node, ast.Subscript) and set(strings(node)) & {"lr", "learning_rate"}
        for node in script.nodes
    )
    if not rising and not by_hand and not script.named(*SCHEDULES):
        text = (
            "The rate is scaled and used in full from the first step. Let it rise over the first "
            "part of an epoch or more: a large batch often diverges without such a warm-up."
        )
        yield scaled, text


def scaling_line(script: Script) -> int | None:
    """Where a learning rate could be made larger with the number of processes."""
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
        elif isinstance(node, ast.Call):
            name = script.names[node]
            if name in own or "scaling" in name or name.startswith("hvdlab.schedules."):
                value = node
        if value is None:
            continue
        if script.uses_size(value) and batches.isdisjoint(script.ancestors(node)):
            return node.lineno
        without.update(ast.walk(value))
    return None


def optimizer(script: Script):
    made = optimizers(script)
    wraps = script.hvd("DistributedOptimizer")
    wraps = {call for call in wraps if call.args or call.keywords}
    if not wraps:
        words = {getattr(node, "id", None) or getattr(node, "attr", "") for node in script.nodes}
        by_hand = script.hvd(*EXCHANGES) and any(GRADIENT.match(word) for word in words)
        exchanged = by_hand or script.hvd("DistributedGradientTape")
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
    plain = {name for name, value in script.assignments() if value in made}
    wrapped = {name: value for name, value in script.assignments() if value in wraps}
    for call in sorted(uses_of_optimizer(script), key=lambda call: call.lineno):
        used = given_optimizer(call)
        if not isinstance(used, ast.Name):
            continue
        wrap = wrapped.get(used.id)
        later = wrap and wrap.lineno > call.lineno
        later = later and script.inside[wrap] is script.inside[call]
        if (used.id in plain and wrap is None) or later:
            line = wrap.lineno if wrap else first_line(wraps)
            text = (
                f"This gets the plain optimizer, not what line {line} wraps. Wrap it first, and use "
                "only what DistributedOptimizer returned."
            )
            yield call.lineno, text
            return


def uses_of_optimizer(script: Script) -> list[ast.Call]:
    """The calls that train with an optimizer, or hold on to it."""
    schedulers = [
        call
        for call, name in script.names.items()
        if "lr_scheduler." in name or name == "hvdlab.torch.schedules.Schedule"
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
    if not found:
        how = (
            "call `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` before the first epoch"
            if script.torch
            else f"put `{callback}` into fit's callbacks"
        )
        yield None, f"Nothing makes all ranks begin with the same weights: {how}."
    for call in found:
        if script.names[call].endswith("Callback") and isinstance(script.parents[call], ast.Expr):
            yield call.lineno, "This makes the broadcast callback and drops it: fit must get it."
    if found and script.torch and not script.hvd("broadcast_optimizer_state"):
        if script.names[found[0]].endswith("broadcast_parameters"):
            text = (
                "The optimizer's state is not broadcast: "
                "`hvd.broadcast_optimizer_state(optimizer, root_rank=0)`. It matters when a run "
                "resumes from a checkpoint."
            )
            yield found[0].lineno, text
