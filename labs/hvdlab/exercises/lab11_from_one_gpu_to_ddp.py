"""Checks of lab 11: read the learner's DDP script, run it on two ranks for two epochs, and read its records.

Each check leaves its run in the folder `runs(script)/STEP`, for `hvdlab.course.rank_report`. In a quick run
(LAB_QUICK) most checks do not run the script, and do not call it right. Every check takes the path of the
script.
"""

import ast
from functools import partial
from pathlib import Path

import numpy as np

from hvdlab.course.rank_report import summary
from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness import conversion_runs, script_facts
from hvdlab.exercises.harness.conversion_judgements import (
    check_combined_metrics,
    check_learning_rate,
    check_loss,
    check_output_lines,
    check_restarts,
    check_shards,
    check_writers,
    choose_gpu,
    refuse_unequal_rates,
)
from hvdlab.exercises.harness.conversion_runs import (
    HELDOUT,
    IMAGES,
    TORCH_DISTRIBUTED,
    print_right,
)
from hvdlab.exercises.harness.conversion_runs import runs as runs  # where a check leaves its runs
from hvdlab.script_analysis import gpu_choice

SLOW_LOADING = 1.0  # seconds that loading takes longer in exercise 5, like a download
GLOBAL_RANK, GLOBAL_SIZE = TORCH_DISTRIBUTED.rank, TORCH_DISTRIBUTED.size
describe_models = partial(conversion_runs.describe_models, library=TORCH_DISTRIBUTED)
run_step = partial(conversion_runs.run_step, launcher=TORCH_DISTRIBUTED.launcher)


@exercise
def check_init(script: str | Path) -> None:
    """Demand a call of `dist.init_process_group`, after which the ranks are connected.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
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
    groups = [run.process_group(rank) for rank in range(2)]
    if None in groups:
        if not source.imported("torch.distributed"):
            raise NotYet("no line imports torch.distributed: `import torch.distributed as dist`.")
        raise NotYet(
            "torch.distributed is imported, but dist.init_process_group(...) is not called, or a rank ends "
            "before it: the ranks do not connect."
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
    run = run_step("device", script)
    chosen = choose_gpu(script, 'int(os.environ["LOCAL_RANK"])', TORCH_DISTRIBUTED)
    if chosen and chosen["current"] != 1:
        raise NotYet(
            "the model is on the GPU of the local rank, but the default GPU of each process is GPU 0, which "
            "some operations of NCCL use: call torch.cuda.set_device(device) before."
        )
    by_helper = "the device that group_device chooses"
    by = by_helper if chosen.get("helper") else "the GPU of its local rank"
    print_right(run, f"each rank uses {by}. Without GPUs nothing changes.")


@exercise
def check_sampler(script: str | Path) -> None:
    """Demand that each rank reads its own shard, in equally many steps, and another order in each epoch.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("sampler", script, complain=False)
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
    run = run_step("ddp", script)
    if summary(run.report())["models"] > 1:
        refuse_unequal_rates(run, TORCH_DISTRIBUTED)
        wrapped = source.named("DistributedDataParallel")
        if not wrapped:
            raise NotYet(
                "the model is not wrapped: parallel = DistributedDataParallel(model) sends rank 0's weights "
                "to all ranks, and averages the gradients in every backward pass."
            )
        if isinstance(source.parents[wrapped[0]], ast.Expr):
            raise NotYet(
                f"line {wrapped[0].lineno} discards the wrapper. DistributedDataParallel(model) does not "
                "change the model: keep what it returns, and call that in the training step."
            )
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
    check_loss(run, TORCH_DISTRIBUTED)
    weights = run.report()["weights"].iloc[0]
    print_right(run, f"one model: the trained weights of both ranks have the same hash, {weights}.")


@exercise
def check_download(script: str | Path) -> None:
    """Demand that local rank 0 loads the data before the other rank of its machine.

    The script runs as if on the second of two machines, as ranks 2 and 3 of 4.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    pretended = {"HVDLAB_LOCAL_RANKS": "0 1", "HVDLAB_FIRST_RANK": "2"}
    run = run_step("download", script, HVDLAB_SLOW_LOADING=f"{SLOW_LOADING:g}", **pretended)
    times = [run.loading(rank) for rank in range(2)]
    if not all(times):
        raise NotYet(
            f"rank {int(bool(times[0]))} never calls load_fashion_mnist(). Every rank needs the data; the "
            "others only load them later."
        )
    first, other = times[0][0], times[1][0]
    if other["ended"] <= first["began"]:
        raise NotYet("local rank 1 loads before local rank 0: exchange the two conditions.")
    if other["began"] < first["ended"]:
        raise NotYet(
            "both ranks load at the same time. The other ranks must wait in dist.barrier() before they "
            "load, and local rank 0 calls it after it has loaded. Decide by local_rank: the script runs here "
            f"as if on the second of two machines, where no {GLOBAL_RANK} is 0."
        )
    waited = other["began"] - first["began"]
    print_right(
        run, f"local rank 1 loads after local rank 0 has finished, {waited:.1f} s after it began."
    )


@exercise
def check_output(script: str | Path) -> None:
    """Demand one line per epoch, printed by rank 0.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("output", script)
    check_output_lines(run, TORCH_DISTRIBUTED)
    print_right(run, "only rank 0 prints. Its numbers are still those of its own images.")


@exercise
def check_metrics(script: str | Path) -> None:
    """Demand loss and accuracy over the examples of all ranks: each of 101 held-out images counts once.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("metrics", script)
    count = check_combined_metrics(run, before="output", library=TORCH_DISTRIBUTED)
    print_right(run, f"both ranks report {count} of {HELDOUT} held-out images right.")


@exercise
def check_checkpoint(script: str | Path) -> None:
    """Demand that only rank 0 writes checkpoints, with the names of the model's own weights.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("checkpoint", script, "--checkpoint", "checkpoints")
    names = check_writers(run, TORCH_DISTRIBUTED)
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
    script_facts.read(script)
    check_restarts(script, TORCH_DISTRIBUTED)
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
