"""Puts the watch into a script's loops and into its decisions to stop, in its syntax tree.

    for batch in loader:                  for batch in __hvdlab__.each(12, loader):
        ...                                   ...
        if best - loss < 0.01:      ->        if __hvdlab__.decide(14, "best", best) - ... < 0.01:
            break                                 break
    while step < 100:                     with __hvdlab__.rounds(16) as __loop16__:
        ...                                   while __loop16__.again(step < 100):

A decision to stop is the test of an `if` that leaves a loop, or sets `stop_training`, and the tests
on which its variables depend. A loop that yields is left alone: what trains is the loop that asks it.
Line numbers stay as they are.
"""

import ast
from collections.abc import Iterator

from hvdlab.check.source_facts import COLLECTIVES
from hvdlab.script_analysis.ast_helpers import last_name
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

WATCH = "__hvdlab__"
WRAPPERS = {"enumerate", "tqdm"}  # around the iterable that has the length
STOPS = {"exit", "_exit", "quit"}


def instrument(source: str | bytes, path: str) -> ast.Module:
    """The syntax tree of a script, instrumented. Raises SyntaxError."""
    tree = ast.parse(source, path)
    return ast.fix_missing_locations(_Instrument(dict(operands(tree))).visit(tree))


class _Instrument(ast.NodeTransformer):
    def __init__(self, decisions: dict[ast.expr, int]):
        self.decisions = decisions

    def visit(self, node):
        new = self.generic_visit(node)
        if node in self.decisions:
            text = ast.Constant(ast.unparse(node))
            new = _call("decide", ast.Constant(self.decisions[node]), text, node)
        elif isinstance(node, ast.For) and not _yields(node):
            node.iter = _each(node.iter, node.lineno)
        elif isinstance(node, ast.While) and not _yields(node):
            name, rounds = f"__loop{node.lineno}__", _call("rounds", ast.Constant(node.lineno))
            node.test = _call("again", node.test, of=name)
            new = ast.With([ast.withitem(rounds, ast.Name(name, ast.Store()))], [node])
        return ast.copy_location(new, node)


def operands(tree: ast.Module) -> list[tuple[ast.expr, int]]:
    """(expression, line of the stop) of all values that a decision to stop is made of."""
    script = Script(tree)
    guards, collectives = Guards(script), {*COLLECTIVES, *_sharing(script)}
    found: dict[ast.expr, int] = {}
    for stop in stops(script):
        for test in _tests(stop, script, collectives):
            for operand in _parts(test, collectives):
                if not guards.asks(operand):  # the rank is everybody's own by right
                    found.setdefault(operand, stop.lineno)
    # An expression inside another one is copied with it.
    inside = {n for operand in found for n in ast.walk(operand) if n is not operand}
    return [(operand, line) for operand, line in found.items() if operand not in inside]


def _tests(stop, script, collectives) -> list[ast.expr]:
    """The test of a stop, and those on which its variables depend, up to what all ranks share."""

    def own(test):
        return _names(test, beyond=collectives)

    loop = _loop(stop, script)
    assigns = [
        (node, set().union(*map(_names, _targets(node))))
        for node in ast.walk(script.inside[stop])
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value
    ]
    shared = {name for node, names in assigns if _shares(node.value, collectives) for name in names}
    names, tests = own(stop.test) - shared, [stop.test]
    while True:  # until no test is added
        added = []
        for node, targets in assigns:
            if names & targets:
                added += _tests_around(node, loop, script)
                added += [part.test for part in ast.walk(node.value) if isinstance(part, ast.IfExp)]
        added = [test for test in dict.fromkeys(added) if test not in tests]
        if not added:
            return tests
        tests += added
        names = names.union(*map(own, added)) - shared


def _shares(value, collectives) -> bool:
    """Whether an expression comes from a collective: the same on all ranks, or made of it."""
    return any(_calls(node, collectives) for node in ast.walk(value))


def _calls(node, functions) -> bool:
    return isinstance(node, ast.Call) and last_name(node) in functions


def _sharing(script) -> set[str]:
    """The script's own functions that call a collective."""
    return {getattr(script.inside[call], "name", "") for call in script.named(*COLLECTIVES)}


def _targets(node):
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def stops(script: Script) -> Iterator[ast.If | ast.While]:
    """The `if`s that leave a loop, and `while` loops with a condition."""
    for node in script.nodes:
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            if not _yields(node):
                yield node
        elif isinstance(node, ast.If):
            loop = _loop(node, script)
            if loop is not None and _yields(loop):
                continue
            if loop or script.inside[node] is not script.tree:
                if any(_leaves(part, bool(loop)) for part in node.body + node.orelse):
                    yield node


def _leaves(node, in_loop) -> bool:
    if isinstance(node, ast.Break | ast.Return):
        return in_loop
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return in_loop and _exits_well(node.value)
    if isinstance(node, ast.Assign):
        return any(ast.unparse(target).endswith(".stop_training") for target in node.targets)
    return False


def _exits_well(call) -> bool:
    """Another exit code than 0 is no stop: mpirun ends all ranks then."""
    codes = [getattr(code, "value", None) for code in call.args[:1]]
    return last_name(call) in STOPS and not any(codes)


def _yields(loop) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(loop))


def _parts(test, collectives) -> list[ast.expr]:
    """The values that a test compares. Of a collective it is what comes out, not what goes in."""

    def parts(values):
        return [part for value in values for part in _parts(value, collectives)]

    if isinstance(test, ast.BoolOp):
        return parts(test.values)
    if isinstance(test, ast.UnaryOp):
        return parts([test.operand])
    if isinstance(test, ast.Compare):
        return parts([test.left, *test.comparators])
    if isinstance(test, ast.Constant):
        return []
    if isinstance(test, ast.Call) and not _calls(test, collectives):
        values = [value for value in test.args if not isinstance(value, ast.Starred)]
        return parts(values) or [test]  # stopper.step(loss): what goes in, and what comes out
    return [test]


def _each(iterable, line):
    if isinstance(iterable, ast.Call) and iterable.args and last_name(iterable) in WRAPPERS:
        iterable.args[0] = _each(iterable.args[0], line)
        return iterable
    return ast.copy_location(_call("each", ast.Constant(line), iterable), iterable)


def _call(name, *arguments, of=WATCH):
    return ast.Call(ast.Attribute(ast.Name(of, ast.Load()), name, ast.Load()), list(arguments), [])


def _names(node, beyond=()) -> set[str]:
    """The names in an expression, but for those in calls of the functions `beyond`."""
    if isinstance(node, ast.Name):
        return {node.id}
    if _calls(node, beyond):
        return set()
    return {name for part in ast.iter_child_nodes(node) for name in _names(part, beyond)}


def _loop(node, script):
    """The loop around a node, in the same function."""
    for above in script.ancestors(node):
        if isinstance(above, FUNCTIONS | ast.Lambda):
            return None
        if isinstance(above, ast.For | ast.While):
            return above
    return None


def _tests_around(node, loop, script) -> list[ast.expr]:
    tests = []
    for above in script.ancestors(node):
        if above is loop:
            break
        if isinstance(above, ast.If):
            tests.append(above.test)
    return tests
