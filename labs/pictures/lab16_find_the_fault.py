"""Draw the pictures of lab 16, Find the fault."""

from drawing import BLUE, GREY, ORANGE, YELLOW, Picture


def symptom_decision_tree() -> None:
    """From the symptom to what to look at first."""
    picture = Picture(750, 380)
    picture.box(295, 12, 160, 40, "Does the run end?", GREY, bold=True)
    picture.arrow((295, 40), (150, 78))
    picture.text(200, 48, "no")
    picture.arrow((455, 40), (560, 78))
    picture.text(525, 48, "yes")
    picture.box(40, 80, 190, 44, "hang", ORANGE, bold=True)
    picture.box(470, 80, 180, 44, "With an error?", GREY, bold=True)
    picture.arrow((500, 126), (360, 158))
    picture.text(410, 132, "yes")
    picture.arrow((600, 126), (610, 158))
    picture.text(630, 142, "no")
    picture.box(270, 160, 170, 44, "error", ORANGE, bold=True)
    picture.box(500, 160, 230, 44, "Is the result right?", GREY, bold=True)
    picture.arrow((560, 206), (500, 238))
    picture.text(512, 216, "no")
    picture.arrow((665, 206), (672, 238))
    picture.text(694, 222, "yes")
    picture.box(400, 240, 180, 44, "wrong result", ORANGE, bold=True)
    picture.box(600, 240, 140, 44, "slow", ORANGE, bold=True)
    for x, y, top, words in (
        (135, 340, 126, "stack of each rank:\nwhich rank is missing?"),
        (310, 340, 206, "first message of the\nrank that failed first"),
        (490, 340, 286, "two ranks step by step:\nfirst difference"),
        (672, 340, 286, "timeline: where\ngoes the time?"),
    ):
        picture.arrow((x, top), (x, 308), dashed=True)
        picture.text(x, y, words, size=13)
    picture.save("symptom_decision_tree")


def two_ranks_one_waits() -> None:
    """Two ranks of which the second leaves the loop, and the first waits for ever."""
    picture = Picture(740, 220)
    for rank, y in enumerate((44, 122)):
        picture.text(62, y + 20, f"rank {rank}", align="right", bold=True)
        for step in range(2):
            x = 76 + 170 * step
            picture.box(x, y, 96, 40, f"step {step + 1}", BLUE)
    for step in range(2):
        x = 176 + 170 * step
        picture.box(x, 44, 62, 118, "all-\nreduce", YELLOW)
    picture.box(416, 44, 96, 40, "step 3", BLUE)
    picture.box(516, 44, 206, 40, "all-reduce: waits for rank 1", YELLOW, size=13, dashed=True)
    picture.box(416, 122, 130, 40, "after the loop", BLUE)
    picture.text(640, 142, "never calls the\nthird all-reduce", size=13)
    picture.arrow((547, 88), (547, 118), dashed=True)
    picture.arrow((76, 196), (722, 196))
    picture.text(680, 210, "time", size=13)
    picture.save("two_ranks_one_waits")


def draw() -> None:
    """Draw all pictures of the lab."""
    symptom_decision_tree()
    two_ranks_one_waits()


if __name__ == "__main__":
    draw()
