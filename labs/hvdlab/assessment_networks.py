"""Names of the networks of the assessment, and names and shapes of their weights.

Standard library only, so that the grader can check an untrusted file of weights without a framework. The
networks themselves are in `hvdlab.torch.models` and `hvdlab.keras.models`.
"""

import os
import re

from hvdlab.record import WEIGHTS

ASSESSMENT_NET = "assessment-net"
VARIABLE = "HVDLAB_NETWORK"  # the grader sets it if its profile requires another network
CLASSES = 10


def given_network() -> str:
    """Return the name of the network to train: `$HVDLAB_NETWORK`, by default "assessment-net"."""
    return os.environ.get(VARIABLE) or ASSESSMENT_NET


def network_weights(network: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the weights and batch-norm statistics of a network.

    Args:
        network: "assessment-net", or "wrn-DEPTH-WIDTH" such as "wrn-16-10".

    Raises:
        ValueError: there is no such network.
    """
    if network == ASSESSMENT_NET:
        return WEIGHTS
    return wide_resnet_weights(*depth_and_width(network))


def depth_and_width(network: str) -> tuple[int, int]:
    """Return depth and width of a wide residual network, such as (16, 10) for "wrn-16-10".

    Raises:
        ValueError: the name does not have this form.
    """
    found = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,3})", network)
    if not found:
        raise ValueError(
            f"network: expected '{ASSESSMENT_NET}' or 'wrn-DEPTH-WIDTH' such as 'wrn-16-10', got "
            f"{network[:40]!r}"
        )
    return int(found[1]), int(found[2])


def blocks_per_group(depth: int) -> int:
    """Return the number of residual blocks per group of a wide residual network: (depth - 4) / 6.

    Args:
        depth: number of layers: 10, 16, 22, 28 and so on.

    Raises:
        ValueError: `depth` is another number.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth: expected 6 n + 4, such as 10, 16 or 28, got {depth}")
    return blocks


def wide_resnet_weights(depth: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the weights of WRN-`depth`-`width`, in the order of the forward pass.

    Convolutions are (out, in, height, width), the linear layer is (out, in). A block's first convolution
    is `group1.block1.conv1`. It has `group1.block1.shortcut` only if it changes the number of channels.

    Args:
        depth: number of layers, as in `blocks_per_group`.
        width: factor of the number of channels, at least 1.

    Raises:
        ValueError: `depth` is not 6 n + 4, or `width` is less than 1.
    """
    blocks = blocks_per_group(depth)
    if width < 1:
        raise ValueError(f"width: expected at least 1, got {width}")
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (16, 3, 3, 3)}

    def norm(name: str, channels: int) -> None:
        for kind in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{kind}"] = (channels,)

    before = 16
    for group, channels in enumerate((16 * width, 32 * width, 64 * width), 1):
        for block in range(1, blocks + 1):
            name = f"group{group}.block{block}"
            norm(f"{name}.norm1", before)
            shapes[f"{name}.conv1.weight"] = (channels, before, 3, 3)
            norm(f"{name}.norm2", channels)
            shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            if before != channels:
                shapes[f"{name}.shortcut.weight"] = (channels, before, 1, 1)
            before = channels
    norm("norm", before)
    return shapes | {"linear.weight": (CLASSES, before), "linear.bias": (CLASSES,)}
