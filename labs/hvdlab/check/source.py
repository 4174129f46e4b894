"""What a script's source says that a run of a few steps may not show: see `Facts`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hvdlab.check.bindings import bindings, called
from hvdlab.check.rates import Rates, rates

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
RANKS = ("rank", "local_rank", "cross_rank")
# A variable or function by whose name one rank is told from others, wherever it comes from.
ONE_RANK = re.compile(r"(^|_)(rank\d*|master|chief|(is|on)_(main|root|first))(_|$)|main_process")
DEVICES = ("cuda", "device", "gpu", ".to(")
PINS = (
    "set_device",
    "set_visible_devices",
    "cuda_visible_devices",
    "visible_device_list",
    "cuda:{",
)
OTHERS = ("torch.distributed", "mpi4py", "deepspeed", "lightning", "hvdlab.torch.process_group")
GPUS = (".cuda(", "cuda:", '"cuda"', "'cuda'", '"GPU"', "'GPU'")


class Facts(NamedTuple):
    """Lines of a script, by what is there; None or empty where nothing is."""

    horovod: int | None  # imports Horovod
    other: str | None  # imports another library by which ranks meet
    init: bool  # calls hvd.init
    gpu: int | None  # uses a GPU
    pin: str  # "local_rank", "rank" or "": what a device is chosen by
    rates: Rates
    norm: int | None  # batch norm
    norm_shared: bool  # its statistics are combined over ranks, it seems
    join: bool  # calls hvd.join
    counted: set[int]  # loops that end when they have counted enough
    saves: list[int]  # writes a checkpoint, on all ranks
    downloads: list[int]  # downloads, on all ranks at once
    guarded: dict[int, int]  # a collective: the test of the rank under which it is


def read(path: Path) -> Facts:
    """Read a script. Raises SyntaxError, OSError, UnicodeDecodeError."""
    text = path.read_text()
    tree = ast.parse(text, str(path))
    guards = Guards(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    imported = list(_imports(tree))
    return Facts(
        horovod=next((line for name, line in imported if "horovod" in name), None),
        other=next((one for one in OTHERS for name, _ in imported if _is_of(name, one)), None),
        init=any(called(call) == "init" for call in calls),
        gpu=_first(tree, _uses_gpu),
        pin=_pin(tree),
        rates=rates(tree),
        norm=_first(tree, lambda n: isinstance(n, ast.Call) and "BatchNorm" in ast.unparse(n.func)),
        norm_shared=any(
            word in text
            for word in ("running_mean", "moving_mean", ".buffers()", "SyncBatchNorm", "SyncBN")
        ),
        join=any(called(call) == "join" and "hvd" in ast.unparse(call.func) for call in calls),
        counted={n.lineno for n in ast.walk(tree) if isinstance(n, ast.For) and _counts(n)},
        saves=sorted(call.lineno for call in calls if _saves(call) and guards.everybody(call)),
        downloads=sorted(call.lineno for call in calls if _loads(call) and guards.everybody(call)),
        guarded={
            call.lineno: test.lineno
            for call in calls
            if called(call) in COLLECTIVES and (test := guards.test(call))
        },
    )


class Guards:
    """Which parts of a script only some ranks run: those under a test of the rank."""

    def __init__(self, tree: ast.Module):
        self.parents = {c: node for node in ast.walk(tree) for c in ast.iter_child_nodes(node)}
        self.calls: dict[tuple[str, bool], list[ast.Call]] = {}  # by name, and whether a method
        self.names: set[str] = set()  # variables and functions that say who a rank is
        returned = [
            (node.name, part.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            for part in ast.walk(node)
            if isinstance(part, ast.Return) and part.value
        ]
        bound = [(name, value) for name, value in (*bindings(tree), *returned) if _tells(value)]
        for _ in range(3):  # a name made of a name made of a rank
            self.names.update(name for name, value in bound if self.asks(value))
        self.sharing = {  # functions of the script that call a collective
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and any(isinstance(n, ast.Call) and called(n) in COLLECTIVES for n in ast.walk(node))
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                key = called(node), isinstance(node.func, ast.Attribute)
                self.calls.setdefault(key, []).append(node)

    def asks(self, test) -> bool:
        """Whether an expression depends on the rank."""
        for node in ast.walk(test):
            if isinstance(node, ast.Name | ast.Attribute):
                name = ast.unparse(node)
                if {name, name.removeprefix("self.")} & self.names:
                    return True
                if ONE_RANK.search(name.split(".")[-1]):
                    return True
        return False

    def shares(self, value) -> bool:
        """Whether an expression comes from a collective: the same on all ranks, or made of it."""
        return any(
            isinstance(node, ast.Call)
            and (called(node) in COLLECTIVES or called(node) in self.sharing)
            for node in ast.walk(value)
        )

    def test(self, node, seen=frozenset()) -> ast.expr | None:
        """The test of the rank under which a node runs, here or where its function is called."""
        child = node
        while parent := self.parents.get(child):
            if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
                if self.asks(parent.test):
                    return parent.test
            if isinstance(parent, ast.BoolOp) and child is not parent.values[0]:
                if self.asks(parent.values[0]):
                    return parent.values[0]
            for before in _before(child, parent):
                if isinstance(before, ast.If) and self.asks(before.test) and _returns(before):
                    return before.test
            if isinstance(parent, ast.FunctionDef | ast.ClassDef) and parent.name not in seen:
                method = isinstance(self.parents.get(parent), ast.ClassDef)
                calls = self.calls.get((parent.name, method), [])
                tests = [self.test(call, seen | {parent.name}) for call in calls]
                if tests and all(tests):
                    return tests[0]
            child = parent
        return None

    def everybody(self, call) -> bool:
        """Whether all ranks make a call, with the same arguments, at the same time."""
        if self.asks(call) or self.test(call):
            return False
        node = call
        while node := self.parents.get(node):
            if isinstance(node, ast.With):
                if any("lock" in ast.unparse(item.context_expr).lower() for item in node.items):
                    return False
        return True


def _before(child, parent):
    body = getattr(parent, "body", None)
    return body[: body.index(child)] if isinstance(body, list) and child in body else []


def _returns(branch) -> bool:
    return any(isinstance(part, ast.Return | ast.Continue) for part in branch.body)


def _tells(value) -> bool:
    """Whether a value can say who a rank is: a rank, a test of it, a path made of it."""
    if isinstance(value, ast.Call):
        return called(value) in (*RANKS, "Path", "join", "format")
    kinds = ast.Compare | ast.BoolOp | ast.UnaryOp | ast.IfExp | ast.JoinedStr | ast.BinOp
    return isinstance(value, kinds | ast.Name | ast.Attribute)


def _counts(loop) -> bool:
    """Whether a loop leaves by what it gets: `for i, x in enumerate(...): if i == steps: break`."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return any(
        isinstance(part, ast.Break)
        for test in loop.body
        if isinstance(test, ast.If) and names & {getattr(n, "id", "") for n in ast.walk(test.test)}
        for part in test.body
    )


def _imports(tree) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of all that a script imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
            yield from ((module + alias.name, node.lineno) for alias in node.names)


def _is_of(name, package) -> bool:
    return name == package or name.startswith(f"{package}.")


def _first(tree, wanted) -> int | None:
    return min((node.lineno for node in ast.walk(tree) if wanted(node)), default=None)


def _uses_gpu(node) -> bool:
    if not isinstance(node, ast.Call):
        return False
    text = ast.unparse(node)
    return any(word in text for word in GPUS) and "is_available()" not in ast.unparse(node.func)


def _pin(tree) -> str:
    """What chooses a device: "local_rank", "rank" (which counts over machines), "" (neither)."""
    local, everywhere, found = {"local_rank"}, {"rank"}, ""
    for name, value in bindings(tree):
        if "local_rank" in ast.unparse(value).lower():
            local.add(name)
        elif isinstance(value, ast.Call) and called(value) == "rank":
            everywhere.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Assign):
            text = ast.unparse(node).lower()
            words = {getattr(n, "id", None) or getattr(n, "attr", "") for n in ast.walk(node)}
            by_rank = bool(words & everywhere)
            if any(word in text for word in DEVICES):
                if words & local or "local_rank" in text or by_rank and "device_count" in text:
                    return "local_rank"
                if by_rank and any(word in text for word in PINS):
                    found = "rank"
    return found


def _saves(call) -> bool:
    name = ast.unparse(call.func)
    if name in ("torch.save",) or called(call) in ("ModelCheckpoint", "save_weights", "save_model"):
        return True
    return called(call) == "save" and "model" in name.lower()


def _loads(call) -> bool:
    if any(k.arg == "download" and ast.unparse(k.value) == "True" for k in call.keywords):
        return True
    name = ast.unparse(call.func)
    return called(call) in ("urlretrieve", "get_file") or (
        called(call) == "load_data" and "datasets" in name
    )
