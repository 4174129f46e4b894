"""What is said of a script's settings - rate, files, batch norm - on events written by hand."""

import pytest
from check_events import judge, named, plus, run

from hvdlab.check.static import read

UNSCALED = ("lr=0.1 * hvd.size()", "lr=0.1")


def changed(events, kind, **facts):
    """The events, in which those of one kind note something else."""
    for event in (one for of in events.values() for one in of if one["kind"] == kind):
        event.update(facts)
    return events


def test_an_unscaled_rate_is_right_where_the_global_batch_stays(facts):
    assert named(run(), facts(UNSCALED)) == [("rate-unscaled", 3)]
    halved = facts(UNSCALED, ("in loader", "in Loader(batch_size=64 // hvd.size())"))
    assert named(run(), halved) == []


def test_the_unscaled_rate_is_that_of_the_optimizer_that_trains(facts):
    made = facts(
        (f"optimizer = SGD(model.parameters(), {UNSCALED[0]})", "optim.SGD(w, 1)\noptim.SGD(w, 2)")
    )
    assert named(changed(run(), "optimizer", line=4), made) == [("rate-unscaled", 4)]
    assert named(changed(run(), "optimizer", line=99), made) == [("rate-unscaled", 3)]


def test_nothing_is_said_of_a_rate_that_is_set_in_another_file(facts):
    elsewhere = facts(("SGD(model.parameters(), lr=0.1 * hvd.size())", "make_optimizer(model)"))
    assert named(run(), elsewhere) == []


def test_a_rate_with_two_factors_is_scaled_twice(facts):
    twice = facts(("0.1 * hvd.size()", "0.1 * hvd.size() * hvd.size()"))
    assert named(run(), twice) == [("rate-scaled-twice", 3)]
    one_and_a_half = facts(("hvd.size()", "hvd.size() * math.sqrt(hvd.size())"))
    assert named(run(), one_and_a_half) == []


@pytest.mark.parametrize(
    "rate, reduces, loss, wanted",
    [
        ("0.1 * hvd.size()", "Sum", "", [("rate-scaled-twice", 4)]),
        ("0.1 * hvd.size()", "Sum", "loss = loss / hvd.size()", []),
        ("0.1", "Sum", "", []),  # the sum is a factor of the number of ranks
        ("0.1", "Sum", "loss = loss / hvd.size()", [("rate-unscaled", 3)]),
        ("0.1 * hvd.size()", "Adasum", "", []),
    ],
)
def test_a_sum_of_the_gradients_is_a_factor_too(rate, reduces, loss, wanted, facts):
    source = facts(("0.1 * hvd.size()", rate), ("    optimizer.step()", f"    {loss or 'pass'}"))
    assert named(changed(run(), "wrap", reduces=reduces), source) == wanted


def test_a_tape_in_a_graph_is_named_where_it_is_wrapped(facts):
    source = facts(
        ("    optimizer.step()", "    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)")
    )
    tape = {"what": "hvd.DistributedGradientTape", "reduces": "Sum"}
    assert named(changed(run(), "wrap", **tape), source) == [("rate-scaled-twice", 7)]
    assert named(changed(run(), "wrap", **tape), facts()) == [("rate-scaled-twice", 4)]


def test_a_scheduler_that_replaces_the_rate_is_named(facts):
    cycle = facts(("for batch", "OneCycleLR(optimizer, max_lr=0.1)\nfor batch"))
    (found,) = judge(run(), cycle)
    assert (found.id, found.line) == ("rate-unscaled", 6)
    assert "This replaces the learning rate of the optimizer" in found.seen


def test_adasum_wants_no_factor_in_the_rate(facts):
    for reduces, wanted in (("Adasum", []), ("Average", [("rate-unscaled", 3)])):
        assert named(changed(run(), "wrap", reduces=reduces), facts(UNSCALED)) == wanted


def test_a_file_of_all_ranks_is_a_mistake_and_one_of_each_is_none(facts):
    for names, wanted in ((["a", "a"], [("all-write-one-file", 7)]), (["a", "b"], [])):
        events = run()
        for rank, name in enumerate(names):
            plus(events, rank, kind="save", line=7, path=f"/{name}.pt")
        assert named(events, facts()) == wanted


def test_all_lines_that_write_a_file_of_all_ranks_are_named(facts):
    events = run()
    for rank in events:
        for line in 7, 9, 11:
            plus(events, rank, kind="save", line=line, path=f"/{line}")
    (found,) = judge(events, facts())
    assert found.line == 7 and "Also in line 9 and 11." in found.seen


def test_a_file_that_a_download_writes_is_no_second_mistake(facts):
    source = facts(("hvd.init()", "hvd.init()\ndata = MNIST(path, download=True)"))
    events = run()
    for rank in events:
        plus(events, rank, kind="save", line=3, path="/data/complete")
    assert named(events, source) == [("download-race", 3)]


def test_a_lock_is_a_file_that_all_ranks_open(facts):
    events = run()
    for rank in events:
        plus(events, rank, kind="save", line=3, path="/data.lock")
        plus(events, rank, kind="lock", line=3, path="/data.lock")
    assert named(events, facts()) == []


def test_a_download_under_a_lock_is_no_race(facts):
    for locked, wanted in ((False, [("download-race", 2)]), (True, [])):
        events = run()
        for rank in events:
            plus(events, rank, kind="download", line=2, url="http://a/b", locked=locked)
            plus(events, rank, kind="save", line=2, path="/data/b")
        assert named(events, facts()) == wanted


def test_a_download_above_init_cannot_ask_for_the_local_rank(facts):
    get = "data = MNIST(path, download=True)"
    above = facts(("hvd.init()", f"{get}\nhvd.init()"))
    below = facts(("hvd.init()", f"hvd.init()\n{get}"))
    for source, line, said in ((above, 2, True), (below, 3, False)):
        (found,) = judge(run(), source)
        assert (found.id, found.line) == ("download-race", line)
        assert ("above hvd.init(), line 3" in found.seen) == said


def test_ranks_that_download_into_different_files_do_not_race(facts):
    events = run()
    for rank in events:
        plus(events, rank, kind="download", line=2, url="http://a/b", locked=False)
        plus(events, rank, kind="save", line=2, path=f"/data/b-{rank}")
    assert named(events, facts()) == []


def test_a_large_rate_wants_a_warmup(facts):
    large = run(rate=lambda r, s: 4.0)
    assert named(large, facts()) == [("no-warmup", 3)]
    assert named(run(rate=lambda r, s: 4.0 * (s + 1)), facts()) == []
    assert named(run(rate=lambda r, s: 0.4, momentum=lambda r, s: 0.9), facts()) == [
        ("no-warmup", 3)
    ]
    assert named(run(rate=lambda r, s: 0.2, momentum=lambda r, s: 0.9), facts()) == []


@pytest.mark.parametrize(
    "name, rate, wanted",
    [
        ("Adam", 0.001, []),
        ("Adam", 0.5, [("no-warmup", 3)]),  # with SGD it would be a small one
        *(
            (name, 4.0, []) for name in ("LARS", "LAMB", "NovoGrad")
        ),  # their rates are of another kind
    ],
)
def test_what_a_large_rate_is_depends_on_the_optimizer(name, rate, wanted, facts):
    events = changed(run(rate=lambda r, s: rate), "optimizer", name=name)
    assert named(events, facts()) == wanted


def test_statistics_may_differ_by_chance_and_not_by_more(facts):
    def statistics(difference):
        return lambda rank, step: [
            {"mean": [difference * rank * 0.5] * 4, "variance": [1.0] * 4, "filled": 0.5}
        ]

    assert named(run(statistics=statistics(0.1)), facts()) == []
    assert named(run(statistics=statistics(0.5)), facts()) == [("batch-norm-drift", 4)]
    # After a few batches they may be apart by chance: the last ones count.
    early, late = statistics(0.5), statistics(0.1)
    assert named(run(statistics=lambda r, s: (early if s < 4 else late)(r, s)), facts()) == []
    # What a network keeps is no longer its own where SyncBatchNorm combines it.
    shared = facts(("optimizer = SGD", "model = SyncBatchNorm.convert(model)\noptimizer = SGD"))
    assert named(run(statistics=early), shared) == []


def test_a_network_that_was_trained_before_has_other_statistics(facts):
    """Keras, momentum 0.99, 16 steps from a mean of 5 and a variance of 0.04."""
    filled = 1 - 0.99**16
    mean = 5 * (1 - filled) + filled * 5.01

    def statistics(apart):  # in standard deviations of what the layer sees
        return lambda rank, step: [
            {"mean": [mean + filled * apart * 0.2 * rank], "variance": [0.04], "filled": filled}
        ]

    assert named(run(statistics=statistics(0.1)), facts()) == []
    assert named(run(statistics=statistics(0.5)), facts()) == [("batch-norm-drift", 4)]


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("torch.save(model.state_dict(), 'a.pt')", "all-write-one-file"),
        ("data = CIFAR10('data', download=True)", "download-race"),
    ],
)
def test_what_a_run_of_a_few_steps_does_not_come_to_is_read_from_the_source(line, wanted, facts):
    end = "    optimizer.step()\n"
    assert named(run(), facts((end, f"{end}{line}\n"))) == [(wanted, 8)]
    alone = f"{end}if hvd.rank() == 0:\n    {line}\n"
    assert named(run(), facts((end, alone))) == []


@pytest.mark.parametrize(
    "new, wanted",
    [
        ("if hvd.rank == 0:\n    print(1)", [("function-not-called", 8)]),
        ("hvd.allreduce(loss)\nprint(loss)", [("result-discarded", 8)]),
        (
            "s = optim.lr_scheduler.StepLR(o, 1)\nif hvd.rank() == 0:\n    s.step()",
            [("replicas-diverged", 10)],
        ),
    ],
)
def test_a_call_without_effect_or_on_some_ranks_is_read_from_the_source(new, wanted, facts):
    end = "    optimizer.step()\n"
    assert named(run(), facts((end, f"{end}{new}\n"))) == wanted


def ran(events):
    return [[event for event in of if event["kind"] == "branch"] for of in events.values()]


@pytest.mark.parametrize(
    "taken, wanted",
    [
        (False, [("rate-unscaled", 6)]),
        (True, []),
        (None, []),  # a test in a loop: a later round may take the other branch
    ],
)
def test_the_rate_is_that_of_the_branch_that_ran(taken, wanted, facts, tmp_path):
    facts(
        (
            "optimizer = SGD(model.parameters(), lr=0.1 * hvd.size())",
            "scale = 1\nif args.adasum:\n    scale = hvd.size()\noptimizer = SGD(w, lr=0.1 * scale)",
        )
    )
    events = run()
    for rank in events:
        plus(events, rank, kind="branch", line=4, column=0, taken=taken)
    assert named(events, read(tmp_path / "script.py", ran(events))) == wanted
    del events[1][-2]  # rank 1 ended before it
    assert named(events, read(tmp_path / "script.py", ran(events))) == []


@pytest.mark.parametrize(
    "dropped, default, wanted",
    [
        (0.4, 0.2, [("rate-dropped", 3)]),
        (0.2, 0.2, []),
        (0.4, 0.1, []),  # a callback has set the rate, for example the one of the warmup
        (None, 0.2, []),
    ],
)
def test_a_rate_that_the_optimizer_drops_is_named_if_the_default_is_in_use(
    dropped, default, wanted, facts
):
    """The rate of the run's first step is 0.2."""
    events = changed(run(), "optimizer", dropped=dropped, default=default)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "error, made, wanted",
    [
        (
            "AttributeError: module 'keras.backend' has no attribute 'constant'",
            9,
            ["legacy-callback"],
        ),
        ("AttributeError: 'float' object has no attribute 'dtype'", 9, ["legacy-callback"]),
        ("AttributeError: 'float' object has no attribute 'dtype'", None, []),
        ("ValueError: mine", 9, []),
    ],
)
def test_a_callback_that_fails_under_legacy_keras_is_named_where_it_was_created(
    error, made, wanted, facts
):
    events = changed(run(), "end", error=error, made=made, line=12)
    assert named(events, facts()) == [(id, 9) for id in wanted]


def test_a_rate_that_grows_with_the_ranks_of_one_machine_is_named(facts):
    local = facts(("hvd.size()", "hvd.local_size()"))
    (found,) = judge(run(), local)
    assert (found.id, found.line) == ("rate-unscaled", 3) and "one machine only" in found.seen
    assert named(run(), facts(("hvd.size()", "(hvd.size() if big else hvd.local_size())"))) == []
    assert named(changed(run(), "wrap", reduces="Adasum"), local) == []
