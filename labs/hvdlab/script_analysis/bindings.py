"""What the variables of a script stand for: everything that is assigned to them."""

import ast
from collections.abc import Iterator

from hvdlab.script_analysis.ast_helpers import pairs, strings
from hvdlab.script_analysis.functions import FUNCTIONS

SIMPLE = ast.Name | ast.Attribute
Variable = tuple[ast.AST, str]  # the function, or the module, and the name in it


def bound(script) -> list[tuple[Variable, ast.expr]]:
    """(variable, expression) of assignments, arguments and results, those of its parts too:

    world = World(hvd.rank(), main=hvd.rank() == 0)         world.main
    world = {"main": hvd.rank() == 0}                       world["main"]

    Args:
        script: a `hvdlab.script_analysis.script.Script`.
    """
    found = []
    for target, value in script.bindings():
        if isinstance(target, SIMPLE):
            scope, name = script.variable(target)
            found.append(((scope, name), value))
            if isinstance(target, ast.Name):
                found += [
                    ((script.tree, f"{name}.{of}"), part) for of, part in _fields(script, value)
                ]
                found += [((scope, f"{name}[{of}]"), part) for of, part in _items(value)]
        elif isinstance(target, ast.Subscript) and (named := of_item(script, target)):
            found.append((named, value))
    for node in script.nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, SIMPLE):
            found.append((script.variable(node.target), node.value))
    found += [((script.tree, name), value) for name, value in script.functions.results()]
    found += [((function, name), value) for function, name, value in script.functions.arguments()]
    return found


def counters(script) -> set[Variable]:
    """The variables of `for` loops: what else they may have been, they count something there."""
    loops = [node.target for node in script.nodes if isinstance(node, ast.For)]
    names = [part for target in loops for part in ast.walk(target) if isinstance(part, ast.Name)]
    return {script.variable(name) for name in names}


def constants(script) -> dict[Variable, list[ast.Constant]]:
    """Of each variable, and each function's result, that is never anything else: its values."""
    given = {t: v for t, v in script.bindings() if isinstance(t, SIMPLE) and _is_constant(v)}
    results = [((script.tree, name), value) for name, value in script.functions.results()]
    stored = (n for n in script.nodes if isinstance(n, SIMPLE) and isinstance(n.ctx, ast.Store))
    other = {script.variable(node) for node in stored if node not in given}
    other |= {(script.inside[node], node.arg) for node in script.nodes if isinstance(node, ast.arg)}
    other |= {variable for variable, value in results if not _is_constant(value)}
    found: dict[Variable, list] = {}
    for variable, value in [*((script.variable(t), v) for t, v in given.items()), *results]:
        if variable not in other:
            found.setdefault(variable, []).append(value)
    return found


def tests_around(script, node: ast.AST) -> Iterator[ast.expr]:
    """The tests in its function under which a node stands."""
    for above in script.ancestors(node):
        if isinstance(above, FUNCTIONS):
            return
        if isinstance(above, ast.If):
            yield above.test


def of_item(script, node: ast.Subscript) -> Variable | None:
    """What `world["main"]` stands for: a variable as well."""
    if isinstance(node.value, ast.Name):
        scope, name = script.variable(node.value)
        for text in strings(node):
            return scope, f"{name}[{text}]"
    return None


def fields(made: ast.ClassDef) -> list[str]:
    """The fields of a dataclass or named tuple, which has no __init__ to read."""
    annotated = (part.target for part in made.body if isinstance(part, ast.AnnAssign))
    return [target.id for target in annotated if isinstance(target, ast.Name)]


def own_fields(made: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """(name, expression) of what a class sets of itself, and of its properties."""
    for node in ast.walk(made):
        if isinstance(node, ast.Assign):
            found = (pair for target in node.targets for pair in pairs(target, node.value))
            for target, value in found:
                if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                    yield target.attr, value
        elif isinstance(node, FUNCTIONS) and is_property(node):
            results = (part for part in ast.walk(node) if isinstance(part, ast.Return))
            yield from ((node.name, result.value) for result in results if result.value)


def is_property(function: ast.AST) -> bool:
    names = (ast.unparse(decorator) for decorator in function.decorator_list)
    return any(name.endswith("property") for name in names)


def _is_constant(value) -> bool:
    return isinstance(value, ast.Constant)


def _fields(script, value) -> Iterator[tuple[str, ast.expr]]:
    """What an object gets by name, by position where its class only lists its fields, or from its class."""
    if not isinstance(value, ast.Call):
        return
    yield from ((word.arg, word.value) for word in value.keywords if word.arg)
    for made in script.functions.defined.get((getattr(value.func, "id", ""), False), []):
        if isinstance(made, ast.ClassDef):
            yield from zip(fields(made), value.args, strict=False)
            yield from own_fields(made)


def _items(value) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, part
    elif isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict":
        yield from ((word.arg, word.value) for word in value.keywords if word.arg)
