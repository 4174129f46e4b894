"""Wide residual networks in Keras. `hvdlab.torch.wide_resnet` has the same networks in PyTorch."""

import keras
import numpy as np
from keras import layers

from hvdlab import probe_mode
from hvdlab.assessment_networks import CLASSES, blocks_per_group
from hvdlab.record import PIXEL_MEAN, PIXEL_STD


def WideResNet(depth: int = 16, width: int = 10, dtype: str = "float32") -> keras.Model:
    """Return WRN-`depth`-`width` for 32 x 32 colour images, without dropout.

    Input: uint8 images (batch, 32, 32, 3) as `hvdlab.data` returns them. Normalisation is part of the
    network. Output: float32 logits (batch, 10).

    Args:
        depth: number of convolutions, 6 n + 4. Default 16.
        width: factor of the number of channels. Default 10. With depth 16 the network has 17.1 million
            parameters.
        dtype: dtype policy of the layers, such as "mixed_bfloat16". The variables are float32 in any
            case. Default "float32".

    Raises:
        ValueError: `depth` is not 6 n + 4.

    Source: Zagoruyko and Komodakis, Wide Residual Networks, https://arxiv.org/abs/1605.07146
    """
    if probe_mode.COPIES:
        keras.utils.set_random_seed(probe_mode.SEED)
        dtype = probe_mode.DTYPE

    def norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        layer = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, name=name)
        return layers.ReLU(dtype=dtype)(layer(x))

    def conv(
        x: keras.KerasTensor, channels: int, size: int, stride: int, name: str
    ) -> keras.KerasTensor:
        if size == 3:  # one pixel on each side; "same" would add none above if the stride is 2
            x = layers.ZeroPadding2D(1, dtype=dtype)(x)
        # The initialisation of the authors.
        he = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        return layers.Conv2D(
            channels, size, stride, use_bias=False, kernel_initializer=he, dtype=dtype, name=name
        )(x)

    std = np.array(PIXEL_STD)
    images = layers.Input((32, 32, 3), dtype="uint8")
    x = layers.Rescaling((1 / 255 / std).tolist(), (-np.array(PIXEL_MEAN) / std).tolist())(images)
    x = conv(x, 16, 3, 1, "conv1")
    for group, channels in enumerate((16 * width, 32 * width, 64 * width), 1):
        for block in range(1, blocks_per_group(depth) + 1):
            name = f"group{group}.block{block}"
            stride = 2 if group > 1 and block == 1 else 1
            activated = norm(x, f"{name}.norm1")
            y = conv(activated, channels, 3, stride, f"{name}.conv1")
            y = conv(norm(y, f"{name}.norm2"), channels, 3, 1, f"{name}.conv2")
            if x.shape[-1] != channels:
                x = conv(activated, channels, 1, stride, f"{name}.shortcut")
            x = layers.Add(dtype=dtype)([y, x])
    x = layers.GlobalAveragePooling2D(dtype=dtype)(norm(x, "norm"))
    x = layers.Dense(CLASSES, dtype=dtype, name="linear")(x)
    # The logits are float32 even if the layers compute in bfloat16.
    logits = layers.Activation(
        "linear", dtype=probe_mode.DTYPE if probe_mode.COPIES else "float32"
    )(x)
    return keras.Model(images, logits, name=f"wrn-{depth}-{width}")
