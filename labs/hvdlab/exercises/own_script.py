"""Reads the script that a learner edits in labs 4 and 7: what its source says before it runs."""

import ast
from pathlib import Path

from hvdlab.exercises import NotYet
from hvdlab.script import LOCAL_RANK, Script, Unreadable


def read(path: str | Path) -> Script:
    """The learner's script; NotYet where it is not there or cannot be read."""
    path = Path(path)
    try:
        return Script(path.read_bytes())
    except FileNotFoundError:
        raise NotYet(f"{path.name} is not there: run the cell that copies it.") from None
    except Unreadable as error:
        raise NotYet(f"Python cannot read {path.name}: {error}.") from None


def called(script: Script) -> set[str]:
    """What a script calls, as it is written there: "hvd.init"."""
    return {ast.unparse(call.func) for call in script.calls}


def chooses_device_by_local_rank(script: Script) -> bool:
    """Whether a place that may choose a device depends on hvd.local_rank()."""
    names = set()
    for _ in range(3):  # mine = gpus[local], after local = hvd.local_rank()
        bound = script.assignments()
        names |= {name for name, value in bound if script.depends(value, LOCAL_RANK, names)}
    return any(script.depends(place, LOCAL_RANK, names) for place in _devices(script))


def _devices(script: Script):
    """Where a script may choose its device."""
    yield from script.named("set_device", "set_visible_devices", "device", "cuda", "to")
    for node in script.nodes:
        if isinstance(node, ast.Assign) and "CUDA_VISIBLE_DEVICES" in ast.unparse(node.targets[0]):
            yield node.value


def divides_beside_batches(script: Script) -> bool:
    """Whether something beside the training's Batches is divided by rank and size."""
    deals = ast.Slice | ast.Subscript | ast.Call | ast.Compare
    others = {*script.named("Batches")[:1], *script.named("print")}
    return any(
        isinstance(node, deals) and script.uses_rank(node) and script.uses_size(node)
        for node in script.nodes
        if node not in others
    )


def refuse_local_rank(script: Script, *names: str) -> None:
    """NotYet where an `if` with hvd.local_rank() lets a rank call something with such a name."""
    for call, full in script.names.items():
        if not any(name in full.lower() for name in names):
            continue
        for above in script.ancestors(call):
            test = isinstance(above, ast.If | ast.IfExp) and above.test
            if test and script.depends(test, LOCAL_RANK):
                raise NotYet(
                    f"line {above.lineno} asks for hvd.local_rank(), which is 0 once on every machine: on "
                    "two machines two ranks would do this. hvd.rank() is 0 once in all."
                )
