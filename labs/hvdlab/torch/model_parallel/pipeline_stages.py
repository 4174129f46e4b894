"""Stages of `ResidualMLP` for a pipeline, and batches that every rank can make for itself.

network = ResidualMLP(num_layers=8)
first, second = stage(network, 0, 2), stage(network, 1, 2)
logits = second(first(images))  # network(images)
"""

import torch
from torch import nn

from hvdlab.torch.lab_networks import ResidualMLP


def stage(network: ResidualMLP, index: int, stages: int) -> nn.Sequential:
    """Part `index` of `stages` of a network: as many blocks as each other part, in order.

    The first has the stem, too, and the last the norm and the head. The parameters are those of the
    network. Images (batch, 1, size, size) go into the first; (batch, hidden_size) goes from one to
    the next; logits (batch, classes) come out of the last.

    Raises:
        ValueError: the blocks do not divide evenly.
    """
    blocks = list(network.blocks)
    if len(blocks) % stages:
        raise ValueError(
            f"stages: expected a divisor of {len(blocks)}, the blocks of the network, got {stages}"
        )
    each = len(blocks) // stages
    first = [nn.Flatten(), network.stem] if index == 0 else []
    last = [network.norm, network.head] if index == stages - 1 else []
    return nn.Sequential(*first, *blocks[index * each : (index + 1) * each], *last)


def batch(step: int, batch_size: int, image_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (batch_size, 1, image_size, image_size) and labels of a step; equal on every rank.

    Each of the ten classes is a pattern of its own, under noise three times as strong: there is
    something to learn, and nothing to download.
    """
    shape = (1, image_size, image_size)
    patterns = torch.randn(10, *shape, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(1 + step)
    labels = torch.randint(10, (batch_size,), generator=random)
    return patterns[labels] + 3 * torch.randn(batch_size, *shape, generator=random), labels
