"""Calls of Horovod: init, the wrapped optimizer, broadcasts and collectives."""

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.script_analysis.collectives import BROADCASTS, COLLECTIVES, GRADIENTS
from hvdlab.trace import records

WRAPPERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer")
METHODS = ("gradient", "apply_gradients", "apply")  # of what they return, which average gradients
MAX_FRAMES = 12  # of the call stack that are searched for one of GRADIENTS


def watch(hvd: ModuleType, watch: Watch) -> None:
    """Wrap the functions of a Horovod module."""
    for name in COLLECTIVES:
        if hasattr(hvd, name):
            wrap = _broadcast if name in BROADCASTS else _collective
            setattr(hvd, name, wrap(getattr(hvd, name), name, watch))
    for name in WRAPPERS:
        if hasattr(hvd, name):
            setattr(hvd, name, _wrapper(getattr(hvd, name), name, hvd, watch))
    if hasattr(hvd, "join"):
        hvd.join = _noted(hvd.join, records.Join, watch)
    if hasattr(hvd, "init"):  # hvdlab.keras.collectives has none
        hvd.init = _init(hvd.init, hvd, watch)
    operations = getattr(hvd, "mpi_ops", None)
    if hasattr(operations, "_check_function"):  # of horovod.torch: called for each tensor it sends
        operations._check_function = _without_cuda(operations, watch)


def remember_line(cls: type, watch: Watch) -> None:
    """Make the objects of a class keep the line of the script that created them."""
    initialize = cls.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        if not hasattr(self, "_hvdlab_line"):
            object.__setattr__(self, "_hvdlab_line", watch.line())
        initialize(self, *arguments, **options)

    cls.__init__ = __init__


def _init(init: Callable, hvd: ModuleType, watch: Watch) -> Callable:
    """Return hvd.init that writes down its call."""

    @functools.wraps(init)
    def call(*arguments: Any, **options: Any) -> None:
        init(*arguments, **options)
        watch.note(records.Init, rank=hvd.rank(), size=hvd.size())

    return call


def _without_cuda(operations: ModuleType, watch: Watch) -> Callable:
    """Return a check that ends the script when a Horovod without CUDA gets a CUDA tensor.

    Horovod 0.28.1 would copy the tensor without waiting for the copy and then wait for ever.
    """
    check = operations._check_function

    @functools.wraps(check)
    def call(function_factory: Callable, tensor: Any) -> Any:
        if tensor.device.type == "cuda" and not operations.cuda_built():
            watch.note(records.CudaTensor, device=str(tensor.device))
            raise SystemExit  # also in a thread of PyTorch's, which passes it on
        return check(function_factory, tensor)

    return call


def _noted(function: Callable, kind: type[records.Record], watch: Watch) -> Callable:
    """Return a function that writes down its calls as records of one kind."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        watch.note(kind)
        return function(*arguments, **options)

    return call


def _collective(function: Callable, name: str, watch: Watch) -> Callable:
    """Return a collective that writes down its calls, or the ranks of its process set."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if _of_gradients():
            return function(*arguments, **options)
        if _traced():  # it runs with the graph, and not now
            _note_traced(f"hvd.{name}", watch)
            return function(*arguments, **options)
        given = _given(signature, arguments, options)
        if members := _members(given):
            watch.note(records.Group, ranks=members)
            return function(*arguments, **options)
        named = given.get("name")
        with watch.inside(f"hvd.{name}", named if isinstance(named, str) else None):
            return function(*arguments, **options)

    return call


def _note_traced(operation: str, watch: Watch) -> None:
    """Write down a collective that becomes a part of the graph that TensorFlow is tracing."""
    graph = sys.modules["tensorflow"].compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph  # a graph inside it is a branch or a loop
    function = getattr(graph, "name", None)
    before = sum(name == function for name, _ in watch.graphs.values())
    function, number = watch.graphs.setdefault(graph, (function, before))
    watch.note(records.Traced, op=operation, function=function, graph=number)


def _broadcast(function: Callable, name: str, watch: Watch) -> Callable:
    """Return a broadcast of a model or optimizer that writes down how many weights each call sends."""
    of_optimizer = name == "broadcast_optimizer_state"

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(
            arguments[0], Iterator
        ):  # to count the weights would exhaust it
            sent = list(arguments[0])
            arguments = iter(sent), *arguments[1:]
        else:
            sent = arguments[0] if arguments else None
        tensors = [] if of_optimizer else _tensors(sent)
        # The variables of an optimizer of Keras are not trainable.
        weights = None if tensors is None else sum(getattr(t, "trainable", True) for t in tensors)
        # The broadcast of a state steps the optimizer, to create that state.
        wrapping, watch.wrapping = watch.wrapping, True
        try:
            if not wrapping:
                watch.note(records.Broadcast, what=f"hvd.{name}", weights=weights)
                watch.progress += not of_optimizer
            if _traced():
                _note_traced(f"hvd.{name}", watch)
                return function(*arguments, **options)
            with watch.inside(f"hvd.{name}"):
                return function(*arguments, **options)
        finally:
            watch.wrapping = wrapping
            if watch.gradients:
                watch.gradients.begin(tensors or ())

    return call


def _tensors(sent: Any) -> list[Any] | None:
    """Return the tensors that a broadcast gets, or None if they are unknown."""
    if not isinstance(sent, Iterable):
        return None
    values = sent.values() if isinstance(sent, Mapping) else sent
    return [each[1] if isinstance(each, tuple) else each for each in values]


def _wrapper(function: Callable, name: str, hvd: ModuleType, watch: Watch) -> Callable:
    """Return DistributedOptimizer, or another of WRAPPERS, that writes down what it wraps."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        wrapped = arguments[0] if arguments else options.get("optimizer")
        if members := _members(_given(signature, arguments, options)):
            watch.note(records.Group, ranks=members)
        nested, watch.wrapping = watch.wrapping, True
        try:
            result = function(*arguments, **options)
        finally:
            watch.wrapping = nested
        for method in METHODS:
            if hasattr(result, method):
                _wait_in(result, method, watch)
        if not nested and not (watch.taped and "Tape" in name):  # there is a new tape in each step
            number = getattr(wrapped, "_hvdlab_number", None)
            if number is not None:
                object.__setattr__(result, "_hvdlab_number", number)
            object.__setattr__(result, "_hvdlab_wrapped", True)
            watch.taped = watch.taped or name == "DistributedGradientTape"
            if hasattr(result, "_handles"):  # of PyTorch: the gradients that are being averaged
                watch.exchanging.append(weakref.ref(result))
            watch.note(records.Wrap, what=f"hvd.{name}", optimizer=number,
                       own_module=_of_own_module(result), reduces=_reduction(hvd, name, options))  # fmt: skip
        return result

    return call


def _wait_in(owner: Any, method: str, watch: Watch) -> None:
    """Make a method of an object note that the rank may wait in it for other ranks."""
    function = getattr(owner, method)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if watch.fitting or _traced():
            return function(*arguments, **options)
        watch.waits_in(f"{type(owner).__name__}.{method}", watch.line())
        try:
            return function(*arguments, **options)
        finally:
            watch.waits.pop()

    object.__setattr__(owner, method, call)


def _given(
    signature: inspect.Signature, arguments: tuple, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    try:
        return signature.bind_partial(*arguments, **options).arguments
    except TypeError:  # the call fails
        return {}


def _members(given: dict[str, Any]) -> list[int] | None:
    """Return the ranks of the process set that a call names, or None for all ranks.

    The set of all ranks has the number 0, and a set has no ranks before it is added.
    """
    chosen = given.get("process_set")
    number = getattr(chosen, "process_set_id", chosen)
    return (getattr(chosen, "ranks", None) or []) if number else None


def _of_own_module(optimizer: Any) -> bool:
    """Return whether Horovod's own Keras module made a wrapped optimizer."""
    return type(optimizer).__module__ == "horovod._keras"


def _reduction(hvd: ModuleType, wrapper: str, options: dict[str, Any]) -> str:
    """Return the name of the operation that combines gradients: "Average", "Sum" or "Adasum"."""
    if wrapper == "DistributedAdasumOptimizer":
        return "Adasum"
    op = options.get("op")
    for name in ("Sum", "Adasum"):
        if op is not None and op == getattr(hvd, name, None):
            return name
    return "Average"


def _traced() -> bool:
    """Return whether TensorFlow is building a graph."""
    tf = sys.modules.get("tensorflow")
    eager = getattr(tf, "executing_eagerly", None)  # absent while TensorFlow is being imported
    return eager is not None and not eager()


def _of_gradients() -> bool:
    """Return whether Horovod or hvdlab itself makes the call, to average gradients."""
    frame, depth = sys._getframe(2), 0
    while frame and depth < MAX_FRAMES:
        if frame.f_code.co_name in GRADIENTS:
            if frame.f_globals.get("__name__", "").startswith(("horovod.", "hvdlab.")):
                return True
        frame, depth = frame.f_back, depth + 1
    return False
