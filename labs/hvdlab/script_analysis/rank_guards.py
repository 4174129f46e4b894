"""Which parts of a training script only some ranks run: those under a test of the rank."""

import ast
import re
from typing import NamedTuple

from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.script import RANK, Script

# A variable or function by whose name one rank is told from others, wherever it comes from.
ONE_RANK = re.compile(
    r"(\A|(?<!lora)(?<!low)_)(rank\d*|master|chief|(is|on)_(main|root|first)(?!_(batch|step|epoch|iter)))"
    r"(_|\Z)|main_process|global_zero"
)


DEVICES = ("cpu", "cuda", "gpu", "GPU", "mps")


class Guard(NamedTuple):
    """What a line stands behind."""

    test: ast.expr
    asked: str  # by the test, as text: `rank != 0` asks what `rank == 0` does
    branch: str  # that and its answer

    @classmethod
    def behind(cls, test: ast.expr, negated: bool = False) -> "Guard":
        asked = test
        while True:
            if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
                asked, negated = asked.operand, not negated
            elif isinstance(asked, ast.Compare) and [*map(type, asked.ops)] == [ast.NotEq]:
                asked = ast.Compare(asked.left, [ast.Eq()], asked.comparators)
                negated = not negated
            else:
                text = ast.unparse(asked)
                return cls(test, text, f"{'not ' * negated}{text}")


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
        self.first: dict[ast.AST, Guard] = dict(self._guards())  # for what stands right behind one
        self._called: dict = {}

    def asks(self, node: ast.AST) -> bool:
        """Whether an expression depends on the rank."""
        return self.script.depends(node, self.origin)

    def splits(self, test: ast.expr) -> bool:
        """Whether a test parts the ranks. That there is a rank at all, as mpirun gives one, does not."""
        return self.asks(test) and not _of_presence(test)

    def test(self, node: ast.AST, sites=all) -> ast.expr | None:
        """The test of the rank under which a node runs, or None.

        Args:
            node: of the script's tree.
            sites: how many uses of the function around it must stand under one. `all`: each call, and
                each place where it is passed on. `any`: a single call, of what is no method (for
                methods are known by their names only), and has no second call where the other ranks go.
        """
        guard = self._guard(node, self._of_functions(sites))
        return guard and guard.test

    def everywhere(self, calls: list[ast.Call]) -> set[ast.Call]:
        """Those of some calls that stand behind different tests in their function, such as

        if hvd.rank() == 0: broadcast(0)          if hvd.local_rank() != 0: barrier()
        else: broadcast(None)                     if hvd.local_rank() == 0: barrier()
        """
        branches: dict[tuple, set[str]] = {}
        places = {call: (self.script.inside[call], self.script.names[call]) for call in calls}
        for call, place in places.items():
            if guard := self._guard(call, {}):
                branches.setdefault(place, set()).add(guard.branch)
        return {call for call, place in places.items() if len(branches.get(place, ())) > 1}

    def _guard(self, node, of_functions) -> Guard | None:
        while node is not self.script.tree:
            if found := self.first.get(node):
                return found
            if isinstance(node, FUNCTIONS | ast.ClassDef):
                if found := of_functions.get(self.script.functions.name(node)):
                    return found
            node = self.script.parents[node]
        return None

    def _of_functions(self, sites) -> dict:
        """The script's own functions that only some ranks call -> what stands before a call."""
        if sites not in self._called:
            functions, found = self.script.functions, self._called.setdefault(sites, {})
            uses = {name: [*calls] for name, calls in functions.calls.items()}
            if sites is all:
                for name, passed in functions.passed_on.items():
                    uses.setdefault(name, []).extend(passed)
            else:
                uses = {name: calls for name, calls in uses.items() if not name[1]}
            for _ in range(3):  # is called by what is called by what stands behind a test
                for name, places in uses.items():
                    guards = [] if name in found else [self._guard(use, found) for use in places]
                    if guards and sites(guards) and not (sites is any and _both_ways(guards)):
                        found[name] = next(filter(None, guards))
        return self._called[sites]

    def _guards(self):
        for node in self.script.nodes:
            if isinstance(node, ast.If | ast.IfExp | ast.While) and self.splits(node.test):
                for branch in (node.body, node.orelse):
                    parts = branch if isinstance(branch, list) else [branch]
                    guard = Guard.behind(node.test, branch is node.orelse)
                    yield from ((part, guard) for part in parts)
            elif isinstance(node, ast.Match) and self.asks(node.subject):
                for case in node.cases:
                    subject = ast.unparse(node.subject)
                    guard = Guard(node.subject, subject, ast.unparse(case.pattern))
                    yield from ((part, guard) for part in case.body)
            elif isinstance(node, ast.BoolOp):
                asked = [value for value in node.values if self.asks(value)]
                if asked:
                    behind = node.values[node.values.index(asked[0]) + 1 :]
                    yield from ((value, Guard.behind(asked[0])) for value in behind)
            elif isinstance(node, FUNCTIONS):
                for mark in node.decorator_list:
                    if self.asks(mark) or self._decides(mark):
                        yield node, Guard.behind(mark)
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    yield from self._after_leaving(block)

    def _decides(self, mark) -> bool:
        """Whether a decorator is a function of the script's own that asks for the rank."""
        own = self.script.functions.defined.get((getattr(mark, "id", ""), False), [])
        tests = (n.test for f in own for n in ast.walk(f) if isinstance(n, ast.If | ast.IfExp))
        return any(map(self.asks, tests))

    def _after_leaving(self, block):
        """What stands below `if hvd.rank() != 0: return`."""
        guard = None
        for statement in block:
            if guard:
                yield statement, guard
            elif isinstance(statement, ast.If) and _leaves(statement.body[-1]):
                # `and` adds something else, which may hold nowhere
                more = isinstance(getattr(statement.test, "op", None), ast.And)
                if not more and self.splits(statement.test):
                    guard = Guard.behind(statement.test, negated=True)


def _of_presence(test) -> bool:
    """Whether a test asks only if there is a rank, or for a device.

    `environ.get("RANK") is None`, `"RANK" in environ`, `device != "cpu"`
    """
    if isinstance(test, ast.UnaryOp):
        return _of_presence(test.operand)
    if isinstance(test, ast.BoolOp):
        return all(map(_of_presence, test.values))
    if isinstance(test, ast.Compare):
        right = test.comparators[0]
        if any(_is_device(side) for side in (test.left, right)):
            return True
        if isinstance(test.ops[0], ast.Is | ast.IsNot):
            return isinstance(right, ast.Constant) and right.value is None
        named = isinstance(test.left, ast.Constant) and isinstance(test.left.value, str)
        return isinstance(test.ops[0], ast.In | ast.NotIn) and named
    if not isinstance(test, ast.Call):
        return False
    # What the environment has is text, and "0" is true as well.
    asked = ast.unparse(test.func).endswith(("environ.get", "getenv"))
    return asked or any(map(_is_device, test.args))


def _is_device(node) -> bool:
    """Whether a device is asked for: f"cuda:{hvd.local_rank()}" is on one on every rank."""
    return isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in DEVICES


def _both_ways(guards: list[Guard | None]) -> bool:
    """Whether some of them are the two answers to one test."""
    answers: dict[str, set[str]] = {}
    for guard in filter(None, guards):
        answers.setdefault(guard.asked, set()).add(guard.branch)
    return any(len(branches) > 1 for branches in answers.values())


def _leaves(statement) -> bool:
    """Whether a statement ends the function, the round of the loop, the loop, or the process."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    if isinstance(statement, ast.Raise) and statement.exc:
        return "SystemExit" in ast.unparse(statement.exc)
    return isinstance(statement, ast.Return | ast.Continue | ast.Break)
