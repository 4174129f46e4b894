"""Which parts of a training script only some ranks run: those under a test of the rank."""

import ast
import re

from hvdlab.own_functions import FUNCTIONS
from hvdlab.script import RANK, Script

# A variable or function by whose name one rank is told from others, wherever it comes from.
ONE_RANK = re.compile(
    r"(\A|_)(rank\d*|master|chief|(is|on)_(main|root|first))(_|\Z)|main_process|global_zero"
)


class Guards:
    """The tests of the rank in a script, and what stands behind them.

    Args:
        script: as it was read.
        by_name: whether a name such as `is_main` is taken for a test of the rank, where the script
            does not say what it is.
    """

    def __init__(self, script: Script, by_name: bool = True):
        self.script = script
        self.origin = RANK._replace(names=ONE_RANK) if by_name else RANK
        self.first = dict(self._tests())  # what stands right behind a test -> the test
        self._called: dict = {}

    def asks(self, node: ast.AST) -> bool:
        """Whether an expression depends on the rank."""
        return self.script.depends(node, self.origin)

    def test(self, node: ast.AST, sites=all) -> ast.expr | None:
        """The test of the rank under which a node runs, or None.

        Args:
            node: of the script's tree.
            sites: `all` or `any`: how many calls of the function around it must stand under one.
        """
        return self._test(node, self._of_functions(sites))

    def _test(self, node, of_functions) -> ast.expr | None:
        while node is not self.script.tree:
            if found := self.first.get(node):
                return found
            if isinstance(node, FUNCTIONS | ast.ClassDef):
                if found := of_functions.get(self.script.functions.name(node)):
                    return found
            node = self.script.parents[node]
        return None

    def _of_functions(self, sites) -> dict:
        """The script's own functions that only some ranks call -> a test before a call."""
        if sites not in self._called:
            found = self._called[sites] = {}
            for _ in range(3):  # is called by what is called by what stands behind a test
                for key, calls in self.script.functions.calls.items():
                    tests = [] if key in found else [self._test(call, found) for call in calls]
                    if tests and sites(tests):
                        found[key] = next(filter(None, tests))
        return self._called[sites]

    def _tests(self):
        for node in self.script.nodes:
            if isinstance(node, ast.If | ast.IfExp | ast.While) and self.asks(node.test):
                for branch in (node.body, getattr(node, "orelse", [])):
                    for part in branch if isinstance(branch, list) else [branch]:
                        yield part, node.test
            elif isinstance(node, ast.BoolOp) and self.asks(node.values[0]):
                yield from ((value, node.values[0]) for value in node.values[1:])
            elif isinstance(node, FUNCTIONS):  # @rank_zero_only
                yield from ((node, mark) for mark in node.decorator_list if self.asks(mark))
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):  # if hvd.rank() != 0: return
                    yield from self._behind(block)

    def _behind(self, block):
        test = None
        for statement in block:
            if test:
                yield statement, test
            elif isinstance(statement, ast.If) and self.asks(statement.test):
                leaves = isinstance(statement.body[-1], ast.Return | ast.Continue)
                test = statement.test if leaves else None
