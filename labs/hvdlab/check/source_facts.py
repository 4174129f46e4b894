"""Facts from a script's source that a run of a few steps may not show: see `Facts`."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hvdlab.script_analysis.ast_helpers import identifiers, keyword, last_name
from hvdlab.script_analysis.gpu_choice import chosen_by_helper, remainders
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.rate_scaling import Rates, rates
from hvdlab.script_analysis.script import Script

BROADCASTS = (  # of a whole model
    "broadcast_parameters", "broadcast_variables", "broadcast_global_variables",
    "broadcast_optimizer_state",
)  # fmt: skip
COLLECTIVES = (
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "grouped_allreduce", "grouped_allreduce_", "allgather", "grouped_allgather", "allgather_object",
    "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object",
    "alltoall", "reducescatter", "grouped_reducescatter", "barrier", "average_metrics", *BROADCASTS,
)  # fmt: skip
# Texts in lower case. A statement with one of DEVICES concerns a device; with one of PINS it chooses it.
DEVICES = ("cuda", "device", "gpu", ".to(")
PINS = (
    "set_device",
    "set_visible_devices",
    "cuda_visible_devices",
    "visible_device_list",
    "cuda:{",
)
OTHERS = ("torch.distributed", "mpi4py", "deepspeed", "lightning", "hvdlab.torch.process_group")
SHARED_NORMS = (b"running_mean", b"moving_mean", b".buffers()", b"SyncBatchNorm", b"SyncBN")
GPUS = (".cuda(", "cuda:", '"cuda"', "'cuda'", '"GPU"', "'GPU'")


class Facts(NamedTuple):
    """Facts of a script: lines, from 1, or answers; None or empty where the script has no such line.

    Attributes:
        horovod: imports Horovod.
        other: name of another library that it imports and by which ranks communicate.
        init: whether it calls hvd.init.
        gpu: uses a GPU.
        pin: what chooses the device: "local_rank" (or a helper), "rank", or "" for neither.
        remainder: the number of a GPU is a remainder by the number of GPUs.
        rates: how the learning rate grows with the number of ranks.
        norm: creates a batch norm layer.
        norm_shared: whether the statistics of batch norm seem to be combined over the ranks.
        join: whether it calls hvd.join.
        counted: loops that end after a counted number of rounds.
        saves: writes a checkpoint, on all ranks.
        downloads: downloads, on all ranks at the same time.
        guarded: line of a collective -> line of the test of the rank that decides who calls it.
    """

    horovod: int | None
    other: str | None
    init: bool
    gpu: int | None
    pin: str
    remainder: int | None
    rates: Rates
    norm: int | None
    norm_shared: bool
    join: bool
    counted: set[int]
    saves: list[int]
    downloads: list[int]
    guarded: dict[int, int]


def read(path: Path) -> Facts:
    """Return the facts of a script.

    Args:
        path: of the script.

    Raises:
        Unreadable: Python cannot parse it.
        OSError: the file cannot be read.
    """
    source = path.read_bytes()
    script = Script(source)
    guards = Guards(script)
    collectives = script.named(*COLLECTIVES)
    joins = (script.names[call] for call in script.named("join"))
    return Facts(
        horovod=next((line for name, line in script.imports.items() if "horovod" in name), None),
        other=next(filter(script.imported, OTHERS), None),
        init=bool(script.named("init")),
        gpu=_first(script, _uses_gpu),
        pin=_pin(script),
        remainder=next(iter(remainders(script)), None),
        rates=rates(script),
        norm=_first(script, lambda call: "BatchNorm" in ast.unparse(call.func)),
        norm_shared=any(word in source for word in SHARED_NORMS),
        join=any("hvd" in name or "horovod" in name for name in joins),
        counted={n.lineno for n in script.nodes if isinstance(n, ast.For) and _counts(n)},
        saves=[call.lineno for call in _saves(script) if _on_all_ranks(call, guards)],
        downloads=[call.lineno for call in _downloads(script) if _on_all_ranks(call, guards)],
        guarded={call.lineno: test.lineno for call in collectives if (test := guards.test(call))},
    )


def _on_all_ranks(call: ast.Call, guards: Guards) -> bool:
    """Return whether all ranks make a call, with the same arguments, at the same time."""
    if guards.asks(call) or guards.test(call) or _in_turns(call, guards):
        return False
    around = [node for node in guards.script.ancestors(call) if isinstance(node, ast.With)]
    contexts = (ast.unparse(item.context_expr) for node in around for item in node.items)
    return not any("lock" in text.lower() for text in contexts)


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


def _counts(loop: ast.For) -> bool:
    """Return whether its own variable ends a loop: `for i, x in enumerate(...): if i == n: break`."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return any(
        isinstance(part, ast.Break)
        for test in loop.body
        if isinstance(test, ast.If) and names & {getattr(n, "id", "") for n in ast.walk(test.test)}
        for part in test.body
    )


def _first(script: Script, wanted: Callable[[ast.Call], bool]) -> int | None:
    """Return the line of the first call for which a function returns True."""
    return next((call.lineno for call in script.calls if wanted(call)), None)


def _uses_gpu(call: ast.Call) -> bool:
    """Return whether a call names a GPU, other than to switch all GPUs off."""
    text = ast.unparse(call)
    if last_name(call) == "set_visible_devices" and "[]" in text:  # switches them off
        return False
    return any(word in text for word in GPUS) and "is_available()" not in ast.unparse(call.func)


def _pin(script: Script) -> str:
    """Return what chooses a device: "local_rank", "rank" (counts over all machines), or ""."""
    if chosen_by_helper(script):
        return "local_rank"
    local, everywhere, pin = {"local_rank"}, {"rank"}, ""
    given = ((name, value) for _, name, value in script.functions.arguments())
    for name, value in (*script.assignments(), *given):
        if "local_rank" in ast.unparse(value).lower():
            local.add(name)
        elif isinstance(value, ast.Call) and last_name(value) == "rank":
            everywhere.add(name)
    for node in script.nodes:
        if isinstance(node, ast.Call | ast.Assign):
            text, names = ast.unparse(node).lower(), identifiers(node)
            by_rank = bool(names & everywhere)
            if any(word in text for word in DEVICES):
                if names & local or "local_rank" in text or by_rank and "device_count" in text:
                    return "local_rank"
                if by_rank and any(word in text for word in PINS):
                    pin = "rank"
    return pin


def _saves(script: Script) -> Iterator[ast.Call]:
    """Yield the calls that write a checkpoint."""
    for call, name in script.names.items():
        last = name.rpartition(".")[2]
        if name == "torch.save" or last in ("ModelCheckpoint", "save_weights", "save_model"):
            yield call
        elif last == "save" and "model" in ast.unparse(call.func).lower():
            yield call


def _downloads(script: Script) -> Iterator[ast.Call]:
    """Yield the calls that download a file."""
    for call, name in script.names.items():
        last = name.rpartition(".")[2]
        download = keyword(call, "download")
        if isinstance(download, ast.Constant) and download.value is True:
            yield call
        elif last in ("urlretrieve", "get_file") or (last == "load_data" and "datasets" in name):
            yield call
