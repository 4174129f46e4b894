"""Draw the pictures of lab 5, Horovod."""

from drawing import BLUE, GREEN, GREY, ORANGE, YELLOW, Picture


def parameter_server() -> None:
    """A parameter server, which all gradients and weights pass, and an all-reduce among equal ranks."""
    picture = Picture(740, 270)
    picture.text(180, 20, "Parameter server", bold=True, size=15)
    picture.box(110, 44, 140, 44, "server: weights", GREEN, size=13)
    for number, x in enumerate((10, 100, 190, 280)):
        picture.box(x, 160, 76, 44, f"worker {number}", GREY, size=13)
        top = 132 + 32 * number
        picture.arrow((x + 30, 160), (top - 6, 88), colour=ORANGE)
        picture.arrow((top + 8, 88), (x + 48, 160), colour=GREEN, dashed=True)
    picture.text(180, 226, "up: gradients, down (dashed): weights", size=13)
    picture.text(180, 250, "all bytes pass the server", size=13, bold=True)
    picture.text(560, 20, "All-reduce", bold=True, size=15)
    places = [(450, 60), (600, 60), (600, 160), (450, 160)]
    for rank, (x, y) in enumerate(places):
        picture.box(x - 10, y - 16, 90, 44, f"rank {rank}\nweights", GREEN, size=13)
    picture.arrow((530, 66), (590, 66), colour=ORANGE)
    picture.arrow((635, 88), (635, 144), colour=ORANGE)
    picture.arrow((590, 166), (530, 166), colour=ORANGE)
    picture.arrow((485, 144), (485, 88), colour=ORANGE)
    picture.text(560, 226, "gradients travel between equal ranks", size=13)
    picture.text(560, 250, "the same bytes pass every rank", size=13, bold=True)
    picture.save("parameter_server")


def software_stack() -> None:
    """The layers of software between a training script and the network, with Horovod in the middle."""
    picture = Picture(740, 330)
    picture.box(
        150,
        16,
        440,
        38,
        "your training script (hvd.init, hvd.DistributedOptimizer, ...)",
        BLUE,
        size=13,
    )
    for x, words in ((150, "TensorFlow"), (262, "Keras"), (374, "PyTorch"), (486, "MXNet")):
        picture.box(x, 66, 104, 34, words, GREY, size=13, dashed=words == "MXNet")
    picture.box(
        150, 112, 440, 50, "Horovod: negotiation, tensor fusion, timeline", YELLOW, bold=True
    )
    for x, width, words in (
        (150, 136, "MPI\n(CPUs)"),
        (302, 136, "NCCL\n(NVIDIA GPUs)"),
        (454, 136, "Gloo\n(CPUs, no MPI)"),
    ):
        picture.box(x, 174, width, 48, words, YELLOW, size=13)
    for x, words in ((150, "shared memory"), (302, "NVLink, PCIe"), (454, "network, RDMA")):
        picture.box(x, 234, 136, 36, words, GREY, size=13, hatch=None)
    picture.box(150, 282, 440, 36, "CPUs, GPUs and network cards of the nodes", GREY, size=13)
    for y, words in ((34, "ML engineer"), (226, "infrastructure\nteam")):
        picture.text(138, y, words, size=13, align="right", bold=True)
    picture.line([(142, 106), (10, 106)], colour=GREY, dashed=True)
    for y, words in ((34, "writes"), (83, "chooses one"), (137, "averages gradients")):
        picture.text(602, y, words, size=13, align="left")
    for y, words in ((198, "moves the bytes"), (252, "carries the bytes")):
        picture.text(602, y, words, size=13, align="left")
    picture.save("software_stack")


def distributed_optimizer() -> None:
    """When the wrapped optimizer exchanges gradients: in PyTorch during the backward pass."""
    picture = Picture(750, 330)
    picture.text(
        375, 20, "One training step of a rank with hvd.DistributedOptimizer", bold=True, size=15
    )
    for top, name, messages in (
        (48, "PyTorch", ((290, 130, "last layers"), (474, 90, "first layers"))),
        (174, "Keras", ((474, 170, "all gradients"),)),
    ):
        picture.text(12, top + 4, name, align="left", bold=True, size=15)
        picture.text(12, top + 38, "compute", align="left", size=13)
        picture.text(12, top + 86, "exchange", align="left", size=13)
        picture.box(90, top + 18, 120, 40, "forward", BLUE, size=13)
        picture.box(210, top + 18, 260, 40, "backward: last to first layer", ORANGE, size=13)
        for x, width, words in messages:
            picture.box(x, top + 66, width, 40, words, YELLOW, size=13)
        picture.box(x + width + 4, top + 18, 76, 40, "update", GREEN, size=13)
    picture.text(375, 300, "Exchange: 1 gradient is ready, 2 ranks negotiate, "
                 "3 fusion buffer, 4 all-reduce, 5 divide by size", size=13)  # fmt: skip
    picture.save("distributed_optimizer")


def partition_options() -> None:
    """Which of eight images two ranks read in two epochs with three options to partition a data set."""
    picture = Picture(750, 330)
    options = (
        ("Reshuffle, then split", "each epoch: every image once",
         ("3 0 6 5", "1 7 2 4"), ("7 2 0 4", "5 6 1 3")),
        ("Fixed shards", "the shard of a rank never changes", ("0 4 2 6", "5 1 7 3"), ("6 0 4 2", "3 7 5 1")),
        ("Random reads", "some images twice, some never", ("2 7 2 0", "6 7 1 3"), ("5 1 4 5", "0 4 2 2")),
    )  # fmt: skip
    for number, (title, says, *epochs) in enumerate(options):
        x = 12 + 248 * number
        picture.text(x + 115, 22, title, bold=True, size=15)
        for epoch, ranks in enumerate(epochs):
            top = 52 + 112 * epoch
            picture.text(x, top, f"epoch {epoch}", align="left", size=13)
            for rank, images in enumerate(ranks):
                y = top + 14 + 38 * rank
                picture.text(x, y + 16, f"rank {rank}", align="left", size=13)
                colour = (BLUE, YELLOW)[rank]
                picture.cells(x + 62, y, images.split(), colour, width=40, height=32)
        picture.text(x + 115, 290, says, size=13)
    picture.text(375, 318, "The number in a square is the number of an image, 0 to 7.", size=12)
    picture.save("partition_options")


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
    parameter_server()
    software_stack()
    distributed_optimizer()
    partition_options()
    fusion_buffer()


if __name__ == "__main__":
    draw()
