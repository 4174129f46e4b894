"""Draw the pictures of lab 6, scaling the batch."""

import numpy as np
from drawing import BLACK, BLUE, GREEN, GREY, ORANGE, Picture, tint

S_MIN, B_CRIT = 100, 200  # the worked example of the lab


def scaling_regimes() -> None:
    """Steps to a goal against the batch size, with the three regimes of Shallue et al."""
    picture = Picture(740, 380)
    axes = picture.plot(80, 40, 620, 270)
    picture.axes.set_zorder(2)  # words in front of the curve
    batch = np.geomspace(8, 8000, 200)
    axes.axvspan(8, 60, color=tint(GREY, 0.12))
    axes.axvspan(700, 8000, color=tint(GREY, 0.3))
    axes.loglog(batch, S_MIN * (1 + B_CRIT / batch), color=BLACK, linewidth=2.2)
    axes.loglog(batch[batch < 900], S_MIN * B_CRIT / batch[batch < 900], ":", color=BLACK)
    axes.axhline(S_MIN, color=BLACK, linestyle="-.", linewidth=1)
    axes.plot([B_CRIT], [2 * S_MIN], "o", color=BLACK, markersize=8)
    axes.set(
        xlim=(8, 8000), ylim=(40, 3500), xlabel="batch size B (images)", ylabel="steps to the goal"
    )
    axes.set_xticks([10, 50, 200, 1000, 5000], ["10", "50", "200", "1000", "5000"])
    axes.set_yticks([50, 100, 200, 500, 1000, 2000], ["50", "100", "200", "500", "1000", "2000"])
    axes.minorticks_off()
    picture.text(172, 22, "perfect scaling", bold=True)
    picture.text(374, 22, "diminishing returns", bold=True)
    picture.text(610, 22, "maximal parallelism", bold=True)
    picture.text(108, 282, "twice the batch,\nhalf the steps", size=13, align="left")
    picture.text(520, 130, "twice the batch,\n(almost) the same steps", size=13, align="left")
    picture.text(380, 165, "$B_{crit}$: twice the\nminimum of steps", size=13, align="left")
    picture.arrow((388, 185), (372, 213))
    picture.text(690, 246, "$S_{min}$", size=14, align="right")
    picture.save("scaling_regimes")


def gradient_noise() -> None:
    """Gradients of single batches scatter around the true gradient, less with a larger batch."""
    picture = Picture(740, 330)
    offsets = np.array(
        [(-0.9, 0.3), (-0.4, -0.8), (0.2, 0.9), (0.8, -0.4), (0.5, 0.5), (-0.5, 0.9), (0.1, -0.9)]
    )
    for left, batch, spread, name in (
        (20, 4, 64, "batch of 4 images"),
        (390, 64, 16, "batch of 64 images"),
    ):
        picture.box(left, 44, 330, 236, "", GREY, strength=0.05)
        picture.text(left + 165, 24, name, bold=True)
        start, mean = np.array([left + 50, 235]), np.array([180, -80])
        for offset in spread * offsets:
            picture.arrow(tuple(start), tuple(start + mean + offset), colour=ORANGE)
        picture.arrow(tuple(start), tuple(start + mean), colour=BLACK)
        circle = np.linspace(0, 2 * np.pi, 60)
        ring = start + mean + 1.1 * spread * np.stack([np.cos(circle), np.sin(circle)], 1)
        picture.line([tuple(point) for point in ring], colour=GREY, dashed=True)
        noise = f"noise: tr$\\Sigma$ / {batch}"
        picture.text(left + 165, 302, f"black: true gradient G.   {noise}", size=13)
    picture.text(40, 268, "weights", size=13, align="left")
    picture.text(410, 268, "weights", size=13, align="left")
    picture.save("gradient_noise")


def steps_and_images() -> None:
    """The law as a trade: steps to the goal against images read, with one point per batch size."""
    picture = Picture(740, 370)
    axes = picture.plot(95, 30, 600, 270)
    picture.axes.set_zorder(2)  # words in front of the curve
    batch = np.geomspace(12, 3000, 200)
    steps = S_MIN * (1 + B_CRIT / batch)
    axes.loglog(steps, steps * batch, color=BLACK, linewidth=2)
    marked = np.array([25, 50, 100, 200, 400, 800, 1600])
    steps = S_MIN * (1 + B_CRIT / marked)
    axes.plot(steps, steps * marked, "o", color=BLUE, markersize=8, markeredgecolor=BLACK)
    for size, x, y in zip(marked, steps, steps * marked, strict=True):
        axes.annotate(f"B = {size}", (x, y), xytext=(9, 5), textcoords="offset points", fontsize=10)
    axes.axvline(S_MIN, color=GREY, linestyle="--")
    axes.axhline(S_MIN * B_CRIT, color=GREY, linestyle="--")
    axes.set(xlim=(85, 1500), ylim=(16_000, 300_000))
    axes.set(xlabel="steps to the goal (time on many ranks)", ylabel="images read (cost)")
    axes.set_xticks([100, 200, 400, 800], ["100", "200", "400", "800"])
    axes.set_yticks([20_000, 50_000, 100_000, 200_000], ["20,000", "50,000", "100,000", "200,000"])
    axes.minorticks_off()
    picture.text(300, 42, "no run has fewer steps than $S_{min}$ = 100", size=13, align="left")
    picture.arrow((296, 42), (140, 42), colour=GREY)
    picture.text(
        400,
        205,
        "no run reads fewer images than\n$S_{min} B_{crit}$ = 20,000",
        size=13,
        align="left",
    )
    picture.arrow((566, 226), (566, 276), colour=GREY)
    picture.save("steps_and_images")


def flat_and_sharp_minima() -> None:
    """The same shift between training and test loss costs little in a flat minimum, much in a sharp one."""
    picture = Picture(740, 330)
    axes = picture.plot(50, 40, 660, 230)
    picture.axes.set_zorder(2)  # words in front of the curve
    w = np.linspace(-6, 6, 800)

    def loss(w):
        flat = 0.07 * (w + 3) ** 2 + 0.3
        sharp = 3.2 * (w - 2.6) ** 2 + 0.3
        return -np.log(np.exp(-2.2 * flat) + np.exp(-2.2 * sharp)) / 2.2

    shift = 0.6
    axes.plot(w, loss(w), color=BLACK, linewidth=2)
    axes.plot(w, loss(w - shift), color=BLACK, linewidth=1.6, linestyle="--")
    for place in (-3, 2.6):
        low, high = float(loss(place)), float(loss(place - shift))
        axes.plot([place], [low], "o", color=GREEN, markersize=8, markeredgecolor=BLACK)
        axes.plot([place, place], [low, high], color=ORANGE, linewidth=3)
        axes.plot([place], [high], "s", color=ORANGE, markersize=7, markeredgecolor=BLACK)
    axes.set(xlim=(-6, 6), ylim=(0, 2.2), xticks=[], yticks=[])
    axes.set(xlabel="weights", ylabel="loss")
    picture.text(215, 20, "flat minimum", bold=True)
    picture.text(523, 20, "sharp minimum", bold=True)
    picture.text(215, 160, "small difference between\ntraining and test loss", size=13)
    picture.text(640, 245, "large difference", size=13)
    picture.text(380, 316, "solid: training loss.   dashed: test loss, shifted a little", size=13)
    picture.save("flat_and_sharp_minima")


def draw() -> None:
    """Draw all pictures of the lab."""
    scaling_regimes()
    gradient_noise()
    steps_and_images()
    flat_and_sharp_minima()


if __name__ == "__main__":
    draw()
