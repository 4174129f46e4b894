"""The values on which the decisions depend that let a rank leave a loop, or make a step or a collective.

Each rank must decide in the same way. A decision is the test of an `if` that leaves a loop or a round that
trains, makes a step or a collective in one branch only, or sets `stop_training`, and the tests on which its
variables depend. The test of a `while` loop is one, too.
"""

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile

from hvdlab.script_analysis.ast_helpers import last_name
from hvdlab.script_analysis.collectives import COLLECTIVES, TORCH_COLLECTIVES, applies, callers
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

# Collectives by their last names, without the functions that are also names of other functions.
NAMES = {*COLLECTIVES, *TORCH_COLLECTIVES} - {"reduce", "gather", "scatter"}
STEPS = ("step", "backward", "apply_gradients", "train_on_batch", *COLLECTIVES)
OF_OBJECTS = ast.Is | ast.IsNot | ast.In | ast.NotIn  # they compare no values
ABOUT_OBJECTS = {"isinstance", "hasattr", "callable", "is_tensor", "is_grad_enabled", "len", "bool"}
EXITS = {"exit", "_exit", "quit"}
Loop = ast.For | ast.While
Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign


def operands(tree: ast.Module) -> list[tuple[ast.expr, int]]:
    """Return the values on which the decisions to stop depend.

    Returns:
        (expression, line of the decision); no expression is inside another one.
    """
    script = Script(tree)
    guards, collectives = Guards(script), {*NAMES, *callers(script, NAMES)}
    found: dict[ast.expr, int] = {}
    for stop in stops(script):
        for test in _tests(stop, script, collectives):
            for operand in _parts(test, collectives):
                if not guards.asks(operand):  # the rank differs on every rank, and should
                    found.setdefault(operand, stop.lineno)
    # An expression inside another one is copied with it.
    inside = {n for operand in found for n in ast.walk(operand) if n is not operand}
    return [(operand, line) for operand, line in found.items() if operand not in inside]


def _tests(stop: ast.If | ast.While, script: Script, collectives: set[str]) -> list[ast.expr]:
    """Return the test of a stop, and the tests on which its variables depend.

    A variable that comes from a collective is equal on all ranks, so it is not followed.
    """

    def own(test: ast.expr) -> set[str]:
        return _names(test, excluded=collectives)

    loop = _loop(stop, script)
    assigns = [
        (node, set().union(*map(_names, _targets(node))))
        for node in ast.walk(script.inside[stop])
        if isinstance(node, Assignment) and node.value
    ]
    shared = {
        name
        for node, names in assigns
        if any(_calls(part, collectives) for part in ast.walk(node.value))
        for name in names
    }
    names, tests = own(stop.test) - shared, [stop.test]
    while True:  # until no test is added
        added = []
        for node, targets in assigns:
            if names & targets:
                inner = takewhile(lambda above: above is not loop, script.ancestors(node))
                added += [above.test for above in inner if isinstance(above, ast.If)]
                added += [part.test for part in ast.walk(node.value) if isinstance(part, ast.IfExp)]
        added = [test for test in dict.fromkeys(added) if test not in tests]
        if not added:
            return tests
        tests += added
        names = names.union(*map(own, added)) - shared


def _calls(node: ast.AST, functions: Collection[str]) -> bool:
    """Return whether a node is a call of one of some functions."""
    return isinstance(node, ast.Call) and last_name(node) in functions


def _targets(node: Assignment) -> list[ast.expr]:
    """Return the left sides of an assignment."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def stops(script: Script) -> Iterator[ast.If | ast.While]:
    """Yield the `while` loops with a condition, and the `if` statements after which ranks may part.

    Those leave a loop or a round of it, or make a step or a collective in one branch only.
    """
    calls = {*STEPS, *callers(script, STEPS), *callers(script, NAMES)}
    for node in script.nodes:
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            if not yields(node):
                yield node
        elif isinstance(node, ast.If):
            loop = _loop(node, script)
            if loop is not None and yields(loop):
                continue
            if loop or script.inside[node] is not script.tree:
                parts = node.body + node.orelse
                leaves = any(_leaves(part, bool(loop)) for part in parts)
                if leaves or _skips(node, loop, script, calls) or _calls_in_one_branch(node, calls):
                    yield node


def _skips(test: ast.If, loop: Loop | None, script: Script, functions: set[str]) -> bool:
    """Return whether an `if` leaves a round of a loop before a step, which the other ranks wait for.

    Args:
        loop: around it, or None.
        functions: last names of the functions that make a step, or call a collective.
    """
    if loop is None or not any(isinstance(part, ast.Continue) for part in test.body + test.orelse):
        return False
    inside = set(ast.walk(loop))
    return any(call in inside and call.lineno > test.lineno for call in script.named(*functions))


def _calls_in_one_branch(test: ast.If, functions: set[str]) -> bool:
    """Return whether one branch of an `if` calls some functions, and the other branch none of them."""

    def calls(block: list[ast.stmt]) -> bool:
        parts = (part for statement in block for part in ast.walk(statement))
        return any(isinstance(p, ast.Call) and (_calls(p, functions) or applies(p)) for p in parts)

    return calls(test.body) != calls(test.orelse)


def _leaves(node: ast.stmt, in_loop: bool) -> bool:
    """Return whether a statement leaves a loop, or sets `stop_training`."""
    if isinstance(node, ast.Break | ast.Return):
        return in_loop
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return in_loop and _exits_well(node.value)
    if isinstance(node, ast.Assign):
        return any(ast.unparse(target).endswith(".stop_training") for target in node.targets)
    return False


def _exits_well(call: ast.Call) -> bool:
    """Return whether a call ends the process with exit code 0. After another code mpirun ends all ranks."""
    codes = [getattr(code, "value", None) for code in call.args[:1]]
    return last_name(call) in EXITS and not any(codes)


def yields(loop: Loop) -> bool:
    """Return whether a loop contains a `yield`."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(loop))


def _parts(test: ast.expr, collectives: set[str]) -> list[ast.expr]:
    """Return the values that a test compares. Of a collective that is the result, not the arguments."""

    def parts(values: Iterable[ast.expr]) -> list[ast.expr]:
        return [part for value in values for part in _parts(value, collectives)]

    if isinstance(test, ast.BoolOp):
        return parts(test.values)
    if isinstance(test, ast.UnaryOp):
        return parts([test.operand])
    if isinstance(test, ast.Compare):
        if any(isinstance(op, OF_OBJECTS) for op in test.ops):
            return [test]
        # A call counts by its result: its arguments may be no numbers.
        values = [test.left, *test.comparators]
        calls = [value for value in values if isinstance(value, ast.Call)]
        return calls + parts(value for value in values if value not in calls)
    if isinstance(test, ast.Constant):
        return []
    if isinstance(test, ast.Call) and not _calls(test, collectives):
        values = [value for value in test.args if not isinstance(value, ast.Starred)]
        if last_name(test) in ABOUT_OBJECTS:
            return [test]
        return parts(values) or [test]  # the arguments of stopper.step(loss), or the result
    return [test]


def _names(node: ast.AST, excluded: Collection[str] = ()) -> set[str]:
    """Return the names in an expression, except for names in calls of excluded functions.

    Of `self.best` that is the attribute and not `self`, which has all other values of the object, too.
    """
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
        return {f"self.{node.attr}"}
    if _calls(node, excluded):
        return set()
    return {name for part in ast.iter_child_nodes(node) for name in _names(part, excluded)}


def _loop(node: ast.AST, script: Script) -> Loop | None:
    """Return the loop around a node, in the same function."""
    for above in script.ancestors(node):
        if isinstance(above, FUNCTIONS | ast.Lambda):
            return None
        if isinstance(above, Loop):
            return above
    return None
