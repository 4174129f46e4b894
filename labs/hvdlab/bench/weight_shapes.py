"""The shapes of the weights of two well-known networks, on which the optimizers are measured."""

from collections.abc import Callable

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """Return the shapes of ResNet-50's 161 tensors, which hold 25.6 M weights.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2015, arXiv:1512.03385.
    """
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            convolutions = [(width, channels, 1, 1), (width, width, 3, 3), (out, width, 1, 1)]
            if block == 0:
                convolutions.append((out, channels, 1, 1))
            for shape in convolutions:
                shapes += [shape, shape[:1], shape[:1]]  # the convolution and its batch norm
            channels = out
    return [*shapes, (1000, 2048), (1000,)]


def transformer(
    layers: int = 12, width: int = 768, vocabulary: int = 30_522, positions: int = 512
) -> list[Shape]:
    """Return the shapes of a transformer encoder; by default of BERT-base's size, 109 M weights.

    Args:
        layers: number of encoder layers.
        vocabulary: number of tokens that have an embedding.

    Source: Devlin et al., "BERT", 2018, arXiv:1810.04805.
    """
    norm = [(width,), (width,)]
    attention = [(width, width), (width,)] * 4
    feed_forward = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    embeddings = [(vocabulary, width), (positions, width), (2, width)]
    return [*embeddings, *norm, *(attention + norm + feed_forward + norm) * layers]


NETWORKS: dict[str, Callable[[], list[Shape]]] = {"resnet50": resnet50, "transformer": transformer}
