"""The calls that write or download a file, and whether all ranks make them at the same time."""

import ast
from collections.abc import Iterator

from hvdlab.script_analysis.ast_helpers import keyword, last_name
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

# Methods that a framework calls, besides those that begin with "on_" and "__".
CALLED_BACK = ("call", "forward", "train_step", "training_step", "validation_step", "test_step")


def saves(script: Script) -> Iterator[ast.Call]:
    """Yield the calls that write a checkpoint."""
    for call, name in script.names.items():
        last = name.rpartition(".")[2]
        if name == "torch.save" or last in ("ModelCheckpoint", "save_weights", "save_model"):
            yield call
        elif last == "save" and "model" in ast.unparse(call.func).lower():
            yield call
        elif last == "save" and "train.Checkpoint" in _owner(call, script):
            yield call


def downloads(script: Script) -> Iterator[ast.Call]:
    """Yield the calls that download a file."""
    for call, name in script.names.items():
        last = name.rpartition(".")[2]
        download = keyword(call, "download")
        if isinstance(download, ast.Constant) and download.value is True:
            yield call
        elif last in ("urlretrieve", "get_file"):
            yield call
        elif last == "load_data" and "datasets" in f"{name} {_owner(call, script)}":
            yield call


def _owner(call: ast.Call, script: Script) -> str:
    """Return what a variable holds whose function is called: `mnist = keras.datasets.mnist`, or ""."""
    owner = getattr(call.func, "value", None)
    if not isinstance(owner, ast.Name):
        return ""
    values = [value for variable, value in script.bound if variable == script.variable(owner)]
    return ast.unparse(values[0]) if len(values) == 1 else ""


def on_all_ranks(call: ast.Call, guards: Guards) -> bool:
    """Return whether all ranks make a call, with the same arguments, at the same time."""
    if guards.asks(call) or guards.test(call) or _in_turns(call, guards):
        return False
    if not _is_run(call, guards.script):
        return False
    if last_name(call) == "ModelCheckpoint":  # a callback of no rank, or of one rank
        if guards.uses(call) == [] or guards.test_of_uses(call):
            return False
    around = [node for node in guards.script.ancestors(call) if isinstance(node, ast.With)]
    contexts = (ast.unparse(item.context_expr) for node in around for item in node.items)
    return not any("lock" in text.lower() for text in contexts)


def _is_run(call: ast.Call, script: Script) -> bool:
    """Return whether the function around a call may run: the script uses it, and does not replace it."""
    functions = script.functions
    for function in script.ancestors(call):
        if not isinstance(function, FUNCTIONS):
            continue
        name = functions.name(function)
        same = [
            other
            for other in functions.defined[name]
            if script.parents[other] is script.parents[function]
        ]
        used = functions.calls.get(name) or functions.passed_on.get(name) or function.decorator_list
        if same[-1] is not function or not (used or name[1] and _calls_back(function, script)):
            return False
    return True


def _calls_back(method: FUNCTIONS, script: Script) -> bool:
    """Return whether a library may call a method that the script does not call: on_epoch_end, forward."""
    if method.name.startswith(("on_", "__")) or method.name in CALLED_BACK:
        return True
    return any(getattr(node, "attr", None) == method.name for node in script.nodes)


def _in_turns(call: ast.Call, guards: Guards) -> bool:
    """Return whether some ranks wait above a call: `if hvd.local_rank() != 0: hvd.barrier()`."""
    node = call
    for above in guards.script.ancestors(call):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, None)
            if isinstance(block, list) and node in block:
                for earlier in block[: block.index(node)]:
                    waits = isinstance(earlier, ast.If) and guards.splits(earlier.test)
                    if waits and guards.script.named_in(earlier, "barrier"):
                        return True
        node = above
    return False
