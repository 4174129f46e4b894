"""Hints about what the ranks share: the data, the records, the metrics, and the collectives."""

import ast
from collections.abc import Iterator

from hvdlab.hints.catalogue import Finding, finding
from hvdlab.hints.frameworks import api
from hvdlab.hints.scaling import is_repeated
from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.bindings import tests_around
from hvdlab.script_analysis.metrics import names_metric
from hvdlab.script_analysis.origins import LOCAL_RANK
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import BROADCASTS, EXCHANGES, Script

DIFFERENT = "so the ranks may decide differently and one of them waits for ever."


def data(script: Script) -> Iterator[Finding]:
    """Yield findings about data that are sharded incorrectly or not at all."""
    batches = script.named("Batches")
    shards = [(keyword(call, "rank"), keyword(call, "size")) for call in batches]
    # If one of them is sharded, the others may be for evaluation.
    sharded = any(all(shard) and not any(map(is_fixed, shard)) for shard in shards)
    for call in batches:
        if found := _wrong_shard(script, call, sharded):
            yield finding(found[0], call.lineno, found[1])
        seed = keyword(call, "seed")
        if seed is not None and script.uses_rank(seed):
            seen = "The seed of `Batches` differs between the ranks, so their shards overlap."
            yield finding("wrong-shard", call.lineno, seen)
    samplers = [
        call
        for call in script.named("DistributedSampler")
        if getattr(keyword(call, "shuffle"), "value", True) is not False
    ]
    # In a script with Batches a sampler is for evaluation.
    if samplers and not batches and not script.named("set_epoch"):
        seen = "This sampler gets no epoch, so each epoch has the same order."
        yield finding("same-order", samplers[0].lineno, seen)
    if not script.hvd(*BROADCASTS) and script.horovod:
        for call in script.named("manual_seed", "set_random_seed"):
            if any(script.uses_rank(argument) for argument in call.args):
                seen = (
                    "The ranks use different seeds, so they start with different weights, and no call "
                    "broadcasts the weights of one rank."
                )
                yield finding("no-broadcast", call.lineno, seen, api(script))


def _wrong_shard(script: Script, call: ast.Call, sharded: bool) -> tuple[str, str] | None:
    """Return what is wrong with the rank and the size that a call of `Batches` gets.

    Args:
        sharded: whether another call of `Batches` gets a rank and a size.

    Returns:
        (id of the mistake, what was seen), or None.
    """
    rank, size = keyword(call, "rank"), keyword(call, "size")
    if any(script.uses_rank(argument) for argument in call.args):  # images[rank::size]
        if not sharded or (rank and size):
            return "wrong-shard", (
                "`Batches` gets images that the script has cut out for this rank, which are the same in "
                "each epoch."
            )
    if rank is None or size is None:
        starred = any(word.arg is None for word in call.keywords)
        whole = "`Batches` returns the whole data set on every rank."
        return None if starred or sharded else ("identical-batches", whole)
    if is_fixed(rank) or is_fixed(size):
        return None if sharded else ("wrong-shard", "`Batches` gets a fixed rank or size.")
    if script.depends(rank, LOCAL_RANK) or script.named_in(size, "local_size"):
        return "wrong-shard", (
            "`Batches` gets local_rank or local_size, so two machines would read the same shard."
        )
    if exchanged(script, rank, size):
        return "wrong-shard", "In this call of `Batches` rank and size are exchanged."
    return None


def is_fixed(argument: ast.AST) -> bool:
    """Return whether an argument is a literal."""
    return isinstance(argument, ast.Constant)


def exchanged(script: Script, rank: ast.AST, size: ast.AST) -> bool:
    """Return whether one of two arguments is the other number.

    Args:
        size: what is passed as number of ranks.
    """
    rank_is_size = script.uses_size(rank) and not script.uses_rank(rank)
    return rank_is_size or script.uses_rank(size) and not script.uses_size(size)


def recorder(script: Script) -> Iterator[Finding]:
    """Yield a finding about a recorder that only some ranks call."""
    for call, test in _on_some_ranks(script, script.named("Recorder", "epoch_end")):
        line = line_of_mistake(script, call, test)
        yield finding("recorder-on-some-ranks", line, "This call records on some ranks only.")
        return


def _on_some_ranks(script: Script, calls: list[ast.Call]) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls that only some ranks make, each with its test of the rank."""
    guards = Guards(script, by_name=False)
    everywhere = guards.everywhere(calls)
    for call in calls:
        if (test := guards.test(call, sites=any)) and call not in everywhere:
            yield call, test


def line_of_mistake(script: Script, call: ast.Call, test: ast.expr) -> int:
    """Return the line of a call, or of the test of the rank under which its function is called.

    Args:
        call: a call that only some ranks make.
    """
    return (call if script.inside[call] is script.inside[test] else test).lineno


def metrics(script: Script) -> Iterator[Finding]:
    """Yield a finding about a decision by a metric that is not averaged over the ranks."""
    if not script.horovod or script.other:  # mpi4py averages numbers as well
        return
    if script.hvd(*EXCHANGES) or script.named("MetricAverageCallback"):
        return
    for call in script.named("EarlyStopping", "ReduceLROnPlateau"):
        seen = f"This decides by a metric that each rank computed alone, {DIFFERENT}"
        own = "keras" if "keras" in script.names[call] else "torch"
        yield finding("own-stop", call.lineno, seen, own)
        return
    for node in script.nodes:
        if stops(script, node) and is_metric(script, node.test):
            seen = f"This stops by a value that each rank computed alone, {DIFFERENT}"
            yield finding("own-stop", node.lineno, seen, "torch")
            return


def stops(script: Script, node: ast.AST) -> bool:
    """Return whether a node has a test that decides how long a loop, or `fit`, continues."""
    if not isinstance(node, ast.If):
        return isinstance(node, ast.While)
    if any(isinstance(statement, ast.Break | ast.Return) for statement in node.body):
        return any(isinstance(above, ast.For | ast.While) for above in script.ancestors(node))
    targets = [t for part in node.body if isinstance(part, ast.Assign) for t in part.targets]
    return any(getattr(target, "attr", "") == "stop_training" for target in targets)


def is_metric(script: Script, test: ast.expr) -> bool:
    """Return whether a test depends on a metric, or on a count of metrics: bad += loss > best."""
    if any(map(names_metric, ast.walk(test))):
        return True
    tested = {script.variable(node) for node in ast.walk(test) if isinstance(node, ast.Name)}
    values = [value for variable, value in script.bound if variable in tested]
    parts = [part for value in values for part in ast.walk(value)]
    tests = [part.test for part in parts if isinstance(part, ast.IfExp)]
    tests += [part for part in parts if isinstance(part, ast.Compare)]  # done = accuracy > 0.8
    tests += [around for value in values for around in tests_around(script, value)]
    return any(names_metric(part) for each in tests for part in ast.walk(each))


def _training_steps(script: Script) -> list[ast.Call]:
    """Return the calls of optimizer.step() and of fit."""
    steps = [call for call in script.named("step") if "optim" in script.names[call]]
    return steps + (script.named("fit") if script.keras else [])


def _sends_weights(script: Script) -> bool:
    """Return whether one rank may train and send its weights to the others, as a parameter server does.

    It broadcasts repeatedly. A wrapped optimizer makes every rank wait in each step.
    """
    if script.hvd("DistributedOptimizer", "DistributedGradientTape"):
        return False
    return any(is_repeated(script, call) for call in script.hvd(*BROADCASTS))


def hang(script: Script) -> Iterator[Finding]:
    """Yield a finding about a collective or a training step that only some ranks reach."""
    collectives = script.hvd(*EXCHANGES, *BROADCASTS, "broadcast_optimizer_state", "barrier")
    collectives = [call for call in collectives if not script.names[call].endswith("Callback")]
    steps = [] if _sends_weights(script) else _training_steps(script)
    for call, test in _on_some_ranks(script, collectives + steps):
        seen = (
            "Only some ranks call Horovod here, and they wait for the other ranks for ever."
            if call in collectives
            else "Only some ranks train here."
        )
        yield finding("collective-on-some-ranks", line_of_mistake(script, call, test), seen)
        return
