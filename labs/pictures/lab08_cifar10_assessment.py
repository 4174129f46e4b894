"""Draw the pictures of lab 8, CIFAR-10 and the assessment."""

import math

from drawing import BLUE, GREEN, GREY, ORANGE, YELLOW, Picture


def grading_runs() -> None:
    """The four parts of a grading, and what each of them measures."""
    picture = Picture(750, 330)
    columns = [
        (20, 150, "1. calibration", "one process", "images per second\nof a single process"),
        (185, 240, "2. graded run", "your script, N ranks", "weights and time\nof every epoch"),
        (440, 150, "3. probe", "your script, twice, short", "do N ranks train like\na single process?"),
        (605, 130, "4. accuracies", "grader alone", "recomputed from\nthe weights"),
    ]  # fmt: skip
    for x, width, title, who, what in columns:
        picture.text(x + width / 2, 22, title, bold=True)
        picture.text(x + width / 2, 44, who, size=12)
        picture.text(x + width / 2, 214, what, size=13)
    picture.box(30, 80, 130, 34, "rank 0", GREEN)
    picture.box(455, 80, 56, 34, "rank 0", GREEN, size=12)
    picture.box(455, 126, 56, 34, "rank 1", GREEN, size=12)
    picture.box(520, 80, 56, 34, "rank 0", GREEN, size=12)
    picture.box(520, 126, 56, 34, "rank 1", GREEN, size=12)
    picture.text(483, 176, "own\nlabels", size=12)
    picture.text(548, 176, "all ranks'\nbatches", size=12)
    for rank in range(2):
        picture.box(195, 80 + 46 * rank, 28, 34, "", GREY, hatch="//")
        for epoch in range(3):
            picture.box(226 + 64 * epoch, 80 + 46 * rank, 60, 34, f"epoch {epoch}", GREEN, size=12)
    for epoch in range(3):
        picture.arrow((286 + 64 * epoch, 162), (286 + 64 * epoch, 190), colour=GREY)
    picture.text(209, 176, "start-up", size=12)
    picture.box(620, 80, 100, 34, "train", GREY)
    picture.box(620, 126, 100, 34, "held out", GREY)
    picture.arrow((230, 297), (250, 297))
    picture.arrow((95, 240), (95, 276))
    picture.box(30, 278, 200, 38, "budget: 2.6 epochs of one", YELLOW, size=13)
    picture.arrow((305, 240), (305, 276))
    picture.arrow((515, 240), (515, 276))
    picture.arrow((670, 240), (670, 276))
    picture.box(250, 278, 470, 38, "checks and points: verdict pass or fail", BLUE, bold=True)
    picture.save("grading_runs")


def learning_rate_budget() -> None:
    """The learning rate of the assessment script over three epochs, above the time that they may take."""
    picture = Picture(740, 400)
    axes = picture.plot(90, 30, 600, 165)
    epochs = [step / 200 for step in range(1, 601)]
    rates = []
    for epoch in epochs:
        falling = min(max(epoch - 0.45, 0) / 1.9, 1)
        rates.append(min(epoch / 0.45, max((1 + math.cos(math.pi * falling)) / 2, 0.02)))
    axes.plot(epochs, rates, color=ORANGE, linewidth=1.6)
    axes.set_xlim(0, 3)
    axes.set_ylim(0, 1.1)
    axes.set_xticks([0, 0.45, 1, 2, 2.35, 3])
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel("learning rate / largest")
    axes.set_xlabel("epochs")
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(13 * 0.75)
    picture.text(150, 20, "warmup", size=13)
    for x, y, words in ((1.5, 0.75, "cosine decay"), (2.68, 0.12, "2 % of the largest")):
        axes.text(x, y, words, ha="center", fontsize=13 * 0.75)

    left, epoch = 200, 170  # pixels: start of the bars, and one epoch of one process
    picture.text(20, 268, "time of one process", align="left", size=13)
    for number in range(3):
        picture.box(left + epoch * number, 252, epoch, 30, "", GREEN)
        picture.text(left + epoch * (number + 0.3), 267, f"epoch {number}", size=13)
    picture.text(20, 312, "two ranks, E = 0.8", align="left", size=13)
    for number in range(3):
        width = epoch / 1.6
        picture.box(left + width * number, 296, width, 30, f"epoch {number}", GREEN, size=13)
    budget = left + 2.6 * epoch
    picture.line([(budget, 240), (budget, 346)], dashed=True)
    picture.text(budget + 60, 362, "budget: 2.6 epochs of one process", align="right", size=13)
    picture.text(left + 3 * epoch / 1.6 + 12, 312, "done in 1.9", align="left", size=13)
    picture.text(20, 388, "The start-up is added to the budget.", align="left", size=12)
    picture.save("learning_rate_budget")


def amdahl_bound() -> None:
    """The time of the worked example on 1, 2, 4, 8 and very many ranks, by parts."""
    picture = Picture(740, 290)
    left, second = 130, 17
    rows = [("1 rank", 1), ("2 ranks", 2), ("4 ranks", 4), ("8 ranks", 8), ("very many", None)]
    for number, (name, ranks) in enumerate(rows):
        y = 40 + 42 * number
        divided = 26 / ranks if ranks else 0
        exchange = 0 if ranks == 1 else 3
        picture.text(20, y + 15, name, align="left")
        picture.box(left, y, 6 * second, 30, "start-up 6", GREY, size=12, hatch=None)
        x = left + 6 * second
        if divided:
            words = f"divided work {divided:g}" if divided > 6 else f"{divided:g}"
            picture.box(x, y, divided * second, 30, words, GREEN, size=12)
        x += divided * second
        if exchange:
            picture.box(x, y, exchange * second, 30, "exch. 3", YELLOW, size=12)
        x += exchange * second
        total = 6 + divided + exchange
        gain = "" if ranks == 1 else f", {32 / total:.1f} times as fast"
        picture.text(x + 10, y + 15, f"{total:.3g} s{gain}", align="left", size=13)
    picture.text(20, 18, "Seconds of a run, by parts", align="left", bold=True)
    picture.text(20, 266, "divided work = reading + compute + evaluation", align="left", size=13)
    picture.save("amdahl_bound")


def draw() -> None:
    """Draw all pictures of the lab."""
    grading_runs()
    learning_rate_budget()
    amdahl_bound()


if __name__ == "__main__":
    draw()
