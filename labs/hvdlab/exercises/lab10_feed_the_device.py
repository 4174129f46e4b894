"""Exercises of lab 10: throughput of an input pipeline, vectorised augmentation, sharded reading."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hvdlab.course.input_pipeline import PAD, augment_image, draw
from hvdlab.exercises import NotYet, call, call_unchanged, exercise, received, right
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

SHARDS = [f"shard_{number:03d}.tar" for number in range(8)]
LEAST_GAIN = 2.0


def images_per_second(batch_size, load, train, workers, cores):
    if workers == 0:
        seconds = load + train
    else:
        seconds = max(load / workers, train, (load + train) / cores)
    return batch_size / seconds


LONGEST = "max(load / workers, train, (load + train) / cores)"

# fmt: off
check_images_per_second = FunctionExercise(
    images_per_second,
    [
        Case((128, 0.03, 0.01, 0, 2), "Without workers a step takes 0.03 + 0.01 s.", expected=3200),
        Case((128, 0.03, 0.01, 1, 2), "The three times of a step are 0.03, 0.01 and 0.02 s.",
             expected=128 / 0.03),
        Case((128, 0.03, 0.01, 2, 2), "The three times of a step are 0.015, 0.01 and 0.02 s.", expected=6400),
        Case((128, 0.04, 0.01, 2, 16), "The three times of a step are 0.02, 0.01 and 0.003125 s.",
             expected=6400),
        Case((128, 0.04, 0.01, 16, 16), "The three times of a step are 0.0025, 0.01 and 0.003125 s.",
             expected=12800),
    ],
    {
        "Without workers one process does both, one after the other: add the times.":
            ("seconds = load + train", "seconds = max(load, train)"),
        "With workers the training does not wait for the whole loading time: take the longest of the three "
        "times, not the sum.": [(LONGEST, "load + train"), (LONGEST, "load / workers + train")],
        "The processes share the cores: the work of a step needs at least (load + train) / cores.":
            (", (load + train) / cores", ""),
        "The workers load different batches at the same time: divide the loading time by workers.":
            ("load / workers", "load"),
        "The training limits the throughput too: it is one of the three times.": (" train, (", " ("),
        "The slowest part decides: take the longest of the three times, not the shortest.": ("max(", "min("),
        "That is the time of a step: divide the batch size by it.": ("batch_size / seconds", "seconds"),
        "That is the number of steps per second: multiply it by the batch size.":
            ("batch_size / seconds", "1 / seconds"),
    },
    passed="the sum without workers, and with workers the longest of three times.",
    meaning="of images per second",
)
# fmt: on


def augment_batch(images, flipped, top, left):
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    windows = sliding_window_view(padded, images.shape[1:3], axis=(1, 2))
    chosen = windows[np.arange(len(images)), top, left].transpose(0, 2, 3, 1)
    chosen[flipped] = chosen[flipped][:, :, ::-1]
    return chosen


def augmented(augment_batch, *arguments):
    """Return the type, the shape and the pixels of augmented images."""
    answer = call_unchanged(augment_batch, *arguments, name="augment_batch")
    if not isinstance(answer, np.ndarray):
        raise NotYet(f"augment_batch must return an array of NumPy. Received: {received(answer)}")
    return {
        "The shape of": np.array(answer.shape),
        "The type of": str(answer.dtype),
        "The result of": answer,
    }


TOP, LEFT = (axis.ravel() for axis in np.mgrid[: 2 * PAD + 1, : 2 * PAD + 1])
FLIPPED = np.random.default_rng(0).random(81) < 0.5
IMAGES = np.random.default_rng(1).integers(256, size=(81, 6, 8, 3)).astype(np.uint8)


def images_of_case(*chosen):
    """Return the arguments for some of the 81 images, and what augment_image makes of each."""
    part = [array[list(chosen)] for array in (IMAGES, FLIPPED, TOP, LEFT)]
    return {"arguments": tuple(part), "expected": {
        "The result of": np.stack([augment_image(*each) for each in zip(*part, strict=True)])}}  # fmt: skip


WINDOWS = "windows[np.arange(len(images)), "
MIRROR = "    chosen[flipped] = chosen[flipped][:, :, ::-1]\n"

# fmt: off
check_augment_batch = FunctionExercise(
    augment_batch,
    [
        Case(**images_of_case(40), call="augment_batch with one image, flipped=False, top=4 and left=4",
             reason="This window is the image itself."),
        Case(**images_of_case(*range(81)), call="augment_batch with 81 windows at all places",
             reason="The padding is a reflection, the window of each image begins at its own top and left, "
             "and those with flipped=True are mirrored."),
    ],
    {
        "The axes are image, row, column, channel: a sliding window appends its rows and columns at the end.":
            (".transpose(0, 2, 3, 1)", "", "[:, :, ::-1]", "[..., ::-1]"),
        "The images are uint8: keep the type.": ("return chosen", "return chosen / 255"),
        "No image is mirrored: flipped says which ones to mirror.": (MIRROR, ""),
        "All images are mirrored: flipped says which ones to mirror.":
            (MIRROR, "    chosen = chosen[:, :, ::-1]\n"),
        "The wrong images are mirrored: those with flipped = True are mirrored.":
            (MIRROR, "    flipped = ~flipped\n" + MIRROR),
        "The images are mirrored upside down: mirror the columns, not the rows.":
            ("[:, :, ::-1]", "[:, ::-1]"),
        "top and left are swapped: top is the first row, left is the first column.":
            (WINDOWS + "top, left", WINDOWS + "left, top"),
        "All windows begin in the middle: use top and left.": (WINDOWS + "top, left", WINDOWS + "PAD, PAD"),
        "All images have the window of the first one: each image has its own top and left.":
            (WINDOWS + "top, left", WINDOWS + "top[0], left[0]"),
        "The padding must be a reflection: np.pad(..., mode='reflect').":
            [("reflect", "edge"), ("reflect", "symmetric"), ("reflect", "constant"), ("reflect", "wrap")],
        "Cut out the window first, and then mirror it: in a mirrored image the window begins elsewhere.":
            (MIRROR, "", "    padded",
             "    images = images.copy()\n    images[flipped] = images[flipped, :, ::-1]\n    padded"),
    },
    passed="81 windows at all places, equal to augment_image to the last byte.", observe=augmented,
)
# fmt: on


def my_shards(shards, rank, size):
    worker = get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker else (0, 1)
    reader, readers = rank * count + number, size * count
    yield from shards[reader::readers]


class Shards(IterableDataset):
    """The shards that a learner's function reads on a rank; in a worker an error is an element."""

    def __init__(self, my_shards, rank, size):
        self.arguments = my_shards, rank, size

    def read(self):
        answer = call(self.arguments[0], list(SHARDS), *self.arguments[1:], name="my_shards")
        if answer is None:
            raise NotYet(
                "my_shards returned None: write a generator with `yield`, or return a list."
            )
        return call(list, answer, name="my_shards")

    def __iter__(self):
        try:
            yield from self.read()
        except NotYet as error:
            yield error


def times_read(my_shards, size, workers):
    """Return how often each shard is read, and how many shards each rank reads."""
    parts = []
    for rank in range(size):
        data = Shards(my_shards, rank, size)
        if workers:
            own = {"num_workers": workers, "multiprocessing_context": "fork"}
            parts.append(list(DataLoader(data, batch_size=None, **own)))
        else:
            parts.append(data.read())
    read = [each for part in parts for each in part]
    for each in read:
        if isinstance(each, NotYet):
            raise each
        if not (isinstance(each, str) and each in SHARDS):
            raise NotYet(
                f"yield the given paths, such as {SHARDS[0]!r}. Received: {received(each)}"
            )
    return {
        f"The list of how often each of {len(SHARDS)} shards is read with": np.array(
            [read.count(shard) for shard in SHARDS]
        ),
        "The list of the numbers of shards that the ranks read with": np.array(
            list(map(len, parts))
        ),
    }


READER = "rank * count + number, size * count"

# fmt: off
check_my_shards = FunctionExercise(
    my_shards,
    [Case((size, workers), "All readers together read each shard once, and the ranks read equally many: is "
          "the step of the slice the number of all readers, size * num_workers, and are the readers numbered "
          "from 0 without gaps?", f"{size} rank{'s' * (size > 1)} and {workers or 'no'} workers")
     for size, workers in ((1, 0), (2, 0), (1, 2), (2, 2))],
    {
        "Every reader reads all shards. Divide them by rank and by worker: use rank and size.":
            ("shards[reader::readers]", "shards"),
        "Every worker of a rank reads the same shards, because every worker has a copy of the dataset: use "
        "get_worker_info().": (READER, "rank, size"),
        "The ranks read the same shards: use rank and size.": (READER, "number, count"),
        "The number of all readers is size * num_workers: so is the step of the slice.":
            (READER, "rank * count + number, size + count"),
        "Two readers have the same number: number them rank * num_workers + worker.id.":
            (READER, "rank + number, size * count"),
    },
    passed="8 shards, each read exactly once with 1 and 2 ranks, without workers and with 2.",
    observe=times_read,
)
# fmt: on


def load_on_node(local_rank, download, barrier, load):
    if local_rank == 0:
        download()
    barrier()
    return load()


def calls_of_rank(load_on_node, local_rank):
    """Return the calls in their order, and whether the result is that of the last one."""
    calls, data = [], object()
    steps = [
        lambda name=name, result=result: (calls.append(f"{name}()"), result)[1]
        for name, result in (("download", None), ("barrier", None), ("load", data))
    ]
    result = call(load_on_node, local_rank, *steps, name="load_on_node")
    return {
        "The order of the calls on": ", ".join(calls),
        "Whether the result of load() is returned on": result is data,
    }


IF, BARRIER = "    if local_rank == 0:\n        download()\n", "    barrier()\n"

# fmt: off
check_load_on_node = FunctionExercise(
    load_on_node,
    [Case((local_rank,), "Every rank must reach the barrier exactly once, and load after it; local rank 0 "
          "downloads before it.", f"local rank {local_rank}") for local_rank in (0, 1, 2)],
    {
        "Only local rank 0 downloads.": ("if local_rank == 0", "if True"),
        "One rank of each node must download: local rank 0.": ("local_rank == 0", "False"),
        "Every rank must reach the barrier exactly once, or the others wait for ever.":
            [(BARRIER, "    " + BARRIER), (BARRIER, "    if local_rank > 0:\n    " + BARRIER)],
        "Without the barrier the other ranks load too early.": (BARRIER, ""),
        "If the barrier comes before the download, the other ranks load too early.":
            (BARRIER, "", IF, BARRIER + IF),
        "A rank that loads before the barrier may read a file that is only half written.":
            (BARRIER + "    return load()", "    data = load()\n    barrier()\n    return data"),
        "Every rank needs the data: call load() on all of them.":
            [("return load()", "return load() if local_rank == 0 else None"), ("return load()", "pass")],
        "load_on_node must return what load() returns.": ("return load()", "load()"),
    },
    passed="one download per node, and every rank loads after the barrier.", observe=calls_of_rank,
)
# fmt: on


def array_batches(images, labels, batch_size, random):
    order = random.permutation(len(labels))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        changed = augment_batch(images[chosen], *draw(random, len(chosen)))
        yield torch.from_numpy(changed), torch.from_numpy(labels[chosen])


def batches_of(array_batches, images, batch_size):
    """Return the images and the labels of the batches of an epoch; the labels are 0, 1, 2, ..."""
    arguments = images, np.arange(len(images)), batch_size, np.random.default_rng(0)
    answer = call(array_batches, *arguments, name="array_batches")
    batches = [] if answer is None else call(list, answer, name="array_batches")
    for batch in batches or [None]:
        if not (
            isinstance(batch, tuple | list) and len(batch) == 2 and all(map(torch.is_tensor, batch))
        ):
            raise NotYet(
                f"array_batches must yield pairs of tensors, (images, labels). Received: {received(batch)}"
            )
    return [images for images, _ in batches], [labels for _, labels in batches]


def epoch(array_batches):
    """Return what the batches of 10 images contain, each with pixels of its own value."""
    pixels = (np.arange(10)[:, None, None, None] * np.ones((1, 8, 8, 3))).astype(np.uint8)
    images, labels = batches_of(array_batches, pixels, 4)
    order = torch.cat(labels).tolist()
    values = {
        "The list of the batch sizes of": np.array(list(map(len, labels))),
        "The type of the images of": str(images[0].dtype),
        "The shape of the first batch of": np.array(images[0].shape),
        "The labels, in ascending order, of": np.sort(order),
        "Whether the order is random in": order != sorted(order),
    }
    if values["The type of the images of"] == "torch.uint8" and len(images[0].shape) == 4:
        first = [image[0, 0, 0].item() for batch in images for image in batch]
        values["Whether images and labels belong together in"] = first == order
    return values | augmentation(array_batches)


def augmentation(array_batches):
    """Return whether copies of one image are windows of the padded image, at different places."""
    image = np.random.default_rng(1).integers(256, size=(8, 8, 3)).astype(np.uint8)
    copies = np.repeat(image[None], 32, axis=0)
    ((made,), _) = batches_of(array_batches, copies, 32)
    different = {one.tobytes() for one in made.numpy()}
    places = range(2 * PAD + 1)
    possible = {
        augment_image(image, flipped, top, left).tobytes()
        for flipped in (False, True)
        for top in places
        for left in places
    }
    return {
        "Whether the images are augmented in": different != {image.tobytes()},
        "Whether the images are windows of the padded images in": different <= possible,
        "Whether most of 32 copies of an image become different images in": len(different) > 12,
    }


ORDER, MADE = (
    "random.permutation(len(labels))",
    "augment_batch(images[chosen], *draw(random, len(chosen)))",
)

# fmt: off
check_array_batches = FunctionExercise(
    array_batches,
    [Case((), "Each of the 10 examples appears once, in a random order, as augmented images of torch.uint8 "
          "with their labels.", "an epoch with 10 images in batches of 4")],
    {
        "The examples come in the order of the array: use random.permutation.":
            (ORDER, "np.arange(len(labels))"),
        "Each example must appear exactly once: a permutation draws without replacement.":
            (ORDER, "random.integers(0, len(labels), len(labels))"),
        "The last batch is smaller, and you leave it out.": ("len(order), batch", "len(order) - 2, batch"),
        "Images and labels do not belong together: use the same indices for both of them.":
            [("labels[chosen]", "labels[np.sort(chosen)]"),
             ("images[chosen]", "images[start : start + batch_size]")],
        "The images are not augmented: call augment_batch with what draw returns.": (MADE, "images[chosen]"),
        "The images must be torch.uint8: the training step converts them.":
            [("torch.from_numpy(changed)", "torch.from_numpy(changed) / 255"),
             ("torch.from_numpy(changed)", "torch.from_numpy(changed).float()")],
        "The images keep the axes (image, row, column, channel): the training step permutes them.":
            ("torch.from_numpy(changed)", "torch.from_numpy(changed).permute(0, 3, 1, 2)"),
        "All images of a batch have the same augmentation: draw one for each image of the batch, "
        "draw(random, len(chosen)).":
            ("draw(random, len(chosen))", "(each.repeat(len(chosen)) for each in draw(random, 1))"),
    },
    passed="10 images in batches of 4, 4 and 2, each once, in a random order, augmented.", observe=epoch,
)
# fmt: on


@exercise
def check_throughput(before, after, bound):
    """Demand that the learner's loader at least doubles the throughput of the training.

    Args:
        before: Images per second with the first loader.
        after: Images per second with the learner's loader.
        bound: Images per second with a loader that serves zeros.
    """
    gain = after / before
    numbers = f"{before:,.0f} images/s before, {after:,.0f} after, {bound:,.0f} with zeros"
    if gain < LEAST_GAIN:
        raise NotYet(
            f"{numbers}: the gain is {gain:.1f}, expected at least {LEAST_GAIN:g}. Is there a Python loop "
            "over the images, or a conversion of each image? Run the cell again if other programs run."
        )
    right(
        f"{numbers}. The gain is {gain:.1f}, and {after / bound:.0%} of the upper bound are reached."
    )
