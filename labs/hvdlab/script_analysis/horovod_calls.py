"""Calls of Horovod that have no effect, schedules of some ranks only, and rounds divided by the ranks."""

import ast
import re

from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import HOROVOD, Script

PLACES = ("rank", "size", "local_rank", "local_size")
SHARDING = ("Batches", "DistributedSampler", "shard")  # they take the rank and the number of ranks
ROUNDS = re.compile(r"epoch|step|iter|batch|len\(|num|size")  # a number of rounds, or of samples
RESULTS = ("allreduce", "allgather", "broadcast", "grouped_allreduce")  # they change no argument


CALLBACKS = (  # of Keras, that all ranks need
    "EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
)  # fmt: skip


def uncalled(script: Script) -> ast.Attribute | None:
    """Return the first function of Horovod such as `hvd.rank` that is used as a number, or None.

    Args:
        script: the script.
    """
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and node.attr in PLACES and is_a_value(script, node):
            if script.name(node).startswith(HOROVOD):
                return node
    return None


def is_a_value(script: Script, node: ast.AST) -> bool:
    """Return whether a node is compared, is an operand, or is passed to one of SHARDING.

    Args:
        script: the script.
        node: an expression of it.
    """
    around = script.parents[node]
    call = script.parents[around] if isinstance(around, ast.keyword) else around
    if call in script.named(*SHARDING):
        return getattr(call, "func", None) is not node
    return isinstance(around, ast.Compare | ast.BinOp)


def discarded(script: Script) -> ast.Call | None:
    """Return the first collective whose result a script discards, although it uses the argument later.

    A statement `hvd.allreduce(torch.tensor(0))` is no mistake, because it lets the ranks wait for each other.

    Args:
        script: the script.
    """
    for call in script.hvd(*RESULTS):
        sent = call.args[0] if call.args else None
        if isinstance(script.parents[call], ast.Expr) and isinstance(sent, ast.Name):
            variable, end = script.variable(sent), call.end_lineno
            names = (node for node in script.nodes if isinstance(node, ast.Name))
            later = [n for n in names if n.lineno > end and script.variable(n) == variable]
            first = min(later, key=lambda node: node.lineno, default=None)
            if first is not None and isinstance(first.ctx, ast.Load):
                return call
    return None


def own_schedule(script: Script, guards: Guards) -> ast.Call | None:
    """Return the first step of a schedule, or callback of CALLBACKS, that only some ranks have, or None.

    Args:
        script: the script.
        guards: its tests of the rank.
    """
    steps = script.named("step")
    in_each_branch = guards.everywhere(steps)
    sent = set(script.hvd("broadcast_optimizer_state", "broadcast_object", "broadcast"))
    for call in steps:
        owner = getattr(call.func, "value", None)
        if not isinstance(owner, ast.Name | ast.Attribute) or not guards.test(call):
            continue
        loops = [node for node in script.ancestors(call) if isinstance(node, ast.For | ast.While)]
        if call in in_each_branch or any(not sent.isdisjoint(ast.walk(loop)) for loop in loops):
            continue  # the other ranks may get the learning rate
        values = [value for variable, value in script.bound if variable == script.variable(owner)]
        if any("lr_scheduler" in script.name(v) for v in values if isinstance(v, ast.Call)):
            return call
    callbacks = script.named(*CALLBACKS)
    in_each_branch = guards.everywhere(callbacks)
    own = (call for call in callbacks if guards.test(call) and call not in in_each_branch)
    return next(own, None)


def fewer_rounds(script: Script) -> bool:
    """Return whether a script divides a number of epochs, steps or batches by the number of ranks.

    Args:
        script: the script.
    """
    divided = [
        (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        for node in script.nodes
        if isinstance(node, ast.BinOp | ast.AugAssign)
        and isinstance(node.op, ast.Div | ast.FloorDiv)
    ]
    return any(ROUNDS.search(ast.unparse(n)) and script.uses_size(by) for n, by in divided)
