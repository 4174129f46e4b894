"""Draw the pictures of lab 2, gradient descent."""

import numpy as np
from drawing import BLACK, BLUE, GREEN, GREY, ORANGE, Picture

CURVATURE = 2.0  # of the parabola; its limit for the learning rate is 1
STRETCH = 16.0  # condition number of the long valley


def gradient_descent_loop() -> None:
    """The four parts of a step, in a circle."""
    picture = Picture(720, 300)
    picture.box(24, 40, 170, 66, "examples\nx and y", BLUE)
    picture.box(276, 40, 170, 66, "1  predict\n$\\hat{y} = w x + b$", BLUE)
    picture.box(528, 40, 170, 66, "2  loss\nmean of $(\\hat{y} - y)^2$", GREY)
    picture.box(528, 190, 170, 66, "3  gradient\n$\\nabla L$", ORANGE)
    picture.box(
        276, 190, 170, 66, "4  update\n$\\theta \\leftarrow \\theta - \\eta \\nabla L$", GREEN
    )
    picture.arrow((194, 73), (276, 73))
    picture.arrow((446, 73), (528, 73))
    picture.arrow((613, 106), (613, 190))
    picture.arrow((528, 223), (446, 223))
    picture.arrow((361, 190), (361, 106))
    picture.text(350, 148, "new parameters $\\theta = (w, b)$", size=13, align="right")
    picture.text(150, 223, "$\\eta$ is the\nlearning rate", size=13)
    picture.arrow((202, 223), (276, 223), dashed=True)
    picture.text(487, 148, "repeat", bold=True)
    picture.save("gradient_descent_loop")


def learning_rate_limit() -> None:
    """The points of a descent on one parabola, for three learning rates."""
    picture = Picture(740, 290)
    cases = (
        (0.1, "below the limit: slow", 8, -1.5),
        (0.9, "close to the limit: oscillates", 6, -1.5),
        (1.1, "above the limit: diverges", 4, -0.75),
    )
    curve = np.linspace(-1.75, 1.75, 101)
    for number, (rate, title, steps, start) in enumerate(cases):
        left = 30 + 240 * number
        picture.text(left + 105, 18, f"learning rate {rate:g}", bold=True)
        picture.text(left + 105, 38, title, size=13)
        axes = picture.plot(left, 56, 210, 190)
        axes.plot(curve, curve**2, color=GREY, linewidth=1.2)
        factor = 1 - rate * CURVATURE
        w = start * factor ** np.arange(steps + 1)
        axes.plot(w, w**2, "o", color=BLACK, markersize=3.5)
        for a, b in zip(w[:-1], w[1:], strict=True):
            style = {"arrowstyle": "-|>", "color": ORANGE, "linewidth": 1.2, "mutation_scale": 8}
            axes.annotate(
                "", (b, b**2), (a, a**2), arrowprops={**style, "shrinkA": 1, "shrinkB": 1}
            )
        place = "bottom" if rate < 1 else "top"
        axes.text(w[0], w[0] ** 2, " start", fontsize=9, va=place, ha="left")
        axes.set(
            xlim=(-1.75, 1.75), ylim=(-0.12, 3.0), xticks=[0], xticklabels=["minimum"], yticks=[]
        )
        picture.text(left + 105, 276, f"factor $1 - \\eta\\lambda$ = {factor:g}", size=13)
    picture.text(16, 150, "loss", size=13, rotation=90)
    picture.save("learning_rate_limit")


def condition_number() -> None:
    """The path of a descent in a round bowl and in a long valley."""
    picture = Picture(740, 310)
    for number, stretch in enumerate((1.0, STRETCH)):
        left = 40 + 360 * number
        name = "round bowl" if stretch == 1 else "long valley"
        picture.text(left + 150, 18, f"{name}, condition number {stretch:g}", bold=True)
        axes = picture.plot(left, 40, 300, 210)
        x, y = np.meshgrid(np.linspace(-4.6, 4.6, 200), np.linspace(-3.2, 3.2, 200))
        axes.contour(
            x, y, x**2 + stretch * y**2, np.geomspace(0.3, 60, 7), colors=GREY, linewidths=0.8
        )
        rate = 2 / (1 + stretch)
        points = [np.array([-4.0, 2.0 if stretch == 1 else 1.1])]
        for _ in range(1 if stretch == 1 else 22):
            points.append(points[-1] * (1 - rate * np.array([1.0, stretch])))
        path = np.array(points)
        axes.plot(*path.T, "-o", color=ORANGE, markersize=3, linewidth=1.2)
        axes.plot(*path[0], "s", color=BLACK, markersize=5)
        axes.text(path[0, 0] - 0.2, path[0, 1] + 0.35, "start", fontsize=9, ha="left")
        axes.plot(0, 0, "*", color=BLACK, markersize=11)
        axes.set(xticks=[], yticks=[], xlim=(-4.6, 4.6), ylim=(-3.2, 3.2))
        axes.spines[["left", "bottom"]].set_visible(False)
        left_over = (
            "0 % of the distance is left" if stretch == 1 else "88 % of the distance is left"
        )
        picture.text(left + 150, 268, f"after each step {left_over}", size=13)
        words = "the first step reaches the minimum" if stretch == 1 else "22 steps leave 6 %"
        picture.text(left + 150, 290, words, size=13)
    picture.save("condition_number")


def draw() -> None:
    """Draw all pictures of the lab."""
    gradient_descent_loop()
    learning_rate_limit()
    condition_number()


if __name__ == "__main__":
    draw()
