"""The cost model against its limits, a simulated ring, and what was published."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest

from hvdlab import scaling
from hvdlab.scaling import (
    Cluster,
    Link,
    Network,
    calibrate,
    exchange,
    first_below,
    forecast,
    hierarchical,
    published,
    ring,
    tree,
)
from hvdlab.scaling.__main__ import main

LINK = Link(10e-6, 1e9)
TWO_LAYERS = Network(((1e6, 1.0), (1e6, 1.0)), images_per_second=640.0)  # 0.1 s a step, 8 MB
PASCAL = published.pascal_cluster(*published.FITTED)
VGG = published.NETWORKS["VGG-16"]
COUNTS = (1, 2, 3, 4, 7, 8, 16, 100, 512, 10_000)

# --- all-reduce -------------------------------------------------------------------------------------


def simulated(
    rings: list[list[tuple[str, Link]]], chunk: float, hops: int, adds: int = 0, addition: float = 0
) -> float:
    """When the last of all chunks has arrived, event by event. Each rank of a ring sends its own chunk to the
    next one, which passes it on, `hops` times in all; (name, link) is the wire that a rank sends
    over. A wire carries one message after another; wires of one name are one wire. A rank
    adds up what arrives on the first `adds` hops before it sends it on."""
    events = [
        (0.0, hop, i, rank) for hop in [0] for i, r in enumerate(rings) for rank in range(len(r))
    ]
    heapq.heapify(events)
    free: dict[str, float] = {}
    end = 0.0
    while events:
        now, hop, i, rank = heapq.heappop(events)
        name, link = rings[i][rank]
        free[name] = max(now, free.get(name, 0.0)) + chunk / link.bandwidth
        arrival = free[name] + link.latency + (chunk * addition if hop < adds else 0)
        end = max(end, arrival)
        if hop + 1 < hops:
            heapq.heappush(events, (arrival, hop + 1, i, (rank + 1) % len(rings[i])))
    return end


def own_wires(ranks, link=LINK, host=""):
    return [(f"{host}{rank}", link) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
@pytest.mark.parametrize("nbytes", [0, 1000, 1e8])
def test_the_ring_takes_as_long_as_simulated(ranks, nbytes):
    played = simulated([own_wires(ranks)], nbytes / ranks, 2 * (ranks - 1))
    assert ring(nbytes, ranks, LINK) == pytest.approx(played)
    adding = simulated(
        [own_wires(ranks)], nbytes / ranks, 2 * (ranks - 1), ranks - 1, addition=4e-10
    )
    assert ring(nbytes, ranks, LINK, 4e-10) == pytest.approx(adding)
    assert Cluster(LINK, addition=4e-10).all_reduce(nbytes, ranks) == pytest.approx(adding)


def test_the_slowest_wire_sets_the_pace_of_a_ring_through_hosts():
    fast, slow, nbytes = Link(1e-6, 1e10), Link(20e-6, 1e9), 1e8
    wires = [(str(rank), slow if rank % 4 == 3 else fast) for rank in range(16)]
    played = simulated([wires], nbytes / 16, 30)
    cluster = Cluster(network=slow, ranks_per_host=4, inside=fast)
    assert cluster.all_reduce(nbytes, 16) == pytest.approx(played, rel=0.05)
    # One host needs no network.
    assert cluster.all_reduce(nbytes, 4) == ring(nbytes, 4, fast)


@pytest.mark.parametrize(
    ("network", "rel"),
    [(Link(0, 1e9), 1e-6), (Link(50e-6, 1e15), 1e-4), (Link(50e-6, 1e9), 0.05)],
    ids=["bandwidth", "latency", "both"],
)
def test_the_hierarchical_one_takes_as_long_as_simulated(network, rel):
    hosts, per_host, nbytes, inside = 5, 4, 1e8, Link(2e-6, 1e10)
    within = simulated([own_wires(per_host, inside)], nbytes / per_host, per_host - 1)
    # One ring a share across the hosts; the four rings leave a host through one card.
    across = [[(f"card {host}", network) for host in range(hosts)] for _ in range(per_host)]
    between = simulated(across, nbytes / per_host / hosts, 2 * (hosts - 1))
    formula = hierarchical(nbytes, hosts, per_host, network, inside)
    assert formula == pytest.approx(2 * within + between, rel=rel)
    cluster = Cluster(network, per_host, inside)
    assert cluster.all_reduce(nbytes, hosts * per_host, "hierarchical") == formula


def double_tree(ranks: int) -> list[dict[int, int]]:
    """The parent of each rank in two complementary trees, for a power of two: as in Sanders et al. 2009.

    Rank 0 is the root, and below it is the search tree of 1 ... N-1. The second tree is the mirror image."""
    parents: dict[int, int] = {}

    def below(parent: int, low: int, high: int) -> None:
        if low < high:
            middle = (low + high) // 2
            parents[middle] = parent
            below(middle, low, middle)
            below(middle, middle + 1, high)

    below(0, 1, ranks)
    return [parents, {ranks - 1 - rank: ranks - 1 - up for rank, up in parents.items()}]


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 1024])
def test_a_double_tree_takes_as_long_as_counted_on_its_edges(ranks):
    trees = double_tree(ranks)
    inner = [set(parents.values()) for parents in trees]
    assert (
        not inner[0] & inner[1]
    )  # a rank passes on in one tree only, so both trees run at full speed

    def hops(parents, rank):
        return 1 + hops(parents, parents[rank]) if rank in parents else 0

    # Latency: up to the root and down again, from the rank that is farthest from it.
    farthest = max(hops(parents, rank) for parents in trees for rank in range(ranks))
    assert tree(0, ranks, 1, LINK, LINK) == pytest.approx(2 * farthest * LINK.latency)
    # Bytes: on each edge half of the tensor goes up, where it is added, and half comes down.
    sent, added = [0.0] * ranks, [0.0] * ranks
    for parents in trees:
        for rank, parent in parents.items():
            sent[rank] += 0.5
            sent[parent] += 0.5
            added[parent] += 0.5
    no_latency = Link(0, 1e9)
    mean_sent, mean_added = sum(sent) / ranks, sum(added) / ranks
    formula = tree(1e9, ranks, 1, no_latency, no_latency, 2e-9)
    assert formula == pytest.approx(mean_sent + 2 * mean_added)
    assert max(sent) <= 2 and max(added) <= 1  # no rank does more than in a ring of many ranks


def test_a_tree_and_a_ring_differ_in_their_latency_only():
    silent = Cluster(Link(0, 1e9), 4, Link(0, 1e10), addition=1e-10)
    slow = Cluster(Link(1e-5, 1e15), 4, Link(1e-6, 1e15))
    for ranks in (2, 4, 8, 512, 10_000):
        both = [silent.all_reduce(1e8, ranks, name) for name in ("ring", "tree")]
        assert both[0] == pytest.approx(both[1])
    # 2,500 hosts: 12 levels between hosts and 3 hops in a host, there and back; a ring has 19,998 hops.
    assert slow.all_reduce(0, 10_000, "tree") == pytest.approx(2 * (12 * 1e-5 + 3 * 1e-6))
    assert slow.all_reduce(0, 10_000, "ring") == pytest.approx(19_998 * 1e-5)


def test_the_first_number_of_ranks_below_a_level():
    cluster = Cluster(LINK)
    found = first_below(TWO_LAYERS, cluster, 0.8, 10_000)
    by_trying = next(
        n for n in range(1, 10_000) if forecast(TWO_LAYERS, cluster, n).efficiency < 0.8
    )
    assert found == by_trying
    assert first_below(TWO_LAYERS, cluster, 0.8, found - 1) is None
    assert first_below(TWO_LAYERS, cluster, 1.5, 100) == 1


def test_one_rank_costs_nothing():
    assert ring(1e9, 1, LINK, 1e-9) == 0
    assert tree(1e9, 1, 1, LINK, LINK, 1e-9) == 0
    assert hierarchical(1e9, 1, 1, LINK, LINK) == 0
    alone = forecast(TWO_LAYERS, Cluster(LINK, jitter=0.1), 1)
    assert alone.efficiency == 1 and alone.step == 0.1 and alone.buffers == 0
    assert alone.limit == "compute" and not alone.overlap_exhausted


def test_a_ring_sends_2_n_minus_1_over_n_of_the_bytes():
    for ranks, factor in (2, 1.0), (4, 1.5), (8, 1.75), (10_000, 1.9998):
        assert ring(1e9, ranks, Link(0, 1e9)) == pytest.approx(factor)


def test_hosts_of_one_rank_make_the_hierarchical_one_a_ring():
    assert hierarchical(1e8, 8, 1, LINK, Link(1, 1)) == pytest.approx(ring(1e8, 8, LINK))


@pytest.mark.parametrize("algorithm", scaling.ALGORITHMS)
def test_more_ranks_never_help_and_more_bandwidth_never_harms(algorithm):
    cluster = Cluster(Link(10e-6, 1e9), 4, Link(1e-6, 1e10))
    times = [cluster.all_reduce(1e8, 4 * hosts, algorithm) for hosts in (1, 2, 3, 8, 100, 2500)]
    assert times == sorted(times) and times[0] < times[-1]
    for ranks in (2, 16, 512):
        wider = [
            forecast(VGG, replace(PASCAL, network=Link(1e-5, b)), ranks, algorithm=algorithm).step
            for b in (1e8, 1e9, 1e10, 1e11)
        ]
        assert wider == sorted(wider, reverse=True)
    steps = [
        forecast(TWO_LAYERS, Cluster(LINK, jitter=0.02), n, algorithm=algorithm).step
        for n in COUNTS
    ]
    assert steps == sorted(steps) and steps[0] < steps[-1]


def test_the_slowest_of_n_as_drawn():
    rng, jitter = np.random.default_rng(0), 0.1
    for ranks in (2, 8, 64, 512):
        drawn = 1 + jitter * rng.normal(size=(4000, ranks)).max(axis=1).mean()
        assert Cluster(LINK, jitter=jitter).slowest(ranks) - 1 == pytest.approx(drawn - 1, rel=0.06)


# --- calibration ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_calibration_gives_the_link_back(ranks):
    sizes = 4.0 ** np.arange(5, 14)
    link = Link(25e-6, 3e9)
    found = calibrate(sizes, [ring(size, ranks, link) for size in sizes], ranks)
    assert found == pytest.approx(link)
    noise = np.random.default_rng(ranks).uniform(0.9, 1.1, (9, 20))
    times = np.array([ring(size, ranks, link) for size in sizes])[:, None] * noise
    found = calibrate(np.repeat(sizes, 20), times.ravel(), ranks)
    assert found == pytest.approx(link, rel=0.1)


def test_calibration_has_no_negative_latency():
    found = calibrate([1e6, 2e6, 4e6], [0.9e-3, 2e-3, 4.2e-3], 2)
    assert found.latency == 0 and found.bandwidth == pytest.approx(1e9, rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "times", "ranks", "says"),
    [
        ([1e6, 1e6], [1, 1], 2, "at least two sizes"),
        ([1, 2], [1, 1], 1, "on 1 rank"),
        ([1e6, 2e6], [2, 1], 2, "must grow with nbytes"),
    ],
)
def test_calibration_says_what_it_lacks(sizes, times, ranks, says):
    with pytest.raises(ValueError, match=says):
        calibrate(sizes, times, ranks)


# --- a step -----------------------------------------------------------------------------------------


def second_for_10_bytes(nbytes):
    return nbytes / 10


def test_fusion_by_hand():
    ready = [(1.0, 10), (2.5, 10), (2.6, 10), (2.7, 90), (2.8, 10)]
    # The first goes at once and takes until 2; the second from 2.5 to 3.5. Then three are ready.
    assert exchange(ready, second_for_10_bytes, fusion=30, cycle=0) == [
        (1.0, 2.0, 10), (2.5, 3.5, 10), (3.5, 4.5, 10), (4.5, 13.5, 90), (13.5, 14.5, 10)
    ]  # fmt: skip
    assert [n for _, _, n in exchange(ready, second_for_10_bytes, fusion=110, cycle=0)] == [
        10,
        10,
        110,
    ]
    # Half a cycle of waiting where nothing is under way, none where something is.
    waited = exchange(ready, second_for_10_bytes, fusion=30, cycle=0.1)
    assert [begin for begin, _, _ in waited] == pytest.approx([1.05, 2.55, 3.55, 4.55, 13.55])


def test_every_byte_is_sent_once_in_order_when_it_is_ready():
    for network in published.NETWORKS.values():
        for fusion in (0, 2**20, 64 * 2**20):
            for overlap in (True, False):
                computed, end, sent = scaling.step(
                    network, PASCAL, 128, fusion=fusion, overlap=overlap
                )
                assert sum(n for _, _, n in sent) == pytest.approx(4 * network.parameters)
                assert all(a[1] <= b[0] for a, b in zip(sent, sent[1:], strict=False))
                assert end >= computed and end >= sent[-1][1]
                gradients = network.gradients(PASCAL.slowest(128))
                if overlap:
                    assert gradients[0][0] < sent[0][0] < computed
                    assert sent[-1][0] >= gradients[-1][0] == pytest.approx(computed)
                else:
                    assert sent[0][0] >= computed
                if fusion == 0:
                    assert len(sent) == len(network.layers)


def test_gradients_are_ready_from_the_last_layer_to_the_first():
    network = Network(((5, 3.0), (7, 1.0)), images_per_second=64.0)  # a step of one second
    assert network.gradients() == [(pytest.approx(1 / 3 + 1 / 6), 7), (pytest.approx(1.0), 5)]


@pytest.mark.parametrize(
    ("cluster", "limit"),
    [
        (Cluster(Link(0, 1e15)), "compute"),
        (Cluster(Link(1e-2, 1e15)), "latency"),
        (Cluster(Link(0, 1e8)), "bandwidth"),
        (Cluster(Link(0, 1e15), jitter=0.1), "stragglers"),
    ],
)
def test_the_limit_is_named(cluster, limit):
    found = forecast(TWO_LAYERS, cluster, 16)
    assert found.limit == limit
    assert found.overlap_exhausted == (limit in ("latency", "bandwidth"))
    assert found.images_per_second == pytest.approx(16 * 640 * found.efficiency)


def test_overlap_is_exhausted_when_the_rest_of_the_backward_pass_is_too_short():
    # The last layer's gradient is ready after 67 of 100 ms: 33 ms to hide behind.
    for milliseconds, exhausted in (20, False), (50, True):
        link = Link(0, 1.875 * 8e6 / (milliseconds / 1e3))
        found = forecast(TWO_LAYERS, Cluster(link), 16, cycle=0)
        assert found.communication == pytest.approx(milliseconds / 1e3)
        assert found.overlap_exhausted == exhausted


def test_half_the_bytes_and_no_overlap():
    cluster = Cluster(Link(0, 1e9))
    whole, half = (forecast(VGG, cluster, 64, number_bytes=n) for n in (4, 2))
    assert half.communication == pytest.approx(whole.communication / 2)
    apart = forecast(VGG, cluster, 64, overlap=False)
    assert apart.exposed == pytest.approx(apart.communication + 2.5e-3)  # and half a cycle
    assert apart.exposed > whole.exposed > half.exposed > 0


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"ranks": 2, "algorithm": "star"}])
def test_what_is_not_known_is_refused(wrong):
    with pytest.raises(ValueError, match="ranks >= 1 and algorithm"):
        forecast(TWO_LAYERS, PASCAL, **wrong)


# --- published --------------------------------------------------------------------------------------


def test_512_gpus_are_foretold_within_five_points():
    assert 512 not in published.FITTED_TO
    for name, network in published.NETWORKS.items():
        for ranks, efficiency in published.PUBLISHED[name].items():
            found = forecast(network, PASCAL, ranks).efficiency
            assert abs(found - efficiency) < 0.05, (name, ranks, found)


@pytest.mark.slow
def test_the_constants_are_what_the_fit_finds():
    assert published.fit() == pytest.approx(published.FITTED)


def test_one_weird_trick_within_ten_percent():
    for gpus, hours in published.K20_HOURS.items():
        assert published.one_weird_trick(gpus) == pytest.approx(hours, rel=0.1)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_one_weird_trick_message_by_message(gpus):
    """Each pair's messages, one by one: seconds on a GPU's own way, and on the way through the host."""
    own, shared = 0.0, 0.0
    for to in range(1, gpus):  # what GPU 0 receives; the others receive as much at the same time
        for inputs in (9216, 4096, 4096):
            nbytes = 2 * 4 * 128 * inputs
            if to < 4:
                own += nbytes / 6e9
            else:
                shared += gpus * nbytes / 6e9  # with everybody else's
    filters = [3 * 64 * 11**2, 64 * 192 * 5**2, 192 * 384 * 9, 384 * 256 * 9, 256 * 256 * 9]
    filters = sum(filters) + sum((64, 192, 384, 256, 256))
    own += ring(4 * filters, gpus, Link(0, 6e9))
    steps = 90 * 1_281_167 / 128 / gpus
    hours = 98.05 / gpus + steps * (own + shared) / 3600
    assert published.one_weird_trick(gpus) == pytest.approx(hours)


def test_the_networks_have_the_published_numbers_of_parameters():
    """As torchvision counts vgg16 and resnet101, and Keras InceptionV3."""
    for name, parameters in (
        ("VGG-16", 138_357_544),
        ("ResNet-101", 44_549_160),
        ("Inception V3", 23_817_352),
    ):
        assert published.NETWORKS[name].parameters == pytest.approx(parameters, rel=1e-3)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_networks_are_those_of_keras():
    """Parameters, multiplications, and which part of the gradient is ready when."""
    keras = pytest.importorskip("keras", reason="needs Keras: run `make setup`")
    for name, build in (
        ("VGG-16", keras.applications.VGG16),
        ("ResNet-101", keras.applications.ResNet101),
        ("Inception V3", keras.applications.InceptionV3),
    ):
        layers = [
            (sum(math.prod(w.shape) for w in layer.trainable_weights), work(layer))
            for layer in build(weights=None).layers
        ]
        theirs, ours = np.array(layers), np.array(published.NETWORKS[name].layers)
        assert ours.sum(axis=0) == pytest.approx(theirs.sum(axis=0), rel=0.002)
        ready = [
            np.interp(
                np.linspace(0, 1, 11), np.cumsum(w[::-1]) / w.sum(), np.cumsum(n[::-1]) / n.sum()
            )
            for n, w in (theirs.T, ours.T)
        ]
        assert np.abs(ready[0] - ready[1]).max() < 0.06, name


def work(layer):
    """Multiplications an image."""
    if not hasattr(layer, "kernel") or layer.kernel is None:
        return 0
    return math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1])


def test_the_table_has_every_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    main()
    printed = capsys.readouterr().out
    assert (
        len([line for line in printed.splitlines() if "fitted" in line or "predicted" in line])
        == 12
    )
    for efficiency in ("68.0%", "90.0%", "79.0%", "78.2%"):
        assert efficiency in printed
