"""The names of collectives, and the functions of a script that call them."""

import ast
from collections.abc import Collection

from hvdlab.script_analysis.ast_helpers import identifier, last_name
from hvdlab.script_analysis.script import Script

BROADCASTS = (  # of a whole model
    "broadcast_parameters", "broadcast_variables", "broadcast_global_variables",
    "broadcast_optimizer_state",
)  # fmt: skip
COLLECTIVES = (
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "grouped_allreduce", "grouped_allreduce_", "allgather", "grouped_allgather", "allgather_object",
    "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object",
    "alltoall", "reducescatter", "grouped_reducescatter", "barrier", "average_metrics", *BROADCASTS,
)  # fmt: skip
TORCH_COLLECTIVES = (  # of torch.distributed
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list",
)  # fmt: skip


# Functions of Horovod and hvdlab that average gradients: their collectives are no calls of the script.
GRADIENTS = {"allreduce_grads", "_all_reduce_gradients", "_all_reduce", "_allreduce"}
MPI_COLLECTIVES = {  # of mpi4py, in lower case: comm.allreduce and comm.Allreduce
    "allgather", "allgatherv", "allreduce", "alltoall", "barrier", "bcast", "gather", "gatherv", "reduce",
    "scatter", "scatterv",
}  # fmt: skip


def of_mpi4py(script: Script) -> set[ast.Call]:
    """Return the calls of collectives of mpi4py, whose owner has `comm` in its name."""
    if not script.imported("mpi4py"):
        return set()
    return {
        call
        for call in script.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr.lower() in MPI_COLLECTIVES
        and "comm" in ast.unparse(call.func.value).lower()
    }


def callers(script: Script, names: Collection[str]) -> set[str]:
    """Return the names of the script's own functions that call some functions, directly or not."""
    found: set[str] = set()
    while True:  # until no function is added
        called = script.named(*{*names, *found})
        more = {getattr(script.inside[call], "name", "") for call in called} - {"", *found}
        if not more:
            return found
        found |= more


def combining(script: Script) -> set[str]:
    """Return the last names of the functions that combine values of the ranks, the script's own included."""
    names = {*COLLECTIVES, *TORCH_COLLECTIVES}
    names = {name for name in names if "broadcast" not in name and "barrier" not in name}
    return names | callers(script, names)


def applies(call: ast.Call) -> bool:
    """Return whether a call applies gradients; `apply` alone may be another function."""
    owner = getattr(call.func, "value", None)
    named = last_name(call) == "apply" and (identifier(owner) or "").startswith("opt")
    return named or last_name(call) == "apply_gradients"
