"""What a script asks of Horovod: init, the wrapped optimizer, broadcasts and collectives."""

import functools
import sys

from hvdlab.check.source_facts import BROADCASTS, COLLECTIVES

WRAPPERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer")
# Calls from here are the averaging of gradients itself.
GRADIENTS = {"allreduce_grads", "_all_reduce_gradients", "_all_reduce", "_allreduce"}


def watch(hvd, watch) -> None:
    """Wrap the functions of a Horovod module: horovod.torch, horovod.tensorflow, ..."""
    for name in COLLECTIVES:
        if hasattr(hvd, name):
            wrap = _broadcast if name in BROADCASTS else _collective
            setattr(hvd, name, wrap(getattr(hvd, name), name, watch))
    for name in WRAPPERS:
        if hasattr(hvd, name):
            setattr(hvd, name, _wrapper(getattr(hvd, name), name, hvd, watch))
    if hasattr(hvd, "join"):
        hvd.join = _noted(hvd.join, "join", watch)
    if hasattr(hvd, "callbacks"):  # horovod.tensorflow.keras: remember where each is made
        for value in vars(hvd.callbacks).values():
            if isinstance(value, type) and hasattr(value, "on_epoch_end"):
                remember_line(value, watch)
    if hasattr(hvd, "init"):  # hvdlab.keras.collectives has none
        hvd.init = _init(hvd.init, hvd, watch)
    operations = getattr(hvd, "mpi_ops", None)
    if hasattr(operations, "_check_function"):  # of horovod.torch: it sees each tensor that is sent
        operations._check_function = _without_cuda(operations, watch)


def remember_line(cls, watch) -> None:
    """Let the objects of a class know the line of the script that made them."""
    make = cls.__init__

    @functools.wraps(make)
    def __init__(self, *arguments, **options):
        if not hasattr(self, "_hvdlab_line"):
            object.__setattr__(self, "_hvdlab_line", watch.line())
        make(self, *arguments, **options)

    cls.__init__ = __init__


def _init(init, hvd, watch):
    @functools.wraps(init)
    def call(*arguments, **options):
        init(*arguments, **options)
        watch.note("init", rank=hvd.rank(), size=hvd.size(), local_size=hvd.local_size())

    return call


def _without_cuda(operations, watch):
    """Note a CUDA tensor that a Horovod without CUDA gets, and end the script.

    Horovod 0.28.1 would copy the tensor without waiting for the copy and then wait for ever.
    """
    check = operations._check_function

    @functools.wraps(check)
    def call(function_factory, tensor):
        if tensor.device.type == "cuda" and not operations.cuda_built():
            watch.note("cuda tensor", device=str(tensor.device))
            raise SystemExit  # also in a thread of PyTorch's, which hands it on
        return check(function_factory, tensor)

    return call


def _noted(function, kind, watch):
    @functools.wraps(function)
    def call(*arguments, **options):
        watch.note(kind)
        return function(*arguments, **options)

    return call


def _collective(function, name, watch):
    @functools.wraps(function)
    def call(*arguments, **options):
        # Part of a graph runs with the graph, not now; and a process set is not for all ranks.
        if _traced() or _of_gradients() or "process_set" in options:
            return function(*arguments, **options)
        with watch.inside(f"hvd.{name}"):
            return function(*arguments, **options)

    return call


def _broadcast(function, name, watch):
    @functools.wraps(function)
    def call(*arguments, **options):
        wrapping, watch.wrapping = watch.wrapping, True  # it steps the optimizer to make its state
        try:
            if not wrapping:
                watch.note("broadcast", what=f"hvd.{name}")
            if _traced():
                return function(*arguments, **options)
            with watch.inside(f"hvd.{name}"):
                return function(*arguments, **options)
        finally:
            watch.wrapping = wrapping

    return call


def _wrapper(function, name, hvd, watch):
    @functools.wraps(function)
    def call(*arguments, **options):
        wrapped = arguments[0] if arguments else options.get("optimizer")
        nested, watch.wrapping = watch.wrapping, True
        try:
            result = function(*arguments, **options)
        finally:
            watch.wrapping = nested
        if not nested and not (watch.tape and "Tape" in name):  # a tape is made at each step
            number = getattr(wrapped, "_hvdlab_number", None)
            if number is not None:
                object.__setattr__(result, "_hvdlab_number", number)
            object.__setattr__(result, "_hvdlab_wrapped", True)
            watch.tape = watch.tape or name == "DistributedGradientTape"
            watch.note("wrap", what=f"hvd.{name}", optimizer=number,
                       averages=averages(result), reduces=_reduction(hvd, options))  # fmt: skip
        return result

    return call


def averages(optimizer) -> bool:
    """False for what Horovod's own Keras module makes of an optimizer of Keras 3.

    It overrides `apply_gradients`; the trainer of Keras 3 calls `apply`.
    """
    classes = {cls.__module__ for cls in type(optimizer).__mro__}
    keras3 = any(module.startswith("keras.src") for module in classes)
    return not (keras3 and hasattr(type(optimizer), "_allreduce"))


def _reduction(hvd, options) -> str:
    op = options.get("op")
    for name in ("Sum", "Adasum"):
        if op is not None and op == getattr(hvd, name, None):
            return name
    return "Average"


def _traced() -> bool:
    tf = sys.modules.get("tensorflow")
    eager = getattr(tf, "executing_eagerly", None)  # absent while TensorFlow is being imported
    return eager is not None and not eager()


def _of_gradients() -> bool:
    frame, depth = sys._getframe(2), 0
    while frame and depth < 12:
        if frame.f_code.co_name in GRADIENTS:
            return True
        frame, depth = frame.f_back, depth + 1
    return False
