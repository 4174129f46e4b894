"""Train a network on CIFAR-10 with PyTorch, on one process.

    python assessment.py

Your task: make `mpirun -np N python assessment.py` reach the target in time, see ../README.md.
"""

import argparse
import math
import time

import torch
from torch.nn import functional as F

from hvdlab.data import Batches, load_cifar10
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.models import assessment_network, autocast
from hvdlab.torch.recorder import Recorder


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=int, default=128, help="images in a step")
    parser.add_argument("--lr", type=float, default=0.25, help="largest learning rate")
    parser.add_argument("--warmup", type=float, default=0.45, help="epochs in which it rises")
    parser.add_argument("--decay", type=float, default=1.9, help="epochs in which it falls again")
    parser.add_argument("--momentum", type=float, default=0.9, help="Nesterov momentum")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    data = load_cifar10()
    batches = Batches(
        data.train_images, data.train_labels, args.batch_size, seed=args.seed, augment=True
    )
    # A GPU augments the images itself, so that it does not wait for the processor.
    on_device = DeviceBatches(batches, device)

    model = assessment_network().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, nesterov=True
    )

    def learning_rate(step):  # as a part of --lr: up in a line, down in half a cosine
        epoch = (step + 1) / len(batches)
        falling = min(max(epoch - args.warmup, 0) / args.decay, 1)
        rising = epoch / args.warmup if args.warmup else 1
        return min(rising, max((1 + math.cos(math.pi * falling)) / 2, 0.02))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    recorder = Recorder(model, batches)

    started = time.monotonic()
    for epoch in range(args.epochs):
        model.train()
        total_loss = torch.zeros((), device=device)
        for images, labels in on_device.epoch(epoch):
            with autocast(device):
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            # Added up on the device: reading it in each step would make the processor wait for the GPU.
            total_loss += loss.detach() * len(images)

        loss = total_loss.item() / len(data.train_images)
        accuracy = evaluate(model, data.test_images, data.test_labels, device)
        recorder.epoch_end(epoch, loss=loss, accuracy=accuracy)
        seconds = time.monotonic() - started
        print(f"epoch {epoch}  loss {loss:.3f}  held-out accuracy {accuracy:.3f}  {seconds:.1f} s")


def evaluate(model, images, labels, device):
    """Part of the images that the model classifies right."""
    model.eval()
    right = 0
    with torch.inference_mode(), autocast(device):
        for start in range(0, len(images), 500):
            logits = model(torch.from_numpy(images[start : start + 500]).to(device))
            right += (logits.argmax(1).cpu().numpy() == labels[start : start + 500]).sum()
    return right / len(images)


if __name__ == "__main__":
    main()
