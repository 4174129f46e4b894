"""Draw the pictures of lab 3, stochastic gradient descent."""

from pathlib import Path

import numpy as np
import pandas as pd
from drawing import BLACK, BLUE, GREEN, GREY, ORANGE, Picture

RESULTS = Path(__file__).resolve().parents[1] / "results"
POINTS = 9  # height of letters inside a plot, 12 pixels


def batches_of_an_epoch() -> None:
    """Ten examples in a new order for each epoch, cut into batches; each batch makes one step."""
    picture = Picture(740, 270)
    orders = ([7, 2, 9, 0, 5, 3, 8, 1, 6, 4], [3, 8, 0, 6, 1, 9, 4, 7, 2, 5])
    for epoch, order in enumerate(orders):
        y = 44 + 120 * epoch
        picture.text(16, y + 15, f"epoch {epoch + 1}", align="left", bold=True)
        left = 110
        for number, start in enumerate((0, 4, 8)):
            batch = order[start : start + 4]
            picture.cells(left, y, [str(one) for one in batch], BLUE, width=44)
            middle = left + 22 * len(batch)
            picture.arrow((middle, y + 32), (middle, y + 56))
            step = 3 * epoch + number + 1
            picture.box(middle - 40, y + 56, 80, 28, f"step {step}", GREEN, size=13)
            left += 44 * len(batch) + 34
    picture.text(370, 18, "ten examples, batch size 4: three steps per epoch", size=13)
    picture.text(722, 59, "short batch", size=13, align="right")
    picture.save("batches_of_an_epoch")


def network_layers() -> None:
    """A network with three inputs, two hidden layers of four neurons and two outputs."""
    picture = Picture(740, 330)
    columns = ((70, 3, BLUE), (260, 4, BLUE), (450, 4, BLUE), (640, 2, BLUE))
    names = ("inputs", "hidden layer 1", "hidden layer 2", "outputs")
    places = [[(x, 150 + 56 * (i - (n - 1) / 2)) for i in range(n)] for x, n, _ in columns]
    for left, right in zip(places[:-1], places[1:], strict=True):
        for a in left:
            for b in right:
                picture.line([(a[0] + 18, a[1]), (b[0] - 18, b[1])], colour=GREEN)
    for column, name, (x, _, colour) in zip(places, names, columns, strict=True):
        for place in column:
            picture.box(place[0] - 18, place[1] - 18, 36, 36, "", colour, rounded=18, strength=0.35)
        picture.text(x, 22, name, bold=True)
    counts = ("3 x 4 weights + 4 biases\n= 16", "4 x 4 weights + 4 biases\n= 20")
    for x, words in zip((165, 355, 545), (*counts, "4 x 2 weights + 2 biases\n= 10"), strict=True):
        picture.text(x, 278, words, size=12)
    picture.text(370, 316, "46 parameters; each green line is one weight", size=13)
    picture.save("network_layers")


def forward_backward_update() -> None:
    """One training step of a network of three layers."""
    picture = Picture(740, 320)
    xs = (110, 260, 410)
    picture.box(14, 60, 70, 50, "batch", BLUE)
    for number, x in enumerate(xs):
        picture.box(x, 60, 110, 50, f"layer {number + 1}", BLUE)
    picture.box(560, 60, 70, 50, "loss", GREY)
    for a, b in ((84, 110), (220, 260), (370, 410), (520, 560)):
        picture.arrow((a, 85), (b, 85), colour=BLUE)
    picture.text(14, 30, "1  forward pass and  2  loss", align="left", bold=True)
    for number, x in enumerate(xs):
        picture.box(x, 150, 110, 44, f"gradient {number + 1}", ORANGE)
        picture.arrow((x + 75, 110), (x + 75, 150), colour=BLUE, dashed=True)
        picture.arrow((x + 55, 194), (x + 55, 236), colour=ORANGE)
        picture.box(x, 236, 110, 44, f"weights {number + 1}", GREEN)
    picture.arrow((595, 110), (520, 165), colour=ORANGE)
    for a, b in ((410, 370), (260, 220)):
        picture.arrow((a, 172), (b, 172), colour=ORANGE)
    picture.text(598, 172, "3  backward pass", align="left", bold=True)
    picture.text(598, 258, "4  update", align="left", bold=True)
    picture.text(14, 172, "dashed:\nkept outputs", align="left", size=12)
    picture.text(370, 304, "then the next batch, with the new weights", size=13)
    picture.save("forward_backward_update")


def convex_and_nonconvex() -> None:
    """A convex curve with one minimum, and a curve with several minima."""
    picture = Picture(740, 270)
    x = np.linspace(-2, 2, 201)
    left = picture.plot(50, 44, 280, 180)
    left.plot(x, x**2, color=BLACK, linewidth=1.5)
    left.plot(0, 0, "o", color=GREEN, markersize=6)
    left.text(0, 1.1, "the only\nminimum", fontsize=POINTS, ha="center")
    picture.text(190, 22, "convex: curves upwards everywhere", bold=True, size=13)
    right = picture.plot(420, 44, 290, 180)
    curve = 0.28 * x**4 - 0.9 * x**2 + 0.25 * x + 1.35
    right.plot(x, curve, color=BLACK, linewidth=1.5)
    down = np.abs(x) < np.sqrt(1.8 / 3.36)  # where the second derivative is negative
    right.plot(x[down], curve[down], color=ORANGE, linewidth=4)
    right.text(0.12, 1.62, "curves\ndownwards", fontsize=POINTS, ha="center")
    right.text(-1.3, 0.02, "global minimum", fontsize=POINTS, ha="center")
    right.text(1.25, 0.45, "local minimum", fontsize=POINTS, ha="center")
    picture.text(565, 22, "not convex: several minima", bold=True, size=13)
    for axes, limits in ((left, (-0.3, 4.2)), (right, (-0.15, 2.9))):
        axes.set(xticks=[], yticks=[], ylim=limits, xlabel="a direction in the space of weights")
        axes.set_ylabel("loss")
    picture.save("convex_and_nonconvex")


def skip_connection() -> None:
    """A block without and with a skip connection, and slices of the loss of such networks, as measured."""
    measured = pd.read_csv(RESULTS / "skip_connections.csv", comment="#")
    deepest = measured[measured["layers"] == 26]
    picture = Picture(740, 330)
    for skip in (False, True):
        left = 400 if skip else 30
        title = "with a skip connection: $x + f(x)$" if skip else "without: $f(x)$"
        picture.text(left + 145, 20, title, bold=True)
        picture.text(left + 4, 96, "$x$", size=16)
        picture.arrow((left + 16, 96), (left + 50, 96))
        picture.box(left + 50, 76, 70, 40, "layer", BLUE)
        picture.arrow((left + 120, 96), (left + 150, 96))
        picture.box(left + 150, 76, 70, 40, "layer", BLUE)
        if skip:
            picture.arrow((left + 220, 96), (left + 246, 96))
            picture.box(left + 246, 81, 30, 30, "+", GREY, size=16, bold=True, rounded=15)
            picture.line([(left + 30, 96), (left + 30, 58), (left + 261, 58)], colour=BLUE)
            picture.arrow((left + 261, 58), (left + 261, 81), colour=BLUE)
            picture.text(left + 145, 46, "the input itself", size=13)
            picture.arrow((left + 276, 96), (left + 306, 96))
        else:
            picture.arrow((left + 220, 96), (left + 300, 96))
        axes = picture.plot(left + 30, 146, 250, 130)
        for _, one in deepest[deepest["skips"] == skip].groupby(["seed", "direction"]):
            axes.plot(one["alpha"], one["loss_there"], color=BLACK, linewidth=0.8)
        axes.set(xticks=[], yticks=[], ylim=(0, 5))
        picture.text(left + 16, 211, "loss", size=13, rotation=90)
        picture.text(left + 155, 290, "nine directions through the trained weights", size=13)
    picture.text(370, 318, "Loss surfaces of the networks with 26 layers of this lab", size=13)
    picture.save("skip_connection")


def draw() -> None:
    """Draw all pictures of the lab."""
    batches_of_an_epoch()
    network_layers()
    forward_backward_update()
    convex_and_nonconvex()
    skip_connection()


if __name__ == "__main__":
    draw()
