"""Find the module whose weights are recorded: inside the wrappers of DDP and torch.compile."""

from torch import nn
from torch.nn.parameter import is_lazy

from hvdlab.recordable import NotRecordable, in_grading, network_among
from hvdlab.torch.models import recorded_state

# Class of a wrapper -> its attribute with the module inside. They are compared by name, because not every
# build of PyTorch can import torch.distributed, and the import of torch.compile's class takes seconds.
WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


def recorded_module(model: nn.Module) -> nn.Module:
    """Return the module whose weights a Recorder writes.

    Args:
        model: any module, also in wrappers of DistributedDataParallel, DataParallel or torch.compile.

    Returns:
        The module inside the wrappers. Where the grader runs this, the network of the assessment in it.

    Raises:
        NotRecordable: it is not a module, FSDP shards it, or the grader runs this and it does not contain the
            network of the assessment once.
    """
    if not isinstance(model, nn.Module):
        raise NotRecordable(
            "Recorder: 'model' must be a torch.nn.Module. Received: "
            f"{type(model).__name__}. Write Recorder(model, batches), with the network that you train."
        )
    if any(SHARDED & classes(part) for part in model.modules()):
        raise NotRecordable(
            "Recorder: 'model' must hold whole weights on every rank. Received: "
            f"{type(model).__name__}, whose weights FSDP shards over the ranks. Use DistributedDataParallel."
        )
    inside = unwrapped(model)
    if not in_grading():
        return inside
    parts = [part for part in inside.modules() if not WRAPPERS.keys() & classes(part)]
    found = [shapes(part) for part in parts]
    return parts[network_among(found, model, "hvdlab.torch.models.assessment_network")]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside any number of wrappers."""
    while attributes := [WRAPPERS[name] for name in WRAPPERS.keys() & classes(model)]:
        model = getattr(model, attributes[0])
    return model


def classes(module: nn.Module) -> set[str]:
    """Return the names of the classes of a module: its own class and all base classes."""
    return {base.__name__ for base in type(module).__mro__}


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights of a module, as `to_arrays` records them."""
    state = recorded_state(module).items()
    # A lazy layer has no shape before its first batch.
    return {name: () if is_lazy(tensor) else tuple(tensor.shape) for name, tensor in state}
