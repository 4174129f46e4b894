"""Points at likely mistakes, with line numbers: read from the syntax tree, never evidence, no points.

    hints(source)      [{"line": 12, "topic": "data", "text": "..."}]

One function a topic; each yields (line or None, text). When in doubt they say nothing: a script that
is right in its own way should not be talked out of it.
"""

import ast
import re

from hvdgrade.flags import flags  # noqa: F401 - both are read from the same tree
from hvdgrade.learning import broadcast, optimizer, rate
from hvdlab.guards import Guards
from hvdlab.script import BROADCASTS, EXCHANGES, Script, Unreadable, keyword, strings

WRITES = ("save", "savez", "savez_compressed", "save_weights", "save_model", "ModelCheckpoint")
DECISIVE = re.compile(r"(\A|_)(acc|accuracy|loss|metric|best|patience|score|val)(_|\d|\Z)")
MOST_HINTS = 20


def hints(source: bytes) -> list[dict]:
    """Likely mistakes in a script, in the order of its lines; those about the whole script first."""
    try:
        found = read(Script(source))
    except Unreadable:  # the run itself will say what is wrong with it
        return []
    except Exception:  # a hint is worth no grader fault
        return []
    return sorted(found, key=lambda hint: hint["line"] or 0)[:MOST_HINTS]


def read(script: Script) -> list[dict]:
    """What each topic has to say."""
    return [
        {"line": line, "topic": topic, "text": text}
        for topic, look in TOPICS.items()
        for line, text in look(script)
    ]


def horovod(script: Script):
    if not script.horovod and not script.other:
        module = "horovod.torch" if script.torch else "hvdlab.keras.horovod"
        text = (
            "No line imports Horovod: N processes then train N models of their own. Begin with "
            f"`import {module} as hvd` and `hvd.init()`."
        )
        yield None, text
    if script.silent_keras:
        text = (
            "Horovod's own Keras module accepts an optimizer of Keras 3 and averages nothing, "
            "silently. Write `import hvdlab.keras.horovod as hvd` (or use Keras 2, with "
            "TF_USE_LEGACY_KERAS=1)."
        )
        yield script.silent_keras, text


def init(script: Script):
    if not script.horovod:
        return
    calls = script.hvd("init")
    if not calls:
        yield None, "`hvd.init()` is never called: without it no process knows of the others."
        return
    first = {script.inside[call]: call.lineno for call in reversed(calls)}
    asks = ("rank", "size", "local_rank", "local_size", "DistributedOptimizer", *BROADCASTS)
    for call in script.hvd(*asks):
        begun = first.get(script.inside[call])
        if begun and call.lineno < begun:
            yield call.lineno, f"This asks Horovod before `hvd.init()` in line {begun}."
            return


def device(script: Script):
    places = ("LOCAL_RANK", "SLURM_LOCALID")
    read = any(
        text.endswith(places)
        for node in script.nodes
        if isinstance(node, ast.Subscript | ast.Call)
        for text in strings(node)
    )
    if script.named("local_rank") or read or not script.horovod:
        return
    if script.torch:
        lines = [
            node.lineno
            for node in script.nodes
            if (isinstance(node, ast.Attribute) and node.attr == "cuda")
            or (isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:0"))
        ]
        if lines:
            text = (
                "Every process takes the first GPU: call "
                "`torch.cuda.set_device(hvd.local_rank())` before this, where there is a GPU."
            )
            yield min(lines), text
    elif script.keras:
        text = (
            "No process chooses a GPU of its own: where there are GPUs, "
            '`tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")`.'
        )
        yield None, text


def data(script: Script):
    for call in script.named("Batches"):
        mine, count = keyword(call, "rank"), keyword(call, "size")
        starred = any(word.arg is None for word in call.keywords)
        cut = any(script.uses_rank(argument) for argument in call.args)  # images[rank::size]
        if mine is None or count is None:
            if not starred and not cut:
                text = (
                    "`Batches` deals the whole set to every rank: give it rank=hvd.rank(), "
                    "size=hvd.size()."
                )
                yield call.lineno, text
        elif isinstance(mine, ast.Constant) or isinstance(count, ast.Constant):
            yield call.lineno, "`Batches` has a fixed rank or size: ask hvd.rank() and hvd.size()."
        elif "local_rank" in ast.unparse(mine):
            text = "`Batches` gets local_rank: two computers would read the same part. Take hvd.rank()."
            yield call.lineno, text
        elif script.uses_size(mine) and not script.uses_rank(mine):
            yield call.lineno, "`Batches` has rank and size exchanged."
        seed = keyword(call, "seed")
        if seed is not None and script.uses_rank(seed):
            text = (
                "The seed of `Batches` differs between ranks, so their parts overlap: it must be the "
                "same on all, rank= and size= do the dividing."
            )
            yield call.lineno, text
    samplers = script.named("DistributedSampler")
    if samplers and not script.named("set_epoch"):
        yield (
            samplers[0].lineno,
            "Without `sampler.set_epoch(epoch)` each epoch has the same order.",
        )
    if not script.hvd(*BROADCASTS) and script.horovod:
        for call in script.named("manual_seed", "set_random_seed"):
            if any(script.uses_rank(argument) for argument in call.args):
                text = (
                    "Ranks begin with different seeds, so with different weights, and nothing here "
                    "makes them equal."
                )
                yield call.lineno, text


def recorder(script: Script):
    guards = Guards(script, by_name=False)
    for call in script.named("Recorder", "epoch_end"):
        if guards.test(call, sites=any):
            text = (
                "This records on some ranks only. Every rank writes its own weights, and the grader "
                "compares them: take it out of the `if`."
            )
            yield call.lineno, text
            return


def has_text(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node))


def files(script: Script):
    modules = ("torch.", "numpy.", "keras.", "tensorflow.", "tf_keras.")
    guards = Guards(script)
    texts = {name for name, value in script.assignments() if has_text(value)}
    for call in [*script.named(*WRITES), *script.named("open")]:
        name = script.names[call]
        if name == "open":
            mode = keyword(call, "mode") or (call.args[1] if len(call.args) > 1 else None)
            if not set(getattr(mode, "value", None) or "") & set("wax"):
                continue
        elif not name.startswith(modules) and not name.endswith(("save_weights", ".save")):
            continue
        own = any(guards.asks(part) for part in [*call.args, *call.keywords])
        parts = [*call.args, *(word.value for word in call.keywords)]
        named = any(has_text(part) or getattr(part, "id", None) in texts for part in parts)
        if named and not own and not guards.test(call):
            text = (
                "Every rank writes this file, all to one place: write it under "
                "`if hvd.rank() == 0:`, or put the rank into its name."
            )
            yield call.lineno, text
            return


def metrics(script: Script):
    if not script.horovod:
        return
    averaged = script.hvd(*EXCHANGES, "MetricAverageCallback")
    averaged += script.named("MetricAverageCallback")
    if averaged:
        return
    again = "Average it over the ranks first, or they decide differently and one waits for ever."
    for call in script.named("EarlyStopping", "ReduceLROnPlateau"):
        yield call.lineno, f"This decides by a metric that each rank computed alone. {again}"
        return
    for node in script.nodes:
        leaves = isinstance(node, ast.If) and any(
            isinstance(statement, ast.Break | ast.Return) for statement in node.body
        )
        if leaves and any(isinstance(a, ast.For | ast.While) for a in script.ancestors(node)):
            parts = [getattr(n, "id", None) or getattr(n, "attr", "") for n in ast.walk(node.test)]
            if any(DECISIVE.search(part) for part in parts):
                yield node.lineno, f"This stops by a number that each rank computed alone. {again}"
                return


def output(script: Script):
    if not script.horovod and script.other:
        return
    guards = Guards(script)
    prints = (call for call in script.named("print") if script.names[call] == "print")
    loud = [call for call in prints if not guards.test(call)]
    if loud:
        more = f" (and {len(loud) - 1} more)" if len(loud) > 1 else ""
        yield (
            loud[0].lineno,
            f"This prints on every rank{more}: put it under `if hvd.rank() == 0:`.",
        )
    for call in script.named("fit"):
        verbose = keyword(call, "verbose")
        if verbose is None or (isinstance(verbose, ast.Constant) and verbose.value):
            yield (
                call.lineno,
                ("`fit` reports on every rank: `verbose=2 if hvd.rank() == 0 else 0`."),
            )


def hang(script: Script):
    guards = Guards(script, by_name=False)
    for call in script.hvd(*EXCHANGES, *BROADCASTS, "broadcast_optimizer_state", "barrier"):
        if not script.names[call].endswith("Callback") and guards.test(call, sites=any):
            text = (
                "Some ranks only call Horovod here: they wait for the others for ever. All ranks "
                "make the same calls in the same order."
            )
            yield call.lineno, text
            return


TOPICS = {
    "Horovod": horovod,
    "init": init,
    "device": device,
    "data": data,
    "learning rate": rate,
    "optimizer": optimizer,
    "broadcast": broadcast,
    "recorder": recorder,
    "files": files,
    "metrics": metrics,
    "output": output,
    "hang": hang,
}
