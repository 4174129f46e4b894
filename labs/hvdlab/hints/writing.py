"""Hints about output and files that every rank writes, and only one rank should."""

import ast
from collections.abc import Iterator

from hvdlab.hints.catalogue import Finding, finding
from hvdlab.hints.frameworks import api
from hvdlab.script_analysis.ast_helpers import is_text, keyword, positional_defaults
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.origins import COMMAND_LINES
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

WRITES = ("save", "savez", "savez_compressed", "save_weights", "save_model", "ModelCheckpoint")
MODULES = ("torch.", "numpy.", "keras.", "tensorflow.", "tf_keras.")  # whose functions write files
PATHS = ("f", "file", "path", "filepath")
STREAMS = ("sys.stdout", "sys.stderr")


def has_text(node: ast.AST) -> bool:
    """Return whether an expression contains a string literal."""
    return any(map(is_text, ast.walk(node)))


def named_texts(script: Script) -> set[str]:
    """Return the names of variables and parameters that hold a text, as far as the source shows it."""
    texts = {name for name, value in script.assignments() if has_text(value)}
    for function in (node for node in script.nodes if isinstance(node, FUNCTIONS)):
        defaults = positional_defaults(function)
        texts |= {parameter.arg for parameter, value in defaults if is_text(value)}
    given = [(name, value) for _, name, value in script.functions.arguments()]
    return texts | {name for name, value in given if is_path(value, texts)}


def is_path(node: ast.AST, texts: set[str]) -> bool:
    """Return whether an expression contains a text, or an argument of the command line."""
    return has_text(node) or any(
        isinstance(part, ast.Name)
        and part.id in texts
        or isinstance(part, ast.Attribute)
        and getattr(part.value, "id", None) in COMMAND_LINES
        for part in ast.walk(node)
    )


def files(script: Script) -> Iterator[Finding]:
    """Yield a finding about a file that all ranks write."""
    guards = Guards(script)
    texts = named_texts(script)
    for call in [*script.named(*WRITES), *script.named("open")]:
        name, mode = script.names[call], None
        if name == "open":
            mode = keyword(call, "mode") or (call.args[1] if len(call.args) > 1 else None)
            if not is_text(mode) or not set(mode.value) & set("wax"):
                continue
        elif not name.startswith(MODULES) and not name.endswith(("save_weights", ".save")):
            continue
        own_path = any(guards.asks(part) for part in [*call.args, *call.keywords])
        at = 1 if name == "torch.save" else 0  # of the path; argument 0 of torch.save is the object
        parts = [*call.args[at : at + 1], *(w.value for w in call.keywords if w.arg in PATHS)]
        named = any(is_path(part, texts) for part in parts)
        if named and not own_path and not guards.test(call):
            framework = "torch" if name.startswith("torch.") else api(script)
            seen = "Every rank writes this file, all of them to the same path."
            yield finding("all-write-one-file", call.lineno, seen, framework)
            return


def output(script: Script) -> Iterator[Finding]:
    """Yield findings about lines and progress bars that every rank prints."""
    if not script.horovod and script.other:
        return
    guards = Guards(script)
    prints = (call for call in script.named("print") if script.names[call] == "print")
    prints = (call for call in prints if script.name(keyword(call, "file")) in ("?", *STREAMS))
    prints = (call for call in prints if not any(map(guards.asks, call.args)))  # prints its rank
    on_all_ranks = [call for call in prints if not guards.test(call)]
    if on_all_ranks and not muted(script):
        more = f" (and {len(on_all_ranks) - 1} more)" if len(on_all_ranks) > 1 else ""
        seen = f"This prints on every rank{more}."
        yield finding("all-ranks-print", on_all_ranks[0].lineno, seen, "torch")
    own = ("fit", True) in script.functions.defined or not script.keras
    for call in [] if own else script.named("fit"):
        verbose = keyword(call, "verbose")
        if guards.test(call) or any(word.arg is None for word in call.keywords):
            continue
        if verbose is None or (isinstance(verbose, ast.Constant) and verbose.value):
            seen = "`fit` prints its progress on every rank."
            yield finding("all-ranks-print", call.lineno, seen, "keras")


def muted(script: Script) -> bool:
    """Return whether a script replaces `print`, or the stream to which it prints."""
    targets = (target for target, _ in script.bindings())
    names = {script.name(t) for t in targets if isinstance(t, ast.Name | ast.Attribute)}
    own = ("print", False) in script.functions.defined
    return own or bool(
        names & {"print", "sys.stdout", "builtins.print"} or script.named("redirect_stdout")
    )
