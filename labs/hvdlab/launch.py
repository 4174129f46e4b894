"""How N ranks are started on this machine: the command and the environment it needs (stdlib only).

`mpirun -np N python script.py` typed by hand works too; what the environment below adds is speed on
a CPU (and permission, for root and for more ranks than cores).
"""

import os
import sys
from pathlib import Path

from hvdlab.hardware import usable_cores


def command(ranks: int, script: str | Path, *arguments: str) -> list[str]:
    """`mpirun -np RANKS python SCRIPT ARGUMENTS` as a list."""
    return ["mpirun", "-np", str(ranks), "python", str(script), *arguments]


def environment(ranks: int) -> dict[str, str]:
    """The variables under which `ranks` local processes share this machine well.

    Each is the environment's spelling of an mpirun option, so the command line stays the plain one.
    """
    threads = max(1, usable_cores() // ranks)
    variables = {
        # The mpirun and the python of this environment, whether it is activated or not.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # A rank that uses its neighbour's core makes both slower.
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        # A rank that waits must not spin: it would steal its neighbour's core.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # --bind-to none: Horovod's own thread may run wherever a core is free.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if ranks > usable_cores():
        variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    if os.geteuid() == 0:
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return variables
