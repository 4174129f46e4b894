"""Small questions about nodes of a syntax tree."""

import ast


def pairs(target: ast.AST, value: ast.AST):
    """What is assigned to what, also in `rank, size = hvd.rank(), hvd.size()`."""
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from pairs(one, other)
    else:
        yield target, value


def key(node: ast.AST) -> str:
    """A variable or an attribute of one, as text: "rank", "self.rank"."""
    if isinstance(node, ast.Name):
        return node.id
    owner = node.value.id if isinstance(node.value, ast.Name) else "?"
    return f"{owner}.{node.attr}"


def last_name(call: ast.Call) -> str:
    """The last part of the name of what is called, as it is written: "size" of `hvd.size()`."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def keyword(call: ast.Call, name: str) -> ast.AST | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def strings(node: ast.AST):
    """The strings among the direct arguments or the index of a call or subscript."""
    parts = [node.slice] if isinstance(node, ast.Subscript) else node.args
    return [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
