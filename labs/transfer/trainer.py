"""A class that trains, as many projects have one, with a schedule of the learning rate."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, train, *, epochs=3, batch_size=32, learning_rate=0.003):
        self.model, self.epochs = model, epochs
        self.loss_of = nn.CrossEntropyLoss()
        self.loader = DataLoader(train, batch_size, shuffle=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, epochs)

    def train(self):
        for epoch in range(self.epochs):
            mean = self.train_epoch()
            self.schedule.step()
            print(f"epoch {epoch}: loss {mean:.3f}")

    def train_epoch(self):
        total = 0.0
        for batch in self.loader:
            total += self.train_step(*batch)
        return total / len(self.loader)

    def train_step(self, points, labels):
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model(points), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def data(count, seed):
    """Points in 16 dimensions in two classes, inside and outside of a sphere. These data are synthetic."""
    points = np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)
    return TensorDataset(
        torch.from_numpy(points), torch.from_numpy((points**2).sum(1) > 15.5).long()
    )


def main():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    Trainer(model, data(2001, 1)).train()


if __name__ == "__main__":
    main()
