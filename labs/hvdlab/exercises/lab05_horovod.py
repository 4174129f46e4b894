"""Checks of lab 5: read the learner's script, run it on two ranks for two epochs, and read its records.

Each check leaves its run in the folder `runs(script)/STEP`, for `hvdlab.course.rank_report`. In a quick run
(LAB_QUICK) most checks only read the script. Every check takes the path of the script.
"""

import ast
import re
import shutil
from pathlib import Path

import numpy as np

from hvdlab.course.rank_report import summary
from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness import script_facts
from hvdlab.exercises.harness.script_run import Watched
from hvdlab.exercises.lab05_runs import (
    ADD_BOTH,
    HALVED,
    HELDOUT,
    IMAGES,
    check_heldout_accuracy,
    check_learning_rate,
    describe_models,
    heldout_accuracies,
    print_right,
    refuse_missing,
    run_step,
    runs,
)
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
    if lines == [2, 2]:
        raise NotYet("both ranks print a line each epoch: print where hvd.rank() == 0 only.")
    if lines == [0, 2]:
        raise NotYet(
            "rank 1 prints and rank 0 does not: print on rank 0, because every run has it."
        )
    if lines != [2, 0]:
        raise NotYet(
            f"in two epochs rank 0 prints {lines[0]} lines and rank 1 {lines[1]}, not 2 and 0."
        )
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
    read = [run.examples(rank) for rank in range(2)]
    if not all(map(len, read)):
        raise NotYet(run.failure or "a rank recorded no examples.")
    steps = [run.lines(rank)["steps"].iloc[0] for rank in range(2)]
    overlap, covered = np.isin(read[1], read[0]).mean(), len(np.union1d(*read))
    if steps[0] != steps[1]:
        raise NotYet(
            f"rank 0 makes {steps[0]} steps an epoch and rank 1 makes {steps[1]}: one will wait for "
            f"gradients that never come. {IMAGES} images are sharded as {len(read[0])} and {len(read[1])}: "
            "Batches(..., rank=..., size=...) gives each rank equally many."
        )
    if overlap > 0.9 and covered < IMAGES:
        raise NotYet(
            f"both ranks read the same {len(read[0])} images, and no rank reads the others: Batches "
            "needs rank=hvd.rank()."
        )
    if overlap > 0.9:
        raise NotYet(
            f"both ranks read all {covered} images, in different orders: Batches needs "
            "rank=hvd.rank() and size=hvd.size()."
        )
    if overlap > 0.02:
        raise NotYet(
            f"the ranks share {overlap:.0%} of their images: each takes its shard from another permutation. "
            "The seed of Batches must be the same on all ranks: args.seed, not seed."
        )
    if covered < IMAGES:
        raise NotYet(f"{IMAGES - covered} of {IMAGES} images are read by no rank.")
    if run.failure:
        raise NotYet(run.failure)
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
    validation = [n for n in ("val_loss", "val_accuracy") if any(n in run.lines(r) for r in (0, 1))]
    refuse_missing(run, "accuracy", *validation)
    last = [run.lines(rank).iloc[-1] for rank in range(2)]
    for name in ("loss", "accuracy", *validation):
        if abs(last[0][name] - last[1][name]) > 1e-6:
            raise NotYet(
                f"{name} is {last[0][name]:.4f} on rank 0 and {last[1][name]:.4f} on rank 1. Combine it "
                "over the ranks before any rank prints or records it."
            )
    # With accuracies at chance the mean of two means is off by 1e-3 of an image only: check all epochs.
    accuracies = heldout_accuracies(run)
    for accuracy in accuracies:
        check_heldout_accuracy(accuracy)
    accuracy = accuracies.iloc[-1]
    count = accuracy * HELDOUT
    # The run of exercise 7 trained the same model, and each rank counted all images.
    before = heldout_accuracies(Watched(Path(script), runs(script) / "sharding", runs(script), 2))
    whole = before.iloc[-1] * HELDOUT if len(before) else 0.0
    if whole > 6 and abs(count - whole / 2) < 2:
        raise NotYet(HALVED)
    if accuracies.max() > 1 or whole > 6 and abs(count - 2 * whole) < 2:
        raise NotYet(f"{round(count)} of {HELDOUT} held-out images right is too many: {ADD_BOTH}")
    printed = re.search(r"held-out ([0-9.]+)", (run.epoch_lines(0) or [""])[-1])
    if printed and abs(float(printed[1]) - accuracy) > 0.0006:
        raise NotYet(
            f"the line says {printed[1]} held-out and the record {accuracy:.3f}: the line is printed "
            "before the metrics are combined. Order matters in the list of callbacks."
        )
    print_right(run, f"both ranks report {round(count)} of {HELDOUT} held-out images right.")


@exercise
def check_checkpoint(script: str | Path) -> None:
    """Demand that only rank 0 writes checkpoints.

    Args:
        script: The path of the script.
    """
    script_facts.refuse_local_rank(script_facts.read(script), "save", "checkpoint")
    run = run_step("checkpoint", script, "--checkpoint", "checkpoints")
    wrote = [bool(run.checkpoints(rank)) for rank in range(2)] if run else [True, False]
    if wrote == [True, True]:
        raise NotYet("both ranks write checkpoints: on a shared disk, into the same file at once.")
    if wrote != [True, False]:
        who = "rank 1 writes the" if wrote[1] else "no rank writes"
        raise NotYet(f"{who} checkpoints: write them where hvd.rank() == 0.")
    names = " and ".join(run.checkpoints(0)) if run else "the checkpoints"
    print_right(run, f"rank 0 writes {names}, rank 1 writes nothing.")


@exercise
def check_resume(script: str | Path) -> None:
    """Demand that a killed run continues after its last checkpoint: on two ranks, then on one.

    Each rank has its own folder, and only rank 0 finds a checkpoint, as on machines without a shared disk.

    Args:
        script: The path of the script.
    """
    source = script_facts.read(script)
    disk = runs(script) / "resume"
    shutil.rmtree(disk, ignore_errors=True)
    options = {"disk": disk, "complain": False}
    keep = ("--checkpoint", "checkpoints", "--epochs")
    killed = run_step("resume/killed", script, *keep, 1000, HVDLAB_KILL_AFTER="3", **options)
    if killed is None:
        return print_right(killed, "the script can be read.")
    if not killed.checkpoints(0) or not len(killed.lines(0)):
        raise NotYet(f"there is no checkpoint to resume from: {killed.failure}")
    refuse_missing(killed)
    first, last = killed.lines(0)["loss"].iloc[[0, -1]]
    for ranks, where in ((2, "restarted on two ranks"), (1, "restarted on one rank")):
        done = int(re.findall(r"\d+", killed.checkpoints(0)[-1])[0]) + 1
        run = run_step(f"resume/{ranks}-ranks", script, *keep, done + 3, ranks=ranks, **options)
        first_epochs = [
            int(run.lines(r)["epoch"].iloc[0]) if len(run.lines(r)) else None for r in range(ranks)
        ]
        if first_epochs != [done] * ranks and None not in first_epochs:
            raise NotYet(
                f"{where} after epoch {done - 1}, rank 0 begins with epoch {first_epochs[0]} and the last "
                f"rank with epoch {first_epochs[-1]}. Only rank 0 found the checkpoint: it must tell "
                "the other ranks by a broadcast."
            )
        if run.failure or None in first_epochs:
            why = run.failure or "a rank recorded nothing."
            if source.named("load_model") and not source.hvd("load_model"):
                why += "; keras.models.load_model returns an optimizer that does not average: hvd.load_model."
            raise NotYet(f"{where}: {why}")
        refuse_missing(run)
        if summary(run.report())["models"] > 1:
            raise NotYet(
                f"{where}, the weights of the ranks differ: broadcast optimizer state and weights after "
                "loading, in this order (a rank without a state gets it by a step, which can change its "
                "weights), and make sure that the loaded optimizer averages (Keras: hvd.load_model)."
            )
        read = [run.examples(rank, done) for rank in range(ranks)]
        if (covered := len(np.unique(np.concatenate(read)))) < IMAGES:
            raise NotYet(
                f"{where} {covered} of {IMAGES} images are read: Batches needs size=hvd.size(), which is "
                f"{ranks} there."
            )
        if run.lines(0)["loss"].iloc[0] > (first + last) / 2:
            raise NotYet(f"{where} the loss starts at {run.lines(0)['loss'].iloc[0]:.2f} again.")
        check_learning_rate(run)
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
