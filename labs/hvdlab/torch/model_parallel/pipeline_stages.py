"""Stages of `ResidualMLP` for a pipeline, and batches that every rank can generate.

For example:

    network = ResidualMLP(num_layers=8)
    first, second = stage(network, 0, 2), stage(network, 1, 2)
    logits = second(first(images))  # equal to network(images)
"""

import torch
from torch import nn

from hvdlab.torch.lab_networks import ResidualMLP


def stage(network: ResidualMLP, index: int, stages: int) -> nn.Sequential:
    """Return one stage of a network. All stages have the same number of blocks, in order.

    The first stage also has the stem, and the last stage the norm and the head. The stage shares its
    parameters with the network.

    Args:
        network: the whole network.
        index: number of the stage, from 0.
        stages: number of stages, a divisor of the number of blocks.

    Returns:
        a module. The first stage takes images (batch, 1, size, size). The stages in between take and
        return (batch, hidden_size). The last stage returns logits (batch, classes).

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
    """Return the batch of a step, which is equal on every rank.

    Each of the ten classes has its own pattern, under noise that is three times as strong. So a network
    can learn something without a download.

    Args:
        step: number of the step, from 0, which seeds the random numbers.
        batch_size: number of examples.
        image_size: height and width of an image.

    Returns:
        images float32 (batch_size, 1, image_size, image_size) and labels int64 (batch_size,).
    """
    shape = (1, image_size, image_size)
    patterns = torch.randn(10, *shape, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(1 + step)
    labels = torch.randint(10, (batch_size,), generator=random)
    return patterns[labels] + 3 * torch.randn(batch_size, *shape, generator=random), labels
