"""Read the source of the script that a learner edits in labs 5, 8 and 11, without running it."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from hvdlab.exercises import NotYet
from hvdlab.script_analysis.ast_helpers import key
from hvdlab.script_analysis.bindings import fields
from hvdlab.script_analysis.origins import LOCAL_RANK, RANK, SIZE, Origin
from hvdlab.script_analysis.script import Script, Unreadable

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCAL = Origin(frozenset({"local_rank", "local_size"}))
# Calls that may get rank and size without sharding anything by them.
OUTPUT_CALLS = set(
    "print write format dict fit debug info warning error critical exception log".split()
)


def read(path: str | Path) -> Script:
    """Return the learner's script.

    Raises:
        NotYet: The script is not there, or Python cannot read it.
    """
    path = Path(path)
    try:
        return Script(path.read_bytes())
    except FileNotFoundError:
        raise NotYet(f"{path.name} is not there: run the cell that copies it.") from None
    except Unreadable as error:
        raise NotYet(f"Python cannot read {path.name}: {error}.") from None


def called(script: Script) -> set[str]:
    """Return the names of all calls of a script, as they are written there: "hvd.init"."""
    return {ast.unparse(call.func) for call in script.calls}


def chooses_device_by_local_rank(script: Script, origin: Origin = LOCAL_RANK) -> bool:
    """Return whether an expression that may choose a device depends on the local rank.

    Args:
        origin: Where the script gets its local rank from. Default: hvd.local_rank().
    """
    local = MadeOf(script, origin)
    parts = ([place, *_tests(script, place)] for place in _devices(script))
    return any(local.occurs(part) for some in parts for part in some)


def _devices(script: Script) -> Iterator[ast.AST]:
    """Yield the expressions that may choose the device of a script."""
    yield from script.named("set_device", "set_visible_devices", "device", "cuda", "to")
    for call in script.named("setdefault", "putenv"):
        if VISIBLE in ast.unparse(call):
            yield call
    for node in script.nodes:
        if isinstance(node, ast.Assign) and VISIBLE in ast.unparse(node.targets[0]):
            yield node.value
        elif isinstance(node, ast.keyword) and node.arg == VISIBLE:
            yield node.value
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (value for name, value in pairs if getattr(name, "value", None) == VISIBLE)


def _tests(script: Script, place: ast.AST) -> Iterator[ast.AST]:
    """Yield the conditions on which a node runs: `if` above it, `if ...: continue` in a loop around it."""
    for above in script.ancestors(place):
        if isinstance(above, ast.If | ast.IfExp):
            yield above.test
        elif isinstance(above, ast.For):
            for node in ast.walk(above):
                if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue):
                    yield node.test


def divides_beside_batches(script: Script, rank_origin: Origin = RANK) -> bool:
    """Return whether rank and size shard something in addition to the examples of the training.

    Args:
        rank_origin: Where the script gets its rank from. Default: any source, the local rank included.
    """
    rank, size = MadeOf(script, rank_origin), MadeOf(script, SIZE)
    for node in script.nodes:
        if isinstance(node, ast.Call):
            shards = node not in rank.opaque and _last_name(script, node) not in OUTPUT_CALLS
        else:
            shards = isinstance(node, ast.Slice | ast.Subscript | ast.Compare)
        if shards and rank.occurs(node) and size.occurs(node):
            return True
    return False


class MadeOf:
    """The values that are computed from an origin, through any expression: after `images = np.array_split(x,
    hvd.size())` the images are made of the size.

    Calls of the script's own functions are made of what these return, and objects of its classes of
    nothing, but for their attributes. Nothing is followed through the Batches of the training.
    """

    def __init__(self, script: Script, origin: Origin) -> None:
        self.script, self.origin = script, origin
        defined = script.functions.defined
        own = ((defined[name], calls) for name, calls in script.functions.calls.items())
        followed = (call for made, calls in own if _shows_its_arguments(made) for call in calls)
        self.opaque = {*followed, *_training(script)}
        self.names: set[str] = set()
        bound = [*self._bound()]
        attributes = [node for node in script.nodes if isinstance(node, ast.Attribute)]
        for _ in range(3):  # mine = gpus[local], after local = hvd.local_rank()
            self.names |= {name for name, value in bound if self.occurs(value)}
            known = (a for a in attributes if f"self.{a.attr}" in self.names)
            self.names |= {name for a in known for name in _names(a)}  # env.rank

    def occurs(self, node: ast.AST) -> bool:
        """Return whether the origin, or a value computed from it, occurs in an expression."""
        if node in self.opaque:
            return self.occurs(node.func)
        if self.opaque.isdisjoint(ast.walk(node)):
            return self.script.depends(node, self.origin, self.names)
        return any(map(self.occurs, ast.iter_child_nodes(node)))

    def _bound(self) -> Iterator[tuple[str, ast.AST]]:
        """Yield (name, expression) of everything that gets a value."""
        for target, value in self._targets():
            for part, expression in self._unpacked(target, value):
                yield from ((name, expression) for name in _names(part))
        functions = self.script.functions
        yield from functions.results()
        yield from ((name, value) for _, name, value in functions.arguments())
        for name, calls in functions.calls.items():
            made = functions.defined[name][0]
            for call in calls if isinstance(made, ast.ClassDef) else []:
                names = (f"self.{name}" for name in fields(made))
                yield from zip(names, call.args, strict=False)
                yield from ((f"self.{word.arg}", word.value) for word in call.keywords)

    def _targets(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        yield from self.script.bindings()
        for node in self.script.nodes:
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                yield node.target, node.iter
            elif isinstance(node, ast.AugAssign):
                yield node.target, node.value

    def _unpacked(self, target: ast.AST, value: ast.AST) -> Iterable[tuple[ast.AST, ast.AST]]:
        """Return (target, expression) pairs, one by one in `rank, size = f()` with f in the script."""
        if isinstance(target, ast.Tuple) and value in self.opaque:
            called = _last_name(self.script, value)
            for name, result in self.script.functions.results():
                fits = isinstance(result, ast.Tuple) and len(result.elts) == len(target.elts)
                if fits and name.rpartition(".")[2] == called:
                    return zip(target.elts, result.elts, strict=True)
        return [(target, value)]


def _shows_its_arguments(made: list[ast.AST]) -> bool:
    """Return whether all that a function or class of this name does with its arguments can be followed."""
    if len(made) > 1 or getattr(made[0], "name", "") == "__init__":  # super().__init__
        return False
    inits = (part for part in made[0].body if getattr(part, "name", "") == "__init__")
    function = next(inits, None) if isinstance(made[0], ast.ClassDef) else made[0]
    if function is None:
        return bool(fields(made[0]))
    return not function.args.vararg and not function.args.kwarg


def _training(script: Script) -> list[ast.Call]:
    """Return the shards of the training; none where a function makes these and others."""
    first = (script.named("Batches") or script.named("DistributedSampler"))[:1]
    makers = {getattr(script.inside[call], "name", None) for call in first}
    calls = [call for call in script.calls if _last_name(script, call) in makers]
    return first if len(calls) < 2 else []


def _names(target: ast.AST) -> Iterator[str]:
    """Yield the variables that an assignment sets."""
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _names(element)
    elif isinstance(target, ast.Starred | ast.Subscript):
        yield from _names(target.value)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield key(target)


def _last_name(script: Script, call: ast.Call) -> str:
    return script.names[call].rpartition(".")[2]


def refuse_local_rank(
    script: Script, *names: str, origin: Origin = LOCAL_RANK,
    local: str = "hvd.local_rank()", rank: str = "hvd.rank()",
) -> None:  # fmt: skip
    """Raise NotYet where an `if` with the local rank decides on a call with such a name.

    Args:
        origin: Where the script gets its local rank from. Default: hvd.local_rank().
    """
    for call, full in script.names.items():
        if not any(name in full.lower() for name in names):
            continue
        for above in script.ancestors(call):
            test = isinstance(above, ast.If | ast.IfExp) and above.test
            if test and script.depends(test, origin):
                raise NotYet(
                    f"line {above.lineno} uses {local}, which is 0 once on every machine: on two "
                    f"machines two ranks would do this. {rank} is 0 on a single rank of the run."
                )


def refuse_local_numbers(
    script: Script, origin: Origin = LOCAL, right: str = "hvd.rank() and hvd.size()"
) -> None:
    """Raise NotYet where the data, a slice or the learning rate uses the local rank or local size.

    Args:
        origin: Where the script gets these numbers from. Default: hvd.local_rank() and hvd.local_size().
    """
    data = ("Batches", "DistributedSampler", "slice", "shard")
    for node in script.nodes:
        called = _last_name(script, node) if isinstance(node, ast.Call) else ""
        slices = (
            isinstance(node, ast.Slice) and "gpu" not in ast.unparse(script.parents[node]).lower()
        )
        scales = isinstance(node, ast.keyword) and node.arg in ("lr", "learning_rate")
        wanted = slices or scales or called in (*data, "SGD", "Adam", "AdamW")
        if wanted and script.depends(node, origin):
            raise NotYet(
                f"line {node.lineno} has local_rank or local_size in it, which count on one machine: on two, "
                f"ranks would read the same images, or use too small a learning rate. {right} count over all "
                "machines."
            )
