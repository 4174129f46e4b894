"""What is said of how the ranks train together, on events written by hand."""

import pytest
from check_events import judge, named, plus, run, without


def test_a_good_run_has_no_finding(facts):
    assert named(run(), facts()) == []
    assert named(run(ranks=4), facts()) == []


def test_replicas_that_part_are_told_from_those_that_begin_apart(facts):
    apart = run(weights=lambda rank, step: [1.0 + rank, 2.0])
    later = run(weights=lambda rank, step: [1.0 + (rank if step >= 3 else 0), 2.0])
    no_call = facts(("hvd.broadcast_parameters(model.state_dict(), root_rank=0)", "pass"))
    assert named(without(apart, "broadcast"), no_call) == [("no-broadcast", 4)]
    assert named(apart, facts()) == [("replicas-diverged", 7)]
    found = judge(later, facts())
    assert found[0].id == "replicas-diverged" and "differ after step 4" in found[0].seen
    # Broadcast after the first step, as TensorFlow's examples do.
    assert named(run(weights=lambda r, s: [1.0 + (r if s == 0 else 0)]), facts()) == []


def test_rounding_in_the_norm_is_no_difference(facts):
    assert named(run(weights=lambda rank, step: [1.0 + 1e-12 * rank]), facts()) == []


def test_adasum_leaves_rounding_in_the_weights(facts):
    for difference, wanted in ((2e-7, []), (1e-3, [("replicas-diverged", 7)])):
        events = run(weights=lambda rank, step, d=difference: [1.0 + d * rank])
        for rank in events:
            next(e for e in events[rank] if e["kind"] == "wrap")["reduces"] = "Adasum"
        assert named(events, facts()) == wanted
    assert named(run(weights=lambda rank, step: [1.0 + 2e-7 * rank]), facts()) != []


def test_a_plain_optimizer_is_not_wrapped_or_wrapped_too_late(facts):
    plain = run(wrapped=lambda r, s: False, weights=lambda rank, step: [1.0 + rank * step])
    assert named(without(plain, "wrap"), facts()) == [("optimizer-not-wrapped", 3)]
    assert named(plain, facts()) == [("wrapped-too-late", 4)]
    # Equal weights and collectives: the script averages by itself.
    by_hand = without(run(wrapped=lambda r, s: False), "wrap")
    for rank in by_hand:
        plus(by_hand, rank, kind="collective", op="hvd.allreduce_", line=6)
    assert named(by_hand, facts()) == []


OWN = [[1.0] * 8 + [0.0] * 8, [0.0] * 8 + [1.0] * 8]  # sketches of the gradients of two ranks


def parts(*shares, changed=None):
    """A change of steps: the gradient that a rank uses has these shares of the ranks' gradients."""
    used = [[a * one + b * other for one, other in zip(*OWN, strict=True)] for a, b in shares]
    return lambda rank, step: {"used": used[rank], "local": OWN[rank], "changed": changed}


APART = {"weights": lambda rank, step: [1.0 + rank * step]}


@pytest.mark.parametrize(
    "gradient, events, wanted",
    [
        (parts((0.5, 0.5), (0.5, 0.5)), {}, []),
        (parts((0.1, 0.1), (0.1, 0.1), changed=8), {}, []),  # clipped after the average
        (parts((0.2, 0.5), (0.2, 0.5), changed=8), {}, [("clip-before-average", 8)]),
        (parts((1, 0), (0, 1)), APART, [("step-before-average", 7)]),
        (parts((1, 0), (0, 1)), APART | {"wrapped": lambda r, s: False}, [("wrapped-too-late", 4)]),
        (parts((0.5, 0.5), (0.5, 0.5)), APART, [("replicas-diverged", 7)]),
        (lambda r, s: {"used": None, "local": None}, {}, [("optimizer-of-other-weights", 3)]),
        (None, {"pending": lambda r, s: True}, [("step-before-average", 7)]),
    ],
)
def test_the_shares_of_the_ranks_in_the_gradient_tell_what_became_of_it(
    gradient, events, wanted, facts
):
    given = run(**events, **({"gradient": gradient} if gradient else {}))
    assert named(given, facts()) == wanted


def test_gradients_of_another_tape_than_the_distributed_one(facts):
    events = run(
        wrapped=lambda rank, step: False,
        taped_at=lambda rank, step: 6,
        gradient=parts((1, 0), (0, 1)),
        **APART,
    )
    for rank in events:
        for event in events[rank]:
            if event["kind"] == "wrap":
                event.update(what="hvd.DistributedGradientTape", optimizer=None)
            if event["kind"] == "optimizer":
                event["api"] = "keras"
    (found,) = judge(events, facts())
    assert (found.id, found.line) == ("optimizer-not-wrapped", 6)
    assert "from another tape" in found.seen and "before tape.gradient" in found.fix


def test_weights_that_are_averaged_between_the_steps_are_equal_where_a_step_begins(facts):
    def plain(start):
        apart = run(8, wrapped=lambda r, s: False, weights=lambda r, s: [1.0 + r + s], start=start)
        return without(apart, "wrap")

    every_4 = plain(lambda r, s: [1.0 + s + (r if s % 4 else 0)])
    assert named(every_4, facts()) == [("optimizer-not-wrapped", 3)]  # nothing was exchanged
    for rank in every_4:
        plus(every_4, rank, kind="collective", op="hvd.allreduce", line=7)
    assert named(every_4, facts()) == []
    never = plain(lambda r, s: [1.0 + s + r * s])
    for rank in never:
        plus(never, rank, kind="collective", op="hvd.allreduce", line=7)
    assert named(never, facts()) == [("optimizer-not-wrapped", 3)]


def test_a_parameter_server_steps_on_one_rank_and_exchanges_by_itself(facts):
    events = without(run(wrapped=lambda r, s: False), "wrap")
    events[1] = [event for event in events[1] if event["kind"] != "step"]
    for rank in events:
        plus(events, rank, kind="collective", op="hvd.allgather", line=6)
    assert named(events, facts()) == []


def test_a_broadcast_before_the_first_step_averages_nothing(facts):
    """Equal seeds and equal data hide that no rank gets the gradients of another one."""
    events = without(run(wrapped=lambda r, s: False), "wrap")
    sent = dict(kind="collective", op="hvd.broadcast_parameters", line=5)
    for rank in events:
        plus(events, rank, **sent)
    assert named(events, facts()) == [("optimizer-not-wrapped", 3)]
    for rank in events:
        for steps in 2, 4:  # the weights of a rank are sent again and again
            plus(events, rank, **sent | {"steps": steps})
    assert named(events, facts()) == []


def test_weights_of_one_rank_that_replace_those_of_the_others(facts):
    def events(start, gradient=None):
        plain = run(
            4,
            wrapped=lambda r, s: False,
            weights=lambda r, s: [1.0 + r + s],
            start=start,
            gradient=gradient or parts((1, 0), (0, 1)),
        )
        for rank in plain:
            first = next(i for i, e in enumerate(plain[rank]) if e["kind"] == "step")
            for step in 1, 2:
                sent = {"kind": "collective", "op": "hvd.broadcast_", "line": 6, "stack": [6]}
                at = plain[rank][first]["at"] + step - 0.5
                plain[rank].insert(-1, {"at": at, "steps": step, "name": None, **sent})
        return without(plain, "wrap")

    own, averaged = (lambda r, s: [0.0 + s]), (lambda r, s: [0.5 + s])
    (found,) = judge(events(own), facts())
    assert (found.id, found.line) == ("weights-overwritten", 6)
    assert "those of rank 0" in found.seen
    (found,) = judge(events(lambda r, s: [1.0 + s]), facts())
    assert "those of rank 1" in found.seen
    assert named(events(averaged), facts()) == []  # a script that averages the weights by hand

    def server(rank, step):  # its gradient is also of something that no rank has computed
        return {"used": [[1.0, 0.0] * 8, OWN[1]][rank], "local": OWN[rank], "changed": None}

    assert named(events(own, server), facts()) == []


def begun_apart(**changes):
    """A run whose weights differ before step 1, and until the end."""
    events = run(weights=lambda rank, step: [1.0 + rank, 2.0], **changes)
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "step")["start"] = [1.0 + rank, 2.0]
    return events


def before_training(events, rank, **event):
    """Insert an event between the broadcast and the first step."""
    place = next(i for i, e in enumerate(events[rank]) if e["kind"] == "step")
    events[rank].insert(place, {"at": 4.5, "steps": 0, **event})
    return events


def test_weights_that_change_between_the_broadcast_and_the_first_step(facts):
    (found,) = judge(begun_apart(), facts())
    assert (found.id, found.line) == ("no-broadcast", 5) and "code below it" in found.seen
    loads = {"kind": "load", "line": 9, "wrapped": False}
    (found,) = judge(before_training(begun_apart(), 1, **loads), facts())
    assert (found.id, found.line) == ("no-broadcast", 9) and "Only rank 1 changes" in found.seen
    # A load before the broadcast changes nothing.
    early = before_training(begun_apart(), 1, **loads)
    next(e for e in early[1] if e["kind"] == "load")["at"] = 0.5
    assert named(early, facts()) == [("no-broadcast", 5)]


def test_weights_that_one_rank_loads_between_two_steps(facts):
    events = run(weights=lambda rank, step: [1.0 + step + rank * (step > 2), 2.0])
    assert named(events, facts()) == [("replicas-diverged", 7)]
    steps = [event for event in events[0] if event["kind"] == "step"]
    events[0].append(
        {"kind": "load", "at": steps[2]["at"] + 0.01, "steps": 3, "line": 9, "wrapped": False}
    )
    (found,) = judge(events, facts())
    assert (found.id, found.line) == (
        "replicas-diverged",
        9,
    ) and "Only rank 0 loads a state" in found.seen
    early = {"kind": "load", "at": steps[0]["at"] + 0.01, "steps": 1, "line": 9, "wrapped": False}
    events[0][-1] = early
    assert named(events, facts()) == [("replicas-diverged", 7)]


def test_a_state_that_one_rank_loads_before_the_first_step(facts):
    """The weights are equal, but the momentum of rank 0 comes from a checkpoint."""
    equal = {0: [1.0, 2.0]}  # where step 1 begins
    events = run(weights=lambda r, s: [1.0 + r, 2.0], start=lambda r, s: equal.get(s))
    before_training(events, 0, kind="load", line=6, wrapped=False)
    assert named(events, facts()) == [("replicas-diverged", 6)]
    for event in events[0]:
        event["at"] = 0 if event["kind"] == "load" else event["at"]  # and is then broadcast
    assert named(events, facts()) == [("replicas-diverged", 7)]


def test_a_broadcast_after_the_first_step_may_find_other_weights(facts):
    events = begun_apart()
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "broadcast").update(steps=1, at=6)
    assert named(events, facts()) == [("replicas-diverged", 7)]


def test_only_the_ranks_of_a_process_set_are_compared(facts):
    def in_sets(events, *sets):
        for rank in events:
            plus(events, rank, kind="group", line=4, ranks=next(s for s in sets if rank in s))
        return events

    def apart(of):
        return run(ranks=4, weights=lambda r, s: [1.0 + of(r)], batch=lambda r, s: f"{of(r)}-{s}")

    assert named(in_sets(apart(lambda r: r // 2), [0, 1], [2, 3]), facts()) == []
    found = judge(in_sets(apart(lambda r: r), [0, 1], [2, 3]), facts())
    assert [one.id for one in found] == ["replicas-diverged"] and "ranks 0 and 1" in found[0].seen
    # A rank with two sets holds a part of a model: nobody knows which parts are equal.
    in_two = in_sets(apart(lambda r: r), [0, 1], [2, 3])
    for rank, other in enumerate((2, 3, 0, 1)):
        plus(in_two, rank, kind="group", line=4, ranks=sorted({rank, other}))
    assert named(in_two, facts()) == []


@pytest.mark.parametrize(
    "what, line, seen",
    [
        ("hvd.broadcast_variables", 5, "hvd.broadcast_variables gets no weights"),
        ("hvd.broadcast_optimizer_state", 4, "Only the state of the optimizer is broadcast"),
    ],
)
def test_a_broadcast_without_weights_is_named(what, line, seen, facts):
    events = run(weights=lambda rank, step: [1.0 + rank, 2.0])
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "broadcast").update(what=what, weights=0)
    (found,) = judge(events, facts())
    assert (found.id, found.line) == ("no-broadcast", line) and seen in found.seen


def test_a_broadcast_that_is_not_reached_is_named(facts):
    events = without(run(weights=lambda rank, step: [1.0 + rank, 2.0]), "broadcast")
    (found,) = judge(events, facts())
    assert (found.id, found.line) == ("no-broadcast", 5) and "did not reach" in found.seen


def test_a_broadcast_after_the_last_step_may_have_made_the_weights_equal(facts):
    events = run(steps=1, weights=lambda rank, step: [1.0 + rank, 2.0])
    assert named(events, facts()) == [("replicas-diverged", 7)]
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "broadcast")["at"] = 99
    assert named(events, facts()) == []


@pytest.mark.parametrize(
    "kind, api, text",
    [
        (None, "torch", "broadcast_parameters(model.state_dict()"),
        (None, "keras", "broadcast_variables(model.variables"),  # a loop with tf.GradientTape
        ("fit", "keras", "BroadcastGlobalVariablesCallback(0)"),
    ],
)
def test_the_advice_is_for_what_the_script_trains_with(kind, api, text, facts):
    events = without(run(weights=lambda rank, step: [1.0 + rank]), "broadcast")
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "optimizer")["api"] = api
        if kind:
            plus(events, rank, kind=kind, line=6, length=5, content=None)
    (found,) = judge(events, facts())
    assert text in found.fix and "In Keras" not in found.fix


def test_unequal_lengths_are_named_unless_the_script_joins(facts):
    events = run()
    next(e for e in events[1] if e["kind"] == "loop")["length"] = 4
    assert named(events, facts()) == [("unequal-steps", 6)]
    for rank in events:
        plus(events, rank, kind="join", line=8)
    assert named(events, facts()) == []


def test_unequal_rounds_of_a_loop_around_training_loops_are_named(facts):
    events = run()
    for rank in events:
        plus(events, rank, kind="loop", line=5, length=4 - rank, made=None, nested=True)
    assert named(events, facts()) == [("unequal-steps", 5)]


def test_an_epoch_of_a_counted_number_of_batches_may_have_a_loader_of_any_length(facts):
    events = run()
    next(e for e in events[1] if e["kind"] == "loop")["length"] = 4
    counted = (
        "for batch in loader:\n",
        "for i, batch in enumerate(loader):\n    if i == steps:\n        break\n",
    )
    assert named(events, facts(counted)) == []


def test_a_stop_by_an_own_number_explains_the_unequal_steps(facts):
    events = run()
    next(e for e in events[1] if e["kind"] == "pass")["iterations"] = 9
    assert named(events, facts()) == [("unequal-steps", 6)]
    for rank in events:
        decided = dict(kind="decision", line=6, text="loss", stack=[6])
        plus(events, rank, **decided, value=0.5 + rank / 10, loops=[[6, 1]])
    assert named(events, facts()) == [("own-stop", 6)]


def test_a_rank_that_breaks_out_of_a_loop_is_named_where_it_leaves(facts):
    def left(waits):
        events = run()
        ended = next(e for e in events[0] if e["kind"] == "pass")
        ended.update(left="early", iterations=3, leaves=8)
        if waits:
            for rank in events:
                plus(events, rank, kind="collective", line=9 - rank, op=f"hvd.{rank}")
            events[1] = [e for e in events[1] if e["kind"] not in ("pass", "end")]
            wait = {"op": "optimizer.step", "name": None, "loops": [[6, 4]]}
            events[1].append({"kind": "waiting", "at": 99, "steps": 4, "line": 7, **wait})
        return events

    (found,) = judge(left(waits=True), facts())
    assert (found.id, found.line) == ("unequal-steps", 8)
    assert "left the loop of line 6 here, in round 3. Rank 1 started round 4" in found.seen
    assert named(left(waits=False), facts()) == []  # its last rounds may train nothing
    # Where the check ends one rank, the wait of the other one ends with an error, and so do its loops.
    broken = left(waits=True)
    wait = {"op": "mean", "name": None, "loops": [[6, 3]]}
    plus(broken, 0, kind="waiting", line=9, **wait)
    next(e for e in broken[0] if e["kind"] == "pass")["at"] = 100
    broken[0].pop()  # the end, which is not always written
    assert [one for one, _ in named(broken, facts())] == ["collective-on-some-ranks"]


@pytest.mark.parametrize(
    "steps, left, waits, wanted",
    [
        ((4, 5), "at its end", True, [("unequal-steps", 16)]),
        ((5, 4), "at its end", True, [("unequal-steps", 6)]),
        ((5, 5), "at its end", True, []),
        ((4, 5), "cut", True, []),  # the check ended the loops
        ((4, 5), "at its end", False, []),  # the ranks may train independently
    ],
)
def test_ranks_with_loops_of_their_own_need_equal_numbers_of_steps(
    steps, left, waits, wanted, facts
):
    events = {}
    for rank, own in enumerate(steps):
        events[rank] = run(own)[rank]
        line = 6 + 10 * rank
        for step, event in enumerate(e for e in events[rank] if e["kind"] == "step"):
            event["loops"] = [[5, 1], [line, step + 1]]
        next(e for e in events[rank] if e["kind"] == "loop")["line"] = line
        next(e for e in events[rank] if e["kind"] == "pass").update(line=line, left=left)
        if waits:
            wait = {"op": "graph", "name": "step 1", "loops": [[5, 2], [line, 1]]}
            events[rank][-1] = {"kind": "waiting", "at": 99, "steps": own, "line": 9, **wait}
    assert named(events, facts()) == wanted


def test_a_loop_that_does_not_train_may_end_by_an_own_number(facts):
    events = run()
    for rank in events:
        decided = dict(kind="decision", line=3, stack=[3])
        plus(events, rank, **decided, text="len(words)", value=9 + rank, loops=[[3, 1]])
        plus(events, rank, **decided, text="fast", value=rank, loops=[])
    assert named(events, facts()) == []


def test_a_function_that_trains_on_one_rank_and_evaluates_on_another_decides_for_both(facts):
    events = run()
    for rank in events:
        stack = [9 + rank, 6]  # rank 0 has called the function in another line
        at = {"line": 6, "loops": [[6, 1]], "text": "train", "stack": stack}
        plus(events, rank, kind="decision", value=rank, **at)
    assert named(events, facts()) == []
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "decision")["stack"] = [9, 6]
    assert named(events, facts()) == [("own-stop", 6)]
    next(e for e in events[1] if e["kind"] == "decision")["loops"] = [[6, 2]]  # another round
    assert named(events, facts()) == []


def test_a_collective_of_one_rank_is_named_where_it_is(facts):
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=7)
    assert named(events, facts()) == [("collective-on-some-ranks", 7)]
    # One rank in each branch of an `if`: both call it.
    assert named(plus(events, 1, kind="collective", op="hvd.allreduce", line=9), facts()) == []


def test_the_call_under_the_test_of_the_rank_is_named_and_not_the_function_around_the_collective(
    facts,
):
    helper = facts(
        ("import horovod", "def mean(x):\n    return hvd.allreduce(x)\nimport horovod"),
        (
            "    optimizer.step()",
            "    optimizer.step()\n    if hvd.rank() == 0:\n        mean(loss)",
        ),
    )
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=2, stack=[11, 2])
    assert named(events, helper) == [("collective-on-some-ranks", 11)]
    assert "The test of line 10 decides" in judge(events, helper)[0].seen


def test_a_step_of_one_rank_under_a_test_of_the_rank_is_named(facts):
    events = run(stack=lambda rank, step: [8, 7] if step == 1 and rank == 0 else [7])
    step = "    optimizer.step()\n"
    tested = facts((step, f"{step}if hvd.rank() == 0: train(1)\n"))
    assert named(events, tested) == [("collective-on-some-ranks", 8)]
    both = facts((step, f"{step}if hvd.rank() == 0: train(1)\nelse:\n    train(2)\n"))
    other = run(stack=lambda rank, step: [10 if rank else 8, 7] if step == 1 else [7])
    assert named(other, both) == []
    assert named(events, facts()) == []


def test_gradients_that_are_clipped_while_they_are_averaged_explain_replicas_that_part(facts):
    events = run(weights=lambda rank, step: [1.0 + rank * step])
    plus(events, 1, kind="clip", line=7, what="clip_grad_norm_")
    assert named(events, facts()) == [("clip-before-average", 7)]


def test_a_crash_is_not_taken_for_a_missing_call(facts):
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=7)
    events[1][-1]["error"] = "ValueError: mine"
    assert named(events, facts()) == []
    events[1][-1]["error"] = "HorovodInternalError: Horovod has been shut down"
    assert named(events, facts()) == [("collective-on-some-ranks", 7)]


def test_nothing_else_is_said_where_the_ranks_never_met(facts):
    alone = without(run(weights=lambda rank, step: [1.0 + rank]), "init")
    assert named(alone, facts(("hvd.init()", "pass"))) == [("init-missing", 1)]
    assert named(without(alone, "end"), facts()) == []  # somebody ended them before they came to it
    # It failed before it came to its hvd.init(), here or in a module of its own: the error says it.
    alone[0][-1]["error"] = "FileNotFoundError: data"
    assert named(alone, facts()) == []
    elsewhere = facts(("import horovod.torch as hvd\nhvd.init()\n", "import mine\n\n"))
    assert named(alone, elsewhere) == []
    alone[0][-1]["error"] = "ValueError: Horovod has not been initialized; use hvd.init()."
    assert named(alone, facts(("hvd.init()", "wandb.init()"))) == [("init-missing", 1)]


def in_graphs(*by_rank):
    """A run that waits for ever, and the collectives that each rank traced: (function, graph, operation)."""
    events = run(steps=0)
    for rank, traced in enumerate(by_rank):
        for function, graph, op in traced:
            plus(
                events, rank, kind="traced", line=8, function=function, graph=graph, op=f"hvd.{op}"
            )
    return events


def test_a_collective_in_a_graph_of_one_rank_is_named_under_the_test_of_the_rank(facts):
    tested = facts(("    optimizer.step()", "    if hvd.rank() == 0:\n        hvd.allreduce(loss)"))
    step = [("train", 0, "allreduce"), ("train", 0, "broadcast")]
    again = ("train", 1, "allreduce")  # the next graph of the function, which rank 1 does not reach
    events = in_graphs([*step, ("train", 0, "allreduce"), again], step)
    (found,) = judge(events, tested)
    assert (found.id, found.line) == ("collective-on-some-ranks", 8)
    assert "While TensorFlow traced train, rank 0 called hvd.allreduce more often" in found.seen
    assert "test of line 7" in found.seen
    assert named(in_graphs([*step, again], step), facts()) == []
    # A rank that saves its model traces the function again in which Horovod averages gradients.
    assert (
        named(
            in_graphs(
                [("allreduce_grads", 0, "allreduce")] * 2, [("allreduce_grads", 0, "allreduce")]
            ),
            facts(),
        )
        == []
    )
    # Graphs are numbered by rank, and a function that only one rank has traced may come later on the other.
    other = in_graphs(
        [("mean", 0, "allreduce"), ("train", 1, "broadcast")], [("train", 0, "broadcast")]
    )
    assert named(other, facts()) == []


@pytest.mark.parametrize(
    "own_module, api, wanted",
    [
        (True, "keras", [("gradients-not-averaged", 4)]),
        (False, "keras", [("replicas-diverged", 7)]),  # hvdlab.keras.horovod averages in `apply`
        (True, "torch", [("replicas-diverged", 7)]),
    ],
)
def test_horovods_own_wrapper_averages_nothing_in_a_loop_of_keras(own_module, api, wanted, facts):
    shares = (
        parts((1, 0), (0, 1)) if own_module and api == "keras" else parts((0.5, 0.5), (0.5, 0.5))
    )
    events = run(weights=lambda rank, step: [1.0 + rank * (step > 1)], gradient=shares)
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "optimizer")["api"] = api
        next(e for e in events[rank] if e["kind"] == "wrap")["own_module"] = own_module
    found = judge(events, facts())
    assert [(one.id, one.line) for one in found] == wanted
    assert ("DistributedGradientTape" in found[0].fix) == (wanted[0][0] == "gradients-not-averaged")
