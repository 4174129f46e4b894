"""What the names of a script are bound to, read from its source; names stand for one thing each."""

import ast
from collections.abc import Iterator


def bindings(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name as it is written, value) of all assignments, and of the parameters of its functions."""
    functions = dict(_functions(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _unpacked(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
            yield ast.unparse(node.target), node.value
        elif isinstance(node, ast.Call) and (names := functions.get(called(node))):
            yield from zip(names, node.args, strict=False)
            yield from ((k.arg, k.value) for k in node.keywords if k.arg)


def called(call: ast.Call) -> str:
    """The last part of the name of what is called: "size" of `hvd.size()`."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _functions(tree) -> Iterator[tuple[str, list[str]]]:
    """(name by which it is called, its parameters) of each function; a class by its `__init__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in node.args.posonlyargs + node.args.args]
            yield node.name, names[names[:1] == ["self"] :]
        elif isinstance(node, ast.ClassDef):
            inside = dict(_functions(ast.Module(node.body, [])))
            yield node.name, inside.get("__init__", [])


def _unpacked(target, value) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for part, its in zip(target.elts, value.elts, strict=False):
            yield from _unpacked(part, its)
    else:
        yield ast.unparse(target), value
