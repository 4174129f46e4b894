"""Compare published figures of data-parallel training with the cost model of `hvdlab.scaling`.

    python -m hvdlab.scaling

There are two experiments.

**Horovod** (Sergeev and Del Balso 2018, arXiv:1802.05799): servers with four Pascal GPUs and one 25 Gbit/s
RoCE card, 64 images per GPU, synthetic data. The images/s of one GPU and of 16 GPUs are in Horovod's README
of 5 September 2017 (commit d54e3a88). The efficiencies at 128 GPUs are in the README of 17 October 2017
(6bb6a2db), and those at 512 GPUs in the README of 10 May 2018 (8318a898) and later. Three constants of the
hardware, the same for all networks, are fitted to the six numbers at 16 and 128 GPUs. The three numbers at
512 GPUs are predicted, with the assumption of the same GPUs. All nine numbers were known when the form of the
model was chosen.

**One weird trick** (Krizhevsky 2014, arXiv:1404.5997, table 1): eight K20 GPUs in one machine. Nothing is
fitted.
"""

from collections.abc import Sequence
from itertools import product

from hvdlab.scaling.all_reduce import Cluster, Link
from hvdlab.scaling.cost_model import Network, forecast, step

# --- three networks ---------------------------------------------------------------------------------


def conv(kernel: int, inputs: int, outputs: int, width: int) -> tuple[int, int]:
    """Return (parameters, multiplications) of a convolution.

    Args:
        kernel: width of the kernel.
        inputs: number of input channels.
        outputs: number of output channels.
        width: of the output image, which is square.
    """
    weights = kernel**2 * inputs * outputs
    return weights + 2 * outputs, weights * width**2


def vgg16() -> list[tuple[int, int]]:
    """Return the layers of VGG-16: 13 convolutions, and three layers with 90 % of the parameters.

    Source: Simonyan and Zisserman 2014.
    """
    layers, inputs = [], 3
    for outputs, width, repeats in (
        (64, 224, 2),
        (128, 112, 2),
        (256, 56, 3),
        (512, 28, 3),
        (512, 14, 3),
    ):
        for _ in range(repeats):
            layers.append(conv(3, inputs, outputs, width))
            inputs = outputs
    return layers + [conv(1, 25088, 4096, 1), conv(1, 4096, 4096, 1), conv(1, 4096, 1000, 1)]


def resnet101() -> list[tuple[int, int]]:
    """Return the layers of ResNet-101: four groups with 3, 4, 23 and 3 bottleneck blocks.

    Source: He et al. 2015.
    """
    layers, inputs = [conv(7, 3, 64, 112)], 64
    for middle, width, blocks in (64, 56, 3), (128, 28, 4), (256, 14, 23), (512, 7, 3):
        for block in range(blocks):
            if block == 0:
                layers.append(conv(1, inputs, 4 * middle, width))
            layers += [conv(1, inputs, middle, width), conv(3, middle, middle, width)]
            layers.append(conv(1, middle, 4 * middle, width))
            inputs = 4 * middle
    return layers + [conv(1, 2048, 1000, 1)]


# Szegedy et al. 2015: thousand parameters and million multiplications of the stem's two halves, of
# the eleven blocks, and of the last layer, counted in keras.applications.InceptionV3.
INCEPTION_V3 = (
    (28.640, 616.6), (143.632, 724.2), (255.440, 312.3), (276.976, 338.7), (284.656, 348.1),
    (1152.640, 401.9), (1295.872, 374.1), (1689.280, 487.7), (1689.280, 487.7), (2140.032, 617.9),
    (1697.024, 291.0), (5041.344, 322.4), (6073.536, 388.5), (2049.000, 2.0),
)  # fmt: skip

NETWORKS = {  # images/s of one Pascal GPU with 64 images per step: Horovod's README, commit d54e3a88
    "Inception V3": Network(tuple((1e3 * n, 1e6 * work) for n, work in INCEPTION_V3), 134.4),
    "ResNet-101": Network(tuple(resnet101()), 119.4),
    "VGG-16": Network(tuple(vgg16()), 130.9),
}
# GPUs -> efficiency. At 16: 2,022.6, 1,746.2 and 1,787.4 images/s, with RDMA and NCCL.
PUBLISHED = {
    "Inception V3": {16: 2022.6 / 16 / 134.4, 128: 0.90, 512: 0.90},
    "ResNet-101": {16: 1746.2 / 16 / 119.4, 128: 0.90, 512: 0.90},
    "VGG-16": {16: 1787.4 / 16 / 130.9, 128: 0.79, 512: 0.68},
}
FITTED_TO = (16, 128)

# --- their cluster ----------------------------------------------------------------------------------

LINE_RATE = 25e9 / 8  # bytes/s of 25 Gbit/s
PCI_EXPRESS = Link(
    5e-6, 12e9
)  # 3.0, 16 lanes: 15.75 GB/s less protocol; never the slower link here
# Result of `fit`: latency of a ring step, the fraction of the line rate that an all-reduce reaches, and the
# jitter of a rank's compute time.
FITTED = (14e-6, 0.84, 0.04)


def pascal_cluster(latency: float, share: float, jitter: float) -> Cluster:
    """Return the cluster of the experiment: servers with four GPUs and one network card of 25 Gbit/s.

    Args:
        latency: of a ring step, in seconds.
        share: fraction of the line rate that an all-reduce reaches.
        jitter: as in `Cluster`.
    """
    return Cluster(Link(latency, share * LINE_RATE), 4, PCI_EXPRESS, jitter)


def fit(anchors: Sequence[int] = FITTED_TO) -> tuple[float, float, float]:
    """Return the constants (latency, share, jitter) with the smallest squared error of the efficiencies.

    It is a search on a grid, because the error has many small minima: gradients move from one buffer to
    the next.

    Args:
        anchors: numbers of GPUs whose efficiencies count.
    """

    def error(constants: tuple[float, float, float]) -> float:
        cluster = pascal_cluster(*constants)
        return sum(
            (network.compute / step(network, cluster, ranks)[1] - PUBLISHED[name][ranks]) ** 2
            for name, network in NETWORKS.items()
            for ranks in anchors
        )

    latencies = [microseconds * 1e-6 for microseconds in range(2, 42, 2)]
    shares = [percent / 100 for percent in range(76, 101, 2)]
    jitters = [permille / 1000 for permille in range(0, 61, 5)]
    return min(product(latencies, shares, jitters), key=error)


# --- one weird trick --------------------------------------------------------------------------------

K20_HOURS = {1: 98.05, 2: 50.24, 4: 26.20, 8: 15.68}  # 90 epochs, 128 images per GPU
EPOCHS, IMAGES = 90, 1_281_167
CONVOLUTIONS = 2_469_696  # parameters of the five: 3-64-192-384-256-256 channels, as in torchvision
ACTIVATIONS = 9216 + 4096 + 4096  # per image, the inputs of the three fully connected layers
SWITCH = 6e9  # bytes/s of PCI Express 2.0, the paper's "about 6 GB/sec"


def one_weird_trick(gpus: int) -> float:
    """Return the hours of training with data-parallel convolutions and model-parallel dense layers.

    Each GPU sends the activations of its 128 images to all other GPUs and receives their gradients. The
    gradients of the convolutions are all-reduced in a ring. Communication and computation do not overlap.
    GPUs 0-3 and GPUs 4-7 are connected to one switch each, where all of them send at full speed. Data between
    the two groups pass through host memory, at the rate of one switch for both directions together.
    (This is our assumption about the machine. With that rate in each direction, eight GPUs would be 6.9 times
    as fast.)

    Args:
        gpus: 1, 2, 4 or 8.
    """
    steps = EPOCHS * IMAGES / (128 * gpus)
    compute = 3600 * K20_HOURS[1] / (EPOCHS * IMAGES / 128)
    message = 2 * 4 * 128 * ACTIVATIONS  # forward and backward, float32, to each other GPU
    near, far = min(gpus, 4) - 1, max(0, gpus - 4)
    talk = (near * message + 8 * CONVOLUTIONS * (gpus - 1) / gpus) / SWITCH
    talk += gpus * far * message / SWITCH
    return steps * (compute + talk) / 3600


# --- the table --------------------------------------------------------------------------------------


def rows() -> list[dict]:
    """Return the rows of the table: experiment, ranks, published and modelled efficiency, fitted, limit."""
    cluster, found = pascal_cluster(*FITTED), []
    for name, network in NETWORKS.items():
        for ranks, published in PUBLISHED[name].items():
            model = forecast(network, cluster, ranks)
            found.append({"experiment": name, "ranks": ranks, "published": published,
                          "model": model.efficiency, "fitted": ranks in FITTED_TO,
                          "limit": model.limit})  # fmt: skip
    for gpus, hours in list(K20_HOURS.items())[1:]:
        found.append({"experiment": "One weird trick", "ranks": gpus,
                      "published": K20_HOURS[1] / hours / gpus,
                      "model": K20_HOURS[1] / one_weird_trick(gpus) / gpus,
                      "fitted": False, "limit": "bandwidth"})  # fmt: skip
    return found
