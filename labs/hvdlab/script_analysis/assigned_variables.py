"""The variables of a script, and the expressions that are assigned to them."""

import ast
from collections.abc import Iterator

from hvdlab.script_analysis.ast_helpers import is_text, pairs, strings
from hvdlab.script_analysis.functions import FUNCTIONS, ScriptTree

SIMPLE = ast.Name | ast.Attribute
Variable = tuple[ast.AST, str]  # the function, or the module, and the name in it


def bound(script: ScriptTree) -> list[tuple[Variable, ast.expr]]:
    """Return the expressions of all assignments, arguments and results.

    The parts of an object are variables too:

        world = World(hvd.rank(), main=hvd.rank() == 0)         world.main
        world = {"main": hvd.rank() == 0}                       world["main"]

    Returns:
        (variable, expression).
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


def counters(script: ScriptTree) -> set[Variable]:
    """Return the variables of `for` loops, which count something, whatever else is assigned to them."""
    loops = [node.target for node in script.nodes if isinstance(node, ast.For)]
    names = [part for target in loops for part in ast.walk(target) if isinstance(part, ast.Name)]
    return {script.variable(name) for name in names}


def constants(script: ScriptTree) -> dict[Variable, list[ast.Constant]]:
    """Return the variables, and the results of functions, that are only ever constants.

    Returns:
        Variable -> its values.
    """
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


def tests_around(script: ScriptTree, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the tests of the `if` statements around a node, in its function."""
    for above in script.ancestors(node):
        if isinstance(above, FUNCTIONS):
            return
        if isinstance(above, ast.If):
            yield above.test


def of_item(script: ScriptTree, node: ast.Subscript) -> Variable | None:
    """Return the variable of an item such as `world["main"]`.

    Returns:
        The variable, or None unless a name is indexed with a string.
    """
    if isinstance(node.value, ast.Name):
        scope, name = script.variable(node.value)
        for text in strings(node):
            return scope, f"{name}[{text}]"
    return None


def fields(cls: ast.ClassDef) -> list[str]:
    """Return the fields of a dataclass or named tuple, which has no __init__ in the source."""
    annotated = (part.target for part in cls.body if isinstance(part, ast.AnnAssign))
    return [target.id for target in annotated if isinstance(target, ast.Name)]


def own_fields(cls: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes that a class sets on `self`, and its properties.

    Yields:
        (name, expression).
    """
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign):
            found = (pair for target in node.targets for pair in pairs(target, node.value))
            for target, value in found:
                if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                    yield target.attr, value
        elif isinstance(node, FUNCTIONS) and is_property(node):
            results = (part for part in ast.walk(node) if isinstance(part, ast.Return))
            yield from ((node.name, result.value) for result in results if result.value)


def is_property(function: FUNCTIONS) -> bool:
    """Return whether a method is a property."""
    names = (ast.unparse(decorator) for decorator in function.decorator_list)
    return any(name.endswith("property") for name in names)


def _is_constant(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant)


def _fields(script: ScriptTree, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, expression) of the attributes of an object that a call creates.

    They are its keyword arguments, the attributes that its class sets, and its positional arguments if
    the class lists its fields.
    """
    if not isinstance(value, ast.Call):
        return
    yield from ((word.arg, word.value) for word in value.keywords if word.arg)
    for cls in script.functions.defined.get((getattr(value.func, "id", ""), False), []):
        if isinstance(cls, ast.ClassDef):
            yield from zip(fields(cls), value.args, strict=False)
            yield from own_fields(cls)


def _items(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield (key, expression) of the items of a dictionary whose keys are strings."""
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if is_text(key):
                yield key.value, part
    elif isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict":
        yield from ((word.arg, word.value) for word in value.keywords if word.arg)
