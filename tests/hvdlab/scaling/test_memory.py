"""The memory of a GPU against published numbers, the solution of lab 12 and tensors that autograd saves."""

from dataclasses import replace

import pytest
from lab_functions import solution

from hvdlab.scaling.memory import (
    Plan,
    Transformer,
    layer_activations,
    rank_bytes,
    stage_activations,
    stage_layers,
    training_memory,
)

GPT3 = Transformer(175e9, layers=96, hidden_size=12288, heads=96, vocabulary=51200)
MT_NLG = Transformer(530e9, layers=105, hidden_size=20480, heads=128, vocabulary=51200)


@pytest.mark.parametrize(
    ("network", "attention", "saved"), [(GPT3, 80, 0.70), (MT_NLG, 64, 0.65)], ids=["GPT-3", "530B"]
)
def test_selective_checkpointing_saves_what_the_paper_says(network, attention, saved):
    """Korthikanti et al. 2022, section 5: 5as/h is 80 and 64 next to 34, and 70 % and 65 % are saved."""
    plan = Plan(ranks=1, sequence=2048)
    kept = layer_activations(network, plan, "none")
    assert kept == 2048 * network.hidden_size * (34 + attention)
    selective = layer_activations(network, plan, "selective")
    assert 1 - selective / kept == pytest.approx(saved, abs=0.005)
    fused = replace(plan, fused_attention=True)
    assert layer_activations(network, fused, "none") == selective


@pytest.mark.parametrize(
    ("sequence_parallel", "checkpointing", "factor"),
    [
        (False, "none", 10 + 24 / 8 + 80 / 8),
        (True, "none", 34 / 8 + 80 / 8),
        (False, "selective", 10 + 24 / 8),
        (True, "selective", 34 / 8),
        (False, "full", 2),
        (True, "full", 2 / 8),
    ],
)
def test_a_layer_of_gpt_3_keeps_what_table_2_says(sequence_parallel, checkpointing, factor):
    """Korthikanti et al. 2022, table 2, with s b h = 2048 x 4 x 12288 and t = 8."""
    plan = Plan(ranks=8, tensor=8, micro_batch=4, sequence_parallel=sequence_parallel)
    found = layer_activations(GPT3, plan, checkpointing)
    assert found == pytest.approx(2048 * 4 * 12288 * factor)


def saved_bytes(layer, x, weights, least):
    """Return the bytes that autograd keeps of activations and masks with at least `least` numbers.

    The means of a norm and the sums of a softmax are smaller, or float32.
    """
    import torch

    own = {each.untyped_storage().data_ptr() for each in weights.values()}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        counts = tensor.numel() >= least and tensor.dtype in (x.dtype, torch.bool)
        if counts and storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    return sum(nbytes for nbytes, _ in saved.values())


def random_weights(shapes, dtype):
    import torch

    return {n: torch.randn(*shape, dtype=dtype, requires_grad=True) for n, shape in shapes.items()}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_a_layer_keeps_what_autograd_saves(precision, fused):
    """Write a layer with PyTorch and count the saved tensors. Fused attention keeps no scores."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    s, b, h, a = 64, 2, 64, 4
    network = Transformer(1, 1, h, a, 1)
    dtype = {"mixed": torch.bfloat16, "float32": torch.float32}[precision]
    shapes = {"qkv": (3 * h, h), "out": (h, h), "up": (4 * h, h), "down": (h, 4 * h)}
    weights = random_weights(shapes | {"norm1": (h,), "norm2": (h,)}, dtype)

    def dropout(x):
        return torch.native_dropout(x, 0.1, True)[0]

    def attention(x):
        q, k, v = (
            each.view(b, s, a, h // a).transpose(1, 2)
            for each in F.linear(x, weights["qkv"]).chunk(3, -1)
        )
        if fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-1, -2) * (h // a) ** -0.5
            mixed = dropout(scores.softmax(-1)) @ v
        return dropout(F.linear(mixed.transpose(1, 2).reshape(b, s, h), weights["out"]))

    def layer(x):
        x = x + attention(F.layer_norm(x, (h,), weights["norm1"]))
        y = F.layer_norm(x, (h,), weights["norm2"])
        return x + dropout(F.linear(F.gelu(F.linear(y, weights["up"])), weights["down"]))

    x = torch.randn(b, s, h, dtype=dtype, requires_grad=True)
    plan = Plan(1, sequence=s, micro_batch=b, precision=precision, fused_attention=fused)
    assert saved_bytes(layer, x, weights, s * b * h) == layer_activations(network, plan, "none")


@pytest.mark.parametrize(("heads", "width"), [(32, 3.5), (128, 3.25)])
def test_a_gated_layer_with_grouped_queries_keeps_what_autograd_saves(heads, width):
    """Eight key and value heads, a gated feed-forward network and no dropout: 8 and 405 billion."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    norm = F.layer_norm  # which keeps its input; RMSNorm is no single operation on a CPU
    s, b, h = 16, 2, 2 * heads
    f, kv = int(width * h), h * 8 // heads
    shapes = {"q": (h, h), "k": (kv, h), "v": (kv, h), "out": (h, h)}
    shapes |= {"gate": (f, h), "up": (f, h), "down": (h, f), "norm1": (h,), "norm2": (h,)}
    weights = random_weights(shapes, torch.bfloat16)

    def layer(x):
        y = norm(x, (h,), weights["norm1"])
        q, k, v = (
            F.linear(y, weights[name]).view(b, s, -1, h // heads).transpose(1, 2) for name in "qkv"
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(b, s, h), weights["out"])
        y = norm(x, (h,), weights["norm2"])
        gated = F.silu(F.linear(y, weights["gate"])) * F.linear(y, weights["up"])
        return x + F.linear(gated, weights["down"])

    x = torch.randn(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    network = Transformer(1, 1, h, heads, 1, kv_heads=8, feed_forward=f, gated=True)
    plan = Plan(1, sequence=s, micro_batch=b, fused_attention=True)
    expected = layer_activations(network, plan, "none")
    assert saved_bytes(layer, x, weights, s * b * kv) == expected
    assert expected == s * b * h * {32: 41, 128: 38.25}[heads]


def test_the_parts_of_a_rank_agree_with_the_solution_of_lab_12():
    theirs = solution(12, "rank_bytes")
    for stage in range(4):
        for ranks in (1, 3, 64):
            ours = rank_bytes(7.5e9, ranks, stage, 2, 2, 12)
            assert ours.total == pytest.approx(theirs(7.5e9, ranks, stage, 2, 2, 12))


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_parts_of_a_rank_are_those_of_the_paper_on_zero(stage, gigabytes):
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 ranks."""
    network = Transformer(7.5e9, 1, 1, 1, 1)
    found = training_memory(network, Plan(64, zero_stage=stage))
    states = found.weights + found.gradients + found.state
    assert states / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_the_first_stage_holds_all_layers_of_the_network_whatever_the_pipeline():
    """Korthikanti et al. 2022, section 4.2.3: L/p layers of p micro-batches are L layers."""
    alone = stage_activations(GPT3, Plan(1, micro_batches=64), 0)
    head = 4 * 2048 * 12288 + 4 * 2048 * 51200  # inputs of norm and matrix, logits
    masks = 2048 * 12288  # of the embedding, for each micro-batch that is held
    for pipeline in (2, 8, 96):
        first = stage_activations(GPT3, Plan(pipeline, pipeline=pipeline, micro_batches=128), 0)
        assert first == pytest.approx(alone - head + (pipeline - 1) * masks)
    few = stage_activations(GPT3, Plan(8, pipeline=8, micro_batches=2), 0)
    assert few == pytest.approx((alone - head - masks) / 4 + 2 * masks)


def test_full_checkpointing_keeps_inputs_and_one_whole_layer():
    """Lab 9: one array for each segment, and all arrays of the segment that is computed again."""
    plan = Plan(1, checkpointing="full")
    one = layer_activations(GPT3, plan, "full")
    whole = layer_activations(GPT3, plan, "none")
    head_and_mask = 5 * 2048 * 12288 + 4 * 2048 * 51200
    assert stage_activations(GPT3, plan, 0) == 95 * one + whole + head_and_mask


def test_layers_that_do_not_divide_evenly_go_to_the_first_stages():
    assert [stage_layers(126, 16, stage) for stage in range(16)] == [8] * 14 + [7] * 2
    plan = Plan(16, pipeline=16)
    network = Transformer(126e9, 126, 16, 1, 1)
    weights = [training_memory(network, plan, stage).weights for stage in range(16)]
    assert weights == [16e9] * 14 + [14e9] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 12}, "multiple of tensor x pipeline x context = 8. Received: 12"),
        ({"context": 3, "ranks": 48}, "divide the 2048 tokens of a sequence. Received: 3"),
        (
            {"expert": 2},
            "divide the 1 experts and the 2 data- and context-parallel ranks. Received: 2",
        ),
        ({"method": "prompt"}, "method must be one of full, LoRA, QLoRA. Received: 'prompt'"),
        ({"tensor": 64, "ranks": 64}, "divide the 96 attention heads. Received: 64"),
        ({"pipeline": 97, "ranks": 97, "tensor": 1}, "at most the 96 layers. Received: 97"),
        ({"precision": "int4"}, "precision must be one of float32"),
        ({"zero_stage": 4}, "zero_stage must be one of 0, 1, 2, 3. Received: 4"),
    ],
)
def test_an_impossible_plan_is_refused(changes, message):
    plan = replace(Plan(ranks=16, tensor=8), **changes)
    with pytest.raises(ValueError, match=message):
        training_memory(GPT3, plan)
