"""Draw the pictures of lab 18, Past one machine."""

import math
from dataclasses import replace

from drawing import BLUE, GREY, ORANGE, YELLOW, Picture

from hvdlab.scaling import forecast, published


def ring_and_tree_latency() -> None:
    """Eight ranks: a ring passes 14 messages in a row, a tree three up and three down."""
    picture = Picture(740, 330)
    picture.text(170, 22, "Ring: 2(N-1) = 14 messages in a row", bold=True)
    spots = []
    for rank in range(8):
        angle = math.radians(-90 + 45 * rank)
        spots.append((170 + 105 * math.cos(angle), 178 + 105 * math.sin(angle)))
    for rank, (x, y) in enumerate(spots):
        to_x, to_y = spots[(rank + 1) % 8]
        length = math.hypot(to_x - x, to_y - y)
        right, down = (to_x - x) / length, (to_y - y) / length
        start = (x + 24 * right, y + 24 * down)
        picture.arrow(start, (to_x - 24 * right, to_y - 24 * down), colour=YELLOW)
    for rank, (x, y) in enumerate(spots):
        picture.box(x - 18, y - 14, 36, 28, str(rank), GREY)
    picture.text(170, 168, "each chunk goes")
    picture.text(170, 188, "round almost twice")
    picture.text(550, 22, "Tree: 2 log2(N) = 6 messages in a row", bold=True)
    places = {0: (550, 62), 4: (550, 132), 2: (465, 202), 6: (635, 202)}
    places |= {1: (425, 272), 3: (505, 272), 5: (595, 272), 7: (675, 272)}
    parents = {4: 0, 2: 4, 6: 4, 1: 2, 3: 2, 5: 6, 7: 6}
    for rank, parent in parents.items():
        (x, y), (up_x, up_y) = places[rank], places[parent]
        picture.arrow((x, y - 16), (up_x, up_y + 16), colour=ORANGE, both=True)
    for rank, (x, y) in places.items():
        picture.box(x - 18, y - 14, 36, 28, str(rank), GREY)
    for level, y in enumerate((97, 167, 237)):
        picture.text(395, y, f"level {level + 1}", size=13)
    picture.text(550, 312, "sums go up, the result comes down", size=13)
    picture.save("ring_and_tree_latency")


def hierarchical_all_reduce() -> None:
    """Two hosts with four GPUs: reduce-scatter inside, rings across, all-gather inside."""
    picture = Picture(750, 300)
    titles = "1  reduce-scatter in each host", "2  one ring per shard", "3  all-gather in each host"
    for phase, title in enumerate(titles):
        left = 15 + 248 * phase
        picture.text(left + 112, 22, title, bold=True, size=13)
        for host in range(2):
            x = left + 118 * host
            picture.box(x, 42, 106, 216, "", GREY, strength=0.08)
            picture.text(x + 53, 274, f"host {host}", size=13)
            for gpu in range(4):
                words = ["a b c d", "a+ b+ c+ d+".split()[gpu], "a* b* c* d*"][phase]
                picture.box(x + 13, 54 + 50 * gpu, 80, 34, words, ORANGE, size=13)
                if phase != 1 and gpu < 3:
                    centre = x + 53
                    picture.arrow((centre, 89 + 50 * gpu), (centre, 103 + 50 * gpu), both=True)
        if phase == 1:
            for gpu in range(4):
                picture.arrow((left + 94, 71 + 50 * gpu), (left + 130, 71 + 50 * gpu), both=True)
    picture.text(375, 292, "+ is the sum of one host, * the sum of all hosts", size=13)
    picture.save("hierarchical_all_reduce")


def exposed_communication() -> None:
    """A step: forward, backward, and all-reduces of which the last part is exposed."""
    picture = Picture(720, 210)
    picture.text(92, 64, "computing", align="right")
    picture.text(92, 122, "network", align="right")
    picture.box(104, 44, 150, 40, "forward", BLUE)
    picture.box(254, 44, 300, 40, "backward: last layer ... first layer", BLUE, hatch=None)
    picture.box(330, 102, 120, 40, "all-reduce 1", YELLOW)
    picture.box(452, 102, 102, 40, "all-reduce 2", YELLOW)
    picture.box(554, 102, 96, 40, "", YELLOW, hatch="//")
    picture.text(602, 90, "exposed")
    picture.line([(554, 30), (554, 170)], dashed=True)
    picture.line([(650, 90), (650, 170)], dashed=True)
    picture.arrow((330, 160), (554, 160), "", both=True)
    picture.text(442, 176, "hidden behind the backward pass", size=13)
    picture.arrow((104, 194), (650, 194), "", both=True)
    picture.text(210, 180, "step", size=13)
    picture.save("exposed_communication")


def what_limits_where() -> None:
    """Fractions of a step of VGG-16 that are lost to each cost, for ring and tree."""
    picture = Picture(740, 325)
    cluster, vgg = published.pascal_cluster(*published.FITTED), published.NETWORKS["VGG-16"]
    picture.text(370, 20, "VGG-16: how a step is spent, by number of GPUs", bold=True)
    for row, (ranks, algorithm) in enumerate(
        (n, name) for n in (16, 512, 10_000) for name in ("ring", "tree")
    ):
        y = 42 + 38 * row + 8 * (row // 2)
        found = forecast(vgg, cluster, ranks, algorithm=algorithm)
        silent = forecast(vgg, _without_latency(cluster), ranks, algorithm=algorithm)
        latency = (found.step - silent.step) / found.step
        equal = forecast(vgg, replace(cluster, jitter=0.0), ranks, algorithm=algorithm)
        wait = (found.step - equal.step) / found.step
        rest = 1 - found.efficiency - latency - wait
        picture.text(132, y + 14, f"{ranks:,} GPUs, {algorithm}", align="right")
        x = 142.0
        for fraction, colour, hatch in (
            (found.efficiency, BLUE, None),
            (wait, GREY, None),
            (rest, YELLOW, None),
            (latency, ORANGE, "//"),
        ):
            width = 580 * max(0, fraction)
            words = f"{fraction:.0%}" if width > 40 else ""
            picture.box(x, y, width, 28, words, colour, hatch=hatch, rounded=0.01, size=13)
            x += width
    x = 142
    for words, colour, hatch, width in (
        ("computing", BLUE, None, 120),
        ("waiting for the slowest", GREY, None, 200),
        ("bytes", YELLOW, None, 90),
        ("latency", ORANGE, "//", 100),
    ):
        picture.box(x, 300, 18, 16, "", colour, hatch=hatch, rounded=0.01)
        picture.text(x + 24, 308, words, align="left", size=13)
        x += width
    picture.save("what_limits_where")


def _without_latency(cluster: published.Cluster) -> published.Cluster:
    links = {"network": cluster.network, "inside": cluster.inside}
    better = {name: link._replace(latency=0.0) for name, link in links.items()}
    return replace(cluster, **better)


def draw() -> None:
    """Draw all pictures of the lab."""
    ring_and_tree_latency()
    hierarchical_all_reduce()
    exposed_communication()
    what_limits_where()


if __name__ == "__main__":
    draw()
