"""Mistakes in the gradients that an optimizer uses: what the ranks have computed, and what became of it."""

import itertools
from collections.abc import Iterator

from hvdlab.check import gradient_shares
from hvdlab.check.replica_weights import apart, divergence
from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import Finding, finding
from hvdlab.script_analysis.legacy_keras import OLD_ARGUMENT
from hvdlab.trace import records


def averaging(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about optimizers that do not use the average of the ranks' gradients."""
    for number in () if run.split() else run.optimizers():
        kinds = gradient_shares.kinds(run, number)
        from_step = divergence(run, number)
        alone = kinds == {"own"} or not (kinds or gradient_shares.wrapped(run, number))
        own = [event for event in run.rank0(records.Step) if event.optimizer == number]
        if kinds != {"mean"} and _steps_early(run, own):
            yield _alone(run, number, own, facts)
        elif kinds == {"none"} and run.rank0(records.Wrap):
            name, line = _made(run, number)
            seen = "so its steps do not change this model"
            yield finding(
                "optimizer-of-other-weights",
                line,
                f"No backward pass has given a gradient to the weights that {name} holds, {seen}.",
            )
        elif alone and (from_step or not run.exchanges()):  # else the script averages the weights
            after = f" After step {from_step} the weights of the ranks differ." if from_step else ""
            found = _alone(run, number, own, facts)
            yield found._replace(seen=found.seen + after)
        elif kinds == {"own"} and (found := _overwritten(run, number)):
            yield found
        elif "uneven" in kinds and not run.all(records.Clip):
            yield _uneven(run, number)


def _steps_early(run: Run, own: list[records.Step]) -> bool:
    """Return whether Horovod still averages when a step begins. With Adasum it steps by itself."""
    adasum = any(event.reduces == "Adasum" for event in run.rank0(records.Wrap))
    return any(event.pending for event in own) and not adasum


def changing(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about gradients that are changed while Horovod averages them."""
    for event in run.all(records.Clip) if run.rank0(records.Wrap) else ():
        seen = (
            "This changes the gradients while Horovod's all-reduce of them runs, which `backward` has "
            "started. So changed and unchanged gradients are averaged, or the average overwrites the change."
        )
        if event.what == records.Clip.HOOK:
            seen = (
                "This hook clips the gradient of each rank during `backward`, before the average."
            )
        yield finding("clip-before-average", event.line, seen)
        return


def _alone(run: Run, number: int | None, own: list[records.Step], facts: Facts) -> Finding:
    """Return the finding of an optimizer that uses the gradient of its own rank only.

    Args:
        own: its steps on the first rank.
    """
    name, line = _made(run, number)
    wraps = run.rank0(records.Wrap)
    seen = f"On each rank {name} steps by the gradient of that rank only."
    if run.api() == "ddp":
        if not wraps:
            return finding("model-not-wrapped", line, seen)
        forward = next((event.forward for event in own if event.forward), None)
        return finding(
            "wrapper-not-called",
            forward or run.line(records.Step),
            f"{name} steps by the gradient of its rank only: no forward pass of the wrapper has prepared an "
            "average, because this line calls the model itself.",
        )
    if foreign := next((event for event in wraps if event.own_module), None):
        return _own_module(foreign, name, run, facts)
    if late := [event for event in wraps if event.optimizer == number]:
        if any(event.wrapped for event in own):
            return _before_average(run, number, own)
        seen = f"{name} was wrapped here, but the plain optimizer trains."
        return finding("wrapped-too-late", late[0].line, seen)
    taped = next((event.taped_at for event in own if event.taped_at), None)
    if taped and wraps:
        seen += " The gradients come from another tape than the distributed one."
    return finding("optimizer-not-wrapped", taped or line, seen)


def _overwritten(run: Run, number: int | None) -> Finding | None:
    """Return the finding of a broadcast that replaces what the other ranks have learned, or None.

    After a step the weights of the ranks differ, and the next step of each rank begins with those of one
    rank, which it has trained with its own gradient only.
    """
    shares = gradient_shares.of_optimizer(run, number)
    for step, (before, after) in enumerate(itertools.pairwise(run.steps(number)), 1):
        left, begun = [event.weights for event in before], [event.start for event in after]
        if not all(begun) or not apart(run, left) or apart(run, begun):
            continue
        for place, (first, last) in enumerate(zip(before, after, strict=True)):
            root = run.ranks[place]
            own = {of_ranks[place].kind for of_ranks in shares} == {"own"}
            if not own or any(map(run.apart, left[place], begun[0])):
                continue
            for sent in run.of(root, records.Broadcast | records.Collective):
                what = getattr(sent, "what", None) or sent.op
                if first.at <= sent.at <= last.at and "broadcast" in what and "opti" not in what:
                    return finding(
                        "weights-overwritten",
                        sent.line,
                        f"After step {step} the weights of the ranks differ. This {what} replaces all of "
                        f"them by those of rank {root}, which it has trained with its own gradient only: "
                        "what the other ranks have learned is lost.",
                    )
    return None


def _own_module(wrap: records.Wrap, name: str, run: Run, facts: Facts) -> Finding:
    """Return the finding of a wrapper of Horovod's own Keras module that averages nothing here."""
    unused = "whose trainer never calls the wrapper"
    if run.api() == "tape":
        unused = "and averages nothing that a loop passes to apply_gradients"
    old = f" Keras 3 does not accept {OLD_ARGUMENT} in line {facts.old_argument}: remove it."
    seen = f"Horovod's own Keras module wrapped {name} here, {unused}."
    return finding("gradients-not-averaged", wrap.line, seen + (old if facts.old_argument else ""))


def _uneven(run: Run, number: int | None) -> Finding:
    """Return the finding of an average in which the ranks have unequal shares."""
    shares = [share for step in gradient_shares.of_optimizer(run, number) for share in step]
    changed = (share.changed for share in shares if share.kind == "uneven")
    return finding(
        "clip-before-average",
        next(filter(None, changed), run.line(records.Step)),
        "The average of the gradients has unequal shares of the ranks, because this changes the gradients of "
        "each rank before they are averaged.",
    )


def _before_average(run: Run, number: int | None, own: list[records.Step]) -> Finding:
    name, line = _made(run, number)
    seen = (
        f"{name} (line {line}) is wrapped, and nothing has waited for the average before this step."
    )
    return finding("step-before-average", own[0].line, seen)


def _made(run: Run, number: int | None) -> tuple[str, int | None]:
    """Return the name of an optimizer and the line that created it."""
    created = next((e for e in run.rank0(records.Optimizer) if e.optimizer == number), None)
    return (created.name, created.line) if created else ("The optimizer", run.line(records.Step))


RULES = averaging, changing
