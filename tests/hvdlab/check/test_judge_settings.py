"""What is said of a script's settings - rate, files, devices, batch norm - on events written by hand."""

from check_events import named, plus, run


def test_an_unscaled_rate_is_right_where_the_global_batch_stays(facts):
    plain = facts(("lr=0.1 * hvd.size()", "lr=0.1"))
    assert named(run(), plain) == [("rate-unscaled", 3)]
    halved = facts(
        ("lr=0.1 * hvd.size()", "lr=0.1"), ("in loader", "in Loader(batch_size=64 // hvd.size())")
    )
    assert named(run(), halved) == []


def test_nothing_is_said_of_a_rate_that_is_set_in_another_file(facts):
    elsewhere = facts(("SGD(model.parameters(), lr=0.1 * hvd.size())", "make_optimizer(model)"))
    assert named(run(), elsewhere) == []


def test_a_rate_with_two_factors_is_scaled_twice(facts):
    twice = facts(("0.1 * hvd.size()", "0.1 * hvd.size() * hvd.size()"))
    assert named(run(), twice) == [("rate-scaled-twice", 3)]


def test_a_file_of_all_ranks_is_a_mistake_and_one_of_each_is_none(facts):
    for names, wanted in ((["a", "a"], [("all-write-one-file", 7)]), (["a", "b"], [])):
        events = run()
        for rank, name in enumerate(names):
            plus(events, rank, kind="save", line=7, path=f"/{name}.pt")
        assert named(events, facts()) == wanted


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
        assert named(events, facts()) == wanted


def test_a_large_rate_wants_a_warmup(facts):
    large = run(rate=lambda r, s: 4.0)
    assert named(large, facts()) == [("no-warmup", 3)]
    assert named(run(rate=lambda r, s: 4.0 * (s + 1)), facts()) == []
    assert named(run(rate=lambda r, s: 0.4, momentum=lambda r, s: 0.9), facts()) == [
        ("no-warmup", 3)
    ]
    assert named(run(rate=lambda r, s: 0.2, momentum=lambda r, s: 0.9), facts()) == []


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


def test_a_gpu_is_chosen_by_the_rank_on_the_machine(facts):
    use = ("hvd.init()\n", "hvd.init()\nmodel.cuda()\n")
    assert named(run(), facts(use)) == [("device-not-pinned", 3)]
    pin = ("model.cuda()\n", "model.cuda(); torch.cuda.set_device(hvd.local_rank())\n")
    assert named(run(), facts(use, pin)) == []
    by_rank = ("model.cuda()\n", "model.cuda(); torch.cuda.set_device(hvd.rank())\n")
    assert named(run(), facts(use, by_rank)) == [("device-not-pinned", 3)]
    # The launcher shows each rank one GPU of its own.
    events = run()
    for rank in events:
        plus(events, rank, kind="devices", line=0, count=1, visible=str(rank))
    assert named(events, facts(use)) == []
