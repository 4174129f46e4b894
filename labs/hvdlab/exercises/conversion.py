"""Reads a converted assessment script without running it, and names what is missing.

    missing = unconverted(source)      # sentences with line numbers; [] when nothing is missing

It works on the syntax tree, so a comment or a string fools it as little as it fools Python. It reads
names, not values: what it says are hints. Whether N processes train one model, the grader measures.
"""

import ast

HOROVOD = ("hvdlab.keras.horovod.", "horovod.torch.")
SILENT = ("horovod.tensorflow.keras", "horovod.keras")  # accept Keras 3, average nothing
COLLECTIVES = (
    *("allreduce", "grouped_allreduce", "allgather", "allgather_object", "barrier"),
    *("broadcast", "broadcast_object", "broadcast_parameters", "broadcast_optimizer_state"),
    *("broadcast_variables", "broadcast_global_variables"),
)
SERIAL_RATE = 0.25  # the default of --lr in the serial scripts


def unconverted(source: str) -> list[str]:
    """What a script still lacks, one sentence each, in the order in which one would add it."""
    script = Script(source)
    if not script.horovod:
        if script.silent:
            return [
                f"line {script.silent}: Horovod's own Keras module accepts an optimizer of Keras 3 and "
                "averages nothing, silently. Write `import hvdlab.keras.horovod as hvd`."
            ]
        module = "horovod.torch" if script.torch else "hvdlab.keras.horovod"
        return [f"no line imports a Horovod that fits. Begin with `import {module} as hvd`."]
    parts = (init, device, shards, rate, optimizer, weights, recorder, voice, hangs)
    return [sentence for part in parts for sentence in part(script)]


class Script:
    """A syntax tree with three conveniences: full names of calls, parents, and who is rank 0 only."""

    def __init__(self, source: str):
        self.tree = ast.parse(source)
        nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self.full, lines = {}, {}  # local name -> full name; full name -> line of its import
        for node in nodes:
            if isinstance(node, ast.Import):
                aliases = {a.asname or a.name.split(".")[0]: a for a in node.names}
                self.full |= {k: a.name if a.asname else k for k, a in aliases.items()}
                lines |= {a.name: node.lineno for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                self.full |= found
                lines |= dict.fromkeys(found.values(), node.lineno)
        self.horovod = any(f"{name}.".startswith(HOROVOD) for name in lines)
        self.silent = next((lines[name] for name in lines if name.startswith(SILENT)), None)
        self.torch = "torch" in {name.split(".")[0] for name in lines}
        calls = (node for node in nodes if isinstance(node, ast.Call))
        self.calls = sorted(calls, key=lambda call: (call.lineno, call.col_offset))

    def name(self, node) -> str:
        """The full name of what is called or read: `hvd.init` is "horovod.torch.init"."""
        if isinstance(node, ast.Call):
            return self.name(node.func)
        if isinstance(node, ast.Attribute):
            return f"{self.name(node.value)}.{node.attr}"
        return self.full.get(node.id, node.id) if isinstance(node, ast.Name) else "?"

    def hvd(self, *names: str) -> list[ast.Call]:
        """The calls of Horovod functions of these names."""
        wanted = {module + name for module in HOROVOD for name in names}
        return [call for call in self.calls if self.name(call) in wanted]

    def named(self, last: str) -> list[ast.Call]:
        """The calls whose name ends so: `named("Batches")`."""
        return [call for call in self.calls if self.name(call).split(".")[-1] == last]

    def variables(self, calls) -> set[str]:
        """The variables that one of these calls is assigned to, alone or in an expression."""
        pairs = [(t, n.value) for n in ast.walk(self.tree) for t in assigned(n)]
        pairs = [pair for target, value in pairs for pair in unpacked(target, value)]
        return {
            target.id
            for target, value in pairs
            if isinstance(target, ast.Name) and any(node in calls for node in operands(value))
        }

    def uses(self, node, *names: str) -> bool:
        """Whether `hvd.NAME()`, or a variable that holds it, occurs inside `node`."""
        calls = self.hvd(*names)
        variables = self.variables(calls)
        return any(
            n in calls or (isinstance(n, ast.Name) and n.id in variables) for n in ast.walk(node)
        )

    def ancestors(self, node):
        while node := self.parents.get(node):
            yield node

    def some_only(self, node, sites=any, inside=()) -> bool:
        """Whether an `if` lets only some ranks reach `node`, or any or all calls of its function."""
        for child, above in zip([node, *self.ancestors(node)], self.ancestors(node), strict=False):
            if any(self.uses(test, "rank", "local_rank") for test in leaves_before(child, above)):
                return True
            branch = isinstance(above, ast.If | ast.IfExp) and child is not above.test
            test = above.test if branch else above if isinstance(above, ast.BoolOp) else None
            if test and self.uses(test, "rank", "local_rank"):
                return True
        name = getattr(self.function(node), "name", None)
        calls = [c for c in self.calls if isinstance(c.func, ast.Name) and c.func.id == name]
        if not calls or name in inside:
            return False
        return sites(self.some_only(call, sites, (*inside, name)) for call in calls)

    def function(self, node):
        functions = ast.FunctionDef | ast.Module
        return next(n for n in self.ancestors(node) if isinstance(n, functions))


def assigned(node) -> list:
    """What a statement or `:=` assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets
    simple = isinstance(node, ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value)
    return [node.target] if simple else []


def unpacked(target, value) -> list[tuple]:
    """`a, b = x, y` as the pairs (a, x) and (b, y)."""
    rows = ast.Tuple | ast.List
    if isinstance(target, rows) and isinstance(value, rows) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def operands(node):
    """An expression and its parts, but not what other functions or subscripts make of them."""
    yield node
    if not isinstance(node, ast.Call | ast.Subscript | ast.Lambda | ast.comprehension):
        for child in ast.iter_child_nodes(node):
            yield from operands(child)


def leaves_before(statement, above):
    """The tests of each `if ...: return` (continue, break, raise) that stands before it in its block."""
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(above, block, None)
        if isinstance(statements, list) and statement in statements:
            for earlier in statements[: statements.index(statement)]:
                leaves = ast.Return | ast.Continue | ast.Break | ast.Raise
                if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], leaves):
                    yield earlier.test


def keyword(call: ast.Call, name: str):
    return next((k.value for k in call.keywords if k.arg == name), None)


def init(script):
    calls = script.hvd("init")
    if not calls:
        yield "`hvd.init()` is never called: without it no process knows of the others."
        return
    for call in script.hvd("rank", "size", "local_rank", "DistributedOptimizer"):
        if script.function(call) is script.function(calls[0]) and call.lineno < calls[0].lineno:
            yield f"line {call.lineno} asks Horovod before `hvd.init()` in line {calls[0].lineno}."
            return


def device(script):
    if not script.hvd("local_rank"):
        how = (
            "torch.cuda.set_device(hvd.local_rank())"
            if script.torch
            else 'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")'
        )
        yield f"no process chooses a GPU of its own: `{how}`, where there is a GPU."


def shards(script):
    calls = script.named("Batches")
    if not calls:
        yield "`Batches` is gone: the recorder needs it to know what a rank has read."
    for call in calls:
        mine, count = keyword(call, "rank"), keyword(call, "size")
        where = f"line {call.lineno}: `Batches`"
        if mine is None or count is None:
            yield f"{where} reads the whole set on every rank: give it rank=hvd.rank(), size=hvd.size()."
        elif script.uses(mine, "size") or script.uses(count, "rank"):
            yield f"{where} has rank and size exchanged."
        elif script.uses(mine, "local_rank"):
            yield f"{where} takes local_rank: two computers would read the same part. Take hvd.rank()."
        elif isinstance(mine, ast.Constant) or isinstance(count, ast.Constant):
            yield f"{where} has a fixed rank or size: ask hvd.rank() and hvd.size()."
        elif (seed := keyword(call, "seed")) and script.uses(seed, "rank", "local_rank"):
            yield (
                f"{where} has another seed on each rank: all must deal from one order, or they read "
                "some images twice and others not at all."
            )


def rate(script):
    batches = script.named("Batches")
    for node in ast.walk(script.tree):
        binary = isinstance(node, ast.BinOp | ast.AugAssign)
        product = binary and isinstance(node.op, ast.Mult | ast.Pow)
        scaled = isinstance(node, ast.Call) and "scaling" in script.name(node)
        inside = any(above in batches for above in script.ancestors(node))
        if (product or scaled) and not inside and script.uses(node, "size"):
            return
    for call in script.named("add_argument"):
        name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
        default = keyword(call, "default")
        if name == "--lr" and getattr(default, "value", SERIAL_RATE) != SERIAL_RATE:
            return  # tuned by hand for its batch
    yield (
        "the learning rate is that of one process: N processes take a batch N times as large, so "
        "multiply the rate of one by hvd.size() (the warm-up is there already)."
    )


def optimizer(script):
    wraps = script.hvd("DistributedOptimizer")
    if not wraps:
        yield "no `hvd.DistributedOptimizer(...)`: no gradient is averaged, each rank trains alone."
        return
    if isinstance(script.parents[wraps[0]], ast.Expr):
        yield (
            f"line {wraps[0].lineno} wraps the optimizer and drops the result: "
            "`optimizer = hvd.DistributedOptimizer(optimizer, ...)`."
        )
        return
    plain = [c for c in script.calls if script.name(c).startswith(("torch.optim.", "keras.optim"))]
    plain = [c for c in plain if not {"lr_scheduler", "schedules"} & set(script.name(c).split("."))]
    plain, wrapped = script.variables(plain), script.variables(wraps)
    users = [(c, keyword(c, "optimizer")) for c in script.named("compile")] + [
        (c, c.func.value) for c in script.named("step") if isinstance(c.func, ast.Attribute)
    ]
    for call, used in users:
        if not isinstance(used, ast.Name):
            continue
        early = [w for w in wraps if w.lineno > call.lineno]
        if used.id in plain - wrapped or (used.id in wrapped and early):
            yield (
                f"line {call.lineno} uses the plain optimizer, not the one that line "
                f"{wraps[0].lineno} wraps: its gradients stay unaveraged."
            )
            return


def weights(script):
    different = "ranks begin with different weights"
    if script.torch:
        if not script.hvd("broadcast_parameters"):
            yield f"{different}: `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`."
        if not script.hvd("broadcast_optimizer_state"):
            yield (
                "the optimizer's state is not shared: "
                "`hvd.broadcast_optimizer_state(optimizer, root_rank=0)`."
            )
        return
    callback = "callbacks.BroadcastGlobalVariablesCallback"
    calls = script.named(callback.split(".")[-1])
    calls += script.hvd("broadcast_variables", "broadcast_global_variables")
    if not calls:
        yield f"{different}: put `hvd.{callback}(0)` into fit's callbacks."
    elif isinstance(script.parents[calls[0]], ast.Expr) and "Callback" in script.name(calls[0]):
        yield f"line {calls[0].lineno} makes the broadcast callback and drops it: fit must get it."


def recorder(script):
    calls = script.named("Recorder")
    writes = script.named("epoch_end") if script.torch else calls
    if not calls:
        yield "the `Recorder` is gone: the grader judges the weights that it writes."
    elif not writes:
        yield "`recorder.epoch_end(epoch)` is gone: call it after each epoch, on every rank."
    for call in {*calls, *writes}:
        if script.some_only(call):
            yield f"line {call.lineno} records on some ranks only: every rank writes its own weights."
            return


def voice(script):
    for call in script.named("print"):
        if script.name(call) == "print" and not script.some_only(call, all):
            yield f"line {call.lineno} prints on every rank: put it under `if hvd.rank() == 0:`."
    for call in script.named("fit"):
        loud = keyword(call, "verbose")
        if loud is None or (isinstance(loud, ast.Constant) and loud.value):
            yield f"line {call.lineno}: `fit` speaks on every rank: verbose=2 if hvd.rank() == 0 else 0."


def hangs(script):
    for call in script.hvd(*COLLECTIVES):
        if script.some_only(call):
            yield f"line {call.lineno} calls Horovod on some ranks only: they wait for the others for ever."
