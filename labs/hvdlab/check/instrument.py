"""Insert calls of the watch into a script's loops and into its decisions to stop, in its syntax tree.

    for batch in loader:                  for batch in __hvdlab__.each(12, loader):
        ...                                   ...
        if best - loss < 0.01:      ->        if __hvdlab__.decide(14, "best", best) - ... < 0.01:
            break                                 break
    while step < 100:                     with __hvdlab__.rounds(16) as __loop16__:
        ...                                   while __loop16__.again(step < 100):
    own = order[hvd.rank()::hvd.size()]   own = __hvdlab__.part(20, order, hvd.rank(), None, hvd.size())
    own = parts[hvd.rank()]               own = __hvdlab__.whole(21, parts)[hvd.rank()]
    comm.Barrier()                        __hvdlab__.collective(22, "Barrier", comm.Barrier)()

See `decisions` for what a decision is. A loop that yields is left unchanged, because the loop that reads its
items is the one that trains.  What is sliced by the rank is written down, because each rank
must slice the same data. Line numbers stay the same.
"""

import ast

from hvdlab.script_analysis.ast_helpers import last_name
from hvdlab.script_analysis.collectives import of_mpi4py
from hvdlab.script_analysis.decisions import operands, yields
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

WATCH = "__hvdlab__"
WRAPPERS = {"enumerate", "tqdm"}  # around the iterable that has the length


def instrument(source: str | bytes, path: str, block: int = 0) -> ast.Module:
    """Return the syntax tree of a script, or of a module of it, with the calls of the watch.

    Args:
        block: what is added to its lines, see `places`. Default 0: those of the script.

    Raises:
        SyntaxError: the source is not valid Python.
    """
    tree = ast.parse(source, path)
    script = Script(tree)
    instrumented = _Instrument(dict(operands(tree)), shards(script), of_mpi4py(script), block)
    return ast.fix_missing_locations(instrumented.visit(tree))


def with_decisions(source: bytes, block: int = 0) -> list[str]:
    """Return the lines of a script, with only the decisions in calls of the watch.

    For AutoGraph, which translates the source of a function, and turns its loops into those of a graph.
    """
    lines = source.splitlines(keepends=True)
    found = operands(ast.parse(source))
    for node, line in sorted(found, key=lambda of: (of[0].lineno, of[0].col_offset), reverse=True):
        call = ast.unparse(
            _call("decide", ast.Constant(block + line), ast.Constant(ast.unparse(node)))
        )
        last, first = node.end_lineno - 1, node.lineno - 1
        lines[last] = lines[last][: node.end_col_offset] + b")" + lines[last][node.end_col_offset :]
        before = lines[first][: node.col_offset]
        lines[first] = before + call[:-1].encode() + b", " + lines[first][node.col_offset :]
    return [line.decode(errors="replace") for line in lines]


class _Instrument(ast.NodeTransformer):
    """Wraps loops, operands of decisions, what a rank takes its shard of, and collectives.

    Args:
        decisions: operand -> line of the decision.
        collectives: the calls of mpi4py, which has no Python functions that could be wrapped.
        block: what is added to lines.
    """

    def __init__(
        self,
        decisions: dict[ast.expr, int],
        shards: set[ast.Subscript],
        collectives: set[ast.Call],
        block: int,
    ) -> None:
        self.block = block
        self.shards, self.collectives = shards, collectives
        self.decisions = {  # with the text before any call of the watch is inserted
            node: (ast.Constant(block + line), ast.Constant(ast.unparse(node)))
            for node, line in decisions.items()
        }

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, or the node that replaces it."""
        new = self.generic_visit(node)
        if node in self.shards:
            new = _noted(node, self._line(node))
        if node in self.collectives:
            name = ast.Constant(node.func.attr)
            call = _call("collective", self._line(node), name, node.func)
            node.func = ast.copy_location(call, node.func)
        if node in self.decisions:
            new = _call("decide", *self.decisions[node], node)
        elif isinstance(node, ast.For) and not yields(node):
            node.iter = _each(node.iter, self._line(node))
        elif isinstance(node, ast.While) and not yields(node):
            name, rounds = f"__loop{node.lineno}__", _call("rounds", self._line(node))
            node.test = _call("again", node.test, owner=name)
            new = ast.With([ast.withitem(rounds, ast.Name(name, ast.Store()))], [node])
        return ast.copy_location(new, node)

    def _line(self, node: ast.AST) -> ast.Constant:
        return ast.Constant(self.block + node.lineno)


def _noted(part: ast.Subscript, line: ast.Constant) -> ast.expr:
    """Return the expression of a part, in a form that writes down what it is a part of."""
    if isinstance(part.slice, ast.Slice):
        bounds = (part.slice.lower, part.slice.upper, part.slice.step)
        return _call("part", line, part.value, *(each or ast.Constant(None) for each in bounds))
    part.value = ast.copy_location(_call("whole", line, part.value), part.value)
    return part


def shards(script: Script) -> set[ast.Subscript]:
    """Return expressions that take a part of something by the rank: `order[rank::size]`, `parts[rank]`."""
    guards = Guards(script)
    found = set()
    for node in script.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            first = node.slice.lower if isinstance(node.slice, ast.Slice) else node.slice
            if first is not None and guards.asks(first):
                found.add(node)
    return found


def _each(iterable: ast.expr, line: ast.Constant) -> ast.expr:
    """Return the iterable of a loop inside a call of `each`, which is put inside WRAPPERS."""
    if isinstance(iterable, ast.Call) and iterable.args and last_name(iterable) in WRAPPERS:
        iterable.args[0] = _each(iterable.args[0], line)
        return iterable
    return ast.copy_location(_call("each", line, iterable), iterable)


def _call(name: str, *arguments: ast.expr, owner: str = WATCH) -> ast.Call:
    """Return the call of a method of the watch, or of another object."""
    method = ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load())
    return ast.Call(method, list(arguments), [])
