"""The functions and classes that a script defines: their calls, their arguments, and their results."""

import ast
from collections.abc import Iterator
from typing import Protocol

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Name = tuple[str, bool]  # of a function or a class, and whether it is a method


class ScriptTree(Protocol):
    """The attributes of `hvdlab.script_analysis.script.Script` that `functions` and `bindings` use.

    Attributes:
        tree: the module.
        nodes: all nodes, outer nodes first.
        calls: all calls, in the order of their lines.
        parents: node -> the node that contains it.
        inside: node -> the function that contains it, or the module.
        full: local name -> full name, of imports.
        functions: the functions and classes that the script defines.
    """

    tree: ast.Module
    nodes: list[ast.AST]
    calls: list[ast.Call]
    parents: dict[ast.AST, ast.AST]
    inside: dict[ast.AST, ast.AST]
    full: dict[str, str]
    functions: "OwnFunctions"

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the innermost first."""

    def bindings(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yield (target, expression) of every assignment."""

    def variable(self, node: ast.Name | ast.Attribute) -> tuple[ast.AST, str]:
        """Return (function that binds a name, or the module; name)."""


class OwnFunctions:
    """The functions and classes of a script, which are distinguished by their names alone.

    Attributes:
        defined: name -> definitions.
        calls: name -> calls.
        passed_on: name -> uses without a call, as in callback(save).
    """

    def __init__(self, script: ScriptTree) -> None:
        self.script = script
        self.defined: dict[Name, list[ast.AST]] = {}
        self.calls: dict[Name, list[ast.Call]] = {}
        for node in script.nodes:
            if isinstance(node, FUNCTIONS | ast.ClassDef):
                self.defined.setdefault(self.name(node), []).append(node)
        for call in script.calls:
            if (name := self.called(call)) in self.defined:
                self.calls.setdefault(name, []).append(call)
        self.passed_on: dict[Name, list[ast.AST]] = {}
        for node in script.nodes:
            name = getattr(node, "id", ""), False
            called = (
                isinstance(script.parents.get(node), ast.Call) and script.parents[node].func is node
            )
            if name in self.defined and isinstance(node.ctx, ast.Load) and not called:
                self.passed_on.setdefault(name, []).append(node)

    def name(self, node: FUNCTIONS | ast.ClassDef) -> Name:
        """Return the name of a function or class."""
        return node.name, isinstance(self.script.parents[node], ast.ClassDef)

    def called(self, call: ast.Call) -> Name:
        """Return the name of the called function or class.

        Returns:
            The name; ("", False) for a function of an imported module.
        """
        function = call.func
        if not isinstance(function, ast.Attribute):
            return getattr(function, "id", ""), False
        owner = function
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        imported = getattr(owner, "id", None) in self.script.full  # torch.save
        return ("", False) if imported else (function.attr, True)

    def arguments(self) -> Iterator[tuple[FUNCTIONS, str, ast.expr]]:
        """Yield the arguments of all calls of functions whose name is unique in the script.

        Yields:
            (function, parameter, expression).
        """
        for name, calls in self.calls.items():
            function = self.defined[name][0]
            if isinstance(function, ast.ClassDef):
                inits = (f for f in function.body if getattr(f, "name", "") == "__init__")
                function = next(inits, None)
            if len(self.defined[name]) > 1 or not isinstance(function, FUNCTIONS):
                continue
            names = [each.arg for each in function.args.posonlyargs + function.args.args]
            names = names[self.name(function)[1] :]  # without self
            for call in calls:
                yield from ((function, *pair) for pair in zip(names, call.args, strict=False))
                yield from ((function, word.arg, word.value) for word in call.keywords if word.arg)

    def returned(self, value: ast.expr) -> list[ast.Tuple]:
        """Return the tuples that a function of the script returns.

        Args:
            value: a call of the function; for any other expression the list is empty.
        """
        name = self.called(value) if isinstance(value, ast.Call) else None
        return [
            node.value
            for function in self.defined.get(name, ())
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        ]

    def results(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield the results of all functions.

        Yields:
            (name of the function as the script calls it, expression): ("self.first", ...) for a method.
        """
        for node in self.script.nodes:
            function = self.script.inside.get(node)
            if isinstance(node, ast.Return) and node.value and isinstance(function, FUNCTIONS):
                name, method = self.name(function)
                yield f"self.{name}" if method else name, node.value
