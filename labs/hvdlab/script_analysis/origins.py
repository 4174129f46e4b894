"""The places from which a script gets the rank, the number of ranks, and similar values."""

import re
from typing import NamedTuple

# Variables that hold the arguments of a script.
COMMAND_LINES = ("args", "arguments", "opt", "options", "config", "cfg", "hparams", "FLAGS")


class Origin(NamedTuple):
    """A source of values such as the rank.

    Attributes:
        calls: last names of the functions that return it.
        environment: names of the environment variables that hold it. Default None: no variable.
        names: names that hold it, where the script does not define them. Default None: no name.
    """

    calls: frozenset[str]
    environment: re.Pattern | None = None
    names: re.Pattern | None = None


# A process gets its rank from Horovod, mpi4py, torch.distributed, or a variable of the launcher.
RANK = Origin(
    frozenset({"rank", "local_rank", "cross_rank", "Get_rank", "get_rank", "launched_rank"}),
    re.compile(r"\A\w*(RANK|PROCID)\Z"),
)
SIZE = Origin(
    frozenset({"size", "local_size", "Get_size", "get_world_size"}),
    re.compile(r"(WORLD|LOCAL)_SIZE\Z|NTASKS\Z"),
    re.compile(r"\A(world_)?size\Z|\An(um)?_(ranks|procs|processes|workers|gpus|replicas)\Z"),
)
GLOBAL_RANK = Origin(frozenset({"rank", "Get_rank", "get_rank"}))
GLOBAL_SIZE = Origin(frozenset({"size", "Get_size", "get_world_size"}))
LOCAL_RANK = Origin(frozenset({"local_rank"}))
