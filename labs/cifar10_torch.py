"""Train the assessment network on CIFAR-10 with the optimizer of your choice, on any number of ranks.

    mpirun -np 2 python labs/cifar10_torch.py --optimizer lamb
    python labs/cifar10_torch.py --optimizer lars --batch-size 1024 --epochs 8

After each epoch rank 0 prints the accuracies that the assessment measures. At the end it prints when their
target was reached: 0.75 on training images and 0.70 on held-out ones, in two consecutive epochs.
"""

import argparse
import sys
import time

import horovod.torch as hvd
import torch
from torch.nn import functional as F

from hvdlab.arguments import above_zero, non_negative, positive, whole_number
from hvdlab.course.training_runs import PartTimes
from hvdlab.data import Batches, DataError, load_cifar10
from hvdlab.schedules import cosine_decay, gradual_warmup
from hvdlab.torch import LAMB, LARS, NovoGrad
from hvdlab.torch.device import rank_device
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.models import AssessmentNet, autocast
from hvdlab.torch.precision import use_fast_kernels
from hvdlab.torch.schedules import Schedule

# name: (learning rate for 192 images per step, function of parameters)
OPTIMIZERS = {
    "sgd": (0.35, lambda ps: torch.optim.SGD(ps, lr=1.0, momentum=0.9, nesterov=True)),
    "lars": (0.5, lambda ps: LARS(ps, trust_coefficient=0.02, nesterov=True)),
    "larc": (0.35, lambda ps: LARS(ps, clip=True, nesterov=True)),
    "lamb": (0.02, lambda ps: LAMB(ps)),
    "novograd": (0.03, lambda ps: NovoGrad(ps)),
}


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--epochs", type=positive, default=4, help="passes over the training set")
    parser.add_argument("--batch-size", type=positive, default=96, help="images per step and rank")
    parser.add_argument(
        "--lr", type=above_zero, help="largest learning rate, for the batch of all ranks"
    )
    parser.add_argument(
        "--warmup", type=non_negative, default=0.45, help="epochs in which the learning rate rises"
    )
    parser.add_argument("--images", type=positive, help="train on only the first so many images")
    parser.add_argument("--seed", type=whole_number(0), default=1)
    parser.add_argument(
        "--times", help="file for the times of rank 0: when each part of a step begins"
    )
    args = parser.parse_args()
    if args.warmup >= args.epochs:  # it would rise to the learning rate of the last step, 0
        parser.error(
            f"argument --warmup: expected less than --epochs {args.epochs}, got {args.warmup:g}"
        )
    return args


def main():
    args = parse_args()
    try:
        data = load_cifar10()
    except DataError as error:
        sys.exit(f"cifar10_torch.py: {error}")
    hvd.init()
    mine = rank_device(hvd)  # a GPU, or the processor
    use_fast_kernels()
    torch.manual_seed(args.seed + hvd.rank())  # the broadcast makes the models equal, not the seed

    batches = Batches(
        data.train_images[: args.images],
        data.train_labels[: args.images],
        args.batch_size,
        rank=hvd.rank(),
        size=hvd.size(),
        seed=args.seed,
        augment=True,
    )
    batches = DeviceBatches(batches, mine.device)

    model = AssessmentNet()
    rate, make_optimizer = OPTIMIZERS[args.optimizer]
    optimizer = make_optimizer(model.parameters())
    # Broadcast while everything is in host memory, because every build of Horovod can send from there. The
    # weights come last: Horovod gives an optimizer without a state one by a step, whose weight decay changes
    # the weights.
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    # The images have channels-last order, so the convolutions compute in it. The weights stay contiguous:
    # Horovod would need contiguous copies of channels-last gradients.
    model.to(mine.device)
    # The optimizer must see the averaged gradient, because the norm of a mean is not the mean of norms.
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=mine.compression
    )

    steps = args.epochs * len(batches)
    peak = args.lr or rate * args.batch_size * hvd.size() / 192  # linear scaling
    schedule = gradual_warmup(
        cosine_decay(peak, steps), warmup_steps=round(args.warmup * len(batches)), start=0.0
    )
    scheduler = Schedule(optimizer, schedule)

    seen = min(10_000, max(1000, args.images or 10_000))  # a short run is evaluated on fewer images
    training = own_part(data.train_images[:seen], data.train_labels[:seen], mine.device)
    heldout = own_part(data.test_images[:seen], data.test_labels[:seen], mine.device)
    started, reached, before = time.monotonic(), None, False
    times = PartTimes()
    for epoch in range(args.epochs):
        model.train()
        times.begin("reading")
        for images, labels in batches.epoch(epoch):
            times.begin("compute")
            with autocast(mine.device):
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # starts an all-reduce for each gradient that is ready
            times.begin("exchange")
            optimizer.synchronize()  # waits for the unfinished ones; step() would do so, too
            times.begin("compute")
            with optimizer.skip_synchronize():
                optimizer.step()
            scheduler.step()
            times.begin("reading")

        times.begin("evaluation")
        on_training, on_heldout = accuracy(model, *training), accuracy(model, *heldout)
        good = on_training >= 0.75 and on_heldout >= 0.70
        seconds = time.monotonic() - started
        if good and before and reached is None:
            reached = f"target reached after epoch {epoch}, {seconds:.1f} s"
        before = good
        if hvd.rank() == 0:
            print(
                f"epoch {epoch}  loss {loss.item():.3f}  train {on_training:.3f}  "
                f"held-out {on_heldout:.3f}  {seconds:.1f} s",
                flush=True,
            )
    times.begin("end")
    if args.times and hvd.rank() == 0:
        times.save(args.times)
    if hvd.rank() == 0:
        print(f"{args.optimizer}, seed {args.seed}: {reached or 'target not reached'}")


def own_part(images, labels, device):
    """Return the images that this rank evaluates, and their labels, on its device."""
    mine = slice(hvd.rank(), None, hvd.size())
    return torch.from_numpy(images[mine]).to(device), torch.from_numpy(labels[mine]).to(device)


def accuracy(model, images, labels):
    """Return the fraction of the images of all ranks that the model classifies right."""
    model.eval()
    # Read once, because a read makes the processor wait.
    right = torch.zeros((), device=images.device)
    with torch.inference_mode(), autocast(images.device):
        for some, wanted in zip(images.split(500), labels.split(500), strict=True):
            right += (model(some).argmax(1) == wanted).sum()
    counts = hvd.allreduce(torch.tensor([right.item(), float(len(labels))]), op=hvd.Sum)
    return (counts[0] / counts[1]).item()


if __name__ == "__main__":
    main()
