"""Draw the pictures of lab 5, Horovod."""

from drawing import GREY, ORANGE, YELLOW, Picture


def fusion_buffer() -> None:
    """Tensor fusion: small gradients are copied into one buffer, and one all-reduce sends all of them."""
    picture = Picture(720, 250)
    picture.text(20, 24, "Without fusion: four all-reduces", align="left", bold=True)
    for number, name in enumerate(("w1", "b1", "w2", "b2")):
        y = 48 + 46 * number
        width = 90 if name[0] == "w" else 40
        picture.box(20, y, width, 32, name, ORANGE)
        picture.arrow((20 + width + 6, y + 16), (190, y + 16))
        picture.box(190, y, 110, 32, "all-reduce", YELLOW)
    picture.text(390, 24, "With fusion: one all-reduce", align="left", bold=True)
    for number, name in enumerate(("w1", "b1", "w2", "b2")):
        y = 48 + 46 * number
        width = 90 if name[0] == "w" else 40
        picture.box(390, y, width, 32, name, ORANGE)
        picture.arrow((390 + width + 6, y + 16), (508, 82 + 26 * number), colour=GREY)
    picture.cells(512, 68, ["w1", "b1", "w2", "b2"], ORANGE, width=60, height=28, vertical=True)
    picture.text(542, 196, "fusion buffer", size=13)
    picture.arrow((576, 124), (606, 124))
    picture.box(606, 106, 100, 36, "all-reduce", YELLOW)
    picture.save("fusion_buffer")


def draw() -> None:
    """Draw all pictures of the lab."""
    fusion_buffer()


if __name__ == "__main__":
    draw()
