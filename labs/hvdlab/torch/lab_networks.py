"""The networks of labs 9 to 14, of any size: they classify images into ten classes.

`ResidualMLP` is the network that the labs shard and split. All its blocks are alike, and nearly all its
weights are in matrices of known sizes, so memory and traffic can be predicted by hand.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Feed-forward half of a transformer block: x + down(gelu(up(norm(x)))).

    The weight of `up` has the shape (4 hidden, hidden), that of `down` (hidden, 4 hidden). The block has
    8 hidden^2 + 7 hidden parameters.

    Args:
        hidden_size: width of the input and the output, (batch, hidden).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output (batch, hidden) for an input of the same shape."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ResidualMLP(nn.Module):
    """Fully connected network: a stem, `num_layers` blocks, and a head.

    Args:
        num_layers: number of blocks. Default 4.
        hidden_size: width between the blocks. Default 256.
        image_size: height and width of the images. Default 64.
        classes: number of classes. Default 10.
    """

    def __init__(
        self, num_layers: int = 4, hidden_size: int = 256, image_size: int = 64, classes: int = 10
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(image_size**2, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, classes) for float images (batch, 1, image_size, image_size)."""
        x = self.stem(images.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ConvNet(nn.Module):
    """Small convolutional network: `num_layers` times convolution, group norm, ReLU and pooling.

    Args:
        num_layers: number of layers. Each layer halves height and width; each layer after the first
            doubles the number of channels. Default 4.
        hidden_size: number of channels after the first layer. Default 16.
        image_size: height and width of the images, at least 2 ** num_layers. Default 64.
        classes: number of classes. Default 10.

    Raises:
        ValueError: the images are too small for that many layers.
    """

    def __init__(
        self, num_layers: int = 4, hidden_size: int = 16, image_size: int = 64, classes: int = 10
    ) -> None:
        super().__init__()
        if image_size < 2**num_layers:
            raise ValueError(
                f"image_size: expected at least {2**num_layers}, because each of the {num_layers} "
                f"layers halves it, got {image_size}"
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
        """Return logits (batch, classes) for float images (batch, 1, image_size, image_size)."""
        x = images
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))
