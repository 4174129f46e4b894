"""Draw the pictures of lab 14, splitting networks."""

from drawing import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW, Picture

from hvdlab.scaling.pipeline import held, simulate

STAGES, MICRO_BATCHES = 4, 8  # a backward pass takes twice as long as a forward pass


def pipeline_stages() -> None:
    """Three stages: activations go to the next rank, gradients of the activations come back."""
    picture = Picture(750, 250)
    for rank in range(3):
        x = 120 + 210 * rank
        picture.text(x + 65, 20, f"rank {rank}, stage {rank}", bold=True)
        picture.box(x, 38, 130, 130, "", GREEN, strength=0.12)
        for layer in range(2):
            picture.box(x + 12, 50 + 56 * layer, 106, 46, f"block {2 * rank + layer + 1}", GREEN)
        if rank < 2:
            picture.arrow((x + 130, 74), (x + 210, 74), "activations", colour=BLUE, size=12)
            picture.arrow((x + 210, 134), (x + 130, 134), "gradients", colour=ORANGE, size=12)
    picture.box(16, 54, 74, 40, "images", BLUE)
    picture.arrow((90, 74), (120, 74), colour=BLUE)
    picture.box(690, 84, 54, 40, "loss", GREY)
    picture.arrow((670, 74), (690, 92), colour=BLUE)
    picture.arrow((690, 116), (670, 134), colour=ORANGE)
    for line, words in enumerate(
        (
            "Forward pass: send activations to the next rank, or receive them from the one before.",
            "Backward pass: send the gradient of the stage's input to the rank before.",
            "Each message has the shape (examples in the micro-batch, width).",
        )
    ):
        picture.text(20, 192 + 22 * line, words, align="left", size=13)
    picture.save("pipeline_stages")


def pipeline_schedules() -> None:
    """GPipe and 1F1B on four stages with eight micro-batches: same bubble, other order."""
    picture = Picture(750, 390)
    unit, left, high = 20, 76, 30
    for top, schedule in ((20, "GPipe"), (196, "1F1B")):
        words = (
            "all forward passes, then all backward passes"
            if top == 20
            else "backward passes start early"
        )
        picture.text(20, top, f"{schedule}: {words}", align="left", bold=True)
        for stage in range(STAGES):
            picture.text(20, top + 32 + stage * high, f"stage {stage}", align="left", size=13)
        for each in simulate(schedule, STAGES, MICRO_BATCHES):
            colour = BLUE if each.kind == "forward" else ORANGE
            picture.box(
                left + each.start * unit, top + 18 + each.stage * high,
                (each.end - each.start) * unit, high - 4, str(each.micro_batch + 1), colour,
                size=12, strength=0.2 if each.kind == "forward" else 0.5, rounded=0.01,
            )  # fmt: skip
        picture.line([(left, top + 144), (left + 33 * unit, top + 144)], colour=GREY)
    picture.text(
        20,
        364,
        "Narrow box: forward pass of that micro-batch. Wide box: its backward pass. Empty: the bubble.",
        align="left",
        size=13,
    )
    picture.save("pipeline_schedules")


def activations_held() -> None:
    """How many micro-batches' activations stage 0 holds over time, with GPipe and with 1F1B."""
    picture = Picture(740, 300)
    axes = picture.plot(70, 24, 640, 210)
    for schedule, style, colour in (("GPipe", "-", BLUE), ("1F1B", "--", ORANGE)):
        passes = simulate(schedule, STAGES, MICRO_BATCHES)
        times, numbers = zip(*held(passes, stage=0), strict=True)
        axes.step(times, numbers, style, where="post", color=colour, linewidth=2, label=schedule)
    axes.text(8.4, 7.3, "GPipe: all 8 micro-batches", fontsize=9.75)
    axes.text(14.5, 4.25, "1F1B: at most p - s = 4", fontsize=9.75)
    axes.set(xlabel="time, in forward passes", ylabel="micro-batches held on stage 0")
    axes.set(xlim=(0, 34), ylim=(0, 8.6), yticks=range(0, 9, 2))
    picture.save("activations_held")


def device_mesh() -> None:
    """A mesh of 2 x 2 x 2 ranks with the axes pipeline, data and tensor."""
    picture = Picture(750, 330)

    def place(p: int, d: int, t: int) -> tuple[float, float]:
        return 120 + 200 * t + 70 * d, 220 - 140 * p + (-50) * d + 40

    corners = [(p, d, t) for p in (0, 1) for d in (0, 1) for t in (0, 1)]
    for p, d, t in corners:
        x, y = place(p, d, t)
        if not t:
            picture.line([(x + 27, y), (x + 173, y)], colour=YELLOW)
        if not p:
            picture.line([(x, y - 15), (x, y - 125)], colour=GREEN)
        if not d:
            picture.line([(x + 24, y - 17), (x + 46, y - 33)], colour=PURPLE, dashed=True)
    for p, d, t in corners:
        x, y = place(p, d, t)
        picture.box(
            x - 27, y - 15, 54, 30, f"rank {4 * p + 2 * d + t}", GREY, strength=0.15, size=13
        )
    picture.arrow((120, 306), (320, 306), "tensor", above=-14)
    picture.arrow((60, 250), (60, 130), colour=BLACK)
    picture.text(38, 190, "pipeline", rotation=90)
    picture.arrow((360, 270), (406, 237))
    picture.text(394, 262, "data", align="left")
    for line, (name, words) in enumerate(
        (
            ("tensor axis", "ranks 0, 1: both halves of each\nlayer of stage 0, same batch"),
            ("data axis", "ranks 0, 2: the same weights, other\nimages; gradients are averaged"),
            ("pipeline axis", "ranks 0, 4: successive stages;\nactivations up, gradients down"),
        )
    ):
        picture.text(470, 50 + 84 * line, name, align="left", bold=True)
        picture.text(470, 84 + 84 * line, words, align="left", size=13)
    picture.save("device_mesh")


def four_kinds_of_parallelism() -> None:
    """Data, tensor, pipeline and hybrid parallelism: which rank computes which layers for which images."""
    picture = Picture(750, 350)
    for number, (title, what) in enumerate(
        (
            ("data", "each rank: some images"),
            ("intra-layer (tensor)", "each rank: a part of\nevery layer"),
            ("inter-layer (pipeline)", "each rank: some layers"),
            ("hybrid (2 x 2)", "each rank: a part of\nsome layers"),
        )
    ):
        left = 20 + 184 * number
        picture.text(left, 26, title, align="left", bold=True)
        for rank in range(4):
            if number == 0:  # a copy of the whole network for each rank
                for layer in range(4):
                    picture.box(
                        left + 40 * rank, 56 + 46 * layer, 34, 40, str(rank), GREEN, strength=0.08
                    )
                picture.box(left + 40 * rank, 250, 34, 28, "1/4", BLUE, size=13)
                picture.arrow(
                    (left + 40 * rank + 17, 250), (left + 40 * rank + 17, 238), colour=GREY
                )
            elif number == 1:
                for layer in range(4):
                    picture.box(
                        left + 40 * rank,
                        56 + 46 * layer,
                        40,
                        40,
                        str(rank),
                        GREEN,
                        strength=0.08,
                        rounded=0.01,
                    )
            elif number == 2:
                picture.box(left, 56 + 46 * (3 - rank), 160, 40, str(rank), GREEN, strength=0.08)
            else:
                row, column = divmod(rank, 2)
                for layer in (0, 1):
                    picture.box(
                        left + 80 * column,
                        56 + 46 * (3 - 2 * row - layer),
                        80,
                        40,
                        str(rank),
                        GREEN,
                        strength=0.08,
                        rounded=0.01,
                    )
        if number:
            picture.box(left, 250, 160, 28, "all images", BLUE)
            picture.arrow((left + 80, 250), (left + 80, 238), colour=GREY)
        picture.text(left, 310, what, align="left", size=13)
    picture.save("four_kinds_of_parallelism")


def draw() -> None:
    """Draw all pictures of the lab."""
    pipeline_stages()
    pipeline_schedules()
    activations_held()
    device_mesh()
    four_kinds_of_parallelism()


if __name__ == "__main__":
    draw()
