"""Draw the pictures of lab 11, From one GPU to DDP."""

from drawing import BLUE, GREEN, GREY, ORANGE, YELLOW, Picture


def process_group() -> None:
    """Two nodes with two ranks each: torchrun on each node, the store of rank 0, and the process group."""
    picture = Picture(740, 356)
    for node in range(2):
        x = 16 + 366 * node
        picture.box(x, 36, 342, 236, "", GREY, strength=0.08)
        picture.text(x + 171, 20, f"node {node}", bold=True)
        picture.box(x + 96, 48, 150, 34, "torchrun", GREY, size=14)
        for local in range(2):
            rank = 2 * node + local
            left = x + 14 + 164 * local
            picture.arrow((x + 130 + 82 * local, 84), (left + 75, 112))
            picture.box(left, 114, 150, 104, "", BLUE)
            picture.text(left + 75, 130, f"rank {rank}", bold=True)
            for line, words in enumerate((f"RANK={rank}", f"LOCAL_RANK={local}", "WORLD_SIZE=4")):
                picture.text(left + 75, 152 + 22 * line, words, size=13)
            picture.arrow((left + 75, 220), (left + 75, 288), both=True, colour=YELLOW)
    picture.text(187, 244, "MASTER_ADDR", size=13)
    picture.text(187, 260, "is this node", size=13)
    picture.box(16, 290, 708, 42, "process group: 4 ranks, backend gloo or nccl", YELLOW)
    picture.save("process_group_torchrun")


def sampler() -> None:
    """DistributedSampler: one permutation on all ranks, padded, and every second index for each rank."""
    picture = Picture(740, 330)
    orders = ([3, 0, 4, 1, 2], [1, 4, 2, 0, 3])
    for epoch, order in enumerate(orders):
        y = 30 + 156 * epoch
        picture.text(16, y + 16, f"epoch {epoch}", align="left", bold=True)
        picture.text(16, y + 40, "one order", align="left", size=13)
        picture.text(16, y + 57, "on all ranks", align="left", size=13)
        padded = [*order, order[0]]
        for number, index in enumerate(padded):
            hatch = "//" if number % 2 else None
            picture.box(
                130 + 52 * number, y + 18, 48, 40, "", BLUE, hatch=hatch, dashed=number == 5
            )
            picture.box(142 + 52 * number, y + 25, 24, 26, str(index), GREY, strength=0)
        picture.text(414, y + 8, "padding", size=13)
        picture.arrow((452, y + 24), (512, y - 2))
        picture.arrow((452, y + 50), (512, y + 76))
        for rank in range(2):
            top = y - 20 + 76 * rank
            picture.text(520, top + 18, f"rank {rank}", align="left", size=13)
            for place, index in enumerate(padded[rank::2]):
                left = 576 + 50 * place
                picture.box(left, top, 46, 38, "", BLUE, hatch="//" if rank else None)
                picture.box(left + 11, top + 6, 24, 26, str(index), GREY, strength=0)
    picture.save("distributed_sampler")


def wrapper() -> None:
    """What DistributedDataParallel sends: the weights once, and the gradients in every backward pass."""
    picture = Picture(740, 356)
    steps = ("wrap the model", "forward", "backward", "optimizer.step()")
    lefts, widths = (96, 272, 392, 584), (158, 102, 174, 144)
    for left, width, step in zip(lefts, widths, steps, strict=True):
        picture.text(left + width / 2, 18, step, bold=True, size=13)
    for rank in range(2):
        y = 44 + 186 * rank
        picture.text(16, y + 30, f"rank {rank}", align="left", bold=True)
        picture.box(96, y, 64, 60, f"w = {1 - 3 * rank}", GREEN, dashed=bool(rank))
        picture.arrow((162, y + 30), (188, y + 30))
        picture.box(190, y, 64, 60, "w = 1", GREEN)
        picture.box(272, y, 102, 60, "own images\nloss", BLUE, size=13)
        picture.box(392, y, 74, 60, f"own\ng = {2 + 2 * rank}", ORANGE, size=13)
        picture.box(492, y, 74, 60, "mean\ng = 3", ORANGE, size=13, strength=0.5)
        picture.box(584, y, 144, 60, "w = 1 - 0.1 x 3\n= 0.7", GREEN, size=13)
    picture.box(96, 140, 158, 54, "broadcast of\nrank 0's weights", YELLOW, size=13)
    picture.arrow((128, 106), (128, 138))
    picture.arrow((222, 196), (222, 228))
    picture.box(392, 140, 174, 54, "all-reduce of the\ngradients, divided by 2", YELLOW, size=13)
    picture.arrow((429, 106), (429, 138))
    picture.arrow((429, 228), (429, 196))
    picture.arrow((529, 138), (529, 106))
    picture.arrow((529, 196), (529, 228))
    picture.text(175, 316, "once", size=13)
    picture.arrow((96, 304), (254, 304), both=True, colour=GREY)
    picture.arrow((272, 304), (728, 304), both=True, colour=GREY)
    picture.text(500, 318, "in every step; after it, the weights of both ranks are equal", size=13)
    picture.save("ddp_wrapper")


def download() -> None:
    """The download: the other ranks of a machine wait in a barrier until local rank 0 has the files."""
    picture = Picture(740, 236)
    for rank in range(4):
        y = 30 + 44 * rank
        node, local = divmod(rank, 2)
        picture.text(16, y + 15, f"node {node}, local rank {local}", align="left", size=13)
        if local == 0:
            width = 200 - 60 * node
            picture.box(170, y, width, 30, "download", BLUE, size=13)
            picture.box(170 + width, y, 60, 30, "read", BLUE, size=13, strength=0.5)
            if node:
                picture.box(
                    170 + width + 60, y, 60, 30, "wait", GREY, size=13, dashed=True, strength=0
                )
        else:
            picture.box(
                170, y, 260, 30, "wait in dist.barrier()", GREY, size=13, dashed=True, strength=0
            )
            picture.box(434, y, 60, 30, "read", BLUE, size=13, strength=0.5)
        picture.box(500, y, 180, 30, "training", GREEN, size=13)
    picture.line([(431, 22), (431, 204)], dashed=True)
    picture.text(431, 218, "all four ranks have called dist.barrier()", size=13)
    picture.save("download_barrier")


def draw() -> None:
    """Draw all pictures of the lab."""
    process_group()
    sampler()
    wrapper()
    download()


if __name__ == "__main__":
    draw()
