"""Train a network on CIFAR-10 with PyTorch and Horovod, on any number of processes.

    mpirun -np 2 python assessment.py

One solution of the assessment: ../../torch/assessment.py, and the lines marked "Horovod".
"""

import argparse
import math
import time

import horovod.torch as hvd
import torch
from torch.nn import functional as F

from hvdlab.data import Batches, load_cifar10
from hvdlab.torch.device import rank_device
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.models import assessment_network, autocast
from hvdlab.torch.recorder import Recorder


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=int, default=96, help="images in a step, per process")
    parser.add_argument(
        "--lr", type=float, default=0.175, help="largest learning rate, per process"
    )
    parser.add_argument("--warmup", type=float, default=0.45, help="epochs in which it rises")
    parser.add_argument("--decay", type=float, default=1.9, help="epochs in which it falls again")
    parser.add_argument("--momentum", type=float, default=0.9, help="Nesterov momentum")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_args()
    hvd.init()  # Horovod: find the other processes
    # Horovod: a GPU for each process, a GPU that processes share, or the processor
    mine = rank_device(hvd)
    device = mine.device
    torch.manual_seed(args.seed)

    data = load_cifar10()
    batches = Batches(
        data.train_images,
        data.train_labels,
        args.batch_size,
        rank=hvd.rank(),  # Horovod: each process reads its own part, in equally many steps
        size=hvd.size(),
        seed=args.seed,
        augment=True,
    )
    # A GPU augments the images itself, so that it does not wait for the processor.
    on_device = DeviceBatches(batches, device)

    model = assessment_network()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.lr * hvd.size(),  # Horovod: N times the batch, N times the rate, after a warm-up
        momentum=args.momentum,
        nesterov=True,
    )
    # Horovod: begin with the optimizer state and the weights of rank 0. They are still in host memory,
    # which every build of Horovod can send.
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model.to(device)
    # Horovod: average the gradients of all processes before each step.
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=mine.compression
    )

    def learning_rate(step):  # Horovod: warm-up, then down in half a cosine
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

        # Horovod: each process evaluates its part; the averages are the same on all of them.
        part = slice(hvd.rank(), None, hvd.size())
        loss = average(total_loss.item() / len(batches.examples_read(epoch)), "loss")
        accuracy = average(
            evaluate(model, data.test_images[part], data.test_labels[part], device), "accuracy"
        )
        recorder.epoch_end(epoch, loss=loss, accuracy=accuracy)
        seconds = time.monotonic() - started
        if hvd.rank() == 0:  # Horovod: one process speaks
            print(f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {seconds:.1f} s")


def average(value, name):
    """Horovod: the mean of a number over all processes."""
    return hvd.allreduce(torch.tensor(float(value)), name=name).item()


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
