"""What a script does on some ranks only or without effect, as far as its source shows it."""

import ast
import itertools
import re
from collections.abc import Iterator

from hvdlab.script_analysis.ast_helpers import identifiers, last_name
from hvdlab.script_analysis.origins import GLOBAL_RANK, GLOBAL_SIZE, LOCAL_RANK, Origin
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.rate_scaling import is_of_optimizer
from hvdlab.script_analysis.script import HOROVOD, Script

PLACES = ("rank", "size", "local_rank", "local_size")
SHARDING = ("Batches", "DistributedSampler", "shard")  # they take the rank and the number of ranks
TENSORS = ("tensor", "as_tensor", "Tensor", "FloatTensor", "constant", "convert_to_tensor", "array")
ROUNDS = re.compile(r"epoch|step|iter|batch|len\(|num|size")  # a number of rounds, or of samples
VARIABLES = ast.Name | ast.Attribute
NUMBERS = ("range", "int", "float", "max", "min")  # functions that take numbers
RESULTS = (  # collectives that change no argument
    "allreduce", "grouped_allreduce", "allgather", "allgather_object", "broadcast", "broadcast_object",
)  # fmt: skip


CALLBACKS = (  # of Keras, that all ranks need
    "EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
)  # fmt: skip


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
    if call in script.named(*SHARDING):
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
            first = min(later, key=lambda node: node.lineno, default=None)
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
    """Yield the calls of the script's own functions that return the average of their first argument."""
    for call in script.hvd(*RESULTS):
        function = script.inside[call]
        if not isinstance(function, ast.FunctionDef) or not call.args:
            continue
        parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
        assigns = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
        sent = identifiers(call.args[0]) - {""}
        for assign in assigns:  # tensor = torch.tensor(value)
            if isinstance(assign.value, ast.Call) and last_name(assign.value) in TENSORS:
                if sent & set().union(*map(identifiers, assign.targets)):
                    sent = sent | identifiers(assign.value)
        results = {call}.union(
            *(assign.targets for assign in assigns if call in ast.walk(assign.value))
        )
        returned = [
            part
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value
            for part in ast.walk(node.value)
        ]
        named = {node.id for node in results if isinstance(node, ast.Name)}
        returns = call in returned or any(getattr(part, "id", None) in named for part in returned)
        if returns and sent & set(parameters[:1]):
            yield from script.functions.calls.get(script.functions.name(function), [])


def own_schedule(script: Script, guards: Guards) -> tuple[ast.AST, ast.expr] | None:
    """Return what first changes the learning rate, or the end of training, on some ranks only, or None.

    That is the step of a schedule, an assignment to the rate of an optimizer, or a callback of CALLBACKS.

    Returns:
        The call or the assignment, and the test of the rank.
    """
    steps = [call for call in script.named("step") if _is_of_schedule(call, script)]
    sets = [
        node
        for node in script.nodes
        if isinstance(node, ast.Assign | ast.AugAssign)
        and any(_is_rate(target, script) for target in _targets(node))
    ]
    sent = set(script.hvd("broadcast_optimizer_state", "broadcast_object", "broadcast"))
    for changes in (steps, sets):
        in_each_branch = guards.everywhere(changes)
        for node in changes:
            test = guards.test(node)
            loops = [n for n in script.ancestors(node) if isinstance(n, ast.For | ast.While)]
            # The other ranks may get the learning rate.
            shared = any(not sent.isdisjoint(ast.walk(loop)) for loop in loops)
            if test and node not in in_each_branch and not shared:
                return node, test
    callbacks = script.named(*CALLBACKS)
    in_each_branch = guards.everywhere(callbacks)
    for call in callbacks:
        test = guards.test(call) or guards.test_of_uses(call)
        if test and call not in in_each_branch:
            return call, test
    return None


def _is_of_schedule(step: ast.Call, script: Script) -> bool:
    """Return whether a call `x.step()` is the step of a learning rate schedule of PyTorch."""
    owner = getattr(step.func, "value", None)
    if not isinstance(owner, VARIABLES):
        return False
    values = [value for variable, value in script.bound if variable == script.variable(owner)]
    return any("lr_scheduler" in script.name(v) for v in values if isinstance(v, ast.Call))


def _is_rate(target: ast.expr, script: Script) -> bool:
    """Return whether a target is the rate of an optimizer, and no column "lr" of a table, for example."""
    owner = ast.unparse(target.value) if is_of_optimizer(target) else ""
    loops = (node for node in script.nodes if isinstance(node, ast.For))
    groups = {ast.unparse(n.target) for n in loops if "param_groups" in ast.unparse(n.iter)}
    return owner in groups or "param_groups" in owner or "optimizer" in owner


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    """Return the left sides of an assignment."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def own_breaks(script: Script, guards: Guards) -> Iterator[tuple[int, ast.Break, ast.expr]]:
    """Yield the ways out of a loop that only some ranks have.

    Yields:
        Line of the loop, the `break`, and the test of the rank around it.
    """
    for node in script.nodes:
        if not isinstance(node, ast.Break):
            continue
        inside = itertools.takewhile(
            lambda n: not isinstance(n, ast.For | ast.While), script.ancestors(node)
        )
        tests = [n for n in inside if isinstance(n, ast.If) and guards.splits(n.test)]
        loop = next(n for n in script.ancestors(node) if isinstance(n, ast.For | ast.While))
        if tests and not all(map(_breaks, (tests[-1].body, tests[-1].orelse))):
            yield loop.lineno, node, tests[-1].test


def _breaks(block: list[ast.stmt]) -> bool:
    """Return whether a block contains a `break`."""
    return any(isinstance(n, ast.Break) for statement in block for n in ast.walk(statement))


def plain_gradient(script: Script) -> ast.Call | None:
    """Return the first gradient of a tape that DistributedGradientTape does not replace, or None."""
    replaced = {
        script.variable(target)
        for call in script.named("DistributedGradientTape")
        for target in getattr(script.parents[call], "targets", ())
        if isinstance(target, ast.Name)
    }
    plain = {
        script.variable(item.optional_vars)
        for node in script.nodes
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and isinstance(item.context_expr, ast.Call)
        if last_name(item.context_expr) == "GradientTape"
    }
    for call in script.named("gradient"):
        tape = getattr(call.func, "value", None)
        if isinstance(tape, ast.Name) and script.variable(tape) in plain - replaced:
            return call
    return None


def fewer_rounds(script: Script) -> bool:
    """Return whether a script divides a number of epochs, steps or batches by the number of ranks."""
    divided = [
        (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        for node in script.nodes
        if isinstance(node, ast.BinOp | ast.AugAssign)
        and isinstance(node.op, ast.Div | ast.FloorDiv)
    ]
    return any(ROUNDS.search(ast.unparse(n)) and script.uses_size(by) for n, by in divided)


def local_shard(script: Script) -> ast.expr | None:
    """Return the first shard that a script chooses by the local rank out of as many as ranks, or None."""
    for call in script.calls:
        named = [word.value for word in call.keywords if word.arg and "shard" in word.arg]
        given = [*call.args, *(word.value for word in call.keywords)]
        if _by_local_rank(given if call in script.named(*SHARDING) else named, script):
            return call
    for node in script.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            if _by_local_rank([part for part in parts if part], script):
                return node
    return None


def _by_local_rank(parts: list[ast.expr], script: Script) -> bool:
    """Return whether expressions depend on the local rank and the number of ranks, and not on the rank."""

    def depend(origin: Origin) -> bool:
        return any(script.depends(part, origin) for part in parts)

    return depend(LOCAL_RANK) and depend(GLOBAL_SIZE) and not depend(GLOBAL_RANK)


def unused_evaluations(script: Script) -> set[int]:
    """Return the lines of the calls of `evaluate` whose results a script does not use."""
    calls = script.named("evaluate")
    return {call.lineno for call in calls if isinstance(script.parents[call], ast.Expr)}
