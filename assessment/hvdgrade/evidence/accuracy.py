"""Compute what a network with given weights says about images."""

from contextlib import nullcontext

import numpy as np

from hvdgrade.evidence.evidence import LearnedClasses
from hvdgrade.evidence.hidden_data import CLASSES, HiddenData
from hvdlab.assessment_networks import ASSESSMENT_NET

LEAST_FLOW_IMAGES = 100


def logits_with_torch(
    arrays: dict, images: np.ndarray, own_statistics: bool, network: str
) -> np.ndarray:
    """Return the logits of the network with these weights for `images`: shape (n, 10)."""
    import torch

    from hvdlab.torch import models

    torch.set_flush_denormal(True)  # with denormal weights a CPU is thirty times slower
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = network != ASSESSMENT_NET and torch.cuda.is_available()
    device = "cuda:0" if on_gpu else "cpu"
    model = models.from_arrays(arrays, network).to(device).train(own_statistics)
    with torch.inference_mode(), nullcontext() if on_gpu else models.autocast("cpu"):
        batches = (torch.from_numpy(images[i : i + 500]) for i in range(0, len(images), 500))
        return torch.cat([model(batch.to(device)).float().cpu() for batch in batches]).numpy()


def logits_with_keras(
    arrays: dict, images: np.ndarray, own_statistics: bool, network: str
) -> np.ndarray:
    """Return the same logits from the Keras network, for a machine without PyTorch."""
    from hvdlab.keras import models

    with models.keras.device("cpu:0") if network == ASSESSMENT_NET else nullcontext():
        model = models.from_arrays(arrays, network=network)
        batches = (images[i : i + 500] for i in range(0, len(images), 500))
        each = [np.asarray(model(batch, training=own_statistics)) for batch in batches]
    return np.concatenate(each)


def logits(
    arrays: dict, images: np.ndarray, own_statistics: bool = False, network: str = ASSESSMENT_NET
) -> np.ndarray:
    """Return the logits of the network for `images`; uses PyTorch if it is installed and otherwise Keras.

    Args:
        arrays: the weights, name -> array.
        images: array of n images.
        own_statistics: whether batch norm normalises with the statistics of `images`, in batches of 500,
            instead of its running statistics. Default: False.
        network: name of the network. Default: the assessment network.

    Returns:
        Array of shape (n, 10).
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        return logits_with_keras(arrays, images, own_statistics, network)
    return logits_with_torch(arrays, images, own_statistics, network)


def accuracy(
    arrays: dict, images: np.ndarray, labels: np.ndarray, network: str = ASSESSMENT_NET
) -> float:
    """Return the fraction of `images` that the network with these weights classifies correctly."""
    return float((logits(arrays, images, network=network).argmax(1) == labels).mean())


def flow(
    arrays: dict,
    images: np.ndarray,
    labels: np.ndarray,
    rank: int,
    ranks: int,
    secrets: HiddenData,
    network: str = ASSESSMENT_NET,
) -> LearnedClasses:
    """Measure what the weights of `rank` learned in the probe about each kind of class.

    In the probe, each rank sees only labels of its own classes. The test images have a class of their own.

    Args:
        arrays: the weights of `rank`, name -> array.
        images: n training images of the probe.
        labels: their labels in the graded run, shape (n,).
        rank: the rank that recorded the weights.
        ranks: number of ranks.
        secrets: the secrets from which the labels of each rank were made.
        network: name of the network. Default: the assessment network.

    Returns:
        Three numbers. `learned` is the mean log probability of the rank's own classes on images
        with that label, minus that on images with another label, averaged over the classes. An accuracy is
        less informative, because after a few steps one class often has the highest probability on all
        images. `others` is the probability that the weights give to the classes of other ranks, relative to
        a uniform distribution over all classes of training images. It is 0 if the rank received nothing
        about them, and 1 if it learned as much from each other rank as from its own data. `test_class` is
        the probability of the class of the test images, relative to a uniform distribution over all
        classes. It is below 1 if the rank did not train on test images.
    """
    # After so few steps, the running statistics of batch norm are still far from those of the data.
    says = logits(arrays, images, own_statistics=True, network=network)
    # Weights near the largest float give infinite logits. No training produces such weights.
    if not np.isfinite(says).all():
        return LearnedClasses(learned=0.0, others=0.0, test_class=1.0)
    says = says.astype(np.float64)
    says = says - says.max(1, keepdims=True)
    likely = says - np.log(np.exp(says).sum(1, keepdims=True))
    own = secrets.classes_of(rank, ranks)
    given = secrets.labels_of(rank, ranks, labels)
    learned = [
        likely[given == c, c].mean() - likely[given != c, c].mean()
        for c in own
        if 0 < (given == c).sum() < len(given)
    ]
    probability = np.exp(likely).mean(0)
    of_test = probability[secrets.test_class]
    others = 1 - probability[own].sum() / max(1 - of_test, 1e-12)
    return LearnedClasses(
        learned=float(np.mean(learned)),
        others=float(others / (1 - len(own) / (CLASSES - 1))),
        test_class=float(of_test * CLASSES),
    )
