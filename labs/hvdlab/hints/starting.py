"""Hints about the beginning of a script: Horovod itself, `init`, and the device of each process."""

import ast

from hvdlab.script_analysis.ast_helpers import strings
from hvdlab.script_analysis.gpu_choice import chosen_by_helper, remainders
from hvdlab.script_analysis.script import BROADCASTS, HOROVOD, Script

PLACES = ("rank", "size", "local_rank", "local_size")


def horovod(script: Script):
    if not script.horovod and not script.other:
        module = "horovod.torch" if script.torch else "hvdlab.keras.horovod"
        text = (
            "No line imports Horovod: N processes then train N models of their own. Begin with "
            f"`import {module} as hvd` and `hvd.init()`."
        )
        yield None, text
    if script.silent_keras:
        text = (
            "Horovod's own Keras module accepts an optimizer of Keras 3 and averages nothing, "
            "silently. Write `import hvdlab.keras.horovod as hvd` (or use Keras 2, with "
            "TF_USE_LEGACY_KERAS=1)."
        )
        yield script.silent_keras, text
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and node.attr in PLACES and is_a_value(script, node):
            if script.name(node).startswith(HOROVOD):
                text = (
                    f"`{ast.unparse(node)}` is the function itself: write `{ast.unparse(node)}()`."
                )
                yield node.lineno, text
                return


def is_a_value(script: Script, node: ast.AST) -> bool:
    """Whether something is compared, computed with, or given to Batches, as no function is."""
    around = script.parents[node]
    if isinstance(around, ast.keyword):
        return script.parents[around] in script.named("Batches")
    return isinstance(around, ast.Compare | ast.BinOp)


def init(script: Script):
    if not script.horovod:
        return
    calls = script.hvd("init")
    if not calls:
        yield None, "`hvd.init()` is never called: without it no process knows of the others."
        return
    first = {script.inside[call]: call.lineno for call in reversed(calls)}
    for call in script.hvd(*PLACES, "DistributedOptimizer", *BROADCASTS):
        begun = first.get(script.inside[call])
        if any(isinstance(above, ast.Lambda) for above in script.ancestors(call)):
            continue  # is called later
        if script.tree not in first and script.inside[call] is script.tree:
            if not called_before(script, call.lineno):
                yield (
                    call.lineno,
                    "This asks Horovod before `hvd.init()`, which a function calls later.",
                )
                return
        if begun and call.lineno < begun:
            yield call.lineno, f"This asks Horovod before `hvd.init()` in line {begun}."
            return


def is_called(script: Script, node: ast.AST) -> bool:
    around = script.parents[node]
    return isinstance(around, ast.Call) and around.func is node


def called_before(script: Script, line: int) -> bool:
    """Whether the module has called a function of its own before a line."""
    own = (call for calls in script.functions.calls.values() for call in calls)
    return any(call.lineno < line and script.inside[call] is script.tree for call in own)


def device(script: Script):
    if not script.horovod:
        return
    for line in remainders(script):
        text = (
            "With fewer GPUs than processes this remainder gives two processes the same GPU, which NCCL "
            'refuses ("Duplicate GPU detected") and whose memory two TensorFlow processes both claim. '
            f"Call `mine = rank_device(hvd)` from `{helper(script)}`."
        )
        yield line, text
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
            text = (
                "Every process takes the first GPU: let `mine = rank_device(hvd)` from "
                f"`{helper(script)}` choose one, then use `mine.device`. Where each process has a GPU, "
                "`torch.cuda.set_device(hvd.local_rank())` before this is enough."
            )
            yield min(lines), text
    elif script.keras:
        text = (
            "No process chooses a GPU of its own: call `mine = rank_device(hvd)` from "
            f"`{helper(script)}`. Where each process has a GPU, "
            '`tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")` is enough.'
        )
        yield None, text


def helper(script: Script) -> str:
    """The module whose `rank_device` fits the script."""
    return "hvdlab.torch.device" if script.torch else "hvdlab.keras.device"


def chooses(script: Script) -> bool:
    """Whether a device is chosen by a variable of the launcher, by the rank, or none at all."""
    places = ("LOCAL_RANK", "SLURM_LOCALID", "CUDA_VISIBLE_DEVICES")
    read = any(
        text.endswith(places)
        for node in script.nodes
        if isinstance(node, ast.Subscript | ast.Call)
        for text in strings(node)
    )
    placed = script.named("set_device", "device", "to", "cuda", "set_visible_devices")
    return read or any(
        script.uses_rank(argument) or (isinstance(argument, ast.List) and not argument.elts)  # none
        for call in placed
        for argument in call.args
    )
