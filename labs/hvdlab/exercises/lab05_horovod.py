"""Checks of lab 5: read the learner's script, run it on two ranks for two epochs, and read its records.

Each check leaves its run in the folder `runs(script)/STEP`, for `hvdlab.course.rank_report`. In a quick run
(LAB_QUICK) most checks do not run the script, and do not call it right. Every check takes the path of the
script.
"""

import ast
from pathlib import Path

import numpy as np

from hvdlab.course.rank_report import summary
from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness import script_facts
from hvdlab.exercises.harness.conversion_judgements import (
    check_combined_metrics,
    check_learning_rate,
    check_output_lines,
    check_restarts,
    check_sent_state,
    check_shards,
    check_writers,
    choose_gpu,
    refuse_unequal_rates,
)
from hvdlab.exercises.harness.conversion_runs import (
    HELDOUT,
    HOROVOD,
    IMAGES,
    describe_models,
    print_right,
    refuse_incomplete,
    run_step,
)
from hvdlab.exercises.harness.conversion_runs import runs as runs  # where a check leaves its runs
from hvdlab.exercises.harness.script_run import Watched
from hvdlab.script_analysis import gpu_choice
from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.script import Script


@exercise
def check_init(script: str | Path) -> None:
    """Demand a call of `hvd.init()`, after which ranks have numbers.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    if source.silent_keras:
        raise NotYet(
            "Horovod's own Keras module does nothing in Keras 3: it accepts the optimizer and never "
            "averages. Write `import hvdlab.keras.horovod as hvd`."
        )
    run = run_step("init", script, complain=False)
    _refuse_single_init(run)
    refuse_incomplete(run)
    reported = [run.horovod(rank) for rank in range(2)]
    if None in reported:
        if not source.horovod:
            raise NotYet("no line imports Horovod under the name hvd: `import ... as hvd`.")
        raise NotYet(
            "Horovod is imported, but hvd.init() is not called, or a rank ends before it: the ranks do not "
            "connect."
        )
    if any(not each["in_time"] for each in reported):
        made = "made its optimizer" if source.torch else "compiled its model"
        raise NotYet(
            f"when the script {made}, Horovod was not initialized, so hvd.rank() and hvd.size() would have "
            "raised an error there. Call hvd.init() right after the arguments are parsed."
        )
    if reported and {each["rank"] for each in reported} != {0, 1}:
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
    if lines := gpu_choice.remainders(source):
        raise NotYet(
            f"line {lines[0]} takes the remainder of the local rank by the number of GPUs. With fewer GPUs "
            "than ranks two ranks get the same GPU, and NCCL refuses two ranks on one GPU "
            '("Duplicate GPU detected"). Call rank_device(hvd) instead: its ranks can share a GPU, because '
            "they exchange gradients through host memory."
        )
    try:
        run = run_step("device", script)
        chosen = choose_gpu(script, "hvd.local_rank(), or call rank_device(hvd)", HOROVOD)
    except NotYet as error:
        if "not been initialized" not in str(error):
            raise
        raise NotYet(f"{error}. Call it after hvd.init(): before, no rank has a number.") from None
    by_helper = "the device that rank_device chooses for it"
    by = by_helper if chosen.get("helper") else "the GPU of its local rank"
    print_right(run, f"each rank uses {by}. Without a GPU nothing changes.")


@exercise
def check_output(script: str | Path) -> None:
    """Demand one line per epoch, printed by rank 0.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("output", script)
    check_output_lines(run)
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
    refuse_unequal_rates(run)
    before, after = run.distance(0), run.distance(1)
    if run.drifts():
        raise NotYet(
            f"the models drift: their distance is {before:.4f} after one epoch and {after:.4f} after two, "
            "because each rank makes steps by its own gradient. "
            + ("Train with the object that" if wrapped else "Wrap the optimizer:")
            + f" hvd.DistributedOptimizer(...) {'returns' if wrapped else 'averages'}."
        )
    check_learning_rate(run)
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
    run = run_step("broadcast", script, "--checkpoint", "checkpoints")
    if summary(run.report())["models"] > 1:
        refuse_unequal_rates(run)
        if run.drifts():
            raise NotYet(
                "the weights of the ranks differ and drift apart: gradients are not averaged any more."
            )
        if not any("roadcast" in name for name in script_facts.called(source)):
            name = (
                "broadcast_parameters"
                if source.torch
                else "callbacks.BroadcastGlobalVariablesCallback"
            )
            raise NotYet(f"hvd.{name} is not called: each rank keeps its own random weights.")
        raise NotYet(
            "the weights of the ranks differ, though the script calls a broadcast. Is it called for this "
            "model, by every rank, before the first step"
            + ("?" if source.torch else ", and in the list of callbacks of fit?")
        )
    check_sent_state(run, script)
    weights = run.report()["weights"].iloc[0]
    print_right(run, f"the trained weights of both ranks have the same hash, {weights}.")


@exercise
def check_sharding(script: str | Path) -> None:
    """Demand that each rank reads its own shard of 257 images, in equally many steps.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("sharding", script, complain=False)
    read = check_shards(run)
    covered = len(np.union1d(*read))
    print_right(
        run,
        f"the ranks read {len(read[0])} and {len(read[1])} images, together {covered} of {IMAGES}, in "
        "equally many steps.",
    )


@exercise
def check_metrics(script: str | Path) -> None:
    """Demand loss and accuracy over the examples of all ranks: each of 101 held-out images counts once.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
    run = run_step("metrics", script)
    count = check_combined_metrics(run, before="sharding")
    print_right(run, f"both ranks report {count} of {HELDOUT} held-out images right.")


@exercise
def check_checkpoint(script: str | Path) -> None:
    """Demand that only rank 0 writes checkpoints.

    Args:
        script: The path of the script.
    """
    script_facts.read(script)
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

    check_restarts(script, cause=cause)
    right(
        "killed, restarted on two ranks, restarted on one: epochs, loss and learning rate continue."
    )


def _refuse_single_init(run: Watched) -> None:
    """Raise NotYet where a rank trained without Horovod, and the run failed before the other one trained."""
    trained = [rank for rank in range(2) if len(run.lines(rank))]
    if run.failure and len(trained) == 1 and not run.horovod(trained[0]):
        raise NotYet(
            f"rank {trained[0]} trained, and Horovod was never initialized on it. The run failed before rank "
            f"{1 - trained[0]} trained. hvd.init() waits for all ranks, so every rank must call it."
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
