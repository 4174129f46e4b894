"""Draw the pictures of lab 13, splitting layers."""

from drawing import BLUE, GREEN, GREY, YELLOW, Picture

SIDE, HIGH = 34, 28  # of a number's cell


def matrix(
    picture: Picture, x: float, y: float, rows: list[list[int]], colours: list[str], by: str
):
    """Draw a matrix; `by` says whether the colours belong to its rows or its columns."""
    for number, row in enumerate(rows):
        words = [str(value) for value in row]
        picture.cells(x, y + number * HIGH, words, colours[number] if by == "rows" else colours,
                      width=SIDE, height=HIGH)  # fmt: skip


def column_row_split() -> None:
    """A column split gives each rank some outputs; a row split gives each rank a partial sum."""
    picture = Picture(750, 400)
    a, b = [[1, 0, 2, 1], [0, 1, 1, 3]], [[1, 0], [0, 1], [1, 1], [2, 0]]
    picture.text(
        20, 20, "Column split of A: each rank computes some of the outputs", align="left", bold=True
    )
    for rank in range(2):
        y = 46 + 76 * rank
        picture.text(20, y + HIGH, f"rank {rank}", align="left")
        picture.cells(90, y + HIGH / 2, ["1", "2"], BLUE, width=SIDE, height=HIGH)
        picture.text(174, y + HIGH, "x")
        part = [row[2 * rank : 2 * rank + 2] for row in a]
        matrix(picture, 190, y, part, [GREEN] * 2, "rows")
        picture.text(280, y + HIGH, "=")
        picture.cells(
            300, y + HIGH / 2, [["1", "2"], ["4", "7"]][rank], BLUE, width=SIDE, height=HIGH
        )
        picture.arrow((372, y + HIGH), (440, 112), colour=GREY)
    picture.cells(446, 98, ["1", "2", "4", "7"], BLUE, width=SIDE, height=HIGH)
    picture.text(514, 80, "concatenated: x A", size=13)
    picture.text(600, 112, "no rank needs\nthe other half", align="left", size=13)
    picture.text(
        20,
        216,
        "Row split of B: each rank computes a part of the sum for every output",
        align="left",
        bold=True,
    )
    for rank in range(2):
        y = 240 + 76 * rank
        picture.text(20, y + HIGH, f"rank {rank}", align="left")
        picture.cells(
            90, y + HIGH / 2, [["1", "2"], ["4", "7"]][rank], BLUE, width=SIDE, height=HIGH
        )
        picture.text(174, y + HIGH, "x")
        matrix(picture, 190, y, b[2 * rank : 2 * rank + 2], [GREEN] * 2, "rows")
        picture.text(280, y + HIGH, "=")
        picture.cells(
            300, y + HIGH / 2, [["1", "2"], ["18", "4"]][rank], BLUE, width=SIDE, height=HIGH
        )
        picture.text(334, y + 2, "partial sums", size=12)
        picture.arrow((372, y + HIGH), (440, 306), colour=GREY)
    picture.box(446, 288, 100, 36, "all-reduce", YELLOW)
    picture.arrow((548, 306), (580, 306), colour=GREY)
    picture.cells(584, 292, ["19", "6"], BLUE, width=SIDE, height=HIGH)
    picture.text(618, 276, "the sum: (x A) B", size=13)
    picture.save("column_row_split")


def tensor_parallel_block() -> None:
    """A block on two ranks: f before the column-split matrix, g after the row-split matrix."""
    picture = Picture(750, 330)
    middle = 130
    picture.text(20, 20, "forward pass, left to right", align="left", bold=True)
    picture.box(16, middle - 24, 54, 48, "x", BLUE)
    picture.box(92, middle - 24, 64, 48, "norm", GREEN)
    picture.arrow((70, middle), (92, middle))
    picture.box(180, middle - 22, 44, 44, "f", YELLOW, bold=True)
    picture.arrow((156, middle), (180, middle))
    for rank, y in ((0, 70), (1, 190)):
        picture.text(246, y - 44, f"rank {rank}", size=13, align="left")
        picture.box(246, y - 32, 78, 64, "", GREEN, strength=0.15)
        picture.text(285, y - 9, "up", bold=True)
        picture.text(285, y + 12, "columns", size=12)
        picture.box(344, y - 22, 58, 44, "gelu", BLUE)
        picture.box(422, y - 32, 78, 64, "", GREEN, strength=0.15)
        picture.text(461, y - 9, "down", bold=True)
        picture.text(461, y + 12, "rows", size=12)
        picture.arrow((224, middle), (246, y))
        picture.arrow((324, y), (344, y))
        picture.arrow((402, y), (422, y))
        picture.arrow((500, y), (526, middle))
    picture.box(526, middle - 22, 44, 44, "g", YELLOW, bold=True)
    picture.box(592, middle - 24, 76, 48, "+ bias + x", GREEN, size=13)
    picture.arrow((570, middle), (592, middle))
    picture.arrow((668, middle), (690, middle))
    picture.box(690, middle - 24, 56, 48, "output", BLUE, size=13)
    for x, forward, backward in (
        (202, "forward: nothing", "backward: all-reduce"),
        (548, "forward: all-reduce", "backward: nothing"),
    ):
        picture.line([(x, middle + 24), (x, 252)], colour=GREY, dashed=True)
        picture.text(x, 264, forward, size=13)
        picture.text(x, 284, backward, size=13)
    picture.text(
        375,
        314,
        "x, norm, bias and output: replicated, equal on both ranks. up and down: split.",
        size=13,
    )
    picture.save("tensor_parallel_block")


def sequence_parallel() -> None:
    """Sequence parallelism: outside the split matrices each rank holds its examples only."""
    picture = Picture(750, 260)
    for top, title, between, f, g in (
        (18, "Tensor parallelism: x is replicated", "all examples", "f\nidentity", "g\nall-reduce"),
        (140, "With sequence parallelism: x is split", "1/N of them", "f\nall-gather", "g\nreduce-\nscatter"),
    ):  # fmt: skip
        picture.text(20, top, title, align="left", bold=True)
        y = top + 22
        picture.box(20, y, 150, 62, "", BLUE, dashed="1/N" in between, strength=0.12)
        picture.text(95, y + 20, "x, norm")
        picture.text(95, y + 42, between, size=13)
        picture.arrow((170, y + 31), (192, y + 31))
        picture.box(192, y, 96, 62, f, YELLOW, size=13)
        picture.arrow((288, y + 31), (310, y + 31))
        picture.box(
            310, y, 150, 62, "up, gelu, down\nall examples, 1/N\nof the features", GREEN, size=13
        )
        picture.arrow((460, y + 31), (482, y + 31))
        picture.box(482, y, 96, 62, g, YELLOW, size=13)
        picture.arrow((578, y + 31), (600, y + 31))
        picture.box(600, y, 130, 62, "", BLUE, dashed="1/N" in between, strength=0.12)
        picture.text(665, y + 20, "output")
        picture.text(665, y + 42, between, size=13)
    picture.text(
        20,
        244,
        "An all-gather plus a reduce-scatter send as many bytes as one all-reduce.",
        align="left",
        size=13,
    )
    picture.save("sequence_parallel")


def rank_grid() -> None:
    """One-dimensional and two-dimensional splits of the two matrices of a block on four ranks."""
    picture = Picture(750, 380)
    hatches = [None, "//", "..", "xx"]
    for left, rows, columns, title in (
        (20, 4, 1, "4 x 1: Megatron-LM"),
        (390, 2, 2, "2 x 2: AxoNN"),
    ):
        picture.text(left, 20, title, align="left", bold=True)
        picture.text(left + 60, 46, "up (4h x h)", size=13)
        picture.text(left + 230, 46, "down (h x 4h)", size=13)
        for rank in range(4):
            row, column = divmod(rank, columns)
            for x, y, wide, high, i, j in (
                (left, 60, 120 / columns, 200 / rows, row, column),
                (left + 140, 60, 200 / rows, 120 / columns, column, row),
            ):
                px, py = x + wide * j, y + high * i
                picture.box(
                    px, py, wide, high, "", GREEN, hatch=hatches[rank], strength=0.08, rounded=0.01
                )
                picture.box(
                    px + wide / 2 - 12,
                    py + high / 2 - 11,
                    24,
                    22,
                    str(rank),
                    GREEN,
                    strength=0,
                    bold=True,
                )
    picture.text(20, 282, "forward: one all-reduce of down's", align="left", size=13)
    picture.text(20, 300, "outputs, among all four ranks", align="left", size=13)
    picture.text(
        390, 282, "forward: up's outputs among 0, 1 and among 2, 3;", align="left", size=13
    )
    picture.text(390, 300, "down's outputs among 0, 2 and among 1, 3", align="left", size=13)
    picture.text(
        20,
        340,
        "The number in a tile is the rank that stores it. Every rank stores a quarter of each matrix.",
        align="left",
        size=13,
    )
    picture.text(
        20,
        362,
        "A third dimension, depth, repeats such a grid for another part of the batch.",
        align="left",
        size=13,
    )
    picture.save("rank_grid")


def draw() -> None:
    """Draw all pictures of the lab."""
    column_row_split()
    tensor_parallel_block()
    sequence_parallel()
    rank_grid()


if __name__ == "__main__":
    draw()
