"""Draw the pictures of lab 12, DDP and sharding."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW, Picture


def ddp_buckets() -> None:
    """Buckets and overlap: with several buckets the exchange starts while the backward pass still runs."""
    picture = Picture(740, 330)
    left, layer, bucket = 100, 62, 54
    for top, title, several in (
        (20, "One bucket: the exchange starts after the backward pass", False),
        (172, "Four buckets: each exchange starts as soon as its bucket is full", True),
    ):
        picture.text(20, top, title, align="left", bold=True)
        picture.text(20, top + 40, "compute", align="left")
        picture.text(20, top + 90, "network", align="left")
        picture.box(left, top + 22, 84, 36, "forward", BLUE)
        start = left + 88
        for number in range(4):
            x = start + number * layer
            picture.box(x, top + 22, layer - 4, 36, f"back {4 - number}", ORANGE)
            if several:
                picture.box(
                    x + layer, top + 72, bucket, 36, f"bucket {number + 1}", YELLOW, size=12
                )
                picture.arrow((x + layer - 4, top + 58), (x + layer + 4, top + 72), colour=GREY)
        end = start + 4 * layer
        if several:
            after = end + bucket
        else:
            picture.box(end, top + 72, 4 * bucket, 36, "all-reduce of everything", YELLOW)
            picture.arrow((end - 4, top + 58), (end + 4, top + 72), colour=GREY)
            after = end + 4 * bucket
        picture.box(after + 4, top + 22, 66, 36, "update", PURPLE)
    picture.arrow((110, 316), (700, 316), colour=GREY)
    picture.text(405, 304, "time", size=13)
    picture.save("ddp_buckets")


def zero_stages() -> None:
    """Which rank stores which part of weights, gradients and optimizer state, in ZeRO stages 0 to 3."""
    picture = Picture(750, 330)
    unit, gap, first, step = 7, 3, 142, 123  # pixels per byte of a parameter
    parts = (("W", 4, GREEN, 3, ""), ("G", 4, ORANGE, 2, "//"), ("S", 8, PURPLE, 1, ".."))
    for rank in range(4):
        picture.text(first + rank * step + 58, 20, f"rank {rank}", bold=True)
        x = first + rank * step
        for name, size, *_ in parts:
            picture.text(x + size * unit / 2, 44, name, size=13)
            x += size * unit + gap
    picture.text(692, 20, "bytes per", bold=True)
    picture.text(692, 40, "parameter", bold=True)
    rows = (
        ("DDP", "nothing sharded", "16"),
        ("stage 1", "S sharded", "8 + 8/N = 10"),
        ("stage 2", "G, S sharded", "4 + 12/N = 7"),
        ("stage 3", "W, G, S sharded", "16/N = 4"),
    )
    for stage, (name, what, formula) in enumerate(rows):
        top = 64 + stage * 56
        picture.text(20, top + 10, name, align="left", bold=True)
        picture.text(20, top + 29, what, align="left", size=13)
        picture.text(692, top + 18, formula)
        for rank in range(4):
            x = first + rank * step
            for _, size, colour, sharded_from, hatch in parts:
                whole = size * unit
                if stage >= sharded_from:
                    picture.box(x, top, whole, 36, "", GREY, strength=0, dashed=True, rounded=0.01)
                    piece = whole / 4
                    picture.box(x + rank * piece, top, piece, 36, "", colour, strength=0.5,
                                hatch=hatch, rounded=0.01)  # fmt: skip
                else:
                    picture.box(
                        x, top, whole, 36, "", colour, strength=0.5, hatch=hatch, rounded=0.01
                    )
                x += whole + gap
    picture.text(
        375,
        304,
        "W: weights, 4 bytes; G: gradients, 4 bytes; S: state of Adam, 8 bytes",
        size=13,
    )
    picture.save("zero_stages")


def fsdp_timeline() -> None:
    """FSDP: gather the weights of a block, compute with them, free them; backward gathers them again."""
    picture = Picture(750, 372)
    left, unit = 126, 50  # the first moment, and pixels per unit of time
    picture.arrow((left, 28), (735, 28), colour=GREY)
    picture.text(left + 20, 14, "time", size=13)
    for name, y in (("network", 60), ("compute", 112), ("whole weights", 158), ("in memory", 176)):
        picture.text(20, y, name, align="left")
    gathers = (0, "1"), (1, "2"), (2, "3"), (4, "3"), (5, "2"), (7, "1")
    for start, block in gathers:
        picture.box(left + start * unit, 42, unit - 4, 36, f"A{block}", YELLOW, strength=0.5)
    for start, block in (8, "3"), (9, "2"), (11, "1"):
        picture.box(left + start * unit, 42, unit - 4, 36, f"R{block}", ORANGE, hatch="//")
    for number in (1, 2, 3):
        picture.box(left + number * unit, 94, unit - 4, 36, f"F{number}", BLUE)
        start = left + (11 - 2 * number) * unit
        picture.box(start, 94, 2 * unit - 4, 36, f"B{number}", ORANGE)
    for block, spans in {1: ((0, 2), (7, 11)), 2: ((1, 3), (5, 9)), 3: ((2, 4), (4, 7))}.items():
        y = 148 + 34 * (block - 1)
        for start, end in spans:
            words = f"block {block}"
            picture.box(left + start * unit, y, (end - start) * unit - 4, 28, words, GREEN, size=13)
    for line, words in enumerate(
        (
            "A1, A2, A3: all-gather of the weights of a block. F: forward pass. B: backward pass.",
            "R3, R2, R1: reduce-scatter of the gradients; each rank keeps the mean of its shard.",
            "Green: the rank holds the whole weights of the block. Where green ends, it frees them",
            "and keeps its shard. At most two of the three blocks are whole at the same time.",
        )
    ):
        picture.text(20, 278 + 24 * line, words, align="left", size=13)
    picture.save("fsdp_timeline")


def zero_traffic() -> None:
    """What a step sends, in units of an all-reduce: 1, 1.5 or 2, and of which collectives it consists."""
    picture = Picture(750, 340)
    half, left = 96, 250
    for number in range(5):
        x = left + number * half
        picture.line([(x, 38), (x, 48)], colour=GREY)
        picture.text(x, 26, ("0", "0.5", "1", "1.5", "2")[number])
    picture.text(20, 28, "times an all-reduce", align="left", bold=True)
    scatter, gather, twice = (
        ("reduce-scatter G", 1, ORANGE),
        ("all-gather W", 1, GREEN),
        ("reduce-scatter G (Gloo)", 2, ORANGE),
    )
    rows = (
        ("DDP, Horovod", "everywhere", (("all-reduce G", 2, ORANGE),)),
        ("ZeRO stages 1, 2", "NCCL, the paper", (scatter, gather)),
        ("ZeRO stages 1, 2", "Gloo, this lab", (twice, gather)),
        ("stage 3, FSDP2", "NCCL, the paper", (gather, gather, scatter)),
        ("stage 3, FSDP2", "Gloo, this lab", (gather, gather, twice)),
    )
    for row, (name, where, pieces) in enumerate(rows):
        top, x = 52 + 48 * row, left
        picture.text(20, top + 10, name, align="left", bold=True)
        picture.text(20, top + 28, where, align="left", size=13)
        for words, halves, colour in pieces:
            width = halves * half
            picture.box(x + 1, top, width - 2, 38, "", colour, rounded=0.01)
            short = (
                words.replace("reduce-scatter G", "reduce-\nscatter G", 1) if width < 120 else words
            )
            short = short.replace("all-gather W", "all-\ngather W")
            picture.text(x + width / 2, top + 19, short, size=12)
            x += width
    picture.text(
        20,
        318,
        "G: gradients, W: weights. An all-reduce is a reduce-scatter followed by an all-gather.",
        align="left",
        size=13,
    )
    picture.save("zero_traffic")


def draw() -> None:
    """Draw all pictures of the lab."""
    ddp_buckets()
    zero_stages()
    fsdp_timeline()
    zero_traffic()


if __name__ == "__main__":
    draw()
