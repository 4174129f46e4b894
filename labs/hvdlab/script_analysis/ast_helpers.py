"""Small questions about the nodes of a syntax tree."""

import ast
from collections.abc import Iterator


def pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each target with the value that it gets, also in `rank, size = hvd.rank(), hvd.size()`.

    Yields:
        (target, value); a single pair unless both sides are tuples or lists.
    """
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from pairs(one, other)
    else:
        yield target, value


def key(node: ast.Name | ast.Attribute) -> str:
    """Return the text of a variable or of an attribute of a variable: "rank", "self.rank".

    Returns:
        Its text; "?.rank" for an attribute of something else.
    """
    if isinstance(node, ast.Name):
        return node.id
    owner = node.value.id if isinstance(node.value, ast.Name) else "?"
    return f"{owner}.{node.attr}"


def identifier(node: ast.AST | None) -> str:
    """Return the last part of the name of a node: "rank" of `rank` and of `self.rank`.

    Args:
        node: any node, or None.

    Returns:
        The name of a variable or of an attribute; "" for anything else.
    """
    return getattr(node, "id", None) or getattr(node, "attr", "")


def identifiers(node: ast.AST) -> set[str]:
    """Return the `identifier` of every node in an expression or statement; "" is one of them.

    Returns:
        The names of variables and attributes.
    """
    return {identifier(part) for part in ast.walk(node)}


def last_name(call: ast.Call) -> str:
    """Return the last part of the name of the called function, as it is written: "size" of `hvd.size()`.

    Returns:
        The name; "" where the function has no name, as in `make()()`.
    """
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument of a call.

    Returns:
        The expression, or None if the call has no such argument.
    """
    return next((word.value for word in call.keywords if word.arg == name), None)


def is_text(node: ast.AST | None) -> bool:
    """Return whether a node is a string literal.

    Args:
        node: any node, or None.
    """
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def strings(node: ast.Call | ast.Subscript) -> list[str]:
    """Return the strings among the positional arguments of a call, or the string index of a subscript.

    Returns:
        The values of the string literals.
    """
    parts = [node.slice] if isinstance(node, ast.Subscript) else node.args
    return [part.value for part in parts if is_text(part)]
