"""Train a small network on Fashion-MNIST in one process. Lab 1 runs this script on two ranks."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hvdlab.data import load_fashion_mnist

data = load_fashion_mnist()
images = torch.tensor(data.train_images[:8192]).permute(0, 3, 1, 2) / 255
labels = torch.tensor(data.train_labels[:8192]).long()
batches = DataLoader(TensorDataset(images, labels), batch_size=128, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(1024, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

start = time.perf_counter()
for _ in range(3):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
print(f"three epochs in {time.perf_counter() - start:.1f} s", flush=True)
