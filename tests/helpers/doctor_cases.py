"""Recorded output, from a machine with a GPU, of the programs that the doctor runs."""

import json

from hvdlab.doctor.answers import ProgramOutput

GPU = "NVIDIA A100, 40960 MiB, 550.54, Default\n"  # a line of nvidia-smi, see gpus.QUESTION
MISSING = ProgramOutput(1, "", "ModuleNotFoundError: No module named it")


def said_in(framework, **horovod):
    """Return the answers of a machine with one framework, whose Horovod may lack a feature."""
    return with_gpus(**{framework: {"horovod": horovod}})


def with_gpus(count=1, line=GPU, **frameworks):
    """Return the answers of a machine with GPUs.

    Args:
        count: GPUs that nvidia-smi lists.
        line: what nvidia-smi prints for each of them.
        frameworks: for torch and TensorFlow, the differences from a framework that sees the GPUs and has a
            complete Horovod. A framework that is not named is not installed.
    """
    said = {"torch": MISSING, "tensorflow": MISSING}
    for name, changes in frameworks.items():
        here = {"version": "2.7.0", "cuda": "12.8", "gpus": count, **changes}
        built = {"mpi": True, "gloo": True, "nccl": True, "cuda": True}
        here["horovod"] = {**built, **changes.get("horovod", {})}
        said[name] = ProgramOutput(0, json.dumps(here), "")
    listed = "".join(f"GPU {i}: NVIDIA A100 (UUID: GPU-{i})\n" for i in range(count))
    said["nvidia-smi"] = ProgramOutput(0, count * line, "")
    said["nvidia-smi --list-gpus"] = ProgramOutput(0, listed, "")
    said["mpirun"] = ProgramOutput(0, "mpirun (Open MPI) 4.1.7", "")
    return said
