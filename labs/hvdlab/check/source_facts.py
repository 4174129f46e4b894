"""Facts from a script's source that a run of a few steps may not show: see `Facts`."""

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hvdlab.script_analysis.ast_helpers import identifiers, last_name
from hvdlab.script_analysis.changed_gradients import EarlyChange, changed_early
from hvdlab.script_analysis.collectives import COLLECTIVES, applies, combining
from hvdlab.script_analysis.decisions import by_metrics
from hvdlab.script_analysis.files import downloads, on_all_ranks, saves
from hvdlab.script_analysis.gpu_choice import chosen_by_helper, remainders, uses_gpu
from hvdlab.script_analysis.horovod_calls import (
    discarded,
    fewer_rounds,
    local_shard,
    own_breaks,
    own_schedule,
    plain_gradient,
    uncalled,
    unused_evaluations,
)
from hvdlab.script_analysis.legacy_keras import old_argument
from hvdlab.script_analysis.metrics import not_combined, results
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.rate_scaling import Rates, rates
from hvdlab.script_analysis.script import Script

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
SHARED_NORMS = (b"running_mean", b"moving_mean", b".buffers()", b"SyncBatchNorm", b"SyncBN")
SESSIONS = ("Session", "InteractiveSession", "MonitoredTrainingSession", "MonitoredSession")


class Facts(NamedTuple):
    """Facts of a script: lines, from 1, or answers; None or empty where the script has no such line.

    Attributes:
        horovod: imports Horovod.
        other: name of a library that it imports, by which ranks communicate, and that cannot be checked.
        process_group: imports torch.distributed, and not Horovod.
        init: calls hvd.init or init_process_group.
        tape: creates a tf.GradientTape.
        wrapped: calls DistributedGradientTape.
        applied: applies the gradients of a tape.
        gpu: uses a GPU.
        pin: what chooses the device: "local_rank" (or a helper), "rank", or "" for neither.
        pin_line: line that chooses the device, None if no line or a helper does.
        remainder: the number of a GPU is a remainder by the number of GPUs.
        rates: how the learning rate grows with the number of ranks.
        rates_of_all: the same, without regard to the number of ranks on a machine.
        norm: creates a batch norm layer.
        norm_shared: whether the statistics of batch norm seem to be combined over the ranks.
        join: whether it calls hvd.join.
        counted: loops that end after a counted number of rounds.
        metric_stops: (line of a loop, line of a decision to leave it, metric of one rank that it depends on).
        results: line of a loop -> line below it that prints, logs or returns what the loop has computed.
        saves: writes a checkpoint, on all ranks.
        downloads: downloads, on all ranks at the same time.
        guarded: line of a call -> line of the test of the rank that decides who makes it.
        collectives: line of a call of a collective -> its name.
        session: trains with a session of TensorFlow 1.
        old_argument: passes OLD_ARGUMENT to compile, which Keras 3 does not accept.
        uncalled: uses a function of Horovod such as `hvd.rank` as a number.
        discarded: discards the result of a collective, and uses the argument later.
        local_shard: takes one of as many shards as there are ranks, by the rank on its machine.
        changed_early: changes the gradients of one rank before they are averaged.
        own_schedule: changes the learning rate, or creates a callback that does or that ends the training, on
            some ranks only; and the line of the test of the rank.
        own_stopper: whether that callback is EarlyStopping.
        own_breaks: line of a loop -> (line of a `break` of some ranks only, line of the test of the rank).
        plain_gradient: gets a gradient from a tape that DistributedGradientTape does not replace.
        fewer_rounds: whether it divides a number of epochs, steps or batches by the number of ranks.
        one_rank: line of a loop -> (metric that no collective gets, although one gets another metric of the
            loop; line that prints, logs or returns it).
        new_orders: whether it calls set_epoch.
        unused: calls of `evaluate` whose results it does not use.
    """

    horovod: int | None
    other: str | None
    process_group: int | None
    init: int | None
    tape: int | None
    wrapped: int | None
    applied: int | None
    gpu: int | None
    pin: str
    pin_line: int | None
    remainder: int | None
    rates: Rates
    rates_of_all: Rates
    norm: int | None
    norm_shared: bool
    join: bool
    counted: set[int]
    metric_stops: list[tuple[int, int, str]]
    results: dict[int, int]
    saves: list[int]
    downloads: list[int]
    guarded: dict[int, int]
    collectives: dict[int, str]
    session: int | None
    old_argument: int | None
    uncalled: int | None
    discarded: int | None
    local_shard: int | None
    changed_early: EarlyChange | None
    own_schedule: tuple[int, int] | None
    own_stopper: bool
    own_breaks: dict[int, tuple[int, int]]
    plain_gradient: int | None
    fewer_rounds: bool
    one_rank: dict[int, tuple[str, int]]
    new_orders: bool
    unused: set[int]

    def wrapped_at(self, event: dict) -> int | None:
        """Return the line of an event "wrap". In a graph of TensorFlow the event has that of the caller."""
        return (self.wrapped if "Tape" in event["what"] else None) or event["line"]


def read(path: Path, ran: Sequence[list[dict]] = ()) -> Facts:
    """Return the facts of a script.

    Args:
        ran: the events "branch" of its run, by rank. `rates` and `saves` are then read from the branches
            that the run took. Default: every branch may run.

    Raises:
        Unreadable: Python cannot parse it.
        OSError: the file cannot be read.
    """
    source = path.read_bytes()
    script = Script(source)
    guards = Guards(script)
    taken = Script(_Taken(ran).visit(ast.parse(source))) if ran else script
    joins = (script.names[call] for call in script.named("join"))
    pin, pin_line = _pin(script)
    own = own_schedule(script, guards)
    return Facts(
        horovod=next((line for name, line in script.imports.items() if "horovod" in name), None),
        other=next(filter(script.imported, (*OTHERS, *SHARDING)), None),
        process_group=None if script.horovod else script.imported(*PROCESS_GROUPS),
        init=_first(script, lambda call: last_name(call) in ("init", "init_process_group")),
        tape=_first(script, lambda call: last_name(call) == "GradientTape"),
        wrapped=_first(script, lambda call: last_name(call) == "DistributedGradientTape"),
        applied=_first(script, applies),
        gpu=uses_gpu(script),
        pin=pin,
        pin_line=pin_line,
        remainder=next(iter(remainders(script)), None),
        rates=rates(taken),
        rates_of_all=rates(taken, named=("size",)),
        norm=_first(script, lambda call: "BatchNorm" in ast.unparse(call.func)),
        norm_shared=any(word in source for word in SHARED_NORMS),
        join=any("hvd" in name or "horovod" in name for name in joins),
        counted={n.lineno for n in script.nodes if isinstance(n, ast.For) and _counts(n)},
        metric_stops=[*by_metrics(script)],
        results=results(script),
        saves=[call.lineno for call in saves(taken) if on_all_ranks(call, Guards(taken))],
        downloads=[
            call.lineno
            for call in downloads(script)
            if on_all_ranks(call, guards) and not guards.test(call, sites=any)
        ],
        guarded={call.lineno: test.lineno for call in script.calls if (test := guards.test(call))},
        collectives={call.lineno: last_name(call) for call in script.named(*COLLECTIVES)},
        session=_first(script, lambda call: last_name(call) in SESSIONS),
        old_argument=old_argument(script),
        uncalled=getattr(uncalled(script), "lineno", None),
        discarded=getattr(discarded(script), "lineno", None),
        local_shard=getattr(local_shard(script), "lineno", None),
        changed_early=changed_early(script),
        own_schedule=own and (own[0].lineno, own[1].lineno),
        own_stopper="EarlyStopping" in (ast.unparse(own[0]) if own else ""),
        own_breaks={n: (at.lineno, by.lineno) for n, at, by in own_breaks(script, guards)},
        plain_gradient=getattr(plain_gradient(script), "lineno", None),
        fewer_rounds=fewer_rounds(script),
        one_rank={  # the first metric of each loop
            loop: shown for loop, *shown in reversed([*not_combined(script, combining(script))])
        },
        new_orders=bool(script.named("set_epoch")),
        unused=unused_evaluations(script),
    )


def branches(script: Script) -> set[ast.If | ast.IfExp]:
    """Return the `if` statements and expressions that `read` can use the taken branch of.

    They contain the number of ranks, or write a checkpoint, and take the same branch on all ranks.
    """
    written = set(saves(script))
    return {
        node
        for node in script.nodes
        if isinstance(node, ast.If | ast.IfExp)
        and (script.uses_size(node) or not written.isdisjoint(ast.walk(node)))
        and not script.uses_rank(node.test)
    }


class _Taken(ast.NodeTransformer):
    """Leaves out the branches of `if` that a run decided against before its training loops."""

    def __init__(self, ran: Sequence[list[dict]]) -> None:
        self.results = [
            {(e["line"], e["column"], e["taken"]) for e in of_rank} for of_rank in ran
        ]  # by rank

    def _only(self, node: ast.If | ast.IfExp) -> bool | None:
        """Return the result that the test of a branch had each time, or None."""
        place = node.lineno, node.col_offset
        by_rank = [[r[2] for r in results if r[:2] == place] for results in self.results]
        first = by_rank[0]
        return first[0] if len(first) == 1 and all(r == first for r in by_rank) else None

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Return the statement, or the statements of the branch that ran."""
        only = self._only(node)
        self.generic_visit(node)
        if only is None:
            return node
        nothing = ast.copy_location(ast.Pass(), node)
        return (node.body if only else node.orelse) or nothing

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Return the expression, or the part of it that ran."""
        only = self._only(node)
        self.generic_visit(node)
        return node if only is None else node.body if only else node.orelse


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


def _pin(script: Script) -> tuple[str, int | None]:
    """Return what chooses a device, "local_rank", "rank" (counts over all machines), or "", and its line."""
    if chosen_by_helper(script):
        return "local_rank", None
    local, everywhere, by_all, by_local = {"local_rank"}, {"rank"}, None, None
    given = ((name, value) for _, name, value in script.functions.arguments())
    for name, value in (*script.assignments(), *given):
        if "local_rank" in ast.unparse(value).lower():
            local.add(name)
        elif isinstance(value, ast.Call) and last_name(value) in ("rank", "get_rank"):
            everywhere.add(name)
    for node in script.nodes:
        if isinstance(node, ast.Call | ast.Assign):
            text, names = ast.unparse(node).lower(), identifiers(node)
            by_rank = bool(names & everywhere)
            if any(word in text for word in DEVICES):
                if names & local or "local_rank" in text or by_rank and "device_count" in text:
                    by_local = by_local or node.lineno
                elif by_rank and any(word in text for word in PINS):
                    by_all = by_all or node.lineno
    if by_all:
        return "rank", by_all
    return ("local_rank", by_local) if by_local else ("", None)
