"""What is said of how the ranks train together, on events written by hand."""

from check_events import named, plus, run, without

from hvdlab.check.diagnosis import judge


def test_a_good_run_has_no_finding(facts):
    assert named(run(), facts()) == []
    assert named(run(ranks=4), facts()) == []


def test_replicas_that_part_are_told_from_those_that_begin_apart(facts):
    apart = run(weights=lambda rank, step: [1.0 + rank, 2.0])
    later = run(weights=lambda rank, step: [1.0 + (rank if step >= 3 else 0), 2.0])
    assert named(without(apart, "broadcast"), facts()) == [("no-broadcast", 4)]
    assert named(apart, facts()) == [("replicas-diverged", 7)]
    found = judge(later, facts())
    assert found[0].id == "replicas-diverged" and "differ after step 4" in found[0].seen
    # Broadcast after the first step, as TensorFlow's examples do.
    assert named(run(weights=lambda r, s: [1.0 + (r if s == 0 else 0)]), facts()) == []


def test_rounding_in_the_norm_is_no_difference(facts):
    assert named(run(weights=lambda rank, step: [1.0 + 1e-12 * rank]), facts()) == []


def test_a_plain_optimizer_is_not_wrapped_or_wrapped_too_late(facts):
    plain = run(wrapped=lambda r, s: False, weights=lambda rank, step: [1.0 + rank * step])
    assert named(without(plain, "wrap"), facts()) == [("optimizer-not-wrapped", 3)]
    assert named(plain, facts()) == [("wrapped-too-late", 4)]
    # Equal weights and collectives: the script averages by itself.
    by_hand = without(run(wrapped=lambda r, s: False), "wrap")
    for rank in by_hand:
        plus(by_hand, rank, kind="collective", op="hvd.allreduce_", line=6)
    assert named(by_hand, facts()) == []


def test_equal_batches_are_a_mistake_only_if_all_are(facts):
    assert named(run(batch=lambda r, s: f"{s}"), facts()) == [("identical-batches", 6)]
    assert named(run(batch=lambda r, s: f"{s}" if s else f"{r}"), facts()) == []
    assert named(run(steps=2, batch=lambda r, s: f"{s}"), facts()) == []
    four = run(ranks=4, batch=lambda r, s: f"{min(r, 2)}{s}")
    assert "Ranks 2 and 3" in judge(four, facts())[0].seen


def test_unequal_lengths_are_named_unless_the_script_joins(facts):
    events = run()
    next(e for e in events[1] if e["kind"] == "loop")["length"] = 4
    assert named(events, facts()) == [("unequal-steps", 6)]
    assert named(events, facts(("    optimizer.step()", "    optimizer.step()\nhvd.join()"))) == []


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
        plus(events, rank, kind="decision", line=6, text="loss", value=0.5 + rank / 10, loop=6)
    assert named(events, facts()) == [("own-stop", 6)]


def test_a_loop_that_does_not_train_may_end_by_an_own_number(facts):
    events = run()
    for rank in events:
        plus(events, rank, kind="decision", line=3, text="len(words)", value=9 + rank, loop=3)
        plus(events, rank, kind="decision", line=3, text="fast", value=rank, loop=None)
    assert named(events, facts()) == []


def test_a_collective_of_one_rank_is_named_where_it_is(facts):
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=7)
    assert named(events, facts()) == [("collective-on-some-ranks", 7)]
    # One rank in each branch of an `if`: both call it.
    assert named(plus(events, 1, kind="collective", op="hvd.allreduce", line=9), facts()) == []


def test_a_crash_is_not_taken_for_a_missing_call(facts):
    events = plus(run(), 0, kind="collective", op="hvd.allreduce", line=7)
    events[1][-1]["error"] = "ValueError: mine"
    assert named(events, facts()) == []
    events[1][-1]["error"] = "HorovodInternalError: Horovod has been shut down"
    assert named(events, facts()) == [("collective-on-some-ranks", 7)]


def test_a_wrapper_that_never_averages_explains_replicas_that_part(facts):
    events = run(weights=lambda rank, step: [1.0 + rank * step])
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "wrap")["averages"] = False
    assert named(events, facts()) == [("gradients-not-averaged", 4)]


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
