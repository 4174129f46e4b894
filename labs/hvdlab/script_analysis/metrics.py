"""Metrics: which names are theirs, and which of them a script does not combine over the ranks."""

import ast
import re
from collections.abc import Iterable, Iterator

from hvdlab.script_analysis.ast_helpers import identifier, key, last_name, strings
from hvdlab.script_analysis.origins import COMMAND_LINES
from hvdlab.script_analysis.script import Script

SHOWN = {"print", "info", "log", "add_scalar", "log_metrics", "write", "append", "debug", "report"}
VARIABLES = ast.Name | ast.Attribute
LIMIT = re.compile(
    r"_(batches|steps|epochs|images|samples|every|interval|freq|frequency|size|count)\Z"
)
METRIC = re.compile(r"(\A|_)(acc|accuracy|loss|metric|best|patience|score)(_|\d|\Z)")


def names_metric(node: ast.AST) -> bool:
    """Return whether the name of a node is that of a metric.

    `args.val_batches` is no metric but a limit, which is the same on all ranks.
    """
    name = identifier(node)
    if isinstance(node, ast.Subscript):  # logs["accuracy"]
        name = "".join(strings(node)[:1])
    if getattr(getattr(node, "value", None), "id", None) in COMMAND_LINES or LIMIT.search(name):
        return False
    return bool(METRIC.search(name))


def not_combined(script: Script, collectives: set[str]) -> Iterator[tuple[int, str, int]]:
    """Yield the metrics of a loop that no collective gets, although one gets another metric of the same loop.

    Only metrics count that the script prints, logs or returns below the loop.

    Yields:
        Line of the loop, the metric, and the line that prints, logs or returns it.
    """
    for loop in script.nodes:
        if isinstance(loop, ast.For):
            sums = _sums(loop, script.inside[loop], collectives)
            calls = [node for node in _below(loop, script) if isinstance(node, ast.Call)]
            sent = _variables(call for call in calls if last_name(call) in collectives)
            shown = [node for node in _shown(loop, script) if not script.uses_rank(node)]
            if any(names & sent for names in sums.values()):
                for name, names in sums.items():
                    used = [node.lineno for node in shown if names & _variables([node])]
                    if used and not names & sent:
                        yield loop.lineno, name, min(used)


def results(script: Script) -> dict[int, int]:
    """Return where a script first prints, logs or returns what a loop has computed.

    Returns:
        Line of the loop -> the line below it.
    """
    found = {}
    for loop in script.nodes:
        if isinstance(loop, ast.For):
            made = _made_of(_changed(loop), script.inside[loop], set())
            used = [n.lineno for n in _shown(loop, script) if made & _variables([n])]
            found |= {loop.lineno: min(used)} if used else {}
    return found


def _below(loop: ast.For, script: Script) -> list[ast.AST]:
    """Return the nodes below a loop in its function."""
    around = script.inside[loop]
    own = (node for node in ast.walk(around) if script.inside.get(node) is around)
    return [node for node in own if getattr(node, "lineno", 0) > loop.end_lineno]


def _shown(loop: ast.For, script: Script) -> list[ast.Call | ast.Return]:
    """Return what prints, logs or returns something below a loop in its function."""
    return [
        node
        for node in _below(loop, script)
        if isinstance(node, ast.Return) or (isinstance(node, ast.Call) and last_name(node) in SHOWN)
    ]


def _changed(loop: ast.For) -> set[str]:
    """Return the variables to which a loop assigns, adds or appends."""
    targets = []
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AugAssign):
            targets.append(node.target)
        elif isinstance(node, ast.Call) and last_name(node) in ("append", "extend", "update"):
            targets += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return {key(target) for target in targets if isinstance(target, VARIABLES)}


def _sums(loop: ast.For, function: ast.AST, collectives: set[str]) -> dict[str, set[str]]:
    """Return the variables to which a loop adds own values of a rank, each with those made of it."""
    shared = _made_of(set(), function, collectives)
    found = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            # A number counts rounds, and the time is that of one rank.
            metric = isinstance(node.target, VARIABLES) and "time" not in key(node.target)
            own = not (_calls(node.value, collectives) or _variables([node.value]) & shared)
            if metric and own and not isinstance(node.value, ast.Constant):
                name = key(node.target)
                found[name] = _made_of({name}, function, set())
    return found


def _made_of(names: set, function: ast.AST, collectives: set[str]) -> set:
    """Return some variables of a function, and what it makes of them or of results of collectives."""
    assigns = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    while True:  # until no variable is added
        more = {
            key(target)
            for node in assigns
            if names & _variables([node.value]) or _calls(node.value, collectives)
            for target in node.targets
            if isinstance(target, VARIABLES)
        }
        if more <= names:
            return names
        names = names | more


def _calls(node: ast.AST, functions: set[str]) -> bool:
    """Return whether an expression contains a call of some functions."""
    return any(isinstance(n, ast.Call) and last_name(n) in functions for n in ast.walk(node))


def _variables(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of the variables in some nodes."""
    parts = (part for node in nodes for part in ast.walk(node))
    return {key(part) for part in parts if isinstance(part, VARIABLES)}
