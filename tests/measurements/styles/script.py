"""Compose the script of a style: its pieces, in one of the structures that students give to a script."""

import re
import textwrap
from collections.abc import Iterator

from tests.measurements.styles import keras_pieces, legacy_pieces, torch_pieces
from tests.measurements.styles.data_pieces import add_data
from tests.measurements.styles.part import Part, Pieces, Style, indented, replaced

MAX_LINE = 100
SETTINGS = ("epochs", "batch_size", "lr", "seed")
PLACES = ("rank", "size", "local_rank")
TITLES = {
    "torch_horovod": "PyTorch and Horovod's DistributedOptimizer",
    "torch_allreduce": "PyTorch, with gradients that are averaged by hand with Horovod",
    "torch_ddp": "PyTorch's DistributedDataParallel over Gloo",
    "torch_mpi4py": "PyTorch and mpi4py",
    "keras_fit": "Keras and Horovod",
    "keras_step": "Keras with a training step of its own, and Horovod",
    "keras_tape": "a GradientTape and Horovod",
    "keras_legacy": "Keras 2 and Horovod's own Keras module",
    "keras_torch": "Keras on PyTorch, and Horovod",
}
ANNOTATIONS = {
    "batches": "Batches",
    "test_images": "np.ndarray",
    "test_labels": "np.ndarray",
    "model": {"torch": "torch.nn.Module", "keras": "keras.Model", "legacy": "tf.keras.Model"},
    "optimizer": {
        "torch": "torch.optim.Optimizer",
        "keras": "keras.optimizers.Optimizer",
        "legacy": "tf.keras.optimizers.Optimizer",
    },
    "scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "parallel": "DistributedDataParallel",
    "recorder": "Recorder",
    "mean_loss": "float",
    "random": "np.random.Generator",
    "stream": "Iterator",
    "iterator": "Iterator",
    "train_step": "Callable",
    "epoch": "int",
}
LOGGING = """\
log = logging.getLogger("assessment")
"""
HANDLER = '''\
def stop(number, frame):
    """End this rank when it is asked to, with the exit code that shells use."""
    sys.exit(128 + number)
'''
ARGUMENTS = """\
def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default={epochs}, help="passes over the training set")
    parser.add_argument("--batch-size", type=int, default={batch_size}, help="images per rank")
    parser.add_argument("--lr", type=float, default={lr}, help="learning rate")
    parser.add_argument("--seed", type=int, default={seed}, help="of all random numbers")
    return parser.parse_args()
"""


def script(style: Style, settings: dict[str, float]) -> str:
    """Return the source of the script of a style.

    Args:
        style: the combination.
        settings: values of SETTINGS.
    """
    pieces = pieces_of(style)
    if style.structure == "argparse":
        settings_text = ARGUMENTS.format(**settings)
        names = {name: f"args.{name}" for name in SETTINGS}
        pieces.imports.append("import argparse")
    else:
        settings_text = "".join(f"{name.upper()} = {settings[name]}\n" for name in SETTINGS)
        names = {name: name.upper() for name in SETTINGS}
    if style.structure == "logging":
        pieces.imports.append("import logging")
    if style.structure == "signals":
        pieces.imports += ["import signal", "import sys"]
    names |= pieces.names
    report = "log.info(" if style.structure == "logging" else "if $rank == 0:\n    print("
    pieces.epoch = re.sub(r"^\$report\(", report.replace("\\", "\\\\"), pieces.epoch, flags=re.M)
    body = BODIES.get(style.structure, in_main)(style, pieces, names)
    if style.structure == "typed":
        pieces.imports += typing_imports(body)
    blocks = [settings_text, *pieces.start]
    if style.structure == "logging":
        blocks.append(LOGGING)
    constants = [block for block in blocks if not block.startswith("def ")]
    functions = [block for block in blocks if block.startswith("def ")]
    top = "\n".join(constants)
    helpers = [top, *functions, *[replaced(h, names) for h in dict.fromkeys(pieces.helpers)]]
    if style.structure == "signals":
        helpers.append(HANDLER)
    text = "\n\n\n".join(block.strip("\n") for block in [*helpers, body] if block.strip())
    return head(style, pieces, text) + "\n\n" + text + "\n"


def pieces_of(style: Style) -> Pieces:
    """Return the pieces of a style, in the order in which the script has them."""
    if style.framework.startswith("torch"):
        pieces, add_training = torch_pieces.torch_pieces(style), torch_pieces.add_training
    elif style.framework == "keras_legacy":
        pieces, add_training = (
            legacy_pieces.legacy_pieces(style),
            legacy_pieces.add_legacy_training,
        )
    else:
        pieces, add_training = keras_pieces.keras_pieces(style), keras_pieces.add_training
    add_data(style, pieces)
    add_training(style, pieces)
    return pieces


def head(style: Style, pieces: Pieces, text: str) -> str:
    """Return docstring, settings and imports. An import whose name does not occur in the text is left out."""
    values = (
        f"data {style.data}, exchange {style.exchange}, optimizer {style.optimizer}, "
        f"schedule {style.schedule}, structure {style.structure}, regularisation "
        f"{style.regularisation}, precision {style.precision}"
    )
    doc = f'"""Train a network on CIFAR-10 with {TITLES[style.framework]}.\n\n'
    doc += textwrap.fill(f"Style: framework {style.framework}, {values}.", 100) + "\n"
    if style.rule:
        doc += textwrap.fill(f"Rule that it bends: {style.rule}.", 100) + "\n"
    settings = "\n".join(pieces.settings)
    lines = sorted(set(pieces.imports), key=import_order)
    groups: list[list[str]] = [[], [], []]
    for line in needed(lines, text):
        groups[import_order(line)[0]].append(line)
    if settings:
        first = "import os\n\n" + settings
        groups[0] = [line for line in groups[0] if line != "import os"]
        imports = [first, *("\n".join(group) for group in groups if group)]
    else:
        if "os.environ" in text and "import os" not in groups[0]:
            groups[0].insert(0, "import os")
        imports = ["\n".join(group) for group in groups if group]
    return doc + '"""\n\n' + "\n\n".join(imports)


STANDARD = "argparse collections contextlib itertools logging math os pathlib signal sys".split()


def import_order(line: str) -> tuple[int, bool, str]:
    """Return the sort key of an import: its group, then `import` before `from`, then its name."""
    name = line.split()[1]
    root = name.split(".")[0]
    group = 0 if root in STANDARD else 2 if root == "hvdlab" else 1
    return group, line.startswith("from"), name


def needed(lines: list[str], text: str) -> Iterator[str]:
    """Yield the imports whose names the text uses; of several names only those."""
    for line in lines:
        first, _, last = line.partition(" import ") if line.startswith("from") else ("", "", line)
        if not first:
            name = line.split()[-1]
            if re.search(rf"\b{re.escape(name)}\b", text):
                yield line
            continue
        names = [name for name in last.split(", ") if re.search(rf"\b{name.split()[-1]}\b", text)]
        if names:
            yield f"{first} import {', '.join(names)}"


def typing_imports(body: str) -> list[str]:
    names = [name for name in ("Callable", "Iterator") if re.search(rf"\b{name}\b", body)]
    return [f"from collections.abc import {', '.join(names)}"] if names else []


def flat(pieces: Pieces, names: dict[str, str]) -> str:
    """Return all parts and the training as consecutive statements."""
    names = names | {name: name for name in shared(pieces)}
    parts = [replaced(part.code, names) for part in pieces.parts]
    train = replaced(pieces.train.code, names)
    if pieces.epoch:
        loop = indented(train + replaced(pieces.epoch, names))
        train = f"for epoch in range({names['epochs']}):\n{loop}\n"
    return "\n".join(part.rstrip("\n") + "\n" for part in [*parts, train])


def shared(pieces: Pieces) -> list[str]:
    """Return all variables that parts share."""
    found = [n for p in [*pieces.parts, pieces.train] for n in [*p.gives, *p.needs]]
    found += Part("", pieces.epoch).needs + Part("", pieces.epoch).gives
    return [n for n in dict.fromkeys(found) if n not in (*SETTINGS, *PLACES)]


def in_module(style: Style, pieces: Pieces, names: dict[str, str]) -> str:
    return flat(pieces, names)


def in_main(style: Style, pieces: Pieces, names: dict[str, str]) -> str:
    """Return a function main and its guard, as `guard`, `argparse`, `try` and `signals` have it."""
    code = flat(pieces, names)
    if style.structure == "argparse":
        code = "args = parse_args()\n" + code
    if style.structure == "signals":
        handlers = (
            "for number in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(number, stop)\n"
        )
        code = handlers + code
    if style.structure == "try":
        code = "try:\n" + indented(code) + f"\nfinally:\n    {pieces.finish}\n"
    return guarded("def main():\n" + indented(code))


def guarded(code: str, call: str = "main()") -> str:
    return code.rstrip("\n") + f'\n\n\nif __name__ == "__main__":\n    {call}\n'


def in_functions(style: Style, pieces: Pieces, names: dict[str, str]) -> str:
    """Return a function for each part, and main, which passes results from one to the next."""
    names = names | {name: name for name in shared(pieces)}
    typed = style.structure == "typed"
    kind = {"t": "torch", "k": "keras"}[style.framework[0]]
    kind = "legacy" if style.framework == "keras_legacy" else kind
    if style.data in ("loader", "tfdata"):
        kind += " shards"
    functions, calls = [], []
    for part in [*pieces.parts, pieces.train]:
        epoch = ["epoch"] if part is pieces.train and pieces.epoch else []
        needs = [n for n in part.needs if n not in (*SETTINGS, *PLACES)]
        later = used_later(part, pieces)
        gives = [n for n in part.gives if n in later]
        if not needs and not gives and part.code.count("\n") < 4:
            calls.append(replaced(part.code, names))
            continue
        functions.append(function(part, [*needs, *epoch], gives, names, kind if typed else ""))
        call = f"{part.task}({', '.join([*needs, *epoch])})\n"
        call = f"{', '.join(gives)} = {call}" if gives else call
        if part is pieces.train and pieces.epoch:
            call = f"for epoch in range({names['epochs']}):\n" + indented(
                call + replaced(pieces.epoch, names)
            )
        calls.append(call)
    start = ""
    if style.structure == "logging":
        start = "level = logging.INFO if $rank == 0 else logging.WARNING\n"
        start += 'logging.basicConfig(level=level, format="%(asctime)s %(message)s")\n'
        start = replaced(start, names)
    code = calls[0] + start + "".join(calls[1:]) if calls else start
    main = ("def main() -> None:\n" if typed else "def main():\n") + indented(code)
    return guarded("\n\n\n".join([*functions, main]))


def used_later(part: Part, pieces: Pieces) -> set[str]:
    """Return the shared variables that are used after a part."""
    order = [*pieces.parts, pieces.train]
    after = order[order.index(part) + 1 :]
    text = "".join(other.code for other in after) + pieces.epoch
    return set(re.findall(r"\$(\w+)", text))


def function(
    part: Part, needs: list[str], gives: list[str], names: dict[str, str], kind: str
) -> str:
    """Return a part as a function; with annotations if `kind` names the framework."""
    if kind:

        def annotation(name: str) -> str:
            if name == "batches" and kind.endswith("shards"):
                return "Shards"
            found = ANNOTATIONS.get(name, "object")
            return found if isinstance(found, str) else found[kind.split()[0]]

        arguments = ", ".join(f"{name}: {annotation(name)}" for name in needs)
        result = ", ".join(annotation(name) for name in gives) or "None"
        arrow = f" -> tuple[{result}]" if len(gives) > 1 else f" -> {result}"
    else:
        arguments, arrow = ", ".join(needs), ""
    code = replaced(part.code, names).rstrip("\n")
    if gives:
        code += f"\nreturn {', '.join(gives)}"
    first = f"def {part.task}({arguments}){arrow}:"
    if len(first) > MAX_LINE:
        first = f"def {part.task}(\n    {arguments}\n){arrow}:"
    if len(arguments) + 4 > MAX_LINE:
        one_a_line = "".join(f"    {argument},\n" for argument in arguments.split(", "))
        first = f"def {part.task}(\n{one_a_line}){arrow}:"
    return f"{first}\n{indented(code)}"


def in_class(style: Style, pieces: Pieces, names: dict[str, str]) -> str:
    """Return a class whose attributes are the shared variables."""
    own = names | {name: f"self.{name}" for name in shared(pieces)}
    parts = []
    for part in pieces.parts:
        code = replaced(part.code, own)
        if "train_step" in part.gives:
            code += "\nself.train_step = train_step\n"
        parts.append(code.rstrip("\n") + "\n")
    methods = ["def __init__(self):\n" + indented("\n".join(parts))]
    if pieces.epoch:
        methods.append(
            "def train_epoch(self, epoch):\n" + indented(replaced(pieces.train.code, own))
        )
        methods.append("def end_epoch(self, epoch):\n" + indented(replaced(pieces.epoch, own)))
        run = f"for epoch in range({names['epochs']}):\n"
        run += "    self.train_epoch(epoch)\n    self.end_epoch(epoch)\n"
        methods.append("def run(self):\n" + indented(run))
    else:
        methods.append("def run(self):\n" + indented(replaced(pieces.train.code, own)))
    doc = '"""One rank of the training: its data, its model, and the loop."""'
    body = indented("\n\n".join(method.rstrip("\n") for method in methods))
    return guarded(f"class Trainer:\n    {doc}\n\n{body}", "Trainer().run()")


BODIES = {
    "module": in_module,
    "functions": in_functions,
    "typed": in_functions,
    "logging": in_functions,
    "class": in_class,
}
