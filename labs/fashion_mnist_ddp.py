"""Train a small network on Fashion-MNIST with PyTorch's DistributedDataParallel, on any number of ranks.

    python labs/fashion_mnist_ddp.py --epochs 3
    mpirun -np 2 python labs/fashion_mnist_ddp.py --epochs 3
    torchrun --nproc-per-node 2 labs/fashion_mnist_ddp.py --epochs 3
    srun -n 8 python labs/fashion_mnist_ddp.py --epochs 3

Lab 5 converts the serial script fashion_mnist_torch.py to Horovod. This is the same script, converted to DDP:
the comment `# DDP:` marks each change to the serial script. Lab 12 compares the two conversions.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from hvdlab.arguments import above_zero, folder_to_write, from_0_to_1, positive, whole_number
from hvdlab.data import Batches, DataError, load_fashion_mnist
from hvdlab.torch.process_group import group_device, rendezvous
from hvdlab.torch.recorder import Recorder


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=positive, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=positive, default=64, help="images a step, per rank")
    parser.add_argument("--lr", type=above_zero, default=0.02, help="learning rate, per rank")
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
    # DDP: load before the ranks connect, because a rank without data would leave the others waiting
    try:
        data = load_fashion_mnist()
    except DataError as error:
        sys.exit(f"fashion_mnist_ddp.py: {error}")
    rendezvous()  # DDP: read the number of this rank and the address of rank 0 from the launcher
    chosen = group_device()  # DDP: its own GPU, a GPU that ranks share, or the processor
    device = chosen.device
    # DDP: connect to the other ranks; NCCL connects GPUs, and Gloo sends through host memory
    dist.init_process_group(chosen.backend, device_id=device if chosen.direct else None)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)

    images, labels = data.train_images[: args.images], data.train_labels[: args.images]
    batches = Batches(
        images,
        labels,
        args.batch_size,
        rank=rank,  # DDP: each rank reads its own shard, in equally many steps
        size=size,
        seed=args.seed,  # DDP: the same on all ranks, or their shards would overlap
        style="whole",  # like DistributedSampler with set_epoch in every epoch
    )
    # DDP: each rank evaluates every size-th held-out image, beginning with its own number.
    mine = slice(rank, args.heldout, size)
    heldout = data.test_images[mine], data.test_labels[mine]

    model, first_epoch = make_model().to(device), 0
    # DDP: N times the images per step, so N times the learning rate
    optimizer = torch.optim.SGD(model.parameters(), args.lr * size, args.momentum)

    # DDP: every rank loads the weights and the optimizer's state; the learning rate fits this number of ranks
    saved = sorted(Path(args.checkpoint).glob("epoch-*.pt")) if args.checkpoint else []
    if saved:
        state = torch.load(saved[-1], map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        optimizer.param_groups[0]["lr"] = args.lr * size
        first_epoch = int(saved[-1].stem.removeprefix("epoch-")) + 1
    ends = torch.tensor([first_epoch, -first_epoch], device=device)
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    if ends[0] != -ends[1]:  # DDP: each machine may have its own disk
        sys.exit(
            f"--checkpoint {args.checkpoint}: expected a folder that all ranks share, but one rank would "
            f"continue with epoch {ends[0]} and another with epoch {-ends[1]}: copy it to each machine."
        )

    # DDP: broadcasts rank 0's weights now, and averages the gradients in every backward pass
    parallel = DistributedDataParallel(model)

    recorder = Recorder(model, batches)
    for epoch in range(first_epoch, args.epochs):
        began, total = time.monotonic(), 0.0
        for x, y in batches.epoch(epoch):
            # DDP: forward through the wrapper, which prepares the exchange
            loss = F.cross_entropy(parallel(to_input(x, device)), torch.from_numpy(y).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        read = len(batches.examples_read(epoch))
        speed = read / (time.monotonic() - began)

        loss = mean(total, read, device)
        accuracy = mean(count_right(model, *heldout, device), len(heldout[1]), device)
        if rank == 0:  # DDP: one rank prints
            print(
                f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {speed:,.0f} images/s",
                flush=True,
            )
        if args.checkpoint and rank == 0:  # DDP: one rank writes
            save(Path(args.checkpoint), epoch, model, optimizer)
        rate = optimizer.param_groups[0]["lr"]
        recorder.epoch_end(
            epoch, loss=loss, accuracy=accuracy, images_per_second=speed, learning_rate=rate
        )


def to_input(images, device):
    # DDP: reshape, because permute would give gradients another memory layout than the buckets'
    return torch.tensor(images, device=device).reshape(-1, 1, 28, 28) / 255


def count_right(model, images, labels, device):
    """Return the number of images that the model classifies right."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(images), 500):
            part = slice(start, start + 500)
            answers = model(to_input(images[part], device)).argmax(1).cpu().numpy()
            right += (answers == labels[part]).sum()
    return float(right)


def mean(total, count, device):
    # DDP: sum totals and counts over all ranks, so that each example counts once
    both = torch.tensor([total, count], dtype=torch.float64, device=device)
    dist.all_reduce(both)
    total, count = both.tolist()
    return total / count


def save(folder, epoch, model, optimizer):
    """Save the model and its optimizer: the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    # DDP: save the model itself, because its wrapper puts "module." before each name
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "part.pt")
    os.replace(folder / "part.pt", folder / f"epoch-{epoch:03d}.pt")


if __name__ == "__main__":
    main()
    # DDP: close the connections after main() has freed the wrapped network
    dist.destroy_process_group()
