"""Train a network on CIFAR-10 with PyTorch's DistributedDataParallel, on any number of processes.

    torchrun --nproc-per-node 2 assessment.py
    mpirun -np 2 python assessment.py

One solution of the assessment without Horovod: ../../torch/assessment.py, and the lines marked "DDP".
"""

import argparse
import math
import time

import torch
from torch import distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from hvdlab.data import Batches, load_cifar10
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.models import assessment_network, autocast
from hvdlab.torch.process_group import group_device, rendezvous
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
    rendezvous()  # DDP: set torchrun's variables if mpirun or srun started this process
    # DDP: a GPU for each process with NCCL; a GPU that processes share, or the processor, with Gloo
    mine = group_device()
    device = mine.device
    distributed.init_process_group(mine.backend)  # DDP: find the other processes
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(args.seed)

    data = load_cifar10()
    batches = Batches(
        data.train_images,
        data.train_labels,
        args.batch_size,
        rank=rank,  # DDP: each process reads its own part, in equally many steps
        size=size,
        seed=args.seed,
        augment=True,
    )
    # A GPU augments the images itself, so that it does not wait for the processor.
    on_device = DeviceBatches(batches, device)

    model = assessment_network().to(device)
    # DDP: begin with the weights of rank 0, and average the gradients of all processes in each backward pass
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=args.lr * size,  # DDP: N times the batch, N times the rate, after a warm-up
        momentum=args.momentum,
        nesterov=True,
    )

    def learning_rate(step):  # DDP: warm-up, then down in half a cosine
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
                loss = F.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            # Added up on the device: reading it in each step would make the processor wait for the GPU.
            total_loss += loss.detach() * len(images)

        # DDP: each process evaluates its part; the averages are the same on all of them.
        part = slice(rank, None, size)
        loss = average(total_loss.item() / len(batches.examples_read(epoch)), device)
        accuracy = average(
            evaluate(model, data.test_images[part], data.test_labels[part], device), device
        )
        recorder.epoch_end(epoch, loss=loss, accuracy=accuracy)
        seconds = time.monotonic() - started
        if rank == 0:  # DDP: one process speaks
            print(f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {seconds:.1f} s")


def average(value, device):
    """DDP: the mean of a number over all processes."""
    total = torch.tensor(float(value), device=device)
    distributed.all_reduce(total)
    return total.item() / distributed.get_world_size()


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
    distributed.destroy_process_group()
