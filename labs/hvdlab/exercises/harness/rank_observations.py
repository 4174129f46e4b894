"""What a rank of a check leaves about what it does: see `rank_in_own_folder`.

Each function changes functions of libraries before the learner's script runs, so it observes what runs, in
whatever style the script is written.
"""

import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

HOROVOD, PROCESS_GROUP, LOADING = "horovod.json", "process_group.json", "loading.json"
BROADCASTS, EVALUATED, TRAINED = "broadcasts.json", "evaluated.json", "trained.json"
PIXELS = 28 * 28  # of an image
_evaluated: set[int] = set()  # checksums


def write(name: str, value: dict | list) -> None:
    """Write a file into the folder of this rank."""
    Path(name).write_text(json.dumps(value), encoding="utf-8")


def write_horovod_rank(in_time: bool) -> None:
    """Write rank and size to horovod.json if Horovod is initialised, and if that was in time."""
    for name in ("horovod.torch", "horovod.tensorflow"):
        hvd = sys.modules.get(name)
        if hvd and hvd.is_initialized() and not Path(HOROVOD).exists():
            write(HOROVOD, {"rank": hvd.rank(), "size": hvd.size(), "in_time": in_time})


def at_optimizer(*arguments: object, **options: object) -> None:
    """Note that the script makes its optimizer, or compiles its model: Horovod must be initialised by now."""
    write_horovod_rank(in_time=True)


def write_process_group() -> None:
    """Write rank, size and backend to process_group.json if torch.distributed is initialised."""
    dist = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        group = {
            "rank": dist.distributed_c10d.get_rank(),
            "size": dist.distributed_c10d.get_world_size(),
        }
        write(PROCESS_GROUP, {**group, "backend": dist.get_backend()})


def before(module: object, name: str, first: Callable) -> None:
    """Make a function of a module or class call another one first, with the same arguments.

    The class that defines a method gets the new one: Keras restores no optimizer into a model whose class has
    a `compile` of its own.
    """
    module = next((cls for cls in getattr(module, "__mro__", ()) if name in vars(cls)), module)
    function = getattr(module, name)

    def both(*arguments: object, **options: object) -> object:
        first(*arguments, **options)
        return function(*arguments, **options)

    setattr(module, name, both)


def watch_process_group(script: str) -> None:
    """Write the process group before it is destroyed, and the lines of the script that broadcast.

    With HVDLAB_FIRST_RANK=F the script is told the ranks F, F + 1, ... PyTorch itself uses the real ones.
    """
    import torch.distributed as dist

    lines = []

    def write_line(*arguments: object, **options: object) -> None:
        frame = sys._getframe(2)
        while frame and frame.f_code.co_filename != script:
            frame = frame.f_back
        if frame:
            lines.append(frame.f_lineno)
            write(BROADCASTS, lines)

    for name in ("broadcast", "broadcast_object_list", "scatter_object_list"):
        before(dist, name, write_line)
    before(dist, "destroy_process_group", lambda *arguments, **options: write_process_group())
    if first := int(os.environ.get("HVDLAB_FIRST_RANK", 0)):
        connect = dist.init_process_group

        def connect_and_pretend(*arguments: object, **options: object) -> None:
            connect(*arguments, **options)
            for name in ("RANK", "WORLD_SIZE"):
                os.environ[f"OMPI_COMM_WORLD_{name.removeprefix('WORLD_')}"] = os.environ[
                    name
                ]  # for records
                os.environ[name] = str(int(os.environ[name]) + first)

        for name in ("get_rank", "get_world_size"):
            real = getattr(dist, name)
            setattr(dist, name, lambda group=None, real=real: real(group) + first * (group is None))
        dist.init_process_group = connect_and_pretend


def watch_training() -> None:
    """Write per epoch the sum of the losses of the images that PyTorch trains on, and their number.

    It also writes which images PyTorch evaluates.
    """
    import torch
    from torch.nn import functional

    from hvdlab.torch.recorder import Recorder

    cross_entropy, sums, epochs = functional.cross_entropy, [0.0, 0], []

    def observed(*arguments: object, **options: object) -> object:
        loss = cross_entropy(*arguments, **options)
        if loss.requires_grad:
            count = len(options["target"] if "target" in options else arguments[1])
            is_mean = options.get("reduction", "mean") == "mean"
            sums[0] += loss.sum().item() * (count if is_mean else 1)
            sums[1] += count
        return loss

    def end_epoch(*arguments: object, **options: object) -> None:
        epochs.append(list(sums))
        sums[:] = 0.0, 0
        write(TRAINED, epochs)

    def evaluate(module: object, inputs: tuple) -> None:
        images = inputs[0] if inputs else None
        if (
            not torch.is_grad_enabled()
            and isinstance(images, torch.Tensor)
            and images.ndim
            and len(images)
        ):
            write_evaluated(images.cpu().numpy())

    functional.cross_entropy = observed
    before(torch.optim.Optimizer, "__init__", at_optimizer)
    before(Recorder, "epoch_end", end_epoch)
    torch.nn.modules.module.register_module_forward_pre_hook(evaluate)


def watch_keras() -> None:
    """Write which images Keras evaluates."""
    import keras

    def evaluate(model: object, x: object = None, *arguments: object, **options: object) -> None:
        if hasattr(x, "shape"):
            write_evaluated(np.asarray(x))

    before(keras.Model, "evaluate", evaluate)
    before(keras.Model, "compile", at_optimizer)


def number_images() -> None:
    """Make the records of `Batches` number each image as in the training set, also those of a part of it."""
    from hvdlab import data

    examples_read, numbers = data.Batches.examples_read, {}

    def in_training_set(batches: data.Batches, epoch: int) -> np.ndarray:
        if not numbers:
            images = data.load_fashion_mnist().train_images
            numbers.update((_checksum(image), n) for n, image in reversed([*enumerate(images)]))
        read = examples_read(batches, epoch)
        found = [numbers.get(_checksum(batches.images[index])) for index in read]
        return read if None in found else np.array(found, read.dtype)

    data.Batches.examples_read = in_training_set


def _checksum(image: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(image).tobytes())


def write_evaluated(images: np.ndarray) -> None:
    """Write the checksums of all images that this rank has evaluated; what is no image is left out."""
    if images[0].size == PIXELS:
        _evaluated.update(map(_checksum, images))
        write(EVALUATED, sorted(_evaluated))


def slow_loading(seconds: float) -> None:
    """Make `load_fashion_mnist` slower, and write when it began and ended."""
    from hvdlab import data

    load, calls = data.load_fashion_mnist, []

    def load_slowly(*arguments: object) -> data.Dataset:
        began = time.monotonic()  # of the machine: the clocks of its processes agree
        time.sleep(seconds)
        loaded = load(*arguments)
        calls.append({"began": began, "ended": time.monotonic()})
        write(LOADING, calls)
        return loaded

    data.load_fashion_mnist = load_slowly
