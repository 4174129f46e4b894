"""Draw the pictures of lab 17, Read a trace."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW, Picture


def anatomy_of_a_trace() -> None:
    """Tracks of two threads with nested spans, and one span with start, duration and self time."""
    picture = Picture(740, 340)
    left, ms = 130, 14.5  # pixels: left edge of the tracks, and one millisecond
    picture.text(20, 20, "Process: rank 0", align="left", bold=True)
    picture.box(left, 34, 40 * ms, 150, "", GREY, strength=0, dashed=True)
    picture.text(20, 100, "track 1:", align="left")
    picture.text(20, 120, "main thread", align="left", size=13)
    picture.box(left, 42, 40 * ms, 30, "step", GREY)
    picture.box(left, 78, 12 * ms, 30, "forward", GREEN)
    picture.box(left + 12 * ms, 78, 24 * ms, 30, "backward", ORANGE)
    picture.box(left + 36 * ms, 78, 4 * ms, 30, "update", PURPLE, size=12)
    picture.box(left, 114, 12 * ms, 30, "aten::linear", GREEN)
    picture.box(left + 12 * ms, 114, 15 * ms, 30, "AddmmBackward0", ORANGE)
    picture.box(left + ms, 150, 9 * ms, 28, "aten::addmm", GREEN)
    picture.box(left + 13 * ms, 150, 6 * ms, 28, "aten::mm", ORANGE, size=13)
    picture.box(left + 20 * ms, 150, 6 * ms, 28, "aten::mm", ORANGE, size=13)
    picture.box(left, 196, 40 * ms, 44, "", GREY, strength=0, dashed=True)
    picture.text(20, 210, "track 2:", align="left")
    picture.text(20, 230, "thread of Gloo", align="left", size=13)
    picture.box(left + 21 * ms, 203, 15 * ms, 30, "gloo:all_reduce", YELLOW)
    picture.arrow((left, 262), (left + 41.5 * ms, 262))
    for milliseconds in (0, 10, 20, 30, 40):
        x = left + milliseconds * ms
        picture.line([(x, 257), (x, 267)])
        picture.text(x, 278, f"{milliseconds} ms", size=12)
    picture.text(
        20, 308, "backward: start 12 ms, duration (total time) 24 ms. The spans inside take 15 ms, so",
        align="left", size=13,
    )  # fmt: skip
    picture.text(
        20, 326, "its self time is 9 ms (here it waits). A span inside another one is drawn below it.",
        align="left", size=13,
    )  # fmt: skip
    picture.save("anatomy_of_a_trace")


def step_with_overlap() -> None:
    """A step whose two all-reduces run after the backward pass, and one in which they overlap with it."""
    picture = Picture(740, 300)
    left, ms = 130, 8.4
    for top, starts, title, update in (
        (44, (40, 50), "Without overlap: all 20 ms of the communication are exposed", 60),
        (174, (25, 40), "With overlap: 10 of 20 ms are exposed", 50),
    ):
        picture.text(20, top - 22, title, align="left", bold=True)
        picture.text(20, top + 16, "computation", align="left")
        picture.text(20, top + 64, "communication", align="left", size=13)
        picture.box(left, top, 15 * ms, 34, "forward", GREEN)
        picture.box(left + 15 * ms, top, 25 * ms, 34, "backward", ORANGE)
        picture.box(left + update * ms, top, 6 * ms, 34, "update", PURPLE, size=12)
        for start in starts:
            hidden = start < 40
            picture.box(
                left + start * ms, top + 48, 10 * ms, 34, "hidden" if hidden else "exposed",
                YELLOW, hatch=None if hidden else "//", strength=0.25, size=13,
            )  # fmt: skip
    picture.arrow((left, 276), (left + 68 * ms, 276))
    for milliseconds in (0, 10, 20, 30, 40, 50, 60):
        x = left + milliseconds * ms
        picture.line([(x, 271), (x, 281)])
        picture.text(x, 291, f"{milliseconds} ms", size=12)
    picture.save("step_with_overlap")


def straggler_on_two_ranks() -> None:
    """Rank 1 computes longer; the all-reduce of rank 0 begins early and is long."""
    picture = Picture(740, 280)
    left, ms = 130, 8.6
    for rank, top, compute in ((0, 30, 20), (1, 150, 50)):
        picture.text(20, top + 17, f"rank {rank}", align="left", bold=True)
        picture.text(20, top + 60, "communication", align="left", size=13)
        picture.box(left, top, compute * ms, 34, f"computes for {compute} ms", BLUE)
        if compute < 50:
            picture.box(
                left + compute * ms, top + 44, 30 * ms, 34, "all-reduce: waits for rank 1", YELLOW,
                strength=0.1, dashed=True, size=13,
            )  # fmt: skip
        picture.box(left + 50 * ms, top + 44, 8 * ms, 34, "sends", YELLOW, size=13, hatch="//")
    picture.line([(left + 50 * ms, 24), (left + 50 * ms, 234)], dashed=True)
    picture.arrow((left, 252), (left + 66 * ms, 252))
    for milliseconds in (0, 10, 20, 30, 40, 50, 60):
        x = left + milliseconds * ms
        picture.line([(x, 247), (x, 257)])
        picture.text(x, 268, f"{milliseconds} ms", size=12)
    picture.save("straggler_on_two_ranks")


def draw() -> None:
    """Draw all pictures of the lab."""
    anatomy_of_a_trace()
    step_with_overlap()
    straggler_on_two_ranks()


if __name__ == "__main__":
    draw()
