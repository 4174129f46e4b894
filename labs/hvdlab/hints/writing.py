"""Hints about what each rank prints and writes, and one should."""

import ast

from hvdlab.hints.learning import is_text
from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.functions import FUNCTIONS
from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

WRITES = ("save", "savez", "savez_compressed", "save_weights", "save_model", "ModelCheckpoint")
PATHS = ("f", "file", "path", "filepath")
COMMAND_LINES = ("args", "arguments", "opt", "options", "config", "cfg", "hparams", "FLAGS")
STREAMS = ("sys.stdout", "sys.stderr")


def has_text(node: ast.AST) -> bool:
    return any(map(is_text, ast.walk(node)))


def named_texts(script: Script) -> set[str]:
    """The variables and parameters that stand for a text, as far as that is written down."""
    texts = {name for name, value in script.assignments() if has_text(value)}
    for function in (node for node in script.nodes if isinstance(node, FUNCTIONS)):
        arguments = [*function.args.posonlyargs, *function.args.args][::-1]
        defaults = zip(arguments, function.args.defaults[::-1], strict=False)
        texts |= {argument.arg for argument, value in defaults if is_text(value)}
    given = [(name, value) for _, name, value in script.functions.arguments()]
    return texts | {name for name, value in given if is_path(value, texts)}


def is_path(node: ast.AST, texts: set[str]) -> bool:
    """Whether it is made of a text, or of what the command line says."""
    return has_text(node) or any(
        isinstance(part, ast.Name)
        and part.id in texts
        or isinstance(part, ast.Attribute)
        and getattr(part.value, "id", None) in COMMAND_LINES
        for part in ast.walk(node)
    )


def files(script: Script):
    modules = ("torch.", "numpy.", "keras.", "tensorflow.", "tf_keras.")
    guards = Guards(script)
    texts = named_texts(script)
    for call in [*script.named(*WRITES), *script.named("open")]:
        name, mode = script.names[call], None
        if name == "open":
            mode = keyword(call, "mode") or (call.args[1] if len(call.args) > 1 else None)
            if not is_text(mode) or not set(mode.value) & set("wax"):
                continue
        elif not name.startswith(modules) and not name.endswith(("save_weights", ".save")):
            continue
        own = any(guards.asks(part) for part in [*call.args, *call.keywords])
        at = 1 if name == "torch.save" else 0  # of the path; what is saved may have names as well
        parts = [*call.args[at : at + 1], *(w.value for w in call.keywords if w.arg in PATHS)]
        named = any(is_path(part, texts) for part in parts)
        if named and not own and not guards.test(call):
            text = (
                "Every rank writes this file, all to one place: write it under "
                "`if hvd.rank() == 0:`, or put the rank into its name."
            )
            yield call.lineno, text
            return


def output(script: Script):
    if not script.horovod and script.other:
        return
    guards = Guards(script)
    prints = (call for call in script.named("print") if script.names[call] == "print")
    prints = (call for call in prints if script.name(keyword(call, "file")) in ("?", *STREAMS))
    prints = (call for call in prints if not any(map(guards.asks, call.args)))  # who says its rank
    loud = [call for call in prints if not guards.test(call)]
    if loud and not muted(script):
        more = f" (and {len(loud) - 1} more)" if len(loud) > 1 else ""
        yield (
            loud[0].lineno,
            f"This prints on every rank{more}: put it under `if hvd.rank() == 0:`.",
        )
    own = ("fit", True) in script.functions.defined or not script.keras
    for call in [] if own else script.named("fit"):
        verbose = keyword(call, "verbose")
        if guards.test(call) or any(word.arg is None for word in call.keywords):
            continue
        if verbose is None or (isinstance(verbose, ast.Constant) and verbose.value):
            yield (
                call.lineno,
                ("`fit` reports on every rank: `verbose=2 if hvd.rank() == 0 else 0`."),
            )


def muted(script: Script) -> bool:
    """Whether `print`, or where it prints to, is something else on other ranks."""
    targets = (target for target, _ in script.bindings())
    names = {script.name(t) for t in targets if isinstance(t, ast.Name | ast.Attribute)}
    own = ("print", False) in script.functions.defined
    return own or bool(
        names & {"print", "sys.stdout", "builtins.print"} or script.named("redirect_stdout")
    )
