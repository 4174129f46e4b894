"""Train one network on one device, with three techniques that save memory or time.

    python labs/one_device.py --network mlp --num-layers 8 --hidden-size 512
    python labs/one_device.py --network conv --precision bf16
    python labs/one_device.py --network mlp --batch-size 1024 --checkpointing --accumulate 4

The script uses a GPU if there is one. TF32 exists only on GPUs. On a processor without float16 instructions
fp16 is slow. Labs 12 to 14 train the same networks on several devices.
"""

import argparse
import statistics
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import count, islice

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hvdlab.arguments import above_zero, positive, whole_number
from hvdlab.data import Batches, DataError, load_fashion_mnist
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.lab_networks import ConvNet, ResidualMLP
from hvdlab.torch.memory import held, peak
from hvdlab.torch.precision import use_fast_kernels

NETWORKS = {"mlp": ResidualMLP, "conv": ConvNet}
PRECISIONS = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
WARM_UP = 3  # steps that are not timed, because they allocate memory, and one of them is profiled


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter, description=__doc__.splitlines()[0]
    )
    parser.add_argument("--network", choices=NETWORKS, default="mlp")
    parser.add_argument("--num-layers", type=positive, default=4, help="blocks, or convolutions")
    parser.add_argument("--hidden-size", type=positive, default=256, help="width, or channels")
    parser.add_argument(
        "--image-size",
        type=positive,
        default=64,
        help="pixels of a side, enlarged from 28",
    )
    parser.add_argument("--batch-size", type=positive, default=128, help="images in a step")
    parser.add_argument("--lr", type=above_zero, default=1e-3, help="of Adam")
    parser.add_argument(
        "--loss-weight", type=above_zero, default=1.0, help="as of one term of several"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--no-scaling", action="store_true", help="fp16 without loss scaling")
    parser.add_argument("--checkpointing", action="store_true", help="keep the blocks' inputs only")
    parser.add_argument("--accumulate", type=positive, default=1, help="micro-batches in a step")
    parser.add_argument("--steps", type=positive, default=50)
    parser.add_argument("--seed", type=whole_number(0), default=1)
    args = parser.parse_args(arguments)
    if args.accumulate > args.batch_size:
        parser.error(
            f"--accumulate: expected at most the batch size, {args.batch_size}, got {args.accumulate}: "
            "each micro-batch needs an image"
        )
    if args.steps <= WARM_UP:
        parser.error(
            f"--steps: expected more than {WARM_UP}, got {args.steps}: the first {WARM_UP} are not timed"
        )
    if args.network == "conv" and args.image_size < 2**args.num_layers:
        parser.error(
            f"--image-size: expected at least {2**args.num_layers}, because {args.num_layers} "
            f"convolutions halve it each, got {args.image_size}"
        )
    return args


def train(args, report=print):
    """Train, and return time, memory and losses; `report` gets a line every ten steps.

    Returns:
        A dict: "losses" and "scales" (lists, one number a step), "step_seconds" (median of the steps
        after the first three), "peak_bytes" (the most that a step allocates at once beyond what is
        held between two steps: activations, gradients and what the optimizer needs in passing) and
        "held" (bytes between two steps, see `hvdlab.torch.memory.held`).
    """
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_fast_kernels(args.precision != "float32")
    data = load_fashion_mnist()
    if args.batch_size > len(data.train_labels):
        raise DataError(
            f"--batch-size: expected at most {len(data.train_labels)}, the training images in "
            f"{data.folder}, got {args.batch_size}"
        )
    batches = Batches(data.train_images, data.train_labels, args.batch_size, seed=args.seed)

    model = NETWORKS[args.network](args.num_layers, args.hidden_size, args.image_size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    low = PRECISIONS[args.precision] != torch.float32
    scaling = args.precision == "fp16" and not args.no_scaling
    # If it is not enabled, scale(loss) is the loss and step(optimizer) is optimizer.step().
    scaler = torch.amp.GradScaler(device.type, enabled=scaling)
    if args.checkpointing:  # a block keeps only its input, and runs again in the backward pass
        for block in model.blocks if args.network == "mlp" else model.layers:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def step(images, labels):
        total = 0.0
        parts = images.tensor_split(args.accumulate), labels.tensor_split(args.accumulate)
        for x, y in zip(*parts, strict=True):
            # Only the forward pass: backward, each operation runs in the type that it had forward.
            with torch.autocast(device.type, PRECISIONS[args.precision], enabled=low):
                mean = args.loss_weight * F.cross_entropy(model(x), y)
            # Weighted, so that the sum is the mean over the batch.
            loss = mean * (len(y) / len(labels))
            scaler.scale(loss).backward()  # adds to the gradients of the micro-batches before
            total += loss.detach()
        # Divides by the scale first; makes no step if a gradient is inf or nan.
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total  # on the device: total.item() would wait until the device has computed it

    losses, scales, marks = [], [], []
    on_device = DeviceBatches(batches, device)
    for images, labels in islice(forever(on_device, args.batch_size), args.steps):
        images = enlarged(images, args.image_size)
        measured = peak(device) if len(losses) == WARM_UP - 1 else nullcontext()
        began = mark(device)
        with measured as most:
            losses.append(step(images, labels))
        marks.append((began, mark(device)))
        scales.append(scaler.get_scale())
        if most:
            peak_bytes = most.bytes
        if len(losses) % 10 == 0 or len(losses) == args.steps:
            report(
                f"step {len(losses):4}  loss {losses[-1].item():.4f}  "
                f"{1e3 * seconds(*marks[-1]):7.1f} ms"
                + (f"  loss scale {scales[-1]:g}" if scaling else "")
            )
    losses = torch.stack(losses).tolist()  # read from the device once; this waits for it, too
    return {
        "losses": losses,
        "scales": scales,
        "step_seconds": statistics.median(seconds(*pair) for pair in marks[WARM_UP:]),
        "peak_bytes": peak_bytes,
        "held": held(model, optimizer),
    }


def forever(batches, batch_size):
    """Yield whole batches, epoch after epoch."""
    for epoch in count():
        for images, labels in batches.epoch(epoch):
            if len(labels) == batch_size:
                yield images, labels


def mark(device):
    """Return a time stamp, which a GPU takes when it has reached this point of its work."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(began, ended):
    """Return the seconds between two time stamps, after the device has reached both."""
    if isinstance(began, float):
        return ended - began
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3


def enlarged(images, size):
    """Convert uint8 (batch, 28, 28, 1) to float (batch, 1, size, size), from -1 to 1."""
    return F.interpolate(images.permute(0, 3, 1, 2) / 127.5 - 1, (size, size), mode="bilinear")


def main():
    args = parse_args()
    try:
        took = train(args)
    except DataError as error:
        sys.exit(f"one_device.py: {error}")
    held_bytes = ", ".join(f"{name} {n / 1e6:.1f} MB" for name, n in took["held"].items() if n)
    print(f"median step {1e3 * took['step_seconds']:.1f} ms")
    print(f"held: {held_bytes}; a step needs {took['peak_bytes'] / 1e6:.1f} MB more at its peak")


if __name__ == "__main__":
    main()
