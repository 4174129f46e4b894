"""What only the source of a script shows, because no run of a few steps on this machine can: see `Facts`."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hvdlab.check import places
from hvdlab.check.own_modules import merged, moved, own_modules
from hvdlab.script_analysis.ast_helpers import identifiers, last_name
from hvdlab.script_analysis.collectives import BROADCASTS
from hvdlab.script_analysis.files import downloads, on_all_ranks, saves
from hvdlab.script_analysis.gpu_choice import chosen_by_helper, remainders, uses_gpu
from hvdlab.script_analysis.legacy_keras import old_argument
from hvdlab.script_analysis.origins import GLOBAL_RANK, GLOBAL_SIZE, LOCAL_RANK, Origin
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import HOROVOD, Script, Unreadable

# Texts in lower case. A statement with one of DEVICES concerns a device; with one of PINS it chooses it.
DEVICES = ("cuda", "device", "gpu", ".to(")
PINS = (
    "set_device",
    "set_visible_devices",
    "cuda_visible_devices",
    "visible_device_list",
    "cuda:{",
)
PROCESS_GROUPS = ("torch.distributed", "hvdlab.torch.process_group")
OTHERS = ("mpi4py", "deepspeed", "lightning", "accelerate")
# Parts of torch.distributed that shard the weights, so that the ranks rightly hold different ones.
SHARDING = (
    "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.pipelining",
    "torch.distributed.device_mesh", "torch.distributed._composable",
)  # fmt: skip
SHARED_NORMS = (b"running_", b"moving_mean", b"buffers()", b"SyncBatchNorm", b"SyncBN")
SESSIONS = ("Session", "InteractiveSession", "MonitoredTrainingSession", "MonitoredSession")
PLACES = ("rank", "size", "local_rank", "local_size")
SHARDS = ("Batches", "DistributedSampler", "shard")  # they take the rank and the number of ranks
TENSORS = ("tensor", "as_tensor", "Tensor", "FloatTensor", "constant", "convert_to_tensor", "array")
VARIABLES = ast.Name | ast.Attribute
MEAN_LINES = 5  # statements of a function that averages a value
NUMBERS = ("range", "int", "float", "max", "min")  # functions that take numbers
RESULTS = (  # collectives that change no argument
    "allreduce", "grouped_allreduce", "allgather", "allgather_object", "broadcast", "broadcast_object",
)  # fmt: skip
SHOWN = {"print", "info", "log", "add_scalar", "log_metrics", "write", "append", "debug", "report"}


class Facts(NamedTuple):
    """Facts of a script: lines, from 1, or answers; None or empty where the script has no such line.

    Attributes:
        horovod: imports Horovod.
        other: name of a library that it imports, by which ranks communicate, and that cannot be checked.
        process_group: imports torch.distributed, and not Horovod.
        init: calls hvd.init or init_process_group.
        gpu: uses a GPU.
        pin: what chooses the device: "local_rank" (or a helper), "rank", or "" for neither.
        pin_line: line that chooses the device, None if no line or a helper does.
        remainder: the number of a GPU is a remainder by the number of GPUs.
        norm_shared: whether the statistics of batch norm seem to be combined over the ranks.
        counted: loops that end after a counted number of rounds.
        results: line of a loop -> line below it that prints, logs or returns what the loop has computed.
        saves: writes a checkpoint, on all ranks.
        downloads: downloads, on all ranks at the same time.
        guarded: line of a call -> line of the test of the rank that decides who makes it.
        session: trains with a session of TensorFlow 1.
        old_argument: passes OLD_ARGUMENT to compile, which Keras 3 does not accept.
        uncalled: uses a function of Horovod such as `hvd.rank` as a number.
        broadcasts: (name, line) of the calls that broadcast the weights of a model.
        discarded: discards the result of a collective, and uses the argument later.
        local_shard: takes one of as many shards as there are ranks, by the rank on its machine.
        new_orders: whether it calls set_epoch.
        unused: calls of `evaluate` whose results it does not use.
    """

    horovod: int | None
    other: str | None
    process_group: int | None
    init: int | None
    gpu: int | None
    pin: str
    pin_line: int | None
    remainder: int | None
    norm_shared: bool
    counted: set[int]
    results: dict[int, int]
    saves: list[int]
    downloads: list[int]
    guarded: dict[int, int]
    session: int | None
    old_argument: int | None
    uncalled: int | None
    broadcasts: list[tuple[str, int]]
    discarded: int | None
    local_shard: int | None
    new_orders: bool
    unused: set[int]


def read(path: Path) -> Facts:
    """Return the facts of a script and of the modules in its folder that it imports.

    Raises:
        Unreadable: Python cannot parse the script.
        OSError: the file cannot be read.
    """
    facts = _of_file(path)
    for module in own_modules(path):
        try:
            of_module = _of_file(module)
        except (Unreadable, OSError):
            continue  # the run shows whether it needs the module
        block = places.block(str(module.relative_to(path.parent)))
        facts = Facts(*map(merged, facts, (moved(fact, block) for fact in of_module)))
    return facts._replace(process_group=None) if facts.horovod else facts


def _of_file(path: Path) -> Facts:
    """Return the facts of one file."""
    source = path.read_bytes()
    script = Script(source)
    guards = Guards(script)
    pin, pin_line = _pin(script)
    evaluations = script.named("evaluate")
    return Facts(
        horovod=next((line for name, line in script.imports.items() if "horovod" in name), None),
        other=next(filter(script.imported, (*OTHERS, *SHARDING)), None),
        process_group=None if script.horovod else _process_group(script),
        init=_first(script, lambda call: last_name(call) in ("init", "init_process_group")),
        gpu=uses_gpu(script),
        pin=pin,
        pin_line=pin_line,
        remainder=next(iter(remainders(script)), None),
        norm_shared=any(word in source for word in SHARED_NORMS),
        counted={n.lineno for n in script.nodes if isinstance(n, ast.For) and _counts(n)},
        results=results(script),
        saves=[call.lineno for call in saves(script) if on_all_ranks(call, guards)],
        downloads=[
            call.lineno
            for call in downloads(script)
            if on_all_ranks(call, guards) and not guards.test(call, sites=any)
        ],
        guarded={call.lineno: test.lineno for call in script.calls if (test := guards.test(call))},
        session=_first(script, lambda call: last_name(call) in SESSIONS),
        old_argument=old_argument(script),
        uncalled=getattr(uncalled(script), "lineno", None),
        broadcasts=[(script.names[c].split(".")[-1], c.lineno) for c in script.named(*BROADCASTS)],
        discarded=getattr(discarded(script), "lineno", None),
        local_shard=getattr(local_shard(script), "lineno", None),
        new_orders=bool(script.named("set_epoch")),
        unused={c.lineno for c in evaluations if isinstance(script.parents[c], ast.Expr)},
    )


def _process_group(script: Script) -> int | None:
    """Return the first line that imports or uses torch.distributed, or None."""
    return script.imported(*PROCESS_GROUPS) or next(
        (c.lineno for c, name in script.names.items() if name.startswith("torch.distributed.")),
        None,
    )


def _first(script: Script, wanted: Callable[[ast.Call], bool]) -> int | None:
    """Return the line of the first call for which a function returns True."""
    return next((call.lineno for call in script.calls if wanted(call)), None)


def _counts(loop: ast.For) -> bool:
    """Return whether its own variable ends a loop: `for i, x in enumerate(...): if i == n: break`."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return any(
        isinstance(part, ast.Break)
        for test in loop.body
        if isinstance(test, ast.If) and names & {getattr(n, "id", "") for n in ast.walk(test.test)}
        for part in test.body
    )


def _pin(script: Script) -> tuple[str, int | None]:
    """Return what chooses a device, "local_rank", "rank" (counts over all machines), or "", and its line."""
    if chosen_by_helper(script):
        return "local_rank", None
    local, everywhere = _named_ranks(script)
    by_all = by_local = None
    for node in script.nodes:
        text = ast.unparse(node).lower() if isinstance(node, ast.Call | ast.Assign) else ""
        if any(word in text for word in DEVICES):
            by_rank = bool(identifiers(node) & everywhere)
            counted = by_rank and "device_count" in text
            if identifiers(node) & local or "local_rank" in text or counted:
                by_local = by_local or node.lineno
            elif by_rank and any(word in text for word in PINS):
                by_all = by_all or node.lineno
    if by_all:
        return "rank", by_all
    return ("local_rank", by_local) if by_local else ("", None)


def _named_ranks(script: Script) -> tuple[set[str], set[str]]:
    """Return the names that hold the local rank, and those that hold the rank among all machines."""
    local, everywhere = {"local_rank"}, {"rank"}
    given = ((name, value) for _, name, value in script.functions.arguments())
    for name, value in (*script.assignments(), *given):
        if "local_rank" in ast.unparse(value).lower():
            local.add(name)
        elif isinstance(value, ast.Call) and last_name(value) in ("rank", "get_rank"):
            everywhere.add(name)
    return local, everywhere


def uncalled(script: Script) -> ast.Attribute | None:
    """Return the first function of Horovod such as `hvd.rank` that is used as a number, or None."""
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and node.attr in PLACES and is_a_value(script, node):
            if script.name(node).startswith(HOROVOD):
                return node
    return None


def is_a_value(script: Script, node: ast.AST) -> bool:
    """Return whether a node is compared, tested, an operand, or passed to one of SHARDING or NUMBERS."""
    around = script.parents[node]
    call = script.parents[around] if isinstance(around, ast.keyword) else around
    if call in script.named(*SHARDS):
        return getattr(call, "func", None) is not node
    if isinstance(around, ast.If | ast.IfExp | ast.While):
        return around.test is node
    if isinstance(around, ast.Call) and last_name(around) in NUMBERS:
        return around.func is not node
    return isinstance(around, ast.Compare | ast.BinOp | ast.UnaryOp | ast.BoolOp)


def discarded(script: Script) -> ast.Call | None:
    """Return the first collective whose result a script discards, although it uses the argument later.

    A statement `hvd.allreduce(torch.tensor(0))` is no mistake, because it lets the ranks wait for each other.
    """
    for call in (*script.hvd(*RESULTS), *_calls_for_a_result(script)):
        sent = _unwrapped(call.args[0]) if call.args else None
        if _is_dropped(call, script) and isinstance(sent, VARIABLES):
            variables, end = {script.variable(sent)}, call.end_lineno
            for loop in script.ancestors(call):
                # for value in (loss, accuracy): hvd.allreduce(value)
                if isinstance(loop, ast.For) and ast.unparse(loop.target) == ast.unparse(sent):
                    inside = (node for node in ast.walk(loop.iter) if isinstance(node, ast.Name))
                    variables, end = {*map(script.variable, inside)}, loop.end_lineno
            names = (node for node in script.nodes if isinstance(node, VARIABLES))
            later = [n for n in names if n.lineno > end and script.variable(n) in variables]
            order = {ast.Load: 0, ast.Store: 1}  # x = float(x) reads first
            first = min(later, key=lambda n: (n.lineno, order.get(type(n.ctx))), default=None)
            if first is not None and isinstance(first.ctx, ast.Load):
                return call
    return None


def _is_dropped(call: ast.Call, script: Script) -> bool:
    """Return whether nothing uses the result of a call, or of its method: `hvd.allreduce(x).item()`.

    A variable counts that gets the result, and that the script never reads.
    """
    node: ast.AST = call
    while isinstance(script.parents[node], ast.Attribute | ast.Call):  # .cpu().data.numpy()
        above = script.parents[node]
        if isinstance(above, ast.Call) and above.func is not node:
            return False
        node = above
    statement = script.parents[node]
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        variable = script.variable(statement.targets[0])
        return not any(
            isinstance(name, ast.Name)
            and isinstance(name.ctx, ast.Load)
            and script.variable(name) == variable
            for name in script.nodes
        )
    return isinstance(statement, ast.Expr)


def _unwrapped(sent: ast.expr) -> ast.expr:
    """Return what the argument of a collective is made of: x of `torch.tensor(x)`, `x.detach()`, `x.grad`."""
    while True:
        if isinstance(sent, ast.Call) and last_name(sent) in TENSORS and sent.args:
            sent = sent.args[0]
        elif isinstance(sent, ast.Call) and not sent.args and isinstance(sent.func, ast.Attribute):
            sent = sent.func.value
        elif isinstance(sent, ast.Attribute) and sent.attr in ("grad", "data"):
            sent = sent.value
        else:
            return sent


def _calls_for_a_result(script: Script) -> Iterator[ast.Call]:
    """Yield the calls of the script's own short functions that return the average of their first argument."""
    for call in script.hvd(*RESULTS):
        function = script.inside[call]
        if not isinstance(function, ast.FunctionDef) or not call.args:
            continue
        parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
        sent = identifiers(call.args[0])
        for node in ast.walk(function):  # tensor = torch.tensor(value)
            if isinstance(node, ast.Assign) and sent & set().union(*map(identifiers, node.targets)):
                sent = sent | identifiers(node.value)
        ends = function.body[-1]
        returns = isinstance(ends, ast.Return) and ends.value and len(function.body) <= MEAN_LINES
        if returns and sent & set(parameters[:1]):
            yield from script.functions.calls.get(script.functions.name(function), [])


def local_shard(script: Script) -> ast.expr | None:
    """Return the first shard that a script chooses by the local rank out of as many as ranks, or None."""
    for call in script.calls:
        named = [word.value for word in call.keywords if word.arg and "shard" in word.arg]
        given = [*call.args, *(word.value for word in call.keywords)]
        if _by_local_rank(given if call in script.named(*SHARDS) else named, script):
            return call
    slices = [n.slice for n in script.nodes if isinstance(n, ast.Subscript)]
    taken = [(n, (n.lower, n.upper, n.step)) for n in slices if isinstance(n, ast.Slice)]
    products = [n for n in script.nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    taken += [(n, (n.left, n.right)) for n in products]  # skip(share * local_rank())
    for node, parts in taken:
        if _by_local_rank([part for part in parts if part], script):
            return node
    return None


def _by_local_rank(parts: list[ast.expr], script: Script) -> bool:
    """Return whether expressions depend on the local rank and the number of ranks, and not on the rank."""

    def depend(origin: Origin) -> bool:
        return any(script.depends(part, origin) for part in parts)

    return depend(LOCAL_RANK) and depend(GLOBAL_SIZE) and not depend(GLOBAL_RANK)


def results(script: Script) -> dict[int, int]:
    """Return where a script first prints, logs or returns something below a loop, in its function.

    Returns:
        Line of the loop -> the line below it.
    """
    shown = [n for n in script.nodes if isinstance(n, ast.Return) and n.value]
    shown += [call for call in script.calls if last_name(call) in SHOWN]
    found = {}
    for loop in script.nodes:
        if isinstance(loop, ast.For):
            own = [n.lineno for n in shown if script.inside[n] is script.inside[loop]]
            below = [line for line in own if line > loop.end_lineno]
            found |= {loop.lineno: min(below)} if below else {}
    return found
