"""Compile a script and report what it contains. The script is not run.

    python -I -S inspect_source.py SECONDS BYTES < SCRIPT

This is a separate process with limits, because nested `finally` clauses can make Python generate an unlimited
amount of code. It prints one JSON object, and imports only the standard library.
"""

import ast
import json
import resource
import sys
import warnings

# A statement or expression of these types can do something. A script without any, for example a JSON
# document or a single string, may be valid Python, but it cannot train a network.
ACTIONS = (
    *(ast.Import, ast.ImportFrom, ast.Call),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr),
)


def main() -> None:
    """Set the limits and inspect the script on standard input."""
    seconds, memory = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    warnings.simplefilter("ignore")  # warnings quote the source, including control characters
    print(json.dumps(inspect(sys.stdin.buffer.read())))


def inspect(source: bytes) -> dict:
    """Return Python's objection to a script, whether it can act, and the modules that it imports.

    Args:
        source: the bytes of the script.
    """
    deepest = sys.getrecursionlimit()
    try:
        # The script is parsed again later, from deeper calls. With half of the recursion limit here, a script
        # that is nested too deeply for that is refused now.
        sys.setrecursionlimit(deepest // 2)
        tree = ast.parse(source)
        sys.setrecursionlimit(deepest)
        compile(source, "assessment.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = str(getattr(error, "msg", error))
        if not message:  # memory is used up
            raise
        return {"line": getattr(error, "lineno", None), "mistake": message}
    nodes = list(ast.walk(tree))
    return {
        "acts": any(isinstance(node, ACTIONS) for node in nodes),
        "imports": sorted({name for node in nodes for name in imported(node)}),
    }


def imported(node: ast.AST) -> list[str]:
    """Return the top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


if __name__ == "__main__":
    main()
