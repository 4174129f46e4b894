"""Checks of lab 4: run the learner's script on two ranks for a few steps, and read what came of it.

Each check leaves its run in the folder `runs(script)/STEP`, for `hvdlab.course.rank_report`. In a quick run
(LAB_QUICK) some checks only read the script.
"""

import ast
import re
import shutil
from pathlib import Path

import numpy as np

from hvdlab.course.experiment import QUICK, REFERENCE
from hvdlab.course.rank_report import summary, text
from hvdlab.exercises import NotYet, right
from hvdlab.exercises.harness import script_facts
from hvdlab.exercises.harness.script_run import Watched, watch
from hvdlab.script_analysis import gpu_choice
from hvdlab.script_analysis.ast_helpers import keyword

LIMIT = 120.0  # seconds that a run may take
RATE = 0.05  # what the checks pass as --lr
IMAGES, HELDOUT = 257, 101  # odd, so that no number of ranks but one divides them
ALL_HELDOUT = 10_000
DATA = ("--images", IMAGES, "--batch-size", 32, "--heldout", HELDOUT, "--lr", RATE)
ADD_BOTH = (
    "add up what is right and what was looked at over the ranks (op=hvd.Sum for each), then divide."
)
HALVED = (
    "the held-out accuracy is half of what it is: the number that it is divided by counts all images on "
    f"each rank. Give it a rank's own share, and {ADD_BOTH}"
)
RUN_IN_QUICK = {"metrics"}  # the step that shows all that came before


def runs(script) -> Path:
    """The folder in which the runs of a script are recorded, one folder a step."""
    path = Path(script)
    return path.with_name(f"{path.stem}_runs")


def check_init(script) -> None:
    """Imports Horovod as `hvd` and calls `hvd.init()`: both ranks learn who they are."""
    source = script_facts.read(script)
    if source.silent_keras:
        raise NotYet(
            "Horovod's own Keras module does nothing in Keras 3: it accepts the optimizer and never "
            "averages. Write `import hvdlab.keras.horovod as hvd`."
        )
    if "horovod" not in source.full.get("hvd", ""):
        raise NotYet("no line imports Horovod under the name hvd: `import ... as hvd`.")
    if "hvd.init" not in script_facts.called(source):
        raise NotYet("Horovod is imported, but hvd.init() is not called: the ranks do not meet.")
    run = _run("init", script)
    said = [run.horovod(rank) for rank in range(2)] if run else [{"rank": 0}, {"rank": 1}]
    if None in said and "hvd.shutdown" in script_facts.called(
        source
    ):  # has nothing to say any more
        said = [{"rank": 0}, {"rank": 1}]
    if None in said:
        raise NotYet("hvd.init() is in the script, but a rank ends without having come past it.")
    if {s["rank"] for s in said} != {0, 1}:
        raise NotYet(f"Horovod calls both ranks {said[0]['rank']}: they did not meet.")
    two = "Nothing else has changed: still two models."
    _right(run, f"two ranks that know of each other. {_models(run, two)}")


def check_device(script) -> None:
    """Chooses the device after `hvd.init()`: by `rank_device(hvd)`, or the GPU of `hvd.local_rank()`."""
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
                    f"{ast.unparse(call)} is called before hvd.init(): nobody has a number yet."
                )
    if not helper and not script_facts.chooses_device_by_local_rank(source):
        raise NotYet(
            "hvd.local_rank() is asked for, but no device is chosen by it: it belongs into "
            "torch.cuda.set_device(...) or tf.config.set_visible_devices(...)."
        )
    chosen = "the device that rank_device chooses for it" if helper else "the GPU of its local rank"
    _right(_run("device", script), f"each rank takes {chosen}. Without a GPU nothing changes.")


def check_output(script) -> None:
    """One line an epoch, from rank 0."""
    script_facts.refuse_local_rank(script_facts.read(script), "print")
    run = _run("output", script)
    lines = [len(run.epoch_lines(rank)) for rank in range(2)] if run else [2, 0]
    if lines == [2, 2]:
        raise NotYet("both ranks print a line each epoch: print where hvd.rank() == 0 only.")
    if lines == [0, 2]:
        raise NotYet("rank 1 prints and rank 0 is silent: rank 0 is the one that every run has.")
    if lines != [2, 0]:
        raise NotYet(
            f"in two epochs rank 0 prints {lines[0]} lines and rank 1 {lines[1]}, not 2 and 0."
        )
    two = "Look at the table, though: it speaks for its own model only."
    _right(run, f"rank 0 speaks. {_models(run, two)}")


def check_optimizer(script) -> None:
    """Gradients are averaged, and the rate is `--lr` times the number of ranks."""
    source = script_facts.read(script)
    wrapped = "hvd.DistributedOptimizer" in script_facts.called(source)
    for call in source.hvd("DistributedOptimizer"):
        if (op := keyword(call, "op")) and ast.unparse(op).endswith(("Sum", "Adasum")):
            raise NotYet(
                f"DistributedOptimizer(..., op={ast.unparse(op)}) does not average. Leave op out: with the "
                "rate times hvd.size() a sum would scale the step twice."
            )
    _refuse_unused_choice(source)
    try:
        run = _run("optimizer", script)
    except NotYet as error:
        if not wrapped or "backward_passes_per_step" not in str(error):
            raise
        raise NotYet(
            "the gradients are averaged, and the plain optimizer steps: go on with what "
            "hvd.DistributedOptimizer(...) returns, `optimizer = hvd.DistributedOptimizer(...)`."
        ) from None
    if run is None:
        return _right(run, "the script can be read.")
    before, after = run.distance(0), run.distance(1)
    if run.drifts():
        raise NotYet(
            f"the models drift: their distance is {before:.4f} after one epoch and {after:.4f} after two, "
            "so each rank steps by its own gradient. "
            f"{'Train with what' if wrapped else 'Wrap the optimizer:'} hvd.DistributedOptimizer(...) "
            f"{'returns' if wrapped else 'averages'}."
        )
    _check_rate(run)
    script_facts.refuse_local_numbers(source)
    two = (
        f"Their distance was {before:.4f} after one epoch and is {after:.4f} after two: it does not "
        "shrink, because they began apart."
    )
    _right(run, f"both models make the same steps. {_models(run, two)}")


def check_broadcast(script) -> None:
    """All ranks begin with rank 0's weights and optimizer state: one model from then on."""
    source = script_facts.read(script)
    called, torch = script_facts.called(source), source.torch
    call = "hvd.broadcast_parameters" if torch else "hvd.callbacks.BroadcastGlobalVariablesCallback"
    others = source.named("BroadcastGlobalVariablesCallback")
    others += source.hvd("broadcast_variables", "broadcast_global_variables")
    if call not in called and (torch or not others):
        raise NotYet(f"{call} is not called: each rank keeps the weights that it drew.")
    if torch and "hvd.broadcast_optimizer_state" not in called:
        raise NotYet(
            "the optimizer's state stays where it is (hvd.broadcast_optimizer_state): when a run "
            "resumes, rank 0 alone would have its momentum."
        )
    run = _run("broadcast", script)
    if run and summary(run.report())["models"] > 1:
        if run.drifts():
            raise NotYet("two models, and they drift apart: gradients are not averaged any more.")
        raise NotYet(
            f"two models, though {call} is called. Is it called for this model, by every rank, before "
            "the first step" + ("?" if torch else ", and in the list of callbacks that fit gets?")
        )
    said = run.report()["weights"].iloc[0] if run else "?"
    _right(run, f"one model: the trained weights of both ranks have the same hash, {said}.")


def check_sharding(script) -> None:
    """Each rank reads its own part of 257 images, in equally many steps, and none is left out."""
    script_facts.refuse_local_numbers(script_facts.read(script))
    run = _run("sharding", script, complain=False)
    if run is None:
        return _right(run, "the script can be read.")
    read = [run.examples(rank) for rank in range(2)]
    if not all(map(len, read)):
        raise NotYet(run.failure or "a rank recorded no examples.")
    steps = [run.lines(rank)["steps"].iloc[0] for rank in range(2)]
    overlap, covered = np.isin(read[1], read[0]).mean(), len(np.union1d(*read))
    if steps[0] != steps[1]:
        raise NotYet(
            f"rank 0 makes {steps[0]} steps an epoch and rank 1 makes {steps[1]}: one will wait for "
            f"gradients that never come. {IMAGES} images are dealt as {len(read[0])} and {len(read[1])}: "
            "Batches(..., rank=..., size=...) deals equally many to each."
        )
    if overlap > 0.9 and covered < IMAGES:
        raise NotYet(
            f"both ranks read the same {len(read[0])} images, and nobody the others: Batches needs "
            "rank=hvd.rank()."
        )
    if overlap > 0.9:
        raise NotYet(
            f"both ranks read all {covered} images, in different orders: Batches needs "
            "rank=hvd.rank() and size=hvd.size()."
        )
    if overlap > 0.02:
        raise NotYet(
            f"the ranks share {overlap:.0%} of their images: each deals from a permutation of its own. "
            "The seed of Batches must be the same on all ranks: args.seed, not seed."
        )
    if covered < IMAGES:
        raise NotYet(f"{IMAGES - covered} of {IMAGES} images are read by nobody.")
    if run.failure:
        raise NotYet(run.failure)
    _right(
        run,
        f"{len(read[0])} + {len(read[1])} images: all {IMAGES}, one of them twice; equal steps.",
    )


def check_metrics(script) -> None:
    """Loss and accuracy are those of all ranks' examples: each of 101 held-out images counts once."""
    source = script_facts.read(script)
    script_facts.refuse_local_numbers(source)
    if not script_facts.divides_beside_batches(source):
        raise NotYet(
            "each rank evaluates all held-out images: nothing but the training images is divided by "
            "hvd.rank() and hvd.size(). Give each rank every size-th, beginning with its own number."
        )
    run = _run("metrics", script)
    if run is None:
        return _right(run, "the script can be read.")
    validation = [n for n in ("val_loss", "val_accuracy") if any(n in run.lines(r) for r in (0, 1))]
    _refuse_missing(run, "accuracy", *validation)
    last = [run.lines(rank).iloc[-1] for rank in range(2)]
    for name in ("loss", "accuracy", *validation):
        if abs(last[0][name] - last[1][name]) > 1e-6:
            raise NotYet(
                f"{name} is {last[0][name]:.4f} on rank 0 and {last[1][name]:.4f} on rank 1. Combine it "
                "over the ranks before anybody prints or records it."
            )
    # At chance in both halves the mean of two means is off by 1e-3 of an image only: all epochs count.
    accuracies = _heldout(run)
    for accuracy in accuracies:
        count, of_all, of_halves = accuracy * np.array([HELDOUT, ALL_HELDOUT, 2 * 51 * 50])
        if abs(count - round(count)) > 1e-4:
            if abs(2 * count - round(2 * count)) < 1e-4:
                raise NotYet(HALVED)
            if abs(102 * accuracy - round(102 * accuracy)) < 1e-4:
                raise NotYet(
                    f"a held-out accuracy of {accuracy:.6f} is one of 102 images: one of {HELDOUT} was dealt "
                    "to both ranks, so that they have equally many. Give each rank every size-th."
                )
            if abs(of_all - round(of_all)) < 2e-3 < abs(of_halves - round(of_halves)):
                raise NotYet(
                    f"a held-out accuracy of {accuracy:.6f} is one of all {ALL_HELDOUT} images, and the "
                    f"script was started with --heldout {HELDOUT}: keep `args.heldout` in the slice."
                )
            if abs(100 * accuracy - round(100 * accuracy)) < 1e-4:
                raise NotYet(
                    f"a held-out accuracy of {accuracy:.6f} is one of 100 images, and there are {HELDOUT}: "
                    f"with {HELDOUT} // 2 for each nobody has the last one. Give each rank every size-th. "
                    "(Or it is the mean of two means, over 51 and over 50 images: add up sums and counts, "
                    "then divide.)"
                )
            raise NotYet(
                f"a held-out accuracy of {accuracy:.6f} would be {count:.4f} of {HELDOUT} images right. "
                "It is the mean of two means, over 51 and over 50 images: add up sums and counts, then "
                "divide."
            )
    # The run of exercise 6 trained the same model, and each rank counted all images.
    before = _heldout(Watched(Path(script), runs(script) / "sharding", runs(script), 2))
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
    _right(run, f"both ranks report {round(count)} of {HELDOUT} held-out images right.")


def _heldout(run):
    lines = run.lines(0)
    return lines.get("val_accuracy", lines.get("accuracy", []))


def check_checkpoint(script) -> None:
    """Checkpoints are written by rank 0 alone."""
    script_facts.refuse_local_rank(script_facts.read(script), "save", "checkpoint")
    run = _run("checkpoint", script, "--checkpoint", "checkpoints")
    wrote = [bool(run.checkpoints(rank)) for rank in range(2)] if run else [True, False]
    if wrote == [True, True]:
        raise NotYet("both ranks write checkpoints: on a common disk, into the same file at once.")
    if wrote != [True, False]:
        who = "rank 1 writes the" if wrote[1] else "nobody writes"
        raise NotYet(f"{who} checkpoints: write them where hvd.rank() == 0.")
    names = " and ".join(run.checkpoints(0)) if run else "the checkpoints"
    _right(run, f"rank 0 writes {names}, rank 1 writes nothing.")


def check_resume(script) -> None:
    """A killed run goes on after its last checkpoint: on two ranks, then on one, with its rate.

    Each rank has its own folder, and rank 0 alone finds a checkpoint, as on machines without a
    common disk.
    """
    source = script_facts.read(script)
    disk = runs(script) / "resume"
    shutil.rmtree(disk, ignore_errors=True)
    options = {"disk": disk, "complain": False}
    keep = ("--checkpoint", "checkpoints", "--epochs")
    killed = _run("resume/killed", script, *keep, 1000, HVDLAB_KILL_AFTER="3", **options)
    if killed is None:
        return _right(killed, "the script can be read.")
    if not killed.checkpoints(0) or not len(killed.lines(0)):
        raise NotYet(f"there is no checkpoint to resume from: {killed.failure}")
    _refuse_missing(killed)
    first, last = killed.lines(0)["loss"].iloc[[0, -1]]
    for ranks, where in ((2, "restarted on two ranks"), (1, "restarted on one rank")):
        done = int(re.findall(r"\d+", killed.checkpoints(0)[-1])[0]) + 1
        run = _run(f"resume/{ranks}-ranks", script, *keep, done + 3, ranks=ranks, **options)
        begun = [
            int(run.lines(r)["epoch"].iloc[0]) if len(run.lines(r)) else None for r in range(ranks)
        ]
        if begun != [done] * ranks and None not in begun:
            raise NotYet(
                f"{where} after epoch {done - 1}, rank 0 begins with epoch {begun[0]} and the last rank "
                f"with epoch {begun[-1]}. Only rank 0 found the checkpoint: it must tell the others."
            )
        if run.failure or None in begun:
            why = run.failure or "a rank recorded nothing."
            if source.named("load_model") and not source.hvd("load_model"):
                why += "; keras.models.load_model returns an optimizer that does not average: hvd.load_model."
            raise NotYet(f"{where}: {why}")
        _refuse_missing(run)
        if summary(run.report())["models"] > 1:
            raise NotYet(
                f"{where} there are two models: broadcast optimizer state and weights after loading, in "
                "this order (a rank without a state gets it by a step, which can move its weights), and "
                "see that the loaded optimizer averages (Keras: hvd.load_model)."
            )
        read = [run.examples(rank, done) for rank in range(ranks)]
        if (covered := len(np.unique(np.concatenate(read)))) < IMAGES:
            raise NotYet(
                f"{where} {covered} of {IMAGES} images are read: Batches needs size=hvd.size(), which is "
                f"{ranks} there."
            )
        if run.lines(0)["loss"].iloc[0] > (first + last) / 2:
            raise NotYet(f"{where} the loss starts at {run.lines(0)['loss'].iloc[0]:.2f} again.")
        _check_rate(run)
    right("killed, restarted on two ranks, restarted on one: epochs, loss and rate go on.")


def _run(
    step, script, *arguments, ranks=2, complain=True, disk=None, **variables
) -> Watched | None:
    """The run of a check; None in a quick run, where most are left out."""
    if (QUICK or REFERENCE) and step not in RUN_IN_QUICK:
        return None
    folder = runs(script) / step
    arguments = arguments if "--epochs" in arguments else (*arguments, "--epochs", 2)
    arguments = (*arguments, *DATA)
    run = watch(script, *arguments, folder=folder, disk=disk, ranks=ranks, limit=LIMIT, **variables)
    if run.failure and complain:
        raise NotYet(run.failure)
    if complain and not all(len(run.lines(rank)) for rank in range(ranks)):
        raise NotYet(
            "a rank recorded nothing: every rank needs its Recorder, also those that are mute."
        )
    if complain:
        _refuse_missing(run)
    return run


def _right(run, sentence) -> None:
    if run:
        print(text(run.report()))
    right(sentence if run else f"(read only, not run) {sentence}".rstrip())


def _models(run, two: str) -> str:
    """A sentence for two models; another for one, of a script in which later steps are done."""
    if run and summary(run.report())["models"] == 1:
        return "They hold one model: the broadcast of exercise 5 is there already."
    return two if run else ""


def _refuse_missing(run, *names) -> None:
    """NotYet where a rank leaves out a number that the checks, or the plots of the lab, read."""
    missing = run.missing("loss", "images_per_second", "learning_rate", *names)
    if not missing:
        return
    rank, name = missing
    way = "EpochLine must run on every rank, only its print is rank 0's."
    if rank == 0:
        way = "EpochLine adds it, on every rank, and stands before the Recorder in the list."
    if name not in ("images_per_second", "learning_rate"):
        way = "fit needs the same metrics and validation_data on every rank."
    if script_facts.read(run.script).imported("hvdlab.torch"):
        way = f"recorder.epoch_end(..., {name}=...) must get it on every rank."
    raise NotYet(f"rank {rank} records no {name}: {way}")


def _refuse_unused_choice(source) -> None:
    """NotYet where `rank_device` chose a device, and the optimizer is not told how to exchange there."""
    name = "compression" if source.torch else "device_dense"
    for call in source.hvd("DistributedOptimizer") if gpu_choice.chosen_by_helper(source) else []:
        names = {each.arg for each in call.keywords}
        if names.isdisjoint({"compression", "device_dense", None}) and len(call.args) < 3:
            raise NotYet(
                f"line {call.lineno}: the optimizer is not told how to send gradients from the device "
                f"that rank_device chose. Ranks that share a GPU need {name}=chosen.{name}, where chosen is "
                "what rank_device(hvd) returned."
            )


def _check_rate(run) -> None:
    for rank in range(run.ranks):
        rate = run.lines(rank)["learning_rate"].iloc[-1]
        if abs(rate / (RATE * run.ranks) - 1) > 1e-3:
            raise NotYet(
                f"on {run.ranks} rank{'s' * (run.ranks > 1)} with --lr {RATE:g} the learning rate is "
                f"{rate:g} on rank {rank}, and should be {RATE * run.ranks:g}: --lr times hvd.size(), once."
            )
