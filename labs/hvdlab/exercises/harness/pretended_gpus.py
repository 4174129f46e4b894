"""Pretend that a machine has GPUs, to see which one a script chooses.

The script ends where it begins to use a GPU: where it moves a model, or calls `fit` of Keras. The rank leaves
gpu.json: "current", the GPU that the script chose for this process, "model", that of the model, and "helper",
whether a helper of the course chose it. None is the processor, or no choice.
"""

import os

from hvdlab.exercises.harness.rank_observations import write

GPU = "gpu.json"
ALL = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Choice:
    """The GPU that a script chooses.

    Args:
        local_rank: what the helpers of the course choose.
    """

    def __init__(self, local_rank: int) -> None:
        self.local_rank = local_rank
        self.found = {"current": None, "model": None, "helper": False}
        for name in ALL:
            os.environ.pop(name, None)

    def choose(self, index: int | None) -> None:
        """Keep the GPU of this process."""
        self.found["current"] = index

    def end(self, index: int | None) -> None:
        """Keep the GPU of the model, and end the script."""
        if visible := os.environ.get(ALL[0]):  # the GPU 0 that a script sees is the first of these
            numbers = [int(number) for number in visible.split(",")]
            self.found["current"] = numbers[self.found["current"] or 0]
            index = None if index is None else numbers[index]
        write(GPU, {**self.found, "model": index})
        raise SystemExit


def pretend_torch(choice: Choice, count: int) -> None:
    """Pretend it to PyTorch."""
    import torch

    from hvdlab.torch import device as of_horovod
    from hvdlab.torch import process_group

    def set_device(device: object) -> None:
        chosen = device if isinstance(device, int) else torch.device(device).index
        if chosen is not None:
            choice.choose(chosen)

    def move(device: torch.device | None) -> None:
        if device is None or device.type == "cpu":
            choice.end(None)
        choice.end((choice.found["current"] or 0) if device.index is None else device.index)

    def helper(*arguments: object, **options: object) -> of_horovod.RankDevice:
        choice.found["helper"] = True
        choice.choose(choice.local_rank)
        return of_horovod.RankDevice(torch.device("cuda", choice.local_rank), 1, True)

    of_horovod.rank_device = process_group.group_device = helper
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: count
    torch.cuda.current_device = lambda: choice.found["current"] or 0
    torch.cuda.set_device = set_device
    torch.nn.Module.to = lambda _, *given, **named: move(torch._C._nn._parse_to(*given, **named)[0])
    torch.nn.Module.cuda = lambda _, device=None: move(
        torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    )
    if torch.distributed.is_available():
        connect = torch.distributed.init_process_group

        def without_gpu(*arguments: object, **options: object) -> None:
            options = {k: v for k, v in options.items() if k not in ("backend", "device_id")}
            connect("gloo", *arguments[1:], **options)

        torch.distributed.init_process_group = without_gpu


def pretend_keras(choice: Choice, count: int) -> None:
    """Pretend it to Keras, and to TensorFlow if Keras runs on it."""
    import keras

    from hvdlab.keras import device

    def helper(hvd: object) -> device.RankDevice:
        choice.found["helper"] = True
        choice.choose(choice.local_rank)
        return device.RankDevice(f"GPU:{choice.local_rank}", 1, True)

    device.rank_device = helper
    keras.Model.fit = lambda *_, **__: choice.end(choice.found["current"])
    if keras.backend.backend() == "torch":
        pretend_torch(choice, count)
        return
    import tensorflow as tf

    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(count)]

    def set_visible_devices(devices: object, kind: str | None = None) -> None:
        chosen = devices if isinstance(devices, list | tuple) else [devices]
        chosen = [gpus.index(one) for one in chosen if one in gpus]
        if kind != "CPU":
            choice.choose(chosen[0] if len(chosen) == 1 else None)

    for config in (tf.config, tf.config.experimental):
        listed = config.list_physical_devices
        config.list_physical_devices = lambda kind=None, listed=listed: (
            gpus if kind == "GPU" else listed(kind)
        )
        config.set_visible_devices = set_visible_devices
    tf.config.experimental.set_memory_growth = lambda *_: None
