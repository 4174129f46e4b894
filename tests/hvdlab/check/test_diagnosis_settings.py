"""What is said of a script's settings - rate, files, batch norm - on events written by hand."""

import pytest
from check_events import as_run, judge, named, plus, run


def changed(events, kind, **facts):
    """The events, in which those of one kind note something else."""
    for event in (one for of in events.values() for one in of if one["kind"] == kind):
        event.update(facts)
    return events


def alone(**changes):
    """The events of a run with one rank, in which the rate is 0.1."""
    return run(ranks=1, **{"rate": lambda rank, step: 0.1, **changes})


def rates(*values):
    return lambda rank, step: values[min(step, len(values) - 1)]


GROWING = rates(0.1, 0.11, 0.12)


@pytest.mark.parametrize(
    "one, two, wanted",
    [
        (rates(0.1), rates(0.2), []),
        (rates(0.1), rates(0.1), [("rate-unscaled", 3)]),
        (rates(0.1), rates(0.4), [("rate-scaled-twice", 3)]),
        (rates(0.1), rates(0.1 * 2**0.5), []),
        (rates(0.1), rates(0.1 * 2**1.5), []),
        (rates(0.1, 0.09), rates(0.1, 0.09), [("rate-unscaled", 3)]),  # a decay
        (rates(0.1), GROWING, []),  # a warmup from the rate of a single process
        (
            rates(0.1),
            rates(0.05, 0.055, 0.06),
            [("rate-unscaled", 3)],
        ),  # Horovod's, up to that rate
        (GROWING, GROWING, [("rate-unscaled", 3)]),  # a warmup of a number of steps
        (GROWING, rates(0.2, 0.22, 0.24), []),
        (GROWING, rates(0.4, 0.44, 0.48), []),  # twice, or half as many steps of a warmup
    ],
)
def test_the_rate_is_compared_with_that_of_one_rank(one, two, wanted, facts):
    assert named(run(rate=two), facts(), alone(rate=one)) == wanted
    assert named(run(rate=two), facts()) == []  # nothing to compare with


def test_an_unscaled_rate_is_right_where_the_global_batch_stays(facts):
    small = run(rate=rates(0.1), rows=lambda rank, step: 32)
    assert named(small, facts(), alone(rows=lambda rank, step: 64)) == []
    assert named(small, facts(), alone(rows=lambda rank, step: 32)) == [("rate-unscaled", 3)]


def sketched(total):
    """A change of steps: their optimizer uses the average of two gradients, times a factor."""
    own = [[1.0] * 8 + [0.0] * 8, [0.0] * 8 + [1.0] * 8]
    used = [total * (a + b) / 2 for a, b in zip(*own, strict=True)]
    return lambda rank, step: {"used": used, "local": own[rank], "changed": None}


@pytest.mark.parametrize(
    "rate, total, loss, reduces, wanted",
    [
        (0.2, 2, 1.0, "Sum", [("rate-scaled-twice", 4)]),
        (0.2, 2, 0.5, "Sum", []),  # the loss is divided
        (0.1, 2, 1.0, "Sum", []),  # the sum is a factor of the number of ranks
        (0.1, 2, 0.5, "Sum", [("rate-unscaled", 3)]),
        (0.2, 2, 1.0, "Average", [("rate-scaled-twice", 3)]),  # added in another way
        (0.1, 1, 1.0, "Adasum", []),
    ],
)
def test_a_sum_of_the_gradients_is_a_factor_too(rate, total, loss, reduces, wanted, facts):
    events = run(rate=rates(rate), loss=rates(loss), gradient=sketched(total))
    assert named(changed(events, "wrap", reduces=reduces), facts(), alone()) == wanted


def test_the_rate_of_rprop_is_not_judged(facts):
    events = changed(run(rate=rates(0.1)), "optimizer", name="Rprop")
    assert named(events, facts(), alone(rate=rates(0.1))) == []


@pytest.mark.parametrize("rate, wanted", [(0.002, []), (0.001, [("rate-unscaled", 3)])])
@pytest.mark.parametrize("name", ["AdamW", "Adadelta", "LAMB"])
def test_a_sum_is_no_factor_where_steps_do_not_grow_with_the_gradient(name, rate, wanted, facts):
    events = run(rate=rates(rate), gradient=sketched(2))
    events = changed(changed(events, "wrap", reduces="Sum"), "optimizer", name=name)
    assert named(events, facts(), alone(rate=rates(0.001))) == wanted


def test_a_run_that_loads_what_the_other_one_has_saved_is_not_compared(facts):
    single = plus(alone(), 0, kind="load", line=3)
    compared = as_run(run(rate=rates(0.1)))
    compared.compare(as_run(single))
    assert compared.single is None
    compared.compare(as_run(alone()))
    assert compared.single


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
    ],
)
def test_a_call_without_effect_is_read_from_the_source(new, wanted, facts):
    end = "    optimizer.step()\n"
    assert named(run(), facts((end, f"{end}{new}\n"))) == wanted


@pytest.mark.parametrize(
    "name, wanted",
    [("EarlyStopping", "own-stop"), ("LearningRateWarmupCallback", "replicas-diverged")],
)
def test_a_callback_that_only_some_ranks_have_is_named(name, wanted, facts):
    events = plus(run(), 0, kind="callback", line=8, name=name)
    assert named(events, facts()) == [(wanted, 8)]
    assert named(plus(events, 1, kind="callback", line=8, name=name), facts()) == []


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
