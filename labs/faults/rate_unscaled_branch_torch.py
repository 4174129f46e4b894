"""Two ranks need as many epochs as a single rank. With --adasum they need fewer.

mpirun -np 2 python labs/faults/rate_unscaled_branch_torch.py
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from hvdlab.data import load_fashion_mnist

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--adasum", action="store_true")
    args = parser.parse_args()
    hvd.init()
    data = load_fashion_mnist()
    images = torch.from_numpy(data.train_images[:4096]).permute(0, 3, 1, 2) / 255
    labels = torch.from_numpy(data.train_labels[:4096]).long()
    train = TensorDataset(images, labels)
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, BATCH_SIZE, sampler=sampler)

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    scale = 1
    if args.adasum:
        scale = hvd.local_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * scale, momentum=0.9)
    op = hvd.Adasum if args.adasum else hvd.Average
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=op
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch}  loss {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
