"""The parts of a training script that only some ranks run, because they are under a test of the rank."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hvdlab.script_analysis.functions import FUNCTIONS, Name
from hvdlab.script_analysis.origins import RANK
from hvdlab.script_analysis.script import Script

# Names of variables or functions that distinguish one rank from others, whatever their values are.
ONE_RANK = re.compile(
    r"(\A|(?<!lora)(?<!low)_)(rank\d*|master|chief|(is|on)_(main|root|first)(?!_(batch|step|epoch|iter)))"
    r"(_|\Z)|main_process|global_zero"
)
Sites = Callable[[Iterable], bool]  # `all` or `any`
DEVICES = ("cpu", "cuda", "gpu", "GPU", "mps")


class Guard(NamedTuple):
    """A test of the rank, and the branch of it that a statement is in.

    Attributes:
        test: the test.
        condition: the test as text without a negation: `rank != 0` has the condition `rank == 0`.
        branch: the condition, after "not " where it must be false.
    """

    test: ast.expr
    condition: str
    branch: str

    @classmethod
    def behind(cls, test: ast.expr, negated: bool = False) -> "Guard":
        """Return the guard of a statement under a test.

        Args:
            negated: whether the statement is in the branch where the test is false. Default False.
        """
        condition = test
        while True:
            if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
                condition, negated = condition.operand, not negated
            elif isinstance(condition, ast.Compare) and [*map(type, condition.ops)] == [ast.NotEq]:
                condition = ast.Compare(condition.left, [ast.Eq()], condition.comparators)
                negated = not negated
            else:
                text = ast.unparse(condition)
                return cls(test, text, f"{'not ' * negated}{text}")


class Guards:
    """The tests of the rank in a script, and the statements and expressions under them.

    Args:
        by_name: whether a name such as `is_main` counts as a test of the rank if the script does not
            define it. Default True.
    """

    def __init__(self, script: Script, by_name: bool = True) -> None:
        self.script = script
        self.origin = RANK._replace(names=ONE_RANK) if by_name else RANK
        self.first: dict[ast.AST, Guard] = dict(self._guards())  # of nodes directly under a test
        self._called: dict[Callable, dict[Name, Guard]] = {}

    def asks(self, node: ast.AST) -> bool:
        """Return whether an expression depends on the rank."""
        return self.script.depends(node, self.origin)

    def splits(self, test: ast.expr) -> bool:
        """Return whether a test has different results on the ranks.

        A test that mpirun has set a rank at all has the same result on all ranks.
        """
        return self.asks(test) and not _of_presence(test)

    def test(self, node: ast.AST, sites: Sites = all) -> ast.expr | None:
        """Return the test of the rank under which a node runs, or None.

        Args:
            sites: how many uses of the function around the node must be under such a test. `all` (default):
                each call, and each place where the function is passed on. `any`: one call of a function
                that is no method (methods are known by their names only), unless another call is in the
                branch of the other ranks.
        """
        guard = self._guard(node, self._of_functions(sites))
        return guard and guard.test

    def uses(self, call: ast.Call) -> list[ast.Name] | None:
        """Return where a script reads the variable with the result of a call; None without a variable."""
        assign = self.script.parents[call]
        if not isinstance(assign, ast.Assign) or not isinstance(assign.targets[0], ast.Name):
            return None
        variable = self.script.variable(assign.targets[0])
        return [
            node
            for node in self.script.nodes
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and self.script.variable(node) == variable
        ]

    def test_of_uses(self, call: ast.Call) -> ast.expr | None:
        """Return the test of the rank under which a script uses what a call returns, or None."""
        tests = [self.test(node) for node in self.uses(call) or ()]
        return tests[0] if tests and all(tests) else None

    def everywhere(self, calls: Sequence[ast.AST]) -> set[ast.AST]:
        """Return the calls that a function makes in several branches, so that all ranks may make them:

        if hvd.rank() == 0: broadcast(0)          if hvd.local_rank() != 0: barrier()
        else: broadcast(None)                     if hvd.local_rank() == 0: barrier()
        """
        branches: dict[tuple, set[str]] = {}
        names = self.script.names
        places = {call: (self.script.inside[call], names.get(call)) for call in calls}
        for call, place in places.items():
            if guard := self._guard(call, {}):
                branches.setdefault(place, set()).add(guard.branch)
        return {call for call, place in places.items() if len(branches.get(place, ())) > 1}

    def _guard(self, node: ast.AST, of_functions: dict[Name, Guard]) -> Guard | None:
        """Return the innermost guard of a node."""
        while node is not self.script.tree:
            if found := self.first.get(node):
                return found
            if isinstance(node, FUNCTIONS | ast.ClassDef):
                if found := of_functions.get(self.script.functions.name(node)):
                    return found
            node = self.script.parents[node]
        return None

    def _of_functions(self, sites: Sites) -> dict[Name, Guard]:
        """Return the script's own functions that only some ranks call, each with the guard of a call."""
        if sites not in self._called:
            functions, found = self.script.functions, self._called.setdefault(sites, {})
            uses = {name: [*calls] for name, calls in functions.calls.items()}
            if sites is all:
                for name, passed in functions.passed_on.items():
                    uses.setdefault(name, []).extend(passed)
            else:
                uses = {name: calls for name, calls in uses.items() if not name[1]}
            for _ in range(3):  # a guarded function calls a function, which calls a function
                for name, places in uses.items():
                    guards = [] if name in found else [self._guard(use, found) for use in places]
                    if guards and sites(guards) and not (sites is any and _both_ways(guards)):
                        found[name] = next(filter(None, guards))
        return self._called[sites]

    def _guards(self) -> Iterator[tuple[ast.AST, Guard]]:
        """Yield (node, guard) of the nodes directly under a test of the rank."""
        for node in self.script.nodes:
            if isinstance(node, ast.If | ast.IfExp | ast.While) and self.splits(node.test):
                for branch in (node.body, node.orelse):
                    parts = branch if isinstance(branch, list) else [branch]
                    guard = Guard.behind(node.test, branch is node.orelse)
                    yield from ((part, guard) for part in parts)
            elif isinstance(node, ast.Match) and self.asks(node.subject):
                yield from _of_cases(node)
            elif isinstance(node, ast.BoolOp):
                tests = [value for value in node.values if self.asks(value)]
                if tests:
                    behind = node.values[node.values.index(tests[0]) + 1 :]
                    yield from ((value, Guard.behind(tests[0])) for value in behind)
            elif isinstance(node, FUNCTIONS):
                for mark in node.decorator_list:
                    if self.asks(mark) or self._decides(mark):
                        yield node, Guard.behind(mark)
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    yield from self._after_leaving(block)

    def _decides(self, mark: ast.expr) -> bool:
        """Return whether a decorator is a function of the script that tests the rank."""
        own = self.script.functions.defined.get((getattr(mark, "id", ""), False), [])
        tests = (n.test for f in own for n in ast.walk(f) if isinstance(n, ast.If | ast.IfExp))
        return any(map(self.asks, tests))

    def _after_leaving(self, block: list[ast.stmt]) -> Iterator[tuple[ast.stmt, Guard]]:
        """Yield the statements below `if hvd.rank() != 0: return`, with their guard."""
        guard = None
        for statement in block:
            if guard:
                yield statement, guard
            elif isinstance(statement, ast.If) and _leaves(statement.body[-1]):
                # `and` adds another condition, which may be false on all ranks
                more = isinstance(getattr(statement.test, "op", None), ast.And)
                if not more and self.splits(statement.test):
                    guard = Guard.behind(statement.test, negated=True)


def _of_cases(match: ast.Match) -> Iterator[tuple[ast.stmt, Guard]]:
    """Yield (statement, guard) of the cases of a `match` of the rank."""
    for case in match.cases:
        guard = Guard(match.subject, ast.unparse(match.subject), ast.unparse(case.pattern))
        yield from ((part, guard) for part in case.body)


def _of_presence(test: ast.expr) -> bool:
    """Return whether a test only asks whether there is a rank, or asks for a device.

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
    # Variables of the environment are texts, and "0" is true as well.
    environment = ast.unparse(test.func).endswith(("environ.get", "getenv"))
    return environment or any(map(_is_device, test.args))


def _is_device(node: ast.AST) -> bool:
    """Return whether a node names a kind of device, which is the same on all ranks."""
    return isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in DEVICES


def _both_ways(guards: list[Guard | None]) -> bool:
    """Return whether two of the guards are different branches of one condition."""
    branches_of: dict[str, set[str]] = {}
    for guard in filter(None, guards):
        branches_of.setdefault(guard.condition, set()).add(guard.branch)
    return any(len(branches) > 1 for branches in branches_of.values())


def _leaves(statement: ast.stmt) -> bool:
    """Return whether a statement ends the function, the round of the loop, the loop, or the process."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    if isinstance(statement, ast.Raise) and statement.exc:
        return "SystemExit" in ast.unparse(statement.exc)
    return isinstance(statement, ast.Return | ast.Continue | ast.Break)
