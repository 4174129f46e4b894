"""Hints about the start of a script: the import of Horovod, `hvd.init`, and the device of each rank."""

import ast
from collections.abc import Iterator

from hvdlab.hints.catalogue import Finding, finding
from hvdlab.script_analysis.ast_helpers import strings
from hvdlab.script_analysis.gpu_choice import chosen_by_helper, remainders
from hvdlab.script_analysis.horovod_calls import PLACES, uncalled
from hvdlab.script_analysis.legacy_keras import OLD_ARGUMENT, failing_callback, old_argument
from hvdlab.script_analysis.script import BROADCASTS, Script

RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "CUDA_VISIBLE_DEVICES")  # set by a launcher


def horovod(script: Script) -> Iterator[Finding]:
    """Yield findings about a missing import, Horovod's own Keras module, and `hvd.rank` without a call."""
    if not script.horovod and not script.other:
        seen = "No line imports Horovod, so N processes train N models independently of each other."
        yield finding("init-missing", None, seen)
    if script.silent_keras:
        seen = (
            "Horovod's own Keras module accepts an optimizer of Keras 3, averages nothing, and reports "
            "no error."
        )
        if line := old_argument(script):
            seen += f" Keras 3 does not accept {OLD_ARGUMENT} in line {line}: remove it."
        yield finding("gradients-not-averaged", script.silent_keras, seen)
    if failing := failing_callback(script):
        yield finding("legacy-callback", *failing)
    if node := uncalled(script):
        seen = f"`{ast.unparse(node)}` is a function, and this uses it as a number."
        yield finding("function-not-called", node.lineno, seen)


def init(script: Script) -> Iterator[Finding]:
    """Yield a finding about an `hvd.init` that is missing, or called too late."""
    if not script.horovod:
        return
    calls = script.hvd("init")
    if not calls:
        seen = "`hvd.init()` is never called, so no process knows the others."
        yield finding("init-missing", None, seen)
        return
    first = {script.inside[call]: call.lineno for call in reversed(calls)}
    for call in script.hvd(*PLACES, "DistributedOptimizer", *BROADCASTS):
        init_line = first.get(script.inside[call])
        if any(isinstance(above, ast.Lambda) for above in script.ancestors(call)):
            continue  # is called later
        if script.tree not in first and script.inside[call] is script.tree:
            if not called_before(script, call.lineno):
                seen = "This calls Horovod before `hvd.init()`, which a function calls later."
                yield finding("init-missing", call.lineno, seen)
                return
        if init_line and call.lineno < init_line:
            seen = f"This calls Horovod before `hvd.init()` in line {init_line}."
            yield finding("init-missing", call.lineno, seen)
            return


def is_called(script: Script, node: ast.AST) -> bool:
    """Return whether a node is the function of a call."""
    around = script.parents[node]
    return isinstance(around, ast.Call) and around.func is node


def called_before(script: Script, line: int) -> bool:
    """Return whether the module calls a function of its own before a line.

    Args:
        line: the line, from 1.
    """
    own = (call for calls in script.functions.calls.values() for call in calls)
    return any(call.lineno < line and script.inside[call] is script.tree for call in own)


def device(script: Script) -> Iterator[Finding]:
    """Yield findings about ranks that share a GPU."""
    if not script.horovod:
        return
    framework = "torch" if script.torch else "keras"
    for line in remainders(script):
        seen = (
            "With fewer GPUs than processes this remainder gives two processes the same GPU. NCCL refuses "
            'that ("Duplicate GPU detected"), and with TensorFlow both processes claim all of its memory.'
        )
        yield finding("gpu-by-remainder", line, seen, framework)
    if script.named("local_rank") or chosen_by_helper(script) or chooses(script):
        return
    if script.torch:
        lines = [
            node.lineno
            for node in script.nodes
            if (isinstance(node, ast.Attribute) and node.attr == "cuda" and is_called(script, node))
            or (isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:0"))
        ]
        if lines:
            seen = "Every process uses the first GPU."
            yield finding("device-not-pinned", min(lines), seen, framework)
    elif script.keras:
        seen = "No process chooses a GPU of its own."
        yield finding("device-not-pinned", None, seen, framework)


def chooses(script: Script) -> bool:
    """Return whether a launcher's variable or the rank chooses a device, or whether GPUs are off."""
    reads_variable = any(
        text.endswith(RANK_VARIABLES)
        for node in script.nodes
        if isinstance(node, ast.Subscript | ast.Call)
        for text in strings(node)
    )
    placed = script.named("set_device", "device", "to", "cuda", "set_visible_devices")
    return reads_variable or any(
        script.uses_rank(argument) or (isinstance(argument, ast.List) and not argument.elts)  # off
        for call in placed
        for argument in call.args
    )
