"""Insert calls of the watch into a script's loops and into its decisions to stop, in its syntax tree.

    for batch in loader:                  for batch in __hvdlab__.each(12, loader):
        ...                                   ...
        if best - loss < 0.01:      ->        if __hvdlab__.decide(14, "best", best) - ... < 0.01:
            break                                 break
    while step < 100:                     with __hvdlab__.rounds(16) as __loop16__:
        ...                                   while __loop16__.again(step < 100):
    if args.adasum:                       if __hvdlab__.branch(18, 0, args.adasum):
        scale = hvd.local_size()              scale = hvd.local_size()
    own = order[hvd.rank()::hvd.size()]   own = __hvdlab__.part(20, order, hvd.rank(), None, hvd.size())
    own = parts[hvd.rank()]               own = __hvdlab__.whole(21, parts)[hvd.rank()]

A decision to stop is the test of an `if` that leaves a loop or a round that trains, or sets
`stop_training`, and the tests on which its variables depend. A loop that yields is left unchanged, because
the loop that reads its items is the one that trains. The test of an `if` is written down where
`source_facts` needs to know which branch ran. What is sliced by the rank is written down, because each rank
must slice the same data. Line numbers stay the same.
"""

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile

from hvdlab.check.source_facts import COLLECTIVES, TORCH_COLLECTIVES, branches
from hvdlab.script_analysis.ast_helpers import last_name
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

WATCH = "__hvdlab__"
WRAPPERS = {"enumerate", "tqdm"}  # around the iterable that has the length
# Collectives by their last names, without the functions that are also names of other functions.
NAMES = {*COLLECTIVES, *TORCH_COLLECTIVES} - {"reduce", "gather", "scatter"}
STEPS = ("step", "backward", "apply_gradients", "train_on_batch", *COLLECTIVES)
EXITS = {"exit", "_exit", "quit"}
Loop = ast.For | ast.While
Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign


def instrument(source: str | bytes, path: str) -> ast.Module:
    """Return the syntax tree of a script with the calls of the watch.

    Args:
        source: of the script.
        path: of the script, for error messages.

    Raises:
        SyntaxError: the source is not valid Python.
    """
    tree = ast.parse(source, path)
    script = Script(tree)
    instrumented = _Instrument(dict(operands(tree)), branches(script), shards(script))
    return ast.fix_missing_locations(instrumented.visit(tree))


class _Instrument(ast.NodeTransformer):
    """Wraps loops, the operands of decisions, the tests of branches, and what a rank takes its shard of.

    Args:
        decisions: operand -> line of the decision.
        branches: the `if` statements and expressions.
        shards: the subscripts by the rank.
    """

    def __init__(
        self,
        decisions: dict[ast.expr, int],
        branches: set[ast.If | ast.IfExp],
        shards: set[ast.Subscript],
    ) -> None:
        self.branches, self.shards = branches, shards
        self.decisions = {  # with the text before any call of the watch is inserted
            node: (ast.Constant(line), ast.Constant(ast.unparse(node)))
            for node, line in decisions.items()
        }

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, or the node that replaces it.

        Args:
            node: any node; its children are visited first.
        """
        new = self.generic_visit(node)
        if node in self.branches:
            place = ast.Constant(node.lineno), ast.Constant(node.col_offset)
            node.test = ast.copy_location(_call("branch", *place, node.test), node.test)
        if node in self.shards:
            new = _noted(node)
        if node in self.decisions:
            new = _call("decide", *self.decisions[node], node)
        elif isinstance(node, ast.For) and not _yields(node):
            node.iter = _each(node.iter, node.lineno)
        elif isinstance(node, ast.While) and not _yields(node):
            name, rounds = f"__loop{node.lineno}__", _call("rounds", ast.Constant(node.lineno))
            node.test = _call("again", node.test, owner=name)
            new = ast.With([ast.withitem(rounds, ast.Name(name, ast.Store()))], [node])
        return ast.copy_location(new, node)


def _noted(part: ast.Subscript) -> ast.expr:
    """Return the expression of a part, in a form that writes down what it is a part of."""
    line = ast.Constant(part.lineno)
    if isinstance(part.slice, ast.Slice):
        bounds = (part.slice.lower, part.slice.upper, part.slice.step)
        return _call("part", line, part.value, *(each or ast.Constant(None) for each in bounds))
    part.value = ast.copy_location(_call("whole", line, part.value), part.value)
    return part


def shards(script: Script) -> set[ast.Subscript]:
    """Return the expressions that take a part of something by the rank: `order[rank::size]`, `parts[rank]`.

    Args:
        script: the script.
    """
    guards = Guards(script)
    found = set()
    for node in script.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            first = node.slice.lower if isinstance(node.slice, ast.Slice) else node.slice
            if first is not None and guards.asks(first):
                found.add(node)
    return found


def operands(tree: ast.Module) -> list[tuple[ast.expr, int]]:
    """Return the values on which the decisions to stop depend.

    Args:
        tree: of the script.

    Returns:
        (expression, line of the decision); no expression is inside another one.
    """
    script = Script(tree)
    guards, collectives = Guards(script), {*NAMES, *_functions_with_collectives(script)}
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


def _functions_with_collectives(script: Script) -> set[str]:
    """Return the names of the script's own functions that call a collective."""
    return {getattr(script.inside[call], "name", "") for call in script.named(*NAMES)}


def _targets(node: Assignment) -> list[ast.expr]:
    """Return the left sides of an assignment."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def stops(script: Script) -> Iterator[ast.If | ast.While]:
    """Yield the `if` statements that leave a loop or a round of it, and the `while` loops with a condition.

    Args:
        script: the script.
    """
    for node in script.nodes:
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            if not _yields(node):
                yield node
        elif isinstance(node, ast.If):
            loop = _loop(node, script)
            if loop is not None and _yields(loop):
                continue
            if loop or script.inside[node] is not script.tree:
                parts = node.body + node.orelse
                if any(_leaves(part, bool(loop)) for part in parts) or _skips(node, loop, script):
                    yield node


def _skips(test: ast.If, loop: Loop | None, script: Script) -> bool:
    """Return whether an `if` leaves a round of a loop before a step, which the other ranks wait for."""
    if loop is None or not any(isinstance(part, ast.Continue) for part in test.body + test.orelse):
        return False
    inside = set(ast.walk(loop))
    return any(call in inside and call.lineno > test.lineno for call in script.named(*STEPS))


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


def _yields(loop: Loop) -> bool:
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
    if isinstance(
        test, ast.Compare
    ):  # a call counts by its result: its arguments may be no numbers
        values = [test.left, *test.comparators]
        calls = [value for value in values if isinstance(value, ast.Call)]
        return calls + parts(value for value in values if value not in calls)
    if isinstance(test, ast.Constant):
        return []
    if isinstance(test, ast.Call) and not _calls(test, collectives):
        values = [value for value in test.args if not isinstance(value, ast.Starred)]
        return parts(values) or [test]  # the arguments of stopper.step(loss), or the result
    return [test]


def _each(iterable: ast.expr, line: int) -> ast.expr:
    """Return the iterable of a loop inside a call of `each`, which is put inside WRAPPERS."""
    if isinstance(iterable, ast.Call) and iterable.args and last_name(iterable) in WRAPPERS:
        iterable.args[0] = _each(iterable.args[0], line)
        return iterable
    return ast.copy_location(_call("each", ast.Constant(line), iterable), iterable)


def _call(name: str, *arguments: ast.expr, owner: str = WATCH) -> ast.Call:
    """Return the call of a method of the watch, or of another object."""
    method = ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load())
    return ast.Call(method, list(arguments), [])


def _names(node: ast.AST, excluded: Collection[str] = ()) -> set[str]:
    """Return the names in an expression, except for names in calls of excluded functions."""
    if isinstance(node, ast.Name):
        return {node.id}
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
