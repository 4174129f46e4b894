"""Draw the pictures of lab 15, Fine-tuning a language model."""

from drawing import BLUE, GREEN, GREY, ORANGE, Picture


def transformer_block() -> None:
    """A block with its two residual connections, between embedding and head."""
    picture = Picture(750, 300)
    picture.text(72, 40, "tokens", bold=True)
    picture.cells(27, 56, ["12", "7", "431"], BLUE, width=30, height=26)
    picture.arrow((72, 84), (72, 112))
    picture.box(22, 114, 100, 40, "embedding", GREEN)
    picture.arrow((122, 134), (162, 134))
    picture.box(164, 48, 420, 206, "", GREY, strength=0.08)
    picture.text(374, 66, "one block, repeated L times", bold=True)
    picture.box(190, 114, 66, 40, "norm", GREEN)
    picture.box(272, 114, 86, 40, "attention", GREEN)
    picture.box(414, 114, 58, 40, "norm", GREEN)
    picture.box(486, 104, 62, 60, "feed-\nforward", GREEN)
    for start, end in (
        ((162, 134), (188, 134)),
        ((256, 134), (270, 134)),
        ((358, 134), (374, 134)),
    ):
        picture.arrow(start, end)
    picture.arrow((394, 134), (413, 134))
    picture.arrow((472, 134), (485, 134))
    picture.arrow((548, 134), (556, 134))
    picture.box(374, 124, 20, 20, "+", BLUE, size=14, rounded=10)
    picture.box(557, 124, 20, 20, "+", BLUE, size=14, rounded=10)
    for left, right in ((176, 384), (401, 567)):
        picture.line([(left, 134), (left, 196), (right, 196)], colour=BLUE)
        picture.arrow((right, 196), (right, 146), colour=BLUE)
    picture.text(280, 212, "residual connection", size=13)
    picture.text(484, 212, "residual connection", size=13)
    picture.text(280, 236, "moves information\nbetween tokens", size=12)
    picture.text(484, 236, "processes each\ntoken by itself", size=12)
    picture.arrow((584, 134), (622, 134))
    picture.box(624, 114, 104, 40, "head (linear)", GREEN)
    picture.arrow((676, 154), (676, 190))
    picture.text(676, 206, "one score per", size=13)
    picture.text(676, 222, "token of the", size=13)
    picture.text(676, 238, "vocabulary", size=13)
    picture.text(375, 282, "green: trained weights, blue: data that flow through", size=13)
    picture.save("transformer_block")


def token_shift() -> None:
    """Inputs, and labels that are the inputs shifted by one."""
    picture = Picture(720, 210)
    words = ["the", "dog", "saw", "a", "cat", "end"]
    picture.text(110, 60, "input", align="right", bold=True)
    picture.text(110, 150, "label", align="right", bold=True)
    picture.cells(124, 42, words, BLUE, width=92, height=36)
    picture.cells(124, 132, [*words[1:], ""], ORANGE, width=92, height=36)
    for number in range(5):
        x = 124 + 92 * number
        picture.arrow((x + 46, 80), (x + 46, 130))
        picture.arrow((x + 130, 80), (x + 62, 130), colour=GREY, dashed=True)
    picture.text(630, 150, "none", colour="#000000", size=13)
    picture.text(
        124, 24, "position 0, 1, 2, ... has seen all tokens up to its own", align="left", size=13
    )
    picture.text(
        124, 190, "solid: what the position must predict; dashed: origin of the label", align="left", size=13
    )  # fmt: skip
    picture.save("token_shift")


def generation_loop() -> None:
    """Tokens so far, model, scores, choice, and back."""
    picture = Picture(740, 220)
    picture.text(110, 34, "tokens so far", bold=True)
    picture.cells(20, 62, ["the", "dog", "saw"], BLUE, width=60, height=40)
    picture.arrow((202, 82), (246, 82))
    picture.box(248, 56, 100, 52, "model", GREEN, bold=True)
    picture.arrow((348, 82), (392, 82))
    picture.text(458, 34, "probabilities", bold=True)
    for row, (word, width) in enumerate((("a", 70), ("the", 40), ("end", 14))):
        picture.text(428, 62 + 26 * row, word, align="right")
        picture.box(436, 53 + 26 * row, width, 18, "", ORANGE, rounded=0.01)
    picture.arrow((528, 82), (572, 82))
    picture.box(574, 56, 146, 52, "choose one:\ngreedy or sampled", GREY, size=13)
    picture.line([(647, 110), (647, 172), (110, 172)])
    picture.arrow((110, 172), (110, 104))
    picture.text(440, 190, "append it, and repeat until the end token or the limit", size=13)
    picture.save("generation_loop")


def padding_and_labels() -> None:
    """Two padded examples: ids, and labels that keep the first end."""
    picture = Picture(740, 300)
    prompt, answer, end, pad = "prompt", "answer", "end", "padding"
    rows = (
        ("ids", ["5", "6", "7", "8", "1"], [prompt, prompt, prompt, answer, end]),
        ("labels", ["-100", "-100", "-100", "8", "1"], [prompt, prompt, prompt, answer, end]),
        ("ids", ["5", "9", "1", "1", "1"], [prompt, answer, end, pad, pad]),
        ("labels", ["-100", "9", "1", "-100", "-100"], [prompt, answer, end, pad, pad]),
    )
    colours = {prompt: BLUE, answer: GREEN, end: ORANGE, pad: GREY}
    for number, (name, values, kinds) in enumerate(rows):
        y = 34 + 48 * number + 18 * (number // 2)
        picture.text(186, y + 18, f"example {number // 2 + 1}, {name}", align="right")
        for column, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            counts = name == "labels" and value != "-100"
            hatch = "//" if kind == pad else None
            picture.box(
                200 + 84 * column, y, 80, 36, value, colours[kind], hatch=hatch, bold=counts
            )
    picture.text(634, 118, "bold: counts\nin the loss", size=13, align="left")
    picture.text(634, 226, "only the first\nend counts", size=13, align="left")
    x = 120
    for kind, width in ((prompt, 120), (answer, 120), ("end", 110), (pad, 130)):
        picture.box(
            x, 266, 22, 18, "", colours[kind], hatch="//" if kind == pad else None, rounded=0.01
        )
        picture.text(x + 30, 275, "end token, id 1" if kind == end else kind, align="left", size=13)
        x += width + (50 if kind == end else 0)
    picture.save("padding_and_labels")


def lora() -> None:
    """A frozen matrix W, and next to it the small trained matrices A and B."""
    picture = Picture(720, 250)
    picture.box(20, 100, 60, 44, "x", BLUE, bold=True)
    picture.arrow((80, 112), (228, 76))
    picture.arrow((80, 132), (198, 186))
    picture.box(230, 24, 230, 100, "W: outputs x inputs\nfrozen", GREY, dashed=True)
    picture.box(200, 160, 110, 50, "A: r x inputs\ntrained", GREEN, size=13)
    picture.arrow((310, 185), (378, 185), "r numbers", size=12)
    picture.box(380, 160, 120, 50, "B: outputs x r\ntrained, starts at 0", GREEN, size=12)
    picture.arrow((460, 76), (576, 112))
    picture.arrow((500, 185), (578, 134), "")
    picture.text(560, 176, "times alpha / r", size=13, align="left")
    picture.box(578, 106, 34, 34, "+", BLUE, rounded=17)
    picture.arrow((612, 123), (650, 123))
    picture.box(652, 100, 56, 44, "y", BLUE, bold=True)
    picture.text(
        345, 234, "gradients and Adam's averages exist for A and B only", size=13, colour="#000000"
    )
    picture.save("lora")


def draw() -> None:
    """Draw all pictures of the lab."""
    transformer_block()
    token_shift()
    generation_loop()
    padding_and_labels()
    lora()


if __name__ == "__main__":
    draw()
