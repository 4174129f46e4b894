"""What is said of the data that the ranks read, on events written by hand."""

import pytest
from check_events import judge, named, plus, run

SHARD = dict(kind="part", line=4)


def test_equal_batches_are_a_mistake_only_if_all_are(facts):
    assert named(run(batch=lambda r, s: f"{s}"), facts()) == [("identical-batches", 6)]
    assert named(run(batch=lambda r, s: f"{s}" if s else f"{r}"), facts()) == []
    assert named(run(steps=2, batch=lambda r, s: f"{s}"), facts()) == []
    four = run(ranks=4, batch=lambda r, s: f"{min(r, 2)}{s}")
    assert "Ranks 2 and 3" in judge(four, facts())[0].seen


def test_an_order_is_the_same_only_if_the_sampler_of_the_training_repeats_it(facts):
    def orders(*given, evaluation=True, epochs=()):
        events = run(steps=8, loops=lambda rank, step: [*epochs, [7, step + 1]])
        for rank in events:
            steps = [i for i, e in enumerate(events[rank]) if e["kind"] == "step"]
            for at, order in reversed([*zip(steps[::4], given, strict=False)]):
                of = {"kind": "order", "at": 0, "line": 7, "made": 6, "epoch": 0, "set_at": None}
                events[rank].insert(at, of | {"order": order})
                if evaluation:  # its own sampler, which gives the same order every time
                    events[rank].insert(at, of | {"made": 5, "order": 1})
        return events

    assert named(orders(1, 2), facts()) == []
    assert named(orders(2), facts()) == []  # a single epoch
    assert named(orders(2, epochs=[[6, 1]]), facts()) == [("same-order", 6)]
    sets = facts(("for batch", "sampler.set_epoch(epoch)\nfor batch"))
    assert named(orders(2, epochs=[[6, 1]]), sets) == []
    assert named(orders(2, 2), facts()) == [("same-order", 6)]


@pytest.mark.parametrize(
    "orders, data, sampled, wanted",
    [
        ([1, 2], [None, None], 3, [("different-splits", 3)]),
        ([1, 1], [None, None], 3, []),
        ([1, 2], [None, None], None, []),  # each rank may split its own shard
        ([1, 2], ["a", "a"], None, [("different-splits", 3)]),
        ([1, 2], ["a", "b"], None, []),
    ],
)
def test_a_random_split_of_all_data_must_be_equal(orders, data, sampled, wanted, facts):
    events = run()
    for rank, order in enumerate(orders):
        plus(events, rank, kind="split", line=3, order=order, of=data[rank])
        plus(events, rank, kind="sampler", line=4, replicas=2, split=sampled, data=1)
        plus(events, rank, kind="sampled", line=5, made=4)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "indices, count, wanted",
    [([0, 0], 2, [("wrong-shard", 4)]), ([0, 1], 2, []), ([None, None], 2, [])],
)
def test_each_rank_takes_a_shard_of_its_own(indices, count, wanted, facts):
    def sharded():
        events = run(batch=lambda rank, step: f"{step}" if wanted else f"{rank}-{step}")
        for rank, index in enumerate(indices):
            plus(events, rank, **SHARD, which=None if index is None else [index, count])
        return events

    assert named(sharded(), facts()) == wanted
    in_sets = sharded()  # the ranks of a set may compute parts of one batch
    for rank in in_sets:
        plus(in_sets, rank, kind="group", line=4, ranks=[rank])
    assert "wrong-shard" not in [one.id for one in judge(in_sets, facts())]


def test_a_sampler_must_reach_a_loader(facts):
    def sampler(replicas=2, made=None):
        events = run()
        for rank in events:
            plus(events, rank, kind="sampler", line=4, replicas=replicas, split=None, data=1)
            made and plus(events, rank, kind="sampled", line=5, made=made)
        return events

    assert named(sampler(), facts()) == [("sampler-unused", 4)]
    assert named(sampler(made=3), facts()) == [("sampler-unused", 4)]
    assert named(sampler(made=4), facts()) == []
    assert named(sampler(replicas=1), facts()) == []
    failed = sampler()
    failed[0][-1]["error"] = "OSError: full"  # the line that uses it may come later
    assert named(failed, facts()) == []
    own = dict(kind="reads", line=6, made=5, rows=8, batches=2, content=None)
    for rank in failed:
        next(e for e in failed[rank] if e["kind"] == "loop")["made"] = 5
        plus(failed, rank, **own, data=1, sampled=False)
    assert named(failed, facts()) == [("sampler-unused", 4)]
    for rank in failed:
        next(e for e in failed[rank] if e["kind"] == "reads")["data"] = 2
    assert named(failed, facts()) == []


@pytest.mark.parametrize(
    "after, sharded, wanted",
    [
        ([], True, [("metric-of-one-rank", 8)]),
        (["step", "collective"], True, [("metric-of-one-rank", 8)]),
        (["collective"], True, []),
        (["barrier"], True, [("metric-of-one-rank", 8)]),
        ([], False, []),  # every rank evaluates with all images
    ],
)
def test_results_of_shards_are_combined_before_the_next_step(after, sharded, wanted, facts):
    events = run()
    step = {name: value for name, value in events[0][-4].items() if name not in ("at", "steps")}
    for rank in events:
        plus(
            events,
            rank,
            kind="evaluate",
            steps=5,
            line=8,
            made=3,
            sharded=sharded,
            content=None,
            loops=[[2, 1]],
        )
        for kind in after:
            called = "hvd.barrier" if kind == "barrier" else "hvd.allreduce"
            own = {"kind": "collective", "line": 9, "op": called}
            if kind == "step":
                own = step | {"batch": f"{rank}", "kind": kind}
            plus(events, rank, **own)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize("sharded, wanted", [(True, [("metric-of-one-rank", 8)]), (False, [])])
def test_rank_0_may_evaluate_all_images_and_not_only_its_shard(sharded, wanted, facts):
    call = {"kind": "evaluate", "line": 8, "made": 3, "content": None, "loops": []}
    events = plus(run(), 0, **call | {"steps": 5, "sharded": sharded})
    assert named(events, facts()) == wanted


@pytest.mark.parametrize("after, wanted", [("step", [("metric-of-one-rank", 8)]), ("end", [])])
def test_an_evaluation_counts_if_the_script_fails_later(after, wanted, facts):
    """Where it fails before the next step, a collective may have been about to follow."""
    events = run()
    step = {name: value for name, value in events[0][-4].items() if name not in ("at", "steps")}
    call = {"kind": "evaluate", "line": 8, "made": 3, "content": None, "sharded": True}
    for rank in events:
        plus(events, rank, **call | {"steps": 5, "loops": [[2, 1]]})
        if after == "step":
            plus(events, rank, **step | {"batch": f"{rank}"})
        events[rank][-1]["error"] = "ValueError: mine"
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "contents, wanted",
    [([1, 2], [("metric-of-one-rank", 8)]), ([1, 1], []), ([1, None], [])],
)
def test_images_that_only_one_rank_evaluates_are_a_shard(contents, wanted, facts):
    events = run()
    for rank, content in enumerate(contents):
        plus(
            events,
            rank,
            kind="evaluate",
            steps=5,
            line=8,
            made=None,
            sharded=False,
            content=content,
            loops=[],
        )
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "loops, wanted",
    [
        ([[5, 1], [6, 1]], []),  # a distillation: the teacher reads the batch of the step
        ([[5, 1], [6, 9]], []),  # the accuracy of a training batch
        ([[5, 2], [6, 1]], [("metric-of-one-rank", 7)]),  # the phase of validation
        ([[5, 1], [8, 1]], [("metric-of-one-rank", 7)]),
        ([[5, 1]], [("metric-of-one-rank", 7)]),
    ],
)
def test_a_call_without_gradients_in_a_loop_that_trains_is_no_evaluation(loops, wanted, facts):
    events = run()
    call = {"kind": "evaluate", "line": 7, "made": 3, "sharded": True, "content": None}
    for rank in events:
        for number, step in enumerate(e for e in events[rank] if e["kind"] == "step"):
            step["loops"] = [[5, 1], [6, number + 1]]
        plus(events, rank, **call | {"steps": 4, "loops": loops})
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "orders, contents, wanted",
    [([1, 2], [5, 5], [("different-splits", 4)]), ([1, 1], [5, 5], []), ([1, 2], [5, 6], [])],
)
def test_the_ranks_take_slices_of_one_order(orders, contents, wanted, facts):
    events = run()
    for rank, order in enumerate(orders):
        which = [rank, None, 2]
        plus(events, rank, **SHARD, items=9, content=contents[rank], order=order, which=which)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "contents, batches, loop, wanted",
    [
        ([3, 3], 5, "for batch in loader", [("identical-batches", 4)]),
        ([3, 4], 5, "for batch in loader", []),  # each rank has its own files
        ([None, None], 5, "for batch in loader", []),
        ([3, 3], 9, "for batch in loader", []),  # the loop reads a part of the loader
    ],
)
def test_ranks_that_read_all_data_in_orders_of_their_own_are_named(
    contents, batches, loop, wanted, facts
):
    events = run()
    for rank, content in enumerate(contents):
        next(e for e in events[rank] if e["kind"] == "loop")["made"] = 4
        read = dict(kind="reads", line=6, made=4, rows=9, data=1, sampled=False)
        plus(events, rank, **read, batches=batches, content=content)
    assert named(events, facts(("for batch in loader", loop))) == wanted


@pytest.mark.parametrize(
    "planned, wanted",
    [(10, [("identical-batches", 4)]), (5, []), (None, [("identical-batches", 4)])],
)
def test_all_data_may_be_read_by_each_rank_in_fewer_steps(planned, wanted, facts):
    """A single process plans 10 steps in total."""
    events = run(planned=lambda rank, step: planned)
    for rank in events:
        next(e for e in events[rank] if e["kind"] == "loop")["made"] = 4
        plus(events, rank, kind="reads", line=6, made=4, rows=9, batches=5, content=3)
    alone = run(ranks=1, planned=lambda rank, step: 10, rate=lambda rank, step: 0.1)
    assert named(events, facts(), alone) == wanted


@pytest.mark.parametrize(
    "contents, wanted",
    [([3, 3], [("identical-batches", 6)]), ([3, 4], []), ([None, None], [])],
)
def test_a_fit_with_all_data_on_each_rank_is_named(contents, wanted, facts):
    events = run()
    for rank, content in enumerate(contents):
        plus(events, rank, kind="fit", line=6, length=5, content=content)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "orders, wanted",
    [(["[1, 2]"] * 2, []), ([None, None], []), (["of 0", "of 1"], [("different-splits", 4)])],
)
def test_what_is_shuffled_before_it_is_sharded_has_one_seed(orders, wanted, facts):
    events = run()
    for rank, order in enumerate(orders):
        plus(events, rank, **SHARD, which=[rank, 2], order=order)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "bounds, wanted",
    [
        (([0, 4, None], [0, 4, None]), [("wrong-shard", 4)]),
        (([0, 4, None], [4, 8, None]), []),
        ((None, None), []),  # parts[rank], or the beginning of something
    ],
)
def test_each_rank_takes_a_slice_of_its_own(bounds, wanted, facts):
    events = run()
    for rank, own in enumerate(bounds):
        plus(events, rank, **SHARD, items=8, content=3, order=3, which=own)
    assert named(events, facts()) == wanted


def test_another_loader_in_the_same_line_may_read_all_images(facts):
    events = run()
    call = {"kind": "evaluate", "line": 8, "content": None, "steps": 5, "loops": [[2, 1]]}
    for rank in events:
        plus(events, rank, **call | {"made": 3, "sharded": True})
        plus(events, rank, kind="collective", line=9, op="hvd.allreduce")
        plus(events, rank, **call | {"made": 4, "sharded": False})
    assert named(events, facts()) == []


@pytest.mark.parametrize(
    "again, contents, wanted",
    [
        (False, [None, None], []),
        (True, [None, None], [("wrong-shard", 4)]),
        (False, [7, 8], [("wrong-shard", 4)]),
        (False, [7, 7], []),  # what was cut by the rank is something else
    ],
)
def test_a_shard_is_not_taken_of_the_part_of_one_rank(again, contents, wanted, facts):
    events = run()
    for rank, content in enumerate(contents):
        plus(events, rank, **SHARD, which=[rank, 2], again=again, content=content)
    assert named(events, facts()) == wanted


@pytest.mark.parametrize(
    "orders, wanted", [([1, 2], [("different-splits", 4)]), ([1, 1], []), ([1], [])]
)
def test_a_subset_that_is_sharded_is_the_same_on_all_ranks(orders, wanted, facts):
    events = run()
    for rank, order in enumerate(orders):
        plus(events, rank, **SHARD, order=order)
    assert named(events, facts()) == wanted
    for rank in events:
        for event in events[rank]:
            event |= {"again": True} if event["kind"] == "part" else {}
    assert named(events, facts()) == [("wrong-shard", line) for _, line in wanted]


@pytest.mark.parametrize(
    "contents, wanted",
    [([[5, 5], [7, 8]], [("wrong-shard", 9)]), ([[5, 5], [7, 7]], []), ([[7, 8]], [])],
)
def test_a_slice_is_not_taken_of_the_part_of_one_rank(contents, wanted, facts):
    events = run()
    for number, by_rank in enumerate(contents):
        for rank, content in enumerate(by_rank):
            items = dict(kind="part", line=8 + number, items=8 // (number + 1), content=content)
            plus(events, rank, **items, order=1, which=[rank, None, 2])
            events[rank][-2]["at"] = 90 + number
    assert named(events, facts()) == wanted
