"""Compute what a network with given weights says about images."""

from contextlib import nullcontext

import numpy as np

from hvdgrade.evidence.evidence import LearnedClasses
from hvdgrade.evidence.hidden_data import CLASSES, HiddenData
from hvdlab.assessment_networks import ASSESSMENT_NET


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
    # The weights of a probe may have moved less than bfloat16 can show.
    exact = on_gpu or own_statistics
    with torch.inference_mode(), nullcontext() if exact else models.autocast("cpu"):
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
    before: dict,
    after: dict,
    images: np.ndarray,
    labels: np.ndarray,
    rank: int,
    ranks: int,
    secrets: HiddenData,
    network: str = ASSESSMENT_NET,
) -> LearnedClasses:
    """Measure what `rank` learned in the probe about the classes of other ranks.

    In the probe, each rank sees only labels of its own classes. The test images have a class of their own.
    The measure is the mean probability that the weights give to each class. It says more than an accuracy,
    because after a few steps one class often has the highest probability on all images. Where weights
    hardly move, as in a warmup, the change of its logarithm still shows which classes they learned.

    Args:
        before: weights of `rank` after its first steps, name -> array.
        after: weights of `rank` after its last step.
        labels: their labels in the graded run, shape (n,).
        ranks: number of ranks.
        network: name of the network. Default: the assessment network.
    """
    # After so few steps, the running statistics of batch norm are still far from those of the data.
    says = [logits(arrays, images, True, network).astype(np.float64) for arrays in (before, after)]
    # Weights near the largest float give infinite logits. No training produces such weights.
    if not np.isfinite(says).all():
        return LearnedClasses(learned=0.0, others=0.0, others_change=0.0)
    then, now = (class_probabilities(each) for each in says)
    own = secrets.classes_of(rank, ranks)
    others = np.setdiff1d(np.arange(CLASSES), [*own, secrets.test_class])
    change = np.log(np.maximum(now, 1e-300)) - np.log(np.maximum(then, 1e-300))
    # Training makes the class that no training image has unlikely, and so does it with each class of which
    # a rank learns nothing.
    unseen = change[secrets.test_class]
    learned = change[own].mean() - unseen
    of_test = now[secrets.test_class]
    left = 1 - now[own].sum() / max(1 - of_test, 1e-12)
    return LearnedClasses(
        learned=float(abs(learned)),
        others=float(left / (1 - len(own) / (CLASSES - 1))),
        others_change=float((change[others].mean() - unseen) / learned) if learned else 0.0,
        test_class=float(of_test * CLASSES),
    )


def class_probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the mean probability of each class, for logits of shape (n, classes)."""
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return (odds / odds.sum(1, keepdims=True)).mean(0)
