"""The functions and classes that a script defines: who calls them, with what, and what they return."""

import ast
from collections.abc import Iterator

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Name = tuple[str, bool]  # of a function or a class, and whether it is a method


class OwnFunctions:
    """Functions are told apart by their names alone.

    Args:
        script: a `hvdlab.script_analysis.script.Script`.
    """

    def __init__(self, script):
        self.script = script
        self.defined: dict[Name, list[ast.AST]] = {}
        self.calls: dict[Name, list[ast.Call]] = {}
        for node in script.nodes:
            if isinstance(node, FUNCTIONS | ast.ClassDef):
                self.defined.setdefault(self.name(node), []).append(node)
        for call in script.calls:
            if (name := self.called(call)) in self.defined:
                self.calls.setdefault(name, []).append(call)
        self.passed_on: dict[Name, list[ast.AST]] = {}  # used without a call: callback(save)
        for node in script.nodes:
            name = getattr(node, "id", ""), False
            called = (
                isinstance(script.parents.get(node), ast.Call) and script.parents[node].func is node
            )
            if name in self.defined and isinstance(node.ctx, ast.Load) and not called:
                self.passed_on.setdefault(name, []).append(node)

    def name(self, node: ast.AST) -> Name:
        """By what a function or class is called."""
        return node.name, isinstance(self.script.parents[node], ast.ClassDef)

    def called(self, call: ast.Call) -> Name:
        """What a call calls."""
        function = call.func
        if not isinstance(function, ast.Attribute):
            return getattr(function, "id", ""), False
        whose = function
        while isinstance(whose, ast.Attribute):
            whose = whose.value
        imported = getattr(whose, "id", None) in self.script.full  # torch.save: nothing of its own
        return ("", False) if imported else (function.attr, True)

    def arguments(self) -> Iterator[tuple[ast.AST, str, ast.expr]]:
        """(function, parameter, expression) of the arguments of functions whose name is theirs alone."""
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
        """The tuples that a function returns, where `value` is a call of one of the script's own."""
        name = self.called(value) if isinstance(value, ast.Call) else None
        return [
            node.value
            for function in self.defined.get(name, ())
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        ]

    def results(self) -> Iterator[tuple[str, ast.expr]]:
        """(name as it is called inside, expression) of what they return."""
        for node in self.script.nodes:
            function = self.script.inside.get(node)
            if isinstance(node, ast.Return) and node.value and isinstance(function, FUNCTIONS):
                name, method = self.name(function)
                yield f"self.{name}" if method else name, node.value
