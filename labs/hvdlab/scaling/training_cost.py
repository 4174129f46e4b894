"""Predict the GPU hours, days and price of training a transformer on a number of tokens.

    training_cost(405e9, 15.6e12, gpus=16384, peak=989e12, utilization=0.41).days     # 66

A token needs 6 floating-point operations per parameter, and attention needs 12 L h s more, for L layers of
width h and sequences of s tokens. The model FLOPs utilization (MFU) is the fraction of a GPU's peak speed
that these operations reach. Operations of checkpointing, which computes activations again, do not count.

Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1 (6ND). Chowdhery et al. 2022, arXiv:2204.02311,
appendix B (attention and MFU).
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """What a training needs.

    Attributes:
        flops: floating-point operations of the model.
        gpu_hours: hours of all GPUs together, with the time lost.
        days: from the start to the end.
        price: `gpu_hours` times the price of a GPU hour; None if no price is given.
    """

    flops: float
    gpu_hours: float
    days: float
    price: float | None


def token_flops(
    parameters: float, layers: int = 0, hidden_size: int = 0, sequence: int = 0
) -> float:
    """Return the operations of a forward and a backward pass for one token, without checkpointing.

    Args:
        parameters: that a token uses, that is, without experts that are not chosen.
        layers: number of layers. Default 0: leave out attention.
        hidden_size: width of all query heads, in most networks that of a layer.
        sequence: tokens of a sequence.
    """
    return 6 * parameters + 12 * layers * hidden_size * sequence


def training_cost(
    parameters: float,
    tokens: float,
    gpus: int,
    peak: float,
    utilization: float,
    *,
    layers: int = 0,
    hidden_size: int = 0,
    sequence: int = 0,
    lost: float = 0.0,
    price: float | None = None,
) -> Cost:
    """Return what the training of a transformer needs.

    Args:
        parameters: that a token uses.
        tokens: of the training.
        gpus: number of GPUs.
        peak: operations per second of a GPU, as its maker says for the precision of the training.
        utilization: MFU, above 0 and at most 1.
        layers: as in `token_flops`. Default 0.
        hidden_size: as in `token_flops`. Default 0.
        sequence: as in `token_flops`. Default 0.
        lost: fraction of the time without progress, for example by failures. Default 0.
        price: of a GPU hour. Default None.

    Raises:
        ValueError: the utilization or the lost fraction is out of range.
    """
    if not 0 < utilization <= 1 or not 0 <= lost < 1:
        raise ValueError(
            "utilization must be above 0 and at most 1, and lost from 0 to below 1. "
            f"Received: utilization={utilization}, lost={lost}"
        )
    flops = tokens * token_flops(parameters, layers, hidden_size, sequence)
    hours = flops / (peak * utilization) / (1 - lost) / 3600
    return Cost(flops, hours, hours / gpus / 24, None if price is None else hours * price)
