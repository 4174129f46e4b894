"""Train on Fashion-MNIST with elastic Horovod: ranks can be lost and added during the run.

    horovodrun --gloo -np 2 --min-np 1 --host-discovery-script ./hosts.sh \\
        python labs/fashion_mnist_elastic.py

You write hosts.sh, and make it executable (chmod +x). Horovod runs it every second. It must print one line
for each host that Horovod may use now, such as `host1:2`. To try this on one machine, let it print
`localhost:1` and `127.0.0.1:1`: Horovod treats them as two hosts, and one of them may be lost. In this case
add `--network-interface lo`, because without it horovodrun waits ten minutes for another network interface
and prints nothing.

What happens when the ranks change:

    a rank dies       Horovod ends all ranks of its host, and does not use the host again (or only after a
                      while, with --blacklist-cooldown-range). The ranks of other hosts return to the last
                      commit, and divide the rest of the epoch among them. Without another host the run ends.
    a host is added   At the next commit all ranks stop, new ranks start on the host, and rank 0 sends them
                      its state. No step is lost.
    too few are left  If fewer than --min-np ranks are left, they wait ten minutes (--elastic-timeout) for
                      new ones.

A slot of a host with GPUs uses the GPU with its number, so a host offers as many slots as it has GPUs.
Without GPUs, or with a Horovod that was built without NCCL, all ranks train on the processor.

A commit is a copy in the memory of each rank. It is lost when the last rank ends. To keep the state, write
checkpoints.
"""

import argparse
import sys

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.arguments import above_zero, from_0_to_1, positive, whole_number
from hvdlab.data import DataError, load_fashion_mnist


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=positive, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=positive, default=64, help="images per step and rank")
    parser.add_argument("--lr", type=above_zero, default=0.02, help="learning rate, per rank")
    parser.add_argument("--momentum", type=from_0_to_1, default=0.9)
    parser.add_argument("--images", type=positive, default=10_000, help="to train on (of 60000)")
    parser.add_argument("--heldout", type=positive, default=10_000, help="held-out images")
    parser.add_argument("--commit", type=positive, default=10, help="steps between two commits")
    parser.add_argument("--seed", type=whole_number(0), default=1)
    return parser.parse_args()


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def main():
    args = parse_args()
    try:
        data = load_fashion_mnist()
    except DataError as error:
        sys.exit(f"fashion_mnist_elastic.py: {error}")
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())  # `sync` makes the models equal, not the seed
    device = own_device()
    images, labels = data.train_images[: args.images], data.train_labels[: args.images]

    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr * hvd.size(), args.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    # Elastic: the state that a rank needs to continue. Horovod calls its `sync` at the start and whenever
    # the ranks have changed. `sync` broadcasts weights and optimizer, so no other broadcast is needed.
    state = hvd.elastic.TorchState(
        model=model,
        optimizer=optimizer,
        # Elastic: partitions the rest of the epoch among the current ranks.
        sampler=hvd.elastic.ElasticSampler(labels, seed=args.seed),
        epoch=0,
        step=0,
    )

    def ranks_changed():
        # Elastic: N times the batch, N times the learning rate, also after N has changed.
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()
        state.sampler.reset()

    state.register_reset_callbacks([ranks_changed])

    @hvd.elastic.run  # Elastic: calls `train` again, from the last commit, when the ranks have changed
    def train(state):
        losses = []
        while state.epoch < args.epochs:
            for number, chosen in enumerate(batches(state.sampler, args.batch_size)):
                logits = model(to_input(images[chosen], device))
                loss = F.cross_entropy(logits, torch.tensor(labels[chosen], device=device).long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

                state.sampler.record_batch(number, args.batch_size)
                state.step += 1
                if state.step % args.commit == 0:
                    mean = average(sum(losses) / len(losses), "loss")
                    rate = optimizer.param_groups[0]["lr"]
                    say(f"step {state.step}  loss {mean:.3f}  ranks {hvd.size()}  rate {rate:g}")
                    losses = []
                    state.commit()  # Elastic: if a host was added, `train` is left here

            accuracy = heldout_accuracy(model, data, args.heldout, device)
            say(f"epoch {state.epoch}  held-out {accuracy:.3f}  ranks {hvd.size()}")
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    train(state)


def own_device():
    """Return the GPU with the number of this rank on its host, or the processor.

    Elastic: `hvdlab.torch.device.rank_device` compares the GPUs of all ranks by a collective, which would
    miss the ranks that are added later. NCCL refuses two ranks on one GPU, so a rank without a GPU ends.
    """
    gpus = torch.cuda.device_count() if hvd.nccl_built() else 0
    if 0 < gpus <= hvd.local_rank():
        sys.exit(
            f"fashion_mnist_elastic.py: slot {hvd.local_rank()} of this host (counted from 0) has no GPU of "
            f"its own, because the host has {gpus}: let the host discovery script print HOST:{gpus}."
        )
    if not gpus:
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank())
    return torch.device("cuda", hvd.local_rank())


def batches(sampler, size):
    """Return the indices of this rank's images in batches, equally many on each rank."""
    mine = list(sampler)
    return [mine[start : start + size] for start in range(0, len(mine), size)]


def to_input(images, device):
    return torch.tensor(images, device=device).permute(0, 3, 1, 2) / 255


def heldout_accuracy(model, data, count, device):
    """Return the fraction of held-out images that the model classifies right; each rank evaluates a shard."""
    images, labels = data.test_images[:count], data.test_labels[:count]
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    right = 0
    with torch.inference_mode():
        for start in range(0, len(images), 500):
            part = slice(start, start + 500)
            answers = model(to_input(images[part], device)).argmax(1).cpu().numpy()
            right += (answers == labels[part]).sum()
    # Elastic: sum over the ranks, because their shards may differ by one image
    return average(float(right), "right", hvd.Sum) / average(float(len(labels)), "count", hvd.Sum)


def average(value, name, op=hvd.Average):
    return hvd.allreduce(torch.tensor(value), name=name, op=op).item()


def say(line):
    if hvd.rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
