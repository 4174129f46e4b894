"""Mistakes on GPUs: which one a rank takes, and the tensors that are given to Horovod.

Each rule takes the run and the facts of the source, and yields findings.
"""

import re

from hvdlab.check.catalogue import finding

# Horovod 0.28.1, horovod/torch/mpi_ops.py: `_check_function`
NOT_ACCEPTED = re.compile(r"Tensor is required to be contiguous|Tensor type \S+ is not supported")


def device(run, facts):
    seen = run.all("devices")
    count = max((event["count"] for event in seen), default=0)
    if count == 1 and len({event["visible"] for event in seen}) == len(run.ranks):
        return  # the launcher has given each rank a GPU
    here = f"{count} GPUs here" if count else "no GPU here, so read from the source"
    if facts.remainder:
        yield finding(
            "gpu-by-remainder",
            facts.remainder,
            "with fewer GPUs than ranks the remainder gives two ranks the same GPU. NCCL refuses that "
            f'("Duplicate GPU detected"), and with TensorFlow both ranks claim all of its memory ({here}).',
        )
    if facts.gpu and facts.pin == "rank":
        yield finding(
            "device-not-pinned",
            facts.gpu,
            "the device is chosen by hvd.rank(), which counts over all machines; local_rank() "
            "counts on one (read from the source).",
        )
    elif facts.gpu and facts.pin != "local_rank":
        yield finding(
            "device-not-pinned",
            facts.gpu,
            "the script uses a GPU and chooses none by rank_device(hvd) or hvd.local_rank(): all ranks "
            f"of a machine take the first ({here}).",
        )
    elif facts.pin != "local_rank" and count > 1 and run.all("fit"):
        yield finding(
            "device-not-pinned",
            run.line("fit"),
            f"TensorFlow takes all {count} GPUs on each rank, and computes on the first.",
        )


def cuda_tensors(run, facts):
    for event in run.all("cuda tensor"):
        yield finding(
            "cuda-without-nccl",
            event["line"] or run.line("wrap"),  # gradients come from a thread of PyTorch's
            f"Horovod was given a tensor on {event['device']}, which it may read before it is computed, "
            "and for which it then waits for ever. The check ended the script before that.",
        )
        return


def layouts(run, facts):
    crash = run.crash()
    if crash and (said := NOT_ACCEPTED.search(crash[1])):
        yield finding(
            "tensor-not-accepted", crash[2], f'rank {crash[0]} ended with Horovod\'s "{said[0]}".'
        )


RULES = device, cuda_tensors, layouts
