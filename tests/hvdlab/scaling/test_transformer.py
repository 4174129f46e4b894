"""Parameters and KV caches of published networks."""

import pytest

from hvdlab.scaling.transformer import Transformer, kv_cache_bytes


def shape(layers, width, heads, vocabulary, kv_heads, feed_forward, **more):
    return Transformer(0, layers, width, heads, vocabulary, kv_heads, feed_forward, True, **more)


# Parameters of the published weights, and the bytes of a token's keys and values with 16 bits.
PUBLISHED = {
    "Llama 2 7B": (shape(32, 4096, 32, 32000, 32, 11008), 6_738_415_616),
    "Llama 2 13B": (shape(40, 5120, 40, 32000, 40, 13824), 13_015_864_320),
    "Llama 2 70B": (shape(80, 8192, 64, 32000, 8, 28672), 68_976_648_192),
    "Llama 3 8B": (shape(32, 4096, 32, 128256, 8, 14336), 8_030_261_248),
    "Llama 3 70B": (shape(80, 8192, 64, 128256, 8, 28672), 70_553_706_496),
    "Llama 3.1 405B": (shape(126, 16384, 128, 128256, 8, 53248), 405_853_388_800),
    "Mistral 7B": (shape(32, 4096, 32, 32000, 8, 14336), 7_241_732_096),
    "Mixtral 8x7B": (
        shape(32, 4096, 32, 32000, 8, 14336, experts=8, experts_per_token=2), 46_702_792_704
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_the_parameters_of_the_published_weights(name):
    """The only parameters that are not counted are two norms per layer and the last one."""
    network, parameters = PUBLISHED[name]
    norms = (2 * network.layers + 1) * network.hidden_size
    assert network.counted_parameters() + norms == parameters


@pytest.mark.parametrize(
    ("network", "total", "active"),
    [  # in billions: Jiang et al. 2024; Qwen Team 2025; Muennighoff et al. 2024; Databricks 2024
        (PUBLISHED["Mixtral 8x7B"][0], 46.7, 12.9),
        (shape(56, 6144, 48, 32768, 8, 16384, experts=8, experts_per_token=2), 141, 39),
        (shape(94, 4096, 64, 151936, 4, 1536, head_size=128, experts=128, experts_per_token=8), 235, 22),
        (shape(48, 2048, 32, 151936, 4, 768, head_size=128, experts=128, experts_per_token=8), 30.5, 3.3),
        (shape(16, 2048, 16, 50304, 16, 1024, experts=64, experts_per_token=8), 6.9, 1.3),
        (shape(40, 6144, 48, 100352, 8, 10752, experts=16, experts_per_token=4), 132, 36),
    ],
)  # fmt: skip
def test_a_mixture_of_experts_has_the_published_parameters(network, total, active):
    assert network.counted_parameters() / 1e9 == pytest.approx(total, rel=0.01)
    assert network.active_parameters() / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(
    ("name", "kilobytes"), [("Llama 3.1 405B", 516.096), ("Llama 2 70B", 327.68)]
)
def test_a_token_has_the_published_bytes_of_keys_and_values(name, kilobytes):
    """Zhao et al. 2025, arXiv:2505.09343, table 1. Qwen2.5 72B has the attention of Llama 2 70B."""
    assert kv_cache_bytes(PUBLISHED[name][0], 1) == 1e3 * kilobytes


def test_a_gpu_stores_at_least_one_head():
    network = PUBLISHED["Llama 3 8B"][0]
    eight = kv_cache_bytes(network, 1000, tensor=8)
    assert eight == kv_cache_bytes(network, 1000) / 8
    assert kv_cache_bytes(network, 1000, tensor=32) == eight


def test_the_keys_of_a_layer_are_as_large_as_pytorch_says():
    torch = pytest.importorskip("torch")
    keys = torch.empty(
        3, 2, 5, 16, dtype=torch.bfloat16, device="meta"
    )  # sequences, heads, tokens, width
    network = Transformer(0, 1, 64, 4, 1, kv_heads=2)
    assert kv_cache_bytes(network, 15) == 2 * keys.nbytes
