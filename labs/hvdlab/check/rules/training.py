"""Mistakes in how the ranks train together: gradients, weights, batches, steps, collectives.

Each rule takes the run and the facts of the source, and yields findings.
"""

from hvdlab.check.catalogue import finding

SAME_STEPS = 3  # equal batches that are no chance


def wrapping(run, facts):
    """Optimizers that step, and were not wrapped, or wrapped when it was too late, or in vain."""
    wraps = run.rank0("wrap")
    for event in wraps:
        if not event["averages"]:
            step = run.first_difference()
            seen = f" and after step {step} the weights of the ranks differ" if step else ""
            yield finding(
                "gradients-not-averaged",
                event["line"],
                f"Horovod's own Keras module wrapped an optimizer of Keras 3, whose trainer goes "
                f"past it{seen}.",
            )
    if any(not event["averages"] for event in wraps):
        return
    made = {event["optimizer"]: event for event in run.rank0("optimizer")}
    plain = {
        event["optimizer"]
        for event in run.rank0("step") + run.rank0("compile")
        if not event["wrapped"]
    }
    plain -= {event["optimizer"] for event in run.rank0("step") if event["wrapped"]}
    for number in sorted(plain, key=lambda n: -1 if n is None else n):
        step = run.first_difference(number)
        if step is None and run.all("collective") and run.steps(number):
            continue  # equal without a wrapper: the script averages by itself
        apart = f"; after step {step} the weights of the ranks differ" if step else ""
        late = [event for event in wraps if event["optimizer"] == number]
        name = made.get(number, {}).get("name", "the optimizer")
        if late:
            yield finding(
                "wrapped-too-late",
                late[0]["line"],
                f"{name} was wrapped here, and it is the plain one that trains{apart}.",
            )
        else:
            line = made[number]["line"] if number in made else run.line("step")
            yield finding(
                "optimizer-not-wrapped", line, f"{name} steps by each rank's own gradient{apart}."
            )


def replicas(run, facts):
    for number in run.optimizers():
        step = run.first_difference(number)
        if step is None:
            continue
        if step == 1 and not run.all("broadcast"):
            wrap = next(iter(run.rank0("wrap")), {"line": None})
            yield finding(
                "no-broadcast",
                run.line("fit") or wrap["line"] or run.line("step"),
                f"nothing is broadcast, and after step 1 the weights of ranks {run.pair(number, 1)} "
                f"differ: the norm of one by {run.difference(number, 1):.1%}.",
            )
            continue
        if step == 1:  # TensorFlow's examples broadcast after the first step
            later = run.first_difference(number, after=1)
            if later is None and len(run.steps(number)) > 1:
                continue
        rates = run.values(number, step, "rate")
        why = ""
        if len(set(rates)) > 1:
            why = f" The rates are {' and '.join(f'{rate:g}' for rate in rates)}."
        yield finding(
            "replicas-diverged",
            run.step(0, number, step)["line"],
            f"the weights of ranks {run.pair(number, step)} "
            f"{f'are the same until step {step - 1} and ' if step > 1 else ''}differ after step {step}, "
            f"the norm of one by {run.difference(number, step):.2g} of it.{why}",
        )


def batches(run, facts):
    for first, second in run.pairs():
        both = list(zip(run.batches(first), run.batches(second), strict=False))
        if len(both) >= SAME_STEPS and all(one and one == other for one, other in both):
            loop = [event for event in run.all("loop") if not event["nested"]]
            line = next((event["made"] or event["line"] for event in loop), run.line("step"))
            yield finding(
                "identical-batches",
                line,
                f"ranks {first} and {second} got the same batch in each of {len(both)} steps.",
            )
            return


def stopping(run, facts):
    for (line, text), values in run.decisions().items():
        for number, each in enumerate(zip(*values, strict=False), 1):
            if any(run.apart(each[0], other) for other in each[1:]):
                said = ", ".join(
                    f"rank {r} saw {v:.6g}" for r, v in zip(run.ranks, each, strict=True)
                )
                yield finding(
                    "own-stop",
                    line,
                    f"the decision depends on `{text}`: in round {number} {said}.",
                )
                return


def unequal(run, facts):
    if facts.join or run.all("join"):
        return
    for line, lengths in run.lengths().items():
        if len(set(lengths.values())) > 1 and line not in facts.counted:
            said = ", ".join(f"rank {rank} has {n}" for rank, n in sorted(lengths.items()))
            yield finding(
                "unequal-steps",
                line,
                f"batches of this loop in an epoch: {said}. The rank that has more will wait for "
                "ever in its next all-reduce.",
            )
            return
    if run.crash():
        return
    for line, (rank, mine, other, its) in run.left_early().items():
        yield finding(
            "unequal-steps",
            line,
            f"rank {rank} came to the end of this loop after {mine} rounds, rank {other} began "
            f"round {its} and waits.",
        )
        return


def collectives(run, facts):
    if run.crash() or not run.complete():
        return
    for op, counts in run.calls().items():
        if len(set(counts.values())) == 1:
            continue
        line = run.call_line(op, max(counts, key=counts.get), counts)
        said = ", ".join(f"rank {rank} {n} times" for rank, n in sorted(counts.items()))
        guard = facts.guarded.get(line)
        under = f" It is under the test of line {guard}." if guard else ""
        yield finding(
            "collective-on-some-ranks", line, f"{op} was called by {said}.{under}{run.waiting()}"
        )
        return


RULES = wrapping, replicas, batches, stopping, unequal, collectives
