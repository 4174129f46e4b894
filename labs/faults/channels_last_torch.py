"""A single rank without Horovod trains with this memory layout of the weights, and is faster on a GPU. With
Horovod the script ends before its first step, with an error from inside Horovod.

    mpirun -np 2 python labs/faults/channels_last_torch.py
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from hvdlab.data import load_fashion_mnist

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    hvd.init()
    data = load_fashion_mnist()
    images = torch.from_numpy(data.train_images[:4096]).permute(0, 3, 1, 2) / 255
    labels = torch.from_numpy(data.train_labels[:4096]).long()
    train = TensorDataset(images, labels)
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, BATCH_SIZE, sampler=sampler)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()
    )
    model.extend([nn.Flatten(), nn.Linear(16 * 4 * 4, 10)])
    # The layout in which convolutions are fast on a GPU.
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = hvd.allreduce(torch.tensor(total / len(loader)), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch}  loss {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
