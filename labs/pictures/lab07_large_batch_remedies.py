"""Draw the pictures of lab 7, remedies for large batches."""

import numpy as np
from drawing import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, YELLOW, Picture


def warmup_schedules() -> None:
    """Four learning-rate schedules: no warmup, constant warmup, gradual warmup, gradual warmup with decay."""
    picture = Picture(740, 400)
    small, large, warm, total = 0.1, 0.4, 3, 11
    step = np.arange(total)
    gradual = np.where(step < warm, small + (large - small) * (step + 1) / warm, large)
    decay = np.where(step < warm, gradual, large * (1 - (step - warm) / (total - warm)))
    rates = {
        "no warmup": np.full(total, large),
        "constant warmup": np.where(step < warm, small, large),
        "gradual warmup": gradual,
        "gradual warmup, then linear decay": decay,
    }
    for number, (name, values) in enumerate(rates.items()):
        left, top = 70 + 365 * (number % 2), 40 + 190 * (number // 2)
        axes = picture.plot(left, top, 290, 105)
        picture.axes.set_zorder(2)  # words in front of the curves
        axes.axvspan(-0.5, warm - 0.5, color="#eeeeee")
        axes.axhline(small, color=GREY, linestyle=":")
        axes.step(step, values, where="mid", color=BLACK, linewidth=2)
        axes.plot(step, values, "o", color=BLACK, markersize=5)
        axes.set(
            xlim=(-0.5, 10.5), ylim=(0, 0.47), xticks=[0, 2, 4, 6, 8, 10], yticks=[0, 0.1, 0.4]
        )
        axes.set_xlabel("step")
        picture.text(left + 145, top - 16, name, bold=True)
        if number:
            picture.text(left + 39, top + (40 if number == 1 else 92), "warmup", size=12)
    picture.text(18, 195, "learning rate", size=13, rotation=90)
    picture.save("warmup_schedules")


def linear_scaling() -> None:
    """Two steps with a small batch cover the same distance as one step with twice the batch and rate."""
    picture = Picture(740, 250)
    unit = 90
    picture.text(20, 26, "2 steps, batch 32, learning rate 0.1", align="left", bold=True)
    picture.arrow((60, 66), (60 + 2 * unit, 66), "0.1 x gradient 2 = 0.2", colour=ORANGE, above=14)
    picture.arrow(
        (60 + 2 * unit, 66), (60 + 6 * unit, 66), "0.1 x gradient 4 = 0.4", colour=ORANGE, above=14
    )
    picture.text(20, 112, "1 step, batch 64, learning rate 0.1", align="left", bold=True)
    picture.arrow((60, 146), (60 + 3 * unit, 146), "0.1 x mean 3 = 0.3", colour=ORANGE, above=14)
    picture.text(60 + 3 * unit + 14, 146, "only half of the distance", size=13, align="left")
    picture.text(20, 188, "1 step, batch 64, learning rate 0.2", align="left", bold=True)
    picture.arrow((60, 224), (60 + 6 * unit, 224), "0.2 x mean 3 = 0.6", colour=ORANGE, above=14)
    picture.line([(60 + 6 * unit, 44), (60 + 6 * unit, 240)], colour=GREY, dashed=True)
    picture.text(60 + 6 * unit + 10, 146, "distance\n0.6", size=13, align="left")
    picture.save("linear_scaling")


def _column(picture: Picture, x: float, y: float, words: list[str], colour: str = BLUE) -> None:
    picture.cells(x, y, words, colour, width=64, height=30, vertical=True)


def batch_norm_across_ranks() -> None:
    """Local statistics make the two ranks look alike; synchronised statistics keep them apart."""
    picture = Picture(740, 420)
    picture.text(82, 22, "inputs x", bold=True)
    picture.text(320, 22, "statistics", bold=True)
    picture.text(548, 22, "outputs y", bold=True)
    for rank, values, top in ((0, ["1", "3"], 50), (1, ["5", "7"], 130)):
        picture.text(20, top + 30, f"rank {rank}", align="left", size=13)
        _column(picture, 80, top, values)
        mean = 2 + 4 * rank
        picture.box(200, top + 8, 240, 44, f"mean {mean}, variance 1", SKY)
        picture.arrow((148, top + 30), (196, top + 30))
        picture.arrow((444, top + 30), (510, top + 30))
        _column(picture, 516, top, ["-1", "+1"])
    picture.text(600, 120, "equal outputs\nfor different\ninputs", size=13, align="left")
    picture.text(320, 206, "local batch norm: no communication", size=13)
    picture.line([(20, 222), (720, 222)], colour=GREY, dashed=True)
    for rank, values, top in ((0, ["1", "3"], 244), (1, ["5", "7"], 324)):
        picture.text(20, top + 30, f"rank {rank}", align="left", size=13)
        _column(picture, 80, top, values)
        picture.arrow((148, top + 30), (196, top + 30))
        picture.arrow((444, top + 30), (510, top + 30))
    picture.box(
        200,
        252,
        240,
        124,
        "all-reduce of sums:\nmean 4, variance 5",
        YELLOW,
        strength=0.2,
    )
    _column(picture, 516, 244, ["-1.34", "-0.45"])
    _column(picture, 516, 324, ["+0.45", "+1.34"])
    picture.text(596, 314, "as one process\nwith batch 4", size=13, align="left")
    picture.text(320, 400, "synchronised batch norm: one more message per layer and pass", size=13)
    picture.save("batch_norm_across_ranks")


def ghost_batch_norm() -> None:
    """One batch of 8 with one pair of statistics, and the same batch cut into ghosts of 2."""
    picture = Picture(740, 260)
    values = ["1", "3", "5", "7", "2", "2", "0", "4"]
    picture.text(
        20, 24, "Batch norm: one mean and variance for all 8 examples", align="left", bold=True
    )
    picture.cells(60, 44, values, BLUE, width=74, height=34)
    picture.box(60, 84, 592, 28, "mean 3, variance 4.5", SKY, size=13)
    picture.text(
        20, 146, "Ghost batch norm, ghost size 2: four means and variances", align="left", bold=True
    )
    statistics = ["mean 2, var 1", "mean 6, var 1", "mean 2, var 0", "mean 2, var 4"]
    for ghost, words in enumerate(statistics):
        left = 60 + 152 * ghost
        picture.cells(left, 166, values[2 * ghost : 2 * ghost + 2], BLUE, width=68, height=34)
        picture.box(left, 206, 136, 28, words, SKY, size=13)
    picture.save("ghost_batch_norm")


def trust_ratio() -> None:
    """Step length of three layers with SGD, where it follows the gradient, and with LARS or LAMB."""
    picture = Picture(740, 330)
    picture.text(150, 24, "norms", bold=True)
    picture.text(360, 24, "SGD: 0.1 x ||g||", bold=True)
    picture.text(605, 24, "LARS, LAMB: 0.01 x ||w||", bold=True)
    layers = [("layer 1", 20, 1, "0.5 %"), ("layer 2", 10, 4, "4 %"), ("layer 3", 4, 8, "20 %")]
    for number, (name, weights, gradient, change) in enumerate(layers):
        y = 52 + 92 * number
        picture.text(14, y + 30, name, align="left", size=13)
        picture.box(80, y, 6 * weights, 26, "", GREEN, rounded=1)
        picture.text(86 + 6 * weights, y + 13, f"||w|| = {weights}", align="left", size=13)
        picture.box(80, y + 32, 6 * gradient, 26, "", ORANGE, hatch="//", rounded=1)
        picture.text(86 + 6 * gradient, y + 45, f"||g|| = {gradient}", align="left", size=13)
        picture.text(360, y + 18, f"length {gradient / 10:g}", size=13)
        picture.text(360, y + 42, f"changes w by {change}", size=13)
        picture.text(605, y + 18, f"length {weights / 100:g}", size=13)
        picture.text(605, y + 42, "changes w by 1 %", size=13)
        picture.line([(20, y + 76), (720, y + 76)], colour=GREY, dashed=True)
    picture.save("trust_ratio")


def draw() -> None:
    """Draw all pictures of the lab."""
    warmup_schedules()
    linear_scaling()
    batch_norm_across_ranks()
    ghost_batch_norm()
    trust_ratio()


if __name__ == "__main__":
    draw()
