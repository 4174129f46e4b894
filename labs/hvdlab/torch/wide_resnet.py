"""Wide residual networks in PyTorch. `hvdlab.keras.wide_resnet` has the same networks in Keras."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from hvdlab import probe_mode
from hvdlab.assessment_networks import CLASSES, blocks_per_group
from hvdlab.record import PIXEL_MEAN, PIXEL_STD


class Block(nn.Module):
    """Pre-activation residual block: twice batch norm, ReLU and a 3 x 3 convolution, plus a shortcut.

    Args:
        channels_in: channels of the input (batch, channels_in, height, width).
        channels_out: channels of the output (batch, channels_out, height / stride, width / stride).
        stride: stride of the first convolution and of the shortcut.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.changes_channels = channels_in != channels_out
        if self.changes_channels:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block."""
        activated = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(activated))))
        return y + (self.shortcut(activated) if self.changes_channels else x)


class WideResNet(nn.Module):
    """WRN-`depth`-`width` for 32 x 32 colour images, without dropout.

    Input: uint8 images (batch, 32, 32, 3) as `hvdlab.data` returns them. Normalisation is part of the
    network. Output: float32 logits (batch, 10). The convolutions run in channels-last order, which is the
    order of the images. The weights stay contiguous, because Horovod's broadcast needs that.

    Args:
        depth: number of convolutions, 6 n + 4. Default 16.
        width: factor of the number of channels. Default 10. With depth 16 the network has 17.1 million
            parameters.

    Raises:
        ValueError: `depth` is not 6 n + 4.

    Source: Zagoruyko and Komodakis, Wide Residual Networks, https://arxiv.org/abs/1605.07146
    """

    def __init__(self, depth: int = 16, width: int = 10) -> None:
        super().__init__()
        if probe_mode.COPIES:
            torch.manual_seed(probe_mode.SEED)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        before = 16
        for group, channels in enumerate((16 * width, 32 * width, 64 * width), 1):
            blocks = OrderedDict()
            for block in range(1, blocks_per_group(depth) + 1):
                stride = 2 if group > 1 and block == 1 else 1
                blocks[f"block{block}"] = Block(before, channels, stride)
                before = channels
            setattr(self, f"group{group}", nn.Sequential(blocks))
        self.norm = nn.BatchNorm2d(before)
        self.linear = nn.Linear(before, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # the initialisation of the authors
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)
        # For (pixel / 255 - mean) / std. They are constants and not part of the state.
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        if probe_mode.COPIES:
            self.to(getattr(torch, probe_mode.DTYPE))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, 10) for uint8 images (batch, 32, 32, 3)."""
        # The memory order stays NHWC and the shape becomes NCHW, which PyTorch calls channels-last.
        x = images.permute(0, 3, 1, 2).to(self.mean.dtype)
        x = self.conv1((x / 255 - self.mean) / self.std)
        x = self.group3(self.group2(self.group1(x)))
        x = F.relu(self.norm(x)).mean(dim=(2, 3))
        return self.linear(x).to(self.mean.dtype)
