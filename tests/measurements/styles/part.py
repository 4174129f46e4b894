"""The types of which a script is composed: what a style is, and the pieces of a script."""

import re
from dataclasses import dataclass, field
from string import Template

# Values of each axis. A style has one of each.
FRAMEWORKS = (
    *("torch_horovod", "torch_allreduce", "torch_ddp", "torch_mpi4py"),
    *("keras_fit", "keras_step", "keras_tape", "keras_legacy", "keras_torch"),
)
DATA = ("whole", "shuffled", "split", "broadcast", "cache", "loader", "tfdata")
EXCHANGES = (
    *("each", "accumulate2", "accumulate4", "fused", "fp16", "scattered", "server"),
    "accumulate4_fp16",
)  # fmt: skip
OPTIMIZERS = ("sgd", "nesterov", "adamw", "lars", "lamb")
SCHEDULES = ("warmup", "step", "cosine", "onecycle")
STRUCTURES = (
    *("functions", "class", "argparse", "guard", "module", "try", "logging", "typed", "signals"),
)  # fmt: skip
REGULARISATIONS = ("lab", "own", "smoothing", "mixup", "decay", "clipping", "ema")
PRECISIONS = ("float32", "bfloat16", "scaled_bfloat16", "channels_last")

OWN_LOADER = "Data: pass the training set to Batches on every rank"
OWN_AUGMENTATION = "Gradients: no augmentation of your own"
OWN_RANDOMNESS = "Gradients: no mixing of images"


@dataclass(frozen=True)
class Style:
    """One combination: a value of each axis.

    Attributes:
        framework: of FRAMEWORKS, and so on.
    """

    framework: str
    data: str
    exchange: str
    optimizer: str
    schedule: str
    structure: str
    regularisation: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.framework}_{self.data}_{self.exchange}_{self.regularisation}"

    @property
    def accumulated(self) -> int:
        """Return over how many batches gradients are accumulated before one exchange."""
        return {"accumulate2": 2, "accumulate4": 4, "accumulate4_fp16": 4}.get(self.exchange, 1)

    @property
    def rule(self) -> str:
        """Return the rule of the task page that the style bends, or "" if it keeps all rules."""
        bent = []
        if self.data in ("loader", "tfdata"):
            bent.append(OWN_LOADER)
        if self.regularisation == "own":
            bent.append(OWN_AUGMENTATION)
        if self.regularisation == "mixup":
            bent.append(OWN_RANDOMNESS)
        return "; ".join(bent)

    @property
    def augment(self) -> bool:
        """Return whether Batches augments the images."""
        return self.regularisation != "own"


SHARED = re.compile(r"\$(\w+)")
ASSIGNED = re.compile(r"^(?:def (train_step)\(|([\w$, ]*\$[\w$, ]*) = )", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """Consecutive statements that do one thing. `$name` is a variable that other parts use too.

    Attributes:
        task: what the part does, as the name of a function.
        code: the statements.
    """

    task: str
    code: str

    @property
    def gives(self) -> list[str]:
        """Return the shared variables that the part assigns, in order."""
        found: dict[str, None] = {}
        for match in ASSIGNED.finditer(self.code):
            found |= dict.fromkeys([match[1]] if match[1] else SHARED.findall(match[2]))
        return list(found)

    @property
    def needs(self) -> list[str]:
        """Return the shared variables that the part uses and does not assign itself, in order."""
        used = dict.fromkeys(SHARED.findall(self.code))
        return [name for name in used if name not in self.gives]


@dataclass
class Pieces:
    """All pieces of a script, before they get a structure.

    Attributes:
        settings: lines before the imports, such as environment variables.
        imports: import statements.
        start: statements at the top of the module that every structure has, such as `comm = ...`.
        helpers: functions and classes at the top of the module.
        parts: what the script does before it trains.
        train: the part that trains one epoch, or the whole training if `epochs` is empty.
        epoch: what follows each epoch, with `$report` for the line that is printed.
        finish: what ends the script in a `finally`.
        names: text for `$rank`, `$size`, `$local_rank`.
    """

    settings: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    start: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    train: Part = Part("train", "")
    epoch: str = ""
    finish: str = ""
    names: dict[str, str] = field(default_factory=dict)


def indented(code: str, levels: int = 1) -> str:
    """Return code moved to the right; empty lines stay empty."""
    return "\n".join("    " * levels + line if line else "" for line in code.splitlines())


def replaced(code: str, names: dict[str, str]) -> str:
    """Return code with the `$names` replaced that are known."""
    return Template(code).safe_substitute(names)
