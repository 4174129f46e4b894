"""Draw the pictures of lab 10, Feed the device."""

from drawing import BLUE, GREEN, GREY, YELLOW, Picture


def overlapped_loading() -> None:
    """A step that loads 30 ms and trains 10 ms: one after the other, and with one worker."""
    picture = Picture(740, 300)
    left, ms = 130, 4.6  # pixels: left edge of the timelines, and one millisecond
    picture.text(20, 22, "Serial: a step takes 30 + 10 = 40 ms", align="left", bold=True)
    picture.text(20, 62, "one process", align="left")
    for step in range(3):
        start = left + 40 * ms * step
        picture.box(start, 44, 30 * ms, 36, f"load {step + 1}", BLUE)
        picture.box(start + 30 * ms, 44, 10 * ms, 36, f"train {step + 1}", GREEN, size=12)
    picture.text(20, 124, "One worker: a step takes max(30, 10) = 30 ms", align="left", bold=True)
    picture.text(20, 164, "worker", align="left")
    picture.text(20, 224, "main process", align="left")
    for step in range(4):
        start = left + 30 * ms * step
        picture.box(start, 146, 30 * ms, 36, f"load {step + 1}", BLUE)
        if step < 3:
            ready = start + 30 * ms
            picture.arrow((ready, 184), (ready, 204))
            picture.box(ready, 206, 10 * ms, 36, f"train {step + 1}", GREEN, size=12)
            if step < 2:
                picture.box(
                    ready + 10 * ms, 206, 20 * ms, 36, "waits", GREY, strength=0.1, dashed=True
                )
    picture.arrow((left, 274), (left + 122 * ms, 274))
    for milliseconds in (0, 30, 60, 90, 120):
        x = left + milliseconds * ms
        picture.line([(x, 269), (x, 279)])
        picture.text(x, 290, f"{milliseconds} ms", size=12)
    picture.save("overlapped_loading")


def storage_formats() -> None:
    """Many small files, shards and one mapped array."""
    picture = Picture(740, 300)
    picture.text(120, 22, "Many small files", bold=True)
    for number in range(12):
        column, row = number % 4, number // 4
        picture.box(32 + 46 * column, 44 + 44 * row, 38, 36, "png", BLUE, size=12)
    picture.text(120, 190, "each image:", size=13)
    picture.text(120, 212, "open, read, decode", size=13)
    picture.text(120, 252, "12 images = 12 opens", size=13)

    picture.text(370, 22, "Shards (tar)", bold=True)
    for shard in range(3):
        y = 44 + 44 * shard
        picture.box(272, y, 196, 36, "", GREY, strength=0.1)
        picture.cells(280, y + 5, ["png"] * 4, BLUE, width=45, height=26, size=12)
    picture.arrow((272, 174), (468, 174))
    picture.text(370, 190, "read from beginning to end", size=13)
    picture.text(370, 212, "each image: decode", size=13)
    picture.text(370, 252, "12 images = 3 opens", size=13)

    picture.text(620, 22, "One array (npy)", bold=True)
    for row in range(3):
        words = [str(4 * row + column) for column in range(4)]
        picture.cells(528, 44 + 44 * row, words, BLUE, width=46, height=36)
    picture.text(620, 190, "mapped into memory:", size=13)
    picture.text(620, 212, "image 6 = bytes from 6 x 3072", size=13)
    picture.text(620, 252, "12 images = 1 open, no decode", size=13)
    picture.text(
        370, 284, "open = a request to the file system; decode = work of the processor", size=12
    )
    picture.save("storage_formats")


def sharded_reading() -> None:
    """Eight shards, two ranks with two workers each: every shard has exactly one reader."""
    picture = Picture(740, 320)
    picture.text(370, 20, "8 shards, 2 ranks, 2 workers per rank: 4 readers", bold=True)
    hatches = [None, "//", "..", "xx"]
    for shard in range(8):
        x = 30 + 86 * shard
        picture.box(x, 44, 76, 40, "", BLUE, hatch=hatches[shard % 4], strength=0.15)
        picture.box(x + 13, 52, 50, 24, f"shard {shard}", GREY, size=12, strength=0, rounded=3)
    for rank in range(2):
        picture.box(34 + 344 * rank, 160, 328, 110, "", GREY, strength=0, dashed=True)
        picture.text(198 + 344 * rank, 252, f"rank {rank}", bold=True)
    for reader in range(4):
        rank, worker = divmod(reader, 2)
        x = 46 + 172 * reader
        for shard in (reader, reader + 4):
            picture.arrow((68 + 86 * shard, 88), (x + 66, 168), colour=GREY)
        picture.box(x, 170, 132, 62, "", YELLOW, hatch=hatches[reader], strength=0.15)
        picture.box(x + 8, 178, 116, 46, "", GREY, strength=0, rounded=3)
        picture.text(x + 66, 192, f"worker {worker}", size=13)
        picture.text(x + 66, 212, f"reader {reader}", size=13)
    picture.text(
        370,
        298,
        "reader = rank x 2 + worker; reader k takes the shards k and k + 4: shards[k::4]",
        size=14,
    )
    picture.save("sharded_reading")


def draw() -> None:
    """Draw all pictures of the lab."""
    overlapped_loading()
    storage_formats()
    sharded_reading()


if __name__ == "__main__":
    draw()
