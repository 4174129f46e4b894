"""Collect facts about a script's source that help to explain a failed check.

The facts only choose words. They are never evidence, because a script can hide what it does.
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hvdlab.script_analysis.script import Script

READERS = ("DataLoader", "DistributedSampler", "from_tensor_slices", "from_generator")
RANDOM = (
    *(
        "random",
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "integers",
        "uniform",
        "normal",
    ),
    *("standard_normal", "beta", "choice", "shuffle", "permutation", "randperm", "bernoulli"),
    *(
        "dropout",
        "Dropout",
        "GaussianNoise",
        "flip",
        "fliplr",
        "random_flip_left_right",
        "random_crop",
    ),
    *("RandomFlip", "RandomCrop", "RandomHorizontalFlip", "RandomTranslation"),
)
REPEATED = ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Place:
    """A place in the source: the line, and the name that stands there."""

    line: int
    name: str

    def __str__(self) -> str:
        return f"line {self.line} ({self.name})"


@dataclass(frozen=True)
class ScriptFacts:
    """What the source of a script contains.

    Attributes:
        imports: every module that it imports by name.
        adasum: the first use of Adasum, in code and not in a comment.
        reader: the first call of a data loader other than hvdlab's `Batches`.
        random: the first call of a random function in a loop or function, else the first one at all.
        sum_loss: the first loss that is a sum instead of a mean.
        compression: the first use of a compression that rounds gradients before they are averaged.
    """

    imports: frozenset[str] = frozenset()
    adasum: Place | None = None
    reader: Place | None = None
    random: Place | None = None
    sum_loss: Place | None = None
    compression: Place | None = None

    @classmethod
    def of(cls, script: Script) -> "ScriptFacts":
        """Return the facts of a parsed script."""
        return cls(
            imports=frozenset(script.imports),
            adasum=first(script, script.nodes, is_adasum),
            reader=first_call(script, READERS),
            random=first_call(script, RANDOM, repeated=True) or first_call(script, RANDOM),
            sum_loss=first(script, script.nodes, is_sum_loss),
            compression=first(script, script.nodes, is_compression),
        )

    @classmethod
    def from_json(cls, values: dict) -> "ScriptFacts":
        """Return the facts from the result of `to_json`."""
        places = {
            name: Place(*place) for name, place in values.items() if name != "imports" and place
        }
        return cls(imports=frozenset(values.get("imports", ())), **places)

    def to_json(self) -> dict:
        """Return the facts as JSON values."""
        places = ("adasum", "reader", "random", "sum_loss", "compression")
        found = {name: getattr(self, name) for name in places}
        return {"imports": sorted(self.imports)} | {
            name: [place.line, place.name] if place else None for name, place in found.items()
        }


def first(
    script: Script, nodes: Iterable[ast.AST], accepts: Callable[[ast.AST], str]
) -> Place | None:
    """Return the first place, by line, for whose node `accepts` returns a name."""
    places = [Place(node.lineno, name) for node in nodes if (name := accepts(node))]
    return min(places, key=lambda place: place.line, default=None)


def first_call(script: Script, last: tuple[str, ...], *, repeated: bool = False) -> Place | None:
    """Return the first call of a function whose name ends in one of `last`.

    Args:
        repeated: only look in loops and functions. Default: False.
    """
    calls = [
        call
        for call in script.named(*last)
        if not repeated or any(isinstance(node, REPEATED) for node in script.ancestors(call))
    ]
    return first(script, calls, lambda call: ast.unparse(call.func)[:60])


def is_adasum(node: ast.AST) -> str:
    return "Adasum" if "Adasum" in (getattr(node, "attr", ""), getattr(node, "id", "")) else ""


def is_sum_loss(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", getattr(keyword.value, "attr", ""))
            if keyword.arg == "reduction" and str(value).lower() == "sum":
                return 'reduction="sum"'
    return ""


def is_compression(node: ast.AST) -> str:
    name = getattr(node, "attr", getattr(node, "id", ""))
    inside = getattr(
        getattr(node, "value", None), "attr", getattr(getattr(node, "value", None), "id", "")
    )
    if name.endswith(("_compress_hook", "powerSGD_hook")):
        return name
    return f"Compression.{name}" if inside == "Compression" and name != "none" else ""
