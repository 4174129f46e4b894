"""Formulas for the bytes that a rank holds and sends when the layers of `ResidualMLP` are split.

    costs = split_costs("grid", ranks=4, columns=2)
    costs.memory, costs.sent        # bytes of parameters, gradients and momentum; bytes per step

The modes are those of `tensor_parallel.py`. All numbers are float32, of 4 bytes.
"""

from typing import NamedTuple


class Costs(NamedTuple):
    """Costs of a split.

    Attributes:
        memory: bytes that rank 0 holds between two steps.
        sent: bytes that rank 0 sends per step.
    """

    memory: float
    sent: float


def all_reduce(ranks: int, nbytes: float) -> float:
    """Return the bytes that a rank sends in a ring all-reduce: 2 (n-1)/n of the array.

    Source: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms, 2009.
    """
    return 2 * (ranks - 1) / ranks * nbytes


def all_gather(ranks: int, nbytes: float) -> float:
    """Return the bytes that a rank sends in an all-gather: (n-1)/n of the gathered array.

    Args:
        ranks: number of ranks, n.
        nbytes: bytes of the gathered array.
    """
    return (ranks - 1) / ranks * nbytes


# NOTE: This is Gloo's algorithm, which all-reduces and keeps a slice. NCCL sends half of that.
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
    """Return the costs of training with SGD and momentum.

    A parameter, its gradient and its velocity take 12 bytes.

    Args:
        mode: "serial", "by-hand", "dtensor", "sequence", "grid" or "axonn".
        ranks: number of ranks.
        columns: columns of the grid of ranks, which only "grid" and "axonn" have. Default 2.
        depth: depth of the grid, which only "axonn" has. Default 1.
        num_layers: blocks of the network. Default 4.
        hidden_size: width between the blocks. Default 256.
        batch_size: examples of a batch, over all ranks. Default 64.
        inputs: pixels of an image. Default 784.
        classes: number of classes. Default 10.
    """
    h, layers = hidden_size, num_layers
    if mode == "sequence":
        return _sequence(ranks, layers, h, batch_size, inputs, classes)
    c = columns if mode in ("grid", "axonn") else 1
    d = depth if mode == "axonn" else 1
    r, batch = ranks // (c * d), batch_size / d

    matrices = layers * 8 * h * h / (r * c)  # up and down; depth splits them again
    biases = layers * (4 * h / r + h / c)
    rest = (inputs + 1) * h / c + (layers + 1) * 2 * h / c + classes * (h / c + 1)
    memory = 12 * (matrices / d + biases + rest)

    up, down = 4 * batch * 4 * h / r, 4 * batch * h / c
    sent = layers * 2 * (all_reduce(c, up) + all_reduce(r, down))
    # With columns each norm needs two sums per example, forward and backward, and the head's products are
    # partial sums.
    sent += (layers + 1) * 4 * all_reduce(c, 4 * batch) + all_reduce(c, 4 * batch * classes)
    sent += 2 * all_gather(d, 4 * matrices) + reduce_scatter(d, 4 * matrices)
    sent += all_reduce(d, 4 * (biases + rest))
    return Costs(memory, sent)


def _sequence(ranks: int, layers: int, h: int, batch: float, inputs: int, classes: int) -> Costs:
    """Return the costs of mode "sequence", which splits the examples between the blocks.

    f gathers the examples and g reduce-scatters them; in the backward pass the roles are exchanged.
    """
    heads = -(-classes // ranks) * (h + 1)  # rank 0 has the most of the ten classes
    stem = inputs * h / ranks + h
    memory = 12 * (stem + layers * (3 * h + 8 * h * h / ranks + 4 * h / ranks) + 2 * h + heads)
    x = 4 * batch * h
    # Pairs of a gather and a reduce-scatter: f and g forward and backward, the stem, the head.
    pairs = layers * 2 + 2
    sent = pairs * (all_gather(ranks, x) + reduce_scatter(ranks, x))
    sent += all_gather(ranks, 4 * batch * classes)
    # The gradients of the norms are those of this rank's examples, so the optimizer's step sums them.
    sent += (layers + 1) * 2 * all_reduce(ranks, 4 * h)
    return Costs(memory, sent)
