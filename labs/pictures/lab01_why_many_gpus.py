"""Draw the pictures of lab 1, Why many GPUs."""

import numpy as np
from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW, Picture

# Training compute in floating-point operations. The first eight: OpenAI, "AI and Compute" (2018), which gives
# petaflop/s-days of 8.64e19 operations; AlphaGo Zero is 300,000 times AlexNet. The others: their papers.
PFS_DAY = 8.64e19
TRAINING_RUNS = [
    ("AlexNet", 2012.75, 0.0058 * PFS_DAY, "right"),
    ("VGG", 2014.7, 0.098 * PFS_DAY, "right"),
    ("DeepSpeech2", 2015.9, 0.25 * PFS_DAY, "right"),
    ("Xception", 2016.8, 5.0 * PFS_DAY, "right"),
    ("Google's translation", 2016.7, 79 * PFS_DAY, "right"),
    ("AlphaGo Zero", 2017.8, 0.0058 * 300_000 * PFS_DAY, "left"),
    ("GPT-3", 2020.4, 3.14e23, "right"),
    ("Chinchilla", 2022.25, 5.76e23, "right"),
    ("PaLM", 2022.3, 2.53e24, "left"),
    ("Llama 3 405B", 2024.55, 3.8e25, "left"),
]


def training_compute() -> None:
    """The operations of well-known training runs, from AlexNet to Llama 3."""
    picture = Picture(720, 400)
    axes = picture.plot(80, 30, 610, 310)
    for name, year, operations, side in TRAINING_RUNS:
        axes.plot(year, operations, "o", color=BLUE, markersize=6)
        shift, align = (0.15, "left") if side == "right" else (-0.15, "right")
        axes.text(year + shift, operations, name, ha=align, va="center", fontsize=9.75)
    axes.annotate(
        "", (2017.8, 1.5e23), (2012.75, 5e17), arrowprops={"arrowstyle": "-", "linestyle": ":"}
    )
    axes.text(2013.0, 3e21, "300,000 times\nin five years", fontsize=9.75, ha="left")
    axes.set(yscale="log", xlim=(2012, 2026), ylim=(1e17, 3e26), xlabel="year of publication")
    axes.set_ylabel("operations of one training run")
    axes.set_yticks([1e18, 1e20, 1e22, 1e24, 1e26])
    axes.grid(color="#e0e0e0")
    axes.set_axisbelow(True)
    picture.save("training_compute")


def learning_curve() -> None:
    """The three regions of a learning curve on logarithmic axes, after Hestness et al. (2017)."""
    picture = Picture(720, 330)
    axes = picture.plot(80, 25, 600, 250)
    n = np.logspace(0, 9, 300)
    power = 0.02 + 2.0 * (n / 1e2) ** -0.35
    error = (power**-8.0 + 0.8**-8.0) ** (-1 / 8)
    axes.loglog(n, error, color=BLUE, linewidth=2.5)
    straight = n[n > 3e3]
    axes.loglog(straight, 2.0 * (straight / 1e2) ** -0.35, "--", color=BLUE, linewidth=1.2)
    axes.axhline(0.02, color=GREY, linestyle=":")
    for edge in (3e3, 5e6):
        axes.axvline(edge, color=GREY, linewidth=0.8)
    axes.set(xlim=(1, 1e9), ylim=(0.01, 3), xlabel="number of training examples n (logarithmic)")
    axes.set_ylabel("error on new examples (logarithmic)")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.minorticks_off()
    regions = (
        (60, "few examples:\nguessing"),
        (1.2e5, "power law:\na straight line"),
        (7e7, "only the irreducible\nerror is left"),
    )
    for x, words in regions:
        axes.text(x, 2.7, words, ha="center", va="top", fontsize=9.75)
    axes.text(1.5e5, 0.22, "slope $-b$", fontsize=10.5)
    axes.text(2, 0.022, "irreducible error", fontsize=9.75, va="bottom")
    picture.save("learning_curve")


STEP = [  # of a training step: what happens, the lane in which it happens, colour, width
    ("read from storage", "storage", BLUE, 40), ("transport to the node", "storage", BLUE, 40),
    ("decode", "CPU", BLUE, 40), ("augment", "CPU", BLUE, 40), ("collect a batch", "CPU", BLUE, 36),
    ("wait in a queue", "CPU", BLUE, 36), ("copy to the GPU", "GPU", BLUE, 36),
    ("forward pass", "GPU", BLUE, 48), ("loss", "GPU", BLUE, 30), ("backward pass", "GPU", ORANGE, 78),
    ("pack the gradients", "GPU", ORANGE, 36), ("all-reduce", "network", YELLOW, 60),
    ("unpack the average", "GPU", ORANGE, 36), ("update the weights", "GPU", GREEN, 40),
    ("log, return control", "CPU", GREY, 36),
]  # fmt: skip


def training_step() -> None:
    """The fifteen parts of a training step, on the storage, the CPU, the GPU and the network."""
    picture = Picture(750, 420)
    lanes = {"storage": 16, "CPU": 72, "GPU": 128, "network": 184}
    for name, y in lanes.items():
        picture.text(8, y + 20, name, align="left", bold=True)
        picture.line([(84, y + 48), (744, y + 48)], colour="#cccccc")
    x = 86
    for number, (words, lane, colour, width) in enumerate(STEP, 1):
        picture.box(x, lanes[lane], width, 40, str(number), colour, bold=True)
        x += width + 1
        column, row = divmod(number - 1, 5)
        left, top = 84 + 222 * column, 288 + 27 * row
        picture.box(left, top - 11, 26, 22, str(number), colour, size=12, bold=True)
        picture.text(left + 34, top, words, align="left", size=13)
    picture.text(8, 252, "time", align="left", size=13)
    picture.arrow((84, 252), (744, 252))
    picture.save("training_step")


def node_and_network() -> None:
    """Two nodes with four GPUs each, one process per GPU, and the links between them."""
    picture = Picture(740, 390)
    for number, left in enumerate((10, 390)):
        picture.box(left, 34, 340, 270, "", GREY, strength=0.08)
        picture.text(left + 170, 20, f"node {number}", bold=True)
        picture.box(
            left + 20,
            44,
            300,
            44,
            "CPU cores and their memory\nPCIe, 64 GB/s to each GPU",
            GREY,
            size=13,
        )
        for gpu in range(4):
            x = left + 20 + 77 * gpu
            picture.arrow((x + 34, 88), (x + 34, 122), both=True)
            picture.box(x, 122, 69, 74, "", BLUE)
            rank = 4 * number + gpu
            picture.text(x + 34, 140, "process", size=12)
            picture.text(x + 34, 158, f"rank {rank}", size=13, bold=True)
            picture.text(x + 34, 180, f"GPU {gpu}", size=13)
            picture.line([(x + 34, 196), (x + 34, 216)])
        picture.box(left + 20, 216, 300, 34, "NVLink, 450 GB/s in each direction", YELLOW, size=13)
        way = [(left + 320, 66), (left + 331, 66), (left + 331, 282), (left + 245, 282)]
        picture.line(way)
        picture.text(left + 290, 270, "PCIe", size=12)
        picture.box(left + 95, 268, 150, 28, "network cards", GREY, size=13)
        picture.line([(left + 170, 296), (left + 170, 330)])
    picture.box(80, 330, 580, 44, "", YELLOW)
    picture.text(370, 343, "InfiniBand, 400 Gbit/s = 50 GB/s for each GPU", size=13)
    picture.text(370, 362, "or Ethernet, 10 Gbit/s = 1.25 GB/s for the node", size=13)
    picture.save("node_and_network")


def two_kinds_of_parallelism() -> None:
    """Data parallelism copies the model and splits the data; model parallelism splits the model."""
    picture = Picture(740, 330)
    picture.text(180, 20, "Data parallelism", bold=True, size=15)
    picture.text(560, 20, "Model parallelism", bold=True, size=15)
    for rank in range(2):
        y = 50 + 130 * rank
        picture.text(20, y + 42, f"rank {rank}", align="left", bold=True)
        picture.box(80, y + 22, 80, 42, f"half {rank}\nof the batch", BLUE, size=12)
        picture.arrow((160, y + 43), (188, y + 43))
        picture.box(188, y, 126, 86, "all layers", GREEN)
    picture.arrow((251, 136), (251, 180), both=True)
    picture.text(262, 158, "gradients", align="left", size=13)
    picture.line([(372, 10), (372, 310)], colour="#bbbbbb")
    picture.box(400, 108, 80, 42, "the whole\nbatch", BLUE, size=12)
    picture.arrow((480, 118), (540, 86))
    for rank, words in enumerate(("layers 1 and 2", "layers 3 and 4")):
        y = 50 + 130 * rank
        picture.box(540, y, 140, 86, words, GREEN, hatch="//" if rank else None)
        picture.text(690, y + 43, f"rank {rank}", size=12, align="left", rotation=0)
    picture.arrow((610, 136), (610, 180), both=True)
    picture.text(598, 158, "activations", align="right", size=13)
    picture.text(180, 300, "each rank stores the whole model", size=13)
    picture.text(560, 300, "each rank stores a fraction of the model", size=13)
    picture.save("two_kinds_of_parallelism")


def software_layers() -> None:
    """What a training script calls, from the framework down to the link."""
    picture = Picture(740, 300)
    rows = (
        ("you write", [("your training script", 0, 600, BLUE)]),
        ("average the gradients", [("Horovod", 0, 196, ORANGE), ("PyTorch DDP", 202, 196, ORANGE),
                                   ("PyTorch FSDP", 404, 196, ORANGE)]),
        ("send the bytes", [("NCCL (NVIDIA GPUs)", 0, 196, YELLOW), ("Gloo (CPUs)", 202, 196, YELLOW),
                            ("MPI (CPUs and GPUs)", 404, 196, YELLOW)]),
        ("carry the bytes", [("NVLink", 0, 146, GREY), ("PCIe", 151, 146, GREY),
                             ("InfiniBand", 302, 146, GREY), ("Ethernet", 453, 147, GREY)]),
    )  # fmt: skip
    for row, (role, boxes) in enumerate(rows):
        y = 14 + 72 * row
        first, _, rest = role.partition(" ")
        picture.text(8, y + 15, first, align="left", size=13)
        picture.text(8, y + 33, rest, align="left", size=13)
        for words, x, width, colour in boxes:
            picture.box(132 + x, y, width, 48, words, colour, size=13)
        if row:
            picture.arrow((432, y - 22), (432, y - 2))
    picture.save("software_layers")


def parameter_server_and_ring() -> None:
    """A parameter server receives from all workers; in a ring every rank sends as much as every other."""
    picture = Picture(740, 310)
    picture.text(180, 20, "Parameter server", bold=True, size=15)
    picture.box(110, 46, 140, 50, "server", PURPLE)
    for worker in range(4):
        x = 20 + 84 * worker
        picture.box(x, 200, 72, 44, f"worker {worker}", BLUE, size=12)
        picture.arrow((x + 36, 200), (140 + 26 * worker, 98), both=True)
    picture.text(180, 276, "all gradients pass through the", size=13)
    picture.text(180, 294, "server's network card", size=13)
    picture.line([(372, 10), (372, 300)], colour="#bbbbbb")
    picture.text(560, 20, "Ring all-reduce", bold=True, size=15)
    corners = ((440, 70), (610, 70), (610, 190), (440, 190))
    for rank, (x, y) in enumerate(corners):
        picture.box(x, y, 72, 44, f"rank {rank}", BLUE, size=13)
    picture.arrow((514, 92), (608, 92), colour=YELLOW)
    picture.arrow((646, 116), (646, 188), colour=YELLOW)
    picture.arrow((608, 212), (514, 212), colour=YELLOW)
    picture.arrow((476, 188), (476, 116), colour=YELLOW)
    picture.text(560, 276, "each rank sends to one neighbour;", size=13)
    picture.text(560, 294, "no link carries more than another", size=13)
    picture.save("parameter_server_and_ring")


def iteration_time() -> None:
    """How many experiments fit into a week, one after the other, when a run gets shorter."""
    picture = Picture(740, 230)
    days = "Mon Tue Wed Thu Fri Sat Sun".split()
    left, width = 150, 82
    for number, day in enumerate(days):
        picture.text(left + width * (number + 0.5), 18, day, size=13)
        picture.line([(left + width * number, 30), (left + width * number, 220)], colour="#cccccc")
    for row, (gpus, efficiency) in enumerate(((1, 1.0), (4, 0.75), (16, 0.75))):
        y = 40 + 62 * row
        hours = 150 / (gpus * efficiency)
        runs = int(7 * 24 // hours)
        picture.text(8, y + 14, f"{gpus} GPU{'s' * (gpus > 1)}", align="left", bold=True)
        picture.text(8, y + 33, f"{runs} result{'s' * (runs > 1)}", align="left", size=13)
        length = width * hours / 24
        for run in range(runs):
            start = left + length * run
            picture.box(start, y, length - 3, 44, str(run + 1), BLUE, size=13, rounded=2)
    picture.save("iteration_time")


def training_and_inference() -> None:
    """Training needs a forward pass, a backward pass and optimizer state; inference one forward pass."""
    picture = Picture(740, 270)
    picture.text(8, 52, "training", align="left", bold=True)
    picture.text(8, 186, "inference", align="left", bold=True)
    parts = (
        ("batch", BLUE, 70), ("forward\n2 N", BLUE, 90), ("backward\n4 N", ORANGE, 130),
        ("update", GREEN, 80),
    )  # fmt: skip
    x = 110
    for number, (words, colour, width) in enumerate(parts):
        picture.box(x, 28, width, 50, words, colour, size=13)
        if number < 3:
            picture.arrow((x + width, 53), (x + width + 26, 53))
        x += width + 26
    picture.text(
        110,
        102,
        "in memory: weights, gradients, optimizer state, activations",
        align="left",
        size=13,
    )
    picture.text(640, 40, "repeated for", size=13)
    picture.text(640, 58, "every batch", size=13)
    picture.line([(8, 130), (732, 130)], colour="#bbbbbb")
    x = 110
    parts = ("one\nrequest", BLUE, 70), ("forward\n2 N", BLUE, 90), ("answer", BLUE, 80)
    for number, (words, colour, width) in enumerate(parts):
        picture.box(x, 162, width, 50, words, colour, size=13)
        if number < 2:
            picture.arrow((x + width, 187), (x + width + 26, 187))
        x += width + 26
    picture.text(
        110, 238, "in memory: weights, the activations of one layer", align="left", size=13
    )
    picture.text(640, 178, "repeated for", size=13)
    picture.text(640, 196, "every user", size=13)
    picture.save("training_and_inference")


def draw() -> None:
    """Draw all pictures of the lab."""
    training_compute()
    learning_curve()
    training_step()
    node_and_network()
    two_kinds_of_parallelism()
    software_layers()
    parameter_server_and_ring()
    iteration_time()
    training_and_inference()


if __name__ == "__main__":
    draw()
