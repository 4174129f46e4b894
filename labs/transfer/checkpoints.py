"""A program with arguments that writes a checkpoint after each epoch and resumes from the last one."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def data(count, seed):
    """Points in 16 dimensions in two classes, inside and outside of a sphere. These data are synthetic."""
    points = np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)
    return TensorDataset(
        torch.from_numpy(points), torch.from_numpy((points**2).sum(1) > 15.5).long()
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()

    loader = DataLoader(data(2001, 1), 32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    first = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, args.epochs):
        for points, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, args.checkpoint)


if __name__ == "__main__":
    main()
