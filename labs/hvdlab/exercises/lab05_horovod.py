"""Checks of lab 5: read the learner's script, run it on two ranks for two epochs, and read its records.

Each check leaves its run in the folder `runs(script)/STEP`, for `hvdlab.course.rank_report`. In a quick run
(LAB_QUICK) most checks only read the script. Every check takes the path of the script.
"""

import ast
from pathlib import Path

from hvdlab.course.rank_report import summary
from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness import script_facts
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
    describe_models,
    print_right,
    run_step,
)
from hvdlab.exercises.harness.conversion_runs import runs as runs  # where a check leaves its runs
from hvdlab.script_analysis import gpu_choice
from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.script import Script


@exercise
def check_init(script: str | Path) -> None:
    """Demand an import of Horovod as `hvd` and a call of `hvd.init()`, after which ranks have numbers.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    if source.silent_keras:
        raise NotYet(
            "Horovod's own Keras module does nothing in Keras 3: it accepts the optimizer and never "
            "averages. Write `import hvdlab.keras.horovod as hvd`."
        )
    if "horovod" not in source.full.get("hvd", ""):
        raise NotYet("no line imports Horovod under the name hvd: `import ... as hvd`.")
    if "hvd.init" not in script_facts.called(source):
        raise NotYet("Horovod is imported, but hvd.init() is not called: the ranks do not connect.")
    run = run_step("init", script)
    connected = [{"rank": 0}, {"rank": 1}]
    reported = [run.horovod(rank) for rank in range(2)] if run else connected
    if None in reported and "hvd.shutdown" in script_facts.called(source):
        reported = connected  # after hvd.shutdown() Horovod reports no rank
    if None in reported:
        raise NotYet("hvd.init() is in the script, but a rank ends before it has called it.")
    if {each["rank"] for each in reported} != {0, 1}:
        raise NotYet(
            f"Horovod reports rank {reported[0]['rank']} on both ranks: they did not connect."
        )
    two = "Nothing else has changed: their weights still differ."
    print_right(run, f"two ranks that are connected. {describe_models(run, two)}")


@exercise
def check_device(script: str | Path) -> None:
    """Demand a device, chosen after `hvd.init()` by `rank_device(hvd)` or by `hvd.local_rank()`.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    called = script_facts.called(source)
    if lines := gpu_choice.remainders(source):
        raise NotYet(
            f"line {lines[0]} takes the remainder of the local rank by the number of GPUs. With fewer GPUs "
            "than ranks two ranks get the same GPU, and NCCL refuses two ranks on one GPU "
            '("Duplicate GPU detected"). Call rank_device(hvd) instead: its ranks can share a GPU, because '
            "they exchange gradients through host memory."
        )
    helper = gpu_choice.chosen_by_helper(source)
    if not helper and "hvd.local_rank" not in called and "hvd.rank" in called:
        raise NotYet(
            "hvd.rank() counts over all machines: on the second machine of four GPUs, rank 4 would look "
            "for a fifth GPU. hvd.local_rank() counts on one machine."
        )
    if not helper and "hvd.local_rank" not in called:
        raise NotYet(
            "no device is chosen: rank_device(hvd) is not called, and neither is hvd.local_rank(), the "
            "number of a rank on its machine."
        )
    for init in source.hvd("init"):
        for call in [*source.hvd("local_rank"), *source.named("rank_device")]:
            if source.inside[call] is source.inside[init] and call.lineno < init.lineno:
                raise NotYet(
                    f"{ast.unparse(call)} is called before hvd.init(): no rank has a number yet."
                )
    if not helper and not script_facts.chooses_device_by_local_rank(source):
        raise NotYet(
            "hvd.local_rank() is called, but no device is chosen by it: pass it to "
            "torch.cuda.set_device(...) or tf.config.set_visible_devices(...)."
        )
    chosen = "the device that rank_device chooses for it" if helper else "the GPU of its local rank"
    print_right(
        run_step("device", script), f"each rank uses {chosen}. Without a GPU nothing changes."
    )


@exercise
def check_output(script: str | Path) -> None:
    """Demand one line per epoch, printed by rank 0.

    Args:
        script: The path of the script.
    """
    script_facts.refuse_local_rank(script_facts.read(script), "print")
    run = run_step("output", script)
    lines = [len(run.epoch_lines(rank)) for rank in range(2)] if run else [2, 0]
    check_output_lines(lines)
    two = "Look at the table, though: rank 0 prints the numbers of its own model only."
    print_right(run, f"only rank 0 prints. {describe_models(run, two)}")


@exercise
def check_optimizer(script: str | Path) -> None:
    """Demand averaged gradients, and a learning rate of `--lr` times the number of ranks.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    wrapped = "hvd.DistributedOptimizer" in script_facts.called(source)
    for call in source.hvd("DistributedOptimizer"):
        if (op := keyword(call, "op")) and ast.unparse(op).endswith(("Sum", "Adasum")):
            raise NotYet(
                f"DistributedOptimizer(..., op={ast.unparse(op)}) does not average. Leave op out: with a "
                "learning rate times hvd.size() a sum would scale the step twice."
            )
    _refuse_unused_choice(source)
    try:
        run = run_step("optimizer", script)
    except NotYet as error:
        if not wrapped or "backward_passes_per_step" not in str(error):
            raise
        raise NotYet(
            "the gradients are averaged, but the plain optimizer makes the steps: continue with the object "
            "that hvd.DistributedOptimizer(...) returns, `optimizer = hvd.DistributedOptimizer(...)`."
        ) from None
    if run is None:
        return print_right(run, "the script can be read.")
    before, after = run.distance(0), run.distance(1)
    if run.drifts():
        raise NotYet(
            f"the models drift: their distance is {before:.4f} after one epoch and {after:.4f} after two, "
            "because each rank makes steps by its own gradient. "
            + ("Train with the object that" if wrapped else "Wrap the optimizer:")
            + f" hvd.DistributedOptimizer(...) {'returns' if wrapped else 'averages'}."
        )
    check_learning_rate(run)
    script_facts.refuse_local_numbers(source)
    two = (
        f"Their distance was {before:.4f} after one epoch and is {after:.4f} after two: it does not "
        "shrink, because they began with different weights."
    )
    print_right(run, f"both models make the same steps. {describe_models(run, two)}")


@exercise
def check_broadcast(script: str | Path) -> None:
    """Demand that all ranks begin with rank 0's weights and optimizer state, so that they stay equal.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    called, torch = script_facts.called(source), source.torch
    call = "hvd.broadcast_parameters" if torch else "hvd.callbacks.BroadcastGlobalVariablesCallback"
    others = source.named("BroadcastGlobalVariablesCallback")
    others += source.hvd("broadcast_variables", "broadcast_global_variables")
    if call not in called and (torch or not others):
        raise NotYet(f"{call} is not called: each rank keeps its own random weights.")
    if torch and "hvd.broadcast_optimizer_state" not in called:
        raise NotYet(
            "the optimizer's state is not broadcast (hvd.broadcast_optimizer_state): when a run resumes, "
            "only rank 0 would have its momentum."
        )
    run = run_step("broadcast", script)
    if run and summary(run.report())["models"] > 1:
        if run.drifts():
            raise NotYet(
                "the weights of the ranks differ and drift apart: gradients are not averaged any more."
            )
        raise NotYet(
            f"the weights of the ranks differ, though {call} is called. Is it called for this model, by "
            "every rank, before the first step"
            + ("?" if torch else ", and in the list of callbacks of fit?")
        )
    weights = run.report()["weights"].iloc[0] if run else "?"
    print_right(run, f"the trained weights of both ranks have the same hash, {weights}.")


@exercise
def check_sharding(script: str | Path) -> None:
    """Demand that each rank reads its own shard of 257 images, in equally many steps, and all are read.

    Args:
        script: The path of the script.
    """
    script_facts.refuse_local_numbers(script_facts.read(script))
    run = run_step("sharding", script, complain=False)
    if run is None:
        return print_right(run, "the script can be read.")
    read = check_shards(run)
    print_right(
        run,
        f"{len(read[0])} + {len(read[1])} images: all {IMAGES}, one of them twice; equal steps.",
    )


@exercise
def check_metrics(script: str | Path) -> None:
    """Demand loss and accuracy over the examples of all ranks: each of 101 held-out images counts once.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    script_facts.refuse_local_numbers(source)
    if not script_facts.divides_beside_batches(source):
        raise NotYet(
            "each rank evaluates all held-out images: nothing but the training images is divided by "
            "hvd.rank() and hvd.size(). Give each rank every size-th, beginning with its own number."
        )
    run = run_step("metrics", script)
    if run is None:
        return print_right(run, "the script can be read.")
    count = check_combined_metrics(run, before="sharding")
    print_right(run, f"both ranks report {count} of {HELDOUT} held-out images right.")


@exercise
def check_checkpoint(script: str | Path) -> None:
    """Demand that only rank 0 writes checkpoints.

    Args:
        script: The path of the script.
    """
    script_facts.refuse_local_rank(script_facts.read(script), "save", "checkpoint")
    run = run_step("checkpoint", script, "--checkpoint", "checkpoints")
    names = check_writers(run)
    print_right(run, f"rank 0 writes {names}, rank 1 writes nothing.")


@exercise
def check_resume(script: str | Path) -> None:
    """Demand that a killed run continues after its last checkpoint: on two ranks, then on one.

    Each rank has its own folder, and only rank 0 finds a checkpoint, as on machines without a shared disk.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)

    def cause() -> str:
        if source.named("load_model") and not source.hvd("load_model"):
            return "; keras.models.load_model returns an optimizer that does not average: hvd.load_model."
        return ""

    if not check_restarts(script, cause=cause):
        return print_right(None, "the script can be read.")
    right(
        "killed, restarted on two ranks, restarted on one: epochs, loss and learning rate continue."
    )


def _refuse_unused_choice(source: Script) -> None:
    """Raise NotYet where `rank_device` chose a device, but the optimizer does not get its settings."""
    name = "compression" if source.torch else "device_dense"
    for call in source.hvd("DistributedOptimizer") if gpu_choice.chosen_by_helper(source) else []:
        names = {each.arg for each in call.keywords}
        if names.isdisjoint({"compression", "device_dense", None}) and len(call.args) < 3:
            raise NotYet(
                f"line {call.lineno}: the optimizer does not know how to send gradients from the device "
                f"that rank_device chose. Ranks that share a GPU need {name}=chosen.{name}, where chosen is "
                "what rank_device(hvd) returned."
            )
