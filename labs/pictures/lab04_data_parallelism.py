"""Draw the pictures of lab 4, data parallelism by hand."""

import math

from drawing import BLUE, GREEN, GREY, ORANGE, YELLOW, Picture

LETTERS = "abcd"
SUM = "\N{GREEK CAPITAL LETTER SIGMA}"


def minibatch_on_two_ranks() -> None:
    """A mini-batch of six examples: both ranks have all weights and half of the examples."""
    picture = Picture(740, 300)
    picture.text(96, 22, "mini-batch of 6", bold=True)
    picture.cells(24, 40, [f"$x_{i}$" for i in range(1, 7)], BLUE, width=24, height=28, size=13)
    for rank, (y, first) in enumerate(((100, 1), (210, 4))):
        picture.arrow((60 + 72 * rank, 70), (60 if rank == 0 else 132, y - 2), colour=GREY)
        shard = [f"$x_{i}$" for i in range(first, first + 3)]
        picture.cells(24 + 72 * rank, y, shard, BLUE, width=24, height=28, size=13)
        picture.text(24, y + 44, f"rank {rank}", align="left", size=13)
        picture.arrow((182, y + 14), (212, y + 14))
        picture.box(212, y - 6, 108, 40, "all weights $w$", GREEN)
        picture.arrow((320, y + 14), (350, y + 14))
        picture.box(350, y - 6, 104, 40, f"mean $g_{rank}$ of 3", ORANGE, size=13)
    picture.arrow((454, 114), (492, 152))
    picture.arrow((454, 224), (492, 188))
    picture.box(492, 142, 104, 56, "all-reduce\n$(g_0 + g_1)\\,/\\,2$", YELLOW, size=13)
    for y in (100, 210):
        picture.arrow((596, 170), (628, y + 14))
        picture.box(628, y - 6, 104, 40, "$w - \\eta\\, g$", GREEN)
        picture.text(680, y + 48, "the same weights", size=12)
    picture.save("minibatch_on_two_ranks")


def data_and_model_parallelism() -> None:
    """What each of two ranks holds, and what they exchange, if the batch or the weights are split."""
    picture = Picture(740, 290)
    for x, title, sent in (
        (0, "Data parallelism: split the batch", "gradients, as many as weights"),
        (375, "Model parallelism: split the weights", "activations, batch × outputs"),
    ):
        picture.text(x + 180, 22, title, bold=True)
        for rank, y in enumerate((48, 188)):
            picture.text(x + 36, y + 36, f"rank {rank}", size=13)
            picture.box(x + 70, y, 100, 76, "", BLUE, strength=0, dashed=True, rounded=0.01)
            picture.box(x + 214, y, 130, 76, "", GREEN, strength=0, dashed=True, rounded=0.01)
            picture.text(x + 192, y + 38, "×", size=18)
            if x == 0:
                picture.box(x + 70, y + 38 * rank, 100, 38, "half the batch", BLUE, size=12)
                picture.box(x + 214, y, 130, 76, "all weights", GREEN)
            else:
                picture.box(x + 70, y, 100, 76, "whole batch", BLUE, size=13)
                half = "half the\nweights"
                picture.box(x + 214 + 65 * rank, y, 65, 76, half, GREEN, size=12, hatch=None)
        picture.arrow((x + 250, 186), (x + 250, 126), both=True, colour=YELLOW)
        picture.text(x + 240, 156, sent, align="right", size=12)
    picture.text(
        370, 282, "A dashed frame is the whole, a filled box what the rank holds.", size=12
    )
    picture.save("data_and_model_parallelism")


def _collectives() -> dict[str, tuple[list[list[str]], list[list[str]]]]:
    """Return what each of four ranks holds before and after each collective."""
    ranks = range(4)
    mine = [[f"{letter}{rank}" for letter in LETTERS] for rank in ranks]
    root = [mine[0]] + [[""] * 4] * 3
    one = [["" if k != rank else f"{LETTERS[rank]}{rank}" for k in ranks] for rank in ranks]
    sums = [f"{SUM}{letter}" for letter in LETTERS]
    gathered = [f"{LETTERS[rank]}{rank}" for rank in ranks]
    on_root = [[""] * 4] * 3
    return {
        "broadcast": (root, [mine[0]] * 4),
        "scatter": (root, [["" if k != r else mine[0][k] for k in ranks] for r in ranks]),
        "gather": (one, [gathered, *on_root]),
        "all-gather": (one, [gathered] * 4),
        "reduce": (mine, [sums, *on_root]),
        "all-reduce": (mine, [sums] * 4),
        "reduce-scatter": (mine, [["" if k != r else sums[k] for k in ranks] for r in ranks]),
    }


def collectives() -> None:
    """Seven collectives on four ranks: the chunks that each rank holds before and after."""
    picture = Picture(756, 510)
    for number, (name, (before, after)) in enumerate(_collectives().items()):
        x, y = 8 + 252 * (number % 3), 14 + 168 * (number // 3)
        picture.text(x + 132, y + 4, name, bold=True, size=15)
        for rank in range(4):
            top = y + 20 + 30 * rank
            picture.text(x + 6, top + 13, str(rank), size=13)
            for left, words in ((x + 18, before[rank]), (x + 140, after[rank])):
                colours = [YELLOW if SUM in word else BLUE for word in words]
                picture.cells(left, top, words, colours, width=25, height=26, size=13)
        picture.arrow((x + 120, y + 78), (x + 138, y + 78))
    x, y = 274, 372
    for line, words in enumerate((
        "One row is one rank, 0 to 3. Left: before, right: after.",
        "a2 is chunk a with the values of rank 2.",
        f"{SUM}a = a0 + a1 + a2 + a3 (yellow).",
        "A dashed square holds nothing that matters.",
        "The root of broadcast, scatter, gather, reduce is rank 0.",
    )):  # fmt: skip
        picture.text(x, y + 24 * line, words, align="left", size=14)
    picture.save("collectives")


def _ring_nodes(x: float, y: float, radius: float) -> list[tuple[float, float]]:
    angles = [math.radians(-135 + 90 * rank) for rank in range(4)]
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]


def ring_all_reduce() -> None:
    """The two phases of a ring all-reduce on four ranks: what is sent in the first step of each."""
    picture = Picture(750, 420)
    phases = (
        (
            190,
            "Phase 1: reduce-scatter, step 0",
            ["chunk a", "chunk b", "chunk c", "chunk d"],
            "add",
        ),
        (
            565,
            "Phase 2: all-gather, step 0",
            [f"{SUM}b", f"{SUM}c", f"{SUM}d", f"{SUM}a"],
            "replace",
        ),
    )
    for x, title, sent, what in phases:
        picture.text(x, 20, title, bold=True, size=15)
        nodes = _ring_nodes(x, 190, 150)
        for rank, (here, there) in enumerate(zip(nodes, nodes[1:] + nodes[:1], strict=True)):
            dx, dy = there[0] - here[0], there[1] - here[1]
            length = math.hypot(dx, dy)
            ux, uy = dx / length, dy / length
            start = (here[0] + 52 * ux, here[1] + 30 * uy)
            end = (there[0] - 52 * ux, there[1] - 30 * uy)
            picture.arrow(start, end, colour=YELLOW)
            middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
            place = ((0, -16), (0, 0), (0, 16), (0, 0))[rank]
            align = ("center", "right", "center", "left")[rank]
            shift = (0, -10, 0, 10)[rank]
            words = sent[rank] + (f"\n{what}" if rank % 2 else f": {what}")
            picture.text(middle[0] + shift, middle[1] + place[1], words, size=13, align=align)
        for rank, (cx, cy) in enumerate(nodes):
            done = "" if what == "add" else f"\nhas {sent[rank]}"
            picture.box(cx - 48, cy - 24, 96, 48, f"rank {rank}{done}", GREY, size=14)
    picture.text(
        375,
        354,
        "Every rank sends to its right neighbour and receives from its left one, in all 2 (N - 1) = 6 steps.",
        size=13,
    )
    picture.text(
        375,
        378,
        "Phase 1 ends when each rank has one complete sum. Phase 2 passes these sums round the ring.",
        size=13,
    )
    picture.text(
        375, 402, "One step moves one chunk, a quarter of the array, on every link.", size=13
    )
    picture.save("ring_all_reduce")


def tree_all_reduce() -> None:
    """A tree all-reduce on eight ranks: sums go up in three steps, and the total comes down in three."""
    picture = Picture(750, 300)
    for x, title, up in (
        (185, "Reduce: 3 steps up", True),
        (565, "Broadcast: 3 steps down", False),
    ):
        picture.text(x, 20, title, bold=True, size=15)
        columns = [x - 161 + 46 * rank for rank in range(8)]
        levels = [(250, range(8)), (180, range(0, 8, 2)), (110, range(0, 8, 4)), (45, (0,))]
        for level, (y, ranks) in enumerate(levels):
            for rank in ranks:
                colour = YELLOW if (level == 3 or not up) else ORANGE
                words = str(rank)
                picture.box(columns[rank] - 17, y, 34, 28, words, colour, size=14)
            if level == 0:
                continue
            below = levels[level - 1][0]
            for rank in ranks:
                other = columns[rank + 2 ** (level - 1)]
                ends = (other, below), (columns[rank] + 8, y + 28)
                picture.arrow(*(ends if up else ends[::-1]))
                picture.line(
                    [(columns[rank], below), (columns[rank], y + 28)], dashed=True, colour=GREY
                )
    picture.text(
        375,
        292,
        "Arrow: a message with the whole array. Dashed: the rank keeps its array.",
        size=12,
    )
    picture.save("tree_all_reduce")


def gather_or_ring() -> None:
    """The bytes that pass the busiest rank: gather-and-broadcast at its root, and the ring at any rank."""
    picture = Picture(740, 330)
    picture.text(170, 20, "Gather and broadcast", bold=True, size=15)
    picture.box(120, 44, 100, 46, "rank 0 (root)", ORANGE, size=13)
    for number, x in enumerate((20, 125, 230)):
        picture.box(x, 170, 90, 40, f"rank {number + 1}", GREY)
        picture.arrow((x + 32, 170), (136 + 26 * number, 90), colour=ORANGE)
        picture.arrow((150 + 26 * number, 90), (x + 54, 170), colour=YELLOW, dashed=True)
    picture.text(170, 240, "rank 0 receives 3 arrays, then sends 3", size=13)
    picture.text(170, 262, "6 S bytes pass rank 0 (N = 4)", size=13, bold=True)
    picture.text(170, 284, "2 (N - 1) S grows with N", size=13)
    picture.text(560, 20, "Ring", bold=True, size=15)
    nodes = [(470, 60), (650, 60), (650, 180), (470, 180)]
    for rank, (x, y) in enumerate(nodes):
        picture.box(x - 45, y - 20, 90, 40, f"rank {rank}", GREY)
    picture.arrow((515, 60), (605, 60), "S / 4", colour=YELLOW)
    picture.arrow((650, 80), (650, 160), colour=YELLOW)
    picture.arrow((605, 180), (515, 180), "S / 4", colour=YELLOW)
    picture.arrow((470, 160), (470, 80), colour=YELLOW)
    picture.text(640, 120, "S / 4", size=13, align="right")
    picture.text(480, 120, "S / 4", size=13, align="left")
    picture.text(560, 240, "each rank sends and receives 6 chunks of S / 4", size=13)
    picture.text(560, 262, "3 S bytes pass every rank (N = 4)", size=13, bold=True)
    picture.text(560, 284, "4 (N - 1) / N times S stays below 4 S", size=13)
    picture.text(370, 316, "S: bytes of the array. N: number of ranks.", size=12)
    picture.save("gather_or_ring")


def many_copies_of_one_program() -> None:
    """mpirun starts four copies of one program on two nodes, and gives every copy its rank."""
    picture = Picture(740, 270)
    picture.box(20, 105, 150, 56, "mpirun -np 4\npython hello.py", GREY, size=13)
    for node, y in enumerate((20, 150)):
        picture.box(260, y, 460, 104, "", GREY, strength=0.08)
        picture.text(272, y + 14, f"node {node}", align="left", bold=True, size=13)
        picture.arrow((170, 133), (258, y + 52))
        for local in range(2):
            words = f"hello.py\nrank {2 * node + local} of 4\nlocal rank {local}"
            picture.box(290 + 215 * local, y + 30, 190, 64, words, GREEN, size=13)
    picture.arrow((492, 126), (492, 148), both=True, colour=YELLOW)
    picture.text(505, 137, "network", align="left", size=12)
    picture.text(95, 185, "one program,\nfour processes", size=13)
    picture.save("many_copies_of_one_program")


def draw() -> None:
    """Draw all pictures of the lab."""
    minibatch_on_two_ranks()
    data_and_model_parallelism()
    many_copies_of_one_program()
    collectives()
    tree_all_reduce()
    gather_or_ring()
    ring_all_reduce()


if __name__ == "__main__":
    draw()
