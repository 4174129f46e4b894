"""The libraries with which ranks exchange gradients, and the calls that help texts name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library and its calls, as they are written in a script.

    Attributes:
        modules: beginnings of the names of its modules.
        rank: the call that returns the rank.
        size: the call that returns the number of ranks.
        average: what a script must do so that gradients are averaged.
        broadcast: what it must do so that all ranks begin with the weights of rank 0.
    """

    modules: tuple[str, ...]
    rank: str
    size: str
    average: str
    broadcast: str


KERAS = Library(
    ("hvdlab.keras.horovod",),
    "hvd.rank()",
    "hvd.size()",
    "train with the optimizer that hvd.DistributedOptimizer returned, and create that wrapper once",
    "put hvd.callbacks.BroadcastGlobalVariablesCallback(0) into the callbacks on every rank",
)
SILENT_KERAS = Library(
    ("horovod.tensorflow.keras", "horovod.keras"),
    "hvd.rank()",
    "hvd.size()",
    "horovod.tensorflow.keras does not average gradients on Keras 3 and does not say so: use 'import "
    "hvdlab.keras.horovod as hvd'",
    KERAS.broadcast,
)
HOROVOD = Library(
    ("horovod",),
    "hvd.rank()",
    "hvd.size()",
    "call step() of the optimizer that DistributedOptimizer returned, and create that wrapper once",
    "call hvd.broadcast_parameters and hvd.broadcast_optimizer_state before the first step",
)
TRAINERS = Library(
    ("lightning", "pytorch_lightning", "lightning_fabric", "accelerate", "deepspeed"),
    "dist.get_rank()",
    "dist.get_world_size()",
    'let the library use all ranks (strategy="ddp" of Trainer and Fabric), and train with the model that '
    "its setup(), prepare() or initialize() returned",
    "let the library wrap the model before the first step",
)
DDP = Library(
    ("torch.distributed", "torch.nn.parallel"),
    "dist.get_rank()",
    "dist.get_world_size()",
    "in the training step call the network that DistributedDataParallel returned, not the network inside "
    "it, and leave out no_sync()",
    "initialise and load weights before DistributedDataParallel(model), which sends those of rank 0",
)
MPI4PY = Library(
    ("mpi4py",),
    "comm.Get_rank()",
    "comm.Get_size()",
    "add up the gradients of all ranks with comm.Allreduce after backward(), divide them by the number of "
    "ranks, and then call step()",
    "send the weights of rank 0 with comm.Bcast before the first step",
)
LIBRARIES = (SILENT_KERAS, KERAS, HOROVOD, TRAINERS, DDP, MPI4PY)


def library_of(imports: frozenset[str]) -> Library | None:
    """Return the library with which a script exchanges gradients, or None if it imports none."""
    for library in LIBRARIES:
        wanted = tuple(f"{module}." for module in library.modules)
        if any(f"{name}.".startswith(wanted) for name in imports):
            return library
    return None
