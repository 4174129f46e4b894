"""A plain loop of PyTorch over a DataLoader."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SEED, EPOCHS, BATCH_SIZE, LEARNING_RATE = 0, 3, 32, 0.05


def data(count, seed):
    """Points in 16 dimensions in two classes, inside and outside of a sphere. These data are synthetic."""
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(count, 16)).astype(np.float32)
    return TensorDataset(
        torch.from_numpy(points), torch.from_numpy((points**2).sum(1) > 15.5).long()
    )


train, test = data(2001, 1), data(500, 2)
torch.manual_seed(SEED)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
loader = DataLoader(train, BATCH_SIZE, shuffle=True)

for epoch in range(EPOCHS):
    model.train()
    for points, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        points, labels = test.tensors
        accuracy = (model(points).argmax(1) == labels).float().mean()
    print(f"epoch {epoch}: accuracy {accuracy:.3f}")
