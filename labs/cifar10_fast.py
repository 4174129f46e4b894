"""Train a small network to 94 % on CIFAR-10's test images in seconds, on one GPU or several.

    python labs/cifar10_fast.py --runs 3
    mpirun -np 2 python labs/cifar10_fast.py
    python labs/cifar10_fast.py --images 500 --epochs 1 --width 8      # a trial run on the processor

On a GPU, labs/cifar10_torch.py mostly waits: for images from the processor, and for the launch of many small
kernels. Here the images stay on the GPU and are augmented there, convolutions run in
channels-last order and bfloat16, and no step waits for the device. The recipe is that of airbench94 (Jordan,
94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024, arXiv:2404.00498): a frozen whitening layer, identity
initialisation, batch norm without scales, label smoothing, a learning rate that rises and falls, alternating
flips, averaged weights, and six views of each test image. The code is our own.
"""

import argparse
import json
import sys
import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.arguments import above_zero, positive, whole_number
from hvdlab.data import DataError, load_cifar10
from hvdlab.record import PIXEL_MEAN, PIXEL_STD
from hvdlab.torch.device import rank_device
from hvdlab.torch.schedules import Schedule

BATCH = 1024  # images per step, of all ranks together
MOMENTUM = 0.85
# SGD with Nesterov momentum moves 1 + 1 / (1 - MOMENTUM) times as far as its gradient.
STEP_LENGTH = 1 + 1 / (1 - MOMENTUM)
LEARNING_RATE = 11.5 / STEP_LENGTH  # for the mean loss of a batch of 1024 images
BIAS_FACTOR = 64.0  # times the learning rate, for the biases of batch norm
WEIGHT_DECAY = 0.0153 / STEP_LENGTH  # of a weight per step, independent of the learning rate
LABEL_SMOOTHING = 0.2
WHITENING_EPOCHS = 3  # in which the bias of the first layer is trained
AVERAGE_EVERY, AVERAGE_DECAY = 5, 0.95**5


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=above_zero, default=9.9)
    parser.add_argument("--runs", type=positive, default=1, help="trainings, with one seed each")
    parser.add_argument("--seed", type=whole_number(0), default=1, help="of the first run")
    parser.add_argument("--images", type=positive, help="train on the first so many only")
    parser.add_argument("--width", type=positive, default=64, help="channels of the first block")
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")
    return parser.parse_args()


# --- network ------------------------------------------------------------------------------------------


class Convolution(nn.Conv2d):
    """3 x 3 convolution without bias. Its first `channels_in` filters start as the identity."""

    def __init__(self, channels_in: int, channels_out: int):
        super().__init__(channels_in, channels_out, 3, padding=1, bias=False)
        nn.init.dirac_(self.weight.data[:channels_in])


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm with a bias and no scale. A large momentum fits its statistics to a short run."""
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    layer.weight.requires_grad = False
    return layer


class Block(nn.Sequential):
    def __init__(self, channels_in: int, channels_out: int):
        super().__init__(
            Convolution(channels_in, channels_out), nn.MaxPool2d(2), batch_norm(channels_out), nn.GELU(),
            Convolution(channels_out, channels_out), batch_norm(channels_out), nn.GELU(),
        )  # fmt: skip


class FastNet(nn.Module):
    """Input: normalised images (batch, 3, 32, 32). Output: logits (batch, 10)."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        self.blocks = nn.Sequential(
            Block(24, width), Block(width, 4 * width), Block(4 * width, 4 * width)
        )
        self.linear = nn.Linear(4 * width, 10, bias=False)

    def forward(self, images):
        x = self.blocks(F.gelu(self.whitening(images)))
        return self.linear(F.max_pool2d(x, 3).flatten(1)) / 9


@torch.no_grad()
def set_whitening(layer: nn.Conv2d, images: torch.Tensor) -> None:
    """Set the filters to the 12 principal components of all 2 x 2 patches, with variance 1 and both signs."""
    patches = F.unfold(images, 2).transpose(1, 2).reshape(-1, 12).double()
    variances, components = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (components / (variances + 5e-4).sqrt()).T.flip(0).reshape(12, 3, 2, 2)
    layer.weight.copy_(torch.cat([filters, -filters]))
    layer.bias.zero_()


# --- images, on the device ------------------------------------------------------------------------------


def normalised(images, device) -> torch.Tensor:
    """Convert uint8 (n, 32, 32, 3) to float (n, 3, 32, 32), channels-last in memory."""
    x = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(c, device=device).view(1, 3, 1, 1) for c in (PIXEL_MEAN, PIXEL_STD))
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


class Augmented:
    """All images, shifted by -2 to 2 pixels in both directions, and mirrored in every other epoch.

    A random half of the images, drawn once, starts mirrored. All ranks draw the same numbers, so that they
    see the same permutation and can take every size-th image of a batch.
    """

    def __init__(self, images: torch.Tensor, seed: int):
        self.generator = torch.Generator(images.device).manual_seed(seed)
        self.padded = F.pad(images, (2,) * 4, "reflect")
        half = (
            torch.rand(len(images), 1, 1, 1, generator=self.generator, device=images.device) < 0.5
        )
        self.padded = torch.where(half, self.padded.flip(3), self.padded)

    def epoch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images (n, 3, 32, 32) in their order, and a permutation of their indices."""
        n, device = len(self.padded), self.padded.device
        down, right = torch.randint(0, 5, (2, n, 1), generator=self.generator, device=device)
        rows, columns = (
            down + torch.arange(32, device=device),
            right + torch.arange(32, device=device),
        )
        which = torch.arange(n, device=device)[:, None, None]
        pixels = self.padded.permute(0, 2, 3, 1)  # a view in the order of the memory
        images = pixels[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        images = images.flip(3) if number % 2 else images
        return images, torch.randperm(n, generator=self.generator, device=device)


# --- training -------------------------------------------------------------------------------------------


def learning_rate(peak: float, steps: int):
    """Return a schedule: from 0.2 peak up to the peak at 23 % of the steps, then down to 0.07 peak."""
    top = max(1, int(0.23 * steps))

    def rate(step: int) -> float:
        rising = 0.2 + 0.8 * step / top
        falling = 1 - 0.93 * (step - top) / max(1, steps - top)
        return peak * min(rising, falling)

    return rate


def train(data, args, seed: int, mine) -> tuple[float, float]:
    """Train once. Return (seconds, accuracy on the test images).

    The seconds include everything after the file is read: copies to the device, augmentation, training and
    the evaluation of the test images.
    """
    device, rank, size = mine.device, hvd.rank(), hvd.size()
    began = now(device)
    torch.manual_seed(seed)
    images = normalised(data.train_images[: args.images], device)
    labels = torch.from_numpy(data.train_labels[: args.images]).long().to(device)
    test_images = normalised(data.test_images, device)
    batch = min(BATCH, len(images)) // size * size
    steps_per_epoch = len(images) // batch
    steps = max(1, round(args.epochs * steps_per_epoch))

    model = FastNet(args.width)
    hvd.broadcast_parameters(
        model.state_dict(), root_rank=0
    )  # while the weights are in host memory
    model = model.to(device, memory_format=torch.channels_last)
    set_whitening(model.whitening, images[:5000])
    biases = [m.bias for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    others = [p for p in model.parameters() if p.requires_grad and all(p is not b for b in biases)]
    rate = LEARNING_RATE * batch / BATCH  # linear scaling
    peaks = [rate * BIAS_FACTOR, rate]
    optimizer = torch.optim.SGD(
        [
            {"params": params, "lr": peak, "weight_decay": WEIGHT_DECAY * batch / BATCH / peak}
            for params, peak in zip((biases, others), peaks, strict=True)
        ],
        momentum=MOMENTUM,
        nesterov=True,
    )
    # Horovod does not accept gradients of channels-last weights. `compression` converts them.
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=[(n, p) for n, p in model.named_parameters() if p.requires_grad],
        compression=mine.compression,
    )
    scheduler = Schedule(optimizer, [learning_rate(peak, steps) for peak in peaks])
    averaged = {name: value.clone() for name, value in model.state_dict().items()}
    augmented = Augmented(images, seed)

    for step in range(steps):
        epoch, position = divmod(step, steps_per_epoch)
        if position == 0:
            shown, order = augmented.epoch(epoch)
        chosen = order[position * batch : (position + 1) * batch][rank::size]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(
                model(shown[chosen]), labels[chosen], label_smoothing=LABEL_SMOOTHING
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.synchronize()  # Horovod's all-reduce, which step() would do
        # No gradient, because with a gradient of zero momentum would still change it.
        if epoch >= WHITENING_EPOCHS:
            model.whitening.bias.grad = None
        with optimizer.skip_synchronize():
            optimizer.step()
        scheduler.step()
        if (step + 1) % AVERAGE_EVERY == 0:
            average(model, averaged, AVERAGE_DECAY * (step / steps) ** 3)
    average(model, averaged, 1.0)
    right = correct(model, test_images, torch.from_numpy(data.test_labels).to(device), rank, size)
    counts = hvd.allreduce(
        torch.tensor([right, float(len(test_images))]), op=hvd.Sum, name="accuracy"
    )
    return now(device) - began, (counts[0] * size / counts[1]).item()


@torch.no_grad()
def average(model, averaged: dict, decay: float) -> None:
    """Move the averaged weights towards the weights, and the weights onto the average (Lookahead)."""
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            averaged[name].lerp_(value, 1 - decay)
            value.copy_(averaged[name])


@torch.no_grad()
def correct(model, images, labels, rank: int, size: int) -> float:
    """Return how many of this rank's test images are classified right, by the mean logits of six views.

    The whole image has half of the weight, two shifts by one pixel have the other half. Each view is also
    mirrored.
    """
    model.eval()
    right = torch.zeros((), device=images.device)
    for start in range(rank * 1000, len(images), size * 1000):
        x, y = images[start : start + 1000], labels[start : start + 1000]
        padded = F.pad(x, (1,) * 4, "reflect")
        views = [(x, 0.5), (padded[..., :32, :32], 0.25), (padded[..., 2:, 2:], 0.25)]
        with torch.autocast(
            images.device.type, torch.bfloat16, enabled=images.device.type == "cuda"
        ):
            logits = sum(
                weight * (model(view).float() + model(view.flip(3)).float())
                for view, weight in views
            )
        right += (logits.argmax(1) == y).sum()
    return right.item()


def now(device) -> float:
    """Return the time in seconds, after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    args = parse_args()
    try:
        data = load_cifar10()
    except DataError as error:
        sys.exit(f"cifar10_fast.py: {error}")
    hvd.init()
    mine = rank_device(hvd)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if mine.device.type == "cuda":
        # A first training, not timed, in which cuDNN chooses its kernels.
        train(data, argparse.Namespace(**{**vars(args), "epochs": 1.0}), 0, mine)
    for seed in range(args.seed, args.seed + args.runs):
        seconds, accuracy = train(data, args, seed, mine)
        if hvd.rank() == 0 and args.json:
            print(json.dumps({"seed": seed, "seconds": seconds, "accuracy": accuracy}), flush=True)
        elif hvd.rank() == 0:
            print(f"seed {seed}: {seconds:.2f} s, {accuracy:.2%} of the test images", flush=True)


if __name__ == "__main__":
    main()
