"""Calls of torch.distributed: the process group, collectives, and the wrapper DistributedDataParallel.

The collectives of the script run in a process group of their own, which also has all ranks. Otherwise Gloo
would match a collective that only one rank calls with an all-reduce of the wrapper on another rank. So the
ranks wait for each other, and `hvdlab.check.deadlock` sees in which calls.
"""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.script_analysis.collectives import TORCH_COLLECTIVES
from hvdlab.trace import records

LIBRARY = "torch.distributed"
WRAPPER = "DistributedDataParallel"


def watch(dist: ModuleType, watch: Watch) -> None:
    """Wrap the functions of torch.distributed."""
    if not hasattr(dist, "init_process_group"):
        return  # a build of PyTorch without it
    initialize, destroy = dist.init_process_group, dist.destroy_process_group

    @functools.wraps(initialize)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        initialize(*arguments, **options)
        watch.group = dist.new_group()
        watch.note(records.Init, library=LIBRARY, rank=dist.get_rank(), size=dist.get_world_size())

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **options: Any) -> None:
        watch.note(records.Destroy)
        destroy(*arguments, **options)

    dist.init_process_group, dist.destroy_process_group = init_process_group, destroy_process_group
    for name in TORCH_COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, _collective(getattr(dist, name), name, dist, watch))


def watch_wrapper(module: ModuleType, watch: Watch) -> None:
    """Wrap the methods of DistributedDataParallel."""
    cls = module.DistributedDataParallel
    initialize, prepare = cls.__init__, cls._pre_forward

    @functools.wraps(initialize)
    def __init__(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        watch.waits_in(WRAPPER, watch.line())
        try:
            initialize(self, module, *arguments, **options)
        finally:
            watch.waits.pop()
        trained = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
        watch.wrapped_parameters |= trained
        watch.progress += 1  # it broadcasts the weights
        watch.note(records.Broadcast, what=WRAPPER, weights=len(trained))
        if watch.gradients:
            watch.gradients.begin(module.parameters())
        watch.note(records.Wrap, what=WRAPPER, optimizer=None, own_module=False, reduces="Average")

    @functools.wraps(prepare)
    def noting_prepare(self: Any, *inputs: Any, **options: Any) -> Any:
        watch.waits_in(f"{WRAPPER}.forward", watch.line())  # it broadcasts the buffers
        try:
            return prepare(self, *inputs, **options)
        finally:
            watch.waits.pop()

    cls.__init__, cls._pre_forward = __init__, noting_prepare


def watch_join(module: ModuleType, watch: Watch) -> None:
    """Write down that ranks with fewer batches take part in the collectives of the others."""
    initialize = module.Join.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        watch.note(records.Join)
        initialize(self, *arguments, **options)

    module.Join.__init__ = __init__


def _collective(function: Callable, name: str, dist: ModuleType, watch: Watch) -> Callable:
    """Return a collective that writes down its calls, or the ranks of its process group."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if watch.in_library("torch."):  # the wrapper, or Join
            return function(*arguments, **options)
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError:
            return function(*arguments, **options)  # which fails
        group = bound.arguments.get("group")
        if group is not None and group is not dist.group.WORLD:
            try:
                watch.note(records.Group, ranks=dist.get_process_group_ranks(group))
            except (ValueError, AttributeError):  # this rank is not in the group
                pass
            return function(*arguments, **options)
        bound.arguments["group"] = watch.group
        with watch.inside(f"dist.{name}"):
            return function(*bound.args, **bound.kwargs)

    return call
