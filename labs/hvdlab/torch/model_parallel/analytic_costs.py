"""What a rank holds and sends when the layers of `ResidualMLP` are split, with a pencil.

    costs = split_costs("grid", ranks=4, columns=2)
    costs.memory, costs.sent        # bytes of parameters, gradients and momentum; bytes a step

The modes are those of `tensor_parallel.py`. Numbers are float32.
"""

from typing import NamedTuple


class Costs(NamedTuple):
    """`memory`: bytes that rank 0 holds between two steps. `sent`: bytes that it sends in a step."""

    memory: float
    sent: float


def all_reduce(ranks: int, nbytes: float) -> float:
    """Bytes that a rank sends: a ring sends 2 (n-1)/n of the array (Patarasuk and Yuan 2009)."""
    return 2 * (ranks - 1) / ranks * nbytes


def all_gather(ranks: int, nbytes: float) -> float:
    """Bytes that a rank sends, of an array that is `nbytes` long when it is gathered."""
    return (ranks - 1) / ranks * nbytes


# NOTE: Gloo's, which all-reduces and keeps a part; NCCL sends half of it.
reduce_scatter = all_reduce


def split_costs(
    mode: str,
    ranks: int,
    columns: int = 2,
    depth: int = 1,
    *,
    num_layers: int = 4,
    hidden_size: int = 256,
    batch_size: int = 64,
    inputs: int = 28 * 28,
    classes: int = 10,
) -> Costs:
    """Costs of SGD with momentum (a parameter, its gradient and its velocity: 12 bytes).

    Args:
        mode: "serial", "by-hand", "dtensor", "sequence", "grid" or "axonn".
        columns, depth: of the grid of ranks; only "grid" and "axonn" have columns, only "axonn" depth.
    """
    h, layers = hidden_size, num_layers
    if mode == "sequence":
        return _sequence(ranks, layers, h, batch_size, inputs, classes)
    c = columns if mode in ("grid", "axonn") else 1
    d = depth if mode == "axonn" else 1
    r, batch = ranks // (c * d), batch_size / d

    matrices = layers * 8 * h * h / (r * c)  # up and down; depth splits them once more
    biases = layers * (4 * h / r + h / c)
    rest = (inputs + 1) * h / c + (layers + 1) * 2 * h / c + classes * (h / c + 1)
    memory = 12 * (matrices / d + biases + rest)

    up, down = 4 * batch * 4 * h / r, 4 * batch * h / c
    sent = layers * 2 * (all_reduce(c, up) + all_reduce(r, down))
    # With columns the norms need two sums for each example, forth and back; the head's products are partial.
    sent += (layers + 1) * 4 * all_reduce(c, 4 * batch) + all_reduce(c, 4 * batch * classes)
    sent += 2 * all_gather(d, 4 * matrices) + reduce_scatter(d, 4 * matrices)
    sent += all_reduce(d, 4 * (biases + rest))
    return Costs(memory, sent)


def _sequence(ranks, layers, h, batch, inputs, classes):
    """Between the blocks the examples are split: f gathers, g reduce-scatters, and backward the reverse."""
    heads = -(-classes // ranks) * (h + 1)  # rank 0 has the largest part of ten classes
    stem = inputs * h / ranks + h
    memory = 12 * (stem + layers * (3 * h + 8 * h * h / ranks + 4 * h / ranks) + 2 * h + heads)
    x = 4 * batch * h
    pairs = layers * 2 + 2  # gather and reduce-scatter: f and g both ways, the stem, the head
    sent = pairs * (all_gather(ranks, x) + reduce_scatter(ranks, x))
    sent += all_gather(ranks, 4 * batch * classes)
    # The norms' gradients are of this rank's examples: the optimizer's step sums them.
    sent += (layers + 1) * 2 * all_reduce(ranks, 4 * h)
    return Costs(memory, sent)
