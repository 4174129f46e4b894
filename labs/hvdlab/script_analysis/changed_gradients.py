"""Where a script changes the gradients of one rank before they are averaged: see `changed_early`."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from hvdlab.script_analysis.ast_helpers import identifiers, last_name
from hvdlab.script_analysis.bindings import Variable
from hvdlab.script_analysis.script import Script

AVERAGES = ("allreduce", "allreduce_", "allreduce_async_", "grouped_allreduce")
HARMLESS = ("zero_", "detach_", "requires_grad_")  # methods that change no gradient for a step


class EarlyChange(NamedTuple):
    """A change of the gradients of one rank.

    Attributes:
        line: of the change.
        average: line below it that averages the same gradients; None if Horovod's optimizer averages them,
            from `backward` until the step.
    """

    line: int
    average: int | None


def changed_early(script: Script) -> EarlyChange | None:
    """Return the first change of gradients before or while they are averaged, or None.

    The functions clip_grad... of PyTorch are left out, because `hvdlab check` watches them while they run.
    """
    clips = [call for call in script.calls if last_name(call).startswith("clip_")]
    for clip in clips:
        if average := _average_below(clip, script):
            return EarlyChange(clip.lineno, average.lineno)
    if not script.hvd("DistributedOptimizer"):
        return None
    own = {script.inside[change] for change in _changes(script)} - {script.tree}
    averages = {script.inside[call] for call in script.hvd(*AVERAGES)}
    named = {function.name for function in own - averages if isinstance(function, ast.FunctionDef)}
    changes = [*_changes(script), *script.named(*named)]
    changes += [
        c for c in clips if "clip_grad" in last_name(c) and "nn.utils" not in script.names[c]
    ]
    for change in sorted(changes, key=lambda node: node.lineno):
        around = [call for call in script.calls if script.inside[call] is script.inside[change]]
        above = {last_name(call) for call in around if call.lineno < change.lineno}
        below = {last_name(call) for call in around if call.lineno > change.lineno}
        if "backward" in above and "step" in below and "synchronize" not in above:
            return EarlyChange(change.lineno, None)
    return None


def _average_below(clip: ast.Call, script: Script) -> ast.Call | None:
    """Return the first average of the gradients that a call clips, below it in its function, or None."""
    clipped = {name for name in identifiers(clip) if "grad" in name}
    for average in script.hvd(*AVERAGES):
        if script.inside[average] is script.inside[clip] and average.lineno > clip.lineno:
            statement = next(n for n in script.ancestors(average) if isinstance(n, ast.stmt))
            if clipped & identifiers(statement):
                return average
    return None


def _changes(script: Script) -> Iterator[ast.Call | ast.AugAssign]:
    """Yield the changes of a gradient in place: `p.grad.div_(norm)`, `p.grad /= norm`."""
    names = _gradients(script)
    for node in script.nodes:
        if isinstance(node, ast.AugAssign) and _is_gradient(node.target):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, node.func.value
            if method.endswith("_") and not method.startswith("_") and method not in HARMLESS:
                named = isinstance(owner, ast.Name) and script.variable(owner) in names
                if named or _is_gradient(owner):
                    yield node


def _gradients(script: Script) -> set[Variable]:
    """Return the variables that hold a gradient: `g = p.grad`, `for g in grads` of a list of gradients."""
    assigns = [pair for pair in script.bindings() if isinstance(pair[0], ast.Name)]
    lists = {
        script.variable(target)
        for target, value in assigns
        if isinstance(value, ast.ListComp) and _is_gradient(value.elt)
    }
    found = {script.variable(target) for target, value in assigns if _is_gradient(value)}
    for node in script.nodes:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            if isinstance(node.iter, ast.Name) and script.variable(node.iter) in lists:
                found.add(script.variable(node.target))
    return found


def _is_gradient(node: ast.expr) -> bool:
    """Return whether an expression is `p.grad`, or `p.grad.data`."""
    while isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "grad"
