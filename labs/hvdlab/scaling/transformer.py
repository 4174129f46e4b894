"""The shape of a transformer: its parameters, those that a token uses, and its KV cache.

    llama = Transformer(70.6e9, 80, 8192, 64, 128256, kv_heads=8, feed_forward=28672, gated=True)
    kv_cache_bytes(llama, tokens=8192)                # 2.7 GB

Grouped-query attention (GQA) has fewer key and value heads than query heads. A mixture of experts (MoE) has
several feed-forward networks in each layer, and a token uses a few of them.

Source: Vaswani et al. 2017, arXiv:1706.03762. GQA: Ainslie et al. 2023, arXiv:2305.13245. Gated feed-forward
network: Shazeer 2020, arXiv:2002.05202. KV cache: Kwon et al. 2023, arXiv:2309.06180, section 3.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer.

    Attributes:
        parameters: number of parameters of the whole network, as published.
        layers: number of transformer layers.
        hidden_size: width between the layers.
        heads: attention heads of a layer.
        vocabulary: number of tokens.
        kv_heads: key and value heads. Default `heads` (multi-head attention).
        feed_forward: width inside a feed-forward network or one expert. Default 4 times `hidden_size`.
        gated: the feed-forward network has a gate (SwiGLU), and the network has no dropout. Default False:
            GELU and dropout, like GPT-3.
        head_size: width of a head. Default `hidden_size` / `heads`.
        experts: feed-forward networks of a layer. Default 1.
        experts_per_token: experts that a token uses. Default 1.
    """

    parameters: float
    layers: int
    hidden_size: int
    heads: int
    vocabulary: int
    kv_heads: int | None = None
    feed_forward: int | None = None
    gated: bool = False
    head_size: int | None = None
    experts: int = 1
    experts_per_token: int = 1

    @property
    def query_width(self) -> float:
        """Numbers of all query heads of a token."""
        return self.heads * (self.head_size or self.hidden_size / self.heads)

    @property
    def kv_width(self) -> float:
        """Numbers of all key heads of a token, which is also that of all value heads."""
        return self.query_width * (self.kv_heads or self.heads) / self.heads

    @property
    def expert_width(self) -> int:
        """Width inside a feed-forward network."""
        return self.feed_forward or 4 * self.hidden_size

    @property
    def attention_weights(self) -> float:
        """Weights of the four matrices of attention in a layer."""
        return 2 * self.hidden_size * (self.query_width + self.kv_width)

    @property
    def expert_weights(self) -> float:
        """Weights of one feed-forward network: two matrices, or three with a gate."""
        return (3 if self.gated else 2) * self.hidden_size * self.expert_width

    @property
    def routed_weights(self) -> float:
        """Weights of all experts of all layers; 0 if a layer has only one feed-forward network."""
        return self.layers * self.experts * self.expert_weights if self.experts > 1 else 0.0

    def counted_parameters(self, tied: bool = False) -> float:
        """Return the weights of the matrices, without biases, norms and position embeddings.

        Args:
            tied: the first and the last matrix are the same. Default False.
        """
        return self._counted(self.experts, tied)

    def active_parameters(self, tied: bool = False) -> float:
        """Return the weights that a token uses. It is `counted_parameters` without the experts not chosen.

        Args:
            tied: as in `counted_parameters`.
        """
        return self._counted(self.experts_per_token, tied)

    def _counted(self, experts: int, tied: bool) -> float:
        router = self.hidden_size * self.experts if self.experts > 1 else 0
        layer = self.attention_weights + experts * self.expert_weights + router
        return self.layers * layer + (1 if tied else 2) * self.vocabulary * self.hidden_size


def kv_cache_bytes(
    network: Transformer, tokens: float, number: float = 2, tensor: int = 1
) -> float:
    """Return the bytes of the keys and values that one GPU stores for generating text.

    Args:
        network: shape of the network.
        tokens: of all sequences together.
        number: bytes of a key's or value's number. Default 2.
        tensor: tensor-parallel degree, which divides the key and value heads. A GPU has at least one of
            them. Default 1.
    """
    split = min(tensor, network.kv_heads or network.heads)
    return 2 * network.layers * network.kv_width / split * number * tokens
