"""Hints about what ranks share: the data, the records, what they decide by, and where they meet."""

import ast
import re

from hvdlab.hints.writing import COMMAND_LINES
from hvdlab.script_analysis.ast_helpers import keyword, strings
from hvdlab.script_analysis.bindings import tests_around
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import BROADCASTS, EXCHANGES, LOCAL_RANK, Script

LIMIT = re.compile(
    r"_(batches|steps|epochs|images|samples|every|interval|freq|frequency|size|count)\Z"
)
DECISIVE = re.compile(r"(\A|_)(acc|accuracy|loss|metric|best|patience|score)(_|\d|\Z)")


def data(script: Script):
    made = script.named("Batches")
    shares = [(keyword(call, "rank"), keyword(call, "size")) for call in made]
    # Beside one that is divided, others may be for evaluation.
    shared = any(all(share) and not any(map(is_fixed, share)) for share in shares)
    for call in made:
        mine, count = keyword(call, "rank"), keyword(call, "size")
        starred = any(word.arg is None for word in call.keywords)
        cut = any(script.uses_rank(argument) for argument in call.args)  # images[rank::size]
        if cut and (not shared or (mine and count)):
            text = (
                "Give `Batches` the whole set with rank=hvd.rank(), size=hvd.size(): it deals the images "
                "anew in each epoch. A part that you cut out is always the same."
            )
            yield call.lineno, text
        elif mine is None or count is None:
            if not starred and not shared:
                text = (
                    "`Batches` deals the whole set to every rank: give it rank=hvd.rank(), "
                    "size=hvd.size()."
                )
                yield call.lineno, text
        elif is_fixed(mine) or is_fixed(count):
            if not shared:
                text = "`Batches` has a fixed rank or size: ask hvd.rank() and hvd.size()."
                yield call.lineno, text
        elif script.depends(mine, LOCAL_RANK) or script.named_in(count, "local_size"):
            text = (
                "`Batches` gets local_rank or local_size: two computers would read the same part. Take "
                "hvd.rank() and hvd.size()."
            )
            yield call.lineno, text
        elif exchanged(script, mine, count):
            yield call.lineno, "`Batches` has rank and size exchanged."
        seed = keyword(call, "seed")
        if seed is not None and script.uses_rank(seed):
            text = (
                "The seed of `Batches` differs between ranks, so their parts overlap: it must be the "
                "same on all, rank= and size= do the dividing."
            )
            yield call.lineno, text
    samplers = [
        call
        for call in script.named("DistributedSampler")
        if getattr(keyword(call, "shuffle"), "value", True) is not False
    ]
    # Beside Batches it is for evaluation.
    if samplers and not made and not script.named("set_epoch"):
        yield (
            samplers[0].lineno,
            "Without `sampler.set_epoch(epoch)` each epoch has the same order.",
        )
    if not script.hvd(*BROADCASTS) and script.horovod:
        for call in script.named("manual_seed", "set_random_seed"):
            if any(script.uses_rank(argument) for argument in call.args):
                text = (
                    "Ranks begin with different seeds, so with different weights, and nothing here "
                    "makes them equal."
                )
                yield call.lineno, text


def is_fixed(argument: ast.AST) -> bool:
    return isinstance(argument, ast.Constant)


def exchanged(script: Script, rank: ast.AST, size: ast.AST) -> bool:
    rank_is_size = script.uses_size(rank) and not script.uses_rank(rank)
    return rank_is_size or script.uses_rank(size) and not script.uses_size(size)


def recorder(script: Script):
    guards = Guards(script, by_name=False)
    records = script.named("Recorder", "epoch_end")
    everywhere = guards.everywhere(records)
    for call in records:
        if (test := guards.test(call, sites=any)) and call not in everywhere:
            text = (
                "This records on some ranks only. Every rank writes its own weights, and the grader "
                "compares them: take it out of the `if`."
            )
            yield line_of_mistake(script, call, test), text
            return


def line_of_mistake(script: Script, call: ast.Call, test: ast.expr) -> int:
    """The call's line, or, where its function is called under a test of the rank, that of the test."""
    return (call if script.inside[call] is script.inside[test] else test).lineno


def metrics(script: Script):
    if not script.horovod or script.other:  # mpi4py averages numbers as well
        return
    averaged = script.hvd(*EXCHANGES, "MetricAverageCallback")
    averaged += script.named("MetricAverageCallback")
    if averaged:
        return
    again = "Average it over the ranks first, or they decide differently and one waits for ever."
    for call in script.named("EarlyStopping", "ReduceLROnPlateau"):
        yield call.lineno, f"This decides by a metric that each rank computed alone. {again}"
        return
    for node in script.nodes:
        if stops(script, node) and is_metric(script, node.test):
            yield node.lineno, f"This stops by a number that each rank computed alone. {again}"
            return


def stops(script: Script, node: ast.AST) -> bool:
    """Whether a test decides how long a loop, or Keras, goes on."""
    if not isinstance(node, ast.If):
        return isinstance(node, ast.While)
    if any(isinstance(statement, ast.Break | ast.Return) for statement in node.body):
        return any(isinstance(above, ast.For | ast.While) for above in script.ancestors(node))
    targets = [t for part in node.body if isinstance(part, ast.Assign) for t in part.targets]
    return any(getattr(target, "attr", "") == "stop_training" for target in targets)


def is_metric(script: Script, test: ast.expr) -> bool:
    """Whether a test asks for a metric, or for what is counted by one: bad += loss > best."""
    if any(map(decides, ast.walk(test))):
        return True
    asked = {script.variable(node) for node in ast.walk(test) if isinstance(node, ast.Name)}
    counted = [value for variable, value in script.bound if variable in asked]
    parts = [part for value in counted for part in ast.walk(value)]
    tests = [part.test for part in parts if isinstance(part, ast.IfExp)]
    tests += [part for part in parts if isinstance(part, ast.Compare)]  # done = accuracy > 0.8
    tests += [around for value in counted for around in tests_around(script, value)]
    return any(decides(part) for made in tests for part in ast.walk(made))


def decides(node: ast.AST) -> bool:
    """Whether it is a metric by its name. `args.val_batches` is a limit, and the same on all ranks."""
    name = getattr(node, "id", None) or getattr(node, "attr", "")
    if isinstance(node, ast.Subscript):  # logs["accuracy"]
        name = "".join(strings(node)[:1])
    if getattr(getattr(node, "value", None), "id", None) in COMMAND_LINES or LIMIT.search(name):
        return False
    return bool(DECISIVE.search(name))


def hang(script: Script):
    guards = Guards(script, by_name=False)
    meets = script.hvd(*EXCHANGES, *BROADCASTS, "broadcast_optimizer_state", "barrier")
    meets = [call for call in meets if not script.names[call].endswith("Callback")]
    steps = [call for call in script.named("step") if "optim" in script.names[call]]
    steps += script.named("fit") if script.keras else []
    everywhere = guards.everywhere(meets + steps)
    for call in meets + steps:
        if (test := guards.test(call, sites=any)) and call not in everywhere:
            text = (
                "Some ranks only call Horovod here: they wait for the others for ever. All ranks make the "
                "same calls in the same order."
                if call in meets
                else "Some ranks only train here. All ranks make the same steps, each with its own batches."
            )
            yield line_of_mistake(script, call, test), text
            return
