"""Mistakes on GPUs: which GPU a rank uses, and which tensors Horovod gets."""

from collections.abc import Iterator

from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import Finding, finding
from hvdlab.trace import records


def device(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about ranks that share a GPU."""
    seen = run.all(records.Devices)
    count = max((event.count for event in seen), default=0)
    if count == 1 and len({event.visible for event in seen}) == len(run.ranks):
        return  # the launcher has given each rank a GPU
    here = (
        f"{count} GPUs here" if count else "read from the source, because this machine has no GPU"
    )
    if facts.remainder:
        yield finding(
            "gpu-by-remainder",
            facts.remainder,
            "With fewer GPUs than ranks the remainder gives two ranks the same GPU. NCCL refuses that "
            f'("Duplicate GPU detected"), and with TensorFlow both ranks claim all of its memory ({here}).',
        )
    chooses = "calls neither rank_device(hvd) nor hvd.local_rank()"
    if run.api() == "ddp":
        chooses = "neither reads LOCAL_RANK nor calls group_device()"
    if facts.gpu and facts.pin == "rank":
        yield finding(
            "device-not-pinned",
            facts.pin_line,
            "The device is chosen by the rank among all machines. The local rank counts the ranks of one "
            "machine (read from the source).",
        )
    elif facts.gpu and facts.pin != "local_rank":
        yield finding(
            "device-not-pinned",
            facts.gpu,
            f"The script uses a GPU and {chooses} to choose it, so all ranks of a machine use the first "
            f"GPU ({here}).",
        )
    elif facts.pin != "local_rank" and count > 1 and run.all(records.Fit):
        yield finding(
            "device-not-pinned",
            run.line(records.Fit),
            f"On each rank TensorFlow claims all {count} GPUs and computes on the first one.",
        )


def cuda_tensors(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a CUDA tensor that a Horovod without CUDA got."""
    for event in run.all(records.CudaTensor):
        yield finding(
            "cuda-without-nccl",
            event.line or run.line(records.Wrap),  # a thread of PyTorch's sends the gradients
            f"Horovod got a tensor on {event.device}. It may read the tensor before it is computed, and "
            "then it waits for ever. The check ended the script before that.",
        )
        return


RULES = device, cuda_tensors
