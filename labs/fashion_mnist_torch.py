"""Train a small network on Fashion-MNIST with PyTorch, on one process.

    python labs/fashion_mnist_torch.py --epochs 3

Lab 5 converts it to a script for any number of processes; fashion_mnist_keras.py is the same in Keras.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.arguments import above_zero, folder_to_write, from_0_to_1, positive, whole_number
from hvdlab.data import Batches, DataError, load_fashion_mnist
from hvdlab.record import launched_rank
from hvdlab.torch.recorder import Recorder


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=positive, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=positive, default=64, help="images per step and rank")
    parser.add_argument(
        "--lr", type=above_zero, default=0.02, help="learning rate per rank, of a new run"
    )
    parser.add_argument("--momentum", type=from_0_to_1, default=0.9)
    parser.add_argument("--images", type=positive, default=10_000, help="to train on (of 60000)")
    parser.add_argument("--heldout", type=positive, default=10_000, help="held-out images")
    parser.add_argument("--seed", type=whole_number(0), default=1)
    parser.add_argument(
        "--checkpoint",
        type=folder_to_write,
        help="folder to keep checkpoints in, and to resume from",
    )
    return parser.parse_args()


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def main():
    args = parse_args()
    # Processes that mpirun starts draw different numbers, like those of any script that sets
    # no seed. Here they draw the same ones each time: seed + the number that mpirun gave to each.
    seed = args.seed + launched_rank()[0]
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    try:
        data = load_fashion_mnist()
    except DataError as error:
        sys.exit(f"fashion_mnist_torch.py: {error}")
    images, labels = data.train_images[: args.images], data.train_labels[: args.images]
    batches = Batches(images, labels, args.batch_size, seed=seed)
    heldout = data.test_images[: args.heldout], data.test_labels[: args.heldout]

    model, first_epoch = make_model(), 0
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)

    saved = sorted(Path(args.checkpoint).glob("epoch-*.pt")) if args.checkpoint else []
    if saved:
        state = torch.load(saved[-1], map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = int(saved[-1].stem.removeprefix("epoch-")) + 1

    model.to(device)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)  # its momentum follows the weights to the device

    recorder = Recorder(model, batches)
    for epoch in range(first_epoch, args.epochs):
        began, total = time.monotonic(), 0.0
        for x, y in batches.epoch(epoch):
            loss = F.cross_entropy(model(to_input(x, device)), torch.from_numpy(y).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        read = len(batches.examples_read(epoch))
        speed = read / (time.monotonic() - began)

        loss = mean(total, read)
        accuracy = mean(count_right(model, *heldout, device), len(heldout[1]))
        print(
            f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {speed:,.0f} images/s",
            flush=True,
        )
        if args.checkpoint:
            save(Path(args.checkpoint), epoch, model, optimizer)
        rate = optimizer.param_groups[0]["lr"]
        recorder.epoch_end(
            epoch, loss=loss, accuracy=accuracy, images_per_second=speed, learning_rate=rate
        )


def to_input(images, device):
    return torch.tensor(images, device=device).permute(0, 3, 1, 2) / 255


def count_right(model, images, labels, device):
    """How many of the images the model classifies right."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(images), 500):
            part = slice(start, start + 500)
            answers = model(to_input(images[part], device)).argmax(1).cpu().numpy()
            right += (answers == labels[part]).sum()
    return float(right)


def mean(total, count):
    return total / count


def save(folder, epoch, model, optimizer):
    """Save the model and its optimizer: the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "part.pt")
    os.replace(folder / "part.pt", folder / f"epoch-{epoch:03d}.pt")


if __name__ == "__main__":
    main()
