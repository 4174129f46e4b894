"""The networks of labs 8 to 11: images in, ten classes out, and as large as you ask for.

`ResidualMLP` is the one that is sharded and split: all its blocks are alike, and nearly all its
weights are in matrices whose sizes you know, so memory and traffic can be foretold with a pencil.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """x + down(gelu(up(norm(x)))): the feed-forward half of a transformer's block.

    Shapes: x (batch, hidden); up (4 hidden, hidden), down (hidden, 4 hidden). 8 hidden^2 + 7 hidden
    parameters.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ResidualMLP(nn.Module):
    """Fully connected network: a stem, `num_layers` blocks, and a head.

    Args:
        num_layers: blocks.
        hidden_size: width between the blocks.
        image_size: images are (batch, 1, image_size, image_size), float.
        classes: of the output, logits (batch, classes).
    """

    def __init__(
        self, num_layers: int = 4, hidden_size: int = 256, image_size: int = 64, classes: int = 10
    ):
        super().__init__()
        self.stem = nn.Linear(image_size**2, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ConvNet(nn.Module):
    """Small convolutional network: `num_layers` times convolution, group norm, ReLU and pooling.

    Args:
        num_layers: each halves height and width, and from the second on doubles the channels.
        hidden_size: channels after the first.
        image_size: images are (batch, 1, image_size, image_size), float; at least 2 ** num_layers.
        classes: of the output, logits (batch, classes).
    """

    def __init__(
        self, num_layers: int = 4, hidden_size: int = 16, image_size: int = 64, classes: int = 10
    ):
        super().__init__()
        if image_size < 2**num_layers:
            raise ValueError(
                f"image_size: expected at least {2**num_layers}, because {num_layers} layers halve "
                f"it each, got {image_size}"
            )
        channels = [1, *(hidden_size * 2**layer for layer in range(num_layers))]
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.GroupNorm(1, after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            for before, after in zip(channels[:-1], channels[1:], strict=True)
        )
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))
