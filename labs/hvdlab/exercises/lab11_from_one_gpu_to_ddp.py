"""Checks of lab 11: read the learner's DDP script, run it on two ranks for two epochs, and read its records.

Each check leaves its run in the folder `runs(script)/STEP`, for `hvdlab.course.rank_report`. In a quick run
(LAB_QUICK) most checks only read the script. Every check takes the path of the script.
"""

import ast
import re
from functools import partial
from pathlib import Path

import numpy as np

from hvdlab.course.rank_report import summary
from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness import conversion_runs, script_facts
from hvdlab.exercises.harness.conversion_judgements import (
    check_combined_metrics,
    check_learning_rate,
    check_output_lines,
    check_restarts,
    check_shards,
    check_writers,
)
from hvdlab.exercises.harness.conversion_runs import (
    HELDOUT,
    IMAGES,
    TORCH_DISTRIBUTED,
    print_right,
)
from hvdlab.exercises.harness.conversion_runs import runs as runs  # where a check leaves its runs
from hvdlab.script_analysis import gpu_choice
from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.origins import Origin

SLOW_LOADING = 1.0  # seconds that loading takes longer in exercise 5, like a download
LOCAL = gpu_choice.LOCAL  # where a script of torch.distributed gets its local rank from
GLOBAL = Origin(frozenset({"get_rank"}), re.compile(r"\ARANK\Z"))  # and where its rank
GLOBAL_RANK, GLOBAL_SIZE = TORCH_DISTRIBUTED.rank, TORCH_DISTRIBUTED.size
describe_models = partial(conversion_runs.describe_models, library=TORCH_DISTRIBUTED)
run_step = partial(conversion_runs.run_step, launcher=TORCH_DISTRIBUTED.launcher)
_refuse_local = partial(
    script_facts.refuse_local_numbers, origin=LOCAL, right=f"{GLOBAL_RANK} and {GLOBAL_SIZE}"
)
_refuse_local_test = partial(
    script_facts.refuse_local_rank, origin=LOCAL, local="the local rank", rank=GLOBAL_RANK
)


@exercise
def check_init(script: str | Path) -> None:
    """Demand a call of `dist.init_process_group`, after which the ranks are connected.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    if not source.imported("torch.distributed"):
        raise NotYet("no line imports torch.distributed: `import torch.distributed as dist`.")
    if not source.named("init_process_group"):
        raise NotYet(
            "torch.distributed is imported, but dist.init_process_group(...) is not called: the ranks do "
            "not connect."
        )
    try:
        run = run_step("init", script)
    except NotYet as error:
        if "NCCL" in str(error):
            raise NotYet(
                'the backend "nccl" needs a GPU for each rank, and these ranks have none. Choose it by '
                '"nccl" if torch.cuda.is_available() else "gloo".'
            ) from None
        if "not been initialized" in str(error):
            raise NotYet(
                f"{error} Nothing may ask torch.distributed before init_process_group has returned."
            ) from None
        raise
    groups = [run.process_group(rank) for rank in range(2)] if run else []
    if None in groups:
        raise NotYet(
            "dist.init_process_group(...) is in the script, but a rank ends before it has called it."
        )
    for group in groups:
        if group["size"] != 2:
            raise NotYet(
                f"torch.distributed reports {group['size']} rank on each of two processes: they did not "
                "connect. Leave out rank= and world_size=, because torchrun passes them in RANK and "
                "WORLD_SIZE."
            )
    end = ""
    if not source.named("destroy_process_group"):
        end = " Add dist.destroy_process_group() as the script's last line, so that the ranks end cleanly."
    two = "Nothing else has changed: their weights still differ."
    print_right(run, f"two ranks that are connected.{end} {describe_models(run, two)}")


@exercise
def check_device(script: str | Path) -> None:
    """Demand a device that is chosen by LOCAL_RANK, or by `group_device`.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    if lines := gpu_choice.remainders(source):
        raise NotYet(
            f"line {lines[0]} takes the remainder of the local rank by the number of GPUs. With fewer GPUs "
            "than ranks two ranks get the same GPU, and NCCL refuses two ranks on one GPU "
            '("Duplicate GPU detected"). Start as many ranks as there are GPUs, or call group_device().'
        )
    helper = gpu_choice.chosen_by_helper(source)
    by_local = script_facts.chooses_device_by_local_rank(source, LOCAL)
    if not helper and not by_local:
        if script_facts.chooses_device_by_local_rank(source, GLOBAL):
            raise NotYet(
                f"the device is chosen by {GLOBAL_RANK}, which counts over all machines: on the second "
                "machine of four GPUs, rank 4 would look for a fifth GPU. LOCAL_RANK counts on one machine."
            )
        raise NotYet(
            'no device is chosen by the local rank, int(os.environ["LOCAL_RANK"]): every rank would use '
            "the first GPU of its machine."
        )
    chosen = "the device that group_device chooses" if helper else "the GPU of its local rank"
    print_right(
        run_step("device", script), f"each rank uses {chosen}. Without GPUs nothing changes."
    )


@exercise
def check_sampler(script: str | Path) -> None:
    """Demand that each rank reads its own shard, in equally many steps, and another order in each epoch.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    _refuse_local(source)
    sharded = any(keyword(call, "rank") for call in source.named("Batches"))
    if not sharded and not source.named("DistributedSampler"):
        raise NotYet(
            "there is no DistributedSampler: each rank reads all images. Make one, and pass it to the "
            "DataLoader as sampler=..."
        )
    sampled = bool(source.named("DistributedSampler"))
    if sampled and not source.named("set_epoch"):
        raise NotYet(
            "sampler.set_epoch(epoch) is not called: the sampler permutes the images by its seed and by "
            "the number of the epoch, which then stays 0. Every epoch would have the same order."
        )
    run = run_step("sampler", script, complain=False)
    if run is None:
        return print_right(run, "the script can be read.")
    if "sampler option is mutually exclusive with shuffle" in run.failure:
        raise NotYet(
            "a DataLoader takes a sampler or shuffle=True, and not both, because the sampler decides the "
            "order: leave out shuffle. DistributedSampler shuffles by default."
        )
    read = check_shards(run, TORCH_DISTRIBUTED)
    if np.array_equal(read[0], run.examples(0, epoch=1)):
        raise NotYet(
            "rank 0 reads the same images in the same order in both epochs. Call "
            "sampler.set_epoch(epoch) at the start of each epoch, with the number of this epoch, and let "
            "the sampler shuffle."
        )
    two = (
        "But there are still two models, and each has seen only half of the images: the next exercise "
        "makes them one."
    )
    print_right(
        run,
        f"{len(read[0])} + {len(read[1])} images: all {IMAGES}, one of them twice; equal steps; another "
        f"order in each epoch. {describe_models(run, two)}",
    )


@exercise
def check_ddp(script: str | Path) -> None:
    """Demand one model: equal initial weights, averaged gradients, and `--lr` times the number of ranks.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    wrapped = source.named("DistributedDataParallel")
    _refuse_local(source)
    if not wrapped:
        raise NotYet(
            "the model is not wrapped: parallel = DistributedDataParallel(model) sends rank 0's weights to "
            "all ranks, and averages the gradients in every backward pass."
        )
    if isinstance(source.parents[wrapped[0]], ast.Expr):
        raise NotYet(
            f"line {wrapped[0].lineno} discards the wrapper. DistributedDataParallel(model) does not "
            "change the model: keep what it returns, and call that in the training step."
        )
    run = run_step("ddp", script)
    if run is None:
        return print_right(run, "the script can be read.")
    if summary(run.report())["models"] > 1:
        if run.drifts():
            raise NotYet(
                f"the models drift: their distance is {run.distance(0):.4f} after one epoch and "
                f"{run.distance(1):.4f} after two, although the model is wrapped. The training step calls "
                "the model itself. Call the wrapper there, parallel(...): its forward pass prepares the "
                "average."
            )
        raise NotYet(
            "both models make the same steps from different weights. Something changes the weights of one "
            "rank after DistributedDataParallel has sent them: wrap the model last, just before the loop."
        )
    check_learning_rate(run, TORCH_DISTRIBUTED)
    weights = run.report()["weights"].iloc[0]
    print_right(run, f"one model: the trained weights of both ranks have the same hash, {weights}.")


@exercise
def check_download(script: str | Path) -> None:
    """Demand that local rank 0 loads the data before the other ranks of its machine.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    barriers = source.named("barrier")
    if not barriers:
        raise NotYet(
            "dist.barrier() is not called: all ranks would download the same files at the same time."
        )
    guards = [
        above.test
        for call in barriers
        for above in source.ancestors(call)
        if isinstance(above, ast.If | ast.IfExp)
    ]
    if guards and not any(source.depends(test, LOCAL) for test in guards):
        raise NotYet(
            f"line {guards[0].lineno} decides by a rank that counts over all machines. Each machine has "
            "its own disk, so one rank of each machine must download: decide by local_rank."
        )
    run = run_step("download", script, HVDLAB_SLOW_LOADING=f"{SLOW_LOADING:g}")
    if run is None:
        return print_right(run, "the script can be read.")
    times = [run.loading(rank) for rank in range(2)]
    if not all(times):
        absent = 0 if not times[0] else 1
        raise NotYet(
            f"rank {absent} never calls load_fashion_mnist(). Every rank needs the data; the others only "
            "load them later."
        )
    first, other = times[0][0], times[1][0]
    if other["ended"] <= first["began"]:
        raise NotYet("local rank 1 loads before local rank 0: exchange the two conditions.")
    if other["began"] < first["ended"]:
        raise NotYet(
            "both ranks load at the same time. The other ranks must wait in dist.barrier() before they "
            "load, and local rank 0 calls it after it has loaded."
        )
    waited = other["began"] - first["began"]
    print_right(run, f"rank 1 loads after rank 0 has finished, {waited:.1f} s after rank 0 began.")


@exercise
def check_output(script: str | Path) -> None:
    """Demand one line per epoch, printed by rank 0.

    Args:
        script: The path of the script.
    """
    _refuse_local_test(script_facts.read(script), "print")
    run = run_step("output", script)
    lines = [len(run.epoch_lines(rank)) for rank in range(2)] if run else [2, 0]
    check_output_lines(lines, TORCH_DISTRIBUTED)
    print_right(run, "only rank 0 prints. Its numbers are still those of its own images.")


@exercise
def check_metrics(script: str | Path) -> None:
    """Demand loss and accuracy over the examples of all ranks: each of 101 held-out images counts once.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    _refuse_local(source)
    if not script_facts.divides_beside_batches(source, GLOBAL):
        raise NotYet(
            "each rank evaluates all held-out images: nothing but the training images is divided by "
            f"{GLOBAL_RANK} and {GLOBAL_SIZE}. Give each rank every N-th, beginning with its own number."
        )
    run = run_step("metrics", script)
    if run is None:
        return print_right(run, "the script can be read.")
    count = check_combined_metrics(run, before="output", library=TORCH_DISTRIBUTED)
    print_right(run, f"both ranks report {count} of {HELDOUT} held-out images right.")


@exercise
def check_checkpoint(script: str | Path) -> None:
    """Demand that only rank 0 writes checkpoints, with the names of the model's own weights.

    Args:
        script: The path of the script.
    """
    _refuse_local_test(script_facts.read(script), "save", "checkpoint")
    run = run_step("checkpoint", script, "--checkpoint", "checkpoints")
    names = check_writers(run, TORCH_DISTRIBUTED)
    if run:
        newest = sorted((run.disk / "rank-0" / "checkpoints").glob("epoch-*"))[-1]
        prefixed = [name for name in _weight_names(newest) if name.startswith("module.")]
        if prefixed:
            raise NotYet(
                f'{newest.name} was saved from the wrapper: a weight has the name "{prefixed[0]}". The '
                "serial script could not load it. Save model.state_dict(), or the state of parallel.module."
            )
    print_right(
        run, f"rank 0 writes {names}, without the prefix of the wrapper; rank 1 writes nothing."
    )


@exercise
def check_resume(script: str | Path) -> None:
    """Demand that a killed run continues after its last checkpoint: on two ranks, then on one.

    Each rank has its own folder, and only rank 0 finds a checkpoint, as on machines without a shared disk.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    sends = source.named("broadcast_object_list", "broadcast", "scatter_object_list")
    if not sends:
        raise NotYet(
            "only rank 0 finds the checkpoint if each machine has its own disk, and no line sends its "
            "content to the other ranks: dist.broadcast_object_list(found, src=0)."
        )
    if not check_restarts(script, TORCH_DISTRIBUTED):
        return print_right(None, "the script can be read.")
    right(
        "killed, restarted on two ranks, restarted on one: epochs, loss and learning rate continue."
    )


def _weight_names(path: Path) -> list[str]:
    """Return the names of all tensors in the state dicts of a checkpoint."""
    import torch

    names, todo = [], [torch.load(path, map_location="cpu", weights_only=True)]
    while todo:
        state = todo.pop()
        for name, value in state.items() if isinstance(state, dict) else ():
            names += [name] if isinstance(value, torch.Tensor) else []
            todo.append(value)
    return [name for name in names if isinstance(name, str)]
