"""Draw the pictures of lab 9, One device, used fully."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Picture, tint


def autograd_graph() -> None:
    """The graph of loss = (w x - y)^2 with numbers, forward above and backward below."""
    picture = Picture(740, 210)
    picture.text(20, 20, "forward pass: values", align="left", bold=True)
    picture.box(20, 42, 90, 32, "x = 3", BLUE)
    picture.box(20, 92, 90, 32, "w = 2", GREEN)
    picture.box(190, 66, 110, 34, "w x = 6", BLUE)
    picture.box(400, 66, 120, 34, "w x - y = 1", BLUE)
    picture.box(610, 66, 110, 34, "loss = 1", BLUE, bold=True)
    picture.arrow((110, 58), (188, 78))
    picture.arrow((110, 108), (188, 90))
    picture.arrow((300, 76), (398, 76), "minus y = 5", size=12)
    picture.arrow((520, 76), (608, 76), "square", size=12)
    picture.arrow((608, 92), (522, 92), colour=ORANGE)
    picture.arrow((398, 92), (302, 92), colour=ORANGE)
    picture.arrow((188, 98), (112, 114), colour=ORANGE)
    picture.text(565, 116, "times 2 x 1", size=13, colour=ORANGE)
    picture.text(350, 116, "times 1", size=13, colour=ORANGE)
    picture.text(160, 128, "times x = 3", size=13, colour=ORANGE)
    picture.text(20, 166, "backward pass: derivatives", align="left", bold=True)
    picture.text(
        20, 190, "from right to left: 1, then 2, then 2, then w.grad = 2 x 3 = 6", align="left"
    )
    picture.save("autograd_graph")


def memory_of_a_step() -> None:
    """Memory over the time of one step: what stays, what grows with the batch, what comes and goes."""
    picture = Picture(740, 330)
    axes = picture.plot(70, 20, 480, 240)
    times = [0, 4, 8, 8.6, 10]
    held, adam = [2] * 5, [4] * 5
    gradients = [0, 0, 2, 2, 0]
    activations = [0, 7, 0, 0, 0]
    layers = [
        (held, tint(GREEN, 0.5), None),
        (adam, tint(PURPLE, 0.5), ".."),
        (gradients, tint(ORANGE, 0.5), "//"),
        (activations, tint(BLUE, 0.5), "xx"),
    ]
    below = [0.0] * 5
    for values, colour, hatch in layers:
        above = [low + value for low, value in zip(below, values, strict=True)]
        axes.fill_between(
            times, below, above, facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.6
        )
        below = above
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 15)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel("memory of the device")
    axes.yaxis.label.set_fontsize(13 * 0.75)
    for x, words in ((2, "forward"), (6, "backward"), (9.3, "step")):
        picture.text(70 + 48 * x, 276, words)
    for x in (4, 8):
        axes.axvline(x, color="black", linestyle=":", linewidth=1)
    picture.arrow((70, 300), (550, 300), "", colour=GREY)
    picture.text(310, 316, "time", size=13)
    axes.annotate(
        "the peak",
        (4, 13),
        (6, 14),
        fontsize=14 * 0.75,
        va="center",
        arrowprops={"arrowstyle": "-|>", "color": "black"},
    )
    legend = [
        ("activations", BLUE, "xx", "grow with the batch"),
        ("gradients", ORANGE, "//", "4 bytes / parameter"),
        ("Adam's averages", PURPLE, "..", "8 bytes / parameter"),
        ("parameters", GREEN, None, "4 bytes / parameter"),
    ]
    for number, (name, colour, hatch, size) in enumerate(legend):
        y = 66 + 50 * number
        picture.box(570, y, 26, 26, "", colour, hatch=hatch, strength=0.5)
        picture.text(604, y + 6, name, align="left", size=13)
        picture.text(604, y + 24, size, align="left", size=12)
    picture.save("memory_of_a_step")


def number_formats() -> None:
    """The bits of seven formats: sign, exponent (range), fraction (precision)."""
    picture = Picture(750, 370)
    formats = [
        ("FP64", 11, 52, "8 bytes"),
        ("FP32", 8, 23, "4 bytes, largest 3e38"),
        ("TF32", 8, 10, "4 bytes in memory, largest 3e38"),
        ("BF16", 8, 7, "2 bytes, largest 3e38"),
        ("FP16", 5, 10, "2 bytes, largest 65,504"),
        ("FP8 E5M2", 5, 2, "1 byte, largest 57,344"),
        ("FP8 E4M3", 4, 3, "1 byte, largest 448"),
    ]
    left, bit = 104, 8.4
    for number, (name, exponent, fraction, says) in enumerate(formats):
        y = 20 + 40 * number
        picture.text(20, y + 15, name, align="left", bold=True, size=13)
        picture.box(left, y, bit, 30, "", GREY, strength=0.9, rounded=0.01)
        picture.box(left + bit, y, exponent * bit, 30, "", SKY, hatch="//", rounded=0.01)
        middle = left + bit + exponent * bit / 2
        picture.box(middle - 10, y + 6, 20, 18, f"{exponent}", GREY, size=13, strength=0, rounded=2)
        start = left + bit + exponent * bit
        picture.box(start, y, fraction * bit, 30, f"{fraction}", BLUE, size=13, rounded=0.01)
        picture.text(start + fraction * bit + 10, y + 15, says, align="left", size=13)
    y = 318
    picture.box(104, y, bit, 24, "", GREY, strength=0.9, rounded=0.01)
    picture.text(118, y + 12, "sign", align="left", size=13)
    picture.box(170, y, 30, 24, "", SKY, hatch="//", rounded=0.01)
    picture.text(208, y + 12, "exponent: range", align="left", size=13)
    picture.box(350, y, 30, 24, "", BLUE, rounded=0.01)
    picture.text(388, y + 12, "fraction: precision", align="left", size=13)
    picture.save("number_formats")


def activation_checkpointing() -> None:
    """Eight blocks: everything kept, and only the inputs of two segments kept."""
    picture = Picture(740, 350)
    width, left = 74, 130

    def row(y: int, kept: set[int], recomputed: set[int] = frozenset()) -> None:
        for block in range(8):
            x = left + width * block
            if block in kept:
                picture.box(x, y, 66, 36, f"block {block}", BLUE, size=12, strength=0.5)
            elif block in recomputed:
                picture.box(x, y, 66, 36, "", BLUE, hatch="//")
                picture.box(x + 8, y + 9, 54, 18, f"block {block}", GREY, size=12, strength=0)
            else:
                picture.box(x, y, 66, 36, f"block {block}", GREY, size=12, strength=0, dashed=True)

    picture.text(20, 20, "Everything kept: the activations of 8 blocks", align="left", bold=True)
    picture.text(20, 56, "after forward", align="left", size=13)
    row(38, set(range(8)))
    picture.text(20, 108, "Two checkpointed segments", align="left", bold=True)
    picture.text(20, 146, "after forward", align="left", size=13)
    row(128, set())
    picture.text(20, 206, "backward of", align="left", size=13)
    picture.text(20, 222, "segment 2", align="left", size=13)
    row(196, set(), {4, 5, 6, 7})
    picture.text(20, 274, "backward of", align="left", size=13)
    picture.text(20, 290, "segment 1", align="left", size=13)
    row(264, set(), {0, 1, 2, 3})
    for y, inputs in ((128, (0, 4)), (196, (0, 4)), (264, (0,))):
        for block in inputs:
            x = left + width * block
            picture.box(x - 7, y - 6, 14, 48, "", BLUE, strength=0.9, rounded=2)
    picture.box(130, 320, 14, 20, "", BLUE, strength=0.9, rounded=2)
    picture.text(150, 331, "kept input of a segment", align="left", size=12)
    picture.box(330, 320, 24, 20, "", BLUE, hatch="//", rounded=2)
    picture.text(360, 331, "computed again", align="left", size=12)
    picture.box(480, 320, 24, 20, "", GREY, strength=0, dashed=True, rounded=2)
    picture.text(510, 331, "not in memory", align="left", size=12)
    picture.save("activation_checkpointing")


def gradient_accumulation() -> None:
    """Four micro-batches, one after the other, add to one gradient before one step."""
    picture = Picture(740, 240)
    picture.text(20, 20, "A batch of 8 images in 4 micro-batches of 2", align="left", bold=True)
    for number in range(4):
        x = 20 + 146 * number
        picture.box(x, 44, 62, 36, "forward", BLUE, size=12)
        picture.box(x + 66, 44, 70, 36, "backward", ORANGE, size=12)
        picture.text(x + 68, 98, f"images {2 * number}, {2 * number + 1}", size=12)
        picture.arrow((x + 101, 108), (x + 101, 138), colour=ORANGE)
        picture.text(x + 88, 124, "+", size=16, bold=True)
    words = "gradient buffer .grad: the sum of 2/8 x gradient of each micro-batch"
    picture.box(20, 140, 574, 36, words, ORANGE, size=13)
    picture.arrow((594, 158), (630, 158))
    picture.box(632, 130, 90, 56, "one step", GREEN, bold=True)
    picture.text(
        20, 208, "The activations of a micro-batch are freed by its backward pass before the next",
        align="left", size=13,
    )  # fmt: skip
    picture.text(20, 226, "forward pass, so one of four is in memory.", align="left", size=13)
    picture.save("gradient_accumulation")


def draw() -> None:
    """Draw all pictures of the lab."""
    autograd_graph()
    memory_of_a_step()
    number_formats()
    activation_checkpointing()
    gradient_accumulation()


if __name__ == "__main__":
    draw()
