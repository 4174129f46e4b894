"""The checks of lab 10: the right answer passes, and each typical mistake is called by its name."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from changed import changed  # noqa: E402
from numpy.lib.stride_tricks import sliding_window_view  # noqa: E402
from torch.utils.data import get_worker_info  # noqa: E402

from hvdlab.course.input_pipeline import PAD, draw  # noqa: E402
from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab10_feed_the_device as exercises  # noqa: E402


def images_per_second(batch_size, load, train, workers, cores):
    seconds = max(load / max(workers, 1), train, (load + train) / cores)
    return batch_size / (seconds if workers else load + train)


def augment_batch(images, flipped, top, left):
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    windows = sliding_window_view(padded, images.shape[1:3], axis=(1, 2))
    chosen = windows[np.arange(len(images)), top, left].transpose(0, 2, 3, 1)
    chosen[flipped] = chosen[flipped][:, :, ::-1]
    return chosen


def by_index(images, flipped, top, left):
    """The same with arrays of indices instead of windows."""
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    rows = top[:, None] + np.arange(images.shape[1])
    columns = left[:, None] + np.arange(images.shape[2])
    columns[flipped] = columns[flipped, ::-1]
    return padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def my_shards(shards, rank, size):
    worker = get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker else (0, 1)
    yield from shards[rank * count + number :: size * count]


def load_on_node(local_rank, download, barrier, load):
    if local_rank == 0:
        download()
    barrier()
    return load()


def array_batches(images, labels, batch_size, random):
    order = random.permutation(len(labels))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        made = augment_batch(images[chosen], *draw(random, len(chosen)))
        yield torch.from_numpy(made), torch.from_numpy(labels[chosen])


def test_right_answers_pass(capsys):
    exercises.check_images_per_second(images_per_second)
    exercises.check_augment_batch(augment_batch)
    exercises.check_augment_batch(by_index)
    exercises.check_my_shards(my_shards)
    exercises.check_my_shards(lambda *arguments: list(my_shards(*arguments)))
    exercises.check_load_on_node(load_on_node)
    exercises.check_array_batches(array_batches)
    exercises.check_throughput(3000, 12000, 24000)
    out = capsys.readouterr().out
    assert out.count("Right: ") == 8
    assert "The gain is 4.0, and 50% of the upper bound" in out


def upside_down(images, flipped, top, left):
    made = by_index(images, flipped & False, top, left)
    made[flipped] = made[flipped][:, ::-1]
    return made


def mirrored_first(images, flipped, top, left):
    images = images.copy()
    images[flipped] = images[flipped][:, :, ::-1]
    return by_index(images, flipped & False, top, left)


MISTAKES = [
    (exercises.check_images_per_second, lambda b, load, train, w, c: b / max(load, train), "add the times"),
    (exercises.check_images_per_second, lambda b, load, train, w, c: b / (load + train), "not the sum"),
    (exercises.check_images_per_second,
     changed(images_per_second, ", (load + train) / cores", ""), "share two cores"),
    (exercises.check_images_per_second, changed(images_per_second, "load / max(workers, 1)", "load"),
     "divide the loading time by workers"),
    (exercises.check_images_per_second, changed(images_per_second, "max(load /", "min(load /"),
     "not the shortest"),
    (exercises.check_images_per_second, changed(images_per_second, "batch_size / (", "1 / ("), "multiply it"),
    (exercises.check_images_per_second, changed(images_per_second, "batch_size / (", "("), "time of a step"),
    (exercises.check_augment_batch, changed(augment_batch, "chosen[flipped] =", "_ ="),
     "No image is mirrored"),
    (exercises.check_augment_batch, changed(augment_batch, "chosen[flipped] = chosen[flipped]",
                                            "chosen = chosen"), "All images are mirrored"),
    (exercises.check_augment_batch, lambda i, f, t, left: augment_batch(i, ~f, t, left), "wrong images"),
    (exercises.check_augment_batch, lambda i, f, t, left: augment_batch(i, f, left, t), "swapped"),
    (exercises.check_augment_batch, lambda i, f, t, left: augment_batch(i, f, t * 0 + PAD, t * 0 + PAD),
     "begin in the middle"),
    (exercises.check_augment_batch, lambda i, f, t, left: by_index(i, f, t * 0 + t[0], left * 0 + left[0]),
     "window of the first one"),
    (exercises.check_augment_batch, upside_down, "upside down"),
    (exercises.check_augment_batch, mirrored_first, "before it is mirrored"),
    (exercises.check_augment_batch, changed(augment_batch, '"reflect"', '"edge"'), "padding a reflection"),
    (exercises.check_augment_batch, changed(augment_batch, ".transpose(0, 2, 3, 1)", "",
                                            "[:, :, ::-1]", "[..., ::-1]"),
     r"result has shape \(81, 3, 6, 8\)"),
    (exercises.check_augment_batch, lambda *a: augment_batch(*a) / 255, "keep the type"),
    (exercises.check_my_shards, lambda shards, rank, size: shards, "Use rank and size"),
    (exercises.check_my_shards, lambda shards, rank, size: shards[rank::size], "by every worker of a rank"),
    (exercises.check_my_shards, changed(my_shards, "size * count]", "size + count]"), "read by no reader"),
    (exercises.check_my_shards, changed(my_shards, "rank * count + number", "rank + number"),
     "is read 2 times"),
    (exercises.check_my_shards, lambda shards, rank, size: range(8), "yield the given paths"),
    (exercises.check_load_on_node, changed(load_on_node, "if local_rank == 0", "if True"),
     "Only local rank 0 downloads"),
    (exercises.check_load_on_node, changed(load_on_node, "    barrier()\n", "        barrier()\n"),
     "wait for ever"),
    (exercises.check_load_on_node,
     lambda r, download, barrier, load: (barrier(), r == 0 and download(), load())[2], "before the download"),
    (exercises.check_load_on_node,
     lambda r, download, barrier, load: (r == 0 and download(), load(), barrier())[1], "half written"),
    (exercises.check_load_on_node, changed(load_on_node, "return load()", "load()"), "must return"),
    (exercises.check_load_on_node, changed(load_on_node, "local_rank == 0", "local_rank == 9"),
     "One rank of each node must download"),
    (exercises.check_array_batches, changed(array_batches, "random.permutation(len(labels))",
                                            "np.arange(len(labels))"), "in the order of the array"),
    (exercises.check_array_batches, changed(array_batches, "random.permutation(len(labels))",
                                            "random.integers(0, len(labels), len(labels))"), "exactly once"),
    (exercises.check_array_batches, changed(array_batches, "range(0, len(order), batch_size)",
                                            "range(0, len(order) - 2, batch_size)"), r"expected \[4, 4, 2\]"),
    (exercises.check_array_batches, changed(array_batches, "labels[chosen]", "labels[np.sort(chosen)]"),
     "do not belong together"),
    (exercises.check_array_batches, changed(array_batches, "made = augment_batch(images[chosen], *draw(random, len(chosen)))",  # noqa: E501
                                            "made = images[chosen]"), "not augmented"),
    (exercises.check_array_batches, changed(array_batches, "torch.from_numpy(made)",
                                            "torch.from_numpy(made) / 255"), "expected torch.uint8"),
    (exercises.check_array_batches, changed(array_batches, "*draw(random, len(chosen))",
                                            "*(each.repeat(len(chosen)) for each in draw(random, 1))"),
     "different images only"),
    (lambda after: exercises.check_throughput(3000, after, 24000), 5900, "the gain is 2.0, expected"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "wrong", "says"), MISTAKES)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
