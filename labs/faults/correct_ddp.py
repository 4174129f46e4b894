"""Train a small network on Fashion-MNIST with DDP. The faults are edits of this script."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hvdlab.data import load_fashion_mnist

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    gpu = torch.cuda.device_count() > local_rank
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(dist.get_rank())
    data = load_fashion_mnist()
    images = torch.tensor(data.train_images[:4096]).permute(0, 3, 1, 2) / 255
    train = TensorDataset(images, torch.tensor(data.train_labels[:4096]).long())
    sampler = DistributedSampler(train)
    loader = DataLoader(train, BATCH_SIZE, sampler=sampler)

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    model.to(device)
    parallel = DistributedDataParallel(model)
    rate = RATE * dist.get_world_size()
    optimizer = torch.optim.SGD(parallel.parameters(), lr=rate, momentum=0.9)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=device)
        for x, y in loader:
            loss = F.cross_entropy(parallel(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        mean = total.item() / len(loader) / dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
