"""The memory of LoRA, QLoRA, experts and buffers against PyTorch's own counts and published numbers."""

from dataclasses import replace

import pytest

from hvdlab.scaling.memory import Plan, Transformer, buffers, fixed_parts, lora_parameters
from hvdlab.scaling.plan import NF4_BYTES

LLAMA_2 = Transformer(6.738e9, 32, 4096, 32, 32000, feed_forward=11008, gated=True)
MIXTRAL = Transformer(46.7e9, 32, 4096, 32, 32000, 8, 14336, True, None, 8, 2)


def test_lora_trains_as_many_parameters_as_peft_reports():
    """PEFT prints 39,976,960 for rank 16 on all linear layers of Llama 2 7B, and 159,907,840 for rank 64.

    Those are the numbers of trainable parameters in the QLoRA scripts of 2023.
    """
    assert lora_parameters(LLAMA_2, 16) == (39_976_960, 0)
    assert lora_parameters(LLAMA_2, 64) == (159_907_840, 0)


def test_quantized_weights_have_the_bits_of_the_paper():
    """Dettmers et al. 2023, section 3: double quantization needs 0.127 bits more than 4."""
    assert pytest.approx(4.127, abs=0.0005) == 8 * NF4_BYTES
    found = fixed_parts(LLAMA_2, Plan(1, method="QLoRA", precision="bfloat16"), 0)
    embeddings = 2 * 32000 * 4096
    linear = 6.738e9 - embeddings
    adapters = 39_976_960
    assert found.weights == pytest.approx(
        linear * NF4_BYTES + 2 * (embeddings + adapters), rel=1e-3
    )
    assert found.gradients == 2 * adapters and found.state == 4 * adapters


def test_lora_keeps_no_gradients_and_no_state_of_frozen_weights():
    full, lora = (
        fixed_parts(LLAMA_2, Plan(8, zero_stage=3, method=method), 0) for method in ("full", "LoRA")
    )
    assert full.gradients + full.state == pytest.approx(14 * 6.738e9 / 8)
    assert lora.gradients + lora.state == 14 * 39_976_960 / 8
    assert lora.weights == pytest.approx(2 * (6.738e9 + 39_976_960) / 8)


def test_expert_parallelism_divides_only_the_experts():
    plan = Plan(8, precision="bfloat16", zero_stage=1)
    alone, spread = (fixed_parts(MIXTRAL, replace(plan, expert=e), 0) for e in (1, 8))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert alone.weights - spread.weights == pytest.approx(2 * experts * 7 / 8)
    assert alone.state == pytest.approx(spread.state), "both shard the state over 8 ranks"


def test_a_whole_layer_is_gathered_as_pytorch_counts_it():
    torch = pytest.importorskip("torch")
    h, f, kv = 64, 176, 16
    with torch.device("meta"):
        matrices = [(h, h), (h, h), (h, kv), (h, kv), (h, f), (h, f), (f, h)]
        layer = sum(torch.nn.Linear(*shape, bias=False).weight.numel() for shape in matrices)
    network = Transformer(1e6, 3, h, 4, 2, kv_heads=1, feed_forward=f, gated=True)
    sharded = Plan(4, zero_stage=3)
    assert buffers(network, sharded, 0) == 2 * layer * 2 + layer * 2  # two in 16 bits, gradients
    assert buffers(network, replace(sharded, zero_stage=2), 0) == layer * 2
    assert buffers(network, replace(sharded, zero_stage=1), 0) == 0


@pytest.mark.parametrize("number", [2, 4])
def test_a_loss_that_is_not_fused_makes_the_copies_that_pytorch_makes(number):
    """Count the logits, their float32 copy, the log-softmax that autograd keeps, and the gradient."""
    torch = pytest.importorskip("torch")
    dtype = {2: torch.bfloat16, 4: torch.float32}[number]
    tokens, vocabulary = 6, 11
    logits = torch.randn(tokens, vocabulary, dtype=dtype, requires_grad=True)
    kept = {logits.data_ptr(): logits.nbytes}
    as_float = logits.float()
    kept[as_float.data_ptr()] = as_float.nbytes
    log_softmax = as_float.log_softmax(-1)
    kept[log_softmax.data_ptr()] = log_softmax.nbytes
    loss = torch.nn.functional.nll_loss(log_softmax, torch.zeros(tokens, dtype=torch.long))
    (gradient,) = torch.autograd.grad(loss, log_softmax)
    kept[gradient.data_ptr()] = gradient.nbytes
    network = Transformer(1, 1, 4, 1, vocabulary)
    plan = Plan(
        1, sequence=tokens, precision="mixed" if number == 2 else "float32", fused_loss=False
    )
    copies = (
        buffers(network, plan, 0) + 4 * tokens * vocabulary
    )  # the float32 logits are activations
    assert copies >= sum(kept.values())
    assert copies - sum(kept.values()) <= (4 if number == 4 else 0) * tokens * vocabulary
