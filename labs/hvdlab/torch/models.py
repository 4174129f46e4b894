"""The networks of the assessment in PyTorch. `hvdlab.keras.models` has the same networks in Keras."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab import probe_mode
from hvdlab.assessment_networks import ASSESSMENT_NET, depth_and_width, given_network
from hvdlab.record import PIXEL_MEAN, PIXEL_STD
from hvdlab.system.hardware import cpu_is_fast_at_bfloat16
from hvdlab.torch.wide_resnet import WideResNet


class AssessmentNet(nn.Module):
    """Convolutional network for 32 x 32 colour images, 392,106 trainable parameters.

    Input: uint8 images (batch, 32, 32, 3) as `hvdlab.data` returns them. Normalisation is part of the
    network, so an evaluation needs nothing but the pixels. Output: float32 logits (batch, 10).

    The images keep their memory order and become a channels-last tensor without a copy, which makes
    convolutions fast on CPUs. The weights stay contiguous, because Horovod's broadcast needs that.
    """

    def __init__(self) -> None:
        super().__init__()
        if probe_mode.COPIES:
            torch.manual_seed(probe_mode.SEED)
        self.conv1 = nn.Conv2d(3, 32, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(128)
        self.conv4 = nn.Conv2d(128, 256, 3, padding=1, bias=False)
        self.norm4 = nn.BatchNorm2d(256)
        self.linear = nn.Linear(256, 10)
        # For (pixel / 255 - mean) / std. They are constants and not part of the state.
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        if probe_mode.COPIES:
            self.to(getattr(torch, probe_mode.DTYPE))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, 10) for uint8 images (batch, 32, 32, 3)."""
        # The memory order stays NHWC and the shape becomes NCHW, which PyTorch calls channels-last.
        x = images.permute(0, 3, 1, 2).to(self.mean.dtype)
        x = (x / 255 - self.mean) / self.std
        x = F.relu(self.conv1(x))
        x = F.relu(self.norm2(F.max_pool2d(self.conv2(x), 2)))
        x = F.relu(self.norm3(F.max_pool2d(self.conv3(x), 2)))
        x = F.relu(self.norm4(self.conv4(x)))
        x = x.amax(dim=(2, 3))
        # Small logits at the start allow a large learning rate.
        return self.linear(x).to(self.mean.dtype) / 4


def assessment_network(name: str | None = None) -> nn.Module:
    """Return the network of the assessment: `AssessmentNet`, or WRN-16-10 in the grader's profile `gpu`.

    Args:
        name: "assessment-net" or "wrn-DEPTH-WIDTH". Default: the environment variable HVDLAB_NETWORK,
            which the grader sets from its profile; "assessment-net" if it is not set.

    Raises:
        ValueError: there is no network of that name.
    """
    name = name or given_network()
    return AssessmentNet() if name == ASSESSMENT_NET else WideResNet(*depth_and_width(name))


def autocast(device: torch.device | str = "cpu") -> torch.autocast:
    """Return a context in which convolutions run in bfloat16 if the device computes fast in it.

    Args:
        device: the device that trains. Default "cpu".

    Returns:
        a context manager. If the device does not compute fast in bfloat16, the context changes nothing.
    """
    if probe_mode.COPIES:
        return torch.autocast("cpu", enabled=False)
    kind = torch.device(device).type
    if kind == "cuda":  # GPUs before Ampere emulate bfloat16, which is slow
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = cpu_is_fast_at_bfloat16()
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=fast)


def recorded_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights and batch-norm statistics of a network by name, without copying them.

    Args:
        model: a network, on any device.

    Returns:
        tensors with the names of `state_dict`. Parts that torch.compile wrapped keep their plain names.
    """
    return {
        name.replace("_orig_mod.", ""): tensor
        for name, tensor in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def to_arrays(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights and batch-norm statistics of a network as float32 arrays, by name.

    Args:
        model: a network, on any device.

    Returns:
        copies, which later training does not change, with the names of `recorded_state`. For a network of
        the assessment names and shapes are those of `hvdlab.assessment_networks`.
    """
    state = recorded_state(model).items()
    return {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in state}


def from_arrays(arrays: dict[str, np.ndarray], network: str = ASSESSMENT_NET) -> nn.Module:
    """Return a network with the weights that `to_arrays` returned, here or in `hvdlab.keras.models`.

    Args:
        arrays: weights and batch-norm statistics by name.
        network: name of the network. Default "assessment-net".

    Raises:
        ValueError: arrays are missing or unexpected; the message names them.
    """
    model = assessment_network(network)
    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ValueError(
            f"arrays must hold the weights of {network}. Missing: {missing}. Unexpected: {unexpected}"
        )
    return model
