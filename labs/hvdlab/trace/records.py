"""The records of a trace. Each has a class, whose name in lower case is its `kind` in the file.

Hashes stand for data: two ranks that read the same samples write the same hash.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, dataclass_transform

Loops = list[list[int]]  # [line, round] of the loops that are running, the outermost first
Stack = list[int]  # lines of the script that have led here, the outermost first


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Record:
    """Something that a rank did.

    Attributes:
        at: seconds since the start of the watch.
        steps: optimizer steps so far.
        line: of the script or of a module of it (see `hvdlab.check.places`), or None.
    """

    at: float = 0.0
    steps: int = 0
    line: int | None = None

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Start(Record):
    """The watch of a rank began."""

    rank: int = 0
    size: int = 1


class End(Record):
    """The script ended: with an error in one line, or None; `made` is the line that created what failed."""

    error: str | None = None
    made: int | None = None


class Module(Record):
    """The script imported a module of its folder. `block` is added to its lines."""

    path: str
    block: int


class Unread(Record):
    """The script imported a file that is neither in its folder nor installed."""

    path: str


class Devices(Record):
    """The rank sees GPUs: how many, and the value of CUDA_VISIBLE_DEVICES."""

    count: int
    visible: str | None


class Spawn(Record):
    """The script starts processes by itself, and the watch ends it."""


class Init(Record):
    """The rank has joined the others; `library` is torch.distributed, or None for Horovod."""

    rank: int = 0
    size: int
    library: str | None = None


class Wrap(Record):
    """An optimizer, a tape or a model was wrapped.

    Attributes:
        what: the wrapper.
        optimizer: number of the optimizer in it, or None.
        own_module: whether it is one of Horovod's own Keras module.
        reduces: "Average", "Sum" or "Adasum".
    """

    what: str
    optimizer: int | None
    own_module: bool = False
    reduces: str = "Average"


class Broadcast(Record):
    """The state of an optimizer or this many weights were sent; None: they are unknown."""

    what: str
    weights: int | None


class Group(Record):
    """A call names a process set or group of these ranks."""

    ranks: list[int]


class Join(Record):
    """The rank takes part in the collectives of ranks that have more batches."""


class Destroy(Record):
    """The process group was destroyed."""


class Collective(Record):
    """A collective was called, with the name that the script gives to its tensor."""

    op: str
    name: str | None = None
    stack: Stack


class Traced(Record):
    """A collective became a part of a graph of TensorFlow: of the graph with this number of a function."""

    op: str
    function: str | None
    graph: int


class Waiting(Record):
    """A call that may wait for other ranks lasts long."""

    op: str
    name: str | None = None
    loops: Loops
    stack: Stack = ()


class Continues(Record):
    """The call that lasted long has returned."""


class CudaTensor(Record):
    """A Horovod without CUDA got a tensor on this device, and the watch ends the script."""

    device: str


class Optimizer(Record):
    """An optimizer was created.

    Attributes:
        optimizer: its number, in the order of creation.
        name: its class.
        api: "torch" or "keras".
        dropped: a learning rate that it got as `lr` and does not use.
        default: learning rate of its class.
    """

    optimizer: int
    name: str
    api: str
    dropped: float | None = None
    default: float | None = None


class Callback(Record):
    """`fit` got a callback that stops, or sets the learning rate."""

    name: str


class Norm(Record):
    """The first layer of batch norm was created."""


@dataclass(frozen=True)
class Gradient:
    """Sketches of the gradients of a step, see `hvdlab.check.gradient_shares`.

    Attributes:
        used: of the gradient that the optimizer uses, or None.
        local: of what the backward passes of this rank have given since the last step, or None.
        changed: line that has changed the gradients between the two, or None.
    """

    used: list[float] | None
    local: list[float] | None
    changed: int | None = None


@dataclass(frozen=True)
class NormStatistics:
    """The running statistics of a layer of batch norm, and how much of the mean is not its initial value."""

    mean: list[float]
    variance: list[float]
    filled: float


class Step(Record):
    """A step of an optimizer.

    Attributes:
        optimizer: its number, or None if it was created before the watch.
        wrapped: whether the object that steps is Horovod's wrapper.
        loops, stack: where.
        forward, backward: lines that called the model, and the backward pass, since the last step.
        loss, rate, momentum: of the step; None where they are not known.
        rate_line: line that has set the rate.
        batch: hash of what the model read.
        rows: its length.
        start, weights: norms of the weights before and after the step.
        unused: name of a weight of the wrapped model that got no gradient.
        planned: steps that the loops around it make in total.
        taped_at: line that got the gradients from a tape.
        pending: whether Horovod still averages gradients when the step begins.
        gradient: sketches, in the first steps.
        statistics: of batch norm, in some steps.
    """

    optimizer: int | None
    wrapped: bool
    loops: Loops
    stack: Stack
    forward: int | None = None
    backward: int | None = None
    loss: float | None = None
    rate: float | None
    rate_line: int | None = None
    momentum: float = 0.0
    batch: str | None = None
    rows: int | None = None
    start: list[float] | None = None
    weights: list[float]
    unused: str | None = None
    planned: int | None = None
    taped_at: int | None = None
    pending: bool = False
    gradient: Gradient | None = None
    statistics: list[NormStatistics] | None = None


class Clip(Record):
    """Gradients were changed by this function, while Horovod averages them or in a hook before that."""

    HOOK: ClassVar[str] = "a hook of a parameter"
    what: str


class Fit(Record):
    """`fit` was called: batches of an epoch, and the hash of the data."""

    length: int | None
    content: int | None = None


class Fitted(Record):
    """`fit` has returned, after all epochs or before (`cut`)."""

    cut: bool


class Loop(Record):
    """A training loop has made its first round.

    Attributes:
        length: its rounds, or None.
        made: line that created what it reads.
        nested: whether it is around another training loop.
    """

    length: int | None
    made: int | None
    nested: bool


class Pass(Record):
    """A training loop has ended: its rounds, how ("at its end", "early" or "cut"), and by which line."""

    iterations: int
    left: str
    leaves: int | None = None


class Decision(Record):
    """A value on which a stop depends."""

    text: str
    value: float
    loops: Loops
    stack: Stack


class Evaluate(Record):
    """A model was evaluated.

    Attributes:
        made: line of the loader, or None.
        sharded: whether it reads the shard of one rank.
        content: hash of the data, or None.
        loops: where.
    """

    made: int | None
    sharded: bool
    content: int | None
    loops: Loops


class Split(Record):
    """Data were divided at random: hashes of the parts, and of the data if known."""

    order: int | str | None
    of: int | str | None


class Part(Record):
    """A rank takes its part of data: a slice, a shard, or what a DistributedSampler gives it of a subset.

    Attributes:
        which: the part: bounds of a slice, or index and number of a shard; None if it cannot be told.
        items: of what is divided, or None.
        content, order: hashes of it in any order and in its order, or None.
        again: whether it is itself a part already.
    """

    which: list[float | None] | None = None
    items: int | None = None
    content: int | None = None
    order: int | str | None = None
    again: bool = False


class Sampler(Record):
    """A DistributedSampler was created: its replicas, the split it samples, and a number for the data."""

    replicas: int
    split: int | None
    data: int = 0


class Sampled(Record):
    """A loader got the DistributedSampler of a line, or reads it."""

    made: int | None


class Order(Record):
    """A shuffling DistributedSampler gave an epoch its order; `set_at` is the line of set_epoch."""

    made: int | None
    epoch: int
    set_at: int | None
    order: int


class Reads(Record):
    """A loader began to read.

    Attributes:
        made: its line.
        data: a number for the data set.
        sampled, sampler: whether a DistributedSampler shards it, and its line.
        rows, batches: of an epoch, or None.
        content: hash of the data if it reads all of them.
    """

    made: int | None
    data: int = 0
    sampled: bool = False
    sampler: int | None = None
    rows: int | None = None
    batches: int | None = None
    content: int | None = None


class Load(Record):
    """Weights or a state were loaded or changed; is the model in a DistributedDataParallel?"""

    wrapped: bool = False


class Save(Record):
    """A file was written."""

    path: str


class Lock(Record):
    """A file was locked."""

    path: str


class Download(Record):
    """Something was requested from a server, under a lock or not."""

    url: str
    locked: bool


class Report(Record):
    """What a rank has read and reached in the last epoch of a whole run, see `hvdlab.check.rank_report`.

    Attributes:
        weights: hash of its weights at the end, or None.
        epochs: that made a step.
        steps_of_epoch: steps of the last one.
        examples: inputs of training steps; None if the watch did not see them.
        loss, accuracy: of training; None where the watch did not see them.
        held_out: accuracy of evaluation, or None.
        inputs: hashes of the different inputs.
        again: whether it has read an input in several epochs.
    """

    weights: str | None = None
    epochs: int = 0
    steps_of_epoch: int | None = None
    examples: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    held_out: float | None = None
    inputs: list[int] | None = None
    again: bool = False


FIELDS = {kind: [f.name for f in dataclasses.fields(kind)] for kind in Record.__subclasses__()}
KINDS = {kind.__name__.lower(): kind for kind in Record.__subclasses__()}


Trace = dict[int, list[Record]]  # rank -> what it did, in the order in which it happened


def as_line(record: Record, number: Callable[[object], float | None]) -> str:
    """Return the line of a file that holds a record.

    Args:
        number: returns the number that a value of a framework stands for.
    """
    fields = {name: getattr(record, name) for name in FIELDS[type(record)]}
    return json.dumps({"kind": type(record).__name__.lower(), **fields}, default=number)


def from_line(line: str) -> Record:
    """Return the record of a line that `as_line` has made."""
    return from_fields(json.loads(line))


def from_fields(fields: dict) -> Record:
    """Return the record with these fields, one of which is its `kind`."""
    fields = dict(fields)
    kind = KINDS[fields.pop("kind")]
    if fields.get("gradient"):
        fields["gradient"] = Gradient(**fields["gradient"])
    if kind is Step and fields.get("statistics"):
        fields["statistics"] = [NormStatistics(**each) for each in fields["statistics"]]
    return kind(**fields)
