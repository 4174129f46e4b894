"""The styles that are graded: each value of each axis at least three times, each sensible pair once."""

from tests.measurements.styles.part import (
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    STRUCTURES,
    Style,
)

# For each framework: (data, exchange) of its styles.
PAIRS = {
    "torch_horovod": (
        *(("whole", "each"), ("shuffled", "fused"), ("split", "accumulate2"), ("cache", "fp16")),
        *(("broadcast", "accumulate4"), ("loader", "each"), ("shuffled", "fp16")),
    ),
    "torch_allreduce": (
        *(("whole", "scattered"), ("shuffled", "server"), ("split", "fused"), ("loader", "fp16")),
        *(("broadcast", "each"), ("cache", "accumulate2"), ("shuffled", "scattered")),
    ),
    "torch_ddp": (
        *(("whole", "fp16"), ("shuffled", "each"), ("split", "each"), ("cache", "fused")),
        *(("broadcast", "accumulate2"), ("loader", "accumulate4")),
    ),
    "torch_mpi4py": (
        *(("whole", "each"), ("shuffled", "fused"), ("split", "server"), ("cache", "scattered")),
        *(("broadcast", "fused"), ("loader", "accumulate4"), ("whole", "server")),
    ),
    "keras_fit": (
        *(("whole", "fused"), ("shuffled", "each"), ("split", "fp16"), ("cache", "accumulate2")),
        *(("broadcast", "each"), ("tfdata", "each"), ("whole", "accumulate4")),
    ),
    "keras_step": (
        *(("whole", "each"), ("shuffled", "scattered"), ("split", "each"), ("cache", "fused")),
        *(("broadcast", "fp16"), ("tfdata", "accumulate2")),
    ),
    "keras_tape": (
        *(
            ("whole", "each"),
            ("shuffled", "accumulate4"),
            ("split", "scattered"),
            ("cache", "each"),
        ),
        *(("broadcast", "fused"), ("tfdata", "fp16"), ("shuffled", "fused")),
    ),
    "keras_legacy": (
        *(("whole", "each"), ("shuffled", "each"), ("split", "accumulate2"), ("cache", "fp16")),
        *(("broadcast", "fused"), ("tfdata", "each")),
    ),
    "keras_torch": (
        *(("whole", "each"), ("shuffled", "accumulate2"), ("split", "fused"), ("cache", "each")),
        *(("broadcast", "fp16"), ("loader", "each"), ("shuffled", "each")),
    ),
}
# Further styles that keep every rule of the task page, so that at least 60 do.
FURTHER = (
    *(("torch_horovod", "split", "accumulate4"), ("torch_horovod", "cache", "fused")),
    *(("torch_allreduce", "whole", "accumulate2"), ("torch_allreduce", "split", "server")),
    *(("torch_ddp", "shuffled", "fused"), ("torch_ddp", "cache", "accumulate4")),
    *(("torch_mpi4py", "split", "each"), ("torch_mpi4py", "broadcast", "scattered")),
    *(("keras_fit", "shuffled", "accumulate2"), ("keras_fit", "cache", "fp16")),
    *(("keras_step", "split", "accumulate2"), ("keras_step", "broadcast", "each")),
    *(("keras_tape", "broadcast", "each"), ("keras_legacy", "whole", "accumulate2")),
    ("keras_torch", "cache", "accumulate2"),
)
# Styles with randomness of their own. They are few, because the probe of today fails all of them, so that
# nothing else can be learned from them.
RANDOMNESS = {
    ("torch_mpi4py", "whole", "each"): "own",
    ("torch_allreduce", "loader", "fp16"): "own",
    ("keras_tape", "whole", "each"): "own",
    ("keras_fit", "tfdata", "each"): "own",
    ("torch_allreduce", "shuffled", "server"): "mixup",
    ("torch_ddp", "shuffled", "each"): "mixup",
    ("keras_legacy", "whole", "each"): "mixup",
    ("keras_torch", "whole", "each"): "mixup",
}
# The least traffic that the rules allow: half of the bytes, in every fourth step.
LEAST_TRAFFIC = "torch_horovod", "torch_ddp", "keras_fit"
# Learning rates for one rank, as the scripts scale them.
RATES = {"sgd": 0.15, "nesterov": 0.175, "adamw": 0.002, "lars": 0.15, "lamb": 0.015}


def styles() -> list[Style]:
    """Return all styles. The other axes rotate with steps of their own, so that they meet in many ways."""
    every = [(framework, *pair) for framework, pairs in PAIRS.items() for pair in pairs]
    every += [(framework, "whole", "accumulate4_fp16") for framework in LEAST_TRAFFIC]
    every += FURTHER
    return [
        Style(
            framework,
            data,
            exchange,
            optimizer=pick(OPTIMIZERS, number, 1, framework, "optimizer"),
            schedule=pick(SCHEDULES, number + number // 4, 1),
            structure=pick(STRUCTURES, number + number // 9, 2),
            regularisation=regularisation(framework, data, exchange, number),
            precision=precision(framework, exchange, number),
        )
        for number, (framework, data, exchange) in enumerate(every)
    ]


def pick(
    values: tuple[str, ...], number: int, stride: int, framework: str = "", axis: str = ""
) -> str:
    if framework == "keras_legacy" and axis == "optimizer":
        values = ("nesterov", "adamw", "sgd")
    return values[number * stride % len(values)]


def regularisation(framework: str, data: str, exchange: str, number: int) -> str:
    """Return the regularisation of a style: own randomness where it is planned, else the next that fits."""
    if (framework, data, exchange) in RANDOMNESS:
        return RANDOMNESS[framework, data, exchange]
    values = ["lab", "smoothing", "clipping", "decay", "ema"]
    if framework == "keras_legacy":  # Horovod's module clips before it averages
        values.remove("clipping")
    if data in ("loader", "tfdata"):  # no Batches, which would augment
        values.remove("lab")
    return values[number * 2 % len(values)]


def precision(framework: str, exchange: str, number: int) -> str:
    """Return a precision that the framework has; legacy Keras follows the task page."""
    if framework == "keras_legacy":
        return "bfloat16"
    values = list(PRECISIONS)
    if not framework.startswith("torch"):
        values.remove("channels_last")
    if exchange == "server" or framework in ("keras_tape", "keras_step"):
        values.remove("scaled_bfloat16")
    # Horovod needs contiguous tensors for its broadcasts, its own compression and its own accumulation.
    strided = exchange != "server" and not exchange.endswith("fp16")
    strided &= not (framework == "torch_horovod" and exchange.startswith("accumulate"))
    if not strided and "channels_last" in values:
        values.remove("channels_last")
    return values[number % len(values)]


def settings(style: Style) -> dict[str, float]:
    """Return epochs, batch size, learning rate and seed of a style."""
    rate = RATES[style.optimizer]
    batch = 48 if style.accumulated == 2 else 32 if style.accumulated == 4 else 96
    return {"epochs": 4, "batch_size": batch, "lr": rate, "seed": 1}
